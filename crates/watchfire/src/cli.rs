//! The command line.

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};
use watchfire_runtime::duration::GoDuration;

/// What `watchfire version` prints.
pub(crate) const VERSION: &str = concat!("watchfire ", env!("CARGO_PKG_VERSION"));

/// Closes the operations loop on a Kubernetes fleet: notices what needs attention, decides, acts, and tells.
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
    Sentinel(SentinelArgs),
    /// Checks, shows and documents configuration.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Shows what the embedded broker did not deliver, and does something about it; safe while the service runs.
    Outbox {
        /// The broker's store.
        #[arg(long, value_name = "FILE", env = "BROKER_HTTP_STORE", default_value = "watchfire-broker.db")]
        store: PathBuf,
        #[command(subcommand)]
        command: OutboxCommand,
    },
    /// Prints a shell's completion script.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Prints the version.
    Version,
}

/// Which configuration a sentinel runs with.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConfigArgs {
    /// The sentinel's YAML file.
    #[arg(long, short, value_name = "FILE", env = "HYPERFLEET_CONFIG")]
    pub(crate) config: PathBuf,
    /// Where the BROKER_* settings stand, if not in the environment: a mounted ConfigMap's folder, its manifest, or a
    /// YAML map. The environment takes precedence.
    #[arg(long, value_name = "PATH", env = "BROKER_CONFIG")]
    pub(crate) broker_config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct SentinelArgs {
    #[command(flatten)]
    pub(crate) files: ConfigArgs,
    /// Where /healthz, /readyz and the console are served.
    #[arg(long, value_name = "ADDRESS", default_value = ":8080")]
    pub(crate) health_bind_address: String,
    /// Where /metrics is served; the same address serves both from one listener.
    #[arg(long, value_name = "ADDRESS", default_value = ":9090")]
    pub(crate) metrics_bind_address: String,
    /// How long what is in hand may take to finish after SIGTERM.
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = duration)]
    pub(crate) grace_period: GoDuration,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct LogArgs {
    /// off, error, warn, info, debug or trace; RUST_LOG overrides it per module.
    #[arg(long, value_name = "LEVEL", env = "LOG_LEVEL", default_value = "info")]
    pub(crate) log_level: String,
    /// json or text.
    #[arg(long, value_name = "FORMAT", env = "LOG_FORMAT", default_value = "json")]
    pub(crate) log_format: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Reports every problem of a configuration at once; exit status 64 if there is one.
    Check(ConfigArgs),
    /// Prints the configuration in effect, secrets redacted.
    Show(ConfigArgs),
    /// Prints the JSON Schema of the configuration file.
    Schema,
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
        /// Prints one JSON object per delivery.
        #[arg(long)]
        json: bool,
    },
    /// Shows one delivery with its event, exactly as it is sent.
    Show {
        /// The delivery's number, as listed.
        number: i64,
    },
    /// Queues dead and discarded deliveries again; pending ones become due at once.
    Retry(DeliveryArgs),
    /// Gives up pending and dead deliveries.
    Discard {
        #[command(flatten)]
        which: DeliveryArgs,
        /// Why, for whoever looks later.
        #[arg(long)]
        reason: String,
    },
    /// Stops deliveries to a subscriber until it is resumed; its queue is kept.
    Pause {
        /// The subscriber's name.
        sink: String,
        /// Why, for whoever looks later.
        #[arg(long)]
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
    /// pending, delivered, dead or discarded; dead unless something else is asked for.
    #[arg(long, value_name = "STATE")]
    pub(crate) state: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Ends after this many seconds; exit status 0 only if every resource became Ready.
    #[arg(long, value_name = "N")]
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

fn duration(text: &str) -> Result<GoDuration, String> {
    text.parse().map_err(|error| format!("{error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn completions_name_the_commands() {
        let script = completions(clap_complete::Shell::Bash);
        assert!(script.contains("sentinel") && script.contains("demo"));
    }
}
