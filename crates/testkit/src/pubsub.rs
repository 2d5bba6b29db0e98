//! The consumer's side of Pub/Sub: what an adapter would receive.

use std::collections::HashMap;
use std::time::Duration;

use google_cloud_auth::credentials::anonymous;
use google_cloud_pubsub::client::{Subscriber, SubscriptionAdmin, TopicAdmin};
use google_cloud_pubsub::model::Message;
use google_cloud_pubsub::subscriber::MessageStream;

use crate::eventually::take;
use crate::install_crypto;

const STEP: Duration = Duration::from_secs(30);

/// A subscription of its own on one topic of an emulator; every message is acknowledged when it is taken.
pub struct Subscription {
    stream: MessageStream,
}

impl Subscription {
    /// Creates the topic where it is missing, and a fresh subscription to it. `endpoint` is `host:port`.
    pub async fn create(endpoint: &str, project: &str, topic: &str) -> Self {
        install_crypto();
        let endpoint = format!("http://{endpoint}");
        let topic_name = format!("projects/{project}/topics/{topic}");
        let topics = TopicAdmin::builder().with_endpoint(&endpoint).with_credentials(anonymous::Builder::new().build());
        let topics = topics.build().await.expect("build a topic client");
        // It may exist; the subscription below fails when it does not.
        drop(within(topics.create_topic().set_name(&topic_name).send()).await);

        let name = format!("projects/{project}/subscriptions/{}", crate::unique("listen"));
        let admin = SubscriptionAdmin::builder().with_endpoint(&endpoint);
        let admin = admin.with_credentials(anonymous::Builder::new().build()).build().await;
        let admin = admin.expect("build a subscription client");
        let created = admin.create_subscription().set_name(&name).set_topic(&topic_name).send();
        within(created).await.expect("create a subscription");

        let subscriber = Subscriber::builder().with_endpoint(&endpoint);
        let subscriber = subscriber.with_credentials(anonymous::Builder::new().build()).build().await;
        Self { stream: subscriber.expect("build a subscriber").subscribe(name).build() }
    }

    /// The next message, or `None` when none comes within `wait`.
    pub async fn next(&mut self, wait: Duration) -> Option<Message> {
        let next = tokio::time::timeout(wait, self.stream.next()).await.ok()??;
        let (message, handler) = next.expect("receive from Pub/Sub");
        handler.ack();
        Some(message)
    }

    /// Takes `n` messages, and panics when the next one does not come within 30 seconds.
    pub async fn take(&mut self, n: usize) -> Vec<Message> {
        take(n, async || self.next(STEP).await).await
    }

    /// Takes what comes until nothing has come for `quiet`, by the id in `_watermill_message_uuid`.
    pub async fn drain(&mut self, quiet: Duration) -> HashMap<String, Message> {
        let mut messages = HashMap::new();
        while let Some(message) = self.next(quiet).await {
            messages.insert(message.attributes.get("_watermill_message_uuid").cloned().unwrap_or_default(), message);
        }
        messages
    }
}

async fn within<T>(step: impl Future<Output = T>) -> T {
    tokio::time::timeout(STEP, step).await.expect("Pub/Sub answers in time")
}
