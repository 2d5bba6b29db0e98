//! A process's life: configuration, supervised tasks and shutdown, the admin server, telemetry.
//!
//! Everything here is shared by all services and knows nothing about any of them. A service is put together like this:
//!
//! ```no_run
//! # use std::time::Duration;
//! # use watchfire_runtime::*;
//! # async fn poll(_: Heartbeat, _: tokio_util::sync::CancellationToken) -> std::io::Result<()> { Ok(()) }
//! # async fn start() -> Result<(), Box<dyn std::error::Error>> {
//! install_crypto_provider();
//! let env = Env::from_process();
//! let log = LogConfig {
//!     component: "sentinel".into(),
//!     version: "1.0.0".into(),
//!     level: "info".into(),
//!     format: LogFormat::Json,
//!     output: LogOutput::Stdout,
//! };
//! let telemetry = Telemetry::init(&log, &env)?;
//! let (health, mut tasks) = (Health::new(), Tasks::new());
//! let mut registry = metrics::registry([("component", "sentinel"), ("version", "1.0.0")]);
//! telemetry.register(&mut registry);
//! tasks.register(&mut registry);
//! tasks.drain(health.clone());
//! let addresses = AdminConfig { health: parse_bind_address(":8080")?, metrics: parse_bind_address(":9090")? };
//! let admin = Admin::bind(addresses, health.clone(), registry).await?;
//! let (beat, token) = (health.heartbeat("poll", Duration::from_secs(30)), tasks.token());
//! tasks.essential("poll", poll(beat, token));
//! let token = tasks.stage_token(Stage::Admin);
//! tasks.essential_at(Stage::Admin, "admin", admin.run(token));
//! let ended = tasks.run(Duration::from_secs(20)).await;
//! telemetry.shutdown(Duration::from_secs(3)).await;
//! ended?;
//! # Ok(())
//! # }
//! ```

pub mod admin;
pub mod clock;
pub mod config;
pub mod crypto;
pub mod duration;
pub mod error;
pub mod file;
pub mod health;
pub mod http;
pub mod lease;
pub mod metrics;
pub mod printable;
pub mod redact;
pub mod roots;
pub mod secret;
pub mod tasks;
pub mod telemetry;

pub use admin::{Admin, AdminConfig, parse_bind_address};
pub use config::{ConfigError, Document, Env, Origin, Problems, Warning};
pub use crypto::install_crypto_provider;
pub use duration::GoDuration;
pub use error::chain;
pub use health::{Dependency, Health, Heartbeat};
pub use printable::one_line;
pub use secret::SecretSource;
pub use tasks::{Stage, TaskError, Tasks};
pub use telemetry::{LogConfig, LogFormat, LogOutput, Telemetry, traceparent};
