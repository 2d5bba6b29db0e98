//! RabbitMQ: one long-lived connection, publisher confirms, one window of events in flight.
//!
//! An outcome is the broker's word about that event, settled after every confirm of its window is in. The client
//! library hands a returned message to whichever confirm completes next, so returned messages are matched by
//! `message_id`, never by position. What was on its way when a connection broke is an error, never `Ok`: it may
//! arrive twice, under the same id, and is never lost. Reconnecting is ours: a broken link is replaced at the next
//! window, and how long to wait before that is the caller's retry policy.

mod config;
mod link;

use std::collections::HashSet;
use std::sync::{Mutex as StdMutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Confirmation};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout_at};

pub use self::config::{ExchangeType, ExchangeTypeError, RabbitMqConfig, Transport, UrlError};
use self::link::{BLOCKED_POLL, Link, explain, refusal, short, size_limit, timed_out};
use crate::event::CloudEvent;
use crate::sink::{Error, EventSink};

/// Messages in flight at most; more gains nothing (a window of 100 reaches 13,000/s, one of 1,000 18,000/s).
const WINDOW: usize = 1_000;
/// The broker closes the channel, and with it its neighbours' confirms, for a larger message: the default limit of
/// RabbitMQ 4. One that is configured lower is learnt from the first refusal.
const MAX_BODY: usize = 16 << 20;
/// How long a limit that was learnt is believed: one that was raised since costs one refused window to learn.
const LIMIT_HOLDS: Duration = Duration::from_mins(10);
/// A `message_id` is an AMQP short string.
const MAX_ID: usize = 255;
/// All headers travel in one frame, and the broker closes the connection for a larger one: half of its default, 128
/// KiB.
const MAX_HEADERS: usize = 64 << 10;
/// The only header that consumers in the field ask for.
const UUID_HEADER: &str = "_watermill_message_uuid";
const PERSISTENT: u8 = 2;

/// What [`RabbitMq::look`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// It exists, and is of the configured type.
    There,
    /// It does not, and would be declared.
    Missing,
}

/// Publishes to one exchange of a RabbitMQ broker.
pub struct RabbitMq {
    config: RabbitMqConfig,
    // Held while a window is in flight: one channel confirms one window at a time.
    link: Mutex<Option<Link>>,
    /// The largest body that the broker takes, as it said when it refused one, and when it did.
    limit: StdMutex<Option<(usize, Instant)>>,
}

impl std::fmt::Debug for RabbitMq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RabbitMq").field("config", &self.config).finish_non_exhaustive()
    }
}

impl RabbitMq {
    /// Makes a sink that connects when it is first used.
    pub fn new(config: RabbitMqConfig) -> Self {
        Self { config, link: Mutex::new(None), limit: StdMutex::new(None) }
    }

    /// Asks whether the exchange is there, of the configured type, over a connection of its own; unlike publishing and
    /// [`EventSink::check`], declares nothing.
    pub async fn look(&self) -> Result<Exchange, Error> {
        let found = link::look(&self.config, Instant::now() + self.config.timeout).await;
        let found = found.map_err(|e| explain(&self.config, e))?;
        Ok(if found { Exchange::There } else { Exchange::Missing })
    }

