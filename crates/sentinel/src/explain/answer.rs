//! What an explanation says, in one shape for the admin endpoint, `-o json` and the text for people.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use watchfire_delivery::outbox::State;

use crate::decision::{Explanation, Published};
use crate::recording::Fate;

/// An answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The resource that was asked for.
    pub id: String,
    /// The plural, such as `clusters`.
    pub resource_type: String,
    /// When it was asked.
    pub now: Timestamp,
    /// What was found.
    pub outcome: Outcome,
    /// What it means, in a sentence; with what to try where something is wrong.
    pub verdict: String,
    /// Whether the running process's memory was used. Without it, events that are under way are not known of.
    pub from_memory: bool,
    /// What became of the last event that the process remembers.
    pub last_event: Option<Fate>,
    /// What became of that event at the subscribers of the embedded broker, which confirms for them.
    #[serde(default)]
    pub deliveries: Vec<Delivery>,
    /// The file in which that broker keeps them, as the process names it.
    #[serde(default)]
    pub store: Option<PathBuf>,
    /// The id of the event that is due.
    pub event: Option<String>,
    /// What the selector asks for.
    pub selector: Vec<Requirement>,
    /// What the decision saw.
    pub inputs: Option<Inputs>,
    /// The decision, with every reason that there is.
    pub decision: Option<Explanation>,
}

/// An event on its way from the embedded broker to one subscriber.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// Its number in the store; not told by an earlier release.
    #[serde(default)]
    pub number: Option<i64>,
    /// The subscriber.
    pub subscriber: String,
    /// Where it stands.
    pub state: State,
    /// Attempts that counted.
    pub attempts: u32,
    /// Why it is not delivered.
    pub reason: Option<String>,
    /// When it last changed.
    pub changed: Timestamp,
}

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// An event is due.
    Due,
    /// No event is due.
    NotDue,
    /// This sentinel does not watch it.
    NotSelected,
    /// The API shows something that cannot be read.
    Unreadable,
    /// The API has no such resource.
    NotFound,
    /// The API does not answer, or refuses.
    ApiFailed,
    /// No API has such an id.
    NoId,
    /// Others are asking.
    Busy,
}

/// Something that the selector asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// In Kubernetes syntax.
    pub requirement: String,
    /// The label's value, if the resource has it.
    pub value: Option<String>,
    /// Whether it holds.
    pub holds: bool,
}

/// What a decision saw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inputs {
    /// As served.
    pub kind: String,
    /// What the user wants.
    pub generation: Option<i64>,
    /// What every adapter has seen.
    pub observed_generation: Option<i64>,
    /// Whether it is ready.
    pub ready: bool,
    /// The time that max age is counted from.
    pub report: Option<Timestamp>,
    /// When its state, or what an adapter says of its part, last changed; not looked for while it is ready.
    pub last_progress: Option<Timestamp>,
    /// Since when it is being deleted.
    pub deleted_time: Option<Timestamp>,
    /// What each adapter last said.
    pub adapters: Vec<Adapter>,
    /// Our last confirmed event, for as long as it counts.
    pub published: Option<Published>,
    /// The policy.
    pub policy: String,
    /// The max age of ready resources.
    pub max_age_ready: String,
    /// The max age of all others.
    pub max_age_not_ready: String,
    /// What the expression came to, where one decides.
    pub expression: Option<Evaluated>,
}

/// What an adapter last said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adapter {
    /// Its name.
    pub name: String,
    /// The generation that it saw; nothing if it never reported.
    pub generation: Option<i64>,
    /// When it reported.
    pub at: Option<Timestamp>,
    /// Whether it has left our last event without a report for too long.
    pub silent: bool,
}

/// What an expression came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// The params in order, up to the first that failed.
    pub params: Vec<Part>,
    /// The result; nothing if a param failed.
    pub result: Option<Part>,
}

/// A part of an expression.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The name of a param, or `result`.
    pub name: String,
    /// As configured.
    pub source: String,
    /// What it came to.
    pub value: Option<Value>,
    /// Why it came to nothing.
    pub error: Option<String>,
}
