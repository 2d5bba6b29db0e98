//! What of a resource goes into a recording: the fields that somebody reads, less what must not leave the cluster.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use crate::config::SentinelConfig;
use crate::expression::Expression;
use crate::partial;
use crate::selector::Selector;

/// The top-level fields that a decision may read, in any dialect.
const DECISION: [&str; 8] = ["id", "kind", "generation", "labels", "metadata", "status", "deleted_time", "deletedTime"];

/// What decisions read below them; hiding any of it would make a recording decide otherwise than the sentinel did.
const READ: [&str; 21] = [
    "id",
    "kind",
    "generation",
    "metadata.generation",
    "deleted_time",
    "deletedTime",
    "status.phase",
    "status.observed_generation",
    "status.observedGeneration",
    "status.last_updated_time",
    "status.lastUpdatedTime",
    "status.last_transition_time",
    "status.lastTransitionTime",
    "status.conditions.type",
    "status.conditions.status",
    "status.conditions.observed_generation",
    "status.conditions.last_updated_time",
    "status.conditions.last_transition_time",
    "status.conditions.observedGeneration",
    "status.conditions.lastUpdatedTime",
    "status.conditions.lastTransitionTime",
];

/// What of a resource is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    fields: Option<BTreeSet<String>>,
    redacted: Vec<Redacted>,
}

/// A path that is taken out.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Redacted {
    typed: String,
    /// Its steps, in every dialect.
    paths: Vec<Vec<String>>,
    /// Whether something stood there.
    met: bool,
}

/// Why something can't be taken out.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PathError {
    /// Nothing is named.
    #[error("take {path:?} out of the recording: it names nothing; write a path such as .labels.owner, unquoted")]
    Empty {
        /// As typed.
        path: String,
    },
    /// Without it, the recording would tell of other decisions.
    #[error("take {path:?} out of the recording: decisions read it; name something else, or keep the recording safe")]
    Read {
        /// As typed.
        path: String,
    },
}

impl Kept {
    /// Keeps everything.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Keeps what the decisions and the payload of a sentinel read.
    pub fn read_by(config: &SentinelConfig) -> Self {
        let fields = || {
            let mut fields: BTreeSet<_> = DECISION.into_iter().map(str::to_owned).collect();
            fields.extend(config.payload.top_level_fields()?);
            if let Some(expression) = &config.expression {
                fields.extend(expression.top_level_fields()?.iter().cloned());
            }
            Some(fields)
        };
        Self { fields: fields(), redacted: Vec::new() }
    }

    /// Takes out what stands at `path`, in every element of the lists on the way. A label is named by its whole key,
    /// and goes wherever a dialect has it. What an expression reads may be taken out; a simulation says so.
    pub fn redact(mut self, path: &str, selector: &Selector) -> Result<Self, PathError> {
        let typed = || path.to_owned();
        let path = path.strip_prefix('.').unwrap_or(path);
        let steps = steps(path);
        // The key of a label may hold dots and slashes, and begins and ends with a letter or a digit, as every name
        // here.
        let names_nothing = |step: &String| {
            let ends = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
            !ends(step.chars().next()) || !ends(step.chars().next_back())
        };
        if steps.iter().any(names_nothing) {
            return Err(PathError::Empty { path: typed() });
        }
        let hides = |read: &str| read == path || read.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
        if selects_by(selector, path) || READ.into_iter().any(hides) {
            return Err(PathError::Read { path: typed() });
        }
        let other = match steps.as_slice() {
            [labels, ..] if labels == "labels" => {
                Some(["metadata".to_owned()].into_iter().chain(steps.clone()).collect())
            }
            [metadata, labels, ..] if metadata == "metadata" && labels == "labels" => Some(steps[1..].to_vec()),
            _ => None,
        };
        self.redacted.push(Redacted { typed: typed(), paths: other.into_iter().chain([steps]).collect(), met: false });
        Ok(self)
    }

    /// The fields that are kept; nothing is all of them.
    pub fn fields(&self) -> Option<&BTreeSet<String>> {
        self.fields.as_ref()
    }

    /// What is taken out, as paths.
    pub fn redacted(&self) -> Vec<String> {
        let paths = self.redacted.iter().flat_map(|redacted| &redacted.paths);
        paths.map(|steps| format!(".{}", steps.join("."))).collect()
    }

    /// What was to be taken out and stood in no item so far, as typed.
    pub(super) fn unmet(&self) -> impl Iterator<Item = &str> {
        self.redacted.iter().filter(|redacted| !redacted.met).map(|redacted| redacted.typed.as_str())
    }

    /// The item as it is recorded.
    pub(super) fn cut(&mut self, item: &str) -> Result<Value, serde_json::Error> {
        let mut value = partial::read(item, self.fields.as_ref())?;
        for Redacted { paths, met, .. } in &mut self.redacted {
            for path in paths {
                *met |= remove(&mut value, path);
            }
        }
        Ok(value)
    }
}

