//! Watches one scope: a kind in a namespace, or in all of them.
//!
//! Everything that is learnt of a scope goes through its own task, in order: the lists and watches of the cluster, and the
//! answers to questions. What a chunk of it means is committed before the next is looked at, and tried again until it is:
//! while the ledger takes nothing, no more than a chunk is taken from the cluster. No error and no list that was cut off says that
//! anything is gone.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::join;
use futures_util::{FutureExt, StreamExt};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PartialObjectMeta};
use kube::core::{GroupVersion, GroupVersionKind, ObjectMeta, Status};
use kube::discovery::{Scope as Reach, pinned_group, pinned_kind};
use kube::error::DiscoveryError;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};
use watchfire_delivery::outbox::SinkId;
use watchfire_delivery::retry::Backoff;
use watchfire_delivery::store::{self, Store};
use watchfire_runtime::config::nearest;
use watchfire_runtime::health::{Dependency, Health, Heartbeat};
use watchfire_runtime::{chain, clock};

use crate::config::{Entry, Reconciliation};
use crate::drift::Comparison;
use crate::episode::{Allowed, Heard, Known, Lists, Object, Rule, Source, Step};
use crate::ledger::{self, Book, ScopeKey};
use crate::metrics::Metrics;
use crate::notice::{Envelope, Order};

/// Of an object nothing else is asked for.
pub(crate) type Metadata = PartialObjectMeta<DynamicObject>;

/// Objects in one page of a list.
pub(crate) const PAGE: u32 = 100;

/// What a watch has brought is noted together, up to so many at a time.
const CHUNK: usize = 256;

/// Questions that may wait; whoever has more waits as well.
const QUESTIONS: usize = 64;

/// The loop beats at least this often, also in a watch in which nothing happens.
const MAX_SILENCE: Duration = Duration::from_mins(1);

/// How long one question to the cluster may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A watch that failed and fails no more says nothing: it is asked about after so long.
const QUIET: Duration = Duration::from_secs(2);

/// How often the cluster, or the ledger, is asked again after an error.
const AGAIN: Backoff =
    Backoff { initial: Duration::from_millis(500), multiplier: 2.0, jitter: 0.1, max: Duration::from_secs(30) };

/// What all scopes have in common.
#[derive(Clone)]
pub(crate) struct Common {
    pub(crate) client: Client,
    pub(crate) store: Store,
    pub(crate) sink: SinkId,
    pub(crate) rule: Rule,
    pub(crate) allowed: Allowed,
    pub(crate) envelope: Envelope,
    pub(crate) order: Order,
    pub(crate) reconciliation: Option<Reconciliation>,
    /// Whether it is ready only once cluster and ledger were compared.
    pub(crate) on_startup: bool,
    /// Whether anything is taken in.
    pub(crate) intake: watch::Receiver<bool>,
    pub(crate) metrics: Metrics,
    pub(crate) health: Health,
}

/// An object of which cluster and ledger seem to differ.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The UID that the ledger has, if any.
    pub(crate) uid: Option<String>,
}

/// One scope.
pub(crate) struct Watch {
    common: Common,
    entry: Entry,
    namespace: Option<String>,
    compared: Dependency,
    state: Dependency,
    heartbeat: Heartbeat,
}

/// A scope whose kind the cluster serves.
struct Scope<'a> {
    common: &'a Common,
    book: Book,
    api: Api<Metadata>,
    kind: ApiResource,
    known: Known,
    listed: bool,
    /// Since when it is listed.
    begun: Instant,
    ledger: Ledger<'a>,
}

/// The ledger as a scope writes to it.
struct Ledger<'a> {
    store: &'a Store,
    state: &'a Dependency,
    heartbeat: &'a Heartbeat,
    token: &'a CancellationToken,
}

/// Told to stop.
struct Stopped;

impl Watch {
    pub(crate) fn new(common: Common, entry: Entry, namespace: Option<String>) -> Self {
        let place = namespace.as_ref().map(|namespace| format!(".{namespace}")).unwrap_or_default();
        let name = format!("watch_{}{place}", entry.name());
        common.metrics.watches(&entry.kind, namespace.as_deref().unwrap_or_default());
        // Nothing is amiss before the first comparison.
        let compared = common.health.dependency(name.replacen("watch_", "comparison_", 1));
        compared.up();
        Self {
            compared,
            state: common.health.dependency(name.clone()),
            heartbeat: common.health.heartbeat(name, MAX_SILENCE),
            common,
            entry,
            namespace,
        }
    }

