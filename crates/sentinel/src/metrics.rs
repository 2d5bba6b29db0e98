//! What the sentinel counts.
//!
//! The families of both specifications and of today's sentinel, under their names; a family that several of them know
//! carries the union of their labels. Names of our own are told in their help.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::decision::Reason;

/// Prometheus' own default buckets, which today's dashboards expect.
const DURATION_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Which sentinel: what it watches, in the words of each specification.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Shard {
    /// The plural, such as `clusters`.
    pub resource_type: String,
    /// `region:us-east`, or `all`.
    pub resource_selector: String,
    /// `region=us-east`, or `all`.
    pub shard: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShardReason {
    #[prometheus(flatten)]
    shard: Shard,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShardSkip {
    #[prometheus(flatten)]
    shard: Shard,
    reason: &'static str,
    ready_state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShardApiError {
    #[prometheus(flatten)]
    shard: Shard,
    error_type: &'static str,
    operation: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShardBrokerError {
    #[prometheus(flatten)]
    shard: Shard,
    error_type: &'static str,
    broker_type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Topic {
    topic: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TopicError {
    topic: String,
    error_type: &'static str,
}

type PerShard<M> = Family<Shard, M>;

/// The families of all sentinels of a process.
#[derive(Clone, Default)]
pub struct Families {
    pending: PerShard<Gauge>,
    published: Family<ShardReason, Counter>,
    skipped: Family<ShardSkip, Counter>,
    poll_duration: Durations,
    reconcile_duration: Durations,
    api_errors: Family<ShardApiError, Counter>,
    broker_errors: Family<ShardBrokerError, Counter>,
    config_loads: PerShard<Counter>,
    config_reloads: PerShard<Counter>,
    last_poll: Gauge<f64, AtomicU64>,
    broker_published: Family<Topic, Counter>,
    broker_library_errors: Family<TopicError, Counter>,
    unreadable: PerShard<Counter>,
    in_flight: PerShard<Gauge>,
    in_flight_evicted: PerShard<Counter>,
    publish_retries: PerShard<Counter>,
    fields_missing: PerShard<Counter>,
    fields_failed: PerShard<Counter>,
    observed_ahead: PerShard<Counter>,
    from_future: PerShard<Counter>,
}

#[derive(Clone)]
struct Durations(Family<Shard, Histogram, fn() -> Histogram>);

impl Default for Durations {
    fn default() -> Self {
        Self(Family::new_with_constructor(|| Histogram::new(DURATION_BUCKETS)))
    }
}

impl Families {
    /// Creates the families and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let families = Self::default();
        let ours = registry.sub_registry_with_prefix("hyperfleet_sentinel");
        ours.register("pending_resources", "Resources that were due in the last cycle", families.pending.clone());
        ours.register("events_published", "Events that the broker confirmed, by reason", families.published.clone());
        ours.register(
            "resources_skipped",
            "Resources that were not due, by reason and by whether they are ready",
            families.skipped.clone(),
        );
        let help = "Time of a whole cycle, from the first request to the last confirmed event, in seconds";
        ours.register("poll_duration_seconds", help, families.poll_duration.0.clone());
        ours.register("reconcile_duration_seconds", help, families.reconcile_duration.0.clone());
        ours.register("api_errors", "Requests to the API that failed for good", families.api_errors.clone());
        ours.register(
            "broker_errors",
            "Events that could not be published in their cycle",
            families.broker_errors.clone(),
        );
        ours.register("config_loads", "Times the configuration was loaded", families.config_loads.clone());
        ours.register(
            "config_reloads",
            "Times the configuration was loaded, the first time included",
            families.config_reloads.clone(),
        );
        ours.register(
            "last_successful_poll_timestamp_seconds",
            "When the last cycle ended in which everything due was published; stands still while the API or the broker fails",
            families.last_poll.clone(),
        );
        ours.register(
            "resources_unreadable",
            "Items of a list that could not be read as a resource",
            families.unreadable.clone(),
        );
        ours.register(
            "in_flight_events",
            "Confirmed events that no report has overtaken yet",
            families.in_flight.clone(),
        );
        ours.register(
            "in_flight_evicted",
            "Confirmed events forgotten for want of room; each may cost one early event",
            families.in_flight_evicted.clone(),
        );
        ours.register(
            "publish_retries",
            "Events that were tried again within their cycle",
            families.publish_retries.clone(),
        );
        ours.register(
            "payload_fields_missing",
            "Fields of message_data that a resource did not have, sent as empty strings",
            families.fields_missing.clone(),
        );
        ours.register(
            "payload_fields_failed",
            "Fields of message_data whose template failed on a resource, sent as empty strings",
            families.fields_failed.clone(),
        );
        ours.register(
            "observed_ahead",
            "Resources whose adapters claim a generation that does not exist yet",
            families.observed_ahead.clone(),
        );
        ours.register(
            "reports_from_future",
            "Resources with a report time in the future",
            families.from_future.clone(),
        );
        let broker = registry.sub_registry_with_prefix("hyperfleet_broker");
        broker.register("messages_published", "Messages that the broker confirmed", families.broker_published.clone());
        broker.register("errors", "Messages that the broker did not confirm", families.broker_library_errors.clone());
        families
    }

    /// The metrics of one sentinel; every known label value exists from here on, so that a rate exists before the
    /// first failure.
    pub fn of(&self, shard: Shard, broker: &'static str, topic: String) -> Metrics {
        let metrics = Metrics { families: self.clone(), shard, broker, topic };
        for reason in Reason::ALL {
            if reason.publishes() {
                metrics.published_counter(reason);
            } else {
                for ready in [true, false] {
                    metrics.skipped_counter(reason, ready);
                }
            }
        }
        for kind in ["fetch_error", "auth_error"] {
            metrics.api_error_counter(kind, "fetch_resources");
        }
        metrics.api_error_counter("config_error", "config_load");
        metrics.broker_error_counter();
        let f = &metrics.families;
        drop((f.pending.get_or_create(&metrics.shard), f.in_flight.get_or_create(&metrics.shard)));
        drop(f.poll_duration.0.get_or_create(&metrics.shard));
        drop(f.reconcile_duration.0.get_or_create(&metrics.shard));
        for family in [
            &f.unreadable,
            &f.in_flight_evicted,
            &f.publish_retries,
            &f.fields_missing,
            &f.fields_failed,
            &f.observed_ahead,
            &f.from_future,
            &f.config_loads,
            &f.config_reloads,
        ] {
            drop(family.get_or_create(&metrics.shard));
        }
        drop(f.broker_published.get_or_create(&Topic { topic: metrics.topic.clone() }));
        metrics.broker_library_error_counter();
        metrics
    }
}

/// The metrics of one sentinel.
#[derive(Clone)]
pub struct Metrics {
    families: Families,
    shard: Shard,
    broker: &'static str,
    topic: String,
}

impl Metrics {
    /// The configuration is in force.
    pub fn config_loaded(&self) {
        self.families.config_loads.get_or_create(&self.shard).inc();
        self.families.config_reloads.get_or_create(&self.shard).inc();
    }

    /// The broker confirmed an event.
    pub fn published(&self, reason: Reason) {
        self.published_counter(reason).inc();
        self.families.broker_published.get_or_create(&Topic { topic: self.topic.clone() }).inc();
    }

    /// A resource was not due.
    pub fn skipped(&self, reason: Reason, ready: bool, count: u64) {
        if count > 0 {
            self.skipped_counter(reason, ready).inc_by(count);
        }
    }

    /// A request failed for good.
    pub fn api_error(&self, kind: &'static str) {
        self.api_error_counter(kind, "fetch_resources").inc();
    }

    /// An event could not be published in its cycle.
    pub fn broker_error(&self) {
        self.broker_error_counter().inc();
        self.broker_library_error_counter().inc();
    }

    /// Events were tried again.
    pub fn retried(&self, events: usize) {
        self.families.publish_retries.get_or_create(&self.shard).inc_by(events as u64);
    }

    /// An item could not be read.
    pub fn unreadable(&self) {
        self.families.unreadable.get_or_create(&self.shard).inc();
    }

    /// Fields of a payload were missing, or failed.
    pub fn fields(&self, missing: usize, failed: usize) {
        self.families.fields_missing.get_or_create(&self.shard).inc_by(missing as u64);
        self.families.fields_failed.get_or_create(&self.shard).inc_by(failed as u64);
    }

    /// Adapters claim a generation that does not exist yet.
    pub fn observed_ahead(&self) {
        self.families.observed_ahead.get_or_create(&self.shard).inc();
    }

    /// A report time lies in the future.
    pub fn from_future(&self) {
        self.families.from_future.get_or_create(&self.shard).inc();
    }

    /// The state of the in-flight memory.
    pub fn in_flight(&self, events: usize, evicted: u64) {
        self.families.in_flight.get_or_create(&self.shard).set(i64::try_from(events).unwrap_or(i64::MAX));
        self.families.in_flight_evicted.get_or_create(&self.shard).inc_by(evicted);
    }

    /// A cycle ended, after `took`, with `due` resources.
    pub fn cycle(&self, took: Duration, due: u64) {
        self.families.poll_duration.0.get_or_create(&self.shard).observe(took.as_secs_f64());
        self.families.reconcile_duration.0.get_or_create(&self.shard).observe(took.as_secs_f64());
        self.families.pending.get_or_create(&self.shard).set(i64::try_from(due).unwrap_or(i64::MAX));
    }

    /// Everything due was published.
    pub fn succeeded(&self, now: jiff::Timestamp) {
        self.families.last_poll.set(now.as_duration().as_secs_f64());
    }

    fn published_counter(&self, reason: Reason) -> Counter {
        let labels = ShardReason { shard: self.shard.clone(), reason: reason.as_str() };
        self.families.published.get_or_create_owned(&labels)
    }

    fn skipped_counter(&self, reason: Reason, ready: bool) -> Counter {
        let ready_state = if ready { "ready" } else { "not_ready" };
        let labels = ShardSkip { shard: self.shard.clone(), reason: reason.as_str(), ready_state };
        self.families.skipped.get_or_create_owned(&labels)
    }

    fn api_error_counter(&self, error_type: &'static str, operation: &'static str) -> Counter {
        let labels = ShardApiError { shard: self.shard.clone(), error_type, operation };
        self.families.api_errors.get_or_create_owned(&labels)
    }

    fn broker_error_counter(&self) -> Counter {
        let labels =
            ShardBrokerError { shard: self.shard.clone(), error_type: "publish_error", broker_type: self.broker };
        self.families.broker_errors.get_or_create_owned(&labels)
    }

    fn broker_library_error_counter(&self) -> Counter {
        let labels = TopicError { topic: self.topic.clone(), error_type: "publish" };
        self.families.broker_library_errors.get_or_create_owned(&labels)
    }
}
