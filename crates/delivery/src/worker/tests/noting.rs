//! What is decided while something else is being noted, or cannot be.

use super::*;

fn failures(setup: &Setup) -> f64 {
    setup.metric(r#"outbox_store_failures_total{sink="a"}"#)
}

fn delivered(setup: &Setup) -> f64 {
    setup.metric(r#"outbox_delivery_attempts_total{sink="a",outcome="delivered"}"#)
}

/// How far the receiver's answers have come.
async fn gated() -> (tokio::sync::watch::Sender<u32>, Receiver) {
    let (open, gate) = tokio::sync::watch::channel(0);
    let receiver = Receiver::start(move |seen| {
        let (last, mut gate) = (seen.id() == "3", gate.clone());
        async move {
            gate.wait_for(|open| *open > u32::from(last)).await.map(drop).unwrap();
            if last { StatusCode::GONE } else { StatusCode::OK }
        }
    });
    (open, receiver.await)
}

#[tokio::test]
async fn a_pause_that_is_decided_while_something_is_noted_is_noted_next() {
    let (open, receiver) = gated().await;
    let setup = Setup::with(many(4, 1)).await;
    let tool = Connection::open(setup.store.path()).unwrap();
    let running = setup.run(&receiver, lanes(4, 1));
    eventually("all are under way", async || receiver.seen().len() == 4).await;
    tool.execute_batch("BEGIN IMMEDIATE").unwrap();
    open.send(1).unwrap();
    eventually("three are taken", async || delivered(&setup) > 2.5).await;
    open.send(2).unwrap();
    eventually("it is told", async || setup.told().contains("status 410")).await;
    tool.execute_batch("COMMIT").unwrap();
    let id = setup.id;
    let paused = async || setup.store.read(move |c| outbox::paused(c, id)).await.unwrap();
    eventually("it is noted", async || paused().await.is_some()).await;
    assert_eq!((setup.count(State::Delivered).await, setup.count(State::Pending).await), (3, 1));
    assert!(setup.told().contains("status 410"), "nothing has resumed it");
    stop(running).await;
}

#[tokio::test]
async fn a_queue_that_can_be_looked_at_and_not_read_is_told_once() {
    log_of_this_thread();
    let receiver = Receiver::start(|_| async {}).await;
    let setup = Setup::with(many(3, 1)).await;
    let tool = Connection::open(setup.store.path()).unwrap();
    tool.execute_batch("ALTER TABLE events RENAME TO elsewhere").unwrap();
    let running = setup.run(&receiver, quick());
    eventually("it is tried again", async || failures(&setup) > 1.5).await;
    let told = setup.told();
    assert!(told.contains("no such table"), "{told}");
    let said = log_of_this_thread();
    assert_eq!(said.matches("cannot be used").count(), 1, "{said}");
    assert!(!said.contains("can be used again"), "{said}");
    tool.execute_batch("ALTER TABLE elsewhere RENAME TO events").unwrap();
    setup.delivered(3).await;
    eventually("it is well again", async || setup.told().is_empty()).await;
    stop(running).await;
}

#[tokio::test]
async fn what_could_not_be_noted_before_the_stop_is_noted_then() {
    let (open, receiver) = gated().await;
    let setup = Setup::with(many(3, 1)).await;
    let tool = Connection::open(setup.store.path()).unwrap();
    let (token, worker) = setup.run(&receiver, lanes(3, 1));
    eventually("all are under way", async || receiver.seen().len() == 3).await;
    tool.execute_batch("BEGIN IMMEDIATE").unwrap();
    open.send(1).unwrap();
    eventually("all are taken", async || delivered(&setup) > 2.5).await;
    token.cancel();
    // It has waited for its turn in vain by then.
    eventually("noting failed", async || failures(&setup) > 0.5).await;
    tool.execute_batch("COMMIT").unwrap();
    end(worker).await.unwrap();
    assert_eq!(setup.count(State::Delivered).await, 3);
}
