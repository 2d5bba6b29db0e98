//! What the outcomes of a window mean, and noting it.
//!
//! A refusal of credentials is provisional: it becomes a dead letter only when the event is refused again after the far
//! side took another one that was sent later. Until then it waits, longer each time, without its attempts being
//! counted.

use std::mem::take;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use watchfire_runtime::{chain, clock};

use super::{Attempt, Done, Judged, Worker, until_then};
use crate::circuit::Failure;
use crate::metrics::Outcome;
use crate::outbox::{self, Claim, Mark};
use crate::retry::Verdict;
use crate::sink;
use crate::store;

/// An event that was refused for its credentials.
#[derive(Default)]
pub(super) struct Refusal {
    /// The last window that had begun by then.
    window: u64,
    /// How often in a row.
    times: u32,
    /// Whether an event of a later window was taken, so that it is not the credentials.
    vouched: bool,
}

impl Worker {
    /// Decides what the outcomes mean; what is decided is noted next.
    pub(super) fn settle(&mut self, done: Vec<Done>) {
        let now = clock::now();
        for Done { window, begun, took, outcomes } in done {
            for (claim, outcome) in outcomes {
                let error = outcome.err();
                if let Some(error) = error.as_ref().filter(|error| error.verdict() == Verdict::Pause) {
                    self.pauses(chain(error));
                }
                let mark = self.judge(&claim, window, error.as_ref(), now);
                let (outcome, wait) = match &mark {
                    Mark::Delivered => (Outcome::Delivered, None),
                    Mark::Retry { at, .. } => (Outcome::Retried, Some(until_then(*at, now))),
                    Mark::Postpone { at, .. } => (Outcome::Postponed, Some(until_then(*at, now))),
                    Mark::Dead { .. } => (Outcome::Dead, None),
                };
                self.metrics.attempted(outcome);
                if let Some(observer) = &self.observer {
                    let (event, error, number) = (&claim.event, error.as_ref(), claim.attempts.saturating_add(1));
                    observer.attempted(&Attempt { event, number, took, outcome, error, wait });
                }
                self.unnoted.push(Judged { seq: claim.seq, mark, begun });
            }
        }
        if self.paused.is_some() || self.circuit.open_until().is_some() {
            self.put_back();
        }
    }

    fn pauses(&mut self, reason: String) {
        if self.pausing.is_none() {
            tracing::error!(sink = %self.queue.name, reason, "sink paused, its queue is kept until someone resumes it");
        }
        self.pausing = Some(reason.clone());
        self.paused = Some(reason);
        self.tell();
    }

