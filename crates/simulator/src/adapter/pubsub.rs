//! Consumes from Pub/Sub's emulator: one subscription per adapter, created if it is missing.

use std::time::Duration;

use google_cloud_auth::credentials::anonymous;
use google_cloud_pubsub::client::{Subscriber, SubscriptionAdmin};
use google_cloud_pubsub::subscriber::MessageStream;
use google_cloud_pubsub::subscriber::handler::Handler;
use tokio_util::sync::CancellationToken;

use super::pump::{End, pump};
use super::{Adapter, Error, Handled};

/// The pause before a stream that ended is opened again.
const PAUSE: Duration = Duration::from_millis(500);
/// How long creating the subscription may take.
const CREATE_TIMEOUT: Duration = Duration::from_secs(30);

/// Where on Pub/Sub the events are.
#[derive(Debug, Clone)]
pub struct PubSubSource {
    /// The emulator's address, for example `127.0.0.1:8085`.
    pub emulator: String,
    /// The project.
    pub project: String,
    /// The topic, which must exist.
    pub topic: String,
    /// The subscription; `{topic}-{adapter}` if absent.
    pub subscription: Option<String>,
    /// How many messages it holds at once.
    pub parallelism: u16,
}

impl Adapter {
    /// Consumes until the token is cancelled. A broken stream is opened again; only a crash ends it early.
    pub async fn run_pubsub(&self, source: &PubSubSource, token: CancellationToken) -> Result<(), Error> {
        let PubSubSource { project, topic, .. } = source;
        let subscription = source.subscription.clone().unwrap_or_else(|| format!("{topic}-{}", self.name()));
        let name = format!("projects/{project}/subscriptions/{subscription}");
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| Error::Broker { target: name.clone(), source };
        let endpoint = match source.emulator.split_once("://") {
            Some(_) => source.emulator.clone(),
            None => format!("http://{}", source.emulator),
        };
        let create = create(&endpoint, &name, format!("projects/{project}/topics/{topic}"));
        let created = token.run_until_cancelled(tokio::time::timeout(CREATE_TIMEOUT, create)).await;
        match created {
            None => return Ok(()),
            Some(Ok(created)) => created.map_err(failed)?,
            Some(Err(elapsed)) => return Err(failed(elapsed.into())),
        }
        let credentials = anonymous::Builder::new().build();
        let subscriber = Subscriber::builder().with_endpoint(endpoint).with_credentials(credentials).build().await;
        let subscriber = subscriber.map_err(|error| failed(error.into()))?;
        let limit = usize::from(source.parallelism.max(1));
        while !token.is_cancelled() {
            let stream = subscriber.subscribe(&name).set_max_outstanding_messages(i64::from(source.parallelism.max(1)));
            let messages = futures_util::stream::unfold(stream.build(), async |mut stream: MessageStream| {
                stream.next().await.map(|message| (message, stream))
            });
            let end = pump(&token, limit, messages, |(message, handler)| async move {
                settle(self.handle(&message.data).await, handler)
            });
            match end.await {
                End::Stopped => break,
                End::Crashed => return Err(Error::Crashed),
                End::Lost(error) => tracing::info!(adapter = self.name(), ?error, "stream of messages ended"),
            }
            token.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
        }
        Ok(())
    }
}

fn settle(outcome: Handled, handler: Handler) -> Result<(), Error> {
    match outcome {
        // What is no event would come again for ever; one refusal is enough to be counted.
        Handled::Done | Handled::Rejected => handler.ack(),
        Handled::Crashed => {
            // A process that dies leaves the message to its deadline; this one has the lease given back at once.
            handler.nack();
            return Err(Error::Crashed);
        }
    }
    Ok(())
}

async fn create(
    endpoint: &str,
    subscription: &str,
    topic: String,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let credentials = anonymous::Builder::new().build();
    let admin = SubscriptionAdmin::builder().with_endpoint(endpoint).with_credentials(credentials).build().await?;
    let created = admin.create_subscription().set_name(subscription).set_topic(topic).send().await;
    match created {
        Ok(_) => Ok(()),
        Err(error) if error.status().is_some_and(|status| status.code.name() == "ALREADY_EXISTS") => Ok(()),
        Err(error) => Err(error.into()),
    }
}
