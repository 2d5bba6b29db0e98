//! The one way out: a CloudEvent, the sinks that take it, and what happens when they do not.

pub mod circuit;
pub mod embedded;
pub mod event;
pub mod metrics;
pub mod outbox;
pub mod retention;
pub mod retry;
pub mod sink;
pub mod store;
pub mod worker;

#[cfg(test)]
mod testing;

pub use event::CloudEvent;
pub use sink::EventSink;
