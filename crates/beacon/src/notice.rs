//! What is sent: the CloudEvent that says that an object appeared, or that it is gone.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use watchfire_delivery::CloudEvent;
use watchfire_delivery::event::Attributes;

use crate::episode::Snapshot;

/// The envelope of each event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The source, before namespace and kind.
    pub source: String,
    /// The type, before what happened.
    pub type_prefix: String,
}

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Created,
    Deleted,
}

impl What {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Deleted => "deleted",
        }
    }
}

/// What keeps its order on the way to the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Everything.
    All,
    /// What is about one name: not about one UID, since what takes the place of another is announced behind it.
    Name,
}

impl Order {
    /// The key of an event, whatever its envelope says.
    pub(crate) fn key_of(self, event: &CloudEvent) -> String {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Data {
            resource: Named,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Named {
            #[serde(rename = "type")]
            kind: String,
            namespace: String,
            name: String,
        }
        match self {
            Self::All => "*".to_owned(),
            Self::Name => {
                let Data { resource } = serde_json::from_str(event.data().get()).unwrap_or_default();
                format!("{}/{}/{}", resource.kind, resource.namespace, resource.name)
            }
        }
    }
}

#[derive(Serialize)]
struct Data<'a> {
    resource: Resource<'a>,
    metadata: Metadata<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Resource<'a> {
    uid: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    name: &'a str,
    namespace: &'a str,
    annotation_value: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    resource_version: &'a str,
}

impl Envelope {
    /// The event about an episode, by the id that the ledger has for it.
    pub(crate) fn event(&self, what: What, id: &str, kind: &str, snapshot: &Snapshot, at: Timestamp) -> CloudEvent {
        let Snapshot { namespace, name, uid, value, annotations, labels, resource_version } = snapshot;
        let data = Data {
            resource: Resource { uid, kind, name, namespace, annotation_value: value },
            metadata: Metadata { annotations, labels, resource_version },
        };
        // Writing texts into memory cannot fail.
        let data = to_raw_value(&data).unwrap_or_else(|_| RawValue::NULL.to_owned());
        let attributes = Attributes {
            id: format!("{id}.{}", what.as_str()),
            source: format!("{}/{namespace}/{kind}", self.source),
            ty: format!("{}.{}", self.type_prefix, what.as_str()),
            subject: Some(name.clone()),
            time: Some(at),
            extensions: Vec::new(),
        };
        CloudEvent::new(attributes, data)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// What the original sent, but for the id, which it gives to both events.
    #[test]
    fn events_say_what_the_original_was_recorded_to_say() {
        let recorded: Vec<Value> = serde_json::from_str(include_str!("../tests/data/deliveries.json")).unwrap();
        let envelope = Envelope { source: "/beacon".into(), type_prefix: "net.bakerapps.beacon.resource".into() };
        for (what, delivery) in [What::Created, What::Deleted].into_iter().zip(&recorded) {
            let theirs = &delivery["body"];
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let map = |value: &Value| serde_json::from_value(value.clone()).unwrap();
            let (resource, metadata) = (&theirs["data"]["resource"], &theirs["data"]["metadata"]);
            let snapshot = Snapshot {
                namespace: text(&resource["namespace"]),
                name: text(&resource["name"]),
                uid: text(&resource["uid"]),
                value: text(&resource["annotationValue"]),
                annotations: map(&metadata["annotations"]),
                labels: map(&metadata["labels"]),
                resource_version: text(&metadata["resourceVersion"]),
            };
            let at = text(&theirs["time"]).parse().unwrap();
            let event = envelope.event(what, theirs["id"].as_str().unwrap(), "ConfigMap", &snapshot, at);
            let mut ours: Value = serde_json::from_slice(event.body()).unwrap();
            assert_eq!(ours["id"], format!("{}.{}", text(&theirs["id"]), what.as_str()));
            ours["id"] = theirs["id"].clone();
            assert_eq!(&ours, theirs);
        }
    }

    #[test]
    fn what_there_is_none_of_is_left_out() {
        let envelope = Envelope { source: "/beacon".into(), type_prefix: "t".into() };
        let snapshot = Snapshot {
            namespace: String::new(),
            name: "n".into(),
            uid: "u".into(),
            value: String::new(),
            annotations: BTreeMap::new(),
            labels: BTreeMap::new(),
            resource_version: String::new(),
        };
        let event = envelope.event(What::Created, "i", "Node", &snapshot, Timestamp::UNIX_EPOCH);
        let body: Value = serde_json::from_slice(event.body()).unwrap();
        assert_eq!(body["data"]["metadata"], serde_json::json!({}));
        assert_eq!((&body["source"], &body["id"]), (&"/beacon//Node".into(), &"i.created".into()));
    }
}
