//! A real broker from both sides: what a sentinel publishes to, and what adapters consume.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use google_cloud_auth::credentials::anonymous;
use google_cloud_pubsub::client::SubscriptionAdmin;
use jiff::Timestamp;
use lapin::options::{ExchangeDeleteOptions, QueueDeleteOptions};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use watchfire_delivery::EventSink;
use watchfire_delivery::sink::pubsub::PubSub;
use watchfire_delivery::sink::rabbitmq::RabbitMq;
use watchfire_runtime::config::{Env, Problems};
use watchfire_sentinel::config::broker::{self, BrokerConfig, Settings};
use watchfire_simulator::adapter::{Adapter, PubSubSource, RabbitSource};
use watchfire_testkit::{Rabbit, Subscription, amqp_url, eventually, install_crypto, pubsub_endpoint, unique};

use crate::support::Running;

/// How long a message may take; with every core busy, brokers are slow.
const STEP: Duration = Duration::from_secs(30);

/// What an adapter's queue on a shared broker is called after.
const ADAPTERS: [&str; 2] = ["validation", "dns"];

/// One exchange or topic of the test's own.
#[derive(Clone, Debug)]
pub(crate) enum Far {
    /// An exchange at this URL.
    RabbitMq { url: String, topic: String },
    /// A topic of the emulator at this `host:port`.
    PubSub { endpoint: String, topic: String },
}

impl Far {
    /// On the shared RabbitMQ.
    pub(crate) fn rabbitmq(test: &str) -> Option<Self> {
        Some(Self::RabbitMq { url: amqp_url(test)?, topic: unique("sentinel") })
    }

    /// On the shared emulator.
    pub(crate) fn pubsub(test: &str) -> Option<Self> {
        Some(Self::PubSub { endpoint: pubsub_endpoint(test)?, topic: unique("sentinel") })
    }

    /// The same broker, another exchange or topic.
    pub(crate) fn another(&self) -> Self {
        match self.clone() {
            Self::RabbitMq { url, .. } => Self::RabbitMq { url, topic: unique("sentinel") },
            Self::PubSub { endpoint, .. } => Self::PubSub { endpoint, topic: unique("sentinel") },
        }
    }

    /// The variables that an operator would set.
    pub(crate) fn env(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::RabbitMq { url, topic } => vec![
                ("BROKER_TYPE", "rabbitmq".to_owned()),
                ("BROKER_URL", url.clone()),
                ("BROKER_EXCHANGE", topic.clone()),
            ],
            Self::PubSub { endpoint, topic } => vec![
                ("BROKER_TYPE", "pubsub".to_owned()),
                ("BROKER_PROJECT_ID", "watchfire".to_owned()),
                ("BROKER_TOPIC", topic.clone()),
                ("PUBSUB_EMULATOR_HOST", endpoint.clone()),
            ],
        }
    }

    /// What a sentinel publishes to.
    pub(crate) fn sink(&self) -> Arc<dyn EventSink> {
        open(self.env())
    }

    /// Consumes everything published from here on, as an adapter would.
    pub(crate) async fn listen(&self) -> Inbox {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&kept);
        let collecting = match self {
            Self::RabbitMq { url, topic } => {
                let mut consumer = Rabbit::listen(url, topic, "fanout", "").await;
                Running::start(async move {
                    loop {
                        let Some(message) = consumer.next(STEP).await else { continue };
                        assert_eq!(message.properties.delivery_mode(), &Some(2), "a broker's restart would lose it");
                        assert_eq!(message.routing_key, "", "consumers bind the empty key");
                        keep.lock().unwrap().push(Arrived::new(message.body, message.headers));
                    }
                })
            }
            Self::PubSub { endpoint, topic } => {
                let mut subscription = Subscription::create(endpoint, "watchfire", topic).await;
                Running::start(async move {
                    loop {
                        let Some(message) = subscription.next(STEP).await else { continue };
                        assert_eq!(message.ordering_key, "");
                        let beside = message.attributes.into_iter().collect();
                        keep.lock().unwrap().push(Arrived::new(message.data.to_vec(), beside));
                    }
                })
            }
        };
        Inbox { kept, collecting }
    }

    /// Runs an adapter on a queue or subscription of its own, which is there when this returns: it misses nothing.
    pub(crate) async fn run(&self, adapter: Adapter) -> Running {
        let token = CancellationToken::new();
        match self {
            Self::RabbitMq { url, topic } => {
                let (rabbit, queue) = (Rabbit::connect(url).await, format!("{topic}-{}", adapter.name()));
                rabbit.exchange(topic, "fanout").await;
                rabbit.queue(&queue).await;
                rabbit.bind(&queue, topic, "").await;
                let source = RabbitSource { prefetch: 16, ..RabbitSource::new(url, topic) };
                Running::start(async move { adapter.run_rabbitmq(&source, token).await.expect("consume") })
            }
            Self::PubSub { endpoint, topic } => {
                let name = format!("projects/watchfire/subscriptions/{topic}-{}", adapter.name());
                let admin = SubscriptionAdmin::builder().with_endpoint(format!("http://{endpoint}"));
                let admin = admin.with_credentials(anonymous::Builder::new().build()).build().await.expect("a client");
                let create = admin.create_subscription().set_name(name);
                create.set_topic(format!("projects/watchfire/topics/{topic}")).send().await.expect("subscribe");
                let source = PubSubSource {
                    emulator: endpoint.clone(),
                    project: "watchfire".to_owned(),
                    topic: topic.clone(),
                    subscription: None,
                    parallelism: 16,
                };
                Running::start(async move { adapter.run_pubsub(&source, token).await.expect("consume") })
            }
        }
    }

    /// Removes what would stay on a shared broker; the emulator forgets by itself.
    pub(crate) async fn clean(self) {
        let Self::RabbitMq { url, topic } = self else { return };
        let rabbit = Rabbit::connect(&url).await;
        for adapter in ADAPTERS {
            let queue = format!("{topic}-{adapter}");
            let deleted = rabbit.channel().queue_delete(queue.into(), QueueDeleteOptions::default());
            deleted.await.expect("delete a queue");
        }
        let deleted = rabbit.channel().exchange_delete(topic.into(), ExchangeDeleteOptions::default());
        deleted.await.expect("delete the exchange");
    }
}

