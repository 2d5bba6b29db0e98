//! The `SentinelConfig` object: a sentinel's configuration as it is kept in Kubernetes.
//!
//! What stands here is the schema that `watchfire crds` writes. What cannot hold is refused by the API server where its
//! rules can say so, and by [`read_object`](crate::config::read_object) in any case: an older schema lets more in.

#![expect(unreachable_pub, reason = "of the copies that the derive of the schema makes inside of functions")]
#![expect(clippy::duplicated_attributes, reason = "of several columns, which have types and paths each")]

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use watchfire_runtime::redact::REDACTED;

/// What a sentinel watches, when it publishes, and where.
#[derive(CustomResource, KubeSchema, Debug, Clone, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "hyperfleet.redhat.com",
    version = "v1alpha1",
    kind = "SentinelConfig",
    plural = "sentinelconfigs",
    shortname = "sc",
    namespaced,
    status = "SentinelConfigStatus",
    derive = "PartialEq",
    doc = "The configuration of a sentinel, which publishes an event for each HyperFleet resource that is due.",
    printcolumn(name = "Resources", type_ = "string", json_path = ".spec.resourceType"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "In Shard", type_ = "integer", json_path = ".status.resources"),
    printcolumn(name = "Last Poll", type_ = "date", json_path = ".status.lastPollTime"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct SentinelConfigSpec {
    /// HyperFleet resource type to watch.
    pub resource_type: ResourceType,
    /// Backoff interval for resources NOT in Ready state.
    #[serde(default = "ten_seconds")]
    #[x_kube(validation = Rule::new("duration(self) > duration('0s')").message("must be a duration longer than 0, for example 10s"))]
    pub backoff_not_ready: String,
    /// Backoff interval for resources in Ready state.
    #[serde(default = "thirty_minutes")]
    #[x_kube(validation = Rule::new("duration(self) > duration('0s')").message("must be a duration longer than 0, for example 30m"))]
    pub backoff_ready: String,
    /// Label selector for resource sharding; all resources without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard_selector: Option<ShardSelector>,
    /// The HyperFleet API.
    #[serde(rename = "hyperfleetAPI")]
    pub hyperfleet_api: HyperFleetApi,
    /// Where events go.
    pub broker: Broker,
    /// How often to poll the HyperFleet API.
    #[serde(default = "five_seconds")]
    #[x_kube(validation = Rule::new("duration(self) > duration('0s')").message("must be a duration longer than 0, for example 5s"))]
    pub poll_interval: String,
}

/// The plural of the resources to watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ResourceType {
    /// Clusters.
    Clusters,
    /// Node pools.
    Nodepools,
}

impl ResourceType {
    /// As the API's path has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Clusters => "clusters",
            Self::Nodepools => "nodepools",
        }
    }
}

/// A label selector, as everywhere in Kubernetes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShardSelector {
    /// Labels that must have these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Conditions that must all hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<ShardExpression>,
}

/// One condition of a selector.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct ShardExpression {
    /// The label.
    #[serde(default)]
    pub key: String,
    /// In, NotIn, Exists or DoesNotExist.
    #[serde(default)]
    pub operator: String,
    /// For In and NotIn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// The HyperFleet API, and how to ask it.
#[derive(KubeSchema, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HyperFleetApi {
    /// HyperFleet API base URL.
    pub url: String,
    /// For one request, from connecting to the last byte.
    #[serde(default = "ten_seconds")]
    #[x_kube(validation = Rule::new("duration(self) > duration('0s')").message("must be a duration longer than 0, for example 10s"))]
    pub timeout: String,
    /// The bearer token: a key of a Secret in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKey>,
}

/// Where events go. `Debug` shows no URL, which may hold a password.
#[derive(KubeSchema, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.type != 'gcp-pubsub' || has(self.projectID)").message("projectID is required for gcp-pubsub"),
    validation = Rule::new("self.type != 'rabbitmq' || has(self.url) || has(self.urlSecretRef)").message("url or urlSecretRef is required for rabbitmq"),
    validation = Rule::new("!(has(self.url) && has(self.urlSecretRef))").message("url and urlSecretRef exclude each other")
)]
pub struct Broker {
    /// Message broker type.
    #[serde(rename = "type")]
    pub kind: BrokerType,
    /// Topic/Exchange name for publishing events.
    #[schemars(length(min = 1))]
    pub topic: String,
    /// GCP Project ID (required for gcp-pubsub).
    #[serde(rename = "projectID", default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Broker URL (required for rabbitmq, here or in a Secret).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Broker URL: a key of a Secret in this namespace, for one with a password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url_secret_ref: Option<SecretKey>,
    /// Exchange name (optional for rabbitmq, defaults to topic).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<String>,
}

/// Without the URL: one with a password in it is refused only when it is read.
impl fmt::Debug for HyperFleetApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url: _, timeout, token_secret_ref } = self;
        f.debug_struct("HyperFleetApi").field("timeout", timeout).field("token_secret_ref", token_secret_ref).finish()
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, topic, project_id, url, url_secret_ref, exchange } = self;
        f.debug_struct("Broker")
            .field("kind", kind)
            .field("topic", topic)
            .field("project_id", project_id)
            .field("url", &url.as_ref().map(|_| REDACTED))
            .field("url_secret_ref", url_secret_ref)
            .field("exchange", exchange)
            .finish()
    }
}

/// Message broker type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BrokerType {
    /// Google Cloud Pub/Sub.
    GcpPubsub,
    /// RabbitMQ.
    Rabbitmq,
}

impl BrokerType {
    /// As the schema has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::GcpPubsub => "gcp-pubsub",
            Self::Rabbitmq => "rabbitmq",
        }
    }
}

/// A key of a Secret in the object's namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
pub struct SecretKey {
    /// The Secret.
    pub name: String,
    /// The key in it.
    pub key: String,
}

/// Whether an object of Kubernetes can be called so: RFC 1123.
pub fn is_object_name(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_label)
}

/// Whether a namespace can be called so.
pub fn is_namespace(name: &str) -> bool {
    name.len() <= 63 && is_label(name)
}

fn is_label(label: &str) -> bool {
    let is_end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    label.chars().all(|c| is_end(c) || c == '-') && label.starts_with(is_end) && label.ends_with(is_end)
}

/// What became of a configuration.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SentinelConfigStatus {
    /// Ready, and Degraded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that these conditions are about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When the list was last read to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_poll_time: Option<Time>,
    /// Resources in the shard, in the last poll.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<i64>,
    /// Events that the broker confirmed since this replica first saw the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<i64>,
    /// Polls that failed, and events that were not taken in their poll, since this replica first saw the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors: Option<i64>,
}

fn five_seconds() -> String {
    "5s".to_owned()
}

fn ten_seconds() -> String {
    "10s".to_owned()
}

fn thirty_minutes() -> String {
    "30m".to_owned()
}
