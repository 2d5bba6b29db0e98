//! The values of an expression while it runs: they borrow from the resource and from the expression.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::ser::{Error as _, Serialize, SerializeMap, Serializer};
use serde_json::{Value as Json, json};

use super::time::{self, Moment};
use crate::resource::Resource;

/// Characters of a text that are shown to whoever asks.
const MAX_SHOWN: usize = 300;

/// A value of an expression.
#[derive(Debug, Clone)]
pub(super) enum Value<'v> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Text<'v>),
    Timestamp(Moment),
    /// Nanoseconds, as in Go.
    Duration(i64),
    List(Arc<[Value<'v>]>),
    Map(Arc<[(Value<'v>, Value<'v>)]>),
    /// A list or an object of the resource.
    Json(&'v Json),
    Record(Record<'v>),
    Type(Type),
}

/// Text of the resource or of the expression, or made meanwhile.
#[derive(Debug, Clone)]
pub(super) enum Text<'v> {
    Borrowed(&'v str),
    Made(Arc<str>),
}

/// A map whose fields are known beforehand.
#[derive(Debug, Clone, Copy)]
pub(super) enum Record<'v> {
    /// `condition(name)`: a condition of the resource, or none.
    Condition(Option<&'v Json>),
    /// `summary()`.
    Summary(&'v Resource<'v>),
}

/// What `type(x)` yields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Timestamp,
    Duration,
    List,
    Map,
    Meta,
}

impl Type {
    pub(super) const ALL: [Self; 11] = [
        Self::Null,
        Self::Bool,
        Self::Int,
        Self::Uint,
        Self::Double,
        Self::String,
        Self::Timestamp,
        Self::Duration,
        Self::List,
        Self::Map,
        Self::Meta,
    ];

    /// The name of the type as a value.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::Duration => "google.protobuf.Duration",
            other => other.short(),
        }
    }

    /// The name of the function that converts to it; where there is none, the same as a value.
    pub(super) const fn short(self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Timestamp => "timestamp",
            Self::Duration => "duration",
            Self::List => "list",
            Self::Map => "map",
            Self::Meta => "type",
        }
    }
}

impl Text<'_> {
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Made(text) => text,
        }
    }
}

impl Record<'_> {
    /// The fields of a condition, and their types.
    pub(super) const CONDITION: [(&'static str, Type); 6] = [
        ("status", Type::String),
        ("observed_generation", Type::Int),
        ("last_updated_time", Type::String),
        ("last_transition_time", Type::String),
        ("reason", Type::String),
        ("message", Type::String),
    ];

    /// The fields of the summary, and their types.
    pub(super) const SUMMARY: [(&'static str, Type); 6] = [
        ("generation", Type::Int),
        ("observed_generation", Type::Int),
        ("observed_ahead", Type::Bool),
        ("ready", Type::Bool),
        ("last_updated_time", Type::String),
        ("last_transition_time", Type::String),
    ];

    /// Its fields, in this order.
    pub(super) fn fields(&self) -> &'static [(&'static str, Type)] {
        match self {
            Self::Condition(_) => &Self::CONDITION,
            Self::Summary(_) => &Self::SUMMARY,
        }
    }
}

impl<'v> Record<'v> {
    pub(super) fn get(self, field: &str) -> Option<Value<'v>> {
        match self {
            Self::Condition(condition) => {
                let (field, kind) = Self::CONDITION.iter().find(|(known, _)| *known == field)?;
                let found = condition.and_then(|condition| condition.get(*field));
                Some(match kind {
                    Type::Int => Value::Int(found.and_then(Json::as_i64).unwrap_or(0)),
                    _ => Value::text(found.and_then(Json::as_str).unwrap_or("")),
                })
            }
            Self::Summary(resource) => {
                let status = &resource.status;
                let time = |time: Option<Timestamp>| {
                    time.map_or_else(|| Value::text(""), |time| Value::made(&time::format_timestamp(time.into())))
                };
                Some(match field {
                    "generation" => Value::Int(resource.generation.unwrap_or(0)),
                    "observed_generation" => Value::Int(status.observed_generation.unwrap_or(0)),
                    "observed_ahead" => Value::Bool(
                        resource.generation.is_some_and(|wanted| status.observed_generation.unwrap_or(0) > wanted),
                    ),
                    "ready" => Value::Bool(status.ready),
                    "last_updated_time" => time(status.last_updated),
                    "last_transition_time" => time(status.last_transition),
                    _ => return None,
                })
            }
        }
    }
}

