//! What the status of an object says, as values; and when it is written.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use tokio::time::Instant;

use super::{Problem, REQUEUE};
use crate::object::SentinelConfigStatus;
use crate::service::{Progress, Trouble};

/// Counts and messages alone are written no more often than this; a change of a condition is written at once.
const COUNTS_EVERY: Duration = Duration::from_secs(30);

/// What a broker or an API says is of any length; what people read is not.
const MAX_MESSAGE: usize = 1_000;

/// How a sentinel is, as far as its object tells.
pub(super) struct State<'a> {
    /// Why the newest spec does not hold.
    pub(super) problem: Option<&'a Problem>,
    /// What the sentinel came to, where one runs.
    pub(super) progress: Option<&'a Progress>,
    pub(super) generation: Option<i64>,
}

/// The status that tells of a state; a condition keeps its time while it stays what it was.
pub(super) fn of(state: &State<'_>, before: &SentinelConfigStatus, now: Timestamp) -> SentinelConfigStatus {
    let (ready, degraded) = verdict(state);
    let condition = |kind: &str, (holds, reason, message): (bool, &str, String)| {
        let status = if holds { "True" } else { "False" };
        let same = before.conditions.iter().find(|it| it.type_ == kind && it.status == status);
        Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: shortened(&message),
            observed_generation: state.generation,
            last_transition_time: same.map_or(Time(now), |same| same.last_transition_time.clone()),
        }
    };
    let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let polled = state.progress.filter(|progress| progress.polled.is_some());
    SentinelConfigStatus {
        conditions: vec![condition("Ready", ready), condition("Degraded", degraded)],
        observed_generation: state.generation,
        last_poll_time: polled.and_then(|progress| progress.polled).map(Time).or_else(|| before.last_poll_time.clone()),
        resources: polled.map(|progress| count(progress.resources)).or(before.resources),
        published: state.progress.map(|progress| count(progress.published)).or(before.published),
        errors: state.progress.map(|progress| count(progress.errors)).or(before.errors),
    }
}

/// Without its middle where it is too long: what to try stands at the end.
fn shortened(message: &str) -> String {
    let count = message.chars().count();
    if count <= MAX_MESSAGE {
        return message.to_owned();
    }
    let half = MAX_MESSAGE / 2;
    let begin = message.chars().take(half);
    begin.chain([' ', '…', ' ']).chain(message.chars().skip(count - half)).collect()
}

type Verdict<'a> = (bool, &'a str, String);

/// Ready: what stands in the object is in force, and everything got through. Degraded: not all is as it should be.
fn verdict<'a>(state: &State<'a>) -> (Verdict<'a>, Verdict<'a>) {
    let both = |reason: &'a str, message: String| ((false, reason, message.clone()), (true, reason, message));
    if let Some(Problem { reason, message }) = state.problem {
        let message = match state.progress {
            Some(_) => format!("{message}; the last configuration that held stays in force"),
            None => message.clone(),
        };
        return both(reason, message);
    }
    let fine = (false, "AsExpected", String::new());
    match state.progress {
        Some(Progress { trouble: Some(Trouble { reason, message }), .. }) => both(reason, message.clone()),
        Some(Progress { polled: Some(_), .. }) => ((true, "Polling", String::new()), fine),
        Some(_) | None => ((false, "Starting", "the sentinel has not polled yet".to_owned()), fine),
    }
}

/// What was written last, and when; or when that failed.
#[derive(Default)]
pub(super) struct Written {
    status: SentinelConfigStatus,
    at: Option<Instant>,
    failed: Option<Instant>,
}

impl Written {
    /// Begins with what stands in the object.
    pub(super) fn found(status: SentinelConfigStatus) -> Self {
        Self { status, at: None, failed: None }
    }

    pub(super) fn status(&self) -> &SentinelConfigStatus {
        &self.status
    }

