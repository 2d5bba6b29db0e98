//! What can be seen of the process from outside: liveness, readiness, memory, threads, open files.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use reqwest::StatusCode;

use crate::child::Process;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(100);
/// A health endpoint that takes longer has not answered.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// One look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) at: Duration,
    /// What `/healthz` answered; `None` if it did not.
    pub(crate) alive: Option<u16>,
    pub(crate) ready: bool,
    pub(crate) rss_kib: u64,
    pub(crate) threads: u64,
    pub(crate) files: u64,
}

/// The looks so far.
#[derive(Default)]
pub(crate) struct Vitals(Mutex<Vec<Look>>);

impl Vitals {
    /// Looks until dropped.
    pub(crate) async fn watch(&self, process: &Process, begun: Instant) -> anyhow::Result<()> {
        let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build()?;
        let mut ticks = tokio::time::interval(EVERY);
        loop {
            ticks.tick().await;
            process.revive()?;
            let (Some(address), Some(pid)) = (process.address(), process.pid()) else { continue };
            let at = begun.elapsed();
            let ask = async |path: &str| {
                let answer = client.get(format!("http://{address}{path}")).send().await.ok()?;
                Some(answer.status())
            };
            let (alive, ready) = tokio::join!(ask("/healthz"), ask("/readyz"));
            // It may have been replaced meanwhile, and is then no business of this look.
            if process.pid() != Some(pid) {
                continue;
            }
            let pid = pid.as_raw_nonzero();
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let number = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
                line.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0)
            };
            let look = Look {
                at,
                alive: alive.map(|status| status.as_u16()),
                ready: ready == Some(StatusCode::OK),
                rss_kib: number("VmRSS:"),
                threads: number("Threads:"),
                files: std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |entries| entries.count() as u64),
            };
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(look);
        }
    }

    pub(crate) fn looks(&self) -> Vec<Look> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a look later than `since` found the process ready.
    pub(crate) fn ready_since(&self, since: Duration) -> bool {
        let looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        looks.last().is_some_and(|look| look.at >= since && look.ready)
    }
}
