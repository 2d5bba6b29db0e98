//! Where each key of a YAML file stands, and the limits under which such a file is read.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess};
use serde_saphyr::{Options, Spanned};

use super::problems::Origin;

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
        let mut options = options();
        // A key is its text, also where YAML takes that for nothing.
        options.null_as_string = true;
        let root: Node = serde_saphyr::from_str_with_options(text, options)?;
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

    /// A key of this file, in a list that is about another one.
    pub(super) fn beside(&self, path: &str) -> Origin {
        let place = self.place_of(path).map(Into::into);
        Origin::Beside { file: self.file.clone(), key: displayed(path), place }
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

    /// The text with something else for the value of a key, or without the key, every other line where it was; nothing
    /// where it is not known where the value ends.
    fn without(&self, text: &str, path: &str, instead: Option<&str>) -> Option<String> {
        self.without_in_block(text, path, instead).or_else(|| self.without_in_flow(text, path, instead?))
    }

    /// The same of a value that has its lines for itself.
    fn without_in_block(&self, text: &str, path: &str, instead: Option<&str>) -> Option<String> {
        let Places { key, value } = *self.places.get(path)?;
        let (line, column) = (zero_based(key.line)?, zero_based(key.column)?);
        let mut lines: Vec<String> = text.split('\n').map(str::to_owned).collect();
        let first = lines.get_mut(line)?;
        if !first.chars().take(column).all(|c| matches!(c, ' ' | '-')) {
            return None;
        }
        match instead {
            // Without an item, those after it would be counted anew.
            None if key == value => return None,
            None => *first = first.chars().take(column).collect(),
            Some(instead) if value.line == key.line => {
                *first = first.chars().take(zero_based(value.column)?).collect();
                first.push_str(instead);
            }
            Some(_) => {}
        }
        let belongs = |line: &str| {
            let rest = line.trim_start_matches(' ');
            let indent = line.len() - rest.len();
            let closes = rest.starts_with(['-', ']', '}']) || key == value;
            rest.is_empty() || rest.starts_with('#') || indent > column || (indent == column && closes)
        };
        lines.iter_mut().skip(line + 1).take_while(|line| belongs(line)).for_each(String::clear);
        if let Some(instead) = instead
            && value.line != key.line
        {
            *lines.get_mut(zero_based(value.line)?)? = format!("{}{instead}", " ".repeat(column + 1));
        }
        let rest = lines.join("\n");
        Self::parse(&self.file, &rest).is_ok().then_some(rest)
    }

    /// The same of a value between brackets, `{a: 1, b: [2]}`; nothing where that would change or move what stands
    /// beside it.
    fn without_in_flow(&self, text: &str, path: &str, instead: &str) -> Option<String> {
        let value = self.places.get(path)?.value;
        let line = text.split_inclusive('\n').take(zero_based(value.line)?).map(str::len).sum::<usize>();
        let (column, _) = text.get(line..)?.char_indices().nth(zero_based(value.column)?)?;
        let (before, written) = text.split_at_checked(line + column)?;
        let end = end_in_flow(written)?;
        let (gone, after) = written.split_at_checked(end)?;
        let (breaks, last) = (gone.matches('\n').count(), gone.rsplit('\n').next()?.chars().count());
        let width = if breaks == 0 { last.checked_sub(instead.len())? } else { last };
        let rest = format!("{before}{instead}{}{}{after}", "\n".repeat(breaks), " ".repeat(width));
        let others = |source: &Self| -> BTreeSet<String> {
            let keys = source.places.keys();
            keys.filter(|key| !key.strip_prefix(path).is_some_and(|below| below.starts_with('.'))).cloned().collect()
        };
        let (was, now) = (Self::parse(&self.file, text).ok()?, Self::parse(&self.file, &rest).ok()?);
        (others(&was) == others(&now)).then_some(rest)
    }

    /// The key that stands, or whose value begins, at a position; what all have in common where a merge gives several
    /// the same.
    pub(super) fn key_at(&self, place: Place, part: Part) -> String {
        let here = |part: Part| {
            let of = move |at: &Places| if part == Part::Key { at.key } else { at.value };
            self.places.iter().filter(move |(_, at)| of(at) == place).map(|(path, _)| path.as_str())
        };
        let value = || here(Part::Value).reduce(common_parent);
        // An item of a list begins where its first key does.
        let deepest = || here(Part::Key).map(|path| path.matches('.').count()).max();
        let key = |depth| here(Part::Key).filter(|path| path.matches('.').count() == depth).reduce(common_parent);
        let found = if part == Part::Key { deepest().and_then(key).or_else(value) } else { value() };
        found.map(displayed).unwrap_or_default()
    }
}

