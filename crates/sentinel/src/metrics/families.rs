//! The families of a process: their names, labels and helps, and the metrics of one sentinel made of them.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::{Backlog, Metrics, Seconds};
use crate::config::SentinelConfig;
use crate::decision::Reason;
use crate::expression;

/// Prometheus' own default buckets, which today's dashboards expect.
const DURATION_BUCKETS: Buckets = Buckets(&[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]);

/// A poll interval of seconds, and the delays of 10 to 15 s that its users know from other sentinels.
const LATENCY_BUCKETS: Buckets = Buckets(&[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0]);

/// Adapters need seconds for a look and half an hour for a cluster; report times have one-second resolution.
const REPORT_BUCKETS: Buckets = Buckets(&[1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0]);

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

impl Shard {
    /// Of an object that does not say what it watches.
    pub fn unknown() -> Self {
        let unknown = || "unknown".to_owned();
        Self { resource_type: unknown(), resource_selector: unknown(), shard: unknown() }
    }

    /// What a configuration watches.
    pub fn of(config: &SentinelConfig) -> Self {
        Self {
            resource_type: config.api.resource_type.clone(),
            resource_selector: config.selector.metric_label(),
            shard: config.selector.labels().unwrap_or_else(|| "all".to_owned()),
        }
    }
}

/// What is done with a SentinelConfig object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Reading it, and what it names.
    Load,
    /// Writing its status.
    Status,
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
type Histograms = Family<Shard, Histogram, Buckets>;

/// The families of all sentinels of a process.
#[derive(Clone, Default)]
pub struct Families {
    pending: PerShard<Gauge>,
    published: Family<ShardReason, Counter>,
    skipped: Family<ShardSkip, Counter>,
    times: Times,
    api_errors: Family<ShardApiError, Counter>,
    broker_errors: Family<ShardBrokerError, Counter>,
    config_loads: PerShard<Counter>,
    config_reloads: PerShard<Counter>,
    last_poll: PerShard<Seconds>,
    up: PerShard<Gauge>,
    poll_interval: PerShard<Seconds>,
    broker_published: Family<Topic, Counter>,
    broker_library_errors: Family<TopicError, Counter>,
    unreadable: PerShard<Counter>,
    unlisted: PerShard<Gauge>,
    in_flight: PerShard<Gauge>,
    in_flight_evicted: PerShard<Counter>,
    publish_retries: PerShard<Counter>,
    fields_missing: PerShard<Counter>,
    fields_failed: PerShard<Counter>,
    observed_ahead: PerShard<Counter>,
    from_future: PerShard<Counter>,
    backlog: PerShard<Gauge>,
    held_back: PerShard<Counter<f64, AtomicU64>>,
    deleting: PerShard<Gauge>,
    deletion_age: PerShard<Gauge<f64, AtomicU64>>,
    without_progress: PerShard<Gauge>,
    awaiting_adapter: PerShard<Gauge>,
    clock_skew: PerShard<Seconds>,
    expression_failures: Family<ShardKind, Counter>,
}

/// The histograms of all sentinels of a process.
#[derive(Clone)]
struct Times {
    poll: Histograms,
    reconcile: Histograms,
    publish: Histograms,
    decision: Histograms,
    report: Histograms,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            poll: Family::new_with_constructor(DURATION_BUCKETS),
            reconcile: Family::new_with_constructor(DURATION_BUCKETS),
            publish: Family::new_with_constructor(DURATION_BUCKETS),
            decision: Family::new_with_constructor(LATENCY_BUCKETS),
            report: Family::new_with_constructor(REPORT_BUCKETS),
        }
    }
}

