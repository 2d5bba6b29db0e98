//! What matters in a fleet of many: refreshes that spread, a ceiling, and resources that need somebody to look at them.

use std::collections::{BTreeSet, HashSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, join};
use jiff::{SignedDuration, Timestamp};
use tokio_util::sync::CancellationToken;
use watchfire_delivery::{CloudEvent, EventSink, sink};
use watchfire_runtime::clock;
use watchfire_sentinel::decision::Published;
use watchfire_sentinel::{Ceiling, adapters};
use watchfire_simulator::{Dialect, FleetState, NewCondition, NewReport, NewResource, Simulator, Status};
use watchfire_testkit::eventually;

use crate::far::{Far, over_both};
use crate::support::{Api, Bench, DEADLINE, Live, Memory, Running, minimal};

fn ago(seconds: i64) -> Timestamp {
    clock::now() - SignedDuration::from_secs(seconds)
}

fn report(fleet: &Simulator, id: &str, adapter: &str, available: Status, at: Timestamp) {
    fleet.report_at("clusters", id, NewReport::new(adapter, 1, available, at), at).unwrap();
}

/// Lets adapters say of a resource that is to go that their part of it is gone.
fn finalize(fleet: &Simulator, plural: &str, id: &str, adapters: &[&str]) {
    for adapter in adapters {
        let mut done = NewReport::new(adapter, 2, Status::True, clock::now());
        let finalized = done.conditions[0].clone();
        done.conditions.push(NewCondition { ty: "Finalized".to_owned(), ..finalized });
        fleet.report(plural, id, done).unwrap();
    }
}

fn create(api: &Api, name: &str) -> String {
    api.fleet.create("clusters", NewResource::named(name)).unwrap().id
}

fn reason(live: &Live, reason: &str) -> f64 {
    live.metric("hyperfleet_sentinel_events_published_total", &[reason]).unwrap()
}

