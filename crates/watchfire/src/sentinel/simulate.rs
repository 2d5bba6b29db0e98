//! `watchfire sentinel simulate`: what configurations would have published, over what was recorded.

use std::fmt::Write as _;

use anyhow::{Context, anyhow};
use watchfire_runtime::config::Env;
use watchfire_runtime::one_line;
use watchfire_sentinel::simulate::{self, Busiest, Difference, Report, Summary};

use crate::cli::Format;
use crate::cli::sentinel::SimulateArgs;
use crate::config;
use crate::failure::{Failure, say, tell};

pub(super) fn run(args: &SimulateArgs, env: &Env) -> Result<(), Failure> {
    if args.config.len() > 2 {
        return Err(Failure::Configuration(anyhow!("simulate takes one configuration, or two to compare")));
    }
    let configs = config::sentinels(&args.config, env)?;
    let report = simulate::run(&args.recording, configs, args.top).context("simulate")?;
    match args.output.format {
        Format::Json => say(&serde_json::to_string_pretty(&report).context("print the simulation")?),
        Format::Text => tell(&text(&report)),
    }
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for (name, run) in ["A", "B"].into_iter().zip(&report.runs) {
        let name = if report.runs.len() > 1 { format!("{name}: ") } else { String::new() };
        summary(&mut text, &name, run);
    }
    if let Some(difference) = &report.difference {
        differences(&mut text, difference);
    }
    text.push_str("reports stand as they were recorded: other events would have brought other reports\n");
    for cut in &report.cuts {
        let after = cut.after.map_or_else(|| "from its beginning".to_owned(), |at| format!("after {at:.0}"));
        // Writing to a String cannot fail.
        let _infallible = writeln!(text, "note: {} is not whole, {after}: {}", one_line(&cut.file), one_line(&cut.why));
    }
    text
}

// Writing to a String cannot fail.
fn summary(text: &mut String, name: &str, run: &Summary) {
    let _infallible = writeln!(text, "{name}{}", one_line(&run.config));
    if let (Some(from), Some(to)) = (run.from, run.to) {
        let _infallible = writeln!(text, "  from {from:.0} to {to:.0}, {} polls", run.polls);
    }
    let _infallible = writeln!(text, "  {} events about {} resources", run.events, run.resources);
    for (reason, count) in &run.by_reason {
        let _infallible = writeln!(text, "    {count:>9}  {reason}");
    }
    if run.refused > 0 {
        let _infallible = writeln!(text, "  {} of them were refused by the broker, and decided again", run.refused);
    }
    if let Some(latency) = &run.latency {
        let simulate::Latency { count, p50, p95, max } = latency;
        let _infallible = writeln!(
            text,
            "  from the poll that first showed a new spec to its event ({count} times): p50 {p50:.1} s, p95 {p95:.1} s, max {max:.1} s"
        );
    }
    for (what, peak) in [("second", &run.peak_second), ("minute", &run.peak_minute)] {
        if let Some(at) = peak.at {
            let _infallible = writeln!(text, "  at most {} events in one {what}, at {at:.0}", peak.events);
        }
    }
    if !run.busiest.is_empty() {
        text.push_str("  most events:\n");
    }
    for Busiest { id, events, by_reason } in &run.busiest {
        let reasons =
            by_reason.iter().map(|(reason, count)| format!("{count} {reason}")).collect::<Vec<_>>().join(", ");
        let _infallible = writeln!(text, "    {events:>9}  {}  ({reasons})", one_line(id));
    }
    if run.gaps > 0 {
        let _infallible = writeln!(text, "  note: the recording misses something in {} places", run.gaps);
    }
    for note in &run.notes {
        let _infallible = writeln!(text, "  note: {}", one_line(note));
    }
    text.push('\n');
}

fn differences(text: &mut String, Difference { only_a, only_b, first }: &Difference) {
    // Writing to a String cannot fail.
    let _infallible = writeln!(text, "events of A alone: {only_a}; of B alone: {only_b}");
    for it in first {
        let (at, event, reason) = (it.event.at, &it.event, it.event.reason);
        let generation = event.generation.map(|generation| format!(", generation {generation}")).unwrap_or_default();
        let _infallible = writeln!(text, "  {at:.0}  {}  {}{generation}  {reason}", it.only, one_line(&event.resource));
    }
    text.push('\n');
}
