//! The command line.

pub(crate) mod beacon;
pub(crate) mod sentinel;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use watchfire_runtime::duration::GoDuration;

/// Where today's image has the sentinel's file.
pub(crate) const CONFIG: &str = "/etc/hyperfleet/config.yaml";

/// Closes the operations loop on a Kubernetes fleet: notices what needs attention and tells whoever acts on it.
#[derive(Debug, Parser)]
#[command(name = "watchfire", version, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows the whole loop on this machine, with nothing else installed.
    Demo(DemoArgs),
    /// Polls a HyperFleet API and publishes reconcile events for what is due.
    Sentinel(Box<sentinel::SentinelCli>),
    /// Does the same under the name that today's HyperFleet has for it; flags without a command mean it too.
    Serve(Box<SentinelArgs>),
    /// Watches annotated objects of a cluster and announces over HTTP that they appeared and disappeared.
    Beacon(beacon::BeaconCli),
    /// Runs several sentinels in one process.
    Run(RunArgs),
    /// Prints the configuration that `serve` would use, merged of file, environment and flags, secrets redacted.
    ConfigDump {
        #[command(flatten)]
        files: ConfigArgs,
        #[command(flatten)]
        settings: SettingArgs,
    },
    /// Checks, shows and documents configuration.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Shows what the embedded broker did not deliver, and does something about it; safe while the service runs.
    Outbox {
        /// The broker's store.
        #[arg(
            long,
            value_name = "FILE",
            env = "BROKER_HTTP_STORE",
            default_value = "watchfire-broker.db",
            global = true
        )]
        store: PathBuf,
        #[command(subcommand)]
        command: OutboxCommand,
    },
    /// Prints the definitions of Watchfire's own Kubernetes objects: watchfire crds | kubectl apply -f -
    Crds,
    /// Prints a shell's completion script.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Prints the version.
    Version(OutputArgs),
}

/// For whom a command prints.
#[derive(Debug, Clone, Args)]
pub(crate) struct OutputArgs {
    /// For people, or for machines.
    // With a name of its own: `format` is that of the log.
    #[arg(id = "answer", long = "output", short = 'o', value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

/// Which configuration a sentinel runs with.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConfigArgs {
    /// The sentinel's YAML file, in its own form or in that of today's HyperFleet. Of the service also the name of a
    /// SentinelConfig object.
    #[arg(long, short, value_name = "FILE", env = "HYPERFLEET_CONFIG", default_value = CONFIG)]
    pub(crate) config: PathBuf,
    /// Where the broker's settings stand, if not in the environment: a broker.yaml, a mounted ConfigMap's folder, its
    /// manifest, or a YAML map of BROKER_*. The environment takes precedence. BROKER_CONFIG_FILE names it too; without
    /// either, a broker.yaml beside the program is read if there is one.
    #[arg(long, value_name = "PATH", env = "BROKER_CONFIG")]
    pub(crate) broker_config: Option<PathBuf>,
}

