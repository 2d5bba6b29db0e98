//! The endpoint, with what is counted and told of each attempt.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;
use tracing::error;
use watchfire_delivery::CloudEvent;
use watchfire_delivery::retry::Verdict;
use watchfire_delivery::sink::{self, EventSink};
use watchfire_runtime::{chain, clock};

use crate::metrics::{About, Metrics, Status};

/// Events whose attempts are counted at the same time.
const COUNTED: usize = 10_000;

/// A sink whose attempts are counted.
pub(crate) struct Endpoint {
    sink: Arc<dyn EventSink>,
    metrics: Metrics,
    /// Attempts that failed, of events that are tried again.
    failed: Mutex<HashMap<String, u32>>,
}

impl Endpoint {
    pub(crate) fn new(sink: Arc<dyn EventSink>, metrics: Metrics) -> Self {
        Self { sink, metrics, failed: Mutex::default() }
    }

    fn ended(&self, event: &CloudEvent, outcome: &Result<(), sink::Error>, took: Duration) {
        let about = about(event);
        let status = match outcome {
            Ok(()) => Status::Success,
            Err(error) => match (error.verdict(), error) {
                (Verdict::Permanent, sink::Error::Status { status, .. }) => Status::NonRetriable(Some(*status)),
                (Verdict::Permanent, _) => Status::NonRetriable(None),
                (Verdict::Retry { .. } | Verdict::Provisional | Verdict::Pause, _) => Status::Retriable,
            },
        };
        self.metrics.attempted(&about, status, took);
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        match (status, outcome) {
            (Status::Success, _) => {
                let attempts = failed.remove(event.id()).unwrap_or(0).saturating_add(1);
                let now = clock::now();
                let since = event.attributes().time.unwrap_or(now);
                let latency = Duration::try_from(now.duration_since(since)).unwrap_or_default();
                self.metrics.delivered(&about, latency, attempts, now);
            }
            (Status::Retriable, _) => {
                if failed.len() < COUNTED || failed.contains_key(event.id()) {
                    let attempts = failed.entry(event.id().to_owned()).or_default();
                    *attempts = attempts.saturating_add(1);
                }
            }
            (Status::NonRetriable(_), Err(refusal)) => {
                failed.remove(event.id());
                let payload = String::from_utf8_lossy(event.body());
                error!(id = event.id(), error = chain(refusal), hint = refusal.hint(), %payload,
                    "non-retriable notification failure");
            }
            (Status::NonRetriable(_), Ok(())) => {}
        }
    }
}

/// The kind stands at the end of the source, what happened at the end of the type.
fn about(event: &CloudEvent) -> About<'_> {
    let attributes = event.attributes();
    let resource_type = attributes.source.rsplit('/').next().unwrap_or_default();
    let event_type = if attributes.ty.ends_with(".deleted") { "deleted" } else { "created" };
    About { resource_type, event_type }
}

impl EventSink for Endpoint {
    fn kind(&self) -> &'static str {
        self.sink.kind()
    }

    fn window(&self) -> usize {
        self.sink.window()
    }

    fn publish_all<'a>(&'a self, events: &'a [CloudEvent]) -> BoxFuture<'a, Vec<Result<(), sink::Error>>> {
        Box::pin(async move {
            let begun = Instant::now();
            let outcomes = self.sink.publish_all(events).await;
            for (event, outcome) in events.iter().zip(&outcomes) {
                self.ended(event, outcome, begun.elapsed());
            }
            outcomes
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), sink::Error>> {
        self.sink.check()
    }
}