    /// Watches until told to stop.
    pub(crate) async fn run(self, token: CancellationToken) -> Result<(), Infallible> {
        Box::pin(self.watch(token)).await;
        Ok(())
    }

    async fn watch(self, token: CancellationToken) {
        let Some(resource) = token.run_until_cancelled(self.discover()).await else { return };
        let key = ScopeKey::of(&resource, self.namespace.as_deref());
        let api = objects(&self.common.client, self.namespace.as_deref(), &resource);
        let Common { sink, envelope, order, .. } = self.common.clone();
        let work = {
            let key = key.clone();
            move |tx: &store::Tx<'_>| {
                let (id, listed) = ledger::scope(tx, &key)?;
                ledger::adopt(tx, id, &key)?;
                let mut known = Known::default();
                ledger::each_open(tx, id, |snapshot| known.remember(&snapshot))?;
                Ok((id, listed, known))
            }
        };
        let ledger =
            Ledger { store: &self.common.store, state: &self.state, heartbeat: &self.heartbeat, token: &token };
        let Ok((id, listed, known)) = ledger.write(work).await else { return };
        if !self.common.on_startup {
            self.state.up();
        }
        let scope = Scope {
            common: &self.common,
            book: Book { id, key, envelope, sink, order },
            api,
            kind: resource,
            known,
            listed,
            begun: Instant::now(),
            ledger,
        };
        let (sender, questions) = mpsc::channel(QUESTIONS);
        let comparison = Comparison {
            api: scope.api.clone(),
            scope: id,
            name: scope.name(),
            kind: scope.book.key.kind.clone(),
            metrics: self.common.metrics.clone(),
            rule: self.common.rule.clone(),
            store: self.common.store.clone(),
            questions: sender,
            state: self.compared,
        };
        let compared = async {
            if let Some(every) = self.common.reconciliation {
                comparison.run(every, token.clone()).await;
            }
        };
        let compared = compared.boxed();
        let (Stopped, ()) = join(scope.run(questions), compared).await;
    }

    /// Asks what the kind is called; one that the cluster does not serve yet is waited for.
    async fn discover(&self) -> ApiResource {
        let (mut told, mut attempt) = (String::new(), 0);
        loop {
            let asking = discover(&self.common.client, &self.entry, self.namespace.as_deref());
            let error = match self.heartbeat.during(asking).await {
                Ok(found) => return found,
                Err(error) => chain(&error),
            };
            let (kind, api_version) = (&self.entry.kind, self.entry.api_version());
            self.state.down(format!("{kind} of {api_version}: {error}"));
            if error != told {
                warn!(kind, api_version, error, "the kind cannot be watched, asking again");
                told = error;
            }
            sleep(AGAIN.delay(attempt, rand::random(), None)).await;
            attempt += 1;
        }
    }
}

/// Why a kind cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum Unwatchable {
    /// The cluster does not serve it, or does not answer.
    #[error("ask the cluster for the kind")]
    Unknown(#[from] kube::Error),
    /// The cluster serves the group, and no such kind in it.
    #[error("the cluster serves no {kind} in {api_version}{meant}")]
    Missing {
        /// As written.
        kind: String,
        /// As written.
        api_version: String,
        /// What was probably meant.
        meant: String,
    },
    /// It has another plural than is written.
    #[error("the cluster calls it {theirs}, and resources has {ours}: correct it")]
    Plural {
        /// As written.
        ours: String,
        /// As the cluster has it.
        theirs: String,
    },
    /// It is not in namespaces.
    #[error("it has no namespaces: leave out those of its entry")]
    Namespaces,
}

