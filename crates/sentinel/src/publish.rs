//! Takes what is due to the broker: in windows, each event with its own outcome.
//!
//! What may pass is tried again within its cycle, alone: nothing is published twice because a neighbour failed. When a
//! broker takes nothing of a window and keeps taking nothing, the rest of the cycle is counted as failed without
//! waiting for each window again; the next cycle decides anew.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info};
use watchfire_delivery::retry::{Backoff, Verdict};
use watchfire_delivery::{EventSink, sink};
use watchfire_runtime::chain;
use watchfire_runtime::clock;
use watchfire_runtime::health::{Dependency, Heartbeat};

use crate::metrics::Metrics;
use crate::service::Due;

/// Events published together: what the brokers' own windows hold.
pub(crate) const WINDOW: usize = 1000;

/// Attempts for one event within one cycle.
const ATTEMPTS: u32 = 4;

/// A broker that asks for more time than this gets it: the next cycle decides anew.
const MAX_WAIT: Duration = Duration::from_secs(10);

const BACKOFF: Backoff =
    Backoff { initial: Duration::from_millis(200), multiplier: 2.0, jitter: 0.1, max: Duration::from_secs(2) };

/// Publishes the events of one sentinel.
#[derive(Clone)]
pub(crate) struct Publisher {
    sink: Arc<dyn EventSink>,
    metrics: Metrics,
    /// What the broker's last failure was; told once per change.
    state: Arc<Mutex<Option<&'static str>>>,
}

/// What became of a cycle's events.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outcome {
    pub(crate) published: u64,
    pub(crate) failed: u64,
}

impl Publisher {
    pub(crate) fn new(sink: Arc<dyn EventSink>, metrics: Metrics) -> Self {
        Self { sink, metrics, state: Arc::default() }
    }

    /// Publishes until the channel closes. Told to stop, it finishes the window in hand and leaves the rest to the next
    /// start.
    pub(crate) async fn run(
        &self,
        mut due: mpsc::Receiver<Due>,
        broker: &Dependency,
        heartbeat: &Heartbeat,
        token: &CancellationToken,
        mut confirmed: impl FnMut(&Due, Timestamp),
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let mut down = false;
        match heartbeat.during(self.sink.check()).await {
            Ok(()) => _ = broker.up(),
            Err(error) => self.tell(broker, &error),
        }
        let mut window = Vec::with_capacity(WINDOW);
        while due.recv_many(&mut window, WINDOW).await > 0 {
            if token.is_cancelled() {
                break;
            }
            if down {
                outcome.failed += window.len() as u64;
                window.drain(..).for_each(|_| self.metrics.broker_error());
                continue;
            }
            let size = window.len() as u64;
            let failed = self.publish(&mut window, broker, heartbeat, token, &mut confirmed).await;
            outcome.failed += failed;
            outcome.published += size - failed;
            down = failed == size && self.is_failing();
        }
        outcome
    }

    /// Publishes one window and empties it; returns how many events were given up.
    async fn publish(
        &self,
        window: &mut Vec<Due>,
        broker: &Dependency,
        heartbeat: &Heartbeat,
        token: &CancellationToken,
        confirmed: &mut impl FnMut(&Due, Timestamp),
    ) -> u64 {
        let mut given_up = 0;
        for attempt in 0.. {
            let events: Vec<_> = window.iter().map(|due| due.event.clone()).collect();
            let results = heartbeat.during(self.sink.publish_all(&events)).await;
            let now = clock::now();
            let mut wait = None;
            let mut first_error = None;
            let mut again = Vec::new();
            for (due, result) in window.drain(..).zip(results) {
                match result {
                    Ok(()) => {
                        info!(id = due.id, generation = due.generation, reason = %due.reason, event = due.event.id(), "event published");
                        self.metrics.published(due.reason);
                        confirmed(&due, now);
                    }
                    Err(error) => {
                        let after = match error.verdict() {
                            Verdict::Retry { after } => Some(after.unwrap_or_default()),
                            Verdict::Permanent | Verdict::Provisional | Verdict::Pause => None,
                        };
                        debug!(id = due.id, error = %chain(&error), "event refused");
                        first_error.get_or_insert(error);
                        match after {
                            Some(after) if attempt + 1 < ATTEMPTS && after <= MAX_WAIT && !token.is_cancelled() => {
                                wait = wait.max(Some(after));
                                again.push(due);
                            }
                            _ => {
                                given_up += 1;
                                self.metrics.broker_error();
                            }
                        }
                    }
                }
            }
            match &first_error {
                Some(error) => self.tell(broker, error),
                None => self.recovered(broker),
            }
            if again.is_empty() {
                break;
            }
            self.metrics.retried(again.len());
            *window = again;
            heartbeat.during(sleep(BACKOFF.delay(attempt, rand::random(), wait))).await;
        }
        given_up
    }

    fn is_failing(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Says what is wrong with the broker: to readiness always, to the log once per change.
    fn tell(&self, broker: &Dependency, error: &sink::Error) {
        broker.down(format!("{}; {}", chain(error), error.hint()));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.replace(error.kind()) != Some(error.kind()) {
            error!(error = %chain(error), hint = error.hint(), "the broker does not take events, deciding again every poll interval");
        }
    }

    fn recovered(&self, broker: &Dependency) {
        broker.up();
        if self.state.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            info!("the broker takes events again");
        }
    }
}
