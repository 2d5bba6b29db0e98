use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;
use crate::event::Attributes;
use crate::store::{Options, Store};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn event(id: &str, subject: &str) -> CloudEvent {
    let attributes = Attributes {
        id: id.into(),
        source: "test".into(),
        ty: "test.happened".into(),
        subject: (!subject.is_empty()).then(|| subject.into()),
        time: None,
        extensions: Vec::new(),
    };
    CloudEvent::new(attributes, RawValue::from_string(format!(r#"{{"id":"{id}"}}"#)).unwrap())
}

fn outbox() -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    connection.execute_batch(MODULE.migrations[0]).unwrap();
    connection.pragma_update(None, "foreign_keys", "ON").unwrap();
    connection.set_prepared_statement_cache_capacity(64);
    connection
}

fn put(connection: &Connection, id: &str, subject: &str, sinks: &[SinkId]) -> Appended {
    append(&Tx::over(connection), &event(id, subject), sinks, Repeat::Ignore, at(0)).unwrap()
}

fn due(connection: &Connection, sink: SinkId, now: i64) -> Vec<String> {
    let due = claim(connection, sink, 1_000, &HashSet::new(), at(now)).unwrap();
    due.claims.iter().map(|claim| claim.event.id().to_owned()).collect()
}

fn seq_of(connection: &Connection, id: &str) -> i64 {
    let sql = "SELECT d.seq FROM deliveries d JOIN events e ON e.seq = d.event WHERE e.id = ?1";
    connection.query_row(sql, [id], |row| row.get(0)).unwrap()
}

fn mark(connection: &Connection, id: &str, mark: &Mark) {
    settle(connection, seq_of(connection, id), mark, at(1)).unwrap();
}

fn dead(reason: &str) -> Mark {
    Mark::Dead { reason: reason.into() }
}

fn retry_at(seconds: i64) -> Mark {
    Mark::Retry { at: at(seconds), reason: "down".into() }
}

fn only(id: i64) -> Filter {
    Filter { seq: Some(id), limit: 10, ..Filter::default() }
}

#[test]
fn only_the_head_of_each_subject_is_due() {
    let c = outbox();
    let sink = register(&c, "a").unwrap();
    for (id, subject) in [("1", "x"), ("2", "x"), ("3", "y"), ("4", "x"), ("5", "y")] {
        put(&c, id, subject, &[sink]);
    }
    assert_eq!(due(&c, sink, 0), ["1", "3"]);
    mark(&c, "1", &Mark::Delivered);
    assert_eq!(due(&c, sink, 1), ["2", "3"]);
    mark(&c, "3", &dead("422"));
    assert_eq!(due(&c, sink, 1), ["2", "5"], "a dead letter makes way");
}

#[test]
fn a_retry_holds_up_its_own_subject_only() {
    let c = outbox();
    let sink = register(&c, "a").unwrap();
    for (id, subject) in [("1", "x"), ("2", "x"), ("3", "y")] {
        put(&c, id, subject, &[sink]);
    }
    mark(&c, "1", &retry_at(60));
    let found = claim(&c, sink, 10, &HashSet::new(), at(1)).unwrap();
    assert_eq!(found.claims.iter().map(|claim| claim.event.id()).collect::<Vec<_>>(), ["3"]);
    assert_eq!(found.next, Some(at(60)));
    assert_eq!(due(&c, sink, 60), ["3", "1"]);
    let claims = claim(&c, sink, 10, &HashSet::new(), at(60)).unwrap().claims;
    assert_eq!(claims[1].attempts, 1);
}

#[test]
fn what_was_put_off_by_a_clock_that_is_set_back_is_due() {
    let c = outbox();
    let sink = register(&c, "a").unwrap();
    for (id, subject) in [("1", "x"), ("2", "x"), ("3", "y")] {
        put(&c, id, subject, &[sink]);
    }
    mark(&c, "1", &retry_at(30));
    assert_eq!(hasten(&c, sink, at(10)).unwrap(), 0, "in good time");
    assert_eq!(due(&c, sink, -3_600), [""; 0]);
    assert_eq!(hasten(&c, sink, at(-3_600)).unwrap(), 3);
    assert_eq!(due(&c, sink, -3_600), ["1", "3"]);
    settle(&c, seq_of(&c, "1"), &Mark::Delivered, at(-3_600)).unwrap();
    assert_eq!(due(&c, sink, -3_600), ["2", "3"], "and so is what follows");
}

#[test]
fn an_event_that_supersedes_takes_the_place_of_those_that_wait_and_not_of_one_under_way() {
    let c = outbox();
    let [a, b] = ["a", "b"].map(|name| register(&c, name).unwrap());
    let latest = |id: &str, subject: &str| {
        let event = event(id, "").superseding(subject);
        append(&Tx::over(&c), &event, &[a], Repeat::Redeliver, at(0)).unwrap()
    };
    put(&c, "0", "x", &[b]);
    put(&c, "1", "y", &[a]);
    put(&c, "2", "y", &[a]);
    for id in ["3", "4", "5"] {
        assert_eq!(latest(id, "x"), Appended::Queued);
    }
    let states = || -> BTreeMap<_, _> {
        let all = list(&c, &Filter { limit: 100, ..Filter::default() }).unwrap();
        all.into_iter().map(|entry| (entry.id, entry.state)).collect()
    };
    assert_eq!((states()["3"], states()["4"], states()["5"]), (State::Pending, State::Discarded, State::Pending));
    assert_eq!(due(&c, a, 0), ["1", "3"], "3 may be under way");
    // It waits for its next attempt: what there is to tell is told by the next event.
    mark(&c, "3", &retry_at(60));
    latest("6", "x");
    assert_eq!((states()["3"], states()["5"]), (State::Discarded, State::Discarded));
    assert_eq!(due(&c, a, 0), ["1", "6"]);
    assert_eq!(due(&c, b, 0), ["0"]);
    // The same one again is the same one still, until it was settled.
    assert_eq!(latest("6", "x"), Appended::Known);
    assert_eq!((latest("3", "x"), states()["3"]), (Appended::Queued, State::Pending));
    assert_eq!((states()["1"], states()["2"]), (State::Pending, State::Pending), "these supersede nothing");
}

#[test]
fn postponing_does_not_count_as_an_attempt() {
    let c = outbox();
    let sink = register(&c, "a").unwrap();
    put(&c, "1", "x", &[sink]);
    mark(&c, "1", &Mark::Postpone { at: at(5), reason: "down".into() });
    let entry = list(&c, &only(1)).unwrap().remove(0);
    assert_eq!((entry.state, entry.attempts, entry.next_attempt), (State::Pending, 0, at(5)));
    assert_eq!(entry.reason.as_deref(), Some("down"));
}

#[test]
fn events_without_a_subject_are_all_due() {
    let c = outbox();
    let sink = register(&c, "a").unwrap();
    for id in ["1", "2", "3"] {
        put(&c, id, "", &[sink]);
    }
    assert_eq!(due(&c, sink, 0), ["1", "2", "3"]);
    mark(&c, "2", &Mark::Delivered);
    assert_eq!(due(&c, sink, 1), ["1", "3"]);
}

#[test]
fn each_sink_has_its_own_queue() {
    let c = outbox();
    let (a, b) = (register(&c, "a").unwrap(), register(&c, "b").unwrap());
    put(&c, "1", "x", &[a, b]);
    put(&c, "2", "x", &[a, b]);
    let first = claim(&c, a, 1, &HashSet::new(), at(0)).unwrap().claims.remove(0);
    settle(&c, first.seq, &Mark::Delivered, at(1)).unwrap();
    assert_eq!((due(&c, a, 1), due(&c, b, 1)), (vec!["2".into()], vec!["1".into()]));
    assert_eq!(register(&c, "a").unwrap(), a);
    assert_eq!((find(&c, "b").unwrap(), find(&c, "c").unwrap()), (Some(b), None));
    assert_eq!(sinks(&c).unwrap(), ["a", "b"]);
}

#[test]
fn an_event_is_known_by_source_and_id() {
    let c = outbox();
    let sink = register(&c, "a").unwrap();
    assert_eq!(put(&c, "1", "x", &[sink]), Appended::Queued);
    assert_eq!(put(&c, "1", "x", &[sink]), Appended::Known);
    mark(&c, "1", &Mark::Delivered);
    assert_eq!(put(&c, "1", "x", &[sink]), Appended::Known);
    let other = register(&c, "b").unwrap();
    assert_eq!(put(&c, "1", "x", &[sink, other]), Appended::Queued, "a further sink gets it");
    assert_eq!((due(&c, sink, 1).len(), due(&c, other, 1).len()), (0, 1));
}

#[test]
fn an_event_for_nobody_is_not_kept() {
    let c = outbox();
    assert_eq!(put(&c, "1", "x", &[]), Appended::Known);
    assert_eq!(c.query_row("SELECT count(*) FROM events", [], |row| row.get(0)), Ok(0));
}

#[test]
fn redelivery_sends_settled_events_again_and_pending_ones_once() {
    let c = outbox();
    let sink = register(&c, "a").unwrap();
    let again = |id| append(&Tx::over(&c), &event(id, "x"), &[sink], Repeat::Redeliver, at(2)).unwrap();
    for (id, mark_it) in [("1", Mark::Delivered), ("2", dead("404"))] {
        assert_eq!(again(id), Appended::Queued);
        assert_eq!(again(id), Appended::Known);
        mark(&c, id, &mark_it);
        assert_eq!(again(id), Appended::Queued);
        assert_eq!(due(&c, sink, 2), [id]);
        mark(&c, id, &Mark::Delivered);
    }
    assert_eq!(c.query_row("SELECT count(*) FROM events", [], |row| row.get(0)), Ok(2));
}

#[test]
fn the_frozen_body_is_kept_on_redelivery() {
    let c = outbox();
    let sink = register(&c, "a").unwrap();
    put(&c, "1", "x", &[sink]);
    let other = CloudEvent::new(event("1", "x").attributes().clone(), RawValue::NULL.to_owned());
    mark(&c, "1", &Mark::Delivered);
    append(&Tx::over(&c), &other, &[sink], Repeat::Redeliver, at(0)).unwrap();
    let claims = claim(&c, sink, 1, &HashSet::new(), at(0)).unwrap().claims;
    assert_eq!(claims[0].event.body(), event("1", "x").body());
}

#[test]
fn what_is_taken_is_not_claimed_again() {
    let c = outbox();
    let sink = register(&c, "a").unwrap();
    for id in 0..10 {
        put(&c, &id.to_string(), &format!("s{id}"), &[sink]);
    }
    let first = claim(&c, sink, 4, &HashSet::new(), at(0)).unwrap();
    assert!(first.more);
    let mut taken: HashSet<i64> = first.claims.iter().map(|claim| claim.seq).collect();
    let second = claim(&c, sink, 100, &taken, at(0)).unwrap();
    assert_eq!((second.claims.len(), second.more), (6, false));
    taken.extend(second.claims.iter().map(|claim| claim.seq));
    assert!(claim(&c, sink, 100, &taken, at(0)).unwrap().claims.is_empty());
}

#[test]
fn settling_what_someone_else_settled_changes_nothing() {
    let c = outbox();
    let sink = register(&c, "a").unwrap();
    put(&c, "1", "x", &[sink]);
    put(&c, "2", "x", &[sink]);
    assert_eq!(discard(&Tx::over(&c), &only(1), "not wanted", at(1)).unwrap().count, 1);
    for late in [Mark::Delivered, dead("400"), retry_at(9)] {
        mark(&c, "1", &late);
        let entry = list(&c, &only(1)).unwrap().remove(0);
        assert_eq!((entry.state, entry.reason.as_deref()), (State::Discarded, Some("not wanted")));
    }
    assert_eq!(due(&c, sink, 1), ["2"]);
}

#[test]
fn a_body_that_is_no_event_is_told_apart() {
    let c = outbox();
    let sink = register(&c, "a").unwrap();
    put(&c, "1", "x", &[sink]);
    put(&c, "2", "y", &[sink]);
    c.execute("UPDATE events SET body = x'00' WHERE id = '1'", []).unwrap();
    let due = claim(&c, sink, 10, &HashSet::new(), at(0)).unwrap();
    assert_eq!((due.claims.len(), due.unreadable), (1, vec![1]));
}

#[test]
fn the_reason_of_a_pause_is_kept_until_it_is_over() {
    let c = outbox();
    let sink = register(&c, "a").unwrap();
    assert_eq!(paused(&c, sink).unwrap(), None);
    pause(&c, sink, "410", at(0)).unwrap();
    pause(&c, sink, "later", at(1)).unwrap();
    assert_eq!(paused(&c, sink).unwrap().as_deref(), Some("410"), "the first reason stays");
    resume(&Tx::over(&c), sink).unwrap();
    assert_eq!(paused(&c, sink).unwrap(), None);
}

#[tokio::test]
async fn resuming_wakes_whoever_delivers_and_pausing_does_not() {
    let folder = tempfile::TempDir::new().unwrap();
    let store = Store::open(&folder.path().join("store.db"), &[MODULE], Options::default()).unwrap();
    let sink = store.write(|tx| register(tx, "a")).await.unwrap();
    let wake = store.wake();
    store.write(move |tx| pause(tx, sink, "410", at(0))).await.unwrap();
    assert!(!wake.has_changed().unwrap());
    store.write(move |tx| resume(tx, sink)).await.unwrap();
    assert!(wake.has_changed().unwrap());
}

#[test]
fn stats_count_what_waits() {
    let c = outbox();
    let sink = register(&c, "a").unwrap();
    assert_eq!(stats(&c, sink).unwrap(), Stats::default());
    for id in ["1", "2", "3"] {
        put(&c, id, "x", &[sink]);
    }
    mark(&c, "1", &dead("no"));
    pause(&c, sink, "410", at(0)).unwrap();
    let expected = Stats { pending: 2, oldest: Some(at(0)), dead: 1, paused: Some("410".into()) };
    assert_eq!(stats(&c, sink).unwrap(), expected);
}

#[test]
fn tools_list_page_and_show() {
    let c = outbox();
    let (a, b) = (register(&c, "a").unwrap(), register(&c, "b").unwrap());
    for id in ["1", "2", "3"] {
        put(&c, id, if id == "3" { "y" } else { "x" }, &[a, b]);
    }
    mark(&c, "1", &dead("422"));
    let ids = |filter: Filter| list(&c, &filter).unwrap().iter().map(|entry| entry.id.clone()).collect::<String>();
    let all = || Filter { limit: 100, ..Filter::default() };
    assert_eq!(ids(all()), "112233");
    assert_eq!(ids(Filter { sink: Some("b".into()), ..all() }), "123");
    assert_eq!(ids(Filter { subject: Some("y".into()), ..all() }), "33");
    assert_eq!(ids(Filter { state: Some(State::Dead), ..all() }), "1");
    assert_eq!(ids(Filter { after: Some(2), limit: 3, ..all() }), "223");
    let (entry, body) = show(&c, 1).unwrap().unwrap();
    assert_eq!((entry.sink.as_str(), entry.source.as_str(), entry.attempts), ("a", "test", 1));
    assert_eq!(&body, event("1", "x").body());
    assert!(show(&c, 99).unwrap().is_none());
}

#[test]
fn a_retried_dead_letter_goes_behind_what_waits() {
    let c = outbox();
    let sink = register(&c, "a").unwrap();
    for id in ["1", "2", "3"] {
        put(&c, id, "x", &[sink]);
    }
    mark(&c, "1", &dead("422"));
    let dead_ones = Filter { state: Some(State::Dead), limit: 10, ..Filter::default() };
    assert_eq!(retry(&Tx::over(&c), &dead_ones, at(2)).unwrap().count, 1);
    assert_eq!(retry(&Tx::over(&c), &dead_ones, at(2)).unwrap().count, 0);
    for expected in ["2", "3", "1"] {
        assert_eq!(due(&c, sink, 3), [expected]);
        mark(&c, expected, &Mark::Delivered);
    }
    let everything = Filter { limit: 10, ..Filter::default() };
    assert_eq!(retry(&Tx::over(&c), &everything, at(2)).unwrap().count, 0, "what is delivered stays delivered");
    assert_eq!(discard(&Tx::over(&c), &everything, "", at(2)).unwrap().count, 0);
}

#[test]
fn retrying_a_pending_delivery_makes_it_due() {
    let c = outbox();
    let sink = register(&c, "a").unwrap();
    put(&c, "1", "x", &[sink]);
    mark(&c, "1", &retry_at(1_000));
    assert_eq!(retry(&Tx::over(&c), &only(1), at(2)).unwrap().count, 1);
    assert_eq!(due(&c, sink, 2), ["1"]);
}

#[test]
fn a_discarded_dead_letter_is_pruned_and_a_dead_one_is_not() {
    let c = outbox();
    let (a, b) = (register(&c, "a").unwrap(), register(&c, "b").unwrap());
    put(&c, "1", "x", &[a]);
    put(&c, "2", "x", &[a]);
    put(&c, "3", "y", &[a, b]);
    for id in ["1", "2", "3"] {
        mark(&c, id, &if id == "3" { Mark::Delivered } else { dead("422") });
    }
    discard(&Tx::over(&c), &only(2), "looked at", at(5)).unwrap();
    assert_eq!(prune(&c, at(1), 10).unwrap(), 0, "not old enough");
    assert_eq!(prune(&c, at(100), 1).unwrap(), 1);
    assert_eq!(prune(&c, at(100), 10).unwrap(), 1);
    let left: Vec<_> = list(&c, &Filter { limit: 10, ..Filter::default() }).unwrap();
    assert_eq!(
        left.iter().map(|entry| (entry.id.as_str(), entry.state)).collect::<Vec<_>>(),
        [("1", State::Dead), ("3", State::Pending)]
    );
    assert_eq!(c.query_row("SELECT count(*) FROM events", [], |row| row.get(0)), Ok(2));
}

/// Tens of steps of SQLite's machine that one event of a drain takes: settling, promoting and finding the next that is
/// due.
fn steps_per_event(events: usize, subjects: usize) -> u64 {
    let mut c = outbox();
    let sink = register(&c, "a").unwrap();
    let all = c.unchecked_transaction().unwrap();
    for id in 0..events {
        put(&c, &id.to_string(), &format!("s{}", id % subjects), &[sink]);
    }
    all.commit().unwrap();
    let steps = count_steps(&mut c);
    let mut delivered = BTreeMap::<String, Vec<usize>>::new();
    let mut count = 0;
    while count < events {
        let due = claim(&c, sink, 16, &HashSet::new(), at(1)).unwrap();
        assert!(!due.claims.is_empty());
        assert!(steps.load(Ordering::Relaxed) < 10_000_000, "far beyond anything linear");
        for claim in due.claims {
            settle(&c, claim.seq, &Mark::Delivered, at(1)).unwrap();
            let subject = claim.event.attributes().subject.clone().unwrap();
            delivered.entry(subject).or_default().push(claim.event.id().parse().unwrap());
            count += 1;
        }
    }
    assert!(delivered.values().all(|ids| ids.is_sorted()));
    steps.load(Ordering::Relaxed) / u64::try_from(events).unwrap()
}

#[test]
fn draining_50_000_costs_as_much_per_event_as_draining_500() {
    for (events, per_subject) in [(50_000, 10), (10_000, 10_000), (10_000, 1)] {
        let cost = |events: usize| steps_per_event(events, (events / per_subject).max(1));
        let (few, many) = (cost(500), cost(events));
        assert!(many <= few + few / 4, "{few} became {many} for {events}");
    }
}

/// Counts what SQLite does from here on, in units that grow with the rows that it looks at.
fn count_steps(connection: &mut Connection) -> Arc<AtomicU64> {
    let steps = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&steps);
    let count = move || {
        counter.fetch_add(1, Ordering::Relaxed);
        false
    };
    connection.progress_handler(10, Some(count)).unwrap();
    steps
}

/// Every other one of so many was delivered long ago, and the others wait.
fn half_delivered(events: usize) -> Connection {
    let c = outbox();
    let sink = register(&c, "a").unwrap();
    let all = c.unchecked_transaction().unwrap();
    for id in 0..events {
        put(&all, &id.to_string(), "", &[sink]);
    }
    all.execute("UPDATE deliveries SET state = 'delivered', head = 0 WHERE seq % 2 = 0", []).unwrap();
    all.commit().unwrap();
    c
}

#[test]
fn exporting_10_000_costs_as_much_per_event_as_exporting_500() {
    let cost = |count: usize| {
        let mut c = half_delivered(count);
        let steps = count_steps(&mut c);
        let mut filter = Filter { limit: 50, ..Filter::default() };
        let mut exported = 0;
        while let Some((last, _)) = events(&c, &filter).unwrap().last() {
            filter.after = Some(*last);
            exported += 1;
        }
        assert_eq!(exported, count / 100);
        steps.load(Ordering::Relaxed) / u64::try_from(count).unwrap()
    };
    let (few, many) = (cost(500), cost(10_000));
    assert!(many <= few + few / 4, "{few} became {many}");
}

#[test]
fn discarding_10_000_in_steps_costs_as_much_per_delivery_as_discarding_500() {
    let cost = |count: usize| {
        let mut c = half_delivered(count);
        let steps = count_steps(&mut c);
        let mut filter = Filter { state: Some(State::Pending), limit: 50, ..Filter::default() };
        let mut discarded = 0;
        loop {
            let changed = discard(&Tx::over(&c), &filter, "gone", at(1)).unwrap();
            assert!(changed.count <= 50);
            discarded += changed.count;
            let Some(last) = changed.last else { break };
            filter.after = Some(last);
        }
        assert_eq!(discarded, count / 2);
        steps.load(Ordering::Relaxed) / u64::try_from(count).unwrap()
    };
    let (few, many) = (cost(500), cost(10_000));
    assert!(many <= few + few / 4, "{few} became {many}");
}

#[test]
fn what_is_refused_again_while_many_are_retried_is_not_retried_without_end() {
    let c = outbox();
    let sink = register(&c, "a").unwrap();
    for id in ["1", "2", "3"] {
        put(&c, id, "", &[sink]);
        mark(&c, id, &dead("422"));
    }
    let until = Some(last(&c).unwrap());
    let mut filter = Filter { state: Some(State::Dead), until, limit: 2, ..Filter::default() };
    for expected in [2, 1, 0] {
        let changed = retry(&Tx::over(&c), &filter, at(2)).unwrap();
        assert_eq!(changed.count, expected);
        // The far side is quick to refuse them again.
        for claim in claim(&c, sink, 10, &HashSet::new(), at(2)).unwrap().claims {
            settle(&c, claim.seq, &dead("422"), at(2)).unwrap();
        }
        filter.after = changed.last;
    }
}

#[derive(Debug, Clone)]
enum Step {
    Append { id: u8, subject: u8, redeliver: bool },
    Settle { nth: usize, how: u8 },
    Retry { nth: usize },
    Discard { nth: usize },
    Prune,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..40, 0u8..4, any::<bool>()).prop_map(|(id, subject, redeliver)| Step::Append { id, subject, redeliver }),
        4 => (0usize..50, 0u8..4).prop_map(|(nth, how)| Step::Settle { nth, how }),
        1 => (0usize..50).prop_map(|nth| Step::Retry { nth }),
        1 => (0usize..50).prop_map(|nth| Step::Discard { nth }),
        1 => Just(Step::Prune),
    ]
}

