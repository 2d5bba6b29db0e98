//! What the rounds came to: a line per round, everything about one that failed, and a table at the end.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, Write};
use std::time::Duration;

use crate::plan::{BrokerKind, Plan};
use crate::round::Evidence;
use crate::verdict::{self, judge};

/// Violations told of one round; one cause may have many.
const MAX_TOLD: usize = 10;

/// One round.
#[derive(Debug)]
pub(crate) struct Row {
    broker: BrokerKind,
    seed: u64,
    received: u64,
    distinct: u64,
    repeats: u64,
    allowed: u64,
    recovery: Option<Duration>,
    rss_kib: u64,
    faults: Vec<String>,
    violations: Vec<String>,
    tail: Vec<String>,
}

impl Row {
    pub(crate) fn of(evidence: &Evidence) -> Self {
        let verdict = judge(evidence);
        Self {
            broker: evidence.plan.broker,
            seed: evidence.plan.seed,
            received: evidence.receipts.len() as u64,
            distinct: verdict::distinct(evidence) as u64,
            repeats: verdict.repeats,
            allowed: verdict.allowed,
            recovery: evidence.recovery,
            rss_kib: evidence.looks.iter().map(|look| look.rss_kib).max().unwrap_or(0),
            faults: verdict::kinds(evidence),
            violations: verdict.violations,
            tail: evidence.tail.clone(),
        }
    }

    /// A round that could not be run to its end.
    pub(crate) fn broken(plan: &Plan, error: &anyhow::Error) -> Self {
        Self {
            broker: plan.broker,
            seed: plan.seed,
            received: 0,
            distinct: 0,
            repeats: 0,
            allowed: 0,
            recovery: None,
            rss_kib: 0,
            faults: Vec::new(),
            violations: vec![format!("the round broke off: {error:#}")],
            tail: Vec::new(),
        }
    }

    pub(crate) fn failed(&self) -> bool {
        !self.violations.is_empty()
    }

    /// One line; of a round that failed, everything.
    pub(crate) fn tell(&self, plan: &Plan) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let Self { broker, seed, received, distinct, repeats, rss_kib, .. } = self;
        let recovery = self.recovery.map_or_else(|| "never".to_owned(), seconds);
        let verdict = if self.failed() { "FAILED" } else { "ok" };
        writeln!(
            out,
            "seed {seed} {broker:?}: {verdict}, {} faults, {received} received, {distinct} events, {repeats} again, \
             recovered in {recovery}, {} MiB",
            self.faults.len(),
            rss_kib / 1024
        )?;
        if self.failed() {
            write!(out, "{plan}")?;
            self.tail.iter().try_for_each(|line| writeln!(out, "    {line}"))?;
            let told = self.violations.iter().take(MAX_TOLD);
            told.clone().try_for_each(|violation| writeln!(out, "  VIOLATED {violation}"))?;
            if let Some(more) = self.violations.len().checked_sub(MAX_TOLD + 1) {
                writeln!(out, "  and {} more", more + 1)?;
            }
            writeln!(out, "  again: make chaos SEED={seed} ROUNDS=1")?;
        }
        Ok(())
    }
}

/// All rounds.
#[derive(Debug)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new(rows: Vec<Row>) -> Self {
        Self { rows }
    }

    pub(crate) fn rounds(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn failed(&self) -> usize {
        self.rows.iter().filter(|row| row.failed()).count()
    }

    pub(crate) fn print(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let all = || self.rows.iter();
        let sum = |number: fn(&Row) -> u64| all().map(number).sum::<u64>();
        let of = |broker: BrokerKind| all().filter(|row| row.broker == broker).count();
        let mut recoveries: Vec<Duration> = all().filter_map(|row| row.recovery).collect();
        recoveries.sort_unstable();
        let middle = recoveries.get(recoveries.len() / 2).copied().map_or_else(String::new, seconds);
        let slowest = recoveries.last().copied().map_or_else(String::new, seconds);
        let seeds: Vec<String> = all().filter(|row| row.failed()).map(|row| row.seed.to_string()).collect();
        writeln!(out)?;
        for (what, value) in [
            ("rounds", self.rounds().to_string()),
            ("  on RabbitMQ, on Pub/Sub", format!("{}, {}", of(BrokerKind::RabbitMq), of(BrokerKind::PubSub))),
            ("  failed", format!("{} {}", self.failed(), seeds.join(" "))),
            ("messages received", sum(|row| row.received).to_string()),
            ("different events", sum(|row| row.distinct).to_string()),
            ("received again, allowed", format!("{}, {}", sum(|row| row.repeats), sum(|row| row.allowed))),
            ("recovery, median, longest", format!("{middle}, {slowest}")),
            ("resident memory, most", format!("{} MiB", all().map(|row| row.rss_kib).max().unwrap_or(0) / 1024)),
            ("faults", all().map(|row| row.faults.len()).sum::<usize>().to_string()),
        ] {
            writeln!(out, "{what:<28} {}", value.trim_end())?;
        }
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        all().flat_map(|row| &row.faults).for_each(|fault| *kinds.entry(fault).or_default() += 1);
        kinds.iter().try_for_each(|(kind, count)| writeln!(out, "  {kind:<26} {count}"))
    }
}

/// Says one thing.
pub(crate) fn say(what: impl Display) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{what}")
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
