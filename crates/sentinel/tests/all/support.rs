//! What these tests share: a running simulator, a sink that remembers, a sentinel put together.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use prometheus_client::registry::Registry;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use watchfire_delivery::{CloudEvent, EventSink, sink};
use watchfire_runtime::config::{Env, Text};
use watchfire_runtime::health::{Health, Status};
use watchfire_sentinel::config::{Overrides, SentinelConfig, read};
use watchfire_sentinel::metrics::{Families, Metrics, Shard};
use watchfire_sentinel::{Feeds, Sentinel, api};
use watchfire_simulator::{Dialect, Server, Simulator};
use watchfire_testkit::eventually;

/// How long anything may take before a test says that it did not happen.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A simulator with its API on loopback; stops when dropped.
pub(crate) struct Api {
    pub(crate) fleet: Simulator,
    pub(crate) url: String,
    address: SocketAddr,
    token: CancellationToken,
    task: JoinHandle<()>,
}

impl Api {
    pub(crate) async fn start(dialect: Dialect) -> Self {
        Self::serve(Simulator::new(dialect)).await
    }

    pub(crate) async fn serve(fleet: Simulator) -> Self {
        Self::serve_at(([127, 0, 0, 1], 0).into(), fleet).await
    }

    #[expect(clippy::disallowed_methods, reason = "a test has no supervisor")]
    pub(crate) async fn serve_at(address: SocketAddr, fleet: Simulator) -> Self {
        watchfire_testkit::install_crypto();
        let server = Server::bind(address, fleet.clone()).await.expect("bind");
        let (url, address) = (server.url(), server.addr());
        let token = CancellationToken::new();
        let stop = token.clone();
        let task = tokio::spawn(async move {
            server.run(stop).await.expect("serve");
        });
        Self { fleet, url, address, token, task }
    }

    /// Takes the API away, connections and all; what it knew and where it was stay.
    pub(crate) async fn stop(mut self) -> (SocketAddr, Simulator) {
        self.token.cancel();
        tokio::time::timeout(DEADLINE, &mut self.task).await.expect("stop in time").expect("stop well");
        (self.address, self.fleet.clone())
    }

