//! Watches one scope: a kind in a namespace, or in all of them.
//!
//! Everything that is learnt of a scope goes through its own task, in order: the lists and watches of the cluster, and
//! the answers to questions. What a chunk of it means is committed before the next is looked at, and tried again until
//! it is: while the ledger takes nothing, no more than two chunks are taken from the cluster. No error and no list that
//! was cut off says that anything is gone.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::join;
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use kube::Client;
use kube::api::{Api, ApiResource, ListParams};
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};
use watchfire_delivery::outbox::SinkId;
use watchfire_delivery::retry::Backoff;
use watchfire_delivery::store::{self, Store};
use watchfire_runtime::health::{Dependency, Health, Heartbeat};
use watchfire_runtime::{chain, clock};

use crate::config::{Entry, Reconciliation};
use crate::drift::Comparison;
use crate::episode::{Allowed, Heard, Known, Lists, Object, Rule, Snapshot, Source, Step};
use crate::ledger::{self, Book, Name, ScopeKey};
use crate::metrics::Metrics;
use crate::notice::{Envelope, Order};
use crate::objects::{Metadata, PAGE, discover, is_about, light, object, objects, told};

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
    /// Whether the ledger takes what is told of the cluster.
    pub(crate) of_ledger: Dependency,
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
    /// In readiness.
    name: String,
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
    /// In readiness.
    title: &'a str,
    state: &'a Dependency,
    ledger: Ledger<'a>,
}

/// The ledger as a scope writes to it.
struct Ledger<'a> {
    common: &'a Common,
    heartbeat: &'a Heartbeat,
    token: &'a CancellationToken,
}

/// Told to stop.
struct Stopped;

