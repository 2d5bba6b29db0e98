//! What the outcomes of a window mean, and noting it.
//!
//! A refusal of credentials is provisional: it becomes a dead letter only when the event is refused time and again
//! while the far side takes others that were sent later. Until then it waits, longer each time, without its attempts
//! being counted.

use std::mem::take;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use watchfire_runtime::{chain, clock};

use super::{Attempt, Done, Judged, Noting, Worker, until_then};
use crate::circuit::Failure;
use crate::metrics::Outcome;
use crate::outbox::{self, Claim, Mark};
use crate::retry::Verdict;
use crate::sink;
use crate::store;

/// So often in a row is an event refused, while others are taken, before it is called its own fault: with the usual
/// pauses for some minutes, in which one replica of the far side may not know a new token yet.
const PROOF: u32 = 8;

/// An event that was refused for its credentials.
#[derive(Default)]
pub(super) struct Refusal {
    /// The last window that had begun by then.
    window: u64,
    /// How often in a row.
    times: u32,
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

    /// Notes what was decided so far in one transaction: at once, or when a store that failed is tried again. Told to
    /// stop, it is tried once more.
    pub(super) fn note(&mut self, token: &CancellationToken) -> BoxFuture<'static, Result<(), store::Error>> {
        let until = self.trouble.as_ref().map(|trouble| trouble.until);
        let (judged, pause, last) = (take(&mut self.unnoted), self.pausing.take(), token.is_cancelled());
        let (id, now) = (self.queue.id, clock::now());
        let marks: Vec<_> = judged.iter().map(|judged| (judged.seq, judged.mark.clone())).collect();
        self.noting = Noting { judged, pause: pause.clone(), last };
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
    pub(super) fn noted(&mut self, noted: Result<(), store::Error>) -> Result<(), store::Error> {
        let Noting { mut judged, pause, last } = take(&mut self.noting);
        if let Err(error) = noted {
            if matches!(error, store::Error::Closed) || last {
                return Err(error);
            }
            self.pausing = self.pausing.take().or(pause);
            self.fails(&error);
            judged.append(&mut self.unnoted);
            self.unnoted = judged;
            return Ok(());
        }
        self.works();
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
            // What this side lacks is no fault of the event, however others fared.
            Verdict::Provisional if error.status().is_some() && self.is_refused_alone(claim) => {
                self.reached();
                return self.bury(claim, format!("refused, while other events are taken: {reason}"));
            }
            Verdict::Pause => return Mark::Postpone { at: now, reason },
            Verdict::Provisional => Failure::Refused,
            Verdict::Retry { after } => Failure::Down { after },
        };
        // What goes on to fail while others are taken says nothing about the far side.
        let alone = matches!(failure, Failure::Down { .. })
            && *self.failing.entry(claim.seq).or_insert(self.windows) < self.last_taken;
        if !alone && self.circuit.failed(claim.seq, failure, rand::random(), now) {
            tracing::warn!(sink = %self.queue.name, error = reason, hint = error.hint(), "sink is down, its queue is kept");
        }
        self.again(claim, failure, reason, now)
    }

    /// Whether an event of a later window was taken since it was refused, often enough that it is not the credentials.
    fn is_refused_alone(&self, claim: &Claim) -> bool {
        let refusal = self.refusals.get(&claim.seq);
        refusal.is_some_and(|refusal| refusal.window < self.last_taken && refusal.times >= PROOF)
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
        self.failing.remove(&claim.seq);
        self.last_taken = self.last_taken.max(window);
        Mark::Delivered
    }

    /// Says when it is tried again, and whether this attempt counts.
    fn again(&mut self, claim: &Claim, failure: Failure, reason: String, now: Timestamp) -> Mark {
        let after_wait = |wait| now.checked_add(wait).unwrap_or(Timestamp::MAX);
        if let Some(until) = self.circuit.open_until() {
            let asked = if let Failure::Down { after: Some(after) } = failure { after_wait(after) } else { now };
            // Whoever was refused before is pending like everyone else.
            self.refusals.clear();
            self.failing.clear();
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
        self.failing.remove(&claim.seq);
        Mark::Dead { reason }
    }
}
