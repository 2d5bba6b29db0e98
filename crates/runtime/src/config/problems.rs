//! Everything that is wrong with a configuration, told at once and in the order of the file.

use std::cmp::Ordering;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::locate::{Place, Source};
use crate::{chain, one_line};

/// Where a setting came from: what a problem is tied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A key of the file, as a path: `hyperfleet_api.endpoint`, `resource_selector[0].label`. Empty: the whole file.
    Key(String),
    /// An environment variable.
    Env(String),
    /// A flag of the command line, with its dashes.
    Flag(String),
    /// A key of another file than the one that the list is about; see [`super::Document::origin`].
    Beside {
        /// The file, as it was named.
        file: String,
        /// The key, as a path.
        key: String,
        /// Line and column, from 1, if the key or a parent of it stands there.
        place: Option<(u64, u64)>,
    },
}

impl Origin {
    /// A key of the file, as a path.
    pub fn key(path: impl Into<String>) -> Self {
        Self::Key(path.into())
    }

    /// An environment variable.
    pub fn env(name: impl Into<String>) -> Self {
        Self::Env(name.into())
    }

    /// A flag of the command line, with its dashes.
    pub fn flag(name: impl Into<String>) -> Self {
        Self::Flag(name.into())
    }
}

/// As it is called in a sentence about it.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => f.write_str(key),
            Self::Env(name) => write!(f, "environment variable {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Beside { file, key, .. } if key.is_empty() => f.write_str(file),
            Self::Beside { file, key, .. } => write!(f, "{key} in {file}"),
        }
    }
}

impl From<&str> for Origin {
    fn from(path: &str) -> Self {
        Self::key(path)
    }
}

impl From<String> for Origin {
    fn from(path: String) -> Self {
        Self::Key(path)
    }
}

/// One complaint and its place; displays as `file:line:column: key: message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    file: Option<String>,
    place: Option<Place>,
    origin: Origin,
    message: String,
}

/// Whether a key is another one, or below it.
pub(super) fn is_within(key: &str, parent: &str) -> bool {
    key.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Something legal but dangerous, to be told at start; displays as a problem does.
pub type Warning = Problem;

impl Problem {
    pub(super) fn new(file: Option<&str>, place: Option<Place>, origin: Origin, message: String) -> Self {
        Self { file: file.map(str::to_owned), place, origin, message }
    }

    /// The same problem in a list that is about another file.
    fn beside(mut self) -> Self {
        if let (Origin::Key(key), Some(file)) = (&self.origin, &self.file) {
            self.origin = Origin::Beside { file: file.clone(), key: key.clone(), place: self.place.map(Into::into) };
        }
        self
    }

    /// Whether it is about this key, or one below it.
    pub(super) fn is_within(&self, key: &str) -> bool {
        matches!(&self.origin, Origin::Key(ours) if is_within(ours, key))
    }

    /// Returns what the problem is tied to.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Returns the line in the file, from 1, if the problem has one.
    pub fn line(&self) -> Option<u64> {
        self.place.map(|place| place.line)
    }

    /// Returns the column in the line, from 1, if the problem has one.
    pub fn column(&self) -> Option<u64> {
        self.place.map(|place| place.column)
    }

    /// Returns the message alone.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// File problems by position, then those without one, other files after the first, then environment and flags.
    fn order(a: &Self, b: &Self) -> Ordering {
        let rank = |problem: &Self| match &problem.origin {
            Origin::Key(_) => 0,
            Origin::Beside { .. } => 1,
            Origin::Env(_) => 2,
            Origin::Flag(_) => 3,
        };
        let place = |problem: &Self| (problem.place.is_none(), problem.place);
        let by_file = || if rank(a) == 1 { a.file.cmp(&b.file) } else { Ordering::Equal };
        rank(a).cmp(&rank(b)).then_with(by_file).then_with(|| place(a).cmp(&place(b)))
    }
}

/// One line: file, key and message may quote what somebody else wrote.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Key(key) | Origin::Beside { key, .. } => {
                if let Some(file) = &self.file {
                    f.write_str(&one_line(file))?;
                    if let Some(Place { line, column }) = self.place {
                        write!(f, ":{line}:{column}")?;
                    }
                    f.write_str(": ")?;
                }
                if !key.is_empty() {
                    write!(f, "{}: ", one_line(key))?;
                }
            }
            Origin::Env(_) | Origin::Flag(_) => write!(f, "{}: ", self.origin)?,
        }
        f.write_str(&one_line(&self.message))
    }
}

/// For programs: `message`, and `file`, `line`, `column` and `key`, or `variable`, or `flag`, as far as there are any.
impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let (name, value) = match &self.origin {
            Origin::Key(key) | Origin::Beside { key, .. } => ("key", key),
            Origin::Env(variable) => ("variable", variable),
            Origin::Flag(flag) => ("flag", flag),
        };
        if let Some(file) = &self.file {
            map.serialize_entry("file", file)?;
        }
        if let Some(Place { line, column }) = self.place {
            map.serialize_entry("line", &line)?;
            map.serialize_entry("column", &column)?;
        }
        if !value.is_empty() {
            map.serialize_entry(name, value)?;
        }
        map.serialize_entry("message", &self.message)?;
        map.end()
    }
}

/// The list of problems and warnings that one pass over the configuration fills.
#[derive(Debug, Default)]
pub struct Problems {
    source: Option<Arc<Source>>,
    found: Vec<Problem>,
    warnings: Vec<Warning>,
    /// Keys that were read as if they were not there, since their values cannot be taken, which was told.
    told: Vec<Origin>,
}

