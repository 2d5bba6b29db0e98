//! The crate from outside: over real sockets, and in processes of their own.

#![expect(clippy::unwrap_used, clippy::panic, reason = "clippy takes a test's helpers for production code")]

mod admin;
mod signals;
mod traces;

use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

/// How long a test waits for what must come.
const DEADLINE: Duration = Duration::from_secs(30);

/// Starts this test binary again, to run one ignored test as a process of its own.
fn child(test: &str, env: &[(&str, &str)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .envs(env.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}
