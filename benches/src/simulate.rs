//! A recorded day, and how long it takes to run two configurations over it.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, anyhow};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use watchfire_runtime::config::{Document, Env};
use watchfire_sentinel::SentinelConfig;
use watchfire_sentinel::config::{RawConfig, check};
use watchfire_sentinel::recording::{By, Kept, Scope, Writer};
use watchfire_sentinel::simulate;

use crate::report::Row;

/// Seconds between polls, and between the reports on a ready resource.
const POLL: u32 = 5;
const REPORT: u32 = 1800;

/// How long before its report a spec changes.
const LEAD: u32 = 30;

pub(crate) fn rows(resources: u32, hours: u32) -> anyhow::Result<Vec<Row>> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let [slow, fast] = ["30m", "10m"].map(config);
    let (slow, fast) = (slow?, fast?);
    record(folder.path(), &slow, resources, hours)?;
    let mut size = 0;
    for entry in std::fs::read_dir(folder.path())? {
        size += entry?.metadata()?.len();
    }
    let begun = Instant::now();
    let report = simulate::run(folder.path(), vec![("30m".to_owned(), slow), ("10m".to_owned(), fast)], 10)?;
    let took = begun.elapsed().as_secs_f64();
    let events: u64 = report.runs.iter().map(|run| run.events).sum();
    let row = |what: String, value, unit, must| Row { what, value, unit, ceiling: None, must, aim: "" };
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    let (events, mib) = (events as f64, size as f64 / f64::from(1 << 20));
    Ok(vec![
        row(format!("simulate {hours} h of {resources} resources, 30 min against 10 min"), took, "s", "< 10 s"),
        row("events published, both together".to_owned(), events, "", ""),
        row("the recording".to_owned(), mib, "MiB", ""),
    ])
}

fn config(max_age_ready: &str) -> anyhow::Result<SentinelConfig> {
    let text = format!(
        "resource_type: clusters\npoll_interval: {POLL}s\nmax_age_ready: {max_age_ready}\nhyperfleet_api:\n  endpoint: http://api\n"
    );
    let (config, problems) = check(Document::<RawConfig>::parse("bench.yaml", &text)?, &Env::default());
    problems.finish()?;
    config.ok_or_else(|| anyhow!("a configuration"))
}

/// Each resource is reported on every half an hour, all at their own time; the spec of one in a hundred changes a
/// little before.
fn record(folder: &Path, config: &SentinelConfig, resources: u32, hours: u32) -> anyhow::Result<()> {
    let begin = Timestamp::from_second(1_800_000_000)?;
    let at = |seconds: u32| begin + SignedDuration::from_secs(i64::from(seconds));
    let scope = Scope { by: By::Onlooker, max: 1 << 34, kept: Kept::read_by(config) };
    let mut writer = Writer::open(folder, scope, config, begin)?;
    let mut reported = vec![(1, begin); resources as usize];
    let mut items: Vec<String> = (0..resources).map(|id| item(id, 1, 1, begin)).collect();
    // Whoever has this second of the half hour.
    let turn = |second: u32| (second % REPORT..resources).step_by(REPORT as usize);
    for now in (0..hours * 3600).step_by(POLL as usize) {
        for second in now..now + POLL {
            let changes = |id: u32, second: u32| (id + second / REPORT).is_multiple_of(100);
            let soon = second + LEAD;
            for id in turn(soon).filter(|id| changes(*id, soon)) {
                let (generation, report) = reported[id as usize];
                items[id as usize] = item(id, generation + 1, generation, report);
            }
            for id in turn(second) {
                let (generation, report) = &mut reported[id as usize];
                *generation += u32::from(changes(id, second));
                *report = at(now);
                items[id as usize] = item(id, *generation, *generation, *report);
            }
        }
        for page in items.chunks(100) {
            writer.page(at(now), page.iter().map(String::as_str))?;
        }
        writer.end(at(now), true)?;
    }
    Ok(writer.close()?)
}

fn item(id: u32, generation: u32, seen: u32, report: Timestamp) -> String {
    let report = format!("{report:.0}");
    let condition = |ty: &str| {
        json!({"type": ty, "status": "True", "reason": "ReconciledAll", "observed_generation": seen,
            "message": "All required adapters reported Available=True at the current generation",
            "created_time": "2026-07-01T10:00:00Z", "last_updated_time": report, "last_transition_time": "2026-07-01T10:05:00Z"})
    };
    let conditions = ["Reconciled", "DnsSuccessful", "ValidationSuccessful"].map(condition);
    let id = format!("019a0c5e-0000-7000-8000-{id:012x}");
    json!({"id": id, "kind": "Cluster", "name": "bench", "href": format!("/api/hyperfleet/v1/clusters/{id}"),
        "generation": generation, "labels": {"region": "us-east", "tier": "gold"},
        "status": {"conditions": conditions}})
    .to_string()
}
