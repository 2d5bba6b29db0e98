//! `watchfire config`, and how every command reads its configuration.

mod beacon;
pub(crate) mod list;
mod live;
mod object;
mod queues;

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use serde_json::{Value, json};
use watchfire_beacon::BeaconConfig;
use watchfire_runtime::config::{ConfigError, Env, Origin, Problems, Text, Warning};
use watchfire_runtime::{chain, one_line, redact};
use watchfire_sentinel::config::broker::{RawBrokerFile, Settings};
use watchfire_sentinel::config::{self, Form, Overrides, Process, RawConfig, RawHyperFleet, SentinelConfig, broker};

use crate::cli::{CONFIG, ConfigArgs, ConfigCommand, Format, LiveArgs, SchemaOf, SettingArgs, ToForm};
use crate::failure::{Failure, note_aside, say, tell};

/// A configuration that holds.
pub(crate) struct Loaded {
    pub(crate) sentinel: SentinelConfig,
    pub(crate) process: Process,
    pub(crate) broker: broker::BrokerConfig,
    /// What the broker was read from: equal settings are one connection.
    pub(crate) broker_settings: Settings,
    /// What is legal, but probably not meant.
    pub(crate) warnings: Vec<Warning>,
}

/// Why a configuration does not hold, and what is odd about it besides.
#[derive(Debug)]
pub(crate) struct Refused {
    error: ConfigError,
    warnings: Vec<Warning>,
}

impl From<ConfigError> for Refused {
    fn from(error: ConfigError) -> Self {
        Self { error, warnings: Vec::new() }
    }
}

impl From<Refused> for ConfigError {
    fn from(refused: Refused) -> Self {
        refused.error
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        refused.error.into()
    }
}

pub(crate) fn run(command: &ConfigCommand) -> Result<(), Failure> {
    let env = Env::from_process();
    match command {
        ConfigCommand::Check { files, settings, live, output } => {
            let loaded = Service::load(files, settings, &env);
            match output.format {
                Format::Text => check(loaded, live),
                Format::Json => check_for_programs(loaded, live),
            }
        }
        ConfigCommand::Migrate { file, config, to } => {
            migrate(file.as_ref().or(config.as_ref()).context("name the file")?, *to, &env)
        }
        ConfigCommand::Show { files, settings, output } => {
            let effective = Service::load(files, settings, &env)?.effective()?;
            say(&match output.format {
                Format::Text => shown(&effective)?,
                Format::Json => pretty(&effective)?,
            })
        }
        ConfigCommand::Schema { form } => {
            let schema = match form {
                SchemaOf::Flat => schemars::schema_for!(RawConfig),
                SchemaOf::Hyperfleet => schemars::schema_for!(RawHyperFleet),
                SchemaOf::Broker => schemars::schema_for!(RawBrokerFile),
                SchemaOf::Beacon => schemars::schema_for!(watchfire_beacon::config::RawConfig),
            };
            say(&serde_json::to_string_pretty(&schema).context("print the schema")?)
        }
    }
}

fn check(loaded: Result<Service, Refused>, live: &LiveArgs) -> Result<(), Failure> {
    let mut text = String::new();
    for warning in loaded.as_ref().map_or_else(|refused| &refused.warnings, Service::warnings) {
        // Writing to a String cannot fail.
        let _infallible = writeln!(text, "warning: {warning}");
    }
    if loaded.is_ok() {
        text.push_str("the configuration is valid");
    }
    if !text.is_empty() {
        tell(&text)?;
    }
    let loaded = loaded?;
    if !live.live {
        return Ok(());
    }
    let answers = loaded.ask(live)?;
    let told = |(name, answer): &live::Answer| match answer {
        Ok(answer) => one_line(&format!("{name}: {answer}")),
        Err(error) => one_line(&format!("{name}: FAILED: {error:#}")),
    };
    tell(&answers.iter().map(told).collect::<Vec<_>>().join("\n"))?;
    live::verdict(&answers)
}

