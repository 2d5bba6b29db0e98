//! The binary as its users meet it: started, watched, signalled, killed; and the documents that say so.

#![expect(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "in a test, that is the failure to report")]

mod beacon;
mod config;
mod coverage;
mod demo;
mod deploy;
mod documents;
mod dropin;
mod errors;
mod explain;
mod generated;
mod live;
mod operator;
mod outbox;
mod recording;
mod sentinel;
mod support;
mod traces;
mod trust;
mod view;
mod whole;
