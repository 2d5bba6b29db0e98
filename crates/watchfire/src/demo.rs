//! `watchfire demo`: the whole loop in one process, with nothing else installed.
//!
//! A simulated HyperFleet API with its true aggregation, two real sentinels, the embedded broker on a real store, and
//! simulated adapters that consume from it and report back. Only the fleet and its adapters are made up: every event
//! goes the way that it goes in production.

mod plain;
mod story;
mod tap;
mod view;

use std::convert::Infallible;
use std::io::{self, IsTerminal};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, anyhow};
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use watchfire_delivery::embedded::{Config as BrokerConfig, Subscriber};
use watchfire_delivery::metrics::Metrics as DeliveryMetrics;
use watchfire_delivery::{CloudEvent, EventSink};
use watchfire_runtime::config::{Document, Env};
use watchfire_runtime::crypto;
use watchfire_runtime::health::Health;
use watchfire_runtime::tasks::{Stage, Tasks};
use watchfire_sentinel::config::{RawConfig, check};
use watchfire_sentinel::metrics::{Families, Shard};
use watchfire_sentinel::{Feeds, Sentinel, SentinelConfig};
use watchfire_simulator::adapter::{Adapter, AdapterConfig, Knobs, Push};
use watchfire_simulator::{Dialect, NewResource, Patch, Server, Simulator};

use crate::broker::embedded;
use crate::cli::DemoArgs;
use crate::failure::Failure;
use story::Story;
use tap::Tap;

/// Short enough to see the loop turn, long enough to read what it does.
const POLL: &str = "500ms";
const MAX_AGE_NOT_READY: &str = "2s";
const MAX_AGE_READY: &str = "15s";

/// What adapters take for their work in the demo.
const WORK: Duration = Duration::from_millis(300);

const VALIDATION: &str = "validation";
const DNS: &str = "dns";

const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Longer than any demo: a deadline for those who did not ask for one.
const FOREVER: Duration = Duration::from_hours(365 * 24);

/// Events that may wait for the view; beyond it they are not drawn, and still delivered.
const TAPPED: usize = 10_000;

pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    crypto::install_crypto_provider();
    let runtime = tokio::runtime::Runtime::new().context("start the async runtime")?;
    runtime.block_on(play(args))
}

/// When the demo ends, and when it changes a spec by itself.
#[derive(Debug, Clone, Copy)]
struct Course {
    end: Instant,
    change_at: Option<Instant>,
}

impl Course {
    fn from_now(args: &DemoArgs) -> Self {
        let now = Instant::now();
        let whole = args.seconds.map(Duration::from_secs);
        let half = whole.map_or(Duration::from_secs(10), |whole| whole / 2);
        Self { end: now + whole.unwrap_or(FOREVER), change_at: args.spec_change.then(|| now + half) }
    }
}

async fn play(args: &DemoArgs) -> Result<(), Failure> {
    let fleet = Simulator::new(Dialect::Hyperfleet);
    let changes = fleet.changes();
    populate(&fleet, args.clusters)?;
    let server = Server::bind(LOOPBACK, fleet.clone()).await.context("bind the simulated API")?;
    let api = server.url();
    let adapters = Push::bind(LOOPBACK, adapters(&api)?).await.context("bind the adapters")?;
    let folder = tempfile::tempdir().context("make a folder for the embedded broker's store")?;
    let broker = BrokerConfig::new(folder.path().join("broker.db"), subscribers(&adapters)?);

    let mut tasks = Tasks::new();
    tasks.listen().context("start the demo")?;
    let published = publish(&api, broker, &mut tasks).await?;
    tasks.essential_at(Stage::Outbox, "adapters", adapters.run(tasks.stage_token(Stage::Outbox)));
    tasks.essential_at(Stage::Admin, "api", server.run(tasks.stage_token(Stage::Admin)));

    let outcome = tell(args, Story::new(fleet.clone(), changes, published), api, &mut tasks);
    tasks.run(Duration::from_secs(5)).await.context("run the demo")?;
    match Arc::into_inner(outcome).and_then(OnceLock::into_inner) {
        Some(result) => result.context("show the demo")?,
        None => return Err(Failure::Failed(anyhow!("the demo was stopped before its end"))),
    }
    let (ready, all) = ready(&fleet);
    if args.seconds.is_some() && ready < all {
        return Err(Failure::Failed(anyhow!(
            "{} resources did not become Ready in time; give it more --seconds",
            all - ready
        )));
    }
    Ok(())
}

