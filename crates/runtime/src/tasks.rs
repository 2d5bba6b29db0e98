//! The tasks of a process and how it ends; the only place that spawns.
//!
//! A task has a name, a [`Stage`] and a declared end. An *essential* task's end stops the process; an *auxiliary* one
//! is started again, with backoff. The process stops in the order of the stages, one after the other, within one grace
//! period. A panic is the end of its task and of nothing else.

mod signals;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, debug, error, info, info_span, warn};

use crate::error::chain;
use crate::health::Health;
use signals::{Signal, Signals};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The pause before an auxiliary task's first restart; doubles with each further one.
const FIRST_RESTART_AFTER: Duration = Duration::from_secs(1);
/// The longest pause between restarts, and how long a run must last for the pause to start over.
const LONGEST_RESTART_AFTER: Duration = Duration::from_mins(1);
/// What the outbox and the admin server get even when the stages before them used up the grace period.
const LAST_STAGES_GRACE: Duration = Duration::from_secs(1);

/// A signal so soon after the first is the same request: a terminal tells the whole process group, and so does what
/// runs it. Nobody asks twice in this time.
const ONE_REQUEST: Duration = Duration::from_millis(100);

/// When a task is told to stop, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// What brings in work: pollers, watches, consumers.
    Sources,
    /// What does the work; finishes what it holds.
    Workers,
    /// What makes the results durable.
    Outbox,
    /// The admin server: it tells of all the others, so it goes last.
    Admin,
}

const STAGES: [Stage; 4] = [Stage::Sources, Stage::Workers, Stage::Outbox, Stage::Admin];

/// Why the process ended otherwise than by an orderly stop.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// A task failed: an essential one at any time, or any one while stopping.
    #[error("task {task} failed")]
    Failed {
        /// The task's name.
        task: &'static str,
        /// What it failed with.
        #[source]
        source: BoxError,
    },
    /// An essential task ended though nothing had asked it to.
    #[error("task {task} ended, the process can't do without it")]
    Ended {
        /// The task's name.
        task: &'static str,
    },
    /// A task panicked; the panic's message is the text.
    #[error("task {task} panicked: {message}")]
    Panicked {
        /// The task's name.
        task: &'static str,
        /// The panic's message.
        message: String,
    },
    /// Tasks were still at work when the grace period was over, and were cut off.
    #[error("tasks did not finish within the grace period of {grace:?}: {}", tasks.join(", "))]
    Overrun {
        /// The names of the tasks.
        tasks: Vec<&'static str>,
        /// The grace period.
        grace: Duration,
    },
    /// A second signal asked to stop at once.
    #[error("stopped at once by a second {signal}")]
    Forced {
        /// The signal's name.
        signal: &'static str,
    },
    /// The signal handlers can't be installed.
    #[error("listen for signals")]
    Signals(#[source] std::io::Error),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TaskLabel {
    task: &'static str,
}

#[derive(Clone, Debug, Default)]
struct Metrics {
    running: Family<TaskLabel, Gauge>,
    restarts: Family<TaskLabel, Counter>,
}

/// What a task's end means.
#[derive(Clone, Copy)]
enum End {
    /// The process stops.
    Essential,
    /// It is started again by itself, and ends only when it is told to.
    Auxiliary,
}

struct Running {
    stage: Stage,
    name: &'static str,
    end: End,
    handle: AbortHandle,
}

struct Ended {
    stage: Stage,
    name: &'static str,
    end: End,
    outcome: Outcome,
}

enum Outcome {
    Done,
    Failed(BoxError),
    Panicked(String),
}

/// Why the process stops.
enum Stop {
    Signal,
    /// Somebody cancelled the token.
    Asked,
    Failed(TaskError),
}

/// Starts a part of a task's own work beside the rest of it, so that both can use a core, and waits for its output.
///
/// The part begins at once, not when it is waited for. Dropping the wait aborts the part where it stands, so a task
/// that must not leave it half done waits for it to the end. A panic goes on in the caller, whose task it ends. Panics
/// itself outside of the async runtime.
#[expect(clippy::disallowed_methods, reason = "a part of a named task: it ends with it, and its panic is that task's")]
pub fn beside<F>(work: F) -> impl Future<Output = F::Output> + Send
where
    F: Future<Output: Send> + Send + 'static,
{
    let part = AbortOnDropHandle::new(tokio::spawn(work.in_current_span()));
    async move {
        match part.await {
            Ok(output) => output,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Only the end of the async runtime does this, and then nobody waits any more.
                Err(_) => std::future::pending().await,
            },
        }
    }
}

/// The tasks of a process.
#[derive(Default)]
pub struct Tasks {
    set: JoinSet<Ended>,
    running: HashMap<Id, Running>,
    tokens: [CancellationToken; STAGES.len()],
    metrics: Metrics,
    health: Option<Health>,
    signals: Option<Signals>,
}