/// Settings that the file can hold too; see docs/config.md for their variables.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SettingArgs {
    /// The sentinel's name in the log.
    #[arg(long, short, value_name = "NAME")]
    name: Option<String>,
    /// Logs the configuration in effect at start.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    debug_config: Option<String>,
    /// Whether traces are sent, where OTEL_EXPORTER_OTLP_ENDPOINT names a collector.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    tracing_enabled: Option<String>,
    #[command(flatten)]
    log: LogArgs,
    /// The API's base address.
    #[arg(long, value_name = "URL")]
    hyperfleet_api_base_url: Option<String>,
    /// Not used: there is v1 only.
    #[arg(long, value_name = "VERSION", hide = true)]
    hyperfleet_api_version: Option<String>,
    /// For one request to the API.
    #[arg(long, value_name = "DURATION")]
    hyperfleet_api_timeout: Option<String>,
    /// Resources in one answer of the API, at most 100.
    #[arg(long, value_name = "N")]
    hyperfleet_api_page_size: Option<String>,
    /// The topic, or on RabbitMQ the exchange.
    #[arg(long, value_name = "TOPIC")]
    broker_topic: Option<String>,
    /// The plural of the resources to watch.
    #[arg(long, value_name = "PLURAL")]
    resource_type: Option<String>,
    /// From the beginning of one cycle to the beginning of the next.
    #[arg(long, value_name = "DURATION")]
    poll_interval: Option<String>,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct LogArgs {
    /// off, error, warn, info (default), debug or trace; RUST_LOG overrides it per module.
    #[arg(long = "log-level", short = 'l', value_name = "LEVEL")]
    level: Option<String>,
    /// json (default) or text.
    #[arg(long = "log-format", short = 'f', value_name = "FORMAT")]
    format: Option<String>,
    /// stdout (default) or stderr.
    #[arg(long = "log-output", value_name = "STREAM")]
    output: Option<String>,
}

impl SettingArgs {
    /// What the flags give, by their names.
    pub(crate) fn flags(&self) -> [(&'static str, Option<&str>); 13] {
        [
            ("name", self.name.as_deref()),
            ("debug-config", self.debug_config.as_deref()),
            ("tracing-enabled", self.tracing_enabled.as_deref()),
            ("log-level", self.log.level.as_deref()),
            ("log-format", self.log.format.as_deref()),
            ("log-output", self.log.output.as_deref()),
            ("hyperfleet-api-base-url", self.hyperfleet_api_base_url.as_deref()),
            ("hyperfleet-api-version", self.hyperfleet_api_version.as_deref()),
            ("hyperfleet-api-timeout", self.hyperfleet_api_timeout.as_deref()),
            ("hyperfleet-api-page-size", self.hyperfleet_api_page_size.as_deref()),
            ("broker-topic", self.broker_topic.as_deref()),
            ("resource-type", self.resource_type.as_deref()),
            ("poll-interval", self.poll_interval.as_deref()),
        ]
    }

    /// Fails where a flag gives what SentinelConfig objects say themselves.
    pub(crate) fn refuse_what_objects_say(&self) -> anyhow::Result<()> {
        let of_process = ["name", "debug-config", "tracing-enabled", "log-level", "log-format", "log-output"];
        let given = |(flag, value): &(&str, Option<&str>)| value.is_some() && !of_process.contains(flag);
        match self.flags().iter().find(|flag| given(flag)) {
            Some((flag, _)) => {
                Err(anyhow!("--{flag} is not for SentinelConfig objects; write it into the object's spec"))
            }
            None => Ok(()),
        }
    }
}

impl From<LogArgs> for SettingArgs {
    fn from(log: LogArgs) -> Self {
        Self { log, ..Self::default() }
    }
}

#[derive(Debug, Args)]
pub(crate) struct SentinelArgs {
    #[command(flatten)]
    pub(crate) files: ConfigArgs,
    #[command(flatten)]
    pub(crate) settings: SettingArgs,
    #[command(flatten)]
    pub(crate) process: ProcessArgs,
    #[command(flatten)]
    pub(crate) record: RecordBesideArgs,
    #[command(flatten)]
    pub(crate) objects: ObjectArgs,
}

/// Where the configuration is kept in Kubernetes, as SentinelConfig objects.
#[derive(Debug, Args)]
#[command(next_help_heading = "SentinelConfig objects")]
pub(crate) struct ObjectArgs {
    /// Where the object is that --config names, if that is no file.
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Serves every SentinelConfig of the namespace instead of one.
    #[arg(long, conflicts_with = "config")]
    pub(crate) all_configs: bool,
    /// Of several replicas, only the one that holds the Lease publishes.
    #[arg(long)]
    pub(crate) leader_elect: bool,
    /// The Lease that replicas share; by default watchfire-sentinel- and the object's name.
    #[arg(long, value_name = "NAME")]
    pub(crate) leader_elect_lease_name: Option<String>,
    /// The others wait for so long after the leader's last sign of life.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    pub(crate) leader_elect_lease_duration: GoDuration,
    /// A leader that cannot renew the Lease leads no more after so long; shorter than the duration.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub(crate) leader_elect_renew_deadline: GoDuration,
    /// Between two attempts to renew or take the Lease; shorter than the deadline.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    pub(crate) leader_elect_retry_period: GoDuration,
}

/// Whether the service records what it sees and does.
#[derive(Debug, Args)]
pub(crate) struct RecordBesideArgs {
    /// Records what the API says, and what becomes of events, into this folder; several sentinels each into a folder of
    /// their name in it. See `watchfire sentinel simulate`.
    #[arg(long = "record", value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// What the folder may take; beyond it the oldest goes.
    #[arg(long = "record-max-size", value_name = "SIZE", default_value = "256MiB", value_parser = sentinel::size)]
    pub(crate) max_size: u64,
    /// A path to leave out, such as .labels.owner; can be given several times.
    #[arg(long = "record-redact", value_name = "PATH")]
    pub(crate) redact: Vec<String>,
}

/// Several sentinels in one process.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The YAML file that lists them: `sentinels:` with `name`, `config` and `broker_config` each.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(flatten)]
    pub(crate) process: ProcessArgs,
    #[command(flatten)]
    pub(crate) record: RecordBesideArgs,
}

