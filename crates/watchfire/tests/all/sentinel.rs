//! `watchfire sentinel`: a process against a simulated API, with real subscribers.

mod brokers;
mod odd;
mod restart;
mod secrets;

use std::collections::HashMap;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use watchfire_simulator::{Dialect, Fault, NewResource, Patch, Scope, Simulator, Times};
use watchfire_testkit::{Answer, Mode, Proxy, Receiver, Request, eventually};

use crate::support::{Api, DEADLINE, Setup, get, run, text};

/// A fleet with this many clusters that nobody has reported on.
async fn api(clusters: usize) -> Api {
    let fleet = Simulator::new(Dialect::Hyperfleet);
    for index in 0..clusters {
        fleet.create("clusters", NewResource::named(format!("cluster-{index}")).label("region", "us-east")).unwrap();
    }
    Api::serve(fleet).await
}

/// The events that a receiver got: the ids by the resource that they are about.
fn events(requests: &[Request]) -> HashMap<String, Vec<String>> {
    let mut events: HashMap<String, Vec<String>> = HashMap::new();
    for request in requests.iter().filter(|request| request.method == "POST") {
        let event: Value = serde_json::from_slice(&request.body).expect("JSON");
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        events.entry(text(&event["data"]["id"])).or_default().push(text(&event["id"]));
    }
    events
}

#[tokio::test]
async fn events_arrive_at_the_subscribers_of_the_embedded_broker() {
    let (api, receiver) = (api(3).await, Receiver::start().await);
    let setup = Setup::new(&api.url, "poll_interval: 200ms", &format!("{}/events", receiver.url()));
    let sentinel = setup.start().await;
    let requests = receiver.wait_for(3).await;
    let event: Value = serde_json::from_slice(&requests[0].body).unwrap();
    assert_eq!(requests[0].header("content-type"), "application/cloudevents+json");
    assert_eq!(requests[0].uri.path(), "/events");
    for (name, value) in [
        ("specversion", "1.0"),
        ("type", "com.redhat.hyperfleet.cluster.reconcile"),
        ("source", "hyperfleet-sentinel"),
        ("datacontenttype", "application/json"),
    ] {
        assert_eq!(event[name], value, "{event}");
    }
    assert!(event["time"].is_string() && event["data"]["generation"] == 1 && event["data"]["kind"] == "Cluster");
    assert_eq!(events(&requests).len(), 3);

    let id = event["data"]["id"].as_str().unwrap().to_owned();
    api.fleet.patch("clusters", &id, Patch::spec(&serde_json::json!({"replicas": 7}))).unwrap();
    let changed = async || events(&receiver.requests()).get(&id).filter(|ids| ids.len() == 2).cloned();
    let ids = eventually(DEADLINE, "an event for the new spec", changed).await;
    assert_ne!(ids[0], ids[1]);
    sentinel.readiness(200).await;
    let said = sentinel.stop().await;
    assert!(said.contains("\"stopped\""), "{said}");
}

#[tokio::test]
async fn a_port_that_is_taken_is_told_before_any_work() {
    let (api, receiver) = (api(1).await, Receiver::start().await);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (flag, purpose) in [("--health-bind-address", "health"), ("--metrics-bind-address", "metrics")] {
        let setup = Setup::new(&api.url, "", receiver.url()).arg(flag, &address);
        let output = tokio::time::timeout(DEADLINE, setup.command().output()).await.unwrap().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("listen on {address} for {purpose}")), "{said}");
        assert!(said.contains("is another process using it?") && said.contains("Address already in use"), "{said}");
        assert!(!setup.folder.path().join("broker.db").exists(), "no store was made");
    }
    assert!(api.fleet.faults().requests().is_empty() && receiver.requests().is_empty(), "nobody was asked");
}

