//! Several sentinels of one process that ask one API for one kind: one walk for all, and nobody waits for another.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use watchfire_delivery::{CloudEvent, EventSink, sink};
use watchfire_sentinel::Feeds;
use watchfire_simulator::{Dialect, Fault, NewResource, Scope, Times};
use watchfire_testkit::eventually;

use crate::support::{Api, Bench, DEADLINE, Live, Memory, minimal};

const REGIONS: [&str; 3] = ["us-east", "us-west", "eu-west"];

/// A fleet of which each region has as many clusters.
async fn fleet(dialect: Dialect, of_each: usize) -> Api {
    let api = Api::start(dialect).await;
    for index in 0..of_each {
        for region in REGIONS {
            api.fleet
                .create("clusters", NewResource::named(format!("{region}-{index}")).label("region", region))
                .unwrap();
        }
    }
    api
}

/// A file that selects a region, or everything.
fn file(url: &str, region: Option<&str>, interval: &str) -> String {
    let selector = region.map(|region| format!("resource_selector:\n  - label: region\n    value: {region}\n"));
    format!("{}poll_interval: {interval}\n{}", minimal(url), selector.unwrap_or_default())
}

fn resources(events: &[CloudEvent]) -> BTreeSet<String> {
    events.iter().map(|event| crate::support::data(event)["id"].as_str().unwrap().to_owned()).collect()
}

/// The walks so far: each begins at the first page, without a cursor.
fn walks(api: &Api) -> Vec<Option<String>> {
    let lists = api.fleet.faults().lists();
    let first = lists.iter().filter(|list| list.query("size") != Some("1"));
    let first = first.map(|list| list.query("search").map(str::to_owned));
    first.filter(|search| search.as_ref().is_none_or(|search| !search.starts_with("id > "))).collect()
}

const POLLS: &str = "hyperfleet_sentinel_poll_duration_seconds_count";

