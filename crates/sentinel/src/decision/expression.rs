//! Decides by what an expression says of a resource.
//!
//! `false` skips. `true` publishes, unless an event of ours for this generation is still on its way: after it the same
//! rule holds as for the other policies, `now >= last + max_age`. So the built-in expression causes the events of
//! `generation_aware`, under the same times.

use jiff::Timestamp;

use super::{Decision, MaxAge, Policy, Published, Reason, State, add, compare};
use crate::resource::Resource;

/// What an expression says of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is due.
    True,
    /// It is not.
    False,
    /// It is not, and will be by its max age: the built-in expression.
    NotYet,
    /// It could not be evaluated.
    Failed,
}

/// Decides whether `resource` is due at `now`, given what the expression says and our own last confirmed event for it.
pub(super) fn decide(
    answer: Answer,
    resource: &Resource<'_>,
    published: Option<Published>,
    max_age: &MaxAge,
    now: Timestamp,
) -> Decision {
    let status = &resource.status;
    let report = status.last_updated;
    let (state, observed_ahead) = compare(Policy::Expression(answer), resource);
    let unseen = state == State::Unseen;
    let from_future = report.is_some_and(|report| report > now);
    let settle = |reason, since, due| Decision { reason, since, due, observed_ahead, from_future, no_progress: false };

    match answer {
        Answer::True | Answer::NotYet => {}
        Answer::False => return settle(Reason::ExpressionFalse, None, None),
        Answer::Failed => return settle(Reason::ExpressionFailed, None, None),
    }
    let age = if state == State::Ready { max_age.ready } else { max_age.not_ready };
    let ours = published.filter(|ours| ours.generation == resource.generation);
    let past_report = report.filter(|_| !from_future);
    let last = past_report.max(ours.map(|ours| ours.at));
    if answer == Answer::NotYet {
        return settle(Reason::ExpressionFalse, last, last.map(|last| add(last, age)));
    }
    if unseen && ours.is_none() {
        // The generation itself is the cause: a late report of an older one must not change the event's id.
        return settle(Reason::ExpressionTrue, None, past_report);
    }
    let Some(last) = last else {
        return settle(Reason::ExpressionTrue, report, None);
    };
    let due = add(last, age);
    if ours.is_some() && now < due {
        return settle(Reason::InFlight, Some(last), Some(due));
    }
    // An expression of one's own may be earlier than any max age; since when it has been true nobody knows.
    settle(Reason::ExpressionTrue, Some(last), Some(due).filter(|due| *due <= now))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use serde_json::json;

    use super::super::{Rules, decide};
    use super::*;
    use crate::expression::{Expression, Facts};

    const NOW: i64 = 1_000_000;
    const MAX_AGE: MaxAge = MaxAge { ready: Duration::from_mins(30), not_ready: Duration::from_secs(10) };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(NOW + seconds).unwrap()
    }

    fn rules(policy: Policy) -> Rules {
        Rules::new(policy, MAX_AGE)
    }

    fn resource(json: &str) -> Resource<'_> {
        Resource::parse(json).unwrap()
    }

    #[test]
    fn false_and_failed_skip_for_reasons_of_their_own() {
        let json = r#"{"id":"a","generation":2}"#;
        for (answer, reason) in [(Answer::False, Reason::ExpressionFalse), (Answer::Failed, Reason::ExpressionFailed)] {
            let decision = decide(&rules(Policy::Expression(answer)), &resource(json), None, at(0));
            assert_eq!((decision.reason, decision.reason.publishes()), (reason, false));
        }
    }

    /// What the user wrote is true long before our max age: it goes out, and then not again before that age.
    #[test]
    fn true_before_any_max_age_publishes_once() {
        let json = json!({"id": "a", "generation": 1, "status": {"phase": "Ready", "observed_generation": 1,
            "last_updated_time": at(-60).to_string()}})
        .to_string();
        let rules = rules(Policy::Expression(Answer::True));
        let decide = |published| decide(&rules, &resource(&json), published, at(0));
        let first = decide(None);
        assert_eq!((first.reason, first.since, first.due), (Reason::ExpressionTrue, Some(at(-60)), None));
        let ours = |seconds| Some(Published { generation: Some(1), at: at(seconds), attempts: 1 });
        let then = decide(ours(-1));
        assert_eq!((then.reason, then.due), (Reason::InFlight, Some(at(1_799))));
        // A report that came after our event counts, too.
        assert_eq!(decide(ours(-1_800)).due, Some(at(1_740)));
    }

    /// The generation is the cause of the first event for a spec; of any other it is the last report, whenever that
    /// was.
    #[test]
    fn what_an_event_counts_from_is_the_report_but_for_a_spec_that_nobody_has_seen() {
        let rules = rules(Policy::Expression(Answer::True));
        let since = |generation: i64, report: Option<i64>| {
            let status = json!({"phase": "NotReady", "observed_generation": 1, "last_updated_time": report.map(|it| at(it).to_string())});
            let json = json!({"id": "a", "generation": generation, "status": status}).to_string();
            let decision = decide(&rules, &resource(&json), None, at(0));
            assert_eq!(decision.reason, Reason::ExpressionTrue);
            (decision.since, decision.due, decision.from_future)
        };
        assert_eq!(since(2, Some(-60)), (None, Some(at(-60)), false));
        assert_eq!(since(2, None), (None, None, false));
        assert_eq!(since(1, Some(-60)), (Some(at(-60)), Some(at(-50)), false));
        assert_eq!(since(1, None), (None, None, false));
        assert_eq!(since(1, Some(60)), (Some(at(60)), None, true));
    }

    #[test]
    fn an_event_of_another_generation_is_none_of_this_one() {
        let json = json!({"id": "a", "generation": 2, "status": {"observed_generation": 1}}).to_string();
        let rules = rules(Policy::Expression(Answer::True));
        let ours = |generation| Some(Published { generation: Some(generation), at: at(-1), attempts: 1 });
        let decided = |published| decide(&rules, &resource(&json), published, at(0));
        assert_eq!(decided(ours(1)).reason, Reason::ExpressionTrue);
        let waiting = decided(ours(2));
        assert_eq!((waiting.reason, waiting.since, waiting.due), (Reason::InFlight, Some(at(-1)), Some(at(9))));
    }

    prop_compose! {
        /// A resource in either dialect, with whatever of its parts may be missing.
        fn any_resource()(
            generation in prop::option::weighted(0.95, 0_i64..4),
            conditions in any::<bool>(),
            state in prop::option::weighted(0.9, any::<bool>()),
            observed in prop::option::weighted(0.8, 0_i64..5),
            other in prop::option::weighted(0.5, 0_i64..5),
            report in prop::option::weighted(0.9, prop_oneof![-20_i64..20, -1_900_i64..-1_700, -4_000_i64..4_000]),
        ) -> String {
            let report = report.map(|report| at(report).to_string());
            let status = if conditions {
                let mut conditions = Vec::new();
                if let Some(ready) = state {
                    let status = if ready { "True" } else { "False" };
                    conditions.push(json!({"type": "Reconciled", "status": status, "observed_generation": generation,
                        "last_updated_time": report}));
                }
                for (name, observed) in [("DnsSuccessful", observed), ("ValidationSuccessful", other)] {
                    if let Some(observed) = observed {
                        conditions.push(json!({"type": name, "status": "True", "observed_generation": observed}));
                    }
                }
                json!({"conditions": conditions})
            } else {
                let phase = state.map(|ready| if ready { "Ready" } else { "NotReady" });
                json!({"phase": phase, "observed_generation": observed, "last_updated_time": report})
            };
            json!({"id": "a", "kind": "Cluster", "generation": generation, "status": status}).to_string()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// Over the same fleet the built-in expression causes the events of `generation_aware`: the same ones, under
        /// the same ids and times, and nothing else.
        #[test]
        fn the_built_in_expression_decides_as_generation_aware_does(
            json in any_resource(),
            published in prop::option::of((0_i64..4, prop_oneof![-20_i64..0, -1_900_i64..-1_700, -4_000_i64..0])),
        ) {
            thread_local! {
                static BUILT_IN: Expression = Expression::built_in(&MAX_AGE).unwrap();
            }
            let view = resource(&json);
            let published = published.map(|(generation, seconds)| Published { generation: Some(generation), at: at(seconds), attempts: 1 });
            let nothing = json!({});
            let facts = Facts { resource: &nothing, view: &view, now: at(0) };
            let answer = BUILT_IN.with(|built_in| built_in.evaluate(facts)).unwrap();
            let answer = if answer { Answer::True } else { Answer::NotYet };
            let expected = decide(&rules(Policy::GenerationAware), &view, published, at(0));
            let found = decide(&rules(Policy::Expression(answer)), &view, published, at(0));
            // More was seen than there is, nobody says when, and yet an event of ours went out before: an expression
            // does not know of our events.
            prop_assume!(!(expected.observed_ahead && view.status.last_updated.is_none() && published.is_some()));
            prop_assert_eq!(found.reason.publishes(), expected.reason.publishes(), "{:?} {:?}", found, expected);
            if expected.reason.publishes() {
                prop_assert_eq!((found.since, found.due), (expected.since, expected.due));
            }
            if answer == Answer::NotYet {
                prop_assert_eq!(found.due, expected.due);
            }
            prop_assert_eq!((found.observed_ahead, found.from_future), (expected.observed_ahead, expected.from_future));
        }
    }
}
