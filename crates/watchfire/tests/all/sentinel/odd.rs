//! An API that serves what it should not: each oddity is told once, with the resource that has it, and none is held in
//! memory.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use watchfire_runtime::clock;
use watchfire_simulator::{Dialect, Fault, FaultBody, NewReport, NewResource, Scope, Simulator, Status, Times};
use watchfire_testkit::{Answer, Receiver, eventually};

use super::api;
use crate::support::{Api, DEADLINE, Setup};

/// A ready resource as the API would serve it that was reported on at that time.
fn ready(id: &str, report: Timestamp, observed: i64) -> String {
    let conditions = json!([
        {"type": "Reconciled", "status": "True", "last_updated_time": report.to_string()},
        {"type": "OddSuccessful", "status": "True", "observed_generation": observed},
    ]);
    json!({"id": id, "kind": "Cluster", "generation": 1, "status": {"conditions": conditions}}).to_string()
}

#[tokio::test]
async fn what_is_odd_about_a_resource_is_told_once_with_its_id() {
    let (now, seconds) = (clock::now(), SignedDuration::from_secs);
    let fleet = Simulator::new(Dialect::Hyperfleet);
    let behind = fleet.create("clusters", NewResource::named("behind")).unwrap().id;
    for (adapter, at) in [("validation", now), ("dns", now - seconds(90))] {
        fleet.report_at("clusters", &behind, NewReport::new(adapter, 1, Status::False, at), at).unwrap();
    }
    let nested = format!("{}{}", "[".repeat(500), "]".repeat(500));
    for item in [
        ready("early", now + seconds(3600), 1),
        ready("ahead", now, 7),
        r#"{"kind":"Cluster","generation":1}"#.to_owned(),
        format!(r#"{{"id":"deep","kind":"Cluster","generation":1,"spec":{{"x":{nested}}}}}"#),
    ] {
        fleet.faults().inject(item);
    }
    let (api, receiver) = (Api::serve(fleet).await, Receiver::start().await);
    let config = "poll_interval: 50ms\nmax_age_not_ready: 200ms\nmessage_data: {id: .id, spec: .spec}";
    let sentinel = Setup::new(&api.url, config, receiver.url()).start().await;
    sentinel.process.line(&["an adapter does not report on events"]).await;
    api.fleet.faults().forget_requests();
    let polls = async || (api.fleet.faults().lists().len() >= 8).then_some(());
    eventually(DEADLINE, "more polls", polls).await;
    let said = sentinel.stop().await;
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for (message, field, value) in [
        (
            "skipping a resource that cannot be read, report it to the API's owners",
            "error",
            "read a resource without an id",
        ),
        ("skipping a resource that cannot be read", "id", "deep"),
        ("observed_generation ahead of generation - potential API issue", "id", "ahead"),
        (
            "report time in the future, going by our own events until it has passed; check the adapters' clocks",
            "id",
            "early",
        ),
        (
            "an adapter does not report on events, and resources wait for it; check that it runs and gets them",
            "adapter",
            "dns",
        ),
    ] {
        let told: Vec<_> = lines.iter().filter(|line| line["message"] == message).collect();
        assert_eq!(told.len(), 1, "{message}: {said}");
        assert_eq!((&told[0]["level"], &told[0][field]), (&json!("warn"), &json!(value)), "{}", told[0]);
        if field == "adapter" {
            assert_eq!((&told[0]["id"], &told[0]["resources"]), (&json!(behind), &json!(1)), "{}", told[0]);
        }
    }
}

#[tokio::test]
async fn a_list_that_is_shorter_than_its_own_count_is_told_once_and_when_it_is_whole_again() {
    let list = |total: u32| {
        let list = json!({"items": [{"id": "a", "kind": "Cluster", "generation": 1}], "page": 1, "total": total});
        Answer::status(200).header("content-type", "application/json").body(list.to_string())
    };
    let (api, receiver) = (Receiver::start().await, Receiver::start().await);
    api.otherwise(list(40));
    let sentinel = Setup::new(api.url(), "poll_interval: 50ms", receiver.url()).start().await;
    sentinel.process.line(&["the API counts resources that it does not list", "\"unlisted\":39"]).await;
    let polls = async || (api.requests().len() >= 20).then_some(());
    eventually(DEADLINE, "more polls", polls).await;
    api.otherwise(list(1));
    sentinel.process.line(&["the API lists all that it counts again"]).await;
    let said = sentinel.stop().await;
    assert_eq!(said.matches("it does not list").count(), 1, "{said}");
    assert!(receiver.posts() > 0, "what is listed is published");
}

#[tokio::test]
async fn a_gigabyte_in_one_answer_is_refused_by_its_size_and_never_in_memory() {
    const MIB: u64 = 1024;
    let (api, receiver) = (api(1).await, Receiver::start().await);
    api.fleet.faults().arm(Scope::Lists, Fault::body(FaultBody::Gigabyte), Times::Always);
    let setup = Setup::new(&api.url, "poll_interval: 100ms", receiver.url()).arg("--hyperfleet-api-timeout", "2m");
    let sentinel = setup.start().await;
    let line = sentinel.process.line(&["cannot list resources"]).await;
    let line: Value = serde_json::from_str(&line).expect("JSON");
    assert!(line["error"].as_str().unwrap().ends_with(": the answer is larger than 64 MiB"), "{line}");
    assert_eq!(
        line["hint"], "the API answers without paging; select fewer resources, or use an API that pages",
        "{line}"
    );
    sentinel.readiness(503).await;
    // What was read may be copied once while it grows.
    let peak = sentinel.process.peak_memory();
    assert!(peak < 256 * MIB, "{} MiB", peak / MIB);
    sentinel.stop().await;
}
