//! The recorded exchanges of the real API, sent again: the same answers, but for ids, times and trace ids.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp, Unit};
use serde_json::Value;
use watchfire_simulator::{NewResource, Patch, Simulator};

use crate::support::{Answer, BASE, serve};

/// The cluster that was there before the recording began.
const ALPHA: &str = "01a21f94-a0e7-76b2-b41a-0e574056cef6";

/// What in the recording stands for what in the replay.
#[derive(Default)]
struct Mapping {
    ids: HashMap<String, String>,
    times: HashMap<Timestamp, Timestamp>,
    shift: SignedDuration,
}

impl Mapping {
    fn text(&self, text: &str) -> String {
        self.ids.iter().fold(text.to_owned(), |text, (recorded, ours)| text.replace(recorded, ours))
    }

    /// The request as it has to be sent now.
    fn request(&mut self, recorded: &Value) -> Value {
        let mut body = recorded.clone();
        if let Some(time) = body.get_mut("observed_time") {
            let observed: Timestamp = time.as_str().unwrap().parse().unwrap();
            let shifted = observed + self.shift;
            self.times.insert(observed, shifted);
            *time = shifted.to_string().into();
        }
        body
    }

    /// Compares, and learns what it sees for the first time.
    fn compare(&mut self, at: &str, recorded: &Value, ours: &Value) {
        match (recorded, ours) {
            (Value::Object(recorded), Value::Object(ours)) => {
                let keys = |map: &serde_json::Map<String, Value>| map.keys().cloned().collect::<Vec<_>>();
                assert_eq!(keys(recorded), keys(ours), "{at}");
                for (key, value) in recorded {
                    self.compare(&format!("{at}.{key}"), value, &ours[key]);
                }
            }
            (Value::Array(recorded), Value::Array(ours)) => {
                assert_eq!(recorded.len(), ours.len(), "{at}");
                for (index, pair) in recorded.iter().zip(ours).enumerate() {
                    self.compare(&format!("{at}[{index}]"), pair.0, pair.1);
                }
            }
            (Value::String(recorded), Value::String(ours)) => self.compare_text(at, recorded, ours),
            _ => assert_eq!(recorded, ours, "{at}"),
        }
    }

    fn compare_text(&mut self, at: &str, recorded: &str, ours: &str) {
        if at.ends_with(".trace_id") {
            assert_eq!(recorded.is_empty(), ours.is_empty(), "{at}");
        } else if let Ok(time) = recorded.parse::<Timestamp>() {
            if !at.ends_with(".timestamp") {
                self.compare_time(at, time.round(Unit::Microsecond).unwrap(), ours.parse().unwrap());
            }
        } else if at.rsplit('.').next() == Some("id") && !self.ids.contains_key(recorded) {
            self.ids.insert(recorded.to_owned(), ours.to_owned());
        } else if at.rsplit('.').next() == Some("href") && ours.len() == recorded.len() {
            // It comes before the id that it contains.
            assert!(ours.starts_with(BASE), "{at}");
        } else {
            assert_eq!(self.text(recorded), ours, "{at}");
        }
    }

    fn compare_time(&mut self, at: &str, recorded: Timestamp, ours: Timestamp) {
        let known = *self.times.entry(recorded).or_insert(ours);
        assert_eq!(known, ours, "{at}: {recorded} was {known} before");
        for (other, same) in &self.times {
            // The real API reads its clock twice while it deletes.
            let apart = other.duration_since(recorded).abs() > SignedDuration::from_millis(10);
            assert!(!apart || *same != ours, "{at}: {recorded} and {other} are both {ours}");
        }
    }
}

fn check(mapping: &mut Mapping, step: &str, recorded: &Value, ours: &Answer) {
    assert_eq!(recorded["status"], ours.status, "{step}: {}", ours.text);
    assert_eq!(recorded["content_type"].as_str(), ours.content_type.as_deref(), "{step}");
    if recorded["body"].is_null() {
        assert_eq!(ours.text, "", "{step}");
    } else {
        // Twice: an href may come before the id that it contains.
        mapping.compare(step, &recorded["body"], &ours.json());
        mapping.compare(step, &recorded["body"], &ours.json());
        let recorded_text = recorded["body"].to_string();
        for (id, mapped) in mapping.ids.clone() {
            assert_eq!(recorded_text.matches(&id).count(), ours.text.matches(&mapped).count(), "{step}: {id}");
        }
    }
}

#[tokio::test]
async fn recorded_exchanges_get_the_same_answers() {
    let exchanges: Vec<Value> = serde_json::from_str(include_str!("../data/exchanges.json")).unwrap();
    assert_eq!(exchanges.len(), 32);
    let simulator = Simulator::default();
    let mut alpha = NewResource::named("alpha").label("region", "us-east").label("cluster-type", "gpu");
    alpha.spec = Patch::spec(&serde_json::json!({"replicas": 3})).spec;
    let alpha = simulator.create("clusters", alpha).unwrap();
    let running = serve(simulator).await;

    let mut mapping = Mapping::default();
    mapping.ids.insert(ALPHA.to_owned(), alpha.id);
    let began: Timestamp = "2026-11-28T00:36:48Z".parse().unwrap();
    let now = Timestamp::from_second(watchfire_runtime::clock::now().as_second()).unwrap();
    mapping.shift = now.duration_since(began);
    for exchange in &exchanges {
        let (step, request) = (exchange["step"].as_str().unwrap(), &exchange["request"]);
        let path = mapping.text(request["path"].as_str().unwrap());
        let path = path.strip_prefix(BASE).unwrap();
        let query = request["query"].as_object().unwrap().iter();
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let query: Vec<(String, String)> = query.map(|(key, value)| (key.clone(), text(value))).collect();
        let query: Vec<(&str, &str)> = query.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let body = Some(&request["body"]).filter(|body| !body.is_null()).map(|body| mapping.request(body));
        let ours = running.send(request["method"].as_str().unwrap(), path, &query, body.as_ref()).await;
        check(&mut mapping, step, &exchange["response"], &ours);
    }
}
