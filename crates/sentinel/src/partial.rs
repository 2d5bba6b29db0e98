//! Reads of a resource only the fields that somebody wants: the rest is checked to be JSON, and not kept.
//!
//! A field that is null counts as one that is not there: today's API leaves out what it does not have, but where it
//! projects it writes null.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Error, Map, Value};

use crate::resource::{Resource, Text, Top};

/// When a resource itself was last changed, in both spellings.
pub(crate) const UPDATED: [&str; 2] = ["updated_time", "updatedTime"];

/// Reads the top-level `fields` of a JSON object, or all of it.
pub(crate) fn read(json: &str, fields: Option<&BTreeSet<String>>) -> Result<Value, Error> {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let object = Wanted(fields).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(Value::Object(object))
}

/// The top-level fields of a JSON object that are wanted, as they are served.
pub(crate) struct Served<'a>(Vec<(Cow<'a, str>, Part<'a>)>);

/// The value of a field.
pub(crate) enum Part<'a> {
    Text(Cow<'a, str>),
    Number(i64),
    /// A text, whole number or boolean, written as we would write it.
    Plain(&'a RawValue),
    Read(Value),
}

/// What [`Served::at_top`] has.
const AT_TOP: [&str; 7] = ["id", "kind", "generation", "href", "owner_references", UPDATED[0], UPDATED[1]];

impl<'a> Served<'a> {
    /// As [`read`], without reading what can be copied.
    pub(crate) fn read(json: &'a str, fields: &BTreeSet<String>) -> Result<Self, Error> {
        let mut deserializer = serde_json::Deserializer::from_str(json);
        let parts = deserializer.deserialize_map(Parts(fields))?;
        deserializer.end()?;
        Ok(Self(parts))
    }

    /// Whether these fields are among those of [`Served::at_top`].
    pub(crate) fn are_at_top(fields: &BTreeSet<String>) -> bool {
        fields.iter().all(|field| AT_TOP.contains(&field.as_str()))
    }

    /// As [`Served::read`] of the fields that were read with the view.
    pub(crate) fn at_top(resource: &Resource<'a>, top: &Top<'a>) -> Result<Self, Error> {
        let Top { kind, generation, href, owner_references, updated } = top;
        let mut parts = Vec::with_capacity(AT_TOP.len());
        parts.push(("id".into(), Part::Text(resource.id.clone())));
        parts.extend(kind.clone().map(|kind| ("kind".into(), Part::Text(kind))));
        parts.extend(generation.map(|generation| ("generation".into(), Part::Number(generation))));
        let raw = [("href", href), ("owner_references", owner_references)];
        for (name, raw) in raw.into_iter().chain(UPDATED.into_iter().zip(updated)) {
            if let Some(part) = raw.map_or(Ok(None), Part::new)? {
                parts.push((name.into(), part));
            }
        }
        Ok(Self(parts))
    }

    pub(crate) fn get(&self, field: &str) -> Option<&Part<'a>> {
        // Of those that are there twice the last counts; the view refuses most of them.
        self.0.iter().rev().find(|(name, _)| name == field).map(|(_, part)| part)
    }
}

impl<'a> Part<'a> {
    /// Nothing for null.
    fn new(raw: &'a RawValue) -> Result<Option<Self>, Error> {
        let text = raw.get();
        let plain = match text.as_bytes() {
            b"null" => return Ok(None),
            b"true" | b"false" => true,
            [b'"', ..] => !text.contains('\\'),
            // So many digits fit a number of 64 bits, and what is no digit is of a number that may be written
            // otherwise.
            digits => digits.len() <= 18 && digits.iter().all(u8::is_ascii_digit),
        };
        Ok(Some(if plain { Self::Plain(raw) } else { Self::Read(serde_json::from_str(text)?) }))
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Number(_) => None,
            Self::Plain(raw) => raw.get().strip_prefix('"')?.strip_suffix('"'),
            Self::Read(value) => value.as_str(),
        }
    }
}

impl Serialize for Part<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Number(number) => serializer.serialize_i64(*number),
            Self::Plain(raw) => raw.serialize(serializer),
            Self::Read(value) => value.serialize(serializer),
        }
    }
}

struct Parts<'f>(&'f BTreeSet<String>);

impl<'de> Visitor<'de> for Parts<'_> {
    type Value = Vec<(Cow<'de, str>, Part<'de>)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut parts = Vec::with_capacity(self.0.len());
        while let Some(Text(key)) = map.next_key()? {
            if !self.0.contains(&*key) {
                map.next_value::<IgnoredAny>()?;
            } else if let Some(part) = Part::new(map.next_value()?).map_err(A::Error::custom)? {
                parts.push((key, part));
            }
        }
        Ok(parts)
    }
}

struct Wanted<'a>(Option<&'a BTreeSet<String>>);

impl<'de> DeserializeSeed<'de> for Wanted<'_> {
    type Value = Map<String, Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Wanted<'_> {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut object = Map::with_capacity(self.0.map_or(0, BTreeSet::len));
        while let Some(Text(key)) = map.next_key()? {
            if self.0.is_some_and(|fields| !fields.contains(&*key)) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            match map.next_value()? {
                Value::Null => {}
                value => _ = object.insert(key.into_owned(), value),
            }
        }
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_some(json: &str, fields: &[&str]) -> Result<Value, serde_json::Error> {
        read(json, Some(&fields.iter().map(|&field| field.to_owned()).collect()))
    }

    #[test]
    fn only_the_wanted_fields_are_kept_whole_and_in_order() {
        let json = r#"{"b":{"x":[1,2]},"spec":{"deep":{}},"\u0061":"A"}"#;
        assert_eq!(read_some(json, &["a", "b", "c"]).unwrap().to_string(), r#"{"b":{"x":[1,2]},"a":"A"}"#);
        assert_eq!(read(json, None).unwrap().as_object().unwrap().len(), 3);
    }

    #[test]
    fn null_is_nothing_as_far_as_a_resource_has_it_at_its_top() {
        let json = r#"{"a":null,"b":{"c":null}}"#;
        assert_eq!(read(json, None).unwrap().to_string(), r#"{"b":{"c":null}}"#);
        assert_eq!(read_some(json, &["a", "b"]).unwrap().to_string(), r#"{"b":{"c":null}}"#);
    }

    #[test]
    fn what_is_skipped_must_be_json_all_the_same() {
        for json in ["[]", "{", r#"{"a":1,"b":}"#, r#"{"a":1} x"#] {
            assert!(read_some(json, &["a"]).is_err(), "{json}");
        }
    }
}
