//! Says of every reason whether it is the one, and what it comes down to.
//!
//! The conditions of each reason stand on their own, beside [`decide`]: that exactly one reason has all of them, and
//! that it is the one which was decided on, is what the tests prove.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{Answer, Decision, PATIENCE, Policy, Published, Reason, Rules, State, add, compare, decide};
use crate::resource::Resource;

/// A decision with everything that led to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Whether an event is due.
    pub publishes: bool,
    /// Why, or why not.
    pub reason: String,
    /// When it became due, or becomes due next; nothing where there is no time to count from.
    pub due: Option<Timestamp>,
    /// The time that was counted from.
    pub since: Option<Timestamp>,
    /// Every reason that there is, the fired one included, with what it takes.
    pub rules: Vec<Rule>,
    /// The report time lies in the future, and was ignored.
    pub from_future: bool,
    /// The adapters claim a generation that does not exist yet.
    pub observed_ahead: bool,
}

/// One reason, and what it takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The reason.
    pub reason: String,
    /// Whether it would publish.
    pub publishes: bool,
    /// Whether it is the one.
    pub fired: bool,
    /// What it takes: the one that fired has it all.
    pub conditions: Vec<Condition>,
}

/// Something that a reason takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Whether it is as the reason takes it.
    pub holds: bool,
    /// How it is.
    pub text: String,
}

/// Explains what [`decide`] decides for the same arguments.
pub fn explain(rules: &Rules, resource: &Resource<'_>, published: Option<Published>, now: Timestamp) -> Explanation {
    let Decision { reason, since, due, observed_ahead, from_future, .. } = decide(rules, resource, published, now);
    let facts = Facts::new(rules, resource, published, now);
    let rule = |reason: Reason| {
        let conditions = facts.conditions(reason);
        let fired = conditions.iter().all(|condition| condition.holds);
        Rule { reason: reason.as_str().to_owned(), publishes: reason.publishes(), fired, conditions }
    };
    Explanation {
        publishes: reason.publishes(),
        reason: reason.as_str().to_owned(),
        due,
        since,
        rules: Reason::ALL.into_iter().map(rule).collect(),
        from_future,
        observed_ahead,
    }
}

/// A length of time, as people read it.
pub(crate) fn span(duration: Duration) -> String {
    SignedDuration::try_from(duration).map_or_else(|_| format!("{duration:?}"), |duration| format!("{duration:#}"))
}

/// What the rules look at.
struct Facts<'a> {
    policy: Policy,
    resource: &'a Resource<'a>,
    now: Timestamp,
    state: State,
    /// The adapters claim a generation that does not exist yet.
    ahead: bool,
    /// Whether there is a report time, be it from the future.
    reported: bool,
    /// The report time, unless it lies in the future.
    report: Option<Timestamp>,
    ours: Option<Published>,
    /// For how long nothing has changed, if that is too long.
    stuck: Option<Duration>,
    /// The max age that counts for it.
    age: Duration,
}

impl<'a> Facts<'a> {
    fn new(rules: &Rules, resource: &'a Resource<'a>, published: Option<Published>, now: Timestamp) -> Self {
        let Rules { policy, max_age, refresh_spread, no_progress } = *rules;
        let (state, ahead) = compare(policy, resource);
        let any_report = policy.report(&resource.status);
        let report = any_report.filter(|report| *report <= now);
        let base = if state == State::Ready { max_age.ready } else { max_age.not_ready };
        let ours = published.filter(|ours| policy == Policy::TimeOnly || ours.generation == resource.generation);
        let last = report.max(ours.map(|ours| ours.at));
        let counts = policy == Policy::GenerationAware && state != State::Ready;
        let stuck = ours.zip(last).filter(|_| counts);
        let stuck = stuck.and_then(|(ours, last)| no_progress.time(&resource.status, ours, last));
        let age = match (policy, stuck) {
            (_, Some(time)) => (time / PATIENCE).min(no_progress.max_age).max(base),
            (Policy::GenerationAware | Policy::TimeOnly, None) if state == State::Ready => {
                refresh_spread.shorten(base, &resource.id)
            }
            (Policy::GenerationAware | Policy::TimeOnly | Policy::Expression(_), None) => base,
        };
        Self { policy, resource, now, state, ahead, reported: any_report.is_some(), report, ours, stuck, age }
    }