fn zero_based(at: u64) -> Option<usize> {
    usize::try_from(at).ok()?.checked_sub(1)
}

/// Where a value between brackets ends that begins a text; nothing where that is not plain to see.
fn end_in_flow(text: &str) -> Option<usize> {
    let (mut depth, mut quote, mut escaped) = (0_usize, None, false);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some('"'), '\\') => escaped = true,
            (Some(open), _) if open == c => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            // A comment may hold anything.
            (None, '#') => return None,
            (None, '[' | '{') => depth += 1,
            (None, ',' | ']' | '}') if depth == 0 => return Some(at),
            (None, ']' | '}') => depth -= 1,
            (Some(_) | None, _) => {}
        }
    }
    None
}

/// A key, or its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Key,
    Value,
}

/// A text without what could not be taken.
pub(super) struct Rest<'t> {
    text: Cow<'t, str>,
    /// What was left out, by path, and what stands in its place.
    gone: Vec<(String, Option<&'static str>)>,
}

/// What may stand in the place of a value that could not be taken, so that the rest of the file can be read: whichever
/// of them its key takes. Nothing at all, without the key, is the last resort.
const INSTEAD: [Option<&str>; 4] = [Some(""), Some("''"), Some("{}"), None];

impl<'t> Rest<'t> {
    pub(super) fn of(text: &'t str) -> Self {
        Self { text: text.into(), gone: Vec::new() }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The keys of which something was left out, as people read them.
    pub(super) fn left_out(self) -> Vec<String> {
        self.gone.iter().map(|(path, _)| displayed(path)).collect()
    }

    /// Leaves out the value of a key; where that is not possible, or not enough, what is around it. Says whether there
    /// was anything left to leave out. Without a key, it goes on around what was left out last.
    pub(super) fn leave_out(&mut self, source: &Source, key: &str) -> bool {
        let last = || self.gone.last().map(|(path, _)| path.clone()).unwrap_or_default();
        let mut path = if key.is_empty() { last() } else { normalized(key) };
        loop {
            for instead in INSTEAD {
                let step = (path.clone(), instead);
                if !self.gone.contains(&step)
                    && let Some(rest) = source.without(&self.text, &path, instead)
                {
                    self.text = rest.into();
                    self.gone.push(step);
                    return true;
                }
            }
            let Some((parent, _)) = path.rsplit_once('.') else { return false };
            path = parent.to_owned();
        }
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

/// A key as it is written: what reads the file asks for texts, and `y`, `on` and `0x10` are no others as keys.
struct Key(String);

macro_rules! visit_scalars {
    ($($method:ident: $type:ty),+) => {
        $(fn $method<E: de::Error>(self, _: $type) -> Result<Self::Value, E> { Ok(Node::Scalar) })+
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

            fn visit_str<E: de::Error>(self, key: &str) -> Result<Key, E> {
                Ok(Key(key.to_owned()))
            }
        }
        deserializer.deserialize_string(Visitor)
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

            visit_scalars!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_i128: i128, visit_u128: u128,
                visit_f64: f64, visit_str: &str);

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
