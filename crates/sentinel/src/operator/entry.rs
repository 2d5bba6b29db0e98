//! One object and its sentinel: what it should be, what it is, and what comes next.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use kube::ResourceExt;
use kube::api::DynamicObject;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use watchfire_runtime::tasks::beside;
use watchfire_runtime::{chain, clock};

use super::guard::Brokers;
use super::load::Loaded;
use super::status::{State, Written, of};
use super::{Parts, Problem, REQUEUE};
use crate::engine::Ledger;
use crate::metrics::Shard;
use crate::object::SentinelConfigStatus;
use crate::service::{Progress, Sentinel};

/// An object, and its sentinel.
pub(super) struct Entry {
    object: DynamicObject,
    deleted: bool,
    /// The generation that was read last, whether or not it held.
    read: Option<i64>,
    /// When it is read again though nobody says that anything changed: a Secret may have.
    again: Option<Instant>,
    problem: Option<Problem>,
    /// The last configuration that held.
    wanted: Option<Loaded>,
    running: Option<Running>,
    /// What the last sentinel remembered, and of which API and type.
    memory: Option<(String, Ledger)>,
    /// What sentinels that ended came to.
    before: Progress,
    pub(super) written: Written,
}

/// A sentinel that runs.
struct Running {
    loaded: Loaded,
    stop: CancellationToken,
    /// Whether it ended in an orderly way.
    work: BoxFuture<'static, bool>,
    ended: Option<bool>,
    progress: watch::Receiver<Progress>,
    ledger: Ledger,
    /// Of its object.
    uid: Option<String>,
}

impl Entry {
    pub(super) fn new(object: DynamicObject) -> Self {
        let mut entry = Self {
            object: DynamicObject { types: None, metadata: object.metadata.clone(), data: serde_json::Value::Null },
            deleted: false,
            read: None,
            again: None,
            problem: None,
            wanted: None,
            running: None,
            memory: None,
            before: Progress::default(),
            written: Written::default(),
        };
        entry.begin(object);
        entry
    }

    /// Takes what the object is now. Made again under the same name, it is another one.
    pub(super) fn replace(&mut self, object: DynamicObject) {
        if self.deleted || self.object.uid() != object.uid() {
            self.begin(object);
        } else {
            self.deleted = object.metadata.deletion_timestamp.is_some();
            self.object = object;
        }
    }

    fn begin(&mut self, object: DynamicObject) {
        self.deleted = object.metadata.deletion_timestamp.is_some();
        (self.read, self.again, self.problem, self.wanted) = (None, None, None, None);
        self.before = Progress::default();
        self.object = object;
        self.find_status();
    }

    /// Goes by the status that stands in the object: another replica may have written it.
    pub(super) fn find_status(&mut self) {
        let status = self.object.data.get("status").cloned();
        let status: Option<SentinelConfigStatus> = status.and_then(|status| serde_json::from_value(status).ok());
        self.written = Written::found(status.unwrap_or_default());
    }

    /// The object is gone, and with it its sentinel.
    pub(super) fn delete(&mut self) {
        self.deleted = true;
    }

    /// Whether nothing is left of it.
    pub(super) fn is_over(&self) -> bool {
        self.deleted && self.running.is_none()
    }

    /// The object, where it, or what it names, has to be read.
    pub(super) fn unread(&self, now: Instant) -> Option<DynamicObject> {
        let is_due = self.again.is_some_and(|at| at <= now);
        let unread = self.read != Some(self.generation()) || is_due;
        (unread && !self.deleted).then(|| self.object.clone())
    }

    fn generation(&self) -> i64 {
        self.object.metadata.generation.unwrap_or_default()
    }

    /// When something is to be done though nobody says anything.
    pub(super) fn wake(&self) -> Option<Instant> {
        self.again.filter(|_| !self.deleted)
    }

    pub(super) fn uid(&self) -> Option<String> {
        self.object.uid()
    }

