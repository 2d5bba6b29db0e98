//! Where events go: the trait that every sink implements, and why an event was not taken.

pub mod http;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use watchfire_runtime::http::is_about_tls;

pub mod pubsub;
pub mod rabbitmq;

use crate::event::CloudEvent;
use crate::retry::{self, Verdict};
use crate::store;

/// What a client library said; kept as the source of our errors.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why one event was not taken.
///
/// Targets are written without credentials; no variant carries a body.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The far side could not be reached, or the connection broke before it answered.
    #[error("reach {target}")]
    Connect {
        /// Broker, topic or endpoint.
        target: String,
        /// What the client library said.
        #[source]
        source: Cause,
    },
    /// The far side did not answer in time; it may or may not have the event.
    #[error("wait for {target} to take the event, {after:?} and no answer")]
    Timeout {
        /// Broker, topic or endpoint.
        target: String,
        /// How long we waited.
        after: Duration,
    },
    /// Credentials were refused by a broker.
    #[error("authenticate to {target}")]
    Denied {
        /// Broker or topic.
        target: String,
        /// What the client library said.
        #[source]
        source: Cause,
    },
    /// The broker accepted the connection, and refused what we asked of it: an exchange of another type (406), a
    /// topic that does not exist.
    #[error("use {target}: {detail}")]
    Misconfigured {
        /// Exchange or topic.
        target: String,
        /// What does not fit.
        detail: String,
        /// What to change.
        hint: &'static str,
    },
    /// The broker took the message, found no queue for it, and returned it.
    #[error("route through {target}: no queue is bound for routing key {routing_key:?}")]
    Unroutable {
        /// Exchange.
        target: String,
        /// Routing key.
        routing_key: String,
    },
    /// The broker negatively acknowledged the message.
    #[error("publish to {target}: {detail}")]
    Refused {
        /// Exchange or topic.
        target: String,
        /// What it said.
        detail: String,
    },
    /// The broker's alarm is on: it takes messages from nobody until it has memory or disk space again.
    #[error("publish to {target}: the broker takes no messages for want of memory or disk space")]
    Blocked {
        /// Exchange.
        target: String,
    },
    /// The endpoint answered with a status that is not a success.
    #[error("post to {target}: status {status}")]
    Status {
        /// Endpoint.
        target: String,
        /// HTTP status code.
        status: u16,
        /// The answer's `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// The endpoint answered that it is elsewhere.
    #[error("post to {target}: it redirects to {to}: status {status}")]
    Redirected {
        /// Endpoint.
        target: String,
        /// Where it leads, without what may be secret.
        to: String,
        /// HTTP status code.
        status: u16,
    },
    /// The endpoint does not allow to be sent events by us.
    #[error("send events to {target}: {detail}")]
    NotAllowed {
        /// Endpoint.
        target: String,
        /// What it said.
        detail: String,
    },
    /// This side's own credentials cannot be read.
    #[error("read the credentials for {target}")]
    Credentials {
        /// Endpoint.
        target: String,
        /// Why not.
        #[source]
        source: Cause,
    },
    /// The event is larger than the far side takes.
    #[error("publish {size} bytes to {target}, which takes at most {limit}")]
    TooLarge {
        /// Broker, topic or endpoint.
        target: String,
        /// Bytes of the event.
        size: usize,
        /// Bytes the far side takes.
        limit: usize,
    },
    /// The embedded broker could not store the event.
    #[error("store the event")]
    Store {
        /// What the store said.
        #[source]
        source: Arc<store::Error>,
    },
    /// Another replica publishes: this one does not lead, or leads no more.
    #[error("publish: this replica does not lead")]
    Standby,
}

