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

use crate::api;
use crate::decision::Reason;
use crate::expression;

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
struct ShardKind {
    #[prometheus(flatten)]
    shard: Shard,
    kind: &'static str,
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
    expression_failures: Family<ShardKind, Counter>,
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
        ours.register(
            "expression_failures",
            "Resources that were skipped because the message decision failed on them, by kind",
            families.expression_failures.clone(),
        );
        let broker = registry.sub_registry_with_prefix("hyperfleet_broker");
        broker.register("messages_published", "Messages that the broker confirmed", families.broker_published.clone());
        broker.register("errors", "Messages that the broker did not confirm", families.broker_library_errors.clone());
        families
    }

    /// The metrics of one sentinel; every known label value exists from here on, so that a rate exists before the
    /// first failure.
    pub fn of(&self, shard: &Shard, broker: &'static str, topic: String) -> Metrics {
        let counter = |family: &PerShard<Counter>| family.get_or_create_owned(shard);
        let gauge = |family: &PerShard<Gauge>| family.get_or_create_owned(shard);
        let api_error = |error_type, operation| {
            self.api_errors.get_or_create_owned(&ShardApiError { shard: shard.clone(), error_type, operation })
        };
        let broker_error = ShardBrokerError { shard: shard.clone(), error_type: "publish_error", broker_type: broker };
        Metrics {
            pending: gauge(&self.pending),
            published: Reason::ALL.map(|reason| {
                let labels = ShardReason { shard: shard.clone(), reason: reason.as_str() };
                reason.publishes().then(|| self.published.get_or_create_owned(&labels))
            }),
            skipped: Reason::ALL.map(|reason| {
                let skip = |ready_state| {
                    let labels = ShardSkip { shard: shard.clone(), reason: reason.as_str(), ready_state };
                    self.skipped.get_or_create_owned(&labels)
                };
                (!reason.publishes()).then(|| ["not_ready", "ready"].map(skip))
            }),
            poll_duration: self.poll_duration.0.get_or_create_owned(shard),
            reconcile_duration: self.reconcile_duration.0.get_or_create_owned(shard),
            fetch_errors: api_error("fetch_error", "fetch_resources"),
            auth_errors: api_error("auth_error", "fetch_resources"),
            broker_errors: self.broker_errors.get_or_create_owned(&broker_error),
            config_loads: counter(&self.config_loads),
            config_reloads: counter(&self.config_reloads),
            last_poll: self.last_poll.clone(),
            broker_published: self.broker_published.get_or_create_owned(&Topic { topic: topic.clone() }),
            broker_library_errors: self
                .broker_library_errors
                .get_or_create_owned(&TopicError { topic, error_type: "publish" }),
            unreadable: counter(&self.unreadable),
            in_flight: gauge(&self.in_flight),
            in_flight_evicted: counter(&self.in_flight_evicted),
            publish_retries: counter(&self.publish_retries),
            fields_missing: counter(&self.fields_missing),
            fields_failed: counter(&self.fields_failed),
            observed_ahead: counter(&self.observed_ahead),
            from_future: counter(&self.from_future),
            expression_failures: expression::Kind::ALL.map(|kind| {
                let labels = ShardKind { shard: shard.clone(), kind: kind.as_str() };
                self.expression_failures.get_or_create_owned(&labels)
            }),
        }
    }
}

/// The metrics of one sentinel.
#[derive(Clone)]
pub struct Metrics {
    pending: Gauge,
    // By `Reason as usize`; a reason either publishes or skips.
    published: [Option<Counter>; Reason::ALL.len()],
    // Not ready, ready.
    skipped: [Option<[Counter; 2]>; Reason::ALL.len()],
    poll_duration: Histogram,
    reconcile_duration: Histogram,
    fetch_errors: Counter,
    auth_errors: Counter,
    broker_errors: Counter,
    config_loads: Counter,
    config_reloads: Counter,
    last_poll: Gauge<f64, AtomicU64>,
    broker_published: Counter,
    broker_library_errors: Counter,
    unreadable: Counter,
    in_flight: Gauge,
    in_flight_evicted: Counter,
    publish_retries: Counter,
    fields_missing: Counter,
    fields_failed: Counter,
    observed_ahead: Counter,
    from_future: Counter,
    // By `Kind as usize`.
    expression_failures: [Counter; expression::Kind::ALL.len()],
}

impl Metrics {
    /// The configuration is in force.
    pub fn config_loaded(&self) {
        self.config_loads.inc();
        self.config_reloads.inc();
    }

    /// The broker confirmed an event.
    pub fn published(&self, reason: Reason) {
        if let Some(counter) = &self.published[reason as usize] {
            counter.inc();
        }
        self.broker_published.inc();
    }

    /// Resources were not due.
    pub fn skipped(&self, reason: Reason, ready: bool, count: u64) {
        if let Some(counters) = &self.skipped[reason as usize] {
            counters[usize::from(ready)].inc_by(count);
        }
    }

    /// A request failed for good.
    pub fn api_error(&self, error: &api::Error) {
        if error.is_auth() {
            self.auth_errors.inc()
        } else {
            self.fetch_errors.inc()
        };
    }

    /// An event could not be published in its cycle.
    pub fn broker_error(&self) {
        self.broker_errors.inc();
        self.broker_library_errors.inc();
    }

    /// Events were tried again.
    pub fn retried(&self, events: usize) {
        self.publish_retries.inc_by(events as u64);
    }

    /// An item could not be read.
    pub fn unreadable(&self) {
        self.unreadable.inc();
    }

    /// Fields of a payload were missing, or failed.
    pub fn fields(&self, missing: usize, failed: usize) {
        self.fields_missing.inc_by(missing as u64);
        self.fields_failed.inc_by(failed as u64);
    }

    /// Adapters claim a generation that does not exist yet.
    pub fn observed_ahead(&self) {
        self.observed_ahead.inc();
    }

    /// A report time lies in the future.
    pub fn from_future(&self) {
        self.from_future.inc();
    }

    /// The message decision failed on a resource.
    pub fn expression_failed(&self, kind: expression::Kind) {
        self.expression_failures[kind as usize].inc();
    }

    /// The state of the in-flight memory.
    pub fn in_flight(&self, events: usize, evicted: u64) {
        self.in_flight.set(i64::try_from(events).unwrap_or(i64::MAX));
        self.in_flight_evicted.inc_by(evicted);
    }

    /// A cycle ended, after `took`, with `due` resources.
    pub fn cycle(&self, took: Duration, due: u64) {
        self.poll_duration.observe(took.as_secs_f64());
        self.reconcile_duration.observe(took.as_secs_f64());
        self.pending.set(i64::try_from(due).unwrap_or(i64::MAX));
    }

    /// Everything due was published.
    pub fn succeeded(&self, now: jiff::Timestamp) {
        self.last_poll.set(now.as_duration().as_secs_f64());
    }
}