/// Asks what a kind is called, and whether it can be watched in a namespace.
pub(crate) async fn discover(
    client: &Client,
    entry: &Entry,
    namespace: Option<&str>,
) -> Result<ApiResource, Unwatchable> {
    let Entry { group, version, kind, resource, .. } = entry;
    let (found, capabilities) = match pinned_kind(client, &GroupVersionKind::gvk(group, version, kind)).await {
        Err(kube::Error::Discovery(DiscoveryError::MissingKind(_))) => return Err(missing(client, entry).await),
        Err(kube::Error::Api(status)) if status.code == 404 => return Err(missing(client, entry).await),
        found => found?,
    };
    if let Some(ours) = resource.clone().filter(|ours| *ours != found.plural) {
        return Err(Unwatchable::Plural { ours, theirs: found.plural });
    }
    if capabilities.scope == Reach::Cluster && namespace.is_some() {
        return Err(Unwatchable::Namespaces);
    }
    Ok(found)
}

/// The objects of a kind, in a namespace or in all of them.
pub(crate) fn objects(client: &Client, namespace: Option<&str>, kind: &ApiResource) -> Api<Metadata> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, kind),
        None => Api::all_with(client.clone(), kind),
    }
}

/// Says that there is no such kind, and which one there is.
async fn missing(client: &Client, entry: &Entry) -> Unwatchable {
    let Entry { group, version, kind, .. } = entry;
    let served = pinned_group(client, &GroupVersion::gv(group, version)).await;
    let served: Vec<_> =
        served.iter().flat_map(|group| group.versioned_resources(version)).map(|it| it.0.kind).collect();
    let names: Vec<_> = served.iter().map(String::as_str).collect();
    let of_the_core = (group == "core").then_some(version.as_str());
    let meant = nearest(kind, &names).filter(|name| name != kind).or(of_the_core);
    let meant = meant.map(|name| format!(", did you mean {name}?")).unwrap_or_default();
    Unwatchable::Missing { kind: kind.clone(), api_version: entry.api_version(), meant }
}

