//! `watchfire config`, and how every command reads its configuration.

mod object;

use std::fmt::Write as _;

use anyhow::Context;
use watchfire_runtime::config::{ConfigError, Document, Env, Warning};
use watchfire_sentinel::config::broker::Settings;
use watchfire_sentinel::config::{self, RawConfig, SentinelConfig, broker};

use crate::cli::{ConfigArgs, ConfigCommand};
use crate::failure::{Failure, say};

/// A configuration that holds.
pub(crate) struct Loaded {
    pub(crate) sentinel: SentinelConfig,
    pub(crate) broker: broker::BrokerConfig,
    /// What is legal, but probably not meant.
    pub(crate) warnings: Vec<Warning>,
}

pub(crate) fn run(command: &ConfigCommand) -> Result<(), Failure> {
    let env = Env::from_process();
    match command {
        ConfigCommand::Check(args) => {
            let loaded = load(args, &env)?;
            let mut text = String::new();
            for warning in &loaded.warnings {
                // Writing to a String cannot fail.
                let _infallible = writeln!(text, "warning: {warning}");
            }
            text.push_str("the configuration is valid");
            say(&text)
        }
        ConfigCommand::Show(args) => {
            let loaded = load(args, &env)?;
            let shown = loaded.sentinel.show(&loaded.broker);
            say(&watchfire_runtime::redact::to_yaml(&shown).context("print the configuration")?)
        }
        ConfigCommand::Schema => {
            let schema = schemars::schema_for!(RawConfig);
            say(&serde_json::to_string_pretty(&schema).context("print the schema")?)
        }
    }
}

/// Reads file and environment; every problem of both is in one error.
pub(crate) fn load(args: &ConfigArgs, env: &Env) -> Result<Loaded, ConfigError> {
    object::refuse(&args.config)?;
    let document = Document::<RawConfig>::read(&args.config)?;
    let (sentinel, mut problems) = config::check(document, env);
    let mut settings = Settings::from(env);
    if let Some(path) = &args.broker_config {
        settings = settings.or(broker::read(path, &mut problems)?);
    }
    let broker = broker::check(&settings, &mut problems);
    let warnings = problems.finish()?;
    match (sentinel, broker) {
        (Some(sentinel), Some(broker)) => Ok(Loaded { sentinel, broker, warnings }),
        // What is missing was told as a problem, so `finish` has returned already.
        _ => Err(ConfigError::Invalid(Vec::new())),
    }
}
