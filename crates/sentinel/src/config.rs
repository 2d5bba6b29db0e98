//! What the YAML file of a sentinel says, and what it means.
//!
//! `raw` mirrors the file; [`SentinelConfig`] holds what has been checked. The broker has its own settings, shared
//! with the adapters: see [`broker`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;
use watchfire_runtime::config::{Document, Env, Problems};
use watchfire_runtime::duration::GoDuration;
use watchfire_runtime::secret::SecretSource;

use crate::api::ApiConfig;
use crate::decision::{MaxAge, Policy};
use crate::expression::Expression;
use crate::payload::{Leaves, Payload};
use crate::selector::{Operator, Requirement, Selector};

pub mod broker;
mod decision;
mod show;

pub use show::Shown;

/// The file as typed. Every key is optional here; what is required is checked afterwards, so that all is told at once.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct RawConfig {
    /// The plural of the resources to watch, such as `clusters` or `nodepools`. Required.
    pub resource_type: Option<String>,
    /// Time from the beginning of one cycle to the beginning of the next. Default `5s`.
    pub poll_interval: Option<GoDuration>,
    /// An event is due this long after the last report of a resource that is not ready. Default `10s`.
    pub max_age_not_ready: Option<GoDuration>,
    /// An event is due this long after the last report of a ready resource. Default `30m`.
    pub max_age_ready: Option<GoDuration>,
    /// Which resources to watch: a list of `label`/`value` pairs that must all match, or `matchLabels` and
    /// `matchExpressions` as in Kubernetes. Default: all.
    pub resource_selector: Option<RawSelector>,
    /// The HyperFleet API. Required.
    pub hyperfleet_api: Option<RawApi>,
    /// The event's data: each field a path such as `.id`, a Go template, or a literal. Default: `id`, `kind`, `href`,
    /// `generation` and `owner_references`.
    pub message_data: Option<Value>,
    /// `generation_aware` (default): spec changes at once, then max age since the last report. `time_only`: max age
    /// since the last transition, and nothing else. `expression`: what `message_decision` says.
    pub decision: Option<RawPolicy>,
    /// The CEL expressions that decide; implies `decision: expression`. Default of that: those of today's HyperFleet, with
    /// the max ages of this file.
    pub message_decision: Option<RawDecision>,
    /// `in_flight` (default): an event of our own counts like a report, so that a silent adapter costs one event per
    /// max age. `always`: only reports count, so that it costs one event per poll; the default with a
    /// `message_decision`.
    pub republish: Option<Republish>,
}

/// `hyperfleet_api` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct RawApi {
    /// Base address, such as `http://hyperfleet-api:8000`. Required.
    pub endpoint: Option<String>,
    /// For one request, from connecting to the last byte. Default `10s`.
    pub timeout: Option<GoDuration>,
    /// A file with the bearer token, read again when it changes; `HYPERFLEET_API_TOKEN` takes precedence.
    pub token_file: Option<PathBuf>,
}

/// `message_decision` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct RawDecision {
    /// Named expressions, evaluated in this order; each sees those before it.
    pub params: Option<Vec<RawParam>>,
    /// Whether an event is due: true or false. Required.
    pub result: Option<String>,
}

/// One named expression of `message_decision`.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct RawParam {
    /// Its name.
    pub name: Option<String>,
    /// The expression.
    pub expr: Option<String>,
}

/// `decision` as typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RawPolicy {
    /// See [`Policy::GenerationAware`].
    GenerationAware,
    /// See [`Policy::TimeOnly`].
    TimeOnly,
    /// Expressions in CEL.
    Expression,
}

/// Whether our own events count when it is decided what is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Republish {
    /// They do.
    #[default]
    InFlight,
    /// Only reports count.
    Always,
}

/// `resource_selector` as typed, in either form.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum RawSelector {
    /// Label/value pairs.
    Pairs(Vec<RawPair>),
    /// The Kubernetes form.
    Kubernetes(RawLabelSelector),
}

