//! The one way out: a CloudEvent, the sinks that take it, and what happens when they do not.

pub mod event;
pub mod retry;
pub mod sink;

pub use event::CloudEvent;
pub use sink::EventSink;
