//! Every byte that an adapter relies on, held against messages that today's sentinel was recorded to send.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use watchfire_simulator::{Dialect, NewResource, Patch};

use crate::far::{Arrived, Far, over_both};
use crate::support::{Api, Bench, minimal};

/// Where we put the attributes beside the body, per broker.
fn prefix(far: &Far) -> &'static str {
    match far {
        Far::RabbitMq { .. } => "cloudEvents:",
        Far::PubSub { .. } => "ce-",
    }
}

/// The data as adapters read it: into fixed types, where a number in quotes or an object in brackets fails the event.
#[derive(Debug, Deserialize, PartialEq)]
struct Data {
    id: String,
    kind: String,
    href: String,
    generation: i32,
    owner_references: Option<Owner>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Owner {
    id: String,
    kind: String,
    href: String,
}

/// Anything else in a structured event is an extension, and those have lower-case names and, here, string values.
fn check_envelope(far: &Far, arrived: &Arrived) {
    let members = arrived.event.as_object().unwrap();
    for (name, value) in members {
        match name.as_str() {
            "data" => assert!(value.is_object()),
            name => {
                assert!(name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()), "{name}");
                assert!(value.is_string(), "{name}: {value}");
            }
        }
    }
    let keys: Vec<_> = members.keys().map(String::as_str).collect();
    assert_eq!(keys, ["specversion", "id", "source", "type", "time", "datacontenttype", "data"]);
    let id: uuid::Uuid = arrived.id().parse().unwrap();
    assert_eq!((id.to_string().as_str(), id.get_version_num()), (arrived.id(), 5));
    assert!(arrived.event["time"].as_str().unwrap().parse::<Timestamp>().is_ok());

    // The one header that the adapters' library asks for, and the attributes once more under their own names.
    let mut expected = BTreeMap::from([("_watermill_message_uuid".to_owned(), arrived.id().to_owned())]);
    let attributes = members.iter().filter(|(name, _)| *name != "data");
    expected.extend(attributes.map(|(name, value)| {
        let value = value.as_str().unwrap().to_owned();
        (format!("{}{name}", prefix(far)), value)
    }));
    assert_eq!(arrived.beside, expected);
}

