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
        deleted_time: None,
        status: Status { ready, observed_generation: observed, last_updated: updated, ..Status::default() },
    }
}

fn rules() -> Rules {
    Rules::new(Policy::GenerationAware, MAX_AGE)
}

fn generation_aware(resource: &Resource<'_>) -> Decision {
    decide(&rules(), resource, None, now())
}

fn after(resource: &Resource<'_>, published: Published) -> Decision {
    decide(&rules(), resource, Some(published), now())
}

fn published(generation: i64, at: Timestamp) -> Published {
    Published { generation: Some(generation), at, attempts: 1 }
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
    let ours = after(&resource(false, 1, Some(2), None), published(1, ago(11)));
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
    let waiting = after(&unseen, published(2, ago(9)));
    assert_eq!(waiting.reason, Reason::InFlight);
    assert_eq!(waiting.due, Some(now() + SignedDuration::from_secs(1)));
    let again = after(&unseen, published(2, ago(10)));
    assert_eq!((again.reason, again.since), (Reason::GenerationChanged, Some(ago(10))));
}

#[test]
fn a_spec_that_nobody_has_seen_is_not_ready_whatever_the_old_phase_says() {
    let unseen = resource(true, 2, Some(1), Some(ago(60)));
    let again = after(&unseen, published(2, ago(11)));
    assert_eq!(again.reason, Reason::GenerationChanged);
}

#[test]
fn a_new_generation_does_not_wait_for_the_event_of_the_old_one() {
    let unseen = resource(false, 3, Some(1), Some(ago(3600)));
    let decision = after(&unseen, published(2, ago(1)));
    assert_eq!((decision.reason, decision.since), (Reason::GenerationChanged, None));
}

#[test]
fn a_frozen_report_time_costs_one_event_per_max_age() {
    let frozen = resource(false, 1, Some(1), Some(ago(3600)));
    assert_eq!(generation_aware(&frozen).reason, Reason::MaxAgeNotReady);
    let waiting = after(&frozen, published(1, ago(5)));
    assert_eq!(waiting.reason, Reason::InFlight);
    let due = after(&frozen, published(1, ago(10)));
    assert_eq!((due.reason, due.since), (Reason::MaxAgeNotReady, Some(ago(10))));
}

#[test]
fn a_report_after_our_publish_is_what_counts() {
    let reported = resource(false, 1, Some(1), Some(ago(3)));
    let decision = after(&reported, published(1, ago(9)));
    assert_eq!((decision.reason, decision.since), (Reason::NotExpired, Some(ago(3))));
    let same_instant = after(&reported, published(1, ago(3)));
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
    let waiting = after(&future, published(1, ago(5)));
    assert_eq!((waiting.reason, waiting.from_future), (Reason::InFlight, true));
    let due = after(&future, published(1, ago(10)));
    assert_eq!(due.reason, Reason::MaxAgeNotReady);
    let exactly_now = generation_aware(&resource(false, 1, Some(1), Some(now())));
    assert_eq!((exactly_now.reason, exactly_now.from_future), (Reason::NotExpired, false));
}

#[test]
fn a_seen_resource_without_any_report_time_is_due_once_per_max_age() {
    let silent = resource(false, 1, Some(1), None);
    assert_eq!(generation_aware(&silent).reason, Reason::MaxAgeNotReady);
    let waiting = after(&silent, published(1, ago(1)));
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
    let rules = Rules::new(Policy::TimeOnly, MAX_AGE);
    let decide = |resource: &Resource<'_>, published| super::decide(&rules, resource, published, now());
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
    for spread in [Spread::OFF, Spread::from_percent(50).unwrap()] {
        let rules = Rules { refresh_spread: spread, ..Rules::new(Policy::GenerationAware, forever) };
        let decision = decide(&rules, &resource(true, 1, Some(1), Some(ago(1))), None, now());
        assert_eq!((decision.reason, decision.due), (Reason::NotExpired, Some(Timestamp::MAX)));
    }
}

#[test]
fn every_reason_is_listed_once_and_says_something_of_its_own() {
    let texts: std::collections::BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(texts.len(), Reason::ALL.len());
    assert!(Reason::ALL.windows(2).all(|pair| pair[0] < pair[1]), "metrics find them by their place");
    assert_eq!(Reason::ALL.iter().filter(|reason| reason.publishes()).count(), 8);
}

#[test]
fn without_any_report_it_is_due() {
    let decision = generation_aware(&resource(false, 1, Some(1), None));
    assert_eq!((decision.reason, decision.observed_ahead), (Reason::MaxAgeNotReady, false));
    assert_eq!((decision.since, decision.due), (None, None));
}

