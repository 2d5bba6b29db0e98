//! Decides whether a resource is due.
//!
//! A spec that the adapters have not seen goes out at once; after that, and for a spec they have seen, the one rule
//! is `now >= last + max_age`, where `last` is the later of the adapters' report and our own confirmed publish of
//! this generation. Nothing here tries to tell whether an event was processed: a silent adapter costs one event per
//! max age, not one per poll.
//!
//! The surprise: a report time in the future says nothing about when the report came, so it is ignored, and our own
//! publish is the only clock until it has passed.

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::resource::{Resource, Status};

mod explain;
mod expression;
mod spread;

pub(crate) use explain::span;
pub use explain::{Condition, Explanation, Rule, explain};
pub use expression::Answer;
pub use spread::Spread;

/// A resource is said to make no progress only after so many events of ours: before, nobody was asked.
pub const ASKED: u32 = 5;

/// A resource without progress waits for this part of the time that it has been without.
const PATIENCE: u32 = 10;

/// What the configuration says about when a resource is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// How that is decided.
    pub policy: Policy,
    /// How old a resource may become.
    pub max_age: MaxAge,
    /// How much earlier than their max age ready resources may be refreshed.
    pub refresh_spread: Spread,
    /// What becomes of resources that stay not ready.
    pub no_progress: NoProgress,
}

impl Rules {
    /// The rules of the specification: no spread, and one max age for all that is not ready.
    pub fn new(policy: Policy, max_age: MaxAge) -> Self {
        let no_progress = NoProgress { after: max_age.ready, max_age: max_age.not_ready };
        Self { policy, max_age, refresh_spread: Spread::OFF, no_progress }
    }
}

/// How it is decided that a resource is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Spec changes first, then max age since the adapters' last report.
    GenerationAware,
    /// Max age since the last change of state, and nothing else.
    TimeOnly,
    /// What an expression says of the resource.
    Expression(Answer),
}

impl Policy {
    /// The time that max age is counted from.
    pub fn report(self, status: &Status) -> Option<Timestamp> {
        match self {
            Self::GenerationAware | Self::Expression(_) => status.last_updated,
            Self::TimeOnly => status.last_transition,
        }
    }

    /// As it is configured.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::GenerationAware => "generation_aware",
            Self::TimeOnly => "time_only",
            Self::Expression(_) => "expression",
        }
    }
}

/// How old a resource may become before the next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxAge {
    /// For resources that are Ready.
    pub ready: Duration,
    /// For all others.
    pub not_ready: Duration,
}

/// When a resource makes no progress, and how long its events wait then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoProgress {
    /// It is not ready, and neither its state nor what an adapter says of its part has changed for so long.
    pub after: Duration,
    /// Its max age grows up to this; one that is not above `max_age.not_ready` does not grow.
    pub max_age: Duration,
}

/// Our own last confirmed event for a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// The generation it carried.
    pub generation: Option<i64>,
    /// When the broker confirmed it; never in the future, see [`InFlight`](crate::inflight::InFlight::published).
    pub at: Timestamp,
    /// How many events of this generation were confirmed, this one included, since the resource was last ready.
    pub attempts: u32,
}

/// Why a resource is due, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The adapters have not seen this generation.
    GenerationChanged,
    /// Ready, and the last report is too old.
    MaxAgeReady,
    /// Not ready, and the last report is too old.
    MaxAgeNotReady,
    /// It is on its way to deletion, and no event has said so yet.
    DeletionRequested,
    /// It is on its way to deletion, and the last report is too old.
    Deleting,
    /// Not ready, the last report is too old, and nothing has changed in spite of our events.
    NoProgress,
    /// Time-only policy: the last transition is too old.
    BackoffExpired,
    /// The last report is recent enough.
    NotExpired,
    /// Our own event is more recent than any report; its max age has not passed.
    InFlight,
    /// Time-only policy: the last transition is recent enough.
    BackoffNotExpired,
    /// The adapters claim a generation that does not exist yet, and there is no report time to go by.
    ObservedAhead,
    /// Expression policy: it says so.
    ExpressionTrue,
    /// Expression policy: it says no.
    ExpressionFalse,
    /// Expression policy: it cannot be evaluated over this resource.
    ExpressionFailed,
}

