//! Every metric moves: what nothing counts should not be on a dashboard.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::json;
use watchfire_delivery::{EventSink, sink};
use watchfire_runtime::clock;
use watchfire_simulator::{Dialect, Fault, NewReport, NewResource, Patch, Scope, Status, Times};
use watchfire_testkit::eventually;

use crate::support::{Api, Bench, DEADLINE, Memory, Refusal, minimal, timeout};

/// The samples of each family, by its name.
fn families(scrape: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut families = BTreeMap::new();
    let mut current = None;
    for line in scrape.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(rest) => current = rest.split(' ').next(),
            None if line.starts_with('#') => {}
            None => families.entry(current.expect("a type before its samples")).or_insert_with(Vec::new).push(line),
        }
    }
    families
}

/// What takes a resource a while, and has its test in `at_scale`; and what takes an odd API, in `paging`.
const MOVED_THERE: [&str; 3] = [
    "hyperfleet_sentinel_resources_without_progress",
    "hyperfleet_sentinel_resources_awaiting_adapter",
    "hyperfleet_sentinel_resources_unlisted",
];

fn too_large() -> sink::Error {
    sink::Error::TooLarge { target: "memory".into(), size: 2, limit: 1 }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_family_moves() {
    let api = Api::start(Dialect::Hyperfleet).await;
    let create = |name| api.fleet.create("clusters", NewResource::named(name)).unwrap().id;
    let ids = ["alpha", "beta", "gamma"].map(create);
    api.fleet.delete("clusters", &ids[2]).unwrap();
    let faults = api.fleet.faults();
    faults.inject("17");
    faults.inject(
        r#"{"id":"odd","kind":"Cluster","generation":1,"status":{"conditions":[
            {"type":"Reconciled","status":"True","last_updated_time":"2126-01-01T00:00:00Z"},
            {"type":"DnsSuccessful","status":"True","observed_generation":7}]}}"#,
    );
    let fields = "message_data:\n  id: .id\n  absent: .labels.region\n  failing: '{{ index .name \"x\" }}'\n";
    // Fails on the odd one, which has no such time.
    let decision = "message_decision:\n  result: resource.created_time != \"\"\nrepublish: in_flight\n";
    let memory = Arc::new(Memory::default());
    let pace = "max_events_per_second: 10\n";
    let mut bench = Bench::new(
        &format!("{}{fields}{decision}{pace}", minimal(&api.url)),
        Arc::clone(&memory) as Arc<dyn EventSink>,
    );
    bench.sentinel = bench.sentinel.remember_at_most(1);
    let fresh = bench.fresh.clone();
    let fresh = families(&fresh);
    let mut moved = BTreeSet::new();
    let mut look = |bench: &Bench| {
        let scrape = bench.scrape();
        for (name, samples) in families(&scrape) {
            if fresh.get(name) != Some(&samples) {
                moved.insert(name.to_owned());
            }
        }
    };

    // One is refused for good, another for the moment; what is confirmed is more than may be remembered.
    memory.refuse(Refusal(vec![0], too_large));
    memory.refuse(Refusal(vec![0], timeout));
    assert_eq!(bench.cycle().await.unwrap().failed, 1);
    look(&bench);
    // What was refused goes out, what was forgotten as well, and what is remembered is skipped.
    assert_eq!(bench.cycle().await.unwrap().failed, 0);
    look(&bench);
    // With more room, an event is remembered until the adapters report on its generation.
    bench.sentinel = bench.sentinel.remember_at_most(10);
    api.fleet.patch("clusters", &ids[0], Patch::spec(&json!({"replicas": 2}))).unwrap();
    bench.cycle().await.unwrap();
    look(&bench);
    let answered = "hyperfleet_sentinel_event_to_report_seconds_count";
    eventually(DEADLINE, "a report overtakes an event", async || {
        for id in &ids {
            let generation = api.fleet.get("clusters", id).unwrap().generation;
            for adapter in ["validation", "dns"] {
                let now = clock::now();
                api.fleet
                    .report_at("clusters", id, NewReport::new(adapter, generation, Status::True, now), now)
                    .unwrap();
            }
        }
        bench.cycle().await.unwrap();
        (bench.metric(answered, &[]) > Some(0.0)).then_some(())
    })
    .await;
    look(&bench);
    faults.arm(Scope::Lists, Fault::status(403), Times::Always);
    assert_eq!(bench.cycle().await.unwrap_err().kind(), "auth_error");
    look(&bench);

    // What is running does not change while it runs.
    let constant = "hyperfleet_sentinel_build";
    let unmoved = |name: &&&str| !moved.contains(**name) && !MOVED_THERE.contains(name) && **name != constant;
    let still: Vec<_> = fresh.keys().filter(unmoved).collect();
    assert!(still.is_empty(), "nothing moves {still:?}");
    assert!(fresh.len() >= 20, "{}", fresh.len());
}
