//! Watches one scope: a kind in a namespace, or in all of them.
//!
//! Everything that is learnt of a scope goes through its own task, in order: the lists and watches of the cluster, and the
//! answers to questions. What a chunk of it means is committed before the next is looked at, and tried again until it is:
//! while the ledger takes nothing, nothing is taken from the cluster. No error and no list that was cut off says that
//! anything is gone.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::join;
use futures_util::{FutureExt, StreamExt};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, PartialObjectMeta};
use kube::core::{GroupVersionKind, ObjectMeta};
use kube::discovery::{Scope as Reach, pinned_kind};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};
use watchfire_delivery::outbox::SinkId;
use watchfire_delivery::retry::Backoff;
use watchfire_delivery::store::{self, Store};
use watchfire_runtime::health::{Dependency, Health, Heartbeat};
use watchfire_runtime::{chain, clock};

use crate::config::{Entry, Reconciliation};
use crate::drift::Comparison;
use crate::episode::{Allowed, Heard, Known, Object, Rule, Source, Step};
use crate::ledger::{self, Book, ScopeKey};
use crate::notice::Envelope;

/// Of an object nothing else is asked for.
pub(crate) type Metadata = PartialObjectMeta<DynamicObject>;

/// Objects in one page of a list.
pub(crate) const PAGE: u32 = 100;

/// What a watch has brought is noted together, up to so many at a time.
const CHUNK: usize = 256;

/// Questions that may wait; whoever has more waits as well.
const QUESTIONS: usize = 64;

/// The loop beats at least this often; the longest silence is a watch in which nothing happens.
const MAX_SILENCE: Duration = Duration::from_mins(10);

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
    pub(crate) one_order: bool,
    pub(crate) reconciliation: Option<Reconciliation>,
    pub(crate) health: Health,
}

