//! What only RabbitMQ does: exchanges that do not fit, unroutable messages, alarms, and a broker that dies.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::FutureExt;
use lapin::options::{ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use secrecy::SecretString;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use watchfire_delivery::CloudEvent;
use watchfire_delivery::retry::Verdict;
use watchfire_delivery::sink::rabbitmq::{ExchangeType, RabbitMq, RabbitMqConfig, Transport};
use watchfire_delivery::sink::{Error, EventSink};
use watchfire_runtime::SecretSource;
use watchfire_testkit::{
    Broker, Mode, Proxy, Rabbit, alone, amqp_url, eventually, open_files, private_broker, private_broker_with,
    proc_status, unique,
};

use crate::far::{event, events, resolve};

mod tls;

const STEP: Duration = Duration::from_mins(1);

fn config(url: &str, exchange: &str) -> RabbitMqConfig {
    RabbitMqConfig::new(exchange).with_url(&SecretString::from(url)).unwrap()
}

/// Through a proxy in front of a private broker.
fn through(proxy: &Proxy, exchange: &str, timeout: Duration) -> RabbitMq {
    let mut config = config(&format!("amqp://{}/%2f", proxy.address()), exchange);
    config.timeout = timeout;
    RabbitMq::new(config)
}

async fn publish_one(sink: &RabbitMq, id: &str) -> Result<(), Error> {
    sink.publish_all(&[event(id, 0)]).await.remove(0)
}

/// Exactly what adapters in the field read, and nothing they choke on (recorded messages: one string header with the
/// event's id, persistent, structured JSON).
#[tokio::test]
async fn a_message_is_what_consumers_in_the_field_expect() {
    let Some(url) = amqp_url("a_message_is_what_consumers_in_the_field_expect") else { return };
    let exchange = unique("wire");
    let mut consumer = Rabbit::listen(&url, &exchange, "fanout", "").await;
    publish_one(&RabbitMq::new(config(&url, &exchange)), "id-1").await.unwrap();
    let message = consumer.take(1).await.remove(0);
    assert_eq!(message.headers["_watermill_message_uuid"], "id-1");
    assert_eq!(message.headers["cloudEvents:type"], "com.redhat.hyperfleet.nodepool.reconcile");
    assert_eq!((message.exchange.as_str(), message.routing_key.as_str()), (exchange.as_str(), ""));
    assert_eq!(message.properties.delivery_mode(), &Some(2));
    assert_eq!(message.properties.message_id().as_ref().unwrap().as_str(), "id-1");
    assert_eq!(message.properties.content_type().as_ref().unwrap().as_str(), "application/cloudevents+json");
    let body: serde_json::Value = serde_json::from_slice(&message.body).unwrap();
    assert_eq!((&body["specversion"], &body["data"]["generation"]), (&"1.0".into(), &2.into()));
}

#[tokio::test]
async fn an_exchange_of_another_type_is_a_406_that_says_what_to_do() {
    let Some(url) = amqp_url("an_exchange_of_another_type_is_a_406_that_says_what_to_do") else { return };
    let exchange = unique("mismatch");
    Rabbit::connect(&url).await.exchange(&exchange, "topic").await;
    let sink = RabbitMq::new(config(&url, &exchange));
    for error in [publish_one(&sink, "a").await.unwrap_err(), sink.check().await.unwrap_err()] {
        assert_eq!(error.kind(), "misconfigured");
        assert!(error.to_string().contains("406"), "{error}");
        assert!(error.hint().contains("BROKER_EXCHANGE_TYPE"), "{}", error.hint());
    }
}

#[tokio::test]
async fn wrong_password_and_unknown_virtual_host_are_told_apart_and_show_no_password() {
    let name = "wrong_password_and_unknown_virtual_host_are_told_apart_and_show_no_password";
    let Some(url) = amqp_url(name) else { return };
    let mut wrong = config(&url, &unique("denied"));
    wrong.password = SecretSource::literal("hunter2");
    let error = publish_one(&RabbitMq::new(wrong), "a").await.unwrap_err();
    assert_eq!(error.kind(), "denied");
    assert!(!format!("{error:?} {error}").contains("hunter2"), "{error:?}");

    let mut elsewhere = config(&url, &unique("denied"));
    elsewhere.vhost = "nowhere".to_owned();
    let error = publish_one(&RabbitMq::new(elsewhere), "a").await.unwrap_err();
    assert_eq!(error.kind(), "misconfigured", "{error:?}");
    assert!(error.hint().contains("BROKER_VHOST"), "{}", error.hint());
}

#[tokio::test]
async fn a_deleted_exchange_fails_one_window_and_is_declared_again_with_the_next() {
    let Some(url) = amqp_url("a_deleted_exchange_fails_one_window_and_is_declared_again") else { return };
    let exchange = unique("deleted");
    let rabbit = Rabbit::connect(&url).await;
    let sink = RabbitMq::new(config(&url, &exchange));
    sink.check().await.unwrap();
    rabbit.channel().exchange_delete(exchange.as_str().into(), ExchangeDeleteOptions::default()).await.unwrap();
    let window = events("x", 3);
    for outcome in sink.publish_all(&window).await {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), "misconfigured", "{error:?}");
    }
    let mut consumer = Rabbit::listen(&url, &exchange, "fanout", "").await;
    assert!(sink.publish_all(&window).await.iter().all(Result::is_ok));
    consumer.take(3).await;
}

