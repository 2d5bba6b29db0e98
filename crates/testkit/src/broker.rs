//! A RabbitMQ that belongs to one test: its own node, ports and data, to stop, kill and restart.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use tokio::process::Command;
use tokio::time::timeout;

use crate::node::{Node, START, free_port, testbed};
use crate::{Rabbit, eventually};

/// A private RabbitMQ node; its data survives [`Broker::kill`] and is removed on drop.
pub struct Broker {
    port: u16,
    dist_port: u16,
    epmd_port: u16,
    // Fields drop in order: the node before its name server, both before their data.
    node: Option<Node>,
    _epmd: Node,
    dir: tempfile::TempDir,
}

impl Broker {
    /// Starts a node and waits until it takes connections.
    pub async fn start() -> Self {
        Self::start_with("").await
    }

    /// The same, with these lines added to its `rabbitmq.conf`.
    pub async fn start_with(conf: &str) -> Self {
        let dir = tempfile::tempdir().expect("make a directory for the broker");
        std::fs::write(dir.path().join("extra.conf"), conf).expect("write the broker's configuration");
        let (port, dist_port, epmd_port) = (free_port(), free_port(), free_port());
        let epmd_args = ["-port", &epmd_port.to_string(), "-address", "127.0.0.1"];
        let epmd = Node::spawn(Path::new("epmd"), &epmd_args, &dir.path().join("epmd.log"));
        let mut broker = Self { port, dist_port, epmd_port, node: None, _epmd: epmd, dir };
        broker.restart().await;
        broker
    }

    /// The URL of the default virtual host, as guest.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// Where it listens; for a proxy in front of it.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// The broker's process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.node.as_ref().map(Node::pid)
    }

    /// `kill -9`: no goodbye to its clients, no flush.
    pub fn kill(&mut self) {
        self.node = None;
    }

    /// An orderly stop: clients are told (320 CONNECTION_FORCED), data is flushed.
    pub async fn stop(&mut self) {
        self.ctl(&["stop"]).await;
        if let Some(mut node) = self.node.take() {
            eventually(START, "RabbitMQ stops", async || node.exited().then_some(())).await;
        }
    }

    /// Starts the node again, same ports, same data, and waits until it takes connections.
    pub async fn restart(&mut self) {
        self.kill();
        let args = self.args("server");
        let log = self.dir.path().join("server.log");
        let mut node = Node::spawn(&testbed("rabbitmq"), &args.each_ref().map(String::as_str), &log);
        let url = self.url();
        eventually(START, "RabbitMQ takes connections", async || {
            assert!(!node.exited(), "RabbitMQ ended: {}", std::fs::read_to_string(&log).unwrap_or_default());
            Rabbit::try_connect(&url).await.ok()
        })
        .await;
        self.node = Some(node);
    }

    /// Runs `rabbitmqctl`, for example `["set_vm_memory_high_watermark", "0"]`, and returns its output.
    pub async fn ctl(&self, args: &[&str]) -> String {
        let mut command = Command::new(testbed("rabbitmq"));
        command.args(self.args("ctl")).args(args).kill_on_drop(true);
        let output =
            timeout(START, command.output()).await.expect("rabbitmqctl ends in time").expect("run rabbitmqctl");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "rabbitmqctl {args:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    fn args(&self, verb: &str) -> [String; 5] {
        let dir = self.dir.path().to_string_lossy().into_owned();
        [dir, self.port.to_string(), self.dist_port.to_string(), self.epmd_port.to_string(), verb.to_owned()]
    }
}
