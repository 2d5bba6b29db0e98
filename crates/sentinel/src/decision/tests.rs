use proptest::prelude::*;

use super::*;
use crate::resource::{Labels, Status};

const MAX_AGE: MaxAge = MaxAge { ready: Duration::from_mins(30), not_ready: Duration::from_secs(10) };

fn now() -> Timestamp {
    "2025-10-21T12:00:00Z".parse().unwrap()
}

fn ago(seconds: i64) -> Timestamp {
    now() - SignedDuration::from_secs(seconds)
}

fn resource(ready: bool, generation: i64, observed: Option<i64>, updated: Option<Timestamp>) -> Resource<'static> {
    Resource {
        id: "cls-123".into(),
        kind: "Cluster".into(),
        generation: Some(generation),
        labels: Labels::default(),
        status: Status { ready, observed_generation: observed, last_updated: updated, last_transition: None },
    }
}

fn generation_aware(resource: &Resource<'_>) -> Decision {
    decide(Policy::GenerationAware, resource, None, &MAX_AGE, now())
}

fn published(generation: i64, at: Timestamp) -> Published {
    Published { generation: Some(generation), at }
}

// The scenarios of the specification, under their own names.

#[test]
fn test_1_ready_cluster_with_generation_mismatch_publishes_immediately() {
    let decision = generation_aware(&resource(true, 2, Some(1), Some(ago(5))));
    assert!(decision.reason.publishes());
    assert_eq!(decision.reason.to_string(), "generation changed - new spec to reconcile");
    assert_eq!((decision.since, decision.due), (None, Some(ago(5))));
}

#[test]
fn test_2_ready_cluster_with_generation_match_waits_for_max_age() {
    let decision = generation_aware(&resource(true, 2, Some(2), Some(ago(300))));
    assert!(!decision.reason.publishes());
    assert_eq!(decision.reason.to_string(), "max age not expired");
    assert_eq!(decision.due, Some(now() + SignedDuration::from_mins(25)));
}

#[test]
fn test_3_not_ready_cluster_with_generation_mismatch_publishes_immediately() {
    let decision = generation_aware(&resource(false, 3, Some(2), Some(ago(2))));
    assert_eq!(decision.reason, Reason::GenerationChanged);
}

#[test]
fn test_4_not_ready_cluster_with_generation_match_and_max_age_expired_publishes() {
    let decision = generation_aware(&resource(false, 1, Some(1), Some(ago(15))));
    assert!(decision.reason.publishes());
    assert_eq!(decision.reason.to_string(), "max age expired (not ready)");
}

#[test]
fn test_5_not_ready_cluster_with_generation_match_and_max_age_not_expired_skips() {
    let decision = generation_aware(&resource(false, 1, Some(1), Some(ago(5))));
    assert_eq!(decision.reason, Reason::NotExpired);
    assert_eq!(decision.due, Some(now() + SignedDuration::from_secs(5)));
}

#[test]
fn test_6_ready_cluster_with_generation_match_and_max_age_expired_publishes() {
    let decision = generation_aware(&resource(true, 1, Some(1), Some(ago(31 * 60))));
    assert!(decision.reason.publishes());
    assert_eq!(decision.reason.to_string(), "max age expired (ready)");
}

#[test]
fn test_7_observed_generation_ahead_of_generation_skips_with_a_warning() {
    let decision = generation_aware(&resource(true, 1, Some(2), None));
    assert_eq!(decision.reason, Reason::ObservedAhead);
    assert!(!decision.reason.publishes());
    assert!(decision.observed_ahead);
    assert_eq!(decision.reason.to_string(), "observed_generation ahead of generation");
}

#[test]
fn test_8_missing_observed_generation_publishes_immediately() {
    for observed in [None, Some(0)] {
        let decision = generation_aware(&resource(false, 1, observed, Some(ago(2))));
        assert_eq!(decision.reason, Reason::GenerationChanged);
        assert!(!decision.observed_ahead);
    }
}

#[test]
fn observed_generation_ahead_counts_max_age_as_if_it_matched() {
    let fresh = generation_aware(&resource(true, 1, Some(2), Some(ago(60))));
    assert_eq!((fresh.reason, fresh.observed_ahead), (Reason::NotExpired, true));
    let stale = generation_aware(&resource(true, 1, Some(2), Some(ago(1801))));
    assert_eq!((stale.reason, stale.observed_ahead), (Reason::MaxAgeReady, true));
    let ours = decide(
        Policy::GenerationAware,
        &resource(false, 1, Some(2), None),
        Some(published(1, ago(11))),
        &MAX_AGE,
        now(),
    );
    assert_eq!((ours.reason, ours.observed_ahead), (Reason::MaxAgeNotReady, true));
}

