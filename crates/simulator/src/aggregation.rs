//! Decides what the API says about a resource, given what its adapters reported.
//!
//! The rules are those of the HyperFleet API, oddities included, because the sentinel has to live with them:
//! `Reconciled.observed_generation` always equals the resource's generation; its `last_updated_time` is the *oldest*
//! report among the required adapters at the current generation, so one silent adapter freezes it; a second report
//! within the same second is accepted and not counted, because times have a resolution of one second; an `Unknown`
//! is kept only as an adapter's first word, and never seen in a condition. Nothing here reads a clock.

use std::borrow::Cow;
use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::resource::{Condition, Report, ReportedCondition, Status};

/// How far ahead of the API's clock an adapter's may be.
pub const MAX_AHEAD: SignedDuration = SignedDuration::from_mins(5);
/// How far behind the API's clock an adapter's may be.
pub const MAX_BEHIND: SignedDuration = SignedDuration::from_mins(30);
/// The condition types that every report must carry.
const MANDATORY: [&str; 3] = ["Available", "Applied", "Health"];

/// What aggregation looks at.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The resource's generation.
    pub generation: i32,
    /// When that generation came about.
    pub updated_time: Timestamp,
    /// Whether the resource is being deleted, and what still holds it.
    pub deletion: Deletion,
    /// The adapters that count.
    pub required: &'a [String],
    /// The last report of each adapter, required or not.
    pub reports: &'a [Report],
    /// The conditions as they were.
    pub previous: &'a [Condition],
}

/// Where a resource is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// It is wanted.
    None,
    /// It is to go, and nothing but its adapters holds it.
    Asked,
    /// It is to go, and resources that it owns are still there.
    WaitingForChildren,
}

/// What to do with an incoming report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Store it; aggregate if so told.
    Store {
        /// False for a first `Unknown`, which changes nothing.
        aggregate: bool,
    },
    /// Accepted, and the stored one stays: it is just as recent.
    Same,
    /// Silently dropped.
    Discard(&'static str),
    /// Refused; the text is for the sender.
    Refuse(String),
}

/// Judges an incoming report against the stored one of the same adapter.
pub fn judge(generation: i32, incoming: &Report, stored: Option<&Report>, now: Timestamp) -> Verdict {
    if incoming.observed_generation < 1 {
        return Verdict::Refuse("observed_generation must be at least 1".to_owned());
    }
    let ahead = incoming.last_report_time.duration_since(now);
    if ahead > MAX_AHEAD {
        return Verdict::Refuse("observed_time must not be more than 5m0s in the future".to_owned());
    }
    if -ahead > MAX_BEHIND {
        return Verdict::Refuse("observed_time must not be more than 30m0s in the past".to_owned());
    }
    let mut seen = BTreeSet::new();
    for condition in &incoming.conditions {
        if condition.ty.is_empty() {
            return Verdict::Refuse("condition type must not be empty".to_owned());
        }
        if !seen.insert(condition.ty.as_str()) {
            return Verdict::Refuse(format!("duplicate condition type '{}'", condition.ty));
        }
    }
    if incoming.observed_generation > generation {
        return Verdict::Discard("future generation");
    }
    let mut same = false;
    if let Some(stored) = stored {
        if incoming.observed_generation < stored.observed_generation {
            return Verdict::Discard("older generation than stored");
        }
        if incoming.observed_generation == stored.observed_generation {
            if incoming.last_report_time < stored.last_report_time {
                return Verdict::Discard("older report than stored");
            }
            same = incoming.last_report_time == stored.last_report_time;
        }
    }
    if let Some(missing) = MANDATORY.iter().find(|ty| !seen.contains(**ty)) {
        return Verdict::Refuse(format!(
            "missing mandatory condition '{missing}': all adapters must report Available, Applied, and Health"
        ));
    }
    let unknown = incoming.status("Available") == Some(Status::Unknown);
    match stored {
        Some(_) if unknown => Verdict::Discard("Available is Unknown, and not for the first time"),
        Some(_) if same => Verdict::Same,
        _ => Verdict::Store { aggregate: !unknown },
    }
}

/// Carries over what a new report inherits from the stored one: its first time, and the transition times of conditions
/// whose status stayed.
pub fn succeed(incoming: &mut Report, stored: &Report) {
    incoming.created_time = stored.created_time;
    for condition in &mut incoming.conditions {
        let before = stored.conditions.iter().find(|old| old.ty == condition.ty && old.status == condition.status);
        if let Some(ReportedCondition { last_transition_time, .. }) = before {
            condition.last_transition_time = *last_transition_time;
        }
    }
}

