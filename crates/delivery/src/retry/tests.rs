use proptest::prelude::*;

use super::*;

const AFTER: Option<Duration> = Some(Duration::from_secs(7));

#[test]
fn every_status_has_its_verdict() {
    for status in 100..=599 {
        let expected = match status {
            200..=299 => None,
            401 | 403 => Some(Verdict::Provisional),
            410 => Some(Verdict::Pause),
            408 | 425 | 429 | 500..=599 => Some(Verdict::Retry { after: AFTER }),
            _ => Some(Verdict::Permanent),
        };
        let found = (!is_delivered(status)).then(|| classify(status, AFTER));
        assert_eq!(found, expected, "status {status}");
    }
    assert_eq!(classify(999, None), Verdict::Retry { after: None });
}

#[test]
fn retry_after_is_read_as_seconds_or_as_a_date() {
    let now: Timestamp = "2026-11-28T12:00:00Z".parse().unwrap();
    let cases = [
        ("0", Some(0)),
        ("120", Some(120)),
        (" 120 ", Some(120)),
        ("86401", Some(86_400)),
        ("99999999999999999999999", Some(86_400)),
        ("Sat, 28 Nov 2026 12:01:30 GMT", Some(90)),
        ("Saturday, 28-Nov-26 12:01:30 GMT", Some(90)),
        ("Sat Nov 28 12:01:30 2026", Some(90)),
        ("Sat, 28 Nov 2026 11:00:00 GMT", Some(0)),
        ("Fri, 28 Nov 2036 12:00:00 GMT", Some(86_400)),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("1.5", None),
        ("1s", None),
        ("Sat, 28 Foo 2026 12:01:30 GMT", None),
    ];
    for (value, seconds) in cases {
        assert_eq!(retry_after(value, now), seconds.map(Duration::from_secs), "{value:?}");
    }
    let half = "2026-11-28T12:00:00.5Z".parse().unwrap();
    assert_eq!(retry_after("Sat, 28 Nov 2026 12:00:01 GMT", half), Some(Duration::from_millis(500)));
}

#[test]
fn delays_double_up_to_the_maximum() {
    let backoff = Backoff { jitter: 0.0, max: Duration::from_mins(1), ..Backoff::default() };
    let delays: Vec<_> = (0..8).map(|attempt| backoff.delay(attempt, 0.3, None).as_secs()).collect();
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
    assert_eq!(backoff.delay(u32::MAX, 0.3, None), backoff.max);
}

#[test]
fn jitter_moves_both_ways() {
    let backoff = Backoff { jitter: 0.2, ..Backoff::default() };
    let at = |random| backoff.delay(0, random, None).as_millis();
    assert_eq!((at(0.0), at(0.5), at(1.0)), (800, 1000, 1200));
}

#[test]
fn retry_after_is_never_undercut_and_is_capped() {
    let backoff = Backoff { jitter: 0.0, ..Backoff::default() };
    assert_eq!(backoff.delay(0, 0.0, AFTER), Duration::from_secs(7));
    assert_eq!(backoff.delay(4, 0.0, AFTER), Duration::from_secs(16));
    assert_eq!(backoff.delay(0, 0.0, Some(Duration::from_hours(1000))), MAX_RETRY_AFTER);
}

#[test]
fn senseless_numbers_do_not_shrink_or_stop_the_wait() {
    let odd = |multiplier, jitter| Backoff { multiplier, jitter, ..Backoff::default() };
    assert_eq!(odd(0.5, 0.0).delay(3, 0.5, None), Duration::from_secs(1));
    assert_eq!(odd(f64::NAN, 0.0).delay(3, 0.5, None), Duration::from_secs(1));
    assert_eq!(odd(f64::INFINITY, 0.0).delay(3, 0.5, None), odd(2.0, 0.0).max);
    assert_eq!(odd(2.0, 9.0).delay(0, 1.0, None), Duration::from_secs(2));
    assert_eq!(odd(2.0, 0.5).delay(0, 9.0, None), Duration::from_millis(1500));
}

proptest! {
    #[test]
    fn the_delay_stays_within_its_bounds(
        initial in 1u64..10_000, max in 1u64..1_000_000, multiplier in 1.0f64..10.0, jitter in 0.0f64..1.0,
        attempt in 0u32..2_000, random in 0.0f64..1.0, after in proptest::option::of(0u64..200_000_000),
    ) {
        let (initial, max) = (Duration::from_millis(initial), Duration::from_millis(max));
        let after = after.map(Duration::from_millis);
        let delay = Backoff { initial, max, multiplier, jitter }.delay(attempt, random, after);
        let asked = after.unwrap_or_default().min(MAX_RETRY_AFTER);
        prop_assert!(delay >= asked);
        prop_assert!(delay <= max.mul_f64(1.0 + jitter).max(asked) + Duration::from_micros(1));
    }
}