impl<'v> Value<'v> {
    pub(super) fn text(text: &'v str) -> Self {
        Self::Text(Text::Borrowed(text))
    }

    pub(super) fn made(text: &str) -> Self {
        Self::Text(Text::Made(text.into()))
    }

    pub(super) fn list(items: Vec<Self>) -> Self {
        Self::List(items.into())
    }

    /// A part of the resource. As in a Go program that decodes JSON, a number is a double; the generations are the
    /// integers that they are by their API.
    pub(super) fn of_json(key: &str, json: &'v Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => match number.as_i64() {
                Some(value) if matches!(key, "generation" | "observed_generation") => Self::Int(value),
                _ => Self::Double(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Self::text(text),
            Json::Array(_) | Json::Object(_) => Self::Json(json),
        }
    }

    pub(super) fn kind(&self) -> Type {
        match self {
            Self::Null => Type::Null,
            Self::Bool(_) => Type::Bool,
            Self::Int(_) => Type::Int,
            Self::Uint(_) => Type::Uint,
            Self::Double(_) => Type::Double,
            Self::Text(_) => Type::String,
            Self::Timestamp(_) => Type::Timestamp,
            Self::Duration(_) => Type::Duration,
            Self::Json(Json::Array(_)) | Self::List(_) => Type::List,
            Self::Json(_) | Self::Map(_) | Self::Record(_) => Type::Map,
            Self::Type(_) => Type::Meta,
        }
    }

    /// How many elements a list or a map has.
    pub(super) fn len(&self) -> Option<usize> {
        Some(match self {
            Self::List(items) => items.len(),
            Self::Map(entries) => entries.len(),
            Self::Json(Json::Array(items)) => items.len(),
            Self::Json(Json::Object(map)) => map.len(),
            Self::Record(record) => record.fields().len(),
            _ => return None,
        })
    }

    /// What whoever asks is shown of it: a text in short, and of a list or a map its size alone, since it may be the
    /// resource as a whole.
    pub(super) fn shown(&self) -> Json {
        match (self, self.len()) {
            (_, Some(size)) => json!({"type": self.kind().short(), "size": size}),
            (Self::Text(text), None) => match text.as_str().char_indices().nth(MAX_SHOWN) {
                Some((end, _)) => format!("{}…", &text.as_str()[..end]).into(),
                None => text.as_str().into(),
            },
            (scalar, None) => serde_json::to_value(scalar).unwrap_or_default(),
        }
    }

    /// The element of a list at `index`.
    pub(super) fn nth(&self, index: usize) -> Option<Self> {
        match self {
            Self::List(items) => items.get(index).cloned(),
            Self::Json(Json::Array(items)) => items.get(index).map(|item| Self::of_json("", item)),
            _ => None,
        }
    }

