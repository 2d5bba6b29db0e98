//! How fast a sink publishes, against the client library alone on the same broker. Not a test of correctness: run it
//! with `cargo test --release -p watchfire-delivery --test all rate -- --ignored --nocapture`.

use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use google_cloud_auth::credentials::anonymous;
use google_cloud_pubsub::client::Publisher;
use google_cloud_pubsub::model::Message;
use lapin::BasicProperties;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use secrecy::SecretString;
use watchfire_delivery::CloudEvent;
use watchfire_delivery::sink::EventSink;
use watchfire_delivery::sink::pubsub::{Endpoint, MissingTopic, PubSub, PubSubConfig};
use watchfire_delivery::sink::rabbitmq::{RabbitMq, RabbitMqConfig};
use watchfire_testkit::{Rabbit, amqp_url, pubsub_endpoint, unique};

use crate::far::events;

const EVENTS: usize = 20_000;
const ROUNDS: usize = 7;
/// Percent of what the client library reaches alone.
const MUST: f64 = 80.0;
/// What consumers in the field ask for.
const UUID: &str = "_watermill_message_uuid";

/// Both send the same messages. Alternates the two, so that both see the same machine, and fails if the best of the
/// sink is less than [`MUST`] of the other's best.
#[expect(clippy::print_stdout, clippy::cast_precision_loss, reason = "it prints rates")]
async fn compare(what: &str, mut ours: impl AsyncFnMut(), mut bare: impl AsyncFnMut()) {
    let mut best = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        let start = Instant::now();
        ours().await;
        best[0] = best[0].min(start.elapsed());
        let start = Instant::now();
        bare().await;
        best[1] = best[1].min(start.elapsed());
    }
    let [ours, bare] = best.map(|time| EVENTS as f64 / time.as_secs_f64());
    let share = ours / bare * 100.0;
    println!("{what}: sink {ours:.0}/s, client alone {bare:.0}/s, {share:.0} % (must >= {MUST} %)");
    assert!(share >= MUST, "{what}: {share:.0} %");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn rabbitmq_against_a_bare_pipelined_publisher() {
    let Some(url) = amqp_url("rabbitmq_against_a_bare_pipelined_publisher") else { return };
    let exchange = unique("rate");
    let rabbit = Rabbit::connect(&url).await;
    rabbit.exchange(&exchange, "fanout").await;
    rabbit.queue(&exchange).await;
    rabbit.bind(&exchange, &exchange, "").await;
    rabbit.channel().confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let sink = RabbitMq::new(RabbitMqConfig::new(&exchange).with_url(&SecretString::from(url)).unwrap());
    let window = events("rate", EVENTS);
    let ours = async || assert!(sink.publish_all(&window).await.iter().all(Result::is_ok));
    let bare = async || {
        for window in window.chunks(1_000) {
            let publish = |event: &CloudEvent| {
                let mut headers = FieldTable::default();
                headers.insert(UUID.into(), AMQPValue::LongString(event.id().into()));
                for (name, value) in event.attribute_pairs() {
                    headers
                        .insert(format!("cloudEvents:{name}").into(), AMQPValue::LongString(value.as_bytes().into()));
                }
                let properties = BasicProperties::default()
                    .with_delivery_mode(2)
                    .with_message_id(event.id().into())
                    .with_content_type("application/cloudevents+json".into())
                    .with_headers(headers);
                let (channel, name) = (rabbit.channel().clone(), exchange.as_str().into());
                let body = event.body().clone();
                async move {
                    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
                    channel.basic_publish(name, "".into(), options, &body, properties).await?.await
                }
            };
            let confirms: FuturesUnordered<_> = window.iter().map(publish).collect();
            assert!(confirms.all(async |confirm| confirm.unwrap().is_ack()).await);
        }
    };
    compare("RabbitMQ", ours, bare).await;
    rabbit.channel().queue_delete(exchange.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn pubsub_against_the_client_alone() {
    let Some(endpoint) = pubsub_endpoint("pubsub_against_the_client_alone") else { return };
    let topic = unique("rate");
    let mut config = PubSubConfig::new("watchfire", &topic);
    config.endpoint = Endpoint::Emulator(endpoint.clone());
    // Without a subscription, the emulator keeps nothing.
    config.missing_topic = MissingTopic::Create;
    let sink = PubSub::new(config);
    let publisher = Publisher::builder(format!("projects/watchfire/topics/{topic}"))
        .with_endpoint(format!("http://{endpoint}"))
        .with_credentials(anonymous::Builder::new().build())
        .set_message_count_threshold(1_000);
    let publisher = publisher.build().await.unwrap();
    let window = events("rate", EVENTS);
    let ours = async || assert!(sink.publish_all(&window).await.iter().all(Result::is_ok));
    let bare = async || {
        let message = |event: &CloudEvent| {
            let attributes = event.attribute_pairs().map(|(name, value)| (format!("ce-{name}"), value.into_owned()));
            let uuid = (UUID.to_owned(), event.id().to_owned());
            Message::new().set_data(event.body().clone()).set_attributes(attributes.chain([uuid]))
        };
        let sent: Vec<_> = window.iter().map(|event| publisher.publish(message(event))).collect();
        for published in sent {
            published.await.unwrap();
        }
    };
    compare("Pub/Sub emulator", ours, bare).await;
}
