//! What every process of services stands on: health, supervised tasks, and the sockets that are asked.

use anyhow::Context;
use prometheus_client::registry::Registry;
use tracing::warn;
use watchfire_runtime::config::Env;
use watchfire_runtime::health::Health;
use watchfire_runtime::tasks::Tasks;
use watchfire_runtime::telemetry::Telemetry;
use watchfire_runtime::{Admin, AdminConfig, metrics, parse_bind_address, roots};

use crate::failure::Failure;

pub(crate) struct Ground {
    pub(crate) health: Health,
    pub(crate) tasks: Tasks,
    pub(crate) admin: Admin,
}

impl Ground {
    /// Binds the sockets; signals are heard from here on. `register` adds metrics to those of every process, which all
    /// have the labels.
    pub(crate) async fn new<const N: usize>(
        labels: [(&'static str, &str); N],
        addresses: [(&str, &str); 2],
        env: &Env,
        telemetry: &Telemetry,
        register: impl FnOnce(&mut Registry),
    ) -> Result<Self, Failure> {
        if roots::are_built_in(env) {
            warn!("the system has no certificates of authorities, trusting those built into this program");
        }
        let health = Health::new();
        let mut tasks = Tasks::new();
        tasks.listen().context("start the process")?;
        let mut registry = metrics::registry(labels);
        tasks.register(&mut registry);
        telemetry.register(&mut registry);
        register(&mut registry);
        let [health_address, metrics_address] = addresses.map(|(flag, text)| {
            parse_bind_address(text).with_context(|| format!("read --{flag}")).map_err(Failure::Configuration)
        });
        let addresses = AdminConfig { health: health_address?, metrics: metrics_address? };
        let admin = Admin::bind(addresses, health.clone(), registry).await.context("start the admin server")?;
        Ok(Self { health, tasks, admin })
    }
}
