//! Lets windows of events out while this replica leads.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use watchfire_delivery::sink::pubsub::PubSub;
use watchfire_delivery::sink::rabbitmq::RabbitMq;
use watchfire_delivery::{CloudEvent, EventSink, sink};
use watchfire_runtime::lease::Leadership;

use super::load::Destination;

/// Asked with each window: a process that was stopped for longer than its lease goes on where it stood.
struct Guarded<S> {
    sink: S,
    leadership: Leadership,
}

/// Opens a broker; it connects with the first event.
pub(super) fn open(destination: &Destination, leadership: &Leadership) -> Arc<dyn EventSink> {
    let leadership = leadership.clone();
    match destination {
        Destination::RabbitMq(config) => Arc::new(Guarded { sink: RabbitMq::new(config.clone()), leadership }),
        Destination::PubSub(config) => Arc::new(Guarded { sink: PubSub::new(config.clone()), leadership }),
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
