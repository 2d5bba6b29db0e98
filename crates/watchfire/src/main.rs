//! The `watchfire` binary: reads the command line, runs the command, says why it failed.

mod beacon;
mod broker;
mod cli;
mod config;
mod crds;
mod demo;
mod failure;
mod ground;
mod outbox;
mod sentinel;

use std::process::ExitCode;

use cli::Command;
use failure::{Failure, say};

/// A sentinel makes and drops a few dozen small strings per event, a third of its time with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    watchfire_runtime::roots::ensure().unwrap_or_else(failure::without_authorities);
    match cli::parse(std::env::args_os()) {
        Ok(cli) => run(cli.command).map_or_else(|failure| failure.complain(), |()| ExitCode::SUCCESS),
        Err(error) => failure::usage(&error),
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Demo(args) => demo::run(&args),
        Command::Sentinel(cli) => sentinel::run(&cli),
        Command::Serve(args) => sentinel::run_one(&args),
        Command::Beacon(cli) => beacon::run(&cli),
        Command::Run(args) => sentinel::run_several(&args),
        Command::ConfigDump { files, settings } => config::dump(&files, &settings),
        Command::Config { command } => config::run(&command),
        Command::Outbox { store, command } => outbox::run(&store, &command),
        Command::Crds => say(&crds::print()?),
        Command::Completions { shell } => say(&cli::completions(shell)),
        Command::Version(output) => say(&cli::version(output.format)),
    }
}
