//! The CloudEvent 1.0 that every sink publishes.
//!
//! An event is frozen when it is built: its structured JSON is rendered once, and every retry, on every sink,
//! sends those same bytes. An event read back keeps the bytes it was read from. Extension attributes are strings,
//! because consumers in the field read them as such; `data` is always JSON.

use std::borrow::Cow;
use std::fmt::Write as _;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use jiff::Timestamp;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The media type of the structured binding.
pub const STRUCTURED: &str = "application/cloudevents+json";
/// The media type of the batch binding.
pub const BATCH: &str = "application/cloudevents-batch+json";
/// The media type of `data`, the only one this product writes.
pub const DATA_CONTENT_TYPE: &str = "application/json";
const SPEC_VERSION: &str = "1.0";
/// Names that an extension cannot have, because the format gives them a meaning.
const RESERVED: [&str; 9] =
    ["specversion", "id", "source", "type", "subject", "time", "datacontenttype", "data", "data_base64"];

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

/// Why something is not a CloudEvent that this product takes.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// The body is not a JSON object, or has a member twice.
    #[error("read a structured cloudevent")]
    Json(#[source] serde_json::Error),
    /// A required attribute is absent or empty.
    #[error("read a cloudevent: attribute {0} is missing or empty")]
    Missing(&'static str),
    /// An attribute has a value of the wrong type.
    #[error("read a cloudevent: attribute {name} is {found}")]
    Value {
        /// The attribute.
        name: String,
        /// What it is, and what it should be.
        found: &'static str,
    },
    /// An extension's name is not made of lower case letters and digits, or is reserved.
    #[error("read a cloudevent: {0:?} is not a name for an extension attribute")]
    Name(String),
}

impl Attributes {
    /// Checks what the types leave open: required attributes are not empty, and extension names are legal and
    /// unique. Configuration that fixes attributes is checked once, at start, with this.
    pub fn check(&self) -> Result<(), Invalid> {
        for (name, value) in [("id", &self.id), ("source", &self.source), ("type", &self.ty)] {
            if value.is_empty() {
                return Err(Invalid::Missing(name));
            }
        }
        for (index, (name, _)) in self.extensions.iter().enumerate() {
            let repeated = self.extensions.iter().take(index).any(|(earlier, _)| earlier == name);
            if repeated || !is_extension_name(name) {
                return Err(Invalid::Name(name.clone()));
            }
        }
        Ok(())
    }
}

/// A built event: its attributes and its frozen structured JSON.
#[derive(Clone)]
pub struct CloudEvent {
    attributes: Attributes,
    data: Box<RawValue>,
    body: Bytes,
    supersedes: Option<String>,
    order: Option<String>,
}

impl std::fmt::Debug for CloudEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CloudEvent")
            .field("id", &self.attributes.id)
            .field("source", &self.attributes.source)
            .field("type", &self.attributes.ty)
            .finish_non_exhaustive()
    }
}

impl CloudEvent {
    /// Builds an event and freezes its body. The attributes are those that [`Attributes::check`] accepts.
    pub fn new(attributes: Attributes, data: Box<RawValue>) -> Self {
        let body = render(&attributes, &data);
        Self { attributes, data, body, supersedes: None, order: None }
    }

    /// Says that the event makes every earlier one about the same thing needless, where that one still waits: whoever
    /// takes this one learns what they would have. It is no part of what is sent; an outbox goes by it.
    #[must_use]
    pub fn superseding(mut self, about: impl Into<String>) -> Self {
        self.supersedes = Some(about.into());
        self
    }

    /// What the event is about, if it makes earlier ones about it needless.
    pub fn supersedes(&self) -> Option<&str> {
        self.supersedes.as_deref()
    }

    /// Says that the event is not to overtake those of the same key, where they have another subject than those. It is
    /// no part of what is sent; an outbox goes by it.
    #[must_use]
    pub fn in_order_of(mut self, key: impl Into<String>) -> Self {
        self.order = Some(key.into());
        self
    }

