//! Traces as a collector gets them: one tree per cycle, and a `traceparent` in each event that names a span of it.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use watchfire_simulator::adapter::Push;
use watchfire_simulator::{Adapter, AdapterConfig, Dialect, Fault, NewResource, Scope, Simulator, Times};
use watchfire_testkit::{Answer, Collector, Receiver, Span, eventually};

use crate::support::{Api, DEADLINE, Sentinel, Setup, get};

const PUBLISH: &str = "hyperfleet-events publish";
const CREATE: &str = "hyperfleet-events create";

/// A sentinel that polls once, and whose spans go out at once.
fn setup(api: &Api, subscriber: &Receiver, collector: &str) -> Setup {
    polling("1h", api, subscriber.url(), collector)
}

fn polling(interval: &str, api: &Api, subscriber: &str, collector: &str) -> Setup {
    // No owners in the payload: whether the API projects them is found out by a request that it may refuse.
    let config = format!("poll_interval: {interval}\nmessage_data:\n  id: .id\n  href: .href");
    Setup::new(&api.url, &config, subscriber)
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector)
        .env("OTEL_BSP_SCHEDULE_DELAY", "50")
}

fn fleet(clusters: usize) -> (Simulator, Vec<String>) {
    let fleet = Simulator::new(Dialect::Hyperfleet);
    let create = |index| fleet.create("clusters", NewResource::named(format!("c-{index}"))).unwrap().id;
    let ids = (0..clusters).map(create).collect();
    (fleet, ids)
}

fn field(event: &Value, name: &str) -> String {
    event[name].as_str().unwrap_or_default().to_owned()
}

/// The events that the subscriber got.
async fn events(subscriber: &Receiver, count: usize) -> Vec<Value> {
    let requests = subscriber.wait_for(count).await;
    requests.iter().map(|request| serde_json::from_slice(&request.body).expect("an event")).collect()
}

/// Waits for the end of the first cycle, so that a signal does not meet it; every span that was sent.
async fn finish(sentinel: Sentinel, collector: &Collector) -> (String, Vec<Span>) {
    eventually(DEADLINE, "the cycle is sent", async || {
        collector.spans().iter().any(|span| span.name == "sentinel.poll").then_some(())
    })
    .await;
    let log = sentinel.stop().await;
    (log, collector.spans())
}

/// The spans of this name.
fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.name == name).collect()
}

/// The value of a counter of the process.
async fn counter(sentinel: &Sentinel, series: &str) -> f64 {
    let (_, text) = get(&format!("{}/metrics", sentinel.metrics)).await;
    let line = text.lines().find(|line| line.starts_with("watchfire_spans_total{") && line.contains(series));
    line.and_then(|line| line.rsplit_once(' ')).expect("a counter").1.parse().expect("a number")
}

