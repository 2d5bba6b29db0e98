//! Values of any kind, but for numbers that JSON does not have: as JSON they would be null, which says that nothing is
//! there.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde_json::{Map, Value};

/// Reads a value, or nothing.
pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    let Finite(value) = Finite::deserialize(deserializer)?;
    Ok(Some(value).filter(|value| !value.is_null()))
}

struct Finite(Value);

impl<'de> Deserialize<'de> for Finite {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Value;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value that JSON has; a text that looks like a number stands in quotes")
            }
            fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
                Ok(flag.into())
            }
            fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
                Ok(number.into())
            }
            fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
                Ok(number.into())
            }
            fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
                let found = || E::invalid_value(Unexpected::Other("no finite number"), &self);
                serde_json::Number::from_f64(number).map(Value::Number).ok_or_else(found)
            }
            fn visit_str<E>(self, text: &str) -> Result<Value, E> {
                Ok(text.into())
            }
            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }
            fn visit_none<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }
            fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<Value, D::Error> {
                value.deserialize_any(self)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
                let mut items = Vec::new();
                while let Some(Finite(item)) = list.next_element()? {
                    items.push(item);
                }
                Ok(items.into())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                let mut entries = Map::new();
                while let Some((key, Finite(value))) = map.next_entry::<String, _>()? {
                    entries.insert(key, value);
                }
                Ok(entries.into())
            }
        }
        deserializer.deserialize_any(Any).map(Self)
    }
}
