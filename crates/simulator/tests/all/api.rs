//! Rules of the API beyond the recording.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use watchfire_simulator::{Deleted, Dialect, Kind, NewReport, NewResource, Patch, Reported, Simulator, Status, What};

use crate::support::{BASE, serve};

fn now() -> Timestamp {
    Timestamp::from_second(watchfire_runtime::clock::now().as_second()).unwrap()
}

fn report(
    simulator: &Simulator,
    id: &str,
    adapter: &str,
    generation: i32,
    available: Status,
    at: Timestamp,
) -> Reported {
    simulator.report("clusters", id, NewReport::new(adapter, generation, available, at)).unwrap()
}

fn named(simulator: &Simulator, name: &str) -> String {
    simulator.create("clusters", NewResource::named(name)).unwrap().id
}

#[test]
fn one_silent_adapter_freezes_the_report_time() {
    let simulator = Simulator::default();
    let id = named(&simulator, "one");
    let start = now() - SignedDuration::from_secs(60);
    report(&simulator, &id, "validation", 1, Status::True, start);
    report(&simulator, &id, "dns", 1, Status::True, start);
    for second in 1..=30 {
        report(&simulator, &id, "validation", 1, Status::True, start + SignedDuration::from_secs(second));
    }
    let resource = simulator.get("clusters", &id).unwrap();
    assert!(resource.is_ready());
    assert_eq!(resource.condition("Reconciled").unwrap().last_updated_time, start);
    assert_eq!(
        resource.condition("ValidationSuccessful").unwrap().last_updated_time,
        start + SignedDuration::from_secs(30)
    );
}

#[test]
fn a_second_report_within_the_same_second_is_accepted_and_not_counted() {
    let simulator = Simulator::default();
    let (id, at) = (named(&simulator, "one"), now());
    report(&simulator, &id, "dns", 1, Status::False, at);
    let Reported::Accepted(stored) = report(&simulator, &id, "dns", 1, Status::True, at) else { panic!("discarded") };
    assert_eq!(stored.status("Available"), Some(Status::False));
    let resource = simulator.get("clusters", &id).unwrap();
    assert_eq!(resource.condition("DnsSuccessful").unwrap().status, Status::False);
}

#[test]
fn labels_change_the_generation_and_an_equal_spec_does_not() {
    let simulator = Simulator::default();
    let id = named(&simulator, "one");
    let labels = [("region".to_owned(), "eu".to_owned())].into();
    let patched = simulator.patch("clusters", &id, Patch { labels: Some(labels), spec: None }).unwrap();
    assert_eq!(patched.generation, 2);
    let patched = simulator.patch("clusters", &id, Patch::spec(&json!({}))).unwrap();
    assert_eq!(patched.generation, 2);
    assert_eq!(patched.condition("Reconciled").unwrap().observed_generation, 2);
}

#[test]
fn a_cluster_goes_after_its_node_pools_and_its_adapters() {
    let simulator = Simulator::default();
    let id = named(&simulator, "one");
    let pool = simulator.create_in("nodepools", Some(&id), NewResource::named("pool")).unwrap().id;
    let mut changes = simulator.changes();
    assert!(matches!(simulator.delete("clusters", &id).unwrap(), Deleted::Marked(_)));
    assert!(simulator.create_in("nodepools", Some(&id), NewResource::named("late")).is_err_and(|it| it.status == 409));

    let finalized = |adapter: &str, at: i64| {
        let mut report = NewReport::new(adapter, 2, Status::False, now() + SignedDuration::from_secs(at));
        let mut condition = report.conditions[0].clone();
        condition.ty = "Finalized".to_owned();
        report.conditions.push(condition);
        report
    };
    for adapter in ["validation", "dns"] {
        simulator.report("clusters", &id, finalized(adapter, 0)).unwrap();
    }
    let waiting = simulator.get("clusters", &id).unwrap();
    assert_eq!(waiting.condition("Reconciled").unwrap().reason.as_deref(), Some("ReconciledWaitingForChildren"));
    simulator.report("nodepools", &pool, finalized("validation", 0)).unwrap();
    assert!(simulator.get("nodepools", &pool).is_none());
    assert!(simulator.get("clusters", &id).is_some());
    simulator.report("clusters", &id, finalized("dns", 1)).unwrap();
    assert!(simulator.get("clusters", &id).is_none());

    let mut removed = Vec::new();
    while let Ok(change) = changes.try_recv() {
        if change.what == What::Removed {
            removed.push(change.plural);
        }
    }
    assert_eq!(removed, ["nodepools", "clusters"]);
}

