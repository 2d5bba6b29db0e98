//! Delivers one sink's part of the outbox.
//!
//! A worker takes what is due, publishes it in lanes that run side by side, and notes the outcomes of all lanes that
//! are done in one transaction. It is woken by the commit that queued something; the poll is the safety net, and
//! notices what command-line tools did. Cancelling it ends the waiting: what is under way is finished and noted.
//!
//! A refusal of credentials is provisional: it becomes a dead letter only if the far side takes another event that
//! was sent later with the same credentials. Until then it waits, without its attempts being counted.

use std::collections::{HashMap, HashSet, VecDeque};
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use watchfire_runtime::{chain, clock};

use crate::circuit::{self, Circuit, Failure, Permit};
use crate::event::CloudEvent;
use crate::metrics::{Flow, Outcome, SinkMetrics};
use crate::outbox::{self, Claim, Mark, SinkId};
use crate::retry::{Backoff, Verdict};
use crate::sink::{self, EventSink};
use crate::store::{self, Store};

/// Wait between attempts to note outcomes in a store that fails; nothing is delivered meanwhile.
const STORE_RETRY: Duration = Duration::from_secs(1);

/// How a worker delivers.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Windows that are under way at the same time. One lane of one event keeps one global order.
    pub lanes: NonZeroUsize,
    /// Events that are handed to the sink at once: 1 where each takes a round trip, more where the sink pipelines.
    pub window: NonZeroUsize,
    /// How often the outbox is looked at without being woken.
    pub poll: Duration,
    /// When to try again.
    pub backoff: Backoff,
    /// When to stop trying everything.
    pub circuit: circuit::Config,
    /// Attempts after which an event is a dead letter; none means never.
    pub max_attempts: Option<NonZeroU32>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lanes: NonZeroUsize::MIN.saturating_add(15),
            window: NonZeroUsize::MIN,
            poll: Duration::from_secs(5),
            backoff: Backoff::default(),
            circuit: circuit::Config::default(),
            max_attempts: None,
        }
    }
}

/// One sink's worker.
pub struct Worker {
    name: String,
    store: Store,
    id: SinkId,
    sink: Arc<dyn EventSink>,
    config: Config,
    metrics: SinkMetrics,
    wake: watch::Receiver<u64>,
    circuit: Circuit,
    /// Why someone or a 410 paused the sink.
    paused: Option<String>,
    flow: Flow,
    /// Claimed, and not yet sent.
    ready: VecDeque<Claim>,
    /// Everything that is claimed: in `ready` or in a lane.
    taken: HashSet<i64>,
    /// Refused for their credentials, with the number of the last window that had begun by then.
    provisional: HashMap<i64, (u64, String)>,
    windows: u64,
    /// Whether the outbox may have something due that is not taken.
    stale: bool,
    next_due: Option<Timestamp>,
}

/// What came back from one window.
struct Done {
    window: u64,
    outcomes: Vec<(Claim, Result<(), sink::Error>)>,
}

impl Worker {
    /// A worker that delivers what is queued for `id` to `sink`.
    pub fn new(
        name: String,
        store: Store,
        id: SinkId,
        sink: Arc<dyn EventSink>,
        config: Config,
        metrics: SinkMetrics,
    ) -> Self {
        let wake = store.wake();
        Self {
            name,
            store,
            id,
            sink,
            config,
            metrics,
            wake,
            circuit: Circuit::new(config.circuit),
            paused: None,
            flow: Flow::Closed,
            ready: VecDeque::new(),
            taken: HashSet::new(),
            provisional: HashMap::new(),
            windows: 0,
            stale: true,
            next_due: None,
        }
    }

    /// The sink's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Delivers until the token is cancelled, and then finishes what is under way. Fails if the store is closed first, or
    /// cannot be read.
    pub async fn run(mut self, token: CancellationToken) -> Result<(), store::Error> {
        let mut lanes = FuturesUnordered::<BoxFuture<'static, Done>>::new();
        self.look().await?;
        let mut poll = tokio::time::interval(self.config.poll.max(Duration::from_millis(10)));
        poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        poll.reset();
        loop {
            let stopping = token.is_cancelled();
            if stopping && lanes.is_empty() {
                return Ok(());
            }
            let mut rest = self.config.poll;
            if !stopping {
                rest = self.fill(&mut lanes).await?;
            }
            tokio::select! {
                Some(done) = lanes.next(), if !lanes.is_empty() => {
                    let mut all = vec![done];
                    while let Some(Some(done)) = lanes.next().now_or_never() {
                        all.push(done);
                    }
                    self.settle(all, &token).await?;
                }
                () = token.cancelled(), if !stopping => {}
                changed = self.wake.changed(), if !stopping => {
                    changed.map_err(|_| store::Error::Closed)?;
                    self.stale = true;
                    if self.paused.is_some() {
                        self.look().await?;
                    }
                }
                _ = poll.tick(), if !stopping => self.look().await?,
                () = tokio::time::sleep(rest), if !stopping => self.stale = true,
            }
        }
    }

