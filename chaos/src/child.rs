//! The sentinel in a process of its own: started, killed, paused, started again, and what it says meanwhile.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};

/// Lines kept to be shown when a round fails.
const TAIL: usize = 60;

/// How the process is started.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) binary: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
}

/// Something the process said about one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) at: Duration,
    pub(crate) resource: String,
    pub(crate) what: Outcome,
}

/// What became of one attempt to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The broker confirmed this event.
    Confirmed { event: String, reason: String },
    /// It did not, or not that the process heard of.
    Refused { event: String },
}

/// The process, whichever incarnation of it.
pub(crate) struct Process {
    launch: Launch,
    begun: Instant,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    child: Option<Child>,
    /// Where it serves its health, once it has said so.
    address: Option<String>,
    said: Vec<Said>,
    tail: VecDeque<String>,
    unexpected: Vec<String>,
}

impl Process {
    /// Starts it; times are counted from `begun`.
    pub(crate) fn start(launch: Launch, begun: Instant) -> anyhow::Result<Self> {
        let process = Self { launch, begun, state: Arc::default() };
        process.spawn()?;
        Ok(process)
    }

    fn spawn(&self) -> anyhow::Result<()> {
        let mut command = mortal(&self.launch.binary);
        command.args(&self.launch.args).env_clear().envs(self.launch.env.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("start {}", self.launch.binary.display()))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let mut state = self.state();
        state.address = None;
        state.child = Some(child);
        drop(state);
        follow(out, Arc::clone(&self.state), self.begun);
        follow(err, Arc::clone(&self.state), self.begun);
        Ok(())
    }

    /// `kill -9`, and a start after `pause`, as a kubelet would do it.
    pub(crate) async fn kill(&self, pause: Duration) -> anyhow::Result<()> {
        let child = self.state().child.take();
        if let Some(mut child) = child {
            child.start_kill().context("kill the sentinel")?;
            child.wait().await.context("wait for the killed sentinel")?;
        }
        tokio::time::sleep(pause).await;
        self.spawn()
    }

    /// Sends SIGSTOP or SIGCONT.
    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = self.pid().context("find the sentinel")?;
        kill_process(pid, signal).context("signal the sentinel")
    }

    /// SIGTERM; it has to end by itself, with 0.
    pub(crate) async fn stop(&self, within: Duration) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        let mut child = self.state().child.take().context("find the sentinel")?;
        let ended = tokio::time::timeout(within, child.wait()).await;
        let status = ended.with_context(|| format!("the sentinel does not stop within {within:?}"))??;
        ensure!(status.code() == Some(0), "the sentinel ended with {status} when told to stop");
        Ok(())
    }

    /// Notes an end that nobody asked for, and starts it again.
    pub(crate) fn revive(&self) -> anyhow::Result<()> {
        let mut state = self.state();
        let Some(status) = state.child.as_mut().and_then(|child| child.try_wait().ok().flatten()) else {
            return Ok(());
        };
        state.unexpected.push(format!("ended by itself with {status}"));
        drop(state);
        self.spawn()
    }

    pub(crate) fn pid(&self) -> Option<Pid> {
        let id = self.state().child.as_ref().and_then(Child::id)?;
        Pid::from_raw(id.try_into().ok()?)
    }

    pub(crate) fn address(&self) -> Option<String> {
        self.state().address.clone()
    }

    pub(crate) fn said(&self) -> Vec<Said> {
        self.state().said.clone()
    }

    pub(crate) fn unexpected(&self) -> Vec<String> {
        self.state().unexpected.clone()
    }

    pub(crate) fn tail(&self) -> Vec<String> {
        self.state().tail.iter().cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// A command that does not outlive this program, however that ends.
fn mortal(binary: &Path) -> Command {
    let setpriv = Path::new("/usr/bin/setpriv");
    if !setpriv.exists() {
        return Command::new(binary);
    }
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL"]).arg(binary);
    command
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes in what the process says, until it ends.
#[expect(clippy::disallowed_methods, reason = "a round has no supervisor; the reader ends with the process")]
fn follow(from: Option<impl AsyncRead + Unpin + Send + 'static>, state: Arc<Mutex<State>>, begun: Instant) {
    let Some(from) = from else { return };
    tokio::spawn(async move {
        let mut lines = BufReader::new(from).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let parsed: Value = serde_json::from_str(&line).unwrap_or_default();
            let mut state = lock(&state);
            if parsed["message"] == "sentinel started" {
                state.address = parsed["health"].as_str().map(str::to_owned);
            }
            state.said.extend(heard(&parsed, begun.elapsed()));
            if state.tail.len() == TAIL {
                state.tail.pop_front();
            }
            state.tail.push_back(line);
        }
    });
}

fn heard(line: &Value, at: Duration) -> Option<Said> {
    let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
    let what = match line["message"].as_str()? {
        "event published" => Outcome::Confirmed { event: text("event"), reason: text("decision_reason") },
        "event refused" => Outcome::Refused { event: text("event") },
        _ => return None,
    };
    Some(Said { at, resource: text("id"), what })
}
