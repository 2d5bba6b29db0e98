//! Removes what was delivered or discarded long enough ago, in small steps, and gives its space back.

use std::mem::replace;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use watchfire_runtime::{chain, clock};

use crate::outbox;
use crate::store::{Error, Store};

/// Rows that go in one transaction: small enough that no delivery waits long for it.
const STEP: u32 = 500;
/// Pages that are given back to the volume in one transaction: 2 MiB.
const PAGES: u32 = 512;

/// The longest wait between the first two looks, also of a process that does not last long.
const SOON: Duration = Duration::from_mins(1);

/// When to look for what is old enough. That is what was so by two looks in a row: a clock that jumps ahead and back
/// removes nothing.
#[derive(Debug)]
pub struct Looks {
    keep: Duration,
    every: Duration,
    wait: Duration,
    last: Timestamp,
}

impl Looks {
    /// Looks every `every` for what is older than `keep`.
    pub fn new(keep: Duration, every: Duration) -> Self {
        Self { keep, every: every.max(Duration::from_millis(10)), wait: Duration::ZERO, last: Timestamp::MIN }
    }

    /// Waits for the next look, and returns before when a thing must have ended to be old enough; none once the token is
    /// cancelled.
    pub async fn next(&mut self, token: &CancellationToken) -> Option<Timestamp> {
        token.run_until_cancelled(sleep(self.wait)).await?;
        self.wait = if self.wait.is_zero() { self.every.min(SOON) } else { self.every };
        let old = clock::now().checked_sub(self.keep).unwrap_or(Timestamp::MIN);
        Some(replace(&mut self.last, old).min(old))
    }
}

/// Cleans one store's outbox.
#[derive(Clone)]
pub struct Retention {
    store: Store,
    keep: Duration,
    every: Duration,
}

impl Retention {
    /// Keeps what was delivered or discarded for `keep`, and looks for more every `every`.
    pub fn new(store: Store, keep: Duration, every: Duration) -> Self {
        Self { store, keep, every }
    }

    /// Cleans until the token is cancelled. A failure is logged, and tried again in the next round.
    pub async fn run(self, token: CancellationToken) -> Result<(), Error> {
        let mut looks = Looks::new(self.keep, self.every);
        while let Some(before) = looks.next(&token).await {
            match self.clean(before, &token).await {
                Ok(0) => {}
                Ok(rows) => tracing::debug!(rows, "outbox cleaned"),
                Err(Error::Closed) => return Err(Error::Closed),
                Err(error) => tracing::warn!(error = chain(&error), hint = error.hint(), "outbox not cleaned"),
            }
        }
        Ok(())
    }

    async fn clean(&self, before: Timestamp, token: &CancellationToken) -> Result<usize, Error> {
        let mut rows = 0;
        while !token.is_cancelled() {
            let removed = self.store.write(move |tx| outbox::prune(tx, before, STEP)).await?;
            rows += removed;
            if removed == 0 {
                break;
            }
        }
        while !token.is_cancelled() && self.store.vacuum(PAGES).await? > 0 {}
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S28 of the beacon.
    #[tokio::test(start_paused = true)]
    async fn the_first_look_removes_nothing_and_the_second_comes_soon() {
        let token = CancellationToken::new();
        let mut looks = Looks::new(Duration::from_hours(48), Duration::from_hours(1));
        let begun = tokio::time::Instant::now();
        assert_eq!(looks.next(&token).await, Some(Timestamp::MIN));
        let old = clock::now() - jiff::SignedDuration::from_hours(48);
        let second = looks.next(&token).await.unwrap();
        assert!(second > Timestamp::MIN && second <= old, "what was old by the first look");
        assert_eq!(begun.elapsed(), SOON);
        assert!(looks.next(&token).await.unwrap() >= second);
        assert_eq!(begun.elapsed(), SOON + Duration::from_hours(1));
        token.cancel();
        assert_eq!(looks.next(&token).await, None);
    }
}
