use jiff::Timestamp;

use super::*;
use crate::child::Said;
use crate::plan::{ApiFault, Plan};
use crate::receipt::Receipt;
use crate::round::Life;
use crate::vitals::Look;

const NOT_READY: u64 = 4;
const READY: u64 = 9;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A round about one resource of two generations, in which nothing went wrong and nothing was received.
fn quiet() -> Evidence {
    let plan = Plan {
        broker: BrokerKind::RabbitMq,
        not_ready: seconds(NOT_READY),
        ready: seconds(READY),
        adapters: Vec::new(),
        fleet: Vec::new(),
        process: Vec::new(),
        ..Plan::of(1)
    };
    Evidence {
        plan,
        lives: [("a".to_owned(), Life { generations: vec![seconds(0), seconds(5)] })].into(),
        receipts: Vec::new(),
        said: Vec::new(),
        incidents: Vec::new(),
        looks: vec![look(1), look(59)],
        recovery: Some(seconds(1)),
        failures: Vec::new(),
        tail: Vec::new(),
    }
}

fn look(at: u64) -> Look {
    Look { at: seconds(at), alive: Some(200), ready: true, rss_kib: 20_000, threads: 5, files: 20 }
}

/// An event that became due at `due` because the last word was `NOT_READY` seconds older.
fn event(generation: i32, due: i64) -> Event {
    let since = Timestamp::from_second(due - i64::try_from(NOT_READY).unwrap()).unwrap();
    let reason = Reason::MaxAgeNotReady.as_str();
    let cause = format!("{SOURCE}\n{generation}\n{reason}\n{since}\na");
    let id = Uuid::new_v5(&Uuid::NAMESPACE_OID, cause.as_bytes()).to_string();
    Event { id, time: Timestamp::from_second(due).unwrap(), resource: "a".to_owned(), generation }
}

fn received(at: u64, event: Event) -> Receipt {
    Receipt { at: seconds(at), event: Ok(event), redelivered: false }
}

fn incident(what: Trouble, begun: u64, ended: u64) -> Incident {
    Incident { what, begun: seconds(begun), ended: seconds(ended) }
}

fn refused_at(at: u64) -> Said {
    Said { at: seconds(at), resource: "a".to_owned(), what: Outcome::Refused { event: event(1, 100).id } }
}

#[test]
fn events_that_are_due_and_apart_violate_nothing() {
    let mut evidence = quiet();
    evidence.receipts = vec![received(10, event(1, 100)), received(14, event(1, 104)), received(15, event(2, 101))];
    assert_eq!(judge(&evidence), Verdict::default());
}

#[test]
fn what_did_not_come_true_is_a_violation() {
    let mut evidence = quiet();
    evidence.failures.push("never ready".to_owned());
    assert_eq!(judge(&evidence).violations, ["never ready"]);
}

#[test]
fn an_event_about_nothing_is_invented() {
    for (at, wrong) in [(10, event(3, 100)), (10, event(0, 100)), (4, event(2, 100))] {
        let mut evidence = quiet();
        evidence.receipts.push(received(at, wrong));
        assert!(judge(&evidence).violations[0].contains("not there"));
    }
    let mut evidence = quiet();
    evidence.lives.clear();
    evidence.receipts.push(received(10, event(1, 100)));
    assert!(judge(&evidence).violations[0].contains("not there"));
}

#[test]
fn an_id_belongs_to_one_cause() {
    let mut evidence = quiet();
    evidence.receipts.push(received(10, Event { id: "drawn".to_owned(), ..event(1, 100) }));
    assert!(judge(&evidence).violations[0].contains("no cause"));
    let mut evidence = quiet();
    let other = Event { id: event(1, 100).id, ..event(2, 100) };
    evidence.receipts = vec![received(10, event(1, 100)), received(11, other)];
    assert!(judge(&evidence).violations[0].contains("one id, two causes"));
}

#[test]
fn what_is_no_event_is_a_violation() {
    let mut evidence = quiet();
    evidence.receipts.push(Receipt { at: seconds(1), event: Err("no JSON".to_owned()), redelivered: false });
    assert!(judge(&evidence).violations[0].contains("no JSON"));
}

