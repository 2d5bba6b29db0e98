//! Adapters on the real brokers, where they are to be had.

use std::io::Write as _;
use std::time::{Duration, Instant};

use google_cloud_auth::credentials::anonymous;
use google_cloud_pubsub::client::{Publisher, TopicAdmin};
use google_cloud_pubsub::model::Message;
use lapin::options::{BasicPublishOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use tokio_util::sync::CancellationToken;
use watchfire_simulator::adapter::{Error, PubSubSource, RabbitSource};
use watchfire_simulator::{Adapter, Knobs, NewResource, Simulator};

use crate::adapters::{adapter, event};
use crate::support::{Running, serve, spawn};

#[expect(clippy::print_stdout, reason = "a skipped test says so")]
fn service(test: &str, variable: &str, default: &str) -> Option<String> {
    let address = std::env::var(variable).unwrap_or_else(|_| default.to_owned());
    let authority = address.rsplit(['@', '/']).find(|part| part.contains(':')).unwrap_or(&address).to_owned();
    let found = std::net::TcpStream::connect(authority).is_ok();
    if !found {
        let required = std::env::var("WATCHFIRE_TEST_REQUIRE").is_ok_and(|value| value == "all");
        assert!(!required, "{test} needs {variable}");
        let line = format!("SKIPPED {test}: nothing at {address}: run testbed/up, or set {variable}");
        println!("{line}");
        if let Ok(skips) = std::env::var("WATCHFIRE_TEST_SKIPS") {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(skips).unwrap();
            writeln!(file, "{line}").unwrap();
        }
    }
    found.then_some(address)
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not come true");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

struct Rabbit {
    channel: Channel,
    topic: String,
    _connection: Connection,
}

impl Rabbit {
    async fn open(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let topic = format!("simulator-{}", uuid::Uuid::new_v4());
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let (name, none) = (topic.as_str().into(), FieldTable::default());
        channel.exchange_declare(name, ExchangeKind::Fanout, options, none).await.unwrap();
        Self { channel, topic, _connection: connection }
    }

    async fn publish(&self, body: &str, header: AMQPValue) {
        let mut headers = FieldTable::default();
        headers.insert("_watermill_message_uuid".into(), header);
        let properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
        let options = BasicPublishOptions::default();
        let topic = self.topic.as_str().into();
        self.channel
            .basic_publish(topic, "".into(), options, body.as_bytes(), properties)
            .await
            .unwrap()
            .await
            .unwrap();
    }

    async fn remove(&self, adapter: &str) {
        let queue = format!("{}-{adapter}", self.topic);
        self.channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
        self.channel.exchange_delete(self.topic.as_str().into(), ExchangeDeleteOptions::default()).await.unwrap();
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
    let Some(url) = service("rabbitmq_drives_an_adapter", "WATCHFIRE_TEST_AMQP_URL", "amqp://127.0.0.1:5672") else {
        return;
    };
    let (rabbit, (running, ids)) = (Rabbit::open(&url).await, clusters(20).await);
    let validation = Adapter::new(adapter(&running, "validation")).unwrap();
    let source = RabbitSource { prefetch: 8, ..RabbitSource::new(&url, &rabbit.topic) };
    let token = start(&validation, source);
    let probe = event("probe", &running.simulator, &ids[0]);
    while validation.counters().events == 0 {
        // Until the queue is bound, events go nowhere.
        rabbit.publish(&probe, text("probe")).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (number, id) in ids.iter().enumerate() {
        rabbit.publish(&event(&number.to_string(), &running.simulator, id), text("x")).await;
    }
    rabbit.publish("not an event", text("x")).await;
    rabbit.publish(&probe, AMQPValue::LongInt(1)).await;
    until("every cluster reported, rubbish refused", || {
        let reported = |id: &String| !running.simulator.get("clusters", id).unwrap().reports.is_empty();
        ids.iter().all(reported) && validation.counters().rejected == 2
    })
    .await;
    token.cancel();
    rabbit.remove("validation").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_crash_left_is_delivered_again() {
    let test = "what_a_crash_left_is_delivered_again";
    let Some(url) = service(test, "WATCHFIRE_TEST_AMQP_URL", "amqp://127.0.0.1:5672") else { return };
    let (rabbit, (running, ids)) = (Rabbit::open(&url).await, clusters(1).await);
    let dns = Adapter::new(adapter(&running, "dns").knobs(Knobs { crashes: 1.0, ..Knobs::default() })).unwrap();
    let source = RabbitSource::new(&url, &rabbit.topic);
    let crashed = {
        let (dns, source) = (dns.clone(), source.clone());
        let (sender, receiver) = tokio::sync::oneshot::channel();
        spawn(async move { sender.send(dns.run_rabbitmq(&source, CancellationToken::new()).await).unwrap() });
        receiver
    };
    while dns.counters().crashed == 0 {
        rabbit.publish(&event("1", &running.simulator, &ids[0]), text("1")).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(matches!(crashed.await.unwrap(), Err(Error::Crashed)));
    dns.set_knobs(Knobs::default());
    let token = start(&dns, source);
    until("the event came again", || !running.simulator.get("clusters", &ids[0]).unwrap().reports.is_empty()).await;
    assert!(dns.counters().duplicates >= 1);
    token.cancel();
    rabbit.remove("dns").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pubsub_drives_an_adapter() {
    let test = "pubsub_drives_an_adapter";
    let Some(emulator) = service(test, "PUBSUB_EMULATOR_HOST", "127.0.0.1:8085") else { return };
    let (running, ids) = clusters(20).await;
    let topic = format!("simulator-{}", uuid::Uuid::new_v4());
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
    while validation.counters().events == 0 {
        publish(event("probe", &running.simulator, &ids[0])).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for (number, id) in ids.iter().enumerate() {
        publish(event(&number.to_string(), &running.simulator, id)).await;
    }
    publish("not an event".to_owned()).await;
    until("every cluster reported, rubbish refused", || {
        let reported = |id: &String| !running.simulator.get("clusters", id).unwrap().reports.is_empty();
        ids.iter().all(reported) && validation.counters().rejected == 1
    })
    .await;
    token.cancel();
}