    /// Starts as many windows as may go out now. Returns how long there is nothing to do if nothing happens.
    async fn fill(&mut self, lanes: &mut FuturesUnordered<BoxFuture<'static, Done>>) -> Result<Duration, store::Error> {
        let poll = self.config.poll;
        if self.paused.is_some() {
            self.flows(Flow::Paused);
            return Ok(poll);
        }
        let now = clock::now();
        let (most, window) = match self.circuit.permit(now) {
            Permit::NotBefore(until) => {
                self.flows(Flow::Open);
                return Ok(until_then(until, now));
            }
            Permit::One => {
                self.flows(Flow::HalfOpen);
                (1, 1)
            }
            Permit::All => {
                self.flows(Flow::Closed);
                (self.config.lanes.get(), self.config.window.get())
            }
        };
        loop {
            if lanes.len() >= most {
                return Ok(poll); // A lane that ends is what happens next.
            }
            if self.ready.is_empty() {
                if !self.stale {
                    break;
                }
                self.claim(most.saturating_mul(window), now).await?;
                continue;
            }
            let claims: Vec<_> = self.ready.drain(..window.min(self.ready.len())).collect();
            self.windows += 1;
            lanes.push(publish(Arc::clone(&self.sink), claims, self.windows).boxed());
        }
        Ok(self.next_due.map_or(poll, |due| until_then(due, now)))
    }

    async fn claim(&mut self, limit: usize, now: Timestamp) -> Result<(), store::Error> {
        self.wake.mark_unchanged();
        let (id, taken) = (self.id, std::mem::take(&mut self.taken));
        let (due, taken) =
            self.store.read(move |connection| Ok((outbox::claim(connection, id, limit, &taken, now)?, taken))).await?;
        self.taken = taken;
        (self.stale, self.next_due) = (due.more, due.next);
        if !due.unreadable.is_empty() {
            tracing::error!(sink = %self.name, seq = ?due.unreadable, "stored events cannot be read, kept as dead letters");
            let reason = "its stored body is not a CloudEvent".to_owned();
            let dead = due.unreadable.iter().map(|seq| (*seq, Mark::Dead { reason: reason.clone() })).collect();
            self.write(dead, None, now).await?;
            self.stale = true;
        }
        self.taken.extend(due.claims.iter().map(|claim| claim.seq));
        self.ready.extend(due.claims);
        Ok(())
    }

    /// Forgets what it thinks it knows, and looks at the outbox again.
    async fn look(&mut self) -> Result<(), store::Error> {
        let id = self.id;
        let stats = self.store.read(move |connection| outbox::stats(connection, id)).await?;
        self.metrics.queued(&stats, clock::now());
        if self.paused != stats.paused {
            if let Some(reason) = &stats.paused {
                tracing::warn!(sink = %self.name, reason, "sink paused, its queue is kept");
            } else {
                tracing::info!(sink = %self.name, "sink resumed");
            }
        }
        self.paused = stats.paused;
        self.put_back();
        Ok(())
    }

    fn put_back(&mut self) {
        for claim in self.ready.drain(..) {
            self.taken.remove(&claim.seq);
        }
        self.stale = true;
    }

    /// Decides what the outcomes mean, and notes it. Tries until the store takes it, or the process stops.
    async fn settle(&mut self, done: Vec<Done>, token: &CancellationToken) -> Result<(), store::Error> {
        let now = clock::now();
        let (mut marks, mut pause) = (Vec::new(), None);
        for Done { window, outcomes } in done {
            for (claim, outcome) in outcomes {
                let mark = self.judge(&claim, window, outcome, &mut pause, &mut marks, now);
                marks.push((claim.seq, mark));
            }
        }
        if let Some(reason) = &pause {
            tracing::error!(sink = %self.name, reason, "sink paused, its queue is kept until someone resumes it");
            self.paused = Some(reason.clone());
        }
        if self.paused.is_some() || self.circuit.open_until().is_some() {
            self.put_back();
        }
        while let Err(error) = self.write(marks.clone(), pause.clone(), now).await {
            if matches!(error, store::Error::Closed) || token.is_cancelled() {
                return Err(error);
            }
            let (hint, error) = (error.hint(), chain(&error));
            tracing::error!(sink = %self.name, error, hint, "outcomes cannot be noted, nothing is delivered until they are");
            // Woken early by the token, to try once more.
            let _: Option<()> = token.run_until_cancelled(tokio::time::sleep(STORE_RETRY)).await;
        }
        for (seq, _) in &marks {
            self.taken.remove(seq);
        }
        self.stale = true;
        Ok(())
    }

