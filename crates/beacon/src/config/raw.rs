//! The file as typed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use watchfire_runtime::duration::GoDuration;

/// The file as typed. Every key is optional here; what is required is checked afterwards, so that all is told at once.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(
    rename = "Beacon",
    title = "Configuration of a Watchfire beacon",
    description = "Which annotated objects to watch, and where to announce that they appeared and disappeared."
)]
pub struct RawConfig {
    /// The process.
    pub app: RawApp,
    /// What to watch. Required.
    pub resources: Vec<RawResource>,
    /// Which of the objects.
    pub annotation: RawAnnotation,
    /// What of an object is sent.
    pub payload: RawPayload,
    /// The envelope of each event.
    pub cloud_events: RawCloudEvents,
    /// Where events are sent. Required.
    pub endpoint: RawEndpoint,
    /// How events are sent.
    pub worker: RawWorker,
    /// The comparison of cluster and ledger.
    pub reconciliation: RawReconciliation,
    /// How long what is over is kept.
    pub retention: RawRetention,
    /// The ledger, and the volume that it is on.
    pub storage: RawStorage,
    /// Where metrics are served.
    pub metrics: RawMetrics,
    /// Where probes are answered.
    pub health: RawHealth,
}

/// `app` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(rename = "App")]
pub struct RawApp {
    /// The name in logs. Default `beacon`.
    pub name: Option<String>,
    /// The version in `User-Agent`. Default: the program's.
    pub version: Option<String>,
    /// `debug`, `info` (default), `warn` or `error`.
    pub log_level: Option<String>,
    /// `json` (default) or `text`.
    pub log_format: Option<String>,
}

/// An entry of `resources` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(rename = "Resource")]
pub struct RawResource {
    /// `v1`, or group and version as in `apps/v1`. Required.
    pub api_version: Option<String>,
    /// The kind, such as `Pod`. Required.
    pub kind: Option<String>,
    /// The plural. Default: what the API server says.
    pub resource: Option<String>,
    /// The namespaces to watch. Default: all.
    pub namespaces: Option<Vec<String>>,
}

/// `annotation` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(rename = "Annotation")]
pub struct RawAnnotation {
    /// The annotation that an object has to have. Default `bakerapps.net.maas`.
    pub key: Option<String>,
    /// The values that count. Default: any.
    pub values: Option<Vec<String>>,
}

/// `payload` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(rename = "Payload")]
pub struct RawPayload {
    /// The annotations that are sent. Default: none.
    pub annotations: Option<Vec<String>>,
    /// The labels that are sent. Default: all.
    pub labels: Option<Vec<String>>,
}

/// `cloudEvents` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(rename = "CloudEvents")]
pub struct RawCloudEvents {
    /// The events' source, before namespace and kind. Default `/beacon`.
    pub source: Option<String>,
    /// The events' type, before `.created` and `.deleted`. Default `net.bakerapps.beacon.resource`.
    pub type_prefix: Option<String>,
}

/// `endpoint` as typed.
#[derive(Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(rename = "Endpoint")]
pub struct RawEndpoint {
    /// The address. Required; `ENDPOINT_URL` takes precedence.
    pub url: Option<String>,
    /// `POST` (default), `PUT` or `PATCH`.
    pub method: Option<String>,
    /// For one request, from connecting to the end of its answer. Default `30s`.
    pub timeout: Option<GoDuration>,
    /// Headers of every request.
    pub headers: BTreeMap<String, String>,
    /// A file with the bearer token, read again when it changes; `ENDPOINT_AUTH_TOKEN` takes precedence.
    pub token_file: Option<PathBuf>,
    /// A file with one or more signing secrets of Standard Webhooks (`whsec_...`), read again when it changes;
    /// `ENDPOINT_SIGNING_SECRET` takes precedence. Default: requests are not signed.
    pub signing_secret_file: Option<PathBuf>,
    /// Whether the endpoint is asked first. Default: it is not.
    pub handshake: RawHandshake,
    /// When to try again.
    pub retry: RawRetry,
    /// How the endpoint's certificate is checked.
    pub tls: RawTls,
}

impl std::fmt::Debug for RawEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // An address and headers may hold credentials.
        f.debug_struct("RawEndpoint")
            .field("method", &self.method)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// `endpoint.handshake` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(rename = "Handshake")]
