//! How the process ends, and that nothing is lost when it does.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use watchfire_simulator::{Dialect, Fault, FleetState, Scope, Simulator, Times};
use watchfire_testkit::{Answer, Receiver, eventually};

use super::{api, events};
use crate::support::{Api, DEADLINE, Process, Setup, get};

/// Enough for 30 pages, each of which takes a while.
const FLEET: usize = 3000;

#[tokio::test]
async fn a_stop_in_mid_cycle_is_orderly_and_the_next_start_makes_up_for_it_under_the_same_ids() {
    let fleet = Simulator::new(Dialect::Hyperfleet);
    fleet.seed("clusters", u32::try_from(FLEET).unwrap(), FleetState::Due).unwrap();
    fleet.faults().arm(Scope::Lists, Fault::Delay(Duration::from_millis(150)), Times::Always);
    let (api, receiver) = (Api::serve(fleet).await, Receiver::start().await);
    let setup = Setup::new(&api.url, "", receiver.url());

    let mut sentinel = setup.start().await;
    receiver.wait_for(200).await;
    sentinel.process.signal(Signal::TERM);
    let signalled = Instant::now();
    let status = sentinel.process.ended().await;
    let said = sentinel.process.out();
    assert_eq!(status.code(), Some(0), "{}", sentinel.process.err());
    assert!(signalled.elapsed() < Duration::from_secs(20), "within the grace period");
    let published = said.lines().filter(|line| line.contains("event published")).count();
    assert!((200..FLEET).contains(&published), "in mid-cycle: {published}");
    assert!(said.trim_end().ends_with('}') && said.contains("\"stopped\""), "the last line is whole: {said}");
    assert!(events(&receiver.requests()).len() < FLEET);

    api.fleet.faults().clear();
    let sentinel = setup.start().await;
    let all = async || (events(&receiver.requests()).len() == FLEET).then_some(());
    eventually(DEADLINE, "an event for every resource", all).await;
    sentinel.stop().await;
    let mut again = 0;
    for (resource, ids) in events(&receiver.requests()) {
        again += usize::from(ids.len() > 1);
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 1, "{resource} has one cause and one id: {ids:?}");
    }
    assert!(again > 0, "what had gone out before the stop has gone out once more");
}

#[tokio::test]
async fn a_signal_while_the_process_is_put_together_is_an_orderly_stop_too() {
    let (api, receiver) = (api(1).await, Receiver::start().await);
    let setup = Setup::new(&api.url, "", receiver.url());
    let mut process = Process::start(setup.command());
    // The store is opened before the client of the API is made, which takes longest.
    let opening = async || setup.folder.path().join("broker.db.lock").exists().then_some(());
    eventually(DEADLINE, "the store being opened", opening).await;
    process.signal(Signal::TERM);
    assert_eq!(process.ended().await.code(), Some(0), "{}{}", process.out(), process.err());
}

#[tokio::test]
async fn a_second_signal_ends_the_process_at_once() {
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let (api, receiver) = (api(1).await, Receiver::start().await);
        receiver.otherwise(Answer::hang());
        let mut sentinel = Setup::new(&api.url, "", receiver.url()).arg("--grace-period", "5m").start().await;
        receiver.wait_for(1).await;
        sentinel.process.signal(signal);
        let draining = async || {
            let (status, body) = get(&format!("{}/readyz", sentinel.health)).await;
            (status == 503 && body.contains("the process is stopping")).then_some(())
        };
        eventually(DEADLINE, "readiness that says so", draining).await;
        // Sooner it would count as the first one.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let second = Instant::now();
        sentinel.process.signal(signal);
        assert_eq!(sentinel.process.ended().await.code(), Some(status));
        // The delivery in hand has a timeout of ten seconds.
        assert!(second.elapsed() < Duration::from_secs(4), "{:?}", second.elapsed());
    }
}

#[tokio::test]
async fn what_was_stored_before_a_kill_is_delivered_after_it() {
    const COUNT: usize = 40;
    let (full, receiver) = (api(COUNT).await, Receiver::start().await);
    receiver.otherwise(Answer::status(503));
    let setup = Setup::new(&full.url, "poll_interval: 200ms", receiver.url());
    let mut sentinel = setup.start().await;
    let stored = async || {
        let published = sentinel.process.out().lines().filter(|line| line.contains("event published")).count();
        (published == COUNT).then_some(())
    };
    eventually(DEADLINE, "every event stored", stored).await;
    sentinel.process.signal(Signal::KILL);
    assert_eq!(sentinel.process.ended().await.code(), None, "killed");

    // An API that knows none of them: what arrives comes out of the store, and from nowhere else.
    let empty = api(0).await;
    let file = std::fs::read_to_string(&setup.args[1]).unwrap();
    std::fs::write(&setup.args[1], file.replace(&full.url, &empty.url)).unwrap();
    receiver.take();
    receiver.otherwise(Answer::status(200));
    let sentinel = setup.start().await;
    let all = async || (events(&receiver.requests()).len() == COUNT).then_some(());
    eventually(DEADLINE, "everything that was stored", all).await;
    for (resource, ids) in events(&receiver.requests()) {
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 1, "{resource}: {ids:?}");
    }
    sentinel.stop().await;
    for left in ["broker.db-wal", "broker.db-shm"] {
        assert!(!setup.folder.path().join(left).exists(), "an orderly stop closes the store: {left}");
    }
}
