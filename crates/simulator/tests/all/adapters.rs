//! Adapters against the API, driven by pushed events.

use std::net::Ipv4Addr;
use std::time::Duration;

use jiff::SignedDuration;
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};
use watchfire_simulator::adapter::{Handled, Push};
use watchfire_simulator::{
    Adapter, AdapterConfig, Dialect, Fault, Knobs, NewResource, Patch, Scope, Simulator, Status, Times,
};

use crate::support::{Running, client, serve, spawn};

pub(crate) fn adapter(running: &Running, name: &str) -> AdapterConfig {
    client();
    AdapterConfig::new(name, running.url.parse().unwrap())
}

/// An event as the sentinel sends it.
pub(crate) fn event(id: &str, simulator: &Simulator, resource: &str) -> String {
    let resource = simulator.get("clusters", resource).unwrap();
    let data =
        json!({"id": resource.id, "kind": resource.kind, "href": resource.href, "generation": resource.generation});
    json!({"specversion": "1.0", "id": id, "source": "hyperfleet-sentinel", "type": "com.redhat.hyperfleet.cluster.reconcile",
        "datacontenttype": "application/json", "data": data})
    .to_string()
}

async fn fleet(dialect: Dialect) -> (Running, String) {
    let running = serve(Simulator::new(dialect)).await;
    let id = running.simulator.create("clusters", NewResource::named("one")).unwrap().id;
    (running, id)
}

async fn push(adapters: Vec<Adapter>) -> (impl AsyncFn(&str, String) -> u16, DropGuard) {
    let push = Push::bind((Ipv4Addr::LOCALHOST, 0).into(), adapters).await.unwrap();
    let (token, base) = (CancellationToken::new(), format!("http://{}", push.addr()));
    let stop = token.clone().drop_guard();
    spawn(async move { push.run(token).await.unwrap() });
    let client = client();
    let send = async move |adapter: &str, body: String| {
        client.post(format!("{base}/{adapter}")).body(body).send().await.unwrap().status().as_u16()
    };
    (send, stop)
}

#[tokio::test]
async fn dns_waits_for_validation_in_every_dialect() {
    for dialect in [Dialect::Hyperfleet, Dialect::Seed, Dialect::Operator] {
        let (running, id) = fleet(dialect).await;
        let validation = Adapter::new(adapter(&running, "validation")).unwrap();
        let dns = Adapter::new(adapter(&running, "dns").after("validation")).unwrap();
        let (send, _stop) = push(vec![validation, dns.clone()]).await;

        assert_eq!(send("dns", event("1", &running.simulator, &id)).await, 204);
        let waiting = running.simulator.get("clusters", &id).unwrap();
        let report = &waiting.reports[0];
        assert_eq!(
            (report.status("Applied"), report.status("Available"), report.status("Health")),
            (Some(Status::False), Some(Status::False), Some(Status::True))
        );
        assert_eq!(report.conditions[0].reason.as_deref(), Some("PreconditionsNotMet"));
        assert_eq!(dns.counters().preconditions_not_met, 1);

        assert_eq!(send("validation", event("2", &running.simulator, &id)).await, 204);
        // The clock of reports has seconds: a report within the same one would not count.
        dns.set_knobs(Knobs { clock_offset: SignedDuration::from_secs(2), ..Knobs::default() });
        assert_eq!(send("dns", event("2", &running.simulator, &id)).await, 204);
        assert!(running.simulator.get("clusters", &id).unwrap().is_ready(), "{dialect:?}");
        assert_eq!(dns.counters().answers[&201], 2);

        // What validation said of the generation before does not help.
        running.simulator.patch("clusters", &id, Patch::spec(&json!({"replicas": 5}))).unwrap();
        assert_eq!(send("dns", event("3", &running.simulator, &id)).await, 204);
        assert_eq!(dns.counters().preconditions_not_met, 2, "{dialect:?}");
    }
}

#[tokio::test]
async fn deletion_is_finalized_by_every_adapter() {
    let (running, id) = fleet(Dialect::Hyperfleet).await;
    let adapters = ["validation", "dns"].map(|name| Adapter::new(adapter(&running, name)).unwrap());
    running.simulator.delete("clusters", &id).unwrap();
    let event = event("1", &running.simulator, &id);
    for adapter in &adapters {
        assert_eq!(adapter.handle(event.as_bytes()).await, Handled::Done);
    }
    assert!(running.simulator.get("clusters", &id).is_none());
    assert_eq!(adapters[0].handle(event.as_bytes()).await, Handled::Done);
    let counters = adapters[0].counters();
    assert_eq!((counters.gone, counters.duplicates, counters.events, counters.per_resource[&id]), (1, 1, 2, 2));
}