/// The condition type that mirrors an adapter: `gcp-dns` becomes `GcpDnsSuccessful`.
pub fn mirror_type(adapter: &str) -> String {
    let mut ty = String::with_capacity(adapter.len() + 10);
    for part in adapter.split('-') {
        let mut chars = part.chars();
        ty.extend(chars.next().map(|first| first.to_ascii_uppercase()));
        ty.push_str(chars.as_str());
    }
    ty.push_str("Successful");
    ty
}

/// Whether the resource may be removed: every required adapter finalized the current generation, nothing it owns is
/// left.
pub fn is_finalized(facts: &Facts<'_>) -> bool {
    facts.deletion == Deletion::Asked && all_at_current(facts, &countable(facts), |sight| sight.finalized)
}

/// Derives the conditions: `Reconciled`, `LastKnownReconciled`, then one `*Successful` per required adapter that
/// reported. A kind without required adapters has none.
pub fn aggregate(facts: &Facts<'_>) -> Vec<Condition> {
    if facts.required.is_empty() {
        return Vec::new();
    }
    let sights = countable(facts);
    let mut conditions = vec![reconciled(facts, &sights), last_known(facts, &sights)];
    conditions.extend(sights.iter().map(|sight| mirror(facts, sight)));
    conditions
}

/// What one required adapter last said, if it counts.
struct Sight<'a> {
    report: &'a Report,
    available: &'a ReportedCondition,
    finalized: bool,
}

impl Sight<'_> {
    fn is_available(&self) -> bool {
        self.available.status == Status::True
    }
}

/// The reports that count, in the order of the required adapters: not `Unknown`, not ahead of the resource.
fn countable<'a>(facts: &Facts<'a>) -> Vec<Sight<'a>> {
    let sight = |adapter: &String| {
        let report = facts.reports.iter().find(|report| report.adapter == *adapter)?;
        let available = report.conditions.iter().find(|condition| condition.ty == "Available")?;
        let counts = available.status != Status::Unknown && report.observed_generation <= facts.generation;
        let finalized = report.status("Finalized") == Some(Status::True);
        counts.then_some(Sight { report, available, finalized })
    };
    facts.required.iter().filter_map(sight).collect()
}

fn all_at_current(facts: &Facts<'_>, sights: &[Sight<'_>], met: impl Fn(&Sight<'_>) -> bool) -> bool {
    sights.len() == facts.required.len()
        && sights.iter().all(|sight| sight.report.observed_generation == facts.generation && met(sight))
}

fn reconciled(facts: &Facts<'_>, sights: &[Sight<'_>]) -> Condition {
    let deleting = facts.deletion != Deletion::None;
    let met = |sight: &Sight<'_>| if deleting { sight.finalized } else { sight.is_available() };
    let all = all_at_current(facts, sights, met);
    let (status, reason, message) = match (all, facts.deletion) {
        (true, Deletion::WaitingForChildren) => (
            Status::False,
            "ReconciledWaitingForChildren",
            Cow::Borrowed("All required adapters reported Finalized=True; waiting for owned resources to be removed"),
        ),
        (true, _) => (
            Status::True,
            "ReconciledAll",
            Cow::Borrowed("All required adapters reported Available=True or Finalized=True at the current generation"),
        ),
        (false, _) => {
            let wanted = if deleting { "Finalized" } else { "Available" };
            let reporting: BTreeSet<&str> = sights.iter().map(|sight| sight.report.adapter.as_str()).collect();
            let content: BTreeSet<&str> = sights
                .iter()
                .filter(|sight| sight.report.observed_generation == facts.generation && met(sight))
                .map(|sight| sight.report.adapter.as_str())
                .collect();
            let required: BTreeSet<&str> = facts.required.iter().map(String::as_str).collect();
            let message = format!(
                "Required adapters not reporting {wanted}=True: [{}]. Currently reporting: [{}]",
                join(required.difference(&content)),
                join(reporting.iter())
            );
            (Status::False, "ReconciledMissingAdapters", Cow::Owned(message))
        }
    };
    let at_current = sights.iter().filter(|sight| sight.report.observed_generation == facts.generation);
    let last_updated_time = at_current.map(|sight| sight.report.last_report_time).min().unwrap_or(facts.updated_time);
    let previous = previous(facts, "Reconciled");
    let last_transition_time = match previous {
        Some(before) if before.status == status => before.last_transition_time,
        // A change of the resource itself ended it, not a report.
        Some(before) if status == Status::False && facts.generation > before.observed_generation => facts.updated_time,
        _ => last_updated_time,
    };
    Condition {
        created_time: previous.map_or(facts.updated_time, |before| before.created_time),
        last_transition_time,
        last_updated_time,
        message: Some(message),
        observed_generation: facts.generation,
        reason: Some(reason.into()),
        status,
        ty: "Reconciled".into(),
    }
}