    /// Leaves a usable link in `slot`, connecting once if there is none.
    async fn ensure<'a>(&self, slot: &'a mut Option<Link>, deadline: Instant) -> lapin::Result<&'a mut Link> {
        while slot.as_ref().is_some_and(|link| link.stale && link.is_blocked()) {
            if Instant::now() >= deadline {
                return Err(timed_out());
            }
            sleep(BLOCKED_POLL).await;
        }
        // An armed one was left by a caller who stopped waiting: what comes in over it belongs to nobody.
        if let Some(mut link) = slot.take_if(|link| !link.usable() || link.fuse.is_armed()) {
            link.fuse.arm();
        }
        match slot {
            Some(link) => Ok(link),
            None => Ok(slot.insert(Link::open(&self.config, deadline).await?)),
        }
    }

    /// Publishes one window and waits for all of its confirms, or until `deadline`; `None` is a confirm that did not
    /// come in time.
    async fn confirm(&self, link: &Link, window: &[CloudEvent], deadline: Instant) -> Vec<Option<Outcome>> {
        // Polled first in this order, and the first poll writes: the order of the window is that on the wire.
        let publish = |(i, event)| async move { (i, self.publish(link, event).await) };
        let mut in_flight: FuturesUnordered<_> = window.iter().enumerate().map(publish).collect();
        let mut outcomes: Vec<Option<Outcome>> = window.iter().map(|_| None).collect();
        while let Ok(Some((i, outcome))) = timeout_at(deadline, in_flight.next()).await {
            outcomes[i] = Some(outcome);
        }
        outcomes
    }

    async fn publish(&self, link: &Link, event: &CloudEvent) -> Outcome {
        if self.oversized(event).is_some() {
            return Ok(Confirmation::NotRequested);
        }
        let (exchange, key) = (short(&self.config.exchange)?, short(&self.config.routing_key)?);
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        link.channel.basic_publish(exchange, key, options, event.body(), properties(event)?).await?.await
    }

    fn blocked(&self) -> Error {
        Error::Blocked { target: self.config.target() }
    }

    fn max_body(&self) -> usize {
        let limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        limit.filter(|(_, learnt)| learnt.elapsed() < LIMIT_HOLDS).map_or(MAX_BODY, |(limit, _)| limit.min(MAX_BODY))
    }

    /// Why the event cannot be sent at all, if so.
    fn oversized(&self, event: &CloudEvent) -> Option<Error> {
        let headers = event.attribute_pairs().map(|(name, value)| name.len() + value.len()).sum();
        let sizes = [
            ("the message_id of ", event.id().len(), MAX_ID),
            ("the headers of ", headers, MAX_HEADERS),
            ("", event.body().len(), self.max_body()),
        ];
        let (part, size, limit) = sizes.into_iter().find(|(_, size, limit)| size > limit)?;
        Some(Error::TooLarge { target: format!("{part}{}", self.config.target()), size, limit })
    }

    /// Turns what the confirms said into what happened to each event.
    fn settle(&self, window: &[CloudEvent], outcomes: Vec<Option<Outcome>>) -> Vec<Result<(), Error>> {
        let confirmed = outcomes.iter().flatten().flatten();
        let returned: HashSet<String> = confirmed.filter_map(returned_id).collect();
        // With a confirm missing, a return may be missing with it, and it need not be that of the same event. If
        // none came at all, none is missing: the confirm of a returned message brings the oldest return with it.
        let whole = returned.is_empty() || outcomes.iter().all(|outcome| matches!(outcome, Some(Ok(_))));
        // When the broker closes the channel, one event learns why and the others that it is closed.
        let refused = outcomes.iter().flatten().filter_map(|outcome| outcome.as_ref().err());
        let cause = refused.clone().find(|error| refusal(error).is_some()).cloned();
        if let Some(limit) = cause.as_ref().and_then(size_limit) {
            *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = Some((limit, Instant::now()));
        }

        let settle_one = |(event, outcome): (&CloudEvent, Option<Outcome>)| {
            // Put into words only where it is said: a window has a thousand events, and most of them arrive.
            let target = || self.config.target();
            match outcome {
                None => Err(explain(&self.config, timed_out())),
                Some(Err(error)) => {
                    Err(self.oversized(event).unwrap_or_else(|| explain(&self.config, cause.clone().unwrap_or(error))))
                }
                Some(Ok(_)) if returned.contains(event.id()) => {
                    Err(Error::Unroutable { target: target(), routing_key: self.config.routing_key.clone() })
                }
                Some(Ok(Confirmation::Ack(_))) if whole => Ok(()),
                Some(Ok(Confirmation::Ack(_))) => {
                    let source = "the connection broke before every returned message was in".into();
                    Err(Error::Connect { target: target(), source })
                }
                Some(Ok(Confirmation::Nack(_) | Confirmation::NotRequested)) => {
                    let detail = || "the broker did not confirm the message (basic.nack)".to_owned();
                    let refused = || Error::Refused { target: target(), detail: detail() };
                    Err(self.oversized(event).unwrap_or_else(refused))
                }
            }
        };
        window.iter().zip(outcomes).map(settle_one).collect()
    }
}