/// Whether decisions of a sentinel may be others where this path was taken out.
pub(crate) fn decides_by(config: &SentinelConfig, path: &str) -> bool {
    let path = path.trim_start_matches('.');
    let field = path.split('.').next().unwrap_or_default();
    let reads = |expression: &Arc<Expression>| expression.top_level_fields().is_none_or(|read| read.contains(field));
    selects_by(&config.selector, path) || config.expression.as_ref().is_some_and(reads)
}

fn selects_by(selector: &Selector, path: &str) -> bool {
    ["labels", "metadata.labels"].into_iter().any(|labels| match path.strip_prefix(labels) {
        Some("") => !selector.is_everything(),
        Some(rest) => selector.reads(rest.trim_start_matches('.')),
        None => path == "metadata" && !selector.is_everything(),
    })
}

/// The steps of a path; the key of a label is one step, whatever is in it.
fn steps(path: &str) -> Vec<String> {
    for labels in ["labels.", "metadata.labels."] {
        if let Some(key) = path.strip_prefix(labels) {
            let above = labels.trim_end_matches('.').split('.').map(str::to_owned);
            return above.chain([key.to_owned()]).collect();
        }
    }
    path.split('.').map(str::to_owned).collect()
}

/// Removes what stands there, and says whether something did.
fn remove(value: &mut Value, path: &[String]) -> bool {
    match (value, path) {
        // Of every one of them, also where the first had it.
        (Value::Array(items), path) => items.iter_mut().map(|item| remove(item, path)).filter(|met| *met).count() > 0,
        (Value::Object(map), [last]) => map.shift_remove(last).is_some(),
        (Value::Object(map), [step, rest @ ..]) => map.get_mut(step).is_some_and(|inner| remove(inner, rest)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(paths: &[&str], item: &str) -> String {
        taking(paths).cut(item).unwrap().to_string()
    }

    fn taking(paths: &[&str]) -> Kept {
        paths.iter().fold(Kept::everything(), |kept, path| kept.redact(path, &Selector::default()).unwrap())
    }

    #[test]
    fn what_stands_nowhere_is_known() {
        let mut kept = taking(&["Labels.owner", ".labels.owner", ".status.conditions.message", ".spec.key"]);
        assert_eq!(kept.unmet().count(), 4);
        kept.cut(r#"{"metadata":{"labels":{"owner":"x"}},"status":{"conditions":[{"message":"m"},{}]}}"#).unwrap();
        assert_eq!(kept.unmet().collect::<Vec<_>>(), ["Labels.owner", ".spec.key"]);
        kept.cut(r#"{"spec":{"key":null}}"#).unwrap();
        assert_eq!(kept.unmet().collect::<Vec<_>>(), ["Labels.owner"]);
    }

    #[test]
    fn what_is_taken_out_is_gone_from_every_element() {
        let item = r#"{"id":"a","labels":{"owner":"x","a.b/c":"y"},"spec":{"key":1,"keep":2},"status":{"conditions":[{"type":"A","message":"m"},{"type":"B","message":"n"}]}}"#;
        assert_eq!(
            cut(&[".spec.key", "labels.owner", ".labels.a.b/c", ".status.conditions.message", ".absent.deep"], item),
            r#"{"id":"a","labels":{},"spec":{"keep":2},"status":{"conditions":[{"type":"A"},{"type":"B"}]}}"#
        );
        assert_eq!(cut(&["spec"], r#"{"id":"a","spec":[1]}"#), r#"{"id":"a"}"#);
        let both = r#"{"id":"a","labels":{"k":"1","l":"2"},"metadata":{"labels":{"k":"3"}}}"#;
        for path in [".labels.k", ".metadata.labels.k"] {
            assert_eq!(cut(&[path], both), r#"{"id":"a","labels":{"l":"2"},"metadata":{"labels":{}}}"#);
        }
        assert_eq!(cut(&[".labels"], both), r#"{"id":"a","metadata":{}}"#);
    }

    #[test]
    fn what_decisions_read_stays() {
        let selector = Selector::from_pairs([("region", "east")]).unwrap();
        let table = [
            ("id", true),
            (".status", true),
            (".status.conditions", true),
            (".status.conditions.status", true),
            (".status.phase", true),
            (".status.conditions.message", false),
            (".labels", true),
            (".labels.region", true),
            (".metadata.labels.region", true),
            (".metadata", true),
            (".labels.owner", false),
            (".generation", true),
            (".deleted_time", true),
            (".deletedTime", true),
            (".spec", false),
        ];
        for (path, refused) in table {
            let result = Kept::everything().redact(path, &selector);
            assert_eq!(result.is_err(), refused, "{path}");
        }
        assert!(Kept::everything().redact(".labels", &Selector::default()).is_ok());
        for path in ["", ".", "a..b", ".labels."] {
            let error = Kept::everything().redact(path, &selector).unwrap_err();
            assert!(matches!(error, PathError::Empty { .. }), "{path}: {error}");
        }
    }
}
