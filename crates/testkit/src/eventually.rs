//! Waiting on a condition, with a deadline.

use std::time::{Duration, Instant};

/// How often a condition is looked at; short against any deadline, long against its cost.
const POLL: Duration = Duration::from_millis(10);

/// Waits until `condition` yields a value, and panics with `what` when `deadline` passes first.
pub async fn eventually<T>(deadline: Duration, what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(start.elapsed() < deadline, "not within {deadline:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
}
