use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Stdio;
use std::sync::atomic::Ordering;

use ::http::StatusCode;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::outbox::Mark;
use crate::retry::{Backoff, Verdict};
use crate::testing::{DEADLINE, Receiver, event, eventually, log_of_this_thread};

fn subscriber(name: &str, receiver: &Receiver) -> Subscriber {
    Subscriber { name: name.into(), url: receiver.url() }
}

fn config(folder: &TempDir, subscribers: Vec<Subscriber>) -> Config {
    let mut config = Config::new(folder.path().join("broker.db"), subscribers);
    let fast = Backoff { initial: Duration::from_millis(10), max: Duration::from_millis(50), ..Backoff::default() };
    config.worker.backoff = fast;
    config.worker.circuit.open = fast;
    config.worker.poll = Duration::from_hours(1);
    config
}

struct Running {
    broker: Embedded,
    token: CancellationToken,
    tasks: Vec<JoinHandle<Result<(), store::Error>>>,
}

impl Running {
    async fn start(config: Config) -> Self {
        let (broker, tasks) = Embedded::open(config, &Metrics::default(), &Health::new()).await.unwrap();
        Self::run(broker, tasks)
    }

    #[expect(clippy::disallowed_methods, reason = "a test's tasks end with the test")]
    fn run(broker: Embedded, tasks: Tasks) -> Self {
        let token = CancellationToken::new();
        let mut running: Vec<_> =
            tasks.workers.into_iter().map(|worker| tokio::spawn(worker.run(token.clone()))).collect();
        running.push(tokio::spawn(tasks.retention.run(token.clone())));
        Self { broker, token, tasks: running }
    }

    async fn publish(&self, ids: impl IntoIterator<Item = usize>) {
        let events: Vec<_> = ids.into_iter().map(|id| event(&id.to_string(), &format!("s{}", id % 10))).collect();
        let outcomes = self.broker.publish_all(&events).await;
        assert!(outcomes.len() == events.len() && outcomes.iter().all(Result::is_ok));
    }

    async fn stop(self) {
        self.token.cancel();
        for task in self.tasks {
            task.await.unwrap().unwrap();
        }
        self.broker.store().close().await;
    }
}

#[test]
fn subscribers_are_read_from_a_list() {
    let list = Subscriber::parse_list(" dns=http://localhost:9000/events?a=b , vpc = https://u:p@vpc/ ,").unwrap();
    let shown = format!("{list:?}");
    assert!(shown.contains("https://vpc") && !shown.contains("u:p") && !shown.contains("events"), "{shown}");
    let shown: Vec<_> = list.iter().map(|s| format!("{} {}", s.name, s.url)).collect();
    assert_eq!(shown, ["dns http://localhost:9000/events?a=b", "vpc https://u:p@vpc/"]);
    for (list, expected) in [
        ("", "there is none"),
        (" , ", "there is none"),
        ("http://localhost", "subscriber 1: it has no ="),
        ("a=http://h,b=nowhere", "subscriber 2: its URL cannot be read"),
        ("a=ftp://h", "subscriber 1: its URL is neither http nor https"),
        ("=http://h", "subscriber 1: its name is not made of"),
        ("a b=http://h", "subscriber 1: its name is not made of"),
        ("a=http://h,a=http://u:p4ss@g", "subscriber 2: its name appears twice"),
    ] {
        let error = Subscriber::parse_list(list).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("p4ss"), "{list}: {error}");
    }
}

#[tokio::test]
async fn every_subscriber_gets_every_event_in_order_per_subject() {
    let (a, b) = (Receiver::start(|_| async {}).await, Receiver::start(|_| async {}).await);
    let folder = TempDir::new().unwrap();
    let running = Running::start(config(&folder, vec![subscriber("a", &a), subscriber("b", &b)])).await;
    assert_eq!(running.broker.kind(), "http");
    running.broker.check().await.unwrap();
    assert!(running.broker.publish_all(&[]).await.is_empty());
    running.publish(0..2_500).await;
    eventually("both have all", async || a.seen().len() == 2_500 && b.seen().len() == 2_500).await;
    running.stop().await;
    for receiver in [a, b] {
        let mut subjects = BTreeMap::<String, Vec<usize>>::new();
        for seen in receiver.seen() {
            assert_eq!(&seen.body, event(&seen.id(), &seen.subject()).body());
            subjects.entry(seen.subject()).or_default().push(seen.id().parse().unwrap());
        }
        assert!(subjects.values().all(|ids| ids.len() == 250 && ids.is_sorted()));
    }
}

