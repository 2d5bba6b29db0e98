//! A sink under test with its far side, behind a proxy that can take the far side away.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::http::Method;
use futures_util::future::BoxFuture;
use secrecy::SecretString;
use tokio_util::sync::{CancellationToken, DropGuard};
use watchfire_delivery::embedded::{self, Embedded, Subscriber};
use watchfire_delivery::event::Attributes;
use watchfire_delivery::metrics::Metrics;
use watchfire_delivery::sink::http::{self, Http, Mode};
use watchfire_delivery::sink::pubsub::{Endpoint, PubSub, PubSubConfig};
use watchfire_delivery::sink::rabbitmq::{RabbitMq, RabbitMqConfig};
use watchfire_delivery::sink::{Error, EventSink};
use watchfire_delivery::{CloudEvent, sink};
use watchfire_runtime::health::Health;
use watchfire_testkit::{
    Answer, Consumer, Proxy, Rabbit, Receiver, Request, Subscription, amqp_url, eventually, install_crypto,
    pubsub_endpoint, unique,
};

/// Long enough that nothing more is on its way.
const QUIET: Duration = Duration::from_millis(500);

const STEP: Duration = Duration::from_secs(30);

/// One message as a consumer got it.
#[derive(Debug, Clone)]
pub(crate) struct Arrived {
    pub(crate) body: Vec<u8>,
    /// Attributes under their CloudEvents names, as far as the binding repeats them beside the body.
    pub(crate) attributes: BTreeMap<String, String>,
}

/// A sink and the consumer's side of it.
pub(crate) struct Far {
    pub(crate) sink: Box<dyn EventSink>,
    pub(crate) proxy: Proxy,
    consumer: Side,
}

enum Side {
    Memory(Arc<Mutex<Vec<Arrived>>>),
    /// A receiver, and the embedded broker in front of it where there is one.
    Http {
        receiver: Receiver,
        _broker: Option<Running>,
    },
    RabbitMq(Box<Consumer>),
    PubSub(Box<Subscription>),
}

impl Far {
    /// Everything that arrived: waits for `n`, and then until nothing more comes.
    pub(crate) async fn arrived(&mut self, n: usize) -> Vec<Arrived> {
        match &mut self.consumer {
            Side::Memory(kept) => std::mem::take(&mut *kept.lock().unwrap()),
            Side::Http { receiver, .. } => {
                eventually(STEP, "every post arrives", async || (receiver.posts() >= n).then_some(())).await;
                tokio::time::sleep(QUIET).await;
                let posts = receiver.requests().into_iter().filter(|request| request.method == Method::POST);
                posts.filter(|post| post.body.len() < LIMIT).map(|post| from_http(&post)).collect()
            }
            Side::RabbitMq(consumer) => {
                let mut messages = consumer.take(n).await;
                messages.extend(consumer.drain(QUIET).await);
                let attributes = |headers: BTreeMap<String, String>| unprefix(headers, "cloudEvents:");
                messages.into_iter().map(|m| Arrived { body: m.body, attributes: attributes(m.headers) }).collect()
            }
            Side::PubSub(subscription) => {
                let mut messages = subscription.take(n).await;
                messages.extend(subscription.drain(QUIET).await.into_values());
                let arrived = messages
                    .into_iter()
                    .map(|m| Arrived { body: m.data.to_vec(), attributes: unprefix(m.attributes, "ce-") });
                arrived.collect()
            }
        }
    }
}

/// A structured body has the attributes inside, a binary one beside it, in headers that this reads back.
fn from_http(post: &Request) -> Arrived {
    let body = if post.header("content-type").starts_with("application/cloudevents+json") {
        post.body.clone()
    } else {
        let name = |name: &str| post.header(&format!("ce-{name}")).to_owned();
        let attributes = Attributes {
            id: name("id"),
            source: name("source"),
            ty: name("type"),
            subject: Some(name("subject")),
            time: Some(name("time").parse().unwrap()),
            extensions: vec![("traceparent".to_owned(), name("traceparent"))],
        };
        CloudEvent::new(attributes, serde_json::from_slice(&post.body).unwrap()).body().clone()
    };
    let event = CloudEvent::from_structured(&body).unwrap();
    let attributes = event.attribute_pairs().map(|(name, value)| (name.to_owned(), value.into_owned())).collect();
    Arrived { body: body.to_vec(), attributes }
}

