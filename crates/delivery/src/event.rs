//! The CloudEvent 1.0 that every sink publishes.
//!
//! An event is frozen when it is built: its structured JSON is rendered once, and every retry, on every sink,
//! sends those same bytes. Extension attributes are strings, because consumers in the field read them as such.

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::value::RawValue;

/// What an event must say about itself; everything else is optional.
#[derive(Debug, Clone)]
pub struct Attributes {
    /// Stable over retries and unique per `source`.
    pub id: String,
    /// Who says it, for example `hyperfleet-sentinel`.
    pub source: String,
    /// What it says, for example `com.redhat.hyperfleet.cluster.reconcile`.
    pub ty: String,
    /// What it is about; deliveries keep their order per subject.
    pub subject: Option<String>,
    /// When the thing happened, not when it was sent.
    pub time: Option<Timestamp>,
    /// Extension attributes such as `traceparent`; names are lower case letters and digits.
    pub extensions: Vec<(String, String)>,
}

/// A built event: its attributes and its frozen structured JSON.
#[derive(Clone)]
pub struct CloudEvent {
    attributes: Attributes,
    data: Box<RawValue>,
    body: Bytes,
}

impl CloudEvent {
    /// Builds an event and freezes its body.
    pub fn new(attributes: Attributes, data: Box<RawValue>) -> Self {
        let body = render(&attributes, &data);
        Self { attributes, data, body }
    }

    /// The attributes the event was built with.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// The event's id.
    pub fn id(&self) -> &str {
        &self.attributes.id
    }

    /// The JSON of `data`, exactly as in the body.
    pub fn data(&self) -> &RawValue {
        &self.data
    }

    /// The structured JSON: the same bytes on every call and after every restart.
    pub fn body(&self) -> &Bytes {
        &self.body
    }
}

fn render(attributes: &Attributes, data: &RawValue) -> Bytes {
    let mut map = serde_json::Map::new();
    let mut put = |key: &str, value: &str| map.insert(key.to_owned(), value.into());
    put("specversion", "1.0");
    put("id", &attributes.id);
    put("source", &attributes.source);
    put("type", &attributes.ty);
    let mut out = serde_json::to_string(&map).unwrap_or_default();
    out.pop();
    out.push_str(",\"data\":");
    out.push_str(data.get());
    out.push('}');
    Bytes::from(out)
}
