use std::collections::BTreeMap;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::StatusCode;
use prometheus_client::registry::Registry;
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use watchfire_runtime::health::Status;

use super::*;
use crate::metrics::Metrics;
use crate::outbox::{Entry, Filter, Repeat, State};
use crate::sink::http::Http;
use crate::store::{Options, Tx};
use crate::testing::{DEADLINE, Receiver, Seen, event, eventually, log_of_this_thread};

mod noting;
mod sinks;

struct Setup {
    folder: TempDir,
    store: Store,
    id: SinkId,
    metrics: Metrics,
    health: Health,
}

type Running = (CancellationToken, JoinHandle<Result<(), store::Error>>);

impl Setup {
    async fn new() -> Self {
        Self::over(TempDir::new().unwrap()).await
    }

    /// With these events queued.
    async fn with(events: impl IntoIterator<Item = CloudEvent>) -> Self {
        let setup = Self::new().await;
        setup.put(events).await;
        setup
    }

    async fn over(folder: TempDir) -> Self {
        let metrics = Metrics::default();
        let options = Options { metrics: metrics.store.clone(), ..Options::default() };
        let store = Store::open(&folder.path().join("store.db"), &[outbox::MODULE], options).unwrap();
        let id = store.write(|tx| outbox::register(tx, "a")).await.unwrap();
        Self { folder, store, id, metrics, health: Health::new() }
    }

    async fn put(&self, events: impl IntoIterator<Item = CloudEvent>) {
        let (id, events) = (self.id, Vec::from_iter(events));
        let append = move |tx: &Tx<'_>| {
            events.iter().try_for_each(|e| outbox::append(tx, e, &[id], Repeat::Ignore, clock::now()).map(drop))
        };
        self.store.write(append).await.unwrap();
    }

    fn worker(&self, receiver: &Receiver, config: Config) -> Worker {
        let sink = Http::new(crate::sink::http::Config::new(receiver.url())).unwrap();
        self.worker_to(Arc::new(sink), config)
    }

    fn worker_to(&self, sink: Arc<dyn EventSink>, config: Config) -> Worker {
        let queue = Queue { name: "a".into(), id: self.id, store: self.store.clone() };
        Worker::new(queue, sink, config, self.metrics.sink("a"), &self.health)
    }

    fn run(&self, receiver: &Receiver, config: Config) -> Running {
        start(self.worker(receiver, config))
    }

    async fn entries(&self) -> Vec<Entry> {
        self.store.read(|c| outbox::list(c, &Filter { limit: 100_000, ..Filter::default() })).await.unwrap()
    }

    async fn entry(&self, id: &str) -> Entry {
        self.entries().await.into_iter().find(|entry| entry.id == id).unwrap()
    }

    async fn count(&self, state: State) -> usize {
        self.entries().await.iter().filter(|entry| entry.state == state).count()
    }

    async fn delivered(&self, count: usize) {
        eventually("everything is delivered", async || self.count(State::Delivered).await == count).await;
    }

    /// Runs until so many are delivered.
    async fn deliver(&self, receiver: &Receiver, config: Config, count: usize) {
        let running = self.run(receiver, config);
        self.delivered(count).await;
        stop(running).await;
    }

    /// What readiness says of the queue; empty when all is well.
    fn told(&self) -> String {
        self.health.readiness().checks["delivery_a"].message.clone()
    }

    fn metric(&self, line: &str) -> f64 {
        let mut registry = Registry::default();
        self.metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let found = text.lines().find_map(|l| l.strip_prefix(line)).unwrap_or_else(|| panic!("{line} in {text}"));
        found.trim().parse().unwrap()
    }
}

#[expect(clippy::disallowed_methods, reason = "a test's worker ends with the test")]
fn start(worker: Worker) -> Running {
    let token = CancellationToken::new();
    (token.clone(), tokio::spawn(worker.run(token)))
}

async fn stop((token, worker): Running) {
    token.cancel();
    end(worker).await.unwrap();
}

async fn end(worker: JoinHandle<Result<(), store::Error>>) -> Result<(), store::Error> {
    tokio::time::timeout(DEADLINE, worker).await.expect("the worker ends in time").unwrap()
}

/// Fast where the defaults are patient, and deaf but for being woken.
fn quick() -> Config {
    let fast = Backoff { initial: Duration::from_millis(10), max: Duration::from_millis(50), ..Backoff::default() };
    Config {
        poll: Duration::from_hours(1),
        backoff: fast,
        circuit: circuit::Config { open: fast, ..circuit::Config::default() },
        ..Config::default()
    }
}