impl Reason {
    /// Every reason, in the order of the enum; metrics create their labels from it.
    pub const ALL: [Self; 14] = [
        Self::GenerationChanged,
        Self::MaxAgeReady,
        Self::MaxAgeNotReady,
        Self::DeletionRequested,
        Self::Deleting,
        Self::NoProgress,
        Self::BackoffExpired,
        Self::NotExpired,
        Self::InFlight,
        Self::BackoffNotExpired,
        Self::ObservedAhead,
        Self::ExpressionTrue,
        Self::ExpressionFalse,
        Self::ExpressionFailed,
    ];

    /// The words of the specification, where it has them.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::GenerationChanged => "generation changed - new spec to reconcile",
            Self::MaxAgeReady => "max age expired (ready)",
            Self::MaxAgeNotReady => "max age expired (not ready)",
            Self::DeletionRequested => "deletion requested - to be finalized",
            Self::Deleting => "deletion in progress - max age expired",
            Self::NoProgress => "no progress - nothing changes in spite of events",
            Self::BackoffExpired => "backoff-expired",
            Self::NotExpired => "max age not expired",
            Self::InFlight => "event published, max age not expired",
            Self::BackoffNotExpired => "backoff not expired",
            Self::ObservedAhead => "observed_generation ahead of generation",
            Self::ExpressionTrue => "message decision matched",
            Self::ExpressionFalse => "message decision result is false",
            Self::ExpressionFailed => "message decision failed",
        }
    }

    /// The reason as far as it is part of an event's identity: how often we have asked is not, since a restart forgets
    /// it.
    #[must_use]
    pub fn cause(self) -> Self {
        if self == Self::NoProgress { Self::MaxAgeNotReady } else { self }
    }

    /// Whether the reason publishes.
    pub fn publishes(self) -> bool {
        match self {
            Self::GenerationChanged
            | Self::MaxAgeReady
            | Self::MaxAgeNotReady
            | Self::DeletionRequested
            | Self::Deleting
            | Self::NoProgress
            | Self::BackoffExpired
            | Self::ExpressionTrue => true,
            Self::NotExpired
            | Self::InFlight
            | Self::BackoffNotExpired
            | Self::ObservedAhead
            | Self::ExpressionFalse
            | Self::ExpressionFailed => false,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether a resource is due, why, and what was odd about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// The rule that fired.
    pub reason: Reason,
    /// The time the rule counted from: part of the event's id, so that the same cause has the same id.
    pub since: Option<Timestamp>,
    /// When it became due, or becomes due next; unknown where there is no time to count from.
    pub due: Option<Timestamp>,
    /// The adapters claim a generation that does not exist yet.
    pub observed_ahead: bool,
    /// The report time lies in the future: a clock is wrong somewhere.
    pub from_future: bool,
    /// It stays not ready, and nothing has changed in spite of our events.
    pub no_progress: bool,
}

/// What max age counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nobody has seen the spec: not ready, whatever the phase of the old one says.
    Unseen,
    NotReady,
    Ready,
}

