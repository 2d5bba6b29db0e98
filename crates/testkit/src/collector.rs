//! A collector of traces: takes OTLP over HTTP and shows the spans that came.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;

use crate::{Receiver, Request};

/// One span that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Its name.
    pub name: String,
    /// 32 hexadecimal digits.
    pub trace: String,
    /// 16 hexadecimal digits.
    pub id: String,
    /// The id of the span that it belongs to; empty for the root of a trace.
    pub parent: String,
    /// Its attributes, numbers and truths as text.
    pub attributes: BTreeMap<String, String>,
    /// The attributes of the process that sent it.
    pub resource: BTreeMap<String, String>,
    /// Whether it says that the work failed.
    pub failed: bool,
}

impl Span {
    /// An attribute's value, empty when it is absent.
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }

    /// What a `traceparent` that names this span says when its trace is sampled.
    pub fn traceparent(&self) -> String {
        format!("00-{}-{}-01", self.trace, self.id)
    }
}

/// A receiver of OTLP/HTTP; misbehaves as any [`Receiver`] does.
pub struct Collector(Receiver);

impl Collector {
    /// Starts a collector on a free port.
    pub async fn start() -> Self {
        Self(Receiver::start().await)
    }

    /// The receiver behind it, to make it misbehave; its URL is that of the endpoint.
    pub fn receiver(&self) -> &Receiver {
        &self.0
    }

    /// Every span that came so far.
    pub fn spans(&self) -> Vec<Span> {
        self.0.requests().iter().flat_map(spans).collect()
    }
}

fn spans(request: &Request) -> Vec<Span> {
    assert_eq!((request.uri.path(), request.header("content-type")), ("/v1/traces", "application/x-protobuf"));
    let sent = ExportTraceServiceRequest::decode(request.body.clone()).expect("an export of spans");
    let mut found = Vec::new();
    for of_resource in sent.resource_spans {
        let resource = attributes(of_resource.resource.map(|resource| resource.attributes).unwrap_or_default());
        for span in of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            found.push(Span {
                name: span.name,
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                attributes: attributes(span.attributes),
                resource: resource.clone(),
                failed: span.status.is_some_and(|status| status.code() == StatusCode::Error),
            });
        }
    }
    found
}

fn attributes(pairs: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value| match value {
        Value::StringValue(text) => text,
        Value::BoolValue(truth) => truth.to_string(),
        Value::IntValue(number) => number.to_string(),
        Value::DoubleValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    let pair = |pair: KeyValue| Some((pair.key, text(pair.value?.value?)));
    pairs.into_iter().filter_map(pair).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