#[test]
fn a_deletion_goes_out_at_once_and_then_by_max_age_in_words_of_its_own() {
    let mut deleting = resource(true, 2, Some(1), Some(ago(60)));
    deleting.deleted_time = Some(ago(20));
    let requested = generation_aware(&deleting);
    assert_eq!(requested.reason.as_str(), "deletion requested - to be finalized");
    assert_eq!((requested.since, requested.due), (None, Some(ago(20))));
    let by_a_fast_clock = Resource { deleted_time: Some(ago(-5)), ..deleting.clone() };
    assert_eq!(generation_aware(&by_a_fast_clock).due, Some(ago(0)));
    // Nobody has reported on it, and then they have: as for any other, in its own words.
    assert_eq!(after(&deleting, published(2, ago(9))).reason, Reason::InFlight);
    let again = after(&deleting, published(2, ago(10)));
    assert_eq!((again.reason.as_str(), again.since), ("deletion in progress - max age expired", Some(ago(10))));
    deleting.status = Status { observed_generation: Some(2), last_updated: Some(ago(9)), ..Status::default() };
    assert_eq!(generation_aware(&deleting).reason, Reason::NotExpired);
    deleting.status.last_updated = Some(ago(10));
    assert_eq!(generation_aware(&deleting).reason, Reason::Deleting);
    let time_only = decide(&Rules::new(Policy::TimeOnly, MAX_AGE), &deleting, None, now());
    assert_eq!(time_only.reason, Reason::BackoffExpired, "time and nothing else");
}

#[test]
fn a_spread_refresh_is_due_within_the_spread_and_only_if_ready() {
    let rules = Rules { refresh_spread: Spread::from_percent(20).unwrap(), ..rules() };
    let ready = resource(true, 1, Some(1), Some(ago(0)));
    let due = decide(&rules, &ready, None, now()).due.unwrap();
    let age = due.duration_since(now());
    assert!(SignedDuration::from_mins(24) < age && age < SignedDuration::from_mins(30), "{age:?}");
    let refreshed = decide(&rules, &ready, None, due);
    assert_eq!((refreshed.reason, refreshed.since), (Reason::MaxAgeReady, Some(now())));
    // Neither one that is not ready nor one whose spec is new.
    for other in [resource(false, 1, Some(1), Some(ago(0))), resource(true, 2, Some(1), None)] {
        let waiting = decide(&rules, &other, Some(published(other.generation.unwrap(), ago(0))), now());
        assert_eq!(waiting.due, Some(now() + SignedDuration::from_secs(10)));
    }
}

/// Not ready, with a report a moment ago, and so many seconds without any change.
fn stuck(seconds: i64) -> Resource<'static> {
    let mut stuck = resource(false, 1, Some(1), Some(ago(10)));
    stuck.status.last_progress = Some(ago(10 + seconds));
    stuck
}

fn asked(attempts: u32, seconds: i64) -> Published {
    Published { attempts, ..published(1, ago(seconds)) }
}

#[test]
fn no_progress_is_told_after_its_time_and_when_we_have_asked_often_enough() {
    let told = after(&stuck(1800), asked(ASKED, 11));
    assert_eq!(told.reason.as_str(), "no progress - nothing changes in spite of events");
    assert!(told.no_progress);
    assert_eq!((told.since, told.due), (Some(ago(10)), Some(now())), "no later than without");
    let mut undated = stuck(1800);
    undated.status.last_progress = None;
    for (resource, published) in [
        (stuck(1799), asked(ASKED, 11)),
        (stuck(1800), asked(ASKED - 1, 11)),
        (stuck(-3600), asked(ASKED, 11)),
        (undated, asked(ASKED, 11)),
    ] {
        let decision = after(&resource, published);
        assert_eq!((decision.reason, decision.no_progress), (Reason::MaxAgeNotReady, false));
    }
    assert_eq!(generation_aware(&stuck(1800)).reason, Reason::MaxAgeNotReady, "nobody was asked");
    let of_another = Published { generation: Some(2), ..asked(ASKED, 11) };
    assert_eq!(after(&stuck(1800), of_another).reason, Reason::MaxAgeNotReady);
}

#[test]
fn no_progress_is_for_what_is_not_ready_seen_or_not() {
    let mut unseen = stuck(1800);
    unseen.status.observed_generation = None;
    assert_eq!(after(&unseen, asked(ASKED, 11)).reason, Reason::NoProgress);
    let mut ready = stuck(1800);
    ready.status.ready = true;
    assert!(!after(&ready, asked(ASKED, 11)).no_progress);
    let mut deleting = stuck(1800);
    deleting.deleted_time = Some(ago(3600));
    let deleting = after(&deleting, asked(ASKED, 11));
    assert_eq!((deleting.reason, deleting.no_progress), (Reason::Deleting, true));
    let time_only = Rules::new(Policy::TimeOnly, MAX_AGE);
    let mut resource = stuck(1800);
    resource.status.last_transition = Some(ago(1810));
    assert!(!decide(&time_only, &resource, Some(asked(ASKED, 11)), now()).no_progress);
    // Waiting is told as what it is, and no progress beside it.
    let waiting = after(&stuck(1800), asked(ASKED, 9));
    assert_eq!((waiting.reason, waiting.no_progress), (Reason::InFlight, true));
}