/// Decides whether `resource` is due at `now`, given our own last confirmed event for it.
pub fn decide(rules: &Rules, resource: &Resource<'_>, published: Option<Published>, now: Timestamp) -> Decision {
    if let Policy::Expression(answer) = rules.policy {
        return expression::decide(answer, resource, published, &rules.max_age, now);
    }
    let Rules { policy, max_age, refresh_spread, no_progress } = rules;
    let status = &resource.status;
    let (state, observed_ahead) = compare(*policy, resource);
    let age = if state == State::Ready { max_age.ready } else { max_age.not_ready };
    let report = policy.report(status);
    let from_future = report.is_some_and(|report| report > now);
    let past_report = report.filter(|_| !from_future);
    let ours = published.filter(|ours| *policy == Policy::TimeOnly || ours.generation == resource.generation);
    let last = past_report.max(ours.map(|ours| ours.at));
    let stuck = ours.zip(last).and_then(|(ours, last)| match (policy, state) {
        (Policy::GenerationAware, State::Unseen | State::NotReady) => no_progress.time(status, ours, last),
        (Policy::GenerationAware, State::Ready) | (Policy::TimeOnly | Policy::Expression(_), _) => None,
    });
    let settle =
        |reason, since, due| Decision { reason, since, due, observed_ahead, from_future, no_progress: stuck.is_some() };

    if state == State::Unseen && ours.is_none() {
        // The generation itself is the cause: a late report of an older one must not change the event's id.
        return match resource.deleted_time {
            Some(since) => settle(Reason::DeletionRequested, None, Some(since.min(now))),
            None => settle(Reason::GenerationChanged, None, past_report),
        };
    }
    if observed_ahead && report.is_none() && ours.is_none() {
        return settle(Reason::ObservedAhead, None, None);
    }
    let overdue = overdue(*policy, resource, state, stuck.is_some());
    let Some(last) = last else {
        return settle(overdue, report, None);
    };
    let age = match (stuck, state) {
        (Some(time), _) => (time / PATIENCE).min(no_progress.max_age).max(age),
        (None, State::Ready) => refresh_spread.shorten(age, &resource.id),
        (None, State::Unseen | State::NotReady) => age,
    };
    let due = add(last, age);
    if now >= due {
        return settle(overdue, Some(last), Some(due));
    }
    let in_flight = past_report.is_none_or(|report| report < last);
    let reason = match policy {
        Policy::GenerationAware | Policy::Expression(_) if in_flight => Reason::InFlight,
        Policy::GenerationAware | Policy::Expression(_) => Reason::NotExpired,
        Policy::TimeOnly => Reason::BackoffNotExpired,
    };
    settle(reason, Some(last), Some(due))
}

/// Compares what is wanted with what was seen; also says whether more was seen than there is.
fn compare(policy: Policy, resource: &Resource<'_>) -> (State, bool) {
    let generation = resource.generation.unwrap_or(0);
    let observed = resource.status.observed_generation.unwrap_or(0);
    let state = match policy {
        Policy::GenerationAware | Policy::Expression(_) if generation > observed => State::Unseen,
        Policy::GenerationAware | Policy::TimeOnly | Policy::Expression(_) if resource.status.ready => State::Ready,
        Policy::GenerationAware | Policy::TimeOnly | Policy::Expression(_) => State::NotReady,
    };
    let ahead = policy != Policy::TimeOnly && observed > generation && resource.generation.is_some();
    (state, ahead)
}

/// Why a resource is due whose max age is over.
fn overdue(policy: Policy, resource: &Resource<'_>, state: State, stuck: bool) -> Reason {
    match (policy, state) {
        (Policy::TimeOnly, _) => Reason::BackoffExpired,
        (Policy::GenerationAware | Policy::Expression(_), _) if resource.deleted_time.is_some() => Reason::Deleting,
        (Policy::GenerationAware | Policy::Expression(_), _) if stuck => Reason::NoProgress,
        (Policy::GenerationAware | Policy::Expression(_), State::Unseen) => Reason::GenerationChanged,
        (Policy::GenerationAware | Policy::Expression(_), State::Ready) => Reason::MaxAgeReady,
        (Policy::GenerationAware | Policy::Expression(_), State::NotReady) => Reason::MaxAgeNotReady,
    }
}

impl NoProgress {
    /// For how long nothing had changed when the last word was said, if that is too long. Told from the last word and
    /// not from now, so that what is due at a time stays due at that time.
    fn time(&self, status: &Status, ours: Published, last: Timestamp) -> Option<Duration> {
        let time = Duration::try_from(last.duration_since(status.last_progress?)).ok()?;
        (ours.attempts >= ASKED && time >= self.after).then_some(time)
    }
}

/// Adds without overflow: an age beyond the calendar is never reached.
fn add(last: Timestamp, age: Duration) -> Timestamp {
    SignedDuration::try_from(age).ok().and_then(|age| last.checked_add(age).ok()).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
