//! Settings that stand in a file or a folder.
//!
//! Told apart by what is in it: a folder is a mounted ConfigMap, one file per setting; a file is a ConfigMap's
//! manifest, a map of `BROKER_*`, or the `broker.yaml` of today's HyperFleet. In the first three, whatever else stands
//! there is left alone: the API's token, for one, is no broker's setting.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use schemars::JsonSchema;
use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use watchfire_runtime::config::{ConfigError, Document, Env, Origin, Problems, Text};

use super::settings::{OURS, SHARED, Settings, is_ours, variable};

/// A plain value: what YAML takes for a number or a flag is as good as the text of it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Plain", description = "A plain value: text, or what YAML takes for a number or a flag.", extend("type" = ["string", "number", "boolean"]))]
pub(super) struct Scalar(String);

/// `broker.yaml` as typed. What only consumers read is not looked at.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(
    rename = "BrokerFile",
    title = "broker.yaml",
    description = "Which broker there is and how to reach it; adapters share the file, and what only they read is accepted."
)]
pub struct RawBrokerFile {
    #[schemars(with = "Option<bool>")]
    log_config: Theirs,
    subscriber: Option<RawSubscriber>,
    /// Which broker, and how to reach it.
    broker: Option<RawBroker>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Subscriber", description = "For adapters.")]
struct RawSubscriber {
    parallelism: Theirs,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Broker", description = "Which broker, and how to reach it.")]
struct RawBroker {
    /// `rabbitmq`, `googlepubsub`, or `http` for the embedded broker.
    r#type: Option<Scalar>,
    /// For `rabbitmq`.
    rabbitmq: Option<RawRabbitMq>,
    /// For `googlepubsub`.
    googlepubsub: Option<RawPubSub>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "RabbitMq", description = "How to reach RabbitMQ.")]
struct RawRabbitMq {
    /// `amqp://host:5672/vhost` or `amqps://`; user and password are better given as variables.
    url: Option<Scalar>,
    /// Publishes to this exchange instead of the one that is called as the topic.
    exchange: Option<Scalar>,
    /// `fanout` (default), `direct`, `topic` or `headers`.
    exchange_type: Option<Scalar>,
    /// Consumers of HyperFleet bind the empty one, which is the default.
    routing_key: Option<Scalar>,
    /// Confirms are always on.
    publisher_confirm: Option<Scalar>,
    queue: Theirs,
    prefetch_count: Theirs,
    prefetch_size: Theirs,
    consumer_tag: Theirs,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "PubSub", description = "How to reach Pub/Sub.")]
struct RawPubSub {
    /// The Google Cloud project.
    project_id: Option<Scalar>,
    /// Creates the topic if it is not there. Default `false`.
    create_topic_if_missing: Option<Scalar>,
    create_subscription_if_missing: Theirs,
    ack_deadline_seconds: Theirs,
    message_retention_duration: Theirs,
    expiration_ttl: Theirs,
    retry_min_backoff: Theirs,
    retry_max_backoff: Theirs,
    dead_letter_max_attempts: Theirs,
    dead_letter_topic: Theirs,
    enable_message_ordering: Theirs,
    max_outstanding_messages: Theirs,
    max_outstanding_bytes: Theirs,
    num_goroutines: Theirs,
}

/// A consumer's setting, of which nothing is kept.
#[derive(Debug, Clone, Default, JsonSchema)]
#[schemars(rename = "Theirs", description = "For adapters; the sentinel takes no notice.", extend("type" = ["string", "number", "boolean", "array", "object", "null"]))]
struct Theirs;

impl<'de> Deserialize<'de> for Theirs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Not `IgnoredAny`: a key of which nobody asks for the value counts as unknown.
        Value::deserialize(deserializer).map(|_| Self)
    }
}

impl Serialize for Theirs {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_none()
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Plain;
        impl Visitor<'_> for Plain {
            type Value = Scalar;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text, a number, true or false")
            }
            fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar(text.to_owned()))
            }
            fn visit_bool<E>(self, flag: bool) -> Result<Scalar, E> {
                Ok(Scalar(flag.to_string()))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }
            fn visit_unit<E>(self) -> Result<Scalar, E> {
                Ok(Scalar(String::new()))
            }
        }
        deserializer.deserialize_any(Plain)
    }
}

/// How a file holds settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Manifest,
    Map,
    BrokerYaml,
}

impl Shape {
    /// Tells it by the keys, if these are a broker's settings at all.
    pub(super) fn of(text: &Text) -> Result<Option<Self>, ConfigError> {
        let keys = text.parse::<BTreeMap<String, Value>>()?.value;
        let has = |key: &str| keys.contains_key(key);
        Ok(if has("data") {
            Some(Self::Manifest)
        } else if keys.keys().any(|key| is_ours(key)) {
            Some(Self::Map)
        } else {
            // A sentinel's file with a stray `broker` is one all the same.
            (["broker", "subscriber", "log_config"].iter().any(|key| has(key)) && !has("resource_type"))
                .then_some(Self::BrokerYaml)
        })
    }
}

