//! The loop: list, decide, publish, remember; every poll interval.
//!
//! Pages are decided on while the next one is on its way, and events go out in windows while pages still come in, so
//! that neither the fleet nor its events are ever held in memory as a whole. A cycle is successful when the whole list
//! was read, everything due was confirmed and the broker is there; what was not confirmed is decided again in the next
//! one, under the same id.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, debug, error, field, info, info_span, warn};
use watchfire_delivery::{CloudEvent, EventSink};
use watchfire_runtime::chain;
use watchfire_runtime::clock;
use watchfire_runtime::health::{Dependency, Health, Heartbeat};
use watchfire_runtime::tasks::beside;

use crate::adapters::{self, Change, Roster, Set};
use crate::api::paging::{Pages, Query};
use crate::api::projection::{Projection, Reads};
use crate::api::{self, Api};
use crate::ceiling::Ceiling;
use crate::config::{Form, Republish, SentinelConfig};
use crate::decision::{Answer, Decision, Policy, Published, Reason, Rules, decide};
use crate::event;
use crate::expression::Facts;
use crate::inflight::{self, InFlight};
use crate::metrics::Metrics;
use crate::notices::{Kind, Notices};
use crate::page::Page;
use crate::partial;
use crate::payload::Omitted;
use crate::publish::{Outcome, Publisher};
use crate::resource::{Resource, parse_updated};
use crate::trace::{self, TraceResources};

/// The loop beats at least this often; the longest silence is one request or one window, each with its timeout.
const MAX_SILENCE: Duration = Duration::from_mins(1);

/// Own events are remembered for at least as long as this: with ages of seconds, a short outage would outlast them all.
const MIN_LIFETIME: Duration = Duration::from_mins(10);

/// One sentinel.
pub struct Sentinel {
    config: SentinelConfig,
    api: Api,
    query: Query,
    projection: Projection,
    publisher: Publisher,
    in_flight: Arc<Mutex<InFlight>>,
    metrics: Metrics,
    api_state: Dependency,
    /// Up once a whole list was read.
    polled: Dependency,
    broker_state: Dependency,
    heartbeat: Arc<Heartbeat>,
    /// What of a resource the payload reads; nothing means all of it.
    payload_fields: Option<BTreeSet<String>>,
    notices: Notices,
    roster: Roster,
    trace_resources: TraceResources,
    api_failing: bool,
    /// What was changed before may have been published by the process before.
    started: Timestamp,
    topic: Option<String>,
    name: Option<String>,
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

/// An event on its way from the decision to the broker.
pub(crate) struct Due {
    pub(crate) event: CloudEvent,
    pub(crate) about: About,
}

/// What the event is about; the event itself is opaque to the publisher.
pub(crate) struct About {
    pub(crate) reason: Reason,
    pub(crate) id: String,
    pub(crate) generation: Option<i64>,
    /// The adapters that have not reported on the event before.
    pub(crate) silent: Set,
    /// When the spec was changed that this is the first event of.
    pub(crate) changed: Option<Timestamp>,
}

/// What a walk found to be lasting, whether or not it is due.
#[derive(Default)]
pub(crate) struct Lasting {
    pub(crate) deleting: u64,
    pub(crate) oldest_deletion: Option<Timestamp>,
    pub(crate) without_progress: u64,
}

impl Lasting {
    fn count(&mut self, resource: &Resource<'_>, decision: &Decision) {
        if let Some(since) = resource.deleted_time {
            self.deleting += 1;
            self.oldest_deletion = Some(self.oldest_deletion.map_or(since, |oldest| oldest.min(since)));
        }
        self.without_progress += u64::from(decision.no_progress);
    }
}

impl Sentinel {
    /// Puts a sentinel together; asks nobody anything yet.
    pub fn new(
        config: SentinelConfig,
        sink: Arc<dyn EventSink>,
        metrics: Metrics,
        health: &Health,
    ) -> Result<Self, reqwest::Error> {
        let api = Api::new(&config.api)?;
        let query = Query { search: config.selector.search(), labels: config.selector.labels(), fields: None };
        // An event that is due by its max age must keep its id while the broker stays away, hence the double.
        let max_age = config.rules.max_age;
        let lifetime = max_age.ready.max(max_age.not_ready).saturating_mul(2).max(MIN_LIFETIME);
        let in_flight = Arc::new(Mutex::new(InFlight::new(inflight::CAPACITY, lifetime)));
        metrics.config_loaded(config.poll_interval);
        Ok(Self {
            api,
            query,
            projection: Projection::new(&config.payload, config.expression.as_deref()),
            publisher: Publisher::new(sink, metrics.clone(), config.max_events_per_second.map(Ceiling::new)),
            in_flight,
            metrics,
            api_state: health.dependency("hyperfleet_api"),
            polled: health.dependency("sentinel_poll"),
            topic: None,
            name: None,
            broker_state: health.dependency("broker"),
            heartbeat: Arc::new(health.heartbeat("sentinel_poll", MAX_SILENCE)),
            payload_fields: config.payload.top_level_fields(),
            notices: Notices::default(),
            roster: Roster::default(),
            trace_resources: TraceResources::default(),
            api_failing: false,
            started: clock::now(),
            config,
        })
    }