#[test]
fn max_age_expires_on_the_very_second() {
    assert_eq!(generation_aware(&resource(false, 1, Some(1), Some(ago(10)))).reason, Reason::MaxAgeNotReady);
    assert_eq!(generation_aware(&resource(true, 1, Some(1), Some(ago(1800)))).reason, Reason::MaxAgeReady);
    let almost = resource(false, 1, Some(1), Some(ago(10) + SignedDuration::from_nanos(1)));
    assert_eq!(generation_aware(&almost).reason, Reason::NotExpired);
}

#[test]
fn a_published_generation_waits_for_its_max_age_from_our_publish() {
    let unseen = resource(false, 2, Some(1), Some(ago(3600)));
    let waiting = decide(Policy::GenerationAware, &unseen, Some(published(2, ago(9))), &MAX_AGE, now());
    assert_eq!(waiting.reason, Reason::InFlight);
    assert_eq!(waiting.due, Some(now() + SignedDuration::from_secs(1)));
    let again = decide(Policy::GenerationAware, &unseen, Some(published(2, ago(10))), &MAX_AGE, now());
    assert_eq!((again.reason, again.since), (Reason::GenerationChanged, Some(ago(10))));
}

#[test]
fn a_spec_that_nobody_has_seen_is_not_ready_whatever_the_old_phase_says() {
    let unseen = resource(true, 2, Some(1), Some(ago(60)));
    let again = decide(Policy::GenerationAware, &unseen, Some(published(2, ago(11))), &MAX_AGE, now());
    assert_eq!(again.reason, Reason::GenerationChanged);
}

#[test]
fn a_new_generation_does_not_wait_for_the_event_of_the_old_one() {
    let unseen = resource(false, 3, Some(1), Some(ago(3600)));
    let decision = decide(Policy::GenerationAware, &unseen, Some(published(2, ago(1))), &MAX_AGE, now());
    assert_eq!((decision.reason, decision.since), (Reason::GenerationChanged, None));
}

#[test]
fn a_frozen_report_time_costs_one_event_per_max_age() {
    let frozen = resource(false, 1, Some(1), Some(ago(3600)));
    assert_eq!(generation_aware(&frozen).reason, Reason::MaxAgeNotReady);
    let waiting = decide(Policy::GenerationAware, &frozen, Some(published(1, ago(5))), &MAX_AGE, now());
    assert_eq!(waiting.reason, Reason::InFlight);
    let due = decide(Policy::GenerationAware, &frozen, Some(published(1, ago(10))), &MAX_AGE, now());
    assert_eq!((due.reason, due.since), (Reason::MaxAgeNotReady, Some(ago(10))));
}

#[test]
fn a_report_after_our_publish_is_what_counts() {
    let reported = resource(false, 1, Some(1), Some(ago(3)));
    let decision = decide(Policy::GenerationAware, &reported, Some(published(1, ago(9))), &MAX_AGE, now());
    assert_eq!((decision.reason, decision.since), (Reason::NotExpired, Some(ago(3))));
    let same_instant = decide(Policy::GenerationAware, &reported, Some(published(1, ago(3))), &MAX_AGE, now());
    assert_eq!(same_instant.reason, Reason::NotExpired);
}

#[test]
fn a_report_from_the_future_is_told_and_our_publish_is_the_only_clock() {
    let future = resource(false, 1, Some(1), Some(now() + SignedDuration::from_mins(4)));
    let first = generation_aware(&future);
    assert_eq!((first.reason, first.from_future), (Reason::MaxAgeNotReady, true));
    assert_eq!((first.since, first.due), (future.status.last_updated, None));
    let unseen = generation_aware(&resource(false, 2, Some(1), future.status.last_updated));
    assert_eq!((unseen.reason, unseen.due), (Reason::GenerationChanged, None));
    let waiting = decide(Policy::GenerationAware, &future, Some(published(1, ago(5))), &MAX_AGE, now());
    assert_eq!((waiting.reason, waiting.from_future), (Reason::InFlight, true));
    let due = decide(Policy::GenerationAware, &future, Some(published(1, ago(10))), &MAX_AGE, now());
    assert_eq!(due.reason, Reason::MaxAgeNotReady);
    let exactly_now = generation_aware(&resource(false, 1, Some(1), Some(now())));
    assert_eq!((exactly_now.reason, exactly_now.from_future), (Reason::NotExpired, false));
}