impl Scope<'_> {
    async fn run(mut self, questions: mpsc::Receiver<Question>) -> Stopped {
        match self.watch(questions).await {
            Ok(never) => match never {},
            Err(stopped) => stopped,
        }
    }

    async fn watch(&mut self, mut questions: mpsc::Receiver<Question>) -> Result<Infallible, Stopped> {
        let config = watcher::Config { page_size: Some(PAGE), ..watcher::Config::default() };
        let mut events = pin!(watcher(self.api.clone(), config).ready_chunks(CHUNK));
        // What came while something before it was noted.
        let mut ahead = Vec::new();
        let Ledger { heartbeat, token, .. } = self.ledger;
        // Errors since the cluster last answered.
        let mut errors = 0;
        loop {
            let mut steps = Vec::new();
            let next = async { if ahead.is_empty() { events.next().await } else { Some(std::mem::take(&mut ahead)) } };
            tokio::select! {
                biased;
                () = token.cancelled() => return Err(Stopped),
                Some(chunk) = heartbeat.during(next) => {
                    for event in chunk {
                        match event {
                            Ok(event) => {
                                // That a list is to begin is no answer.
                                if !matches!(event, Event::Init) {
                                    self.answers(&mut errors);
                                }
                                self.hear(event, &mut steps).await?;
                            }
                            Err(error) => {
                                self.fails(&error, errors);
                                errors += 1;
                            }
                        }
                    }
                    // The API server sends each event by itself: those that come meanwhile are noted together.
                    let mut noting = pin!(self.commit(steps));
                    loop {
                        tokio::select! {
                            biased;
                            noted = &mut noting => break noted?,
                            // After an error there is a pause.
                            Some(more) = events.next(), if ahead.len() < CHUNK && ahead.iter().all(Result::is_ok) => {
                                ahead.extend(more);
                            }
                        }
                    }
                    if errors > 0 {
                        let pause = heartbeat.during(sleep(AGAIN.delay(errors - 1, rand::random(), None)));
                        token.run_until_cancelled(pause).await.ok_or(Stopped)?;
                    }
                }
                // A list that is under way may be older than the answer.
                Some(question) = questions.recv(), if !self.known.is_listing() => {
                    let asking = heartbeat.during(self.ask(&question));
                    let steps = token.run_until_cancelled(asking).await.ok_or(Stopped)?;
                    self.commit(steps).await?;
                }
                () = sleep(QUIET), if errors > 0 && !self.known.is_listing() => {
                    let one = ListParams::default().limit(1);
                    let asking = heartbeat.during(timeout(PATIENCE, self.api.list(&one)));
                    if let Ok(Ok(_)) = token.run_until_cancelled(asking).await.ok_or(Stopped)? {
                        self.answers(&mut errors);
                    }
                }
            }
        }
    }

    fn begins(&mut self) {
        self.begun = Instant::now();
        if self.listed {
            self.common.metrics.reconnected(&self.book.key.kind, "relist");
        }
        self.known.list_begins(if self.listed { Lists::Again } else { Lists::First });
    }

    fn answers(&self, errors: &mut u32) {
        if std::mem::take(errors) > 0 {
            info!(scope = %self.name(), "the cluster answers again");
            self.common.metrics.reconnected(&self.book.key.kind, "error");
            self.settled();
        }
    }

    /// The scope is up, unless a list is still under way.
    fn settled(&self) {
        if self.listed && !self.known.is_listing() {
            self.ledger.state.up();
            self.connected(true);
        }
    }

    fn connected(&self, up: bool) {
        let ScopeKey { kind, namespace, .. } = &self.book.key;
        self.common.metrics.connected(kind, namespace, up);
    }

    fn name(&self) -> String {
        let ScopeKey { resource, group, namespace, .. } = &self.book.key;
        format!("{resource}.{group}/{namespace}")
    }

    /// Says that the cluster does not answer: to readiness always, to the log once.
    fn fails(&self, error: &watcher::Error, errors: u32) {
        let error = chain(error);
        self.connected(false);
        self.ledger.state.down(format!("{error}; nothing is concluded from it, asking again"));
        if errors > 0 {
            debug!(scope = %self.name(), error, "the cluster still does not answer");
        } else {
            warn!(scope = %self.name(), error, "the cluster does not answer, asking again");
        }
    }

    async fn hear(&mut self, event: Event<Metadata>, steps: &mut Vec<Step>) -> Result<(), Stopped> {
        if !matches!(event, Event::Init | Event::InitDone) {
            self.common.metrics.heard(&self.book.key.kind, clock::now());
        }
        match event {
            Event::Init => self.begins(),
            Event::InitApply(it) => steps.extend(self.applied(it.metadata, Heard::List)),
            Event::Apply(it) => steps.extend(self.applied(it.metadata, Heard::Watch)),
            Event::Delete(it) => {
                let Object { namespace, name, uid, .. } = object(it.metadata);
                steps.extend(self.known.deleted(&namespace, &name, &uid, Heard::Watch));
            }
            Event::InitDone => {
                steps.extend(self.known.list_ends());
                self.commit(std::mem::take(steps)).await?;
                let id = self.book.id;
                self.ledger.write(move |tx| ledger::compared(tx, id, clock::now())).await?;
                self.common.metrics.compared(&self.book.key.kind, Some(self.known.open() as u64), self.begun.elapsed());
                self.listed = true;
                self.settled();
            }
        }
        Ok(())
    }

    fn applied(&mut self, metadata: ObjectMeta, heard: Heard) -> Vec<Step> {
        self.known.applied(object(metadata), heard, &self.common.rule, &self.common.allowed)
    }

    /// Asks for one object, and takes the answer as the last word.
    async fn ask(&mut self, question: &Question) -> Vec<Step> {
        let Question { namespace, name, uid } = question;
        let namespaced = Some(namespace.as_str()).filter(|namespace| !namespace.is_empty());
        let api = objects(&self.common.client, namespaced, &self.kind);
        let found = match timeout(PATIENCE, api.get(name)).await {
            Ok(Ok(found)) => Some(found),
            // Any other 404 is about the kind, or of somebody in between.
            Ok(Err(kube::Error::Api(status))) if is_about(&status, name) => None,
            // The next comparison asks again.
            Ok(Err(error)) => {
                warn!(scope = %self.name(), namespace, name, error = chain(&error), "an object cannot be asked for");
                return Vec::new();
            }
            Err(_) => {
                warn!(scope = %self.name(), namespace, name, error = "no answer in time", "an object cannot be asked for");
                return Vec::new();
            }
        };
        let mut steps = Vec::new();
        // The one that the ledger has is no more if none is there, or another one.
        let gone = uid.clone().filter(|uid| found.as_ref().is_none_or(|it| it.metadata.uid.as_ref() != Some(uid)));
        if let Some(uid) = gone {
            let known = self.known.deleted(namespace, name, &uid, Heard::Question);
            steps.push(known.unwrap_or(Step::End(uid, Source::Reconciliation)));
        }
        if let Some(found) = found {
            steps.extend(self.applied(found.metadata, Heard::Question));
        }
        steps
    }

    /// Notes the steps, in order, and in transactions of bounded size.
    async fn commit(&mut self, steps: Vec<Step>) -> Result<(), Stopped> {
        if !steps.is_empty() {
            let mut intake = self.common.intake.clone();
            let open = self.ledger.heartbeat.during(intake.wait_for(|open| *open));
            self.ledger.token.run_until_cancelled(open).await.ok_or(Stopped)?.map_err(|_| Stopped)?;
        }
        let mut rest = steps;
        while !rest.is_empty() {
            let after = rest.split_off(rest.len().min(CHUNK));
            let (book, now) = (self.book.clone(), clock::now());
            let chunk = std::sync::Arc::new(rest);
            let steps = std::sync::Arc::clone(&chunk);
            let noted = self
                .ledger
                .write(move |tx| steps.iter().map(|step| book.note(tx, step, now)).collect::<Result<Vec<_>, _>>())
                .await?;
            for (step, news) in chunk.iter().zip(noted) {
                if news {
                    self.common.metrics.noted(&self.book.key.kind, &self.book.key.namespace, step);
                    self.tell(step);
                }
            }
            rest = after;
        }
        Ok(())
    }

    fn tell(&self, step: &Step) {
        let scope = self.name();
        match step {
            Step::Begin(it, Source::Watch) => {
                info!(scope, namespace = it.namespace, name = it.name, uid = it.uid, "object appeared");
            }
            Step::Begin(it, Source::Mutation) => warn!(
                scope,
                namespace = it.namespace,
                name = it.name,
                uid = it.uid,
                "annotation added to an object, the event has the time at which that was seen"
            ),
            Step::Begin(it, Source::Reconciliation) => warn!(
                scope,
                namespace = it.namespace,
                name = it.name,
                uid = it.uid,
                "missed creation: an object was not in the ledger"
            ),
            Step::Change(_) => {}
            Step::End(uid, Source::Watch) => info!(scope, uid, "object is gone"),
            Step::End(uid, Source::Mutation) => warn!(scope, uid, "annotation removed from an object"),
            Step::End(uid, Source::Reconciliation) => {
                warn!(scope, uid, "missed deletion: an object of the ledger is no more, or without the annotation");
            }
        }
    }
}