impl Problems {
    /// Starts a list for a configuration that has no file.
    pub fn without_file() -> Self {
        Self::default()
    }

    pub(super) fn in_source(source: Arc<Source>, mistyped: Vec<Problem>, left_out: &[String]) -> Self {
        let told = left_out.iter().map(Origin::key).collect();
        Self { source: Some(source), found: mistyped, warnings: Vec::new(), told }
    }

    /// Adds a problem. A key path that the file does not have is placed at its nearest parent that is there. What is
    /// missing because its value could not be taken is not told again.
    pub fn push(&mut self, origin: impl Into<Origin>, message: impl Into<String>) {
        let problem = self.locate(origin.into(), message.into());
        if !self.is_told(&problem.origin) {
            self.found.push(problem);
        }
    }

    /// Adds a key that nobody knows: it is wrong also where what it stands in could not be taken.
    pub(super) fn push_unknown(&mut self, key: String, message: &str) {
        let problem = self.locate(Origin::Key(key), message.to_owned());
        self.found.push(problem);
    }

    /// Adds why a value cannot be taken: from here on it is as if it were not there, and not told to be missing.
    pub fn leave_out(&mut self, origin: impl Into<Origin>, message: impl Into<String>) {
        let origin = origin.into();
        self.push(origin.clone(), message);
        self.told.push(origin);
    }

    /// Whether a value that stands there, or what it stands in, could not be taken, which was told.
    pub fn is_left_out(&self, origin: impl Into<Origin>) -> bool {
        self.is_told(&self.locate(origin.into(), String::new()).origin)
    }

    fn is_told(&self, origin: &Origin) -> bool {
        self.told.iter().any(|told| match (told, origin) {
            (Origin::Key(told), Origin::Key(key)) => is_within(key, told),
            (told, origin) => told == origin,
        })
    }

    /// Adds a warning: legal, but worth telling at start. What could not be taken is not odd besides.
    pub fn warn(&mut self, origin: impl Into<Origin>, message: impl Into<String>) {
        let warning = self.locate(origin.into(), message.into());
        if !self.is_told(&warning.origin) {
            self.warnings.push(warning);
        }
    }

    /// Takes the value, or notes the error and returns nothing: for checks that go on with the next key.
    pub fn take<T, E: Error>(&mut self, origin: impl Into<Origin>, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.push(origin, chain(&error))).ok()
    }

    /// Adds what was found about another file, each with its place there.
    pub fn append(&mut self, other: Self) {
        if let Some(source) = &other.source {
            let keys = other.told.iter().filter_map(|told| if let Origin::Key(key) = told { Some(key) } else { None });
            self.told.extend(keys.map(|key| source.beside(key)));
        }
        self.extend(other.found);
        self.warnings.extend(other.warnings.into_iter().map(Problem::beside));
    }

    /// Adds the problems of another file, each with its place there; what several files share is told once.
    pub fn extend(&mut self, found: Vec<Problem>) {
        for problem in found.into_iter().map(Problem::beside) {
            if !self.found.contains(&problem) {
                self.found.push(problem);
            }
        }
    }

    /// Adds why a file that is named here can't be used: at the name if it can't be read, else each of its problems.
    pub fn refuse(&mut self, named: impl Into<Origin>, error: ConfigError) {
        let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
        match error {
            ConfigError::Invalid(found) => self.extend(found),
            ConfigError::Read { .. } => self.push(named, format!("{}{hint}", chain(&error))),
        }
    }

    /// Says whether no problem was found so far.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns how many problems were found so far, so that a check can tell whether it added one.
    pub fn count(&self) -> usize {
        self.found.len()
    }

    /// Returns the warnings so far, in order.
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = self.warnings.clone();
        warnings.sort_by(Problem::order);
        warnings
    }

    /// Ends the pass: the warnings if nothing is wrong, else every problem.
    pub fn finish(mut self) -> Result<Vec<Warning>, ConfigError> {
        if self.found.is_empty() {
            return Ok(self.warnings());
        }
        self.found.sort_by(Problem::order);
        Err(ConfigError::Invalid(self.found))
    }

    fn locate(&self, origin: Origin, message: String) -> Problem {
        let path = match origin {
            Origin::Key(path) => path,
            Origin::Beside { ref file, place, .. } => {
                let (file, place) = (file.clone(), place.map(Place::from));
                return Problem::new(Some(&file), place, origin, message);
            }
            Origin::Env(_) | Origin::Flag(_) => return Problem::new(None, None, origin, message),
        };
        let file = self.source.as_ref().map(|source| source.file());
        let place = self.source.as_ref().and_then(|source| source.place_of(&path));
        Problem::new(file, place, Origin::Key(super::locate::displayed(&path)), message)
    }
}

/// Why a configuration can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("read configuration file {file}")]
    Read {
        /// The file, as it was named.
        file: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file was read and is wrong; displays one line per problem, in the order of the file.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid(Vec<Problem>),
}

impl ConfigError {
    /// Returns the problems; none if the file could not be read.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Read { .. } => &[],
            Self::Invalid(problems) => problems,
        }
    }

    /// What the operator can check or change; each problem of a file has its own.
    pub fn hint(&self) -> Option<&'static str> {
        let Self::Read { source, .. } = self else { return None };
        Some(match source.kind() {
            io::ErrorKind::NotFound => "check the path",
            io::ErrorKind::IsADirectory => "name the file in it",
            io::ErrorKind::PermissionDenied => "let this user read it",
            io::ErrorKind::InvalidData => "write it in UTF-8; is it the right file?",
            _ => "check that it is a plain file",
        })
    }
}