    async fn write(&self, marks: Vec<(i64, Mark)>, pause: Option<String>, now: Timestamp) -> Result<(), store::Error> {
        let id = self.id;
        let work = move |tx: &store::Tx<'_>| {
            if let Some(reason) = pause {
                outbox::pause(tx, id, &reason, now)?;
            }
            marks.iter().try_for_each(|(seq, mark)| outbox::settle(tx, *seq, mark, now))
        };
        self.store.write(work).await
    }

    fn judge(
        &mut self,
        claim: &Claim,
        window: u64,
        outcome: Result<(), sink::Error>,
        pause: &mut Option<String>,
        marks: &mut Vec<(i64, Mark)>,
        now: Timestamp,
    ) -> Mark {
        let (name, seq) = (&self.name, claim.seq);
        self.provisional.remove(&seq);
        let error = match outcome {
            Ok(()) => {
                if self.circuit.worked() {
                    tracing::info!(sink = %name, "sink works again");
                }
                self.metrics.attempted(Outcome::Delivered);
                self.confirm(window, marks);
                return Mark::Delivered;
            }
            Err(error) => error,
        };
        let reason = chain(&error);
        tracing::debug!(sink = %name, id = claim.event.id(), error = reason, "delivery failed");
        let failure = match error.verdict() {
            Verdict::Permanent => {
                self.circuit.worked();
                return self.bury(claim, reason);
            }
            Verdict::Pause => {
                self.metrics.attempted(Outcome::Postponed);
                *pause = Some(reason.clone());
                return Mark::Postpone { at: now, reason };
            }
            Verdict::Provisional => Failure::Refused,
            Verdict::Retry { after } => Failure::Down { after },
        };
        if self.circuit.failed(seq, failure, rand::random(), now) {
            tracing::warn!(sink = %name, error = reason, hint = error.hint(), "sink is down, its queue is kept");
        }
        let after_wait = |wait| now.checked_add(wait).unwrap_or(Timestamp::MAX);
        if let Some(until) = self.circuit.open_until() {
            let asked = if let Failure::Down { after: Some(after) } = failure { after_wait(after) } else { now };
            // Whoever was refused before is pending like everyone else.
            self.provisional.clear();
            self.metrics.attempted(Outcome::Postponed);
            return Mark::Postpone { at: until.max(asked), reason };
        }
        let delay = |after| self.config.backoff.delay(claim.attempts, rand::random(), after);
        match failure {
            Failure::Refused => {
                self.provisional.insert(seq, (self.windows, reason.clone()));
                self.metrics.attempted(Outcome::Postponed);
                Mark::Postpone { at: after_wait(delay(None)), reason }
            }
            Failure::Down { .. } if self.config.max_attempts.is_some_and(|max| claim.attempts + 1 >= max.get()) => {
                self.bury(claim, format!("gave up after {} attempts: {reason}", claim.attempts + 1))
            }
            Failure::Down { after } => {
                self.metrics.attempted(Outcome::Retried);
                Mark::Retry { at: after_wait(delay(after)), reason }
            }
        }
    }

    /// The far side took an event of `window`: what was refused before that window began is refused for good, but for
    /// what is under way again.
    fn confirm(&mut self, window: u64, marks: &mut Vec<(i64, Mark)>) {
        let Self { provisional, taken, name, metrics, .. } = self;
        provisional.retain(|seq, (refused, reason)| {
            if *refused >= window || taken.contains(seq) {
                return true;
            }
            tracing::error!(sink = %name, seq, reason, "dead letter: refused, while other events are taken");
            metrics.attempted(Outcome::Dead);
            marks.push((*seq, Mark::Dead { reason: std::mem::take(reason) }));
            false
        });
    }

    fn bury(&self, claim: &Claim, reason: String) -> Mark {
        let subject = claim.event.attributes().subject.as_deref();
        tracing::error!(sink = %self.name, id = claim.event.id(), subject, reason, "dead letter: will not be delivered");
        self.metrics.attempted(Outcome::Dead);
        Mark::Dead { reason }
    }

    fn flows(&mut self, flow: Flow) {
        if self.flow != flow {
            self.flow = flow;
            self.metrics.flows(flow);
        }
    }
}

async fn publish(sink: Arc<dyn EventSink>, claims: Vec<Claim>, window: u64) -> Done {
    let events: Vec<CloudEvent> = claims.iter().map(|claim| claim.event.clone()).collect();
    let mut results = sink.publish_all(&events).await;
    // A sink that forgets an event must not make us forget it.
    results.resize_with(events.len(), || {
        Err(sink::Error::Timeout { target: sink.kind().to_owned(), after: Duration::ZERO })
    });
    Done { window, outcomes: claims.into_iter().zip(results).collect() }
}

fn until_then(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
