//! Sentinels as `SentinelConfig` objects: each runs for as long as its object says so.
//!
//! Objects are watched. One that changed is read, with the Secrets that it names; if it holds, its sentinel is stopped
//! between two units of work and goes on under the new configuration, with what it remembers. If it does not hold, the
//! sentinel goes on under the last that did, and the object says why. What could not be read is tried again every
//! 30 seconds. Whatever is wrong with one object is nothing to the others.
//!
//! Of several replicas one leads and runs the sentinels; the others watch, and take over with the lease.

mod entry;
mod guard;
mod load;
mod secrets;
mod status;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{join_all, poll_fn};
use futures_util::stream::{self, BoxStream, StreamExt};
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};
use watchfire_delivery::retry::Backoff;
use watchfire_runtime::chain;
use watchfire_runtime::config::Env;
use watchfire_runtime::health::{Dependency, Health};
use watchfire_runtime::lease::Leadership;

use crate::explain::Explainer;
use crate::feed::Feeds;
use crate::metrics::{Families, Operation, Shard};
use crate::object::SentinelConfig;
use entry::Entry;
use guard::Brokers;
use secrets::Secrets;

/// What could not be read is tried again after so long.
const REQUEUE: Duration = Duration::from_secs(30);

/// Before a watch that failed begins anew.
const BACKOFF: Backoff = Backoff { initial: Duration::from_secs(1), multiplier: 2.0, jitter: 0.1, max: REQUEUE };

/// For one request to the API server.
const PATIENCE: Duration = Duration::from_secs(10);

/// The loop beats at least this often.
const MAX_SILENCE: Duration = Duration::from_mins(2);

/// Which objects of the namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// The one of this name.
    One(String),
    /// All of them.
    All,
}

/// What all sentinels of the process share.
pub struct Parts {
    /// Their metrics.
    pub families: Families,
    /// Their health.
    pub health: Health,
    /// What is given outside of the objects.
    pub env: Env,
    /// The lists that they walk.
    pub feeds: Feeds,
    /// Whether this replica may publish.
    pub leadership: Leadership,
    /// Hears of each sentinel that begins and ends.
    pub explain: Explain,
}

/// Takes what answers questions about a sentinel, by its name, or nothing when it has ended.
pub type Explain = Box<dyn Fn(&str, Option<Explainer>) + Send + Sync>;

/// Why a configuration is not in force.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Problem {
    /// One word, for programs.
    reason: &'static str,
    /// What is wrong, and what to try.
    message: String,
}

/// Runs sentinels as their objects say.
pub struct Operator {
    objects: Api<DynamicObject>,
    secrets: Secrets,
    scope: Scope,
    namespace: String,
    parts: Parts,
    brokers: Brokers,
    watching: Dependency,
    /// Why the objects cannot be watched; nothing until they were listed for the first time.
    watched: Option<Result<(), String>>,
    entries: BTreeMap<String, Entry>,
    /// Those that a list under way has named; nothing where none is.
    listed: BTreeSet<String>,
    /// Whether this replica led when everything was last settled.
    led: bool,
    /// Until when a list that was asked for should have come.
    patience: Option<Instant>,
    /// Those that are on their way to deletion, and their sentinels have stopped.
    leaving: BTreeSet<String>,
    /// What was said of an object that is not there.
    missing: Option<String>,
    news: Arc<Notify>,
}

impl Operator {
    /// Prepares to watch; asks nothing yet.
    pub fn new(client: Client, namespace: &str, scope: Scope, parts: Parts) -> Self {
        let resource = ApiResource::erase::<SentinelConfig>(&());
        let watching = parts.health.dependency("sentinelconfigs");
        Self {
            objects: Api::namespaced_with(client.clone(), namespace, &resource),
            secrets: Secrets::new(client, namespace),
            scope,
            namespace: namespace.to_owned(),
            parts,
            brokers: Brokers::default(),
            watching,
            watched: None,
            entries: BTreeMap::new(),
            listed: BTreeSet::new(),
            led: false,
            patience: None,
            leaving: BTreeSet::new(),
            missing: None,
            news: Arc::default(),
        }
    }