#[tokio::test]
async fn an_api_that_is_down_at_the_start_is_a_reason_not_to_be_ready_and_never_to_die() {
    let (api, receiver) = (api(2).await, Receiver::start().await);
    let proxy = Proxy::start(api.url.trim_start_matches("http://").parse().unwrap()).await;
    proxy.set(Mode::Refuse).await;
    let endpoint = format!("http://{}", proxy.address());
    let sentinel = Setup::new(&endpoint, "poll_interval: 200ms", receiver.url()).start().await;
    let down = async || {
        let (_, body) = get(&format!("{}/readyz", sentinel.health)).await;
        body.contains("check hyperfleet_api.endpoint").then_some(body)
    };
    let body = eventually(DEADLINE, "readiness with the reason", down).await;
    let report: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&report["status"], &report["checks"]["hyperfleet_api"]["status"]), (&"error".into(), &"error".into()));
    assert!(body.contains("Connection refused") && body.contains(&proxy.address().to_string()), "{body}");
    assert_eq!(get(&format!("{}/readyz", sentinel.health)).await.0, 503);
    assert_eq!(get(&format!("{}/healthz", sentinel.health)).await.0, 200);

    proxy.set(Mode::Pass).await;
    sentinel.readiness(200).await;
    receiver.wait_for(2).await;
    sentinel.stop().await;
}

#[tokio::test]
async fn a_stop_does_not_wait_for_an_api_that_is_away() {
    let (api, receiver) = (Receiver::start().await, Receiver::start().await);
    for answer in [Answer::hang(), Answer::status(503)] {
        api.take();
        api.otherwise(answer);
        let sentinel = Setup::new(api.url(), "", receiver.url()).arg("--grace-period", "3s").start().await;
        // With 503, between two attempts.
        api.wait_for(1).await;
        sentinel.stop().await;
    }
}

#[tokio::test]
async fn health_and_metrics_share_a_listener_or_have_one_each() {
    let (api, receiver) = (api(1).await, Receiver::start().await);
    let one = Setup::new(&api.url, "", receiver.url()).start().await;
    assert_eq!(one.health, one.metrics);
    let two = Setup::new(&api.url, "", receiver.url()).arg("--metrics-bind-address", "127.0.0.2:0").start().await;
    assert_ne!(two.health, two.metrics);
    for sentinel in [&one, &two] {
        sentinel.readiness(200).await;
        let (status, metrics) = get(&format!("{}/metrics", sentinel.metrics)).await;
        assert!(status == 200 && metrics.contains("hyperfleet_sentinel_poll_duration_seconds_bucket"), "{metrics}");
        let (status, page) = get(&sentinel.health).await;
        assert!(status == 200 && page.contains("clusters (all)"), "{page}");
    }
    assert_eq!(get(&format!("{}/metrics", two.health)).await.0, 404);
    assert_eq!(get(&format!("{}/readyz", two.metrics)).await.0, 404);
}

/// The operator's specification lists these; the service's names some of them, and no others.
#[tokio::test]
async fn metrics_have_the_names_types_and_labels_of_both_specifications() {
    let (api, receiver) = (api(1).await, Receiver::start().await);
    let selector = "resource_selector: [{label: region, value: us-east}]";
    let sentinel = Setup::new(&api.url, selector, receiver.url()).start().await;
    receiver.wait_for(1).await;
    let (_, served) = get(&format!("{}/metrics", sentinel.metrics)).await;
    for (name, kind, labels) in [
        ("pending_resources", "gauge", &[][..]),
        ("events_published_total", "counter", &[]),
        ("resources_skipped_total", "counter", &["ready_state=\"ready\""]),
        ("resources_skipped_total", "counter", &["ready_state=\"not_ready\""]),
        ("reconcile_duration_seconds", "histogram", &[]),
        ("api_errors_total", "counter", &["operation=\"fetch_resources\""]),
        ("broker_errors_total", "counter", &["broker_type=\"http\""]),
        ("config_reloads_total", "counter", &[]),
    ] {
        let name = format!("hyperfleet_sentinel_{name}");
        assert!(served.contains(&format!("# TYPE {name} {kind}\n")), "{name} is no {kind}:\n{served}");
        let sample = if kind == "histogram" { format!("{name}_bucket{{") } else { format!("{name}{{") };
        let has = |line: &str| {
            let mut labels = labels.iter().chain(&["shard=\"region=us-east\"", "resource_type=\"clusters\""]);
            line.starts_with(&sample) && labels.all(|label| line.contains(label))
        };
        assert!(served.lines().any(has), "{name} {labels:?} is not in:\n{served}");
    }
    sentinel.stop().await;
}

