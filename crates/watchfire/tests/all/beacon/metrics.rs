//! Every family of the metrics, each moved by what it counts.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::generated;

/// The families of the original, each by its name there.
const FAMILIES: [&str; 43] = [
    "event_events_total",
    "event_events_missed_total",
    "event_connection_status",
    "event_reconnects_total",
    "event_last_event_timestamp",
    "event_annotation_mutations_total",
    "event_notifications_sent_total",
    "event_notifications_pending_total",
    "event_notification_duration_seconds",
    "event_notification_latency_seconds",
    "event_notification_attempts_total",
    "event_notification_retry_backoff_seconds",
    "event_notification_max_retries_exceeded_total",
    "event_notification_non_retriable_failures_total",
    "event_endpoint_up",
    "event_endpoint_consecutive_failures",
    "event_endpoint_last_success_timestamp",
    "event_reconciliation_runs_total",
    "event_reconciliation_duration_seconds",
    "event_reconciliation_objects_processed_total",
    "event_reconciliation_drift_detected_total",
    "event_cleanup_runs_total",
    "event_cleanup_duration_seconds",
    "event_cleanup_records_deleted_total",
    "event_cleanup_records_eligible",
    "event_cleanup_oldest_record_age_seconds",
    "event_db_size_bytes",
    "event_db_rows_total",
    "event_db_operation_duration_seconds",
    "event_db_operation_errors_total",
    "event_storage_volume_size_bytes",
    "event_storage_volume_used_bytes",
    "event_storage_volume_available_bytes",
    "event_storage_volume_usage_percent",
    "event_storage_volume_inodes_total",
    "event_storage_volume_inodes_used",
    "event_storage_pressure",
    "event_component_up",
    "event_component_last_success_timestamp",
    "event_component_restarts_total",
    "event_worker_queue_size",
    "event_worker_processing_duration_seconds",
    "event_worker_batch_size",
];

/// Whether it is about the volume, which this test does not change; its pressure moves where it is full.
fn stands_still(family: &str) -> bool {
    family.starts_with("event_storage_")
}

/// Marks a series that was there from the start.
const AT_START: &str = "at start";

/// The values that each series was seen to have.
#[derive(Default)]
struct Seen(BTreeMap<String, BTreeSet<String>>);

impl Seen {
    async fn look(&mut self, beacon: &Beacon) -> String {
        let (_, served) = get(&format!("{}/metrics", beacon.metrics)).await;
        for (series, value) in served.lines().filter(|line| !line.starts_with('#')).filter_map(|it| it.rsplit_once(' '))
        {
            self.0.entry(series.to_owned()).or_default().insert(value.to_owned());
        }
        served
    }

    /// Looks until a series that begins so, and has all of these in it, holds.
    async fn until(&mut self, beacon: &Beacon, begin: &str, parts: &[&str], holds: impl Fn(f64) -> bool) {
        eventually(DEADLINE, &format!("{begin} {parts:?} holds"), async || {
            let served = self.look(beacon).await;
            let mut series =
                served.lines().filter(|line| line.starts_with(begin) && parts.iter().all(|part| line.contains(part)));
            let value = |line: &str| line.rsplit_once(' ').and_then(|(_, value)| value.parse().ok());
            series.any(|line| value(line).is_some_and(&holds)).then_some(())
        })
        .await;
    }

    /// Whether a series of the family had more than one value, or came up later.
    fn moved(&self, family: &str) -> bool {
        let of = |series: &str| {
            let name = series.split('{').next().unwrap_or_default();
            name == family || name == format!("{family}_count")
        };
        let later = |values: &BTreeSet<String>| !values.contains("0") && !values.contains(AT_START);
        self.0.iter().any(|(series, values)| {
            of(series) && (values.iter().filter(|value| *value != AT_START).count() > 1 || later(values))
        })
    }
}

fn above(least: f64) -> impl Fn(f64) -> bool {
    move |value| value > least
}

