//! The brokers: private ones, so that a round may stop and kill them, and a consumer that nothing disturbs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::StreamExt as _;
use google_cloud_auth::credentials::anonymous;
use google_cloud_pubsub::client::{Subscriber, SubscriptionAdmin, TopicAdmin};
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use tokio_util::sync::CancellationToken;
use watchfire_simulator::Adapter;
use watchfire_simulator::adapter::{PubSubSource, RabbitSource};
use watchfire_testkit::{Broker, Emulator, private_broker, private_emulator};

use crate::plan::BrokerKind;
use crate::receipt::Inbox;

/// How long one step against a broker may take.
const STEP: Duration = Duration::from_secs(20);
/// Before a consumer connects again.
const PAUSE: Duration = Duration::from_millis(200);
/// Messages that an adapter works on at once.
const PARALLEL: u16 = 20;
const PROJECT: &str = "chaos";

/// A disk that is never free enough.
const NO_DISK: &str = "1000000GB";
/// What the node was started with.
const DISK: &str = "20MB";

/// A broker of one's own.
pub(crate) enum Far {
    RabbitMq(Broker),
    PubSub(Emulator),
}

impl Far {
    /// Starts one; `None` where it is not installed, which has been said then.
    pub(crate) async fn start(kind: BrokerKind) -> Option<Self> {
        match kind {
            BrokerKind::RabbitMq => private_broker("chaos").await.map(Self::RabbitMq),
            BrokerKind::PubSub => private_emulator("chaos").await.map(Self::PubSub),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Self::RabbitMq(broker) => broker.address(),
            Self::PubSub(emulator) => emulator.address(),
        }
    }