fn unprefix(pairs: impl IntoIterator<Item = (String, String)>, prefix: &str) -> BTreeMap<String, String> {
    let ours = pairs.into_iter().filter_map(|(name, value)| Some((name.strip_prefix(prefix)?.to_owned(), value)));
    ours.collect()
}

/// An event like the sentinel's, with `padding` bytes in its data.
pub(crate) fn event(id: &str, padding: usize) -> CloudEvent {
    build(id, "np-1", padding)
}

/// An event with another subject.
pub(crate) fn event_about(id: &str, subject: &str) -> CloudEvent {
    build(id, subject, 0)
}

fn build(id: &str, subject: &str, padding: usize) -> CloudEvent {
    let attributes = Attributes {
        id: id.to_owned(),
        source: "hyperfleet-sentinel".to_owned(),
        ty: "com.redhat.hyperfleet.nodepool.reconcile".to_owned(),
        subject: Some(subject.to_owned()),
        time: Some("2026-07-01T10:00:00.25Z".parse().unwrap()),
        extensions: vec![(
            "traceparent".to_owned(),
            "00-f5be02881b1851634873d85b2eb0030f-773964d182f7ff52-01".to_owned(),
        )],
    };
    let data = serde_json::json!({"id": "np-1", "generation": 2, "name": "zürich \"1\"", "pad": "x".repeat(padding)});
    CloudEvent::new(attributes, serde_json::value::to_raw_value(&data).unwrap())
}

/// `n` events whose ids begin with `prefix`.
pub(crate) fn events(prefix: &str, n: usize) -> Vec<CloudEvent> {
    (0..n).map(|i| event(&format!("{prefix}-{i}"), 0)).collect()
}

/// A sink that keeps what it gets: the suite's own reference. It talks to nobody, so its proxy is a switch.
pub(crate) async fn memory(_test: &str, _timeout: Duration) -> Option<Far> {
    let kept = Arc::new(Mutex::new(Vec::new()));
    // Nobody listens at the target: "up" means that the proxy takes connections.
    let proxy = Proxy::start("127.0.0.1:9".parse().unwrap()).await;
    let sink = Box::new(Memory { kept: Arc::clone(&kept), address: proxy.address() });
    Some(Far { sink, proxy, consumer: Side::Memory(kept) })
}

/// What takes nothing larger by itself is made to refuse it, as the brokers do.
const LIMIT: usize = 16 << 20;

struct Memory {
    kept: Arc<Mutex<Vec<Arrived>>>,
    address: std::net::SocketAddr,
}

impl Memory {
    fn take(&self, event: &CloudEvent) -> Result<(), Error> {
        let size = event.body().len();
        if size > LIMIT {
            return Err(Error::TooLarge { target: "memory".to_owned(), size, limit: LIMIT });
        }
        let attributes = event.attribute_pairs().map(|(name, value)| (name.to_owned(), value.into_owned())).collect();
        self.kept.lock().unwrap().push(Arrived { body: event.body().to_vec(), attributes });
        Ok(())
    }

    async fn reach(&self) -> Result<(), Error> {
        let reached = tokio::net::TcpStream::connect(self.address).await;
        reached.map(drop).map_err(|e| Error::Connect { target: "memory".to_owned(), source: e.into() })
    }
}

