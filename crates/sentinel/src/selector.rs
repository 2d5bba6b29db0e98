//! Says which resources a sentinel watches.
//!
//! A list of labels, `matchLabels` and `matchExpressions` compile to one list of requirements, all of which must
//! hold. It is offered to the API in both of its dialects, and always applied again in process: today's `search`
//! cannot name a key with a hyphen, and a server may ignore either parameter.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use crate::resource::Labels;

/// The API takes 4,096 characters as `search` and refuses more, so what does not fit is left to us; the rest is for the
/// id from which a page goes on.
pub(crate) const MAX_SEARCH: usize = 4096 - 256;

/// One condition on one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// Label key.
    pub key: String,
    /// What must hold of its value.
    pub operator: Operator,
}

/// What must hold of a label's value; the semantics are those of Kubernetes label selectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operator {
    /// The label is there, with one of these values.
    In(Vec<String>),
    /// The label is absent, or has none of these values.
    NotIn(Vec<String>),
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl Operator {
    /// Whether a resource whose label has this value, or none, is selected.
    fn takes(&self, value: Option<&str>) -> bool {
        let among = |values: &[String]| value.is_some_and(|value| values.iter().any(|wanted| wanted == value));
        match self {
            Self::In(values) => among(values),
            Self::NotIn(values) => !among(values),
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
        }
    }
}

/// Requirements that all must hold; none select everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selector(Vec<Requirement>);

/// Why requirements make no selector.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// An empty key would silently select everything.
    #[error("the label has no name; write the label's key, or remove the entry to select everything")]
    EmptyKey,
    /// Not a label key.
    #[error(
        "{key:?} is not a label key: at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter \
         or digit, with an optional DNS prefix as in \"example.com/name\""
    )]
    Key {
        /// As typed.
        key: String,
    },
    /// Not a label value.
    #[error(
        "{value:?} is not a label value: at most 63 letters, digits, '-', '_' and '.', beginning and ending with a \
         letter or digit, or nothing"
    )]
    Value {
        /// As typed.
        value: String,
    },
    /// The same label twice in a list of which all must hold.
    #[error("label {key:?} appears twice; all entries must hold, so two values can never match")]
    Duplicate {
        /// The key.
        key: String,
    },
    /// `In` and `NotIn` without values.
    #[error("label {key:?} has no values; In and NotIn need at least one")]
    NoValues {
        /// The key.
        key: String,
    },
}

impl Requirement {
    /// Whether it is one that a selector can have.
    pub fn check(&self) -> Result<(), Error> {
        let Self { key, operator } = self;
        if key.is_empty() {
            return Err(Error::EmptyKey);
        }
        if !is_label_key(key) {
            return Err(Error::Key { key: key.clone() });
        }
        if let Operator::In(values) | Operator::NotIn(values) = operator {
            if values.is_empty() {
                return Err(Error::NoValues { key: key.clone() });
            }
            if let Some(value) = values.iter().find(|value| !value.is_empty() && !is_name(value)) {
                return Err(Error::Value { value: value.clone() });
            }
        }
        Ok(())
    }

    /// Whether it holds for these labels.
    pub fn holds(&self, labels: &Labels<'_>) -> bool {
        self.operator.takes(labels.get(&self.key))
    }
}

/// In Kubernetes syntax.
impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, operator } = self;
        match operator {
            Operator::In(values) => match values.as_slice() {
                [value] => write!(f, "{key}={value}"),
                values => write!(f, "{key} in ({})", values.join(",")),
            },
            Operator::NotIn(values) => match values.as_slice() {
                [value] => write!(f, "{key}!={value}"),
                values => write!(f, "{key} notin ({})", values.join(",")),
            },
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
        }
    }
}

