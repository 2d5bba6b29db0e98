//! What is counted and told of each attempt to deliver an event.

use std::time::Duration;

use tracing::error;
use watchfire_delivery::CloudEvent;
use watchfire_delivery::metrics::Outcome;
use watchfire_delivery::outbox::Stats;
use watchfire_delivery::retry::Verdict;
use watchfire_delivery::sink;
use watchfire_delivery::worker::{Attempt, Observer};
use watchfire_runtime::{chain, clock};

use crate::metrics::{About, Component, Metrics, Status};

/// Counts and tells what the worker does.
pub(crate) struct Endpoint(pub(crate) Metrics);

/// The kind stands at the end of the source, what happened at the end of the type.
fn about(event: &CloudEvent) -> About<'_> {
    let attributes = event.attributes();
    let resource_type = attributes.source.rsplit('/').next().unwrap_or_default();
    let event_type = if attributes.ty.ends_with(".deleted") { "deleted" } else { "created" };
    About { resource_type, event_type }
}

impl Observer for Endpoint {
    fn looked(&self, stats: &Stats) {
        self.0.queued(stats.pending, stats.paused.is_none());
    }

    fn stuck(&self) {
        self.0.works(Component::Notifier, false);
    }

    fn claimed(&self, events: usize) {
        self.0.claimed(events);
    }

    fn attempted(&self, attempt: &Attempt<'_>) {
        let Attempt { event, number, took, outcome, error, wait } = *attempt;
        let about = about(event);
        let exhausted =
            outcome == Outcome::Dead && matches!(error.map(sink::Error::verdict), Some(Verdict::Retry { .. }));
        let status = match (outcome, error) {
            (Outcome::Delivered, _) => Status::Success,
            (Outcome::Retried | Outcome::Postponed, _) => Status::Retriable,
            (Outcome::Dead, _) if exhausted => Status::Retriable,
            (Outcome::Dead, error) => Status::NonRetriable(error.and_then(sink::Error::status)),
        };
        self.0.attempted(&about, status, took);
        match (outcome, wait) {
            (Outcome::Delivered, _) => {
                let now = clock::now();
                let since = event.attributes().time.unwrap_or(now);
                let latency = Duration::try_from(now.duration_since(since)).unwrap_or_default();
                self.0.delivered(&about, latency, number, now);
            }
            (Outcome::Retried, Some(wait)) => self.0.waits(number, wait),
            _ => {}
        }
        if exhausted {
            self.0.exhausted(&about);
        }
        if let (Outcome::Dead, Some(refusal)) = (outcome, error) {
            let payload = String::from_utf8_lossy(event.body());
            let (id, hint, reason) = (event.id(), refusal.hint(), chain(refusal));
            if exhausted {
                error!(id, error = reason, hint, attempts = number, %payload, "an event is given up after maxAttempts");
            } else {
                error!(id, error = reason, hint, %payload, "non-retriable notification failure");
            }
        }
    }

    fn settled(&self, took: Duration) {
        self.0.settled(took);
    }
}
