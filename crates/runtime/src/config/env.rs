//! The environment as an immutable map, read once at start.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::ConfigError;

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

    /// Reads a mounted ConfigMap: each file of the directory is a variable, its content the value. Those that are not
    /// `wanted` are not opened. Fails with the name of what cannot be read.
    pub fn from_directory(path: impl AsRef<Path>, wanted: impl Fn(&str) -> bool) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let failed = |path: &Path, source| ConfigError::Read { file: path.display().to_string(), source };
        let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut files: Vec<_> = entries.map_err(|e| failed(path, e))?.iter().map(fs::DirEntry::path).collect();
        files.sort();
        let mut variables = BTreeMap::new();
        for file in files {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // Names that begin with a dot are Kubernetes' own (`..data`).
            if !name.starts_with('.') && wanted(&name) {
                let value = read_value(&file).map_err(|e| failed(&file, e))?;
                variables.extend(value.map(|value| (name, value)));
            }
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

/// What a mounted key holds, without the line break at its end; nothing if it is no file.
fn read_value(file: &Path) -> io::Result<Option<String>> {
    // Follows the links that Kubernetes makes.
    let metadata = fs::metadata(file)?;
    if !metadata.is_file() {
        return Ok(None);
    }
    if metadata.len() > MAX_VALUE_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 MiB"));
    }
    Ok(Some(fs::read_to_string(file)?.trim_end_matches(['\r', '\n']).to_owned()))
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
