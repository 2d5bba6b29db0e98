//! From an item of a list to a verdict: read, select, decide; and from what is due to its event.
//!
//! The service takes items as the API lists them, a simulation as they were recorded; both through [`Engine::take`]. It
//! asks no clock and no API: `now` is an argument, and what came of earlier events is in the ledger. Only the service
//! builds events: which there are, and their ids, is known without.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tracing::{debug, warn};
use watchfire_delivery::CloudEvent;
use watchfire_runtime::chain;

use crate::adapters::{self, Roster, Set};
use crate::config::{Republish, SentinelConfig};
use crate::decision::{Answer, Decision, Policy, Published, Reason, Rules, decide};
use crate::event;
use crate::expression::Facts;
use crate::inflight::{self, InFlight};
use crate::metrics::Metrics;
use crate::notices::{Kind, Notices};
use crate::partial::{self, Served, UPDATED};
use crate::payload::{Built, Omitted};
use crate::publish::Settled;
use crate::resource::{Resource, Top, parse_id};
use crate::trace::{self, TraceResources};

/// Own events are remembered for at least as long as this: with ages of seconds, a short outage would outlast them all.
const MIN_LIFETIME: Duration = Duration::from_mins(10);

/// What decides, with everything that it remembers.
pub(crate) struct Engine {
    pub(crate) config: Arc<SentinelConfig>,
    pub(crate) ledger: Ledger,
    pub(crate) roster: Roster,
    pub(crate) lasting: Lasting,
    pub(crate) trace_resources: TraceResources,
    metrics: Metrics,
    notices: Notices,
    /// What of a resource its event is made of; nothing means all of it.
    event_fields: Option<BTreeSet<String>>,
    /// Whether these are read with the view.
    at_top: bool,
    /// What was changed before may have been published by the process before.
    started: Timestamp,
}

/// For how long an event is remembered: one that is due by its max age must keep its id while the broker stays away,
/// hence the double.
pub(crate) fn lifetime(config: &SentinelConfig) -> Duration {
    let max_age = config.rules.max_age;
    max_age.ready.max(max_age.not_ready).saturating_mul(2).max(MIN_LIFETIME)
}

/// Our own events, shared with whoever publishes them.
#[derive(Clone)]
pub struct Ledger(Arc<Mutex<InFlight>>);

/// What becomes of an item.
pub(crate) enum Verdict<'a> {
    Unreadable,
    NotSelected,
    Skipped { decision: Decision, generation: Option<i64>, ready: bool },
    Due(Box<Cause<'a>>),
}

/// Why an event is due.
pub(crate) struct Cause<'a> {
    item: &'a str,
    resource: Resource<'a>,
    top: Top<'a>,
    decision: Decision,
    /// Whether an event of this generation is remembered.
    repeats: bool,
    silent: Set,
    now: Timestamp,
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
    /// What the API counted and did not list.
    pub(crate) unlisted: u64,
    /// How far the furthest report time lies in the future.
    pub(crate) skew: SignedDuration,
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

/// What an expression's answer means: of the built-in one it is known when it will be another.
pub(crate) fn answer(config: &SentinelConfig, says: bool) -> Answer {
    match (says, &config.effective.message_decision) {
        (true, _) => Answer::True,
        (false, Some(_)) => Answer::False,
        (false, None) => Answer::NotYet,
    }
}

impl<'a> Cause<'a> {
    /// The id of the resource.
    pub(crate) fn resource(&self) -> Cow<'a, str> {
        self.resource.id.clone()
    }

    /// The id of the event.
    pub(crate) fn event(&self) -> String {
        event::id_of(&self.resource, &self.decision)
    }
}

impl Ledger {
    fn new(config: &SentinelConfig) -> Self {
        Self(Arc::new(Mutex::new(InFlight::new(inflight::CAPACITY, lifetime(config)))))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, InFlight> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers which of them are confirmed.
    pub(crate) fn confirm_all(&self, settled: &[Settled]) {
        let mut in_flight = self.lock();
        for Settled { due: Due { about, .. }, at, .. } in settled.iter().filter(|settled| settled.refused.is_none()) {
            in_flight.confirm(&about.id, about.generation, about.silent, *at);
        }
    }

    /// Remembers a confirmed event.
    pub(crate) fn confirm(&self, about: &About, at: Timestamp) {
        self.lock().confirm(&about.id, about.generation, about.silent, at);
    }
}

impl Engine {
    pub(crate) fn new(config: Arc<SentinelConfig>, metrics: Metrics, started: Timestamp) -> Self {
        let mut event_fields = config.payload.top_level_fields();
        if let Some(fields) = &mut event_fields {
            fields.extend(UPDATED.map(str::to_owned));
        }
        Self {
            ledger: Ledger::new(&config),
            roster: Roster::default(),
            lasting: Lasting::default(),
            trace_resources: TraceResources::default(),
            metrics,
            notices: Notices::default(),
            at_top: event_fields.as_ref().is_some_and(Served::are_at_top),
            event_fields,
            started,
            config,
        }
    }

    /// Forgets all of our own events, as a restart does.
    pub(crate) fn forget(&mut self) {
        self.ledger = Ledger::new(&self.config);
    }