#[tokio::test]
async fn log_lines_are_json_with_the_fields_that_dashboards_know() {
    let (api, receiver) = (api(1).await, Receiver::start().await);
    let setup = Setup::new(&api.url, "poll_interval: 200ms", receiver.url()).arg("--log-level", "debug");
    let sentinel = setup.env("HOSTNAME", "sentinel-0").start().await;
    sentinel.process.line(&["event published"]).await;
    sentinel.readiness(200).await;
    let said = sentinel.stop().await;
    let lines: Vec<Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect();
    for line in &lines {
        for (name, value) in
            [("component", "sentinel"), ("hostname", "sentinel-0"), ("version", env!("CARGO_PKG_VERSION"))]
        {
            assert_eq!(line[name], value, "{line}");
        }
        line["timestamp"].as_str().expect("a time").parse::<jiff::Timestamp>().expect("a time in RFC 3339");
        assert!(matches!(line["level"].as_str(), Some("error" | "warn" | "info" | "debug")), "{line}");
        assert!(line["message"].is_string(), "{line}");
    }
    let find = |message: &str| lines.iter().find(|line| line["message"] == message).expect(message);
    let published = find("event published");
    assert_eq!(published["decision_reason"], "generation changed - new spec to reconcile", "{published}");
    assert_eq!((&published["resource_type"], &published["generation"]), (&"clusters".into(), &1.into()), "{published}");
    assert!(published["id"].is_string() && published["event"].is_string(), "{published}");
    let started = find("sentinel started");
    assert_eq!((&started["broker"], &started["topic"]), (&"http".into(), &"hyperfleet-events".into()), "{started}");
    let (started, stopped) = (lines.iter().position(|l| l["message"] == "sentinel started"), lines.len() - 1);
    assert!(started < Some(stopped) && lines[stopped]["message"] == "stopped");
}

#[tokio::test]
async fn text_logs_are_for_people() {
    let (api, receiver) = (api(1).await, Receiver::start().await);
    let setup = Setup::new(&api.url, "", receiver.url()).env("LOG_FORMAT", "text").env("HOSTNAME", "here");
    let process = crate::support::Process::start(setup.command());
    let line = process.line(&["event published"]).await;
    assert!(line.contains(" INFO  [sentinel] [") && line.contains("] [here] event published "), "{line}");
}

#[tokio::test]
async fn a_log_that_nobody_reads_does_not_end_the_service() {
    let (api, receiver) = (api(1).await, Receiver::start().await);
    let setup = Setup::new(&api.url, "poll_interval: 100ms", receiver.url()).arg("--log-level", "debug");
    let mut command = setup.command();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    receiver.wait_for(1).await;
    let (id, _) = events(&receiver.requests()).into_iter().next().unwrap();
    api.fleet.patch("clusters", &id, Patch::spec(&serde_json::json!({"replicas": 2}))).unwrap();
    receiver.wait_for(2).await;
    assert!(child.try_wait().unwrap().is_none(), "it runs");
}

/// No limit but a generous one: what it takes on a release build is in the benches.
#[tokio::test]
async fn it_is_ready_soon_after_its_start() {
    let (api, receiver) = (api(1).await, Receiver::start().await);
    let mut best = Duration::MAX;
    for _ in 0..3 {
        let sentinel = Setup::new(&api.url, "", receiver.url()).start().await;
        sentinel.readiness(200).await;
        best = best.min(sentinel.process.begun.elapsed());
    }
    println!("start to ready, the best of three: {} ms", best.as_millis());
    assert!(best < Duration::from_secs(3), "{best:?}");
}

