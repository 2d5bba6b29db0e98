//! Answers why a resource is, or is not, published: from the API alone, or with what the running process remembers.
//!
//! One question costs the API one request, few are asked at a time, and nothing that the service waits for is held: an
//! answer never slows a cycle down. No answer carries a token, or a resource as a whole.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use lru::LruCache;
use serde_json::Value;
use tokio::sync::Semaphore;
use watchfire_runtime::chain;
use watchfire_runtime::redact::address;

use crate::adapters;
use crate::api::{self, Api};
use crate::config::{Republish, SentinelConfig};
use crate::decision::{self, Answer as Says, Explanation, Policy, Published, Rules, decide};
use crate::engine::{self, Ledger};
use crate::event;
use crate::expression::{Explained, Facts};
use crate::partial;
use crate::recording::Fate;
use crate::resource::Resource;

mod answer;
mod ask;

pub use answer::{Adapter, Answer, Delivery, Evaluated, Inputs, Outcome, Part, Requirement};
pub use ask::{AskError, ask};

/// Questions that are asked at a time; the others are told to come back.
const AT_A_TIME: usize = 2;

/// How long the API may take; the page that asks is given up after ten seconds.
const PATIENCE: Duration = Duration::from_secs(8);

/// The last outcomes that are remembered, some 300 bytes each.
const OUTCOMES: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// Longer than any id that an API gives.
const MAX_ID: usize = 256;

/// The last outcome of each resource's events, the most recent ones, by the hash of the resource's id.
pub(crate) struct Outcomes {
    fates: Mutex<LruCache<u64, Fate>>,
    hasher: RandomState,
}

impl Default for Outcomes {
    fn default() -> Self {
        Self { fates: Mutex::new(LruCache::new(OUTCOMES)), hasher: RandomState::new() }
    }
}

impl Outcomes {
    pub(crate) fn remember(&self, fates: impl IntoIterator<Item = Fate>) {
        let mut known = self.fates.lock().unwrap_or_else(PoisonError::into_inner);
        for fate in fates {
            known.put(self.hasher.hash_one(&fate.resource), fate);
        }
    }

    fn of(&self, id: &str) -> Option<Fate> {
        let fates = self.fates.lock().unwrap_or_else(PoisonError::into_inner);
        fates.peek(&self.hasher.hash_one(id)).filter(|fate| fate.resource == id).cloned()
    }
}

/// What a running process remembers.
pub(crate) struct Memory {
    pub(crate) ledger: Ledger,
    pub(crate) outcomes: Arc<Outcomes>,
}

/// Answers questions about the resources of one sentinel.
pub struct Explainer {
    config: Arc<SentinelConfig>,
    api: Api,
    memory: Option<Memory>,
    places: Semaphore,
}

impl Explainer {
    /// Asks the API alone.
    pub fn new(config: Arc<SentinelConfig>) -> Result<Self, reqwest::Error> {
        Ok(Self { api: Api::new(&config.api)?, config, memory: None, places: Semaphore::new(AT_A_TIME) })
    }

    /// Uses what a running process remembers.
    pub(crate) fn with(mut self, memory: Memory) -> Self {
        self.memory = Some(memory);
        self
    }

    /// Explains what would be decided on this resource at `now`.
    pub async fn explain(&self, id: &str, now: Timestamp) -> Answer {
        if !is_id(id) {
            let verdict = "this is no id that an API gives; copy it as the API, an event or the log shows it";
            return self.answer(&id.chars().take(MAX_ID).collect::<String>(), now, Outcome::NoId, verdict);
        }
        let Ok(_place) = self.places.try_acquire() else {
            let verdict = "others are asking, and the API is asked for little at a time; ask again in a second";
            return self.answer(id, now, Outcome::Busy, verdict);
        };
        match tokio::time::timeout(PATIENCE, self.api.get_one(id)).await {
            Ok(Ok(item)) => self.judge(id, &item, now),
            Ok(Err(error)) => self.failed(id, now, &error),
            Err(_) => {
                let verdict = "the API takes too long to answer; ask again, and look at its load";
                self.answer(id, now, Outcome::ApiFailed, verdict)
            }
        }
    }

    fn failed(&self, id: &str, now: Timestamp, error: &api::Error) -> Answer {
        let kind = &self.config.api.resource_type;
        let (outcome, verdict) = match error {
            api::Error::Status { status, .. } if status.as_u16() == 404 => (
                Outcome::NotFound,
                format!(
                    "{} has no such thing among its {kind}: check the id (names are not looked for), and that it is one of the {kind}; if \
                     it was deleted for good, no event will follow",
                    address(&self.config.api.endpoint)
                ),
            ),
            error => {
                let verdict = format!("the API does not show it: {}; {}", chain(error), error.hint(self.config.form));
                (Outcome::ApiFailed, verdict)
            }
        };
        self.answer(id, now, outcome, &verdict)
    }

