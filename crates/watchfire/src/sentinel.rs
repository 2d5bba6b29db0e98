//! `watchfire sentinel`, `serve` and `run`: puts the service together and runs it, or answers a question about it.

mod coverage;
mod explain;
mod object;
mod poll;
mod record;
mod simulate;

use std::sync::Arc;

use anyhow::{Context, anyhow};
use prometheus_client::registry::Registry;
use tracing::{info, warn};
use watchfire_delivery::metrics::Metrics as DeliveryMetrics;
use watchfire_runtime::config::Env;
use watchfire_runtime::health::Health;
use watchfire_runtime::tasks::{Stage, Tasks};
use watchfire_runtime::telemetry::{LogConfig, Telemetry};
use watchfire_runtime::{Admin, chain, crypto};
use watchfire_sentinel::config::Process;
use watchfire_sentinel::metrics::{Families, Shard};
use watchfire_sentinel::{Ceiling, Feeds, Sentinel, SentinelConfig, api};

use crate::broker::Brokers;
use crate::cli::sentinel::{Question, SentinelCli};
use crate::cli::{ProcessArgs, RecordBesideArgs, RunArgs, SentinelArgs};
use crate::config;
use crate::config::list::{self, Named};
use crate::failure::{Failure, note_aside};
use crate::ground::Ground;

/// How long telemetry may take to send what it still holds.
const FLUSH: std::time::Duration = std::time::Duration::from_secs(2);

pub(crate) fn run(cli: &SentinelCli) -> Result<(), Failure> {
    let env = Env::from_process();
    match &cli.question {
        None => run_one(&cli.serve),
        Some(Question::Explain(args)) => block_on(explain::run(args, &env)),
        Some(Question::Coverage(args)) => block_on(coverage::run(args, &env)),
        Some(Question::Record(args)) => block_on(record::run(args, &env)),
        Some(Question::Simulate(args)) => simulate::run(args, &env),
    }
}

pub(crate) fn run_one(args: &SentinelArgs) -> Result<(), Failure> {
    let env = Env::from_process();
    if let Some(scope) = object::scope(args)? {
        return block_on(object::serve(scope, args, &env));
    }
    let loaded = config::load(&args.files, &args.settings, &env)?;
    let process = loaded.process.clone();
    block_on(serve(vec![Named { name: None, loaded }], &process, (&args.process, &args.record), &env))
}

pub(crate) fn run_several(args: &RunArgs) -> Result<(), Failure> {
    let env = Env::from_process();
    let several = list::several(&args.config, &env)?;
    let process = config::process(&args.log.clone().into(), &env)?;
    block_on(serve(several, &process, (&args.process, &args.record), &env))
}

fn block_on(serving: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    crypto::install_crypto_provider();
    tokio::runtime::Runtime::new().context("start the async runtime")?.block_on(serving)
}

async fn serve(
    several: Vec<Named>,
    process: &Process,
    args: (&ProcessArgs, &RecordBesideArgs),
    env: &Env,
) -> Result<(), Failure> {
    let telemetry = telemetry(process, env)?;
    let served = serve_all(several, args, env, &telemetry).await;
    // However it ended: what was traced until then may say why.
    telemetry.shutdown(FLUSH).await;
    served
}

async fn serve_all(
    several: Vec<Named>,
    (args, record): (&ProcessArgs, &RecordBesideArgs),
    env: &Env,
    telemetry: &Telemetry,
) -> Result<(), Failure> {
    let (ground, families, delivery) = ground(args.addresses(":8080", ":9090"), env, telemetry, |_| {}).await?;
    let Ground { health, mut tasks, admin } = ground;
    let mut brokers = Brokers::new(&delivery);
    // One for all of them: the lowest that any of the files says.
    let ceiling = Ceiling::lowest(several.iter().map(|named| named.loaded.sentinel.max_events_per_second));
    let ceiling = ceiling.map(Arc::new);
    let (alone, feeds) = (several.len() == 1, Feeds::default());
    let sentinels = explain::Sentinels::default();
    for named in several {
        // What there is one of keeps its plain name.
        let name = named.name.filter(|_| !alone);
        let health = name.as_deref().map_or_else(|| health.clone(), |name| health.of(name));
        let (families, admin, feeds) = (&families, &admin, &feeds);
        let parts = Parts { families, health: &health, admin, env, ceiling: ceiling.as_ref(), feeds, record };
        let asked = start(named.loaded, name.as_deref(), &parts, &mut brokers, &mut tasks).await?;
        sentinels.begins(asked);
    }
    let admin = admin.route("/sentinel/explain", explain::pages(sentinels)).route("/sentinel/poll", poll::pages(feeds));
    tasks.essential_at(Stage::Admin, "admin", admin.run(tasks.stage_token(Stage::Admin)));
    tasks.drain(health);
    Ok(tasks.run(args.grace_period.get()).await.context("run the sentinel")?)
}

