//! An adapter as HyperFleet runs them, with knobs for everything that goes wrong with real ones.
//!
//! An event only wakes it: it reads the resource, checks that the adapter before it is done, works, and reports, also
//! when there was nothing to do. Events are acknowledged after handling even if it failed, because the next event is
//! the retry. It runs on RabbitMQ ([`Adapter::run_rabbitmq`]), on Pub/Sub ([`Adapter::run_pubsub`]), or behind the
//! embedded broker ([`Push`]).

mod event;
mod pubsub;
mod pump;
mod push;
mod rabbitmq;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::json;
use url::Url;
use watchfire_runtime::clock;

pub use pubsub::PubSubSource;
pub use push::Push;
pub use rabbitmq::RabbitSource;

use crate::aggregation::mirror_type;
use event::Event;

/// How long a request to the API may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a request to the API is tried.
const ATTEMPTS: u32 = 3;
/// The pause after the first failed attempt; it doubles.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Event ids and resources remembered for the counters; beyond that, only totals grow.
const REMEMBERED: usize = 200_000;

/// Why an adapter could not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The HTTP client could not be built.
    #[error("build the client of the API")]
    Client(#[source] reqwest::Error),
    /// The broker's client could not be built, or a subscription not be created.
    #[error("consume from {target}")]
    Broker {
        /// What was to be consumed from.
        target: String,
        /// What the client library said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The knob said so: it stopped in the middle of an event, which stays unacknowledged.
    #[error("crashed on purpose, in the middle of an event")]
    Crashed,
    /// The address for pushes could not be served.
    #[error("serve pushed events")]
    Serve(#[source] std::io::Error),
}

/// What an adapter is.
#[derive(Debug, Clone)]
pub struct AdapterConfig {
    /// Its name, for example `dns`.
    pub name: String,
    /// The adapter that must have succeeded before this one works.
    pub after: Option<String>,
    /// Where the API is; hrefs are resolved against it.
    pub api: Url,
    /// The bearer token for the API.
    pub token: Option<SecretString>,
    /// How it misbehaves.
    pub knobs: Knobs,
    /// Where its randomness starts.
    pub seed: u64,
}

impl AdapterConfig {
    /// A well-behaved adapter without predecessor.
    pub fn new(name: &str, api: Url) -> Self {
        Self { name: name.to_owned(), after: None, api, token: None, knobs: Knobs::default(), seed: 0 }
    }

    /// Makes it wait for another.
    #[must_use]
    pub fn after(mut self, name: &str) -> Self {
        self.after = Some(name.to_owned());
        self
    }

    /// Sets the knobs.
    #[must_use]
    pub fn knobs(mut self, knobs: Knobs) -> Self {
        self.knobs = knobs;
        self
    }
}

/// How an adapter misbehaves; by default not at all. Shares are between 0 and 1.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Knobs {
    /// How long the work takes.
    pub latency: Duration,
    /// Up to this much is added to the latency.
    pub jitter: Duration,
    /// Share of reports that say `Available=False`.
    pub failures: f64,
    /// Share of reports that say `Available=Unknown`.
    pub unknown: f64,
    /// Does its work and never reports.
    pub silent: bool,
    /// Reports the generation before the current one.
    pub stale_generation: bool,
    /// How far its clock is ahead.
    pub clock_offset: SignedDuration,
    /// Share of events at which it crashes, without acknowledging.
    pub crashes: f64,
    /// Share of events that it acknowledges and forgets.
    pub drops: f64,
}

/// What an adapter saw and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events that arrived, repeated ones included.
    pub events: u64,
    /// Events whose id had arrived before.
    pub duplicates: u64,
    /// Messages that are no CloudEvent, or have a header that is not a string.
    pub rejected: u64,
    /// Events whose data does not drive an adapter: no href, a generation that is not a number.
    pub malformed: u64,
    /// Events dropped by the knob.
    pub dropped: u64,
    /// Crashes by the knob.
    pub crashed: u64,
    /// Resources that were gone when the adapter looked.
    pub gone: u64,
    /// Reports that said that the adapter before has not succeeded yet.
    pub preconditions_not_met: u64,
    /// Requests that failed for good.
    pub failed: u64,
    /// Answers to reports, by status.
    pub answers: BTreeMap<u16, u64>,
    /// Events per resource id.
    pub per_resource: HashMap<String, u64>,
}

/// A running, or ready to run, adapter; clones share counters, knobs and randomness.
#[derive(Debug, Clone)]
pub struct Adapter {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    after: Option<String>,
    api: Url,
    token: Option<SecretString>,
    client: reqwest::Client,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    knobs: Knobs,
    random: StdRng,
    counters: Counters,
    seen: HashSet<(String, String)>,
}