    /// The elements of a list, or the keys of a map.
    pub(super) fn items(&self) -> Box<dyn Iterator<Item = Self> + '_> {
        match self {
            Self::List(items) => Box::new(items.iter().cloned()),
            Self::Map(entries) => Box::new(entries.iter().map(|(key, _)| key.clone())),
            Self::Json(Json::Array(items)) => Box::new(items.iter().map(|item| Self::of_json("", item))),
            Self::Json(Json::Object(map)) => Box::new(map.keys().map(|key| Self::text(key))),
            Self::Record(record) => Box::new(record.fields().iter().map(|(field, _)| Self::text(field))),
            _ => Box::new(std::iter::empty()),
        }
    }

    /// The value of a map under `key`.
    pub(super) fn get(&self, key: &Value<'_>) -> Option<Self> {
        match (self, key) {
            (Self::Json(Json::Object(map)), Value::Text(key)) => {
                map.get(key.as_str()).map(|value| Self::of_json(key.as_str(), value))
            }
            (Self::Record(record), Value::Text(key)) => record.get(key.as_str()),
            (Self::Map(entries), key) => {
                entries.iter().find(|(known, _)| same_key(known, key)).map(|(_, value)| value.clone())
            }
            _ => None,
        }
    }
}

/// Whether two keys are equal: numbers by their value, whatever their type.
pub(super) fn same_key(left: &Value<'_>, right: &Value<'_>) -> bool {
    match (left, right) {
        (Value::Bool(left), Value::Bool(right)) => left == right,
        (Value::Text(left), Value::Text(right)) => left.as_str() == right.as_str(),
        _ => numbers(left, right) == Ok(Some(Ordering::Equal)),
    }
}

/// Whether two values are equal; `charge` is told of each pair that is looked at, and may end it.
pub(super) fn equal<E>(
    left: &Value<'_>,
    right: &Value<'_>,
    charge: &mut dyn FnMut(usize) -> Result<(), E>,
) -> Result<bool, E> {
    charge(1)?;
    Ok(match (left, right) {
        (Value::Null, Value::Null) => true,
        (Value::Text(left), Value::Text(right)) => {
            let (left, right) = (left.as_str(), right.as_str());
            charge(left.len().min(right.len()) / BYTES_PER_UNIT)?;
            left == right
        }
        (Value::Timestamp(left), Value::Timestamp(right)) => left == right,
        (Value::Duration(left), Value::Duration(right)) => left == right,
        (Value::Type(left), Value::Type(right)) => left == right,
        (left, right) if left.kind() == right.kind() && left.len().is_some() => {
            if left.len() != right.len() {
                return Ok(false);
            }
            let is_map = left.kind() == Type::Map;
            let mut others = right.items();
            for item in left.items() {
                let pair = if is_map {
                    charge(left.search_cost(&item) + right.search_cost(&item))?;
                    left.get(&item).zip(right.get(&item))
                } else {
                    Some(item).zip(others.next())
                };
                let Some((left, right)) = pair else { return Ok(false) };
                if !equal(&left, &right, charge)? {
                    return Ok(false);
                }
            }
            true
        }
        _ => same_key(left, right),
    })
}

/// Bytes that are looked at, or made, for one unit of work.
pub(super) const BYTES_PER_UNIT: usize = 16;

impl Value<'_> {
    /// What it costs to look a key up.
    pub(super) fn search_cost(&self, key: &Value<'_>) -> usize {
        let entries = match self {
            Self::Map(entries) => entries.len(),
            _ => 1,
        };
        entries.saturating_mul(1 + key.bytes() / BYTES_PER_UNIT)
    }

    /// How long a text is; what is none counts as a step alone.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.as_str().len(),
            _ => 0,
        }
    }
}

/// Tells `charge` of all that is written of a value. Its parts may be shared, so that it is far larger than what it was
/// made of.
pub(super) fn written<E>(value: &Value<'_>, charge: &mut dyn FnMut(usize) -> Result<(), E>) -> Result<(), E> {
    charge(1 + value.bytes() / BYTES_PER_UNIT)?;
    let is_map = value.kind() == Type::Map;
    for item in value.items() {
        if is_map {
            charge(value.search_cost(&item))?;
            value.get(&item).map_or(Ok(()), |value| written(&value, charge))?;
        } else {
            written(&item, charge)?;
        }
    }
    Ok(())
}

/// These types have no order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoOrder;

