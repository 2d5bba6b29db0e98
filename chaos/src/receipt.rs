//! What a consumer of the broker received.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) at: Duration,
    /// The event, or what is wrong with the message.
    pub(crate) event: Result<Event, String>,
    /// The broker delivers a message again that it has delivered before; nobody has published it a second time.
    pub(crate) redelivered: bool,
}

/// The parts of an event that are judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: String,
    pub(crate) time: Timestamp,
    pub(crate) resource: String,
    pub(crate) generation: i32,
}

/// The messages so far.
#[derive(Debug)]
pub(crate) struct Inbox {
    begun: Instant,
    kind: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    receipts: Vec<Receipt>,
    generations: HashSet<(String, i32)>,
    ids: HashSet<String>,
    /// Pub/Sub's own numbers of messages.
    messages: HashSet<String>,
}

impl Inbox {
    /// An empty one for events about that kind, such as `Cluster`; times are counted from `begun`.
    pub(crate) fn new(kind: &str, begun: Instant) -> Self {
        Self { begun, kind: kind.to_owned(), state: Mutex::default() }
    }

    /// Takes a message in. `number` is the broker's own, if it has such.
    pub(crate) fn take(&self, body: &[u8], redelivered: bool, number: Option<&str>) {
        let event = parse(body, &self.kind);
        let mut state = self.state();
        if let Ok(event) = &event {
            state.generations.insert((event.resource.clone(), event.generation));
            state.ids.insert(event.id.clone());
        }
        let redelivered = redelivered || number.is_some_and(|number| !state.messages.insert(number.to_owned()));
        state.receipts.push(Receipt { at: self.begun.elapsed(), event, redelivered });
    }

    /// Takes in a message that is no event.
    pub(crate) fn refuse(&self, why: String) {
        let receipt = Receipt { at: self.begun.elapsed(), event: Err(why), redelivered: false };
        self.state().receipts.push(receipt);
    }

    pub(crate) fn receipts(&self) -> Vec<Receipt> {
        self.state().receipts.clone()
    }

    /// Whether an event of that generation has come.
    pub(crate) fn has(&self, resource: &str, generation: i32) -> bool {
        self.state().generations.contains(&(resource.to_owned(), generation))
    }

    /// Whether that event has come.
    pub(crate) fn has_event(&self, id: &str) -> bool {
        self.state().ids.contains(id)
    }

    /// The resources that an event came about after `since`.
    pub(crate) fn about_since(&self, since: Duration) -> HashSet<String> {
        let state = self.state();
        let late = state.receipts.iter().filter(|receipt| receipt.at > since && !receipt.redelivered);
        late.filter_map(|receipt| Some(receipt.event.as_ref().ok()?.resource.clone())).collect()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads an event as an adapter of today would: the structured JSON, a numeric generation, an href.
fn parse(body: &[u8], kind: &str) -> Result<Event, String> {
    let event: Value = serde_json::from_slice(body).map_err(|error| format!("no JSON: {error}"))?;
    let text = |value: &Value, name: &str| match value.as_str() {
        Some(text) if !text.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("no {name}: {event}")),
    };
    let wanted = [
        ("specversion", "1.0".to_owned()),
        ("source", "hyperfleet-sentinel".to_owned()),
        ("type", format!("com.redhat.hyperfleet.{}.reconcile", kind.to_lowercase())),
        ("datacontenttype", "application/json".to_owned()),
    ];
    for (name, value) in wanted {
        if event[name] != value {
            return Err(format!("{name} is not {value}: {event}"));
        }
    }
    let data = &event["data"];
    let resource = text(&data["id"], "data.id")?;
    if data["kind"] != kind || !text(&data["href"], "data.href")?.ends_with(&format!("/{resource}")) {
        return Err(format!("kind or href is another's: {event}"));
    }
    let generation = data["generation"].as_i64().and_then(|generation| generation.try_into().ok());
    Ok(Event {
        id: text(&event["id"], "id")?,
        time: text(&event["time"], "time")?.parse().map_err(|error| format!("time: {error}: {event}"))?,
        generation: generation.ok_or_else(|| format!("no numeric generation: {event}"))?,
        resource,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event() -> Value {
        json!({
            "specversion": "1.0", "id": "e", "source": "hyperfleet-sentinel", "time": "2026-07-01T10:00:00Z",
            "type": "com.redhat.hyperfleet.cluster.reconcile", "datacontenttype": "application/json",
            "data": {"id": "a", "kind": "Cluster", "href": "/api/hyperfleet/v1/clusters/a", "generation": 3}
        })
    }

    #[test]
    fn an_event_is_read_as_adapters_read_it() {
        let read = parse(event().to_string().as_bytes(), "Cluster").unwrap();
        assert_eq!((read.id.as_str(), read.resource.as_str(), read.generation), ("e", "a", 3));
    }

    #[test]
    fn whatever_is_missing_or_anothers_is_told() {
        for (pointer, value) in [
            ("/specversion", json!("0.3")),
            ("/source", json!("else")),
            ("/type", json!("x")),
            ("/id", json!("")),
            ("/time", json!("soon")),
            ("/data/id", json!(null)),
            ("/data/kind", json!("NodePool")),
            ("/data/href", json!("/api/hyperfleet/v1/clusters/b")),
            ("/data/generation", json!("3")),
        ] {
            let mut wrong = event();
            *wrong.pointer_mut(pointer).unwrap() = value;
            parse(wrong.to_string().as_bytes(), "Cluster").unwrap_err();
        }
        parse(b"{", "Cluster").unwrap_err();
    }

    #[test]
    fn what_the_broker_delivers_again_is_not_published_again() {
        let inbox = Inbox::new("Cluster", Instant::now());
        let body = event().to_string();
        for (redelivered, number) in [(false, Some("1")), (false, Some("1")), (true, None), (false, Some("2"))] {
            inbox.take(body.as_bytes(), redelivered, number);
        }
        inbox.refuse("a header".to_owned());
        let again: Vec<bool> = inbox.receipts().iter().map(|receipt| receipt.redelivered).collect();
        assert_eq!(again, [false, true, true, false, false]);
        assert!(inbox.has("a", 3) && !inbox.has("a", 2) && inbox.has_event("e"));
        assert_eq!(inbox.about_since(Duration::ZERO).len(), 1);
    }
}
