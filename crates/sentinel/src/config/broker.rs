//! Which broker, and how to reach it: the `BROKER_*` variables, from the environment or a mounted ConfigMap, or the
//! `broker.yaml` of today's HyperFleet with its variables.
//!
//! The adapters share these settings, so one that only they read is none of our business; one that nobody reads is a
//! typing error, and told.

mod file;
mod migrate;
mod rabbitmq;
mod settings;

use std::path::PathBuf;

use watchfire_delivery::embedded::Subscriber;
use watchfire_delivery::sink::pubsub::{Endpoint, MissingTopic, PubSubConfig};
use watchfire_delivery::sink::rabbitmq::RabbitMqConfig;
use watchfire_runtime::config::Problems;

pub use file::{RawBrokerFile, parse, read};
pub use migrate::{is_broker, migrate, migrate_folder};
pub(crate) use settings::is_ours;
pub use settings::{ADAPTERS, OURS, SHARED, Settings, variable};

/// What events go to when nothing is said.
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
        /// What events are said to be published to.
        topic: String,
    },
}

impl BrokerConfig {
    /// The topic or exchange, for metrics.
    pub fn topic(&self) -> &str {
        match self {
            Self::RabbitMq(rabbitmq) => &rabbitmq.exchange,
            Self::PubSub(pubsub) => &pubsub.topic,
            Self::Http { topic, .. } => topic,
        }
    }
}

/// Reads the broker from its settings.
pub fn check(settings: &Settings, problems: &mut Problems) -> Option<BrokerConfig> {
    settings.warn_of_unknown(problems);
    settings.warn_of_two_names(problems);
    let Some(kind) = settings.get("BROKER_TYPE") else {
        problems.push(
            settings.origin("BROKER_TYPE"),
            "missing; set it to rabbitmq, pubsub, or http for the embedded broker that needs nothing installed",
        );
        return None;
    };
    match kind {
        "rabbitmq" => rabbitmq::check(settings, problems).map(BrokerConfig::RabbitMq),
        "pubsub" | "gcp-pubsub" | "googlepubsub" => pubsub(settings, problems).map(BrokerConfig::PubSub),
        "http" => http(settings, problems),
        other => {
            let message = format!("{other:?} is not rabbitmq, pubsub (or googlepubsub, gcp-pubsub) or http");
            problems.push(settings.origin("BROKER_TYPE"), message);
            None
        }
    }
}

fn pubsub(settings: &Settings, problems: &mut Problems) -> Option<PubSubConfig> {
    let before = problems.count();
    let project = settings.get("BROKER_PROJECT_ID").unwrap_or_default();
    if project.is_empty() {
        let message = "missing; write the Google Cloud project, for example hyperfleet-prod";
        problems.push(settings.origin("BROKER_PROJECT_ID"), message);
    }
    let topic = settings.get("BROKER_TOPIC").unwrap_or(DEFAULT_TOPIC);
    for (name, value) in [("BROKER_PROJECT_ID", project), ("BROKER_TOPIC", topic)] {
        if value.contains('/') {
            let message = format!("{value:?} must be the short name, without projects/ or topics/");
            problems.push(settings.origin(name), message);
        }
    }
    if !topic.contains('/') && !is_topic(topic) {
        let message = format!(
            "{:?} is no name of a topic: 3 to 255 letters, digits and any of -_.~+%, beginning with a letter, and not \
             with goog",
            shortened(topic)
        );
        problems.push(settings.origin("BROKER_TOPIC"), message);
    }
    let mut config = PubSubConfig::new(project, topic);
    if rabbitmq::flag(settings, "BROKER_GOOGLEPUBSUB_CREATE_TOPIC_IF_MISSING", problems) == Some(true) {
        config.missing_topic = MissingTopic::Create;
    }
    if let Some(host) = settings.get("PUBSUB_EMULATOR_HOST") {
        config.endpoint = Endpoint::Emulator(host.to_owned());
        config.missing_topic = MissingTopic::Create;
    }
    (problems.count() == before).then_some(config)
}

/// Google's rules for the name of a topic.
fn is_topic(name: &str) -> bool {
    (3..=255).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && !name.starts_with("goog")
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.~+%".contains(c))
}

/// Enough of a name to recognise it.
fn shortened(name: &str) -> String {
    name.chars().take(80).collect()
}

fn http(settings: &Settings, problems: &mut Problems) -> Option<BrokerConfig> {
    let origin = || settings.origin("BROKER_HTTP_SUBSCRIBERS");
    let Some(list) = settings.get("BROKER_HTTP_SUBSCRIBERS") else {
        let message = "missing; write name=URL,..., for example validation=http://validation:8080/events";
        problems.push(origin(), message);
        return None;
    };
    let subscribers = problems.take(origin(), Subscriber::parse_list(list))?;
    let store = settings.get("BROKER_HTTP_STORE").unwrap_or("watchfire-broker.db").into();
    let topic = settings.get("BROKER_TOPIC").unwrap_or(DEFAULT_TOPIC).to_owned();
    Some(BrokerConfig::Http { subscribers, store, topic })
}

#[cfg(test)]
mod tests;
