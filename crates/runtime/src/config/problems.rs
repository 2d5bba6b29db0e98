//! Everything that is wrong with a configuration, told at once and in the order of the file.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::locate::{Place, Source};

/// Where a setting came from: what a problem is tied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A key of the file, as a path: `hyperfleet_api.endpoint`, `resource_selector[0].label`. Empty: the whole file.
    Key(String),
    /// An environment variable.
    Env(String),
    /// A flag of the command line, with its dashes.
    Flag(String),
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

    /// File problems by position, then those without one, then environment and flags.
    fn order(&self) -> (u8, u64, u64) {
        match (&self.origin, self.place) {
            (Origin::Key(_), Some(place)) => (0, place.line, place.column),
            (Origin::Key(_), None) => (1, 0, 0),
            (Origin::Env(_), _) => (2, 0, 0),
            (Origin::Flag(_), _) => (3, 0, 0),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Key(key) => {
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

/// The list of problems and warnings that one pass over the configuration fills.
#[derive(Debug, Default)]
pub struct Problems {
    source: Option<Arc<Source>>,
    found: Vec<Problem>,
    warnings: Vec<Warning>,
}

impl Problems {
    /// Starts a list for a configuration that has no file.
    pub fn without_file() -> Self {
        Self::default()
    }

    pub(super) fn in_source(source: Arc<Source>) -> Self {
        Self { source: Some(source), ..Self::default() }
    }

    /// Adds a problem. A key path that the file does not have is placed at its nearest parent that is there.
    pub fn push(&mut self, origin: impl Into<Origin>, message: impl Into<String>) {
        let problem = self.locate(origin.into(), message.into());
        self.found.push(problem);
    }

    /// Adds a warning: legal, but worth telling at start.
    pub fn warn(&mut self, origin: impl Into<Origin>, message: impl Into<String>) {
        let warning = self.locate(origin.into(), message.into());
        self.warnings.push(warning);
    }

    /// Takes the value, or notes the error and returns nothing: for checks that go on with the next key.
    pub fn take<T, E: fmt::Display>(&mut self, origin: impl Into<Origin>, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.push(origin, error.to_string())).ok()
    }

    /// Says whether no problem was found so far.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Ends the pass: the warnings if nothing is wrong, else every problem.
    pub fn finish(mut self) -> Result<Vec<Warning>, ConfigError> {
        if self.found.is_empty() {
            self.warnings.sort_by_key(Problem::order);
            return Ok(self.warnings);
        }
        self.found.sort_by_key(Problem::order);
        Err(ConfigError::Invalid(self.found))
    }

    fn locate(&self, origin: Origin, message: String) -> Problem {
        let Origin::Key(path) = origin else { return Problem::new(None, None, origin, message) };
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