impl Selector {
    /// Compiles label/value pairs of which all must hold.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, Error> {
        let mut seen = BTreeMap::new();
        for (key, value) in pairs {
            if seen.insert(key, value).is_some() {
                return Err(Error::Duplicate { key: key.to_owned() });
            }
        }
        let requirement = |(key, value): (&str, &str)| Requirement {
            key: key.to_owned(),
            operator: Operator::In(vec![value.to_owned()]),
        };
        Self::new(seen.into_iter().map(requirement).collect())
    }

    /// Compiles requirements; they are sorted, so that equal selectors read equal.
    pub fn new(mut requirements: Vec<Requirement>) -> Result<Self, Error> {
        requirements.iter().try_for_each(Requirement::check)?;
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self(requirements))
    }

    /// Whether a resource with these labels is selected.
    pub fn matches(&self, labels: &Labels<'_>) -> bool {
        self.0.iter().all(|requirement| requirement.holds(labels))
    }

    /// A label whose requirements no resource can meet.
    pub fn contradiction(&self) -> Option<&str> {
        // Sorted by key, so that all requirements for one label stand together.
        let of_one_label = self.0.chunk_by(|a, b| a.key == b.key);
        let contradicts = |requirements: &&[Requirement]| {
            let candidates = requirements.iter().find_map(|requirement| match &requirement.operator {
                Operator::In(values) => Some(values.iter().map(|value| Some(value.as_str())).collect()),
                Operator::NotIn(_) | Operator::Exists | Operator::DoesNotExist => None,
            });
            // Without a list of values there are infinitely many: one that nobody names stands for them.
            let candidates: Vec<Option<&str>> = candidates.unwrap_or_else(|| vec![None, Some("\0")]);
            !candidates.iter().any(|value| requirements.iter().all(|requirement| requirement.operator.takes(*value)))
        };
        of_one_label.filter(contradicts).find_map(|requirements| Some(requirements.first()?.key.as_str()))
    }

    /// Each requirement.
    pub fn requirements(&self) -> &[Requirement] {
        &self.0
    }

    /// Whether it asks for this label.
    pub fn reads(&self, key: &str) -> bool {
        self.0.iter().any(|requirement| requirement.key == key)
    }

    /// Whether everything is selected.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    /// What today's API can filter by, as its `search` parameter; the rest is left to [`Self::matches`].
    pub fn search(&self) -> Option<String> {
        let mut search = String::new();
        for Requirement { key, operator } in self.0.iter().filter(|requirement| is_searchable(&requirement.key)) {
            let term = match operator {
                Operator::In(values) => match values.as_slice() {
                    [value] => format!("labels.{key}={}", quote(value)),
                    values => format!("labels.{key} in [{}]", join(values.iter().map(|value| quote(value)), ",")),
                },
                // In SQL a missing label is NULL, which no comparison matches.
                Operator::NotIn(values) => {
                    let differs = join(values.iter().map(|value| format!("labels.{key} != {}", quote(value))), " and ");
                    format!("(labels.{key} is null or ({differs}))")
                }
                Operator::Exists => format!("labels.{key} like '%'"),
                Operator::DoesNotExist => format!("labels.{key} is null"),
            };
            let joint = if search.is_empty() { "" } else { " and " };
            if search.len() + joint.len() + term.len() <= MAX_SEARCH {
                search.push_str(joint);
                search.push_str(&term);
            }
        }
        (!search.is_empty()).then_some(search)
    }

    /// Whether the API can search for all of it.
    pub fn is_searchable(&self) -> bool {
        self.0.iter().all(|requirement| is_searchable(&requirement.key))
    }

    /// The selector in Kubernetes syntax: the `labels` parameter of older APIs, and the `shard` label of metrics.
    pub fn labels(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| join(self.0.iter().map(ToString::to_string), ","))
    }

    /// The selector as the `resource_selector` label of metrics: `region:us-east`, or `all`.
    pub fn metric_label(&self) -> String {
        let Some(labels) = self.labels() else { return "all".to_owned() };
        let only_pairs =
            self.0.iter().all(|requirement| matches!(&requirement.operator, Operator::In(v) if v.len() == 1));
        if only_pairs { labels.replace('=', ":") } else { labels }
    }
}

/// Quotes a value for `search`; a quote inside is doubled.
fn quote(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

fn join(terms: impl Iterator<Item = String>, separator: &str) -> String {
    terms.enumerate().fold(String::new(), |mut out, (index, term)| {
        // Writing to a String cannot fail.
        let _infallible = write!(out, "{}{term}", if index == 0 { "" } else { separator });
        out
    })
}

/// The API's lexer ends an identifier at any other character; a hyphen becomes a subtraction and a 400.
fn is_searchable(key: &str) -> bool {
    key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/'))
}

fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => {
            !prefix.is_empty() && prefix.len() <= 253 && prefix.split('.').all(is_dns) && is_name(name)
        }
        None => is_name(key),
    }
}

fn is_dns(label: &str) -> bool {
    let inner = label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    inner && !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
}

fn is_name(name: &str) -> bool {
    let ends = |c: char| c.is_ascii_alphanumeric();
    name.len() <= 63
        && name.starts_with(ends)
        && name.ends_with(ends)
        && name.chars().all(|c| ends(c) || matches!(c, '-' | '_' | '.'))
}

#[cfg(test)]
mod tests;
