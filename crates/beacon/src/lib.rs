//! Announces annotated Kubernetes objects: each once when it appears, each once when it is gone.
//!
//! An *episode* is one span in which one object, by its UID, has the annotation. Each has one `created` event and, once
//! it is over, one `deleted` event. What begins or ends an episode is decided in [`episode`], from what a watch or a
//! list says and what the ledger has; the ledger's row and the event go into one transaction; the outbox delivers.

pub mod config;
mod drift;
mod endpoint;
pub mod episode;
pub mod ledger;
pub mod live;
pub mod metrics;
mod notice;
mod objects;
pub mod rights;
pub mod service;
pub mod storage;
pub mod verify;
mod watch;

pub use config::BeaconConfig;
pub use notice::{Envelope, Order};
pub use objects::Unwatchable;
pub use service::Beacon;
