//! The loop: list, decide, publish, remember; every poll interval.
//!
//! Pages are decided on while the next one is on its way (`feed.rs`), and events go out in windows while pages still
//! come in, so that neither the fleet nor its events are ever held in memory as a whole. A cycle is successful when the
//! whole list was read, everything due was confirmed and the broker is there; what was not confirmed is decided again
//! in the next one, under the same id.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, debug, error, field, info, info_span, warn};
use watchfire_delivery::EventSink;
use watchfire_runtime::chain;
use watchfire_runtime::clock;
use watchfire_runtime::health::{Dependency, Health, Heartbeat};
use watchfire_runtime::tasks::beside;

use crate::adapters::Change;
use crate::api;
use crate::ceiling::Ceiling;
use crate::config::{Form, SentinelConfig};
use crate::decision::Reason;
use crate::engine::{Due, Engine, Lasting, Ledger, Verdict, lifetime};
use crate::explain::{Explainer, Memory, Outcomes};
use crate::feed::{Feeds, Seat, Walk};
use crate::metrics::Metrics;
use crate::page::Page;
use crate::publish::{Outcome, Publisher, Settled};
use crate::recording::{Fate, Recorder};
use crate::trace::TraceResources;

/// The loop beats at least this often; the longest silence is one request or one window, each with its timeout.
const MAX_SILENCE: Duration = Duration::from_mins(1);

/// So long it decides before others have their turn: on one core, probes and signals wait meanwhile.
const TURN: Duration = Duration::from_millis(10);

/// Of a broker's refusal so much is remembered.
const MAX_REFUSAL: usize = 300;

/// One sentinel.
pub struct Sentinel {
    config: Arc<SentinelConfig>,
    seat: Seat,
    engine: Engine,
    publisher: Publisher,
    metrics: Metrics,
    api_state: Dependency,
    /// Up once a whole list was read.
    polled: Dependency,
    broker_state: Dependency,
    heartbeat: Arc<Heartbeat>,
    outcomes: Arc<Outcomes>,
    recorder: Option<Arc<Recorder>>,
    api_failing: bool,
    api_short: bool,
    topic: Option<String>,
    name: Option<String>,
    progress: watch::Sender<Progress>,
}

/// What a sentinel came to since it began, for whoever tells of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// When the list was last read to its end.
    pub polled: Option<Timestamp>,
    /// Resources that were selected then.
    pub resources: u64,
    /// Events that the broker confirmed.
    pub published: u64,
    /// Polls that failed, and events that were not taken in their poll.
    pub errors: u64,
    /// Why the last poll did not get through.
    pub trouble: Option<Trouble>,
}

/// Why a poll did not get through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// One word, for programs.
    pub reason: &'static str,
    /// What is wrong, and what to try.
    pub message: String,
}

/// What one cycle came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cycle {
    /// Resources that were read and selected.
    pub seen: u64,
    /// Resources that were due.
    pub due: u64,
    /// Events that the broker confirmed.
    pub published: u64,
    /// Events that it did not.
    pub failed: u64,
    /// How far the furthest report time lay in the future.
    pub skew: SignedDuration,
}

impl Sentinel {
    /// Puts a sentinel together; asks nobody anything yet. It shares its walks with others of these feeds that ask the
    /// same API for the same kind.
    pub fn new(
        config: SentinelConfig,
        sink: Arc<dyn EventSink>,
        metrics: Metrics,
        health: &Health,
        feeds: &Feeds,
    ) -> Result<Self, reqwest::Error> {
        let api_state = health.dependency("hyperfleet_api");
        let seat = feeds.join(&config, api_state.clone())?;
        metrics.config_loaded(config.poll_interval);
        let config = Arc::new(config);
        Ok(Self {
            seat,
            engine: Engine::new(Arc::clone(&config), metrics.clone(), clock::now()),
            publisher: Publisher::new(sink, metrics.clone(), config.max_events_per_second.map(Ceiling::new)),
            metrics,
            api_state,
            polled: health.dependency("sentinel_poll"),
            broker_state: health.dependency("broker"),
            heartbeat: Arc::new(health.heartbeat("sentinel_poll", MAX_SILENCE)),
            outcomes: Arc::default(),
            recorder: None,
            api_failing: false,
            api_short: false,
            topic: None,
            name: None,
            progress: watch::Sender::default(),
            config,
        })
    }

    /// Goes on with what another sentinel remembers of its own events, which has ended.
    #[must_use]
    pub fn remembering(mut self, ledger: Ledger) -> Self {
        ledger.lock().keep_for(lifetime(&self.config));
        self.engine.ledger = ledger;
        self
    }

