//! `watchfire sentinel`: the service without a subcommand, and what one asks it otherwise.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use watchfire_runtime::duration::GoDuration;

use super::{OutputArgs, SentinelArgs};

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
    /// Says why a resource would, or would not, be published now, and what became of its last event.
    Explain(ExplainArgs),
    /// Says which resources no selector of these configurations covers, and which several do; exit status 0 only if
    /// every resource is covered exactly once.
    Coverage(CoverageArgs),
    /// Keeps what the API says over time, until stopped; publishes nothing.
    Record(RecordArgs),
    /// Runs one or two configurations over a recording, in virtual time: what they would have published, and when.
    Simulate(SimulateArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The resource's id.
    pub(crate) id: String,
    /// The health address of a running sentinel, such as http://localhost:8080: it knows which events are under way.
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// The sentinel's YAML file, in either form: without a server, its API alone is asked.
    #[arg(long, short, value_name = "FILE", env = "HYPERFLEET_CONFIG", default_value = super::CONFIG)]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// The sentinel's YAML file, in either form: where and what to list, and how often.
    #[arg(long, short, value_name = "FILE", env = "HYPERFLEET_CONFIG", default_value = super::CONFIG)]
    pub(crate) config: PathBuf,
    /// The folder that keeps the recording, made if need be.
    #[arg(long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// What the folder may take; beyond it the oldest goes.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    pub(crate) max_size: u64,
    /// A path to leave out, such as .labels.owner or .status.conditions.message; can be given several times.
    #[arg(long, value_name = "PATH")]
    pub(crate) redact: Vec<String>,
    /// Keeps whole resources, not only what this configuration's decisions and payload read.
    #[arg(long)]
    pub(crate) whole: bool,
    /// Ends after this time.
    #[arg(long = "for", value_name = "DURATION", value_parser = super::duration)]
    pub(crate) duration: Option<GoDuration>,
}

#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// A folder that was recorded into, or one file of it.
    #[arg(long, value_name = "PATH")]
    pub(crate) recording: PathBuf,
    /// A sentinel's YAML file, in either form; given twice, the two are compared.
    #[arg(long, short, value_name = "FILE", required = true)]
    pub(crate) config: Vec<PathBuf>,
    /// How many of the busiest resources are named.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) top: usize,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// A number of bytes: 268435456, 256MiB, 1GiB.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" | "B" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        _ => return Err("write it in KiB, MiB or GiB, for example 256MiB".to_owned()),
    };
    let bytes = digits.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    bytes.filter(|bytes| *bytes >= 1 << 20).ok_or_else(|| "write a size of 1MiB or more, for example 256MiB".to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct CoverageArgs {
    /// The YAML files of all sentinels that share the fleet, in either form; a list for `watchfire run` stands for the
    /// files that it names.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Names every resource found, not only the first 20 of each kind.
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
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
    fn sizes_are_read_with_their_units() {
        let table = [
            ("256MiB", Some(256 << 20)),
            ("1GiB", Some(1 << 30)),
            ("2048K", Some(2 << 20)),
            ("1048576", Some(1 << 20)),
        ];
        for (text, expected) in
            table.into_iter().chain(["", "MiB", "1TB", "-1MiB", "1023KiB", "99999999999GiB"].map(|text| (text, None)))
        {
            assert_eq!(size(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn flags_of_the_service_and_a_subcommand_exclude_each_other() {
        parse(&["--config", "a.yaml", "coverage", "b.yaml"]).unwrap_err();
        parse(&["coverage"]).unwrap_err();
    }
}