    /// Names the topic in each line of the log, and the sentinel where there are several.
    #[must_use]
    pub fn named(mut self, topic: &str, name: Option<&str>) -> Self {
        self.topic = Some(topic.to_owned());
        self.name = name.map(str::to_owned);
        self
    }

    /// Remembers at most so many of its own events instead of [`inflight::CAPACITY`]; each one forgotten early may cost
    /// one early event.
    #[must_use]
    pub fn remember_at_most(self, events: usize) -> Self {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).limit(events);
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
        self.trace_resources = which;
        self
    }

    /// Runs until told to stop: at once for the first time, then every poll interval. Ends between two units of work.
    pub async fn run(mut self, token: CancellationToken) -> Result<(), Infallible> {
        let mut ticks = interval_at(Instant::now(), self.config.poll_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if token.run_until_cancelled(self.heartbeat.during(ticks.tick())).await.is_none() {
                return Ok(());
            }
            let resource_type = &self.config.api.resource_type;
            let span = info_span!(
                "sentinel.poll",
                resource_type,
                subset = resource_type,
                topic = self.topic.as_deref(),
                sentinel = self.name.as_deref(),
                seen = field::Empty,
                due = field::Empty,
                published = field::Empty,
                failed = field::Empty,
                otel.status_code = field::Empty,
            );
            if let Err(error) = self.cycle(&token).instrument(span).await
                && let Some(after) = error.retry_after()
            {
                warn!(?after, at_most = ?api::LONGEST_RETRY_AFTER, "the API asks to be left alone for so long");
                let asked = self.heartbeat.during(tokio::time::sleep(after));
                if token.run_until_cancelled(asked).await.is_none() {
                    return Ok(());
                }
            }
        }
    }

