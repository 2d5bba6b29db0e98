//! What tests share: receivers and proxies that misbehave on demand, private brokers to kill, and finders of the real
//! services. The product never depends on it.
//!
//! A helper that cannot do its work panics: in a test that is the failure to report. Nothing here sleeps to let
//! something happen; everything waits on a condition with a deadline (see [`eventually`]).

#![expect(clippy::expect_used, clippy::panic, reason = "in a test, a helper that cannot work is the failure to report")]

mod broker;
mod collector;
mod eventually;
mod kubelet;
pub mod kubernetes;
mod node;
mod process;
mod proxy;
mod pubsub;
mod rabbit;
mod receiver;
mod services;
mod tls;

pub use broker::Broker;
pub use collector::{Collector, Span};
pub use eventually::eventually;
pub use kubelet::ProcessNode;
pub use node::{Emulator, free_port};
pub use process::{alone, alone_with, beside, open_files, proc_status};
pub use proxy::{Mode, Proxy};
pub use pubsub::Subscription;
pub use rabbit::{Consumer, Message, Rabbit};
pub use receiver::{Answer, Receiver, Request};
pub use services::{
    amqp_url, cluster, control_plane, install_crypto, missing, private_broker, private_broker_with, private_emulator,
    process_node, pubsub_endpoint,
};
pub use tls::TlsFront;

/// A name no other test uses, for exchanges, queues and topics: `prefix-<uuid>`.
pub fn unique(prefix: &str) -> String {
    format!("{prefix}-{}", uuid::Uuid::new_v4().simple())
}
