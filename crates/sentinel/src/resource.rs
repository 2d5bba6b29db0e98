//! Reads one resource of the API as the decision sees it.
//!
//! The view is tolerant: it takes today's conditions and the phases of older APIs, snake and camel case, and knows
//! which field is honest. Times are read to the second, as the API projects them. Against today's API
//! `Reconciled.observed_generation` always equals `generation`, so what the adapters have seen is the minimum over
//! their own `*Successful` conditions.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A resource as the decision sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource<'a> {
    /// Identity at the API; the only field that must be there.
    pub id: Cow<'a, str>,
    /// As served, for example `Cluster`; empty when the API does not say.
    pub kind: Cow<'a, str>,
    /// What the user wants; absent in the oldest dialect.
    pub generation: Option<i64>,
    /// Labels, wherever the dialect puts them.
    pub labels: Labels<'a>,
    /// Since when it is on its way to deletion.
    pub deleted_time: Option<Timestamp>,
    /// What the adapters reported.
    pub status: Status,
}

/// What the adapters reported, in one shape for all dialects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    /// Whether the resource is Ready (phase) or Reconciled (conditions).
    pub ready: bool,
    /// The generation that every reporting adapter has seen; absent before the first report.
    pub observed_generation: Option<i64>,
    /// When the adapters last reported, as the API aggregates it.
    pub last_updated: Option<Timestamp>,
    /// When the state last changed.
    pub last_transition: Option<Timestamp>,
    /// When the state, or what one of the adapters says of its part, last changed; not looked for while ready.
    pub last_progress: Option<Timestamp>,
}

/// Why a resource could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not the JSON object that a resource is.
    #[error("read a resource")]
    Malformed {
        /// Where and what.
        #[source]
        source: serde_json::Error,
    },
    /// Without an id nobody can be told which resource it is.
    #[error("read a resource without an id")]
    NoId,
    /// A time that is not RFC 3339.
    #[error("read time {value:?} in {field} of resource {id}")]
    Time {
        /// Which resource.
        id: String,
        /// Which field.
        field: &'static str,
        /// What stands there.
        value: String,
        /// What is wrong with it.
        #[source]
        source: jiff::Error,
    },
}

/// What a resource has at its top besides what the decision needs: what most events are made of.
#[derive(Debug, Clone)]
pub(crate) struct Top<'a> {
    pub(crate) kind: Option<Cow<'a, str>>,
    pub(crate) generation: Option<i64>,
    pub(crate) href: Option<&'a RawValue>,
    pub(crate) owner_references: Option<&'a RawValue>,
    /// When the resource itself was last changed, in both spellings.
    pub(crate) updated: [Option<&'a RawValue>; 2],
}

impl<'a> Resource<'a> {
    /// Reads the view from one item of a list.
    pub fn parse(json: &'a str) -> Result<Self, Error> {
        Self::read(json).map(|(resource, _)| resource)
    }

    /// Reads the view, and what else stands at the top.
    pub(crate) fn read(json: &'a str) -> Result<(Self, Top<'a>), Error> {
        let malformed = |error| Error::Malformed { source: without_text(error) };
        // A list would be taken for the fields of an object, by their order.
        if json.trim_start().starts_with('[') {
            return Err(malformed(serde::de::Error::custom("expected an object, found a list")));
        }
        let raw: Raw<'a> = serde_json::from_str(json).map_err(malformed)?;
        let id = raw.id.map(|text| text.0).filter(|id| !id.is_empty()).ok_or(Error::NoId)?;
        let status = raw.status.map_or(Ok(Status::default()), |status| status.read(&id))?;
        let (metadata_labels, metadata_generation) =
            raw.metadata.map_or((None, None), |metadata| (metadata.labels, metadata.generation));
        let deleted_time = parse_time(&id, "deleted_time", raw.deleted_time.as_ref())?;
        let kind = raw.kind.map(|text| text.0);
        let resource = Self {
            id,
            kind: kind.clone().unwrap_or_default(),
            generation: raw.generation.or(metadata_generation),
            labels: raw.labels.or(metadata_labels).unwrap_or_default(),
            deleted_time,
            status,
        };
        let top = Top {
            kind,
            generation: raw.generation,
            href: raw.href,
            owner_references: raw.owner_references,
            updated: [raw.updated_time, raw.updated_time_in_camel_case],
        };
        Ok((resource, top))
    }
}

