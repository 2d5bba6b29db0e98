//! What a beacon counts, under the names that its dashboards know.
//!
//! Labels are from closed sets, but for kinds and namespaces: those that the configuration names, and `all`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use watchfire_delivery::metrics::{FailedOperation, Operation, StoreMetrics};
use watchfire_runtime::clock;

mod labels;

pub(crate) use labels::Component;
use labels::{
    ATTEMPTS, BACKOFF, BATCH, Buckets, ByComponent, ByReason, BySeverity, ByState, ByStatus, CLEANUP, COMPARISON,
    DURATION, Drift, LATENCY, Mutated, OfAttempt, OfEvent, OfKind, OfWorker, PROCESSING, Processed, Refused, Restarted,
    Seconds, Seen, Sent, WORKER,
};

use crate::episode::{Source, Step};
use crate::storage::{Pressure, Usage};

/// The families of one process.
#[derive(Clone)]
pub struct Metrics {
    events: Family<Seen, Counter>,
    missed: Family<ByReason, Counter>,
    connected: Family<OfKind, Gauge>,
    reconnects: Family<ByReason, Counter>,
    last_event: Family<OfKind, Seconds>,
    mutations: Family<Mutated, Counter>,
    sent: Family<Sent, Counter>,
    duration: Family<Sent, Histogram, Buckets>,
    latency: Family<OfEvent, Histogram, Buckets>,
    attempts: Family<OfEvent, Histogram, Buckets>,
    refused: Family<Refused, Counter>,
    endpoint_up: Gauge,
    endpoint_failures: Gauge,
    endpoint_success: Seconds,
    comparisons: Family<ByStatus, Counter>,
    comparison: Histogram,
    processed: Family<Processed, Counter>,
    drift: Family<Drift, Counter>,
    cleanups: Family<ByStatus, Counter>,
    cleanup: Histogram,
    removed: Counter,
    rows: Family<ByState, Gauge>,
    pending: Family<OfEvent, Gauge>,
    database: Gauge,
    volume: Volume,
    backoff: Family<OfAttempt, Histogram, Buckets>,
    exhausted: Family<OfEvent, Counter>,
    eligible: Gauge,
    oldest: Seconds,
    up: Family<ByComponent, Gauge>,
    succeeded: Family<ByComponent, Seconds>,
    restarts: Family<Restarted, Counter>,
    queue: Family<OfWorker, Gauge>,
    processing: Family<OfWorker, Histogram, Buckets>,
    batch: Family<OfWorker, Histogram, Buckets>,
    store: StoreMetrics,
    /// Whether each scope, by its kind and namespace, is watched.
    scopes: Arc<Mutex<BTreeMap<(String, String), bool>>>,
}

/// The gauges of the volume that the ledger is on.
#[derive(Debug, Clone, Default)]
struct Volume {
    size: Gauge,
    used: Gauge,
    available: Gauge,
    usage: Seconds,
    inodes: Gauge,
    inodes_used: Gauge,
    pressure: Family<BySeverity, Gauge>,
}

impl Metrics {
    /// All at their start; what the store does is counted there.
    pub fn new(store: StoreMetrics) -> Self {
        Self {
            events: Family::default(),
            missed: Family::default(),
            connected: Family::default(),
            reconnects: Family::default(),
            last_event: Family::default(),
            mutations: Family::default(),
            sent: Family::default(),
            duration: Family::new_with_constructor(DURATION),
            latency: Family::new_with_constructor(LATENCY),
            attempts: Family::new_with_constructor(ATTEMPTS),
            refused: Family::default(),
            endpoint_up: Gauge::default(),
            endpoint_failures: Gauge::default(),
            endpoint_success: Seconds::default(),
            comparisons: Family::default(),
            comparison: COMPARISON.new_metric(),
            processed: Family::default(),
            drift: Family::default(),
            cleanups: Family::default(),
            cleanup: CLEANUP.new_metric(),
            removed: Counter::default(),
            rows: Family::default(),
            pending: Family::default(),
            database: Gauge::default(),
            volume: Volume::default(),
            backoff: Family::new_with_constructor(BACKOFF),
            exhausted: Family::default(),
            eligible: Gauge::default(),
            oldest: Seconds::default(),
            up: Family::default(),
            succeeded: Family::default(),
            restarts: Family::default(),
            queue: Family::default(),
            processing: Family::new_with_constructor(PROCESSING),
            batch: Family::new_with_constructor(BATCH),
            store,
            scopes: Arc::default(),
        }
    }