#[tokio::test]
async fn every_family_moves_by_what_it_counts() {
    let Some(stage) = Stage::set("beacon::metrics").await else { return };
    let proxy = Proxy::start(stage.namespace.cluster().address()).await;
    let more = "reconciliation: {interval: 300ms}\nretention: {cleanupInterval: 2s, retentionPeriod: 1s}\n";
    let config = stage.config("", more, "monitorInterval: 100ms, warningThreshold: 100, criticalThreshold: 100");
    let config = config.replace("maxBackoff: 500ms", "maxBackoff: 500ms, maxAttempts: 2");
    stage.receiver.choose(|request| {
        let event: Value = serde_json::from_slice(&request.body).unwrap();
        match event["data"]["resource"]["name"].as_str().unwrap() {
            "refused" => Some(Answer::status(422)),
            "exhausted" => Some(Answer::status(503)),
            _ => None,
        }
    });
    let beacon = Beacon::started(stage.process_of(&stage.account.kubeconfig_over(proxy.address()), &config)).await;
    let mut seen = Seen::default();
    beacon.readiness(200).await;
    seen.look(&beacon).await;
    for values in seen.0.values_mut() {
        values.insert(AT_START.to_owned());
    }
    assert!(
        FAMILIES.iter().all(|family| !stands_still(family) || seen.0.keys().any(|series| series.starts_with(family)))
    );

    stage.receiver.script([Answer::status(500)]);
    stage.create("a", Some("1")).await;
    seen.until(&beacon, "event_notification_attempts_total_sum", &["ConfigMap", "created"], above(1.5)).await;
    seen.until(&beacon, "event_notification_retry_backoff_seconds_count", &["attempt=\"1\""], above(0.0)).await;
    stage.create("plain", None).await;
    stage.annotate("plain", Some("1")).await;
    seen.until(&beacon, "event_annotation_mutations_total", &["added"], above(0.0)).await;
    stage.create("refused", Some("1")).await;
    seen.until(&beacon, "event_notification_non_retriable_failures_total", &["422"], above(0.0)).await;
    seen.until(&beacon, "event_endpoint_consecutive_failures", &[], above(0.0)).await;
    stage.create("exhausted", Some("1")).await;
    seen.until(&beacon, "event_notification_max_retries_exceeded_total", &["created"], above(0.0)).await;
    seen.until(&beacon, "event_endpoint_up", &[], |up| up == 0.0).await;
    seen.until(&beacon, "event_db_rows_total", &["dead"], above(1.5)).await;

    // What waits, while the endpoint takes nothing.
    stage.receiver.otherwise(Answer::hang());
    stage.create("waits", Some("1")).await;
    seen.until(&beacon, "event_notifications_pending_total", &["created"], above(0.0)).await;
    seen.until(&beacon, "event_worker_queue_size", &["notifier"], above(0.0)).await;
    stage.receiver.otherwise(Answer::status(200));

    // What is over long enough is removed at the second look at it, and counted until then.
    stage.delete("a").await;
    seen.until(&beacon, "event_cleanup_oldest_record_age_seconds", &[], above(0.0)).await;
    seen.until(&beacon, "event_cleanup_records_eligible", &[], above(0.0)).await;
    seen.until(&beacon, "event_cleanup_records_deleted_total", &[], above(0.0)).await;

    proxy.set(Mode::Refuse).await;
    proxy.cut();
    seen.until(&beacon, "event_connection_status", &["ConfigMap"], |up| up == 0.0).await;
    seen.until(&beacon, "event_component_up", &["watcher"], |up| up == 0.0).await;
    seen.until(&beacon, "event_reconciliation_runs_total", &["error"], above(0.0)).await;
    seen.until(&beacon, "event_component_up", &["reconciler"], |up| up == 0.0).await;
    proxy.set(Mode::Pass).await;
    seen.until(&beacon, "event_connection_status", &["ConfigMap"], above(0.0)).await;
    seen.until(&beacon, "event_reconnects_total", &["error"], above(0.0)).await;
    seen.until(&beacon, "event_component_restarts_total", &["watcher", "error"], above(0.0)).await;

    // Somebody edits the ledger, and then keeps it for longer than anyone waits.
    let connection = open_beside(Path::new(&stage.ledger()), &[]).unwrap();
    connection.execute_batch("DELETE FROM episodes WHERE name = 'plain'").unwrap();
    seen.until(&beacon, "event_reconciliation_drift_detected_total", &["missed_creation"], above(0.0)).await;
    seen.until(&beacon, "event_events_missed_total", &["ConfigMap"], above(0.0)).await;
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    stage.create("later", Some("1")).await;
    seen.until(&beacon, "event_db_operation_errors_total", &["write", "busy"], above(0.0)).await;
    connection.execute_batch("COMMIT").unwrap();
    seen.until(&beacon, "event_events_total", &["add", "watch"], above(3.5)).await;

    let served = seen.look(&beacon).await;
    let still: Vec<_> = FAMILIES.iter().filter(|family| !stands_still(family) && !seen.moved(family)).collect();
    assert!(still.is_empty(), "{still:?} never moved:\n{served}");
    let ours: BTreeSet<_> =
        served.lines().filter_map(|line| line.strip_prefix("# TYPE event_")?.split(' ').next()).collect();
    let named = |family: &&str| {
        let family = family.strip_prefix("event_").unwrap_or_default();
        ours.contains(family) || ours.contains(family.trim_end_matches("_total"))
    };
    assert!(FAMILIES.iter().all(named) && ours.len() == FAMILIES.len(), "{ours:?}");
    generated::golden("docs/metrics-beacon.md", &document(&served));
    beacon.stop().await;
}

fn document(served: &str) -> String {
    let head = "# Metrics of the beacon

Generated; `UPDATE_GOLDEN=1 make drift` writes it anew. Every series also carries `version`. Known label values exist from the
start, so that a rate exists before the first failure. Dashboard, alerts and what to do when one fires:
[beacon.md](beacon.md#watching-it).

The names are those of the original Beacon, of which three break the custom that `_total` is a counter's:
`event_notification_attempts_total` is a histogram, `event_notifications_pending_total` and `event_db_rows_total` are gauges.
`namespace` is the one that the configuration names, or `all`.

| metric | type | labels | |
|---|---|---|---|
";
    head.to_owned() + &generated::families(served)
}
