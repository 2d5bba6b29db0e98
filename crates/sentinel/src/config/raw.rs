//! The sentinel's own form of the file, as typed, and the parts that both forms share.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use watchfire_runtime::duration::GoDuration;
use watchfire_runtime::redact::REDACTED;

/// The file as typed. Every key is optional here; what is required is checked afterwards, so that all is told at once.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(
    rename = "Sentinel",
    title = "Configuration of a Watchfire sentinel",
    description = "The file of one sentinel, in the form of its own: which resources to watch, when an event about one is due, and what it says."
)]
pub struct RawConfig {
    /// The plural of the resources to watch, such as `clusters` or `nodepools`. Required.
    pub resource_type: Option<String>,
    /// Time from the beginning of one cycle to the beginning of the next. Default `5s`.
    pub poll_interval: Option<GoDuration>,
    /// An event is due this long after the last report of a resource that is not ready. Default `10s`.
    pub max_age_not_ready: Option<GoDuration>,
    /// An event is due this long after the last report of a ready resource. Default `30m`.
    pub max_age_ready: Option<GoDuration>,
    /// How much earlier than at `max_age_ready` ready resources may be refreshed, from `0%` to `50%`: each by a share
    /// that its id decides, so that a fleet that was published together is not due together again. Default `0%`.
    pub refresh_spread: Option<String>,
    /// A resource makes no progress when it is not ready, at least five events were published for its generation, and
    /// nothing about it has changed for so long. Default: `max_age_ready`.
    pub no_progress_after: Option<GoDuration>,
    /// A resource without progress is published less and less often, up to this long after its last report; from
    /// `max_age_not_ready` to `max_age_ready`. Default: `max_age_not_ready`, as often as any other.
    pub max_age_no_progress: Option<GoDuration>,
    /// The most events that this process publishes in a second. Default: no ceiling.
    pub max_events_per_second: Option<u32>,
    /// Which resources to watch: a list of `label`/`value` pairs that must all match, or `matchLabels` and
    /// `matchExpressions` as in Kubernetes. Default: all.
    pub resource_selector: Option<RawSelector>,
    /// The HyperFleet API. Required.
    pub hyperfleet_api: Option<RawApi>,
    /// The event's data: each field a path such as `.id`, a Go template, or a literal. Default: `id`, `kind`, `href`,
    /// `generation` and `owner_references`.
    #[serde(deserialize_with = "super::finite::read")]
    pub message_data: Option<Value>,
    /// `generation_aware` (default): spec changes at once, then max age since the last report. `time_only`: max age
    /// since the last transition, and nothing else. `expression`: what `message_decision` says.
    pub decision: Option<RawPolicy>,
    /// The CEL expressions that decide; implies `decision: expression`. Default of that: those of today's HyperFleet,
    /// with the max ages of this file.
    pub message_decision: Option<RawDecision>,
    /// `in_flight` (default): an event of our own counts like a report, so that a silent adapter costs one event per
    /// max age. `always`: only reports count, so that it costs one event per poll; the default with a
    /// `message_decision`.
    pub republish: Option<Republish>,
}

/// `hyperfleet_api` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Api", description = "The HyperFleet API, and how to ask it.")]
pub struct RawApi {
    /// Base address, such as `http://hyperfleet-api:8000`. Required.
    pub endpoint: Option<String>,
    /// For one request, from connecting to the last byte. Default `10s`.
    pub timeout: Option<GoDuration>,
    /// A file with the bearer token, read again when it changes; `HYPERFLEET_API_TOKEN` takes precedence.
    pub token_file: Option<PathBuf>,
    /// Resources in one answer, at most 100, which is the default and what the API serves.
    pub page_size: Option<u32>,
    /// Headers of every request, by name: the value itself, or `file: PATH` (read again when it changes) or `env: NAME`
    /// for one that is secret.
    pub headers: Option<BTreeMap<String, RawHeader>>,
    /// Certificates in PEM form of the authorities that signed the API's, in addition to those of the system.
    pub ca_file: Option<PathBuf>,
}

/// The value of a header, as typed; `Debug` shows none that stands here itself.
#[derive(Clone, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Header", description = "The value of a header: itself, or where it stands.")]
pub enum RawHeader {
    /// Itself.
    Text(String),
    /// Where it stands.
    From(RawHeaderSource),
}

