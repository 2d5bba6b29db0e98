//! What these tests share: a started binary and everything it says, a sentinel, a simulated API.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use watchfire_simulator::{Server, Simulator};
use watchfire_testkit::{eventually, proc_status};

/// The binary under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_watchfire");

/// How long anything may take before a test says that it did not happen; two cores may be shared by many builds.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// Reads a file of the repository.
pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("read {path}: {error}"))
}

/// The binary with these arguments, and nothing of this process's environment but where programs and homes are.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(args);
    isolate(&mut command);
    command
}

/// Takes the variables away that would change what the binary does.
pub(crate) fn isolate(command: &mut Command) {
    command.env_clear().kill_on_drop(true).stdin(Stdio::null());
    for name in ["PATH", "HOME", "TMPDIR"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
}

/// Runs the binary to its end.
pub(crate) async fn run(args: &[&str], env: &[(&str, &str)]) -> Output {
    let output = command(args).envs(env.iter().copied()).output();
    tokio::time::timeout(DEADLINE, output).await.expect("an end in time").expect("a start")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A process that runs, and what it has said so far. Killed on drop.
pub(crate) struct Process {
    child: Child,
    pub(crate) begun: Instant,
    out: Arc<Mutex<String>>,
    err: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let begun = Instant::now();
        let mut child = command.spawn().expect("a start");
        let (out, err) = (Arc::default(), Arc::default());
        let readers = vec![
            follow(child.stdout.take().expect("piped"), Arc::clone(&out)),
            follow(child.stderr.take().expect("piped"), Arc::clone(&err)),
        ];
        Self { child, begun, out, err, readers }
    }

    pub(crate) fn out(&self) -> String {
        self.out.lock().expect("whole").clone()
    }

    pub(crate) fn err(&self) -> String {
        self.err.lock().expect("whole").clone()
    }

    /// Waits for a line on standard output that contains every part.
    pub(crate) async fn line(&self, parts: &[&str]) -> String {
        let found = async || {
            // Asked before the look: what is said last is still seen.
            let ended = self.readers.iter().all(JoinHandle::is_finished);
            let out = self.out();
            let line = out.lines().find(|line| parts.iter().all(|part| line.contains(part)));
            line.map(|line| Some(line.to_owned())).or_else(|| ended.then_some(None))
        };
        let line = eventually(DEADLINE, &format!("a line with {parts:?}"), found).await;
        line.unwrap_or_else(|| panic!("ended without a line with {parts:?}:\n{}{}", self.out(), self.err()))
    }

    pub(crate) fn pid(&self) -> Pid {
        let id = self.child.id().expect("not waited for yet");
        Pid::from_raw(id.try_into().expect("a process id")).expect("a process id")
    }

    /// The most memory that it has had so far, in KiB.
    pub(crate) fn peak_memory(&self) -> u64 {
        proc_status(self.child.id().expect("not waited for yet"), "VmHWM")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("a process to signal");
    }

    /// Waits for the end and for everything that was said before it.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let status = tokio::time::timeout(DEADLINE, self.child.wait()).await;
        let status = status.unwrap_or_else(|_| panic!("no end:\n{}{}", self.out(), self.err())).expect("a status");
        for reader in &mut self.readers {
            tokio::time::timeout(DEADLINE, reader).await.expect("the end of its output").expect("a reader");
        }
        status
    }
}

#[expect(clippy::disallowed_methods, reason = "a test has no supervisor; the reader ends with the process")]
fn follow(mut from: impl AsyncRead + Unpin + Send + 'static, into: Arc<Mutex<String>>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut bytes).await {
            into.lock().expect("whole").push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    })
}

/// A simulated API on loopback; stops when dropped.
pub(crate) struct Api {
    pub(crate) fleet: Simulator,
    pub(crate) url: String,
    token: CancellationToken,
}