#[test]
fn a_repetition_needs_an_excuse_and_each_is_good_for_one() {
    let twice = |excuse: &dyn Fn(&mut Evidence)| {
        let mut evidence = quiet();
        evidence.receipts = vec![received(10, event(1, 100)), received(20, event(1, 100))];
        excuse(&mut evidence);
        let verdict = judge(&evidence);
        (verdict.repeats, verdict.allowed, verdict.violations.len())
    };
    assert_eq!(twice(&|_| {}), (1, 0, 1));
    assert_eq!(twice(&|evidence| evidence.receipts[1].redelivered = true), (0, 0, 0));
    let process = |fault| incident(Trouble::Process(fault), 15, 15);
    assert_eq!(twice(&|evidence| evidence.incidents.push(process(ProcessFault::Kill))), (1, 1, 0));
    assert_eq!(twice(&|evidence| evidence.incidents.push(process(ProcessFault::Pause))), (1, 0, 1));
    // Not by what came after.
    let later = |fault| incident(Trouble::Process(fault), 21, 22);
    assert_eq!(twice(&|evidence| evidence.incidents.push(later(ProcessFault::Kill))), (1, 0, 1));
    // A lost confirm is one where the process says so; on Pub/Sub the client may have sent it again by itself.
    let lost = incident(Trouble::Link(LinkFault::LostConfirms), 9, 12);
    assert_eq!(twice(&|evidence| evidence.incidents.push(lost.clone())), (1, 0, 1));
    assert_eq!(
        twice(&|evidence| {
            evidence.incidents.push(lost.clone());
            evidence.said.push(refused_at(12));
        }),
        (1, 1, 0)
    );
    // However long ago, but not later, and not that of another event.
    for (at, event, allowed) in [(9, event(1, 100), 1), (21, event(1, 100), 0), (12, event(1, 104), 0)] {
        let said = Said { what: Outcome::Refused { event: event.id }, ..refused_at(at) };
        let told = twice(&|evidence| {
            evidence.incidents.push(incident(Trouble::Link(LinkFault::DiskAlarm), 5, 12));
            evidence.said.push(said.clone());
        });
        assert_eq!(told, (1, allowed, usize::from(allowed == 0)));
    }
    // The attempts that find a link broken carry nothing.
    let refused_often = twice(&|evidence| {
        evidence.receipts.push(received(20, event(1, 100)));
        evidence.incidents.push(lost.clone());
        evidence.said.extend([refused_at(12), refused_at(13), refused_at(14)]);
    });
    assert_eq!(refused_often, (2, 1, 1));
    assert_eq!(
        twice(&|evidence| {
            evidence.incidents.push(lost.clone());
            evidence.plan.broker = BrokerKind::PubSub;
        }),
        (1, 1, 0)
    );
    let thrice = twice(&|evidence| {
        evidence.receipts.push(received(20, event(1, 100)));
        evidence.incidents.push(process(ProcessFault::Kill));
    });
    assert_eq!(thrice, (2, 1, 1));
}

#[test]
fn events_of_one_generation_keep_their_distance() {
    let close = |excuse: &dyn Fn(&mut Evidence)| {
        let mut evidence = quiet();
        evidence.receipts = vec![received(10, event(1, 100)), received(12, event(1, 102))];
        excuse(&mut evidence);
        judge(&evidence).violations.len()
    };
    assert_eq!(close(&|_| {}), 1);
    assert_eq!(close(&|evidence| evidence.incidents.push(incident(Trouble::Api(ApiFault::HalfOpen), 11, 12))), 0);
    let process = |fault| incident(Trouble::Process(fault), 11, 11);
    assert_eq!(close(&|evidence| evidence.incidents.push(process(ProcessFault::Kill))), 0);
    assert_eq!(close(&|evidence| evidence.incidents.push(process(ProcessFault::Pause))), 1);
    // Another generation is another matter.
    assert_eq!(close(&|evidence| evidence.receipts[1] = received(12, event(2, 102))), 0);
}

#[test]
fn a_kill_excuses_one_close_pair_and_not_a_memory_that_is_gone_for_good() {
    let mut evidence = quiet();
    evidence.receipts = vec![received(10, event(1, 100)), received(12, event(1, 102))];
    evidence.incidents.push(incident(Trouble::Process(ProcessFault::Kill), 8, 9));
    assert_eq!(judge(&evidence), Verdict::default());
    evidence.receipts.push(received(13, event(1, 103)));
    assert!(judge(&evidence).violations[0].contains("apart"));
    // Nor by what came after.
    evidence.receipts.pop();
    evidence.incidents = vec![incident(Trouble::Process(ProcessFault::Kill), 13, 14)];
    assert!(judge(&evidence).violations[0].contains("apart"));
}

#[test]
fn a_refusal_has_a_cause() {
    let mut evidence = quiet();
    evidence.said.push(refused_at(30));
    assert!(judge(&evidence).violations[0].contains("nothing was wrong"));
    evidence.incidents.push(incident(Trouble::Link(LinkFault::Cut), 29, 29));
    assert_eq!(judge(&evidence), Verdict::default());
}

#[test]
fn liveness_is_never_red_and_silent_only_while_the_process_is_held() {
    let mut evidence = quiet();
    evidence.looks.push(Look { alive: Some(503), ..look(60) });
    evidence.looks.push(Look { alive: None, ..look(61) });
    assert_eq!(judge(&evidence).violations.len(), 2);
    // Not long before, and not long after.
    for (begun, ended) in [(65, 66), (55, 57)] {
        evidence.incidents = vec![incident(Trouble::Process(ProcessFault::Pause), begun, ended)];
        assert_eq!(judge(&evidence).violations.len(), 2);
    }
    evidence.incidents = vec![incident(Trouble::Process(ProcessFault::Pause), 60, 62)];
    assert_eq!(judge(&evidence).violations.len(), 1);
}

#[test]
fn growth_is_told_of_the_process_that_lasts() {
    for grown in [
        Look { rss_kib: 60_000, ..look(60) },
        Look { rss_kib: 100_000, ..look(30) },
        Look { threads: 30, ..look(60) },
        Look { files: 60, ..look(60) },
    ] {
        let mut evidence = quiet();
        evidence.looks.push(grown);
        evidence.looks.sort_by_key(|look| look.at);
        assert_eq!(judge(&evidence).violations.len(), 1);
    }
    let mut evidence = quiet();
    evidence.looks = vec![look(1), Look { threads: 30, ..look(40) }, Look { threads: 30, ..look(50) }];
    evidence.incidents.push(incident(Trouble::Process(ProcessFault::Kill), 30, 31));
    assert_eq!(judge(&evidence), Verdict::default());
}