    /// An answer without a decision.
    fn answer(&self, id: &str, now: Timestamp, outcome: Outcome, verdict: &str) -> Answer {
        Answer {
            id: id.to_owned(),
            resource_type: self.config.api.resource_type.clone(),
            now,
            outcome,
            verdict: verdict.to_owned(),
            from_memory: self.memory.is_some(),
            last_event: self.memory.as_ref().and_then(|memory| memory.outcomes.of(id)),
            deliveries: Vec::new(),
            store: None,
            event: None,
            selector: Vec::new(),
            inputs: None,
            decision: None,
        }
    }

    /// Explains what would be decided on what the API shows.
    fn judge(&self, id: &str, item: &str, now: Timestamp) -> Answer {
        let resource = match Resource::parse(item) {
            Ok(resource) if resource.id == id => resource,
            Ok(_) => {
                let verdict = "the API shows another resource than the one it was asked for; check proxies in between";
                return self.answer(id, now, Outcome::Unreadable, verdict);
            }
            Err(error) => {
                let why = chain(&error);
                let verdict =
                    format!("the sentinel skips it, since it cannot be read: {why}; report it to the API's owners");
                return self.answer(id, now, Outcome::Unreadable, &verdict);
            }
        };
        // It was read a moment ago; what the view skipped may be nested too deeply.
        let value = partial::read(item, None).unwrap_or(Value::Null);
        let facts = Facts { resource: &value, view: &resource, now };
        let explained = self.config.expression.as_deref().map(|expression| expression.explain(facts));
        let policy = match &explained {
            None => self.config.rules.policy,
            Some(Explained { result: Ok(says), .. }) => Policy::Expression(engine::answer(&self.config, *says)),
            Some(Explained { result: Err(_), .. }) => Policy::Expression(Says::Failed),
        };
        let rules = Rules { policy, ..self.config.rules };
        let remembered = self.remembered(&rules, &resource, now);
        let published = remembered.filter(|_| self.config.republish == Republish::InFlight);
        let mut answer = self.answer(id, now, Outcome::NotSelected, "");
        answer.selector = self.selector(&resource);
        let adapters = adapters(item, remembered.filter(|ours| ours.generation == resource.generation), now);
        answer.inputs = Some(inputs(&rules, &resource, adapters, published, explained.map(evaluated)));
        if let Some(missed) = answer.selector.iter().find(|requirement| !requirement.holds) {
            answer.verdict = not_selected(missed);
            return answer;
        }
        let decided = decide(&rules, &resource, published, now);
        let explained = decision::explain(&rules, &resource, published, now);
        answer.verdict = verdict(&explained, policy, now);
        answer.outcome = if explained.publishes { Outcome::Due } else { Outcome::NotDue };
        answer.event = explained.publishes.then(|| event::id_of(&resource, &decided));
        answer.decision = Some(explained);
        answer
    }

    /// Our last event for the resource, whether or not it counts.
    fn remembered(&self, rules: &Rules, resource: &Resource<'_>, now: Timestamp) -> Option<Published> {
        let memory = self.memory.as_ref()?;
        memory.ledger.lock().peek(resource, rules.policy.report(&resource.status), now)
    }

    fn selector(&self, resource: &Resource<'_>) -> Vec<Requirement> {
        let labels = &resource.labels;
        let requirements = self.config.selector.requirements().iter().map(|it| Requirement {
            requirement: it.to_string(),
            value: labels.get(&it.key).map(str::to_owned),
            holds: it.holds(labels),
        });
        requirements.collect()
    }
}

fn inputs(
    rules: &Rules,
    resource: &Resource<'_>,
    adapters: Vec<Adapter>,
    published: Option<Published>,
    expression: Option<Evaluated>,
) -> Inputs {
    Inputs {
        kind: resource.kind.clone().into_owned(),
        generation: resource.generation,
        observed_generation: resource.status.observed_generation,
        ready: resource.status.ready,
        report: rules.policy.report(&resource.status),
        last_progress: resource.status.last_progress,
        deleted_time: resource.deleted_time,
        adapters,
        published,
        policy: rules.policy.as_str().to_owned(),
        max_age_ready: decision::span(rules.max_age.ready),
        max_age_not_ready: decision::span(rules.max_age.not_ready),
        expression,
    }
}

