//! The switches that make the API misbehave.

use std::time::{Duration, Instant};

use http::StatusCode;
use watchfire_simulator::{Fault, FaultBody, NewResource, Scope, Simulator, Times};

use crate::support::{Running, answer, serve};

async fn one_cluster() -> Running {
    let simulator = Simulator::default();
    simulator.create("clusters", NewResource::named("one")).unwrap();
    serve(simulator).await
}

#[tokio::test]
async fn faults_strike_as_often_as_they_were_armed() {
    let running = one_cluster().await;
    let faults = running.simulator.faults();
    faults.arm(Scope::Lists, Fault::status(500), Times::Next(2));
    let retry_after = Some("7".to_owned());
    faults.arm(Scope::Lists, Fault::Answer { status: 429, retry_after, body: FaultBody::Empty }, Times::Next(1));
    for expected in [500, 500] {
        let answer = running.get("/clusters", &[]).await;
        assert_eq!((answer.status, answer.content_type.as_deref()), (expected, Some("application/problem+json")));
    }
    let limited = running.request("GET", "/clusters").send().await.unwrap();
    assert_eq!(
        (limited.status(), limited.headers()["retry-after"].as_bytes()),
        (StatusCode::TOO_MANY_REQUESTS, &b"7"[..])
    );
    assert_eq!(running.get("/clusters", &[]).await.status, 200);
    faults.arm(Scope::All, Fault::status(503), Times::Always);
    assert_eq!(running.get("/clusters", &[]).await.status, 503);
    assert_eq!(running.get("/clusters/x", &[]).await.status, 503);
    faults.clear();
    assert_eq!(running.get("/clusters", &[]).await.status, 200);
    assert_eq!(faults.lists().len(), 6);
    assert_eq!(faults.requests().len(), 7);
}

#[tokio::test]
async fn bodies_are_wrong_in_every_way() {
    let running = one_cluster().await;
    let faults = running.simulator.faults();
    let right = running.get("/clusters", &[]).await.text;
    let strike = async |body| {
        faults.arm(Scope::Lists, Fault::body(body), Times::Next(1));
        answer(running.request("GET", "/clusters")).await
    };
    assert_eq!(strike(FaultBody::Html).await.unwrap().content_type.as_deref(), Some("text/html"));
    assert_eq!(strike(FaultBody::Empty).await.unwrap().text, "");
    let typed = strike(FaultBody::WrongType).await.unwrap();
    assert_eq!((typed.content_type.as_deref(), typed.text == right), (Some("text/plain"), true));
    assert_eq!(strike(FaultBody::Truncated).await.unwrap().text, right[..right.len() / 2]);
    assert!(strike(FaultBody::Garbled).await.unwrap().text.contains('\u{FFFD}'));
    strike(FaultBody::Cut).await.unwrap_err();
    for body in [FaultBody::Gigabyte, FaultBody::Endless] {
        faults.arm(Scope::Lists, Fault::body(body), Times::Next(1));
        let mut response = running.request("GET", "/clusters").send().await.unwrap();
        let mut received = 0;
        while received < 32 * 1024 * 1024 {
            received += response.chunk().await.unwrap().unwrap().len();
        }
    }
}

#[tokio::test]
async fn a_closed_connection_gives_no_answer() {
    let running = one_cluster().await;
    running.simulator.faults().arm(Scope::Lists, Fault::Close, Times::Next(2));
    // Two, because a client may try once more on a connection that it kept.
    running.get("/clusters/x", &[]).await;
    let error = answer(running.request("GET", "/clusters")).await;
    let again = answer(running.request("GET", "/clusters")).await;
    assert!(error.is_err() || again.is_err());
    running.simulator.faults().clear();
    assert_eq!(running.get("/clusters", &[]).await.status, 200);
}

#[tokio::test]
async fn a_delay_delays_and_nothing_else() {
    let running = one_cluster().await;
    running.simulator.faults().arm(Scope::Lists, Fault::Delay(Duration::from_millis(120)), Times::Next(1));
    let began = Instant::now();
    assert_eq!(running.get("/clusters", &[]).await.ids().len(), 1);
    assert!(began.elapsed() >= Duration::from_millis(120));
}

#[tokio::test]
async fn injected_items_follow_the_first_page_of_every_list() {
    let running = one_cluster().await;
    let faults = running.simulator.faults();
    faults.inject(r#"{"name":"without id"}"#);
    faults.inject("17");
    let first = running.get("/clusters", &[("order", "id asc")]).await.json();
    assert_eq!(first["items"].as_array().unwrap().len(), 3);
    assert_eq!((first["size"].as_u64(), first["items"][2].as_u64()), (Some(3), Some(17)));
    let next = running.get("/clusters", &[("search", "id > 'f'")]).await;
    assert_eq!(next.json()["size"], 0);
}

#[tokio::test]
async fn a_token_and_a_tenant_can_be_required_at_any_time() {
    let running = one_cluster().await;
    let faults = running.simulator.faults();
    faults.require_token(Some("first".to_owned().into()));
    faults.require_tenant(Some(("x-tenant", "blue")));
    let ask = |token: &'static str, tenant: &'static str| {
        answer(running.request("GET", "/clusters").bearer_auth(token).header("x-tenant", tenant))
    };
    assert_eq!(running.get("/clusters", &[]).await.status, 401);
    assert_eq!(ask("first", "red").await.unwrap().status, 403);
    assert_eq!(ask("first", "blue").await.unwrap().status, 200);
    faults.require_token(Some("second".to_owned().into()));
    assert_eq!(ask("first", "blue").await.unwrap().status, 401);
    assert_eq!(ask("second", "blue").await.unwrap().status, 200);
    assert!(!format!("{faults:?}").contains("second"));
}

#[tokio::test]
async fn the_log_tells_what_was_asked() {
    let running = one_cluster().await;
    running.get("/clusters", &[("search", "id > 'a'"), ("size", "5")]).await;
    let lists = running.simulator.faults().lists();
    assert_eq!((lists[0].query("search"), lists[0].query("size")), (Some("id > 'a'"), Some("5")));
}
