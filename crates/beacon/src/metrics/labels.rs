//! The labels of the families, and the buckets of their histograms.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::MetricConstructor;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

#[derive(Clone, Copy)]
pub(super) struct Buckets(&'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

pub(super) const DURATION: Buckets = Buckets(&[0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0]);
pub(super) const LATENCY: Buckets = Buckets(&[1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0]);
pub(super) const ATTEMPTS: Buckets = Buckets(&[1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 20.0]);
pub(super) const COMPARISON: Buckets = Buckets(&[1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0]);
pub(super) const BACKOFF: Buckets = Buckets(&[0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0]);
pub(super) const PROCESSING: Buckets = Buckets(&[0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0]);
pub(super) const BATCH: Buckets = Buckets(&[1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
pub(super) const CLEANUP: Buckets = Buckets(&[0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0]);

pub(super) type Seconds = Gauge<f64, AtomicU64>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfKind {
    pub(super) resource_type: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Seen {
    pub(super) resource_type: String,
    pub(super) event_type: &'static str,
    pub(super) namespace: String,
    pub(super) detection_source: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByReason {
    pub(super) resource_type: String,
    pub(super) reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Mutated {
    pub(super) resource_type: String,
    pub(super) mutation_type: &'static str,
    pub(super) namespace: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfEvent {
    pub(super) resource_type: String,
    pub(super) event_type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Sent {
    pub(super) resource_type: String,
    pub(super) event_type: &'static str,
    pub(super) status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Refused {
    pub(super) resource_type: String,
    pub(super) event_type: &'static str,
    pub(super) status_code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByStatus {
    pub(super) status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Processed {
    pub(super) resource_type: String,
    pub(super) action: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Drift {
    pub(super) resource_type: String,
    pub(super) drift_type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByState {
    pub(super) table: &'static str,
    pub(super) state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BySeverity {
    pub(super) severity: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByComponent {
    pub(super) component: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Restarted {
    pub(super) component: &'static str,
    pub(super) reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfWorker {
    pub(super) worker: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfAttempt {
    pub(super) attempt: &'static str,
}

/// The worker that delivers.
pub(super) const WORKER: OfWorker = OfWorker { worker: "notifier" };

/// What a beacon is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Component {
    /// All watches together.
    Watcher,
    Notifier,
    Reconciler,
    Cleaner,
    StorageMonitor,
}

impl Component {
    pub(super) const ALL: [Self; 5] =
        [Self::Watcher, Self::Notifier, Self::Reconciler, Self::Cleaner, Self::StorageMonitor];

    pub(super) fn label(self) -> ByComponent {
        let component = match self {
            Self::Watcher => "watcher",
            Self::Notifier => "notifier",
            Self::Reconciler => "reconciler",
            Self::Cleaner => "cleaner",
            Self::StorageMonitor => "storage_monitor",
        };
        ByComponent { component }
    }
}
