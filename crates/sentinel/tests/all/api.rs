//! What the API says when it does not answer as it should: each a clear message with what to do, none a panic, and
//! none that stops the others.

use std::time::Duration;

use watchfire_delivery::EventSink;
use watchfire_runtime::chain;
use watchfire_runtime::health::Status;
use watchfire_sentinel::config::Form;
use watchfire_simulator::{Dialect, Fault, FaultBody, NewResource, Scope, Times};

use crate::support::{Api, Bench, Memory, Running, minimal};
use std::sync::Arc;

fn bench(url: &str) -> (Bench, Arc<Memory>) {
    let memory = Arc::new(Memory::default());
    (Bench::new(&minimal(url), Arc::clone(&memory) as Arc<dyn EventSink>), memory)
}

/// What one cycle says when every list is answered with this fault.
async fn complaint(fault: Fault) -> (String, &'static str, Bench) {
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.create("clusters", NewResource::named("alpha")).unwrap();
    api.fleet.faults().arm(Scope::Lists, fault, Times::Always);
    let memory = Arc::new(Memory::default());
    // 64 MiB take their time where every core is busy.
    let config = minimal(&api.url).replace("timeout: 10s", "timeout: 2m");
    let mut bench = Bench::new(&config, Arc::clone(&memory) as Arc<dyn EventSink>);
    let error = bench.cycle().await.unwrap_err();
    assert!(memory.events().is_empty());
    (format!("{}; {}", chain(&error), error.hint(Form::Flat)), error.kind(), bench)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_says_why_and_what_to_check() {
    for (status, kind, parts) in [
        (401, "auth_error", ["status 401", "HYPERFLEET_API_TOKEN"]),
        (403, "auth_error", ["status 403", "may not list this"]),
        (404, "fetch_error", ["status 404", "check resource_type"]),
        (400, "fetch_error", ["status 400", "does not take this query"]),
    ] {
        let (text, said, bench) = complaint(Fault::status(status)).await;
        assert_eq!(said, kind);
        for part in parts {
            assert!(text.contains(part), "{part} not in {text}");
        }
        assert_eq!(bench.metric("hyperfleet_sentinel_api_errors_total", &[kind]), Some(1.0));
        let ready = bench.health.readiness();
        assert_eq!(ready.checks["hyperfleet_api"].status, Status::Error);
        assert!(ready.checks["hyperfleet_api"].message.contains(parts[0]), "{ready:?}");
        assert_eq!(bench.health.liveness().status, Status::Ok);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_name_the_keys_that_the_file_has() {
    for (file, key) in [
        ("hyperfleet_api: {endpoint: 'URL'}", "hyperfleet_api.endpoint"),
        ("clients: {hyperfleet_api: {base_url: 'URL'}}", "clients.hyperfleet_api.base_url"),
    ] {
        for fault in [Fault::status(404), Fault::status(302), Fault::body(FaultBody::Html)] {
            let api = Api::start(Dialect::Hyperfleet).await;
            api.fleet.faults().arm(Scope::Lists, fault, Times::Always);
            let file = format!("resource_type: clusters\n{}\n", file.replace("URL", &api.url));
            let mut bench = Bench::new(&file, Arc::new(Memory::default()));
            bench.cycle().await.unwrap_err();
            let told = bench.health.readiness().checks["hyperfleet_api"].message.clone();
            assert!(told.contains(&format!(" {key}")), "{key} not in: {told}");
        }
    }
    let slow = watchfire_sentinel::api::Error::Timeout { url: "http://api".to_owned(), after: Duration::from_secs(1) };
    assert!(slow.hint(Form::Flat).ends_with("raise hyperfleet_api.timeout"));
    assert!(slow.hint(Form::HyperFleet).ends_with("raise clients.hyperfleet_api.timeout"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_page_instead_of_json_is_recognised() {
    let (text, ..) = complaint(Fault::body(FaultBody::Html)).await;
    assert!(text.contains("text/html, not JSON") && text.contains("login page"), "{text}");
    assert!(!text.contains("<html"), "no body in a message: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_no_list_is_refused() {
    let (text, ..) = complaint(Fault::body(FaultBody::Empty)).await;
    assert!(text.contains("not JSON") || text.contains("read the list"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_answer_is_read_to_a_cap() {
    for body in [FaultBody::Gigabyte, FaultBody::Endless] {
        let (text, ..) = complaint(Fault::body(body)).await;
        for part in ["the answer is larger than 64 MiB", "the API answers without paging; select fewer resources"] {
            assert!(text.contains(part), "{part} not in {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_passes_is_tried_again_within_the_cycle() {
    for fault in [
        Fault::status(500),
        Fault::status(503),
        Fault::Close,
        Fault::body(FaultBody::Truncated),
        Fault::body(FaultBody::Cut),
        Fault::Answer { status: 429, retry_after: Some("1".into()), body: FaultBody::Problem },
    ] {
        let api = Api::start(Dialect::Hyperfleet).await;
        api.fleet.create("clusters", NewResource::named("alpha")).unwrap();
        let (mut bench, memory) = bench(&api.url);
        api.fleet.faults().arm(Scope::Lists, fault.clone(), Times::Next(1));
        let cycle = bench.cycle().await.unwrap();
        assert_eq!((cycle.published, memory.events().len()), (1, 1), "{fault:?}");
        if matches!(fault, Fault::Answer { status: 429, .. }) {
            let lists = api.fleet.faults().lists();
            assert!(lists[1].at.duration_since(lists[0].at).as_millis() >= 1000, "Retry-After was undercut");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_asks_for_a_day_is_left_alone_for_five_minutes() {
    let api = Api::start(Dialect::Hyperfleet).await;
    let (mut bench, _) = bench(&api.url);
    let day = Fault::Answer { status: 503, retry_after: Some("86400".into()), body: FaultBody::Problem };
    api.fleet.faults().arm(Scope::Lists, day, Times::Always);
    let error = bench.cycle().await.unwrap_err();
    assert_eq!(error.retry_after(), Some(std::time::Duration::from_mins(5)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_content_type_alone_is_no_reason_to_refuse() {
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.create("clusters", NewResource::named("alpha")).unwrap();
    api.fleet.faults().arm(Scope::Lists, Fault::body(FaultBody::WrongType), Times::Always);
    let (mut bench, _) = bench(&api.url);
    assert_eq!(bench.cycle().await.unwrap().published, 1);
}

/// What lasts is tried for half a minute before the cycle ends; readiness says it from the first attempt on.
#[tokio::test(flavor = "multi_thread")]
async fn what_lasts_is_told_before_the_retries_are_used_up() {
    for (fault, parts) in [
        (None, ["reach http://127.0.0.1:9/api/hyperfleet/v1/clusters", "DNS, and that the API is running"]),
        (Some(Fault::status(500)), ["/api/hyperfleet/v1/clusters: status 500", "check the API's log for this request"]),
        (Some(Fault::status(503)), ["/api/hyperfleet/v1/clusters: status 503", "check the API's log for this request"]),
        (Some(Fault::status(429)), ["/api/hyperfleet/v1/clusters: status 429", "raise poll_interval or its limits"]),
        (Some(Fault::Close), ["reach http://127.0.0.1", "that the API is running"]),
        (Some(Fault::body(FaultBody::Truncated)), ["read the list of http://127.0.0.1", "the answer breaks off"]),
        (Some(Fault::body(FaultBody::Cut)), ["read the answer of http://127.0.0.1", "limits of proxies in between"]),
    ] {
        let api = Api::start(Dialect::Hyperfleet).await;
        api.fleet.create("clusters", NewResource::named("alpha")).unwrap();
        let url = fault.as_ref().map_or("http://127.0.0.1:9", |_| api.url.as_str());
        if let Some(fault) = fault.clone() {
            api.fleet.faults().arm(Scope::Lists, fault, Times::Always);
        }
        let (mut bench, memory) = bench(url);
        let health = bench.health.clone();
        let _running = Running::start(async move {
            let _refused = bench.cycle().await;
        });
        watchfire_testkit::eventually(Duration::from_secs(10), &format!("{fault:?} is told"), async || {
            let message = health.readiness().checks["hyperfleet_api"].message.clone();
            parts.iter().all(|part| message.contains(part)).then_some(())
        })
        .await;
        assert_eq!(health.liveness().status, Status::Ok);
        assert!(memory.events().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_resource_never_stops_the_others() {
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.create("clusters", NewResource::named("alpha")).unwrap();
    for item in [
        r#"{"kind":"Cluster","generation":1}"#,
        "17",
        r#"{"id":"bad-time","status":{"conditions":[{"type":"Reconciled","status":"True","last_updated_time":"soon"}]}}"#,
        r#"{"id":"bad-generation","generation":"two"}"#,
        r#"{"id":"no-status","kind":"Cluster","generation":1}"#,
    ] {
        api.fleet.faults().inject(item);
    }
    let (mut bench, memory) = bench(&api.url);
    let cycle = bench.cycle().await.unwrap();
    assert_eq!((cycle.published, cycle.failed), (2, 0), "alpha and the one without a status");
    assert_eq!(bench.metric("hyperfleet_sentinel_resources_unreadable_total", &[]), Some(4.0));
    assert_eq!(memory.events().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_file_is_read_again_when_it_changes() {
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.create("clusters", NewResource::named("alpha")).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "first").unwrap();
    let config = format!("{}  token_file: {}\n", minimal(&api.url), file.path().display());
    let mut bench = Bench::new(&config, Arc::new(Memory::default()));
    api.fleet.faults().require_token(Some("first".into()));
    assert_eq!(bench.cycle().await.unwrap().published, 1);
    api.fleet.faults().require_token(Some("second-token".into()));
    assert_eq!(bench.cycle().await.unwrap_err().kind(), "auth_error");
    std::fs::write(file.path(), "second-token\n").unwrap();
    assert_eq!(bench.cycle().await.unwrap().seen, 1);
    std::fs::remove_file(file.path()).unwrap();
    let error = bench.cycle().await.unwrap_err();
    assert!(chain(&error).contains("read the API token"), "{}", chain(&error));
    assert_eq!(error.kind(), "auth_error");
}
