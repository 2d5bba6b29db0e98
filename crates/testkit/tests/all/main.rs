//! The test tools tested: a proxy that does not cut or a receiver that does not record would make other tests lie.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod brokers;
mod kubelet;
mod kubernetes;
mod proxy;
mod receiver;