impl Error {
    /// What to do with the event now.
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::Connect { .. }
            | Self::Timeout { .. }
            | Self::Misconfigured { .. }
            | Self::Unroutable { .. }
            | Self::Refused { .. }
            | Self::Blocked { .. }
            | Self::Store { .. }
            | Self::Standby => Verdict::Retry { after: None },
            Self::Denied { .. } | Self::NotAllowed { .. } | Self::Credentials { .. } => Verdict::Provisional,
            Self::TooLarge { .. } | Self::Redirected { .. } => Verdict::Permanent,
            Self::Status { status, retry_after, .. } => retry::classify(*status, *retry_after),
        }
    }

    /// A closed set of names for metrics and logs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Connect { .. } => "connect",
            Self::Timeout { .. } => "timeout",
            Self::Denied { .. } | Self::NotAllowed { .. } | Self::Credentials { .. } => "denied",
            Self::Misconfigured { .. } => "misconfigured",
            Self::Unroutable { .. } => "unroutable",
            Self::Refused { .. } => "refused",
            Self::Blocked { .. } => "blocked",
            Self::Status { .. } | Self::Redirected { .. } => "status",
            Self::TooLarge { .. } => "too_large",
            Self::Store { .. } => "store",
            Self::Standby => "standby",
        }
    }

    /// Whether it is about the far side as a whole, so that any other event would fare the same now.
    pub fn is_sink_wide(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::Timeout { .. }
            | Self::Denied { .. }
            | Self::NotAllowed { .. }
            | Self::Credentials { .. }
            | Self::Misconfigured { .. }
            | Self::Blocked { .. }
            | Self::Store { .. }
            | Self::Standby => true,
            Self::Unroutable { .. }
            | Self::Refused { .. }
            | Self::Status { .. }
            | Self::Redirected { .. }
            | Self::TooLarge { .. } => false,
        }
    }

    /// The status of the answer, if there was one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } | Self::Redirected { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// What the operator can check or change.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Connect { source, .. } if is_about_tls(source.as_ref()) => {
                "check the certificates: who signed the far side's, which names it has, and whether it asks for one of ours"
            }
            Self::Connect { .. } => "check that the address is right and that the far side is running",
            Self::Timeout { .. } => "check the load of the far side and the network to it",
            Self::Denied { .. } => "check user, password and permissions",
            Self::Misconfigured { hint, .. } => hint,
            Self::Unroutable { .. } => "bind a queue to the exchange, or start the consumers that do",
            Self::Refused { .. } => "check the broker's log and the queue's limits",
            Self::Blocked { .. } => {
                "free memory or disk space on the broker (rabbitmq-diagnostics alarms); events go out by themselves then"
            }
            Self::Redirected { .. } => {
                "write the URL that it redirects to, if that is meant; redirects are not followed"
            }
            Self::NotAllowed { .. } => "allow this origin at the endpoint, or leave out endpoint.handshake",
            Self::Credentials { .. } => "check that the file is there, that this user may read it, and what is in it",
            Self::Status { status: 300..=399, .. } => "check the URL: what answers there takes no events",
            Self::Status { status: 401 | 403, .. } => "check the token and what it permits",
            Self::Status { status: 404 | 405, .. } => "check the path of the URL",
            Self::Status { status: 410, .. } => {
                "the endpoint is gone for good: change the URL, then `watchfire outbox resume NAME`"
            }
            Self::Status { status: 429, .. } => "the endpoint asks for fewer requests: lower the concurrency",
            Self::Status { .. } => "check the endpoint's log for this request",
            Self::TooLarge { .. } => "send fewer or smaller fields",
            Self::Store { source } => source.hint(),
            Self::Standby => "see the Lease for who leads; it publishes what is due",
        }
    }
}

/// Publishes events. `Ok` means the far side has taken responsibility: a publisher confirm, a 2xx, a server ack.
pub trait EventSink: Send + Sync {
    /// The name in metrics and logs: `rabbitmq`, `gcp-pubsub`, `http`.
    fn kind(&self) -> &'static str;

    /// How many events it takes together; more are published one window after the other.
    fn window(&self) -> usize {
        1_000
    }

    /// Publishes events; result `i` is the true outcome of event `i`, whatever happened to its neighbours. Never
    /// panics, and is done with a window within twice the sink's own timeout.
    fn publish_all<'a>(&'a self, events: &'a [CloudEvent]) -> BoxFuture<'a, Vec<Result<(), Error>>>;

    /// Asks whether the far side would take an event now; readiness reports the answer. Waits for whoever publishes or
    /// asks over the same sink, and never answers for them.
    fn check(&self) -> BoxFuture<'_, Result<(), Error>>;
}

/// Publishes a window of events: an outcome for each of them, also of a sink that forgets one.
pub async fn publish_all(sink: &dyn EventSink, events: &[CloudEvent]) -> Vec<Result<(), Error>> {
    let mut outcomes = sink.publish_all(events).await;
    let forgotten = || Error::Timeout { target: sink.kind().to_owned(), after: Duration::ZERO };
    outcomes.resize_with(events.len(), || Err(forgotten()));
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_says_what_to_do_with_the_event_and_what_to_check() {
        let target = || "t".to_owned();
        let source = || Cause::from("why");
        let after = Duration::from_secs(1);
        let status = |status| Error::Status { target: target(), status, retry_after: Some(after) };
        let again = Verdict::Retry { after: None };
        let errors = [
            (Error::Connect { target: target(), source: source() }, "connect", again),
            (Error::Timeout { target: target(), after }, "timeout", again),
            (Error::Denied { target: target(), source: source() }, "denied", Verdict::Provisional),
            (Error::Misconfigured { target: target(), detail: target(), hint: "h" }, "misconfigured", again),
            (Error::Unroutable { target: target(), routing_key: String::new() }, "unroutable", again),
            (Error::Refused { target: target(), detail: target() }, "refused", again),
            (Error::Blocked { target: target() }, "blocked", again),
            (Error::TooLarge { target: target(), size: 2, limit: 1 }, "too_large", Verdict::Permanent),
            (Error::Store { source: Arc::new(store::Error::Closed) }, "store", again),
            (Error::Redirected { target: target(), to: target(), status: 302 }, "status", Verdict::Permanent),
            (Error::NotAllowed { target: target(), detail: target() }, "denied", Verdict::Provisional),
            (Error::Credentials { target: target(), source: source() }, "denied", Verdict::Provisional),
            (status(304), "status", Verdict::Permanent),
            (status(401), "status", Verdict::Provisional),
            (status(404), "status", Verdict::Permanent),
            (status(410), "status", Verdict::Pause),
            (status(429), "status", Verdict::Retry { after: Some(after) }),
            (status(500), "status", Verdict::Retry { after: Some(after) }),
        ];
        let mut hints = std::collections::HashSet::new();
        for (error, kind, verdict) in errors {
            assert_eq!((error.kind(), error.verdict()), (kind, verdict), "{error}");
            assert!(hints.insert(error.hint()), "{error}: a hint of its own");
        }
    }
}
