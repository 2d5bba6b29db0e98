//! What `config show` prints: the effective values of file and environment, secrets redacted.

use std::collections::BTreeMap;

use serde::Serialize;
use watchfire_delivery::sink::pubsub::{Endpoint, MissingTopic};
use watchfire_delivery::sink::rabbitmq::Transport;
use watchfire_runtime::redact::REDACTED;

use super::broker::BrokerConfig;
use super::setting::{RawLog, RawProcess, Whole};
use super::{Form, Process, RawConfig, RawHyperFleet, SentinelConfig};

/// The effective configuration, in the form of its file and of the `BROKER_*` variables.
#[derive(Debug, Serialize)]
pub struct Shown {
    #[serde(flatten)]
    file: ShownFile,
    /// Whether a token is sent, never which.
    token: Option<&'static str>,
    broker: BTreeMap<&'static str, String>,
}

/// The file with every default filled in.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum ShownFile {
    /// In the first form.
    Flat(Box<RawConfig>),
    /// In that of today's HyperFleet.
    HyperFleet(Box<RawHyperFleet>),
}

impl SentinelConfig {
    /// Shows the file as it would be with every default written down.
    pub fn file(&self, process: &Process, topic: Option<&str>) -> ShownFile {
        match self.form {
            Form::Flat | Form::Object => ShownFile::Flat(Box::new(self.effective.clone())),
            Form::HyperFleet => {
                let whole = Whole {
                    config: self.effective.clone(),
                    process: RawProcess { topic: topic.map(str::to_owned), ..process.raw() },
                };
                ShownFile::HyperFleet(Box::new(RawHyperFleet::raise(&whole)))
            }
        }
    }

    /// Shows this configuration with its broker.
    pub fn show(&self, process: &Process, broker: &BrokerConfig) -> Shown {
        let token = self.api.token.as_ref().map(|_| REDACTED);
        Shown { file: self.file(process, None), token, broker: broker.variables().into_iter().collect() }
    }
}

impl Process {
    fn raw(&self) -> RawProcess {
        RawProcess {
            name: Some(self.name.clone()),
            debug_config: Some(self.debug_config),
            tracing_enabled: Some(self.tracing),
            log: RawLog {
                level: Some(self.log_level.clone()),
                format: Some(self.log_format.to_string()),
                output: Some(self.log_output.to_string()),
            },
            ..RawProcess::default()
        }
    }
}

impl BrokerConfig {
    /// The variables that say the same, secrets redacted.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::RabbitMq(rabbitmq) => vec![
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
            Self::PubSub(pubsub) => vec![
                ("BROKER_TYPE", "pubsub".to_owned()),
                ("BROKER_PROJECT_ID", pubsub.project.clone()),
                ("BROKER_TOPIC", pubsub.topic.clone()),
                (
                    "BROKER_GOOGLEPUBSUB_CREATE_TOPIC_IF_MISSING",
                    (pubsub.missing_topic == MissingTopic::Create).to_string(),
                ),
                (
                    "PUBSUB_EMULATOR_HOST",
                    match &pubsub.endpoint {
                        Endpoint::Emulator(host) => host.clone(),
                        Endpoint::Google => String::new(),
                    },
                ),
            ],
            Self::Http { subscribers, store, topic } => {
                let names: Vec<_> = subscribers.iter().map(|subscriber| subscriber.name.as_str()).collect();
                vec![
                    ("BROKER_TYPE", "http".to_owned()),
                    // Addresses may carry tokens of their own: names only.
                    ("BROKER_HTTP_SUBSCRIBERS", names.join(",")),
                    ("BROKER_HTTP_STORE", store.display().to_string()),
                    ("BROKER_TOPIC", topic.clone()),
                ]
            }
        }
    }
}