/// What is one per process, whatever runs in it.
#[derive(Debug, Clone, Args)]
pub(crate) struct ProcessArgs {
    /// Where /healthz, /readyz and the console are served [default: :8080; of SentinelConfig objects :8081; of a
    /// beacon what its file says]
    #[arg(long, aliases = ["health-server-bindaddress", "health-probe-bind-address"], value_name = "ADDRESS")]
    health_bind_address: Option<String>,
    /// Where /metrics is served; the same address serves both from one listener [default: :9090; of SentinelConfig
    /// objects :8080; of a beacon what its file says]
    #[arg(long, alias = "metrics-server-bindaddress", value_name = "ADDRESS")]
    metrics_bind_address: Option<String>,
    /// How long what is in hand may take to finish after SIGTERM.
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = duration)]
    pub(crate) grace_period: GoDuration,
}

impl ProcessArgs {
    /// Where health and metrics are served, each as given, or by default.
    pub(crate) fn addresses<'a>(&'a self, health: &'a str, metrics: &'a str) -> [(&'static str, &'a str); 2] {
        [
            ("health-bind-address", self.health_bind_address.as_deref().unwrap_or(health)),
            ("metrics-bind-address", self.metrics_bind_address.as_deref().unwrap_or(metrics)),
        ]
    }
}

#[derive(Debug, Args)]
pub(crate) struct LiveArgs {
    /// Asks the API and the broker, too, of a beacon's file the cluster and the endpoint, and says what they answer;
    /// exit status 1 if one fails. Changes nothing.
    #[arg(long)]
    pub(crate) live: bool,
    /// RabbitMQ's management API, such as http://rabbitmq:15672: says which queues are bound to the exchange, and who
    /// consumes them. The broker's user and password are used there, too.
    #[arg(long, value_name = "URL", requires = "live")]
    pub(crate) management_url: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Reports every problem of a configuration at once; exit status 64 if there is one.
    Check {
        #[command(flatten)]
        files: ConfigArgs,
        #[command(flatten)]
        settings: SettingArgs,
        #[command(flatten)]
        live: LiveArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Prints the configuration in effect, secrets redacted.
    Show {
        #[command(flatten)]
        files: ConfigArgs,
        #[command(flatten)]
        settings: SettingArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Turns a file of one form into the other, with its comments, and says what has no place there. The broker's
    /// settings become a broker.yaml or variables.
    Migrate {
        /// The sentinel's file, a broker.yaml, or a ConfigMap's folder, manifest or map.
        #[arg(required_unless_present = "config", conflicts_with = "config")]
        file: Option<PathBuf>,
        /// The same, as the other commands have it.
        #[arg(long, short, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Into which form; without it, the one that the file is not in.
        #[arg(long, value_enum)]
        to: Option<ToForm>,
    },
    /// Prints the JSON Schema of a file.
    Schema {
        /// The sentinel's own form, that of today's HyperFleet, or broker.yaml.
        #[arg(long, value_enum, default_value_t = SchemaOf::Flat)]
        form: SchemaOf,
    },
}

/// A form of the sentinel's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ToForm {
    /// The sentinel's own.
    Flat,
    /// That of today's HyperFleet.
    Hyperfleet,
}

/// What a schema is asked of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemaOf {
    Flat,
    Hyperfleet,
    Broker,
    Beacon,
}