#[tokio::test]
async fn a_user_who_may_not_create_the_exchange_can_still_publish_to_it() {
    let name = "a_user_who_may_not_create_the_exchange_can_still_publish_to_it";
    let Some(broker) = private_broker(name).await else { return };
    broker.ctl(&["add_user", "writer", "secret"]).await;
    broker.ctl(&["set_permissions", "writer", "^$", ".*", "^$"]).await;
    let mut theirs = config(&broker.url(), "theirs");
    (theirs.user, theirs.password) = ("writer".to_owned(), SecretSource::literal("secret"));
    let sink = RabbitMq::new(theirs);
    let error = publish_one(&sink, "a").await.unwrap_err();
    assert_eq!(error.kind(), "denied", "{error:?}");
    let mut consumer = Rabbit::listen(&broker.url(), "theirs", "fanout", "").await;
    publish_one(&sink, "b").await.unwrap();
    consumer.take(1).await;
}

/// A password is rotated at the broker and in its file, in either order; the open connection outlives both.
#[tokio::test]
async fn a_rotated_password_is_used_by_the_next_connection() {
    let Some(broker) = private_broker("a_rotated_password_is_used_by_the_next_connection").await else { return };
    broker.ctl(&["add_user", "rotating", "first"]).await;
    broker.ctl(&["set_permissions", "rotating", ".*", ".*", ".*"]).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "first\n").unwrap();
    let _consumer = Rabbit::listen(&broker.url(), "rotated", "fanout", "").await;
    let proxy = Proxy::start(broker.address()).await;
    let mut config = config(&format!("amqp://{}/%2f", proxy.address()), "rotated");
    (config.user, config.password) = ("rotating".to_owned(), SecretSource::file(file.path()));
    let sink = RabbitMq::new(config);
    publish_one(&sink, "a").await.unwrap();

    broker.ctl(&["change_password", "rotating", "second"]).await;
    publish_one(&sink, "b").await.unwrap();
    proxy.cut();
    let denied = eventually(STEP, "the old password is refused", async || {
        publish_one(&sink, "c").await.err().filter(|error| error.kind() == "denied")
    });
    assert!(!format!("{:?}", denied.await).contains("first"));
    std::fs::write(file.path(), "second\n").unwrap();
    publish_one(&sink, "c").await.unwrap();

    std::fs::remove_file(file.path()).unwrap();
    proxy.cut();
    let gone = eventually(STEP, "the file is missed", async || {
        publish_one(&sink, "d").await.err().filter(|error| error.kind() == "denied")
    });
    let told = watchfire_runtime::chain(&gone.await);
    assert!(told.contains("read secret file") && told.contains(file.path().to_str().unwrap()), "{told}");
    std::fs::write(file.path(), "second").unwrap();
    publish_one(&sink, "d").await.unwrap();
}

