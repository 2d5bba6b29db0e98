//! A service process that belongs to one test: started from `testbed/`, killed on drop.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::eventually;

/// A cold Erlang or Java start on a machine whose cores are all compiling.
pub(crate) const START: Duration = Duration::from_mins(2);

/// A child that does not outlive its owner: killed on drop, and by the kernel when the starting thread dies first.
pub(crate) struct Node(Child);

impl Node {
    /// Starts `program`; its standard error goes to `log`.
    pub(crate) fn spawn(program: &Path, args: &[&str], log: &Path) -> Self {
        let mut command = if Path::new("/usr/bin/setpriv").exists() {
            let mut command = Command::new("/usr/bin/setpriv");
            command.args(["--pdeathsig", "KILL"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log).expect("open the log of a process");
        command.args(args).stdin(Stdio::null()).stdout(log.try_clone().expect("share the log")).stderr(log);
        Self(command.spawn().unwrap_or_else(|e| panic!("start {}: {e}", program.display())))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn exited(&mut self) -> bool {
        self.0.try_wait().expect("ask for the state of a child").is_some()
    }

    /// SIGTERM.
    pub(crate) fn terminate(&self) {
        let pid = i32::try_from(self.pid()).ok().and_then(rustix::process::Pid::from_raw).expect("a process has an id");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .expect("a child is there until it is waited for");
    }

    /// SIGKILL, and waits for the end.
    pub(crate) fn kill(&mut self) {
        // An error means that it has ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The path of a program in `testbed/`.
pub(crate) fn testbed(program: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testbed").join(program)
}

/// A port that was free a moment ago, and that the kernel gives to nobody: while a service is down, a connection of
/// anyone's could take one of those that it hands out (32768 and up).
pub fn free_port() -> u16 {
    let candidate = || {
        let [low, high, ..] = uuid::Uuid::new_v4().into_bytes();
        10_000 + u16::from_le_bytes([low, high]) % 20_000
    };
    let free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    std::iter::repeat_with(candidate).take(100).find(free).expect("find a free port")
}

/// A Pub/Sub emulator on its own port. It keeps topics in memory: a restart forgets them.
pub struct Emulator {
    port: u16,
    dir: tempfile::TempDir,
    node: Option<Node>,
}

impl Emulator {
    /// Starts an emulator and waits until it answers.
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().expect("make a directory for the emulator");
        let mut emulator = Self { port: free_port(), dir, node: None };
        emulator.restart().await;
        emulator
    }

    /// `host:port`, as in `PUBSUB_EMULATOR_HOST`.
    pub fn endpoint(&self) -> String {
        self.address().to_string()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.node = None;
    }

    /// Starts it again on the same port.
    pub async fn restart(&mut self) {
        self.kill();
        let log = self.dir.path().join("emulator.log");
        let mut node = Node::spawn(&testbed("pubsub"), &[&self.port.to_string()], &log);
        eventually(START, "the Pub/Sub emulator listens", async || {
            assert!(!node.exited(), "the emulator ended: {}", std::fs::read_to_string(&log).unwrap_or_default());
            tokio::net::TcpStream::connect(self.address()).await.ok()
        })
        .await;
        self.node = Some(node);
    }
}
