//! The shapes in which the API has been described: today's, and those of the two older sentinel documents.
//!
//! The older ones know a `phase` where today's API has conditions, answer a list in one piece, and filter by `labels=`
//! in Kubernetes' selector syntax. Their status is derived from the same aggregation.

use jiff::Timestamp;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use crate::kind::Kind;
use crate::problem::Problem;
use crate::resource::{Condition, Labels, Status};

/// How resources are served and lists are filtered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// Today's API: conditions, paging, `search=`.
    #[default]
    Hyperfleet,
    /// The YAML sentinel's document: `status.phase` and snake case.
    Seed,
    /// The operator's document: `status.phase` and camel case.
    Operator,
}

impl Dialect {
    /// Whether the status is a phase instead of conditions.
    pub fn has_phase(self) -> bool {
        self != Self::Hyperfleet
    }

    /// Picks the key of this dialect.
    pub(crate) fn key(self, snake: &'static str, camel: &'static str) -> &'static str {
        if self == Self::Operator { camel } else { snake }
    }
}

/// A status in one word, as the older documents have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Phase {
    pub(crate) dialect: Dialect,
    pub(crate) ready: bool,
    pub(crate) observed_generation: i32,
    pub(crate) last_transition_time: Timestamp,
    pub(crate) last_updated_time: Timestamp,
}

impl Phase {
    /// Derives the phase: `observed_generation` is the lowest among the required adapters, 0 while one has not
    /// reported.
    pub(crate) fn of(
        dialect: Dialect,
        kind: &Kind,
        generation: i32,
        updated_time: Timestamp,
        conditions: &[Condition],
    ) -> Self {
        let Some(reconciled) = conditions.iter().find(|condition| condition.ty == "Reconciled") else {
            let (last_transition_time, last_updated_time) = (updated_time, updated_time);
            return Self {
                dialect,
                ready: true,
                observed_generation: generation,
                last_transition_time,
                last_updated_time,
            };
        };
        let seen_by = |adapter: &String| {
            let ty = crate::aggregation::mirror_type(adapter);
            conditions.iter().find(|condition| condition.ty == ty).map_or(0, |mirror| mirror.observed_generation)
        };
        Self {
            dialect,
            ready: reconciled.status == Status::True,
            observed_generation: kind.required_adapters.iter().map(seen_by).min().unwrap_or(0),
            // The operator's document says that every report moves the transition time.
            last_transition_time: if dialect == Dialect::Operator {
                reconciled.last_updated_time
            } else {
                reconciled.last_transition_time
            },
            last_updated_time: reconciled.last_updated_time,
        }
    }
}

impl Serialize for Phase {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(4))?;
        map.serialize_entry("phase", if self.ready { "Ready" } else { "NotReady" })?;
        map.serialize_entry(self.dialect.key("observed_generation", "observedGeneration"), &self.observed_generation)?;
        map.serialize_entry(
            self.dialect.key("last_transition_time", "lastTransitionTime"),
            &self.last_transition_time,
        )?;
        map.serialize_entry(self.dialect.key("last_updated_time", "lastUpdatedTime"), &self.last_updated_time)?;
        map.end()
    }
}

/// A label selector in Kubernetes' syntax: all requirements hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
}

impl Selector {
    /// Parses `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        split(text).into_iter().filter(|part| !part.is_empty()).map(requirement).collect::<Result<_, _>>().map(Self)
    }

    /// Whether the labels satisfy every requirement; as in Kubernetes, `!=` and `notin` hold for a missing label.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            Requirement::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
            Requirement::Exists(key) => labels.contains_key(key),
            Requirement::Missing(key) => !labels.contains_key(key),
        })
    }
}

/// Splits at commas outside parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    let parts = text.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(str::trim).collect()
}

fn requirement(part: &str) -> Result<Requirement, Problem> {
    let malformed = || Problem::validation(format!("labels: can't read '{part}' as a label requirement"));
    let key = |text: &str| {
        let text = text.trim();
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        if text.is_empty() || !text.chars().all(legal) { Err(malformed()) } else { Ok(text.to_owned()) }
    };
    if let Some(rest) = part.strip_prefix('!') {
        return Ok(Requirement::Missing(key(rest)?));
    }
    if let Some((left, value)) = part.split_once("!=") {
        return Ok(Requirement::NotIn(key(left)?, vec![value.trim().to_owned()]));
    }
    if let Some((left, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Ok(Requirement::In(key(left)?, vec![value.trim().to_owned()]));
    }
    if let Some((left, list)) = part.split_once('(') {
        let list = list.strip_suffix(')').ok_or_else(malformed)?;
        let values = list.split(',').map(|value| value.trim().to_owned()).collect();
        let mut words = left.split_whitespace();
        return match (words.next(), words.next(), words.next()) {
            (Some(name), Some("in"), None) => Ok(Requirement::In(key(name)?, values)),
            (Some(name), Some("notin"), None) => Ok(Requirement::NotIn(key(name)?, values)),
            _ => Err(malformed()),
        };
    }
    Ok(Requirement::Exists(key(part)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn selectors_follow_kubernetes() {
        let east = labels(&[("region", "us-east"), ("cluster-type", "gpu")]);
        for (text, expected) in [
            ("", true),
            ("region=us-east", true),
            ("region==us-east,cluster-type=gpu", true),
            ("region=us-west", false),
            ("region!=us-west", true),
            ("tier!=gold", true),
            ("region in (us-east, us-west)", true),
            ("region notin (us-east,us-west),cluster-type", false),
            ("tier notin (gold)", true),
            ("cluster-type", true),
            ("tier", false),
            ("!tier", true),
            ("!region", false),
        ] {
            assert_eq!(Selector::parse(text).unwrap().matches(&east), expected, "{text}");
        }
    }

    #[test]
    fn unreadable_selectors_are_refused() {
        for text in ["=x", "a in b", "a in (b", "a b c", "a within (b)", "ä=b"] {
            assert_eq!(Selector::parse(text).unwrap_err().status, 400, "{text}");
        }
    }
}