#[tokio::test]
async fn one_event_leads_from_its_consumer_back_to_the_cycle_that_sent_it() {
    let (fleet, ids) = fleet(1);
    let (api, subscriber, collector) = (Api::serve(fleet).await, Receiver::start().await, Collector::start().await);
    let setup = setup(&api, &subscriber, collector.receiver().url())
        .env("HYPERFLEET_TRACE_RESOURCES", &ids[0])
        .env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    let sentinel = setup.start().await;
    let event = events(&subscriber, 1).await.remove(0);
    let (log, spans) = finish(sentinel, &collector).await;
    assert!(log.contains("is not spoken, http/protobuf is used"), "{log}");

    let cycle = named(&spans, "sentinel.poll");
    let [cycle] = cycle.as_slice() else { panic!("one cycle: {spans:?}") };
    assert_eq!(cycle.parent, "", "the root of its trace");
    let counts = ["resource_type", "seen", "due", "published", "failed"].map(|name| cycle.attribute(name));
    assert_eq!(counts, ["clusters", "1", "1", "1", "0"]);
    assert_eq!(cycle.resource["service.name"], "sentinel");
    assert_eq!(cycle.resource["deployment.environment.name"], "test");
    assert!(spans.iter().all(|span| span.trace == cycle.trace && (span.id == cycle.id || span.parent == cycle.id)));

    let requests = named(&spans, "GET");
    assert_eq!(requests.len(), api.fleet.faults().lists().len(), "one for each request");
    for request in requests {
        let asked =
            ["http.request.method", "http.response.status_code", "server.address"].map(|it| request.attribute(it));
        assert_eq!(asked, ["GET", "200", "127.0.0.1"]);
        assert!(request.attribute("url.full").ends_with("/api/hyperfleet/v1/clusters"), "{request:?}");
        assert!(request.attribute("url.query").contains("order=id"), "{request:?}");
    }

    let publish = named(&spans, PUBLISH);
    let [publish] = publish.as_slice() else { panic!("one window: {spans:?}") };
    let about = ["messaging.system", "messaging.operation.type", "messaging.destination.name", "messaging.message.id"];
    assert_eq!(about.map(|name| publish.attribute(name)), ["http", "send", "hyperfleet-events", &field(&event, "id")]);
    assert_eq!(publish.attribute("hyperfleet.resource.id"), ids[0]);
    assert_eq!(field(&event, "traceparent"), publish.traceparent());
    let line: Value =
        log.lines().find(|line| line.contains("event published")).map(|it| serde_json::from_str(it).unwrap()).unwrap();
    assert_eq!((field(&line, "trace_id"), field(&line, "span_id")), (publish.trace.clone(), publish.id.clone()));
    assert!(!line.to_string().contains("messaging."), "what is for traces is not in the log: {line}");

    let evaluated = named(&spans, "sentinel.evaluate");
    let [evaluated] = evaluated.as_slice() else { panic!("the resource that was asked for: {spans:?}") };
    let why =
        ["hyperfleet.resource.id", "hyperfleet.reason", "hyperfleet.publishes"].map(|name| evaluated.attribute(name));
    assert_eq!(why, [&ids[0], "generation changed - new spec to reconcile", "true"]);
    assert_eq!(spans.iter().filter(|span| span.failed).count(), 0);
}

#[tokio::test]
async fn an_adapters_report_goes_on_with_the_trace_of_the_event_that_it_answers() {
    let (fleet, ids) = fleet(1);
    let (api, collector) = (Api::serve(fleet).await, Collector::start().await);
    let adapter = Adapter::new(AdapterConfig::new("validation", api.url.parse().unwrap())).unwrap();
    let pushed = Push::bind(([127, 0, 0, 1], 0).into(), vec![adapter]).await.unwrap();
    let (subscriber, stop) = (pushed.url("validation"), CancellationToken::new());
    let setup = polling("1h", &api, &subscriber, collector.receiver().url());
    let reported = async || {
        let requests = api.fleet.faults().requests();
        requests.into_iter().find(|request| request.scope == Scope::Reports)
    };
    let sentinel = setup.start().await;
    let adapting = stop.run_until_cancelled(pushed.run(stop.clone()));
    let (_, report) = tokio::join!(adapting, async {
        let report = eventually(DEADLINE, "a report", reported).await;
        stop.cancel();
        report
    });
    let (_, spans) = finish(sentinel, &collector).await;
    let publish = named(&spans, PUBLISH)[0];
    assert_eq!(publish.attribute("hyperfleet.resource.id"), ids[0]);
    assert_eq!(report.traceparent, Some(publish.traceparent()), "{report:?}");
    // And so does what the sentinel asks the API.
    let requests = named(&spans, "GET");
    for list in api.fleet.faults().lists() {
        let trace = list.traceparent.unwrap();
        assert!(requests.iter().any(|request| request.traceparent() == trace), "{trace} is no request of {requests:?}");
    }
}

