//! Sinks that forget an outcome, are down, or come back.

use super::*;

/// Takes windows, and answers for all but the last event of the first two.
struct Forgetful(Mutex<Vec<usize>>);

impl EventSink for Forgetful {
    fn kind(&self) -> &'static str {
        "forgetful"
    }

    fn publish_all<'a>(&'a self, events: &'a [CloudEvent]) -> BoxFuture<'a, Vec<Result<(), sink::Error>>> {
        let mut windows = self.0.lock().unwrap();
        windows.push(events.len());
        let forgotten = usize::from(windows.len() <= 2);
        Box::pin(std::future::ready((forgotten..events.len()).map(|_| Ok(())).collect()))
    }

    fn check(&self) -> BoxFuture<'_, Result<(), sink::Error>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

#[tokio::test]
async fn windows_are_filled_and_what_a_sink_forgets_is_sent_again() {
    let setup = Setup::with(many(250, 1)).await;
    let sink = Arc::new(Forgetful(Mutex::default()));
    let running = start(setup.worker_to(Arc::clone(&sink) as _, lanes(1, 100)));
    setup.delivered(250).await;
    stop(running).await;
    assert_eq!(sink.0.lock().unwrap()[..2], [100, 100]);
}

#[tokio::test]
async fn a_sink_that_is_down_is_logged_once_per_change() {
    log_of_this_thread();
    let (receiver, up) = Receiver::switched(StatusCode::SERVICE_UNAVAILABLE).await;
    let setup = Setup::with(many(50, 2)).await;
    let running = setup.run(&receiver, quick());
    eventually("it probed a few times", async || receiver.seen().len() > 30).await;
    up.store(true, Ordering::SeqCst);
    setup.delivered(100).await;
    stop(running).await;
    let log = log_of_this_thread();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("watchfire_delivery::worker")).collect();
    assert_eq!(lines.len(), 2, "{log}");
    assert!(lines[0].contains("WARN") && lines[0].contains("sink is down") && lines[0].contains("hint"), "{log}");
    assert!(lines[1].contains("INFO") && lines[1].contains("sink works again"), "{log}");
}

#[tokio::test]
async fn a_sink_that_was_down_works_again_also_if_it_refuses_for_good_what_it_is_sent() {
    log_of_this_thread();
    let up = Arc::new(AtomicBool::new(false));
    let answer = Arc::clone(&up);
    let receiver = Receiver::start(move |_| {
        let up = answer.load(Ordering::SeqCst);
        async move { if up { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::SERVICE_UNAVAILABLE } }
    })
    .await;
    let setup = Setup::new().await;
    setup.put(many(10, 1)).await;
    let running = setup.run(&receiver, quick());
    eventually("it probed a few times", async || receiver.seen().len() > 20).await;
    up.store(true, Ordering::SeqCst);
    eventually("all are dead", async || setup.count(State::Dead).await == 10).await;
    stop(running).await;
    let log = log_of_this_thread();
    assert_eq!((log.matches("sink is down").count(), log.matches("sink works again").count()), (1, 1), "{log}");
}
