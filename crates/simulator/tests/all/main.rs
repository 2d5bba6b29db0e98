//! The simulator over HTTP, as its clients see it.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test helper that fails fails its test")]

mod adapters;
mod api;
mod brokers;
mod dialects;
mod faults;
mod replay;
mod support;
mod synthetic;
