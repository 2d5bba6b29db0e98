//! Delivers one sink's part of the outbox.
//!
//! A worker takes what is due, publishes it in lanes that run side by side, and notes the outcomes of all lanes that
//! are done in one transaction, while others go on. It is woken by the commit that queued something, and asks twice a
//! second whether a command-line tool changed anything; the poll is the safety net. Cancelling it ends the waiting:
//! what is under way is finished and noted.
//!
//! A store that cannot be used is told and waited for; what is under way is not forgotten meanwhile.

mod settle;

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem::{replace, take};
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, OptionFuture};
use futures_util::stream::{FuturesUnordered, StreamExt};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use watchfire_runtime::health::{Dependency, Health, Heartbeat};
use watchfire_runtime::{chain, clock};

use self::settle::Refusal;
use crate::circuit::{self, Circuit, Permit};
use crate::event::CloudEvent;
use crate::metrics::{Flow, Outcome, SinkMetrics};
use crate::outbox::{self, Claim, Due, Mark, SinkId, Stats};
use crate::retry::Backoff;
use crate::sink::{self, EventSink};
use crate::store::{self, Store};

/// How often a store that fails is tried again; nothing is delivered meanwhile.
const STORE_RETRY: Backoff =
    Backoff { initial: Duration::from_millis(500), multiplier: 2.0, jitter: 0.1, max: Duration::from_secs(10) };
/// How often it is asked whether a command-line tool changed something; a person waits for it.
const GLANCE: Duration = Duration::from_millis(500);
/// How often as many as can be under way are read at once, so that nobody waits for the next read.
const AHEAD: usize = 4;
/// Events that go out to see whether the far side has recovered: several, lest it is one that it never takes.
const PROBES: usize = 5;
/// How long a stop waits for answers; what has none by then comes again, under the same id.
const STOP: Duration = Duration::from_secs(10);
/// The loop turns at least this often.
const MAX_SILENCE: Duration = Duration::from_mins(1);

/// How a worker delivers.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Windows that are under way at the same time. One lane of one event keeps one global order.
    pub lanes: NonZeroUsize,
    /// Events that are handed to the sink at once: 1 where each takes a round trip, more where the sink pipelines.
    pub window: NonZeroUsize,
    /// Events that are read from the outbox at once; none means four times as many as can be under way.
    pub batch: Option<NonZeroUsize>,
    /// How often the outbox is looked at without being woken.
    pub poll: Duration,
    /// When to try again.
    pub backoff: Backoff,
    /// When to stop trying everything.
    pub circuit: circuit::Config,
    /// Attempts after which an event is a dead letter; none means never.
    pub max_attempts: Option<NonZeroU32>,
}

impl Config {
    /// Events that are read from the outbox at once.
    pub fn rows(&self) -> usize {
        let ahead = self.lanes.get().saturating_mul(self.window.get()).saturating_mul(AHEAD);
        self.batch.map_or(ahead, NonZeroUsize::get)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lanes: NonZeroUsize::MIN.saturating_add(15),
            window: NonZeroUsize::MIN,
            batch: None,
            poll: Duration::from_secs(5),
            backoff: Backoff::default(),
            circuit: circuit::Config::default(),
            max_attempts: None,
        }
    }
}

/// The part of an outbox that one worker delivers.
#[derive(Clone)]
pub struct Queue {
    /// The sink's name, in logs, metrics and readiness.
    pub name: String,
    /// The sink as the outbox knows it.
    pub id: SinkId,
    /// The outbox's store.
    pub store: Store,
}

/// One attempt to deliver an event, and what comes of it.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// The event.
    pub event: &'a CloudEvent,
    /// How many attempts there were with it; those while the circuit was open, or refused for credentials, do not
    /// count.
    pub number: u32,
    /// How long the sink took to answer.
    pub took: Duration,
    /// What became of the event.
    pub outcome: Outcome,
    /// Why it was not taken.
    pub error: Option<&'a sink::Error>,
    /// How long it waits for the next attempt, if there is one.
    pub wait: Option<Duration>,
}