    /// What this sentinel remembers of its own events.
    pub fn ledger(&self) -> Ledger {
        self.engine.ledger.clone()
    }

    /// How it gets on, told after each poll.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Names the topic in each line of the log, and the sentinel where there are several.
    #[must_use]
    pub fn named(mut self, topic: &str, name: Option<&str>) -> Self {
        self.topic = Some(topic.to_owned());
        self.name = name.map(str::to_owned);
        self
    }

    /// Remembers at most so many of its own events instead of [`CAPACITY`](crate::inflight::CAPACITY); each one
    /// forgotten early may cost one early event.
    #[must_use]
    pub fn remember_at_most(self, events: usize) -> Self {
        self.engine.ledger.lock().limit(events);
        self
    }

    /// Shares a ceiling with other sentinels of the process, instead of having its own configuration's to itself.
    #[must_use]
    pub fn below(mut self, ceiling: Arc<Ceiling>) -> Self {
        self.publisher.share(ceiling);
        self
    }

    /// Traces the decisions on these resources, each in a span of its own.
    #[must_use]
    pub fn trace_resources(mut self, which: TraceResources) -> Self {
        self.engine.trace_resources = which;
        self
    }

    /// Records what it sees and what becomes of its events.
    #[must_use]
    pub fn record(mut self, recorder: Recorder) -> Self {
        self.recorder = Some(Arc::new(recorder));
        self
    }

    /// Answers questions with what this sentinel remembers, beside its cycles.
    pub fn explainer(&self) -> Result<Explainer, reqwest::Error> {
        let memory = Memory { ledger: self.engine.ledger.clone(), outcomes: Arc::clone(&self.outcomes) };
        Ok(Explainer::new(Arc::clone(&self.config))?.with(memory))
    }

    /// Runs until told to stop: at once for the first time, then every poll interval, or with another's poll of the
    /// same list up to half an interval before. Ends between two units of work.
    pub async fn run(mut self, token: CancellationToken) -> Result<(), Infallible> {
        let mut due = Instant::now();
        loop {
            let interval = self.config.poll_interval;
            let span = || span(&self.config, self.topic.as_deref(), self.name.as_deref());
            let walk = self.heartbeat.during(self.seat.walk(due, interval / 2, span));
            let Some((walk, span)) = token.run_until_cancelled(walk).await else { return Ok(()) };
            due = walk.began + interval;
            if let Err(error) = self.through(walk, &token).instrument(span).await
                && let Some(after) = error.retry_after()
            {
                warn!(?after, at_most = ?api::LONGEST_RETRY_AFTER, "the API asks to be left alone for so long");
                self.seat.leave_alone(after);
            }
        }
    }

    /// Goes through the list once, now.
    pub async fn cycle(&mut self, token: &CancellationToken) -> Result<Cycle, Arc<api::Error>> {
        let (walk, _) = self.seat.walk(Instant::now(), Duration::ZERO, Span::current).await;
        self.through(walk, token).await
    }

    async fn through(&mut self, walk: Walk, token: &CancellationToken) -> Result<Cycle, Arc<api::Error>> {
        let begun = Instant::now();
        self.heartbeat.beat();
        // No more than a window is decided ahead: what goes out late should not be old.
        let (sender, due) = mpsc::channel(self.publisher.window());
        let confirmations = beside({
            let (publisher, ledger, token) = (self.publisher.clone(), self.engine.ledger.clone(), token.clone());
            let (broker, heartbeat) = (self.broker_state.clone(), Arc::clone(&self.heartbeat));
            let (recorder, outcomes) = (self.recorder.clone(), Arc::clone(&self.outcomes));
            let settled = move |settled: Vec<Settled>| {
                ledger.confirm_all(&settled);
                outcomes.remember(settled.into_iter().map(fate).inspect(|fate| {
                    if let Some(recorder) = &recorder {
                        recorder.fate(fate.clone());
                    }
                }));
            };
            async move { publisher.run(due, &broker, &heartbeat, &token, settled).await }
        });
        self.engine.lasting = Lasting::default();
        let mut deciding = Deciding {
            engine: &mut self.engine,
            metrics: &self.metrics,
            api_state: &self.api_state,
            recorder: self.recorder.as_deref(),
            sender,
            cycle: Cycle::default(),
        };
        let fetching = async {
            // Waiting for an API that is away can take longer than the grace period; nothing of it is half done.
            let listing = deciding.run(walk, &self.heartbeat, token);
            let result = token.run_until_cancelled(listing).await.unwrap_or(Ok(()));
            let cycle = deciding.cycle;
            // Only when the sender is gone does the publisher know that nothing more will come.
            drop(deciding);
            (result, cycle)
        };
        let ((fetched, mut cycle), mut outcome) = join(fetching, confirmations).await;
        if fetched.is_ok() && cycle.due == 0 {
            self.publisher.nothing_due(&self.broker_state, &mut outcome);
        }
        cycle.published = outcome.published;
        cycle.failed = outcome.failed;
        self.conclude(cycle, &fetched, outcome, begun.elapsed(), token);
        fetched.map(|()| cycle)
    }