    /// How many lists were asked for: at least as many as there were polls.
    pub(crate) fn polls(&self) -> usize {
        self.fleet.faults().lists().len()
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Runs a future until dropped.
pub(crate) struct Running(JoinHandle<()>);

impl Running {
    #[expect(clippy::disallowed_methods, reason = "a test has no supervisor")]
    pub(crate) fn start(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }

    /// Whether it ended by itself, well or not.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_finished()
    }

    pub(crate) async fn ended(&mut self) {
        tokio::time::timeout(DEADLINE, &mut self.0).await.expect("end in time").expect("end well");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A sink that remembers what it took, and refuses what it is told to.
#[derive(Default)]
pub(crate) struct Memory {
    events: Mutex<Vec<CloudEvent>>,
    refusals: Mutex<VecDeque<Refusal>>,
    pub(crate) down: Mutex<bool>,
    /// Takes every event, and its confirm is lost on the way.
    pub(crate) mute: Mutex<bool>,
}

/// Refuses the next window's events of these positions.
pub(crate) struct Refusal(pub(crate) Vec<usize>, pub(crate) fn() -> sink::Error);

impl Memory {
    pub(crate) fn events(&self) -> Vec<CloudEvent> {
        self.events.lock().unwrap().clone()
    }

    pub(crate) fn take(&self) -> Vec<CloudEvent> {
        std::mem::take(&mut self.events.lock().unwrap())
    }

    pub(crate) fn refuse(&self, refusal: Refusal) {
        self.refusals.lock().unwrap().push_back(refusal);
    }
}

pub(crate) fn timeout() -> sink::Error {
    sink::Error::Timeout { target: "memory".into(), after: Duration::from_secs(1) }
}

impl EventSink for Memory {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn publish_all<'a>(&'a self, events: &'a [CloudEvent]) -> BoxFuture<'a, Vec<Result<(), sink::Error>>> {
        async move {
            if *self.down.lock().unwrap() {
                return events.iter().map(|_| Err(timeout())).collect();
            }
            if *self.mute.lock().unwrap() {
                self.events.lock().unwrap().extend_from_slice(events);
                return events.iter().map(|_| Err(timeout())).collect();
            }
            let refusal = self.refusals.lock().unwrap().pop_front();
            let mut outcomes = Vec::new();
            for (index, event) in events.iter().enumerate() {
                match &refusal {
                    Some(Refusal(positions, error)) if positions.contains(&index) => outcomes.push(Err(error())),
                    _ => {
                        self.events.lock().unwrap().push(event.clone());
                        outcomes.push(Ok(()));
                    }
                }
            }
            outcomes
        }
        .boxed()
    }

    fn check(&self) -> BoxFuture<'_, Result<(), sink::Error>> {
        async { if *self.down.lock().unwrap() { Err(timeout()) } else { Ok(()) } }.boxed()
    }
}

/// A sentinel with everything one can look at.
pub(crate) struct Bench {
    pub(crate) sentinel: Sentinel,
    pub(crate) health: Health,
    /// The metrics before the sentinel existed, as text.
    pub(crate) fresh: String,
    registry: Registry,
}

/// A sentinel that polls until dropped.
pub(crate) struct Live {
    pub(crate) health: Health,
    registry: Registry,
    token: CancellationToken,
    running: Running,
}

impl Bench {
    /// Puts a sentinel together from the text of its file.
    pub(crate) fn new(config: &str, sink: Arc<dyn EventSink>) -> Self {
        Self::sharing(config, sink, &Feeds::default())
    }

    /// One of several of a process.
    pub(crate) fn sharing(config: &str, sink: Arc<dyn EventSink>, feeds: &Feeds) -> Self {
        let mut registry = Registry::default();
        let families = Families::register(&mut registry);
        let health = Health::new();
        let config = parse(config);
        let metrics = metrics(&families, &config, sink.kind());
        let fresh = encode(&registry);
        let sentinel = Sentinel::new(config, sink, metrics, &health, feeds).expect("a client");
        Self { sentinel, health, fresh, registry }
    }

    /// Lets it poll, as the process does.
    pub(crate) fn run(self) -> Live {
        let token = CancellationToken::new();
        let (sentinel, stop) = (self.sentinel, token.clone());
        let running = Running::start(async move {
            sentinel.run(stop).await.unwrap();
        });
        Live { health: self.health, registry: self.registry, token, running }
    }

    /// One cycle; an error of the API is part of the result.
    pub(crate) async fn cycle(&mut self) -> Result<watchfire_sentinel::service::Cycle, Arc<api::Error>> {
        self.sentinel.cycle(&CancellationToken::new()).await
    }

    /// The value of a series whose line begins with `name` and contains every part.
    pub(crate) fn metric(&self, name: &str, parts: &[&str]) -> Option<f64> {
        metric(&self.registry, name, parts)
    }

    /// Every metric, as it would be scraped.
    pub(crate) fn scrape(&self) -> String {
        encode(&self.registry)
    }
}

impl Live {
    /// As [`Bench::metric`].
    pub(crate) fn metric(&self, name: &str, parts: &[&str]) -> Option<f64> {
        metric(&self.registry, name, parts)
    }

    /// Events that the broker confirmed, whatever their reason.
    pub(crate) fn published(&self) -> u64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a counter is a whole number")]
        self.metric("hyperfleet_broker_messages_published_total", &[]).map(|count| count as u64).expect("a counter")
    }

    /// What readiness says about a dependency; empty while it is up.
    pub(crate) fn complaint(&self, dependency: &str) -> String {
        self.health.readiness().checks[dependency].message.clone()
    }

    /// Waits until readiness says this about a dependency, with liveness green all the while.
    pub(crate) async fn complains(&self, dependency: &str, why: &str) {
        eventually(DEADLINE, &format!("readiness says {why:?} about {dependency}"), async || {
            self.is_alive();
            self.complaint(dependency).contains(why).then_some(())
        })
        .await;
        assert_eq!(self.health.readiness().status, Status::Error);
    }

    /// Waits until everything is as it should be, with liveness green all the while.
    pub(crate) async fn recovers(&self) {
        eventually(DEADLINE, "readiness turns green", async || {
            self.is_alive();
            (self.health.readiness().status == Status::Ok).then_some(())
        })
        .await;
    }

    /// No remote ever decides about liveness.
    pub(crate) fn is_alive(&self) {
        let report = self.health.liveness();
        assert_eq!(report.status, Status::Ok, "{report:?}");
        assert!(report.checks.contains_key("sentinel_poll"), "the loop ended");
    }

    /// Stops it in good order; returns how many events it published in its life.
    pub(crate) async fn stop(mut self) -> u64 {
        self.token.cancel();
        self.running.ended().await;
        self.published()
    }
}

fn encode(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).expect("encode");
    text
}

fn metric(registry: &Registry, name: &str, parts: &[&str]) -> Option<f64> {
    let text = encode(registry);
    let line = text.lines().find(|line| line.starts_with(name) && parts.iter().all(|part| line.contains(part)))?;
    line.rsplit(' ').next()?.parse().ok()
}

pub(crate) fn parse(text: &str) -> SentinelConfig {
    let reading = read(&Text::new("test.yaml", text), &Overrides::default(), &Env::default()).expect("yaml");
    reading.problems.finish().expect("valid");
    reading.sentinel.expect("valid")
}

pub(crate) fn metrics(families: &Families, config: &SentinelConfig, broker: &'static str) -> Metrics {
    let shard = Shard {
        resource_type: config.api.resource_type.clone(),
        resource_selector: config.selector.metric_label(),
        shard: config.selector.labels().unwrap_or_else(|| "all".into()),
    };
    families.of(&shard, broker, "hyperfleet-events".into())
}

/// The smallest file for this API.
pub(crate) fn minimal(url: &str) -> String {
    format!("resource_type: clusters\nhyperfleet_api:\n  endpoint: {url}\n  timeout: 10s\n")
}

/// The data of an event.
pub(crate) fn data(event: &CloudEvent) -> serde_json::Value {
    serde_json::from_str(event.data().get()).expect("JSON")
}