/// Is told what a worker does, as it does it; nothing waits for it, so that it has to be quick.
pub trait Observer: Send + Sync {
    /// The queue was looked at.
    fn looked(&self, stats: &Stats);
    /// The queue cannot be used.
    fn stuck(&self);
    /// So many events were read from the queue at once.
    fn claimed(&self, events: usize);
    /// An attempt ended.
    fn attempted(&self, attempt: &Attempt<'_>);
    /// What came of a window is noted, so long after it was begun.
    fn settled(&self, took: Duration);
}

/// One sink's worker.
pub struct Worker {
    queue: Queue,
    sink: Arc<dyn EventSink>,
    config: Config,
    metrics: SinkMetrics,
    observer: Option<Arc<dyn Observer>>,
    wake: watch::Receiver<u64>,
    heartbeat: Heartbeat,
    /// Whether the queue flows, as readiness tells it.
    state: Dependency,
    circuit: Circuit,
    /// Why someone or a 410 paused the sink.
    paused: Option<String>,
    flow: Flow,
    /// Claimed, and not yet sent.
    ready: VecDeque<Claim>,
    /// Everything that is claimed: in `ready` or in a lane.
    taken: HashSet<i64>,
    refusals: HashMap<i64, Refusal>,
    /// The last window that had begun when an event failed for the first time.
    failing: HashMap<i64, u64>,
    /// The latest window of which an event was taken.
    last_taken: u64,
    windows: u64,
    /// Whether the outbox may have something due that is not taken.
    stale: bool,
    /// Whether the outbox has to be looked at anew: someone else may have changed it.
    unseen: bool,
    next_due: Option<Timestamp>,
    /// The latest time that was seen. At the start any: the clock may have been set back meanwhile.
    latest: Timestamp,
    /// Whether it is time to ask for changes by others, and how far they were seen.
    glance: bool,
    seen: i64,
    trouble: Option<Trouble>,
    /// What is to be noted, and what is being noted.
    unnoted: Vec<Judged>,
    noting: Noting,
    /// Why the sink is to be paused with what is to be noted.
    pausing: Option<String>,
}

/// A store that fails.
struct Trouble {
    attempts: u32,
    until: Instant,
}

/// What is under way, side by side.
#[derive(Default)]
struct UnderWay {
    lanes: FuturesUnordered<BoxFuture<'static, Done>>,
    noting: Option<BoxFuture<'static, Result<(), store::Error>>>,
    claiming: Option<BoxFuture<'static, Result<Due, store::Error>>>,
}

/// What became of a delivery, whose window was begun then.
#[derive(Clone)]
struct Judged {
    seq: i64,
    mark: Mark,
    begun: Instant,
}

/// What is being noted.
#[derive(Default)]
struct Noting {
    judged: Vec<Judged>,
    /// Why the sink is paused with it.
    pause: Option<String>,
    /// Whether there is no other time.
    last: bool,
}

/// What came back from one window.
struct Done {
    window: u64,
    begun: Instant,
    took: Duration,
    outcomes: Vec<(Claim, Result<(), sink::Error>)>,
}

impl Worker {
    /// A worker that delivers what is queued to `sink`.
    pub fn new(queue: Queue, sink: Arc<dyn EventSink>, config: Config, metrics: SinkMetrics, health: &Health) -> Self {
        let check = format!("delivery_{}", queue.name);
        Self {
            wake: queue.store.wake(),
            queue,
            sink,
            config,
            metrics,
            observer: None,
            heartbeat: health.heartbeat(check.clone(), MAX_SILENCE),
            state: health.dependency(check),
            circuit: Circuit::new(config.circuit),
            paused: None,
            flow: Flow::Closed,
            ready: VecDeque::new(),
            taken: HashSet::new(),
            refusals: HashMap::new(),
            failing: HashMap::new(),
            last_taken: 0,
            windows: 0,
            stale: true,
            unseen: true,
            next_due: None,
            latest: Timestamp::MAX,
            glance: false,
            seen: 0,
            trouble: None,
            unnoted: Vec::new(),
            noting: Noting::default(),
            pausing: None,
        }
    }