impl Api {
    #[expect(clippy::disallowed_methods, reason = "a test has no supervisor; the server ends with the API")]
    pub(crate) async fn serve(fleet: Simulator) -> Self {
        watchfire_testkit::install_crypto();
        let server = Server::bind(([127, 0, 0, 1], 0).into(), fleet.clone()).await.expect("bind");
        let (url, token) = (server.url(), CancellationToken::new());
        let stop = token.clone();
        tokio::spawn(async move { stop.clone().run_until_cancelled(server.run(stop)).await });
        Self { fleet, url, token }
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.token.cancel();
    }
}

/// What a sentinel is started with; its files are in a folder of its own.
pub(crate) struct Setup {
    pub(crate) folder: Arc<tempfile::TempDir>,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
}

impl Setup {
    /// A sentinel of clusters at `api`, with more lines for its file, over the embedded broker to `subscriber`.
    pub(crate) fn new(api: &str, more: &str, subscriber: &str) -> Self {
        let folder = Arc::new(tempfile::tempdir().expect("a folder"));
        let file = folder.path().join("sentinel.yaml");
        let config = format!("resource_type: clusters\n{more}\nhyperfleet_api:\n  endpoint: {api}\n  timeout: 5s\n");
        std::fs::write(&file, config).expect("a file");
        let store = folder.path().join("broker.db");
        let env = [
            ("BROKER_TYPE", "http".to_owned()),
            ("BROKER_HTTP_SUBSCRIBERS", format!("validation={subscriber}")),
            ("BROKER_HTTP_STORE", store.display().to_string()),
        ];
        let args = ["--config".to_owned(), file.display().to_string()].to_vec();
        Self { folder, args, env: env.map(|(name, value)| (name.to_owned(), value)).to_vec() }
            .arg("--health-bind-address", "127.0.0.1:0")
            .arg("--metrics-bind-address", "127.0.0.1:0")
    }

    pub(crate) fn arg(mut self, flag: &str, value: &str) -> Self {
        if let Some(at) = self.args.iter().position(|arg| arg == flag) {
            self.args.drain(at..=at + 1);
        }
        self.args.extend([flag.to_owned(), value.to_owned()]);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = command(&["sentinel"]);
        command.args(&self.args).envs(self.env.iter().cloned()).current_dir(self.folder.path());
        command
    }

    /// Starts it, and waits until it serves.
    pub(crate) async fn start(&self) -> Sentinel {
        Sentinel { _folder: Some(Arc::clone(&self.folder)), ..Sentinel::started(Process::start(self.command())).await }
    }
}

/// A sentinel that runs.
pub(crate) struct Sentinel {
    pub(crate) process: Process,
    pub(crate) health: String,
    pub(crate) metrics: String,
    // Its store must not be deleted while it runs.
    _folder: Option<Arc<tempfile::TempDir>>,
}

impl Sentinel {
    /// Waits until a process serves.
    pub(crate) async fn started(process: Process) -> Self {
        let started: Value = serde_json::from_str(&process.line(&["sentinel started"]).await).expect("JSON");
        let address = |name: &str| format!("http://{}", started[name].as_str().expect("an address"));
        Self { health: address("health"), metrics: address("metrics"), process, _folder: None }
    }

    pub(crate) async fn stop(mut self) -> String {
        self.process.signal(Signal::TERM);
        let status = self.process.ended().await;
        assert_eq!(status.code(), Some(0), "{}{}", self.process.out(), self.process.err());
        format!("{}{}", self.process.out(), self.process.err())
    }

    /// Waits until /readyz has this status, and returns its body.
    pub(crate) async fn readiness(&self, status: u16) -> String {
        let url = format!("{}/readyz", self.health);
        let answer = async || {
            let (found, body) = get(&url).await;
            (found == status).then_some(body)
        };
        eventually(DEADLINE, &format!("{url} answers {status}"), answer).await
    }
}

/// Asks for a page.
pub(crate) async fn get(url: &str) -> (u16, String) {
    let answer = reqwest::get(url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
    (answer.status().as_u16(), answer.text().await.expect("text"))
}
