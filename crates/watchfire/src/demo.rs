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
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, anyhow};
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::sync::mpsc;
use watchfire_delivery::EventSink;
use watchfire_delivery::embedded::{Config as BrokerConfig, Embedded, Subscriber};
use watchfire_delivery::metrics::Metrics as DeliveryMetrics;
use watchfire_runtime::config::{Document, Env};
use watchfire_runtime::crypto;
use watchfire_runtime::health::Health;
use watchfire_runtime::tasks::{Stage, Tasks};
use watchfire_sentinel::config::{RawConfig, check};
use watchfire_sentinel::metrics::Families;
use watchfire_sentinel::{Sentinel, SentinelConfig};
use watchfire_simulator::adapter::{Adapter, AdapterConfig, Knobs, Push};
use watchfire_simulator::{Dialect, NewResource, Patch, Server, Simulator};

use crate::cli::DemoArgs;
use crate::failure::Failure;
use crate::sentinel::shard;
use story::Story;
use tap::Tap;

/// Short enough to see the loop turn, long enough to read what it does.
const POLL: &str = "500ms";
const MAX_AGE_NOT_READY: &str = "2s";
const MAX_AGE_READY: &str = "15s";

/// What adapters take for their work in the demo.
const WORK: Duration = Duration::from_millis(300);

/// Events that may wait for the view; beyond it they are not drawn, and still delivered.
const TAPPED: usize = 10_000;

pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    crypto::install_crypto_provider();
    let runtime = tokio::runtime::Runtime::new().context("start the async runtime")?;
    runtime.block_on(play(args))
}

async fn play(args: &DemoArgs) -> Result<(), Failure> {
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let fleet = Simulator::new(Dialect::Hyperfleet);
    let changes = fleet.changes();
    populate(&fleet, args.clusters)?;
    let server = Server::bind(loopback, fleet.clone()).await.context("bind the simulated API")?;
    let api = server.url();

    let mut adapters = Vec::new();
    for (name, after) in [("validation", None), ("dns", Some("validation"))] {
        let mut config = AdapterConfig::new(name, api.parse().context("read the simulated API's address")?);
        config.after = after.map(str::to_owned);
        config.knobs = Knobs { latency: WORK, jitter: WORK, ..Knobs::default() };
        adapters.push(Adapter::new(config).context("make an adapter")?);
    }
    let push = Push::bind(loopback, adapters).await.context("bind the adapters")?;
    let subscriber = |name: &str| -> anyhow::Result<Subscriber> {
        let url = push.url(name).parse().context("read an adapter's address")?;
        Ok(Subscriber { name: name.to_owned(), url })
    };
    let subscribers = vec![subscriber("validation")?, subscriber("dns")?];

    let mut registry = Registry::default();
    let delivery = DeliveryMetrics::default();
    delivery.register(&mut registry);
    let folder = tempfile::tempdir().context("make a folder for the embedded broker's store")?;
    let config = BrokerConfig::new(folder.path().join("broker.db"), subscribers);
    let health = Health::new();
    let (broker, work) = Embedded::open(config, &delivery, &health).await.context("open the embedded broker")?;
    let (sender, published) = mpsc::channel(TAPPED);
    let sink: Arc<dyn EventSink> = Arc::new(Tap::new(Arc::new(broker), sender));

    let families = Families::register(&mut registry);
    let mut tasks = Tasks::new();
    tasks.listen().context("start the demo")?;
    let token = tasks.token();
    for plural in ["clusters", "nodepools"] {
        let config = sentinel_config(plural, &api)?;
        let metrics = families.of(&shard(&config), sink.kind(), "demo".to_owned());
        let sentinel =
            Sentinel::new(config, Arc::clone(&sink), metrics, &health.of(plural)).context("make a sentinel")?;
        tasks.essential("sentinel", sentinel.run(token.clone()));
    }
    for worker in work.workers {
        tasks.essential_at(Stage::Workers, "broker-delivery", worker.run(tasks.stage_token(Stage::Workers)));
    }
    tasks.essential_at(Stage::Workers, "broker-retention", work.retention.run(tasks.stage_token(Stage::Workers)));
    tasks.essential_at(Stage::Outbox, "adapters", push.run(tasks.stage_token(Stage::Outbox)));
    tasks.essential_at(Stage::Admin, "api", server.run(tasks.stage_token(Stage::Admin)));

    let story = Story::new(fleet.clone(), changes, published);
    let seconds = args.seconds.map(Duration::from_secs);
    let spec_change = args.spec_change;
    let outcome = Arc::new(OnceLock::new());
    let told = Arc::clone(&outcome);
    let stop = token.clone();
    if args.plain || !io::stdout().is_terminal() {
        tasks.essential("story", async move {
            let result = plain::tell(story, &api, seconds, spec_change, &stop).await;
            _ = told.set(result);
            stop.cancel();
            Ok::<_, Infallible>(())
        });
    } else {
        tasks.essential("view", async move {
            let result = view::draw(story, seconds, spec_change, &stop).await;
            _ = told.set(result);
            stop.cancel();
            Ok::<_, Infallible>(())
        });
    }
    tasks.run(Duration::from_secs(5)).await.context("run the demo")?;
    match Arc::into_inner(outcome).and_then(OnceLock::into_inner) {
        Some(result) => result.context("show the demo")?,
        None => return Err(Failure::Failed(anyhow!("the demo was stopped before its end"))),
    }
    let (ready, all) = ready(&fleet);
    if seconds.is_some() && ready < all {
        return Err(Failure::Failed(anyhow!(
            "{} resources did not become Ready in time; give it more --seconds",
            all - ready
        )));
    }
    Ok(())
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