/// Says the same as one document. What is wrong is on standard error, too, as ever.
fn check_for_programs(loaded: Result<Service, Refused>, live: &LiveArgs) -> Result<(), Failure> {
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(Refused { error, warnings }) => {
            let problems = match error.problems() {
                [] => vec![json!({"message": chain(&error)})],
                found => found.iter().map(|problem| json!(problem)).collect(),
            };
            say(&pretty(&json!({"valid": false, "problems": problems, "warnings": warnings}))?)?;
            return Err(error.into());
        }
    };
    let mut document = json!({"valid": true, "warnings": loaded.warnings()});
    let answers = if live.live { loaded.ask(live)? } else { Vec::new() };
    for (name, answer) in &answers {
        let said = answer.as_ref().map_or_else(|error| format!("{error:#}"), Clone::clone);
        document["live"][name.to_lowercase()] = json!({"ok": answer.is_ok(), "message": said});
    }
    say(&pretty(&document)?)?;
    live::verdict(&answers)
}

fn pretty(document: &Value) -> anyhow::Result<String> {
    serde_json::to_string_pretty(document).context("print JSON")
}

fn migrate(file: &Path, to: Option<ToForm>, env: &Env) -> Result<(), Failure> {
    let to = to.map(|to| match to {
        ToForm::Flat => Form::Flat,
        ToForm::Hyperfleet => Form::HyperFleet,
    });
    let migrated = if file.is_dir() {
        broker::migrate_folder(file, to)?
    } else {
        // Read once: it may be a pipe.
        let text = Text::read(file)?;
        if broker::is_broker(&text)? {
            broker::migrate(&text, to)?
        } else {
            object::refuse(&text)?;
            config::migrate(&text, to, env)?
        }
    };
    for note in &migrated.notes {
        note_aside(note);
    }
    say(&migrated.text)
}

/// `watchfire config-dump`: what `serve` would use, without the broker, which has a file of its own.
pub(crate) fn dump(files: &ConfigArgs, settings: &SettingArgs) -> Result<(), Failure> {
    let env = Env::from_process();
    let reading = read(&files.config, settings, &env)?;
    reading.problems.finish()?;
    let (sentinel, process) = (held(reading.sentinel)?, held(reading.process)?);
    let topic = reading.topic.as_ref().map(|(topic, _)| topic.as_str());
    say(&shown(&sentinel.file(&process, topic))?)
}

impl Loaded {
    /// The configuration in effect, as YAML, secrets redacted.
    pub(crate) fn show(&self) -> anyhow::Result<String> {
        shown(&self.effective())
    }

    fn effective(&self) -> impl Serialize + use<> {
        self.sentinel.show(&self.process, &self.broker)
    }
}

fn shown(value: &impl serde::Serialize) -> anyhow::Result<String> {
    redact::to_yaml(value).context("print the configuration")
}

/// A configuration that holds, of whichever service.
enum Service {
    Sentinel(Box<Loaded>),
    Beacon(Box<BeaconConfig>, Vec<Warning>),
}

impl Service {
    fn load(files: &ConfigArgs, settings: &SettingArgs, env: &Env) -> Result<Self, Refused> {
        // Read once: it may be a pipe.
        let text = Text::read(&files.config)?;
        if watchfire_beacon::config::is_one(&text) {
            let (config, warnings) = BeaconConfig::read(&text, env)?;
            return Ok(Self::Beacon(Box::new(config), warnings));
        }
        Ok(Self::Sentinel(Box::new(load_text(&text, broker_file(files, env), settings, env)?)))
    }

    fn warnings(&self) -> &Vec<Warning> {
        match self {
            Self::Sentinel(loaded) => &loaded.warnings,
            Self::Beacon(_, warnings) => warnings,
        }
    }