async fn polled(live: &Live, times: u64) {
    eventually(DEADLINE, &format!("{times} polls"), async || {
        #[expect(clippy::cast_precision_loss, reason = "few")]
        live.metric(POLLS, &[]).filter(|count| *count >= times as f64)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_of_one_interval_share_each_walk_and_publish_what_they_select() {
    let api = fleet(Dialect::Hyperfleet, 50).await;
    let feeds = Feeds::default();
    let sinks = [(); 2].map(|()| Arc::new(Memory::default()));
    let [east, west] = ["us-east", "us-west"].map(Some);
    let lives: Vec<_> = [east, west]
        .into_iter()
        .zip(&sinks)
        .map(|(region, memory)| {
            let memory = Arc::clone(memory) as Arc<dyn EventSink>;
            Bench::sharing(&file(&api.url, region, "200ms"), memory, &feeds).run()
        })
        .collect();
    for live in &lives {
        polled(live, 10).await;
    }
    let walks = walks(&api);
    let polls: f64 = lives.iter().map(|live| live.metric(POLLS, &[]).unwrap()).sum();
    // At the start each has one of its own, and one may be on its way.
    #[expect(clippy::cast_precision_loss, reason = "few")]
    let count = walks.len() as f64;
    assert!(count <= polls / 2.0 + 2.0, "{polls} polls: {walks:?}");
    let both = "((labels.region='us-east') or (labels.region='us-west'))";
    assert_eq!(walks.last().unwrap().as_deref(), Some(both));
    let [first, second] = sinks.map(|memory| resources(&memory.take()));
    assert_eq!((first.len(), second.len()), (50, 50));
    assert!(first.is_disjoint(&second));
    for live in lives {
        assert_eq!(live.metric("hyperfleet_sentinel_resources_unlisted", &[]), Some(0.0));
        live.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_wants_everything_makes_it_a_walk_over_everything() {
    let api = fleet(Dialect::Hyperfleet, 20).await;
    let feeds = Feeds::default();
    let mut benches = [None, Some("us-east")].map(|region| {
        let memory = Arc::new(Memory::default());
        let interval = "10m";
        (Bench::sharing(&file(&api.url, region, interval), Arc::clone(&memory) as Arc<dyn EventSink>, &feeds), memory)
    });
    let [(everything, _), (region, _)] = &mut benches;
    let (all, some) = tokio::join!(everything.cycle(), region.cycle());
    assert_eq!((all.unwrap().seen, some.unwrap().seen), (60, 20));
    assert_eq!(walks(&api), [None], "one walk");
}

/// Fields that only one of them reads are asked for; what the others publish does not change by it.
#[tokio::test(flavor = "multi_thread")]
async fn each_has_the_fields_that_it_reads() {
    let api = fleet(Dialect::Hyperfleet, 1).await;
    let feeds = Feeds::default();
    let payloads = ["id: .id, region: .labels.region", "id: .id, name: .name, of: .spec"];
    let mut benches = payloads.map(|fields| {
        let memory = Arc::new(Memory::default());
        let file = format!("{}message_data: {{{fields}}}\n", file(&api.url, None, "10m"));
        (Bench::sharing(&file, Arc::clone(&memory) as Arc<dyn EventSink>, &feeds), memory)
    });
    let [(first, _), (second, _)] = &mut benches;
    let (one, other) = tokio::join!(first.cycle(), second.cycle());
    assert_eq!((one.unwrap().published, other.unwrap().published), (3, 3));
    let fields = api.fleet.faults().lists().last().unwrap().query("fields").unwrap().to_owned();
    assert!(["labels", "name", "spec"].iter().all(|field| fields.contains(field)), "{fields}");
    let keys = benches.map(|(_, memory)| {
        let data = crate::support::data(&memory.take()[0]);
        data.as_object()
            .unwrap()
            .iter()
            .filter(|(_, value)| *value != "")
            .map(|(key, _)| key.clone())
            .collect::<Vec<_>>()
    });
    assert_eq!(keys, [vec!["id", "region"], vec!["id", "name", "of"]]);
}

/// A broker that answers nothing until it is let.
struct Stuck {
    free: watch::Receiver<bool>,
    then: Memory,
}

impl EventSink for Stuck {
    fn kind(&self) -> &'static str {
        "stuck"
    }

    fn window(&self) -> usize {
        10
    }

    fn publish_all<'a>(&'a self, events: &'a [CloudEvent]) -> BoxFuture<'a, Vec<Result<(), sink::Error>>> {
        let mut free = self.free.clone();
        async move {
            free.wait_for(|free| *free).await.unwrap();
            self.then.publish_all(events).await
        }
        .boxed()
    }

    fn check(&self) -> BoxFuture<'_, Result<(), sink::Error>> {
        async { Ok(()) }.boxed()
    }
}

/// Many pages, by key and by offset: the others go on, and what is stuck loses nothing and repeats nothing.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_one_whose_broker_takes_nothing() {
    for dialect in [Dialect::Hyperfleet, Dialect::Seed] {
        let api = fleet(dialect, 500).await;
        let feeds = Feeds::default();
        let (let_go, free) = watch::channel(false);
        let stuck = Arc::new(Stuck { free, then: Memory::default() });
        let memory = Arc::new(Memory::default());
        let held =
            Bench::sharing(&file(&api.url, None, "200ms"), Arc::clone(&stuck) as Arc<dyn EventSink>, &feeds).run();
        let live =
            Bench::sharing(&file(&api.url, None, "200ms"), Arc::clone(&memory) as Arc<dyn EventSink>, &feeds).run();
        polled(&live, 3).await;
        assert_eq!(resources(&memory.take()).len(), 1500, "{dialect:?}");
        assert_eq!(held.metric(POLLS, &[]), Some(0.0));
        let_go.send(true).unwrap();
        polled(&held, 1).await;
        let events = stuck.then.events();
        assert_eq!((events.len(), resources(&events).len()), (1500, 1500), "{dialect:?}");
        // In step again: each walk is a poll of both.
        polled(&held, 3).await;
        api.fleet.faults().forget_requests();
        let before = [&held, &live].map(|live| live.metric(POLLS, &[]).unwrap());
        polled(&held, 10).await;
        let (walks, after) = (walks(&api).len(), [&held, &live].map(|live| live.metric(POLLS, &[]).unwrap()));
        let polls: f64 = after.iter().zip(before).map(|(after, before)| after - before).sum();
        #[expect(clippy::cast_precision_loss, reason = "few")]
        let walks = walks as f64;
        assert!(walks <= polls / 2.0 + 2.0, "{polls} polls, {walks} walks, {dialect:?}");
        for live in [held, live] {
            assert_eq!(live.stop().await, 1500, "{dialect:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_is_away_is_told_of_by_each_and_each_recovers() {
    let api = fleet(Dialect::Hyperfleet, 5).await;
    let feeds = Feeds::default();
    let lives = [None, Some("us-east")]
        .map(|region| Bench::sharing(&file(&api.url, region, "100ms"), Arc::new(Memory::default()), &feeds).run());
    for live in &lives {
        live.recovers().await;
    }
    let (address, simulator) = api.stop().await;
    for live in &lives {
        live.complains("hyperfleet_api", "check hyperfleet_api.endpoint").await;
    }
    let _api = Api::serve_at(address, simulator).await;
    for live in lives {
        live.recovers().await;
        live.stop().await;
    }
}

/// Whoever began a walk may be told to stop in the midst of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_walk_goes_on_without_the_one_who_began_it() {
    let api = fleet(Dialect::Hyperfleet, 500).await;
    let feeds = Feeds::default();
    let (let_go, free) = watch::channel(false);
    let mut benches = [(); 2].map(|()| {
        let stuck = Arc::new(Stuck { free: free.clone(), then: Memory::default() });
        Bench::sharing(&file(&api.url, None, "10m"), stuck, &feeds)
    });
    let [first, second] = &mut benches;
    let (mut began, mut other) = (Box::pin(first.cycle()), Box::pin(second.cycle()));
    let asked = async || (!walks(&api).is_empty()).then_some(());
    tokio::select! {
        biased;
        _ = &mut began => unreachable!("its broker takes nothing"),
        _ = &mut other => unreachable!("its broker takes nothing"),
        () = eventually(DEADLINE, "the first page is asked for", asked) => drop(began),
    }
    let_go.send(true).unwrap();
    let cycle = other.await.unwrap();
    assert_eq!((cycle.seen, cycle.published), (1500, 1500));
    assert_eq!(walks(&api).len(), 1);
}

/// A selector that takes much of what the API takes as a search.
fn long(region: &str) -> String {
    let others: Vec<_> = (0..120).map(|index| format!("{region}-{index:015}")).collect();
    format!(
        "resource_selector:\n  matchExpressions:\n  - {{key: region, operator: In, values: [{region}, {}]}}\n",
        others.join(", ")
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_long_for_one_search_is_asked_for_apart() {
    let api = fleet(Dialect::Hyperfleet, 10).await;
    let feeds = Feeds::default();
    let mut benches = ["us-east", "us-west"].map(|region| {
        let file = format!("{}poll_interval: 10m\n{}", minimal(&api.url), long(region));
        Bench::sharing(&file, Arc::new(Memory::default()), &feeds)
    });
    let [first, second] = &mut benches;
    let (one, other) = tokio::join!(first.cycle(), second.cycle());
    assert_eq!((one.unwrap().published, other.unwrap().published), (10, 10));
    let walks = walks(&api);
    assert_eq!(walks.len(), 2);
    assert!(walks.iter().flatten().all(|search| search.starts_with("labels.region in [")), "{walks:?}");
}

/// As an API may do that cannot search for this or that.
#[tokio::test(flavor = "multi_thread")]
async fn where_the_api_refuses_to_search_for_any_of_several_each_asks_alone() {
    let api = fleet(Dialect::Hyperfleet, 10).await;
    let feeds = Feeds::default();
    let mut benches = ["us-east", "us-west"]
        .map(|region| Bench::sharing(&file(&api.url, Some(region), "10m"), Arc::new(Memory::default()), &feeds));
    // The first request is the one that shows whether fields can be projected.
    api.fleet.faults().arm(Scope::Lists, Fault::status(400), Times::Next(1));
    for published in [10, 0] {
        let [first, second] = &mut benches;
        let (one, other) = tokio::join!(first.cycle(), second.cycle());
        assert_eq!((one.unwrap().published, other.unwrap().published), (published, published), "no poll fails");
    }
    let mut walks = walks(&api);
    walks.sort();
    walks.dedup();
    assert_eq!(walks, ["us-east", "us-west"].map(|region| Some(format!("labels.region='{region}'"))));
    assert!(api.fleet.faults().lists().last().unwrap().query("fields").is_some(), "the projection was not refused");
}