impl Ledger<'_> {
    /// Writes until the ledger takes it; nothing is forgotten meanwhile, and nothing more is taken in.
    async fn write<T: Send + 'static>(
        &self,
        work: impl Fn(&store::Tx<'_>) -> Result<T, store::Error> + Clone + Send + 'static,
    ) -> Result<T, Stopped> {
        let mut attempt = 0;
        loop {
            match self.heartbeat.during(self.store.write(work.clone())).await {
                Ok(done) => {
                    if attempt > 0 {
                        info!("the ledger can be written again");
                        self.state.up();
                    }
                    return Ok(done);
                }
                Err(store::Error::Closed) => return Err(Stopped),
                Err(error) => {
                    let (reason, hint) = (chain(&error), error.hint());
                    self.state.down(format!("{reason}; {hint}"));
                    if attempt == 0 {
                        error!(
                            error = reason,
                            hint, "the ledger cannot be written, nothing more is taken in until it can"
                        );
                    }
                }
            }
            let pause = self.heartbeat.during(sleep(AGAIN.delay(attempt, rand::random(), None)));
            self.token.run_until_cancelled(pause).await.ok_or(Stopped)?;
            attempt += 1;
        }
    }
}

/// Whether it says that there is no object of that name.
fn is_about(status: &Status, name: &str) -> bool {
    status.reason == "NotFound" && status.details.as_ref().is_some_and(|details| details.name == name)
}

pub(crate) fn object(metadata: ObjectMeta) -> Object {
    let maps = |map: Option<BTreeMap<String, String>>| map.unwrap_or_default();
    Object {
        namespace: metadata.namespace.unwrap_or_default(),
        name: metadata.name.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
        annotations: maps(metadata.annotations),
        labels: maps(metadata.labels),
        resource_version: metadata.resource_version.unwrap_or_default(),
    }
}