    /// Notes what was decided so far in one transaction: at once, or when a store that failed is tried again. Told to stop,
    /// it is tried once more.
    pub(super) fn note(&mut self, token: &CancellationToken) -> BoxFuture<'static, Result<(), store::Error>> {
        self.noting = take(&mut self.unnoted);
        let until = self.trouble.as_ref().map(|trouble| trouble.until);
        let (id, now, pause) = (self.queue.id, clock::now(), self.pausing.clone());
        let marks: Vec<_> = self.noting.iter().map(|judged| (judged.seq, judged.mark.clone())).collect();
        let (store, token) = (self.queue.store.clone(), token.clone());
        async move {
            if let Some(until) = until {
                let _: Option<()> = token.run_until_cancelled(sleep_until(until)).await;
            }
            let work = move |tx: &store::Tx<'_>| {
                if let Some(reason) = pause {
                    outbox::pause(tx, id, &reason, now)?;
                }
                marks.iter().try_for_each(|(seq, mark)| outbox::settle(tx, *seq, mark, now))
            };
            store.write(work).await
        }
        .boxed()
    }

    /// What was decided is noted; if it could not be, it is not forgotten.
    pub(super) fn noted(
        &mut self,
        noted: Result<(), store::Error>,
        token: &CancellationToken,
    ) -> Result<(), store::Error> {
        let mut judged = take(&mut self.noting);
        if let Err(error) = noted {
            if matches!(error, store::Error::Closed) || token.is_cancelled() {
                return Err(error);
            }
            self.fails(&error);
            judged.append(&mut self.unnoted);
            self.unnoted = judged;
            return Ok(());
        }
        self.works();
        self.pausing = None;
        for Judged { seq, begun, .. } in judged {
            self.taken.remove(&seq);
            if let Some(observer) = &self.observer {
                observer.settled(begun.elapsed());
            }
        }
        self.stale = true;
        Ok(())
    }

    fn judge(&mut self, claim: &Claim, window: u64, error: Option<&sink::Error>, now: Timestamp) -> Mark {
        let Some(error) = error else { return self.delivered(claim, window) };
        let reason = chain(error);
        tracing::debug!(sink = %self.queue.name, id = claim.event.id(), error = reason, "delivery failed");
        let failure = match error.verdict() {
            Verdict::Permanent => {
                self.reached();
                return self.bury(claim, reason);
            }
            Verdict::Provisional if self.refusals.get(&claim.seq).is_some_and(|refusal| refusal.vouched) => {
                self.reached();
                return self.bury(claim, format!("refused, while other events are taken: {reason}"));
            }
            Verdict::Pause => return Mark::Postpone { at: now, reason },
            Verdict::Provisional => Failure::Refused,
            Verdict::Retry { after } => Failure::Down { after },
        };
        if self.circuit.failed(claim.seq, failure, rand::random(), now) {
            tracing::warn!(sink = %self.queue.name, error = reason, hint = error.hint(), "sink is down, its queue is kept");
        }
        self.again(claim, failure, reason, now)
    }

    /// The far side works, whether or not it liked the event.
    fn reached(&mut self) {
        if self.circuit.worked() {
            tracing::info!(sink = %self.queue.name, "sink works again");
        }
    }

    /// The far side took it: what was refused before its window began is not refused for our credentials.
    fn delivered(&mut self, claim: &Claim, window: u64) -> Mark {
        self.reached();
        self.refusals.remove(&claim.seq);
        for refusal in self.refusals.values_mut() {
            refusal.vouched |= refusal.window < window;
        }
        Mark::Delivered
    }

    /// Says when it is tried again, and whether this attempt counts.
    fn again(&mut self, claim: &Claim, failure: Failure, reason: String, now: Timestamp) -> Mark {
        let after_wait = |wait| now.checked_add(wait).unwrap_or(Timestamp::MAX);
        if let Some(until) = self.circuit.open_until() {
            let asked = if let Failure::Down { after: Some(after) } = failure { after_wait(after) } else { now };
            // Whoever was refused before is pending like everyone else.
            self.refusals.clear();
            return Mark::Postpone { at: until.max(asked), reason };
        }
        let delay = |times, after| after_wait(self.config.backoff.delay(times, rand::random(), after));
        match failure {
            Failure::Refused => {
                let refusal = self.refusals.entry(claim.seq).or_default();
                let at = delay(refusal.times, None);
                (refusal.window, refusal.times) = (self.windows, refusal.times.saturating_add(1));
                Mark::Postpone { at, reason }
            }
            Failure::Down { .. } if self.config.max_attempts.is_some_and(|max| claim.attempts + 1 >= max.get()) => {
                self.bury(claim, format!("gave up after {} attempts: {reason}", claim.attempts + 1))
            }
            Failure::Down { after } => Mark::Retry { at: delay(claim.attempts, after), reason },
        }
    }

    fn bury(&mut self, claim: &Claim, reason: String) -> Mark {
        let subject = claim.event.attributes().subject.as_deref();
        tracing::error!(sink = %self.queue.name, id = claim.event.id(), subject, reason, "dead letter: will not be delivered");
        self.refusals.remove(&claim.seq);
        Mark::Dead { reason }
    }
}
