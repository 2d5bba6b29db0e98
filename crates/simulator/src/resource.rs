//! What the simulated API stores: resources, the conditions it derives, and the reports it derives them from.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Labels by key.
pub type Labels = BTreeMap<String, String>;

/// A stored resource. Labels and spec are shared, so that a million alike cost little.
#[derive(Debug, Clone)]
pub struct Resource {
    /// Its id; a UUIDv7 unless the creator chose another.
    pub id: String,
    /// Its kind, for example `Cluster`.
    pub kind: String,
    /// Its name, unique among its siblings.
    pub name: String,
    /// Where it is served.
    pub href: String,
    /// Counts changes of spec and labels, and the deletion; starts at 1.
    pub generation: i32,
    /// Its labels.
    pub labels: Arc<Labels>,
    /// Its spec, as written.
    pub spec: Arc<RawValue>,
    /// The resource that owns it.
    pub owner: Option<Owner>,
    /// When it was created.
    pub created_time: Timestamp,
    /// When its generation last changed.
    pub updated_time: Timestamp,
    /// When its deletion was asked for.
    pub deleted_time: Option<Timestamp>,
    /// What the API makes of the reports; empty for a kind without required adapters.
    pub conditions: Vec<Condition>,
    /// The last report of each adapter, in the order of their first.
    pub reports: Vec<Report>,
}

impl Resource {
    /// The condition of that type.
    pub fn condition(&self, ty: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.ty == ty)
    }

    /// Whether every required adapter is content with the current generation.
    pub fn is_ready(&self) -> bool {
        self.condition("Reconciled").is_some_and(|condition| condition.status == Status::True)
    }
}

/// The resource that owns another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Owner {
    /// Where it is served.
    pub href: String,
    /// Its id.
    pub id: String,
    /// Its kind.
    pub kind: String,
}

/// The status of a condition; the API's own are never `Unknown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Status {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Only in reports: the adapter can't say.
    Unknown,
}

impl Status {
    /// As written in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// A condition of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// When the condition first appeared.
    pub created_time: Timestamp,
    /// When its status last changed.
    pub last_transition_time: Timestamp,
    /// When an adapter last looked.
    pub last_updated_time: Timestamp,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<Cow<'static, str>>,
    /// The generation it speaks about.
    pub observed_generation: i32,
    /// For programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'static, str>>,
    /// Whether it holds.
    pub status: Status,
    /// Its name, for example `Reconciled`.
    #[serde(rename = "type")]
    pub ty: Cow<'static, str>,
}

impl Condition {
    /// The same with times to the second, as the API writes them where it projects.
    pub(crate) fn to_the_second(&self) -> Self {
        Self {
            created_time: whole_second(self.created_time),
            last_transition_time: whole_second(self.last_transition_time),
            last_updated_time: whole_second(self.last_updated_time),
            ..self.clone()
        }
    }
}

/// The beginning of the second.
pub(crate) fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The last report of one adapter, as stored.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The adapter's name.
    pub adapter: String,
    /// What it found.
    pub conditions: Vec<ReportedCondition>,
    /// The time of its first report.
    pub created_time: Timestamp,
    /// Whatever the adapter adds.
    pub data: Arc<RawValue>,
    /// The `observed_time` it sent.
    pub last_report_time: Timestamp,
    /// About the job that did the work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Arc<RawValue>>,
    /// The generation it looked at.
    pub observed_generation: i32,
}

impl Report {
    /// The status it reported for a condition type.
    pub fn status(&self, ty: &str) -> Option<Status> {
        self.conditions.iter().find(|condition| condition.ty == ty).map(|condition| condition.status)
    }
}

/// A condition within a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReportedCondition {
    /// When its status last changed, by the adapter's clock.
    pub last_transition_time: Timestamp,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// For programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether it holds.
    pub status: Status,
    /// Its name: `Available`, `Applied`, `Health`, `Finalized` or the adapter's own.
    #[serde(rename = "type")]
    pub ty: String,
}
