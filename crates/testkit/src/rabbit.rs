//! The consumer's side of RabbitMQ: what an adapter would receive.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicQosOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};

use crate::eventually::take;
use crate::install_crypto;

/// How long one step against the broker may take before the test fails.
const STEP: Duration = Duration::from_secs(30);

/// A connection with one channel.
pub struct Rabbit {
    connection: Connection,
    channel: Channel,
}

/// One received message.
#[derive(Debug, Clone)]
pub struct Message {
    /// The exchange it was published to.
    pub exchange: String,
    /// The routing key it was published with.
    pub routing_key: String,
    /// Its headers. Consumers in the field fail on any value that is not a string, and so does this helper.
    pub headers: BTreeMap<String, String>,
    /// Its other properties (and the headers as they came).
    pub properties: BasicProperties,
    /// Its body.
    pub body: Vec<u8>,
    /// Whether the broker has tried to deliver it before.
    pub redelivered: bool,
}

/// A subscription to one queue; every message is acknowledged when it is taken.
pub struct Consumer {
    deliveries: lapin::Consumer,
    queue: String,
    // Dropping it would close the connection under the consumer.
    rabbit: Rabbit,
}

impl Rabbit {
    /// Connects, or panics.
    pub async fn connect(url: &str) -> Self {
        Self::try_connect(url).await.unwrap_or_else(|e| panic!("connect to RabbitMQ: {e}"))
    }

    pub(crate) async fn try_connect(url: &str) -> lapin::Result<Self> {
        install_crypto();
        let connecting = async {
            let connection = Connection::connect(url, ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            Ok(Self { connection, channel })
        };
        tokio::time::timeout(STEP, connecting).await.map_err(std::io::Error::from)?
    }

    /// The channel, for what this helper does not do.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Declares a durable exchange.
    pub async fn exchange(&self, name: &str, kind: &str) {
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let kind = ExchangeKind::Custom(kind.to_owned());
        let declared = self.channel.exchange_declare(name.into(), kind, options, FieldTable::default());
        within(declared).await.expect("declare an exchange");
    }

    /// Declares a durable queue that outlives this connection and the broker's process.
    pub async fn queue(&self, name: &str) {
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        within(self.channel.queue_declare(name.into(), options, FieldTable::default())).await.expect("declare a queue");
    }

    /// Binds a queue to an exchange.
    pub async fn bind(&self, queue: &str, exchange: &str, routing_key: &str) {
        let (options, table) = (QueueBindOptions::default(), FieldTable::default());
        let bound = self.channel.queue_bind(queue.into(), exchange.into(), routing_key.into(), options, table);
        within(bound).await.expect("bind a queue");
    }

    /// Consumes a queue.
    pub async fn consume(self, queue: &str) -> Consumer {
        within(self.channel.basic_qos(1_000, BasicQosOptions::default())).await.expect("set the prefetch count");
        let (options, table) = (BasicConsumeOptions::default(), FieldTable::default());
        let consumer = within(self.channel.basic_consume(queue.into(), "".into(), options, table)).await;
        Consumer { deliveries: consumer.expect("consume a queue"), queue: queue.to_owned(), rabbit: self }
    }

    /// Declares the exchange, binds a fresh queue of its own that ends with the connection, and consumes it.
    pub async fn listen(url: &str, exchange: &str, kind: &str, routing_key: &str) -> Consumer {
        let rabbit = Self::connect(url).await;
        rabbit.exchange(exchange, kind).await;
        let queue = crate::unique("listen");
        let options = QueueDeclareOptions { exclusive: true, auto_delete: true, ..Default::default() };
        let declared = rabbit.channel.queue_declare(queue.as_str().into(), options, FieldTable::default());
        within(declared).await.expect("declare a queue");
        rabbit.bind(&queue, exchange, routing_key).await;
        rabbit.consume(&queue).await
    }

    /// Closes the connection and waits for it; dropping does the same in the background.
    pub async fn close(self) {
        // A broker that is gone needs no goodbye.
        drop(within(self.connection.close(200, "bye".into())).await);
    }
}

impl Consumer {
    /// The queue's name.
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// The next message, or `None` when none comes within `wait`.
    pub async fn next(&mut self, wait: Duration) -> Option<Message> {
        let delivery = tokio::time::timeout(wait, self.deliveries.next()).await.ok()??;
        let delivery = delivery.expect("receive from RabbitMQ");
        delivery.acker.ack(BasicAckOptions::default()).await.expect("acknowledge a message");
        let table = delivery.properties.headers().clone().unwrap_or_default();
        let headers = table.inner().iter().map(|(name, value)| match value {
            AMQPValue::LongString(text) => (name.to_string(), text.to_string()),
            other => panic!("header {name} is not a string, consumers fail on it: {other:?}"),
        });
        Some(Message {
            exchange: delivery.exchange.to_string(),
            routing_key: delivery.routing_key.to_string(),
            headers: headers.collect(),
            properties: delivery.properties.clone(),
            body: delivery.data.clone(),
            redelivered: delivery.redelivered,
        })
    }

    /// Takes `n` messages, and panics when the next one does not come within 30 seconds.
    pub async fn take(&mut self, n: usize) -> Vec<Message> {
        take(n, async || self.next(STEP).await).await
    }

    /// Deletes the queue with what is in it; durable ones would stay on a shared broker.
    pub async fn delete(self) {
        let deleted = self.rabbit.channel.queue_delete(self.queue.as_str().into(), QueueDeleteOptions::default());
        within(deleted).await.expect("delete a queue");
    }

    /// Takes what comes until nothing has come for `quiet`.
    pub async fn drain(&mut self, quiet: Duration) -> Vec<Message> {
        let mut messages = Vec::new();
        while let Some(message) = self.next(quiet).await {
            messages.push(message);
        }
        messages
    }
}

async fn within<T>(step: impl Future<Output = T>) -> T {
    tokio::time::timeout(STEP, step).await.expect("RabbitMQ answers in time")
}