    fn conclude(
        &mut self,
        cycle: Cycle,
        fetched: &Result<(), Arc<api::Error>>,
        outcome: Outcome,
        took: Duration,
        token: &CancellationToken,
    ) {
        let now = clock::now();
        let listed = fetched.is_ok() && !token.is_cancelled();
        if let Some(recorder) = &self.recorder {
            recorder.end(now, listed);
        }
        {
            let mut in_flight = self.engine.ledger.lock();
            in_flight.expire(now);
            if listed {
                in_flight.end_of_list();
            }
            self.metrics.in_flight(in_flight.len(), in_flight.take_evicted(), in_flight.waiting().resources());
            for change in self.engine.roster.changes(in_flight.waiting()) {
                tell_adapter(&change);
            }
        }
        self.metrics.backlog_settled(listed);
        // Told to stop: how the API is was not learnt, nor how much is due.
        if token.is_cancelled() {
            self.progress.send_modify(|progress| progress.published += cycle.published);
            return;
        }
        let pending = match self.config.form {
            Form::Flat | Form::HyperFleet => cycle.due,
            Form::Object if fetched.is_ok() => cycle.seen,
            Form::Object => self.progress.borrow().resources,
        };
        self.metrics.cycle(took, pending, cycle.skew);
        if fetched.is_ok() && outcome.failed == 0 && !outcome.broker_away {
            self.metrics.succeeded(now);
        } else {
            self.metrics.failed();
        }
        self.tell_of_the_api(fetched);
        let trouble = self.trouble(fetched, outcome);
        self.progress.send_modify(|progress| {
            progress.published += cycle.published;
            progress.errors += cycle.failed + u64::from(fetched.is_err());
            if fetched.is_ok() {
                progress.polled = Some(now);
                progress.resources = cycle.seen;
            }
            progress.trouble = trouble;
        });
        let Cycle { seen, due, published, failed, .. } = cycle;
        debug!(seen, due, published, failed, ?took, "cycle ended");
        // Last: in the log they would stand in every line that follows.
        let span = Span::current();
        for (name, count) in [("seen", seen), ("due", due), ("published", published), ("failed", failed)] {
            span.record(name, count);
        }
        if fetched.is_err() || outcome.failed > 0 || outcome.broker_away {
            span.record("otel.status_code", "error");
        }
    }

    fn trouble(&self, fetched: &Result<(), Arc<api::Error>>, outcome: Outcome) -> Option<Trouble> {
        let (reason, message) = match fetched {
            Err(error) => ("ApiUnavailable", error.why(self.config.form)),
            Ok(()) if outcome.broker_away => (
                "BrokerUnavailable",
                self.broker_state.trouble().unwrap_or_else(|| "the broker takes no events".to_owned()),
            ),
            Ok(()) if outcome.failed > 0 => {
                ("EventsRefused", format!("{} events were not taken in the last poll; see the log", outcome.failed))
            }
            Ok(()) => return None,
        };
        Some(Trouble { reason, message })
    }

    fn tell_of_the_api(&mut self, fetched: &Result<(), Arc<api::Error>>) {
        let Err(error) = fetched else {
            self.api_state.up();
            self.polled.up();
            if std::mem::take(&mut self.api_failing) {
                info!("the API answers again");
            }
            let unlisted = self.engine.lasting.unlisted;
            let was_short = std::mem::replace(&mut self.api_short, unlisted > 0);
            if unlisted > 0 && !was_short {
                warn!(unlisted, hint = api::UNLISTED, "the API counts resources that it does not list");
            } else if unlisted == 0 && was_short {
                info!("the API lists all that it counts again");
            }
            return;
        };
        self.api_state.down(error.why(self.config.form));
        self.metrics.api_error(error);
        // Once per change of state: an API that stays away says nothing new every few seconds.
        if !std::mem::replace(&mut self.api_failing, true) {
            error!(error = %chain(error), hint = error.hint(self.config.form), "cannot list resources, trying again every poll interval");
        }
    }
}

