//! Which broker, and how to reach it: the `BROKER_*` variables, from the environment or a mounted ConfigMap.
//!
//! The adapters share these settings, so a variable that only they read is none of our business; one that nobody reads
//! is a typing error, and told.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use secrecy::SecretString;
use serde::Deserialize;
use watchfire_delivery::embedded::Subscriber;
use watchfire_delivery::sink::pubsub::{Endpoint, MissingTopic, PubSubConfig};
use watchfire_delivery::sink::rabbitmq::{RabbitMqConfig, Transport};
use watchfire_runtime::SecretSource;
use watchfire_runtime::config::{ConfigError, Document, Env, Origin, Problems};

/// What the seeds' deployments publish to when nothing is said.
pub const DEFAULT_TOPIC: &str = "hyperfleet-events";

/// A checked broker.
#[derive(Debug, Clone)]
pub enum BrokerConfig {
    /// RabbitMQ.
    RabbitMq(RabbitMqConfig),
    /// Google Cloud Pub/Sub.
    PubSub(PubSubConfig),
    /// The embedded broker: a store of our own, and subscribers over HTTP.
    Http {
        /// Who gets the events.
        subscribers: Vec<Subscriber>,
        /// The store's file.
        store: PathBuf,
    },
}

impl BrokerConfig {
    /// The topic or exchange, for metrics.
    pub fn topic(&self) -> &str {
        match self {
            Self::RabbitMq(rabbitmq) => &rabbitmq.exchange,
            Self::PubSub(pubsub) => &pubsub.topic,
            Self::Http { .. } => DEFAULT_TOPIC,
        }
    }
}

/// Variables that we read.
const OURS: [&str; 18] = [
    "BROKER_TYPE",
    "BROKER_PROJECT_ID",
    "BROKER_TOPIC",
    "BROKER_HOST",
    "BROKER_PORT",
    "BROKER_VHOST",
    "BROKER_TLS",
    "BROKER_EXCHANGE",
    "BROKER_EXCHANGE_TYPE",
    "BROKER_ROUTING_KEY",
    "BROKER_USER",
    "BROKER_PASSWORD",
    "BROKER_PASSWORD_FILE",
    "BROKER_URL",
    "BROKER_HTTP_SUBSCRIBERS",
    "BROKER_HTTP_STORE",
    "BROKER_CONFIG",
    "BROKER_SUBSCRIPTION_ID",
];

/// Reads settings that stand in a file or a folder: a mounted ConfigMap (one file per key), the ConfigMap's manifest,
/// or a plain map of keys. Whatever else stands there is left alone: the API's token, for one, is no broker's setting.
pub fn read(path: &Path) -> Result<Env, ConfigError> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum File {
        Manifest { data: BTreeMap<String, String> },
        Flat(BTreeMap<String, Scalar>),
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Scalar {
        Text(String),
        Number(i64),
        Bool(bool),
    }
    let broker = |name: &str| name.starts_with("BROKER_") || name == "PUBSUB_EMULATOR_HOST";
    if path.is_dir() {
        let all = Env::from_directory(path)
            .map_err(|source| ConfigError::Read { file: path.display().to_string(), source })?;
        let ours = all.names("").filter(|name| broker(name));
        return Ok(ours.filter_map(|name| Some((name, all.get(name)?))).collect());
    }
    let settings = match Document::<File>::read(path)?.value {
        File::Manifest { data } => data,
        File::Flat(map) => map
            .into_iter()
            .map(|(key, value)| match value {
                Scalar::Text(text) => (key, text),
                Scalar::Number(number) => (key, number.to_string()),
                Scalar::Bool(flag) => (key, flag.to_string()),
            })
            .collect(),
    };
    Ok(settings.into_iter().filter(|(name, _)| broker(name)).collect())
}

/// Reads the broker from the variables.
pub fn check(env: &Env, problems: &mut Problems) -> Option<BrokerConfig> {
    for name in env.names("BROKER_") {
        // Kubernetes adds BROKER_SERVICE_HOST, BROKER_PORT_5672_TCP and the like for a Service called broker.
        let injected = name.starts_with("BROKER_SERVICE_") || name.starts_with("BROKER_PORT_");
        if !OURS.contains(&name) && !injected {
            problems.warn(Origin::env(name), format!("not a setting; known are {}", OURS.join(", ")));
        }
    }
    let settings = Settings { env };
    let Some(kind) = settings.get("BROKER_TYPE") else {
        problems.push(
            Origin::env("BROKER_TYPE"),
            "missing; set it to rabbitmq, pubsub, or http for the embedded broker that needs nothing installed",
        );
        return None;
    };
    match kind {
        "rabbitmq" => settings.rabbitmq(problems).map(BrokerConfig::RabbitMq),
        "pubsub" | "gcp-pubsub" | "googlepubsub" => settings.pubsub(problems).map(BrokerConfig::PubSub),
        "http" => settings.http(problems),
        other => {
            problems.push(Origin::env("BROKER_TYPE"), format!("{other:?} is not rabbitmq, pubsub or http"));
            None
        }
    }
}

struct Settings<'a> {
    env: &'a Env,
}

