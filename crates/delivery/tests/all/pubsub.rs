//! What only Pub/Sub does: topics that do not exist, and limits of attributes.

use std::time::{Duration, Instant};

use watchfire_delivery::sink::EventSink;
use watchfire_delivery::sink::pubsub::{Endpoint, MissingTopic, PubSub, PubSubConfig};
use watchfire_testkit::{Mode, Proxy, Subscription, private_emulator, pubsub_endpoint, unique};

use crate::far::{event, event_about, events};

fn config(endpoint: &str, topic: &str) -> PubSubConfig {
    let mut config = PubSubConfig::new("watchfire", topic);
    config.endpoint = Endpoint::Emulator(endpoint.to_owned());
    config
}

#[tokio::test]
async fn a_message_is_what_consumers_in_the_field_expect() {
    let Some(endpoint) = pubsub_endpoint("pubsub::a_message_is_what_consumers_in_the_field_expect") else { return };
    let topic = unique("wire");
    let mut subscription = Subscription::create(&endpoint, "watchfire", &topic).await;
    let sent = event("id-1", 0);
    let outcomes = PubSub::new(config(&endpoint, &topic)).publish_all(std::slice::from_ref(&sent)).await;
    assert!(outcomes[0].is_ok(), "{outcomes:?}");
    let message = subscription.take(1).await.remove(0);
    assert_eq!(message.data, sent.body());
    assert_eq!(message.attributes["_watermill_message_uuid"], "id-1");
    assert_eq!(message.attributes["ce-type"], "com.redhat.hyperfleet.nodepool.reconcile");
    assert_eq!(message.ordering_key, "");
}

#[tokio::test]
async fn a_missing_topic_says_how_to_create_it_and_is_created_where_asked() {
    let name = "a_missing_topic_says_how_to_create_it_and_is_created_where_asked";
    let Some(endpoint) = pubsub_endpoint(name) else { return };
    let topic = unique("missing");
    let mut config = config(&endpoint, &topic);
    let sink = PubSub::new(config.clone());
    let error = sink.publish_all(&[event("a", 0)]).await.remove(0).unwrap_err();
    for error in [error, sink.check().await.unwrap_err()] {
        assert_eq!(error.kind(), "misconfigured", "{error:?}");
        assert!(error.hint().contains("gcloud pubsub topics create"), "{}", error.hint());
        assert!(error.to_string().contains(&topic), "{error}");
    }
    config.missing_topic = MissingTopic::Create;
    let sink = PubSub::new(config.clone());
    sink.check().await.unwrap();
    assert!(sink.publish_all(&[event("a", 0)]).await[0].is_ok());
    // It exists this time.
    assert!(PubSub::new(config).publish_all(&[event("b", 0)]).await[0].is_ok());
}

#[tokio::test]
async fn a_topic_that_cannot_be_created_fails_every_event_of_the_window() {
    let name = "a_topic_that_cannot_be_created_fails_every_event_of_the_window";
    let Some(endpoint) = pubsub_endpoint(name) else { return };
    let mut config = config(&endpoint, "goog-is-not-allowed");
    config.missing_topic = MissingTopic::Create;
    let outcomes = PubSub::new(config).publish_all(&events("a", 3)).await;
    let kinds: Vec<_> = outcomes.iter().map(|outcome| outcome.as_ref().unwrap_err().kind()).collect();
    assert_eq!(kinds, ["misconfigured"; 3], "{outcomes:?}");
}

#[tokio::test]
async fn an_attribute_over_the_limit_is_left_to_the_body_and_hurts_no_neighbour() {
    let name = "an_attribute_over_the_limit_is_left_to_the_body_and_hurts_no_neighbour";
    let Some(endpoint) = pubsub_endpoint(name) else { return };
    let topic = unique("attributes");
    let mut subscription = Subscription::create(&endpoint, "watchfire", &topic).await;
    let window = [event("a", 0), event_about("b", &"s".repeat(1_100)), event(&"i".repeat(1_100), 0)];
    let outcomes = PubSub::new(config(&endpoint, &topic)).publish_all(&window).await;
    assert!(outcomes[0].is_ok() && outcomes[1].is_ok(), "{outcomes:?}");
    assert_eq!(outcomes[2].as_ref().unwrap_err().kind(), "too_large");
    let arrived = subscription.drain(Duration::from_secs(1)).await;
    assert_eq!(arrived.len(), 2);
    assert_eq!(arrived["b"].data, window[1].body());
    assert!(!arrived["b"].attributes.contains_key("ce-subject"));
}

#[tokio::test]
async fn a_peer_that_goes_silent_ends_within_one_timeout() {
    let Some(endpoint) = pubsub_endpoint("pubsub::a_peer_that_goes_silent_ends_within_one_timeout") else { return };
    let topic = unique("silent");
    let _subscription = Subscription::create(&endpoint, "watchfire", &topic).await;
    let proxy = Proxy::start(endpoint.replace("localhost", "127.0.0.1").parse().unwrap()).await;
    let mut config = config(&proxy.address().to_string(), &topic);
    config.timeout = Duration::from_secs(2);
    let sink = PubSub::new(config);
    assert!(sink.publish_all(&[event("a", 0)]).await[0].is_ok());
    proxy.set(Mode::Blackhole).await;
    let start = Instant::now();
    let outcomes = sink.publish_all(&events("b", 2_500)).await;
    assert_eq!(outcomes.len(), 2_500);
    assert!(outcomes.iter().all(|o| matches!(o.as_ref().unwrap_err().kind(), "timeout" | "connect")));
    assert!(start.elapsed() < Duration::from_secs(8), "{:?} for one timeout of 2 s", start.elapsed());
    proxy.set(Mode::Pass).await;
    assert!(sink.publish_all(&[event("c", 0)]).await[0].is_ok());
}

#[tokio::test]
async fn who_asks_while_another_asks_gets_an_answer_of_its_own() {
    // Takes connections, and never says a word.
    let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = config(&mute.local_addr().unwrap().to_string(), "mute-topic");
    config.timeout = Duration::from_millis(500);
    let sink = PubSub::new(config);
    let (first, second) = tokio::join!(sink.check(), sink.check());
    assert!(first.is_err() && second.is_err(), "{first:?} {second:?}");
}

#[tokio::test]
async fn an_emulator_that_restarts_has_forgotten_the_topic_and_a_creating_sink_makes_it_again() {
    let name = "an_emulator_that_restarts_has_forgotten_the_topic_and_a_creating_sink_makes_it_again";
    let Some(mut emulator) = private_emulator(name).await else { return };
    let mut config = config(&emulator.endpoint(), "topic");
    (config.missing_topic, config.timeout) = (MissingTopic::Create, Duration::from_secs(5));
    let sink = PubSub::new(config);
    assert!(sink.publish_all(&[event("a", 0)]).await[0].is_ok());
    emulator.kill();
    assert!(sink.publish_all(&[event("b", 0)]).await[0].is_err());
    emulator.restart().await;
    assert!(sink.publish_all(&[event("b", 0)]).await[0].is_ok());
}