impl EventSink for Memory {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn publish_all<'a>(&'a self, events: &'a [CloudEvent]) -> BoxFuture<'a, Vec<Result<(), sink::Error>>> {
        Box::pin(async move {
            let mut outcomes = Vec::new();
            for event in events {
                outcomes.push(self.reach().await.and_then(|()| self.take(event)));
            }
            outcomes
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), sink::Error>> {
        Box::pin(self.reach())
    }
}

/// RabbitMQ with a fanout exchange and a queue of the test's own.
pub(crate) async fn rabbitmq(test: &str, timeout: Duration) -> Option<Far> {
    let url = amqp_url(test)?;
    let exchange = unique("conformance");
    let consumer = Rabbit::listen(&url, &exchange, "fanout", "").await;
    let mut config = RabbitMqConfig::new(exchange).with_url(&SecretString::from(url)).unwrap();
    let proxy = Proxy::start(resolve(&config.host, config.port).await).await;
    (config.host, config.port) = ("127.0.0.1".to_owned(), proxy.address().port());
    config.timeout = timeout;
    let sink = Box::new(RabbitMq::new(config));
    Some(Far { sink, proxy, consumer: Side::RabbitMq(Box::new(consumer)) })
}

/// The Pub/Sub emulator with a topic and a subscription of the test's own.
pub(crate) async fn pubsub(test: &str, timeout: Duration) -> Option<Far> {
    let endpoint = pubsub_endpoint(test)?;
    let topic = unique("conformance");
    let subscription = Subscription::create(&endpoint, "watchfire", &topic).await;
    let (host, port) = endpoint.rsplit_once(':').unwrap();
    let proxy = Proxy::start(resolve(host, port.parse().unwrap()).await).await;
    let mut config = PubSubConfig::new("watchfire", topic);
    config.endpoint = Endpoint::Emulator(proxy.address().to_string());
    config.timeout = timeout;
    let sink = Box::new(PubSub::new(config));
    Some(Far { sink, proxy, consumer: Side::PubSub(Box::new(subscription)) })
}

pub(crate) async fn resolve(host: &str, port: u16) -> std::net::SocketAddr {
    tokio::net::lookup_host((host, port)).await.unwrap().find(std::net::SocketAddr::is_ipv4).unwrap()
}

/// An HTTP endpoint that gets structured events.
pub(crate) async fn http(test: &str, timeout: Duration) -> Option<Far> {
    Some(endpoint(test, timeout, Mode::Structured).await)
}

/// An HTTP endpoint that gets binary events.
pub(crate) async fn http_binary(test: &str, timeout: Duration) -> Option<Far> {
    Some(endpoint(test, timeout, Mode::Binary).await)
}

async fn endpoint(_test: &str, timeout: Duration, mode: Mode) -> Far {
    install_crypto();
    let receiver = Receiver::start().await;
    receiver.choose(|request| (request.body.len() > LIMIT).then(|| Answer::status(413)));
    let proxy = Proxy::start(receiver.address()).await;
    let url = format!("http://{}/events", proxy.address()).parse().unwrap();
    let sink = Box::new(Http::new(http::Config { mode, timeout, ..http::Config::new(url) }).unwrap());
    Far { sink, proxy, consumer: Side::Http { receiver, _broker: None } }
}

/// The embedded broker, seen from its one subscriber.
#[expect(clippy::disallowed_methods, reason = "the worker ends with its token")]
pub(crate) async fn embedded(_test: &str, timeout: Duration) -> Option<Far> {
    install_crypto();
    let receiver = Receiver::start().await;
    let proxy = Proxy::start(receiver.address()).await;
    let directory = tempfile::tempdir().unwrap();
    let url = format!("http://{}/events", proxy.address()).parse().unwrap();
    let subscribers = vec![Subscriber { name: "adapter".to_owned(), url }];
    let config = embedded::Config { timeout, ..embedded::Config::new(directory.path().join("broker.db"), subscribers) };
    let (sink, mut tasks) = Embedded::open(config, &Metrics::default(), &Health::new()).await.unwrap();
    let token = CancellationToken::new();
    tokio::spawn(tasks.workers.remove(0).run(token.clone()));
    let running = Running { _stop: token.drop_guard(), _directory: directory };
    Some(Far { sink: Box::new(sink), proxy, consumer: Side::Http { receiver, _broker: Some(running) } })
}

/// What an embedded broker needs for as long as it runs.
struct Running {
    _stop: DropGuard,
    _directory: tempfile::TempDir,
}
