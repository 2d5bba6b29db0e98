//! Which keys would have been right where an unknown one stands.
//!
//! The names come from the type itself: a deserializer with no data walks down the path and notes the fields that the
//! type asks for at its end. Where the type takes any key (a map, a flattened struct) there is nothing to suggest.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, Visitor};

/// Says that the key at the end of `path` is unknown, and which one was probably meant.
pub(super) fn complaint<T: DeserializeOwned>(path: &[String]) -> String {
    let Some((written, parents)) = path.split_last() else { return "unknown key".to_owned() };
    let fields = fields_at::<T>(parents);
    match nearest(written, fields) {
        Some(field) => format!("unknown key, did you mean {field}?"),
        None if fields.is_empty() => "unknown key".to_owned(),
        None => format!("unknown key, known are {}", fields.join(", ")),
    }
}

/// The name that was probably meant: the same but for case and separators, else the nearest by edits.
pub fn nearest<'f>(written: &str, fields: &[&'f str]) -> Option<&'f str> {
    let folded = |name: &str| name.replace(['_', '-'], "").to_lowercase();
    let written = folded(written);
    let distance = |field: &&str| strsim::damerau_levenshtein(&written, &folded(field));
    // A third of the letters may be wrong; beyond that a suggestion misleads.
    let allowed = (written.chars().count() / 3).max(1);
    fields.iter().copied().min_by_key(distance).filter(|field| distance(field) <= allowed)
}

/// The fields that `T` knows at `path`; none where it takes any key.
fn fields_at<T: DeserializeOwned>(path: &[String]) -> &'static [&'static str] {
    match T::deserialize(Walk { path }) {
        Err(Found(fields)) => fields,
        Ok(_) => &[],
    }
}

/// Ends the walk and carries what it found.
#[derive(Debug)]
struct Found(&'static [&'static str]);

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fields found")
    }
}

impl std::error::Error for Found {}

impl de::Error for Found {
    fn custom<M: fmt::Display>(_: M) -> Self {
        Self(&[])
    }
}

#[derive(Clone, Copy)]
struct Walk<'p> {
    path: &'p [String],
}

impl<'de> Deserializer<'de> for Walk<'_> {
    type Error = Found;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Found> {
        match self.path.split_first() {
            None => Err(Found(fields)),
            Some(step) => visitor.visit_map(Step::from(step)),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Found> {
        self.path.split_first().map_or(Err(Found(&[])), |step| visitor.visit_map(Step::from(step)))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Found> {
        self.path.split_first().map_or(Err(Found(&[])), |step| visitor.visit_seq(Step::from(step)))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Found> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Found> {
        visitor.visit_newtype_struct(self)
    }

    /// A type that takes several forms: the next step of the path says which one is written.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Found> {
        match self.path.split_first() {
            None => Err(Found(&[])),
            Some(step) if step.0.bytes().all(|byte| byte.is_ascii_digit()) => visitor.visit_seq(Step::from(step)),
            Some(step) => visitor.visit_map(Step::from(step)),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct tuple
        tuple_struct enum identifier ignored_any
    }
}

/// The one entry of a map or list that the path goes through.
struct Step<'p> {
    key: Option<&'p str>,
    rest: &'p [String],
}

impl<'p> From<(&'p String, &'p [String])> for Step<'p> {
    fn from((key, rest): (&'p String, &'p [String])) -> Self {
        Self { key: Some(key), rest }
    }
}

impl<'de> de::MapAccess<'de> for Step<'_> {
    type Error = Found;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Found> {
        let Some(key) = self.key.take() else { return Err(Found(&[])) };
        let key: StrDeserializer<'_, Found> = key.into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Found> {
        seed.deserialize(Walk { path: self.rest })
    }
}

impl<'de> de::SeqAccess<'de> for Step<'_> {
    type Error = Found;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Found> {
        seed.deserialize(Walk { path: self.rest }).map(Some)
    }
}