#[test]
fn an_export_has_each_event_once_and_those_that_may_still_be_wanted() {
    let c = outbox();
    let sinks = [register(&c, "a").unwrap(), register(&c, "b").unwrap()];
    for id in ["1", "2", "3"] {
        put(&c, id, "", &sinks);
    }
    let seqs = |id: &str| {
        let entries = list(&c, &Filter { limit: 10, ..Filter::default() }).unwrap();
        entries.into_iter().filter(|entry| entry.id == id).map(|entry| entry.seq).collect::<Vec<_>>()
    };
    // The second is dead for one sink and delivered to the other, the third delivered to both.
    settle(&c, seqs("2")[0], &dead("no"), at(1)).unwrap();
    for seq in [seqs("2")[1], seqs("3")[0], seqs("3")[1]] {
        settle(&c, seq, &Mark::Delivered, at(1)).unwrap();
    }
    let exported = |filter: Filter| -> Vec<String> {
        let events = events(&c, &Filter { limit: 10, ..filter }).unwrap();
        events.into_iter().map(|(_, body)| CloudEvent::from_structured(&body).unwrap().id().to_owned()).collect()
    };
    assert_eq!(exported(Filter::default()), ["1", "2"]);
    assert_eq!(exported(Filter { sink: Some("b".into()), ..Filter::default() }), ["1"]);
    assert_eq!(exported(Filter { state: Some(State::Delivered), ..Filter::default() }), ["2", "3"]);
    assert_eq!(exported(only(seqs("3")[0])), ["3"], "asked for by its number");
    let first = events(&c, &Filter { limit: 1, ..Filter::default() }).unwrap().remove(0);
    assert_eq!(exported(Filter { after: Some(first.0), ..Filter::default() }), ["2"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn each_queue_has_exactly_its_first_as_head(steps in proptest::collection::vec(step(), 1..80)) {
        let c = outbox();
        let sinks = [register(&c, "a").unwrap(), register(&c, "b").unwrap()];
        for (index, step) in steps.into_iter().enumerate() {
            let now = at(i64::try_from(index).unwrap());
            let rows = list(&c, &Filter { limit: 1_000, ..Filter::default() }).unwrap();
            let nth = |nth: usize| rows.get(nth % rows.len().max(1)).map(|entry| entry.seq);
            match step {
                Step::Append { id, subject, redeliver } => {
                    let repeat = if redeliver { Repeat::Redeliver } else { Repeat::Ignore };
                    let subject = if subject == 0 { String::new() } else { format!("s{subject}") };
                    append(&Tx::over(&c), &event(&id.to_string(), &subject), &sinks, repeat, now).unwrap();
                }
                Step::Settle { nth: n, how } => if let Some(seq) = nth(n) {
                    let marks = [Mark::Delivered, dead("x"), retry_at(99), Mark::Postpone { at: at(50), reason: "y".into() }];
                    settle(&c, seq, &marks[usize::from(how)], now).unwrap();
                },
                Step::Retry { nth: n } => if let Some(seq) = nth(n) {
                    retry(&Tx::over(&c), &only(seq), now).unwrap();
                },
                Step::Discard { nth: n } => if let Some(seq) = nth(n) {
                    discard(&Tx::over(&c), &only(seq), "z", now).unwrap();
                },
                Step::Prune => { prune(&c, at(i64::try_from(index).unwrap() - 10), 5).unwrap(); }
            }
            let mut heads = BTreeSet::new();
            let mut firsts = BTreeMap::new();
            let mut query = c.prepare("SELECT seq, sink, subject, state, head FROM deliveries ORDER BY seq").unwrap();
            let mut rows = query.query([]).unwrap();
            while let Some(row) = rows.next().unwrap() {
                let (seq, sink, subject): (i64, i64, String) = (row.get(0).unwrap(), row.get(1).unwrap(), row.get(2).unwrap());
                let (state, head): (State, bool) = (row.get(3).unwrap(), row.get(4).unwrap());
                if head { heads.insert(seq); }
                if state == State::Pending {
                    // Without a subject everything is a head.
                    let queue = if subject.is_empty() { seq.to_string() } else { subject };
                    firsts.entry((sink, queue)).or_insert(seq);
                }
            }
            prop_assert_eq!(heads, firsts.into_values().collect::<BTreeSet<_>>());
        }
    }
}
