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

use crate::resource::Resource;

mod expression;

pub use expression::Answer;

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

/// How old a resource may become before the next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxAge {
    /// For resources that are Ready.
    pub ready: Duration,
    /// For all others.
    pub not_ready: Duration,
}

/// Our own last confirmed event for a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// The generation it carried.
    pub generation: Option<i64>,
    /// When the broker confirmed it.
    pub at: Timestamp,
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
    pub const ALL: [Self; 11] = [
        Self::GenerationChanged,
        Self::MaxAgeReady,
        Self::MaxAgeNotReady,
        Self::BackoffExpired,
        Self::NotExpired,
        Self::InFlight,
        Self::BackoffNotExpired,
        Self::ObservedAhead,
        Self::ExpressionTrue,
        Self::ExpressionFalse,
        Self::ExpressionFailed,
    ];

    /// The words of the specification.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::GenerationChanged => "generation changed - new spec to reconcile",
            Self::MaxAgeReady => "max age expired (ready)",
            Self::MaxAgeNotReady => "max age expired (not ready)",
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

    /// Whether the reason publishes.
    pub fn publishes(self) -> bool {
        match self {
            Self::GenerationChanged
            | Self::MaxAgeReady
            | Self::MaxAgeNotReady
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
}

/// Decides whether `resource` is due at `now`, given our own last confirmed event for it.
pub fn decide(
    policy: Policy,
    resource: &Resource<'_>,
    published: Option<Published>,
    max_age: &MaxAge,
    now: Timestamp,
) -> Decision {
    if let Policy::Expression(answer) = policy {
        return expression::decide(answer, resource, published, max_age, now);
    }
    let status = &resource.status;
    let report = match policy {
        Policy::GenerationAware | Policy::Expression(_) => status.last_updated,
        Policy::TimeOnly => status.last_transition,
    };
    let generation = resource.generation.unwrap_or(0);
    let observed = status.observed_generation.unwrap_or(0);
    let (unseen, observed_ahead) = match policy {
        Policy::GenerationAware | Policy::Expression(_) => {
            (generation > observed, observed > generation && resource.generation.is_some())
        }
        Policy::TimeOnly => (false, false),
    };
    let ours = published.filter(|published| policy == Policy::TimeOnly || published.generation == resource.generation);
    let from_future = report.is_some_and(|report| report > now);
    let settle = |reason, since, due| Decision { reason, since, due, observed_ahead, from_future };

    let past_report = report.filter(|_| !from_future);
    if unseen && ours.is_none() {
        // The generation itself is the cause: a late report of an older one must not change the event's id.
        return settle(Reason::GenerationChanged, None, past_report);
    }
    if observed_ahead && report.is_none() && ours.is_none() {
        return settle(Reason::ObservedAhead, None, None);
    }

    let Some(last) = past_report.max(ours.map(|ours| ours.at)) else {
        return settle(due_reason(policy, unseen, status.ready), report, None);
    };
    // A spec that nobody has seen is not ready, whatever the phase of the old one says.
    let age = if status.ready && !unseen { max_age.ready } else { max_age.not_ready };
    let due = add(last, age);
    if now >= due {
        return settle(due_reason(policy, unseen, status.ready), Some(last), Some(due));
    }
    let in_flight = past_report.is_none_or(|report| report < last);
    let reason = match policy {
        Policy::GenerationAware | Policy::Expression(_) if in_flight => Reason::InFlight,
        Policy::GenerationAware | Policy::Expression(_) => Reason::NotExpired,
        Policy::TimeOnly => Reason::BackoffNotExpired,
    };
    settle(reason, Some(last), Some(due))
}

fn due_reason(policy: Policy, unseen: bool, ready: bool) -> Reason {
    match policy {
        Policy::TimeOnly => Reason::BackoffExpired,
        Policy::Expression(_) => Reason::ExpressionTrue,
        Policy::GenerationAware if unseen => Reason::GenerationChanged,
        Policy::GenerationAware if ready => Reason::MaxAgeReady,
        Policy::GenerationAware => Reason::MaxAgeNotReady,
    }
}

/// Adds without overflow: an age beyond the calendar is never reached.
fn add(last: Timestamp, age: Duration) -> Timestamp {
    SignedDuration::try_from(age).ok().and_then(|age| last.checked_add(age).ok()).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