impl Tasks {
    /// Starts with no task.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the token of the first stage. Cancelling it begins the same orderly stop as SIGTERM.
    pub fn token(&self) -> CancellationToken {
        self.stage_token(Stage::Sources)
    }

    /// Returns the token that tells a stage to stop.
    pub fn stage_token(&self, stage: Stage) -> CancellationToken {
        self.tokens[stage as usize].clone()
    }

    /// Listens for signals from here on: one that comes while the process is still being put together is no sudden
    /// death, [`Tasks::run`] stops at once for it.
    pub fn listen(&mut self) -> Result<(), TaskError> {
        self.signals = Some(Signals::listen().map_err(TaskError::Signals)?);
        Ok(())
    }

    /// Makes readiness go red as soon as the stop begins.
    pub fn drain(&mut self, health: Health) {
        self.health = Some(health);
    }

    /// Registers `watchfire_tasks_running` and `watchfire_task_restarts`, one series per task.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("watchfire");
        registry.register("tasks_running", "Tasks of this name that are running", self.metrics.running.clone());
        registry.register("task_restarts", "Restarts of auxiliary tasks", self.metrics.restarts.clone());
    }

    /// Starts a task of the first stage whose end stops the process.
    pub fn essential<F, E>(&mut self, name: &'static str, future: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.essential_at(Stage::Sources, name, future);
    }

    /// Starts a task whose end, before its stage is told to stop, stops the process.
    pub fn essential_at<F, E>(&mut self, stage: Stage, name: &'static str, future: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.spawn(stage, name, End::Essential, async move { run_once(future).await });
    }

    /// Starts a task that is started again when it ends, fails or panics, until its stage is told to stop.
    ///
    /// `make` is called for each run with the stage's token.
    pub fn auxiliary_at<M, F, E>(&mut self, stage: Stage, name: &'static str, mut make: M)
    where
        M: FnMut(CancellationToken) -> F + Send + 'static,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let token = self.stage_token(stage);
        let restarts = self.metrics.restarts.get_or_create(&TaskLabel { task: name }).clone();
        self.spawn(stage, name, End::Auxiliary, async move {
            let mut pause = FIRST_RESTART_AFTER;
            loop {
                let started = Instant::now();
                // Made within, so that a panic while it is made is one of its own.
                let outcome = run_once(async { make(token.clone()).await }).await;
                if token.is_cancelled() {
                    return outcome;
                }
                if started.elapsed() >= LONGEST_RESTART_AFTER {
                    pause = FIRST_RESTART_AFTER;
                }
                match outcome {
                    Outcome::Done => warn!(task = name, ?pause, "task ended, restarting"),
                    Outcome::Failed(cause) => {
                        warn!(task = name, error = %chain(&*cause), ?pause, "task failed, restarting");
                    }
                    Outcome::Panicked(message) => {
                        error!(task = name, error = message, ?pause, "task panicked, restarting");
                    }
                }
                if token.run_until_cancelled(sleep(pause)).await.is_none() {
                    return Outcome::Done;
                }
                restarts.inc();
                pause = LONGEST_RESTART_AFTER.min(pause * 2);
            }
        });
    }

    fn spawn<F>(&mut self, stage: Stage, name: &'static str, end: End, future: F)
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let running = self.metrics.running.get_or_create(&TaskLabel { task: name }).clone();
        let span = info_span!("task", task = name);
        let handle = self.set.spawn(
            async move {
                running.inc();
                let outcome = future.await;
                running.dec();
                Ended { stage, name, end, outcome }
            }
            .instrument(span),
        );
        self.running.insert(handle.id(), Running { stage, name, end, handle });
    }

    /// Runs until SIGTERM, SIGINT, a cancelled [`Tasks::token`] or the end of an essential task; then stops in order.
    ///
    /// A second signal ends the process on the spot, with status 143 or 130, unless it comes within 100 ms of the
    /// first. Where the stop began without one, the first that comes then is whoever runs the process asking for what
    /// is under way already.
    pub async fn run(mut self, grace: Duration) -> Result<(), TaskError> {
        let signals = match self.signals.take() {
            Some(signals) => signals,
            None => Signals::listen().map_err(TaskError::Signals)?,
        };
        self.run_with(signals, grace, |signal| std::process::exit(signal.exit_code())).await
    }

    /// [`Tasks::run`] with what a second signal does left open: a test can't end its own process.
    async fn run_with(
        mut self,
        mut signals: Signals,
        grace: Duration,
        force: impl FnOnce(Signal),
    ) -> Result<(), TaskError> {
        let (mut asked, failure) = match self.until_stop(&mut signals).await {
            Stop::Signal => (Some(Instant::now()), None),
            Stop::Asked => (None, None),
            Stop::Failed(cause) => (None, Some(cause)),
        };
        if let Some(health) = &self.health {
            health.draining();
        }
        let mut stopping = pin!(self.stop(grace));
        let stopped = loop {
            tokio::select! {
                stopped = &mut stopping => break stopped,
                signal = signals.next() => match asked {
                    Some(first) if first.elapsed() >= ONE_REQUEST => {
                        warn!(signal = signal.name(), "second signal, stopping at once");
                        force(signal);
                        return Err(TaskError::Forced { signal: signal.name() });
                    }
                    Some(_) => debug!(signal = signal.name(), "the same signal again"),
                    None => {
                        asked = Some(Instant::now());
                        info!(signal = signal.name(), "stopping already");
                    }
                }
            }
        };
        info!("stopped");
        failure.map_or(stopped, Err)
    }

    /// Waits for a reason to stop.
    async fn until_stop(&mut self, signals: &mut Signals) -> Stop {
        let token = self.token();
        loop {
            tokio::select! {
                biased;
                signal = signals.next() => {
                    info!(signal = signal.name(), "stopping");
                    return Stop::Signal;
                }
                () = token.cancelled() => {
                    info!("stopping");
                    return Stop::Asked;
                }
                Some(joined) = self.set.join_next_with_id() => {
                    let Some(ended) = self.ended(joined) else { continue };
                    let task = ended.name;
                    let cause = match (ended.end, ended.outcome) {
                        (End::Auxiliary, Outcome::Done) => continue,
                        (End::Essential, Outcome::Done) if token.is_cancelled() => return Stop::Asked,
                        (End::Essential, Outcome::Done) => TaskError::Ended { task },
                        (_, Outcome::Failed(source)) => TaskError::Failed { task, source },
                        (_, Outcome::Panicked(message)) => TaskError::Panicked { task, message },
                    };
                    error!(error = %chain(&cause), "stopping");
                    return Stop::Failed(cause);
                }
            }
        }
    }

    /// Stops the stages one after the other; returns the first failure.
    async fn stop(&mut self, grace: Duration) -> Result<(), TaskError> {
        let end = Instant::now() + grace;
        let mut failure = None;
        let mut overrun = Vec::new();
        for stage in STAGES {
            self.tokens[stage as usize].cancel();
            let end = if stage >= Stage::Outbox { end.max(Instant::now() + LAST_STAGES_GRACE) } else { end };
            while self.running.values().any(|running| running.stage == stage) {
                match timeout_at(end, self.set.join_next_with_id()).await {
                    Ok(Some(joined)) => {
                        let failed = self.ended(joined).and_then(stopped);
                        failure = failure.or(failed);
                    }
                    Ok(None) => break,
                    Err(_) => {
                        for (_, late) in self.running.extract_if(|_, running| running.stage == stage) {
                            late.handle.abort();
                            overrun.push(late.name);
                        }
                    }
                }
            }
        }
        if overrun.is_empty() {
            return failure.map_or(Ok(()), Err);
        }
        overrun.sort_unstable();
        warn!(tasks = overrun.join(", "), ?grace, "tasks cut off at the end of the grace period");
        Err(failure.unwrap_or(TaskError::Overrun { tasks: overrun, grace }))
    }

    /// Notes that a task is gone; nothing for one that was cut off.
    fn ended(&mut self, joined: Result<(Id, Ended), JoinError>) -> Option<Ended> {
        match joined {
            Ok((id, ended)) => {
                self.running.remove(&id);
                Some(ended)
            }
            Err(error) => {
                let Running { stage, name, end, .. } = self.running.remove(&error.id())?;
                // What it left behind panicked when it was dropped, after its own end.
                let panic = error.try_into_panic().ok()?;
                Some(Ended { stage, name, end, outcome: Outcome::Panicked(panic_message(&*panic)) })
            }
        }
    }
}

/// What a task's end during the stop means: failing then is a failure too.
fn stopped(ended: Ended) -> Option<TaskError> {
    let task = ended.name;
    let failure = match ended.outcome {
        Outcome::Done => return None,
        Outcome::Failed(source) => TaskError::Failed { task, source },
        Outcome::Panicked(message) => TaskError::Panicked { task, message },
    };
    error!(error = %chain(&failure), stage = ?ended.stage, "task failed while stopping");
    Some(failure)
}

async fn run_once<F, E>(future: F) -> Outcome
where
    F: Future<Output = Result<(), E>>,
    E: Into<BoxError>,
{
    // What a panic leaves half done is dropped with the future; nothing of it is looked at again.
    match AssertUnwindSafe(future).catch_unwind().await {
        Ok(Ok(())) => Outcome::Done,
        Ok(Err(error)) => Outcome::Failed(error.into()),
        Err(panic) => Outcome::Panicked(panic_message(&*panic)),
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