impl<'a> Settings<'a> {
    fn get(&self, name: &str) -> Option<&'a str> {
        self.env.get(name).map(str::trim).filter(|value| !value.is_empty())
    }

    fn rabbitmq(&self, problems: &mut Problems) -> Option<RabbitMqConfig> {
        let exchange = self.get("BROKER_EXCHANGE").or_else(|| self.get("BROKER_TOPIC")).unwrap_or(DEFAULT_TOPIC);
        let mut config = RabbitMqConfig::new(exchange);
        let mut sound = true;
        let mut refuse = |problems: &mut Problems, name: &str, message: String| {
            problems.push(Origin::env(name), message);
            sound = false;
        };
        let url = self.get("BROKER_URL");
        if let Some(url) = url {
            match config.clone().with_url(&SecretString::from(url)) {
                Ok(parsed) => config = parsed,
                Err(error) => refuse(problems, "BROKER_URL", error.to_string()),
            }
            if url.split_once("://").and_then(|(_, rest)| rest.split_once('@')).is_some() {
                let message = "holds credentials; better set BROKER_USER and BROKER_PASSWORD";
                problems.warn(Origin::env("BROKER_URL"), message);
            }
        }
        match self.get("BROKER_HOST") {
            Some(host) => host.clone_into(&mut config.host),
            None if url.is_none() => {
                let message = "missing; write the host of RabbitMQ, for example rabbitmq.hyperfleet-system.svc";
                refuse(problems, "BROKER_HOST", message.to_owned());
            }
            None => {}
        }
        match self.get("BROKER_TLS") {
            Some("true") => config.transport = Transport::Tls,
            Some("false") => config.transport = Transport::Plain,
            Some(other) => refuse(problems, "BROKER_TLS", format!("{other:?} is not true or false")),
            None => {}
        }
        match self.get("BROKER_PORT") {
            Some(text) => match text.parse() {
                Ok(port) if port > 0 => config.port = port,
                _ => {
                    let hint = if text.contains("://") {
                        "; Kubernetes sets it for a Service called broker: rename the Service, or set \
                         enableServiceLinks: false"
                    } else {
                        ""
                    };
                    refuse(problems, "BROKER_PORT", format!("{text:?} is not a port, 1 to 65535{hint}"));
                }
            },
            None if url.is_none() && config.transport == Transport::Tls => config.port = 5671,
            None => {}
        }
        if let Some(vhost) = self.get("BROKER_VHOST") {
            vhost.clone_into(&mut config.vhost);
        }
        if let Some(text) = self.get("BROKER_EXCHANGE_TYPE") {
            match text.parse() {
                Ok(exchange_type) => config.exchange_type = exchange_type,
                Err(error) => refuse(problems, "BROKER_EXCHANGE_TYPE", format!("{error}")),
            }
        }
        self.get("BROKER_ROUTING_KEY").unwrap_or_default().clone_into(&mut config.routing_key);
        match (self.get("BROKER_USER"), self.password(problems)) {
            (Some(user), Some(password)) => {
                user.clone_into(&mut config.user);
                config.password = password;
            }
            (Some(_), None) => {
                let message = "missing; BROKER_USER is set, so its password is needed";
                refuse(problems, "BROKER_PASSWORD", message.to_owned());
            }
            (None, Some(password)) => config.password = password,
            (None, None) => {}
        }
        if config.user == "guest" {
            let message = "not set, connecting as guest, whom RabbitMQ lets in from its own host only";
            problems.warn(Origin::env("BROKER_USER"), message);
        }
        sound.then_some(config)
    }

    fn password(&self, problems: &mut Problems) -> Option<SecretSource> {
        if let Some(password) = self.get("BROKER_PASSWORD") {
            return Some(SecretSource::literal(password));
        }
        let file = SecretSource::file(self.get("BROKER_PASSWORD_FILE")?);
        problems.take(Origin::env("BROKER_PASSWORD_FILE"), file.current()).map(|_| file)
    }

    fn pubsub(&self, problems: &mut Problems) -> Option<PubSubConfig> {
        let Some(project) = self.get("BROKER_PROJECT_ID") else {
            let message = "missing; write the Google Cloud project, for example hyperfleet-prod";
            problems.push(Origin::env("BROKER_PROJECT_ID"), message);
            return None;
        };
        let topic = self.get("BROKER_TOPIC").unwrap_or(DEFAULT_TOPIC);
        for (name, value) in [("BROKER_PROJECT_ID", project), ("BROKER_TOPIC", topic)] {
            if value.contains('/') {
                let message = format!("{value:?} must be the short name, without projects/ or topics/");
                problems.push(Origin::env(name), message);
                return None;
            }
        }
        let mut config = PubSubConfig::new(project, topic);
        if let Some(host) = self.get("PUBSUB_EMULATOR_HOST") {
            config.endpoint = Endpoint::Emulator(host.to_owned());
            config.missing_topic = MissingTopic::Create;
        }
        Some(config)
    }

    fn http(&self, problems: &mut Problems) -> Option<BrokerConfig> {
        let origin = || Origin::env("BROKER_HTTP_SUBSCRIBERS");
        let Some(list) = self.get("BROKER_HTTP_SUBSCRIBERS") else {
            let message = "missing; write name=URL,..., for example validation=http://validation:8080/events";
            problems.push(origin(), message);
            return None;
        };
        let subscribers = problems.take(origin(), Subscriber::parse_list(list))?;
        let store = self.get("BROKER_HTTP_STORE").unwrap_or("watchfire-broker.db").into();
        Some(BrokerConfig::Http { subscribers, store })
    }
}

#[cfg(test)]
mod tests;
