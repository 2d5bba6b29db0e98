//! One configuration in both forms of the file gives the same events, over what the real API was recorded to say.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::routing::get;
use axum::{Json, Router};
use jiff::SignedDuration;
use serde_json::{Value, json};
use watchfire_runtime::config::{Env, Text};
use watchfire_sentinel::config::{Form, migrate};
use watchfire_testkit::{Answer, Receiver};

use crate::support::{Bench, Memory, Running, data};

/// Every state of a cluster and of a node pool in the recording, each as a resource of its own; and all of them so many
/// times more as if they had been reported on so long ago.
fn recorded(more: usize, ago: SignedDuration) -> Vec<Value> {
    let exchanges = include_str!("../../../simulator/tests/data/exchanges.json");
    let exchanges: Vec<Value> = serde_json::from_str(exchanges).unwrap();
    let bodies = exchanges.iter().map(|exchange| &exchange["response"]["body"]);
    let items = bodies.flat_map(|body| body["items"].as_array().cloned().unwrap_or_else(|| vec![body.clone()]));
    let states: BTreeSet<String> =
        items.filter(|item| item["status"]["conditions"].is_array()).map(|item| item.to_string()).collect();
    assert!(states.len() >= 6, "{} states", states.len());
    let fresh = (watchfire_runtime::clock::now() - ago).to_string();
    let mut resources = Vec::new();
    for (index, state) in states.iter().enumerate() {
        for twin in 0..=more {
            let mut item: Value = serde_json::from_str(state).unwrap();
            item["id"] = format!("{index:04}-{twin}").into();
            for condition in item["status"]["conditions"].as_array_mut().unwrap() {
                for time in ["last_updated_time", "last_transition_time"] {
                    if twin > 0 && condition[time].is_string() {
                        condition[time] = fresh.clone().into();
                    }
                }
            }
            resources.push(item);
        }
    }
    resources
}

/// An API that lists these, on one page.
async fn api(items: Vec<Value>) -> (String, Running) {
    watchfire_testkit::install_crypto();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let page = json!({"page": 1, "size": items.len(), "total": items.len(), "items": items});
    let list = move || async move { Json(page) };
    let router = Router::new().route("/api/hyperfleet/v1/clusters", get(list));
    (url, Running::start(async move { axum::serve(listener, router).await.unwrap() }))
}

/// What a sentinel published: type and data, and the id, each with how often.
#[derive(Debug, Default, PartialEq)]
struct Published {
    events: BTreeMap<String, usize>,
    ids: BTreeMap<String, usize>,
}

/// What a sentinel of this file publishes in two cycles.
async fn published(file: &str) -> Published {
    let sink = Arc::new(Memory::default());
    let mut bench = Bench::new(file, Arc::clone(&sink) as _);
    for _ in 0..2 {
        bench.cycle().await.unwrap();
    }
    let mut published = Published::default();
    for event in sink.take() {
        let attributes = event.attributes();
        assert_eq!(attributes.source, "hyperfleet-sentinel");
        *published.events.entry(format!("{} {}", attributes.ty, data(&event))).or_default() += 1;
        *published.ids.entry(event.id().to_owned()).or_default() += 1;
    }
    published
}

/// The forms decide by different policies unless told, and a policy's reasons, which an id is derived from, are its
/// own: of the same policy the ids are the same, too.
#[tokio::test]
async fn a_configuration_in_each_form_yields_the_same_events_over_a_recorded_fleet() {
    let fleet = recorded(1, SignedDuration::from_secs(3));
    let (url, _running) = api(fleet.clone()).await;
    for republish in ["in_flight", "always"] {
        let flat = format!(
            "resource_type: clusters\nrepublish: {republish}\nhyperfleet_api:\n  endpoint: {url}\nmessage_data:\n  id: .id\n  \
             kind: .kind\n  generation: .generation\n  clusterName: .name\n"
        );
        let nested = format!(
            "resource_type: clusters\nrepublish: {republish}\nclients:\n  hyperfleet_api:\n    base_url: {url}\nmessage_data:\n  \
             id: resource.id\n  kind: resource.kind\n  generation: resource.generation\n  clusterName: resource.name\n"
        );
        let expected = published(&flat).await;
        let count = expected.events.len();
        assert!(count > 6 && count < fleet.len(), "some are due, some are not: {expected:?}");
        let by_expression = published(&nested).await;
        assert_eq!(by_expression.events, expected.events, "{republish}");
        assert!(by_expression.ids.len() == expected.ids.len() && by_expression.ids != expected.ids);
        for (file, expected) in [(&flat, &expected), (&nested, &by_expression)] {
            for migrated in migrations(file) {
                assert_eq!(published(&migrated).await, *expected, "{republish}:\n{migrated}");
            }
        }
    }
}

/// A file as it is in each form.
fn migrations(file: &str) -> [String; 2] {
    [Form::Flat, Form::HyperFleet]
        .map(|to| migrate(&Text::new("a.yaml", file), Some(to), &Env::default()).unwrap().text)
}

#[tokio::test]
async fn our_own_keys_yield_the_same_events_in_each_form() {
    // Between the earliest and the latest time at which a ready resource may be refreshed.
    let fleet = recorded(20, SignedDuration::from_mins(20));
    let (url, _running) = api(fleet).await;
    let ours = |spread: &str| {
        format!(
            "resource_type: clusters\ndecision: generation_aware\nmax_age_ready: 30m\nrefresh_spread: {spread}\n\
             no_progress_after: 15m\nmax_age_no_progress: 10m\nmax_events_per_second: 500\n"
        )
    };
    let flat = |spread| format!("{}hyperfleet_api:\n  endpoint: {url}\n", ours(spread));
    let nested = |spread| format!("{}clients:\n  hyperfleet_api:\n    base_url: {url}\n", ours(spread));
    let expected = published(&flat("50%")).await;
    assert_ne!(published(&flat("0%")).await, expected, "it makes a difference");
    for file in [flat("50%"), nested("50%")] {
        for migrated in migrations(&file) {
            assert_eq!(published(&migrated).await, expected, "{migrated}");
        }
    }
}

#[tokio::test]
async fn configured_headers_and_the_page_size_are_in_every_request() {
    watchfire_testkit::install_crypto();
    let api = Receiver::start().await;
    api.otherwise(Answer::status(200).header("content-type", "application/json").body(r#"{"items":[],"total":0}"#));
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "first\n").unwrap();
    let file = format!(
        "resource_type: clusters\nclients:\n  hyperfleet_api:\n    base_url: {}\n    page_size: 20\n    headers:\n      \
         X-HyperFleet-System: true\n      X-Tenant-Key: {{file: {}}}\n",
        api.url(),
        secret.path().display()
    );
    let mut bench = Bench::new(&file, Arc::new(Memory::default()));
    for value in ["first", "rotated"] {
        std::fs::write(secret.path(), format!("{value}\n")).unwrap();
        bench.cycle().await.unwrap();
        let requests = api.take();
        assert!(requests.iter().any(|request| request.uri.query().unwrap_or_default().contains("size=20")));
        for request in requests {
            assert_eq!((request.header("x-hyperfleet-system"), request.header("x-tenant-key")), ("true", value));
        }
    }
    std::fs::remove_file(secret.path()).unwrap();
    let error = bench.cycle().await.unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), ("auth_error", "read the header x-tenant-key"));
    assert!(api.take().is_empty(), "nothing is asked without it");
}
