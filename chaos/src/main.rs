//! Runs the sentinel as a process through seeded rounds of faults, on brokers of its own, and judges each round by what
//! a consumer received. A seed that fails is printed with its plan; the same seed plans the same round again.

mod child;
mod clock;
mod far;
mod plan;
mod receipt;
mod report;
mod round;
mod verdict;
mod vitals;

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{anyhow, ensure};
use clap::Parser;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use watchfire_testkit::beside;

use far::Far;
use plan::{BrokerKind, Plan};
use report::{Report, Row};

#[derive(Parser)]
#[command(name = "chaos", about = "Runs the sentinel through seeded rounds of faults")]
struct Cli {
    /// The first round's seed; each further round takes the next number.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many rounds.
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    /// Rounds at the same time, each with brokers of its own.
    #[arg(long, default_value_t = 1)]
    jobs: u64,
    /// Prints each round's plan before it runs.
    #[arg(long)]
    verbose: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    watchfire_runtime::install_crypto_provider();
    let cli = Cli::parse();
    let runtime = tokio::runtime::Runtime::new()?;
    let report = runtime.block_on(rounds(&cli))?;
    report.print()?;
    ensure!(report.rounds() > 0, "no round ran: no broker is here");
    Ok(if report.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn rounds(cli: &Cli) -> anyhow::Result<Report> {
    let binary = beside("watchfire");
    let next = AtomicU64::new(cli.seed);
    let worker = async || {
        let (mut rows, mut far) = (Vec::new(), [None, None]);
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= cli.seed + cli.rounds {
                return anyhow::Ok(rows);
            }
            rows.extend(one(cli, seed, &mut far, &binary).await?);
        }
    };
    let workers = join_all((0..cli.jobs.max(1)).map(|_| worker())).await;
    let rows = workers.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(Report::new(rows.into_iter().flatten().collect()))
}

/// Runs the round of a seed; none where its broker is not here.
async fn one(cli: &Cli, seed: u64, brokers: &mut [Option<Far>; 2], binary: &Path) -> anyhow::Result<Option<Row>> {
    let plan = Plan::of(seed);
    if cli.verbose {
        report::say(&plan)?;
    }
    let slot = match plan.broker {
        BrokerKind::RabbitMq => &mut brokers[0],
        BrokerKind::PubSub => &mut brokers[1],
    };
    if slot.is_none() {
        *slot = Far::start(plan.broker).await;
    }
    let Some(far) = slot else { return Ok(None) };
    // What the testkit cannot do is a panic.
    let row = match AssertUnwindSafe(round::run(&plan, far, binary)).catch_unwind().await {
        Ok(Ok(evidence)) => Row::of(&evidence),
        Ok(Err(error)) => Row::broken(&plan, &error),
        Err(_) => Row::broken(&plan, &anyhow!("the harness panicked, see above")),
    };
    row.tell(&plan)?;
    if row.failed() {
        // What it left behind is not the next round's fault.
        *slot = None;
    }
    Ok(Some(row))
}
