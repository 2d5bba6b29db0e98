use proptest::prelude::*;

use super::*;

const DOWN: Failure = Failure::Down { after: None };
const NEVER: [usize; 0] = [];

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn circuit() -> Circuit {
    let open = Backoff { jitter: 0.0, initial: Duration::from_secs(10), max: Duration::from_secs(30), multiplier: 2.0 };
    Circuit::new(Config { open, ..Config::default() })
}

/// Lets `events` fail in turn at time 0, and returns at which failure the far side was called down.
fn fail(circuit: &mut Circuit, events: &[i64], failure: Failure) -> Vec<usize> {
    let told = |(index, event): (usize, &i64)| circuit.failed(*event, failure, 0.5, at(0)).then_some(index + 1);
    events.iter().enumerate().filter_map(told).collect()
}

#[test]
fn five_failures_in_a_row_open_it() {
    let mut circuit = circuit();
    assert_eq!(fail(&mut circuit, &[1, 2, 3, 4], DOWN), NEVER);
    assert_eq!(circuit.permit(at(0)), Permit::All);
    assert_eq!(fail(&mut circuit, &[5], DOWN), [1]);
    assert_eq!(circuit.open_until(), Some(at(10)));
    assert_eq!(circuit.permit(at(9)), Permit::NotBefore(at(10)));
}

#[test]
fn three_refused_credentials_in_a_row_open_it() {
    let mut circuit = circuit();
    assert_eq!(fail(&mut circuit, &[1, 2, 3], Failure::Refused), [3]);
    assert_eq!(circuit.open_until(), Some(at(10)));
}

#[test]
fn other_failures_end_a_run_of_refusals() {
    let mut circuit = circuit();
    assert_eq!(fail(&mut circuit, &[1, 2], Failure::Refused), NEVER);
    assert_eq!(fail(&mut circuit, &[3], DOWN), NEVER);
    assert_eq!(fail(&mut circuit, &[4], Failure::Refused), NEVER);
    assert_eq!(fail(&mut circuit, &[5], Failure::Refused), [1], "the fifth failure of any kind");
}

#[test]
fn a_success_ends_the_run() {
    let mut circuit = circuit();
    for _ in 0..3 {
        assert_eq!(fail(&mut circuit, &[1, 2, 3, 4], DOWN), NEVER);
        assert!(!circuit.worked(), "it was not called down");
    }
}

#[test]
fn one_event_alone_is_told_and_never_opens_it() {
    let mut circuit = circuit();
    assert_eq!(fail(&mut circuit, &[7; 20], DOWN), [5]);
    assert_eq!(circuit.permit(at(0)), Permit::All);
    assert!(!circuit.failed(8, DOWN, 0.5, at(0)), "told already");
    assert_eq!(circuit.permit(at(0)), Permit::NotBefore(at(10)), "a second event met the same");
    assert!(circuit.worked());
}

#[test]
fn it_half_opens_by_itself_and_closes_on_success() {
    let mut circuit = circuit();
    fail(&mut circuit, &[1, 2, 3, 4, 5], DOWN);
    assert_eq!(circuit.permit(at(10)), Permit::Few);
    assert_eq!(circuit.permit(at(10)), Permit::Few);
    assert_eq!(circuit.open_until(), None);
    assert!(circuit.worked());
    assert_eq!(circuit.permit(at(10)), Permit::All);
    assert!(!circuit.worked());
}

#[test]
fn a_clock_that_is_set_back_half_opens_it() {
    let mut circuit = circuit();
    fail(&mut circuit, &[1, 2, 3, 4, 5], DOWN);
    assert_eq!(circuit.clone().permit(at(0)), Permit::NotBefore(at(10)));
    assert_eq!(circuit.permit(at(-3_600)), Permit::Few);
    circuit.failed(1, DOWN, 0.5, at(-3_600));
    assert_eq!(circuit.open_until(), Some(at(-3_580)), "by the clock as it is");
}

#[test]
fn it_stays_open_longer_after_each_failed_probe() {
    let mut circuit = circuit();
    fail(&mut circuit, &[1, 2, 3, 4, 5], DOWN);
    for (now, until) in [(10, 30), (30, 60), (60, 90)] {
        assert_eq!(circuit.permit(at(now)), Permit::Few);
        assert!(!circuit.failed(1, DOWN, 0.5, at(now)), "told once per change");
        assert_eq!(circuit.open_until(), Some(at(until)));
    }
    assert_eq!(circuit.permit(at(90)), Permit::Few);
    circuit.worked();
    fail(&mut circuit, &[1, 2, 3, 4, 5], DOWN);
    assert_eq!(circuit.open_until(), Some(at(10)), "closing forgets");
}

#[test]
fn retry_after_of_the_opening_failure_is_honoured() {
    let mut circuit = circuit();
    fail(&mut circuit, &[1, 2, 3, 4], DOWN);
    circuit.failed(5, Failure::Down { after: Some(Duration::from_secs(100)) }, 0.5, at(0));
    assert_eq!(circuit.open_until(), Some(at(100)));
    // One answer does not stop everything for a day.
    assert_eq!(circuit.permit(at(100)), Permit::Few);
    circuit.failed(5, Failure::Down { after: Some(Duration::from_hours(24)) }, 0.5, at(100));
    assert_eq!(circuit.open_until(), Some(at(400)));
}

#[test]
fn failures_that_were_under_way_when_it_opened_change_nothing() {
    let mut circuit = circuit();
    fail(&mut circuit, &[1, 2, 3, 4, 5], DOWN);
    assert_eq!(fail(&mut circuit, &[6, 7, 8], DOWN), NEVER);
    assert_eq!(circuit.open_until(), Some(at(10)));
}

proptest! {
    #[test]
    fn it_is_never_open_for_ever(steps in proptest::collection::vec((0i64..4, 0u8..4, 0i64..40), 1..200)) {
        let (mut circuit, mut now) = (circuit(), 0);
        for (event, what, wait) in steps {
            now += wait;
            match what {
                0 => { circuit.worked(); prop_assert_eq!(circuit.permit(at(now)), Permit::All); }
                1 => { circuit.failed(event, Failure::Refused, 0.5, at(now)); }
                _ => { circuit.failed(event, DOWN, 0.5, at(now)); }
            }
            if let Permit::NotBefore(until) = circuit.permit(at(now)) {
                prop_assert!(until > at(now) && until <= at(now + 30));
                prop_assert_eq!(circuit.clone().permit(until), Permit::Few);
            }
        }
    }
}
