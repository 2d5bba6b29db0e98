//! What creators and adapters send, and whether its form is right.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::kind::Kind;
use crate::problem::Problem;
use crate::resource::{Labels, Report, ReportedCondition, Status};

/// What a creator sends.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct NewResource {
    /// Only for direct calls: an id of the caller's choice, such as `cls-123`.
    #[serde(skip)]
    pub id: Option<String>,
    /// The kind, which must fit the path if given.
    pub kind: Option<String>,
    /// The name.
    #[serde(default)]
    pub name: String,
    /// The labels.
    #[serde(default)]
    pub labels: Labels,
    /// The spec; `{}` if absent.
    pub spec: Option<Box<RawValue>>,
}

impl NewResource {
    /// A resource of that name with an empty spec.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Adds a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Chooses the id.
    #[must_use]
    pub fn id(mut self, id: &str) -> Self {
        self.id = Some(id.to_owned());
        self
    }
}

/// What a change replaces.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Patch {
    /// The labels, all of them.
    pub labels: Option<Labels>,
    /// The spec, all of it.
    pub spec: Option<Box<RawValue>>,
}

impl Patch {
    /// Replaces the spec.
    pub fn spec(spec: &serde_json::Value) -> Self {
        Self { labels: None, spec: RawValue::from_string(spec.to_string()).ok() }
    }
}

/// What an adapter sends.
#[derive(Debug, Clone, Deserialize)]
pub struct NewReport {
    /// The adapter's name.
    #[serde(default)]
    pub adapter: String,
    /// The generation it looked at.
    #[serde(default)]
    pub observed_generation: i32,
    /// When it looked, by its own clock; absent or zero is dropped.
    pub observed_time: Option<String>,
    /// What it found.
    #[serde(default)]
    pub conditions: Vec<NewCondition>,
    /// Whatever it adds.
    pub data: Option<Box<RawValue>>,
    /// About the job that did the work.
    pub metadata: Option<Box<RawValue>>,
}

/// A condition as sent.
#[derive(Debug, Clone, Deserialize)]
pub struct NewCondition {
    /// Its name.
    #[serde(default, rename = "type")]
    pub ty: String,
    /// `True`, `False` or `Unknown`.
    #[serde(default)]
    pub status: String,
    /// For programs.
    pub reason: Option<String>,
    /// For people.
    pub message: Option<String>,
}

impl NewReport {
    /// A report that says True or not of `Available`, with `Applied` and `Health` True.
    pub fn new(adapter: &str, observed_generation: i32, available: Status, observed_time: Timestamp) -> Self {
        let condition = |(ty, status): (&str, Status)| NewCondition {
            ty: ty.to_owned(),
            status: status.as_str().to_owned(),
            reason: None,
            message: None,
        };
        let conditions = [("Applied", Status::True), ("Available", available), ("Health", Status::True)];
        Self {
            adapter: adapter.to_owned(),
            observed_generation,
            observed_time: Some(observed_time.to_string()),
            conditions: conditions.map(condition).into(),
            data: None,
            metadata: None,
        }
    }
}

pub(crate) fn check_name(kind: &Kind, name: &str) -> Result<(), Problem> {
    if name.len() < 3 || name.len() > kind.max_name {
        return Err(Problem::validation(format!("name must be between 3 and {} characters", kind.max_name)));
    }
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !name.chars().all(legal) || name.starts_with('-') || name.ends_with('-') {
        return Err(Problem::validation(
            "name must start and end with alphanumeric and contain only lowercase letters, digits and hyphens",
        ));
    }
    Ok(())
}

pub(crate) fn check_labels(labels: &Labels) -> Result<(), Problem> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    match labels.keys().find(|key| key.is_empty() || key.len() > 317 || !key.chars().all(legal)) {
        Some(key) => Err(Problem::validation(format!("label key '{key}' is invalid"))),
        None => Ok(()),
    }
}

/// Checks the form of a report; `None` is one without a time, which is dropped.
pub(crate) fn check_report(new: NewReport) -> Result<Option<Report>, Problem> {
    if new.adapter.is_empty() {
        return Err(Problem::validation("adapter is required"));
    }
    let time = match new.observed_time.as_deref() {
        None | Some("" | "0001-01-01T00:00:00Z") => None,
        Some(text) => Some(
            text.parse::<Timestamp>()
                .map_err(|_| Problem::validation(format!("observed_time '{text}' is not an RFC3339 timestamp")))?,
        ),
    };
    let condition = |new: NewCondition| {
        let status = match new.status.as_str() {
            "True" => Status::True,
            "False" => Status::False,
            "Unknown" => Status::Unknown,
            other => {
                return Err(Problem::validation(format!(
                    "condition '{}' has invalid status '{other}': must be True, False, or Unknown",
                    new.ty
                )));
            }
        };
        let last_transition_time = time.unwrap_or(Timestamp::UNIX_EPOCH);
        Ok(ReportedCondition { last_transition_time, message: new.message, reason: new.reason, status, ty: new.ty })
    };
    let conditions = new.conditions.into_iter().map(condition).collect::<Result<_, _>>()?;
    Ok(time.map(|time| Report {
        adapter: new.adapter,
        conditions,
        created_time: time,
        data: new.data.map_or_else(empty_object, Arc::from),
        last_report_time: time,
        metadata: new.metadata.map(Arc::from),
        observed_generation: new.observed_generation,
    }))
}

pub(crate) fn empty_object() -> Arc<RawValue> {
    // "{}" is JSON.
    RawValue::from_string("{}".to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned()).into()
}
