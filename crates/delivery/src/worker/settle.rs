//! What the outcomes of a window mean, and noting it.
//!
//! A refusal of credentials is provisional: it becomes a dead letter only when the event is refused again after the far
//! side took another one that was sent later. Until then it waits, longer each time, without its attempts being
//! counted.

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use watchfire_runtime::{chain, clock};

use super::{Attempt, Done, Worker, until_then};
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
    /// Decides what the outcomes mean, and notes it. Tries until the store takes it, or the process stops.
    pub(super) async fn settle(&mut self, done: Vec<Done>, token: &CancellationToken) -> Result<(), store::Error> {
        let now = clock::now();
        let (mut marks, mut pause, mut begun) = (Vec::new(), None, Vec::new());
        for Done { window, begun: at, took, outcomes } in done {
            begun.push(at);
            for (claim, outcome) in outcomes {
                let error = outcome.err();
                if let Some(error) = error.as_ref().filter(|error| error.verdict() == Verdict::Pause) {
                    pause = Some(chain(error));
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
                marks.push((claim.seq, mark));
            }
        }
        if let Some(reason) = &pause {
            tracing::error!(sink = %self.queue.name, reason, "sink paused, its queue is kept until someone resumes it");
            self.paused = Some(reason.clone());
            self.tell();
        }
        if self.paused.is_some() || self.circuit.open_until().is_some() {
            self.put_back();
        }
        while let Err(error) = self.write(marks.clone(), pause.clone(), now).await {
            if matches!(error, store::Error::Closed) || token.is_cancelled() {
                return Err(error);
            }
            let wait = self.fails(&error);
            // Woken early by the token, to try once more.
            let _: Option<()> = token.run_until_cancelled(self.heartbeat.during(tokio::time::sleep(wait))).await;
        }
        self.works();
        if let Some(observer) = &self.observer {
            for begun in begun {
                observer.settled(begun.elapsed());
            }
        }
        for (seq, _) in &marks {
            self.taken.remove(seq);
        }
        self.stale = true;
        Ok(())
    }

    pub(super) async fn write(
        &self,
        marks: Vec<(i64, Mark)>,
        pause: Option<String>,
        now: Timestamp,
    ) -> Result<(), store::Error> {
        let id = self.queue.id;
        let work = move |tx: &store::Tx<'_>| {
            if let Some(reason) = pause {
                outbox::pause(tx, id, &reason, now)?;
            }
            marks.iter().try_for_each(|(seq, mark)| outbox::settle(tx, *seq, mark, now))
        };
        self.queue.store.write(work).await
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
