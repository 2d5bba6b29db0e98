//! `watchfire beacon`: the service without a subcommand, and what one asks it otherwise.

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Subcommand};
use watchfire_beacon::rights::ServiceAccount;

use super::{OutputArgs, ProcessArgs};

/// The service, or what one asks it.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BeaconCli {
    #[command(subcommand)]
    pub(crate) question: Option<BeaconQuestion>,
    #[command(flatten)]
    pub(crate) serve: BeaconArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BeaconQuestion {
    /// Compares cluster, ledger and what was delivered, also while the service runs; exit status 0 only if everything
    /// in the cluster was announced and taken. Changes nothing.
    Verify {
        #[command(flatten)]
        file: FileArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Prints the rights that a configuration needs and no more, for `kubectl apply -f -`: a ClusterRole for kinds that
    /// are watched in all namespaces, a Role where they are watched in some. Asks the cluster what a kind is called
    /// whose `resource` is not written.
    Role {
        #[command(flatten)]
        file: FileArgs,
        /// Who is given the rights; the roles are named after it, as NAMESPACE-NAME.
        #[arg(long, value_name = "NAMESPACE/NAME", default_value = "beacon/beacon", value_parser = service_account)]
        service_account: ServiceAccount,
        #[command(flatten)]
        output: OutputArgs,
    },
}

fn service_account(text: &str) -> Result<ServiceAccount, String> {
    let is_name = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.'))
    };
    match text.split_once('/') {
        Some((namespace, name)) if is_name(namespace) && is_name(name) => {
            Ok(ServiceAccount { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        _ => Err("write it as namespace/name".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct BeaconArgs {
    #[command(flatten)]
    pub(crate) file: FileArgs,
    #[command(flatten)]
    pub(crate) process: ProcessArgs,
}

const CONFIG: &str = "/config/config.yaml";

/// A variable that is set but empty counts as not set.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(|text| if text.is_empty() { CONFIG.into() } else { text.into() })
}

#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// The configuration file.
    #[arg(long, short, value_name = "FILE", env = "CONFIG_PATH", default_value = CONFIG, value_parser = path())]
    pub(crate) config: PathBuf,
}
