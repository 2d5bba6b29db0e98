//! What Linux tells of a process, a test in a process of its own, and where its programs are.

use std::path::PathBuf;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

/// The longest that a test alone takes, with room for a machine whose cores are all compiling.
const ALONE: Duration = Duration::from_mins(10);

/// A number of `/proc/PID/status`, such as `VmHWM` (the most memory that it has had, in KiB) or `Threads`.
pub fn proc_status(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process that runs, on Linux");
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let value = value.unwrap_or_else(|| panic!("/proc/{pid}/status has no {name}"));
    value.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// How many files and sockets a process has open.
pub fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process that runs, on Linux").count()
}

/// Runs an ignored test of this test binary in a process that it shares with no other, and fails if it does.
pub async fn alone(test: &str) {
    alone_with(test, &[]).await;
}

/// The same, with these variables added to its environment.
pub async fn alone_with(test: &str, env: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().expect("this test binary"));
    command.args(["--exact", test, "--ignored", "--nocapture"]).envs(env.iter().copied()).kill_on_drop(true);
    let ended = timeout(ALONE, command.output()).await;
    let output = ended.unwrap_or_else(|_| panic!("{test} does not end")).expect("run a test");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    // Without a test of that name nothing would fail.
    assert!(output.status.success() && said.contains("1 passed"), "{test} fails:\n{said}");
}

/// A program that was built with this one.
pub fn beside(name: &str) -> PathBuf {
    let path = std::env::current_exe().expect("this program").with_file_name(name);
    assert!(path.exists(), "{} is not there; build it with the same profile first", path.display());
    path
}