    /// Registers every family.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("event");
        macro_rules! families {
            ($($field:ident $name:literal $help:literal;)*) => {
                $(registry.register($name, $help, self.$field.clone());)*
            };
        }
        families! {
            events "events" "Beginnings (add), changes (update) and ends (delete) of episodes, by how they were found out";
            missed "events_missed" "Beginnings and ends that no watch had told of, by what found them";
            connected "connection_status" "Whether the watches of a kind are up";
            reconnects "reconnects" "Times that a watch was begun anew, by why";
            last_event "last_event_timestamp" "When a list or a watch last told of an object of the kind";
            mutations "annotation_mutations" "Annotations that were added to objects, or removed from them";
            sent "notifications_sent" "Attempts to deliver an event, by how they ended";
            duration "notification_duration_seconds" "Time that an attempt took";
            latency "notification_latency_seconds" "Time from what happened to the endpoint's 2xx";
            attempts "notification_attempts_total" "Attempts that an event took until the endpoint's 2xx; those while the circuit was open, or refused for credentials, do not count";
            refused "notification_non_retriable_failures" "Events that the endpoint refused for good, by its status";
            endpoint_up "endpoint_up" "Whether the endpoint answered the last attempt with a 2xx, or with what is about that event alone; 1 until it is known";
            endpoint_failures "endpoint_consecutive_failures" "Attempts that failed since the last one that did not";
            endpoint_success "endpoint_last_success_timestamp" "When the endpoint last took an event";
            comparisons "reconciliation_runs" "Comparisons of cluster and ledger, by how they ended";
            comparison "reconciliation_duration_seconds" "Time that a comparison took";
            processed "reconciliation_objects_processed" "Objects that were compared, by what came of it";
            drift "reconciliation_drift_detected" "Objects of which cluster and ledger differed";
            cleanups "cleanup_runs" "Times that the ledger was cleaned, by how it ended";
            cleanup "cleanup_duration_seconds" "Time that cleaning took";
            removed "cleanup_records_deleted" "Episodes that were removed from the ledger";
            rows "db_rows_total" "Rows of a table of the ledger, by state";
            pending "notifications_pending_total" "Events that wait for their delivery";
            database "db_size_bytes" "Size of the ledger's file and of its log";
            backoff "notification_retry_backoff_seconds" "Pauses before an event is tried again, by the attempt before, of those that count";
            exhausted "notification_max_retries_exceeded" "Events that were given up after maxAttempts";
            eligible "cleanup_records_eligible" "Episodes that are over for longer than the retention, and that nothing holds";
            oldest "cleanup_oldest_record_age_seconds" "Time since the oldest episode of the ledger that is over, 0 if none is";
            up "component_up" "Whether a component works: all watches, the queue that is neither paused nor unusable, the last comparison, the last cleaning, the last look at the volume";
            succeeded "component_last_success_timestamp" "When a component last did what it is there for";
            restarts "component_restarts" "Times that a watch was begun anew, and that cleaning was after it had failed altogether";
            queue "worker_queue_size" "Events that wait for their delivery, when the queue was last looked at";
            processing "worker_processing_duration_seconds" "Time from taking an event up until what came of it is noted";
            batch "worker_batch_size" "Events that were read from the queue at once";
        }
        let store = &self.store;
        let help = "Time that an operation on the ledger took, with the waiting for its turn and for the disk";
        registry.register("db_operation_duration_seconds", help, store.operations.clone());
        let help = "Operations on the ledger that failed, by why";
        registry.register("db_operation_errors", help, store.failures.clone());
        let Volume { size, used, available, usage, inodes, inodes_used, pressure } = self.volume.clone();
        registry.register("storage_volume_size_bytes", "Size of the ledger's volume", size);
        registry.register("storage_volume_used_bytes", "Bytes used on the ledger's volume", used);
        registry.register("storage_volume_available_bytes", "Bytes that this process may use of the volume", available);
        registry.register("storage_volume_usage_percent", "Share of the volume's bytes that is used", usage);
        registry.register("storage_volume_inodes_total", "Inodes of the ledger's volume", inodes);
        registry.register("storage_volume_inodes_used", "Inodes used on the ledger's volume", inodes_used);
        registry.register("storage_pressure", "How full the volume is: what holds is 1, the others are 0", pressure);
        self.endpoint_up.set(1);
        for status in ["success", "error"] {
            self.comparisons.get_or_create_owned(&ByStatus { status });
            self.cleanups.get_or_create_owned(&ByStatus { status });
        }
        for component in Component::ALL {
            // No watch is up before its list is read; nothing else has failed yet.
            self.up.get_or_create_owned(&component.label()).set(i64::from(component != Component::Watcher));
            self.succeeded.get_or_create_owned(&component.label());
        }
        for operation in ["read", "write"] {
            store.operations.get_or_create_owned(&Operation { operation });
            for error_type in ["busy", "full", "corrupt", "io", "other"] {
                store.failures.get_or_create_owned(&FailedOperation { operation, error_type });
            }
        }
        self.queue.get_or_create_owned(&WORKER);
        self.processing.get_or_create_owned(&WORKER);
        self.batch.get_or_create_owned(&WORKER);
    }

    /// A scope is to be watched: what is counted of its kind is there from the start, so that the first time shows.
    pub(crate) fn watches(&self, kind: &str, scope: &str) {
        let resource_type = || kind.to_owned();
        for reason in ["error", "relist"] {
            self.reconnects.get_or_create_owned(&ByReason { resource_type: resource_type(), reason });
            self.restarts.get_or_create_owned(&Restarted { component: Component::Watcher.label().component, reason });
        }
        self.missed.get_or_create_owned(&ByReason { resource_type: resource_type(), reason: "reconciliation" });
        for drift_type in ["missed_creation", "missed_deletion"] {
            self.drift.get_or_create_owned(&Drift { resource_type: resource_type(), drift_type });
        }
        for action in ["insert", "delete", "reconciled"] {
            self.processed.get_or_create_owned(&Processed { resource_type: resource_type(), action });
        }
        for event_type in ["created", "deleted"] {
            self.exhausted.get_or_create_owned(&OfEvent { resource_type: resource_type(), event_type });
            for status in [Status::Success, Status::Retriable, Status::NonRetriable(None)] {
                let status = status.as_str();
                self.sent.get_or_create_owned(&Sent { resource_type: resource_type(), event_type, status });
            }
        }
        self.connected(kind, scope, false);
    }

    /// A scope of a kind is watched, or not.
    pub(crate) fn connected(&self, kind: &str, scope: &str, up: bool) {
        let mut scopes = self.scopes.lock().unwrap_or_else(PoisonError::into_inner);
        scopes.insert((kind.to_owned(), scope.to_owned()), up);
        let of_kind_up = scopes.iter().all(|((theirs, _), up)| theirs != kind || *up);
        self.connected.get_or_create_owned(&of_kind(kind)).set(i64::from(of_kind_up));
        self.works(Component::Watcher, scopes.values().all(|up| *up));
    }

    /// A watch was begun anew.
    pub(crate) fn reconnected(&self, kind: &str, reason: &'static str) {
        self.reconnects.get_or_create_owned(&ByReason { resource_type: kind.to_owned(), reason }).inc();
        self.restarted(Component::Watcher, reason);
    }

    /// A component began anew.
    pub(crate) fn restarted(&self, component: Component, reason: &'static str) {
        let component = component.label().component;
        self.restarts.get_or_create_owned(&Restarted { component, reason }).inc();
    }

    /// A component works, or not.
    pub(crate) fn works(&self, component: Component, up: bool) {
        self.up.get_or_create_owned(&component.label()).set(i64::from(up));
    }

    /// A component did what it is there for.
    fn succeeds(&self, component: Component, now: Timestamp) {
        self.succeeded.get_or_create_owned(&component.label()).set(seconds(now));
    }

    /// The cluster told of an object.
    pub(crate) fn heard(&self, kind: &str, now: Timestamp) {
        self.last_event.get_or_create_owned(&of_kind(kind)).set(seconds(now));
        self.succeeds(Component::Watcher, now);
    }

    /// The queue was looked at.
    pub(crate) fn queued(&self, events: i64, flows: bool) {
        self.queue.get_or_create_owned(&WORKER).set(events);
        self.works(Component::Notifier, flows);
    }

    /// Events were read from the queue.
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
    pub(crate) fn claimed(&self, events: usize) {
        self.batch.get_or_create_owned(&WORKER).observe(events as f64);
    }

    /// What came of an attempt is noted.
    pub(crate) fn settled(&self, took: Duration) {
        self.processing.get_or_create_owned(&WORKER).observe(took.as_secs_f64());
    }

    /// An event waits for its next attempt.
    pub(crate) fn waits(&self, attempt: u32, pause: Duration) {
        const NAMES: [&str; 10] = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10+"];
        let attempt = NAMES[(attempt.clamp(1, 10) - 1) as usize];
        self.backoff.get_or_create_owned(&OfAttempt { attempt }).observe(pause.as_secs_f64());
    }

    /// An event was given up.
    pub(crate) fn exhausted(&self, about: &About<'_>) {
        self.exhausted.get_or_create_owned(&about.labels()).inc();
    }

    /// A step was noted.
    pub(crate) fn noted(&self, kind: &str, namespace: &str, step: &Step) {
        let (event_type, source) = match step {
            Step::Begin(_, source) => ("add", *source),
            Step::Change(_) => ("update", Source::Watch),
            Step::End(_, source) => ("delete", *source),
        };
        let resource_type = || kind.to_owned();
        let namespace = || if namespace.is_empty() { "all".to_owned() } else { namespace.to_owned() };
        let seen = Seen {
            resource_type: resource_type(),
            event_type,
            namespace: namespace(),
            detection_source: source.as_str(),
        };
        self.events.get_or_create_owned(&seen).inc();
        match (source, event_type) {
            (Source::Mutation, _) => {
                let mutation_type = if event_type == "add" { "added" } else { "removed" };
                let mutated = Mutated { resource_type: resource_type(), mutation_type, namespace: namespace() };
                self.mutations.get_or_create_owned(&mutated).inc();
            }
            (Source::Reconciliation, _) => {
                let (drift_type, action) =
                    if event_type == "add" { ("missed_creation", "insert") } else { ("missed_deletion", "delete") };
                self.drift.get_or_create_owned(&Drift { resource_type: resource_type(), drift_type }).inc();
                self.processed.get_or_create_owned(&Processed { resource_type: resource_type(), action }).inc();
                let missed = ByReason { resource_type: resource_type(), reason: "reconciliation" };
                self.missed.get_or_create_owned(&missed).inc();
            }
            (Source::Watch, _) => {}
        }
    }

    /// A comparison ended.
    pub(crate) fn compared(&self, kind: &str, objects: Option<u64>, took: Duration) {
        let status = if objects.is_some() { "success" } else { "error" };
        self.comparisons.get_or_create_owned(&ByStatus { status }).inc();
        self.comparison.observe(took.as_secs_f64());
        let processed = Processed { resource_type: kind.to_owned(), action: "reconciled" };
        self.processed.get_or_create_owned(&processed).inc_by(objects.unwrap_or(0));
        self.ended(Component::Reconciler, objects.is_some());
    }

    /// A component's turn ended, well or not.
    fn ended(&self, component: Component, well: bool) {
        self.works(component, well);
        if well {
            self.succeeds(component, clock::now());
        }
    }

    /// Cleaning ended.
    pub(crate) fn cleaned(&self, episodes: Option<u64>, took: Duration) {
        let status = if episodes.is_some() { "success" } else { "error" };
        self.cleanups.get_or_create_owned(&ByStatus { status }).inc();
        self.cleanup.observe(took.as_secs_f64());
        self.removed.inc_by(episodes.unwrap_or(0));
        self.ended(Component::Cleaner, episodes.is_some());
    }

    /// What is over was counted: how much of it may go, and for how long the oldest has been over.
    pub(crate) fn over(&self, eligible: i64, oldest: Option<Duration>) {
        self.eligible.set(eligible);
        self.oldest.set(oldest.unwrap_or_default().as_secs_f64());
    }

    /// The volume was looked at, and the ledger's rows counted, or not.
    pub(crate) fn monitored(&self, well: bool) {
        self.ended(Component::StorageMonitor, well);
    }

    /// The volume was looked at.
    pub(crate) fn stored(&self, usage: &Usage, pressure: Pressure) {
        let volume = &self.volume;
        let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        volume.size.set(whole(usage.size));
        volume.used.set(whole(usage.size - usage.free.min(usage.size)));
        volume.available.set(whole(usage.available));
        volume.usage.set(usage.percent());
        volume.inodes.set(whole(usage.inodes));
        volume.inodes_used.set(whole(usage.inodes - usage.free_inodes.min(usage.inodes)));
        self.database.set(whole(usage.database));
        for severity in [Pressure::None, Pressure::Warning, Pressure::Critical] {
            let gauge = volume.pressure.get_or_create_owned(&BySeverity { severity: severity.as_str() });
            gauge.set(i64::from(severity == pressure));
        }
    }

    /// The ledger's rows were counted.
    pub(crate) fn counted(&self, table: &'static str, state: &'static str, rows: i64) {
        self.rows.get_or_create_owned(&ByState { table, state }).set(rows);
    }

    /// The events that wait were counted.
    pub(crate) fn waiting(&self, resource_type: String, event_type: &'static str, events: i64) {
        self.pending.get_or_create_owned(&OfEvent { resource_type, event_type }).set(events);
    }

    /// An attempt to deliver an event ended.
    pub(crate) fn attempted(&self, about: &About<'_>, status: Status, took: Duration) {
        let About { resource_type, event_type } = about;
        let resource_type = || (*resource_type).to_owned();
        let sent = Sent { resource_type: resource_type(), event_type, status: status.as_str() };
        self.sent.get_or_create_owned(&sent).inc();
        self.duration.get_or_create_owned(&sent).observe(took.as_secs_f64());
        match status {
            Status::Success => {
                self.endpoint_up.set(1);
                self.endpoint_failures.set(0);
            }
            Status::Retriable | Status::NonRetriable(None) => {
                self.endpoint_up.set(0);
                self.endpoint_failures.inc();
            }
            // It answered, and means this event.
            Status::NonRetriable(Some(code)) => {
                self.endpoint_up.set(1);
                self.endpoint_failures.inc();
                let refused = Refused { resource_type: resource_type(), event_type, status_code: code.to_string() };
                self.refused.get_or_create_owned(&refused).inc();
            }
        }
    }

    /// The endpoint took an event.
    pub(crate) fn delivered(&self, about: &About<'_>, latency: Duration, attempts: u32, now: Timestamp) {
        let of = about.labels();
        self.latency.get_or_create_owned(&of).observe(latency.as_secs_f64());
        self.attempts.get_or_create_owned(&of).observe(f64::from(attempts));
        self.endpoint_success.set(seconds(now));
        self.succeeds(Component::Notifier, now);
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds since 1970 have few enough digits")]
fn seconds(at: Timestamp) -> f64 {
    at.as_second() as f64
}

fn of_kind(kind: &str) -> OfKind {
    OfKind { resource_type: kind.to_owned() }
}

/// What an event is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    pub(crate) resource_type: &'a str,
    pub(crate) event_type: &'static str,
}

