//! How a command ends when it does not end well: a message with its whole chain, and an exit code for scripts.

use std::error::Error;
use std::io::{self, ErrorKind, IsTerminal as _, Write};
use std::process::ExitCode;

use watchfire_delivery::{sink, store};
use watchfire_runtime::config::ConfigError;
use watchfire_runtime::tasks::TaskError;
use watchfire_runtime::{one_line, printable};
use watchfire_sentinel::explain::AskError;
use watchfire_sentinel::recording;

use crate::config;

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
    /// Tells a person why a command failed, and what to try; scripts get the exit code.
    pub(crate) fn complain(&self) -> ExitCode {
        let (error, code) = match self {
            Self::Configuration(error) => (error, ExitCode::from(USAGE)),
            Self::Failed(error) => (error, ExitCode::FAILURE),
        };
        let hint = hint(error).map(|hint| format!("; {hint}")).unwrap_or_default();
        // Nobody is left to tell if standard error is closed.
        let _unheard = writeln!(io::stderr().lock(), "watchfire: {}{hint}", told(error));
        code
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

/// An error with its causes, on one line, each once: some libraries repeat theirs. Problems of a configuration stand on
/// a line each.
fn told(error: &anyhow::Error) -> String {
    let one = |cause: &(dyn Error + 'static)| match cause.downcast_ref() {
        Some(error @ ConfigError::Invalid(_)) => error.to_string(),
        _ => one_line(&cause.to_string()),
    };
    error.chain().map(one).fold(String::new(), |text, cause| {
        if text.is_empty() {
            cause
        } else if text.ends_with(&cause) {
            text
        } else {
            format!("{text}: {cause}")
        }
    })
}

/// Prints what is made for people: whatever is in it from outside, the lines are ours, and nothing steers the terminal.
pub(crate) fn tell(text: &str) -> Result<(), Failure> {
    say(&printable::lines(text))
}

/// Prints what a command was asked for, byte by byte: files, and what is made for programs; but on a
/// terminal nothing steers it. A closed pipe is not a failure: whoever reads has read enough.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let text = text.trim_end();
    let written =
        if stdout.is_terminal() { writeln!(stdout, "{}", printable::lines(text)) } else { writeln!(stdout, "{text}") };
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::Failed(anyhow::Error::from(error).context("write to standard output")))
        }
        _ => Ok(()),
    }
}

/// Tells a person something beside what was asked for, which alone is on standard output.
pub(crate) fn note_aside(note: &str) {
    // Nobody is left to tell if standard error is closed.
    let _unheard = writeln!(io::stderr().lock(), "watchfire: {}", one_line(note));
}

/// Tells that nobody is trusted: what needs no TLS works all the same.
pub(crate) fn without_authorities(error: io::Error) {
    note_aside(&format!("{:#}", anyhow::Error::from(error).context("find authorities to trust")));
}

/// What the first cause that knows says can be done about it.
fn hint(error: &anyhow::Error) -> Option<&'static str> {
    error.chain().find_map(|cause| {
        if let Some(cause) = cause.downcast_ref::<store::Error>() {
            Some(cause.hint())
        } else if let Some(cause) = cause.downcast_ref::<sink::Error>() {
            Some(cause.hint())
        } else if let Some(cause) = cause.downcast_ref::<AskError>() {
            Some(cause.hint())
        } else if let Some(cause) = cause.downcast_ref::<recording::Error>() {
            Some(cause.hint())
        } else if let Some(TaskError::Overrun { .. }) = cause.downcast_ref() {
            Some("give it a longer --grace-period, or see in the log what these tasks waited for")
        } else if let Some(error) = cause.downcast_ref::<ConfigError>() {
            if config::is_default_missing(error) {
                Some("name the sentinel's file with --config, or in HYPERFLEET_CONFIG")
            } else {
                error.hint()
            }
        } else {
            None
        }
    })
}

/// Tells a person how the command line is meant; asking for help is no failure.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    match printed {
        _ if error.use_stderr() => ExitCode::from(USAGE),
        Err(error) if error.kind() != ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use watchfire_delivery::outbox;

    use super::*;

    #[test]
    fn each_cause_is_told_once() {
        let inner = || io::Error::other("refused");
        let repeating = anyhow::Error::new(inner()).context("list clusters: refused");
        assert_eq!(told(&repeating), "list clusters: refused");
        assert_eq!(told(&anyhow::Error::new(inner()).context("list clusters")), "list clusters: refused");
        let error = store::open_beside(Path::new("/nowhere/a.db"), &[outbox::MODULE]).unwrap_err();
        let said = told(&anyhow::Error::new(error).context("look into the outbox"));
        assert_eq!(said, "look into the outbox: open the store /nowhere/a.db: there is no such file");
    }
}