#[tokio::test]
async fn a_store_that_another_sentinel_holds_is_told_with_what_to_do() {
    let (api, receiver) = (api(1).await, Receiver::start().await);
    let first = Setup::new(&api.url, "", receiver.url());
    let holder = first.start().await;
    let store = first.folder.path().join("broker.db").display().to_string();
    let second = Setup::new(&api.url, "", receiver.url()).env("BROKER_HTTP_STORE", &store);
    let output = tokio::time::timeout(DEADLINE, second.command().output()).await.unwrap().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("another service has it open; stop the other process, or give each its own file"), "{said}");
    holder.stop().await;
}

#[tokio::test]
async fn settings_of_the_broker_may_stand_in_a_mounted_folder() {
    let (api, receiver) = (api(1).await, Receiver::start().await);
    let mut setup = Setup::new(&api.url, "", receiver.url());
    let mounted = setup.folder.path().join("mounted");
    std::fs::create_dir(&mounted).unwrap();
    for (name, value) in setup.env.drain(..) {
        std::fs::write(mounted.join(name), value).unwrap();
    }
    let setup = setup.arg("--broker-config", &mounted.display().to_string());
    let sentinel = setup.start().await;
    receiver.wait_for(1).await;
    sentinel.stop().await;
    let file = &setup.args[1];
    let output =
        run(&["config", "check", "--config", file], &[("BROKER_CONFIG", &mounted.display().to_string())]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[tokio::test]
async fn what_lasts_for_many_cycles_is_told_once() {
    let fleet = Simulator::new(Dialect::Hyperfleet);
    for name in ["fine", "odd"] {
        fleet.create("clusters", NewResource::named(name)).unwrap();
    }
    let api = Api::serve(fleet).await;
    let decision =
        "message_decision:\n  params: []\n  result: resource.name == \"fine\" || resource.spec.replicas > 2.0";
    let setup = Setup::new(&api.url, &format!("poll_interval: 50ms\n{decision}"), "http://nobody");
    let nobody = setup.env("BROKER_TYPE", "rabbitmq").env("BROKER_URL", "amqp://127.0.0.1:9/");
    let sentinel = nobody.start().await;
    let asked = async |count: usize| {
        api.fleet.faults().forget_requests();
        let lists = async || (api.fleet.faults().lists().len() >= count).then_some(());
        eventually(DEADLINE, "lists are asked for", lists).await;
    };
    asked(8).await;
    api.fleet.faults().arm(Scope::Lists, Fault::status(403), Times::Always);
    asked(8).await;
    let said = sentinel.stop().await;
    for line in [
        "the message decision fails on a resource, skipping it",
        "the broker does not take events, deciding again every poll interval",
        "cannot list resources, trying again every poll interval",
    ] {
        assert_eq!(said.matches(line).count(), 1, "{line}: {said}");
    }
}

#[tokio::test]
async fn whoever_knows_of_a_change_need_not_wait_for_the_next_poll() {
    let fleet = Simulator::new(Dialect::Hyperfleet);
    fleet.create("clusters", NewResource::named("alpha")).unwrap();
    let (api, receiver) = (Api::serve(fleet).await, Receiver::start().await);
    let recording = tempfile::tempdir().unwrap();
    let setup = Setup::new(&api.url, "poll_interval: 1h", receiver.url());
    // One that records has its lists to itself, and hears of it all the same.
    let setup = setup.arg("--record", &recording.path().join("of").display().to_string());
    let sentinel = setup.start().await;
    receiver.wait_for(1).await;
    let id = api.fleet.create("clusters", NewResource::named("beta")).unwrap().id;
    let hook = format!("{}/sentinel/poll", sentinel.health);
    assert!(get(&hook).await.1.starts_with("POST /sentinel/poll makes each sentinel"), "a look changes nothing");
    let answer = reqwest::Client::new().post(&hook).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.text().await.unwrap().as_str()), (202, "polling\n"));
    receiver.wait_for(2).await;
    let event: Value = serde_json::from_slice(&receiver.requests()[1].body).unwrap();
    assert_eq!(event["data"]["id"], id);
    sentinel.stop().await;
}
