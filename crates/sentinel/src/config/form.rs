//! Which form a file has, and what its keys are called there.
//!
//! There are two: the sentinel's own, and that of today's HyperFleet (`clients.hyperfleet_api`, `message_decision`,
//! ..). Both hold the same settings; everything behind this module knows a setting by its key in the first. A
//! SentinelConfig object holds some of them, under names of its own.

use std::collections::BTreeMap;

use serde_json::Value;
use watchfire_runtime::config::{ConfigError, Text};

/// A form of the sentinel's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `hyperfleet_api`, `max_age_ready`, ..
    Flat,
    /// `clients.hyperfleet_api`, `message_decision`, ..
    HyperFleet,
    /// No file: a SentinelConfig object, `spec.hyperfleetAPI`, `spec.backoffReady`, ..
    Object,
}

/// Keys of which one is enough to know today's HyperFleet.
const HYPERFLEET: [&str; 6] = ["clients", "sentinel", "log", "debug_config", "tracing_enabled", "messaging_system"];
/// Keys that only the other form has.
const FLAT: [&str; 1] = ["hyperfleet_api"];

/// Keys that are not called the same in both forms; those below them follow, the longest match counts.
const KEYS: [(&str, &str); 3] = [
    ("hyperfleet_api.endpoint", "clients.hyperfleet_api.base_url"),
    ("hyperfleet_api.token_file", "clients.hyperfleet_api.auth.token_path"),
    ("hyperfleet_api", "clients.hyperfleet_api"),
];

/// The same for an object.
const OBJECT_KEYS: [(&str, &str); 8] = [
    ("resource_type", "spec.resourceType"),
    ("poll_interval", "spec.pollInterval"),
    ("max_age_not_ready", "spec.backoffNotReady"),
    ("max_age_ready", "spec.backoffReady"),
    ("resource_selector", "spec.shardSelector"),
    ("hyperfleet_api.endpoint", "spec.hyperfleetAPI.url"),
    ("hyperfleet_api.token_file", "spec.hyperfleetAPI.tokenSecretRef"),
    ("hyperfleet_api", "spec.hyperfleetAPI"),
];

impl Form {
    /// Tells the form of a file by its keys. `by_address`: its API's address is given outside of it, by a name of
    /// today's HyperFleet, which decides where the keys do not.
    pub fn of(text: &Text, by_address: bool) -> Result<Self, ConfigError> {
        let keys = text.parse::<BTreeMap<String, Value>>()?.value;
        let has = |names: &[&str]| names.iter().any(|name| keys.contains_key(*name));
        // Releases before today's kept `clients.hyperfleet_api` at the top: what stands in it tells them apart.
        let older = keys.get("hyperfleet_api").is_some_and(|api| api.get("base_url").is_some());
        Ok(if has(&HYPERFLEET) || older {
            Self::HyperFleet
        } else if has(&FLAT) {
            Self::Flat
        } else if has(&["message_decision"]) || by_address {
            Self::HyperFleet
        } else {
            Self::Flat
        })
    }

    /// What a key of the first form is called in this one.
    pub fn key(self, key: &str) -> String {
        let renamed = self.keys().iter().find_map(|(flat, theirs)| Some((key.strip_prefix(flat)?, theirs)));
        renamed.map_or_else(|| key.to_owned(), |(rest, theirs)| format!("{theirs}{rest}"))
    }

    fn keys(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Flat => &[],
            Self::HyperFleet => &KEYS,
            Self::Object => &OBJECT_KEYS,
        }
    }

    /// What a key of this form is called in the first.
    pub(super) fn flat_key(self, key: &str) -> String {
        let renamed = self.keys().iter().find_map(|(flat, theirs)| Some((key.strip_prefix(theirs)?, flat)));
        renamed.map_or_else(|| key.to_owned(), |(rest, flat)| format!("{flat}{rest}"))
    }

    /// The name of the form in `config migrate`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::HyperFleet => "hyperfleet",
            Self::Object => "object",
        }
    }
}

