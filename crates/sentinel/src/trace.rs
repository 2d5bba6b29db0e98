//! The spans of a cycle, as OpenTelemetry's conventions name them: `GET` per request, `{topic} publish` per window,
//! `{topic} create` per event, and `sentinel.evaluate` for the resources that are asked for.
//!
//! They are for traces only: without a collector none of them exists, and nothing here costs more than a look.

use std::collections::HashSet;
use std::convert::Infallible;
use std::str::FromStr;

use tracing::{Span, field, info_span};
use url::Url;
use watchfire_delivery::CloudEvent;
use watchfire_runtime::redact::address;
use watchfire_runtime::telemetry::{TRACE, traceparent};

use crate::decision::Decision;
use crate::engine::{About, Due};
use crate::resource::Resource;

/// Events of a window with a span each; a queue of 2,048 spans is sent every few seconds.
const OWN_SPANS: usize = 100;

/// Which resources have a span of their own in the trace of a cycle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceResources {
    /// All of them.
    All,
    /// Those with these ids.
    Ids(HashSet<String>),
}

impl Default for TraceResources {
    fn default() -> Self {
        Self::Ids(HashSet::new())
    }
}

impl FromStr for TraceResources {
    type Err = Infallible;

    /// Reads `all`, or ids separated by commas.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        let ids = text.split(',').map(str::trim).filter(|id| !id.is_empty()).map(str::to_owned);
        Ok(if text.trim() == "all" { Self::All } else { Self::Ids(ids.collect()) })
    }
}

impl TraceResources {
    /// The span of a resource that is about to be decided on; none for most.
    pub(crate) fn evaluate(&self, resource: &Resource<'_>) -> Span {
        let wanted = match self {
            Self::All => true,
            Self::Ids(ids) => !ids.is_empty() && ids.contains(resource.id.as_ref()),
        };
        if !wanted {
            return Span::none();
        }
        info_span!(
            target: TRACE, "sentinel.evaluate", hyperfleet.resource.id = resource.id.as_ref(),
            hyperfleet.generation = resource.generation,
            hyperfleet.observed_generation = resource.status.observed_generation, hyperfleet.ready = resource.status.ready,
            hyperfleet.last_report = resource.status.last_updated.map(field::display), hyperfleet.reason = field::Empty,
            hyperfleet.due = field::Empty, hyperfleet.publishes = field::Empty,
        )
    }
}

/// Writes into its span what was decided.
pub(crate) fn decided(span: &Span, decision: &Decision) {
    span.record("hyperfleet.reason", decision.reason.as_str());
    span.record("hyperfleet.due", decision.due.map(field::display));
    span.record("hyperfleet.publishes", decision.reason.publishes());
}

/// The span of one attempt at a request.
pub(crate) fn get(url: &Url, attempt: u32) -> Span {
    info_span!(
        target: TRACE, "GET", otel.kind = "client", http.request.method = "GET", url.full = address(url),
        url.query = url.query(), server.address = url.host_str(), server.port = url.port_or_known_default(),
        http.request.resend_count = attempt, http.response.status_code = field::Empty, "error.type" = field::Empty,
        otel.status_code = field::Empty, otel.status_description = field::Empty,
    )
}

/// Writes into its span that the work failed.
pub(crate) fn failed(span: &Span, kind: &'static str, error: &dyn std::error::Error) {
    if !span.is_disabled() {
        span.record("error.type", kind);
        span.record("otel.status_code", "error");
        span.record("otel.status_description", watchfire_runtime::chain(error));
    }
}

/// Where events go, in the words of the conventions.
#[derive(Clone)]
pub(crate) struct Destination {
    system: &'static str,
    topic: String,
}

impl Destination {
    pub(crate) fn new(sink: &'static str, topic: &str) -> Self {
        Self { system: if sink == "gcp-pubsub" { "gcp_pubsub" } else { sink }, topic: topic.to_owned() }
    }

    /// The span of one attempt at a window; one event in it is named.
    pub(crate) fn publish(&self, window: &[Due]) -> Span {
        let only = match window {
            [due] => Some(due),
            _ => None,
        };
        info_span!(
            target: TRACE, "publish", otel.name = format!("{} publish", self.topic), otel.kind = "producer",
            messaging.system = self.system, "messaging.operation.type" = "send", messaging.destination.name = self.topic,
            messaging.batch.message_count = only.is_none().then_some(window.len()),
            messaging.message.id = only.map(|due| due.event.id()),
            hyperfleet.resource.id = only.map(|due| due.about.id.as_str()),
            hyperfleet.generation = only.and_then(|due| due.about.generation),
            hyperfleet.reason = only.map(|due| due.about.reason.as_str()), "error.type" = field::Empty,
            otel.status_code = field::Empty, otel.status_description = field::Empty,
        )
    }

    /// Gives each event the context that its consumers go on with: a span of its own, or that of its window where it is
    /// alone in it, or one of so many that not all of their spans would be sent. Once per event: its body is frozen.
    pub(crate) fn stamp(&self, publish: &Span, window: &mut Vec<Due>) {
        let Some(shared) = traceparent(publish) else { return };
        let own = (2..=OWN_SPANS).contains(&window.len());
        let stamped = window.drain(..).map(|Due { event, about }| {
            let context = if own { traceparent(&self.create(publish, &event, &about)) } else { None };
            Due { event: event.with_extension("traceparent", context.unwrap_or_else(|| shared.clone())), about }
        });
        *window = stamped.collect();
    }

    fn create(&self, publish: &Span, event: &CloudEvent, about: &About) -> Span {
        info_span!(
            target: TRACE, parent: publish, "create", otel.name = format!("{} create", self.topic),
            otel.kind = "producer", messaging.system = self.system, "messaging.operation.type" = "create",
            messaging.destination.name = self.topic, messaging.message.id = event.id(),
            hyperfleet.resource.id = about.id, hyperfleet.generation = about.generation,
            hyperfleet.reason = about.reason.as_str(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_to_trace_are_all_of_them_or_a_list_of_ids() {
        let ids = |ids: &[&str]| TraceResources::Ids(ids.iter().map(|&id| id.to_owned()).collect());
        let read = |text: &str| text.parse::<TraceResources>().unwrap();
        assert_eq!(read(" all "), TraceResources::All);
        assert_eq!(read("a, b,,"), ids(&["a", "b"]));
        assert_eq!(read(""), TraceResources::default());
    }
}
