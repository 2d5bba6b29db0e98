//! Everything that is wrong with a configuration, told at once and in the order of the file.

use std::cmp::Ordering;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::locate::{Place, Source};
use crate::chain;

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

    /// Whether it is about this key.
    pub(super) fn is_about(&self, key: &str) -> bool {
        matches!(&self.origin, Origin::Key(ours) if ours == key)
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

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Key(key) | Origin::Beside { key, .. } => {
                if let Some(file) = &self.file {
                    f.write_str(file)?;
                    if let Some(Place { line, column }) = self.place {
                        write!(f, ":{line}:{column}")?;
                    }
                    f.write_str(": ")?;
                }
                if !key.is_empty() {
                    write!(f, "{key}: ")?;
                }
            }
            Origin::Env(name) => write!(f, "environment variable {name}: ")?,
            Origin::Flag(name) => write!(f, "flag {name}: ")?,
        }
        f.write_str(&self.message)
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
    /// Keys of which it was told that their values cannot be taken.
    told: Vec<Origin>,
}

impl Problems {
    /// Starts a list for a configuration that has no file.
    pub fn without_file() -> Self {
        Self::default()
    }

    pub(super) fn in_source(source: Arc<Source>, mistyped: Vec<Problem>) -> Self {
        let told = mistyped.iter().map(|problem| problem.origin.clone()).collect();
        Self { source: Some(source), found: mistyped, warnings: Vec::new(), told }
    }

    /// Adds a problem. A key path that the file does not have is placed at its nearest parent that is there. What is
    /// missing because its value could not be taken is not told again.
    pub fn push(&mut self, origin: impl Into<Origin>, message: impl Into<String>) {
        let problem = self.locate(origin.into(), message.into());
        if !self.told.contains(&problem.origin) {
            self.found.push(problem);
        }
    }

    /// Adds a warning: legal, but worth telling at start.
    pub fn warn(&mut self, origin: impl Into<Origin>, message: impl Into<String>) {
        let warning = self.locate(origin.into(), message.into());
        self.warnings.push(warning);
    }

    /// Takes the value, or notes the error and returns nothing: for checks that go on with the next key.
    pub fn take<T, E: Error>(&mut self, origin: impl Into<Origin>, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.push(origin, chain(&error))).ok()
    }

    /// Adds what was found about another file, each with its place there.
    pub fn append(&mut self, other: Self) {
        self.extend(other.found);
        self.warnings.extend(other.warnings.into_iter().map(Problem::beside));
    }

    /// Adds the problems of another file, each with its place there.
    pub fn extend(&mut self, found: Vec<Problem>) {
        self.found.extend(found.into_iter().map(Problem::beside));
    }

    /// Says whether no problem was found so far.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns how many problems were found so far, so that a check can tell whether it added one.
    pub fn count(&self) -> usize {
        self.found.len()
    }

    /// Ends the pass: the warnings if nothing is wrong, else every problem.
    pub fn finish(mut self) -> Result<Vec<Warning>, ConfigError> {
        if self.found.is_empty() {
            self.warnings.sort_by(Problem::order);
            return Ok(self.warnings);
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
}