#[test]
fn a_seen_resource_without_any_report_time_is_due_once_per_max_age() {
    let silent = resource(false, 1, Some(1), None);
    assert_eq!(generation_aware(&silent).reason, Reason::MaxAgeNotReady);
    let waiting = decide(Policy::GenerationAware, &silent, Some(published(1, ago(1))), &MAX_AGE, now());
    assert_eq!(waiting.reason, Reason::InFlight);
}

#[test]
fn a_resource_without_a_generation_goes_by_max_age() {
    let mut old = resource(true, 1, None, Some(ago(60)));
    old.generation = None;
    assert_eq!(generation_aware(&old).reason, Reason::NotExpired);
    old.status.observed_generation = Some(3);
    assert!(!generation_aware(&old).observed_ahead);
}

#[test]
fn time_only_counts_from_the_last_transition_and_ignores_generations() {
    let mut resource = resource(true, 9, Some(1), Some(ago(5)));
    let decide =
        |resource: &Resource<'_>, published| super::decide(Policy::TimeOnly, resource, published, &MAX_AGE, now());
    resource.status.last_transition = Some(ago(1799));
    let waiting = decide(&resource, None);
    assert_eq!(
        (waiting.reason.as_str(), waiting.due),
        ("backoff not expired", Some(now() + SignedDuration::from_secs(1)))
    );
    resource.status.last_transition = Some(ago(1800));
    assert_eq!(decide(&resource, None).reason.as_str(), "backoff-expired");
    // Our own event of another generation counts as well: generations mean nothing here.
    assert_eq!(decide(&resource, Some(published(3, ago(60)))).reason, Reason::BackoffNotExpired);
    resource.status.ready = false;
    assert_eq!(decide(&resource, Some(published(3, ago(10)))).reason, Reason::BackoffExpired);
    resource.status.last_transition = None;
    assert_eq!(decide(&resource, None).reason, Reason::BackoffExpired);
    // An observed generation ahead is no warning either.
    resource.status.observed_generation = Some(10);
    assert!(!decide(&resource, None).observed_ahead);
}

#[test]
fn an_age_beyond_the_calendar_never_expires() {
    let forever = MaxAge { ready: Duration::MAX, not_ready: Duration::MAX };
    let decision = decide(Policy::GenerationAware, &resource(true, 1, Some(1), Some(ago(1))), None, &forever, now());
    assert_eq!((decision.reason, decision.due), (Reason::NotExpired, Some(Timestamp::MAX)));
}

#[test]
fn every_reason_is_listed_once_and_says_something_of_its_own() {
    let texts: std::collections::BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(texts.len(), Reason::ALL.len());
    assert_eq!(Reason::ALL.iter().filter(|reason| reason.publishes()).count(), 5);
}

proptest! {
    /// Polling every second with every event confirmed and no adapter alive: never two events within a max age.
    #[test]
    fn silence_never_brings_two_events_within_a_max_age(
        ready: bool, generation in 1i64..4, observed in proptest::option::of(0i64..4),
        report in proptest::option::of(-120i64..120), polls in 1usize..60,
    ) {
        let report = report.map(ago);
        let resource = resource(ready, generation, observed, report);
        let mut ours = None;
        let mut last: Option<Timestamp> = None;
        for poll in 0..polls {
            let at = now() + SignedDuration::from_secs(i64::try_from(poll).unwrap());
            let decision = decide(Policy::GenerationAware, &resource, ours, &MAX_AGE, at);
            if decision.reason.publishes() {
                if let Some(last) = last {
                    prop_assert!(at.duration_since(last) >= SignedDuration::from_secs(10));
                }
                last = Some(at);
                ours = Some(published(generation, at));
            }
        }
    }

    /// What is not due now is due at `next`, for the reason that its state gives, and not one nanosecond earlier.
    #[test]
    fn next_is_exactly_when_it_is_due(
        ready: bool, report in 0i64..4000, ours in proptest::option::of(0i64..4000), time_only: bool,
    ) {
        let policy = if time_only { Policy::TimeOnly } else { Policy::GenerationAware };
        let mut resource = resource(ready, 1, Some(1), Some(ago(report)));
        resource.status.last_transition = Some(ago(report));
        let ours = ours.map(|seconds| published(1, ago(seconds)));
        let decision = decide(policy, &resource, ours, &MAX_AGE, now());
        let next = decision.due.unwrap();
        if decision.reason.publishes() {
            prop_assert!(next <= now());
        } else {
            prop_assert!(next > now());
            let before = decide(policy, &resource, ours, &MAX_AGE, next - SignedDuration::from_nanos(1));
            prop_assert!(!before.reason.publishes());
            prop_assert!(decide(policy, &resource, ours, &MAX_AGE, next).reason.publishes());
        }
    }
}