/// The client library hands a returned message to any confirm of its channel; here the odd event is unroutable. A
/// topic exchange cannot tell messages of one routing key apart, so a headers exchange does: it routes by
/// `cloudEvents:subject`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_20_windows_of_1000_every_unroutable_event_and_no_other_is_told() {
    let name = "in_20_windows_of_1000_every_unroutable_event_and_no_other_is_told";
    let Some(url) = amqp_url(name) else { return };
    let exchange = unique("mixed");
    let rabbit = Rabbit::connect(&url).await;
    rabbit.exchange(&exchange, "headers").await;
    let queue = unique("mixed");
    rabbit.queue(&queue).await;
    let mut arguments = FieldTable::default();
    let text = |text: &str| AMQPValue::LongString(text.into());
    arguments.insert("x-match".into(), text("all"));
    arguments.insert("cloudEvents:subject".into(), text("routable"));
    let bound = rabbit.channel().queue_bind(
        queue.as_str().into(),
        exchange.as_str().into(),
        "".into(),
        QueueBindOptions::default(),
        arguments,
    );
    bound.await.unwrap();

    let mut headers = config(&url, &exchange);
    headers.exchange_type = ExchangeType::Headers;
    headers.timeout = STEP;
    let sink = RabbitMq::new(headers);
    let mut expected = BTreeSet::new();
    for window in 0..20 {
        let routable = |i: usize| !(i * 7 + window).is_multiple_of(10) && !(400..430).contains(&i) && i < 990;
        let events: Vec<_> = (0..1_000)
            .map(|i| {
                let subject = if routable(i) { "routable" } else { "lost" };
                crate::far::event_about(&format!("{window}-{i}"), subject)
            })
            .collect();
        for (i, outcome) in sink.publish_all(&events).await.into_iter().enumerate() {
            match outcome {
                Ok(()) => assert!(routable(i), "window {window}: event {i} is unroutable, and came back as taken"),
                Err(Error::Unroutable { .. }) => assert!(!routable(i), "window {window}: event {i} is routable"),
                Err(e) => panic!("window {window}, event {i}: {e:?}"),
            }
            if routable(i) {
                expected.insert(format!("{window}-{i}"));
            }
        }
    }
    let mut consumer = rabbit.consume(&queue).await;
    let arrived = consumer.take(expected.len()).await;
    assert!(consumer.next(Duration::from_millis(300)).await.is_none());
    let ids: BTreeSet<_> = arrived.iter().map(|m| m.headers["_watermill_message_uuid"].clone()).collect();
    assert_eq!(ids, expected);
    consumer.delete().await;
}

#[tokio::test]
async fn an_event_nobody_is_bound_for_says_so_and_names_the_routing_key() {
    let Some(url) = amqp_url("an_event_nobody_is_bound_for_says_so_and_names_the_routing_key") else { return };
    let exchange = unique("unbound");
    let mut topic = config(&url, &exchange);
    (topic.exchange_type, topic.routing_key) = (ExchangeType::Topic, "clusters.eu".to_owned());
    let sink = RabbitMq::new(topic);
    let error = publish_one(&sink, "a").await.unwrap_err();
    assert_eq!(error.kind(), "unroutable");
    assert!(error.to_string().contains("clusters.eu"), "{error}");
    let mut consumer = Rabbit::listen(&url, &exchange, "topic", "clusters.*").await;
    publish_one(&sink, "b").await.unwrap();
    assert_eq!(consumer.take(1).await[0].headers["_watermill_message_uuid"], "b");
}

/// What the broker would close the connection for, its neighbours' confirms with it, is not sent.
#[tokio::test]
async fn headers_that_fit_no_frame_are_a_refusal_of_that_event_and_not_of_its_neighbours() {
    let test = "headers_that_fit_no_frame_are_a_refusal_of_that_event_and_not_of_its_neighbours";
    let Some(url) = amqp_url(test) else { return };
    let exchange = unique("headers");
    let mut consumer = Rabbit::listen(&url, &exchange, "fanout", "").await;
    let large = event("large", 0);
    let mut attributes = large.attributes().clone();
    attributes.ty = "x".repeat(200_000);
    let large = CloudEvent::new(attributes, large.data().to_owned());
    let outcomes = RabbitMq::new(config(&url, &exchange)).publish_all(&[event("a", 0), large, event("b", 0)]).await;
    assert!(outcomes[0].is_ok() && outcomes[2].is_ok(), "{outcomes:?}");
    assert_eq!(outcomes[1].as_ref().unwrap_err().kind(), "too_large");
    let ids = consumer.take(2).await.into_iter().map(|message| message.headers["_watermill_message_uuid"].clone());
    assert_eq!(ids.collect::<Vec<_>>(), ["a", "b"]);
}