/// Upper bounds in seconds.
#[derive(Clone, Copy)]
struct Buckets(&'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

impl Families {
    /// Creates the families and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let families = Self::default();
        let ours = registry.sub_registry_with_prefix("hyperfleet_sentinel");
        ours.register(
            "pending_resources",
            "Resources that were due in the last cycle; of a SentinelConfig object, all that are in its shard",
            families.pending.clone(),
        );
        ours.register("events_published", "Events that the broker confirmed, by reason", families.published.clone());
        ours.register(
            "resources_skipped",
            "Resources that were not due, by reason and by whether they are ready",
            families.skipped.clone(),
        );
        let help = "Time of a whole cycle, from the first request to the last confirmed event, in seconds";
        ours.register("poll_duration_seconds", help, families.times.poll.clone());
        ours.register("reconcile_duration_seconds", help, families.times.reconcile.clone());
        ours.register("api_errors", "Requests to the API that failed for good; SentinelConfig objects that could not be loaded, or their status written", families.api_errors.clone());
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
            "resources_unlisted",
            "Resources that the API counted in the last whole walk and did not list; nothing is published for them",
            families.unlisted.clone(),
        );
        ours.register(
            "in_flight_events",
            "Confirmed events that are remembered: no report has overtaken them yet, or their resource is not ready",
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
            "Fields of message_data that a resource did not have; sent as empty strings, or left out",
            families.fields_missing.clone(),
        );
        ours.register(
            "payload_fields_failed",
            "Fields of message_data whose template or expression failed on a resource; sent as empty strings, or left out",
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
        families.register_lasting(ours);
        families.register_watching(ours);
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

    fn register_lasting(&self, ours: &mut Registry) {
        ours.register(
            "events_backlog",
            "Events that are due and not confirmed: held back by max_events_per_second, under way, or not taken in the last cycle",
            self.backlog.clone(),
        );
        ours.register(
            "events_held_back_seconds",
            "Time for which max_events_per_second held events back, in seconds",
            self.held_back.clone(),
        );
        ours.register("resources_deleting", "Resources on their way to deletion", self.deleting.clone());
        ours.register(
            "oldest_deletion_age_seconds",
            "For how long the oldest deletion has been under way, in seconds",
            self.deletion_age.clone(),
        );
        ours.register(
            "resources_without_progress",
            "Resources that stay not ready and about which nothing changes in spite of events",
            self.without_progress.clone(),
        );
        ours.register(
            "resources_awaiting_adapter",
            "Resources that wait for an adapter which has not reported on an event; the log names it",
            self.awaiting_adapter.clone(),
        );
    }

    /// What neither specification names: whether it works, and how long everything takes.
    fn register_watching(&self, ours: &mut Registry) {
        ours.register("build", "What is running", Info::new([] as [(&str, &str); 0]));
        ours.register(
            "up",
            "Whether the last cycle got through: the whole list was read, everything due was published, and the broker is there",
            self.up.clone(),
        );
        ours.register(
            "poll_interval_seconds",
            "The poll interval in force, for alerts that go by it",
            self.poll_interval.clone(),
        );
        ours.register(
            "decision_latency_seconds",
            "Time from a change of the spec, as the API dates it, to its confirmed event; changes from before the start \
             are left out",
            self.times.decision.clone(),
        );
        ours.register(
            "event_to_report_seconds",
            "Time from a confirmed event to the report that overtakes it, which is the oldest that counts, by the \
             adapters' clocks",
            self.times.report.clone(),
        );
        ours.register(
            "publish_duration_seconds",
            "Time that the broker took for one window of events, from the first sent to the last confirmed",
            self.times.publish.clone(),
        );
        ours.register(
            "clock_skew_seconds",
            "How far the furthest report time lay in the future in the last cycle",
            self.clock_skew.clone(),
        );
    }

    /// Takes back what is said of a sentinel that runs no more; what it counted stays.
    pub fn forget(&self, shard: &Shard) {
        let Self { pending, up, unlisted, in_flight, backlog, deleting, without_progress, awaiting_adapter, .. } = self;
        for gauges in [pending, up, unlisted, in_flight, backlog, deleting, without_progress, awaiting_adapter] {
            gauges.remove(shard);
        }
        for gauges in [&self.last_poll, &self.poll_interval, &self.deletion_age, &self.clock_skew] {
            gauges.remove(shard);
        }
    }

    /// A SentinelConfig object could not be loaded, or its status not be written.
    pub fn object_failed(&self, shard: &Shard, operation: Operation) {
        let (error_type, operation) = match operation {
            Operation::Load => ("config_error", "config_load"),
            Operation::Status => ("status_error", "status_update"),
        };
        let labels = ShardApiError { shard: shard.clone(), error_type, operation };
        self.api_errors.get_or_create_owned(&labels).inc();
    }

    /// The metrics of one sentinel; every known label value exists from here on, so that a rate exists before the
    /// first failure.
    pub fn of(&self, shard: &Shard, broker: &'static str, topic: String) -> Metrics {
        let counter = |family: &PerShard<Counter>| family.get_or_create_owned(shard);
        let gauge = |family: &PerShard<Gauge>| family.get_or_create_owned(shard);
        let seconds = |family: &PerShard<Seconds>| family.get_or_create_owned(shard);
        let time = |family: &Histograms| family.get_or_create_owned(shard);
        let api_error = |error_type, operation| {
            self.api_errors.get_or_create_owned(&ShardApiError { shard: shard.clone(), error_type, operation })
        };
        let broker_error = ShardBrokerError { shard: shard.clone(), error_type: "publish_error", broker_type: broker };
        Metrics {
            topic: topic.clone(),
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
            poll_duration: time(&self.times.poll),
            reconcile_duration: time(&self.times.reconcile),
            publish_duration: time(&self.times.publish),
            decision_latency: time(&self.times.decision),
            event_to_report: time(&self.times.report),
            fetch_errors: api_error("fetch_error", "fetch_resources"),
            auth_errors: api_error("auth_error", "fetch_resources"),
            broker_errors: self.broker_errors.get_or_create_owned(&broker_error),
            config_loads: counter(&self.config_loads),
            config_reloads: counter(&self.config_reloads),
            last_poll: seconds(&self.last_poll),
            up: gauge(&self.up),
            poll_interval: seconds(&self.poll_interval),
            broker_published: self.broker_published.get_or_create_owned(&Topic { topic: topic.clone() }),
            broker_library_errors: self
                .broker_library_errors
                .get_or_create_owned(&TopicError { topic, error_type: "publish" }),
            unreadable: counter(&self.unreadable),
            unlisted: gauge(&self.unlisted),
            in_flight: gauge(&self.in_flight),
            in_flight_evicted: counter(&self.in_flight_evicted),
            publish_retries: counter(&self.publish_retries),
            fields_missing: counter(&self.fields_missing),
            fields_failed: counter(&self.fields_failed),
            observed_ahead: counter(&self.observed_ahead),
            from_future: counter(&self.from_future),
            backlog: Backlog { shown: gauge(&self.backlog), ..Backlog::default() },
            held_back: self.held_back.get_or_create_owned(shard),
            deleting: gauge(&self.deleting),
            deletion_age: self.deletion_age.get_or_create_owned(shard),
            without_progress: gauge(&self.without_progress),
            awaiting_adapter: gauge(&self.awaiting_adapter),
            clock_skew: seconds(&self.clock_skew),
            expression_failures: expression::Kind::ALL.map(|kind| {
                let labels = ShardKind { shard: shard.clone(), kind: kind.as_str() };
                self.expression_failures.get_or_create_owned(&labels)
            }),
        }
    }
}