/// An object of which cluster and ledger seem to differ.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// One scope.
pub(crate) struct Watch {
    common: Common,
    entry: Entry,
    namespace: Option<String>,
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
        Self {
            state: common.health.dependency(name.clone()),
            heartbeat: common.health.heartbeat(name, MAX_SILENCE),
            common,
            entry,
            namespace,
        }
    }

    /// Watches until told to stop.
    pub(crate) async fn run(self, token: CancellationToken) -> Result<(), store::Error> {
        let Some(resource) = token.run_until_cancelled(self.discover()).await else { return Ok(()) };
        let key = ScopeKey {
            group: resource.group.clone(),
            resource: resource.plural.clone(),
            namespace: self.namespace.clone().unwrap_or_default(),
            kind: resource.kind.clone(),
        };
        let api: Api<Metadata> = match &self.namespace {
            Some(namespace) => Api::namespaced_with(self.common.client.clone(), namespace, &resource),
            None => Api::all_with(self.common.client.clone(), &resource),
        };
        let Common { sink, envelope, one_order, store, .. } = self.common.clone();
        let mut known = Known::default();
        let (id, listed) = {
            let key = key.clone();
            store.write(move |tx| ledger::scope(tx, &key)).await?
        };
        for snapshot in store.read(move |connection| ledger::open(connection, id)).await? {
            known.remember(&snapshot);
        }
        let scope = Scope {
            common: &self.common,
            book: Book { id, key, envelope, sink, one_order },
            api,
            kind: resource,
            known,
            listed,
            state: &self.state,
            heartbeat: &self.heartbeat,
            token: &token,
        };
        let (sender, questions) = mpsc::channel(QUESTIONS);
        let comparison = Comparison {
            api: scope.api.clone(),
            scope: id,
            name: scope.name(),
            rule: self.common.rule.clone(),
            store: self.common.store.clone(),
            questions: sender,
        };
        let compared = async {
            if let Some(every) = self.common.reconciliation {
                comparison.run(every, token.clone()).await;
            }
        };
        let compared = compared.boxed();
        let (Stopped, ()) = join(scope.run(questions), compared).await;
        Ok(())
    }

    /// Asks what the kind is called; one that the cluster does not serve yet is waited for.
    async fn discover(&self) -> ApiResource {
        let Entry { group, version, kind, resource, .. } = &self.entry;
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let (mut told, mut attempt) = (String::new(), 0);
        loop {
            self.heartbeat.beat();
            let complaint = match pinned_kind(&self.common.client, &gvk).await {
                Ok((found, capabilities)) => {
                    if let Some(plural) = resource.as_ref().filter(|plural| **plural != found.plural) {
                        format!("the cluster calls it {}, and resources has {plural}: correct it", found.plural)
                    } else if capabilities.scope == Reach::Cluster && self.namespace.is_some() {
                        "it has no namespaces: leave out the entry's".to_owned()
                    } else {
                        return found;
                    }
                }
                Err(error) => chain(&error),
            };
            self.state.down(format!("{}: {complaint}", self.entry.name()));
            if complaint != told {
                warn!(
                    kind,
                    api_version = self.entry.api_version(),
                    error = complaint,
                    "the kind cannot be watched, asking again"
                );
                told = complaint;
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
        let events = watcher(self.api.clone(), config).default_backoff();
        let mut events = pin!(events.ready_chunks(CHUNK));
        let token = self.token;
        let mut failing = false;
        loop {
            self.heartbeat.beat();
            let mut asked = Vec::new();
            tokio::select! {
                () = token.cancelled() => return Err(Stopped),
                Some(chunk) = events.next() => {
                    for event in chunk {
                        match event {
                            Ok(event) => {
                                if std::mem::take(&mut failing) {
                                    info!(scope = %self.name(), "the cluster answers again");
                                    if !self.known.is_listing() && self.listed {
                                        self.state.up();
                                    }
                                }
                                self.hear(event, &mut asked).await?;
                            }
                            Err(error) => self.fails(&error, &mut failing),
                        }
                    }
                    self.commit(asked).await?;
                }
                // A list that is under way may be older than the answer.
                Some(question) = questions.recv(), if !self.known.is_listing() => {
                    self.ask(&question, &mut asked).await;
                    self.commit(asked).await?;
                }
            }
        }
    }

    fn name(&self) -> String {
        let ScopeKey { resource, group, namespace, .. } = &self.book.key;
        format!("{resource}.{group}/{namespace}")
    }

    /// Says that the cluster does not answer: to readiness always, to the log once.
    fn fails(&self, error: &watcher::Error, failing: &mut bool) {
        let error = chain(error);
        self.state.down(format!("{error}; nothing is concluded from it, asking again"));
        if std::mem::replace(failing, true) {
            debug!(scope = %self.name(), error, "the cluster still does not answer");
        } else {
            warn!(scope = %self.name(), error, "the cluster does not answer, asking again");
        }
    }

    async fn hear(&mut self, event: Event<Metadata>, steps: &mut Vec<Step>) -> Result<(), Stopped> {
        match event {
            Event::Init => self.known.list_begins(!self.listed),
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
                self.note(move |tx| ledger::listed(tx, id, clock::now())).await?;
                self.listed = true;
                self.state.up();
            }
        }
        Ok(())
    }

    fn applied(&mut self, metadata: ObjectMeta, heard: Heard) -> Vec<Step> {
        self.known.applied(object(metadata), heard, &self.common.rule, &self.common.allowed)
    }

    /// Asks for one object, and takes the answer as the last word.
    async fn ask(&mut self, question: &Question, steps: &mut Vec<Step>) {
        let Question { namespace, name } = question;
        let (client, kind) = (self.common.client.clone(), &self.kind);
        let api: Api<Metadata> = match namespace.as_str() {
            "" => Api::all_with(client, kind),
            namespace => Api::namespaced_with(client, namespace, kind),
        };
        match api.get_opt(name).await {
            Ok(Some(found)) => steps.extend(self.applied(found.metadata, Heard::Question)),
            Ok(None) => {
                if let Some(uid) = self.known.uid(namespace, name).map(str::to_owned) {
                    steps.extend(self.known.deleted(namespace, name, &uid, Heard::Question));
                }
            }
            // The next comparison asks again.
            Err(error) => {
                warn!(scope = %self.name(), namespace, name, error = chain(&error), "an object cannot be asked for");
            }
        }
    }

    /// Notes the steps, in order, and in transactions of bounded size.
    async fn commit(&mut self, steps: Vec<Step>) -> Result<(), Stopped> {
        let mut rest = steps;
        while !rest.is_empty() {
            let after = rest.split_off(rest.len().min(CHUNK));
            let (book, now) = (self.book.clone(), clock::now());
            let chunk = std::sync::Arc::new(rest);
            let steps = std::sync::Arc::clone(&chunk);
            let noted = self
                .note(move |tx| steps.iter().map(|step| book.note(tx, step, now)).collect::<Result<Vec<_>, _>>())
                .await?;
            for (step, noted) in chunk.iter().zip(noted) {
                if noted.news {
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

    /// Writes to the ledger until it takes it; nothing is forgotten meanwhile, and nothing more is taken in.
    async fn note<T: Send + 'static>(
        &self,
        work: impl Fn(&store::Tx<'_>) -> Result<T, store::Error> + Clone + Send + 'static,
    ) -> Result<T, Stopped> {
        let (mut failed, mut attempt) = (false, 0);
        loop {
            self.heartbeat.beat();
            match self.common.store.write(work.clone()).await {
                Ok(done) => {
                    if failed {
                        info!(scope = %self.name(), "the ledger can be written again");
                        if self.listed && !self.known.is_listing() {
                            self.state.up();
                        }
                    }
                    return Ok(done);
                }
                Err(store::Error::Closed) => return Err(Stopped),
                Err(error) => {
                    let (reason, hint) = (chain(&error), error.hint());
                    self.state.down(format!("{reason}; {hint}"));
                    if !std::mem::replace(&mut failed, true) {
                        error!(scope = %self.name(), error = reason, hint, "the ledger cannot be written, nothing more is taken in until it can");
                    }
                }
            }
            let pause = sleep(AGAIN.delay(attempt, rand::random(), None));
            self.token.run_until_cancelled(pause).await.ok_or(Stopped)?;
            attempt += 1;
        }
    }
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