    /// What the event keeps its order by, if that is not its subject.
    pub fn order(&self) -> Option<&str> {
        self.order.as_deref()
    }

    /// Reads structured JSON, and keeps these bytes as the body.
    ///
    /// Strict where a mistake would travel: required attributes, names of extensions, repeated members, data that is
    /// not JSON. Integers and booleans are taken as extensions, as the format allows, and become strings.
    pub fn from_structured(body: &[u8]) -> Result<Self, Invalid> {
        let members: Members<'_> = serde_json::from_slice(body).map_err(Invalid::Json)?;
        let mut required = [const { String::new() }; 4];
        let (mut subject, mut time, mut data, mut extensions) = (None, None, None, Vec::new());
        for (name, raw) in members.0 {
            if name == "data" {
                data = Some(raw.to_owned());
                continue;
            }
            let Some(value) = attribute(&name, raw)? else { continue };
            match name.as_ref() {
                "specversion" => required[0] = value,
                "id" => required[1] = value,
                "source" => required[2] = value,
                "type" => required[3] = value,
                "subject" => subject = Some(value),
                "time" => {
                    let parsed = value.parse().map_err(|_| wrong(&name, "not an RFC 3339 time"))?;
                    time = Some(parsed);
                }
                "datacontenttype" if is_json(&value) => {}
                "datacontenttype" => return Err(wrong(&name, "not a JSON media type, the only one taken here")),
                _ => extensions.push((name.into_owned(), value)),
            }
        }
        let [version, id, source, ty] = required;
        match version.as_str() {
            "" => return Err(Invalid::Missing("specversion")),
            SPEC_VERSION => {}
            _ => return Err(wrong("specversion", "not 1.0")),
        }
        let attributes = Attributes { id, source, ty, subject, time, extensions };
        attributes.check()?;
        let data = data.unwrap_or_else(|| RawValue::NULL.to_owned());
        Ok(Self { attributes, data, body: Bytes::copy_from_slice(body), supersedes: None, order: None })
    }

    /// Adds an extension attribute and freezes the body anew, for what is known only once the event is to be sent.
    #[must_use]
    pub fn with_extension(mut self, name: &str, value: String) -> Self {
        self.attributes.extensions.push((name.to_owned(), value));
        self.body = render(&self.attributes, &self.data);
        self
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

    /// Every attribute as a string, in the order of the body: for message headers and attributes of brokers.
    pub fn attribute_pairs(&self) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
        let Attributes { id, source, ty, subject, time, extensions } = &self.attributes;
        [("specversion", SPEC_VERSION), ("id", id), ("source", source), ("type", ty)]
            .into_iter()
            .chain(subject.iter().map(|subject| ("subject", subject.as_str())))
            .map(|(name, value)| (name, Cow::Borrowed(value)))
            .chain(time.iter().map(|time| ("time", Cow::Owned(time.to_string()))))
            .chain([("datacontenttype", Cow::Borrowed(DATA_CONTENT_TYPE))])
            .chain(extensions.iter().map(|(name, value)| (name.as_str(), Cow::Borrowed(value.as_str()))))
    }

    /// The headers of the HTTP binary binding; the body that goes with them is [`CloudEvent::data`].
    pub fn binary_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(DATA_CONTENT_TYPE));
        for (name, value) in self.attribute_pairs().filter(|(name, _)| *name != "datacontenttype") {
            let name = HeaderName::try_from(format!("ce-{name}"));
            // Neither fails for what `Attributes::check` accepts, and the encoding leaves printable ASCII only.
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(&percent_encode(&value))) {
                headers.insert(name, value);
            }
        }
        headers
    }
}

/// Renders the batch binding: a JSON array of the events' frozen bodies.
pub fn batch(events: &[CloudEvent]) -> Bytes {
    let mut out = Vec::with_capacity(events.iter().map(|event| event.body.len() + 1).sum::<usize>() + 2);
    out.push(b'[');
    for (index, event) in events.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(&event.body);
    }
    out.push(b']');
    out.into()
}