#[test]
fn without_progress_the_max_age_is_a_tenth_of_the_time_without_within_its_bounds() {
    let mut rules = rules();
    rules.no_progress.max_age = Duration::from_mins(10);
    let age = |resource: &Resource<'_>| {
        let decision = decide(&rules, resource, Some(asked(ASKED, 11)), now());
        decision.due.unwrap().duration_since(ago(10)).as_secs()
    };
    assert_eq!([1800, 3000, 6000, 6001, 60_000].map(|seconds| age(&stuck(seconds))), [180, 300, 600, 600, 600]);
    assert_eq!(age(&stuck(1799)), 10, "not yet");
    rules.no_progress.after = Duration::from_secs(1);
    let age = |seconds| decide(&rules, &stuck(seconds), Some(asked(ASKED, 11)), now()).due.unwrap();
    assert_eq!(age(50), now(), "never below what it is without");
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
            let decision = decide(&rules(), &resource, ours, at);
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
        resource in any_resource(), ours in proptest::option::of(any_published()), rules in any_rules(),
    ) {
        let decision = decide(&rules, &resource, ours, now());
        let Some(next) = decision.due else {
            prop_assert!(decision.reason.publishes() || decision.reason == Reason::ObservedAhead);
            return Ok(());
        };
        if decision.reason.publishes() {
            prop_assert!(next <= now());
        } else {
            prop_assert!(next > now());
            // A report from the future is one of the past by then, and counts.
            prop_assume!(!decision.from_future);
            let before = decide(&rules, &resource, ours, next - SignedDuration::from_nanos(1));
            prop_assert!(!before.reason.publishes());
            let after = decide(&rules, &resource, ours, next);
            prop_assert!(after.reason.publishes());
            // The cause is the same whenever it is looked at: so is the event's id.
            prop_assert_eq!(after.since, decision.since);
        }
    }

    /// Whatever the rules: an age is never above that of the specification but without progress, never below it but by
    /// the spread, and what is overdue goes out.
    #[test]
    fn an_age_stays_within_its_bounds(
        resource in any_resource(), ours in proptest::option::of(any_published()), rules in any_rules(),
    ) {
        let decision = decide(&rules, &resource, ours, now());
        let plain = decide(&Rules::new(rules.policy, rules.max_age), &resource, ours, now());
        prop_assert_eq!(decision.since, plain.since);
        let Some((due, usual)) = decision.due.zip(plain.due) else {
            prop_assert_eq!(decision.reason, plain.reason);
            return Ok(());
        };
        let percent = i64::from(rules.refresh_spread.percent());
        let earliest = usual - SignedDuration::from_mins(30) * i32::try_from(percent).unwrap() / 100;
        prop_assert!(due >= earliest);
        if due > usual {
            prop_assert!(decision.no_progress);
            prop_assert!(due <= add(decision.since.unwrap(), rules.max_age.ready));
        }
        if decision.since.is_some_and(|since| now() >= add(since, rules.max_age.ready)) {
            prop_assert!(decision.reason.publishes());
        }
    }
}

prop_compose! {
    fn any_resource()(
        ready: bool, generation in 1_i64..4, observed in proptest::option::of(0_i64..5),
        report in proptest::option::of(-600_i64..4000), progress in proptest::option::of(-600_i64..9000),
        id in "[a-z]{1,8}", deleting: bool,
    ) -> Resource<'static> {
        let mut resource = resource(ready, generation, observed, report.map(ago));
        resource.id = id.into();
        resource.deleted_time = deleting.then(|| ago(60));
        resource.status.last_transition = report.map(ago);
        resource.status.last_progress = progress.filter(|_| !ready).map(ago);
        resource
    }
}

prop_compose! {
    fn any_published()(generation in 1_i64..4, seconds in 0_i64..4000, attempts in 1_u32..8) -> Published {
        Published { attempts, ..published(generation, ago(seconds)) }
    }
}

prop_compose! {
    fn any_rules()(time_only: bool, percent in 0_u8..=50, after in 1_u64..3600, max_age in 10_u64..=1800) -> Rules {
        let policy = if time_only { Policy::TimeOnly } else { Policy::GenerationAware };
        let no_progress = NoProgress { after: Duration::from_secs(after), max_age: Duration::from_secs(max_age) };
        let refresh_spread = Spread::from_percent(percent).unwrap();
        Rules { refresh_spread, no_progress, ..Rules::new(policy, MAX_AGE) }
    }
}
