//! The older shapes: a phase, one unpaged answer, `labels=`.

use jiff::Timestamp;
use serde_json::json;
use watchfire_simulator::{Dialect, FleetState, NewReport, NewResource, Patch, Simulator, Status};

use crate::support::serve;

fn reported(simulator: &Simulator, generation: i32) -> Timestamp {
    let at = Timestamp::from_second(watchfire_runtime::clock::now().as_second()).unwrap();
    for adapter in ["validation", "dns"] {
        simulator.report("clusters", "cls-1", NewReport::new(adapter, generation, Status::True, at)).unwrap();
    }
    at
}

fn fleet(dialect: Dialect) -> Simulator {
    let simulator = Simulator::new(dialect);
    let east = NewResource::named("one").id("cls-1").label("region", "us-east").label("cluster-type", "gpu");
    simulator.create("clusters", east).unwrap();
    simulator.create("clusters", NewResource::named("two").id("cls-2").label("region", "us-west")).unwrap();
    simulator
}

#[tokio::test]
async fn the_seed_has_a_phase_in_snake_case() {
    let running = serve(fleet(Dialect::Seed)).await;
    let fresh = running.get("/clusters/cls-1", &[]).await.json();
    assert_eq!((&fresh["status"]["phase"], &fresh["status"]["observed_generation"]), (&json!("NotReady"), &json!(0)));
    let at = reported(&running.simulator, 1);
    let ready = running.get("/clusters/cls-1", &[]).await.json();
    let time = at.to_string();
    assert_eq!(
        ready["status"],
        json!({"phase": "Ready", "observed_generation": 1, "last_transition_time": time, "last_updated_time": time})
    );
    assert_eq!(ready["metadata"], json!({"labels": {"cluster-type": "gpu", "region": "us-east"}, "name": "one"}));
    running.simulator.patch("clusters", "cls-1", Patch::spec(&json!({"replicas": 5}))).unwrap();
    let changed = running.get("/clusters/cls-1", &[]).await.json();
    assert_eq!(changed["generation"], 2);
    assert_eq!(
        (&changed["status"]["phase"], &changed["status"]["observed_generation"]),
        (&json!("NotReady"), &json!(1))
    );
    running.simulator.create_in("nodepools", Some("cls-1"), NewResource::named("pool")).unwrap();
    let pools = running.get("/nodepools", &[]).await.json();
    assert_eq!(pools["items"][0]["ownerResource"]["id"], "cls-1");
}

#[tokio::test]
async fn the_operators_transition_time_moves_with_every_report() {
    let running = serve(fleet(Dialect::Operator)).await;
    let first = reported(&running.simulator, 1);
    let later = first + jiff::SignedDuration::from_secs(60);
    for adapter in ["validation", "dns"] {
        running.simulator.report("clusters", "cls-1", NewReport::new(adapter, 1, Status::True, later)).unwrap();
    }
    let status = running.get("/clusters/cls-1", &[]).await.json()["status"].clone();
    let later = later.to_string();
    assert_eq!(
        status,
        json!({"phase": "Ready", "observedGeneration": 1, "lastTransitionTime": later, "lastUpdatedTime": later})
    );
}

#[tokio::test]
async fn older_lists_come_in_one_piece_filtered_by_labels() {
    let running = serve(fleet(Dialect::Seed)).await;
    let all = running.get("/clusters", &[("size", "1"), ("page", "7")]).await;
    assert_eq!(all.ids(), ["cls-1", "cls-2"]);
    assert_eq!(all.json().as_object().unwrap().len(), 1);
    let list =
        |labels: &'static str| running.get("/clusters", std::slice::from_ref(Box::leak(Box::new(("labels", labels)))));
    assert_eq!(list("cluster-type=gpu,region=us-east").await.ids(), ["cls-1"]);
    assert_eq!(list("region in (us-west,eu)").await.ids(), ["cls-2"]);
    assert_eq!(list("!cluster-type").await.ids(), ["cls-2"]);
    assert_eq!(list("region in (").await.status, 400);

    let many = Simulator::new(Dialect::Operator);
    many.seed("clusters", 2500, FleetState::Mixed).unwrap();
    let running = serve(many).await;
    let ids = running.get("/clusters", &[]).await.ids();
    assert!(ids.len() == 2500 && ids.is_sorted());
    let east = running.get("/clusters", &[("labels", "region=us-east,cluster-type=standalone")]).await.ids();
    assert_eq!(east.len(), 312);
}