#[tokio::test]
async fn kinds_without_adapters_have_no_conditions_and_go_at_once() {
    let kinds = vec![Kind::clusters(), Kind::new("WifConfig", "wifconfigs", &[])];
    let running = serve(Simulator::with_kinds(Dialect::Hyperfleet, kinds)).await;
    let body = json!({"kind": "WifConfig", "name": "wif", "spec": {"a": 1}});
    let created = running.send("POST", "/wifconfigs", &[], Some(&body)).await;
    assert_eq!((created.status, &created.json()["status"]), (201, &json!({"conditions": []})));
    let path = format!("/wifconfigs/{}", created.json()["id"].as_str().unwrap());
    assert_eq!(running.send("DELETE", &path, &[], None).await.status, 202);
    assert_eq!(running.get(&path, &[]).await.status, 404);
    assert_eq!(running.get("/nodepools", &[]).await.json()["code"], "HYPERFLEET-NTF-000");
}

#[tokio::test]
async fn what_cannot_be_created_is_explained() {
    let running = serve(Simulator::default()).await;
    let ok = json!({"kind": "Cluster", "name": "one"});
    assert_eq!(running.send("POST", "/clusters", &[], Some(&ok)).await.status, 201);
    for (path, body, status) in [
        ("/clusters", json!({"kind": "Cluster", "name": "one"}), 409),
        ("/clusters", json!({"kind": "Cluster", "name": "x"}), 400),
        ("/clusters", json!({"kind": "Cluster", "name": "Upper"}), 400),
        ("/clusters", json!({"kind": "NodePool", "name": "other"}), 400),
        ("/clusters", json!({"name": "other", "labels": {"a b": "c"}}), 400),
        ("/clusters", json!([]), 400),
        ("/nodepools", json!({"name": "pool"}), 400),
        ("/clusters/none/nodepools", json!({"name": "pool"}), 404),
        ("/gizmos", json!({}), 404),
    ] {
        let answer = running.send("POST", path, &[], Some(&body)).await;
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.text);
        assert_eq!(answer.content_type.as_deref(), Some("application/problem+json"));
    }
    assert_eq!(running.send("PUT", "/clusters", &[], Some(&ok)).await.status, 405);
}

#[tokio::test]
async fn reports_are_accepted_discarded_or_refused() {
    let running = serve(Simulator::default()).await;
    let id = named(&running.simulator, "one");
    let path = format!("/clusters/{id}/statuses");
    let at = |seconds: i64| (now() + SignedDuration::from_secs(seconds)).to_string();
    let all = json!([{"type": "Applied", "status": "True"}, {"type": "Available", "status": "True"},
        {"type": "Health", "status": "True"}]);
    let unknown = json!([{"type": "Applied", "status": "True"}, {"type": "Available", "status": "Unknown"},
        {"type": "Health", "status": "True"}]);
    let twice = json!([{"type": "Health", "status": "True"}, {"type": "Health", "status": "True"}]);
    for (generation, time, conditions, expected) in [
        (1, json!(at(-10)), &unknown, 201),
        (1, json!(at(-9)), &unknown, 204),
        (1, json!(at(0)), &all, 201),
        (1, json!(at(-5)), &all, 204),
        (2, json!(at(1)), &all, 204),
        (1, json!(at(299)), &all, 201),
        (1, json!(at(400)), &all, 400),
        (1, json!(at(-1900)), &all, 400),
        (1, json!("soon"), &all, 400),
        (1, Value::Null, &all, 204),
        (0, json!(at(0)), &all, 400),
        (1, json!(at(299)), &twice, 400),
        (1, json!(at(299)), &json!([{"type": "", "status": "True"}]), 400),
        (1, json!(at(299)), &json!([{"type": "Available", "status": "Maybe"}]), 400),
    ] {
        let body = json!({"adapter": "dns", "observed_generation": generation, "observed_time": time,
            "conditions": conditions});
        for method in ["PUT", "POST"].into_iter().take(if expected == 400 { 2 } else { 1 }) {
            let answer = running.send(method, &path, &[], Some(&body)).await;
            assert_eq!(answer.status, expected, "{body}: {}", answer.text);
        }
    }
    let nobody = json!({"observed_generation": 1, "observed_time": at(0), "conditions": all});
    assert_eq!(running.send("PUT", &path, &[], Some(&nobody)).await.status, 400);
    assert_eq!(running.send("PUT", "/clusters/none/statuses", &[], Some(&nobody)).await.status, 404);
}

