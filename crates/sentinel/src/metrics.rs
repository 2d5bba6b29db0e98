//! What the sentinel counts.
//!
//! The families of both specifications and of today's sentinel, under their names; a family that several of them know
//! carries the union of their labels. Names of our own are told in their help.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use jiff::SignedDuration;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::api;
use crate::decision::Reason;
use crate::engine::Lasting;
use crate::expression;

mod families;

pub use families::{Families, Operation, Shard};

type Seconds = Gauge<f64, AtomicU64>;

/// The metrics of one sentinel.
#[derive(Clone)]
pub struct Metrics {
    topic: String,
    pending: Gauge,
    // By `Reason as usize`; a reason either publishes or skips.
    published: [Option<Counter>; Reason::ALL.len()],
    // Not ready, ready.
    skipped: [Option<[Counter; 2]>; Reason::ALL.len()],
    poll_duration: Histogram,
    reconcile_duration: Histogram,
    publish_duration: Histogram,
    decision_latency: Histogram,
    event_to_report: Histogram,
    fetch_errors: Counter,
    auth_errors: Counter,
    broker_errors: Counter,
    config_loads: Counter,
    config_reloads: Counter,
    last_poll: Seconds,
    up: Gauge,
    poll_interval: Seconds,
    broker_published: Counter,
    broker_library_errors: Counter,
    unreadable: Counter,
    unlisted: Gauge,
    in_flight: Gauge,
    in_flight_evicted: Counter,
    publish_retries: Counter,
    fields_missing: Counter,
    fields_failed: Counter,
    observed_ahead: Counter,
    from_future: Counter,
    // By `Kind as usize`.
    expression_failures: [Counter; expression::Kind::ALL.len()],
    clock_skew: Seconds,
    backlog: Backlog,
    held_back: Counter<f64, AtomicU64>,
    deleting: Gauge,
    deletion_age: Gauge<f64, AtomicU64>,
    without_progress: Gauge,
    awaiting_adapter: Gauge,
}

/// What is due and not confirmed. A cycle finds again what the one before left: until it has, that counts on.
#[derive(Clone, Default)]
struct Backlog {
    shown: Gauge,
    found: Arc<AtomicI64>,
    left: Arc<AtomicI64>,
}

impl Backlog {
    fn add(&self, events: i64) {
        let found = self.found.fetch_add(events, Ordering::Relaxed) + events;
        self.shown.set(found.max(self.left.load(Ordering::Relaxed)));
    }

    /// A list that was not read to its end says nothing of what the cycle before left.
    fn settle(&self, whole: bool) {
        let found = self.found.swap(0, Ordering::Relaxed);
        let left = if whole { found } else { found.max(self.left.load(Ordering::Relaxed)) };
        self.left.store(left, Ordering::Relaxed);
        self.shown.set(left);
    }
}

impl Metrics {
    /// The topic or exchange that events go to, as metrics and traces name it.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The configuration is in force.
    pub fn config_loaded(&self, poll_interval: Duration) {
        self.poll_interval.set(poll_interval.as_secs_f64());
        self.config_loads.inc();
        self.config_reloads.inc();
    }

    /// The broker confirmed events.
    pub fn published(&self, reason: Reason, events: u64) {
        if let Some(counter) = &self.published[reason as usize] {
            counter.inc_by(events);
        }
        self.broker_published.inc_by(events);
        self.backlog.add(-i64::try_from(events).unwrap_or(i64::MAX));
    }

    /// An event is due, and is not confirmed yet.
    pub fn due(&self) {
        self.backlog.add(1);
    }

    /// A cycle ended: what it did not publish, the next one finds again. `whole` where it went through the whole list.
    pub fn backlog_settled(&self, whole: bool) {
        self.backlog.settle(whole);
    }

    /// Events were held back for so long.
    pub fn held_back(&self, time: Duration) {
        self.held_back.inc_by(time.as_secs_f64());
    }

    /// A walk over the whole list ended, and found this.
    pub(crate) fn lasting(&self, lasting: &Lasting, now: jiff::Timestamp) {
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.unlisted.set(count(lasting.unlisted));
        self.deleting.set(count(lasting.deleting));
        let age = lasting.oldest_deletion.map_or(0.0, |oldest| now.duration_since(oldest).as_secs_f64());
        self.deletion_age.set(age.max(0.0));
        self.without_progress.set(count(lasting.without_progress));
    }

    /// The first event of a spec was confirmed, so long after the change.
    pub fn spec_published(&self, after: SignedDuration) {
        self.decision_latency.observe(seconds(after));
    }

    /// The adapters have reported on an event, so long after it was confirmed.
    pub fn reported(&self, after: SignedDuration) {
        self.event_to_report.observe(seconds(after));
    }

    /// The broker had a window of events for so long.
    pub fn window(&self, took: Duration) {
        self.publish_duration.observe(took.as_secs_f64());
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

    /// Events could not be published in their cycle.
    pub fn broker_errors(&self, events: u64) {
        self.broker_errors.inc_by(events);
        self.broker_library_errors.inc_by(events);
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

    /// The state of the in-flight memory, and how many of its resources wait for an adapter.
    pub fn in_flight(&self, events: usize, evicted: u64, awaiting: usize) {
        self.awaiting_adapter.set(i64::try_from(awaiting).unwrap_or(i64::MAX));
        self.in_flight.set(i64::try_from(events).unwrap_or(i64::MAX));
        self.in_flight_evicted.inc_by(evicted);
    }

    /// A cycle ended, well or not, after `took`, with `due` resources and a report that is from so far in the future.
    pub fn cycle(&self, took: Duration, due: u64, skew: SignedDuration) {
        self.clock_skew.set(seconds(skew));
        self.poll_duration.observe(took.as_secs_f64());
        self.reconcile_duration.observe(took.as_secs_f64());
        self.pending.set(i64::try_from(due).unwrap_or(i64::MAX));
    }

    /// Everything due was published.
    pub fn succeeded(&self, now: jiff::Timestamp) {
        self.last_poll.set(now.as_duration().as_secs_f64());
        self.up.set(1);
    }

    /// The list could not be read, or something due was not published.
    pub fn failed(&self) {
        self.up.set(0);
    }
}

/// Clocks differ: what is earlier than its cause took no time.
fn seconds(time: SignedDuration) -> f64 {
    time.as_secs_f64().max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_broke_off_says_nothing_of_what_the_one_before_left() {
        let backlog = Backlog::default();
        backlog.add(500);
        backlog.settle(true);
        backlog.add(3);
        backlog.settle(false);
        assert_eq!(backlog.shown.get(), 500);
        backlog.settle(true);
        assert_eq!(backlog.shown.get(), 0);
    }
}
