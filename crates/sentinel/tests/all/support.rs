//! What these tests share: a running simulator, a sink that remembers, a sentinel put together.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use watchfire_delivery::{CloudEvent, EventSink, sink};
use watchfire_runtime::config::{Document, Env};
use watchfire_runtime::health::Health;
use watchfire_sentinel::config::{RawConfig, SentinelConfig, check};
use watchfire_sentinel::metrics::{Families, Metrics, Shard};
use watchfire_sentinel::{Sentinel, api};
use watchfire_simulator::{Dialect, Server, Simulator};

/// How long anything may take before a test says that it did not happen.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A simulator with its API on loopback; stops when dropped.
pub(crate) struct Api {
    pub(crate) fleet: Simulator,
    pub(crate) url: String,
    task: JoinHandle<()>,
}

impl Api {
    pub(crate) async fn start(dialect: Dialect) -> Self {
        Self::serve(Simulator::new(dialect)).await
    }

    #[expect(clippy::disallowed_methods, reason = "a test has no supervisor")]
    pub(crate) async fn serve(fleet: Simulator) -> Self {
        watchfire_testkit::install_crypto();
        let server = Server::bind(([127, 0, 0, 1], 0).into(), fleet.clone()).await.expect("bind");
        let url = server.url();
        let task = tokio::spawn(async move {
            server.run(CancellationToken::new()).await.expect("serve");
        });
        Self { fleet, url, task }
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

    pub(crate) async fn ended(mut self) {
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
    registry: prometheus_client::registry::Registry,
}

impl Bench {
    /// Puts a sentinel together from the text of its file.
    pub(crate) fn new(config: &str, sink: Arc<dyn EventSink>) -> Self {
        let mut registry = prometheus_client::registry::Registry::default();
        let families = Families::register(&mut registry);
        let health = Health::new();
        let config = parse(config);
        let metrics = metrics(&families, &config, sink.kind());
        let sentinel = Sentinel::new(config, sink, metrics, &health).expect("a client");
        Self { sentinel, health, registry }
    }

    /// One cycle; an error of the API is part of the result.
    pub(crate) async fn cycle(&mut self) -> Result<watchfire_sentinel::service::Cycle, api::Error> {
        self.sentinel.cycle(&CancellationToken::new()).await
    }

    /// The value of a series whose line begins with `name` and contains every part.
    pub(crate) fn metric(&self, name: &str, parts: &[&str]) -> Option<f64> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("encode");
        let line = text.lines().find(|line| line.starts_with(name) && parts.iter().all(|part| line.contains(part)))?;
        line.rsplit(' ').next()?.parse().ok()
    }
}

pub(crate) fn parse(text: &str) -> SentinelConfig {
    let document = Document::<RawConfig>::parse("test.yaml", text).expect("yaml");
    let (config, problems) = check(document, &Env::default());
    problems.finish().expect("valid");
    config.expect("valid")
}

pub(crate) fn metrics(families: &Families, config: &SentinelConfig, broker: &'static str) -> Metrics {
    let shard = Shard {
        resource_type: config.api.resource_type.clone(),
        resource_selector: config.selector.metric_label(),
        shard: config.selector.labels().unwrap_or_else(|| "all".into()),
    };
    families.of(shard, broker, "hyperfleet-events".into())
}

/// The smallest file for this API.
pub(crate) fn minimal(url: &str) -> String {
    format!("resource_type: clusters\nhyperfleet_api:\n  endpoint: {url}\n  timeout: 2s\n")
}

/// The data of an event.
pub(crate) fn data(event: &CloudEvent) -> serde_json::Value {
    serde_json::from_str(event.data().get()).expect("JSON")
}
