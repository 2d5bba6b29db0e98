//! Measures the services against ceilings in the same run: what a program does that reads and sends the same bytes
//! with nothing in between. Prints a table, and JSON on request, and fails if a row is not what it must be.
//!
//! The sentinel under test is the release binary beside this one, in a process of its own; the simulated API lives in
//! this process. Ceilings are processes too, so that both sides share the cores in the same way.

mod beacon;
mod ceiling;
mod micro;
mod played;
mod process;
mod report;
mod sentinel;
mod simulate;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use report::Row;

#[derive(Parser)]
#[command(name = "bench", about = "Measures Watchfire against ceilings in the same run")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Every row of the sentinel.
    Sentinel {
        /// How many resources the API serves.
        #[arg(long, default_value_t = 100_000)]
        resources: u32,
        /// How often each row is measured; the median counts.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// Also measures a fleet of a million.
        #[arg(long)]
        million: bool,
        /// Ends well also when a row is not what it must be.
        #[arg(long)]
        report_only: bool,
        /// Writes the rows as JSON.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Every row of the beacon, on a Kubernetes API server of its own.
    Beacon {
        /// How often each rate is measured; the median counts.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// For how long objects are written.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// How many objects the cluster has.
        #[arg(long, default_value_t = 100_000)]
        objects: usize,
        /// How many rows the ledger has.
        #[arg(long, default_value_t = 1_000_000)]
        rows: usize,
        /// How many events wait.
        #[arg(long, default_value_t = 50_000)]
        queued: usize,
        /// Ends well also when a row is not what it must be.
        #[arg(long)]
        report_only: bool,
        /// Writes the rows as JSON.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// A recorded day, simulated with a max age of 30 and of 10 minutes.
    Simulate {
        /// How many resources are recorded.
        #[arg(long, default_value_t = 5000)]
        resources: u32,
        /// How many hours of polls, one each 5 s.
        #[arg(long, default_value_t = 24)]
        hours: u32,
        /// Writes the rows as JSON.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// The ceilings, as processes of their own.
    #[command(hide = true)]
    Ceiling(ceiling::Args),
}

/// As in the binary: a ceiling that allocates slower would be a low one.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    watchfire_runtime::install_crypto_provider();
    let runtime = tokio::runtime::Runtime::new()?;
    match Cli::parse().command {
        Command::Ceiling(args) => runtime.block_on(ceiling::run(&args)),
        Command::Beacon { rounds, seconds, objects, rows, queued, report_only, json } => {
            let size = beacon::Size { rounds, seconds, objects, rows, queued };
            let rows = runtime.block_on(beacon::rows(&size))?;
            tell(&rows, json)?;
            if report_only { Ok(()) } else { hold(&rows) }
        }
        Command::Simulate { resources, hours, json } => {
            let rows = simulate::rows(resources, hours)?;
            tell(&rows, json)?;
            hold(&rows)
        }
        Command::Sentinel { resources, rounds, million, report_only, json } => {
            let mut rows: Vec<Row> = micro::rows(rounds)?;
            rows.extend(runtime.block_on(sentinel::rows(resources, rounds, million))?);
            tell(&rows, json)?;
            if report_only { Ok(()) } else { hold(&rows) }
        }
    }
}

/// Prints the rows, and writes them to the file.
fn tell(rows: &[Row], json: Option<PathBuf>) -> anyhow::Result<()> {
    report::print(rows)?;
    if let Some(path) = json {
        std::fs::write(path, serde_json::to_string_pretty(rows)?)?;
    }
    Ok(())
}

/// Fails, naming the rows that are not what they must be.
fn hold(rows: &[Row]) -> anyhow::Result<()> {
    let missed = report::missed(rows);
    anyhow::ensure!(missed.is_empty(), "not what it must be: {}", missed.join("; "));
    Ok(())
}
