//! Where each key of a YAML file stands, and the limits under which such a file is read.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess};
use serde_saphyr::{Options, Spanned};

/// Deep enough for any configuration of ours; the parser and serde recurse once per level.
const MAX_DEPTH: usize = 32;
/// Nodes of a file, aliases expanded: a 1 MiB file of ordinary shape has about 50,000.
const MAX_NODES: usize = 100_000;
/// Aliases save a person some typing; a bomb multiplies.
const MAX_ALIAS_EVENTS: usize = 10_000;

/// The options of both passes over a file.
pub(super) fn options() -> Options {
    serde_saphyr::options! {
        with_snippet: false,
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::Error,
        non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::PassThrough,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_ALIAS_EVENTS },
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH, max_nodes: MAX_NODES, flow_nesting_limit: MAX_DEPTH },
    }
}

/// A position in a file, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) line: u64,
    pub(super) column: u64,
}

impl From<Place> for (u64, u64) {
    fn from(place: Place) -> Self {
        (place.line, place.column)
    }
}

impl From<(u64, u64)> for Place {
    fn from((line, column): (u64, u64)) -> Self {
        Self { line, column }
    }
}

/// A file's name and the place of each of its keys.
#[derive(Debug)]
pub(super) struct Source {
    file: String,
    places: HashMap<String, Places>,
}

/// Where a key stands, and where its value begins; an item of a list has only a value.
#[derive(Clone, Copy, Debug)]
struct Places {
    key: Place,
    value: Place,
}

impl Source {
    /// Finds the place of every key; fails on what is no YAML, on duplicates and beyond the limits.
    pub(super) fn parse(file: &str, text: &str) -> Result<Self, serde_saphyr::Error> {
        let root: Node = serde_saphyr::from_str_with_options(text, options())?;
        let mut places = HashMap::new();
        root.collect("", &mut places);
        Ok(Self { file: file.to_owned(), places })
    }

    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// The place of a key, or of the nearest parent that is there.
    pub(super) fn place_of(&self, path: &str) -> Option<Place> {
        let path = normalized(path);
        let mut path = path.as_str();
        loop {
            if let Some(place) = self.places.get(path) {
                return Some(place.key);
            }
            path = path.rsplit_once('.')?.0;
        }
    }

    /// The outermost key of each line on which one begins.
    pub(super) fn lines(&self) -> BTreeMap<u64, String> {
        let mut lines: BTreeMap<u64, (u64, &str)> = BTreeMap::new();
        for (path, at) in &self.places {
            let key = (at.key.column, path.as_str());
            // An item of a list begins where its first key does: the key is the one that people see.
            let outer = |other: (u64, &str)| (key.0, other.1.len()) < (other.0, key.1.len());
            lines
                .entry(at.key.line)
                .and_modify(|other| {
                    if outer(*other) {
                        *other = key;
                    }
                })
                .or_insert(key);
        }
        lines.into_iter().map(|(line, (_, path))| (line, path.to_owned())).collect()
    }

    /// The text with null for the value of a key, every other line where it was; nothing where the key does not begin
    /// its line, so that it is not known where the value ends.
    pub(super) fn without(&self, text: &str, key: &str) -> Option<String> {
        let Places { key, value } = *self.places.get(&normalized(key))?;
        let zero_based = |at: u64| usize::try_from(at).ok()?.checked_sub(1);
        let (line, column) = (zero_based(key.line)?, zero_based(key.column)?);
        let mut lines: Vec<String> = text.split('\n').map(str::to_owned).collect();
        let first = lines.get_mut(line)?;
        if !first.chars().take(column).all(|c| matches!(c, ' ' | '-')) {
            return None;
        }
        if value.line == key.line {
            *first = first.chars().take(zero_based(value.column)?).collect();
        }
        let belongs = |line: &str| {
            let rest = line.trim_start_matches(' ');
            let indent = line.len() - rest.len();
            let closes = rest.starts_with(['-', ']', '}']) || key == value;
            rest.is_empty() || rest.starts_with('#') || indent > column || (indent == column && closes)
        };
        lines.iter_mut().skip(line + 1).take_while(|line| belongs(line)).for_each(String::clear);
        let rest = lines.join("\n");
        Self::parse(&self.file, &rest).is_ok().then_some(rest)
    }