#[tokio::test]
async fn ok_means_stored_while_a_subscriber_is_down() {
    let (down, up) = Receiver::switched(StatusCode::BAD_GATEWAY).await;
    let other = Receiver::start(|_| async {}).await;
    let folder = TempDir::new().unwrap();
    let subscribers = vec![subscriber("down", &down), subscriber("other", &other)];
    let running = Running::start(config(&folder, subscribers.clone())).await;
    running.publish(0..100).await;
    eventually("the other has all", async || other.seen().len() == 100).await;
    running.stop().await;
    let tried = down.seen().len();

    up.store(true, Ordering::SeqCst);
    let running = Running::start(config(&folder, subscribers)).await;
    eventually("what was down has all", async || down.seen().len() == tried + 100).await;
    running.stop().await;
    assert_eq!(other.seen().len(), 100, "and the other gets none again");
}

#[tokio::test]
async fn a_queue_does_not_grow_with_events_that_supersede_each_other() {
    let (receiver, up) = Receiver::switched(StatusCode::BAD_GATEWAY).await;
    let folder = TempDir::new().unwrap();
    let running = Running::start(config(&folder, vec![subscriber("a", &receiver)])).await;
    for round in 0..20 {
        let about = |resource: usize| event(&format!("{round}-{resource}"), "").superseding(resource.to_string());
        let events: Vec<_> = (0..10).map(about).collect();
        assert!(running.broker.publish_all(&events).await.iter().all(Result::is_ok));
    }
    let id = running.broker.sinks[0];
    let pending = async || running.broker.store().read(move |c| outbox::stats(c, id)).await.unwrap().pending;
    assert!((10..=20).contains(&pending().await), "{} wait for 10 resources", pending().await);
    let tried = receiver.count();
    up.store(true, Ordering::SeqCst);
    eventually("nothing waits", async || pending().await == 0).await;
    let came: BTreeSet<_> = receiver.ids().split_off(tried).into_iter().collect();
    assert!((0..10).all(|resource| came.contains(&format!("19-{resource}"))), "{came:?}");
    running.stop().await;
}

/// A window may wait for the commits before it, and what becomes due meanwhile may be under way.
#[tokio::test]
async fn what_became_due_while_a_window_waited_for_its_turn_is_not_superseded() {
    let receiver = Receiver::start(|_| async {}).await;
    let folder = TempDir::new().unwrap();
    let config = config(&folder, vec![subscriber("a", &receiver)]);
    let (broker, _not_run) = Embedded::open(config, &Metrics::default(), &Health::new()).await.unwrap();
    broker.publish_all(&[event("1", "").superseding("x")]).await.remove(0).unwrap();
    let due = clock::now() + jiff::SignedDuration::from_millis(300);
    let put_off =
        move |tx: &store::Tx<'_>| outbox::settle(tx, 1, &Mark::Retry { at: due, reason: "down".into() }, clock::now());
    broker.store().write(put_off).await.unwrap();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let holding = broker.store().write(move |_| {
        held.recv_timeout(DEADLINE).unwrap();
        Ok(())
    });
    let window = [event("2", "").superseding("x")];
    let publishing = broker.publish_all(&window);
    let release = async {
        eventually("the first is due", async || clock::now() > due).await;
        release.send(()).unwrap();
    };
    let (held, published, ()) = tokio::join!(biased; holding, publishing, release);
    held.unwrap();
    published.into_iter().for_each(Result::unwrap);
    let all = Filter { limit: 10, ..Filter::default() };
    let entries = broker.store().read(move |c| outbox::list(c, &all)).await.unwrap();
    assert_eq!(entries.iter().map(|entry| entry.state).collect::<Vec<_>>(), [State::Pending; 2]);
}

#[tokio::test]
async fn what_is_published_again_is_delivered_again_once_it_was_delivered() {
    let receiver = Receiver::start(|_| async {}).await;
    let folder = TempDir::new().unwrap();
    let (broker, tasks) =
        Embedded::open(config(&folder, vec![subscriber("a", &receiver)]), &Metrics::default(), &Health::new())
            .await
            .unwrap();
    for _ in 0..3 {
        broker.publish_all(&[event("1", "x")]).await.remove(0).unwrap();
    }
    let running = Running::run(broker, tasks);
    let pending = async || {
        let filter = Filter { state: Some(State::Pending), limit: 10, ..Filter::default() };
        running.broker.store().read(move |c| outbox::list(c, &filter)).await.unwrap().len()
    };
    eventually("it is delivered", async || pending().await == 0).await;
    assert_eq!(receiver.ids(), ["1"]);
    running.broker.publish_all(&[event("1", "x")]).await.remove(0).unwrap();
    eventually("it is delivered again", async || receiver.ids() == ["1", "1"]).await;
    running.stop().await;
}