/// Reads only the id of an item, for the cursor of the next page.
pub fn parse_id(json: &str) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct OnlyId<'a> {
        #[serde(borrow)]
        id: Option<Text<'a>>,
    }
    serde_json::from_str::<OnlyId<'_>>(json).ok()?.id.map(|text| text.0)
}

/// An error of the wrong shape without the text that it quotes: that is of the body, and may be long.
pub(crate) fn without_text(error: serde_json::Error) -> serde_json::Error {
    if !error.is_data() {
        return error;
    }
    let message = error.to_string();
    let quoted = message.find('"').zip(message.rfind('"')).filter(|(from, to)| from < to);
    match quoted.and_then(|(from, to)| message.get(..from).zip(message.get(to + 1..))) {
        Some((before, after)) => de::Error::custom(format_args!("{before}(not shown){after}")),
        None => error,
    }
}

/// Label pairs in the order the API wrote them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Labels<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl Labels<'_> {
    /// Every label with its value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_ref(), value.as_ref()))
    }

    /// The value of a label, if the resource has it.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_ref())
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Labels<'a> {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
    }
}

#[derive(Deserialize)]
#[serde(expecting = "an object, the resource")]
struct Raw<'a> {
    #[serde(borrow)]
    id: Option<Text<'a>>,
    #[serde(borrow)]
    kind: Option<Text<'a>>,
    generation: Option<i64>,
    #[serde(borrow)]
    labels: Option<Labels<'a>>,
    #[serde(borrow, alias = "deletedTime")]
    deleted_time: Option<Text<'a>>,
    #[serde(borrow)]
    metadata: Option<RawMetadata<'a>>,
    #[serde(borrow)]
    status: Option<RawStatus<'a>>,
    #[serde(borrow)]
    href: Option<&'a RawValue>,
    #[serde(borrow)]
    owner_references: Option<&'a RawValue>,
    #[serde(borrow)]
    updated_time: Option<&'a RawValue>,
    #[serde(borrow, rename = "updatedTime")]
    updated_time_in_camel_case: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct RawMetadata<'a> {
    generation: Option<i64>,
    #[serde(borrow)]
    labels: Option<Labels<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct RawStatus<'a> {
    #[serde(borrow)]
    phase: Option<Text<'a>>,
    #[serde(alias = "observedGeneration")]
    observed_generation: Option<i64>,
    #[serde(borrow, alias = "lastUpdatedTime")]
    last_updated_time: Option<Text<'a>>,
    #[serde(borrow, alias = "lastTransitionTime")]
    last_transition_time: Option<Text<'a>>,
    #[serde(borrow)]
    conditions: Option<Vec<RawCondition<'a>>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct RawCondition<'a> {
    #[serde(borrow, rename = "type")]
    ty: Option<Text<'a>>,
    #[serde(borrow)]
    status: Option<Text<'a>>,
    #[serde(alias = "observedGeneration")]
    observed_generation: Option<i64>,
    #[serde(borrow, alias = "lastUpdatedTime")]
    last_updated_time: Option<Text<'a>>,
    #[serde(borrow, alias = "lastTransitionTime")]
    last_transition_time: Option<Text<'a>>,
}

