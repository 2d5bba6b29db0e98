//! The process of a container, in namespaces of its own; `container.sh` says what it finds there.
//!
//! It is the first process there, whose end is the end of all others; and it ends with the thread that has started it.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::pod::End;
use super::volumes::Mount;

const SCRIPT: &str = include_str!("container.sh");

/// Begins the namespace of processes with the first command that it runs, and tells how that ended. `unshare --fork`
/// would, but not of a SIGKILL.
const OUTSIDE: &str = r#"exec 4>&2 2>/dev/null; (exec "$@" 2>&4 4>&-); exit $?"#;

/// The last step, within: what fails before the word is no matter of the container's.
const ENTER: &str = r#"
mkdir -p "$0" && cd "$0" && command -v "$1" >/dev/null || { echo "no program $1 to run in $0"; exit 1; } >&2
echo started >&2
exec "$@" >&3 2>&3 3>&-
"#;

/// What a container is made from.
pub(super) struct Setup {
    /// Of this attempt alone; its log is written there.
    pub(super) dir: PathBuf,
    pub(super) hostname: String,
    pub(super) mounts: Vec<Mount>,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) working_dir: String,
    pub(super) command: Vec<String>,
}

pub(super) struct Process {
    child: Child,
    /// The container's first process, which has no number where it has ended already.
    first: Option<Pid>,
}

impl Process {
    /// Returns once the command runs, or with what stood in its way.
    pub(super) async fn start(setup: &Setup) -> Result<Self, String> {
        std::fs::create_dir_all(setup.dir.join("layers")).map_err(|e| format!("make a directory: {e}"))?;
        let with_parent = ["setpriv", "--pdeathsig", "KILL"];
        let mut command = Command::new(with_parent[0]);
        command.args(&with_parent[1..]).args(["unshare", "--mount", "--pid", "--uts", "/bin/sh", "-c", OUTSIDE, "sh"]);
        command.args(with_parent).args(["/bin/sh", "-c", SCRIPT, "sh"]).arg(&setup.dir).arg(&setup.hostname);
        for Mount { source, target, mode } in &setup.mounts {
            command.arg(source).args([target, *mode]);
        }
        command.arg("--").args(setup.environment.iter().map(|(name, value)| format!("{name}={value}")));
        command.args(["/bin/sh", "-c", ENTER, &setup.working_dir]).args(&setup.command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|e| format!("run setpriv: {e}"))?;
        let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let mut said = Vec::new();
        while let Ok(Some(line)) = lines.next_line().await {
            if line == "started" {
                let first = child.id().and_then(only_child);
                return Ok(Self { child, first });
            }
            said.push(line);
        }
        Err(said.join("; "))
    }

    /// Its exit code. It is asked to end, and made to by the time, when its pod has to end.
    pub(super) async fn wait(mut self, mut end: watch::Receiver<End>) -> i32 {
        let mut asked = false;
        loop {
            let by = end.borrow_and_update().by;
            if by.is_some() && !asked {
                self.signal(Signal::TERM);
                asked = true;
            }
            tokio::select! {
                ended = self.child.wait() => return exit_code(ended.expect("wait for a child")),
                Ok(()) = end.changed() => {}
                () = sleep_until(by.unwrap_or_else(Instant::now)), if by.is_some() => {
                    self.signal(Signal::KILL);
                    if self.first.is_none() {
                        // Where the kernel does not say whose child it is; it ends with the one that waits for it.
                        self.child.start_kill().unwrap_or_default();
                    }
                    return exit_code(self.child.wait().await.expect("wait for a child"));
                }
            }
        }
    }

    /// Not to the child: it waits for the first process, whose end comes when nothing is left of the others.
    fn signal(&self, signal: Signal) {
        if let Some(first) = self.first {
            // An error means that it has ended.
            kill_process(first, signal).unwrap_or_default();
        }
    }
}

/// As a shell has it.
fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or_default()
}

fn only_child(pid: u32) -> Option<Pid> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    Pid::from_raw(children.trim().parse().ok()?)
}

/// Whether this machine lets us do all that; else what stands in the way.
pub(crate) async fn possible() -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|e| format!("make a directory: {e}"))?;
    let setup = Setup {
        dir: dir.path().to_owned(),
        hostname: "probe".into(),
        mounts: Vec::new(),
        environment: BTreeMap::new(),
        working_dir: "/".into(),
        command: vec!["true".into()],
    };
    Process::start(&setup).await.map(drop)
}