pub struct RawHandshake {
    /// The DNS name that stands for what sends. Where it is set, the endpoint is asked by `OPTIONS` before the first
    /// event, as the CloudEvents webhook specification has it, and sent nothing until it allows this origin; `*` allows
    /// any.
    pub origin: Option<String>,
    /// Requests per minute to ask for; what the endpoint allows is kept to in any case. Default: no number.
    pub rate: Option<u32>,
}

/// `endpoint.retry` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(rename = "Retry")]
pub struct RawRetry {
    /// Attempts after which an event is a dead letter. Default: none, it is tried until it is taken.
    pub max_attempts: Option<u32>,
    /// Before the second attempt. Default `1s`.
    pub initial_backoff: Option<GoDuration>,
    /// Between two attempts at most. Default `5m`.
    pub max_backoff: Option<GoDuration>,
    /// How much longer each wait is than the one before. Default `2.0`.
    pub backoff_multiplier: Option<f64>,
    /// The share of a wait by which chance makes it longer or shorter, from `0` to `1`. Default `0.1`.
    pub jitter: Option<f64>,
}

/// `endpoint.tls` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(rename = "Tls")]
pub struct RawTls {
    /// Takes any certificate, and so whoever answers. Default `false`.
    pub insecure_skip_verify: Option<bool>,
    /// Certificates in PEM form of the authorities that signed the endpoint's, in addition to those of the system.
    /// Read at the start, like those below.
    pub ca_file: Option<PathBuf>,
    /// This side's certificate in PEM form, for an endpoint that asks for one; with `keyFile`.
    pub cert_file: Option<PathBuf>,
    /// The key of `certFile` in PEM form.
    pub key_file: Option<PathBuf>,
}

/// `worker` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(rename = "Worker")]
pub struct RawWorker {
    /// How often the ledger is looked at without being woken by what is written to it. Default `5s`.
    pub poll_interval: Option<GoDuration>,
    /// Events that are read from the ledger at a time, which limits no rate. Default: four times `concurrency`.
    pub batch_size: Option<u32>,
    /// Requests at a time. Events of one object keep their order; with `1` all do. Default `5`.
    pub concurrency: Option<u32>,
}

/// `reconciliation` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(rename = "Reconciliation")]
pub struct RawReconciliation {
    /// Whether they are compared from time to time; at the start, and after a watch broke, they are in any case.
    /// Default `true`.
    pub enabled: Option<bool>,
    /// Whether the process is ready only once cluster and ledger were compared. Default `true`.
    pub on_startup: Option<bool>,
    /// Default `15m`.
    pub interval: Option<GoDuration>,
    /// For one comparison. Default `10m`.
    pub timeout: Option<GoDuration>,
}

/// `retention` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(rename = "Retention")]
pub struct RawRetention {
    /// Default `true`.
    pub enabled: Option<bool>,
    /// Default `1h`.
    pub cleanup_interval: Option<GoDuration>,
    /// Since an object was deleted. Default `48h`.
    pub retention_period: Option<GoDuration>,
}

/// `storage` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(rename = "Storage")]
pub struct RawStorage {
    /// The ledger's file; `DB_PATH` takes precedence. Default `/data/events.db`.
    pub db_path: Option<PathBuf>,
    /// A folder on the volume that is watched. Default: that of the ledger.
    pub volume_path: Option<PathBuf>,
    /// Default `1m`.
    pub monitor_interval: Option<GoDuration>,
    /// Percent of the volume's bytes, or inodes, from which on is warned. Default `80`.
    pub warning_threshold: Option<u32>,
    /// Percent from which on nothing more is taken in. Default `90`.
    pub critical_threshold: Option<u32>,
}

/// `metrics` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(rename = "Metrics")]
pub struct RawMetrics {
    /// Default `true`.
    pub enabled: Option<bool>,
    /// Default `8080`.
    pub port: Option<u16>,
    /// Default `/metrics`.
    pub path: Option<String>,
}

/// `health` as typed.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(rename = "Health")]
pub struct RawHealth {
    /// Default `/healthz`.
    pub liveness_path: Option<String>,
    /// Default `/ready`.
    pub readiness_path: Option<String>,
    /// Default `8080`.
    pub port: Option<u16>,
}