impl RawStatus<'_> {
    fn read(&self, id: &str) -> Result<Status, Error> {
        let conditions = self.conditions.as_deref().unwrap_or_default();
        let named = |name: &str| conditions.iter().find(|condition| condition.is(name));
        let summary = named("Reconciled").or_else(|| named("Ready"));

        let ready = match (&self.phase, summary) {
            (Some(phase), _) => phase.0 == "Ready",
            (None, Some(summary)) => summary.status.as_ref().is_some_and(|status| status.0 == "True"),
            (None, None) => false,
        };
        let updated = self.last_updated_time.as_ref().or_else(|| summary?.last_updated_time.as_ref());
        let transition = self.last_transition_time.as_ref().or_else(|| summary?.last_transition_time.as_ref());
        let last_transition = parse_time(id, "last_transition_time", transition)?;
        Ok(Status {
            ready,
            // Where no adapter has a condition of its own, one that is ready has been seen by whoever made it so.
            observed_generation: self
                .observed_generation
                .or_else(|| seen_by_all(conditions))
                .or_else(|| summary.filter(|_| ready)?.observed_generation),
            last_updated: parse_time(id, "last_updated_time", updated)?,
            last_transition,
            last_progress: if ready { None } else { last_transition.max(last_step(id, conditions)) },
        })
    }
}

/// The conditions that adapters have of their own.
fn of_adapters<'c, 'a>(conditions: &'c [RawCondition<'a>]) -> impl Iterator<Item = &'c RawCondition<'a>> {
    conditions.iter().filter(|condition| condition.ty.as_ref().is_some_and(|ty| ty.0.ends_with("Successful")))
}

/// The generation that every adapter with a report has seen.
fn seen_by_all(conditions: &[RawCondition<'_>]) -> Option<i64> {
    of_adapters(conditions).map(|condition| condition.observed_generation.unwrap_or(0)).min()
}

/// When an adapter last said something else than before; a time that cannot be read is no reason to refuse the rest.
fn last_step(id: &str, conditions: &[RawCondition<'_>]) -> Option<Timestamp> {
    let step = |it: &RawCondition<'_>| parse_time(id, "last_transition_time", it.last_transition_time.as_ref()).ok()?;
    of_adapters(conditions).filter_map(step).max()
}

impl RawCondition<'_> {
    fn is(&self, name: &str) -> bool {
        self.ty.as_ref().is_some_and(|ty| ty.0 == name)
    }
}

fn parse_time(id: &str, field: &'static str, text: Option<&Text<'_>>) -> Result<Option<Timestamp>, Error> {
    // Go writes an unset time as the year 1; an empty string means the same.
    let Some(text) = text.filter(|text| !text.0.is_empty() && !text.0.starts_with("0001-01-01T00:00:00")) else {
        return Ok(None);
    };
    text.0
        .parse()
        .map(to_the_second)
        .or_else(|error| beyond(&text.0).ok_or(error))
        .map(Some)
        .map_err(|source| Error::Time { id: id.to_owned(), field, value: text.0.chars().take(64).collect(), source })
}

/// Without the fraction, which the API cuts off where it projects and keeps where it does not: both ways a resource
/// reads the same, and its events have the same ids.
fn to_the_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The end of the year 9999, which some write for "never", is beyond what a timestamp holds: its end stands for it.
fn beyond(text: &str) -> Option<Timestamp> {
    let year_before = text.strip_prefix("9999-12-3").map(|rest| format!("9998-12-3{rest}"))?;
    year_before.parse::<Timestamp>().is_ok().then_some(Timestamp::MAX)
}

/// A string that borrows from the input unless it holds escapes; `Option<Cow<str>>` never borrows in serde.
pub(crate) struct Text<'a>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Labels<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LabelsVisitor;
        impl<'de> Visitor<'de> for LabelsVisitor {
            type Value = Labels<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels<'de>, A::Error> {
                let mut pairs = Vec::new();
                while let Some((key, value)) = map.next_entry::<Text<'de>, Text<'de>>()? {
                    pairs.push((key.0, value.0));
                }
                Ok(Labels(pairs))
            }
        }
        deserializer.deserialize_map(LabelsVisitor)
    }
}

#[cfg(test)]
mod tests;