impl Watch {
    pub(crate) fn new(common: Common, entry: Entry, namespace: Option<String>) -> Self {
        let place = namespace.as_ref().map(|namespace| format!(".{namespace}")).unwrap_or_default();
        let name = format!("watch_{}{place}", entry.name());
        common.metrics.watches(&entry.kind, &name);
        // Nothing is amiss before the first comparison.
        let compared = common.health.dependency(name.replacen("watch_", "comparison_", 1));
        compared.up();
        Self {
            compared,
            state: common.health.dependency(name.clone()),
            heartbeat: common.health.heartbeat(name.clone(), MAX_SILENCE),
            common,
            entry,
            namespace,
            name,
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
        let ledger = Ledger { common: &self.common, heartbeat: &self.heartbeat, token: &token };
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
            title: &self.name,
            state: &self.state,
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
        let (mut last, mut attempt) = (String::new(), 0);
        loop {
            let asking = discover(&self.common.client, &self.entry, self.namespace.as_deref());
            let error = match self.heartbeat.during(asking).await {
                Ok(found) => return found,
                Err(error) => told(&error),
            };
            let (kind, api_version) = (&self.entry.kind, self.entry.api_version());
            self.state.down(format!("{kind} of {api_version}: {error}"));
            if error != last {
                warn!(kind, api_version, error, "the kind cannot be watched, asking again");
                last = error;
            }
            sleep(AGAIN.delay(attempt, rand::random(), None)).await;
            attempt += 1;
        }
    }
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
        let (rule, allowed) = (self.common.rule.clone(), self.common.allowed.clone());
        let events = watcher(self.api.clone(), config).map_ok(move |event| light(event, &rule, &allowed));
        let mut events = pin!(events.ready_chunks(CHUNK));
        // What came while something before it was noted.
        let mut ahead = Vec::new();
        let Ledger { heartbeat, token, .. } = self.ledger;
        // Errors since the cluster last answered.
        let mut errors = 0;
        loop {
            let (mut steps, has_more) = (Vec::new(), !ahead.is_empty());
            let next = async { if ahead.is_empty() { events.next().await } else { Some(std::mem::take(&mut ahead)) } };
            tokio::select! {
                biased;
                () = token.cancelled(), if !has_more => return Err(Stopped),
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
                            Some(more) = events.next(),
                                if errors == 0 && ahead.len() < CHUNK && ahead.iter().all(Result::is_ok)
                                    && !token.is_cancelled() =>
                            {
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
            self.state.up();
            self.connected(true);
        }
    }

    fn connected(&self, up: bool) {
        self.common.metrics.connected(&self.book.key.kind, self.title, up);
    }

    fn name(&self) -> String {
        let ScopeKey { resource, group, namespace, .. } = &self.book.key;
        format!("{resource}.{group}/{namespace}")
    }

    /// Says that the cluster does not answer: to readiness always, to the log once.
    fn fails(&self, error: &watcher::Error, errors: u32) {
        let error = told(error);
        self.connected(false);
        self.state.down(format!("{error}; nothing is concluded from it, asking again"));
        if errors > 0 {
            debug!(scope = %self.name(), error, "the cluster still does not answer");
        } else {
            warn!(scope = %self.name(), error, "the cluster does not answer, asking again");
        }
    }

    async fn hear(&mut self, event: Event<Object>, steps: &mut Vec<Step>) -> Result<(), Stopped> {
        if !matches!(event, Event::Init | Event::InitDone) {
            self.common.metrics.heard(&self.book.key.kind, clock::now());
        }
        match event {
            Event::Init => self.begins(),
            Event::InitApply(it) => steps.extend(self.applied(it, Heard::List)),
            Event::Apply(it) => steps.extend(self.applied(it, Heard::Watch)),
            Event::Delete(Object { namespace, name, uid, .. }) => {
                steps.extend(self.known.deleted(&namespace, &name, &uid, Heard::Watch));
            }
            Event::InitDone => {
                steps.extend(self.known.list_ends());
                self.commit(std::mem::take(steps)).await?;
                let id = self.book.id;
                self.ledger.write(move |tx| ledger::listed(tx, id, clock::now())).await?;
                self.common.metrics.compared(&self.book.key.kind, Some(self.known.open() as u64), self.begun.elapsed());
                self.listed = true;
                self.settled();
            }
        }
        Ok(())
    }

    fn applied(&mut self, object: Object, heard: Heard) -> Vec<Step> {
        self.known.applied(object, heard, &self.common.rule, &self.common.allowed)
    }

    /// Asks for one object, and takes the answer as the last word.
    async fn ask(&mut self, question: &Question) -> Vec<Step> {
        let Question { namespace, name, uid } = question;
        let namespaced = Some(namespace.as_str()).filter(|namespace| !namespace.is_empty());
        let api = objects(&self.common.client, namespaced, &self.kind);
        let found = match timeout(PATIENCE, api.get(name)).await {
            Ok(Ok(found)) => Some(object(found.metadata)),
            // Any other 404 is about the kind, or of somebody in between.
            Ok(Err(kube::Error::Api(status))) if is_about(&status, name) => None,
            // The next comparison asks again.
            Ok(Err(error)) => {
                warn!(scope = %self.name(), namespace, name, error = told(&error), "an object cannot be asked for");
                return Vec::new();
            }
            Err(_) => {
                warn!(scope = %self.name(), namespace, name, error = "no answer in time", "an object cannot be asked for");
                return Vec::new();
            }
        };
        let mut steps = Vec::new();
        // The one that the ledger has is no more if none is there, or another one.
        let ended = |uid: &String| Step::End(uid.clone(), Source::Reconciliation);
        if let Some(uid) = uid.as_ref().filter(|uid| found.as_ref().is_none_or(|it| it.uid != **uid)) {
            let known = self.known.deleted(namespace, name, uid, Heard::Question);
            steps.push(known.unwrap_or_else(|| ended(uid)));
        }
        if let Some(found) = found {
            let marked = self.common.rule.value(&found.annotations).is_some();
            let lost = uid.as_ref().filter(|uid| !marked && **uid == found.uid);
            let known = self.applied(found, Heard::Question);
            // What only the ledger takes to be going on is over, too.
            steps.extend(lost.filter(|_| known.is_empty()).map(ended));
            steps.extend(known);
        }
        steps
    }

    /// Notes the steps, in order, and in transactions of bounded size.
    async fn commit(&mut self, steps: Vec<Step>) -> Result<(), Stopped> {
        let (mut rest, mut intake) = (steps, self.common.intake.clone());
        while !rest.is_empty() {
            // What was heard before a stop is noted, too, unless nothing is taken in.
            let is_open = *intake.borrow();
            if !is_open {
                let open = self.ledger.heartbeat.during(intake.wait_for(|open| *open));
                self.ledger.token.run_until_cancelled(open).await.ok_or(Stopped)?.map_err(|_| Stopped)?;
            }
            let after = rest.split_off(rest.len().min(CHUNK));
            let (book, now) = (self.book.clone(), clock::now());
            let chunk = std::sync::Arc::new(rest);
            let steps = std::sync::Arc::clone(&chunk);
            let noted = self
                .ledger
                .write(move |tx| steps.iter().map(|step| book.note(tx, step, now)).collect::<Result<Vec<_>, _>>())
                .await?;
            for (step, news) in chunk.iter().zip(noted) {
                if let Some(name) = news {
                    self.common.metrics.noted(&self.book.key.kind, &self.book.key.namespace, step);
                    self.tell(step, &name);
                }
            }
            rest = after;
        }
        Ok(())
    }

    fn tell(&self, step: &Step, (namespace, name): &Name) {
        let scope = self.name();
        match step {
            Step::Begin(Snapshot { uid, .. }, Source::Watch) => info!(scope, namespace, name, uid, "object appeared"),
            Step::Begin(Snapshot { uid, .. }, Source::Mutation) => warn!(
                scope,
                namespace, name, uid, "annotation added to an object, the event has the time at which that was seen"
            ),
            Step::Begin(Snapshot { uid, .. }, Source::Reconciliation) => {
                warn!(scope, namespace, name, uid, "missed creation: an object was not in the ledger");
            }
            Step::Change(_) => {}
            Step::End(uid, Source::Watch) => info!(scope, namespace, name, uid, "object is gone"),
            Step::End(uid, Source::Mutation) => {
                warn!(scope, namespace, name, uid, "annotation removed from an object");
            }
            Step::End(uid, Source::Reconciliation) => warn!(
                scope,
                namespace, name, uid, "missed deletion: an object of the ledger is no more, or without the annotation"
            ),
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
            match self.heartbeat.during(self.common.store.write(work.clone())).await {
                Ok(done) => {
                    if attempt > 0 {
                        info!("the ledger can be written again");
                        self.common.of_ledger.up();
                    }
                    return Ok(done);
                }
                Err(store::Error::Closed) => return Err(Stopped),
                Err(error) => {
                    let (reason, hint) = (chain(&error), error.hint());
                    self.common.of_ledger.down(format!("{reason}; {hint}"));
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
