//! Reads of a resource only the fields that somebody wants: the rest is checked to be JSON, and not kept.
//!
//! A field that is null counts as one that is not there: today's API leaves out what it does not have, but where it
//! projects it writes null.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

/// Reads the top-level `fields` of a JSON object, or all of it.
pub(crate) fn read(json: &str, fields: Option<&BTreeSet<String>>) -> Result<Value, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let object = Wanted(fields).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(Value::Object(object))
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
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if self.0.is_some_and(|fields| !fields.contains(key.as_ref())) {
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