/// Compares two numbers of any type; `None` when one is NaN.
fn numbers(left: &Value<'_>, right: &Value<'_>) -> Result<Option<Ordering>, NoOrder> {
    Ok(match (left, right) {
        (Value::Int(left), Value::Int(right)) => Some(left.cmp(right)),
        (Value::Uint(left), Value::Uint(right)) => Some(left.cmp(right)),
        (Value::Int(left), Value::Uint(right)) => Some(i128::from(*left).cmp(&i128::from(*right))),
        (Value::Uint(left), Value::Int(right)) => Some(i128::from(*left).cmp(&i128::from(*right))),
        (Value::Double(left), Value::Double(right)) => left.partial_cmp(right),
        (Value::Double(left), Value::Int(right)) => with_integer(*left, i128::from(*right)),
        (Value::Double(left), Value::Uint(right)) => with_integer(*left, i128::from(*right)),
        (Value::Int(left), Value::Double(right)) => with_integer(*right, i128::from(*left)).map(Ordering::reverse),
        (Value::Uint(left), Value::Double(right)) => with_integer(*right, i128::from(*left)).map(Ordering::reverse),
        _ => return Err(NoOrder),
    })
}

/// Exact, where converting the integer to a double would lose digits.
fn with_integer(double: f64, integer: i128) -> Option<Ordering> {
    if double.is_nan() {
        return None;
    }
    // Saturates, which is beyond every 64-bit integer on either side.
    #[expect(clippy::cast_possible_truncation, reason = "the part after the point is compared below")]
    let whole = double as i128;
    Some(whole.cmp(&integer).then_with(|| double.fract().partial_cmp(&0.0).unwrap_or(Ordering::Equal)))
}

/// Orders two values; `None` when one is NaN.
pub(super) fn order(left: &Value<'_>, right: &Value<'_>) -> Result<Option<Ordering>, NoOrder> {
    Ok(match (left, right) {
        (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
        (Value::Text(left), Value::Text(right)) => Some(left.as_str().cmp(right.as_str())),
        (Value::Timestamp(left), Value::Timestamp(right)) => Some(left.cmp(right)),
        (Value::Duration(left), Value::Duration(right)) => Some(left.cmp(right)),
        _ => return numbers(left, right),
    })
}

impl Serialize for Value<'_> {
    /// As JSON, in the way of Go: a time is text, a duration its nanoseconds, and a whole number has no point.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Int(value) | Self::Duration(value) => serializer.serialize_i64(*value),
            Self::Uint(value) => serializer.serialize_u64(*value),
            Self::Double(value) => match exact_integer(*value) {
                Some(whole) => serializer.serialize_i64(whole),
                None => serializer.serialize_f64(*value),
            },
            Self::Text(text) => serializer.serialize_str(text.as_str()),
            Self::Timestamp(time) => serializer.serialize_str(&time::format_timestamp(*time)),
            Self::Json(json) => json.serialize(serializer),
            Self::List(items) => serializer.collect_seq(items.iter()),
            Self::Map(_) | Self::Record(_) => {
                let mut map = serializer.serialize_map(self.len())?;
                for key in self.items() {
                    let name = key.as_key().ok_or_else(|| S::Error::custom("a key that is no scalar"))?;
                    map.serialize_entry(&*name, &self.get(&key))?;
                }
                map.end()
            }
            Self::Type(kind) => serializer.serialize_str(kind.name()),
        }
    }
}

impl Value<'_> {
    fn as_key(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            Self::Text(text) => Cow::Borrowed(text.as_str()),
            Self::Bool(value) => Cow::Owned(value.to_string()),
            Self::Int(value) => Cow::Owned(value.to_string()),
            Self::Uint(value) => Cow::Owned(value.to_string()),
            _ => return None,
        })
    }
}

/// The integer that a double is, where it is one that a double holds exactly.
pub(super) fn exact_integer(value: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() != 0.0 || value.abs() > EXACT {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, reason = "whole and within 53 bits")]
    Some(value as i64)
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.short())
    }
}