fn lanes(lanes: usize, window: usize) -> Config {
    Config { lanes: NonZeroUsize::new(lanes).unwrap(), window: NonZeroUsize::new(window).unwrap(), ..quick() }
}

fn many(subjects: usize, each: usize) -> Vec<CloudEvent> {
    (0..subjects * each).map(|n| event(&n.to_string(), &format!("s{}", n % subjects))).collect()
}

fn by_subject(seen: &[Seen]) -> BTreeMap<String, Vec<usize>> {
    let mut subjects = BTreeMap::<String, Vec<usize>>::new();
    for seen in seen {
        subjects.entry(seen.subject()).or_default().push(seen.id().parse().unwrap());
    }
    subjects
}

#[tokio::test]
async fn order_is_kept_per_subject_while_subjects_run_side_by_side() {
    let under_way = Arc::new(Mutex::new(Vec::<String>::new()));
    let most = Arc::new(AtomicUsize::new(0));
    let (tracked, peak) = (Arc::clone(&under_way), Arc::clone(&most));
    let receiver = Receiver::start(move |seen| {
        let (tracked, peak) = (Arc::clone(&tracked), Arc::clone(&peak));
        async move {
            let subject = seen.subject();
            {
                let mut now = tracked.lock().unwrap();
                assert!(!now.contains(&subject), "two of {subject} at once");
                now.push(subject.clone());
                peak.fetch_max(now.len(), Ordering::SeqCst);
            }
            // The far side takes its time, a different one for each event.
            tokio::time::sleep(Duration::from_millis(seen.id().parse::<u64>().unwrap() * 7 % 5)).await;
            tracked.lock().unwrap().retain(|other| *other != subject);
        }
    })
    .await;
    let setup = Setup::with(many(20, 15)).await;
    setup.deliver(&receiver, quick(), 300).await;
    let seen = receiver.seen();
    assert_eq!(seen.len(), 300);
    assert!(by_subject(&seen).values().all(|ids| ids.len() == 15 && ids.is_sorted()));
    let most = most.load(Ordering::SeqCst);
    assert!((2..=16).contains(&most), "{most} at once");
}