#[derive(Debug, Subcommand)]
pub(crate) enum OutboxCommand {
    /// Lists deliveries in the order in which they were queued.
    List {
        #[command(flatten)]
        which: DeliveryArgs,
        /// At most so many.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: u32,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Shows one delivery with its event, exactly as it is sent.
    Show {
        /// The delivery's number, as listed.
        number: i64,
    },
    /// Prints events, one CloudEvent in JSON per line and each once: whatever is not delivered, unless something else
    /// is asked for.
    Export(DeliveryArgs),
    /// Queues dead and discarded deliveries again; pending ones become due at once.
    Retry(DeliveryArgs),
    /// Gives up pending and dead deliveries.
    Discard {
        #[command(flatten)]
        which: DeliveryArgs,
        /// Why, for whoever looks later.
        #[arg(long, value_parser = NonEmptyStringValueParser::new())]
        reason: String,
    },
    /// Stops deliveries to a subscriber until it is resumed; its queue is kept.
    Pause {
        /// The subscriber's name.
        sink: String,
        /// Why, for whoever looks later.
        #[arg(long, value_parser = NonEmptyStringValueParser::new())]
        reason: String,
    },
    /// Lets deliveries to a subscriber go on, also after its 410.
    Resume {
        /// The subscriber's name.
        sink: String,
    },
}

/// Which deliveries are meant; what is not given does not restrict.
#[derive(Debug, Clone, Args)]
pub(crate) struct DeliveryArgs {
    /// One delivery, by its number as listed.
    #[arg(long, value_name = "N")]
    pub(crate) number: Option<i64>,
    /// One subscriber.
    #[arg(long, value_name = "NAME")]
    pub(crate) sink: Option<String>,
    /// pending, delivered, dead or discarded; dead unless something else is asked for, for an export pending and dead.
    #[arg(long, value_name = "STATE")]
    pub(crate) state: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Ends after this many seconds; exit status 0 only if every resource became Ready.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub(crate) seconds: Option<u64>,
    /// Prints one line per change instead of drawing a view; the default where output is not a terminal.
    #[arg(long)]
    pub(crate) plain: bool,
    /// Changes one resource's spec half way, so that its immediate event can be seen.
    #[arg(long)]
    pub(crate) spec_change: bool,
    /// How many clusters to begin with.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub(crate) clusters: u16,
}

/// Renders the completion script of a shell.
pub(crate) fn completions(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "watchfire", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Renders what `watchfire version` prints.
pub(crate) fn version(format: Format) -> String {
    let version = env!("CARGO_PKG_VERSION");
    match format {
        Format::Text => format!("watchfire {version}"),
        Format::Json => serde_json::json!({"version": version}).to_string(),
    }
}

/// Reads a command line as today's image writes it, too: flags without a command, and a program called `sentinel`, mean
/// `serve`. What is wrong with it, or the help that it asks for, is the error.
pub(crate) fn parse(given: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(arguments(given))
}

fn arguments(given: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<_> = given.into_iter().collect();
    let program = arguments.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    let serves = match arguments.get(1).map(|first| first.to_string_lossy()) {
        Some(first) => first.starts_with('-') && !["-h", "--help", "-V", "--version"].contains(&&*first),
        None => program == "sentinel",
    };
    if serves {
        arguments.insert(1, "serve".into());
    }
    arguments
}

fn duration(text: &str) -> Result<GoDuration, String> {
    text.parse().map_err(|error| format!("{error}"))
}

#[cfg(test)]
mod tests {
    use watchfire_sentinel::config::setting::SETTINGS;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_of_a_setting_is_one_and_no_other() {
        let flags = SettingArgs::default().flags().map(|(name, _)| name);
        let mut settings: Vec<_> = SETTINGS.iter().filter_map(|setting| setting.flag).collect();
        settings.sort_unstable();
        let mut sorted = flags;
        sorted.sort_unstable();
        assert_eq!(settings, sorted);
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        for flag in flags {
            assert!(serve.get_arguments().any(|argument| argument.get_long() == Some(flag)), "{flag}");
        }
    }

    #[test]
    fn the_command_lines_of_todays_image_mean_serve() {
        let read = |line: &str| parse(line.split(' ').map(OsString::from)).map(|cli| cli.command);
        for line in [
            "/app/sentinel serve --config=/etc/sentinel/config.yaml",
            "/app/sentinel --config=/etc/sentinel/config.yaml",
            "/app/sentinel -c /etc/sentinel/config.yaml",
            "watchfire --config /etc/sentinel/config.yaml",
            "watchfire -c=/etc/sentinel/config.yaml",
            "watchfire serve -c /etc/sentinel/config.yaml -n a -l debug -f text --log-output stderr --debug-config \
             --tracing-enabled=false --hyperfleet-api-base-url http://a --hyperfleet-api-version v1 \
             --hyperfleet-api-timeout 5s --hyperfleet-api-page-size 50 --broker-topic t --resource-type clusters \
             --poll-interval 5s --health-server-bindaddress :8080 --metrics-server-bindaddress :9090",
        ] {
            match read(line) {
                Ok(Command::Serve(args)) => {
                    assert_eq!(args.files.config, Path::new("/etc/sentinel/config.yaml"), "{line}");
                }
                other => panic!("{line}: {other:?}"),
            }
        }
        for line in ["/app/sentinel", "/app/sentinel serve"] {
            match read(line) {
                Ok(Command::Serve(args)) => {
                    assert_eq!(args.files.config, Path::new("/etc/hyperfleet/config.yaml"), "{line}");
                }
                other => panic!("{line}: {other:?}"),
            }
        }
        assert!(matches!(read("/app/sentinel version"), Ok(Command::Version(_))));
        assert!(matches!(read("/app/sentinel config-dump -c x"), Ok(Command::ConfigDump { .. })));
        assert!(read("watchfire").is_err() && read("/app/sentinel --help").is_err());
    }

    #[test]
    fn the_store_is_named_before_or_behind_what_is_done_with_it() {
        for (line, named) in [
            ("watchfire outbox --store a.db list", "a.db"),
            ("watchfire outbox list --store a.db", "a.db"),
            ("watchfire outbox discard --number 17 --store=a.db --reason gone", "a.db"),
            ("watchfire outbox show 17", "watchfire-broker.db"),
        ] {
            match parse(line.split(' ').map(OsString::from)).map(|cli| cli.command) {
                Ok(Command::Outbox { store, .. }) => assert_eq!(store, Path::new(named), "{line}"),
                other => panic!("{line}: {other:?}"),
            }
        }
    }

    #[test]
    fn completions_name_the_commands() {
        let script = completions(clap_complete::Shell::Bash);
        assert!(script.contains("sentinel") && script.contains("demo"));
    }
}