/// Reads the settings at `path`: a folder with one file for each, or a file with all of them.
pub fn read(path: &Path, problems: &mut Problems) -> Result<Settings, ConfigError> {
    if path.is_dir() {
        let all = Env::from_directory(path, |name| is_ours(name) || name == BROKER_YAML)?;
        let within = |name: &str| {
            let file = path.join(name).display().to_string();
            Origin::Beside { file, key: String::new(), place: None }
        };
        let settings = Settings::of(&all, within);
        if all.get(BROKER_YAML).is_some() {
            beside_others(&settings, within(BROKER_YAML), "name that file in place of the folder", problems);
        }
        return Ok(settings);
    }
    parse(&Text::read(path)?, problems)
}

/// Reads the settings in a file; values of the wrong kind, unknown keys of a `broker.yaml`, and secrets in the open,
/// are told.
pub fn parse(text: &Text, problems: &mut Problems) -> Result<Settings, ConfigError> {
    let settings = match Shape::of(text)? {
        Some(Shape::Manifest) => manifest(text, problems)?,
        Some(Shape::Map) => map(text, problems)?,
        // What looks like neither is refused with the keys of this one.
        Some(Shape::BrokerYaml) | None => {
            let document = text.parse_as_far_as_possible::<RawBrokerFile>()?.refused(&REFUSED);
            problems.append(document.problems());
            return Ok(broker_yaml(&document));
        }
    };
    if settings.get("BROKER_PASSWORD").is_some() {
        let message = "a password in a file that is kept in the open; set it in the environment, or name a file of \
                       its own with BROKER_PASSWORD_FILE";
        problems.warn(settings.origin("BROKER_PASSWORD"), message);
    }
    Ok(settings)
}

/// Keys that people expect in `broker.yaml`.
const REFUSED: [(&str, &str); 1] =
    [("topic", "the topic stands in the sentinel's file (clients.broker.topic), or in HYPERFLEET_BROKER_TOPIC")];

/// The key of a ConfigMap that holds a whole file.
const BROKER_YAML: &str = "broker.yaml";

/// A ConfigMap may hold settings one by one and a `broker.yaml` for others: only the former are read here.
fn beside_others(settings: &Settings, origin: Origin, instead: &str, problems: &mut Problems) {
    if settings.is_empty() {
        problems.push(origin, format!("is not read here, and there is no BROKER_* setting beside it; {instead}"));
    } else {
        problems.warn(origin, format!("is not read: the BROKER_* settings beside it are; to use it, {instead}"));
    }
}

fn manifest(text: &Text, problems: &mut Problems) -> Result<Settings, ConfigError> {
    #[derive(Deserialize)]
    struct Manifest {
        data: BTreeMap<String, Scalar>,
        #[serde(flatten)]
        _rest: BTreeMap<String, Value>,
    }
    let document = text.parse_as_far_as_possible::<Manifest>()?;
    problems.append(document.problems());
    let settings = ours(&document, &document.value.data, "data.");
    if document.value.data.contains_key(BROKER_YAML) {
        let instead = "keep what is in it as a file of its own, and name that";
        beside_others(&settings, document.origin("data.broker.yaml"), instead, problems);
    }
    Ok(settings)
}

fn map(text: &Text, problems: &mut Problems) -> Result<Settings, ConfigError> {
    let document = text.parse_as_far_as_possible::<BTreeMap<String, Scalar>>()?;
    problems.append(document.problems());
    Ok(ours(&document, &document.value, ""))
}

/// The settings below a key, which ends with its dot, if any.
fn ours<T>(document: &Document<T>, values: &BTreeMap<String, Scalar>, below: &str) -> Settings {
    let mut settings = Settings::default();
    for (name, Scalar(value)) in values.iter().filter(|(name, _)| is_ours(name)) {
        settings.set(name, value, document.origin(&format!("{below}{name}")));
    }
    let theirs = SHARED.iter().map(|(_, key)| variable(key));
    for name in SHARED.iter().map(|(name, _)| *name).chain(OURS).map(str::to_owned).chain(theirs) {
        if let Some(key) = document.left_out_around(&format!("{below}{name}")) {
            settings.leave_out(&name, document.origin(key));
        }
    }
    settings.by_our_names()
}

fn broker_yaml(document: &Document<RawBrokerFile>) -> Settings {
    let mut settings = Settings::default();
    let tree = serde_json::to_value(&document.value).unwrap_or_default();
    for (name, key) in SHARED {
        if let Some(Value::String(value)) = tree.pointer(&format!("/{}", key.replace('.', "/"))) {
            settings.set(name, value, document.origin(key));
        }
        if let Some(left_out) = document.left_out_around(key) {
            settings.leave_out(name, document.origin(left_out));
        }
    }
    settings
}