impl RawHeader {
    /// The same with a mark in place of a value: many are secret, and only their owner knows which.
    pub(super) fn redacted(self) -> Self {
        match self {
            Self::Text(_) => Self::Text(REDACTED.to_owned()),
            Self::From(source) => Self::From(source),
        }
    }
}

impl fmt::Debug for RawHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str(REDACTED),
            Self::From(source) => fmt::Debug::fmt(source, f),
        }
    }
}

/// Where the value of a header stands.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "HeaderSource")]
pub struct RawHeaderSource {
    /// In a file, read again when it changes.
    pub file: Option<PathBuf>,
    /// In a variable of the environment.
    pub env: Option<String>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = RawHeader;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text, or file: PATH or env: NAME")
            }
            fn visit_str<E>(self, text: &str) -> Result<RawHeader, E> {
                Ok(RawHeader::Text(text.to_owned()))
            }
            fn visit_bool<E>(self, flag: bool) -> Result<RawHeader, E> {
                Ok(RawHeader::Text(flag.to_string()))
            }
            fn visit_i64<E>(self, number: i64) -> Result<RawHeader, E> {
                Ok(RawHeader::Text(number.to_string()))
            }
            fn visit_u64<E>(self, number: u64) -> Result<RawHeader, E> {
                Ok(RawHeader::Text(number.to_string()))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawHeader, A::Error> {
                RawHeaderSource::deserialize(MapAccessDeserializer::new(map)).map(RawHeader::From)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// `message_decision` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "MessageDecision", description = "Expressions in CEL that decide whether an event is due.")]
pub struct RawDecision {
    /// Named expressions, evaluated in this order; each sees those before it.
    pub params: Option<Vec<RawParam>>,
    /// Whether an event is due: true or false. Required.
    pub result: Option<String>,
}

/// One named expression of `message_decision`.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Param")]
pub struct RawParam {
    /// Its name.
    pub name: Option<String>,
    /// The expression.
    pub expr: Option<String>,
}

/// `decision` as typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Decision", description = "How it is decided whether an event is due.")]
pub enum RawPolicy {
    /// Spec changes at once, then max age since the last report.
    GenerationAware,
    /// Max age since the last transition, and nothing else.
    TimeOnly,
    /// What the expressions of `message_decision` say.
    Expression,
}

impl RawPolicy {
    /// What decides where the file names nothing.
    pub(super) fn implied_by(expressions: Option<&RawDecision>) -> Self {
        if expressions.is_some() { Self::Expression } else { Self::GenerationAware }
    }
}

/// Whether our own events count when it is decided what is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(
    rename = "Republish",
    description = "Whether an event that was published counts when it is decided what is due."
)]
pub enum Republish {
    /// It counts like a report, so that a silent adapter costs one event per max age.
    #[default]
    InFlight,
    /// Only reports count, so that a silent adapter costs one event per poll.
    Always,
}

/// `resource_selector` as typed, in either form.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(
    rename = "ResourceSelector",
    description = "Which resources to watch: pairs of label and value, or the form of Kubernetes."
)]
pub enum RawSelector {
    /// Label/value pairs.
    Pairs(Vec<RawPair>),
    /// The Kubernetes form.
    Kubernetes(RawLabelSelector),
}

/// One pair of the list form.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "LabelPair", description = "A label that must have this value.")]
pub struct RawPair {
    /// Label key.
    pub label: Option<String>,
    /// Label value.
    pub value: Option<String>,
}

/// The Kubernetes form.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(rename = "LabelSelector", description = "A selector in the form of Kubernetes.")]
pub struct RawLabelSelector {
    /// Labels that must have these values.
    pub match_labels: BTreeMap<String, String>,
    /// Conditions that must all hold.
    pub match_expressions: Vec<RawExpression>,
}

/// One condition of the Kubernetes form.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "LabelExpression", description = "One condition of a selector in the form of Kubernetes.")]
pub struct RawExpression {
    /// Label key.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// For `In` and `NotIn`.
    pub values: Vec<String>,
}

impl<'de> Deserialize<'de> for RawSelector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = RawSelector;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of label/value pairs, or matchLabels and matchExpressions")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<RawSelector, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(RawSelector::Pairs)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawSelector, A::Error> {
                RawLabelSelector::deserialize(MapAccessDeserializer::new(map)).map(RawSelector::Kubernetes)
            }
            fn visit_unit<E: serde::de::Error>(self) -> Result<RawSelector, E> {
                Ok(RawSelector::Pairs(Vec::new()))
            }
        }
        deserializer.deserialize_any(Either)
    }
}
