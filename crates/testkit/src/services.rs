//! Where the real services are, and what happens to a test whose service is absent.
//!
//! A test asks a finder and returns when the answer is `None`: the finder has then said so, on standard error and in
//! the file that `WATCHFIRE_TEST_SKIPS` names, which `make test` prints at its end. With
//! `WATCHFIRE_TEST_REQUIRE=services` an absent service fails the test instead; with `all`, so does a right that this
//! machine does not give.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::Duration;

use crate::broker::Broker;
use crate::kubelet::{self, ProcessNode};
use crate::kubernetes::{Cluster, ControlPlane};
use crate::node::{Emulator, testbed};

/// Loopback answers at once or not at all.
const PROBE: Duration = Duration::from_secs(1);

/// The AMQP URL of a running RabbitMQ: `WATCHFIRE_TEST_AMQP_URL`, else the default port of this machine.
pub fn amqp_url(test: &str) -> Option<String> {
    install_crypto();
    let found = running("WATCHFIRE_TEST_AMQP_URL", 5672, "amqp://guest:guest@127.0.0.1:5672/%2f");
    if found.is_none() {
        missing(test, "RabbitMQ", "run `testbed/up rabbitmq`, or set WATCHFIRE_TEST_AMQP_URL");
    }
    found
}

/// `host:port` of a running Pub/Sub emulator: `PUBSUB_EMULATOR_HOST`, else its default port on this machine.
pub fn pubsub_endpoint(test: &str) -> Option<String> {
    install_crypto();
    let found = running("PUBSUB_EMULATOR_HOST", 8085, "127.0.0.1:8085");
    if found.is_none() {
        missing(test, "Pub/Sub emulator", "run `testbed/up pubsub`, or set PUBSUB_EMULATOR_HOST");
    }
    found
}

/// Starts a RabbitMQ of the test's own, to stop, kill and restart.
pub async fn private_broker(test: &str) -> Option<Broker> {
    private_broker_with(test, "").await
}

/// The same, with these lines added to its `rabbitmq.conf`.
pub async fn private_broker_with(test: &str, conf: &str) -> Option<Broker> {
    install_crypto();
    if !on_path("rabbitmq-server") {
        missing(test, "rabbitmq-server", "`apt-get install rabbitmq-server`, or run `testbed/up rabbitmq` as root");
        return None;
    }
    Some(Broker::start_with(conf).await)
}

/// Starts a Pub/Sub emulator of the test's own, to stop, kill and restart.
pub async fn private_emulator(test: &str) -> Option<Emulator> {
    install_crypto();
    let found = Command::new(testbed("pubsub")).arg("--find").output();
    if !found.is_ok_and(|output| output.status.success()) {
        missing(test, "cloud-pubsub-emulator", "install Google's Pub/Sub emulator (`testbed/up pubsub` says how)");
        return None;
    }
    Some(Emulator::start().await)
}

/// The Kubernetes that tests share: the one that `WATCHFIRE_TEST_KUBECONFIG` names, else the one of `testbed/up`.
pub async fn cluster(test: &str) -> Option<Cluster> {
    install_crypto();
    let named = std::env::var_os("WATCHFIRE_TEST_KUBECONFIG").filter(|value| !value.is_empty());
    let Some(named) = named.map(PathBuf::from).or_else(started_cluster) else {
        missing(test, "Kubernetes", "run `testbed/up kubernetes`, or set WATCHFIRE_TEST_KUBECONFIG");
        return None;
    };
    Some(Cluster::of(&named).await)
}

/// Starts a Kubernetes control plane of the test's own, to stop, kill and restart.
pub async fn control_plane(test: &str) -> Option<ControlPlane> {
    install_crypto();
    let found = Command::new(testbed("kubernetes")).arg("--find").output();
    if !found.is_ok_and(|output| output.status.success()) {
        missing(
            test,
            "a Kubernetes control plane",
            "install Go 1.26 or newer, with which `testbed/up kubernetes` builds it",
        );
        return None;
    }
    Some(ControlPlane::start().await)
}

/// Adds a node to a cluster whose pods run as processes of this machine.
pub async fn process_node(test: &str, cluster: &Cluster) -> Option<ProcessNode> {
    if let Err(why) = kubelet::possible().await {
        let how = format!("run the tests as root, on Linux with overlayfs and util-linux ({why})");
        skipped(test, "the right to make containers of processes", &how, &["all"]);
        return None;
    }
    Some(ProcessNode::start(cluster).await)
}

/// What `testbed/up kubernetes` has started, if it runs.
fn started_cluster() -> Option<PathBuf> {
    let output = Command::new(testbed("kubernetes")).arg("--shared").output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(path.trim()))
}

/// Installs `ring` as the TLS provider of this process, as the binary does first in `main`.
pub fn install_crypto() {
    static ONCE: Once = Once::new();
    // An error means that a provider is installed already, which is all we want.
    ONCE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

/// Says that `test` was skipped for want of `service` and how to get it; fails it where services are required.
pub fn missing(test: &str, service: &str, how: &str) {
    skipped(test, service, how, &["services", "all"]);
}

fn skipped(test: &str, what: &str, how: &str, required_by: &[&str]) {
    let line = format!("SKIPPED {test}: {what} is not here: {how}");
    let required = std::env::var("WATCHFIRE_TEST_REQUIRE").unwrap_or_default();
    assert!(
        !required_by.contains(&required.as_str()),
        "WATCHFIRE_TEST_REQUIRE={required}, and {what} is not here: {how}"
    );
    // Straight to the descriptor: the harness captures `eprintln!` of a passing test.
    writeln!(std::io::stderr(), "{line}").expect("write to standard error");
    if let Some(path) = std::env::var_os("WATCHFIRE_TEST_SKIPS") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        writeln!(file.expect("open the file that WATCHFIRE_TEST_SKIPS names"), "{line}").expect("append a skip");
    }
}

/// What the variable names, else the default where something listens.
fn running(variable: &str, port: u16, default: &str) -> Option<String> {
    let named = std::env::var(variable).ok().filter(|value| !value.is_empty());
    named.or_else(|| listens(port).then(|| default.to_owned()))
}

fn listens(port: u16) -> bool {
    TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), PROBE).is_ok()
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian keeps servers in /usr/sbin, which is not on every user's PATH.
    let mut dirs = std::env::split_paths(&path).chain([Path::new("/usr/sbin").to_owned()]);
    dirs.any(|dir| dir.join(program).exists())
}