#[tokio::test]
async fn one_lane_of_one_event_keeps_one_global_order() {
    let receiver = Receiver::start(|_| async {}).await;
    let setup = Setup::with(many(7, 20)).await;
    setup.deliver(&receiver, lanes(1, 1), 140).await;
    // Times have milliseconds, and all of these were queued in one transaction.
    assert_eq!(receiver.ids(), (0..140).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_poison_event_becomes_a_dead_letter_and_blocks_nobody() {
    let receiver = Receiver::refusing("1", StatusCode::UNPROCESSABLE_ENTITY).await;
    let setup = Setup::with(many(3, 4)).await;
    setup.deliver(&receiver, quick(), 11).await;
    let entry = setup.entry("1").await;
    assert_eq!((entry.state, entry.attempts), (State::Dead, 1));
    assert!(entry.reason.unwrap().ends_with("status 422"));
    assert_eq!(receiver.seen().len(), 12);
}

#[tokio::test]
async fn an_event_that_always_fails_holds_up_its_own_subject_only() {
    let receiver = Receiver::refusing("0", StatusCode::INTERNAL_SERVER_ERROR).await;
    let setup = Setup::with(many(5, 10)).await;
    let running = setup.run(&receiver, quick());
    setup.delivered(40).await;
    eventually("it is tried again and again", async || receiver.ids().iter().filter(|id| *id == "0").count() > 10)
        .await;
    setup.put([event("100", "other")]).await;
    setup.delivered(41).await;
    stop(running).await;
    let waiting: Vec<_> = setup.entries().await.into_iter().filter(|entry| entry.state == State::Pending).collect();
    assert!(waiting.iter().all(|entry| entry.subject == "s0"));
}

#[tokio::test]
async fn an_event_that_hangs_holds_up_its_own_lane_only() {
    let receiver = Receiver::start(|seen| async move {
        if seen.id() == "0" {
            std::future::pending::<()>().await;
        }
    })
    .await;
    let setup = Setup::with(many(50, 4)).await;
    let (_token, worker) = setup.run(&receiver, quick());
    setup.delivered(196).await;
    worker.abort();
}

#[tokio::test]
async fn a_retry_sends_the_same_bytes() {
    let tries = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tries);
    let receiver = Receiver::start(move |_| {
        let fails = count.fetch_add(1, Ordering::SeqCst) < 3;
        async move { if fails { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK } }
    })
    .await;
    let setup = Setup::with([event("1", "x")]).await;
    setup.deliver(&receiver, quick(), 1).await;
    assert!(receiver.seen().iter().all(|seen| seen.body == *event("1", "x").body()));
    assert_eq!((receiver.seen().len(), setup.entry("1").await.attempts), (4, 4));
    let attempts =
        |outcome: &str| setup.metric(&format!(r#"outbox_delivery_attempts_total{{sink="a",outcome="{outcome}"}}"#));
    assert_eq!((attempts("delivered"), attempts("retried"), attempts("dead")), (1.0, 3.0, 0.0));
}

#[tokio::test]
async fn retry_after_is_not_undercut() {
    let first = Arc::new(AtomicBool::new(true));
    let receiver = Receiver::start(move |_| {
        let busy = first.swap(false, Ordering::SeqCst);
        async move { (if busy { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK }, [("retry-after", "1")]) }
    })
    .await;
    let setup = Setup::with([event("1", "x")]).await;
    let started = clock::now();
    let running = setup.run(&receiver, quick());
    setup.delivered(1).await;
    assert!(clock::now().duration_since(started).as_millis() >= 1_000);
    stop(running).await;
}

#[tokio::test]
async fn attempts_end_where_configured() {
    let receiver = Receiver::start(|_| async { StatusCode::BAD_GATEWAY }).await;
    let setup = Setup::with([event("1", "x")]).await;
    let running = setup.run(&receiver, Config { max_attempts: NonZeroU32::new(3), ..quick() });
    eventually("it is dead", async || setup.count(State::Dead).await == 1).await;
    stop(running).await;
    let entry = setup.entry("1").await;
    let reason = entry.reason.unwrap();
    assert!(reason.starts_with("gave up after 3 attempts: ") && reason.ends_with("status 502"), "{reason}");
    assert_eq!((receiver.seen().len(), entry.attempts), (3, 3));
}

#[tokio::test]
async fn an_open_circuit_burns_no_attempts_and_recovers_by_itself() {
    let (receiver, up) = Receiver::switched(StatusCode::SERVICE_UNAVAILABLE).await;
    let setup = Setup::with(many(100, 2)).await;
    // Without an attempt to spare: what burns one is dead.
    let config = Config { max_attempts: NonZeroU32::new(2), ..quick() };
    let running = setup.run(&receiver, config);
    eventually("it probed a few times", async || receiver.seen().len() > 16 + 10).await;
    assert_eq!(setup.count(State::Pending).await, 200);
    let attempts: u32 = setup.entries().await.iter().map(|entry| entry.attempts).sum();
    assert!(attempts <= 5, "{attempts} attempts counted");
    let state = |state: &str| setup.metric(&format!(r#"outbox_circuit_state{{sink="a",state="{state}"}}"#)) > 0.5;
    assert!(!state("closed") && (state("open") || state("half_open")));
    up.store(true, Ordering::SeqCst);
    setup.delivered(200).await;
    stop(running).await;
    assert!(state("closed"));
}

#[tokio::test]
async fn a_rotated_token_does_not_burn_the_queue() {
    let (receiver, valid) = Receiver::switched(StatusCode::UNAUTHORIZED).await;
    let setup = Setup::with(many(30, 2)).await;
    let running = setup.run(&receiver, Config { max_attempts: NonZeroU32::new(1), ..lanes(1, 1) });
    eventually("it probes", async || receiver.seen().len() > 8).await;
    assert!(setup.entries().await.iter().all(|entry| (entry.state, entry.attempts) == (State::Pending, 0)));
    valid.store(true, Ordering::SeqCst);
    setup.delivered(60).await;
    stop(running).await;
}

#[tokio::test]
async fn a_refusal_is_permanent_once_another_event_is_taken() {
    let receiver = Receiver::refusing("0", StatusCode::FORBIDDEN).await;
    let setup = Setup::with([event("0", "x"), event("1", "x")]).await;
    let running = setup.run(&receiver, quick());
    eventually("it is refused", async || receiver.seen().len() > 4).await;
    assert_eq!(setup.entry("0").await.state, State::Pending, "nothing proves yet that it is the event");
    let mut others = 0;
    eventually("it is dead", async || {
        others += 1;
        setup.put([event(&format!("o{others}"), "y")]).await;
        setup.entry("0").await.state == State::Dead
    })
    .await;
    eventually("its subject goes on", async || setup.entry("1").await.state == State::Delivered).await;
    stop(running).await;
    let entry = setup.entry("0").await;
    assert!(entry.reason.unwrap().ends_with("status 403"));
    let times = receiver.ids().iter().filter(|id| *id == "0").count();
    assert!(times > 8, "{times} refusals may be those of one replica that does not know the token yet");
}

/// An event was refused with the old token, another one is taken with the new one: that says nothing about the first.
#[tokio::test]
async fn a_refusal_from_before_a_token_was_rotated_is_tried_again_and_not_buried() {
    let (receiver, valid) = Receiver::switched(StatusCode::UNAUTHORIZED).await;
    let setup = Setup::with([event("0", "x")]).await;
    let patient = Backoff { initial: Duration::from_secs(1), ..Backoff::default() };
    let running = setup.run(&receiver, Config { backoff: patient, ..quick() });
    eventually("it is refused", async || setup.entry("0").await.reason.is_some()).await;
    valid.store(true, Ordering::SeqCst);
    setup.put([event("1", "y")]).await;
    setup.delivered(2).await;
    stop(running).await;
}

#[tokio::test]
async fn a_lone_refused_event_waits_longer_each_time() {
    let receiver = Receiver::start(|_| async { StatusCode::FORBIDDEN }).await;
    let setup = Setup::with([event("0", "x")]).await;
    let doubling = Backoff { initial: Duration::from_millis(20), jitter: 0.0, ..Backoff::default() };
    let running = setup.run(&receiver, Config { backoff: doubling, ..quick() });
    let wait = |entry: Entry| entry.next_attempt.duration_since(entry.changed).as_millis();
    for attempt in 1..=5 {
        eventually("it is refused again", async || wait(setup.entry("0").await) >= 10 << attempt).await;
        assert!(receiver.count() >= attempt, "{} requests for {attempt} waits", receiver.count());
    }
    stop(running).await;
    assert_eq!(setup.entry("0").await.attempts, 0);
}

#[tokio::test]
async fn gone_pauses_the_sink_over_restarts_until_it_is_resumed() {
    let (receiver, back) = Receiver::switched(StatusCode::GONE).await;
    let setup = Setup::with(many(10, 1)).await;
    let running = setup.run(&receiver, lanes(1, 1));
    let id = setup.id;
    let paused = async || setup.store.read(move |c| outbox::paused(c, id)).await.unwrap();
    eventually("it pauses", async || paused().await.is_some()).await;
    assert!(paused().await.unwrap().ends_with("status 410"));
    let told = setup.told();
    assert!(told.contains("status 410") && told.contains("watchfire outbox resume a"), "{told}");
    stop(running).await;

    back.store(true, Ordering::SeqCst);
    let running = setup.run(&receiver, lanes(1, 1));
    eventually("it says so", async || setup.metric(r#"outbox_circuit_state{sink="a",state="paused"}"#) > 0.5).await;
    assert_eq!(receiver.seen().len(), 1, "nothing goes out, before or after the restart");
    assert_eq!(setup.count(State::Pending).await, 10);
    setup.store.write(move |tx| outbox::resume(tx, id)).await.unwrap();
    setup.delivered(10).await;
    assert_eq!(setup.told(), "");
    stop(running).await;
    assert!(setup.entries().await.iter().all(|entry| entry.attempts == 1));
}

#[tokio::test]
async fn what_is_under_way_is_finished_and_noted_when_stopping() {
    let (release, gate) = tokio::sync::watch::channel(false);
    let receiver = Receiver::start(move |_| {
        let mut gate = gate.clone();
        async move { gate.wait_for(|open| *open).await.map(drop).unwrap() }
    })
    .await;
    let setup = Setup::with(many(50, 1)).await;
    let (token, worker) = setup.run(&receiver, lanes(4, 1));
    eventually("four are under way", async || receiver.seen().len() == 4).await;
    token.cancel();
    release.send(true).unwrap();
    end(worker).await.unwrap();
    assert_eq!((receiver.seen().len(), setup.count(State::Delivered).await), (4, 4));
}

#[tokio::test]
async fn a_crash_in_the_middle_loses_nothing_and_changes_no_byte() {
    let (release, gate) = tokio::sync::watch::channel(false);
    let open_after = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&open_after);
    let receiver = Receiver::start(move |_| {
        let (mut gate, number) = (gate.clone(), count.fetch_add(1, Ordering::SeqCst));
        async move {
            if number >= 60 {
                gate.wait_for(|open| *open).await.map(drop).unwrap();
            }
        }
    })
    .await;
    let setup = Setup::new().await;
    let events = many(20, 10);
    setup.put(events.clone()).await;
    let (_token, worker) = setup.run(&receiver, quick());
    // Sixteen are sent and unanswered, and the store is at rest: this is what a power cut would leave behind.
    eventually("lanes hang", async || receiver.seen().len() == 76 && setup.count(State::Delivered).await == 60).await;
    let image = TempDir::new().unwrap();
    for name in ["store.db", "store.db-wal"] {
        fs::copy(setup.folder.path().join(name), image.path().join(name)).unwrap();
    }
    worker.abort();
    release.send(true).unwrap();

    let after = Receiver::start(|_| async {}).await;
    let setup = Setup::over(image).await;
    setup.deliver(&after, quick(), 200).await;
    assert_eq!(after.seen().len(), 140, "what was answered is not sent again, what was not is");
    let mut bodies = BTreeMap::new();
    for seen in receiver.seen().iter().chain(&after.seen()) {
        let body = bodies.entry(seen.id()).or_insert_with(|| seen.body.clone());
        assert_eq!(*body, seen.body);
    }
    assert!(events.iter().all(|event| bodies[event.id()] == *event.body()));
    assert_eq!(bodies.len(), events.len());
    assert!(by_subject(&after.seen()).values().all(|ids| ids.is_sorted()));
}

#[tokio::test]
async fn what_this_process_changes_without_waking_anybody_is_noticed_by_the_poll() {
    let receiver = Receiver::start(|_| async {}).await;
    let setup = Setup::new().await;
    let running = setup.run(&receiver, Config { poll: Duration::from_millis(20), ..quick() });
    let id = setup.id;
    // Twice: the first glance at what others did, which knows of nothing yet, would notice one of them.
    for reason in ["for a while", "once more"] {
        setup.store.write(move |tx| outbox::pause(tx, id, reason, clock::now())).await.unwrap();
        eventually("it pauses", async || setup.told().contains(reason)).await;
        setup.store.write(move |tx| outbox::resume(tx, id)).await.unwrap();
        eventually("it goes on", async || setup.told().is_empty()).await;
    }
    stop(running).await;
}

#[tokio::test]
async fn a_dead_letter_that_a_tool_retries_is_sent_again() {
    let receiver = Receiver::start(|_| async { StatusCode::NOT_FOUND }).await;
    let setup = Setup::with([event("1", "x")]).await;
    let running = setup.run(&receiver, quick());
    eventually("it is dead", async || setup.count(State::Dead).await == 1).await;
    let tool = store::open_beside(setup.store.path(), &[outbox::MODULE]).unwrap();
    let all = Filter { limit: 10, ..Filter::default() };
    outbox::retry(&Tx::over(&tool), &all, clock::now()).unwrap();
    eventually("it is tried again", async || receiver.seen().len() == 2).await;
    eventually("it is dead again", async || setup.count(State::Dead).await == 1).await;
    stop(running).await;
}

#[tokio::test]
async fn tools_beside_the_service_are_noticed_without_the_poll() {
    let receiver = Receiver::start(|_| async {}).await;
    let setup = Setup::new().await;
    let running = setup.run(&receiver, quick());
    let tool = store::open_beside(setup.store.path(), &[outbox::MODULE]).unwrap();
    outbox::pause(&tool, setup.id, "for a while", clock::now()).unwrap();
    eventually("it pauses", async || setup.told().contains("for a while")).await;
    setup.put([event("1", "x")]).await;
    outbox::resume(&Tx::over(&tool), setup.id).unwrap();
    setup.delivered(1).await;
    stop(running).await;
}

#[tokio::test]
async fn a_store_that_cannot_be_read_is_told_counted_and_waited_for() {
    let receiver = Receiver::start(|_| async {}).await;
    let setup = Setup::with(many(3, 2)).await;
    let tool = Connection::open(setup.store.path()).unwrap();
    tool.execute_batch("ALTER TABLE sinks RENAME TO elsewhere").unwrap();
    let running = setup.run(&receiver, quick());
    let failures = || setup.metric(r#"outbox_store_failures_total{sink="a"}"#);
    eventually("it is tried again", async || failures() > 1.5).await;
    let told = setup.told();
    assert!(told.contains("no such table: sinks") && told.contains("check the disk"), "{told}");
    assert_eq!(setup.health.liveness().status, Status::Ok);
    tool.execute_batch("ALTER TABLE elsewhere RENAME TO sinks").unwrap();
    setup.delivered(6).await;
    assert_eq!((setup.told().as_str(), receiver.count()), ("", 6));
    stop(running).await;
}

#[tokio::test]
async fn liveness_follows_the_loop() {
    let receiver = Receiver::start(|_| async {}).await;
    let setup = Setup::new().await;
    let worker = setup.worker(&receiver, quick());
    let live = || setup.health.liveness().checks["delivery_a"].status;
    assert_eq!(live(), Status::Ok);
    tokio::time::pause();
    tokio::time::advance(MAX_SILENCE + Duration::from_secs(1)).await;
    tokio::time::resume();
    assert_eq!(live(), Status::Error, "nothing turns it");
    let running = start(worker);
    eventually("it turns", async || live() == Status::Ok).await;
    stop(running).await;
    assert!(setup.health.liveness().checks.is_empty());
}

#[tokio::test]
async fn outcomes_are_noted_even_if_the_store_fails_for_a_while() {
    let receiver = Receiver::start(|_| async {}).await;
    let setup = Setup::with(many(3, 2)).await;
    let tool = Connection::open(setup.store.path()).unwrap();
    let trigger = "CREATE TRIGGER broken BEFORE UPDATE OF state ON deliveries BEGIN SELECT RAISE(ABORT, 'broken'); END";
    tool.execute_batch(trigger).unwrap();
    let running = setup.run(&receiver, quick());
    eventually("three are sent", async || receiver.seen().len() == 3).await;
    tool.execute_batch("DROP TRIGGER broken").unwrap();
    setup.delivered(6).await;
    stop(running).await;
    assert_eq!(receiver.seen().len(), 6, "none was sent twice");
}

#[tokio::test]
async fn a_body_that_is_no_event_becomes_a_dead_letter() {
    let receiver = Receiver::start(|_| async {}).await;
    let setup = Setup::with(many(1, 2)).await;
    let spoil = |tx: &Tx<'_>| Ok(tx.execute("UPDATE events SET body = x'00' WHERE id = '0'", [])?);
    setup.store.write(spoil).await.unwrap();
    setup.deliver(&receiver, quick(), 1).await;
    assert_eq!((receiver.ids(), setup.entry("0").await.state), (vec!["1".to_owned()], State::Dead));
}

#[tokio::test]
async fn a_worker_ends_with_an_error_when_its_store_is_closed() {
    let receiver = Receiver::start(|_| async {}).await;
    let setup = Setup::new().await;
    let (_token, worker) = setup.run(&receiver, quick());
    setup.store.close().await;
    assert!(matches!(end(worker).await, Err(store::Error::Closed)));
}

#[tokio::test]
async fn metrics_follow_the_queue() {
    let receiver = Receiver::start(|_| async { StatusCode::SERVICE_UNAVAILABLE }).await;
    let setup = Setup::with(many(4, 2)).await;
    let running = setup.run(&receiver, Config { poll: Duration::from_millis(20), ..quick() });
    eventually("it is measured", async || {
        setup.metric(r#"outbox_deliveries_pending{sink="a"}"#) > 7.5
            && setup.metric(r#"outbox_oldest_pending_age_seconds{sink="a"}"#) > 0.0
            && setup.metric(r#"outbox_delivery_attempts_total{sink="a",outcome="postponed"}"#) > 0.5
    })
    .await;
    stop(running).await;
    assert!(setup.metric("store_commit_rows_count") > 0.5 && setup.metric("store_commit_duration_seconds_count") > 0.5);
}

/// S28 of the beacon.
#[tokio::test]
async fn what_was_put_off_by_a_clock_that_was_an_hour_ahead_goes_out() {
    let receiver = Receiver::start(|_| async {}).await;
    let setup = Setup::with(many(2, 2)).await;
    let first = setup.entries().await[0].seq;
    let ahead = move |seconds: i64| clock::now() + jiff::SignedDuration::from_secs(3_600 + seconds);
    let put_off =
        move |tx: &Tx<'_>| outbox::settle(tx, first, &Mark::Retry { at: ahead(30), reason: "down".into() }, ahead(0));
    setup.store.write(put_off).await.unwrap();
    setup.deliver(&receiver, quick(), 4).await;
}