/// What a confirm said; `NotRequested` stands for an event that was not sent.
type Outcome = lapin::Result<Confirmation>;

fn returned_id(confirmation: &Confirmation) -> Option<String> {
    let (Confirmation::Ack(Some(message)) | Confirmation::Nack(Some(message))) = confirmation else { return None };
    message.delivery.properties.message_id().as_ref().map(ToString::to_string)
}

/// Properties and headers. Every header is a string: consumers in the field fail on any other type, forever.
fn properties(event: &CloudEvent) -> lapin::Result<BasicProperties> {
    static CONTENT_TYPE: OnceLock<ShortString> = OnceLock::new();
    let content_type = CONTENT_TYPE.get_or_init(|| ShortString::from("application/cloudevents+json"));
    let mut headers = FieldTable::default();
    headers.insert(short(UUID_HEADER)?, AMQPValue::LongString(event.id().into()));
    for (name, value) in event.attribute_pairs() {
        headers.insert(short(&format!("cloudEvents:{name}"))?, AMQPValue::LongString(value.as_bytes().into()));
    }
    Ok(BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_message_id(short(event.id())?)
        .with_content_type(content_type.clone())
        .with_headers(headers))
}

impl EventSink for RabbitMq {
    fn kind(&self) -> &'static str {
        "rabbitmq"
    }

    fn window(&self) -> usize {
        WINDOW
    }

    fn publish_all<'a>(&'a self, events: &'a [CloudEvent]) -> BoxFuture<'a, Vec<Result<(), Error>>> {
        Box::pin(async move {
            let mut held = self.link.lock().await;
            let slot = &mut *held;
            let mut settled = Vec::with_capacity(events.len());
            for window in events.chunks(WINDOW) {
                let deadline = Instant::now() + self.config.timeout;
                let link = match self.ensure(slot, deadline).await {
                    Ok(link) => link,
                    Err(error) => {
                        settled.resize_with(events.len(), || Err(explain(&self.config, error.clone())));
                        break;
                    }
                };
                // A caller that stops waiting leaves confirms and returns behind that belong to nobody.
                link.fuse.arm();
                let outcomes = self.confirm(link, window, deadline).await;
                let in_time = outcomes.iter().all(Option::is_some);
                link.stale = !in_time && link.is_blocked();
                if link.stale || (in_time && link.usable()) {
                    link.fuse.disarm();
                } else {
                    *slot = None;
                }
                settled.extend(self.settle(window, outcomes));
                if !in_time {
                    settled.resize_with(events.len(), || Err(explain(&self.config, timed_out())));
                    break;
                }
            }
            if slot.as_ref().is_some_and(Link::is_blocked) {
                // What did not come in time has its reason.
                let late = settled.iter_mut().filter(|outcome| matches!(outcome, Err(Error::Timeout { .. })));
                late.for_each(|outcome| *outcome = Err(self.blocked()));
            }
            settled
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            // Whoever is first may learn that the broker is away: what is not known yet is no answer.
            let mut slot = self.link.lock().await;
            if slot.as_ref().is_some_and(Link::is_blocked) {
                return Err(self.blocked());
            }
            let deadline = Instant::now() + self.config.timeout;
            let link = self.ensure(&mut slot, deadline).await.map_err(|e| explain(&self.config, e))?;
            link.fuse.arm();
            let probed = link.probe(&self.config, deadline).await;
            if probed.is_ok() {
                link.fuse.disarm();
            } else {
                *slot = None;
            }
            probed.map_err(|e| explain(&self.config, e))
        })
    }
}
