//! The form of today's HyperFleet, as typed, and its way to the other one and back.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use watchfire_runtime::duration::GoDuration;

use super::raw::{RawApi, RawConfig, RawDecision, RawHeader, RawPolicy, RawSelector, Republish};
use super::setting::{RawLog, RawProcess, Whole};

/// The file as typed: the keys of today's HyperFleet, and after them our own, all of which can be left out.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(
    rename = "HyperFleetSentinel",
    title = "Configuration of a sentinel, in the form of today's HyperFleet",
    description = "The file of one sentinel, with the keys of today's HyperFleet and, after them, those that only Watchfire has."
)]
pub struct RawHyperFleet {
    /// This sentinel.
    pub sentinel: Option<RawSentinel>,
    /// Logs the configuration in effect at start, secrets redacted. Default `false`.
    pub debug_config: Option<bool>,
    /// `false` sends no traces, wherever `OTEL_EXPORTER_OTLP_ENDPOINT` points. Default `true`.
    pub tracing_enabled: Option<bool>,
    /// What is logged, and how.
    pub log: Option<RawLog>,
    /// Whom the sentinel talks to.
    pub clients: Option<RawClients>,
    /// The plural of the resources to watch, such as `clusters` or `nodepools`. Required.
    pub resource_type: Option<String>,
    /// Time from the beginning of one cycle to the beginning of the next. Default `5s`.
    pub poll_interval: Option<GoDuration>,
    /// Which resources to watch: `label`/`value` pairs that must all match. Default: all.
    pub resource_selector: Option<RawSelector>,
    /// The CEL expressions that decide. Default: those of today's HyperFleet.
    pub message_decision: Option<RawDecision>,
    /// The event's data: each field an expression such as `resource.id`, or a literal. Default: `id`, `kind`, `href`,
    /// `generation` and `owner_references`.
    #[serde(deserialize_with = "super::finite::read")]
    pub message_data: Option<Value>,
    /// Our own: `generation_aware` or `time_only` decide as in the other form, without expressions. Default
    /// `expression`.
    pub decision: Option<RawPolicy>,
    /// Our own, with `decision`: see the other form.
    pub max_age_not_ready: Option<GoDuration>,
    /// Our own, with `decision`: see the other form.
    pub max_age_ready: Option<GoDuration>,
    /// Our own, with `decision`: see the other form.
    pub refresh_spread: Option<String>,
    /// Our own, with `decision`: see the other form.
    pub no_progress_after: Option<GoDuration>,
    /// Our own, with `decision`: see the other form.
    pub max_age_no_progress: Option<GoDuration>,
    /// Our own: see the other form.
    pub max_events_per_second: Option<u32>,
    /// Our own: `in_flight` or `always`, see the other form. Default `always` with a `message_decision`, else
    /// `in_flight`.
    pub republish: Option<Republish>,
}

/// `sentinel` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Named", description = "This sentinel.")]
pub struct RawSentinel {
    /// Its name, in the log. Default `hyperfleet-sentinel`.
    pub name: Option<String>,
}

/// `clients` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Clients", description = "Whom the sentinel talks to.")]
pub struct RawClients {
    /// The HyperFleet API. Required.
    pub hyperfleet_api: Option<RawApiClient>,
    /// What of the broker does not stand in `broker.yaml`.
    pub broker: Option<RawBrokerClient>,
}

/// `clients.hyperfleet_api` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "ApiClient", description = "The HyperFleet API, and how to ask it.")]
pub struct RawApiClient {
    /// Base address, such as `http://hyperfleet-api:8000`. Required.
    pub base_url: Option<String>,
    /// Not used, as before: there is `v1` only.
    pub version: Option<String>,
    /// For one request, from connecting to the last byte. Default `10s`.
    pub timeout: Option<GoDuration>,
    /// Resources in one answer, 1 to 500; more than 100 are not asked for, since the API refuses them. Default 100.
    pub page_size: Option<u32>,
    /// Who we are.
    pub auth: Option<RawAuth>,
    /// Our own: see the other form.
    pub headers: Option<std::collections::BTreeMap<String, RawHeader>>,
    /// Our own: see the other form.
    pub ca_file: Option<PathBuf>,
}