    /// What the sentinel is told of it, with a proxy in between.
    pub(crate) fn env(&self, topic: &str, proxy: SocketAddr) -> Vec<(String, String)> {
        let env = match self {
            Self::RabbitMq(_) => vec![
                ("BROKER_TYPE", "rabbitmq".to_owned()),
                ("BROKER_HOST", proxy.ip().to_string()),
                ("BROKER_PORT", proxy.port().to_string()),
                ("BROKER_EXCHANGE", topic.to_owned()),
            ],
            Self::PubSub(_) => vec![
                ("BROKER_TYPE", "pubsub".to_owned()),
                ("BROKER_PROJECT_ID", PROJECT.to_owned()),
                ("BROKER_TOPIC", topic.to_owned()),
                ("PUBSUB_EMULATOR_HOST", proxy.to_string()),
            ],
        };
        env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Where consumers connect, past the proxy.
    pub(crate) fn route(&self, topic: &str) -> Route {
        let topic = topic.to_owned();
        match self {
            Self::RabbitMq(broker) => Route::RabbitMq { url: broker.url(), topic },
            Self::PubSub(emulator) => Route::PubSub { endpoint: emulator.endpoint(), topic },
        }
    }

    pub(crate) async fn stop_and_start(&mut self, down: Duration) {
        if let Self::RabbitMq(broker) = self {
            broker.stop().await;
            tokio::time::sleep(down).await;
            broker.restart().await;
        }
    }

    pub(crate) async fn kill_and_start(&mut self, down: Duration) {
        if let Self::RabbitMq(broker) = self {
            broker.kill();
            tokio::time::sleep(down).await;
            broker.restart().await;
        }
    }

    /// Puts the broker under its disk alarm for a while: it blocks whoever publishes.
    pub(crate) async fn disk_alarm(&self, lasts: Duration) {
        if let Self::RabbitMq(broker) = self {
            broker.ctl(&["set_disk_free_limit", NO_DISK]).await;
            tokio::time::sleep(lasts).await;
            broker.ctl(&["set_disk_free_limit", DISK]).await;
        }
    }
}

/// How consumers get at one topic.
#[derive(Debug, Clone)]
pub(crate) enum Route {
    RabbitMq { url: String, topic: String },
    PubSub { endpoint: String, topic: String },
}

impl Route {
    /// Makes the topic and the observer's queue, so that the first event has somewhere to go.
    pub(crate) async fn prepare(&self) -> anyhow::Result<()> {
        let preparing = async {
            match self {
                Self::RabbitMq { url, topic } => {
                    let (connection, _channel) = observers_channel(url, topic).await?;
                    connection.close(200, "bye".into()).await?;
                }
                Self::PubSub { endpoint, topic } => create_subscription(endpoint, topic).await?,
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(STEP, preparing).await.context("prepare the broker")?
    }

    /// Takes in everything that is published, until cancelled.
    pub(crate) async fn observe(self, inbox: Arc<Inbox>, token: CancellationToken) {
        while !token.is_cancelled() {
            let observing = async {
                match &self {
                    Self::RabbitMq { url, topic } => observe_rabbitmq(url, topic, &inbox).await,
                    Self::PubSub { endpoint, topic } => observe_pubsub(endpoint, topic, &inbox).await,
                }
            };
            // Why it ended is the round's doing: the broker was stopped.
            drop(token.run_until_cancelled(observing).await);
            token.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
        }
    }

    /// Runs an adapter on it, until cancelled.
    pub(crate) async fn drive(self, adapter: Adapter, token: CancellationToken) {
        let ended = match self {
            Self::RabbitMq { url, topic } => {
                let source = RabbitSource { prefetch: PARALLEL, ..RabbitSource::new(&url, &topic) };
                adapter.run_rabbitmq(&source, token).await
            }
            Self::PubSub { endpoint: emulator, topic } => {
                let project = PROJECT.to_owned();
                let source = PubSubSource { emulator, project, topic, subscription: None, parallelism: PARALLEL };
                adapter.run_pubsub(&source, token).await
            }
        };
        // An adapter that is gone is a silent one, which is told when its resources are judged.
        drop(ended);
    }
}

async fn observers_channel(url: &str, topic: &str) -> lapin::Result<(Connection, Channel)> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(topic.into(), ExchangeKind::Fanout, durable, FieldTable::default()).await?;
    let queue = observers_queue(topic);
    channel.queue_declare(queue.as_str().into(), QueueDeclareOptions::durable(), FieldTable::default()).await?;
    let options = QueueBindOptions::default();
    channel.queue_bind(queue.as_str().into(), topic.into(), "".into(), options, FieldTable::default()).await?;
    Ok((connection, channel))
}

fn observers_queue(topic: &str) -> String {
    format!("{topic}-observer")
}

async fn observe_rabbitmq(url: &str, topic: &str, inbox: &Inbox) -> anyhow::Result<()> {
    let (_connection, channel) = tokio::time::timeout(STEP, observers_channel(url, topic)).await??;
    let (queue, options) = (observers_queue(topic), BasicConsumeOptions::default());
    let consumer = channel.basic_consume(queue.as_str().into(), "observer".into(), options, FieldTable::default());
    let mut deliveries = tokio::time::timeout(STEP, consumer).await??;
    while let Some(delivery) = deliveries.next().await {
        let delivery = delivery?;
        let headers = delivery.properties.headers().clone().unwrap_or_default();
        match headers.inner().iter().find(|(_, value)| !matches!(value, AMQPValue::LongString(_))) {
            Some((name, value)) => inbox.refuse(format!("header {name} is no string: {value:?}")),
            None => inbox.take(&delivery.data, delivery.redelivered, None),
        }
        delivery.acker.ack(BasicAckOptions::default()).await?;
    }
    Ok(())
}

async fn create_subscription(endpoint: &str, topic: &str) -> anyhow::Result<()> {
    let endpoint = format!("http://{endpoint}");
    let credentials = || anonymous::Builder::new().build();
    let topics = TopicAdmin::builder().with_endpoint(&endpoint).with_credentials(credentials()).build().await?;
    let topic_name = format!("projects/{PROJECT}/topics/{topic}");
    topics.create_topic().set_name(&topic_name).send().await?;
    let admin = SubscriptionAdmin::builder().with_endpoint(&endpoint).with_credentials(credentials()).build().await?;
    admin.create_subscription().set_name(observers_subscription(topic)).set_topic(topic_name).send().await?;
    Ok(())
}

fn observers_subscription(topic: &str) -> String {
    format!("projects/{PROJECT}/subscriptions/{topic}-observer")
}

async fn observe_pubsub(endpoint: &str, topic: &str, inbox: &Inbox) -> anyhow::Result<()> {
    let subscriber = Subscriber::builder().with_endpoint(format!("http://{endpoint}"));
    let subscriber = subscriber.with_credentials(anonymous::Builder::new().build()).build().await?;
    let mut stream = subscriber.subscribe(observers_subscription(topic)).build();
    while let Some(next) = stream.next().await {
        let (message, handler) = next?;
        inbox.take(&message.data, false, Some(&message.message_id));
        handler.ack();
    }
    Ok(())
}