    /// Goes through the list once.
    pub async fn cycle(&mut self, token: &CancellationToken) -> Result<Cycle, api::Error> {
        let begun = Instant::now();
        self.heartbeat.beat();
        // No more than a window is decided ahead: what goes out late should not be old.
        let (sender, due) = mpsc::channel(self.publisher.window());
        let confirmations = beside({
            let (publisher, in_flight, token) = (self.publisher.clone(), Arc::clone(&self.in_flight), token.clone());
            let (broker, heartbeat) = (self.broker_state.clone(), Arc::clone(&self.heartbeat));
            let confirmed = move |about: &About, at| {
                let mut in_flight = in_flight.lock().unwrap_or_else(PoisonError::into_inner);
                in_flight.confirm(&about.id, about.generation, about.silent, at);
            };
            async move { publisher.run(due, &broker, &heartbeat, &token, confirmed).await }
        });
        let mut walk = Walk {
            config: &self.config,
            in_flight: &self.in_flight,
            metrics: &self.metrics,
            payload_fields: self.payload_fields.as_ref(),
            notices: &mut self.notices,
            roster: &mut self.roster,
            trace_resources: &self.trace_resources,
            api_state: &self.api_state,
            sender,
            started: self.started,
            cycle: Cycle::default(),
            lasting: Lasting::default(),
        };
        let fetching = async {
            let api_state = &self.api_state;
            let failed = |error: &api::Error| {
                api_state.down(why(error, self.config.form));
            };
            // Waiting for an API that is away can take longer than the grace period; nothing of it is half done.
            let listing = async {
                let search = self.query.search.as_deref();
                let reads = Reads { payload: &self.config.payload, expression: self.config.expression.as_deref() };
                let proof = self.projection.prove(&self.api, search, reads, &failed);
                self.heartbeat.during(proof).await?;
                self.query.fields = self.projection.fields().map(str::to_owned);
                walk.run(&mut Pages::new(&self.api, &self.query, &failed), &self.heartbeat, token).await
            };
            let result = token.run_until_cancelled(listing).await.unwrap_or(Ok(()));
            let cycle = walk.cycle;
            // Only when the sender is gone does the publisher know that nothing more will come.
            drop(walk);
            (result, cycle)
        };
        let ((fetched, mut cycle), outcome) = join(fetching, confirmations).await;
        cycle.published = outcome.published;
        cycle.failed = outcome.failed;
        self.conclude(cycle, &fetched, outcome, begun.elapsed(), token);
        fetched.map(|()| cycle)
    }

    fn conclude(
        &mut self,
        cycle: Cycle,
        fetched: &Result<(), api::Error>,
        outcome: Outcome,
        took: Duration,
        token: &CancellationToken,
    ) {
        let now = clock::now();
        {
            let mut in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
            in_flight.expire(now);
            self.metrics.in_flight(in_flight.len(), in_flight.take_evicted(), in_flight.waiting().resources());
            for change in self.roster.changes(in_flight.waiting()) {
                tell_adapter(&change);
            }
        }
        self.metrics.backlog_settled();
        // Told to stop: how the API is was not learnt, nor how much is due.
        if token.is_cancelled() {
            return;
        }
        self.metrics.cycle(took, cycle.due, cycle.skew);
        if fetched.is_ok() && outcome.failed == 0 && !outcome.broker_away {
            self.metrics.succeeded(now);
        } else {
            self.metrics.failed();
        }
        match fetched {
            Ok(()) => {
                self.api_state.up();
                self.polled.up();
                if std::mem::take(&mut self.api_failing) {
                    info!("the API answers again");
                }
                debug!(
                    seen = cycle.seen,
                    due = cycle.due,
                    published = cycle.published,
                    failed = cycle.failed,
                    ?took,
                    "cycle ended"
                );
            }
            Err(error) => {
                self.api_state.down(why(error, self.config.form));
                self.projection.refused(error);
                self.metrics.api_error(error);
                // Once per change of state: an API that stays away says nothing new every few seconds.
                if !std::mem::replace(&mut self.api_failing, true) {
                    error!(error = %chain(error), hint = error.hint(self.config.form), "cannot list resources, trying again every poll interval");
                }
            }
        }
        // Last: in the log they would stand in every line that follows.
        let span = Span::current();
        for (name, count) in
            [("seen", cycle.seen), ("due", cycle.due), ("published", cycle.published), ("failed", cycle.failed)]
        {
            span.record(name, count);
        }
        if fetched.is_err() || outcome.failed > 0 || outcome.broker_away {
            span.record("otel.status_code", "error");
        }
    }
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

/// What readiness says of an API that fails.
fn why(error: &api::Error, form: Form) -> String {
    format!("{}; {}", chain(error), error.hint(form))
}

/// One walk over the list, from pages to events.
struct Walk<'a> {
    config: &'a SentinelConfig,
    in_flight: &'a Mutex<InFlight>,
    metrics: &'a Metrics,
    payload_fields: Option<&'a BTreeSet<String>>,
    notices: &'a mut Notices,
    roster: &'a mut Roster,
    trace_resources: &'a TraceResources,
    api_state: &'a Dependency,
    sender: mpsc::Sender<Due>,
    started: Timestamp,
    cycle: Cycle,
    lasting: Lasting,
}

