//! One container: made, started, ended, and started again where its pod wants that.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
};
use uuid::Uuid;

use super::pod::Pod;
use super::process::{Process, Setup};
use super::{RETRY, environment, logs, now, volumes};

/// Between two starts of a container, the longest; a real kubelet waits up to five minutes.
const BACKOFF: Duration = Duration::from_secs(3);

/// So much of a termination message is told, and so much of a log that stands for it.
const MESSAGE_BYTES: usize = 4096;
const LOG_BYTES: usize = 2048;
const LOG_LINES: usize = 80;

/// Why a container cannot be made, with the reason that a kubelet gives.
struct Obstacle {
    reason: &'static str,
    message: String,
}

/// What is said of a container that was not begun.
pub(super) fn created(container: &Container) -> ContainerStatus {
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        state: Some(waiting("ContainerCreating", None)),
        ..ContainerStatus::default()
    }
}

/// Returns when it has ended for good.
pub(super) async fn run(pod: &Pod, at: usize, container: &Container) {
    let mut pause = Duration::ZERO;
    for attempt in 0.. {
        let setup = loop {
            if !pod.goes_on_after(pause).await {
                return;
            }
            match set_up(pod, container, attempt).await {
                Ok(setup) => break setup,
                Err(Obstacle { reason, message }) => {
                    pod.tell(at, |it| it.state = Some(waiting(reason, Some(message))));
                }
            }
            pause = RETRY;
        };
        let ended = run_once(pod, at, attempt, &setup, container).await;
        let succeeded = ended.exit_code == 0;
        let state = ContainerState { terminated: Some(ended), ..ContainerState::default() };
        pod.tell(at, |it| {
            (it.ready, it.started, it.restart_count) = (false, Some(false), attempt);
            it.state = Some(state.clone());
        });
        let again = match pod.spec.restart_policy.as_deref() {
            Some("Never") => false,
            Some("OnFailure") => !succeeded,
            _ => true,
        };
        if !again || !pod.goes_on_after(Duration::ZERO).await {
            return;
        }
        pod.tell(at, |it| {
            it.state = Some(waiting("CrashLoopBackOff", None));
            it.last_state = Some(state);
        });
        pause = BACKOFF.min(RETRY * 2_u32.saturating_pow(attempt.unsigned_abs()));
    }
}

async fn set_up(pod: &Pod, container: &Container, attempt: i32) -> Result<Setup, Obstacle> {
    let misconfigured = |message| Obstacle { reason: "CreateContainerConfigError", message };
    let environment = environment::of(pod, container).await.map_err(misconfigured)?;
    let words = container.command.iter().chain(&container.args).flatten();
    let command: Vec<_> = words.map(|word| environment::expand(word, &environment)).collect();
    if command.is_empty() {
        let message = "no command specified: a process node has no images".to_owned();
        return Err(Obstacle { reason: "CreateContainerError", message });
    }
    let mut mounts = volumes::mounts(pod, container);
    let dir = pod.container_dir(&container.name, attempt);
    std::fs::create_dir_all(&dir).expect("make a directory for a container");
    std::fs::write(dir.join("message"), "").expect("write to the directory of a container");
    mounts.push(volumes::Mount {
        source: dir.join("message"),
        target: container.termination_message_path.clone().unwrap_or_else(|| "/dev/termination-log".to_owned()),
        mode: "rw",
    });
    let working_dir = container.working_dir.clone().unwrap_or_else(|| "/".to_owned());
    Ok(Setup { dir, hostname: pod.hostname().to_owned(), mounts, environment, working_dir, command })
}

async fn run_once(
    pod: &Pod,
    at: usize,
    attempt: i32,
    setup: &Setup,
    container: &Container,
) -> ContainerStateTerminated {
    let id = format!("process://{}", Uuid::new_v4().simple());
    let process = Process::start(setup).await;
    let started = now();
    let ended = |exit_code, reason: &str, message| ContainerStateTerminated {
        container_id: Some(id.clone()),
        exit_code,
        reason: Some(reason.to_owned()),
        message,
        started_at: Some(started.clone()),
        finished_at: Some(now()),
        signal: None,
    };
    let process = match process {
        Ok(process) => process,
        Err(why) => return ended(128, "StartError", Some(why)),
    };
    let running = ContainerStateRunning { started_at: Some(started.clone()) };
    pod.tell(at, |it| {
        (it.ready, it.started, it.restart_count) = (true, Some(true), attempt);
        it.container_id = Some(id.clone());
        it.state = Some(ContainerState { running: Some(running), ..ContainerState::default() });
    });
    let code = process.wait(pod.end()).await;
    let from_log = container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError") && code != 0;
    ended(code, if code == 0 { "Completed" } else { "Error" }, message(&setup.dir, from_log))
}

/// What the container has left to say.
fn message(dir: &Path, from_log: bool) -> Option<String> {
    let mut text = std::fs::read(dir.join("message")).unwrap_or_default();
    text.truncate(MESSAGE_BYTES);
    if text.is_empty() && from_log {
        text = std::fs::read(logs::file(dir)).unwrap_or_default();
        let from = logs::last_lines(&text, LOG_LINES).max(text.len().saturating_sub(LOG_BYTES));
        text.drain(..from);
    }
    (!text.is_empty()).then(|| String::from_utf8_lossy(&text).into_owned())
}

fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    let waiting = ContainerStateWaiting { reason: Some(reason.to_owned()), message };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}