    /// What a reason takes, in the order in which one would ask.
    fn conditions(&self, reason: Reason) -> Vec<Condition> {
        let policy =
            |wanted: Policy| condition(self.policy == wanted, format!("the policy is {}", self.policy.as_str()));
        let aware = || policy(Policy::GenerationAware);
        let timed = || policy(Policy::TimeOnly);
        match reason {
            Reason::GenerationChanged if self.ours.is_some() => {
                vec![aware(), self.unseen(true), self.deleting(false), self.stuck(false), self.over(true)]
            }
            Reason::GenerationChanged => vec![aware(), self.unseen(true), self.deleting(false)],
            Reason::DeletionRequested => {
                vec![aware(), self.deleting(true), self.unseen(true), self.published(false)]
            }
            Reason::Deleting => {
                vec![aware(), self.deleting(true), self.told(), self.dated(true), self.over(true)]
            }
            Reason::NoProgress => vec![aware(), self.stuck(true), self.deleting(false), self.over(true)],
            Reason::MaxAgeReady | Reason::MaxAgeNotReady => vec![
                aware(),
                self.unseen(false),
                self.ready(reason == Reason::MaxAgeReady),
                self.deleting(false),
                self.stuck(false),
                self.dated(true),
                self.over(true),
            ],
            Reason::ObservedAhead => vec![aware(), self.is_ahead(), self.dated(false)],
            Reason::NotExpired => {
                vec![aware(), self.told(), self.dated(true), self.over(false), self.ours_is_last(false)]
            }
            Reason::InFlight => match self.policy {
                Policy::Expression(_) => vec![self.answered(Answer::True), self.published(true), self.over(false)],
                Policy::GenerationAware | Policy::TimeOnly => {
                    vec![aware(), self.told(), self.dated(true), self.over(false), self.ours_is_last(true)]
                }
            },
            Reason::BackoffExpired => vec![timed(), self.over(true)],
            Reason::BackoffNotExpired => vec![timed(), self.over(false)],
            Reason::ExpressionTrue if self.ours.is_some() => vec![self.answered(Answer::True), self.over(true)],
            Reason::ExpressionTrue => vec![self.answered(Answer::True)],
            Reason::ExpressionFalse => vec![self.answered(Answer::False)],
            Reason::ExpressionFailed => vec![self.answered(Answer::Failed)],
        }
    }

    fn answered(&self, wanted: Answer) -> Condition {
        let (answer, text) = match self.policy {
            Policy::Expression(Answer::True) => (Some(Answer::True), "the expression is true"),
            Policy::Expression(Answer::False | Answer::NotYet) => (Some(Answer::False), "the expression is false"),
            Policy::Expression(Answer::Failed) => {
                (Some(Answer::Failed), "the expression cannot be evaluated over this resource")
            }
            Policy::GenerationAware | Policy::TimeOnly => {
                return condition(false, format!("the policy is {}", self.policy.as_str()));
            }
        };
        condition(answer == Some(wanted), text)
    }

    fn unseen(&self, wanted: bool) -> Condition {
        let is = self.state == State::Unseen;
        condition(is == wanted, self.compared(if is { "is lower than" } else { "is not lower than" }))
    }

    fn is_ahead(&self) -> Condition {
        condition(self.ahead, self.compared(if self.ahead { "is higher than" } else { "is not higher than" }))
    }

    fn compared(&self, how: &str) -> String {
        let number = |number: Option<i64>| number.map_or_else(|| "none".to_owned(), |number| number.to_string());
        let (seen, there) = (number(self.resource.status.observed_generation), number(self.resource.generation));
        format!("the generation that the adapters have seen ({seen}) {how} the resource's ({there})")
    }

    fn ready(&self, wanted: bool) -> Condition {
        let is = self.resource.status.ready;
        condition(is == wanted, if is { "it is ready" } else { "it is not ready" })
    }

    fn deleting(&self, wanted: bool) -> Condition {
        let since = self.resource.deleted_time;
        let text = since.map_or_else(
            || "it is not being deleted".to_owned(),
            |since| format!("it is being deleted, since {since}"),
        );
        condition(since.is_some() == wanted, text)
    }