/// `LastKnownReconciled` stays True at the last good generation while a newer one is on its way; a `False` at the
/// generation it tracks ends it.
fn last_known(facts: &Facts<'_>, sights: &[Sight<'_>]) -> Condition {
    let previous = previous(facts, "LastKnownReconciled");
    let was_true = previous.is_some_and(|before| before.status == Status::True);
    let tracked = previous.map_or(1, |before| before.observed_generation);
    let newest = sights.iter().map(|sight| sight.report.observed_generation).max();
    let oldest_report = |generation: i32| {
        let at = sights.iter().filter(move |sight| sight.report.observed_generation == generation);
        at.map(|sight| sight.report.last_report_time).min()
    };
    let complete = sights.len() == facts.required.len();
    let all_available = complete && sights.iter().all(Sight::is_available);
    let uniform =
        sights.windows(2).all(|pair| pair[0].report.observed_generation == pair[1].report.observed_generation);
    let refused_at = |generation: i32| {
        sights.iter().any(|sight| !sight.is_available() && sight.report.observed_generation == generation)
    };
    let kept = previous.map_or(facts.updated_time, |before| before.last_updated_time);

    let (status, observed_generation, last_updated_time) = if all_available && uniform {
        let generation = newest.unwrap_or(tracked);
        (Status::True, generation, oldest_report(generation).unwrap_or(kept))
    } else if complete && was_true && (all_available || !refused_at(tracked)) {
        (Status::True, tracked, kept)
    } else {
        let generation = newest.unwrap_or(tracked);
        let oldest = refused_at(generation).then(|| oldest_report(generation)).flatten();
        (Status::False, generation, oldest.unwrap_or(kept))
    };
    let (reason, message) = if status == Status::True {
        ("AllAdaptersReconciled", "All required adapters report Available=True for the tracked generation")
    } else if !complete {
        ("AdaptersMissingReports", "Required adapters have not yet reported status")
    } else if all_available {
        ("AdaptersNotAtSameGeneration", "Required adapters do not report at the same generation")
    } else {
        ("AdapterReportedNotAvailable", "One or more required adapters report Available=False")
    };
    Condition {
        created_time: previous.map_or(facts.updated_time, |before| before.created_time),
        last_transition_time: transition(previous, status, last_updated_time),
        last_updated_time,
        message: Some(message.into()),
        observed_generation,
        reason: Some(reason.into()),
        status,
        ty: "LastKnownReconciled".into(),
    }
}

fn mirror(facts: &Facts<'_>, sight: &Sight<'_>) -> Condition {
    let ty = mirror_type(&sight.report.adapter);
    let previous = previous(facts, &ty);
    let last_updated_time = sight.report.last_report_time;
    Condition {
        created_time: previous.map_or(facts.updated_time, |before| before.created_time),
        last_transition_time: transition(previous, sight.available.status, last_updated_time),
        last_updated_time,
        message: sight.available.message.clone().map(Cow::Owned),
        observed_generation: sight.report.observed_generation,
        reason: sight.available.reason.clone().map(Cow::Owned),
        status: sight.available.status,
        ty: ty.into(),
    }
}

fn previous<'a>(facts: &Facts<'a>, ty: &str) -> Option<&'a Condition> {
    facts.previous.iter().find(|condition| condition.ty == ty)
}

fn transition(previous: Option<&Condition>, status: Status, otherwise: Timestamp) -> Timestamp {
    previous.filter(|before| before.status == status).map_or(otherwise, |before| before.last_transition_time)
}

fn join<'a>(names: impl Iterator<Item = &'a &'a str>) -> String {
    names.copied().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