    /// Watches until told to stop, and then until each sentinel has finished what it held.
    pub async fn run(mut self, token: CancellationToken) -> Result<(), Infallible> {
        let config = match &self.scope {
            Scope::One(name) => watcher::Config::default().fields(&format!("metadata.name={name}")),
            Scope::All => watcher::Config::default(),
        };
        let mut events = self.watch(&config);
        // After a failure a new watch begins with a list, which says when everything is known again.
        let (mut failures, mut rewatch) = (0, None);
        let heartbeat = self.parts.health.heartbeat("sentinelconfigs", MAX_SILENCE);
        let (news, mut leadership) = (Arc::clone(&self.news), self.parts.leadership.clone());
        while let Some(leads) = token.run_until_cancelled(heartbeat.during(self.settle())).await {
            let wake = self.entries.values().filter_map(Entry::wake).chain(rewatch).chain(self.patience).min();
            let something = async {
                tokio::select! {
                    biased;
                    event = events.next() => event,
                    () = until(wake) => None,
                    () = news.notified() => None,
                    () = leadership.changed(leads) => None,
                    () = ended(&mut self.entries) => None,
                }
            };
            match token.run_until_cancelled(heartbeat.during(something)).await {
                Some(Some(Ok(event))) => {
                    if matches!(event, Event::InitDone) {
                        failures = 0;
                    }
                    self.heard(event);
                }
                Some(Some(Err(error))) => {
                    self.failed(&error);
                    events = stream::pending().boxed();
                    rewatch = Some(Instant::now() + BACKOFF.delay(failures, rand::random(), None));
                    failures += 1;
                }
                Some(None) => {}
                None => break,
            }
            if rewatch.is_some_and(|at| at <= Instant::now()) {
                rewatch = None;
                events = self.watch(&config);
            }
            if self.patience.is_some_and(|at| at <= Instant::now()) {
                self.patience = None;
                self.unwatched("no answer yet; check that the API server answers".to_owned());
            }
        }
        self.entries.values().for_each(Entry::stop);
        for entry in self.entries.values_mut() {
            entry.stopped(&self.parts).await;
        }
        Ok(())
    }

