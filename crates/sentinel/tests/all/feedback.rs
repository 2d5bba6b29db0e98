//! The loop closed: simulated adapters consume from a real broker and report to the API that the sentinel reads.

use std::time::Duration;

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use watchfire_runtime::clock;
use watchfire_simulator::adapter::Adapter;
use watchfire_simulator::{AdapterConfig, Dialect, Knobs, NewResource, Patch, Report, Resource, Status};
use watchfire_testkit::eventually;

use crate::far::{Far, Inbox, over_both};
use crate::support::{Api, Bench, Live, Running, minimal};

const STEP: Duration = Duration::from_secs(30);

/// Longer than the resolution of report times, so that a report is always later than the event that caused it.
const WORK: Duration = Duration::from_millis(1100);

/// Not ready: soon again. Ready: long enough to see that it waits for it.
const AGES: &str = "poll_interval: 200ms\nmax_age_not_ready: 1s\nmax_age_ready: 4s\n";

/// An API, a sentinel, two adapters, and an ear on the broker.
struct Loop {
    api: Api,
    adapters: [Adapter; 2],
    inbox: Inbox,
    live: Live,
    _running: [Running; 2],
}

impl Loop {
    async fn start(far: &Far, dialect: Dialect, work: Duration, ages: &str) -> Self {
        let inbox = far.listen().await;
        let api = Api::start(dialect).await;
        let config = |name: &str| {
            let config = AdapterConfig::new(name, api.url.parse().unwrap());
            config.knobs(Knobs { latency: work, ..Knobs::default() })
        };
        let adapters = [config("validation"), config("dns").after("validation")].map(|it| Adapter::new(it).unwrap());
        let running = [far.run(adapters[0].clone()).await, far.run(adapters[1].clone()).await];
        let policy = if dialect == Dialect::Operator { "decision: time_only\n" } else { "" };
        let live = Bench::new(&format!("{}{ages}{policy}", minimal(&api.url)), far.sink()).run();
        Self { api, adapters, inbox, live, _running: running }
    }

    /// Waits until a resource is as it should be.
    async fn until(&self, id: &str, what: &str, is: impl Fn(&Resource) -> bool) -> Resource {
        eventually(STEP, what, async || self.api.fleet.get("clusters", id).filter(&is)).await
    }

    /// Waits until no adapter holds an event that is not reported on.
    async fn idle(&self) {
        eventually(STEP, "the adapters are idle", async || {
            let published = self.inbox.all().len() as u64;
            let reported = |adapter: &Adapter| adapter.counters().answers.values().sum::<u64>();
            let seen = |adapter: &Adapter| adapter.counters().events;
            self.adapters.iter().all(|it| seen(it) == published && reported(it) == published).then_some(())
        })
        .await;
    }
}

fn report<'a>(resource: &'a Resource, adapter: &str) -> Option<&'a Report> {
    resource.reports.iter().find(|report| report.adapter == adapter)
}

/// What the specification demands of every report: all conditions, Health True, and the time of observation.
fn check_report(report: &Report, available: Status, reason: &str, begun: Timestamp) {
    let condition = |ty: &str| report.conditions.iter().find(|condition| condition.ty == ty).unwrap();
    assert_eq!(condition("Available").status, available);
    assert_eq!(condition("Available").reason.as_deref(), Some(reason));
    assert_eq!(condition("Health").status, Status::True, "it has nothing to complain about");
    let observed = report.last_report_time;
    assert!(observed + SignedDuration::from_secs(1) > begun && observed <= clock::now(), "{observed}");
}

/// The oldest report of those that count: what max age is measured from.
fn aggregated(resource: &Resource) -> Timestamp {
    resource.condition("Reconciled").unwrap().last_updated_time
}

async fn close(far: &Far, dialect: Dialect) {
    let begun = clock::now();
    let looped = Loop::start(far, dialect, WORK, AGES).await;
    let id = looped.api.fleet.create("clusters", NewResource::named("alpha")).unwrap().id;

    // Preconditions not met: dns is told before validation is done, does nothing, and reports all the same.
    let waiting = looped.until(&id, "dns reports that it waits", |it| report(it, "dns").is_some()).await;
    let dns = report(&waiting, "dns").unwrap();
    check_report(dns, Status::False, "PreconditionsNotMet", begun);
    let applied = dns.conditions.iter().find(|condition| condition.ty == "Applied").unwrap();
    assert_eq!((applied.status, applied.reason.as_deref()), (Status::False, Some("PreconditionsNotMet")));
    assert!(!waiting.is_ready());

    // Preconditions met: the next event finds validation done.
    let ready = looped.until(&id, "it becomes Ready", Resource::is_ready).await;
    for adapter in ["validation", "dns"] {
        check_report(report(&ready, adapter).unwrap(), Status::True, "JobSucceeded", begun);
    }
    assert!(looped.adapters[1].counters().preconditions_not_met >= 1);

    // Max age follows the aggregated time: the next event is due exactly that long after the oldest report.
    looped.idle().await;
    let oldest = aggregated(&looped.api.fleet.get("clusters", &id).unwrap());
    let before = looped.inbox.all().len();
    let next = looped.inbox.wait_for(before + 1).await.remove(before);
    assert_eq!(next.time(), oldest + SignedDuration::from_secs(4), "{dialect:?}");
    looped.until(&id, "the reports move the aggregated time", |it| aggregated(it) > oldest).await;

    // What adapters got was what they read.
    for adapter in &looped.adapters {
        let counters = adapter.counters();
        assert_eq!((counters.rejected, counters.malformed, counters.failed), (0, 0, 0), "{counters:?}");
        assert_eq!(counters.duplicates, 0, "{counters:?}");
    }
    looped.live.stop().await;
}