/// The span of a poll.
fn span(config: &SentinelConfig, topic: Option<&str>, name: Option<&str>) -> Span {
    let resource_type = &config.api.resource_type;
    info_span!(
        "sentinel.poll",
        resource_type,
        subset = resource_type,
        topic,
        sentinel = name,
        seen = field::Empty,
        due = field::Empty,
        published = field::Empty,
        failed = field::Empty,
        otel.status_code = field::Empty,
    )
}

/// Says that an adapter fell silent, or reports again.
fn tell_adapter(change: &Change<'_>) {
    match change {
        Change::Silent { adapter, resources, example } => warn!(
            adapter,
            resources,
            id = example,
            "an adapter does not report on events, and resources wait for it; check that it runs and gets them"
        ),
        Change::Reports { adapter } => info!(adapter, "no resource waits for this adapter any more"),
    }
}

/// What became of an event, for whoever asks later.
fn fate(Settled { due: Due { event, about }, at, refused }: Settled) -> Fate {
    Fate {
        id: event.id().to_owned(),
        resource: about.id,
        reason: about.reason.as_str().into(),
        generation: about.generation,
        at,
        refused: refused.map(|why| why.chars().take(MAX_REFUSAL).collect()),
    }
}

/// From the pages of a walk to events.
struct Deciding<'a> {
    engine: &'a mut Engine,
    metrics: &'a Metrics,
    api_state: &'a Dependency,
    recorder: Option<&'a Recorder>,
    sender: mpsc::Sender<Due>,
    cycle: Cycle,
}

impl Deciding<'_> {
    async fn run(
        &mut self,
        mut walk: Walk,
        heartbeat: &Heartbeat,
        token: &CancellationToken,
    ) -> Result<(), Arc<api::Error>> {
        while let Some(page) = heartbeat.during(walk.next()).await? {
            // Told with each page: the walk lasts for as long as the broker takes to confirm what is due.
            self.api_state.up();
            if token.is_cancelled() {
                return Ok(());
            }
            self.decide_page(&page).await;
        }
        self.engine.lasting.unlisted = walk.unlisted;
        self.metrics.lasting(&self.engine.lasting, clock::now());
        Ok(())
    }

    async fn decide_page(&mut self, page: &Arc<Page>) {
        let now = clock::now();
        if let Some(recorder) = self.recorder {
            recorder.page(now, page);
        }
        let mut skipped = Skipped::default();
        let mut due_here = HashSet::new();
        let mut turn = std::time::Instant::now();
        for item in page.items() {
            if turn.elapsed() >= TURN {
                // Whoever was told to stop meanwhile does not come back from here.
                tokio::task::yield_now().await;
                turn = std::time::Instant::now();
            }
            let due = match self.engine.take(item, now) {
                Verdict::Unreadable | Verdict::NotSelected => continue,
                Verdict::Skipped { decision, ready, .. } => {
                    self.cycle.seen += 1;
                    skipped.count(decision.reason, ready);
                    continue;
                }
                // Across pages the walk recognises what is listed twice.
                Verdict::Due(cause) if !due_here.insert(cause.resource()) => continue,
                Verdict::Due(cause) => match self.engine.build(&cause) {
                    Some(due) => due,
                    None => continue,
                },
            };
            self.cycle.seen += 1;
            self.cycle.due += 1;
            self.metrics.due();
            if self.sender.send(due).await.is_err() {
                // The publisher is gone: the process is stopping.
                break;
            }
        }
        self.cycle.skew = self.engine.lasting.skew;
        skipped.report(self.metrics);
        let answered = self.engine.ledger.lock().take_answered();
        for after in answered {
            self.metrics.reported(after);
        }
    }
}

/// Skips of one page, counted before the metrics are touched: two label look-ups a page instead of a resource.
#[derive(Default)]
struct Skipped([[u64; 2]; Reason::ALL.len()]);

impl Skipped {
    fn count(&mut self, reason: Reason, ready: bool) {
        self.0[reason as usize][usize::from(ready)] += 1;
    }

    fn report(&self, metrics: &Metrics) {
        for reason in Reason::ALL {
            for ready in [false, true] {
                metrics.skipped(reason, ready, self.0[reason as usize][usize::from(ready)]);
            }
        }
    }
}