    /// Tells an observer what it does.
    #[must_use]
    pub fn observed_by(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Delivers until the token is cancelled, and then finishes what is under way. Fails if the store is closed first.
    pub async fn run(mut self, token: CancellationToken) -> Result<(), store::Error> {
        let mut way = UnderWay::default();
        let ticks = |period: Duration| {
            let mut ticks = interval(period.max(Duration::from_millis(10)));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks.reset();
            ticks
        };
        let (mut poll, mut glances) = (ticks(self.config.poll), ticks(GLANCE));
        let mut stop = None;
        loop {
            self.heartbeat.beat();
            let stopping = token.is_cancelled();
            let mut rest = self.config.poll;
            if !stopping {
                rest = self.turn(&mut way).await?;
            }
            if way.noting.is_none() && !self.unnoted.is_empty() {
                way.noting = Some(self.note(&token));
            }
            if stopping && way.lanes.is_empty() && way.noting.is_none() {
                return Ok(());
            }
            if stopping && stop.is_none() {
                stop = Some(Instant::now() + STOP);
            }
            tokio::select! {
                Some(done) = way.lanes.next(), if !way.lanes.is_empty() => {
                    let mut all = vec![done];
                    while let Some(Some(done)) = way.lanes.next().now_or_never() {
                        all.push(done);
                    }
                    self.settle(all);
                }
                noted = OptionFuture::from(way.noting.as_mut()), if way.noting.is_some() => {
                    way.noting = None;
                    self.noted(noted.unwrap_or(Ok(())))?;
                }
                due = OptionFuture::from(way.claiming.as_mut()), if way.claiming.is_some() => {
                    way.claiming = None;
                    self.claimed(due.unwrap_or_else(|| Ok(Due::default())))?;
                }
                () = token.cancelled(), if !stopping => {}
                () = sleep_until(stop.unwrap_or_else(Instant::now)), if stop.is_some() && !way.lanes.is_empty() => {
                    tracing::warn!(sink = %self.queue.name, requests = way.lanes.len(), "no answers in time for the stop, what was sent comes again");
                    way.lanes.clear();
                }
                changed = self.wake.changed(), if !stopping => {
                    changed.map_err(|_| store::Error::Closed)?;
                    self.stale = true;
                    self.unseen |= self.paused.is_some();
                }
                _ = poll.tick(), if !stopping => self.unseen = true,
                _ = glances.tick(), if !stopping => self.glance = true,
                () = sleep(rest), if !stopping => self.stale = true,
            }
        }
    }

    /// Looks at the outbox where there is a reason to, and sends what is due. Returns how long there is nothing to do
    /// if nothing happens. A store that cannot be read is waited for.
    async fn turn(&mut self, way: &mut UnderWay) -> Result<Duration, store::Error> {
        if let Some(Trouble { until, .. }) = &self.trouble {
            let rest = until.saturating_duration_since(Instant::now());
            if !rest.is_zero() {
                return Ok(rest);
            }
            // Whether it can be written shows when that is noted.
            if !self.unnoted.is_empty() || !self.noting.judged.is_empty() {
                return Ok(self.config.poll);
            }
        }
        let turned = async {
            if take(&mut self.glance) {
                let seen = self.heartbeat.during(self.queue.store.changes_by_others()).await?;
                self.unseen |= replace(&mut self.seen, seen) != seen;
            }
            if self.unseen {
                self.look().await?;
                self.unseen = false;
            }
            self.fill(way).await
        };
        match turned.await {
            Ok(rest) => {
                // Whether what is due can be read shows when it is read.
                if way.claiming.is_none() {
                    self.works();
                }
                Ok(rest)
            }
            Err(store::Error::Closed) => Err(store::Error::Closed),
            Err(error) => {
                self.unseen = true;
                Ok(self.fails(&error))
            }
        }
    }

    /// Says that the store fails: to readiness always, to the log once. Returns how long to wait.
    fn fails(&mut self, error: &store::Error) -> Duration {
        self.metrics.store_failed();
        if let Some(observer) = &self.observer {
            observer.stuck();
        }
        let (reason, hint) = (chain(error), error.hint());
        self.state.down(format!("{reason}; {hint}"));
        if self.trouble.is_none() {
            tracing::error!(sink = %self.queue.name, error = reason, hint, "the outbox cannot be used, nothing is delivered until it can");
        }
        let attempts = self.trouble.as_ref().map_or(0, |trouble| trouble.attempts);
        let wait = STORE_RETRY.delay(attempts, rand::random(), None);
        self.trouble = Some(Trouble { attempts: attempts.saturating_add(1), until: Instant::now() + wait });
        wait
    }

    fn works(&mut self) {
        if self.trouble.take().is_some() {
            tracing::info!(sink = %self.queue.name, "the outbox can be used again");
            self.tell();
        }
    }

    /// Tells readiness whether the queue flows.
    fn tell(&self) {
        match &self.paused {
            Some(reason) => {
                let name = &self.queue.name;
                self.state
                    .down(format!("paused, its queue is kept: {reason}; go on with `watchfire outbox resume {name}`"));
            }
            None => self.state.up(),
        }
    }

    /// Starts as many windows as may go out now. Returns how long there is nothing to do if nothing happens.
    async fn fill(&mut self, way: &mut UnderWay) -> Result<Duration, store::Error> {
        let poll = self.config.poll;
        let now = clock::now();
        if now < self.latest {
            let id = self.queue.id;
            let hastened = self.queue.store.write(move |tx| outbox::hasten(tx, id, now));
            self.heartbeat.during(hastened).await?;
            self.stale = true;
        }
        self.latest = now;
        if self.paused.is_some() {
            self.flows(Flow::Paused);
            return Ok(poll);
        }
        let (most, window) = match self.circuit.permit(now) {
            Permit::NotBefore(until) => {
                self.flows(Flow::Open);
                return Ok(until_then(until, now));
            }
            Permit::Few => {
                self.flows(Flow::HalfOpen);
                (self.config.lanes.get().min(PROBES), 1)
            }
            Permit::All => {
                self.flows(Flow::Closed);
                (self.config.lanes.get(), self.config.window.get())
            }
        };
        let all = most.saturating_mul(window);
        // What is done and not noted yet is under way, too: it would come again if the process died.
        let noting = self.unnoted.len() + self.noting.judged.len();
        while way.lanes.len().saturating_mul(window) + noting < all && !self.ready.is_empty() {
            let claims: Vec<_> = self.ready.drain(..window.min(self.ready.len())).collect();
            self.windows += 1;
            way.lanes.push(publish(Arc::clone(&self.sink), claims, self.windows).boxed());
        }
        if self.stale && way.claiming.is_none() && self.ready.len() < all {
            way.claiming = Some(self.claim(self.config.rows().min(all.saturating_mul(AHEAD)), now));
        }
        if self.ready.is_empty() && way.claiming.is_none() {
            return Ok(self.next_due.map_or(poll, |due| until_then(due, now)));
        }
        Ok(poll) // A lane that ends, or what is read or noted, is what happens next.
    }

    /// Reads what is due next.
    fn claim(&mut self, limit: usize, now: Timestamp) -> BoxFuture<'static, Result<Due, store::Error>> {
        self.wake.mark_unchanged();
        self.stale = false;
        let (id, taken, store) = (self.queue.id, self.taken.clone(), self.queue.store.clone());
        async move { store.read(move |connection| outbox::claim(connection, id, limit, &taken, now)).await }.boxed()
    }

