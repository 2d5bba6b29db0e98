//! What a sentinel tells of its own work: how long a decision took to reach the broker, an event to be reported on,
//! whether it gets through, and whose clock is wrong.

#![expect(clippy::float_cmp, reason = "counts and states are whole numbers")]

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use watchfire_delivery::EventSink;
use watchfire_runtime::clock;
use watchfire_simulator::{Dialect, Fault, NewReport, NewResource, Patch, Scope, Status, Times};
use watchfire_testkit::eventually;

use crate::support::{Api, Bench, DEADLINE, Memory, minimal};

const LATENCY: &str = "hyperfleet_sentinel_decision_latency_seconds";

fn bench(config: &str) -> (Bench, Arc<Memory>) {
    let memory = Arc::new(Memory::default());
    (Bench::new(config, Arc::clone(&memory) as Arc<dyn EventSink>), memory)
}

fn ago(seconds: i64) -> Timestamp {
    clock::now() - SignedDuration::from_secs(seconds)
}

impl Bench {
    /// How often a histogram was told something, and the sum of it.
    fn told(&self, histogram: &str) -> (f64, f64) {
        let of = |part: &str| self.metric(&format!("{histogram}_{part}"), &[]).expect("a histogram");
        (of("count"), of("sum"))
    }
}

/// A resource as the API would serve it that was changed so long ago and that no adapter has seen.
fn unseen(id: &str, changed: Timestamp) -> String {
    json!({"id": id, "kind": "Cluster", "generation": 1, "updated_time": changed.to_string()}).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_latency_of_a_spec_change_counts_from_the_change_and_only_for_its_first_event() {
    let api = Api::start(Dialect::Hyperfleet).await;
    let id = api.fleet.create("clusters", NewResource::named("alpha")).unwrap().id;
    let (mut bench, memory) = bench(&format!("{}max_age_not_ready: 10ms\n", minimal(&api.url)));
    assert_eq!(bench.cycle().await.unwrap().published, 1);
    let (count, took) = bench.told(LATENCY);
    assert!(count == 1.0 && took < 10.0, "{count} {took}");
    // Its time is projected, to the second, or the whole resource would be read.
    assert!(api.fleet.faults().lists().last().unwrap().query("fields").unwrap().contains("updated_time"));

    // The adapters stay silent: the same generation goes out again, which is no decision that was late.
    eventually(DEADLINE, "it is due again", async || (bench.cycle().await.unwrap().published == 1).then_some(())).await;
    assert_eq!(memory.take().len(), 2);
    assert_eq!(bench.told(LATENCY).0, 1.0);

    api.fleet.patch("clusters", &id, Patch::spec(&json!({"replicas": 5}))).unwrap();
    assert_eq!(bench.cycle().await.unwrap().published, 1);
    assert_eq!(bench.told(LATENCY).0, 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spec_change_from_before_the_start_may_have_been_published_before_and_is_not_measured() {
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.faults().inject(unseen("before", ago(60)));
    api.fleet.faults().inject(unseen("odd", ago(-60)));
    api.fleet.faults().inject(r#"{"id":"undated","kind":"Cluster","generation":1,"updated_time":"yesterday"}"#);
    let (mut bench, _) = bench(&minimal(&api.url));
    assert_eq!(bench.cycle().await.unwrap().published, 3, "what cannot be measured goes out all the same");
    assert_eq!(bench.told(LATENCY), (1.0, 0.0), "the API's clock is ahead: it took no time");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_measured_until_the_last_adapter_has_reported_on_it() {
    for republish in ["in_flight", "always"] {
        let api = Api::start(Dialect::Hyperfleet).await;
        let id = api.fleet.create("clusters", NewResource::named("alpha")).unwrap().id;
        let report = |adapter: &str, at: Timestamp| {
            api.fleet.report_at("clusters", &id, NewReport::new(adapter, 1, Status::False, at), at).unwrap();
        };
        report("validation", ago(60));
        report("dns", ago(60));
        let (mut bench, _) = bench(&format!("{}republish: {republish}\n", minimal(&api.url)));
        assert_eq!(bench.cycle().await.unwrap().published, 1, "the reports are old");
        let answered = "hyperfleet_sentinel_event_to_report_seconds";
        report("validation", clock::now());
        bench.cycle().await.unwrap();
        assert_eq!(bench.told(answered).0, 0.0, "the report of dns is the one from before");
        // Both: where only reports count, the cycle before has published once more.
        report("validation", clock::now());
        report("dns", clock::now());
        bench.cycle().await.unwrap();
        let (count, sum) = bench.told(answered);
        assert!(count == 1.0 && (0.0..10.0).contains(&sum), "{count} {sum}, {republish}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_furthest_clock_of_a_cycle_is_told_until_it_is_right_again() {
    let api = Api::start(Dialect::Hyperfleet).await;
    for (id, ahead) in [("a", 30), ("b", 240), ("c", -10)] {
        let at = ago(-ahead);
        let condition = json!({"type": "Reconciled", "status": "True", "last_updated_time": at.to_string()});
        let status = json!({"conditions": [condition]});
        api.fleet.faults().inject(json!({"id": id, "kind": "Cluster", "generation": 1, "status": status}).to_string());
    }
    let (mut bench, _) = bench(&minimal(&api.url));
    bench.cycle().await.unwrap();
    let skew = |bench: &Bench| bench.metric("hyperfleet_sentinel_clock_skew_seconds", &[]).unwrap();
    assert!((220.0..=240.0).contains(&skew(&bench)), "{}", skew(&bench));
    api.fleet.faults().clear();
    bench.cycle().await.unwrap();
    assert_eq!(skew(&bench), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_cycle_takes_time_too_and_turns_up_off_until_the_next_good_one() {
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.create("clusters", NewResource::named("alpha")).unwrap();
    let (mut bench, memory) = bench(&format!("{}poll_interval: 7s\n", minimal(&api.url)));
    let up = |bench: &Bench| bench.metric("hyperfleet_sentinel_up", &[]).unwrap();
    let cycles = |bench: &Bench| bench.told("hyperfleet_sentinel_poll_duration_seconds").0;
    assert_eq!(bench.metric("hyperfleet_sentinel_poll_interval_seconds", &[]), Some(7.0));
    assert_eq!((up(&bench), cycles(&bench)), (0.0, 0.0), "nothing is known yet");
    bench.cycle().await.unwrap();
    assert_eq!((up(&bench), cycles(&bench)), (1.0, 1.0));
    api.fleet.faults().arm(Scope::Lists, Fault::status(404), Times::Next(1));
    bench.cycle().await.unwrap_err();
    assert_eq!((up(&bench), cycles(&bench)), (0.0, 2.0));
    bench.cycle().await.unwrap();
    assert_eq!(up(&bench), 1.0);

    *memory.down.lock().unwrap() = true;
    api.fleet.create("clusters", NewResource::named("beta")).unwrap();
    assert_eq!(bench.cycle().await.unwrap().failed, 1);
    assert_eq!((up(&bench), cycles(&bench)), (0.0, 4.0), "the broker counts as much as the API");
    let (windows, _) = bench.told("hyperfleet_sentinel_publish_duration_seconds");
    assert!(windows > 1.0, "a window that is refused took time too: {windows}");
}