/// The broker that these variables describe.
pub(crate) fn config(env: impl IntoIterator<Item = (&'static str, String)>) -> BrokerConfig {
    install_crypto();
    let mut problems = Problems::without_file();
    let config = broker::check(&Settings::from(&Env::from_iter(env)), &mut problems);
    problems.finish().expect("valid");
    config.expect("valid")
}

/// A sink for the broker that these variables describe.
pub(crate) fn open(env: impl IntoIterator<Item = (&'static str, String)>) -> Arc<dyn EventSink> {
    match config(env) {
        BrokerConfig::RabbitMq(config) => Arc::new(RabbitMq::new(config)),
        BrokerConfig::PubSub(config) => Arc::new(PubSub::new(config)),
        BrokerConfig::Http { .. } => unreachable!("no test here asks for the embedded broker"),
    }
}

/// One message as a consumer got it.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    pub(crate) at: Instant,
    /// The body, byte for byte.
    pub(crate) bytes: Vec<u8>,
    /// The body, read.
    pub(crate) event: Value,
    /// Headers or attributes; strings only, or the consumer fails.
    pub(crate) beside: BTreeMap<String, String>,
}

impl Arrived {
    fn new(bytes: Vec<u8>, beside: BTreeMap<String, String>) -> Self {
        let event = serde_json::from_slice(&bytes).expect("a structured event");
        Self { at: Instant::now(), bytes, event, beside }
    }

    pub(crate) fn id(&self) -> &str {
        self.event["id"].as_str().expect("an id")
    }

    /// The resource that it is about.
    pub(crate) fn resource(&self) -> &str {
        self.event["data"]["id"].as_str().expect("the resource's id")
    }

    pub(crate) fn generation(&self) -> i64 {
        self.event["data"]["generation"].as_i64().expect("a number")
    }

    /// When it became due.
    pub(crate) fn time(&self) -> Timestamp {
        self.event["time"].as_str().expect("a time").parse().expect("a time")
    }
}

/// What has arrived so far.
pub(crate) struct Inbox {
    kept: Arc<Mutex<Vec<Arrived>>>,
    collecting: Running,
}

impl Inbox {
    /// Everything, in the order of arrival.
    pub(crate) fn all(&self) -> Vec<Arrived> {
        assert!(!self.collecting.is_over(), "the consumer failed on a message");
        self.kept.lock().unwrap().clone()
    }

    /// What arrived about one resource.
    pub(crate) fn about(&self, resource: &str) -> Vec<Arrived> {
        self.all().into_iter().filter(|arrived| arrived.resource() == resource).collect()
    }

    /// Waits until `n` events are there, and returns all that are.
    pub(crate) async fn wait_for(&self, n: usize) -> Vec<Arrived> {
        self.wait_until(&format!("{n} events arrive"), |all| all.len() >= n).await
    }

    /// Waits until what arrived is enough, and returns it.
    pub(crate) async fn wait_until(&self, what: &str, enough: impl Fn(&[Arrived]) -> bool) -> Vec<Arrived> {
        eventually(STEP, what, async || Some(self.all()).filter(|all| enough(all))).await
    }
}

/// Makes a test on RabbitMQ and one on the Pub/Sub emulator of each body.
macro_rules! over_both {
    ($($test:ident)*) => {
        mod rabbitmq { $(crate::far::over_both! { @test rabbitmq $test })* }
        mod pubsub { $(crate::far::over_both! { @test pubsub $test })* }
    };
    (@test $broker:ident $test:ident) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            let name = concat!(module_path!(), "::", stringify!($test));
            let Some(far) = crate::far::Far::$broker(name) else { return };
            super::$test(far.clone()).await;
            far.clean().await;
        }
    };
}
pub(crate) use over_both;