/// One pair of the list form.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct RawPair {
    /// Label key.
    pub label: Option<String>,
    /// Label value.
    pub value: Option<String>,
}

/// The Kubernetes form.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct RawLabelSelector {
    /// Labels that must have these values.
    pub match_labels: BTreeMap<String, String>,
    /// Conditions that must all hold.
    pub match_expressions: Vec<RawExpression>,
}

/// One condition of the Kubernetes form.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
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

/// A checked configuration.
#[derive(Debug, Clone)]
pub struct SentinelConfig {
    /// Where and what to list.
    pub api: ApiConfig,
    /// From the beginning of one cycle to the beginning of the next.
    pub poll_interval: Duration,
    /// When a resource is due.
    pub max_age: MaxAge,
    /// How that is decided.
    pub policy: Policy,
    /// What decides in place of `policy`, where an expression does.
    pub expression: Option<Arc<Expression>>,
    /// Whether our own events count.
    pub republish: Republish,
    /// Which resources are watched.
    pub selector: Selector,
    /// What is sent.
    pub payload: Arc<Payload>,
    /// The file with every default filled in, for whoever asks what is in effect.
    pub effective: RawConfig,
}

/// Keys of other forms of this configuration, and what they are called here.
const RENAMED: [(&str, &str); 14] = [
    ("resourceType", "resource_type"),
    ("pollInterval", "poll_interval"),
    ("backoffNotReady", "max_age_not_ready"),
    ("backoffReady", "max_age_ready"),
    ("backoff_not_ready", "max_age_not_ready"),
    ("backoff_ready", "max_age_ready"),
    ("shardSelector", "resource_selector"),
    ("shard_selector", "resource_selector"),
    ("hyperfleetAPI", "hyperfleet_api"),
    ("messageData", "message_data"),
    ("hyperfleet_api.url", "hyperfleet_api.endpoint"),
    ("hyperfleet_api.base_url", "hyperfleet_api.endpoint"),
    ("hyperfleet_api.token_path", "hyperfleet_api.token_file"),
    ("clients", "hyperfleet_api (endpoint, timeout) and the BROKER_* variables"),
];

/// Keys that are refused for a reason of their own.
const REFUSED: [(&str, &str); 2] = [
    (
        "hyperfleet_api.token",
        "a token is never read from a file that is kept in the open; set HYPERFLEET_API_TOKEN or token_file",
    ),
    ("broker", "the broker has its own settings; set BROKER_TYPE and the other BROKER_* variables"),
];

/// Reads the file's meaning. Environment beats file; every problem ends up in the returned list.
pub fn check(document: Document<RawConfig>, env: &Env) -> (Option<SentinelConfig>, Problems) {
    let document = document.renamed(&RENAMED).refused(&REFUSED);
    let mut problems = document.problems();
    let config = check_into(&document.value, env, &mut problems);
    (config, problems)
}

