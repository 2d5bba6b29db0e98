//! Fleets that exist only as a rule.

use jiff::SignedDuration;
use watchfire_simulator::{Deleted, FleetState, NewReport, NewResource, Patch, Simulator, Status};
use watchfire_testkit::{alone, proc_status};

use crate::support::{Running, serve};

async fn fleet(count: u32, state: FleetState) -> Running {
    let simulator = Simulator::default();
    simulator.seed("clusters", count, state).unwrap();
    serve(simulator).await
}

async fn keys(running: &Running, extra: &str, size: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut first = None;
    loop {
        let after = all.last().map_or("", String::as_str);
        let search = format!("id > '{after}'{extra}");
        let page = running.get("/clusters", &[("size", size), ("order", "id asc"), ("search", &search)]).await;
        let (ids, total) = (page.ids(), page.json()["total"].as_u64().unwrap());
        let promised = *first.get_or_insert(total);
        assert_eq!(promised, total + all.len() as u64);
        assert!(ids.len() as u64 == total || ids.len() == size.parse::<usize>().unwrap());
        if ids.is_empty() {
            return all;
        }
        all.extend(ids);
    }
}

#[tokio::test]
async fn a_million_resources_are_paged_by_key_and_counted() {
    let running = fleet(1_000_000, FleetState::Fresh).await;
    let page = running.get("/clusters", &[("size", "100"), ("order", "id asc"), ("search", "id > '0'")]).await;
    assert_eq!((page.ids().len(), page.json()["total"].as_u64()), (100, Some(1_000_000)));
    assert!((1800..2300).contains(&page.json()["items"][0].to_string().len()));
    let last = running.get("/clusters", &[("size", "1")]).await.ids();
    let east = format!("id > '{}' and labels.region='us-east'", page.ids()[99]);
    let filtered = running.get("/clusters", &[("order", "id asc"), ("search", &east)]).await.json();
    assert_eq!((filtered["total"].as_u64(), filtered["size"].as_u64()), (Some(249_975), Some(20)));
    let end = running.get("/clusters", &[("search", &format!("id > '{}'", last[0]))]).await.json();
    assert_eq!(end["total"], 0);
    let deep = running.get("/clusters", &[("page", "10000"), ("size", "100"), ("order", "id asc")]).await;
    assert_eq!(deep.ids().last(), last.first());
    let counts = running.simulator.counts("clusters");
    assert_eq!((counts.total, counts.ready, counts.not_ready), (1_000_000, 1_000_000, 0));
}

#[tokio::test]
async fn a_million_resources_take_bounded_memory() {
    alone("synthetic::child_that_serves_a_million_resources").await;
}

#[tokio::test]
#[ignore = "runs as a child of a_million_resources_take_bounded_memory"]
async fn child_that_serves_a_million_resources() {
    const MIB: u64 = 1024;
    let peak = || proc_status(std::process::id(), "VmHWM");
    let before = peak();
    let running = fleet(1_000_000, FleetState::Due).await;
    let mut after = String::new();
    for _ in 0..50 {
        let search = format!("id > '{after}'");
        let page = [("size", "100"), ("order", "id asc"), ("search", search.as_str())];
        after = running.get("/clusters", &page).await.ids().pop().unwrap();
        // By the longest way, over all of them.
        assert_eq!(running.get("/clusters", &[("page", "10000"), ("size", "100")]).await.ids().len(), 100);
    }
    let taken = peak() - before;
    assert!(taken < 64 * MIB, "{taken} KiB for a million resources");
}

#[tokio::test]
async fn changes_show_and_everything_else_stays_a_rule() {
    let running = fleet(1_003, FleetState::Fresh).await;
    let simulator = &running.simulator;
    let ids = keys(&running, "", "100").await;
    assert_eq!(ids.len(), 1_003);
    assert!(ids.is_sorted());
    let patched = simulator.patch("clusters", &ids[7], Patch::spec(&serde_json::json!({"replicas": 9}))).unwrap();
    assert_eq!((patched.generation, patched.is_ready()), (2, false));
    let moved = Patch { labels: Some([("region".to_owned(), "mars".to_owned())].into()), spec: None };
    simulator.patch("clusters", &ids[8], moved).unwrap();
    simulator.force_delete("clusters", &ids[9]).unwrap();
    assert!(matches!(simulator.delete("clusters", &ids[10]).unwrap(), Deleted::Marked(_)));
    let new = simulator.create("clusters", NewResource::named("late").label("region", "mars")).unwrap();
    assert!(new.id > ids[1_002]);
    assert!(simulator.create("clusters", NewResource::named("cluster-0000003")).is_err());

    let mut expected = ids.clone();
    expected.remove(9);
    expected.push(new.id.clone());
    assert_eq!(keys(&running, "", "100").await, expected);
    assert_eq!(keys(&running, " and labels.region='mars'", "1").await, [ids[8].clone(), new.id.clone()]);
    let east = keys(&running, " and labels.region in ['us-east','us-west']", "7").await;
    let counted = expected.iter().filter(|id| {
        ["us-east", "us-west"].contains(&simulator.get("clusters", id).unwrap().labels["region"].as_str())
    });
    assert_eq!(east.len(), counted.count());
    let mut by_offset = Vec::new();
    for page in 1..=11 {
        by_offset.extend(running.get("/clusters", &[("size", "100"), ("page", &page.to_string())]).await.ids());
    }
    by_offset.reverse();
    assert_eq!(by_offset, expected);
    let changed = running.get("/clusters", &[("search", "generation > 1")]).await;
    assert_eq!(changed.json()["total"], 3);
    let deleting = running.get("/clusters", &[("search", "deleted_time is not null")]).await;
    assert_eq!(deleting.ids(), [ids[10].clone()]);
    let waiting = running.get("/clusters", &[("search", "status.conditions.Reconciled='False'")]).await;
    assert_eq!(waiting.json()["total"], 4);
    let counts = simulator.counts("clusters");
    assert_eq!((counts.total, counts.ready, counts.not_ready, counts.deleting), (1_003, 999, 4, 1));
}

#[tokio::test]
async fn states_are_what_they_say() {
    let now = watchfire_runtime::clock::now();
    for (state, ready, due) in [(FleetState::Fresh, 40, 0), (FleetState::Due, 40, 40), (FleetState::Mixed, 32, 8)] {
        let running = fleet(40, state).await;
        assert_eq!(running.simulator.counts("clusters").ready, ready, "{state:?}");
        let half_an_hour_ago = now - SignedDuration::from_mins(30);
        let search = format!("status.conditions.Reconciled.last_updated_time < '{half_an_hour_ago}'");
        let old = running.get("/clusters", &[("search", &search)]).await.json();
        assert_eq!(old["total"], due, "{state:?}");
    }
}

#[tokio::test]
async fn a_synthetic_resource_takes_reports() {
    let running = fleet(3, FleetState::Due).await;
    let id = running.get("/clusters", &[]).await.ids()[0].clone();
    let now = watchfire_runtime::clock::now();
    for adapter in ["validation", "dns"] {
        running.simulator.report("clusters", &id, NewReport::new(adapter, 1, Status::True, now)).unwrap();
    }
    let resource = running.simulator.get("clusters", &id).unwrap();
    assert_eq!(resource.condition("Reconciled").unwrap().last_updated_time, now);
    assert!(running.simulator.seed("clusters", 5, FleetState::Due).is_err());
    assert!(running.simulator.seed("nodepools", 5, FleetState::Due).is_err());
}
