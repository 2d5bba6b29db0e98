//! Reads an event as strictly as the adapters in the field do.
//!
//! What is no CloudEvent is refused. Data is read into fixed types: a `generation` written as a string fails, and the
//! event with it, although it is acknowledged.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

/// A CloudEvent in structured JSON.
#[derive(Debug, Deserialize)]
pub(super) struct Event {
    specversion: String,
    pub(super) id: String,
    pub(super) source: String,
    #[serde(rename = "type")]
    ty: String,
    time: Option<String>,
    datacontenttype: Option<String>,
    pub(super) traceparent: Option<String>,
    #[serde(default)]
    data: Value,
}

/// What drives an adapter.
#[derive(Debug, Deserialize)]
struct Data {
    #[serde(default)]
    id: String,
    #[serde(default, rename = "kind")]
    _kind: String,
    #[serde(default)]
    href: String,
    #[serde(default, rename = "generation")]
    _generation: i64,
    #[serde(default, rename = "owner_references")]
    _owner: Option<serde_json::Map<String, Value>>,
}

impl Event {
    pub(super) fn parse(body: &[u8]) -> Result<Self, &'static str> {
        let event: Self = serde_json::from_slice(body).map_err(|_| "not a CloudEvent in structured JSON")?;
        if event.specversion != "1.0" {
            return Err("specversion is not 1.0");
        }
        if event.id.is_empty() || event.source.is_empty() || event.ty.is_empty() {
            return Err("id, source or type is empty");
        }
        if event.time.as_ref().is_some_and(|time| time.parse::<Timestamp>().is_err()) {
            return Err("time is not a timestamp");
        }
        if event.datacontenttype.as_ref().is_some_and(|ty| !ty.starts_with("application/json")) {
            return Err("data is not JSON");
        }
        Ok(event)
    }

    /// The id of the resource it is about, in either payload's spelling; for counting.
    pub(super) fn resource_id(&self) -> &str {
        let key = ["id", "resource_id", "resourceId"].into_iter().find_map(|key| self.data.get(key)?.as_str());
        key.unwrap_or_default()
    }

    /// Where to read the resource.
    pub(super) fn href(&self) -> Result<&str, &'static str> {
        let data = Data::deserialize(&self.data).map_err(|_| "data has a field of the wrong type")?;
        if data.id.is_empty() || data.href.is_empty() {
            return Err("data has no id or no href");
        }
        Ok(self.data.get("href").and_then(Value::as_str).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(data: &str) -> String {
        format!(r#"{{"specversion":"1.0","id":"1","source":"s","type":"t","data":{data}}}"#)
    }

    #[test]
    fn recorded_messages_are_read() {
        let body = r#"{"specversion":"1.0","id":"e","source":"hyperfleet-sentinel",
            "type":"com.redhat.hyperfleet.nodepool.reconcile","datacontenttype":"application/json",
            "data":{"generation":2,"href":"/h","id":"r","kind":"NodePool",
            "owner_references":{"href":"/o","id":"o","kind":"Cluster"}},"traceparent":"00-f5-77-01"}"#;
        let event = Event::parse(body.as_bytes()).unwrap();
        assert_eq!((event.resource_id(), event.href()), ("r", Ok("/h")));
        assert_eq!(event.traceparent.as_deref(), Some("00-f5-77-01"));
    }

    #[test]
    fn what_is_no_event_is_refused() {
        for body in [
            "",
            "[]",
            r#"{"specversion":"0.3","id":"1","source":"s","type":"t"}"#,
            r#"{"specversion":"1.0","id":"","source":"s","type":"t"}"#,
            r#"{"specversion":"1.0","id":"1","source":"s"}"#,
            r#"{"specversion":"1.0","id":"1","source":"s","type":"t","time":"yesterday"}"#,
            r#"{"specversion":"1.0","id":"1","source":"s","type":"t","datacontenttype":"text/plain"}"#,
        ] {
            assert!(Event::parse(body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn a_generation_must_be_a_number() {
        let parse = |data: &str| Event::parse(event(data).as_bytes()).unwrap().href().map(str::to_owned);
        assert!(parse(r#"{"id":"r","href":"/h","generation":3}"#).is_ok());
        assert!(parse(r#"{"id":"r","href":"/h","generation":"3"}"#).is_err());
        assert!(parse(r#"{"id":"r","href":"/h","owner_references":[]}"#).is_err());
        assert!(parse(r#"{"id":"r"}"#).is_err());
        assert!(parse(r#"{"resource_id":"r","resource_type":"cluster"}"#).is_err());
    }
}
