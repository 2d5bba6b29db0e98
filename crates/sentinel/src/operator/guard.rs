//! Lets windows of events out while this replica leads.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use watchfire_delivery::sink::pubsub::PubSub;
use watchfire_delivery::sink::rabbitmq::RabbitMq;
use watchfire_delivery::{CloudEvent, EventSink, sink};
use watchfire_runtime::lease::Leadership;

use super::load::Destination;
use crate::config::broker::Settings;

/// Asked with each window: a process that was stopped for longer than its lease goes on where it stood.
struct Guarded<S> {
    sink: S,
    leadership: Leadership,
}

/// The brokers that sentinels of this process publish to: one connection for all with the same settings, since one
/// takes megabytes.
#[derive(Default)]
pub(super) struct Brokers(Mutex<Vec<(Settings, Weak<dyn EventSink>)>>);

impl Brokers {
    /// Opens a broker, unless it is open already; it connects with the first event.
    pub(super) fn open(
        &self,
        settings: &Settings,
        destination: &Destination,
        leadership: &Leadership,
    ) -> Arc<dyn EventSink> {
        let mut opened = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|(_, sink)| sink.strong_count() > 0);
        let known = opened.iter().find(|(known, _)| known == settings);
        if let Some(sink) = known.and_then(|(_, sink)| sink.upgrade()) {
            return sink;
        }
        let leadership = leadership.clone();
        let sink: Arc<dyn EventSink> = match destination {
            Destination::RabbitMq(config) => Arc::new(Guarded { sink: RabbitMq::new(config.clone()), leadership }),
            Destination::PubSub(config) => Arc::new(Guarded { sink: PubSub::new(config.clone()), leadership }),
        };
        opened.push((settings.clone(), Arc::downgrade(&sink)));
        sink
    }
}

impl<S: EventSink> EventSink for Guarded<S> {
    fn kind(&self) -> &'static str {
        self.sink.kind()
    }

    fn window(&self) -> usize {
        self.sink.window()
    }

    fn publish_all<'a>(&'a self, events: &'a [CloudEvent]) -> BoxFuture<'a, Vec<Result<(), sink::Error>>> {
        if self.leadership.holds() {
            return self.sink.publish_all(events);
        }
        std::future::ready(events.iter().map(|_| Err(sink::Error::Standby)).collect()).boxed()
    }

    fn check(&self) -> BoxFuture<'_, Result<(), sink::Error>> {
        self.sink.check()
    }
}
