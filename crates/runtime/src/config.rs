//! Configuration files: read once, checked as a whole, every complaint with its file, line and column.
//!
//! A [`Document`] is a file read into its raw mirror `T`. A syntax or type error stops at the first one. Unknown keys
//! do not: they are the first entries of [`Document::problems`], to which the checks of meaning add theirs, so that
//! a user sees all of them in one run. Duplicate keys, alias bombs, deep nesting and files over 1 MiB are refused.

mod env;
mod known;
mod locate;
mod problems;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;

pub use env::Env;
pub use known::nearest;
pub use problems::{ConfigError, Origin, Problem, Problems, Warning};

use locate::{Part, Place, Rest, Source};

/// A ConfigMap can't hold more, and nothing a person writes comes near.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// What YAML takes for a map in a map.
const QUOTE: &str = "a value that begins with {{ has to be quoted, as in '{{ .name }}'";

/// Values of the wrong kind that are told at once: the file is read anew without each.
const MAX_MISTYPED: usize = 100;

/// How the library mentions a position.
const AT_LINE: &str = " at line ";

/// A configuration file, read into its raw form.
#[derive(Debug)]
pub struct Document<T> {
    /// What the file says, as typed.
    pub value: T,
    source: Arc<Source>,
    unknown: Vec<UnknownKey>,
    /// Values that are not what their keys take.
    mistyped: Vec<Problem>,
    /// The keys that were read as if they, or something in them, were not there.
    left_out: Vec<String>,
}

/// A key in the file that no field takes.
#[derive(Debug)]
struct UnknownKey {
    path: Vec<String>,
    message: String,
}

/// A file's text, from which one or several raw forms are read.
#[derive(Debug, Clone)]
pub struct Text {
    file: String,
    text: String,
}

impl Text {
    /// Reads a file.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let mut bytes = Vec::new();
        // Whatever it is, unlike a secret or a certificate: a configuration may be a pipe on purpose, `<(sed ..)`.
        File::open(path)
            // One byte over the limit tells a file that is too large from one that just fits, even if it never ends.
            .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
            .map_err(|source| ConfigError::Read { file: name.clone(), source })?;
        let text = String::from_utf8(bytes).map_err(|error| ConfigError::Read {
            file: name.clone(),
            source: io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()),
        })?;
        Ok(Self { file: name, text })
    }

    /// Takes the text of a file called `name`.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { file: name.into(), text: text.into() }
    }

    /// Reads it as one raw form; fails with every value that is not what its key takes.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<Document<T>, ConfigError> {
        Document::parse(&self.file, &self.text)
    }

    /// As [`Self::parse`], but where values can be left out they are, and are among [`Document::problems`], so that
    /// they are told together with all else that is wrong.
    pub fn parse_as_far_as_possible<T: DeserializeOwned>(&self) -> Result<Document<T>, ConfigError> {
        Document::parse_as_far_as_possible(&self.file, &self.text)
    }

    /// Returns the file's name, as it appears in messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the text as it stands in the file.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl<T: DeserializeOwned> Document<T> {
    /// Reads and parses a file.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Text::read(path)?.parse()
    }

    /// Parses the text of a file called `name`.
    pub fn parse(name: &str, text: &str) -> Result<Self, ConfigError> {
        let document = Self::parse_as_far_as_possible(name, text)?;
        if document.mistyped.is_empty() { Ok(document) } else { Err(ConfigError::Invalid(document.mistyped)) }
    }

    fn parse_as_far_as_possible(name: &str, text: &str) -> Result<Self, ConfigError> {
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(refused(name, None, "the file is larger than 1 MiB, is it the right one?".to_owned()));
        }
        if text.lines().all(|line| matches!(line.trim(), "" | "---" | "...") || line.trim_start().starts_with('#')) {
            return Err(refused(name, None, "the file is empty, nothing is configured".to_owned()));
        }
        let source = Source::parse(name, text).map_err(|error| {
            let place = error.location().map(|at| Place { line: at.line(), column: at.column() });
            let message = match place.and_then(|place| text.lines().nth(usize::try_from(place.line).ok()? - 1)) {
                Some(line) if line.contains(": {{") => QUOTE.to_owned(),
                _ => plain(&error),
            };
            refused(name, place.map(|place| (String::new(), place)), message)
        })?;
        let mut mistyped: Vec<Problem> = Vec::new();
        let mut ignored = BTreeSet::new();
        let mut rest = Rest::of(text);
        let value = loop {
            // What is unknown was seen also where a later value is wrong.
            let error = match deserialize(rest.text(), &mut ignored) {
                Ok(value) => break value,
                Err(error) => error,
            };
            let place = error.location().map(|at| Place { line: at.line(), column: at.column() });
            let key = place.map(|place| source.key_at(place, part_of(&error))).unwrap_or_default();
            // What can't be left out fails again, for want of a value; so does what is around it, once it is empty.
            let again = !mistyped.is_empty() && (key.is_empty() || mistyped.iter().any(|it| it.is_within(&key)));
            if !again {
                mistyped.push(Problem::new(Some(name), place, Origin::Key(key.clone()), plain(&error)));
            }
            if mistyped.len() >= MAX_MISTYPED || !rest.leave_out(&source, &key) {
                return Err(ConfigError::Invalid(mistyped));
            }
        };
        let unknown =
            ignored.into_iter().map(|path| UnknownKey { message: known::complaint::<T>(&path), path }).collect();
        Ok(Self { value, source: Arc::new(source), unknown, mistyped, left_out: rest.left_out() })
    }
}

