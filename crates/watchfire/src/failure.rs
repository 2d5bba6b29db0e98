//! How a command ends when it does not end well: a message with its whole chain, and an exit code for scripts.

use std::io::{self, Write};
use std::process::ExitCode;

use watchfire_runtime::config::ConfigError;

/// Wrong usage or configuration (EX_USAGE); 1 is everything else.
const USAGE: u8 = 64;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line or the configuration is wrong; trying again cannot help.
    Configuration(anyhow::Error),
    /// Something went wrong while it ran.
    Failed(anyhow::Error),
}

impl Failure {
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Configuration(_) => ExitCode::from(USAGE),
            Self::Failed(_) => ExitCode::FAILURE,
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Configuration(error.into())
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

/// Prints what a command was asked for. A closed pipe is not a failure: whoever reads has read enough.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    match writeln!(io::stdout().lock(), "{}", text.trim_end()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Failed(anyhow::Error::from(error).context("write to standard output")))
        }
        _ => Ok(()),
    }
}

/// Tells a person why a command failed.
pub(crate) fn complain(failure: &Failure) {
    let (Failure::Configuration(error) | Failure::Failed(error)) = failure;
    // Nobody is left to tell if standard error is closed.
    let _unheard = writeln!(io::stderr().lock(), "watchfire: {error:#}");
}

/// Tells a person how the command line is meant; asking for help is no failure.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    // Nobody is left to tell if the stream is closed.
    let _unheard = error.print();
    if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
}