impl About<'_> {
    fn labels(&self) -> OfEvent {
        OfEvent { resource_type: self.resource_type.to_owned(), event_type: self.event_type }
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Success,
    Retriable,
    /// For good, with the status of the answer if there was one.
    NonRetriable(Option<u16>),
}

impl Status {
    fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Retriable => "retriable",
            Self::NonRetriable(_) => "non_retriable",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gauges that no other test moves: a volume's.
    #[test]
    fn the_gauges_of_the_volume_follow_it() {
        let (metrics, mut registry) = (Metrics::new(StoreMetrics::default()), Registry::default());
        metrics.register(&mut registry);
        let served = |usage: &Usage, pressure| {
            metrics.stored(usage, pressure);
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            let of_volume =
                |line: &&str| line.starts_with("event_storage_") || line.starts_with("event_db_size_bytes ");
            text.lines().filter(of_volume).map(str::to_owned).collect::<Vec<_>>()
        };
        let usage = Usage { size: 100, free: 50, available: 30, inodes: 20, free_inodes: 5, database: 7 };
        let first = served(&usage, Pressure::Warning);
        for line in [
            "event_storage_volume_size_bytes 100",
            "event_storage_volume_used_bytes 50",
            "event_storage_volume_available_bytes 30",
            "event_storage_volume_usage_percent 62.5",
            "event_storage_volume_inodes_total 20",
            "event_storage_volume_inodes_used 15",
            "event_db_size_bytes 7",
            "event_storage_pressure{severity=\"none\"} 0",
            "event_storage_pressure{severity=\"warning\"} 1",
            "event_storage_pressure{severity=\"critical\"} 0",
        ] {
            assert!(first.iter().any(|found| found == line), "{line} in {first:?}");
        }
        let other = Usage { size: 200, free: 20, available: 10, inodes: 40, free_inodes: 4, database: 9 };
        let second = served(&other, Pressure::Critical);
        assert_eq!(
            first.iter().filter(|line| second.contains(line)).count(),
            1,
            "only the pressure that is none stays"
        );
    }
}
