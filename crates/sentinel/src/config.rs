//! What the YAML file of a sentinel says, and what it means.
//!
//! The file has one of two [forms](Form), told by its keys. Both are read into one shape ([`setting::Whole`]), on which
//! environment and flags are laid; [`SentinelConfig`] holds what has been checked. The broker has its own settings,
//! shared with the adapters: see [`broker`].

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use watchfire_runtime::config::{ConfigError, Document, Env, Origin, Problems, Text};
use watchfire_runtime::telemetry::{LogFormat, LogOutput};

use crate::api::ApiConfig;
use crate::decision::Rules;
use crate::expression::Expression;
use crate::payload::Payload;
use crate::selector::Selector;

mod api;
pub mod broker;
mod check;
mod comments;
mod decision;
mod finite;
mod form;
pub mod hyperfleet;
mod migrate;
mod numbers;
mod object;
pub mod raw;
mod rules;
mod selector;
pub mod setting;
mod show;

pub use form::Form;
pub use hyperfleet::RawHyperFleet;
pub use migrate::{Migrated, migrate};
pub use object::{SecretValues, read_object};
pub use raw::{RawConfig, RawDecision, RawParam, RawPolicy, Republish};
pub use setting::Overrides;
pub use show::Shown;

/// A checked configuration.
#[derive(Debug, Clone)]
pub struct SentinelConfig {
    /// The form of the file, whose keys are named to whoever can change them.
    pub form: Form,
    /// Where and what to list.
    pub api: ApiConfig,
    /// From the beginning of one cycle to the beginning of the next.
    pub poll_interval: Duration,
    /// When a resource is due.
    pub rules: Rules,
    /// What decides in place of the policy of `rules`, where an expression does.
    pub expression: Option<Arc<Expression>>,
    /// The most events in a second, of all sentinels of the process together.
    pub max_events_per_second: Option<NonZeroU32>,
    /// Whether our own events count.
    pub republish: Republish,
    /// Which resources are watched.
    pub selector: Selector,
    /// What is sent.
    pub payload: Arc<Payload>,
    /// The file with every default filled in, for whoever asks what is in effect: values of headers are redacted.
    pub effective: RawConfig,
}

/// How the process is set up, where the configuration says so.
#[derive(Debug, Clone)]
pub struct Process {
    /// The sentinel's name in the log.
    pub name: String,
    /// Whether the configuration in effect is logged at start.
    pub debug_config: bool,
    /// Whether traces are sent, where a collector is named.
    pub tracing: bool,
    /// `off` to `trace`, or directives.
    pub log_level: String,
    /// How a line is written.
    pub log_format: LogFormat,
    /// Where lines go.
    pub log_output: LogOutput,
}

/// A configuration that was read; where it does not hold, the problems say why.
pub struct Reading {
    /// The form of the file.
    pub form: Form,
    /// What the sentinel does.
    pub sentinel: Option<SentinelConfig>,
    /// How its process is set up.
    pub process: Option<Process>,
    /// The topic, where the configuration names one.
    pub topic: Option<(String, Origin)>,
    /// Everything that is wrong, or odd.
    pub problems: Problems,
}

/// Reads a file in either form, with what is given outside of it.
pub fn read(text: &Text, overrides: &Overrides, env: &Env) -> Result<Reading, ConfigError> {
    let (form, whole, problems) = parse(text, overrides.has_address())?;
    Ok(check::check(form, whole, overrides, env, problems))
}

/// Parses a file in either form; unknown keys are the first problems.
fn parse(text: &Text, by_address: bool) -> Result<(Form, setting::Whole, Problems), ConfigError> {
    let form = Form::of(text, by_address)?;
    Ok(match form {
        Form::Flat => {
            let document =
                text.parse_as_far_as_possible::<RawConfig>()?.renamed(&form::RENAMED_FLAT).refused(&form::REFUSED);
            let problems = document.problems();
            (form, setting::Whole { config: document.value, ..setting::Whole::default() }, problems)
        }
        Form::HyperFleet | Form::Object => {
            let document = text
                .parse_as_far_as_possible::<RawHyperFleet>()?
                .renamed(&form::RENAMED_HYPERFLEET)
                .refused(&form::REFUSED);
            (form, document.value.lower(), document.problems())
        }
    })
}

/// Reads the meaning of a file in the first form; every problem ends up in the returned list.
pub fn check(document: Document<RawConfig>, env: &Env) -> (Option<SentinelConfig>, Problems) {
    let document = document.renamed(&form::RENAMED_FLAT).refused(&form::REFUSED);
    let problems = document.problems();
    let whole = setting::Whole { config: document.value, ..setting::Whole::default() };
    let reading = check::check(Form::Flat, whole, &Overrides::new(env, &[]), env, problems);
    (reading.sentinel, reading.problems)
}

#[cfg(test)]
mod tests;