/// Keys of other forms of this configuration, and what they are called in the first.
pub(super) const RENAMED_FLAT: [(&str, &str); 17] = [
    ("resourceType", "resource_type"),
    ("pollInterval", "poll_interval"),
    ("backoffNotReady", "max_age_not_ready"),
    ("backoffReady", "max_age_ready"),
    ("backoff_not_ready", "max_age_not_ready"),
    ("backoff_ready", "max_age_ready"),
    ("shardSelector", "resource_selector"),
    ("shard_selector", "resource_selector"),
    ("resourceSelector", "resource_selector"),
    ("hyperfleetAPI", "hyperfleet_api"),
    ("messageData", "message_data"),
    ("messageDecision", "message_decision"),
    ("hyperfleet_api.url", "hyperfleet_api.endpoint"),
    ("hyperfleet_api.base_url", "hyperfleet_api.endpoint"),
    ("hyperfleet_api.token_path", "hyperfleet_api.token_file"),
    ("log_level", "the flag --log-level, or set LOG_LEVEL"),
    ("log_format", "the flag --log-format, or set LOG_FORMAT"),
];

/// Keys of older releases and of the other form, and what they are called in that of today's HyperFleet.
pub(super) const RENAMED_HYPERFLEET: [(&str, &str); 30] = [
    ("hyperfleet_api", "clients.hyperfleet_api (base_url, timeout, auth.token_path)"),
    ("hyperfleetAPI", "clients.hyperfleet_api (base_url, timeout, auth.token_path)"),
    ("clients.hyperfleetApi", "clients.hyperfleet_api"),
    ("clients.hyperfleetAPI", "clients.hyperfleet_api"),
    ("endpoint", "clients.hyperfleet_api.base_url"),
    ("url", "clients.hyperfleet_api.base_url"),
    ("baseUrl", "clients.hyperfleet_api.base_url"),
    ("baseURL", "clients.hyperfleet_api.base_url"),
    ("pageSize", "clients.hyperfleet_api.page_size"),
    ("token_file", "clients.hyperfleet_api.auth.token_path"),
    ("token_path", "clients.hyperfleet_api.auth.token_path"),
    ("tokenPath", "clients.hyperfleet_api.auth.token_path"),
    ("tokenCacheTtl", "clients.hyperfleet_api.auth.token_cache_ttl"),
    ("topic", "clients.broker.topic"),
    ("name", "sentinel.name"),
    ("resourceType", "resource_type"),
    ("resourceSelector", "resource_selector"),
    ("shardSelector", "resource_selector"),
    ("shard_selector", "resource_selector"),
    ("pollInterval", "poll_interval"),
    ("messageDecision", "message_decision"),
    ("messageData", "message_data"),
    ("debugConfig", "debug_config"),
    ("tracingEnabled", "tracing_enabled"),
    ("backoffReady", "max_age_ready"),
    ("backoffNotReady", "max_age_not_ready"),
    ("backoff_ready", "max_age_ready"),
    ("backoff_not_ready", "max_age_not_ready"),
    ("log_level", "log.level"),
    ("log_format", "log.format"),
];

/// Keys that are refused for a reason of their own, in either form.
pub(super) const REFUSED: [(&str, &str); 6] = [
    (
        "hyperfleet_api.token",
        "a token is never read from a file that is kept in the open; set HYPERFLEET_API_TOKEN or token_file",
    ),
    (
        "clients.hyperfleet_api.token",
        "a token is never read from a file that is kept in the open; set HYPERFLEET_API_TOKEN or auth.token_path",
    ),
    (
        "clients.hyperfleet_api.auth.token",
        "a token is never read from a file that is kept in the open; set HYPERFLEET_API_TOKEN or auth.token_path",
    ),
    ("messaging_system", "removed: it follows from the broker's type, in broker.yaml or BROKER_TYPE; leave it out"),
    ("clients.broker.type", BROKER),
    ("broker", BROKER),
];

const BROKER: &str =
    "the broker has its own settings; set BROKER_TYPE and the other BROKER_* variables, or write a broker.yaml";
