//! Removes what was delivered or discarded long enough ago, in small steps, and gives its space back.

use std::iter::repeat;
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

/// How long to wait before each look: the second comes soon after the first, also in a process that does not last long.
pub fn looks(every: Duration) -> impl Iterator<Item = Duration> {
    let every = every.max(Duration::from_millis(10));
    [Duration::ZERO, every.min(Duration::from_mins(1))].into_iter().chain(repeat(every))
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
        // What is old enough by two looks in a row: a clock that jumps ahead and back removes nothing.
        let mut last = Timestamp::MIN;
        for wait in looks(self.every) {
            if token.run_until_cancelled(sleep(wait)).await.is_none() {
                break;
            }
            let old = clock::now().checked_sub(self.keep).unwrap_or(Timestamp::MIN);
            let before = std::mem::replace(&mut last, old).min(old);
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
