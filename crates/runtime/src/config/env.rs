//! The environment as an immutable map, read once at start.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The variables of a process, or of a test.
///
/// An empty variable counts as absent: that is how a chart with an unset value renders. `Debug` shows names only.
#[derive(Clone, Default)]
pub struct Env {
    variables: Arc<BTreeMap<String, String>>,
    /// Those whose values are not what was set.
    garbled: Arc<BTreeSet<String>>,
}

/// A variable or a mounted key is not longer than a ConfigMap.
const MAX_VALUE_BYTES: u64 = 1024 * 1024;

impl Env {
    /// Reads the variables of this process. One whose name is not UTF-8 is left out; of a value that is not, each such
    /// byte is replaced, see [`Self::garbled`].
    pub fn from_process() -> Self {
        Self::from_system(std::env::vars_os())
    }

    pub(super) fn from_system(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut garbled = BTreeSet::new();
        let named = variables.into_iter().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            let value = value.into_string().unwrap_or_else(|value| {
                garbled.insert(name.clone());
                value.to_string_lossy().into_owned()
            });
            Some((name, value))
        });
        let env: Self = named.collect();
        Self { garbled: Arc::new(garbled), ..env }
    }

    /// Returns the names of those whose values are not UTF-8, sorted: what is read of them is not what was set.
    pub fn garbled(&self) -> impl Iterator<Item = &str> {
        self.garbled.iter().map(String::as_str)
    }

    /// Reads a mounted ConfigMap: each file of the directory is a variable, its content the value.
    pub fn from_directory(path: impl AsRef<Path>) -> io::Result<Self> {
        let mut variables = BTreeMap::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // Names that begin with a dot are Kubernetes' own (`..data`). Metadata follows the links it makes.
            let metadata = fs::metadata(entry.path())?;
            if name.starts_with('.') || !metadata.is_file() {
                continue;
            }
            if metadata.len() > MAX_VALUE_BYTES {
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("{name} is larger than 1 MiB")));
            }
            variables.insert(name, fs::read_to_string(entry.path())?.trim_end_matches(['\r', '\n']).to_owned());
        }
        Ok(variables.into_iter().collect())
    }

    /// Returns these variables, and those of `fallback` where these have none.
    #[must_use]
    pub fn or(&self, fallback: &Self) -> Self {
        let theirs = fallback.variables.iter().chain(self.variables.iter());
        let both: Self = theirs.map(|(name, value)| (name.clone(), value.clone())).collect();
        let theirs = fallback.garbled().filter(|name| self.get(name).is_none());
        Self { garbled: Arc::new(self.garbled().chain(theirs).map(str::to_owned).collect()), ..both }
    }

    /// Returns a variable's value, if it is set and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Returns the names that begin with `prefix`, sorted.
    pub fn names<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.variables.keys().map(String::as_str).filter(move |name| name.starts_with(prefix))
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Env {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        let variables = variables.filter(|(_, value): &(_, String)| !value.is_empty()).collect();
        Self { variables: Arc::new(variables), garbled: Arc::default() }
    }
}

impl<K: Into<String>, V: Into<String>, const N: usize> From<[(K, V); N]> for Env {
    fn from(variables: [(K, V); N]) -> Self {
        variables.into_iter().collect()
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}