/// `clients.hyperfleet_api.auth` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Auth", description = "Who the sentinel is to the API.")]
pub struct RawAuth {
    /// A file with the bearer token, read again when it changes; `HYPERFLEET_API_TOKEN` takes precedence.
    pub token_path: Option<PathBuf>,
    /// Accepted, and not needed: a changed file is noticed with the next request.
    pub token_cache_ttl: Option<GoDuration>,
}

/// `clients.broker` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "BrokerClient", description = "What of the broker does not stand in broker.yaml.")]
pub struct RawBrokerClient {
    /// The topic, or on RabbitMQ the exchange, unless `broker.yaml` names one.
    pub topic: Option<String>,
}

impl RawHyperFleet {
    /// The same settings by their keys in the other form.
    pub(super) fn lower(&self) -> Whole {
        let clients = self.clients.clone().unwrap_or_default();
        let given = clients.hyperfleet_api.is_some();
        let api = clients.hyperfleet_api.unwrap_or_default();
        let auth = api.auth.unwrap_or_default();
        Whole {
            config: RawConfig {
                resource_type: self.resource_type.clone(),
                poll_interval: self.poll_interval,
                max_age_not_ready: self.max_age_not_ready,
                max_age_ready: self.max_age_ready,
                refresh_spread: self.refresh_spread.clone(),
                no_progress_after: self.no_progress_after,
                max_age_no_progress: self.max_age_no_progress,
                max_events_per_second: self.max_events_per_second,
                resource_selector: self.resource_selector.clone(),
                hyperfleet_api: given.then_some(RawApi {
                    endpoint: api.base_url,
                    timeout: api.timeout,
                    token_file: auth.token_path,
                    page_size: api.page_size,
                    headers: api.headers,
                    ca_file: api.ca_file,
                }),
                message_data: self.message_data.clone(),
                decision: Some(self.decision.unwrap_or(RawPolicy::Expression)),
                message_decision: self.message_decision.clone(),
                republish: self.republish,
            },
            process: RawProcess {
                name: self.sentinel.clone().and_then(|sentinel| sentinel.name),
                debug_config: self.debug_config,
                tracing_enabled: self.tracing_enabled,
                log: self.log.clone().unwrap_or_default(),
                version: api.version,
                token_cache_ttl: auth.token_cache_ttl,
                topic: clients.broker.and_then(|broker| broker.topic),
            },
        }
    }

    /// The way back.
    pub fn raise(whole: &Whole) -> Self {
        let (config, process) = (whole.config.clone(), whole.process.clone());
        let api = config.hyperfleet_api.unwrap_or_default();
        let auth = RawAuth { token_path: api.token_file, token_cache_ttl: process.token_cache_ttl };
        let has_auth = auth.token_path.is_some() || auth.token_cache_ttl.is_some();
        let has_log = process.log.level.is_some() || process.log.format.is_some() || process.log.output.is_some();
        Self {
            sentinel: process.name.map(|name| RawSentinel { name: Some(name) }),
            debug_config: process.debug_config,
            tracing_enabled: process.tracing_enabled,
            log: has_log.then_some(process.log),
            clients: Some(RawClients {
                hyperfleet_api: Some(RawApiClient {
                    base_url: api.endpoint,
                    version: process.version,
                    timeout: api.timeout,
                    page_size: api.page_size,
                    auth: has_auth.then_some(auth),
                    headers: api.headers,
                    ca_file: api.ca_file,
                }),
                broker: process.topic.map(|topic| RawBrokerClient { topic: Some(topic) }),
            }),
            resource_type: config.resource_type,
            poll_interval: config.poll_interval,
            resource_selector: config.resource_selector,
            message_decision: config.message_decision,
            message_data: config.message_data,
            decision: config.decision.filter(|decision| *decision != RawPolicy::Expression),
            max_age_not_ready: config.max_age_not_ready,
            max_age_ready: config.max_age_ready,
            refresh_spread: config.refresh_spread,
            no_progress_after: config.no_progress_after,
            max_age_no_progress: config.max_age_no_progress,
            max_events_per_second: config.max_events_per_second,
            republish: config.republish,
        }
    }
}