fn large(id: &str, bytes: usize) -> CloudEvent {
    let data = serde_json::value::RawValue::from_string(format!("\"{}\"", "x".repeat(bytes))).unwrap();
    CloudEvent::new(event(id, 0).attributes().clone(), data)
}

/// The broker closes the channel over one event that is larger than it is configured to take.
#[tokio::test]
async fn an_event_larger_than_the_broker_is_configured_to_take_is_refused_alone() {
    let name = "an_event_larger_than_the_broker_is_configured_to_take_is_refused_alone";
    let Some(broker) = private_broker_with(name, "max_message_size = 20000\n").await else { return };
    let mut consumer = Rabbit::listen(&broker.url(), "small", "fanout", "").await;
    let sink = RabbitMq::new(config(&broker.url(), "small"));
    let mut window = events("w", 20);
    window.insert(10, large("large", 30_000));
    // The first refusal tells the limit; whatever it took with it passes with the next attempt.
    let first = sink.publish_all(&window).await;
    assert_eq!(first[10].as_ref().unwrap_err().kind(), "too_large", "{:?}", first[10]);
    for error in first.iter().enumerate().filter(|(i, _)| *i != 10).filter_map(|(_, outcome)| outcome.as_ref().err()) {
        assert_eq!(error.verdict(), Verdict::Retry { after: None }, "{error:?}");
    }
    for (i, outcome) in sink.publish_all(&window).await.into_iter().enumerate() {
        assert_eq!(outcome.is_ok(), i != 10, "event {i}: {outcome:?}");
    }
    let arrived = consumer.drain(Duration::from_millis(500)).await;
    let ids: BTreeSet<_> = arrived.iter().map(|m| m.headers["_watermill_message_uuid"].as_str()).collect();
    assert_eq!(ids.len(), 20);
    assert!(!ids.contains("large"));
}

/// `kill -9` under load, three times: whatever was `Ok` is in the durable queue afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_killed_under_load_has_every_event_that_was_ok() {
    let Some(mut broker) = private_broker("a_broker_killed_under_load_has_every_event_that_was_ok").await else {
        return;
    };
    let rabbit = Rabbit::connect(&broker.url()).await;
    rabbit.exchange("load", "fanout").await;
    rabbit.queue("load").await;
    rabbit.bind("load", "load", "").await;
    rabbit.close().await;
    let sink = RabbitMq::new(config(&broker.url(), "load"));
    let mut confirmed = BTreeSet::new();
    let mut unconfirmed = 0;
    for round in 0..3 {
        let window = events(&format!("r{round}"), 5_000);
        let before = confirmed.len();
        // Killed while the window is in flight: after the queue has some of it and long before it has all.
        let (outcomes, ()) = tokio::join!(sink.publish_all(&window), kill_in_flight(&mut broker));
        for (event, outcome) in window.iter().zip(outcomes) {
            match outcome {
                Ok(()) => drop(confirmed.insert(event.id().to_owned())),
                Err(e) => {
                    // On a busy machine the time is over before the broker is.
                    assert!(matches!(e, Error::Connect { .. } | Error::Timeout { .. }), "{e:?}");
                    unconfirmed += 1;
                }
            }
        }
        assert!(confirmed.len() - before < 5_000, "round {round}: the broker died after the window");
        broker.restart().await;
        let again = events(&format!("r{round}-again"), 100);
        assert!(sink.publish_all(&again).await.iter().all(Result::is_ok), "reconnects by itself");
        confirmed.extend(again.iter().map(|event| event.id().to_owned()));
    }
    assert!(unconfirmed > 0);
    let mut consumer = Rabbit::connect(&broker.url()).await.consume("load").await;
    let kept: BTreeSet<_> = consumer
        .drain(Duration::from_secs(3))
        .await
        .into_iter()
        .map(|m| m.headers["_watermill_message_uuid"].clone())
        .collect();
    let lost: Vec<_> = confirmed.difference(&kept).collect();
    assert!(lost.is_empty(), "{} of {} confirmed events are lost: {:?}", lost.len(), confirmed.len(), &lost[..1]);
}

async fn kill_in_flight(broker: &mut Broker) {
    let url = broker.url();
    let watcher = Rabbit::connect(&url).await;
    let start = depth(&watcher).await;
    eventually(STEP, "the queue grows", async || (depth(&watcher).await > start).then_some(())).await;
    broker.kill();
}