#[tokio::test]
async fn each_event_of_a_small_window_has_a_span_and_those_of_a_large_one_share_it() {
    for (clusters, own) in [(5, true), (150, false)] {
        let (fleet, _) = fleet(clusters);
        let (api, subscriber, collector) = (Api::serve(fleet).await, Receiver::start().await, Collector::start().await);
        let setup = setup(&api, &subscriber, collector.receiver().url());
        let sentinel = setup.start().await;
        let events = events(&subscriber, clusters).await;
        let (_, spans) = finish(sentinel, &collector).await;
        let publish = named(&spans, PUBLISH);
        let counted: usize =
            publish.iter().map(|it| it.attribute("messaging.batch.message_count").parse().unwrap_or(1)).sum();
        assert_eq!(counted, clusters, "every event is in one window");
        let create = named(&spans, CREATE);
        assert_eq!(create.len(), if own { clusters } else { 0 });
        for event in events {
            let parent = field(&event, "traceparent");
            let sent = spans.iter().find(|span| span.traceparent() == parent);
            let sent = sent.unwrap_or_else(|| panic!("{parent} names no span that was sent"));
            if own {
                assert_eq!(sent.attribute("messaging.message.id"), field(&event, "id"));
                assert_eq!(sent.attribute("messaging.operation.type"), "create");
                assert!(publish.iter().any(|publish| publish.id == sent.parent));
            } else {
                assert_eq!(sent.name, PUBLISH);
            }
        }
        assert!(named(&spans, "sentinel.evaluate").is_empty(), "nobody asked");
    }
}

#[tokio::test]
async fn what_fails_is_seen_in_its_span_and_what_is_not_sampled_is_not_sent() {
    let (fleet, _) = fleet(1);
    fleet.faults().arm(Scope::Lists, Fault::status(503), Times::Next(1));
    let (api, subscriber, collector) = (Api::serve(fleet).await, Receiver::start().await, Collector::start().await);
    let started = setup(&api, &subscriber, collector.receiver().url());
    let sentinel = started.start().await;
    events(&subscriber, 1).await;
    let (_, spans) = finish(sentinel, &collector).await;
    let failed: Vec<_> = spans.iter().filter(|span| span.failed).collect();
    let [failed] = failed.as_slice() else { panic!("one attempt: {spans:?}") };
    let how =
        ["http.response.status_code", "error.type", "http.request.resend_count"].map(|name| failed.attribute(name));
    assert_eq!((failed.name.as_str(), how), ("GET", ["503", "fetch_error", "0"]));
    assert!(named(&spans, "GET").iter().any(|span| span.attribute("http.request.resend_count") == "1"));

    let (api, subscriber, collector) =
        (Api::serve(self::fleet(1).0).await, Receiver::start().await, Collector::start().await);
    let setup = setup(&api, &subscriber, collector.receiver().url()).env("OTEL_TRACES_SAMPLER", "always_off");
    let sentinel = setup.start().await;
    let event = events(&subscriber, 1).await.remove(0);
    sentinel.stop().await;
    assert!(field(&event, "traceparent").ends_with("-00"), "{event}");
    assert!(collector.spans().is_empty());
}

#[tokio::test]
async fn a_collector_that_is_away_or_hangs_costs_spans_and_one_line_and_never_time() {
    let (fleet, _) = fleet(1);
    let (api, subscriber) = (Api::serve(fleet).await, Receiver::start().await);
    let setup = polling("50ms", &api, subscriber.url(), "http://127.0.0.1:9");
    let away = setup.start().await;
    eventually(DEADLINE, "failed spans are counted", async || {
        (counter(&away, "outcome=\"failed\"").await > 20.0).then_some(())
    })
    .await;
    away.readiness(200).await;
    let log = away.stop().await;
    assert_eq!(log.matches("traces can't be sent").count(), 1, "{log}");

    // One request hangs for 5 seconds; what does not fit the queue meanwhile is dropped.
    let collector = Collector::start().await;
    collector.receiver().otherwise(Answer::hang());
    let setup = polling("50ms", &api, subscriber.url(), collector.receiver().url())
        .env("OTEL_BSP_MAX_QUEUE_SIZE", "10")
        .env("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5");
    let mut hung = setup.start().await;
    eventually(DEADLINE, "dropped spans are counted", async || {
        (counter(&hung, "outcome=\"dropped\"").await > 20.0).then_some(())
    })
    .await;
    hung.readiness(200).await;
    let asked = std::time::Instant::now();
    hung.process.signal(Signal::TERM);
    assert_eq!(hung.process.ended().await.code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(15), "it waits for no collector: {:?}", asked.elapsed());
}
