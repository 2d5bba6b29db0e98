//! The specification's integration tests over real brokers, under its own numbers; the fourth is in `feedback`.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use watchfire_runtime::clock;
use watchfire_simulator::{Dialect, NewReport, NewResource, Patch, Simulator, Status};
use watchfire_testkit::eventually;

use crate::far::{Far, over_both};
use crate::support::{Api, Bench, DEADLINE, minimal};

/// Both adapters report, as if at that time.
fn report(fleet: &Simulator, id: &str, generation: i32, available: Status, at: Timestamp) {
    for adapter in ["validation", "dns"] {
        fleet.report_at("clusters", id, NewReport::new(adapter, generation, available, at), at).unwrap();
    }
}

/// Waits until the list was asked for `n` times more.
async fn polls(api: &Api, n: usize) {
    let wanted = api.polls() + n;
    eventually(DEADLINE, "the sentinel polls", async || (api.polls() >= wanted).then_some(())).await;
}

/// What is due goes out, with the data that the specification's own example configures; what is not stays.
async fn integration_test_1_event_publishing(far: Far) {
    let inbox = far.listen().await;
    let api = Api::start(Dialect::Hyperfleet).await;
    let due = api.fleet.create("clusters", NewResource::named("due").label("region", "us-east")).unwrap();
    let fresh = api.fleet.create("clusters", NewResource::named("fresh").label("region", "us-east")).unwrap();
    report(&api.fleet, &fresh.id, 1, Status::True, clock::now());
    let fields = "message_data:\n  resource_id: .id\n  resource_type: .kind\n  region: .metadata.labels.region\n";
    let live = Bench::new(&format!("{}poll_interval: 100ms\n{fields}", minimal(&api.url)), far.sink()).run();
    let event = inbox.wait_for(1).await.remove(0).event;
    assert_eq!(event["specversion"], "1.0");
    assert_eq!(event["type"], "com.redhat.hyperfleet.cluster.reconcile");
    assert_eq!(event["source"], "hyperfleet-sentinel");
    assert_eq!(event["datacontenttype"], "application/json");
    assert_eq!(event["data"], json!({"resource_id": due.id, "resource_type": "Cluster", "region": "us-east"}));
    live.recovers().await;
    polls(&api, 5).await;
    assert_eq!(inbox.all().len(), 1, "the fresh one is not due, and the other went out already");
    assert_eq!(live.published(), 1);
    live.stop().await;
}

/// A spec change goes out within one poll interval, against the API's true aggregation and whatever the max age.
async fn integration_test_2_generation_based_triggering_priority(far: Far) {
    let inbox = far.listen().await;
    let api = Api::start(Dialect::Hyperfleet).await;
    let id = api.fleet.create("clusters", NewResource::named("alpha")).unwrap().id;
    report(&api.fleet, &id, 1, Status::True, clock::now());
    let live = Bench::new(&format!("{}poll_interval: 1s\nmax_age_ready: 30m\n", minimal(&api.url)), far.sink()).run();
    polls(&api, 2).await;
    assert!(inbox.all().is_empty(), "ready and fresh");

    let changed = Instant::now();
    api.fleet.patch("clusters", &id, Patch::spec(&json!({"replicas": 5}))).unwrap();
    let event = inbox.wait_for(1).await.remove(0);
    assert_eq!((event.resource(), event.generation()), (id.as_str(), 2));
    let took = event.at.duration_since(changed);
    assert!(took < Duration::from_millis(1800), "{took:?} for a poll interval of 1 s");
    let reason = "generation changed - new spec to reconcile";
    assert_eq!(live.metric("hyperfleet_sentinel_events_published_total", &[reason]), Some(1.0));
}

/// With the spec seen, the next event is due exactly one max age after the reports: the short one for what is not
/// ready, the long one for what is.
async fn integration_test_3_max_age_intervals(far: Far) {
    let inbox = far.listen().await;
    let api = Api::start(Dialect::Hyperfleet).await;
    let ready = api.fleet.create("clusters", NewResource::named("ready")).unwrap().id;
    let not_ready = api.fleet.create("clusters", NewResource::named("not-ready")).unwrap().id;
    let reported = Timestamp::from_second(clock::now().as_second()).unwrap();
    report(&api.fleet, &ready, 1, Status::True, reported);
    report(&api.fleet, &not_ready, 1, Status::False, reported);
    let ages = "poll_interval: 100ms\nmax_age_not_ready: 2s\nmax_age_ready: 4s\n";
    let live = Bench::new(&format!("{}{ages}", minimal(&api.url)), far.sink()).run();
    for (id, seconds) in [(&not_ready, 2), (&ready, 4)] {
        let event = inbox.wait_until("its max age passes", |all| all.iter().any(|event| event.resource() == id)).await;
        let event = event.into_iter().find(|event| event.resource() == id).unwrap();
        assert_eq!(event.time(), reported + SignedDuration::from_secs(seconds));
        let early = event.time().duration_since(clock::now());
        assert!(early.is_negative(), "{early:?} before its time");
    }
    for reason in ["max age expired (ready)", "max age expired (not ready)"] {
        assert!(live.metric("hyperfleet_sentinel_events_published_total", &[reason]) >= Some(1.0), "{reason}");
    }
}

over_both! {
    integration_test_1_event_publishing
    integration_test_2_generation_based_triggering_priority
    integration_test_3_max_age_intervals
}