#[tokio::test]
async fn node_pools_are_served_flat_and_nested() {
    let running = serve(Simulator::default()).await;
    let (one, two) = (named(&running.simulator, "one"), named(&running.simulator, "two"));
    let pool = running.simulator.create_in("nodepools", Some(&one), NewResource::named("pool")).unwrap();
    running.simulator.create_in("nodepools", Some(&two), NewResource::named("pool")).unwrap();
    assert_eq!(pool.href, format!("{BASE}/clusters/{one}/nodepools/{}", pool.id));
    assert_eq!(running.get("/nodepools", &[]).await.json()["total"], 2);
    let nested = running.get(&format!("/clusters/{one}/nodepools"), &[]).await;
    assert_eq!((nested.ids(), &nested.json()["total"]), (vec![pool.id.clone()], &json!(1)));
    assert_eq!(running.get(&format!("/clusters/{two}/nodepools/{}", pool.id), &[]).await.status, 404);
    assert_eq!(running.get(&format!("/nodepools/{}", pool.id), &[]).await.status, 200);
    let force = format!("/clusters/{one}/force-delete");
    assert_eq!(running.send("POST", &force, &[], None).await.status, 204);
    assert_eq!(running.get("/nodepools", &[]).await.json()["total"], 1);
}

#[tokio::test]
async fn pages_hold_every_resource_once() {
    for count in [0, 1, 20, 21, 100, 101, 250] {
        let running = serve(Simulator::default()).await;
        let mut expected: Vec<String> = (0..count).map(|i| named(&running.simulator, &format!("c-{i:04}"))).collect();
        let mut by_key = Vec::new();
        loop {
            let search = format!("id > '{}'", by_key.last().map_or("", String::as_str));
            let page = running.get("/clusters", &[("size", "100"), ("order", "id asc"), ("search", &search)]).await;
            assert_eq!(page.json()["total"], count - by_key.len(), "{count}");
            let ids = page.ids();
            if ids.is_empty() {
                break;
            }
            by_key.extend(ids);
        }
        assert_eq!(by_key, expected);
        let mut by_offset = Vec::new();
        for page in 1..=13 {
            by_offset.extend(running.get("/clusters", &[("page", &page.to_string())]).await.ids());
        }
        expected.reverse();
        assert_eq!(by_offset, expected);
    }
}

#[tokio::test]
async fn lists_are_ordered_projected_and_refused() {
    let running = serve(Simulator::default()).await;
    for name in ["bbb", "aaa", "ccc"] {
        named(&running.simulator, name);
    }
    let names = |answer: &crate::support::Answer| {
        answer.json()["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let by_name = running.get("/clusters", &[("order", "generation,name desc"), ("fields", "name")]).await;
    assert_eq!(names(&by_name), ["ccc", "bbb", "aaa"]);
    assert_eq!(by_name.json()["items"][0].as_object().unwrap().len(), 2);
    let parts = running.get("/clusters", &[("fields", "status.conditions.*,owner_references"), ("size", "1")]).await;
    assert!(parts.json()["items"][0]["status"]["conditions"].is_array());
    assert_eq!(running.get("/nodepools", &[("fields", "status")]).await.status, 200, "an empty page refuses no field");
    let oldest = running.get("/clusters", &[("order", "created_time asc, id asc"), ("size", "2"), ("page", "2")]).await;
    assert_eq!(names(&oldest), ["ccc"]);
    for (key, value) in [
        ("size", "0"),
        ("size", "101"),
        ("size", "many"),
        ("page", "0"),
        ("page", "100001"),
        ("order", "colour"),
        ("order", "id sideways"),
        ("search", "labels.a-b='c'"),
        ("search", "not labels.a='b'"),
        ("search", "id >"),
        ("fields", "id,status"),
        ("fields", "owner_references.*"),
        ("fields", "colour"),
    ] {
        let answer = running.get("/clusters", &[(key, value)]).await;
        assert_eq!((answer.status, &answer.json()["status"]), (400, &json!(400)), "{key}={value}");
    }
}