    /// Whether a status is to be written now.
    pub(super) fn is_due(&self, status: &SentinelConfigStatus, now: Instant) -> bool {
        let since = |at: Option<Instant>, pause| at.is_none_or(|at| now.duration_since(at) >= pause);
        // Messages may have numbers in them, that differ each time.
        let told = |status: &SentinelConfigStatus| {
            let told = |it: &Condition| (it.type_.clone(), it.status.clone(), it.reason.clone());
            (status.conditions.iter().map(told).collect::<Vec<_>>(), status.observed_generation)
        };
        let changed = told(status) != told(&self.status);
        since(self.failed, REQUEUE) && (changed || (*status != self.status && since(self.at, COUNTS_EVERY)))
    }

    /// It was written, or could not be: whether that is news.
    pub(super) fn done(&mut self, status: SentinelConfigStatus, written: bool, now: Instant) -> bool {
        if written {
            *self = Self { status, at: Some(now), failed: None };
            return false;
        }
        self.failed.replace(now).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(problem: Option<&Problem>, progress: Option<&Progress>) -> Vec<(String, String, String)> {
        let state = State { problem, progress, generation: Some(2) };
        let status = of(&state, &SentinelConfigStatus::default(), Timestamp::UNIX_EPOCH);
        let told = |it: Condition| (it.type_, it.status, it.reason);
        status.conditions.into_iter().map(told).collect()
    }

    fn both(ready: (&str, &str), degraded: (&str, &str)) -> Vec<(String, String, String)> {
        let condition = |kind: &str, (status, reason): (&str, &str)| (kind.into(), status.into(), reason.into());
        vec![condition("Ready", ready), condition("Degraded", degraded)]
    }

    #[test]
    fn the_conditions_say_what_holds() {
        let problem = Problem { reason: "InvalidConfig", message: "why".to_owned() };
        let polled = Progress { polled: Some(Timestamp::UNIX_EPOCH), ..Progress::default() };
        let trouble = Trouble { reason: "ApiUnavailable", message: "why".to_owned() };
        let failing = Progress { trouble: Some(trouble), ..polled.clone() };
        let fine = ("False", "AsExpected");
        assert_eq!(told(None, None), both(("False", "Starting"), fine));
        assert_eq!(told(None, Some(&Progress::default())), both(("False", "Starting"), fine));
        assert_eq!(told(None, Some(&polled)), both(("True", "Polling"), fine));
        let failed = both(("False", "ApiUnavailable"), ("True", "ApiUnavailable"));
        assert_eq!(told(None, Some(&failing)), failed);
        let invalid = both(("False", "InvalidConfig"), ("True", "InvalidConfig"));
        assert_eq!(told(Some(&problem), None), invalid);
        assert_eq!(told(Some(&problem), Some(&polled)), invalid);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_written_at_once_and_counts_now_and_then() {
        let status = |resources, reason: &'static str| {
            let progress = Progress {
                polled: Some(Timestamp::UNIX_EPOCH),
                resources,
                trouble: Some(Trouble { reason, message: String::new() }),
                ..Progress::default()
            };
            let state = State { problem: None, progress: Some(&progress), generation: Some(1) };
            of(&state, &SentinelConfigStatus::default(), Timestamp::UNIX_EPOCH)
        };
        let begun = Instant::now();
        let mut written = Written::default();
        assert!(written.is_due(&status(1, "A"), begun));
        written.done(status(1, "A"), true, begun);
        assert!(!written.is_due(&status(1, "A"), begun + COUNTS_EVERY));
        assert!(!written.is_due(&status(2, "A"), begun));
        assert!(written.is_due(&status(2, "A"), begun + COUNTS_EVERY));
        assert!(written.is_due(&status(1, "B"), begun));
        assert!(written.done(status(1, "B"), false, begun), "the first failure is news");
        assert!(!written.is_due(&status(1, "B"), begun));
        assert!(written.is_due(&status(1, "B"), begun + REQUEUE));
        assert!(!written.done(status(1, "B"), false, begun + REQUEUE));
    }
}
