//! Tells what to do with a Kubernetes object, or a list of sentinels, where the sentinel's own file is expected.
//!
//! The operator's form of the sentinel keeps the same settings in a SentinelConfig, under other names and below `spec`.
//! "Unknown key" four times would be true and of no help.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use watchfire_runtime::config::{ConfigError, Text};

/// The keys below a SentinelConfig's `spec`, and what to write instead.
const SPEC: [(&str, &str); 7] = [
    ("resourceType", "write resource_type"),
    ("pollInterval", "write poll_interval"),
    ("backoffNotReady", "write max_age_not_ready"),
    ("backoffReady", "write max_age_ready"),
    ("shardSelector", "write resource_selector; matchLabels and matchExpressions stay as they are"),
    ("hyperfleetAPI", "write hyperfleet_api, and endpoint for its url"),
    (
        "broker",
        "set BROKER_TYPE, and BROKER_PROJECT_ID and BROKER_TOPIC or BROKER_URL and BROKER_EXCHANGE, in the environment",
    ),
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Object {
    api_version: String,
    kind: String,
    #[serde(default)]
    spec: BTreeMap<String, Value>,
    #[serde(flatten)]
    _rest: BTreeMap<String, Value>,
}

/// The file of `watchfire run`.
#[derive(Deserialize)]
struct List {
    #[serde(rename = "sentinels")]
    _sentinels: Value,
    #[serde(flatten)]
    _rest: BTreeMap<String, Value>,
}

/// Whether the text is a list for `watchfire run`.
pub(super) fn is_list(text: &Text) -> bool {
    text.parse::<List>().is_ok()
}

/// Fails if the text is a Kubernetes object or a list of sentinels. What cannot be read as one is left to whoever reads
/// it next.
pub(super) fn refuse(text: &Text) -> Result<(), ConfigError> {
    if let Ok(document) = text.parse::<List>() {
        let mut problems = document.problems();
        problems.push(
            "sentinels",
            "this is a list for `watchfire run`, not a sentinel's file; check each file that it names, with \
             `watchfire config check --config FILE`",
        );
        return problems.finish().map(drop);
    }
    let Ok(document) = text.parse::<Object>() else { return Ok(()) };
    let Object { api_version, kind, spec, .. } = &document.value;
    let mut problems = document.problems();
    if kind == "SentinelConfig" {
        problems.push(
            "kind",
            "this is a SentinelConfig object; write the keys of its spec at the top level of a file, under these names, \
             and add decision: time_only to decide as the operator does",
        );
        for (key, instead) in SPEC.iter().filter(|(key, _)| spec.contains_key(*key)) {
            problems.push(format!("spec.{key}"), *instead);
        }
    } else {
        problems.push(
            "kind",
            format!(
                "this is a Kubernetes object ({api_version} {kind}), not a sentinel's file; begin with resource_type \
                 and hyperfleet_api, and keep a file that stands in a ConfigMap as a file of its own"
            ),
        );
    }
    problems.finish().map(drop)
}