fn check_into(raw: &RawConfig, env: &Env, problems: &mut Problems) -> Option<SentinelConfig> {
    let resource_type = check_resource_type(raw.resource_type.as_deref(), problems);
    let mut positive = |key: &str, value: Option<GoDuration>, default: u64| match value {
        Some(value) if value.is_zero() => {
            problems.push(key, format!("must be longer than 0, for example {}", GoDuration::from_secs(default)));
            None
        }
        value => Some(value.map_or_else(|| Duration::from_secs(default), GoDuration::get)),
    };
    let poll_interval = positive("poll_interval", raw.poll_interval, 5);
    let not_ready = positive("max_age_not_ready", raw.max_age_not_ready, 10);
    let ready = positive("max_age_ready", raw.max_age_ready, 30 * 60);
    let api = raw.hyperfleet_api.clone().unwrap_or_default();
    let timeout = positive("hyperfleet_api.timeout", api.timeout, 10);
    if let (Some(not_ready), Some(ready)) = (not_ready, ready)
        && not_ready > ready
    {
        let message =
            "longer than max_age_ready: resources that are not ready are looked at less often than those that are";
        problems.warn("max_age_not_ready", message);
    }
    let endpoint = check_endpoint(api.endpoint.as_deref(), raw.hyperfleet_api.is_some(), problems);
    let token = check_token(&api, env, problems);
    let selector = check_selector(raw.resource_selector.as_ref(), problems);
    let decision = raw.decision.unwrap_or(match raw.message_decision {
        Some(_) => RawPolicy::Expression,
        None => RawPolicy::GenerationAware,
    });
    let leaves = if decision == RawPolicy::Expression { Leaves::Mixed } else { Leaves::Paths };
    let payload = check_payload(raw.message_data.as_ref(), leaves, problems);
    let max_age = ready.zip(not_ready).map(|(ready, not_ready)| MaxAge { ready, not_ready });
    let expression = check_expression(decision, raw.message_decision.as_ref(), max_age.as_ref(), problems);
    let policy = match decision {
        // Where an expression decides, it does so in place of these.
        RawPolicy::GenerationAware | RawPolicy::Expression => Policy::GenerationAware,
        RawPolicy::TimeOnly => Policy::TimeOnly,
    };
    let republish = raw.republish.unwrap_or(match raw.message_decision {
        Some(_) => Republish::Always,
        None => Republish::InFlight,
    });
    let effective = RawConfig {
        resource_type: resource_type.clone(),
        poll_interval: poll_interval.map(GoDuration::new),
        max_age_not_ready: not_ready.map(GoDuration::new),
        max_age_ready: ready.map(GoDuration::new),
        resource_selector: Some(raw.resource_selector.clone().unwrap_or(RawSelector::Pairs(Vec::new()))),
        hyperfleet_api: Some(RawApi { timeout: timeout.map(GoDuration::new), ..api }),
        message_data: Some(raw.message_data.clone().unwrap_or_else(default_message_data)),
        decision: Some(decision),
        message_decision: raw.message_decision.clone(),
        republish: Some(republish),
    };
    Some(SentinelConfig {
        api: ApiConfig { endpoint: endpoint?, timeout: timeout?, token, resource_type: resource_type? },
        poll_interval: poll_interval?,
        max_age: max_age?,
        policy,
        expression,
        republish,
        selector: selector?,
        payload: Arc::new(payload?),
        effective,
    })
}

/// What is sent where nothing is said, as one would write it.
fn default_message_data() -> Value {
    let fields = ["id", "kind", "href", "generation", "owner_references"];
    fields.into_iter().map(|field| (field.to_owned(), Value::String(format!(".{field}")))).collect()
}

fn check_resource_type(raw: Option<&str>, problems: &mut Problems) -> Option<String> {
    let Some(plural) = raw.filter(|plural| !plural.is_empty()) else {
        problems.push("resource_type", "missing; write the plural that the API serves, for example clusters");
        return None;
    };
    // One path segment: anything else would ask for another endpoint.
    if !plural.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')) {
        problems.push(
            "resource_type",
            format!("{plural:?} is not a plural: only letters, digits, '-' and '_', for example clusters"),
        );
        return None;
    }
    Some(plural.to_owned())
}

fn check_endpoint(raw: Option<&str>, section: bool, problems: &mut Problems) -> Option<Url> {
    let key = if section { "hyperfleet_api.endpoint" } else { "hyperfleet_api" };
    let Some(text) = raw.filter(|text| !text.is_empty()) else {
        problems.push(key, "missing; write the API's address, for example endpoint: http://hyperfleet-api:8000");
        return None;
    };
    let example = "write it like http://hyperfleet-api:8000";
    let url = match text.parse::<Url>() {
        Ok(url) => url,
        Err(error) => {
            problems.push(key, format!("not an address: {error}; {example}"));
            return None;
        }
    };
    if !matches!(url.scheme(), "http" | "https") {
        problems.push(key, format!("the scheme must be http or https; {example}"));
    } else if !url.username().is_empty() || url.password().is_some() {
        problems.push(key, "credentials in the address are not used; set HYPERFLEET_API_TOKEN or token_file");
    } else if url.query().is_some() || url.fragment().is_some() {
        problems.push(key, format!("must not have a query or a fragment; {example}"));
    } else {
        return Some(url);
    }
    None
}

