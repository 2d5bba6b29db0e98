//! Configuration: the file as typed (`raw.rs`), and as checked.
//!
//! Every key is taken at its word: one that is set never changes another, and one that cannot be followed is an error
//! with its line, together with all the others.

mod check;
mod raw;
mod shown;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use watchfire_delivery::sink::http;
use watchfire_delivery::worker;
use watchfire_runtime::admin::Paths;
use watchfire_runtime::config::{ConfigError, Document, Env, Text, Warning};
use watchfire_runtime::telemetry::LogFormat;

pub use raw::RawConfig;

use crate::episode::{Allowed, Rule};
use crate::notice::Envelope;
use crate::storage::Thresholds;

/// A configuration that holds.
#[derive(Debug)]
pub struct BeaconConfig {
    /// The process.
    pub app: App,
    /// What is watched; no two overlap.
    pub entries: Vec<Entry>,
    /// Which of the objects.
    pub rule: Rule,
    /// What of an object is sent.
    pub allowed: Allowed,
    /// The envelope of each event.
    pub envelope: Envelope,
    /// Where events are sent.
    pub endpoint: http::Config,
    /// How events are sent.
    pub worker: worker::Config,
    /// How often cluster and ledger are compared, and how long that may take.
    pub reconciliation: Option<Reconciliation>,
    /// Whether it is ready only once they were compared.
    pub on_startup: bool,
    /// How long what is over is kept.
    pub retention: Option<Retention>,
    /// The ledger's file, and the volume that it is on.
    pub storage: Storage,
    /// Where metrics are served, and where probes are answered.
    pub ports: Ports,
    /// The file as typed.
    raw: RawConfig,
}

/// The process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct App {
    /// Its name in logs.
    pub name: String,
    /// Its version in `User-Agent`.
    pub version: String,
    /// Its log level.
    pub log_level: String,
    /// Its log format.
    pub log_format: LogFormat,
}

/// A kind, and where it is watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The API group; empty for the core.
    pub group: String,
    /// The version.
    pub version: String,
    /// The kind.
    pub kind: String,
    /// The plural, if it was written.
    pub resource: Option<String>,
    /// The namespaces; none means all.
    pub namespaces: Option<Vec<String>>,
}

impl Entry {
    /// As in checks and logs: `pod`, `deployment.apps`.
    pub fn name(&self) -> String {
        let kind = self.kind.to_lowercase();
        if self.group.is_empty() { kind } else { format!("{kind}.{}", self.group) }
    }

    /// Whether it is about objects of a kind in a namespace, or of one without namespaces (empty).
    pub fn covers(&self, kind: &str, group: &str, namespace: &str) -> bool {
        let there = match &self.namespaces {
            None => true,
            Some(namespaces) => namespaces.iter().any(|ours| ours == namespace),
        };
        self.kind == kind && self.group == group && there
    }

    /// The namespaces, or none for all of them.
    pub fn places(&self) -> Vec<Option<&str>> {
        match &self.namespaces {
            Some(namespaces) => namespaces.iter().map(|namespace| Some(namespace.as_str())).collect(),
            None => vec![None],
        }
    }

    /// As in the file.
    pub fn api_version(&self) -> String {
        let Self { group, version, .. } = self;
        if group.is_empty() { version.clone() } else { format!("{group}/{version}") }
    }
}

/// The comparison of cluster and ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reconciliation {
    /// From the beginning of one to that of the next.
    pub interval: Duration,
    /// For one.
    pub timeout: Duration,
}

/// How long what is over is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// How often it is looked for.
    pub every: Duration,
    /// Since an object was deleted.
    pub keep: Duration,
}

/// The ledger's file, and the volume that it is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// The file.
    pub ledger: PathBuf,
    /// The volume, by a folder on it.
    pub volume: PathBuf,
    /// How often the volume is looked at.
    pub every: Duration,
    /// What is done about how full it is.
    pub thresholds: Thresholds,
}

/// Where metrics are served, and where probes are answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports {
    /// Of metrics.
    pub metrics: u16,
    /// Of probes.
    pub health: u16,
    /// The paths of both.
    pub paths: Paths,
}

impl BeaconConfig {
    /// Reads and checks a file, with what the environment says in its place; every problem is told at once.
    pub fn read(text: &Text, env: &Env) -> Result<(Self, Vec<Warning>), ConfigError> {
        let document: Document<RawConfig> = text.parse_as_far_as_possible()?;
        let mut problems = document.problems();
        let config = check::check(document.value, env, &mut problems);
        let warnings = problems.finish()?;
        // Nothing is missing where nothing is wrong.
        config.map(|config| (config, warnings)).ok_or(ConfigError::Invalid(Vec::new()))
    }
}

/// Whether a text is a beacon's file and not another service's: by its keys, of which no other has any.
pub fn is_one(text: &Text) -> bool {
    let keys = text.parse::<BTreeMap<String, Value>>();
    let of_ours = |key: &&str| keys.as_ref().is_ok_and(|keys| keys.value.contains_key(*key));
    ["resources", "annotation", "cloudEvents", "endpoint"].iter().any(of_ours)
}

#[cfg(test)]
mod tests;
