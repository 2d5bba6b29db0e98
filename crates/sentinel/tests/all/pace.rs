//! How often and how soon: bounded by max age whatever adapters do, and within one poll for what is new.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use jiff::SignedDuration;
use serde_json::json;
use watchfire_simulator::adapter::Adapter;
use watchfire_simulator::{AdapterConfig, Dialect, Knobs, NewResource, Patch, Resource};
use watchfire_testkit::eventually;

use crate::far::{Arrived, Far, over_both};
use crate::support::{Api, Bench, DEADLINE, minimal};

/// What may be wrong with adapters, and what the dns adapter and the validation adapter do then.
fn misbehaviours() -> Vec<(&'static str, Knobs, Knobs)> {
    let well = Knobs::default;
    let ahead = || Knobs { clock_offset: SignedDuration::from_mins(4), ..well() };
    vec![
        ("dns never reports", Knobs { silent: true, ..well() }, well()),
        ("nobody reports", Knobs { silent: true, ..well() }, Knobs { silent: true, ..well() }),
        ("the clock of dns is 4 minutes ahead", ahead(), well()),
        ("all clocks are 4 minutes ahead", ahead(), ahead()),
        ("dns always says Unknown", Knobs { unknown: 1.0, ..well() }, well()),
        ("dns drops half", Knobs { drops: 0.5, ..well() }, well()),
        ("dns always fails", Knobs { failures: 1.0, ..well() }, well()),
        ("dns reports an old generation", Knobs { stale_generation: true, ..well() }, well()),
    ]
}

/// Over forty polls and more, no resource is published more often than once per max age, and none is given up on.
async fn bounded(far: Far, what: &'static str, dns: Knobs, validation: Knobs) {
    let inbox = far.listen().await;
    let api = Api::start(Dialect::Hyperfleet).await;
    let adapter = |name: &str, knobs: &Knobs| {
        Adapter::new(AdapterConfig::new(name, api.url.parse().unwrap()).knobs(knobs.clone())).unwrap()
    };
    let adapters = [adapter("validation", &validation), adapter("dns", &dns)];
    let [validation, dns] = adapters;
    let _running = [far.run(validation).await, far.run(dns).await];
    let ids = [0, 1].map(|i| {
        let id = api.fleet.create("clusters", NewResource::named(format!("c-{i}"))).unwrap().id;
        // From here on there is a generation before the current one.
        api.fleet.patch("clusters", &id, Patch::spec(&json!({"replicas": 1}))).unwrap();
        id
    });
    let ages = "poll_interval: 100ms\nmax_age_not_ready: 1s\nmax_age_ready: 1s\n";
    let begun = Instant::now();
    let live = Bench::new(&format!("{}{ages}", minimal(&api.url)), far.sink()).run();
    eventually(DEADLINE, "many polls and some events", async || {
        let enough = ids.iter().all(|id| inbox.about(id).len() >= 4);
        (api.polls() >= 40 && enough).then_some(())
    })
    .await;
    let seconds = begun.elapsed().as_secs_f64();
    live.recovers().await;
    let published = live.stop().await;
    let distinct = |all: &[Arrived]| all.iter().map(|event| event.id().to_owned()).collect::<HashSet<_>>().len();
    // A broker may repeat and reorder, the sentinel must not: as many ids as events.
    let all = inbox.wait_until("each event has an id of its own", |all| distinct(all) as u64 >= published).await;
    let by_time: BTreeMap<_, _> = all.iter().map(|event| ((event.resource(), event.time()), event.id())).collect();
    assert_eq!(by_time.len(), distinct(&all), "{what}: an event of its own each time");
    for id in &ids {
        let events: Vec<_> = by_time.keys().filter(|(resource, _)| resource == id).map(|(_, time)| *time).collect();
        #[expect(clippy::cast_precision_loss, reason = "a handful")]
        let count = events.len() as f64;
        assert!(count <= seconds + 2.0, "{what}: {count} events in {seconds} s");
        // An event's time is when it became due, which is at least one max age after the one before was due.
        for pair in events.windows(2) {
            let apart = pair[1].duration_since(pair[0]);
            assert!(apart >= SignedDuration::from_secs(1), "{what}: due again after {apart:?}");
        }
    }
    far.clean().await;
}

async fn whatever_adapters_do_no_resource_is_published_more_than_once_per_max_age(far: Far) {
    let all = misbehaviours().into_iter().map(|(what, dns, validation)| bounded(far.another(), what, dns, validation));
    join_all(all.map(Box::pin)).await;
}

/// Right after a poll, which is the worst moment, and against the API's true aggregation.
async fn a_new_resource_and_a_spec_change_reach_a_consumer_within_one_poll_interval(far: Far) {
    let inbox = far.listen().await;
    let api = Api::start(Dialect::Hyperfleet).await;
    let poll = Duration::from_secs(2);
    let adapter = |name: &str| Adapter::new(AdapterConfig::new(name, api.url.parse().unwrap())).unwrap();
    let _running = [far.run(adapter("validation")).await, far.run(adapter("dns")).await];
    let _live = Bench::new(&format!("{}poll_interval: 2s\n", minimal(&api.url)), far.sink()).run();
    eventually(DEADLINE, "the first poll", async || (api.polls() > 0).then_some(())).await;

    let begun = Instant::now();
    let id = api.fleet.create("clusters", NewResource::named("alpha")).unwrap().id;
    let created = inbox.wait_for(1).await.remove(0);
    assert_eq!((created.resource(), created.generation()), (id.as_str(), 1));
    let took = created.at.duration_since(begun);
    assert!(took < poll + Duration::from_secs(1), "new resource: {took:?}");

    // Adapters that are still at work would read the change as well, and leave nothing to publish.
    eventually(DEADLINE, "it is Ready", async || api.fleet.get("clusters", &id).filter(Resource::is_ready)).await;
    let begun = Instant::now();
    api.fleet.patch("clusters", &id, Patch::spec(&json!({"replicas": 3}))).unwrap();
    let changed = inbox.wait_until("the change arrives", |all| all.iter().any(|it| it.generation() == 2)).await;
    let changed = changed.into_iter().find(|event| event.generation() == 2).unwrap();
    let took = changed.at.duration_since(begun);
    assert!(took < poll + Duration::from_secs(1), "spec change: {took:?}");
}

over_both! {
    whatever_adapters_do_no_resource_is_published_more_than_once_per_max_age
    a_new_resource_and_a_spec_change_reach_a_consumer_within_one_poll_interval
}
