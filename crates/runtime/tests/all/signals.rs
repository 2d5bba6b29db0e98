//! A real process, and the signals that end it.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};
use tokio::time::{Instant, sleep, timeout};
use watchfire_runtime::{Stage, Tasks};

use crate::{DEADLINE, child};

const MODE: &str = "WATCHFIRE_TEST_CHILD";

#[tokio::test]
#[ignore = "the process that the other tests here start"]
async fn process() {
    let stuck = std::env::var(MODE).is_ok_and(|mode| mode == "stuck");
    let mut tasks = Tasks::new();
    let token = tasks.token();
    tasks.essential("source", async move {
        // On this one thread, a task first runs when `run` waits: the signals are listened to by then.
        println!("\nrunning");
        token.cancelled().await;
        println!("\nsource stopped");
        if stuck { pending().await } else { Ok::<_, Infallible>(()) }
    });
    let token = tasks.stage_token(Stage::Admin);
    tasks.essential_at(Stage::Admin, "admin", async move {
        token.cancelled().await;
        println!("\nadmin stopped");
        Ok::<_, Infallible>(())
    });
    tasks.run(Duration::from_mins(10)).await.unwrap();
    println!("\nended");
}

struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    async fn start(mode: &str) -> Self {
        let mut child = child("signals::process", &[(MODE, mode)]);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Self { child, lines };
        process.wait_for("running").await;
        process
    }

    async fn wait_for(&mut self, expected: &str) {
        timeout(DEADLINE, async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if line == expected {
                    return;
                }
            }
            panic!("the process ended without saying {expected:?}");
        })
        .await
        .unwrap_or_else(|_| panic!("{expected:?} did not come"));
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().unwrap().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    async fn status(&mut self) -> Option<i32> {
        timeout(DEADLINE, self.child.wait()).await.unwrap().unwrap().code()
    }
}

#[tokio::test]
async fn one_signal_stops_a_process_in_order_and_with_success() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut process = Process::start("orderly").await;
        process.signal(signal);
        for said in ["source stopped", "admin stopped", "ended"] {
            process.wait_for(said).await;
        }
        assert_eq!(process.status().await, Some(0));
    }
}

#[tokio::test]
async fn a_second_signal_ends_a_process_that_is_stuck_at_once() {
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let mut process = Process::start("stuck").await;
        process.signal(signal);
        process.wait_for("source stopped").await;
        // Sooner it would count as the first one.
        sleep(Duration::from_millis(100)).await;
        let began = Instant::now();
        process.signal(signal);
        assert_eq!(process.status().await, Some(status));
        assert!(began.elapsed() < Duration::from_mins(1), "long before the grace period of ten minutes");
    }
}