    /// Whether its sentinel has ended since it was asked last; else the task is woken when it does.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(running) = self.running.as_mut().filter(|running| running.ended.is_none()) else {
            return Poll::Pending;
        };
        running.work.as_mut().poll(cx).map(|orderly| running.ended = Some(orderly))
    }

    /// Why no sentinel runs for this object, if so.
    pub(super) fn trouble(&self) -> Option<&Problem> {
        self.problem.as_ref().filter(|_| self.wanted.is_none())
    }

    /// What the sentinel that runs watches.
    pub(super) fn shard(&self) -> Option<Shard> {
        self.running.as_ref().map(|running| Shard::of(&running.loaded.sentinel))
    }

    /// The object was read: whether it cannot be used.
    pub(super) fn was_read(&mut self, result: Result<Loaded, Problem>) -> bool {
        let news = self.read.replace(self.generation()) != Some(self.generation());
        let name = self.object.name_any();
        match result {
            Ok(loaded) => {
                self.again = loaded.names_secrets().then(|| Instant::now() + REQUEUE);
                if self.problem.take().is_some() {
                    info!(sentinel = name, "the SentinelConfig can be used again");
                }
                if self.wanted.as_ref() != Some(&loaded) {
                    let known = self.wanted.as_ref().map_or(&[][..], |before| &before.warnings);
                    for warning in loaded.warnings.iter().filter(|warning| !known.contains(warning)) {
                        warn!(%warning, sentinel = name, "legal, but probably not meant");
                    }
                    self.wanted = Some(loaded);
                }
                false
            }
            Err(problem) => {
                self.again = Some(Instant::now() + REQUEUE);
                if news || self.problem.as_ref() != Some(&problem) {
                    error!(
                        sentinel = name,
                        reason = problem.reason,
                        error = problem.message,
                        in_force = self.wanted.is_some(),
                        "the SentinelConfig cannot be used; if one was in force before, it stays"
                    );
                }
                self.problem = Some(problem);
                true
            }
        }
    }

    /// Starts and stops the sentinel as it should be.
    pub(super) fn turn(&mut self, leads: bool, parts: &Parts, brokers: &Brokers, news: &Arc<Notify>) {
        let name = self.object.name_any();
        if let Some(orderly) = self.running.as_ref().and_then(|running| running.ended) {
            self.ended(&name, parts);
            if !orderly {
                let message = "the sentinel ended by a defect of this program and is started again; please report it";
                error!(sentinel = name, message);
                self.problem = Some(Problem { reason: "Crashed", message: message.to_owned() });
                (self.wanted, self.again) = (None, Some(Instant::now() + REQUEUE));
            }
        }
        let should = self.wanted.as_ref().filter(|_| leads && !self.deleted);
        match (&self.running, should) {
            (Some(running), should) if should != Some(&running.loaded) => running.stop.cancel(),
            (None, Some(loaded)) => {
                let loaded = loaded.clone();
                match self.start(&name, loaded, parts, brokers, news) {
                    Ok(running) => self.running = Some(running),
                    Err(error) => {
                        let message =
                            format!("make the API client: {}; check the system's certificates", chain(&error));
                        error!(sentinel = name, error = message, "cannot start the sentinel, trying again");
                        parts.health.of(&name).forget();
                        self.problem = Some(Problem { reason: "ClientFailed", message });
                        (self.wanted, self.again) = (None, Some(Instant::now() + REQUEUE));
                    }
                }
            }
            (Some(_) | None, _) => {}
        }
    }

    fn start(
        &self,
        name: &str,
        loaded: Loaded,
        parts: &Parts,
        brokers: &Brokers,
        news: &Arc<Notify>,
    ) -> Result<Running, reqwest::Error> {
        let sink = brokers.open(&loaded.settings, &loaded.destination, &parts.leadership);
        let (config, topic) = (&loaded.sentinel, loaded.topic.as_str());
        let (shard, health) = (Shard::of(config), parts.health.of(name));
        info!(
            sentinel = name,
            generation = self.object.metadata.generation,
            resource_type = shard.resource_type,
            resource_selector = shard.resource_selector,
            poll_interval = ?config.poll_interval,
            max_age_not_ready = ?config.rules.max_age.not_ready,
            max_age_ready = ?config.rules.max_age.ready,
            broker = sink.kind(),
            topic,
            "sentinel started"
        );
        health.service("sentinel", format!("{} ({})", shard.resource_type, shard.resource_selector));
        let metrics = parts.families.of(&shard, sink.kind(), topic.to_owned());
        let traced = parts.env.get("HYPERFLEET_TRACE_RESOURCES").unwrap_or_default().parse().unwrap_or_default();
        let sentinel = Sentinel::new(config.clone(), sink, metrics, &health, &parts.feeds)?;
        let mut sentinel = sentinel.trace_resources(traced).named(topic, Some(name));
        if let Some((_, ledger)) = self.memory.as_ref().filter(|(of, _)| *of == what(&loaded)) {
            sentinel = sentinel.remembering(ledger.clone());
        }
        (parts.explain)(name, Some(sentinel.explainer()?));
        let (stop, progress, news) = (CancellationToken::new(), sentinel.progress(), Arc::clone(news));
        let ledger = sentinel.ledger();
        let work = {
            let (stop, mut progress) = (stop.clone(), progress.clone());
            async move {
                let mut run = pin!(AssertUnwindSafe(sentinel.run(stop)).catch_unwind());
                loop {
                    tokio::select! {
                        ended = &mut run => return ended.is_ok(),
                        Ok(()) = progress.changed() => news.notify_one(),
                    }
                }
            }
        };
        Ok(Running {
            loaded,
            stop,
            work: Box::pin(beside(work)),
            ended: None,
            progress,
            ledger,
            uid: self.object.uid(),
        })
    }

    /// Tells the sentinel to stop, between two units of work.
    pub(super) fn stop(&self) {
        if let Some(running) = &self.running {
            running.stop.cancel();
        }
    }

    /// Waits until it has stopped.
    pub(super) async fn stopped(&mut self, parts: &Parts) {
        if let Some(running) = &mut self.running {
            if running.ended.is_none() {
                (&mut running.work).await;
            }
            let name = self.object.name_any();
            self.ended(&name, parts);
        }
    }

    fn ended(&mut self, name: &str, parts: &Parts) {
        let Some(Running { loaded, progress, ledger, uid, .. }) = self.running.take() else { return };
        if uid == self.object.uid() {
            self.before = self.total(&progress.borrow());
        }
        self.memory = Some((what(&loaded), ledger));
        (parts.explain)(name, None);
        parts.health.of(name).forget();
        info!(sentinel = name, "sentinel stopped");
    }

    /// What this and the sentinels before it came to.
    fn total(&self, progress: &Progress) -> Progress {
        Progress {
            published: progress.published + self.before.published,
            errors: progress.errors + self.before.errors,
            ..progress.clone()
        }
    }

    /// The status that is to be written now, if one is.
    pub(super) fn status(&self, now: Instant) -> Option<SentinelConfigStatus> {
        // One that is about to stop says nothing of the spec that is to follow.
        let in_force = |running: &&Running| self.problem.is_some() || self.wanted.as_ref() == Some(&running.loaded);
        let running = self.running.as_ref().filter(in_force);
        let progress = running.map(|running| self.total(&running.progress.borrow()));
        let generation = self.read.filter(|_| !self.deleted)?;
        let state = State { problem: self.problem.as_ref(), progress: progress.as_ref(), generation: Some(generation) };
        let status = of(&state, self.written.status(), clock::now());
        self.written.is_due(&status, now).then_some(status)
    }
}

/// What a sentinel's memory is about: of another API, or of other resources, it would say nothing.
fn what(loaded: &Loaded) -> String {
    format!("{} {}", loaded.sentinel.api.endpoint, loaded.sentinel.api.resource_type)
}
