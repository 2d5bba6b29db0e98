//! `watchfire sentinel`: puts the service together and runs it.

use anyhow::Context;
use tracing::{info, warn};
use watchfire_delivery::metrics::Metrics as DeliveryMetrics;
use watchfire_runtime::config::Env;
use watchfire_runtime::health::Health;
use watchfire_runtime::tasks::{Stage, Tasks};
use watchfire_runtime::telemetry::{LogConfig, Telemetry};
use watchfire_runtime::{Admin, AdminConfig, crypto, metrics, parse_bind_address};
use watchfire_sentinel::metrics::{Families, Shard};
use watchfire_sentinel::{Sentinel, SentinelConfig};

use crate::cli::{LogArgs, SentinelArgs};
use crate::failure::Failure;
use crate::{broker, config};

/// How long telemetry may take to send what it still holds.
const FLUSH: std::time::Duration = std::time::Duration::from_secs(2);

pub(crate) fn run(args: &SentinelArgs) -> Result<(), Failure> {
    crypto::install_crypto_provider();
    let runtime = tokio::runtime::Runtime::new().context("start the async runtime")?;
    runtime.block_on(serve(args))
}

async fn serve(args: &SentinelArgs) -> Result<(), Failure> {
    let env = Env::from_process();
    let config::Loaded { sentinel, broker, warnings } = config::load(&args.files, &env)?;
    let telemetry = telemetry(&args.log, &env)?;
    for warning in warnings {
        warn!(%warning, "legal, but probably not meant");
    }

    let health = Health::new();
    let mut tasks = Tasks::new();
    tasks.listen().context("start the sentinel")?;
    let mut registry = metrics::registry("sentinel", env!("CARGO_PKG_VERSION"));
    tasks.register(&mut registry);
    telemetry.register(&mut registry);
    let families = Families::register(&mut registry);
    let delivery = DeliveryMetrics::default();
    delivery.register(&mut registry);
    let address = |flag: &str, text: &str| {
        parse_bind_address(text).with_context(|| format!("read --{flag}")).map_err(Failure::Configuration)
    };
    let addresses = AdminConfig {
        health: address("health-bind-address", &args.health_bind_address)?,
        metrics: address("metrics-bind-address", &args.metrics_bind_address)?,
    };
    let admin = Admin::bind(addresses, health.clone(), registry).await.context("start the admin server")?;

    let sink = broker::open(broker, &delivery, &health, &mut tasks).await?;
    let shard = shard(&sentinel);
    info!(
        resource_type = shard.resource_type,
        resource_selector = shard.resource_selector,
        poll_interval = ?sentinel.poll_interval,
        max_age_not_ready = ?sentinel.rules.max_age.not_ready,
        max_age_ready = ?sentinel.rules.max_age.ready,
        broker = sink.sink.kind(),
        topic = sink.topic,
        health = %admin.health_addr(),
        metrics = %admin.metrics_addr(),
        "sentinel started"
    );
    let measured = families.of(&shard, sink.sink.kind(), sink.topic);
    health.service("sentinel", format!("{} ({})", shard.resource_type, shard.resource_selector));
    let traced = env.get("HYPERFLEET_TRACE_RESOURCES").unwrap_or_default().parse().unwrap_or_default();
    let sentinel = Sentinel::new(sentinel, sink.sink, measured, &health).context("make the API client")?;
    let sentinel = sentinel.trace_resources(traced);
    tasks.essential("sentinel", sentinel.run(tasks.token()));
    tasks.essential_at(Stage::Admin, "admin", admin.run(tasks.stage_token(Stage::Admin)));
    tasks.drain(health);
    let ended = tasks.run(args.grace_period.get()).await;
    telemetry.shutdown(FLUSH).await;
    Ok(ended.context("run the sentinel")?)
}

/// Sets up logs and traces as the command line says.
fn telemetry(args: &LogArgs, env: &Env) -> Result<Telemetry, Failure> {
    let wrong = |error| Failure::Configuration(anyhow::Error::new(error));
    let log = LogConfig {
        component: "sentinel".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        level: args.log_level.clone(),
        format: args.log_format.parse().map_err(wrong)?,
    };
    Telemetry::init(&log, env).map_err(wrong)
}

/// What the sentinel watches, in the words of its metrics.
pub(crate) fn shard(config: &SentinelConfig) -> Shard {
    Shard {
        resource_type: config.api.resource_type.clone(),
        resource_selector: config.selector.metric_label(),
        shard: config.selector.labels().unwrap_or_else(|| "all".to_owned()),
    }
}
