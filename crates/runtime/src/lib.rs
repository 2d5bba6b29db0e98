//! A process's life: configuration, supervised tasks and shutdown, the admin server, telemetry.
//!
//! Everything here is shared by all services and knows nothing about any of them.

pub mod admin;
pub mod clock;
pub mod config;
pub mod crypto;
pub mod duration;
pub mod error;
pub mod health;
pub mod metrics;
pub mod redact;
pub mod secret;
pub mod tasks;
pub mod telemetry;

pub use admin::{Admin, AdminConfig, parse_bind_address};
pub use config::{ConfigError, Document, Env, Origin, Problems, Warning};
pub use crypto::install_crypto_provider;
pub use duration::GoDuration;
pub use error::chain;
pub use health::{Dependency, Health, Heartbeat};
pub use redact::{Secret, SecretUrl};
pub use secret::SecretSource;
pub use tasks::{Stage, TaskError, Tasks};
pub use telemetry::{LogConfig, LogFormat, Telemetry, traceparent};
