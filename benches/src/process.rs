//! A service in a process of its own, and what can be seen of it from outside.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use watchfire_testkit::{beside, free_port};

/// How long the slowest row may take.
const DEADLINE: Duration = Duration::from_mins(5);

/// A running service; killed when dropped.
pub(crate) struct Service {
    child: Child,
    address: String,
    begun: Instant,
    /// Kept for as long as it runs.
    folder: Option<tempfile::TempDir>,
}

impl Service {
    /// Starts a sentinel that polls once and then waits for an hour.
    pub(crate) fn sentinel(api: &str, broker: &[(&str, String)]) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let config =
            format!("resource_type: clusters\npoll_interval: 1h\nhyperfleet_api:\n  endpoint: {api}\n  timeout: 30s\n");
        let mut service = Self::start("sentinel", &config, folder.path(), broker)?;
        service.folder = Some(folder);
        Ok(service)
    }

    /// Starts a service with this configuration, in a folder.
    pub(crate) fn start(name: &str, text: &str, folder: &Path, env: &[(&str, String)]) -> anyhow::Result<Self> {
        let config = folder.join("config.yaml");
        std::fs::write(&config, text)?;
        let address = format!("127.0.0.1:{}", free_port());
        let binary = beside("watchfire");
        let begun = Instant::now();
        let child = Command::new(&binary)
            .arg(name)
            .arg("--config")
            .arg(&config)
            .args(["--health-bind-address", &address, "--metrics-bind-address", &address])
            .current_dir(folder)
            .envs(env.iter().map(|(name, value)| (name, value.as_str())))
            .env_remove("RUST_LOG")
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("start {}", binary.display()))?;
        Ok(Self { child, address, begun, folder: None })
    }

    /// Waits until the first cycle is over, and returns how long it took in seconds.
    pub(crate) async fn first_cycle(&mut self) -> anyhow::Result<f64> {
        let done = "hyperfleet_sentinel_last_successful_poll_timestamp_seconds";
        self.wait(async |this| this.metric(done).await.is_some_and(|at| at > 0.0)).await?;
        self.metric("hyperfleet_sentinel_poll_duration_seconds_sum").await.context("read the cycle's duration")
    }

    /// Waits until it is ready, after its first cycle, and returns how long that took since its start, in milliseconds.
    pub(crate) async fn ready(&mut self) -> anyhow::Result<f64> {
        self.wait(async |this| this.get("/readyz").await.is_some()).await?;
        Ok(self.begun.elapsed().as_secs_f64() * 1e3)
    }

    /// Events that the broker confirmed.
    pub(crate) async fn published(&self) -> f64 {
        self.metric("hyperfleet_broker_messages_published_total").await.unwrap_or(0.0)
    }

    /// Resident memory in MiB: at its peak, or now.
    pub(crate) fn memory(&self, which: &str) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line =
            status.lines().find_map(|line| line.strip_prefix(which)).context("find the memory of the process")?;
        let kib: f64 = line.trim_start_matches(':').trim().trim_end_matches(" kB").trim().parse()?;
        Ok(kib / 1024.0)
    }

    /// Waits until something can be seen.
    pub(crate) async fn wait(&mut self, mut done: impl AsyncFnMut(&Self) -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + DEADLINE;
        while !done(self).await {
            ensure!(self.child.try_wait()?.is_none(), "the service ended; run it by hand to see why");
            ensure!(Instant::now() < deadline, "nothing within {DEADLINE:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    async fn get(&self, path: &str) -> Option<String> {
        let answer = reqwest::get(format!("http://{}{path}", self.address)).await.ok()?;
        answer.error_for_status().ok()?.text().await.ok()
    }

    /// The sum of the series of a metric.
    pub(crate) async fn metric(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics").await?;
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).reduce(|sum, value| sum + value)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended by itself.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