async fn gauge(live: &Live, name: &str, value: f64) {
    let name = format!("hyperfleet_sentinel_{name}");
    let what = format!("{name} is {value}");
    eventually(DEADLINE, &what, async || (live.metric(&name, &[]) == Some(value)).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_reported_at_once_is_refreshed_over_the_spread_and_alike_in_every_process() {
    let api = Api::start(Dialect::Hyperfleet).await;
    let reported = ago(27 * 60);
    for index in 0..200 {
        let id = create(&api, &format!("c-{index}"));
        for adapter in ["validation", "dns"] {
            report(&api.fleet, &id, adapter, Status::True, reported);
        }
    }
    let published = async |spread: &str| {
        let memory = Arc::new(Memory::default());
        let mut bench = Bench::new(&format!("{}{spread}", minimal(&api.url)), Arc::clone(&memory) as _);
        bench.cycle().await.unwrap();
        memory.take()
    };
    assert_eq!(published("").await.len(), 0, "nobody is due before half an hour");
    let events = published("refresh_spread: 20%\n").await;
    assert!((60..140).contains(&events.len()), "{} of 200 in the first half", events.len());
    for event in &events {
        // The API serves seconds.
        let due = event.attributes().time.unwrap().duration_since(reported);
        assert!(due >= SignedDuration::from_secs(24 * 60 - 1) && due <= SignedDuration::from_mins(28), "{due:?}");
    }
    let ids = |events: &[CloudEvent]| events.iter().map(|event| event.id().to_owned()).collect::<BTreeSet<_>>();
    let restarted = published("refresh_spread: 20%\n").await;
    assert!(ids(&events).is_subset(&ids(&restarted)), "another process finds the same ones due, under the same ids");
}

/// A sink that notes how many events came together.
#[derive(Default)]
struct Windows(Memory, Mutex<Vec<usize>>);

impl EventSink for Windows {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn publish_all<'a>(&'a self, events: &'a [CloudEvent]) -> BoxFuture<'a, Vec<Result<(), sink::Error>>> {
        self.1.lock().unwrap().push(events.len());
        self.0.publish_all(events)
    }

    fn check(&self) -> BoxFuture<'_, Result<(), sink::Error>> {
        self.0.check()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn below_a_ceiling_events_go_out_in_small_windows_at_its_rate_each_once() {
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.seed("clusters", 120, FleetState::Due).unwrap();
    let sink = Arc::new(Windows::default());
    let pace = "poll_interval: 100ms\nmax_events_per_second: 40\n";
    let begun = Instant::now();
    let live = Bench::new(&format!("{}{pace}", minimal(&api.url)), Arc::clone(&sink) as Arc<dyn EventSink>).run();
    let backlog = || live.metric("hyperfleet_sentinel_events_backlog", &[]).unwrap();
    eventually(DEADLINE, "some wait", async || (backlog() >= 4.0).then_some(())).await;
    eventually(DEADLINE, "all are published", async || {
        live.is_alive();
        (live.published() >= 120).then_some(())
    })
    .await;
    assert!(begun.elapsed() >= Duration::from_millis(2900), "{:?}", begun.elapsed());
    // The cycle took many poll intervals; what it published is not due in the next ones.
    let polls = api.polls();
    eventually(DEADLINE, "some polls go by", async || (api.polls() >= polls + 6).then_some(())).await;
    gauge(&live, "events_backlog", 0.0).await;
    assert!(live.metric("hyperfleet_sentinel_events_held_back_seconds_total", &[]).unwrap() > 2.0);
    assert_eq!(live.stop().await, 120);
    let ids: HashSet<_> = sink.0.events().iter().map(|event| event.id().to_owned()).collect();
    assert_eq!(ids.len(), 120);
    let windows = sink.1.lock().unwrap().clone();
    assert!(windows.iter().all(|size| *size <= 4), "{windows:?}");
    assert!(windows.len() <= 60, "not one by one: {windows:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_of_one_process_share_a_ceiling() {
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.seed("clusters", 40, FleetState::Due).unwrap();
    let ceiling = Arc::new(Ceiling::new(NonZeroU32::new(40).unwrap()));
    let cycle = async || {
        let mut bench = Bench::new(&minimal(&api.url), Arc::<Memory>::default());
        bench.sentinel = bench.sentinel.below(Arc::clone(&ceiling));
        bench.cycle().await.unwrap().published
    };
    let begun = Instant::now();
    assert_eq!(Box::pin(join(cycle(), cycle())).await, (40, 40));
    // 80 events at 40 a second; the first window waits for nothing.
    assert!(begun.elapsed() >= Duration::from_millis(1900), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn told_to_stop_it_does_not_wait_for_its_turn() {
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.seed("clusters", 200, FleetState::Due).unwrap();
    let memory = Arc::new(Memory::default());
    let config = format!("{}max_events_per_second: 1\n", minimal(&api.url));
    let bench = Bench::new(&config, Arc::clone(&memory) as Arc<dyn EventSink>);
    let token = CancellationToken::new();
    let (sentinel, stop) = (bench.sentinel, token.clone());
    let mut running = Running::start(async move { sentinel.run(stop).await.unwrap() });
    eventually(DEADLINE, "the first event", async || (!memory.events().is_empty()).then_some(())).await;
    token.cancel();
    running.ended().await;
    assert!(memory.events().len() < 30, "it went on: {}", memory.events().len());
}

async fn a_ceiling_protects_a_real_broker(far: Far) {
    let inbox = far.listen().await;
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.seed("clusters", 300, FleetState::Due).unwrap();
    let config = format!("{}poll_interval: 100ms\nmax_events_per_second: 150\n", minimal(&api.url));
    let begun = Instant::now();
    let live = Bench::new(&config, far.sink()).run();
    inbox.wait_for(300).await;
    assert!(begun.elapsed() >= Duration::from_millis(1900), "{:?}", begun.elapsed());
    live.recovers().await;
    assert_eq!(live.stop().await, 300);
}

over_both! {
    a_ceiling_protects_a_real_broker
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_has_its_own_reasons_and_the_oldest_is_told() {
    for dialect in [Dialect::Hyperfleet, Dialect::Seed] {
        let api = Api::start(dialect).await;
        let (going, _staying) = (create(&api, "going"), create(&api, "staying"));
        for adapter in ["validation", "dns"] {
            report(&api.fleet, &going, adapter, Status::True, clock::now());
        }
        api.fleet.delete("clusters", &going).unwrap();
        let pace = "poll_interval: 100ms\nmax_age_not_ready: 1s\n";
        let live = Bench::new(&format!("{}{pace}", minimal(&api.url)), Arc::<Memory>::default()).run();
        gauge(&live, "resources_deleting", 1.0).await;
        eventually(DEADLINE, "nobody finalizes it", async || {
            (reason(&live, "deletion in progress - max age expired") >= 2.0).then_some(())
        })
        .await;
        assert_eq!(reason(&live, "deletion requested - to be finalized").to_bits(), 1.0_f64.to_bits());
        let age = live.metric("hyperfleet_sentinel_oldest_deletion_age_seconds", &[]).unwrap();
        assert!((1.5..60.0).contains(&age), "{age}");
        let fields = api.fleet.faults().lists().last().unwrap().query("fields").map(str::to_owned);
        assert!(fields.as_ref().is_some_and(|it| it.contains("deleted_time")), "projected: {fields:?}");

        finalize(&api.fleet, "clusters", &going, &["validation", "dns"]);
        gauge(&live, "resources_deleting", 0.0).await;
        gauge(&live, "oldest_deletion_age_seconds", 0.0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_that_makes_no_progress_is_told_whether_or_not_reports_come() {
    for dialect in [Dialect::Hyperfleet, Dialect::Seed] {
        for reports in [true, false] {
            let api = Api::start(dialect).await;
            let id = create(&api, "stuck");
            let pace = "poll_interval: 50ms\nmax_age_not_ready: 100ms\nno_progress_after: 1s\n";
            let live = Bench::new(&format!("{}{pace}", minimal(&api.url)), Arc::<Memory>::default()).run();
            let no_progress = "no progress - nothing changes in spite of events";
            let mut answered = 0;
            eventually(DEADLINE, "no progress", async || {
                if reports && std::mem::replace(&mut answered, live.published()) < live.published() {
                    for adapter in ["validation", "dns"] {
                        report(&api.fleet, &id, adapter, Status::False, clock::now());
                    }
                }
                (reason(&live, no_progress) >= 2.0).then_some(())
            })
            .await;
            gauge(&live, "resources_without_progress", 1.0).await;
            for adapter in ["validation", "dns"] {
                report(&api.fleet, &id, adapter, Status::True, clock::now() + SignedDuration::from_secs(1));
            }
            gauge(&live, "resources_without_progress", 0.0).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_progress_is_published_less_and_less_often_if_asked_for() {
    let api = Api::start(Dialect::Hyperfleet).await;
    // Nothing has changed for twenty minutes; a tenth of that is two.
    let (changed, reported) = (ago(1200), ago(60));
    api.fleet.faults().inject(format!(
        r#"{{"id":"stuck","kind":"Cluster","generation":1,"status":{{"conditions":[
            {{"type":"Reconciled","status":"False","last_updated_time":"{reported}","last_transition_time":"{changed}"}},
            {{"type":"DnsSuccessful","observed_generation":1,"last_transition_time":"{changed}"}}]}}}}"#
    ));
    let pace = "poll_interval: 50ms\nmax_age_not_ready: 100ms\nno_progress_after: 1m\nmax_age_no_progress: 10m\n";
    let live = Bench::new(&format!("{}{pace}", minimal(&api.url)), Arc::<Memory>::default()).run();
    gauge(&live, "resources_without_progress", 1.0).await;
    let (published, polls) = (live.published(), api.polls());
    assert_eq!(published, 5, "asked often enough");
    eventually(DEADLINE, "many polls go by", async || (api.polls() >= polls + 20).then_some(())).await;
    assert_eq!(live.stop().await, published, "the next one is two minutes away");
}

/// Its own adapters are done and answer every event, and nothing of it can go before its node pools have.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_waits_for_node_pools_is_published_less_and_less_often_if_asked_for() {
    let api = Api::start(Dialect::Hyperfleet).await;
    let id = create(&api, "parent");
    for adapter in ["validation", "dns"] {
        report(&api.fleet, &id, adapter, Status::True, clock::now());
    }
    let pool = |index| NewResource::named(format!("np-{index}"));
    let pools: Vec<_> =
        (0..20).map(|index| api.fleet.create_in("nodepools", Some(&id), pool(index)).unwrap().id).collect();
    api.fleet.delete("clusters", &id).unwrap();
    let pace = "poll_interval: 50ms\nmax_age_not_ready: 100ms\nno_progress_after: 1s\nmax_age_no_progress: 10m\n";
    let live = Bench::new(&format!("{}{pace}", minimal(&api.url)), Arc::<Memory>::default()).run();
    let (mut answered, mut last) = (0, Instant::now());
    eventually(DEADLINE, "half a second goes by without an event", async || {
        if std::mem::replace(&mut answered, live.published()) < live.published() {
            finalize(&api.fleet, "clusters", &id, &["validation", "dns"]);
            last = Instant::now();
        }
        (last.elapsed() >= Duration::from_millis(500)).then_some(())
    })
    .await;
    let body =
        reqwest::get(format!("{}/api/hyperfleet/v1/clusters/{id}", api.url)).await.unwrap().text().await.unwrap();
    assert!(body.contains("ReconciledWaitingForChildren"), "{body}");
    assert!(reason(&live, "deletion in progress - max age expired") > 5.0);
    gauge(&live, "resources_without_progress", 1.0).await;

    for pool in &pools {
        finalize(&api.fleet, "nodepools", pool, &["validation"]);
    }
    // The API looks again with the next report.
    finalize(&api.fleet, "clusters", &id, &["dns"]);
    gauge(&live, "resources_deleting", 0.0).await;
    gauge(&live, "resources_without_progress", 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_silent_adapter_behind_a_frozen_report_time_is_named() {
    let api = Api::start(Dialect::Hyperfleet).await;
    let (behind, never) = (create(&api, "behind"), create(&api, "never"));
    for id in [&behind, &never] {
        report(&api.fleet, id, "validation", Status::True, clock::now());
    }
    report(&api.fleet, &behind, "dns", Status::True, ago(70));
    let pace = "poll_interval: 100ms\nmax_age_not_ready: 1s\nmax_age_ready: 1s\n";
    let live = Bench::new(&format!("{}{pace}", minimal(&api.url)), Arc::<Memory>::default()).run();
    // Validation answers; the time of the one stands still all the same, and the other is never ready.
    let mut answered = 0;
    eventually(DEADLINE, "both wait", async || {
        if std::mem::replace(&mut answered, live.published()) < live.published() {
            for id in [&behind, &never] {
                report(&api.fleet, id, "validation", Status::True, clock::now());
            }
        }
        (live.metric("hyperfleet_sentinel_resources_awaiting_adapter", &[]) == Some(2.0)).then_some(())
    })
    .await;
    let item = |id: &str| format!("{}/api/hyperfleet/v1/clusters/{id}", api.url);
    for id in [&behind, &never] {
        let body = reqwest::get(item(id)).await.unwrap().text().await.unwrap();
        let published = Published { generation: Some(1), at: clock::now(), attempts: 5 };
        let said = adapters::read(&body);
        let silent: Vec<_> =
            adapters::silent(&said, published, clock::now()).into_iter().map(|it| it.adapter.as_str()).collect();
        assert_eq!(silent, ["dns"], "{body}");
    }
    // It reports again, on both.
    let later = clock::now() + SignedDuration::from_secs(2);
    for id in [&behind, &never] {
        report(&api.fleet, id, "dns", Status::True, later);
    }
    gauge(&live, "resources_awaiting_adapter", 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_from_the_future_is_counted_and_costs_one_event_per_max_age() {
    let api = Api::start(Dialect::Hyperfleet).await;
    let id = create(&api, "ahead");
    let ahead = clock::now() + SignedDuration::from_mins(4);
    for adapter in ["validation", "dns"] {
        report(&api.fleet, &id, adapter, Status::False, ahead);
    }
    let pace = "poll_interval: 50ms\nmax_age_not_ready: 500ms\n";
    let begun = Instant::now();
    let live = Bench::new(&format!("{}{pace}", minimal(&api.url)), Arc::<Memory>::default()).run();
    eventually(DEADLINE, "three events", async || (live.published() >= 3).then_some(())).await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    let counted = live.metric("hyperfleet_sentinel_reports_from_future_total", &[]).unwrap();
    assert!(counted > 3.0, "in each poll: {counted}");
}

/// Why it asks for all, and what that costs: docs/decisions/0008.
#[tokio::test(flavor = "multi_thread")]
async fn of_ten_thousand_resources_all_are_read_with_few_of_their_fields_and_those_that_are_due_are_published() {
    const DUE: u64 = 250;
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.seed("clusters", 9_750, FleetState::Fresh).unwrap();
    for index in 0..DUE {
        create(&api, &format!("due-{index}"));
    }
    let memory = Arc::new(Memory::default());
    let mut bench = Bench::new(&minimal(&api.url), Arc::clone(&memory) as _);
    let cycle = bench.cycle().await.unwrap();
    assert_eq!((cycle.seen, cycle.due, cycle.published), (10_000, DUE, DUE));
    let (fields, rows): (Vec<_>, Vec<_>) = api
        .fleet
        .faults()
        .lists()
        .iter()
        .map(|list| (list.query("fields").is_some(), list.query("size") == Some("100")))
        .unzip();
    let pages = rows.iter().filter(|whole| **whole).count();
    assert!((100..=102).contains(&pages), "{pages} pages of a hundred");
    assert!(fields.iter().filter(|projected| **projected).count() >= 100, "of each only what is read");
    api.fleet.faults().forget_requests();
    assert_eq!(bench.cycle().await.unwrap().published, 0, "and none of them again");
}