/// A node pool as recorded: same type, source and data, with the owner as one object and the generation as a number.
async fn a_node_pools_event_is_what_todays_sentinel_was_recorded_to_send(far: Far) {
    let recorded: Vec<Value> = serde_json::from_str(include_str!("../data/messages.json")).unwrap();
    let body: Value = serde_json::from_str(recorded[0]["body_text"].as_str().unwrap()).unwrap();
    let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
    let inbox = far.listen().await;
    let api = Api::start(Dialect::Hyperfleet).await;
    let owner = NewResource::named("alpha").id(&text("/data/owner_references/id"));
    let owner = api.fleet.create("clusters", owner).unwrap();
    let pool = NewResource::named("np-a").id(&text("/data/id"));
    let pool = api.fleet.create_in("nodepools", Some(&owner.id), pool).unwrap();
    api.fleet.patch("nodepools", &pool.id, Patch::spec(&json!({"replicas": 3}))).unwrap();
    let live = Bench::new(&minimal(&api.url).replace("clusters", "nodepools"), far.sink()).run();

    let arrived = inbox.wait_for(1).await.remove(0);
    check_envelope(&far, &arrived);
    // As dashboards know the brokers by name.
    let broker = match far {
        Far::RabbitMq { .. } => r#"broker_type="rabbitmq""#,
        Far::PubSub { .. } => r#"broker_type="gcp-pubsub""#,
    };
    assert_eq!(live.metric("hyperfleet_sentinel_broker_errors_total", &[broker]), Some(0.0));
    for member in ["specversion", "source", "type", "datacontenttype", "data"] {
        assert_eq!(arrived.event[member], body[member], "{member}");
    }
    // What the recording has beside the body is the event's id, in a string.
    for message in &recorded {
        for (name, value) in message["properties"]["headers"].as_object().unwrap() {
            assert!(value.is_string() && arrived.beside.contains_key(name), "{name}");
        }
        assert_eq!(message["properties"]["delivery_mode"], 2);
        assert_eq!(message["routing_key"], "");
    }
    let data: Data = serde_json::from_value(arrived.event["data"].clone()).unwrap();
    assert_eq!(data.owner_references.unwrap().id, owner.id);
    let raw = String::from_utf8(arrived.bytes).unwrap();
    assert!(raw.contains(r#""generation":2,"#) || raw.contains(r#""generation":2}"#), "{raw}");
}

/// A cluster has no owner: the field is left out rather than empty, because an empty string is no object to an adapter.
async fn a_clusters_event_has_exactly_the_fields_that_an_adapter_reads(far: Far) {
    let inbox = far.listen().await;
    let api = Api::start(Dialect::Hyperfleet).await;
    let cluster = api.fleet.create("clusters", NewResource::named("zuerich").label("city", "zürich")).unwrap();
    let _live = Bench::new(&minimal(&api.url), far.sink()).run();
    let arrived = inbox.wait_for(1).await.remove(0);
    check_envelope(&far, &arrived);
    let expected = json!({"id": cluster.id, "kind": "Cluster", "href": cluster.href, "generation": 1});
    assert_eq!(arrived.event["data"], expected);
    let data: Data = serde_json::from_value(expected).unwrap();
    assert_eq!((data.generation, data.owner_references), (1, None));
}

/// Every JSON type survives the way through templates, frames and brokers.
async fn paths_keep_their_type_and_templates_are_text(far: Far) {
    let inbox = far.listen().await;
    let api = Api::start(Dialect::Hyperfleet).await;
    let spec = json!({"n": 1.5, "on": true, "list": [1, "zwei", null], "deep": {"ünï": "\"<&>\"\n\u{1F525}"}});
    let mut new = NewResource::named("alpha");
    new.spec = serde_json::value::to_raw_value(&spec).ok();
    let id = api.fleet.create("clusters", new).unwrap().id;
    let fields =
        "message_data:\n  id: .id\n  spec: .spec\n  generation: '{{ .generation }}'\n  limit: 7\n  sure: true\n";
    let _live = Bench::new(&format!("{}{fields}", minimal(&api.url)), far.sink()).run();
    let arrived = inbox.wait_for(1).await.remove(0);
    check_envelope(&far, &arrived);
    let expected = json!({"id": id, "spec": spec, "generation": "1", "limit": 7, "sure": true});
    assert_eq!(arrived.event["data"], expected);
}

over_both! {
    a_node_pools_event_is_what_todays_sentinel_was_recorded_to_send
    a_clusters_event_has_exactly_the_fields_that_an_adapter_reads
    paths_keep_their_type_and_templates_are_text
}

/// Consumers that look at it see what the body is; today's do not.
#[tokio::test(flavor = "multi_thread")]
async fn on_rabbitmq_the_message_id_is_the_events_and_the_content_type_says_structured() {
    let name = "on_rabbitmq_the_message_id_is_the_events_and_the_content_type_says_structured";
    let Some(far) = Far::rabbitmq(name) else { return };
    let Far::RabbitMq { url, topic } = &far else { unreachable!() };
    let mut consumer = watchfire_testkit::Rabbit::listen(url, topic, "fanout", "").await;
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.create("clusters", NewResource::named("alpha")).unwrap();
    let live = Bench::new(&minimal(&api.url), far.sink()).run();
    let message = consumer.take(1).await.remove(0);
    let event: Value = serde_json::from_slice(&message.body).unwrap();
    let property = |text: &Option<lapin::types::ShortString>| text.as_ref().unwrap().to_string();
    assert_eq!(property(message.properties.message_id()), event["id"].as_str().unwrap());
    assert_eq!(property(message.properties.content_type()), "application/cloudevents+json");
    assert_eq!((message.exchange.as_str(), message.routing_key.as_str()), (topic.as_str(), ""));
    assert_eq!(message.properties.expiration(), &None, "an event must not age away in a queue");
    live.stop().await;
    far.clean().await;
}