async fn depth(rabbit: &Rabbit) -> u32 {
    let options = QueueDeclareOptions { passive: true, ..Default::default() };
    let queue = rabbit.channel().queue_declare("load".into(), options, FieldTable::default()).await.unwrap();
    queue.message_count()
}

#[tokio::test]
async fn a_full_queue_that_rejects_is_a_refusal_of_each_event_and_not_of_its_neighbours() {
    let name = "a_full_queue_that_rejects_is_a_refusal_of_each_event_and_not_of_its_neighbours";
    let Some(url) = amqp_url(name) else { return };
    let exchange = unique("full");
    let rabbit = Rabbit::connect(&url).await;
    rabbit.exchange(&exchange, "fanout").await;
    let mut limits = FieldTable::default();
    limits.insert("x-max-length".into(), AMQPValue::LongInt(3));
    limits.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let exclusive = QueueDeclareOptions { exclusive: true, ..Default::default() };
    rabbit.channel().queue_declare(exchange.as_str().into(), exclusive, limits).await.unwrap();
    rabbit.bind(&exchange, &exchange, "").await;
    let sink = RabbitMq::new(config(&url, &exchange));
    let outcomes = sink.publish_all(&events("f", 50)).await;
    let taken = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    for error in outcomes.into_iter().filter_map(Result::err) {
        assert_eq!(error.kind(), "refused", "{error:?}");
    }
    let kept = rabbit.consume(&exchange).await.drain(Duration::from_millis(500)).await;
    assert!((3..50).contains(&taken), "{taken}");
    assert_eq!(kept.len(), taken);
}

#[tokio::test]
async fn an_orderly_restart_of_the_broker_needs_one_reconnect_and_no_help() {
    let name = "an_orderly_restart_of_the_broker_needs_one_reconnect_and_no_help";
    let Some(mut broker) = private_broker(name).await else { return };
    let rabbit = Rabbit::connect(&broker.url()).await;
    rabbit.exchange("restart", "fanout").await;
    rabbit.queue("restart").await;
    rabbit.bind("restart", "restart", "").await;
    rabbit.close().await;
    let sink = RabbitMq::new(config(&broker.url(), "restart"));
    publish_one(&sink, "a").await.unwrap();
    broker.stop().await;
    assert_eq!(publish_one(&sink, "b").await.unwrap_err().kind(), "connect");
    broker.restart().await;
    publish_one(&sink, "b").await.unwrap();
    assert_eq!(Rabbit::connect(&broker.url()).await.consume("restart").await.take(2).await.len(), 2);
}

#[tokio::test]
async fn a_memory_alarm_is_told_by_its_name_and_what_follows_goes_out_when_it_is_over() {
    let name = "a_memory_alarm_is_told_by_its_name_and_what_follows_goes_out_when_it_is_over";
    let Some(broker) = private_broker(name).await else { return };
    let mut consumer = Rabbit::listen(&broker.url(), "alarm", "fanout", "").await;
    let mut short = config(&broker.url(), "alarm");
    short.timeout = Duration::from_secs(2);
    let sink = RabbitMq::new(short);
    publish_one(&sink, "before").await.unwrap();
    broker.ctl(&["set_vm_memory_high_watermark", "0"]).await;
    for id in ["one", "two"] {
        // One kind in both places, so that it is logged once.
        for error in [publish_one(&sink, id).await.unwrap_err(), sink.check().await.unwrap_err()] {
            assert!(error.kind() == "blocked" && error.is_sink_wide(), "{error:?}");
            assert!(error.hint().contains("alarms"), "{}", error.hint());
        }
    }
    let connections = broker.ctl(&["list_connections", "client_properties"]).await;
    assert_eq!(connections.matches("watchfire").count(), 1, "one connection waits: {connections}");
    broker.ctl(&["set_vm_memory_high_watermark", "0.4"]).await;
    eventually(STEP, "the alarm is over", async || sink.check().await.ok()).await;
    publish_one(&sink, "after").await.unwrap();
    let ids: Vec<_> = consumer
        .drain(Duration::from_secs(1))
        .await
        .into_iter()
        .map(|m| m.headers["_watermill_message_uuid"].clone())
        .collect();
    assert_eq!((ids.first().unwrap().as_str(), ids.last().unwrap().as_str()), ("before", "after"));
    assert!(!ids.contains(&"two".to_owned()), "an event that was not sent is not sent later: {ids:?}");
}

