use std::convert::Infallible;
use std::future::{pending, poll_fn, ready};
use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use prometheus_client::encoding::text::encode;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::health::Status;

const GRACE: Duration = Duration::from_secs(10);

fn no_signals() -> Signals {
    let (sender, receiver) = mpsc::channel(1);
    drop(sender);
    Signals::Channel(receiver)
}

async fn run(tasks: Tasks) -> Result<(), TaskError> {
    let running = tasks.run_with(no_signals(), GRACE, |_| panic!("nothing was forced"));
    // Paused time goes on by itself, so that a run that never ends fails its test at once.
    timeout(Duration::from_hours(1), running).await.expect("the run ends")
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_essential_task_stops_the_process() {
    let mut tasks = Tasks::new();
    tasks.essential("poll", async { Ok::<_, Infallible>(()) });
    let error = run(tasks).await.unwrap_err();
    assert!(matches!(error, TaskError::Ended { task: "poll" }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_failure_of_an_essential_task_is_returned_with_its_cause() {
    let mut tasks = Tasks::new();
    tasks.essential("poll", async { Err(io::Error::other("disk full")) });
    assert_eq!(chain(&run(tasks).await.unwrap_err()), "task poll failed: disk full");
}

#[tokio::test(start_paused = true)]
async fn a_panic_ends_its_task_and_stops_the_process_in_order() {
    let mut tasks = Tasks::new();
    let token = tasks.stage_token(Stage::Workers);
    let finished = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&finished);
    tasks.essential_at(Stage::Workers, "worker", async move {
        token.cancelled().await;
        count.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Infallible>(())
    });
    tasks.essential("poll", async { if true { panic!("index 7") } else { Ok::<_, Infallible>(()) } });
    let error = run(tasks).await.unwrap_err();
    assert!(matches!(&error, TaskError::Panicked { task: "poll", message } if message == "index 7"), "{error}");
    assert_eq!(finished.load(Ordering::SeqCst), 1, "the worker finished what it held");
}

#[tokio::test(start_paused = true)]
async fn an_auxiliary_task_is_restarted_with_backoff_however_it_ends() {
    let mut tasks = Tasks::new();
    let starts = Arc::new(Mutex::new(Vec::new()));
    let (noted, began) = (Arc::clone(&starts), Instant::now());
    let stop = tasks.token();
    tasks.auxiliary_at(Stage::Sources, "watch", move |_| {
        let mut starts = noted.lock().unwrap();
        starts.push(began.elapsed().as_secs());
        let run = starts.len();
        let stop = stop.clone();
        async move {
            match run {
                1 => Ok(()),
                3 => panic!("boom"),
                2..9 => Err(io::Error::other("refused")),
                // A run that lasted puts the pause back to its start.
                9 => {
                    sleep(Duration::from_mins(2)).await;
                    Ok(())
                }
                _ => {
                    stop.cancel();
                    pending().await
                }
            }
        }
    });
    let mut registry = Registry::default();
    tasks.register(&mut registry);
    // The last run never ends; it is cut off at the end of the grace period.
    assert!(matches!(run(tasks).await, Err(TaskError::Overrun { .. })));
    assert_eq!(*starts.lock().unwrap(), [0, 1, 3, 7, 15, 31, 63, 123, 183, 304]);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    assert!(text.contains("watchfire_task_restarts_total{task=\"watch\"} 9"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn running_tasks_are_counted() {
    let mut tasks = Tasks::new();
    let mut registry = Registry::default();
    tasks.register(&mut registry);
    let token = tasks.token();
    tasks.essential("poll", async move {
        token.cancelled().await;
        Ok::<_, Infallible>(())
    });
    let stop = tasks.token();
    tasks.auxiliary_at(Stage::Sources, "look", move |_| {
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert!(text.contains("watchfire_tasks_running{task=\"poll\"} 1"), "{text}");
        stop.cancel();
        async { Ok::<_, Infallible>(()) }
    });
    run(tasks).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_stages_stop_one_after_the_other_with_readiness_red_before_all() {
    let mut tasks = Tasks::new();
    let health = Health::new();
    tasks.drain(health.clone());
    let order = Arc::new(Mutex::new(Vec::new()));
    // Started in the wrong order on purpose.
    for stage in [Stage::Admin, Stage::Outbox, Stage::Workers, Stage::Sources] {
        let (token, order, health) = (tasks.stage_token(stage), Arc::clone(&order), health.clone());
        tasks.essential_at(stage, "task", async move {
            token.cancelled().await;
            assert_eq!(health.readiness().status, Status::Error);
            sleep(Duration::from_secs(1)).await;
            order.lock().unwrap().push(stage);
            Ok::<_, Infallible>(())
        });
    }
    let (sender, receiver) = mpsc::channel(1);
    sender.send(Signal::Terminate).await.unwrap();
    let began = Instant::now();
    tasks.run_with(Signals::Channel(receiver), GRACE, |_| panic!("only one signal")).await.unwrap();
    assert_eq!(*order.lock().unwrap(), STAGES);
    assert_eq!(began.elapsed(), Duration::from_secs(4));
}

#[tokio::test(start_paused = true)]
async fn what_outlasts_the_grace_period_is_cut_off_and_the_outbox_still_closes() {
    let mut tasks = Tasks::new();
    tasks.essential_at(Stage::Workers, "stuck", pending::<Result<(), Infallible>>());
    let (token, closed) = (tasks.stage_token(Stage::Outbox), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&closed);
    tasks.essential_at(Stage::Outbox, "outbox", async move {
        token.cancelled().await;
        sleep(Duration::from_millis(900)).await;
        count.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Infallible>(())
    });
    tasks.token().cancel();
    let began = Instant::now();
    let error = run(tasks).await.unwrap_err();
    assert!(matches!(&error, TaskError::Overrun { tasks, .. } if tasks == &["stuck"]), "{error}");
    assert_eq!(closed.load(Ordering::SeqCst), 1);
    assert_eq!(began.elapsed(), GRACE + Duration::from_millis(900));
}

#[tokio::test(start_paused = true)]
async fn a_failure_while_stopping_is_a_failure() {
    let mut tasks = Tasks::new();
    let token = tasks.stage_token(Stage::Outbox);
    tasks.essential_at(Stage::Outbox, "outbox", async move {
        token.cancelled().await;
        Err(io::Error::other("disk full"))
    });
    tasks.token().cancel();
    assert_eq!(chain(&run(tasks).await.unwrap_err()), "task outbox failed: disk full");
}

#[tokio::test(start_paused = true)]
async fn a_second_signal_ends_the_process_at_once() {
    let mut tasks = Tasks::new();
    tasks.essential("stuck", pending::<Result<(), Infallible>>());
    let (sender, receiver) = mpsc::channel(2);
    let (mut forced, began) = (None, Instant::now());
    let running = tasks.run_with(Signals::Channel(receiver), GRACE, |signal| forced = Some(signal));
    let signals = async {
        sender.send(Signal::Terminate).await.unwrap();
        sleep(ONE_REQUEST).await;
        sender.send(Signal::Interrupt).await.unwrap();
        pending::<()>().await;
    };
    let error = tokio::select! {
        ended = running => ended.unwrap_err(),
        () = signals => unreachable!("it is pending"),
    };
    assert!(matches!(error, TaskError::Forced { signal: "SIGINT" }), "{error}");
    assert_eq!(forced.map(Signal::exit_code), Some(130));
    assert_eq!(began.elapsed(), ONE_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn signals_that_come_together_are_one() {
    let mut tasks = Tasks::new();
    let token = tasks.stage_token(Stage::Workers);
    tasks.essential_at(Stage::Workers, "worker", async move {
        token.cancelled().await;
        sleep(Duration::from_secs(1)).await;
        Ok::<_, Infallible>(())
    });
    let (sender, receiver) = mpsc::channel(3);
    for signal in [Signal::Interrupt, Signal::Terminate, Signal::Interrupt] {
        sender.send(signal).await.unwrap();
    }
    let began = Instant::now();
    tasks.run_with(Signals::Channel(receiver), GRACE, |_| panic!("one request")).await.unwrap();
    assert_eq!(began.elapsed(), Duration::from_secs(1), "what was in hand was finished");
}

#[tokio::test(start_paused = true)]
async fn a_signal_to_a_process_that_stops_by_itself_is_the_first_of_two() {
    for signals in 1..=2 {
        let mut tasks = Tasks::new();
        let (sender, receiver) = mpsc::channel(2);
        tasks.essential("poll", async { Err(io::Error::other("disk full")) });
        let token = tasks.stage_token(Stage::Workers);
        tasks.essential_at(Stage::Workers, "worker", async move {
            token.cancelled().await;
            for _ in 0..signals {
                sender.send(Signal::Terminate).await.unwrap();
                sleep(ONE_REQUEST).await;
            }
            sleep(Duration::from_secs(1)).await;
            Ok::<_, Infallible>(())
        });
        let mut forced = None;
        let error =
            tasks.run_with(Signals::Channel(receiver), GRACE, |signal| forced = Some(signal)).await.unwrap_err();
        match signals {
            1 => assert_eq!(chain(&error), "task poll failed: disk full"),
            _ => assert!(matches!(error, TaskError::Forced { signal: "SIGTERM" }), "{error}"),
        }
        assert_eq!(forced.is_some(), signals == 2);
    }
}

/// Panics when it is dropped.
struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        panic!("index 7");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_what_a_task_leaves_behind_is_the_panic_of_the_task() {
    let mut tasks = Tasks::new();
    let grenade = Grenade;
    tasks.essential(
        "poll",
        poll_fn(move |_| {
            let _held = &grenade;
            Poll::Ready(Ok::<_, Infallible>(()))
        }),
    );
    let error = run(tasks).await.unwrap_err();
    assert!(matches!(&error, TaskError::Panicked { task: "poll", message } if message == "index 7"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_auxiliary_task_that_panics_while_it_is_made_is_restarted() {
    let mut tasks = Tasks::new();
    let (stop, mut runs) = (tasks.token(), 0);
    tasks.auxiliary_at(Stage::Sources, "watch", move |_| {
        runs += 1;
        assert!(runs > 1, "index 7");
        stop.cancel();
        ready(Ok::<_, Infallible>(()))
    });
    run(tasks).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_any_task_the_process_waits_for_a_signal() {
    let (sender, receiver) = mpsc::channel(1);
    let stopped = Tasks::new().run_with(Signals::Channel(receiver), GRACE, |_| panic!("only one signal"));
    let signal = async {
        sleep(Duration::from_hours(1)).await;
        sender.send(Signal::Interrupt).await.unwrap();
        pending::<()>().await;
    };
    tokio::select! {
        result = stopped => result.unwrap(),
        () = signal => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_is_at_work_beside_its_task_before_anybody_waits_for_it() {
    let (sender, mut begun) = mpsc::channel(1);
    let part = beside(async move { sender.send(tokio::task::try_id()).await });
    let of_part = timeout(GRACE, begun.recv()).await.expect("it begins").unwrap();
    assert_ne!(of_part, tokio::task::try_id());
    part.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_panic_of_a_part_is_that_of_its_task() {
    let mut tasks = Tasks::new();
    tasks.essential("poll", beside(async { if true { panic!("index 7") } else { Ok::<_, Infallible>(()) } }));
    let error = run(tasks).await.unwrap_err();
    assert!(matches!(&error, TaskError::Panicked { task: "poll", message } if message == "index 7"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_part_ends_with_whoever_waits_for_it() {
    let (alive, mut dropped) = mpsc::channel::<()>(1);
    let part = beside(async move {
        let _alive = alive;
        pending::<()>().await;
    });
    assert!(timeout_at(Instant::now() + GRACE, part).await.is_err());
    assert_eq!(timeout_at(Instant::now() + GRACE, dropped.recv()).await, Ok(None));
}