    /// The key whose value begins at a position; what all have in common where a merge gives several the same.
    pub(super) fn key_at(&self, place: Place) -> String {
        let here = self.places.iter().filter(|(_, at)| at.value == place).map(|(path, _)| path.as_str());
        here.reduce(common_parent).map(displayed).unwrap_or_default()
    }
}

/// The path that both paths begin with.
fn common_parent<'p>(one: &'p str, other: &str) -> &'p str {
    let same = one.split('.').zip(other.split('.')).take_while(|(one, other)| one == other);
    let length: usize = same.map(|(part, _)| part.len() + ".".len()).sum();
    &one[..length.saturating_sub(".".len())]
}

/// `a[0].b` as `a.0.b`, the form of the index.
fn normalized(path: &str) -> String {
    path.replace('[', ".").replace(']', "")
}

/// `a.0.b` as `a[0].b`, the form people read.
pub(super) fn displayed(path: &str) -> String {
    let mut shown = String::with_capacity(path.len() + 2);
    for part in normalized(path).split('.') {
        if !shown.is_empty() && !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            shown.extend(["[", part, "]"]);
        } else {
            if !shown.is_empty() {
                shown.push('.');
            }
            shown.push_str(part);
        }
    }
    shown
}

/// The parts of a path of `serde_ignored`.
pub(super) fn segments(path: &serde_ignored::Path<'_>) -> Vec<String> {
    use serde_ignored::Path;
    let (parent, part) = match path {
        Path::Root => return Vec::new(),
        Path::Seq { parent, index } => (parent, Some(index.to_string())),
        Path::Map { parent, key } => (parent, Some(key.clone())),
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => (parent, None),
    };
    let mut parts = segments(parent);
    parts.extend(part);
    parts
}

/// A YAML tree of which only the shape and the places are kept.
enum Node {
    Scalar,
    List(Vec<Spanned<Node>>),
    Map(Vec<(Spanned<Key>, Spanned<Node>)>),
}

impl Node {
    fn collect(&self, path: &str, places: &mut HashMap<String, Places>) {
        let child = |part: &dyn fmt::Display| if path.is_empty() { part.to_string() } else { format!("{path}.{part}") };
        match self {
            Self::Scalar => {}
            Self::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    let path = child(&index);
                    item.value.collect(&path, places);
                    let value = place(&item.referenced);
                    places.insert(path, Places { key: value, value });
                }
            }
            Self::Map(entries) => {
                for (key, value) in entries {
                    let path = child(&key.value.0);
                    value.value.collect(&path, places);
                    places.insert(path, Places { key: place(&key.referenced), value: place(&value.referenced) });
                }
            }
        }
    }
}

fn place(location: &serde_saphyr::Location) -> Place {
    Place { line: location.line(), column: location.column() }
}

struct Key(String);

macro_rules! visit_scalars {
    ($make:expr, $($method:ident: $type:ty),+) => {
        $(fn $method<E: de::Error>(self, value: $type) -> Result<Self::Value, E> { Ok($make(value.to_string())) })+
    };
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key that is a plain value")
            }

            visit_scalars!(Key, visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_i128: i128, visit_u128: u128,
                visit_f64: f64, visit_str: &str);

            fn visit_unit<E: de::Error>(self) -> Result<Key, E> {
                Ok(Key("null".to_owned()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Node;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            visit_scalars!(|_| Node::Scalar, visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_i128: i128,
                visit_u128: u128, visit_f64: f64, visit_str: &str);

            fn visit_bytes<E: de::Error>(self, _: &[u8]) -> Result<Node, E> {
                Ok(Node::Scalar)
            }

            fn visit_unit<E: de::Error>(self) -> Result<Node, E> {
                Ok(Node::Scalar)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    items.push(item);
                }
                Ok(Node::List(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Node::Map(entries))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