#[tokio::test]
async fn every_knob_does_what_it_says() {
    let (running, id) = fleet(Dialect::Hyperfleet).await;
    let simulator = &running.simulator;
    let validation = Adapter::new(adapter(&running, "validation")).unwrap();
    let handle = async |knobs: Knobs| {
        validation.set_knobs(knobs);
        validation.handle(event("e", simulator, &id).as_bytes()).await
    };
    let stored = || simulator.get("clusters", &id).unwrap().reports.first().cloned();
    let later = |seconds: i64| Knobs { clock_offset: SignedDuration::from_secs(seconds), ..Knobs::default() };

    assert_eq!(handle(Knobs { silent: true, ..Knobs::default() }).await, Handled::Done);
    assert_eq!(handle(Knobs { drops: 1.0, ..Knobs::default() }).await, Handled::Done);
    assert_eq!(handle(Knobs { crashes: 1.0, ..Knobs::default() }).await, Handled::Crashed);
    assert!(stored().is_none());
    handle(Knobs { unknown: 1.0, ..later(-60) }).await;
    assert_eq!(stored().unwrap().status("Available"), Some(Status::Unknown));
    handle(Knobs { unknown: 1.0, ..later(-50) }).await;
    assert_eq!(validation.counters().answers[&204], 1);
    handle(Knobs { failures: 1.0, ..later(-40) }).await;
    assert_eq!(stored().unwrap().status("Available"), Some(Status::False));
    simulator.patch("clusters", &id, Patch::spec(&json!({"a": 1}))).unwrap();
    handle(Knobs { stale_generation: true, ..later(-30) }).await;
    assert_eq!(stored().unwrap().observed_generation, 1);
    let before = watchfire_runtime::clock::now();
    handle(later(240)).await;
    let ahead = stored().unwrap().last_report_time.duration_since(before).as_secs();
    assert!((238..=245).contains(&ahead), "{ahead}");
    let began = std::time::Instant::now();
    handle(Knobs { latency: Duration::from_millis(60), ..later(250) }).await;
    assert!(began.elapsed() >= Duration::from_millis(60));
    handle(later(600)).await;
    assert_eq!(validation.counters().answers[&400], 1);
    let counters = validation.counters();
    assert_eq!((counters.dropped, counters.crashed), (1, 1));
}

#[tokio::test]
async fn the_same_seed_gives_the_same_failures() {
    let (running, id) = fleet(Dialect::Hyperfleet).await;
    let sample = async |seed: u64| {
        let knobs = Knobs { drops: 0.5, ..Knobs::default() };
        let adapter = Adapter::new(AdapterConfig { seed, ..adapter(&running, "dns").knobs(knobs) }).unwrap();
        let mut dropped = Vec::new();
        for number in 0..24 {
            adapter.handle(event(&number.to_string(), &running.simulator, &id).as_bytes()).await;
            dropped.push(adapter.counters().dropped);
        }
        dropped
    };
    let first = sample(7).await;
    assert_eq!(first, sample(7).await);
    assert_ne!(first, sample(8).await);
}

#[tokio::test]
async fn pushed_rubbish_is_refused_and_a_crash_is_no_success() {
    let (running, id) = fleet(Dialect::Hyperfleet).await;
    let dns = Adapter::new(adapter(&running, "dns").knobs(Knobs { crashes: 1.0, ..Knobs::default() })).unwrap();
    let (send, _stop) = push(vec![dns.clone()]).await;
    assert_eq!(send("dns", event("1", &running.simulator, &id)).await, 503);
    dns.set_knobs(Knobs::default());
    assert_eq!(send("dns", "{}".to_owned()).await, 400);
    assert_eq!(send("nobody", "{}".to_owned()).await, 404);
    let text = event("1", &running.simulator, &id).replace("\"generation\":1", "\"generation\":\"1\"");
    assert_eq!(send("dns", text).await, 204);
    let counters = dns.counters();
    assert_eq!((counters.rejected, counters.malformed, counters.answers.len()), (1, 1, 0));
}

#[tokio::test]
async fn a_failing_api_is_tried_again_and_then_counted() {
    let (running, id) = fleet(Dialect::Hyperfleet).await;
    let dns = Adapter::new(adapter(&running, "dns")).unwrap();
    let event = event("1", &running.simulator, &id);
    running.simulator.faults().arm(Scope::Reports, Fault::status(500), Times::Next(1));
    dns.handle(event.as_bytes()).await;
    assert_eq!((dns.counters().answers[&201], dns.counters().failed), (1, 0));
    running.simulator.faults().arm(Scope::Reads, Fault::status(500), Times::Next(3));
    assert_eq!(dns.handle(event.as_bytes()).await, Handled::Done);
    assert_eq!(dns.counters().failed, 1);
    running.simulator.faults().require_token(Some("secret".to_owned().into()));
    dns.handle(event.as_bytes()).await;
    assert_eq!(dns.counters().failed, 2);
    let token = Some("secret".to_owned().into());
    let trusted = Adapter::new(AdapterConfig { token, ..adapter(&running, "dns") }).unwrap();
    trusted.handle(event.as_bytes()).await;
    assert_eq!(trusted.counters().failed, 0);
}