fn render(attributes: &Attributes, data: &RawValue) -> Bytes {
    let Attributes { id, source, ty, subject, time, extensions } = attributes;
    let extensions_len: usize = extensions.iter().map(|(name, value)| name.len() + value.len() + 6).sum();
    let attributes_len = id.len() + source.len() + ty.len() + subject.as_ref().map_or(0, String::len);
    let mut out = Vec::with_capacity(160 + attributes_len + extensions_len + data.get().len());
    out.extend_from_slice(br#"{"specversion":"1.0""#);
    member(&mut out, "id", id);
    member(&mut out, "source", source);
    member(&mut out, "type", ty);
    if let Some(subject) = subject {
        member(&mut out, "subject", subject);
    }
    if let Some(time) = time {
        member(&mut out, "time", &time.to_string());
    }
    member(&mut out, "datacontenttype", DATA_CONTENT_TYPE);
    out.extend_from_slice(br#","data":"#);
    out.extend_from_slice(data.get().as_bytes());
    for (name, value) in extensions {
        member(&mut out, name, value);
    }
    out.push(b'}');
    out.into()
}

fn member(out: &mut Vec<u8>, name: &str, value: &str) {
    out.push(b',');
    string(out, name);
    out.push(b':');
    string(out, value);
}

fn string(out: &mut Vec<u8>, value: &str) {
    // Writing a string into memory has no way to fail.
    serde_json::to_writer(out, value).ok();
}

/// The value of an attribute as a string; `None` for `null`, which the format reads as absent.
fn attribute(name: &str, raw: &RawValue) -> Result<Option<String>, Invalid> {
    if name == "data_base64" {
        return Err(wrong(name, "binary data, where JSON data is taken only"));
    }
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'n') => Ok(None),
        Some(b'"') => serde_json::from_str(text).map(Some).map_err(Invalid::Json),
        Some(b't' | b'f') if !RESERVED.contains(&name) => Ok(Some(text.to_owned())),
        Some(b'-' | b'0'..=b'9') if !RESERVED.contains(&name) => match text.parse::<i32>() {
            Ok(_) => Ok(Some(text.to_owned())),
            Err(_) => Err(wrong(name, "not a 32-bit integer")),
        },
        _ => Err(wrong(name, "not a string")),
    }
}

fn wrong(name: &str, found: &'static str) -> Invalid {
    Invalid::Value { name: name.to_owned(), found }
}

fn is_extension_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    !name.is_empty() && name.bytes().all(legal) && !RESERVED.contains(&name)
}

fn is_json(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == DATA_CONTENT_TYPE || essence == "text/json" || essence.ends_with("+json")
}

/// Encodes as the CloudEvents HTTP binding says: space, quote, percent, and everything outside printable ASCII.
pub(crate) fn percent_encode(value: &str) -> Cow<'_, str> {
    let plain = |byte: u8| matches!(byte, 0x21..=0x7e) && byte != b'"' && byte != b'%';
    if value.bytes().all(plain) {
        return Cow::Borrowed(value);
    }
    let mut out = String::with_capacity(value.len() + 16);
    for byte in value.bytes() {
        if plain(byte) {
            out.push(char::from(byte));
        } else {
            // Writing into a string has no way to fail.
            write!(out, "%{byte:02X}").ok();
        }
    }
    Cow::Owned(out)
}

/// The members of a JSON object, each name once.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::<(Cow<'de, str>, &'de RawValue)>::with_capacity(12);
                while let Some((Name(name), value)) = map.next_entry()? {
                    if members.iter().any(|(earlier, _)| *earlier == name) {
                        return Err(serde::de::Error::custom(format_args!("{name} appears twice")));
                    }
                    if members.len() == MAX_MEMBERS {
                        return Err(serde::de::Error::custom(format_args!("more than {MAX_MEMBERS} members")));
                    }
                    members.push((name, value));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// Members that one event may have; the search for repeated names is quadratic in it.
const MAX_MEMBERS: usize = 128;

#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests;