/// Two adapters, of which the second waits for the first.
fn adapters(api: &str) -> anyhow::Result<Vec<Adapter>> {
    let mut adapters = Vec::new();
    for (name, after) in [(VALIDATION, None), (DNS, Some(VALIDATION))] {
        let mut config = AdapterConfig::new(name, api.parse().context("read the simulated API's address")?);
        config.after = after.map(str::to_owned);
        config.knobs = Knobs { latency: WORK, jitter: WORK, ..Knobs::default() };
        adapters.push(Adapter::new(config).context("make an adapter")?);
    }
    Ok(adapters)
}

fn subscribers(adapters: &Push) -> anyhow::Result<Vec<Subscriber>> {
    let subscriber = |name: &str| -> anyhow::Result<Subscriber> {
        let url = adapters.url(name).parse().context("read an adapter's address")?;
        Ok(Subscriber { name: name.to_owned(), url })
    };
    Ok(vec![subscriber(VALIDATION)?, subscriber(DNS)?])
}

/// Adds two sentinels and their broker to the tasks; what they publish comes out here as well.
async fn publish(api: &str, config: BrokerConfig, tasks: &mut Tasks) -> anyhow::Result<mpsc::Receiver<CloudEvent>> {
    let (mut registry, health) = (Registry::default(), Health::new());
    let delivery = DeliveryMetrics::default();
    delivery.register(&mut registry);
    let broker = embedded(config, &delivery, &health, tasks).await?;
    let (sender, published) = mpsc::channel(TAPPED);
    let sink: Arc<dyn EventSink> = Arc::new(Tap::new(Arc::new(broker), sender));
    let (families, feeds) = (Families::register(&mut registry), Feeds::default());
    for plural in ["clusters", "nodepools"] {
        let config = sentinel_config(plural, api)?;
        let metrics = families.of(&Shard::of(&config), sink.kind(), "demo".to_owned());
        let sentinel =
            Sentinel::new(config, Arc::clone(&sink), metrics, &health.of(plural), &feeds).context("make a sentinel")?;
        tasks.essential("sentinel", sentinel.run(tasks.token()));
    }
    Ok(published)
}

/// Adds who shows it to the tasks, and ends them with the show; how that went is known then.
fn tell(args: &DemoArgs, story: Story, api: String, tasks: &mut Tasks) -> Arc<OnceLock<io::Result<()>>> {
    let outcome = Arc::new(OnceLock::new());
    let (told, stop, course) = (Arc::clone(&outcome), tasks.token(), Course::from_now(args));
    let lines = args.plain || !io::stdout().is_terminal();
    tasks.essential("story", async move {
        let result = if lines {
            plain::tell(story, &api, course, &stop).await
        } else {
            view::draw(story, &api, course, &stop).await
        };
        _ = told.set(result);
        stop.cancel();
        Ok::<_, Infallible>(())
    });
    outcome
}

/// How many resources are ready, of how many.
fn ready(fleet: &Simulator) -> (u64, u64) {
    let counts = ["clusters", "nodepools"].map(|plural| fleet.counts(plural));
    (counts.iter().map(|counts| counts.ready).sum(), counts.iter().map(|counts| counts.total).sum())
}

fn populate(fleet: &Simulator, clusters: u16) -> anyhow::Result<()> {
    const NAMES: [&str; 8] = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel"];
    for (index, name) in (0..usize::from(clusters)).zip(NAMES.iter().cycle()) {
        let region = ["us-east", "us-west", "eu-west"][index % 3];
        let name = if index < NAMES.len() { (*name).to_owned() } else { format!("{name}-{index}") };
        let refused = |problem| anyhow!("the simulated API refused {name}: {problem:?}");
        let cluster = fleet.create("clusters", NewResource::named(&name).label("region", region)).map_err(refused)?;
        if index % 2 == 0 {
            let pool = NewResource::named(format!("np-{index}")).label("region", region);
            fleet.create_in("nodepools", Some(&cluster.id), pool).map_err(refused)?;
        }
    }
    Ok(())
}

/// Changes what the user wants of one cluster, so that the immediate event can be seen.
fn change_a_spec(fleet: &Simulator, id: &str, replicas: u64) {
    // Only a cluster that is going away refuses, and then there is nothing to show.
    _ = fleet.patch("clusters", id, Patch::spec(&json!({"replicas": replicas})));
}

fn sentinel_config(plural: &str, api: &str) -> anyhow::Result<SentinelConfig> {
    let text = format!(
        "resource_type: {plural}\npoll_interval: {POLL}\nmax_age_not_ready: {MAX_AGE_NOT_READY}\nmax_age_ready: \
         {MAX_AGE_READY}\nhyperfleet_api:\n  endpoint: {api}\n"
    );
    let document = Document::<RawConfig>::parse("demo.yaml", &text)?;
    let (config, problems) = check(document, &Env::default());
    problems.finish()?;
    config.context("read the demo's configuration")
}