fn adapters(item: &str, published: Option<Published>, now: Timestamp) -> Vec<Adapter> {
    let said = adapters::read(item);
    let silent = published.map(|ours| adapters::silent(&said, ours, now)).unwrap_or_default();
    let of = |it: &adapters::Said| Adapter {
        name: it.adapter.clone(),
        generation: it.generation,
        at: it.at,
        silent: silent.contains(&it),
    };
    said.iter().map(of).collect()
}

fn evaluated(explained: Explained<'_>) -> Evaluated {
    let part = |name: &str, source: &str, value: Result<Value, _>| {
        let (value, error) = match value {
            Ok(value) => (Some(value), None),
            Err(error) => (None, Some(chain(&error))),
        };
        Part { name: name.to_owned(), source: source.to_owned(), value, error }
    };
    let failed = explained.params.last().is_some_and(|(_, _, value)| value.is_err());
    let result = (!failed).then(|| part("result", explained.source, explained.result.map(Value::Bool)));
    let params = explained.params.into_iter().map(|(name, source, value)| part(name, source, value)).collect();
    Evaluated { params, result }
}

fn not_selected(missed: &Requirement) -> String {
    let Requirement { requirement, value, .. } = missed;
    let has = value.as_ref().map_or_else(|| "has no such label".to_owned(), |value| format!("has {value:?}"));
    format!(
        "this sentinel does not watch it: its selector asks for {requirement}, and it {has}; \
         `watchfire sentinel coverage` says who does"
    )
}

fn verdict(explained: &Explanation, policy: Policy, now: Timestamp) -> String {
    let Explanation { reason, due, publishes, since, from_future, .. } = explained;
    match (publishes, due) {
        // A report of the generation before says nothing about when the spec was changed.
        (true, _) if since.is_none() => format!("an event is due: {reason}; the next cycle publishes it"),
        (true, Some(due)) => format!("an event is due since {due:.0}: {reason}; the next cycle publishes it"),
        (true, None) => format!("an event is due: {reason}; the next cycle publishes it"),
        (false, Some(due)) if *from_future => {
            format!(
                "no event is due: {reason}; the next is at {due:.0}, or later if the report's time has passed by then"
            )
        }
        (false, Some(due)) => {
            let left = SignedDuration::from_secs(due.duration_since(now).as_secs());
            format!("no event is due: {reason}; the next is in {left:#}, at {due:.0}, unless the resource changes")
        }
        (false, None) if matches!(policy, Policy::Expression(_)) => {
            format!("no event is due: {reason}; it is asked again in every cycle")
        }
        (false, None) => format!("no event is due: {reason}; none will be before the resource changes"),
    }
}

/// Whether an API could have given this id, and it can be asked for: never a path.
pub(crate) fn is_id(id: &str) -> bool {
    let odd = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '/' | '\\' | '?' | '#' | '%');
    (1..=MAX_ID).contains(&id.len()) && !id.starts_with('.') && !id.contains(odd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_id_is_never_asked_for() {
        let long = "x".repeat(MAX_ID + 1);
        for id in ["", ".", "..", "../statuses", "a/b", "a\\b", "a?x=1", "a#b", "%2e%2e", "a b", "a\n", "\0", &long] {
            assert!(!is_id(id), "{id:?}");
        }
        for id in ["019a0c5e-0000-7000-8000-000000000001", "cls-123", "ä:b@c", "a.b"] {
            assert!(is_id(id), "{id:?}");
        }
    }

    #[test]
    fn a_verdict_names_no_time_that_does_not_hold() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let explained = |publishes, since, from_future| Explanation {
            publishes,
            reason: "why".to_owned(),
            due: Some(now),
            since,
            rules: Vec::new(),
            from_future,
            observed_ahead: false,
        };
        let says = |it| verdict(&it, Policy::GenerationAware, now);
        assert_eq!(says(explained(true, None, false)), "an event is due: why; the next cycle publishes it");
        assert!(says(explained(true, Some(now), false)).contains("due since 2027-01-15T08:00:00Z: why"));
        assert!(
            says(explained(false, Some(now), false)).contains("the next is in 0s, at 2027-01-15T08:00:00Z, unless")
        );
        assert!(says(explained(false, Some(now), true)).contains("at 2027-01-15T08:00:00Z, or later"));
    }

    #[test]
    fn the_last_outcomes_are_remembered_and_no_more() {
        let outcomes = Outcomes::default();
        let fate = |resource: usize| Fate {
            id: "e".into(),
            resource: resource.to_string(),
            reason: "".into(),
            generation: None,
            at: Timestamp::UNIX_EPOCH,
            refused: None,
        };
        outcomes.remember((0..=OUTCOMES.get()).map(fate));
        assert!(outcomes.of("0").is_none() && outcomes.of("1").is_some());
    }
}