    /// Decides on one item.
    pub(crate) fn take<'a>(&mut self, item: &'a str, now: Timestamp) -> Verdict<'a> {
        let (resource, top) = match Resource::read(item) {
            Ok(read) => read,
            Err(error) => {
                self.metrics.unreadable();
                let text = chain(&error);
                if self.notices.is_news(Kind::Unreadable, &text) {
                    warn!(
                        id = parse_id(item).as_deref(),
                        error = text,
                        "skipping a resource that cannot be read, report it to the API's owners"
                    );
                }
                return Verdict::Unreadable;
            }
        };
        if !self.config.selector.matches(&resource.labels) {
            return Verdict::NotSelected;
        }
        let span = self.trace_resources.evaluate(&resource);
        let policy = self.policy(item, &resource, now);
        let (decision, published) = self.decide(policy, &resource, now);
        trace::decided(&span, &decision);
        self.tell(&resource, &decision, now);
        self.lasting.count(&resource, &decision);
        if !decision.reason.publishes() {
            debug!(id = %resource.id, reason = %decision.reason, due = ?decision.due, "skipped");
            let (generation, ready) = (resource.generation, resource.status.ready);
            return Verdict::Skipped { decision, generation, ready };
        }
        let published = published.filter(|ours| ours.generation == resource.generation);
        let silent = self.silent(item, &resource.id, published, now);
        Verdict::Due(Box::new(Cause { item, resource, top, decision, repeats: published.is_some(), silent, now }))
    }

    /// How it is decided on this resource: where an expression decides, by what it says.
    fn policy(&mut self, item: &str, resource: &Resource<'_>, now: Timestamp) -> Policy {
        let Some(expression) = &self.config.expression else { return self.config.rules.policy };
        Policy::Expression(match expression.answer(item, resource, now) {
            Ok(says) => answer(&self.config, says),
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

    /// The decision, and our last event for the resource, whether or not it counted.
    fn decide(&self, policy: Policy, resource: &Resource<'_>, now: Timestamp) -> (Decision, Option<Published>) {
        let report = policy.report(&resource.status);
        // Asked in any case: it measures how long the reports took.
        let published = self.ledger.lock().published(resource, report, now);
        let counts = published.filter(|_| self.config.republish == Republish::InFlight);
        let rules = Rules { policy, ..self.config.rules };
        (decide(&rules, resource, counts, now), published)
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
            self.lasting.skew = self.lasting.skew.max(ahead.unwrap_or_default());
            if self.notices.is_news(Kind::FromFuture, &resource.id) {
                let report = self.config.rules.policy.report(&resource.status);
                warn!(id = %resource.id, ?report,
                    "report time in the future, going by our own events until it has passed; check the adapters' clocks");
            }
        }
    }

    /// Builds the event.
    pub(crate) fn build(&mut self, cause: &Cause<'_>) -> Option<Due> {
        let Cause { resource, decision, now, .. } = cause;
        let (built, changed) = match self.fill(cause) {
            Ok(filled) => filled,
            Err(error) => {
                self.metrics.unreadable();
                if self.notices.is_news(Kind::Unreadable, &resource.id) {
                    warn!(id = %resource.id, %error, "skipping a resource that cannot be read");
                }
                return None;
            }
        };
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
        let event = event::reconcile(resource, decision, built.data, resource_type, *now);
        Some(Due { event, about: About { changed, ..Self::about(cause) } })
    }

    /// Fills in the payload, and finds when the spec was changed that this is the first event of. The view skips most
    /// of what a payload may want, and so the resource is read anew unless it has what is wanted.
    fn fill(&self, cause: &Cause<'_>) -> Result<(Built, Option<Timestamp>), serde_json::Error> {
        let Cause { item, resource, top, decision, now, .. } = cause;
        let payload = &self.config.payload;
        if let Some((copier, fields)) = payload.copier().zip(self.event_fields.as_ref()) {
            let served = if self.at_top { Served::at_top(resource, top) } else { Served::read(item, fields) }?;
            let changed = UPDATED.iter().find_map(|name| served.get(name)?.as_str());
            return Ok((copier.build(&served), self.first_of_spec(cause, changed)));
        }
        let value = partial::read(item, self.event_fields.as_ref())?;
        let facts = Facts { resource: &value, view: resource, now: *now };
        let changed = UPDATED.iter().find_map(|name| value.get(name)?.as_str());
        Ok((payload.build(facts, decision.reason.as_str()), self.first_of_spec(cause, changed)))
    }

    /// What the event is about, but for when the spec was changed.
    pub(crate) fn about(cause: &Cause<'_>) -> About {
        About {
            reason: cause.decision.reason,
            id: cause.resource.id.clone().into_owned(),
            generation: cause.resource.generation,
            silent: cause.silent,
            changed: None,
        }
    }

    /// When the spec was changed that this event is the first of, if this process saw it happen.
    fn first_of_spec(&self, cause: &Cause<'_>, changed: Option<&str>) -> Option<Timestamp> {
        let Cause { decision, repeats, .. } = cause;
        let tells_of_specs = matches!(decision.reason, Reason::GenerationChanged | Reason::ExpressionTrue);
        let first = tells_of_specs && decision.since.is_none() && !repeats;
        // The API projects times to the second.
        let started = self.started - SignedDuration::from_secs(1);
        changed.filter(|_| first)?.parse().ok().filter(|changed| *changed >= started)
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
