//! Whether the process lives and whether it is ready, told by those who know.
//!
//! Liveness means that the loops turn: each beats at least once in its `max_silence`, also while it waits on a slow
//! remote. Readiness names each dependency and its state. No remote ever decides about liveness: a restart would not
//! mend it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

/// The registry of heartbeats, dependencies and services; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Health {
    state: Arc<Mutex<State>>,
    prefix: String,
}

#[derive(Debug, Default)]
struct State {
    draining: bool,
    beats: BTreeMap<String, Beat>,
    dependencies: BTreeMap<String, Condition>,
    services: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug)]
struct Beat {
    last: Instant,
    max_silence: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    Unchecked,
    Up,
    Down(String),
}

/// The answer of a health endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// `ok` if all checks are.
    pub status: Status,
    /// Each check by its name.
    pub checks: BTreeMap<String, Check>,
}

/// One check of a [`Report`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Whether it is as it should be.
    pub status: Status,
    /// What there is to say about it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Good or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Not as it should be.
    Error,
}

impl Report {
    fn of(checks: BTreeMap<String, Check>) -> Self {
        let all = checks.values().all(|check| check.status == Status::Ok);
        Self { status: if all { Status::Ok } else { Status::Error }, checks }
    }
}

impl Check {
    fn ok() -> Self {
        Self { status: Status::Ok, message: String::new() }
    }

    fn error(message: impl Into<String>) -> Self {
        Self { status: Status::Error, message: message.into() }
    }
}

impl Health {
    /// Starts with nothing to check: alive and ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same registry for one of several services of a kind: what it adds is named `name.` and then as usual.
    #[must_use]
    pub fn of(&self, name: &str) -> Self {
        Self { state: Arc::clone(&self.state), prefix: format!("{}{name}.", self.prefix) }
    }

    fn name(&self, name: impl Into<String>) -> String {
        format!("{}{}", self.prefix, name.into())
    }

    /// Adds a loop that promises to beat at least once in `max_silence`; the first beat is given.
    ///
    /// The check goes away when the [`Heartbeat`] is dropped: what a task's end means is its supervisor's affair.
    pub fn heartbeat(&self, name: impl Into<String>, max_silence: Duration) -> Heartbeat {
        let name = self.name(name);
        self.state().beats.insert(name.clone(), Beat { last: Instant::now(), max_silence });
        Heartbeat { name, health: self.clone() }
    }

    /// Adds something that readiness depends on; not ready until its first [`Dependency::up`].
    pub fn dependency(&self, name: impl Into<String>) -> Dependency {
        let name = self.name(name);
        self.state().dependencies.insert(name.clone(), Condition::Unchecked);
        Dependency { name, health: self.clone() }
    }

    /// Names a service that runs in this process, and what it is at, for the console.
    pub fn service(&self, name: impl Into<String>, description: impl Into<String>) {
        let name = self.name(name);
        self.state().services.insert(name, description.into());
    }

    /// Takes back all that was added for this one of several services: it runs no more. What was added for another one,
    /// whose name begins with this one's, stays.
    pub fn forget(&self) {
        let stays = |name: &String| name.strip_prefix(&self.prefix).is_none_or(|rest| rest.contains('.'));
        let mut state = self.state();
        state.beats.retain(|name, _| stays(name));
        state.dependencies.retain(|name, _| stays(name));
        state.services.retain(|name, _| stays(name));
    }

    /// Makes readiness red for good: the process is stopping.
    pub fn draining(&self) {
        self.state().draining = true;
    }

    /// Returns what `/healthz` answers.
    pub fn liveness(&self) -> Report {
        let state = self.state();
        Report::of(state.beats.iter().map(|(name, beat)| (name.clone(), beat.check())).collect())
    }

    /// Returns what `/readyz` answers.
    pub fn readiness(&self) -> Report {
        let state = self.state();
        let mut checks: BTreeMap<_, _> =
            state.dependencies.iter().map(|(name, condition)| (name.clone(), condition.check())).collect();
        if state.draining {
            checks.insert("shutdown".to_owned(), Check::error("the process is stopping"));
        }
        Report::of(checks)
    }

    /// Returns the services of this process: name and description.
    pub fn services(&self) -> BTreeMap<String, String> {
        self.state().services.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each update is one assignment; a panic can't leave it half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Beat {
    fn check(self) -> Check {
        let silence = self.last.elapsed();
        if silence <= self.max_silence {
            return Check::ok();
        }
        let (silence, max) = (silence.as_secs(), self.max_silence);
        Check::error(format!("the loop has not turned for {silence}s, at most {max:?} is normal"))
    }
}

impl Condition {
    fn check(&self) -> Check {
        match self {
            Self::Unchecked => Check::error("not checked yet"),
            Self::Up => Check::ok(),
            Self::Down(reason) => Check::error(reason.as_str()),
        }
    }
}

/// A loop's promise to turn.
#[derive(Debug)]
pub struct Heartbeat {
    name: String,
    health: Health,
}

impl Heartbeat {
    /// Says that the loop turns.
    pub fn beat(&self) {
        if let Some(beat) = self.health.state().beats.get_mut(&self.name) {
            beat.last = Instant::now();
        }
    }