impl Walk<'_> {
    async fn run(
        &mut self,
        pages: &mut Pages<'_>,
        heartbeat: &Heartbeat,
        token: &CancellationToken,
    ) -> Result<(), api::Error> {
        let mut page = heartbeat.during(pages.next()).await?;
        while let Some(current) = page {
            // Told with each page: the walk lasts for as long as the broker takes to confirm what is due.
            self.api_state.up();
            if token.is_cancelled() {
                return Ok(());
            }
            // The next page is on its way while this one is decided on: the request is written by another task, which
            // may have to wait for this thread.
            let deciding = async {
                tokio::task::yield_now().await;
                self.decide_page(&current).await;
            };
            let (next, ()) = join(heartbeat.during(pages.next()), deciding).await;
            page = next?;
        }
        self.metrics.lasting(&self.lasting, clock::now());
        Ok(())
    }

    async fn decide_page(&mut self, page: &Page) {
        let now = clock::now();
        let mut skipped = Skipped::default();
        for item in page.items() {
            let resource = match Resource::parse(item) {
                Ok(resource) => resource,
                Err(error) => {
                    self.metrics.unreadable();
                    let text = chain(&error);
                    if self.notices.is_news(Kind::Unreadable, &text) {
                        warn!(error = text, "skipping a resource that cannot be read, report it to the API's owners");
                    }
                    continue;
                }
            };
            if !self.config.selector.matches(&resource.labels) {
                continue;
            }
            self.cycle.seen += 1;
            let span = self.trace_resources.evaluate(&resource);
            let policy = self.policy(item, &resource, now);
            let (decision, published) = self.decide(policy, &resource, now);
            trace::decided(&span, &decision);
            self.tell(&resource, &decision, now);
            self.lasting.count(&resource, &decision);
            if !decision.reason.publishes() {
                debug!(id = %resource.id, reason = %decision.reason, due = ?decision.due, "skipped");
                skipped.count(decision.reason, resource.status.ready);
                continue;
            }
            self.cycle.due += 1;
            let published = published.filter(|ours| ours.generation == resource.generation);
            let silent = self.silent(item, &resource.id, published, now);
            let Some(due) = self.build(item, &resource, &decision, silent, now) else { continue };
            self.metrics.due();
            if self.sender.send(due).await.is_err() {
                // The publisher is gone: the process is stopping.
                break;
            }
        }
        skipped.report(self.metrics);
        let answered = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).take_answered();
        for after in answered {
            self.metrics.reported(after);
        }
    }

    /// How it is decided on this resource: where an expression decides, by what it says.
    fn policy(&mut self, item: &str, resource: &Resource<'_>, now: Timestamp) -> Policy {
        let Some(expression) = &self.config.expression else { return self.config.rules.policy };
        Policy::Expression(match expression.answer(item, resource, now) {
            Ok(true) => Answer::True,
            Ok(false) => Answer::False,
            Err(failure) => {
                self.metrics.expression_failed(failure.kind);
                let (kind, part) = (failure.kind.as_str(), &failure.part);
                if self.notices.is_news(Kind::FailedExpression, &format!("{kind} {part}")) {
                    warn!(id = %resource.id, error = %failure, hint = failure.kind.hint(),
                        "the message decision fails on a resource, skipping it");
                }
                Answer::Failed
            }
        })
    }

    fn decide(&self, policy: Policy, resource: &Resource<'_>, now: Timestamp) -> (Decision, Option<Published>) {
        let report = policy.report(&resource.status);
        // Asked in any case: it measures how long the reports took.
        let published = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).published(resource, report, now);
        let published = match self.config.republish {
            Republish::InFlight => published,
            Republish::Always => None,
        };
        let rules = Rules { policy, ..self.config.rules };
        (decide(&rules, resource, published, now), published)
    }

    /// The adapters that a resource waits for, where it is due again after an event of ours: only then is it read.
    fn silent(&mut self, item: &str, id: &str, published: Option<Published>, now: Timestamp) -> Set {
        match published {
            Some(ours) => self.roster.enter(&adapters::silent(&adapters::read(item), ours, now), id),
            None => Set::default(),
        }
    }

    /// Warns of what is odd about a resource, once.
    fn tell(&mut self, resource: &Resource<'_>, decision: &Decision, now: Timestamp) {
        if decision.observed_ahead {
            self.metrics.observed_ahead();
            if self.notices.is_news(Kind::ObservedAhead, &resource.id) {
                warn!(id = %resource.id, generation = resource.generation,
                    observed_generation = resource.status.observed_generation,
                    "observed_generation ahead of generation - potential API issue");
            }
        }
        if decision.from_future {
            self.metrics.from_future();
            let ahead = |report: Timestamp| report.duration_since(now);
            let ahead = resource.status.last_updated.max(resource.status.last_transition).map(ahead);
            self.cycle.skew = self.cycle.skew.max(ahead.unwrap_or_default());
            if self.notices.is_news(Kind::FromFuture, &resource.id) {
                let report = self.config.rules.policy.report(&resource.status);
                warn!(id = %resource.id, ?report,
                    "report time in the future, going by our own events until it has passed; check the adapters' clocks");
            }
        }
    }

    fn build(
        &mut self,
        item: &str,
        resource: &Resource<'_>,
        decision: &Decision,
        silent: Set,
        now: Timestamp,
    ) -> Option<Due> {
        // It was read a moment ago, but as a view, which skips most of what a payload may want.
        let value = match partial::read(item, self.payload_fields) {
            Ok(value) => value,
            Err(error) => {
                self.metrics.unreadable();
                if self.notices.is_news(Kind::Unreadable, &resource.id) {
                    warn!(id = %resource.id, %error, "skipping a resource that cannot be read");
                }
                return None;
            }
        };
        let built =
            self.config.payload.build(Facts { resource: &value, view: resource, now }, decision.reason.as_str());
        let failed = built.omitted.iter().filter(|omitted| omitted.failure.is_some()).count();
        let missing = built.missing.len() + built.omitted.len() - failed;
        self.metrics.fields(missing, built.errors.len() + failed);
        for omitted in &built.omitted {
            self.tell_omitted(omitted, &resource.id);
        }
        for missing in &built.missing {
            if self.notices.is_news(Kind::MissingField, &missing.field) {
                warn!(field = %missing.field, path = missing.path, id = %resource.id, "a field of message_data is missing, sending an empty string");
            }
        }
        for failed in &built.errors {
            if self.notices.is_news(Kind::FailedField, &failed.field) {
                warn!(field = %failed.field, id = %resource.id, error = %failed.source,
                    "a field of message_data failed, sending an empty string");
            }
        }
        let resource_type = &self.config.api.resource_type;
        let event = event::reconcile(resource, decision, built.data, resource_type, now);
        let id = resource.id.clone().into_owned();
        let changed = self.first_of_spec(item, decision);
        let about = About { reason: decision.reason, id, generation: resource.generation, silent, changed };
        Some(Due { event, about })
    }

    /// When the spec was changed that this event is the first of, if this process saw it happen.
    fn first_of_spec(&self, item: &str, decision: &Decision) -> Option<Timestamp> {
        let first =
            matches!(decision.reason, Reason::GenerationChanged | Reason::ExpressionTrue) && decision.since.is_none();
        // The API projects times to the second.
        let started = self.started - SignedDuration::from_secs(1);
        first.then(|| parse_updated(item)).flatten().filter(|changed| *changed >= started)
    }

    fn tell_omitted(&mut self, omitted: &Omitted, id: &str) {
        let kind = omitted.failure.as_ref().map_or("null", |failure| failure.kind.as_str());
        if !self.notices.is_news(Kind::OmittedField, &format!("{} {kind}", omitted.field)) {
            return;
        }
        match &omitted.failure {
            None => warn!(field = %omitted.field, id, "a field of message_data is null, leaving it out"),
            Some(failure) => {
                let hint = failure.kind.hint();
                warn!(field = %omitted.field, id, error = %failure, hint, "a field of message_data fails, leaving it out");
            }
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