/// The ground of sentinels, and what they count.
async fn ground(
    addresses: [(&str, &str); 2],
    env: &Env,
    telemetry: &Telemetry,
    register: impl FnOnce(&mut Registry),
) -> Result<(Ground, Families, DeliveryMetrics), Failure> {
    let (mut families, delivery) = (None, DeliveryMetrics::default());
    let labels = [("component", "sentinel"), ("version", env!("CARGO_PKG_VERSION"))];
    let ground = Ground::new(labels, addresses, env, telemetry, |registry| {
        families = Some(Families::register(registry));
        delivery.register(registry);
        register(registry);
    });
    let ground = ground.await?;
    Ok((ground, families.context("register the metrics")?, delivery))
}

/// What the sentinels of a process share, or have one of each.
struct Parts<'a> {
    families: &'a Families,
    health: &'a Health,
    admin: &'a Admin,
    env: &'a Env,
    ceiling: Option<&'a Arc<Ceiling>>,
    feeds: &'a Feeds,
    record: &'a RecordBesideArgs,
}

/// Starts one sentinel: its loop is a task of this process from here on. Who asks why gets the answer of what is
/// returned.
async fn start(
    loaded: config::Loaded,
    name: Option<&str>,
    parts: &Parts<'_>,
    brokers: &mut Brokers<'_>,
    tasks: &mut Tasks,
) -> Result<explain::Asked, Failure> {
    for warning in &loaded.warnings {
        warn!(%warning, sentinel = name, "legal, but probably not meant");
    }
    if loaded.process.debug_config {
        info!(config = loaded.show()?, sentinel = name, "the configuration in effect");
    }
    let called = loaded.process.name.clone();
    let config::Loaded { sentinel, broker, broker_settings, .. } = loaded;
    let sink = brokers.open(broker_settings, broker, parts.health, tasks).await?;
    let shard = Shard::of(&sentinel);
    info!(
        name = called,
        sentinel = name,
        resource_type = shard.resource_type,
        resource_selector = shard.resource_selector,
        poll_interval = ?sentinel.poll_interval,
        max_age_not_ready = ?sentinel.rules.max_age.not_ready,
        max_age_ready = ?sentinel.rules.max_age.ready,
        broker = sink.sink.kind(),
        topic = sink.topic,
        health = %parts.admin.health_addr(),
        metrics = %parts.admin.metrics_addr(),
        "sentinel started"
    );
    let measured = parts.families.of(&shard, sink.sink.kind(), sink.topic.clone());
    parts.health.service("sentinel", format!("{} ({})", shard.resource_type, shard.resource_selector));
    let traced = parts.env.get("HYPERFLEET_TRACE_RESOURCES").unwrap_or_default().parse().unwrap_or_default();
    let recorder = record::beside(parts.record, name, &sentinel)?;
    // What others select is not for its recording.
    let apart = parts.feeds.apart();
    let feeds = if recorder.is_some() { &apart } else { parts.feeds };
    let sentinel = Sentinel::new(sentinel, sink.sink, measured, parts.health, feeds).context("make the API client")?;
    let mut sentinel = sentinel.trace_resources(traced).named(&sink.topic, name);
    if let Some(ceiling) = parts.ceiling {
        sentinel = sentinel.below(Arc::clone(ceiling));
    }
    if let Some(recorder) = recorder {
        sentinel = sentinel.record(recorder);
    }
    let explainer = sentinel.explainer().context("make the API client")?;
    let asked = explain::Asked { name: name.unwrap_or_default().to_owned(), explainer, store: sink.store };
    tasks.essential("sentinel", sentinel.run(tasks.token()));
    Ok(asked)
}

/// Sets up logs and traces as the configuration says.
fn telemetry(process: &Process, env: &Env) -> Result<Telemetry, Failure> {
    let log = LogConfig {
        component: "sentinel".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        level: process.log_level.clone(),
        format: process.log_format,
        output: process.log_output,
    };
    // Without the collector's address there are no traces.
    let untraced = |env: &Env| {
        let others = env.names("").filter(|name| !name.starts_with("OTEL_EXPORTER_OTLP"));
        others.filter_map(|name| Some((name, env.get(name)?))).collect()
    };
    let env = if process.tracing { env.clone() } else { untraced(env) };
    Telemetry::init(&log, &env).map_err(|error| Failure::Configuration(anyhow::Error::new(error)))
}

/// Says why a command takes its time.
fn told(error: &api::Error) {
    note_aside(&format!("{}; trying again", chain(error)));
}

/// Why the fleet could not be listed, and what to try.
fn unlisted(error: &api::Error, config: &SentinelConfig) -> anyhow::Error {
    anyhow!("list the fleet: {}; {}", chain(error), error.hint(config.form))
}