/// What to tell the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// Acknowledge: it was handled, well or not.
    Done,
    /// Refuse for good: it is not an event.
    Rejected,
    /// Nothing: the adapter died on it.
    Crashed,
}

/// What is decided by chance, once per event.
struct Luck {
    latency: Duration,
    available: &'static str,
    drop: bool,
    crash: bool,
}

/// The part of a resource that an adapter reads, in any dialect.
#[derive(Debug, Deserialize)]
struct Resource {
    generation: i64,
    #[serde(alias = "deletedTime")]
    deleted_time: Option<String>,
    #[serde(default)]
    status: ResourceStatus,
}

#[derive(Debug, Default, Deserialize)]
struct ResourceStatus {
    conditions: Option<Vec<Condition>>,
}

#[derive(Debug, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    ty: String,
    status: String,
    #[serde(default)]
    observed_generation: i64,
}

#[derive(Debug, Deserialize)]
struct Statuses {
    items: Vec<Status>,
}

#[derive(Debug, Deserialize)]
struct Status {
    adapter: String,
    observed_generation: i64,
    conditions: Vec<Condition>,
}

impl Adapter {
    /// Builds an adapter; nothing is contacted.
    pub fn new(config: AdapterConfig) -> Result<Self, Error> {
        let client = reqwest::Client::builder().timeout(REQUEST_TIMEOUT).no_proxy();
        let state = State {
            knobs: config.knobs,
            random: StdRng::seed_from_u64(config.seed),
            counters: Counters::default(),
            seen: HashSet::new(),
        };
        Ok(Self {
            inner: Arc::new(Inner {
                name: config.name,
                after: config.after,
                api: config.api,
                token: config.token,
                client: client.build().map_err(Error::Client)?,
                state: Mutex::new(state),
            }),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What it saw and did so far.
    pub fn counters(&self) -> Counters {
        self.state().counters.clone()
    }

    /// Turns the knobs while it runs.
    pub fn set_knobs(&self, knobs: Knobs) {
        self.state().knobs = knobs;
    }

    /// Handles one message: the structured JSON of a CloudEvent.
    pub async fn handle(&self, body: &[u8]) -> Handled {
        let event = match Event::parse(body) {
            Ok(event) => event,
            Err(reason) => {
                tracing::debug!(adapter = self.name(), reason, "message rejected");
                self.count(|counters| counters.rejected += 1);
                return Handled::Rejected;
            }
        };
        let luck = self.draw(&event);
        if luck.crash {
            self.count(|counters| counters.crashed += 1);
            return Handled::Crashed;
        }
        if luck.drop {
            self.count(|counters| counters.dropped += 1);
            return Handled::Done;
        }
        match event.href() {
            Ok(href) => self.work(href, event.traceparent.as_deref(), &luck).await,
            Err(reason) => {
                tracing::debug!(adapter = self.name(), reason, "event does not drive an adapter");
                self.count(|counters| counters.malformed += 1);
            }
        }
        Handled::Done
    }

    /// A message that never was an event, such as one with a header that is not a string.
    fn reject(&self) {
        self.count(|counters| counters.rejected += 1);
    }

    fn draw(&self, event: &Event) -> Luck {
        let mut state = self.state();
        let State { knobs, random, counters, seen } = &mut *state;
        counters.events += 1;
        let key = (event.source.clone(), event.id.clone());
        if seen.contains(&key) {
            counters.duplicates += 1;
        } else if seen.len() < REMEMBERED {
            seen.insert(key);
        }
        let resource = event.resource_id();
        if counters.per_resource.len() < REMEMBERED || counters.per_resource.contains_key(resource) {
            *counters.per_resource.entry(resource.to_owned()).or_default() += 1;
        }
        let mut chance = |share: f64| random.random::<f64>() < share;
        let (crash, drop) = (chance(knobs.crashes), chance(knobs.drops));
        let available = match (chance(knobs.failures), chance(knobs.unknown)) {
            (true, _) => "False",
            (false, true) => "Unknown",
            (false, false) => "True",
        };
        let latency = knobs.latency + knobs.jitter.mul_f64(random.random::<f64>());
        Luck { latency, available, drop, crash }
    }

    /// Goes on with the event's trace: every request carries it, and with it the report.
    async fn work(&self, href: &str, trace: Option<&str>, luck: &Luck) {
        let Ok(url) = self.inner.api.join(href) else {
            return self.count(|counters| counters.malformed += 1);
        };
        let resource = match self.read::<Resource>(url.as_str(), trace).await {
            Ok(Some(resource)) => resource,
            Ok(None) => return self.count(|counters| counters.gone += 1),
            Err(()) => return self.count(|counters| counters.failed += 1),
        };
        let deleting = resource.deleted_time.is_some();
        let proceed = deleting || self.may_proceed(url.as_str(), trace, &resource).await;
        if proceed {
            tokio::time::sleep(luck.latency).await;
        }
        let knobs = self.state().knobs.clone();
        if knobs.silent {
            return;
        }
        let observed_generation =
            if knobs.stale_generation { (resource.generation - 1).max(1) } else { resource.generation };
        let observed = clock::now().saturating_add(knobs.clock_offset).unwrap_or_else(|_| clock::now());
        let observed_time = Timestamp::from_second(observed.as_second()).unwrap_or(observed);
        let mut conditions = if proceed {
            let reason = if luck.available == "True" { "JobSucceeded" } else { "JobNotSucceeded" };
            vec![
                json!({"type": "Applied", "status": "True", "reason": "JobCreated"}),
                json!({"type": "Available", "status": luck.available, "reason": reason}),
            ]
        } else {
            self.count(|counters| counters.preconditions_not_met += 1);
            let message = format!("Waiting for {} to complete", self.inner.after.as_deref().unwrap_or_default());
            ["Applied", "Available"]
                .map(|ty| json!({"type": ty, "status": "False", "reason": "PreconditionsNotMet", "message": message}))
                .into()
        };
        conditions.push(json!({"type": "Health", "status": "True", "reason": "NoErrors"}));
        if deleting {
            conditions.push(json!({"type": "Finalized", "status": "True", "reason": "CleanedUp"}));
        }
        let report = json!({
            "adapter": self.inner.name,
            "observed_generation": observed_generation,
            "observed_time": observed_time.to_string(),
            "conditions": conditions,
        });
        let put = || self.inner.client.put(format!("{url}/statuses")).body(report.to_string());
        let sent = self.send(put, trace).await;
        self.count(|counters| match sent {
            Ok(answer) => *counters.answers.entry(answer.status().as_u16()).or_default() += 1,
            Err(()) => counters.failed += 1,
        });
    }

    /// Whether the adapter before this one succeeded at the resource's generation.
    async fn may_proceed(&self, url: &str, trace: Option<&str>, resource: &Resource) -> bool {
        let Some(after) = &self.inner.after else { return true };
        if let Some(conditions) = &resource.status.conditions {
            let ty = mirror_type(after);
            return conditions.iter().any(|condition| {
                condition.ty == ty && condition.status == "True" && condition.observed_generation == resource.generation
            });
        }
        // The older dialects do not serve conditions, only the reports behind them.
        let statuses = self.read::<Statuses>(&format!("{url}/statuses?size=100"), trace).await;
        let Ok(Some(Statuses { items })) = statuses else { return false };
        items.iter().any(|report| {
            let available = |condition: &Condition| condition.ty == "Available" && condition.status == "True";
            report.adapter == *after
                && report.observed_generation == resource.generation
                && report.conditions.iter().any(available)
        })
    }

    /// Reads JSON; `None` if it is gone.
    async fn read<T: serde::de::DeserializeOwned>(&self, url: &str, trace: Option<&str>) -> Result<Option<T>, ()> {
        let answer = self.send(|| self.inner.client.get(url), trace).await?;
        match answer.status().as_u16() {
            404 => Ok(None),
            200 => {
                let body = answer.bytes().await.map_err(drop)?;
                serde_json::from_slice(&body).map(Some).map_err(drop)
            }
            _ => Err(()),
        }
    }

    /// Sends a request, several times if the API is away; the failures themselves are only counted.
    async fn send(
        &self,
        request: impl Fn() -> reqwest::RequestBuilder,
        trace: Option<&str>,
    ) -> Result<reqwest::Response, ()> {
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(RETRY_PAUSE * 2_u32.pow(attempt - 1)).await;
            }
            let mut request = request().header("content-type", "application/json");
            if let Some(token) = &self.inner.token {
                request = request.bearer_auth(token.expose_secret());
            }
            if let Some(trace) = trace {
                request = request.header("traceparent", trace);
            }
            match request.send().await {
                Ok(answer) if answer.status().is_server_error() => {}
                Ok(answer) => return Ok(answer),
                Err(error) => tracing::debug!(adapter = self.name(), %error, "request to the API failed"),
            }
        }
        Err(())
    }

    fn count(&self, count: impl FnOnce(&mut Counters)) {
        count(&mut self.state().counters);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
