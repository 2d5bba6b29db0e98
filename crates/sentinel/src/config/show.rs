//! What `config show` prints: the effective values of file and environment, secrets redacted.

use std::collections::BTreeMap;

use serde::Serialize;
use watchfire_delivery::sink::pubsub::Endpoint;
use watchfire_delivery::sink::rabbitmq::Transport;
use watchfire_runtime::redact::REDACTED;

use super::broker::BrokerConfig;
use super::{RawConfig, SentinelConfig};

/// The effective configuration, in the form of the file and of the `BROKER_*` variables.
#[derive(Debug, Serialize)]
pub struct Shown<'a> {
    #[serde(flatten)]
    file: &'a RawConfig,
    /// Whether a token is sent, never which.
    token: Option<&'static str>,
    broker: BTreeMap<&'static str, String>,
}

impl SentinelConfig {
    /// Shows this configuration with its broker.
    pub fn show(&self, broker: &BrokerConfig) -> Shown<'_> {
        let broker = match broker {
            BrokerConfig::RabbitMq(rabbitmq) => vec![
                ("BROKER_TYPE", "rabbitmq".to_owned()),
                ("BROKER_HOST", rabbitmq.host.clone()),
                ("BROKER_PORT", rabbitmq.port.to_string()),
                ("BROKER_VHOST", rabbitmq.vhost.clone()),
                ("BROKER_TLS", (rabbitmq.transport == Transport::Tls).to_string()),
                ("BROKER_EXCHANGE", rabbitmq.exchange.clone()),
                ("BROKER_EXCHANGE_TYPE", rabbitmq.exchange_type.to_string()),
                ("BROKER_ROUTING_KEY", rabbitmq.routing_key.clone()),
                ("BROKER_USER", rabbitmq.user.clone()),
                ("BROKER_PASSWORD", REDACTED.to_owned()),
            ],
            BrokerConfig::PubSub(pubsub) => vec![
                ("BROKER_TYPE", "pubsub".to_owned()),
                ("BROKER_PROJECT_ID", pubsub.project.clone()),
                ("BROKER_TOPIC", pubsub.topic.clone()),
                (
                    "PUBSUB_EMULATOR_HOST",
                    match &pubsub.endpoint {
                        Endpoint::Emulator(host) => host.clone(),
                        Endpoint::Google | Endpoint::Url(_) => String::new(),
                    },
                ),
            ],
            BrokerConfig::Http { subscribers, store, topic } => {
                let names: Vec<_> = subscribers.iter().map(|subscriber| subscriber.name.as_str()).collect();
                vec![
                    ("BROKER_TYPE", "http".to_owned()),
                    // Addresses may carry tokens of their own: names only.
                    ("BROKER_HTTP_SUBSCRIBERS", names.join(",")),
                    ("BROKER_HTTP_STORE", store.display().to_string()),
                    ("BROKER_TOPIC", topic.clone()),
                ]
            }
        };
        Shown {
            file: &self.effective,
            token: self.api.token.as_ref().map(|_| REDACTED),
            broker: broker.into_iter().collect(),
        }
    }
}
