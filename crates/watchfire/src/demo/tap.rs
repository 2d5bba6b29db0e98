//! A sink that shows what passes through it.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use watchfire_delivery::{CloudEvent, EventSink, sink};

/// Forwards everything, and hands on what was taken.
pub(super) struct Tap {
    inner: Arc<dyn EventSink>,
    taken: mpsc::Sender<CloudEvent>,
}

impl Tap {
    pub(super) fn new(inner: Arc<dyn EventSink>, taken: mpsc::Sender<CloudEvent>) -> Self {
        Self { inner, taken }
    }
}

impl EventSink for Tap {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn window(&self) -> usize {
        self.inner.window()
    }

    fn publish_all<'a>(&'a self, events: &'a [CloudEvent]) -> BoxFuture<'a, Vec<Result<(), sink::Error>>> {
        Box::pin(async move {
            let outcomes = self.inner.publish_all(events).await;
            for (event, _) in events.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok()) {
                // A view that does not keep up misses the line, never the event.
                _ = self.taken.try_send(event.clone());
            }
            outcomes
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), sink::Error>> {
        self.inner.check()
    }
}
