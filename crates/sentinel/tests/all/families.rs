//! Every metric moves: what nothing counts should not be on a dashboard.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use watchfire_delivery::{EventSink, sink};
use watchfire_simulator::{Dialect, Fault, NewResource, Scope, Times};

use crate::support::{Api, Bench, Memory, Refusal, minimal, timeout};

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

fn too_large() -> sink::Error {
    sink::Error::TooLarge { target: "memory".into(), size: 2, limit: 1 }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_family_moves() {
    let api = Api::start(Dialect::Hyperfleet).await;
    for name in ["alpha", "beta", "gamma"] {
        api.fleet.create("clusters", NewResource::named(name)).unwrap();
    }
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
    let mut bench =
        Bench::new(&format!("{}{fields}{decision}", minimal(&api.url)), Arc::clone(&memory) as Arc<dyn EventSink>);
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
    faults.arm(Scope::Lists, Fault::status(403), Times::Always);
    assert_eq!(bench.cycle().await.unwrap_err().kind(), "auth_error");
    look(&bench);

    let still: Vec<_> = fresh.keys().filter(|name| !moved.contains(**name)).collect();
    assert!(still.is_empty(), "nothing moves {still:?}");
    assert!(fresh.len() >= 20, "{}", fresh.len());
}
