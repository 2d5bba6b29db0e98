//! Turns a file of one form into the other, with its comments, and says what has no place there.

use std::collections::BTreeMap;

use serde_json::Value;
use watchfire_runtime::config::{ConfigError, Env, Origin, Problem, Text};
use watchfire_runtime::redact::to_yaml;

use super::comments::Comments;
use super::raw::RawPolicy;
use super::setting::{Overrides, RawProcess, SETTINGS};
use super::{Form, RawHyperFleet, numbers, parse};

/// What a file that is not there yet is called.
const NEW: &str = "the new file";

/// A file in its new form.
#[derive(Debug)]
pub struct Migrated {
    /// The file.
    pub text: String,
    /// What could not be carried over, and what to do about it, one sentence each.
    pub notes: Vec<String>,
}

impl Migrated {
    /// Notes why what was migrated is refused, in the old form as in the new one.
    pub(super) fn refused<'p>(&mut self, problems: impl Iterator<Item = &'p Problem>) {
        self.notes.extend(problems.map(|problem| format!("`config check` refuses this: {problem}")));
    }
}

/// Writes `text` anew in a form, by default the one that it is not in. What is unknown in it is refused, so that
/// nothing gets lost in silence; values are taken as they are, and the notes say which of them are wrong, with what is
/// given outside of the file.
pub fn migrate(text: &Text, to: Option<Form>, env: &Env) -> Result<Migrated, ConfigError> {
    let mut migrated = rewrite(text, to)?;
    if let Err(error) = super::read(text, &Overrides::new(env, &[]), env)?.problems.finish() {
        migrated.refused(error.problems().iter().filter(|problem| matches!(problem.origin(), Origin::Key(_))));
    }
    Ok(migrated)
}

fn rewrite(text: &Text, to: Option<Form>) -> Result<Migrated, ConfigError> {
    let (form, mut whole, problems) = parse(text, false)?;
    problems.finish()?;
    let other = match form {
        Form::Flat => Form::HyperFleet,
        Form::HyperFleet | Form::Object => Form::Flat,
    };
    let to = to.unwrap_or(other);
    if to == form {
        let notes = vec![format!("{} is in this form already, nothing to do", text.file())];
        return Ok(Migrated { text: text.as_str().to_owned(), notes });
    }
    let mut notes = Vec::new();
    let written = match to {
        Form::Flat | Form::Object => {
            notes.extend(elsewhere(&whole.process));
            let data = whole.config.message_data.as_ref();
            if whole.config.decision != Some(RawPolicy::Expression) && data.is_some_and(has_expressions) {
                let note = "message_data has expressions, which this form takes with decision: expression only; write \
                            them as paths (.id for resource.id)";
                notes.push(note.to_owned());
            }
            to_yaml(&whole.config)
        }
        Form::HyperFleet => {
            // What is the default of one form is not that of the other.
            whole.config.decision.get_or_insert_with(|| RawPolicy::implied_by(whole.config.message_decision.as_ref()));
            to_yaml(&RawHyperFleet::raise(&whole))
        }
    };
    // Values that were read from YAML can be written as YAML.
    let written = written.unwrap_or_default();
    let (old_keys, keys) = (lines(text)?, lines(&Text::new(NEW, &written))?);
    let (spelt, spelling) = numbers::keep((text.as_str(), &old_keys), (written.as_str(), &keys));
    // What was spelt otherwise may have been something else, with a tag for one.
    let written = if meaning(&spelt) == meaning(&written) {
        notes.extend(spelling);
        spelt
    } else {
        written
    };
    let comments = Comments::read(text.as_str(), &old_keys);
    let (text, lost) = comments.write(&written, &keys, |key| to.key(&form.flat_key(key)));
    notes.extend(lost.iter().map(|key| format!("the comment of {key} has no key to stand at, and is left out")));
    Ok(Migrated { text, notes })
}

/// Settings that the first form has no keys for: by which variable they are given.
fn elsewhere(process: &RawProcess) -> Vec<String> {
    let RawProcess { name, debug_config, tracing_enabled, log, version: _, token_cache_ttl: _, topic } = process;
    let given = [
        ("sentinel.name", name.clone()),
        ("debug_config", debug_config.map(|flag| flag.to_string())),
        ("tracing_enabled", tracing_enabled.map(|flag| flag.to_string())),
        ("log.level", log.level.clone()),
        ("log.format", log.format.clone()),
        ("log.output", log.output.clone()),
        ("clients.broker.topic", topic.clone().filter(|topic| !topic.is_empty())),
    ];
    let note = |(key, value): (&str, Option<String>)| {
        let variable = SETTINGS.iter().find(|setting| setting.key == key)?.variables.first()?;
        Some(format!("{key} has no key in this form: set {variable}={}", value?))
    };
    given.into_iter().filter_map(note).collect()
}

/// Whether a leaf is neither a path nor a template.
fn has_expressions(data: &Value) -> bool {
    match data {
        Value::String(text) => !text.trim_start().starts_with('.') && !text.contains("{{"),
        Value::Array(items) => items.iter().any(has_expressions),
        Value::Object(map) => map.values().any(has_expressions),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// What a text says that is written here.
fn meaning(text: &str) -> Option<Value> {
    Text::new(NEW, text).parse().ok().map(|document| document.value)
}

fn lines(text: &Text) -> Result<BTreeMap<u64, String>, ConfigError> {
    text.parse::<Value>().map(|document| document.lines())
}