impl<T> Document<T> {
    /// Names the right key where an unknown one is an older or a foreign name: pairs of (written, right).
    ///
    /// The written key is matched as a whole path (`a.b`) or as the last part of one.
    #[must_use]
    pub fn renamed(self, pairs: &[(&str, &str)]) -> Self {
        pairs.iter().fold(self, |doc, (written, right)| doc.explain(written, &format!("unknown key, write {right}")))
    }

    /// Replaces the message of unknown keys that deserve one of their own: pairs of (written, message).
    #[must_use]
    pub fn refused(self, pairs: &[(&str, &str)]) -> Self {
        pairs.iter().fold(self, |doc, (written, message)| doc.explain(written, message))
    }

    fn explain(mut self, written: &str, message: &str) -> Self {
        for key in &mut self.unknown {
            if key.path.last().is_some_and(|last| last == written) || key.path.join(".") == written {
                message.clone_into(&mut key.message);
            }
        }
        self
    }

    /// Starts the list of problems, with the values and keys in it that could not be taken.
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::in_source(Arc::clone(&self.source), self.mistyped.clone(), &self.left_out);
        for key in &self.unknown {
            problems.push_unknown(key.path.join("."), key.message.as_str());
        }
        problems
    }

    /// Returns the key as which this one, or what it stands in, was read as if it were not there, since a value could
    /// not be taken.
    pub fn left_out_around(&self, key: &str) -> Option<&str> {
        self.left_out.iter().map(String::as_str).find(|left_out| problems::is_within(key, left_out))
    }

    /// Ties problems to a key of this file, in a list that was started for another one.
    pub fn origin(&self, path: &str) -> Origin {
        self.source.beside(path)
    }

    /// Returns the keys of the file by the line that each stands on; of several on one line, the outermost.
    pub fn lines(&self) -> BTreeMap<u64, String> {
        self.source.lines()
    }

    /// Returns the file's name, as it appears in messages.
    pub fn file(&self) -> &str {
        self.source.file()
    }
}

/// Reads a form; the paths of the keys that it does not have are added to `ignored`, as far as it was read.
fn deserialize<T: DeserializeOwned>(text: &str, ignored: &mut BTreeSet<Vec<String>>) -> Result<T, serde_saphyr::Error> {
    serde_saphyr::with_deserializer_from_str_with_options(text, locate::options(), |yaml| {
        serde_ignored::deserialize(yaml, |path| {
            ignored.insert(locate::segments(&path));
        })
    })
}

/// What the library points at: the value, but for what our own types refuse, where it knows only the last key.
fn part_of(error: &serde_saphyr::Error) -> Part {
    use serde_saphyr::Error;
    match error.without_snippet() {
        Error::SerdeInvalidType { .. }
        | Error::SerdeInvalidValue { .. }
        | Error::SerdeInvalidLength { .. }
        | Error::SerdeUnknownVariant { .. } => Part::Key,
        _ => Part::Value,
    }
}

fn refused(file: &str, at: Option<(String, Place)>, message: String) -> ConfigError {
    let (key, place) = at.map_or((String::new(), None), |(key, place)| (key, Some(place)));
    ConfigError::Invalid(vec![Problem::new(Some(file), place, Origin::Key(key), message)])
}

/// The library's message without its own mention of the position, which stands in front of ours, and in words that
/// need no knowledge of parsers.
fn plain(error: &serde_saphyr::Error) -> String {
    let error = error.without_snippet();
    if let serde_saphyr::Error::MultipleDocuments { .. } = error {
        return "the file holds more than one YAML document, keep one and put the others into files of their own"
            .to_owned();
    }
    let text = error.render_with_formatter(&serde_saphyr::UserMessageFormatter);
    let text = text.lines().next().unwrap_or_default();
    let digit = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
    let position = text.match_indices(AT_LINE).find(|(at, _)| digit(&text[at + AT_LINE.len()..]));
    let text = &text[..position.map_or(text.len(), |(at, _)| at)];
    match text.trim_end_matches(" (defined") {
        "expected mapping start" => "expected keys with values",
        "expected sequence start" => "expected a list",
        "expected string scalar" => "expected text",
        "invalid boolean" => "expected true or false",
        "invalid u8" => "expected a whole number from 0 to 255",
        "invalid u16" => "expected a whole number from 0 to 65535",
        "invalid u32" => "expected a whole number from 0 to 4294967295",
        "invalid u64" => "expected a whole number from 0 to 18446744073709551615",
        "invalid i32" | "invalid i64" => "expected a whole number",
        "invalid floating point" => "expected a number",
        other => match other.split_once(", expected ") {
            Some((found, _)) if found.starts_with("invalid type: ") => &other[found.len() + ", ".len()..],
            _ => other,
        },
    }
    .to_owned()
}
