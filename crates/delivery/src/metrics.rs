//! What the store, the outbox and its workers count.
//!
//! A `sink` label is a name that the configuration fixes; the others are closed sets, created at start.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::outbox::Stats;
use crate::store;

/// How one attempt to deliver ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The far side took the event.
    Delivered,
    /// It did not, and the event is tried again.
    Retried,
    /// It did not, and that does not count against the event, because the far side is down or refuses everything.
    Postponed,
    /// It never will; the event is a dead letter.
    Dead,
}

impl Outcome {
    /// The name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Retried => "retried",
            Self::Postponed => "postponed",
            Self::Dead => "dead",
        }
    }
}

/// Whether a worker delivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Everything goes out.
    Closed,
    /// Nothing goes out until the far side had time to recover.
    Open,
    /// A few events go out to see whether the far side has recovered.
    HalfOpen,
    /// Nothing goes out until someone resumes the sink.
    Paused,
}

impl Flow {
    /// The name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
            Self::Paused => "paused",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BySink {
    sink: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOutcome {
    sink: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByFlow {
    sink: String,
    state: &'static str,
}

/// The families of one process.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// The store's own.
    pub store: StoreMetrics,
    attempts: Family<ByOutcome, Counter>,
    pending: Family<BySink, Gauge>,
    oldest: Family<BySink, Gauge<f64, AtomicU64>>,
    dead: Family<BySink, Gauge>,
    store_failures: Family<BySink, Counter>,
    circuit: Family<ByFlow, Gauge>,
}

impl Metrics {
    /// Registers every family.
    pub fn register(&self, registry: &mut Registry) {
        let store = &self.store;
        registry.register("store_commit_rows", "Rows that were written by one commit to the store", store.rows.clone());
        let help = "Time that one commit to the store took, with the work inside it";
        registry.register_with_unit("store_commit_duration", help, Unit::Seconds, store.duration.clone());
        let help = "Attempts to deliver an event to a sink, by how they ended";
        registry.register("outbox_delivery_attempts", help, self.attempts.clone());
        let help = "Events that wait for their delivery to a sink";
        registry.register("outbox_deliveries_pending", help, self.pending.clone());
        let help = "Age of the event that has waited longest for its delivery to a sink, 0 when none waits";
        registry.register_with_unit("outbox_oldest_pending_age", help, Unit::Seconds, self.oldest.clone());
        let help = "Events that a sink will never take, and that wait for someone to retry or discard them";
        registry.register("outbox_dead_letters", help, self.dead.clone());
        let help = "Times that a sink's worker found the store failing, and waited to try again";
        registry.register("outbox_store_failures", help, self.store_failures.clone());
        let help = "Whether deliveries to a sink flow: the state that holds is 1, the others are 0";
        registry.register("outbox_circuit_state", help, self.circuit.clone());
    }

    /// The metrics of one sink, with every label value at its start.
    pub fn sink(&self, sink: &str) -> SinkMetrics {
        let by_sink = BySink { sink: sink.to_owned() };
        let attempts = |outcome: Outcome| {
            self.attempts.get_or_create_owned(&ByOutcome { sink: sink.to_owned(), outcome: outcome.as_str() })
        };
        let state = |flow: Flow| {
            (flow, self.circuit.get_or_create_owned(&ByFlow { sink: sink.to_owned(), state: flow.as_str() }))
        };
        let metrics = SinkMetrics {
            delivered: attempts(Outcome::Delivered),
            retried: attempts(Outcome::Retried),
            postponed: attempts(Outcome::Postponed),
            dead: attempts(Outcome::Dead),
            pending: self.pending.get_or_create_owned(&by_sink),
            oldest: self.oldest.get_or_create_owned(&by_sink),
            dead_letters: self.dead.get_or_create_owned(&by_sink),
            store_failures: self.store_failures.get_or_create_owned(&by_sink),
            flow: Arc::new([Flow::Closed, Flow::Open, Flow::HalfOpen, Flow::Paused].map(state)),
        };
        metrics.flows(Flow::Closed);
        metrics
    }
}

/// What one worker counts.
#[derive(Debug, Clone)]
pub struct SinkMetrics {
    delivered: Counter,
    retried: Counter,
    postponed: Counter,
    dead: Counter,
    pending: Gauge,
    oldest: Gauge<f64, AtomicU64>,
    dead_letters: Gauge,
    store_failures: Counter,
    flow: Arc<[(Flow, Gauge); 4]>,
}

impl SinkMetrics {
    pub(crate) fn attempted(&self, outcome: Outcome) {
        match outcome {
            Outcome::Delivered => &self.delivered,
            Outcome::Retried => &self.retried,
            Outcome::Postponed => &self.postponed,
            Outcome::Dead => &self.dead,
        }
        .inc();
    }

    pub(crate) fn store_failed(&self) {
        self.store_failures.inc();
    }

    pub(crate) fn queued(&self, stats: &Stats, now: Timestamp) {
        self.pending.set(stats.pending);
        self.oldest.set(stats.oldest.map_or(0.0, |oldest| now.duration_since(oldest).as_secs_f64().max(0.0)));
        self.dead_letters.set(stats.dead);
    }

    pub(crate) fn flows(&self, now: Flow) {
        for (flow, gauge) in self.flow.iter() {
            gauge.set(i64::from(*flow == now));
        }
    }
}

/// What a caller asked of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Operation {
    /// `read` or `write`.
    pub operation: &'static str,
}

/// An operation that failed, and why: `busy`, `full`, `corrupt`, `io` or `other`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FailedOperation {
    /// `read` or `write`.
    pub operation: &'static str,
    /// Why.
    pub error_type: &'static str,
}

/// What the store counts.
#[derive(Debug, Clone)]
pub struct StoreMetrics {
    rows: Histogram,
    duration: Histogram,
    /// Time from asking for something to its end, waiting for one's turn and the disk included; whoever exports it
    /// names it.
    pub operations: Family<Operation, Histogram, fn() -> Histogram>,
    /// What was asked in vain.
    pub failures: Family<FailedOperation, Counter>,
}

fn operation_duration() -> Histogram {
    Histogram::new([0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0])
}

impl Default for StoreMetrics {
    fn default() -> Self {
        Self {
            rows: Histogram::new([1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]),
            duration: Histogram::new(exponential_buckets(0.000_1, 2.0, 16)),
            operations: Family::new_with_constructor(operation_duration),
            failures: Family::default(),
        }
    }
}

impl StoreMetrics {
    #[expect(clippy::cast_precision_loss, reason = "a commit has far fewer than 2^52 rows")]
    pub(crate) fn committed(&self, rows: u64, took: Duration) {
        self.rows.observe(rows as f64);
        self.duration.observe(took.as_secs_f64());
    }

    pub(crate) fn operated(&self, operation: &'static str, error: Option<&store::Error>, took: Duration) {
        self.operations.get_or_create_owned(&Operation { operation }).observe(took.as_secs_f64());
        // That it stops is no failure of the store.
        if let Some(error) = error.filter(|error| !matches!(error, store::Error::Closed)) {
            self.failures.get_or_create_owned(&FailedOperation { operation, error_type: error.kind() }).inc();
        }
    }
}
