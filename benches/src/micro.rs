//! The pure parts, on one resource of about 2 KB.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use watchfire_sentinel::decision::{MaxAge, Policy, Rules, decide};
use watchfire_sentinel::expression::{Expression, Facts};
use watchfire_sentinel::payload::{Leaves, Payload};
use watchfire_sentinel::resource::Resource;

use crate::report::{Row, median};

const ITERATIONS: u32 = 200_000;

pub(crate) fn rows(rounds: usize) -> anyhow::Result<Vec<Row>> {
    let json = resource().to_string();
    let value: Value = resource();
    let max_age = MaxAge { ready: Duration::from_mins(30), not_ready: Duration::from_secs(10) };
    let rules = Rules::new(Policy::GenerationAware, max_age);
    let parsed = Resource::parse(&json)?;
    let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * 365 * 56);
    let fields = json!({
        "resource_id": ".id", "resource_type": ".kind", "region": ".metadata.labels.region",
        "generation": ".generation", "href": ".href",
    });
    let mut rows = vec![
        row("decision on one parsed resource", "< 1000 ns", "< 300 ns", rounds, || {
            black_box(decide(&rules, black_box(&parsed), None, now));
        }),
        row("reading one resource of a page", "", "", rounds, || {
            drop(black_box(Resource::parse(black_box(&json))));
        }),
    ];
    let facts = Facts { resource: &value, view: &parsed, now };
    let payload = Payload::compile(&fields, Leaves::Paths).map_err(|problems| anyhow!("{problems:?}"))?;
    rows.push(row("payload with 5 fields", "< 5000 ns", "< 2000 ns", rounds, || {
        drop(black_box(payload.build(black_box(facts), "")));
    }));
    let expressions = json!({
        "resource_id": "resource.id", "resource_type": "resource.kind", "region": "resource.labels.region",
        "generation": "resource.generation", "href": "resource.href",
    });
    let payload = Payload::compile(&expressions, Leaves::Mixed).map_err(|problems| anyhow!("{problems:?}"))?;
    rows.push(row("payload with 5 fields as expressions", "", "", rounds, || {
        drop(black_box(payload.build(black_box(facts), "")));
    }));
    let built_in = Expression::built_in(&max_age).map_err(|problems| anyhow!("{problems:?}"))?;
    // With what it reads of the JSON, as for each resource of a page.
    rows.push(row("the built-in expression on one resource", "< 20000 ns", "< 5000 ns", rounds, || {
        drop(black_box(built_in.answer(black_box(&json), &parsed, now)));
    }));
    let today = Expression::compile(&today(), TODAY_RESULT).map_err(|problems| anyhow!("{problems:?}"))?;
    rows.push(row("today's default expression on one resource", "", "", rounds, || {
        drop(black_box(today.answer(black_box(&json), &parsed, now)));
    }));
    Ok(rows)
}

/// What today's sentinel decides by where nothing is written.
const TODAY_RESULT: &str =
    "is_new_resource || generation_mismatch || reconciled_and_stale || not_reconciled_and_debounced";

fn today() -> Vec<(String, String)> {
    let stale = |age: &str| format!("has_ref_time && now - timestamp(ref_time) > duration(\"{age}\")");
    [
        ("ref_time", "condition(\"Reconciled\").last_updated_time".to_owned()),
        ("is_reconciled", "condition(\"Reconciled\").status == \"True\"".to_owned()),
        ("has_ref_time", "ref_time != \"\"".to_owned()),
        ("is_new_resource", "resource.generation == 1 && !has_ref_time".to_owned()),
        ("generation_mismatch", "resource.generation > condition(\"Reconciled\").observed_generation".to_owned()),
        ("reconciled_and_stale", format!("is_reconciled && {}", stale("30m"))),
        ("not_reconciled_and_debounced", format!("!is_reconciled && {}", stale("10s"))),
    ]
    .map(|(name, source)| (name.to_owned(), source))
    .into()
}

fn row(what: &str, must: &'static str, aim: &'static str, rounds: usize, mut work: impl FnMut()) -> Row {
    let mut once = || {
        let begun = Instant::now();
        (0..ITERATIONS).for_each(|_| work());
        begun.elapsed().as_secs_f64() * 1e9 / f64::from(ITERATIONS)
    };
    once();
    let value = median((0..rounds).map(|_| once()).collect());
    Row { what: what.to_owned(), value, unit: "ns", ceiling: None, must, aim }
}

fn resource() -> Value {
    let condition = |name: &str| {
        json!({"type": name, "status": "True", "reason": "ReconciledAll", "observed_generation": 3,
            "message": "All required adapters reported Available=True at the current generation",
            "created_time": "2026-07-01T10:00:00Z", "last_updated_time": "2026-07-01T10:05:00Z",
            "last_transition_time": "2026-07-01T10:05:00Z"})
    };
    let conditions = ["Reconciled", "LastKnownReconciled", "ValidationSuccessful", "DnsSuccessful"].map(condition);
    json!({
        "id": "019a0c5e-0000-7000-8000-000000000001", "kind": "Cluster", "name": "c-a", "generation": 3,
        "href": "/api/hyperfleet/v1/clusters/019a0c5e-0000-7000-8000-000000000001",
        "labels": {"region": "us-east", "environment": "production", "cluster-type": "gpu"},
        "spec": {"release": "x".repeat(800), "replicas": 3}, "created_time": "2026-07-01T10:00:00Z",
        "status": {"conditions": conditions},
    })
}