    fn published(&self, wanted: bool) -> Condition {
        let is = self.ours.is_some();
        let text = if is { "an event of ours counts for it" } else { "no event of ours counts for it" };
        condition(is == wanted, text)
    }

    /// A spec that nobody has seen is told at once, whatever the time.
    fn told(&self) -> Condition {
        let is = self.state != State::Unseen || self.ours.is_some();
        let known = "its spec is known to the adapters, or an event has told them";
        condition(is, if is { known } else { "neither do the adapters know its spec, nor has an event told them" })
    }

    /// Where more was seen than there is, something to count from must be there.
    fn dated(&self, wanted: bool) -> Condition {
        let is = !self.ahead || self.reported || self.ours.is_some();
        let text = if is { "there is a time to go by" } else { "there is neither a report nor an event to go by" };
        condition(is == wanted, text)
    }

    fn stuck(&self, wanted: bool) -> Condition {
        let text = self.stuck.map_or_else(
            || "it makes progress, or was not asked for it often enough".to_owned(),
            |time| format!("in spite of our events nothing has changed for {}", span(time)),
        );
        condition(self.stuck.is_some() == wanted, text)
    }

    fn over(&self, wanted: bool) -> Condition {
        let Some(last) = self.report.max(self.ours.map(|ours| ours.at)) else {
            return condition(wanted, "there is no time to count from");
        };
        let over = self.now >= add(last, self.age);
        let what = match self.policy {
            _ if self.report != Some(last) => "our last event",
            Policy::TimeOnly => "its last change of state",
            Policy::GenerationAware | Policy::Expression(_) => "the adapters' last report",
        };
        let text = if over { "is over" } else { "is not over" };
        condition(over == wanted, format!("the max age of {} since {what} at {last} {text}", span(self.age)))
    }

    fn ours_is_last(&self, wanted: bool) -> Condition {
        let is = self.report < self.ours.map(|ours| ours.at);
        condition(is == wanted, if is { "our own event is the last word" } else { "no event of ours is the last word" })
    }
}