/// In every dialect: waiting adapters report, everything becomes Ready, and max age follows the aggregated time.
async fn integration_test_4_adapter_feedback_loop(far: Far) {
    let dialects = [Dialect::Hyperfleet, Dialect::Seed, Dialect::Operator];
    let fars: Vec<_> = dialects.iter().map(|_| far.another()).collect();
    join_all(fars.iter().zip(dialects).map(|(far, dialect)| Box::pin(close(far, dialect)))).await;
    for far in fars {
        far.clean().await;
    }
}

/// The adapters see a change, and the sentinel sees that they did: one event, and then quiet until the next max age.
async fn a_changed_spec_is_seen_by_every_adapter_and_then_by_the_sentinel(far: Far) {
    let looped = Loop::start(&far, Dialect::Hyperfleet, Duration::ZERO, AGES).await;
    let fleet = looped.api.fleet.clone();
    let ids = [0, 1, 2].map(|i| fleet.create("clusters", NewResource::named(format!("c-{i}"))).unwrap().id);
    for id in &ids {
        looped.until(id, "it becomes Ready", Resource::is_ready).await;
    }
    fleet.patch("clusters", &ids[0], Patch::spec(&json!({"replicas": 5}))).unwrap();
    let changed = looped.until(&ids[0], "it is Ready again", |it| it.generation == 2 && it.is_ready()).await;
    for adapter in ["validation", "dns"] {
        assert_eq!(report(&changed, adapter).unwrap().observed_generation, 2);
    }
    let before = looped.inbox.about(&ids[0]).len();
    let skipped = || {
        let reasons = ["\"max age not expired\"", "\"event published, max age not expired\""];
        let skips = |reason: &&str| {
            let labels = [*reason, "ready_state=\"ready\""];
            looped.live.metric("hyperfleet_sentinel_resources_skipped_total", &labels).unwrap()
        };
        reasons.iter().map(skips).sum::<f64>()
    };
    let earlier = skipped();
    eventually(STEP, "some polls go by", async || (skipped() >= earlier + 9.0).then_some(())).await;
    let later = looped.inbox.about(&ids[0]);
    assert!(later.len() <= before + 1, "a ready, seen spec is published once per max age at most");
    assert!(later[before..].iter().all(|event| event.generation() == 2));
    // A deletion is a change of the spec to adapters: they finalize, and the API lets it go.
    fleet.delete("clusters", &ids[1]).unwrap();
    eventually(STEP, "it is removed", async || fleet.get("clusters", &ids[1]).is_none().then_some(())).await;
    looped.live.stop().await;
}

/// An error that passes costs one max age of those that are not ready, not the half hour of those that are. That one
/// which lasts is asked about ever less often, `at_scale` shows.
async fn what_an_adapter_failed_at_is_tried_again_soon(far: Far) {
    let ages = "poll_interval: 200ms\nmax_age_not_ready: 1s\nmax_age_ready: 30m\n";
    let looped = Loop::start(&far, Dialect::Hyperfleet, Duration::ZERO, ages).await;
    let fleet = looped.api.fleet.clone();
    let id = fleet.create("clusters", NewResource::named("alpha")).unwrap().id;
    looped.until(&id, "it becomes Ready", Resource::is_ready).await;
    let dns = &looped.adapters[1];
    dns.set_knobs(Knobs { failures: 1.0, ..Knobs::default() });
    fleet.patch("clusters", &id, Patch::spec(&json!({"replicas": 5}))).unwrap();
    let told = |it: &Resource| report(it, "dns").is_some_and(|report| report.observed_generation == 2);
    assert!(!looped.until(&id, "dns reports that it failed", told).await.is_ready());
    dns.set_knobs(Knobs::default());
    looped.until(&id, "it is asked again, and Ready", Resource::is_ready).await;
    looped.live.stop().await;
}

over_both! {
    integration_test_4_adapter_feedback_loop
    a_changed_spec_is_seen_by_every_adapter_and_then_by_the_sentinel
    what_an_adapter_failed_at_is_tried_again_soon
}
