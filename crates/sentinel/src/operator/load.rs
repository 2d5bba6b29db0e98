//! From an object and the Secrets that it names to what a sentinel runs with; or to the reason why not.

use kube::api::DynamicObject;
use secrecy::ExposeSecret;
use serde_json::json;
use watchfire_delivery::sink::pubsub::PubSubConfig;
use watchfire_delivery::sink::rabbitmq::RabbitMqConfig;
use watchfire_runtime::config::Env;

use super::Problem;
use super::secrets::Secrets;
use crate::config::broker::{self, BrokerConfig, Settings};
use crate::config::{SecretValues, SentinelConfig, read_object};
use crate::object::{SecretKey, SentinelConfigSpec};
use crate::resource::without_text;

/// What a sentinel runs with.
#[derive(Clone)]
pub(super) struct Loaded {
    pub(super) sentinel: SentinelConfig,
    pub(super) destination: Destination,
    /// What the destination was read from.
    pub(super) settings: Settings,
    /// Topic or exchange.
    pub(super) topic: String,
    pub(super) warnings: Vec<String>,
    /// What it was read from: the same spec and the same Secrets are one configuration.
    spec: SentinelConfigSpec,
    values: SecretValues,
}

/// The brokers that an object can name.
#[derive(Clone)]
pub(super) enum Destination {
    RabbitMq(RabbitMqConfig),
    PubSub(PubSubConfig),
}

impl Loaded {
    /// Whether it names Secrets, which may change without anybody saying so.
    pub(super) fn names_secrets(&self) -> bool {
        !self.values.is_empty()
    }
}

impl PartialEq for Loaded {
    fn eq(&self, other: &Self) -> bool {
        let text = |loaded: &Self, key| loaded.values.get(key).map(|value| value.expose_secret().to_owned());
        self.spec == other.spec && self.values.keys().all(|key| text(self, key) == text(other, key))
    }
}

/// Reads an object and what it names.
pub(super) async fn load(object: &DynamicObject, secrets: &Secrets, env: &Env) -> Result<Loaded, Problem> {
    let invalid = |message: String| Problem { reason: "InvalidConfig", message };
    // One that is null is told as one that has nothing in it.
    let spec = object.data.get("spec").filter(|spec| !spec.is_null()).cloned().unwrap_or_else(|| json!({}));
    let spec: SentinelConfigSpec = serde_json::from_value(spec).map_err(|error| {
        invalid(format!("spec: {}; see `kubectl explain sentinelconfig.spec`", without_text(error)))
    })?;
    let keys: Vec<&SecretKey> =
        spec.hyperfleet_api.token_secret_ref.iter().chain(&spec.broker.url_secret_ref).collect();
    let values = secrets.read(keys).await?;
    let (mut reading, settings) = read_object(&spec, &values, env);
    let broker = broker::check(&settings, &mut reading.problems);
    let warnings = reading.problems.warnings().iter().map(ToString::to_string).collect();
    if let Err(error) = reading.problems.finish() {
        let problems: Vec<_> = error.problems().iter().map(ToString::to_string).collect();
        return Err(invalid(problems.join("; ")));
    }
    let topic = broker.as_ref().map(|broker| broker.topic().to_owned()).unwrap_or_default();
    let destination = match broker {
        Some(BrokerConfig::RabbitMq(rabbitmq)) => Some(Destination::RabbitMq(rabbitmq)),
        Some(BrokerConfig::PubSub(pubsub)) => Some(Destination::PubSub(pubsub)),
        Some(BrokerConfig::Http { .. }) | None => None,
    };
    // What does not hold has said so.
    let (sentinel, destination) =
        reading.sentinel.zip(destination).ok_or_else(|| invalid("the configuration does not hold".to_owned()))?;
    Ok(Loaded { sentinel, destination, settings, topic, warnings, spec, values })
}
