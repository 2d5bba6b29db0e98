//! Polls a HyperFleet API, decides per resource whether it is due, and publishes reconcile events.
//!
//! Whether to publish is decided in [`decision`]; what is sent is put together in [`payload`] and [`event`]; the loop
//! around them is [`service`].

pub mod adapters;
pub mod api;
mod ceiling;
pub mod config;
pub mod coverage;
pub mod decision;
mod engine;
pub mod event;
pub mod explain;
pub mod expression;
mod feed;
pub mod inflight;
pub mod metrics;
mod notices;
pub mod object;
pub mod operator;
pub mod page;
mod partial;
pub mod payload;
mod publish;
pub mod recording;
pub mod resource;
pub mod selector;
pub mod service;
pub mod simulate;
pub mod template;
pub mod trace;

pub use ceiling::Ceiling;
pub use config::SentinelConfig;
pub use feed::Feeds;
pub use service::Sentinel;