    fn ask(self, live: &LiveArgs) -> Result<Vec<live::Answer>, Failure> {
        match self {
            Self::Sentinel(loaded) => live::ask(*loaded, live.management_url.as_deref()),
            Self::Beacon(config, _) => beacon::ask(*config, live),
        }
    }

    /// What is in effect, secrets redacted.
    fn effective(&self) -> anyhow::Result<Value> {
        let effective = match self {
            Self::Sentinel(loaded) => redact::to_json(&loaded.effective()),
            Self::Beacon(config, _) => redact::to_json(&config.shown()),
        };
        effective.context("print the configuration")
    }
}

/// Reads files, environment and flags; every problem of all of them is in one error.
pub(crate) fn load(files: &ConfigArgs, settings: &SettingArgs, env: &Env) -> Result<Loaded, Refused> {
    load_files(&files.config, broker_file(files, env), settings, env)
}

/// As [`load`]; of the broker's file it is known where it was named.
fn load_files(
    file: &Path,
    broker_file: Option<(PathBuf, Origin)>,
    settings: &SettingArgs,
    env: &Env,
) -> Result<Loaded, Refused> {
    load_text(&Text::read(file)?, broker_file, settings, env)
}

fn load_text(
    text: &Text,
    broker_file: Option<(PathBuf, Origin)>,
    settings: &SettingArgs,
    env: &Env,
) -> Result<Loaded, Refused> {
    let mut reading = read_text(text, settings, env)?;
    let mut broker_settings = Settings::from(env);
    if let Some((topic, origin)) = &reading.topic {
        broker_settings.prefer_topic(topic, origin, &mut reading.problems);
    }
    let mut readable = true;
    if let Some((path, named)) = broker_file {
        match broker::read(&path, &mut reading.problems) {
            Ok(found) => {
                broker_settings.warn_of_overruled(&found, &mut reading.problems);
                broker_settings = broker_settings.or(found);
            }
            Err(error) => {
                reading.problems.refuse(named, error);
                readable = false;
            }
        }
    }
    if readable && reading.form == Form::HyperFleet && !broker_settings.names_a_topic() {
        let message = format!(
            "empty: events go to {:?}; write the topic that the adapters listen on, or set HYPERFLEET_BROKER_TOPIC",
            broker::DEFAULT_TOPIC
        );
        reading.problems.warn("clients.broker.topic", message);
    }
    // What stands in a file that cannot be read is not missing.
    let broker = if readable { broker::check(&broker_settings, &mut reading.problems) } else { None };
    let warnings = reading.problems.warnings();
    reading.problems.finish().map_err(|error| Refused { error, warnings: warnings.clone() })?;
    Ok(Loaded {
        sentinel: held(reading.sentinel)?,
        process: held(reading.process)?,
        broker: held(broker)?,
        broker_settings,
        warnings,
    })
}

/// How the process is set up where no file says it: by flags and environment.
pub(crate) fn process(settings: &SettingArgs, env: &Env) -> Result<Process, ConfigError> {
    let (process, problems) = Process::read(&Overrides::new(env, &settings.flags()));
    problems.finish()?;
    held(process)
}

/// Reads what a sentinel decides by, without its broker: for commands that publish nothing.
pub(crate) fn sentinel(file: &Path, env: &Env) -> Result<SentinelConfig, ConfigError> {
    sentinel_of(&Text::read(file)?, env)
}

fn sentinel_of(text: &Text, env: &Env) -> Result<SentinelConfig, ConfigError> {
    let reading = read_text(text, &SettingArgs::default(), env)?;
    reading.problems.finish()?;
    held(reading.sentinel)
}

/// As [`sentinel`], for several, each with the name of its file; every problem of every file is in one error.
pub(crate) fn sentinels(files: &[PathBuf], env: &Env) -> Result<Vec<(String, SentinelConfig)>, ConfigError> {
    let mut problems = Problems::without_file();
    let texts = files.iter().filter_map(|file| open(file, itself(file), &mut problems)).collect();
    each(texts, problems, env)
}

