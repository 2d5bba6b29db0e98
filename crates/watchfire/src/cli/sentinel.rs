//! `watchfire sentinel`: the service without a subcommand, and what one asks it otherwise.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::SentinelArgs;

/// The service, or one of its subcommands.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct SentinelCli {
    #[command(subcommand)]
    pub(crate) question: Option<Question>,
    #[command(flatten)]
    pub(crate) serve: SentinelArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Question {
    /// Says which resources no selector of these configurations covers, and which several do; exit status 0 only if
    /// every resource is covered exactly once.
    Coverage(CoverageArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CoverageArgs {
    /// The YAML files of all sentinels that share the fleet, in either form.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Names every resource found, not only the first 20 of each kind.
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct OutputArgs {
    /// For people, or for machines.
    #[arg(long = "output", short = 'o', value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parse(args: &[&str]) -> Result<SentinelCli, clap::Error> {
        let all = ["watchfire", "sentinel"].iter().chain(args);
        Cli::try_parse_from(all).map(|cli| match cli.command {
            Command::Sentinel(sentinel) => *sentinel,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn without_a_subcommand_the_service_runs() {
        assert!(parse(&["--config", "a.yaml"]).unwrap().question.is_none());
        assert!(parse(&[]).unwrap().question.is_none());
        assert!(matches!(parse(&["coverage", "a.yaml"]).unwrap().question, Some(Question::Coverage(_))));
    }

    #[test]
    fn flags_of_the_service_and_a_subcommand_exclude_each_other() {
        parse(&["--config", "a.yaml", "coverage", "b.yaml"]).unwrap_err();
        parse(&["coverage"]).unwrap_err();
    }
}