    fn watch(&mut self, config: &watcher::Config) -> BoxStream<'static, watcher::Result<Event<DynamicObject>>> {
        self.patience = Some(Instant::now() + PATIENCE);
        watcher(self.objects.clone(), config.clone()).boxed()
    }

    fn heard(&mut self, event: Event<DynamicObject>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => {
                self.patience = Some(Instant::now() + PATIENCE);
                self.listed.insert(object.name_any());
                self.take(object);
            }
            Event::InitDone => {
                self.patience = None;
                if !matches!(self.watched, Some(Ok(()))) {
                    let objects = self.listed.len();
                    info!(namespace = self.namespace, objects, "SentinelConfig objects are watched");
                    self.watched = Some(Ok(()));
                }
                let listed = std::mem::take(&mut self.listed);
                self.leaving.retain(|name| listed.contains(name));
                for (_, entry) in self.entries.iter_mut().filter(|(name, _)| !listed.contains(*name)) {
                    entry.delete();
                }
            }
            Event::Apply(object) => self.take(object),
            Event::Delete(object) => {
                self.leaving.remove(&object.name_any());
                if let Some(entry) = self.entries.get_mut(&object.name_any()) {
                    entry.delete();
                }
            }
        }
    }

    fn take(&mut self, object: DynamicObject) {
        let name = object.name_any();
        if object.metadata.deletion_timestamp.is_some() {
            self.leaving.insert(name.clone());
        } else {
            self.leaving.remove(&name);
        }
        match self.entries.get_mut(&name) {
            Some(entry) => entry.replace(object),
            None if object.metadata.deletion_timestamp.is_some() => {}
            None => {
                self.entries.insert(name, Entry::new(object));
            }
        }
    }

    fn failed(&mut self, error: &watcher::Error) {
        let why = match error {
            // The history that a watch goes by is gone, so that everything is listed again.
            watcher::Error::WatchError(status) if status.code == 410 => {
                debug!("the watch begins anew");
                return;
            }
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => self.why(error),
            watcher::Error::WatchError(status) => status.message.clone(),
            watcher::Error::NoResourceVersion => chain(error),
        };
        self.patience = None;
        self.unwatched(why);
    }

    fn unwatched(&mut self, why: String) {
        self.parts.families.object_failed(&Shard::unknown(), Operation::Load);
        // Once per change of state: an API server that stays away says nothing new.
        if !matches!(&self.watched, Some(Err(known)) if *known == why) {
            error!(namespace = self.namespace, error = why, "cannot watch SentinelConfig objects, trying again");
        }
        self.watched = Some(Err(why));
    }

    fn why(&self, error: &kube::Error) -> String {
        match error {
            kube::Error::Api(status) if status.code == 404 => {
                "the cluster does not know SentinelConfig; install it: watchfire crds | kubectl apply -f -".to_owned()
            }
            kube::Error::Api(status) if status.code == 403 => format!(
                "{}; allow the ServiceAccount to get, list and watch sentinelconfigs in the namespace {}",
                status.message, self.namespace
            ),
            kube::Error::Api(status) if status.code == 401 => format!(
                "{}; the API server does not take the token or certificate: check that it has not expired, and that it is \
                 of this cluster",
                status.message
            ),
            _ => format!("{}; check that the API server answers", told(error)),
        }
    }

    /// Brings everything to where it should be, as far as that is possible now: where this replica leads, or not.
    async fn settle(&mut self) -> bool {
        let now = Instant::now();
        let unread = self.entries.iter().filter_map(|(name, entry)| Some((name.clone(), entry.unread(now)?)));
        let reading =
            unread.map(async |(name, object)| (name, load::load(&object, &self.secrets, &self.parts.env).await));
        for (name, result) in join_all(reading).await {
            if let Some(entry) = self.entries.get_mut(&name)
                && entry.was_read(result)
            {
                self.parts.families.object_failed(&entry.shard().unwrap_or_else(Shard::unknown), Operation::Load);
            }
        }
        let leads = self.parts.leadership.holds();
        if leads && !std::mem::replace(&mut self.led, leads) {
            self.entries.values_mut().for_each(Entry::find_status);
        }
        self.led = leads;
        let before = self.shards();
        for entry in self.entries.values_mut() {
            entry.turn(leads, &self.parts, &self.brokers, &self.news);
        }
        self.entries.retain(|name, entry| {
            let is_over = entry.is_over();
            if is_over {
                info!(sentinel = name, "SentinelConfig deleted");
            }
            !is_over
        });
        let after = self.shards();
        for shard in before.difference(&after) {
            self.parts.families.forget(shard);
        }
        if leads {
            self.write().await;
        }
        self.tell();
        leads
    }

    fn shards(&self) -> HashSet<Shard> {
        self.entries.values().filter_map(Entry::shard).collect()
    }

    /// Writes each status that is to be written.
    async fn write(&mut self) {
        let now = Instant::now();
        let due = self.entries.iter().filter_map(|(name, entry)| Some((name.clone(), entry.uid(), entry.status(now)?)));
        let writing = due.map(async |(name, uid, status)| {
            // Of this very object: it may have been made again meanwhile.
            let patch = Patch::Merge(json!({"metadata": {"uid": uid}, "status": status}));
            let params = PatchParams { field_manager: Some("watchfire".to_owned()), ..PatchParams::default() };
            let written = match answered(self.objects.patch_status(&name, &params, &patch)).await {
                // It is gone, or another one; the watch will say so.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
                written => written.map(drop),
            };
            (name, status, written)
        });
        for (name, status, written) in join_all(writing).await {
            let Some(entry) = self.entries.get_mut(&name) else { continue };
            let is_news = entry.written.done(status, written.is_ok(), now);
            let Err(error) = written else { continue };
            self.parts.families.object_failed(&entry.shard().unwrap_or_else(Shard::unknown), Operation::Status);
            if is_news {
                let hint =
                    "allow the ServiceAccount to patch sentinelconfigs/status, or check that the API server answers";
                warn!(
                    sentinel = name,
                    error = told(&error),
                    hint,
                    "cannot write the status of a SentinelConfig, trying again"
                );
            }
        }
    }

    /// Says to readiness, and of what is missing to the log, how it is.
    fn tell(&mut self) {
        match &self.watched {
            None => return,
            Some(Err(why)) => return self.watching.down(why.as_str()),
            Some(Ok(())) => {}
        }
        if let Scope::One(name) = &self.scope
            && self.entries.is_empty()
        {
            let namespace = &self.namespace;
            let why = if self.leaving.contains(name) {
                format!(
                    "the SentinelConfig {name} in the namespace {namespace} is being deleted, and its finalizers hold it; \
                     nothing is published for it any more"
                )
            } else {
                format!(
                    "there is no SentinelConfig {name} in the namespace {namespace}; create it, or correct --config or \
                     --namespace"
                )
            };
            if self.missing.as_ref() != Some(&why) {
                error!(error = why, "nothing is published");
                self.parts.families.object_failed(&Shard::unknown(), Operation::Load);
                self.missing = Some(why.clone());
            }
            return self.watching.down(why);
        }
        self.missing = None;
        let wrong =
            self.entries.iter().filter_map(|(name, entry)| Some(format!("{name}: {}", entry.trouble()?.message)));
        let wrong: Vec<_> = wrong.collect();
        if wrong.is_empty() {
            self.watching.up();
        } else {
            self.watching.down(wrong.join("; "));
        }
    }
}

/// Waits for an answer of the API server, and not for ever.
async fn answered<T>(asking: impl Future<Output = Result<T, kube::Error>>) -> Result<T, kube::Error> {
    let late = || kube::Error::Service(format!("no answer in {PATIENCE:?}").into());
    timeout(PATIENCE, asking).await.unwrap_or_else(|_| Err(late()))
}

/// What the API server said, or why it could not be asked.
fn told(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        _ => chain(error),
    }
}

/// Waits until a sentinel has ended.
async fn ended(entries: &mut BTreeMap<String, Entry>) {
    poll_fn(|cx| {
        let mut any = Poll::Pending;
        for entry in entries.values_mut() {
            if entry.poll_end(cx).is_ready() {
                any = Poll::Ready(());
            }
        }
        any
    })
    .await;
}

/// Sleeps until then, or for ever.
async fn until(wake: Option<Instant>) {
    match wake {
        Some(wake) => sleep_until(wake).await,
        None => std::future::pending().await,
    }
}
