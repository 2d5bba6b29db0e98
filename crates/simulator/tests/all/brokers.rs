//! Adapters on the real brokers, where they are to be had.

use std::time::Duration;

use google_cloud_auth::credentials::anonymous;
use google_cloud_pubsub::client::{Publisher, TopicAdmin};
use google_cloud_pubsub::model::Message;
use lapin::BasicProperties;
use lapin::options::{BasicPublishOptions, ExchangeDeleteOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable, LongString};
use tokio_util::sync::CancellationToken;
use watchfire_simulator::adapter::{Error, PubSubSource, RabbitSource};
use watchfire_simulator::{Adapter, Knobs, NewResource, Simulator};
use watchfire_testkit::{Rabbit, amqp_url, eventually, pubsub_endpoint, unique};

use crate::adapters::{adapter, event};
use crate::support::{Running, serve, spawn};

/// How long anything may take before a test says that it did not happen.
const STEP: Duration = Duration::from_secs(30);

/// An exchange, and what a sentinel would do with it.
struct Topic {
    rabbit: Rabbit,
    topic: String,
}

impl Topic {
    async fn open(url: &str) -> Self {
        let (rabbit, topic) = (Rabbit::connect(url).await, unique("simulator"));
        rabbit.exchange(&topic, "fanout").await;
        Self { rabbit, topic }
    }

    async fn publish(&self, body: &str, header: AMQPValue) {
        let mut headers = FieldTable::default();
        headers.insert("_watermill_message_uuid".into(), header);
        let properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
        let options = BasicPublishOptions::default();
        let topic = self.topic.as_str().into();
        self.rabbit
            .channel()
            .basic_publish(topic, "".into(), options, body.as_bytes(), properties)
            .await
            .unwrap()
            .await
            .unwrap();
    }

    async fn remove(&self, adapter: &str) {
        let queue = format!("{}-{adapter}", self.topic);
        let channel = self.rabbit.channel();
        channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
        channel.exchange_delete(self.topic.as_str().into(), ExchangeDeleteOptions::default()).await.unwrap();
    }
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

async fn clusters(count: usize) -> (Running, Vec<String>) {
    let running = serve(Simulator::default()).await;
    let create = |number| running.simulator.create("clusters", NewResource::named(format!("c-{number}"))).unwrap().id;
    let ids = (0..count).map(create).collect();
    (running, ids)
}

/// Waits until each of these clusters has a report, and the rest is so, too.
async fn reported(simulator: &Simulator, ids: &[String], what: &str, and: impl Fn() -> bool) {
    eventually(STEP, what, async || {
        let reported = |id: &String| !simulator.get("clusters", id).unwrap().reports.is_empty();
        (ids.iter().all(reported) && and()).then_some(())
    })
    .await;
}

fn start(adapter: &Adapter, source: RabbitSource) -> CancellationToken {
    let (adapter, token) = (adapter.clone(), CancellationToken::new());
    let child = token.clone();
    spawn(async move {
        // A crash is an end that a test may want.
        assert!(matches!(adapter.run_rabbitmq(&source, child).await, Ok(()) | Err(Error::Crashed)));
    });
    token
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rabbitmq_drives_an_adapter() {
    let Some(url) = amqp_url("rabbitmq_drives_an_adapter") else { return };
    let (rabbit, (running, ids)) = (Topic::open(&url).await, clusters(20).await);
    let validation = Adapter::new(adapter(&running, "validation")).unwrap();
    let source = RabbitSource { prefetch: 8, ..RabbitSource::new(&url, &rabbit.topic) };
    let token = start(&validation, source);
    let probe = event("probe", &running.simulator, &ids[0]);
    eventually(STEP, "an event arrives", async || {
        // Until the queue is bound, events go nowhere.
        rabbit.publish(&probe, text("probe")).await;
        (validation.counters().events > 0).then_some(())
    })
    .await;
    for (number, id) in ids.iter().enumerate() {
        rabbit.publish(&event(&number.to_string(), &running.simulator, id), text("x")).await;
    }
    rabbit.publish("not an event", text("x")).await;
    rabbit.publish(&probe, AMQPValue::LongInt(1)).await;
    reported(&running.simulator, &ids, "every cluster is reported on, rubbish refused", || {
        validation.counters().rejected == 2
    })
    .await;
    token.cancel();
    rabbit.remove("validation").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_crash_left_is_delivered_again() {
    let test = "what_a_crash_left_is_delivered_again";
    let Some(url) = amqp_url(test) else { return };
    let (rabbit, (running, ids)) = (Topic::open(&url).await, clusters(1).await);
    let dns = Adapter::new(adapter(&running, "dns").knobs(Knobs { crashes: 1.0, ..Knobs::default() })).unwrap();
    let source = RabbitSource::new(&url, &rabbit.topic);
    let crashed = {
        let (dns, source) = (dns.clone(), source.clone());
        let (sender, receiver) = tokio::sync::oneshot::channel();
        spawn(async move { sender.send(dns.run_rabbitmq(&source, CancellationToken::new()).await).unwrap() });
        receiver
    };
    eventually(STEP, "the adapter crashes", async || {
        rabbit.publish(&event("1", &running.simulator, &ids[0]), text("1")).await;
        (dns.counters().crashed > 0).then_some(())
    })
    .await;
    let crashed = tokio::time::timeout(STEP, crashed).await.expect("the adapter ends");
    assert!(matches!(crashed.unwrap(), Err(Error::Crashed)));
    dns.set_knobs(Knobs::default());
    let token = start(&dns, source);
    reported(&running.simulator, &ids, "the event comes again", || true).await;
    assert!(dns.counters().duplicates >= 1);
    token.cancel();
    rabbit.remove("dns").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pubsub_drives_an_adapter() {
    let test = "pubsub_drives_an_adapter";
    let Some(emulator) = pubsub_endpoint(test) else { return };
    let (running, ids) = clusters(20).await;
    let topic = unique("simulator");
    let (endpoint, name) = (format!("http://{emulator}"), format!("projects/test/topics/{topic}"));
    let credentials = || anonymous::Builder::new().build();
    let admin = TopicAdmin::builder().with_endpoint(&endpoint).with_credentials(credentials()).build().await.unwrap();
    admin.create_topic().set_name(&name).send().await.unwrap();
    let publisher =
        Publisher::builder(&name).with_endpoint(&endpoint).with_credentials(credentials()).build().await.unwrap();

    let validation = Adapter::new(adapter(&running, "validation")).unwrap();
    let (project, subscription) = ("test".to_owned(), None);
    let source = PubSubSource { emulator, project, topic, subscription, parallelism: 8 };
    let token = CancellationToken::new();
    let (child, consumer) = (token.clone(), validation.clone());
    spawn(async move { consumer.run_pubsub(&source, child).await.unwrap() });
    let publish = async |body: String| publisher.publish(Message::new().set_data(body)).await.unwrap();
    eventually(STEP, "an event arrives", async || {
        publish(event("probe", &running.simulator, &ids[0])).await;
        (validation.counters().events > 0).then_some(())
    })
    .await;
    for (number, id) in ids.iter().enumerate() {
        publish(event(&number.to_string(), &running.simulator, id)).await;
    }
    publish("not an event".to_owned()).await;
    reported(&running.simulator, &ids, "every cluster is reported on, rubbish refused", || {
        validation.counters().rejected == 1
    })
    .await;
    token.cancel();
}
