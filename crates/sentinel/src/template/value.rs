//! A value while a template runs, with Go's notions of truth, equality and order.

use std::cmp::Ordering;
use std::rc::Rc;

use serde_json::{Map, Value as Json};

/// Borrowed from the data or the template wherever possible.
#[derive(Clone, Debug)]
pub(super) enum Value<'v> {
    /// The constant `nil`.
    Nil,
    /// A key that is absent or null, and how it was written: the empty string, but false, empty and equal to `nil`.
    Missing(&'v str),
    Bool(bool),
    /// A byte of a string: what `index` of a string gives.
    Byte(u8),
    /// An integer of the template itself: Go's `int`.
    Int(i64),
    /// An integer of the data: Go's `int64`.
    Int64(i64),
    Float(f64),
    Str(&'v str),
    Text(Rc<str>),
    List(&'v [Json]),
    Map(&'v Map<String, Json>),
}

/// What Go compares by.
#[derive(PartialEq)]
enum Basic<'a> {
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Text(&'a str),
}

impl<'v> Value<'v> {
    /// A JSON value as Go sees it; `path` names it in case it is null.
    pub(super) fn new(json: &'v Json, path: &'v str) -> Self {
        match json {
            Json::Null => Value::Missing(path),
            Json::Bool(b) => Value::Bool(*b),
            Json::Number(n) => match n.as_i64() {
                Some(i) => Value::Int64(i),
                None => Value::Float(n.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(s) => Value::Str(s),
            Json::Array(list) => Value::List(list),
            Json::Object(map) => Value::Map(map),
        }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(s) => Some(s),
            Value::Text(s) => Some(s),
            Value::Missing(_) => Some(""),
            _ => None,
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Nil | Value::Missing(_) => false,
            Value::Bool(b) => *b,
            Value::Byte(b) => *b != 0,
            Value::Int(i) | Value::Int64(i) => *i != 0,
            Value::Float(f) => *f != 0.0,
            Value::Str(s) => !s.is_empty(),
            Value::Text(s) => !s.is_empty(),
            Value::List(list) => !list.is_empty(),
            Value::Map(map) => !map.is_empty(),
        }
    }

    /// Go's name of the type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Value::Nil => "nil",
            Value::Missing(_) | Value::Str(_) | Value::Text(_) => "string",
            Value::Bool(_) => "bool",
            Value::Byte(_) => "uint8",
            Value::Int(_) => "int",
            Value::Int64(_) => "int64",
            Value::Float(_) => "float64",
            Value::List(_) => "[]interface {}",
            Value::Map(_) => "map[string]interface {}",
        }
    }

    fn basic(&self) -> Option<Basic<'_>> {
        Some(match self {
            Value::Bool(b) => Basic::Bool(*b),
            Value::Byte(b) => Basic::Unsigned(u64::from(*b)),
            Value::Int(i) | Value::Int64(i) => Basic::Signed(*i),
            Value::Float(f) => Basic::Float(*f),
            other => Basic::Text(other.as_str()?),
        })
    }

    fn incomparable(&self, other: &Value<'_>) -> String {
        format!("incompatible types for comparison: {} and {}", self.type_name(), other.type_name())
    }

    /// `eq self other`.
    pub(super) fn equals(&self, other: &Value<'_>) -> Result<bool, String> {
        match (self, other) {
            (Value::Nil | Value::Missing(_), Value::Nil | Value::Missing(_)) => return Ok(true),
            // Nothing is unequal to every other type without an error, as in Go; an absent key is also "".
            (Value::Nil, _) | (_, Value::Nil) => return Ok(false),
            (Value::Missing(_), v) | (v, Value::Missing(_)) => return Ok(v.as_str() == Some("")),
            _ => {}
        }
        match (self.basic(), other.basic()) {
            (Some(Basic::Signed(a)), Some(Basic::Unsigned(b))) | (Some(Basic::Unsigned(b)), Some(Basic::Signed(a))) => {
                Ok(u64::try_from(a) == Ok(b))
            }
            (Some(a), Some(b)) if std::mem::discriminant(&a) == std::mem::discriminant(&b) => Ok(a == b),
            (None, None) => Err(format!("non-comparable type {}", self.type_name())),
            _ => Err(self.incomparable(other)),
        }
    }

    /// How the two are ordered; `None` for a NaN.
    pub(super) fn order(&self, other: &Value<'_>) -> Result<Option<Ordering>, String> {
        match (self.basic(), other.basic()) {
            (Some(Basic::Bool(_)) | None, _) | (_, None) => Err("invalid type for comparison".into()),
            (Some(Basic::Float(a)), Some(Basic::Float(b))) => Ok(a.partial_cmp(&b)),
            (Some(Basic::Text(a)), Some(Basic::Text(b))) => Ok(Some(a.cmp(b))),
            (Some(a), Some(b)) => match (a.integer(), b.integer()) {
                (Some(a), Some(b)) => Ok(Some(a.cmp(&b))),
                _ => Err(self.incomparable(other)),
            },
        }
    }
}

impl Basic<'_> {
    fn integer(&self) -> Option<i128> {
        match self {
            Basic::Signed(i) => Some(i128::from(*i)),
            Basic::Unsigned(u) => Some(i128::from(*u)),
            _ => None,
        }
    }
}