#[tokio::test]
async fn a_broker_that_dies_under_its_alarm_is_connected_to_again() {
    let name = "a_broker_that_dies_under_its_alarm_is_connected_to_again";
    let Some(mut broker) = private_broker(name).await else { return };
    let mut short = config(&broker.url(), "under-alarm");
    short.timeout = Duration::from_secs(2);
    let sink = RabbitMq::new(short);
    sink.check().await.unwrap();
    broker.ctl(&["set_vm_memory_high_watermark", "0"]).await;
    assert_eq!(publish_one(&sink, "blocked").await.unwrap_err().kind(), "blocked");
    broker.kill();
    // The alarm was of that run of the broker only.
    broker.restart().await;
    let _consumer = Rabbit::listen(&broker.url(), "under-alarm", "fanout", "").await;
    eventually(STEP, "it is published to again", async || publish_one(&sink, "after").await.ok()).await;
    sink.check().await.unwrap();
}

#[tokio::test]
async fn a_peer_that_goes_silent_ends_in_a_timeout_and_its_connection_is_given_up() {
    let name = "a_peer_that_goes_silent_ends_in_a_timeout_and_its_connection_is_given_up";
    let Some(broker) = private_broker(name).await else { return };
    let mut consumer = Rabbit::listen(&broker.url(), "silent", "fanout", "").await;
    let proxy = Proxy::start(broker.address()).await;
    let sink = through(&proxy, "silent", Duration::from_secs(1));
    publish_one(&sink, "a").await.unwrap();
    proxy.set(Mode::Blackhole).await;
    // In mid-window, then in mid-handshake.
    for id in ["b", "c"] {
        let start = std::time::Instant::now();
        let outcomes = sink.publish_all(&events(id, 2_500)).await;
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(Error::Timeout { .. }))), "{:?}", outcomes[0]);
        assert_eq!(outcomes.len(), 2_500);
        assert!(start.elapsed() < Duration::from_secs(5), "{:?} for one timeout of 1 s", start.elapsed());
    }
    assert_eq!(sink.check().await.unwrap_err().kind(), "timeout");
    proxy.set(Mode::Pass).await;
    eventually(STEP, "given up connections are closed", async || (proxy.open() == 0).then_some(())).await;
    publish_one(&sink, "d").await.unwrap();
    let ids: BTreeMap<_, _> = consumer
        .drain(Duration::from_millis(500))
        .await
        .into_iter()
        .map(|m| (m.headers["_watermill_message_uuid"].clone(), m.redelivered))
        .collect();
    assert!(ids.contains_key("a") && ids.contains_key("d"), "{:?}", ids.keys().take(5).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_connection_cut_in_mid_window_never_makes_an_ok_of_what_was_not_confirmed() {
    let name = "a_connection_cut_in_mid_window_never_makes_an_ok_of_what_was_not_confirmed";
    let Some(broker) = private_broker(name).await else { return };
    let mut consumer = Rabbit::listen(&broker.url(), "cut", "fanout", "").await;
    let proxy = Proxy::start(broker.address()).await;
    let sink = through(&proxy, "cut", STEP);
    publish_one(&sink, "first").await.unwrap();
    let window = events("w", 1_000);
    let before = proxy.sent();
    // However quick the broker is, its confirms wait.
    proxy.set(Mode::OneWay).await;
    let (outcomes, ()) = tokio::join!(sink.publish_all(&window), async {
        eventually(STEP, "the window is on its way", async || (proxy.sent() > before + 50_000).then_some(())).await;
        proxy.cut();
        proxy.set(Mode::Pass).await;
    });
    assert!(outcomes.iter().all(Result::is_err), "no confirm came through");
    assert!(!consumer.drain(Duration::from_secs(1)).await.is_empty(), "the broker has some of it");
    assert!(sink.publish_all(&window).await.iter().all(Result::is_ok));
}

#[tokio::test]
async fn what_answers_without_speaking_amqp_is_told_with_the_ports() {
    const HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    // A server that speaks AMQP 1.0 alone answers with its own version.
    for answer in [HTTP, b"AMQP\x00\x01\x00\x00"] {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let sink = RabbitMq::new(config(&format!("amqp://{}", server.local_addr().unwrap()), "other"));
        let serving = async {
            let (mut stream, _) = server.accept().await.unwrap();
            let mut header = [0; 8];
            stream.read_exact(&mut header).await.unwrap();
            stream.write_all(answer).await.unwrap();
            std::future::pending::<()>().await;
        };
        let error = tokio::select! {
            answer = sink.check() => answer.unwrap_err(),
            () = serving => unreachable!("it is pending"),
        };
        assert_eq!(error.kind(), "misconfigured", "{error:?}");
        assert!(error.to_string().ends_with("what answers there does not speak AMQP 0-9-1"), "{error}");
        assert!(error.hint().contains("15672"), "{}", error.hint());
    }
}

#[tokio::test]
async fn who_asks_while_another_asks_gets_an_answer_of_its_own() {
    // Takes connections, and never says a word.
    let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = config(&format!("amqp://{}", mute.local_addr().unwrap()), "mute");
    config.timeout = Duration::from_millis(200);
    let sink = RabbitMq::new(config);
    let (first, second) = tokio::join!(sink.check(), sink.check());
    assert_eq!([first, second].map(|answer| answer.unwrap_err().kind()), ["timeout"; 2]);
}

#[tokio::test]
async fn a_connection_that_a_caller_left_in_mid_work_is_not_used_again() {
    let Some(url) = amqp_url("a_connection_that_a_caller_left_in_mid_work_is_not_used_again") else { return };
    let exchange = unique("left");
    let _consumer = Rabbit::listen(&url, &exchange, "fanout", "").await;
    let mut config = config(&url, &exchange);
    let proxy = Proxy::start(resolve(&config.host, config.port).await).await;
    (config.host, config.port) = ("127.0.0.1".to_owned(), proxy.address().port());
    let sink = RabbitMq::new(config);
    let window = [event("left", 0)];
    for (what, publishes) in [("a window", true), ("a question", false)] {
        publish_one(&sink, "before").await.unwrap();
        // Polled once, which is not enough for an answer, and dropped.
        let left = if publishes {
            sink.publish_all(&window).now_or_never().is_none()
        } else {
            sink.check().now_or_never().is_none()
        };
        assert!(left, "{what} needs an answer");
        // Open connections go on, and there are no new ones.
        proxy.set(Mode::Refuse).await;
        assert_eq!(publish_one(&sink, "after").await.unwrap_err().kind(), "connect", "after {what}");
        proxy.set(Mode::Pass).await;
        publish_one(&sink, "after").await.unwrap();
    }
}

#[tokio::test]
async fn a_thousand_reconnects_leave_neither_sockets_nor_threads_behind() {
    if amqp_url("a_thousand_reconnects_leave_neither_sockets_nor_threads_behind").is_some() {
        alone("rabbitmq::child_that_reconnects_a_thousand_times").await;
    }
}

/// Without a queue each event comes back, which shows as well as a confirm that the connection works.
#[tokio::test]
#[ignore = "runs as a child of a_thousand_reconnects_leave_neither_sockets_nor_threads_behind"]
async fn child_that_reconnects_a_thousand_times() {
    let Some(url) = amqp_url("child_that_reconnects_a_thousand_times") else { return };
    let mut config = config(&url, &unique("reconnects"));
    let proxy = Proxy::start(resolve(&config.host, config.port).await).await;
    (config.host, config.port) = ("127.0.0.1".to_owned(), proxy.address().port());
    let sink = RabbitMq::new(config);
    let reconnect = async || {
        // The first attempt may still meet the connection that was cut.
        eventually(STEP, "the broker answers", async || {
            let error = publish_one(&sink, "a").await.unwrap_err();
            (error.kind() == "unroutable").then_some(())
        })
        .await;
        proxy.cut();
    };
    let pid = std::process::id();
    for _ in 0..20 {
        reconnect().await;
    }
    let (files, threads) = (open_files(pid), proc_status(pid, "Threads"));
    for _ in 0..1_000 {
        reconnect().await;
    }
    eventually(STEP, "what was cut is closed", async || {
        (open_files(pid) <= files + 4 && proc_status(pid, "Threads") <= threads + 4).then_some(())
    })
    .await;
}
