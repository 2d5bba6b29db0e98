//! Consumes from RabbitMQ as HyperFleet's broker library does: a durable queue `{topic}-{adapter}` bound with the empty
//! key, acknowledged after handling.

use std::time::Duration;

use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions, ExchangeDeclareOptions,
    QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties, Consumer, ExchangeKind, message::Delivery};
use secrecy::{ExposeSecret as _, SecretString};
use tokio_util::sync::CancellationToken;

use super::pump::{End, pump};
use super::{Adapter, Error, Handled};

/// The pause before the first reconnection; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause between reconnections.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long opening, or closing, a connection may take.
const BROKER_TIMEOUT: Duration = Duration::from_secs(10);

/// Where on RabbitMQ the events are.
#[derive(Debug, Clone)]
pub struct RabbitSource {
    /// `amqp://user:password@host:port/vhost`.
    pub url: SecretString,
    /// The exchange, called topic by HyperFleet.
    pub topic: String,
    /// The exchange's type, which must be the publisher's.
    pub exchange_type: ExchangeKind,
    /// How many messages it holds at once.
    pub prefetch: u16,
}

impl RabbitSource {
    /// A fanout exchange, one message at a time.
    pub fn new(url: &str, topic: &str) -> Self {
        let (url, topic) = (url.to_owned().into(), topic.to_owned());
        Self { url, topic, exchange_type: ExchangeKind::Fanout, prefetch: 1 }
    }
}

impl Adapter {
    /// Consumes until the token is cancelled. A lost or refused connection is opened again; only a crash ends it early.
    pub async fn run_rabbitmq(&self, source: &RabbitSource, token: CancellationToken) -> Result<(), Error> {
        let mut pause = FIRST_PAUSE;
        while !token.is_cancelled() {
            match tokio::time::timeout(BROKER_TIMEOUT, self.open(source)).await {
                Ok(Ok((connection, consumer))) => {
                    pause = FIRST_PAUSE;
                    let end =
                        pump(&token, source.prefetch.max(1).into(), consumer, |delivery| self.take(delivery)).await;
                    // What is not acknowledged goes back to the queue.
                    match tokio::time::timeout(BROKER_TIMEOUT, connection.close(200, "bye".into())).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => tracing::debug!(adapter = self.name(), %error, "connection was gone already"),
                        Err(_) => tracing::debug!(adapter = self.name(), "connection did not close in time"),
                    }
                    match end {
                        End::Stopped => break,
                        End::Crashed => return Err(Error::Crashed),
                        End::Lost(error) => tracing::info!(adapter = self.name(), ?error, "connection lost"),
                    }
                }
                Ok(Err(error)) => tracing::info!(adapter = self.name(), %error, "broker refused the adapter"),
                Err(_) => tracing::info!(adapter = self.name(), "broker did not answer in time"),
            }
            token.run_until_cancelled(tokio::time::sleep(pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(())
    }

    async fn open(&self, source: &RabbitSource) -> Result<(Connection, Consumer), lapin::Error> {
        let connection = Connection::connect(source.url.expose_secret(), ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        let queue = format!("{}-{}", source.topic, self.name());
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let none = FieldTable::default;
        channel.exchange_declare(source.topic.as_str().into(), source.exchange_type.clone(), durable, none()).await?;
        channel.queue_declare(queue.as_str().into(), QueueDeclareOptions::durable(), none()).await?;
        let (queue_name, exchange) = (queue.as_str().into(), source.topic.as_str().into());
        channel.queue_bind(queue_name, exchange, "".into(), QueueBindOptions::default(), none()).await?;
        channel.basic_qos(source.prefetch.max(1), BasicQosOptions::default()).await?;
        let consume = BasicConsumeOptions::default();
        let consumer = channel.basic_consume(queue.as_str().into(), self.name().into(), consume, none()).await?;
        Ok((connection, consumer))
    }

    async fn take(&self, delivery: Delivery) -> Result<(), Error> {
        let handled = if has_only_string_headers(&delivery) {
            self.handle(&delivery.data).await
        } else {
            self.reject();
            Handled::Rejected
        };
        let settled = match handled {
            Handled::Done => delivery.ack(BasicAckOptions::default()).await,
            // The Go adapter would get it again for ever; one refusal is enough to be counted.
            Handled::Rejected => delivery.reject(BasicRejectOptions { requeue: false }).await,
            Handled::Crashed => return Err(Error::Crashed),
        };
        if let Err(error) = settled {
            tracing::debug!(adapter = self.name(), %error, "message could not be settled and will come again");
        }
        Ok(())
    }
}

/// The library behind the adapters fails on any header of another type.
fn has_only_string_headers(delivery: &Delivery) -> bool {
    let headers = delivery.properties.headers().as_ref();
    headers.is_none_or(|headers| {
        headers.inner().values().all(|value| matches!(value, AMQPValue::LongString(_) | AMQPValue::ShortString(_)))
    })
}