fn check_token(api: &RawApi, env: &Env, problems: &mut Problems) -> Option<SecretSource> {
    let token = env.get("HYPERFLEET_API_TOKEN").map(str::trim).filter(|token| !token.is_empty());
    let file = env.get("HYPERFLEET_API_TOKEN_FILE").map(PathBuf::from).or_else(|| api.token_file.clone());
    if token.is_some() && file.is_some() {
        problems.warn("hyperfleet_api.token_file", "not used: HYPERFLEET_API_TOKEN is set and takes precedence");
    }
    token.map(SecretSource::literal).or_else(|| file.map(SecretSource::file))
}

fn check_selector(raw: Option<&RawSelector>, problems: &mut Problems) -> Option<Selector> {
    let built = match raw {
        None => Ok(Selector::default()),
        Some(RawSelector::Pairs(pairs)) => {
            let mut whole = true;
            for (index, pair) in pairs.iter().enumerate() {
                for (name, given) in [("label", pair.label.is_some()), ("value", pair.value.is_some())] {
                    if !given {
                        let example = "an entry is a pair, for example label: region and value: us-east";
                        problems.push(format!("resource_selector.{index}"), format!("{name} is missing; {example}"));
                        whole = false;
                    }
                }
            }
            if !whole {
                return None;
            }
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let pairs: Vec<_> = pairs.iter().map(|pair| (text(&pair.label), text(&pair.value))).collect();
            Selector::from_pairs(pairs.iter().map(|(label, value)| (label.as_str(), value.as_str())))
        }
        Some(RawSelector::Kubernetes(raw)) => {
            let labels = raw
                .match_labels
                .iter()
                .map(|(key, value)| Requirement { key: key.clone(), operator: Operator::In(vec![value.clone()]) });
            let mut requirements: Vec<_> = labels.collect();
            for (index, expression) in raw.match_expressions.iter().enumerate() {
                let values = expression.values.clone();
                let operator = match expression.operator.as_str() {
                    "In" => Operator::In(values),
                    "NotIn" => Operator::NotIn(values),
                    "Exists" | "DoesNotExist" if !values.is_empty() => {
                        let key = format!("resource_selector.matchExpressions.{index}.values");
                        problems.push(key, format!("{} takes no values", expression.operator));
                        return None;
                    }
                    "Exists" => Operator::Exists,
                    "DoesNotExist" => Operator::DoesNotExist,
                    other => {
                        let key = format!("resource_selector.matchExpressions.{index}.operator");
                        problems.push(key, format!("{other:?} is not In, NotIn, Exists or DoesNotExist"));
                        return None;
                    }
                };
                requirements.push(Requirement { key: expression.key.clone(), operator });
            }
            Selector::new(requirements)
        }
    };
    problems.take("resource_selector", built)
}

fn check_expression(
    decision: RawPolicy,
    raw: Option<&RawDecision>,
    max_age: Option<&MaxAge>,
    problems: &mut Problems,
) -> Option<Arc<Expression>> {
    if decision != RawPolicy::Expression {
        if raw.is_some() {
            problems.push("message_decision", "not used by this decision; leave one of the two out");
        }
        return None;
    }
    match decision::compile(raw, max_age?) {
        Ok(expression) => Some(Arc::new(expression)),
        Err(found) => {
            for (key, message) in found {
                problems.push(format!("message_decision.{key}"), message);
            }
            None
        }
    }
}

fn check_payload(raw: Option<&Value>, leaves: Leaves, problems: &mut Problems) -> Option<Payload> {
    let Some(raw) = raw.filter(|raw| !raw.is_null()) else { return Some(Payload::default_payload()) };
    match Payload::compile(raw, leaves) {
        Ok(payload) => Some(payload),
        Err(errors) => {
            for error in errors {
                problems.push(error.field, error.problem.to_string());
            }
            None
        }
    }
}

#[cfg(test)]
mod tests;