    fn claimed(&mut self, due: Result<Due, store::Error>) -> Result<(), store::Error> {
        let due = match due {
            Ok(due) => due,
            Err(store::Error::Closed) => return Err(store::Error::Closed),
            Err(error) => {
                self.unseen = true;
                self.fails(&error);
                return Ok(());
            }
        };
        // Whether it can be written shows when that is noted.
        if self.unnoted.is_empty() && self.noting.judged.is_empty() {
            self.works();
        }
        if self.paused.is_some() || self.circuit.open_until().is_some() {
            // It was read before that, and whoever goes first next may be another one.
            self.stale = true;
            return Ok(());
        }
        self.stale |= due.more;
        self.next_due = due.next;
        if !due.unreadable.is_empty() {
            tracing::error!(sink = %self.queue.name, seq = ?due.unreadable, "stored events cannot be read, kept as dead letters");
            let reason = "its stored body is not a CloudEvent".to_owned();
            let dead =
                |seq: &i64| Judged { seq: *seq, mark: Mark::Dead { reason: reason.clone() }, begun: Instant::now() };
            self.taken.extend(&due.unreadable);
            self.unnoted.extend(due.unreadable.iter().map(dead));
        }
        if let Some(observer) = self.observer.as_ref().filter(|_| !due.claims.is_empty()) {
            observer.claimed(due.claims.len());
        }
        self.taken.extend(due.claims.iter().map(|claim| claim.seq));
        self.ready.extend(due.claims);
        Ok(())
    }

    /// Forgets what it thinks it knows, and looks at the outbox again.
    async fn look(&mut self) -> Result<(), store::Error> {
        let id = self.queue.id;
        let reading = self.queue.store.read(move |connection| outbox::stats(connection, id));
        let stats = self.heartbeat.during(reading).await?;
        self.metrics.queued(&stats, clock::now());
        if let Some(observer) = &self.observer {
            observer.looked(&stats);
        }
        self.put_back();
        // What is decided and not noted yet is not in the outbox.
        if self.pausing.is_some() || self.noting.pause.is_some() {
            return Ok(());
        }
        if self.paused != stats.paused {
            if let Some(reason) = &stats.paused {
                tracing::warn!(sink = %self.queue.name, reason, "sink paused, its queue is kept");
            } else {
                tracing::info!(sink = %self.queue.name, "sink resumed");
            }
        }
        self.paused = stats.paused;
        self.tell();
        Ok(())
    }

    fn put_back(&mut self) {
        for claim in self.ready.drain(..) {
            self.taken.remove(&claim.seq);
        }
        self.stale = true;
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
    let begun = Instant::now();
    let results = sink::publish_all(&*sink, &events).await;
    let took = begun.elapsed();
    Done { window, begun, took, outcomes: claims.into_iter().zip(results).collect() }
}

fn until_then(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
