//! The loop as a whole, against the simulator's true aggregation and a sink that remembers.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use watchfire_delivery::{CloudEvent, EventSink, sink};
use watchfire_runtime::clock;
use watchfire_runtime::health::Status as Health;
use watchfire_simulator::{Dialect, FleetState, Kind, NewReport, NewResource, Patch, Simulator, Status};
use watchfire_testkit::eventually;

use crate::support::{Api, Bench, DEADLINE, Memory, Refusal, data, minimal, timeout};

fn bench(config: &str) -> (Bench, Arc<Memory>) {
    let memory = Arc::new(Memory::default());
    (Bench::new(config, Arc::clone(&memory) as Arc<dyn EventSink>), memory)
}

fn ago(seconds: i64) -> Timestamp {
    clock::now() - SignedDuration::from_secs(seconds)
}

/// Lets adapters report on a cluster, as if it were `seconds` ago.
fn report(fleet: &Simulator, id: &str, generation: i32, adapters: &[&str], seconds: i64) {
    for adapter in adapters {
        let at = ago(seconds);
        fleet.report_at("clusters", id, NewReport::new(adapter, generation, Status::True, at), at).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_resource_goes_out_in_the_first_cycle_and_then_waits_for_its_reports() {
    for dialect in [Dialect::Hyperfleet, Dialect::Seed] {
        let api = Api::start(dialect).await;
        let id = api.fleet.create("clusters", NewResource::named("alpha")).unwrap().id;
        let (mut bench, memory) = bench(&minimal(&api.url));
        assert_eq!(bench.cycle().await.unwrap().published, 1);
        let event = memory.take().remove(0);
        assert_eq!(event.attributes().ty, "com.redhat.hyperfleet.cluster.reconcile");
        assert_eq!(data(&event)["id"], json!(id));
        assert_eq!(data(&event)["generation"], json!(1));
        for _ in 0..3 {
            assert_eq!(bench.cycle().await.unwrap().published, 0, "one event per poll, {dialect:?}");
        }
        assert_eq!(bench.metric("hyperfleet_sentinel_in_flight_events", &[]), Some(1.0));
    }
}

/// The API's own default for channels, versions and wifconfigs is that no adapter has to report: their conditions stay
/// empty, so that nobody ever says that a spec was seen, nor that the resource is ready.
#[tokio::test(flavor = "multi_thread")]
async fn a_kind_without_adapters_is_published_once_per_max_age_and_one_with_them_until_they_report() {
    let kinds = vec![Kind::new("WifConfig", "wifconfigs", &[]), Kind::new("Channel", "channels", &["catalog"])];
    let api = Api::serve(Simulator::with_kinds(Dialect::Hyperfleet, kinds)).await;
    let (pace, age) = ("poll_interval: 20ms\nmax_age_not_ready: 400ms\n", Duration::from_millis(400));
    for (plural, adapters, ty) in [
        ("wifconfigs", &[][..], "com.redhat.hyperfleet.wifconfig.reconcile"),
        ("channels", &["catalog"][..], "com.redhat.hyperfleet.channel.reconcile"),
    ] {
        let id = api.fleet.create(plural, NewResource::named("alpha")).unwrap().id;
        let config = format!("{}{pace}", minimal(&api.url).replace("clusters", plural));
        let (mut bench, memory) = bench(&config);
        let begun = tokio::time::Instant::now();
        for (count, wait) in [(1, 0), (2, 1), (3, 2)] {
            let published = async || {
                bench.cycle().await.unwrap();
                (memory.events().len() >= count).then_some(())
            };
            eventually(DEADLINE, &format!("{count} events of {plural}"), published).await;
            assert!(begun.elapsed() >= age * wait, "{count} events in {:?}", begun.elapsed());
        }
        assert!(memory.events().iter().all(|event| event.attributes().ty == ty && data(event)["id"] == json!(id)));
        // A spec change goes out at once, of either.
        api.fleet.patch(plural, &id, Patch::spec(&json!({"replicas": 5}))).unwrap();
        assert_eq!(bench.cycle().await.unwrap().published, 1);
        for adapter in adapters {
            api.fleet.report(plural, &id, NewReport::new(adapter, 2, Status::True, clock::now())).unwrap();
        }
        let mut due = async || (bench.cycle().await.unwrap().published == 1).then_some(());
        if adapters.is_empty() {
            eventually(DEADLINE, "it is due again", due).await;
            api.fleet.delete(plural, &id).unwrap();
            assert_eq!(bench.cycle().await.unwrap().seen, 0, "deleted, it is gone at once");
        } else {
            let quiet = tokio::time::timeout(3 * age, async { while due().await.is_none() {} }).await;
            assert!(quiet.is_err(), "reported on, it is ready");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spec_change_goes_out_in_the_next_cycle_whatever_the_max_age() {
    for dialect in [Dialect::Hyperfleet, Dialect::Seed] {
        let api = Api::start(dialect).await;
        let id = api.fleet.create("clusters", NewResource::named("alpha")).unwrap().id;
        report(&api.fleet, &id, 1, &["validation", "dns"], 0);
        let (mut bench, memory) = bench(&minimal(&api.url));
        assert_eq!(bench.cycle().await.unwrap().published, 0, "ready and fresh, {dialect:?}");
        api.fleet.patch("clusters", &id, Patch::spec(&json!({"replicas": 5}))).unwrap();
        assert_eq!(bench.cycle().await.unwrap().published, 1, "{dialect:?}");
        assert_eq!(data(&memory.take()[0])["generation"], json!(2));
        let reason = "generation changed - new spec to reconcile";
        assert_eq!(bench.metric("hyperfleet_sentinel_events_published_total", &[reason]), Some(1.0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_silent_adapter_costs_one_event_per_max_age_and_not_one_per_poll() {
    let api = Api::start(Dialect::Hyperfleet).await;
    let id = api.fleet.create("clusters", NewResource::named("alpha")).unwrap().id;
    // Validation reports at once, dns never does: the aggregated time stands still.
    report(&api.fleet, &id, 1, &["validation"], 0);
    let (mut bench, memory) = bench(&format!("{}max_age_not_ready: 1s\n", minimal(&api.url)));
    let begun = tokio::time::Instant::now();
    let mut polls = 0;
    eventually(DEADLINE, "it is due again and again", async || {
        bench.cycle().await.unwrap();
        polls += 1;
        (memory.events().len() == 4).then_some(())
    })
    .await;
    assert!(begun.elapsed() >= Duration::from_secs(3), "no more often than every second");
    let events = memory.take();
    assert!(polls > events.len(), "{} events in {polls} polls", events.len());
    let ids: HashSet<_> = events.iter().map(|event| event.id().to_owned()).collect();
    assert_eq!(ids.len(), events.len(), "each its own cause");
}

#[tokio::test(flavor = "multi_thread")]
async fn max_age_follows_the_aggregated_report_time_in_every_dialect() {
    for dialect in [Dialect::Hyperfleet, Dialect::Seed, Dialect::Operator] {
        let api = Api::start(dialect).await;
        let fresh = api.fleet.create("clusters", NewResource::named("fresh")).unwrap().id;
        let stale = api.fleet.create("clusters", NewResource::named("stale")).unwrap().id;
        report(&api.fleet, &fresh, 1, &["validation", "dns"], 5);
        report(&api.fleet, &stale, 1, &["validation"], 5);
        // The oldest report is what counts.
        report(&api.fleet, &stale, 1, &["dns"], 70);
        // The operator's API has no report time; its own policy goes by the transition.
        let policy = if dialect == Dialect::Operator { "decision: time_only\n" } else { "" };
        let (mut bench, memory) = bench(&format!("{}max_age_ready: 60s\n{policy}", minimal(&api.url)));
        bench.cycle().await.unwrap();
        let published: Vec<_> = memory.take().iter().map(|event| data(event)["id"].clone()).collect();
        assert_eq!(published, [json!(stale)], "{dialect:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_confirmed_is_decided_again_under_the_same_id() {
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.create("clusters", NewResource::named("alpha")).unwrap();
    let (mut bench, memory) = bench(&minimal(&api.url));
    *memory.mute.lock().unwrap() = true;
    for _ in 0..2 {
        let cycle = bench.cycle().await.unwrap();
        assert_eq!((cycle.due, cycle.published, cycle.failed), (1, 0, 1));
    }
    *memory.mute.lock().unwrap() = false;
    assert_eq!(bench.cycle().await.unwrap().published, 1);
    assert_eq!(bench.cycle().await.unwrap().published, 0, "confirmed, it is not sent again");
    let mut sent = memory.take();
    assert!(sent.len() > 4, "sent {} times: within a cycle, and in the next ones", sent.len());
    // Another process knows nothing of that, and sends the very same once more.
    let (mut restarted, again) = self::bench(&minimal(&api.url));
    assert_eq!(restarted.cycle().await.unwrap().published, 1);
    sent.extend(again.take());
    for event in &sent {
        assert_eq!((event.id(), event.body()), (sent[0].id(), sent[0].body()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_failed_is_tried_again() {
    let api = Api::start(Dialect::Hyperfleet).await;
    for index in 0..5 {
        api.fleet.create("clusters", NewResource::named(format!("c-{index}"))).unwrap();
    }
    let (mut bench, memory) = bench(&minimal(&api.url));
    memory.refuse(Refusal(vec![1, 3], timeout));
    let cycle = bench.cycle().await.unwrap();
    assert_eq!((cycle.due, cycle.published, cycle.failed), (5, 5, 0));
    let ids: Vec<_> = memory.take().iter().map(|event| event.id().to_owned()).collect();
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 5);
    assert_eq!(ids.len(), 5, "nothing twice because a neighbour failed");
    assert_eq!(bench.metric("hyperfleet_sentinel_publish_retries_total", &[]), Some(2.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_stays_refused_is_counted_and_the_cycle_goes_on() {
    let api = Api::start(Dialect::Hyperfleet).await;
    for index in 0..3 {
        api.fleet.create("clusters", NewResource::named(format!("c-{index}"))).unwrap();
    }
    let (mut bench, memory) = bench(&minimal(&api.url));
    let too_large = || sink::Error::TooLarge { target: "memory".into(), size: 2, limit: 1 };
    memory.refuse(Refusal(vec![0], too_large));
    let cycle = bench.cycle().await.unwrap();
    assert_eq!((cycle.published, cycle.failed), (2, 1));
    assert_eq!(bench.metric("hyperfleet_sentinel_broker_errors_total", &["publish_error"]), Some(1.0));
    assert_eq!(bench.metric("hyperfleet_broker_errors_total", &["publish"]), Some(1.0));
    let last = "hyperfleet_sentinel_last_successful_poll_timestamp_seconds";
    assert_eq!(bench.metric(last, &[]), Some(0.0), "a cycle with a failed publish is no successful cycle");
    assert_eq!(bench.cycle().await.unwrap().published, 1);
    assert!(bench.metric(last, &[]).unwrap() > 1e9);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_of_refused_events_does_not_end_the_cycle() {
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.seed("clusters", 2500, FleetState::Due).unwrap();
    let (mut bench, memory) = bench(&minimal(&api.url));
    let too_large = || sink::Error::TooLarge { target: "memory".into(), size: 2, limit: 1 };
    memory.refuse(Refusal((0..1000).collect(), too_large));
    let cycle = bench.cycle().await.unwrap();
    assert_eq!((cycle.due, cycle.published + cycle.failed), (2500, 2500));
    assert!(cycle.published >= 1500, "{cycle:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_down_is_told_once_and_everything_goes_out_when_it_is_back() {
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.seed("clusters", 2500, FleetState::Due).unwrap();
    let (mut bench, memory) = bench(&minimal(&api.url));
    *memory.down.lock().unwrap() = true;
    let cycle = bench.cycle().await.unwrap();
    assert_eq!((cycle.due, cycle.published, cycle.failed), (2500, 0, 2500));
    let ready = bench.health.readiness();
    assert!(ready.checks["broker"].message.contains("no answer"), "{ready:?}");
    assert_eq!(bench.metric("hyperfleet_sentinel_pending_resources", &[]), Some(2500.0));
    *memory.down.lock().unwrap() = false;
    assert_eq!(bench.cycle().await.unwrap().published, 2500);
    assert_eq!(bench.health.readiness().status, Health::Ok);
    let ids: HashSet<_> = memory.take().iter().map(|event| event.id().to_owned()).collect();
    assert_eq!(ids.len(), 2500);
    assert_eq!(bench.cycle().await.unwrap().due, 0);
}

/// Nobody would see a broker that is away before the next refresh, half an hour later.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_down_makes_no_cycle_successful_although_nothing_is_due() {
    let api = Api::start(Dialect::Hyperfleet).await;
    let id = api.fleet.create("clusters", NewResource::named("alpha")).unwrap().id;
    report(&api.fleet, &id, 1, &["validation", "dns"], 0);
    let (mut bench, memory) = bench(&minimal(&api.url));
    let last = |bench: &Bench| bench.metric("hyperfleet_sentinel_last_successful_poll_timestamp_seconds", &[]).unwrap();
    let up = |bench: &Bench| bench.metric("hyperfleet_sentinel_up", &[]);
    *memory.down.lock().unwrap() = true;
    for _ in 0..2 {
        let cycle = bench.cycle().await.unwrap();
        assert_eq!((cycle.seen, cycle.due, cycle.failed), (1, 0, 0));
        assert_eq!((last(&bench), up(&bench)), (0.0, Some(0.0)));
        assert_eq!(bench.health.readiness().checks["broker"].status, Health::Error);
    }
    *memory.down.lock().unwrap() = false;
    bench.cycle().await.unwrap();
    assert_eq!((last(&bench) > 1e9, up(&bench)), (true, Some(1.0)));
    let before = last(&bench);
    *memory.down.lock().unwrap() = true;
    bench.cycle().await.unwrap();
    assert_eq!((last(&bench), up(&bench)), (before, Some(0.0)), "it stands still");
    assert_eq!(bench.metric("hyperfleet_sentinel_broker_errors_total", &[]), Some(0.0), "no event was refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_with_hyphens_are_applied_in_process() {
    let api = Api::start(Dialect::Hyperfleet).await;
    let gpu = api.fleet.create("clusters", NewResource::named("gpu").label("cluster-type", "gpu")).unwrap().id;
    api.fleet.create("clusters", NewResource::named("cpu").label("cluster-type", "cpu")).unwrap();
    api.fleet.create("clusters", NewResource::named("none")).unwrap();
    let selector = "resource_selector:\n  - label: cluster-type\n    value: gpu\n";
    let (mut bench, memory) = bench(&format!("{}{selector}", minimal(&api.url)));
    assert_eq!(bench.cycle().await.unwrap().seen, 1);
    assert_eq!(data(&memory.take()[0])["id"], json!(gpu));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_pool_says_whose_it_is() {
    let api = Api::start(Dialect::Hyperfleet).await;
    let owner = api.fleet.create("clusters", NewResource::named("alpha")).unwrap().id;
    let pool = api.fleet.create_in("nodepools", Some(&owner), NewResource::named("np-a")).unwrap().id;
    let (mut bench, memory) = bench(&minimal(&api.url).replace("clusters", "nodepools"));
    bench.cycle().await.unwrap();
    let event = memory.take().remove(0);
    assert_eq!(event.attributes().ty, "com.redhat.hyperfleet.nodepool.reconcile");
    assert_eq!(
        data(&event),
        json!({
            "id": pool, "kind": "NodePool", "generation": 1,
            "href": format!("/api/hyperfleet/v1/clusters/{owner}/nodepools/{pool}"),
            "owner_references": {"id": owner, "kind": "Cluster", "href": format!("/api/hyperfleet/v1/clusters/{owner}")},
        })
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_goes_out_at_once() {
    let api = Api::start(Dialect::Hyperfleet).await;
    let id = api.fleet.create("clusters", NewResource::named("alpha")).unwrap().id;
    report(&api.fleet, &id, 1, &["validation", "dns"], 0);
    let (mut bench, memory) = bench(&minimal(&api.url));
    assert_eq!(bench.cycle().await.unwrap().published, 0);
    api.fleet.delete("clusters", &id).unwrap();
    assert_eq!(bench.cycle().await.unwrap().published, 1);
    assert_eq!(data(&memory.take()[0])["generation"], json!(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_from_the_future_neither_silences_nor_floods() {
    let api = Api::start(Dialect::Hyperfleet).await;
    let id = api.fleet.create("clusters", NewResource::named("alpha")).unwrap().id;
    for adapter in ["validation", "dns"] {
        let ahead = clock::now() + SignedDuration::from_mins(4);
        api.fleet.report("clusters", &id, NewReport::new(adapter, 1, Status::True, ahead)).unwrap();
    }
    let (mut bench, _) = bench(&minimal(&api.url));
    assert_eq!(bench.cycle().await.unwrap().published, 1);
    for _ in 0..3 {
        assert_eq!(bench.cycle().await.unwrap().published, 0);
    }
    assert_eq!(bench.metric("hyperfleet_sentinel_reports_from_future_total", &[]), Some(4.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn republish_always_is_the_literal_rule() {
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.create("clusters", NewResource::named("alpha")).unwrap();
    let (mut bench, _) = bench(&format!("{}republish: always\n", minimal(&api.url)));
    for _ in 0..6 {
        assert_eq!(bench.cycle().await.unwrap().published, 1);
    }
    // What is told of it is as true as with any other: one decision that was late or not, and who keeps it waiting.
    assert_eq!(bench.metric("hyperfleet_sentinel_decision_latency_seconds_count", &[]), Some(1.0));
    assert_eq!(bench.metric("hyperfleet_sentinel_resources_awaiting_adapter", &[]), Some(1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_fields_are_empty_and_counted() {
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.create("clusters", NewResource::named("alpha")).unwrap();
    let fields = "message_data:\n  id: .id\n  region: .metadata.labels.region\n  name: .metadata.name\n";
    let (mut bench, memory) = bench(&format!("{}{fields}", minimal(&api.url)));
    bench.cycle().await.unwrap();
    let sent = data(&memory.take()[0]);
    assert_eq!((&sent["region"], &sent["name"]), (&json!(""), &json!("alpha")));
    assert_eq!(bench.metric("hyperfleet_sentinel_payload_fields_missing_total", &[]), Some(1.0));
}

/// Holds its windows until it is let go.
#[derive(Default)]
struct Held {
    windows: Mutex<Vec<usize>>,
    let_go: CancellationToken,
}

impl Held {
    fn windows(&self) -> Vec<usize> {
        self.windows.lock().unwrap().clone()
    }
}

impl EventSink for Held {
    fn kind(&self) -> &'static str {
        "held"
    }

    fn publish_all<'a>(&'a self, events: &'a [CloudEvent]) -> BoxFuture<'a, Vec<Result<(), sink::Error>>> {
        async move {
            self.windows.lock().unwrap().push(events.len());
            self.let_go.cancelled().await;
            events.iter().map(|_| Ok(())).collect()
        }
        .boxed()
    }

    fn check(&self) -> BoxFuture<'_, Result<(), sink::Error>> {
        async { Ok(()) }.boxed()
    }
}

#[tokio::test]
async fn told_to_stop_in_mid_cycle_it_finishes_the_window_in_hand_and_begins_no_other() {
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.seed("clusters", 5_000, FleetState::Due).unwrap();
    let held = Arc::new(Held::default());
    let live = Bench::new(&minimal(&api.url), Arc::clone(&held) as Arc<dyn EventSink>).run();
    let window = eventually(DEADLINE, "a window is in hand", async || held.windows().first().copied()).await;
    let mut stopping = pin!(live.stop());
    // Paused time goes on only when nothing else can: whoever would leave the window has done so by then.
    tokio::time::pause();
    assert!(tokio::time::timeout(DEADLINE / 2, &mut stopping).await.is_err(), "it left a window in hand");
    tokio::time::resume();
    held.let_go.cancel();
    assert_eq!(stopping.await, window as u64, "all of it is counted");
    assert_eq!(held.windows(), [window]);
}

/// Takes each event, and answers for the first of a window alone.
struct Forgetful;

impl EventSink for Forgetful {
    fn kind(&self) -> &'static str {
        "forgetful"
    }

    fn publish_all<'a>(&'a self, _: &'a [CloudEvent]) -> BoxFuture<'a, Vec<Result<(), sink::Error>>> {
        async { vec![Ok(())] }.boxed()
    }

    fn check(&self) -> BoxFuture<'_, Result<(), sink::Error>> {
        async { Ok(()) }.boxed()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_the_sink_forgets_is_sent_again_and_counted() {
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.seed("clusters", 6, FleetState::Due).unwrap();
    let cycle = Bench::new(&minimal(&api.url), Arc::new(Forgetful)).cycle().await.unwrap();
    // One in each attempt.
    assert_eq!((cycle.due, cycle.published, cycle.failed), (6, 4, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_projection_is_used_only_where_it_changes_nothing() {
    let api = Api::start(Dialect::Hyperfleet).await;
    let id = api.fleet.create("clusters", NewResource::named("alpha").label("region", "eu")).unwrap().id;
    let fields = "message_data:\n  id: .id\n  region: .labels.region\n";
    let (mut bench, memory) = bench(&format!("{}{fields}", minimal(&api.url)));
    bench.cycle().await.unwrap();
    assert_eq!(data(&memory.take()[0]), json!({"id": id, "region": "eu"}));
    let asked = api.fleet.faults().lists();
    let last = asked.last().unwrap();
    let fields = last.query("fields").expect("projected");
    assert!(fields.contains("status.conditions") && !fields.contains("spec"), "{fields}");

    // A payload that needs the spec is read with it.
    let (mut whole, memory) =
        self::bench(&format!("{}message_data:\n  spec: .spec\n  when: .updated_time\n", minimal(&api.url)));
    whole.cycle().await.unwrap();
    assert_eq!(data(&memory.take()[0])["spec"], json!({}));
    assert_eq!(api.fleet.faults().lists().last().unwrap().query("fields"), None);
}

/// Today's API leaves out what it does not have, and writes null where it projects.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_absent_is_absent_whether_or_not_the_api_projects() {
    for result in ["!has(resource.labels)", "has(resource.deleted_time)"] {
        let api = Api::start(Dialect::Hyperfleet).await;
        // The first has both, the second neither: what is proven with the first holds for the second.
        let first = api.fleet.create("clusters", NewResource::named("alpha").label("region", "eu")).unwrap().id;
        api.fleet.delete("clusters", &first).unwrap();
        let second = api.fleet.create("clusters", NewResource::named("bravo")).unwrap().id;
        let decides = format!("message_decision:\n  result: '{result}'\nmessage_data:\n  id: .id\n");
        let (mut bench, memory) = bench(&format!("{}{decides}", minimal(&api.url)));
        bench.cycle().await.unwrap();
        assert!(api.fleet.faults().lists().last().unwrap().query("fields").is_some(), "{result}");
        let expected = if result.starts_with('!') { second } else { first };
        let published: Vec<_> = memory.take().iter().map(data).collect();
        assert_eq!(published, [json!({"id": expected})], "{result}");
    }
}

/// What was reported has a fraction of a second, which the API cuts off where it projects.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_has_one_id_whether_or_not_the_api_projects() {
    let api = Api::start(Dialect::Hyperfleet).await;
    let id = api.fleet.create("clusters", NewResource::named("alpha")).unwrap().id;
    report(&api.fleet, &id, 1, &["validation", "dns"], 3600);
    let mut ids = HashSet::new();
    for (fields, projects) in [("", true), ("message_data: {id: .id, when: .updated_time}\n", false)] {
        let (mut bench, memory) = bench(&format!("{}{fields}", minimal(&api.url)));
        assert_eq!(bench.cycle().await.unwrap().published, 1);
        assert_eq!(api.fleet.faults().lists().last().unwrap().query("fields").is_some(), projects);
        ids.insert(memory.take().remove(0).id().to_owned());
    }
    assert_eq!(ids.len(), 1, "{ids:?}");
}

/// The built-in expression over the simulator's true aggregation: a new resource and a spec change go out at once, and
/// once.
#[tokio::test(flavor = "multi_thread")]
async fn the_built_in_expression_publishes_like_generation_aware() {
    for dialect in [Dialect::Hyperfleet, Dialect::Seed] {
        let api = Api::start(dialect).await;
        let id = api.fleet.create("clusters", NewResource::named("alpha")).unwrap().id;
        let (mut bench, memory) = bench(&format!("{}decision: expression\n", minimal(&api.url)));
        assert_eq!(bench.cycle().await.unwrap().published, 1, "{dialect:?}");
        assert_eq!(bench.cycle().await.unwrap().published, 0, "one event per poll, {dialect:?}");
        report(&api.fleet, &id, 1, &["validation", "dns"], 0);
        assert_eq!(bench.cycle().await.unwrap().published, 0, "ready and fresh, {dialect:?}");
        api.fleet.patch("clusters", &id, Patch::spec(&json!({"replicas": 5}))).unwrap();
        assert_eq!(bench.cycle().await.unwrap().published, 1, "{dialect:?}");
        assert_eq!(memory.take().len(), 2);
        let published = "hyperfleet_sentinel_events_published_total";
        assert_eq!(bench.metric(published, &["message decision matched"]), Some(2.0));
    }
}

/// An expression that fails on one resource is counted and skips that one, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn an_expression_that_fails_on_a_resource_is_counted_and_stops_no_other() {
    let api = Api::start(Dialect::Hyperfleet).await;
    for (name, replicas) in [("alpha", json!({"replicas": 3})), ("beta", json!({}))] {
        let id = api.fleet.create("clusters", NewResource::named(name)).unwrap().id;
        api.fleet.patch("clusters", &id, Patch::spec(&replicas)).unwrap();
    }
    let decision = "message_decision:\n  params:\n  - {name: large, expr: resource.spec.replicas > 2}\n  result: large\n\
        message_data: {id: resource.id, name: .name, why: reason, none: resource.spec.none}\n";
    let (mut bench, memory) = bench(&format!("{}{decision}", minimal(&api.url)));
    let cycle = bench.cycle().await.unwrap();
    assert_eq!((cycle.seen, cycle.due, cycle.published), (2, 1, 1));
    let event = memory.take().remove(0);
    assert_eq!((&data(&event)["name"], &data(&event)["why"]), (&json!("alpha"), &json!("message decision matched")));
    assert_eq!(data(&event).get("none"), None);
    assert_eq!(bench.metric("hyperfleet_sentinel_expression_failures_total", &["missing"]), Some(1.0));
    assert_eq!(bench.metric("hyperfleet_sentinel_expression_failures_total", &["overflow"]), Some(0.0));
    let skipped = "hyperfleet_sentinel_resources_skipped_total";
    assert_eq!(bench.metric(skipped, &["message decision failed", "not_ready"]), Some(1.0));
    assert_eq!(bench.metric("hyperfleet_sentinel_payload_fields_failed_total", &[]), Some(1.0));
}

#[tokio::test]
async fn a_page_that_takes_long_to_decide_on_leaves_others_their_turn() {
    const RESOURCES: u32 = 60;
    let api = Api::start(Dialect::Hyperfleet).await;
    for index in 0..RESOURCES {
        let named = NewResource::named(format!("cluster-{index}"));
        let labelled = (0..60).fold(named, |resource, label| resource.label(&format!("label-{label}"), "x"));
        api.fleet.create("clusters", labelled).unwrap();
    }
    let slow = "{{range .labels}}{{range $.labels}}{{range $.labels}}{{end}}{{end}}{{end}}";
    let (mut bench, _) = bench(&format!("{}message_data: {{id: .id, slow: '{slow}'}}\n", minimal(&api.url)));
    // Asked again whenever the cycle lets go, on the one thread that there is.
    let mut turns = 0;
    let others = std::future::poll_fn::<(), _>(|_| {
        turns += 1;
        std::task::Poll::Pending
    });
    tokio::select! {
        biased;
        cycle = bench.cycle() => assert_eq!(cycle.unwrap().published, u64::from(RESOURCES)),
        () = others => unreachable!(),
    }
    assert!(turns >= RESOURCES, "others had {turns} turns");
}