#[tokio::test]
async fn subscribers_come_go_and_move_over_restarts() {
    let down = Receiver::start(|_| async { StatusCode::BAD_GATEWAY }).await;
    let folder = TempDir::new().unwrap();
    let running = Running::start(config(&folder, vec![subscriber("goes", &down), subscriber("moves", &down)])).await;
    running.publish(0..1_200).await;
    running.stop().await;

    log_of_this_thread();
    let (moved, new) = (Receiver::start(|_| async {}).await, Receiver::start(|_| async {}).await);
    let subscribers = vec![subscriber("moves", &moved), subscriber("comes", &new)];
    let running = Running::start(config(&folder, subscribers)).await;
    let log = log_of_this_thread();
    assert!(log.contains("its queue is discarded") && log.contains(r#"subscriber="goes" dropped=1200"#), "{log}");
    eventually("the queue moved", async || moved.seen().len() == 1_200).await;
    running.publish(5_000..5_001).await;
    eventually("both get what follows", async || moved.seen().len() == 1_201 && new.ids() == ["5000"]).await;
    let filter = Filter { sink: Some("goes".into()), limit: 1, ..Filter::default() };
    let gone = running.broker.store().read(move |c| outbox::list(c, &filter)).await.unwrap().remove(0);
    assert_eq!(
        (gone.state, gone.reason.as_deref()),
        (State::Discarded, Some("its subscriber is no longer configured"))
    );
    running.stop().await;
}

#[tokio::test]
async fn a_subscriber_that_was_paused_begins_anew_after_it_was_gone() {
    let gone = Receiver::start(|_| async { StatusCode::GONE }).await;
    let back = Receiver::start(|_| async {}).await;
    let folder = TempDir::new().unwrap();
    let paused = async |running: &Running| {
        let look = |c: &rusqlite::Connection| outbox::paused(c, outbox::find(c, "a")?.expect("known"));
        running.broker.store().read(look).await.unwrap()
    };
    let running = Running::start(config(&folder, vec![subscriber("a", &gone)])).await;
    running.publish(0..3).await;
    eventually("it pauses", async || paused(&running).await.is_some()).await;
    running.stop().await;

    // Another address alone does not resume it: its queue is kept for whoever decides.
    let running = Running::start(config(&folder, vec![subscriber("a", &back)])).await;
    assert!(paused(&running).await.is_some());
    running.stop().await;
    Running::start(config(&folder, vec![subscriber("b", &back)])).await.stop().await;
    let running = Running::start(config(&folder, vec![subscriber("a", &back)])).await;
    running.publish(7..8).await;
    eventually("what follows arrives", async || back.ids() == ["7"]).await;
    running.stop().await;
}

#[tokio::test]
async fn a_full_volume_refuses_events_and_goes_on_delivering() {
    let receiver = Receiver::start(|_| async {}).await;
    let folder = TempDir::new().unwrap();
    let config = config(&folder, vec![subscriber("a", &receiver)]);
    let (broker, _not_run) = Embedded::open(config.clone(), &Metrics::default(), &Health::new()).await.unwrap();
    broker.publish_all(&[event("1", "x")]).await.remove(0).unwrap();
    broker.store().close().await;
    let running = Running::start(Config { floor: u64::MAX, ..config }).await;
    let error = running.broker.publish_all(&[event("2", "x")]).await.remove(0).unwrap_err();
    assert_eq!((error.kind(), error.verdict()), ("store", Verdict::Retry { after: None }));
    assert!(watchfire_runtime::chain(&error).contains("bytes are free on the store's volume"));
    assert!(running.broker.check().await.is_err());
    eventually("the first is delivered", async || receiver.ids() == ["1"]).await;
    running.stop().await;
}

/// What is stored in a file that nobody will open again is not stored.
#[tokio::test]
async fn a_store_file_that_is_deleted_or_replaced_refuses_events_and_says_what_to_do() {
    let receiver = Receiver::start(|_| async {}).await;
    let folder = TempDir::new().unwrap();
    let running = Running::start(config(&folder, vec![subscriber("a", &receiver)])).await;
    running.publish(0..1).await;
    let (path, aside) = (running.broker.store().path().to_owned(), folder.path().join("aside.db"));
    fs::rename(&path, &aside).unwrap();
    for replaced in [false, true] {
        if replaced {
            fs::copy(&aside, &path).unwrap();
        }
        let published = running.broker.publish_all(&[event("9", "x")]).await.remove(0);
        for error in [published.unwrap_err(), running.broker.check().await.unwrap_err()] {
            let told = watchfire_runtime::chain(&error);
            assert!(told.contains("its file was deleted or replaced") && error.hint().contains("restart"), "{told}");
        }
    }
    fs::rename(&aside, &path).unwrap();
    running.broker.check().await.unwrap();
    running.publish(1..2).await;
    running.stop().await;
}

#[tokio::test]
async fn what_was_delivered_is_removed_after_a_while() {
    let receiver = Receiver::start(|_| async {}).await;
    let folder = TempDir::new().unwrap();
    let running = Running::start(config(&folder, vec![subscriber("a", &receiver)])).await;
    running.publish(0..1_200).await;
    eventually("all are delivered", async || receiver.seen().len() == 1_200).await;
    let store = running.broker.store().clone();
    let cleaning = Retention::new(store.clone(), Duration::ZERO, Duration::from_millis(10));
    let token = CancellationToken::new();
    let stop = async {
        eventually("all are gone", async || {
            store
                .read(|c| Ok(c.query_row("SELECT count(*) FROM events", [], |row| row.get::<_, i64>(0))?))
                .await
                .unwrap()
                == 0
        })
        .await;
        token.cancel();
    };
    let (cleaned, ()) = tokio::join!(cleaning.run(token.clone()), stop);
    cleaned.unwrap();
    running.stop().await;
}

#[tokio::test]
async fn a_broker_without_subscribers_does_not_start() {
    let folder = TempDir::new().unwrap();
    let error = Embedded::open(config(&folder, Vec::new()), &Metrics::default(), &Health::new()).await.err().unwrap();
    assert!(matches!(error, Error::NoSubscribers));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

const CHILD: &str = "WATCHFIRE_TEST_BROKER_FOLDER";

/// The other half of the next test: publishes until it is killed, and prints each id once it is stored.
#[tokio::test]
#[ignore = "runs as a child of killing_the_process_loses_nothing_that_was_confirmed"]
async fn child_that_publishes_until_it_is_killed() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let nobody = Subscriber { name: "a".into(), url: "http://127.0.0.1:9/".parse().unwrap() };
    let config = Config::new(PathBuf::from(path).join("broker.db"), vec![nobody]);
    let (broker, _not_run) = Embedded::open(config, &Metrics::default(), &Health::new()).await.unwrap();
    for id in 0.. {
        broker.publish_all(&[event(&id.to_string(), "x")]).await.remove(0).unwrap();
        println!("stored {id}");
    }
}

#[tokio::test]
async fn killing_the_process_loses_nothing_that_was_confirmed() {
    let folder = TempDir::new().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "embedded::tests::child_that_publishes_until_it_is_killed", "--ignored", "--nocapture"])
        .env(CHILD, folder.path())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut stored = BTreeSet::new();
    let published = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if let Some((_, id)) = line.split_once("stored ") {
                stored.insert(id.to_owned());
            }
            if stored.len() == 300 {
                child.start_kill().unwrap();
            }
        }
        child.wait().await.unwrap();
    };
    tokio::time::timeout(DEADLINE, published).await.expect("300 events in time");
    assert!(stored.len() >= 300);
    let receiver = Receiver::start(|_| async {}).await;
    let running = Running::start(config(&folder, vec![subscriber("a", &receiver)])).await;
    eventually("all are delivered", async || receiver.seen().len() >= stored.len()).await;
    running.stop().await;
    let seen = receiver.seen();
    assert!(seen.iter().all(|seen| seen.body == *event(&seen.id(), "x").body()));
    let ids: Vec<usize> = seen.iter().map(|seen| seen.id().parse().unwrap()).collect();
    assert!(ids.is_sorted(), "in the order in which they were published");
    let ids: BTreeSet<_> = seen.iter().map(crate::testing::Seen::id).collect();
    assert!(stored.is_subset(&ids), "a confirmed event is missing");
}