    /// Waits for a future and beats meanwhile: for calls on remotes that may be slow. The future has its own timeout.
    pub async fn during<F: Future>(&self, future: F) -> F::Output {
        let third =
            self.health.state().beats.get(&self.name).map_or(Duration::from_secs(1), |beat| beat.max_silence / 3);
        let mut ticks = tokio::time::interval(third.max(Duration::from_millis(1)));
        let mut future = std::pin::pin!(future);
        loop {
            tokio::select! {
                biased;
                output = &mut future => {
                    self.beat();
                    return output;
                }
                _ = ticks.tick() => self.beat(),
            }
        }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.health.state().beats.remove(&self.name);
    }
}

/// Something that readiness depends on; clones speak for the same one.
#[derive(Clone, Debug)]
pub struct Dependency {
    name: String,
    health: Health,
}

impl Dependency {
    /// Says that it answers.
    pub fn up(&self) {
        self.set(Condition::Up);
    }

    /// Says that it does not answer, and why.
    pub fn down(&self, reason: impl Into<String>) {
        self.set(Condition::Down(reason.into()));
    }

    /// Why it does not answer, if that is what was said last.
    pub fn trouble(&self) -> Option<String> {
        match self.health.state().dependencies.get(&self.name) {
            Some(Condition::Down(reason)) => Some(reason.clone()),
            Some(Condition::Unchecked | Condition::Up) | None => None,
        }
    }

    fn set(&self, condition: Condition) {
        // Not one that was taken back, as its service ended.
        if let Some(known) = self.health.state().dependencies.get_mut(&self.name) {
            *known = condition;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_falls_silent_makes_liveness_red_and_a_beat_makes_it_green() {
        let health = Health::new();
        let beat = health.heartbeat("poll", Duration::from_secs(15));
        assert_eq!(health.liveness().status, Status::Ok);
        advance(Duration::from_secs(15)).await;
        assert_eq!(health.liveness().status, Status::Ok);
        advance(Duration::from_secs(1)).await;
        let report = health.liveness();
        assert_eq!(report.status, Status::Error);
        assert!(report.checks["poll"].message.contains("16s"), "{report:?}");
        beat.beat();
        assert_eq!(health.liveness().status, Status::Ok);
        assert_eq!(health.readiness().status, Status::Ok, "silence is not about readiness");
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_on_a_slow_remote_is_not_silence() {
        let health = Health::new();
        let beat = health.heartbeat("poll", Duration::from_secs(15));
        let watcher = health.clone();
        let watching = async move {
            for _ in 0..120 {
                sleep(Duration::from_secs(1)).await;
                assert_eq!(watcher.liveness().status, Status::Ok);
            }
        };
        tokio::join!(beat.during(sleep(Duration::from_mins(2))), watching);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_heartbeat_is_no_longer_checked() {
        let health = Health::new();
        drop(health.heartbeat("poll", Duration::from_secs(1)));
        advance(Duration::from_secs(9)).await;
        assert_eq!(health.liveness(), Report::of(BTreeMap::new()));
    }

    #[test]
    fn readiness_names_each_dependency_and_its_state() {
        let health = Health::new();
        let (api, broker) = (health.dependency("api"), health.dependency("broker"));
        assert_eq!(health.readiness().checks["api"], Check::error("not checked yet"));
        api.up();
        broker.down("connection refused");
        let report = health.readiness();
        assert_eq!(report.status, Status::Error);
        assert_eq!(report.checks["api"], Check::ok());
        assert_eq!(report.checks["broker"], Check::error("connection refused"));
        broker.down("timed out");
        assert_eq!(health.readiness().checks["broker"], Check::error("timed out"), "the last reason counts");
        broker.up();
        assert_eq!(health.readiness().status, Status::Ok);
        assert_eq!(health.liveness().status, Status::Ok, "no remote decides about liveness");
    }

    #[test]
    fn services_of_one_kind_are_told_apart_by_their_names() {
        let health = Health::new();
        let (east, west) = (health.of("us-east"), health.of("us-west"));
        let (first, second) = (east.dependency("broker"), west.dependency("broker"));
        first.up();
        second.down("refused");
        let checks = health.readiness().checks;
        assert_eq!((&checks["us-east.broker"], &checks["us-west.broker"]), (&Check::ok(), &Check::error("refused")));
        let beat = west.heartbeat("poll", Duration::from_secs(1));
        assert_eq!(health.liveness().checks.keys().collect::<Vec<_>>(), ["us-west.poll"]);
        drop(beat);
        assert!(health.liveness().checks.is_empty());
        west.service("sentinel", "clusters");
        assert_eq!(health.services().keys().collect::<Vec<_>>(), ["us-west.sentinel"]);
    }

    #[test]
    fn of_a_service_that_runs_no_more_nothing_is_checked() {
        let health = Health::new();
        let (east, west) = (health.of("us-east"), health.of("us-west"));
        let (gone, stays) = (east.dependency("broker"), west.dependency("broker"));
        let alike = health.of("us-east.spare").dependency("broker");
        stays.up();
        alike.up();
        east.service("sentinel", "clusters");
        east.forget();
        gone.down("refused");
        assert_eq!(health.readiness().checks.keys().collect::<Vec<_>>(), ["us-east.spare.broker", "us-west.broker"]);
        assert_eq!(health.readiness().status, Status::Ok);
        assert!(health.services().is_empty());
    }

    #[test]
    fn draining_makes_readiness_red_for_good() {
        let health = Health::new();
        let api = health.dependency("api");
        api.up();
        health.draining();
        api.up();
        let report = health.readiness();
        assert_eq!(report.status, Status::Error);
        assert_eq!(report.checks["shutdown"].status, Status::Error);
        assert_eq!(health.liveness().status, Status::Ok);
    }
}
