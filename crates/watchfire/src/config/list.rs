//! The file of `watchfire run`: several sentinels, each with files of its own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use watchfire_runtime::config::{ConfigError, Document, Env, Origin, Problems, Text};
use watchfire_sentinel::config::broker::BrokerConfig;

use super::{Loaded, Refused, broker_file, load_files};
use crate::cli::{ConfigArgs, SettingArgs};

/// A configuration, and what it is called where there are several.
pub(crate) struct Named {
    pub(crate) name: Option<String>,
    pub(crate) loaded: Loaded,
}

/// The file as typed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawRun {
    sentinels: Vec<RawEntry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawEntry {
    name: Option<String>,
    config: Option<PathBuf>,
    broker_config: Option<PathBuf>,
}

impl RawRun {
    fn check_any(&self, problems: &mut Problems) {
        if self.sentinels.is_empty() {
            problems.push("sentinels", "missing; list at least one, with its name and the path of its config");
        }
    }

    /// What each entry names in a key, by its place in the list; paths begin at the list's folder.
    fn paths<'a>(
        document: &'a Document<Self>,
        name: &'static str,
        key: fn(&RawEntry) -> Option<&PathBuf>,
    ) -> impl Iterator<Item = (usize, Option<(PathBuf, Origin)>)> + 'a {
        let folder = Path::new(document.file()).parent().unwrap_or_else(|| Path::new(""));
        document.value.sentinels.iter().enumerate().map(move |(index, entry)| {
            let origin = || document.origin(&format!("sentinels.{index}.{name}"));
            (index, key(entry).map(|path| (folder.join(path), origin())))
        })
    }
}

/// Reads the list and every file on it; all that is wrong with any of them is in one error.
pub(crate) fn several(list: &Path, env: &Env) -> Result<Vec<Named>, ConfigError> {
    let document = Text::read(list)?.parse_as_far_as_possible::<RawRun>()?;
    let mut problems = document.problems();
    document.value.check_any(&mut problems);
    let mut seen = BTreeSet::new();
    for (index, entry) in document.value.sentinels.iter().enumerate() {
        let key = format!("sentinels.{index}.name");
        let name = entry.name.as_deref().unwrap_or_default();
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')) {
            problems.push(key, "each needs a name of its own: letters, digits, '-' and '_'");
        } else if !seen.insert(name) {
            problems.push(key, format!("{name:?} is the name of another one, too"));
        }
    }
    let files = RawRun::paths(&document, "config", |entry| entry.config.as_ref());
    let brokers = RawRun::paths(&document, "broker_config", |entry| entry.broker_config.as_ref());
    let mut several: Vec<(usize, Named)> = Vec::new();
    for ((index, config), (_, broker)) in files.zip(brokers) {
        let Some((file, named)) = config else {
            problems.push(format!("sentinels.{index}.config"), MISSING);
            continue;
        };
        let everywhere = || broker_file(&ConfigArgs { config: file.clone(), broker_config: None }, env);
        match load_files(&file, broker.or_else(everywhere), &SettingArgs::default(), env).map_err(Refused::into) {
            Ok(loaded) => {
                let name = document.value.sentinels.get(index).and_then(|entry| entry.name.clone());
                several.push((index, Named { name, loaded }));
            }
            Err(error) => problems.refuse(at(named), error),
        }
    }
    one_store_each(&several, &mut problems);
    problems.finish()?;
    Ok(several.into_iter().map(|(_, named)| named).collect())
}

const MISSING: &str = "missing; write the path of the sentinel's file";

/// The files that the list in a text names, each with its place there.
pub(super) fn files(text: &Text, problems: &mut Problems) -> Result<Vec<(PathBuf, Origin)>, ConfigError> {
    let document = text.parse_as_far_as_possible::<RawRun>()?;
    let mut own = document.problems();
    document.value.check_any(&mut own);
    let mut files = Vec::new();
    for (index, config) in RawRun::paths(&document, "config", |entry| entry.config.as_ref()) {
        match config {
            Some(config) => files.push(config),
            None => own.push(format!("sentinels.{index}.config"), MISSING),
        }
    }
    problems.append(own);
    Ok(files)
}

/// The same place in the list's own file.
fn at(named: Origin) -> Origin {
    match named {
        Origin::Beside { key, .. } => Origin::Key(key),
        other => other,
    }
}

/// A store is one broker's, so that embedded brokers with different settings cannot have the same one.
fn one_store_each(several: &[(usize, Named)], problems: &mut Problems) {
    for (at, (index, named)) in several.iter().enumerate() {
        let Some(store) = store(&named.loaded) else { continue };
        let settings = |named: &Named| named.loaded.broker_settings.clone().without_topic();
        let other = several.iter().take(at).find(|(_, other)| {
            self::store(&other.loaded).is_some_and(|theirs| theirs == store) && settings(other) != settings(named)
        });
        if let Some((_, other)) = other {
            let message = format!(
                "its embedded broker has the store of {:?}, {}, and other settings; give each a BROKER_HTTP_STORE of \
                 its own, or both the same BROKER_* settings, so that they share one broker",
                other.name.as_deref().unwrap_or_default(),
                store.display()
            );
            problems.push(format!("sentinels.{index}.broker_config"), message);
        }
    }
}

/// The file of the embedded broker, however it is written.
fn store(loaded: &Loaded) -> Option<PathBuf> {
    let BrokerConfig::Http { store, .. } = &loaded.broker else { return None };
    let folder = store.parent().filter(|folder| *folder != Path::new("")).unwrap_or_else(|| Path::new("."));
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    Some(store.file_name().map_or_else(|| store.clone(), |name| folder.join(name)))
}
