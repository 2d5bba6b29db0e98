//! Sinks against real far sides. An absent service skips its tests with a printed line (see `watchfire_testkit`).

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod conformance;
mod far;
mod pubsub;
mod rabbitmq;
mod rate;