/// As [`sentinels`]; a list for `watchfire run` stands for the files that it names.
pub(crate) fn fleet(files: &[PathBuf], env: &Env) -> Result<Vec<(String, SentinelConfig)>, ConfigError> {
    let (mut all, mut problems) = (Vec::new(), Problems::without_file());
    for file in files {
        let Some((text, named)) = open(file, itself(file), &mut problems) else { continue };
        if object::is_list(&text) {
            let listed = list::files(&text, &mut problems)?;
            all.extend(listed.into_iter().filter_map(|(file, named)| open(&file, named, &mut problems)));
        } else {
            all.push((text, named));
        }
    }
    each(all, problems, env)
}

/// Reads a file once, whoever looks at it: it may be a pipe.
fn open(file: &Path, named: Origin, problems: &mut Problems) -> Option<(Text, Origin)> {
    match Text::read(file) {
        Ok(text) => Some((text, named)),
        Err(error) => {
            problems.refuse(named, error);
            None
        }
    }
}

fn each(
    texts: Vec<(Text, Origin)>,
    mut problems: Problems,
    env: &Env,
) -> Result<Vec<(String, SentinelConfig)>, ConfigError> {
    let mut configs = Vec::new();
    for (text, named) in texts {
        match sentinel_of(&text, env) {
            Ok(config) => configs.push((text.file().to_owned(), config)),
            Err(error) => problems.refuse(named, error),
        }
    }
    problems.finish()?;
    Ok(configs)
}

/// A file that is named on the command line.
fn itself(file: &Path) -> Origin {
    Origin::Beside { file: file.display().to_string(), key: String::new(), place: None }
}

/// Whether the sentinel's file is not there, and nobody said where it is.
pub(crate) fn is_default_missing(error: &ConfigError) -> bool {
    match error {
        ConfigError::Read { file, source } => file == CONFIG && source.kind() == io::ErrorKind::NotFound,
        ConfigError::Invalid(_) => false,
    }
}

fn read(file: &Path, settings: &SettingArgs, env: &Env) -> Result<config::Reading, ConfigError> {
    read_text(&Text::read(file)?, settings, env)
}

/// The text was read once: it may be a pipe.
fn read_text(text: &Text, settings: &SettingArgs, env: &Env) -> Result<config::Reading, ConfigError> {
    object::refuse(text)?;
    config::read(text, &Overrides::new(env, &settings.flags()), env)
}

/// What is missing was told as a problem, so that `finish` has returned already.
fn held<T>(checked: Option<T>) -> Result<T, ConfigError> {
    checked.ok_or_else(|| ConfigError::Invalid(Vec::new()))
}

/// Where the broker's settings stand, and who says so: as named, else beside the program, where today's image has them.
fn broker_file(files: &ConfigArgs, env: &Env) -> Option<(PathBuf, Origin)> {
    let beside = || {
        let program = std::env::args_os().next()?;
        // A name without a folder was found on the PATH.
        let folder = Path::new(&program).parent().filter(|folder| *folder != Path::new(""))?;
        Some(folder.join("broker.yaml")).filter(|path| path.is_file())
    };
    // Where each sentinel has files of its own, no flag stands for the variable.
    let by_variable = || {
        let mut named = ["BROKER_CONFIG", "BROKER_CONFIG_FILE"].into_iter();
        named.find_map(|name| Some((PathBuf::from(env.get(name)?), Origin::env(name))))
    };
    // The variable may have given the flag.
    let by_flag = files.broker_config.clone().map(|path| match by_variable() {
        Some((same, variable)) if same == path => (path, variable),
        _ => (path, Origin::flag("--broker-config")),
    });
    by_flag.or_else(by_variable).or_else(|| {
        let path = beside()?;
        let named = itself(&path);
        Some((path, named))
    })
}
