//! Waiting on a condition, with a deadline.

use std::time::{Duration, Instant};

use tokio::time::timeout;

/// How often a condition is looked at; short against any deadline, long against its cost.
const POLL: Duration = Duration::from_millis(10);

/// Waits until `condition` yields a value, and panics with `what` when `deadline` passes first, also while the
/// condition is being looked at.
pub async fn eventually<T>(deadline: Duration, what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        let look = timeout(deadline.saturating_sub(start.elapsed()), condition()).await;
        if let Some(value) = look.unwrap_or_default() {
            return value;
        }
        assert!(start.elapsed() < deadline, "not within {deadline:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// Takes `n` messages from `next`, and panics when it has no more.
pub(crate) async fn take<T>(n: usize, mut next: impl AsyncFnMut() -> Option<T>) -> Vec<T> {
    let mut messages = Vec::with_capacity(n);
    while messages.len() < n {
        let message = next().await;
        messages.push(message.unwrap_or_else(|| panic!("{} of {n} messages came", messages.len())));
    }
    messages
}