fn condition(holds: bool, text: impl Into<String>) -> Condition {
    Condition { holds, text: text.into() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{MaxAge, NoProgress, Spread};
    use super::*;
    use crate::resource::{Labels, Status};

    const POLICIES: [Policy; 6] = [
        Policy::GenerationAware,
        Policy::TimeOnly,
        Policy::Expression(Answer::True),
        Policy::Expression(Answer::False),
        Policy::Expression(Answer::NotYet),
        Policy::Expression(Answer::Failed),
    ];

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn rules(policy: Policy) -> Rules {
        let max_age = MaxAge { ready: Duration::from_mins(1), not_ready: Duration::from_secs(10) };
        let no_progress = NoProgress { after: Duration::from_secs(40), max_age: Duration::from_secs(30) };
        Rules { no_progress, refresh_spread: Spread::from_percent(20).unwrap(), ..Rules::new(policy, max_age) }
    }

    fn resource(generation: Option<i64>, deleted: Option<i64>, status: Status) -> Resource<'static> {
        let deleted_time = deleted.map(at);
        Resource { id: "a".into(), kind: "Cluster".into(), generation, labels: Labels::default(), deleted_time, status }
    }

    fn status(ready: bool, observed: Option<i64>, report: Option<i64>) -> Status {
        let (last_updated, last_transition) = (report.map(at), report.map(at));
        Status { ready, observed_generation: observed, last_updated, last_transition, ..Status::default() }
    }

    fn ours(generation: i64, seconds: i64, attempts: u32) -> Published {
        Published { generation: Some(generation), at: at(seconds), attempts }
    }

    /// Exactly the decided reason has all that it takes.
    fn check(rules: &Rules, resource: &Resource<'_>, published: Option<Published>) -> Reason {
        let reason = decide(rules, resource, published, at(0)).reason;
        let explained = explain(rules, resource, published, at(0));
        let fired: Vec<_> = explained.rules.iter().filter(|rule| rule.fired).map(|rule| rule.reason.as_str()).collect();
        assert_eq!(fired, [reason.as_str()], "{resource:?} {published:?} {explained:#?}");
        assert_eq!((explained.reason.as_str(), explained.publishes), (reason.as_str(), reason.publishes()));
        reason
    }

    #[test]
    fn each_reason_is_explained() {
        let [aware, timed, yes, no, not_yet, failed] = POLICIES;
        let stuck = Status { last_progress: Some(at(-100)), ..status(false, Some(1), Some(-50)) };
        let seen = |ready, report| resource(Some(1), None, status(ready, Some(1), Some(report)));
        let unseen = |deleted| resource(Some(2), deleted, status(true, Some(1), Some(-5)));
        let silent = resource(Some(2), None, status(true, Some(1), Some(-12)));
        let ahead = resource(Some(1), None, status(true, Some(2), None));
        let deleting = resource(Some(2), Some(-90), status(false, Some(2), Some(-30)));
        let table = [
            (Reason::GenerationChanged, aware, unseen(None), None),
            (Reason::GenerationChanged, aware, silent, Some(ours(2, -11, 1))),
            (Reason::MaxAgeReady, aware, seen(true, -60), None),
            (Reason::MaxAgeNotReady, aware, seen(false, -10), None),
            (Reason::DeletionRequested, aware, unseen(Some(-1)), None),
            (Reason::Deleting, aware, deleting, None),
            (Reason::NoProgress, aware, resource(Some(1), None, stuck), Some(ours(1, -30, 9))),
            (Reason::BackoffExpired, timed, seen(false, -10), None),
            (Reason::NotExpired, aware, seen(true, -5), None),
            (Reason::InFlight, aware, seen(false, -15), Some(ours(1, -5, 1))),
            (Reason::InFlight, aware, unseen(None), Some(ours(2, -4, 1))),
            (Reason::InFlight, yes, seen(false, -15), Some(ours(1, -5, 1))),
            (Reason::BackoffNotExpired, timed, seen(false, -5), None),
            (Reason::ObservedAhead, aware, ahead, None),
            (Reason::ExpressionTrue, yes, seen(true, -5), None),
            (Reason::ExpressionTrue, yes, seen(false, -15), Some(ours(1, -10, 1))),
            (Reason::ExpressionFalse, no, seen(true, -5), None),
            (Reason::ExpressionFalse, not_yet, seen(true, -5), None),
            (Reason::ExpressionFailed, failed, seen(true, -5), None),
        ];
        for (reason, policy, resource, published) in &table {
            assert_eq!(check(&rules(*policy), resource, *published), *reason);
        }
        for reason in Reason::ALL {
            assert!(table.iter().any(|row| row.0 == reason), "{reason} has no row");
        }
    }

    #[test]
    fn the_words_name_the_values() {
        let resource = resource(Some(3), None, status(false, Some(2), Some(-15)));
        let explained = explain(&rules(Policy::GenerationAware), &resource, None, at(0));
        let of = |reason: Reason| {
            let rule = explained.rules.iter().find(|rule| rule.reason == reason.as_str()).unwrap();
            rule.conditions.iter().map(|it| it.text.as_str()).collect::<Vec<_>>().join("; ")
        };
        assert!(of(Reason::GenerationChanged).contains("seen (2) is lower than the resource's (3)"), "{explained:#?}");
        assert!(of(Reason::MaxAgeNotReady).contains("10s since the adapters' last report at"), "{explained:#?}");
        for (policy, name) in POLICIES.iter().zip(["generation_aware", "time_only", "expression"]) {
            let rules = explain(&rules(*policy), &resource, None, at(0)).rules;
            let policies =
                rules.iter().flat_map(|rule| &rule.conditions).filter(|it| it.text.contains("the policy is"));
            assert!(policies.clone().count() > 0 && policies.clone().all(|it| it.text.ends_with(name)), "{rules:#?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn the_fired_rule_is_the_decision(
            policy in prop::sample::select(&POLICIES),
            generation in prop::option::of(0..3_i64),
            observed in prop::option::of(0..3_i64),
            ready: bool,
            report in prop::option::of(-80..20_i64),
            progress in prop::option::of(-200..20_i64),
            deleted in prop::option::of(-80..0_i64),
            published in prop::option::of((prop::option::of(0..3_i64), -80..90_i64, 0..8_u32)),
        ) {
            let status = Status { last_progress: progress.map(at), ..status(ready, observed, report) };
            let published = published.map(|(generation, seconds, attempts)| Published { generation, at: at(seconds), attempts });
            check(&rules(policy), &resource(generation, deleted, status), published);
        }
    }
}
