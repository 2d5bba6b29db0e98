use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::routing::post;
use opentelemetry_sdk::trace::Sampler;
use prometheus_client::encoding::text::encode;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{debug, error, info, info_span, trace, warn};

use super::*;

#[derive(Clone, Default)]
pub(super) struct Capture(Arc<Mutex<Vec<u8>>>);

impl Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Capture {
    pub(super) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    pub(super) fn lines(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

pub(super) fn config(level: &str, format: LogFormat) -> LogConfig {
    LogConfig {
        component: "sentinel".to_owned(),
        version: "1.2.3".to_owned(),
        level: level.to_owned(),
        format,
        output: LogOutput::Stdout,
    }
}

/// Sets up telemetry for this thread and runs `log` under it.
pub(super) fn logged<const N: usize>(
    level: &str,
    format: LogFormat,
    env: [(&str, &str); N],
    log: impl FnOnce(),
) -> Capture {
    let capture = Capture::default();
    let writer = capture.clone();
    let env = env.into_iter().chain([("HOSTNAME", "pod-7")]).collect();
    let (_telemetry, dispatch, _) = Telemetry::build(&config(level, format), &env, move || writer.clone()).unwrap();
    tracing::dispatcher::with_default(&dispatch, log);
    capture
}

#[test]
fn the_level_filters_and_rust_log_overrides_it() {
    let all = || {
        debug!("fine");
        info!("plain");
        error!("bad");
    };
    assert_eq!(logged("info", LogFormat::Json, [], all).lines().len(), 2);
    assert_eq!(logged("error", LogFormat::Json, [], all).lines().len(), 1);
    assert_eq!(logged("off", LogFormat::Json, [], all).lines().len(), 0);
    assert_eq!(logged("WARN", LogFormat::Json, [("RUST_LOG", "debug")], all).lines().len(), 3);
    assert_eq!(logged("debug", LogFormat::Json, [("RUST_LOG", "watchfire_runtime=off")], all).lines().len(), 0);
}

#[test]
fn lapin_is_heard_only_where_it_is_named() {
    let lapin = || {
        warn!(target: "lapin::returned_messages", body = "secret", "returned");
        error!(target: "lapin::channel", "broken");
        trace!(target: "lapin::channels", next_msg = "StartOk with the password", "will send");
        error!(target: "opentelemetry_sdk", "batch failed");
    };
    let messages = |capture: Capture| -> Vec<_> {
        capture.lines().iter().map(|line| line["message"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(messages(logged("trace", LogFormat::Json, [], lapin)), [""; 0]);
    assert_eq!(messages(logged("info,lapin=warn", LogFormat::Json, [], lapin)), ["returned", "broken"]);
    assert_eq!(
        messages(logged("lapin=trace", LogFormat::Json, [], lapin)),
        ["returned", "broken"],
        "frames hold secrets"
    );
}

#[test]
fn a_bad_level_or_format_says_what_can_be_written() {
    let build = |level: &str| Telemetry::build(&config(level, LogFormat::Json), &Env::default(), io::sink);
    for level in ["a=b=c", "watchfire=loud", "info,[{", "inof", "verbose", "info,hyper", "watchfire=debug,wanr"] {
        let error = build(level).unwrap_err().to_string();
        assert!(error.contains(level) && error.contains("debug"), "{error}");
    }
    assert_eq!("text".parse::<LogFormat>().unwrap(), LogFormat::Text);
    assert!("xml".parse::<LogFormat>().unwrap_err().to_string().contains("json or text"));
}

#[test]
fn logged_warnings_and_errors_are_counted() {
    let (telemetry, dispatch, _) =
        Telemetry::build(&config("info", LogFormat::Json), &Env::default(), io::sink).unwrap();
    let mut registry = Registry::default();
    telemetry.register(&mut registry);
    let counted = || {
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let of = |level| {
            let name = format!("watchfire_log_events_total{{level=\"{level}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok()).unwrap()
        };
        (of("warn"), of("error"))
    };
    assert_eq!(counted(), (0, 0), "both exist before the first");
    tracing::dispatcher::with_default(&dispatch, || {
        info!("plain");
        warn!("odd");
        error!("bad");
        error!("worse");
        warn!(target: "lapin", "what is not logged is not counted");
    });
    assert_eq!(counted(), (1, 2));
}

#[test]
fn the_sampler_is_the_one_that_the_environment_names() {
    let named = |name: &str, arg: &str| {
        let env = Env::from([("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", arg)]);
        trace::sampler(&env).map(|sampler| format!("{sampler:?}"))
    };
    let debug = |sampler: Sampler| Ok(format!("{sampler:?}"));
    assert_eq!(named("", ""), debug(Sampler::ParentBased(Box::new(Sampler::AlwaysOn))));
    assert_eq!(named("always_on", ""), debug(Sampler::AlwaysOn));
    assert_eq!(named("always_off", ""), debug(Sampler::AlwaysOff));
    assert_eq!(named("traceidratio", "0.25"), debug(Sampler::TraceIdRatioBased(0.25)));
    assert_eq!(named("traceidratio", ""), debug(Sampler::TraceIdRatioBased(1.0)));
    assert_eq!(
        named("parentbased_traceidratio", "0"),
        debug(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(0.0))))
    );
    for (name, arg) in [("jaeger_remote", ""), ("traceidratio", "2"), ("traceidratio", "NaN"), ("traceidratio", "x")] {
        assert!(named(name, arg).unwrap_err().contains("all are kept"), "{name} {arg}");
    }
}

/// The current span, as an event would carry it on.
fn here() -> Option<String> {
    traceparent(&tracing::Span::current())
}

/// Starts a collector that hands over the headers and the body of each request.
async fn collector() -> (String, mpsc::Receiver<(HeaderMap, Vec<u8>)>) {
    let (sender, receiver) = mpsc::channel(16);
    let router = Router::new().route(
        "/v1/traces",
        post(async move |headers: HeaderMap, body: Bytes| {
            sender.send((headers, body.to_vec())).await.unwrap();
        }),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    serve(listener, router);
    (format!("http://{address}"), receiver)
}

#[expect(clippy::disallowed_methods, reason = "a test's server lives as long as the test")]
fn serve(listener: TcpListener, router: Router) {
    drop(tokio::spawn(axum::serve(listener, router).into_future()));
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_reach_the_collector_and_their_trace_is_in_the_log_and_in_the_event() {
    let (endpoint, mut requests) = collector().await;
    let env =
        Env::from([("OTEL_EXPORTER_OTLP_ENDPOINT", format!("{endpoint}/")), ("OTEL_SERVICE_NAME", "east".into())]);
    let capture = Capture::default();
    let writer = capture.clone();
    let (telemetry, dispatch, warnings) =
        Telemetry::build(&config("info", LogFormat::Json), &env, move || writer.clone()).unwrap();
    assert!(warnings.is_empty());
    let parent = tracing::dispatcher::with_default(&dispatch, || {
        assert_eq!(here(), None, "outside of a span");
        let _task = info_span!(target: "watchfire_runtime::tasks", "task", task = "poll").entered();
        assert_eq!(here(), None, "a task's span is not the root of all its work");
        let _library = info_span!(target: "hyper", "connection").entered();
        assert_eq!(here(), None, "only our own spans are sent");
        let _span = info_span!("publish-one", id = 5).entered();
        info!("published");
        here().unwrap()
    });
    telemetry.shutdown(Duration::from_secs(10)).await;

    let (headers, body) = timeout(Duration::from_secs(10), requests.recv()).await.unwrap().unwrap();
    assert_eq!(headers["content-type"], "application/x-protobuf");
    for text in ["publish-one", "east", "service.version", "1.2.3", "host.name"] {
        assert!(contains(&body, text), "{text}");
    }
    assert!(!contains(&body, "connection"));
    let parts: Vec<_> = parent.split('-').collect();
    assert_eq!((parts.len(), parts[0], parts[1].len(), parts[2].len(), parts[3]), (4, "00", 32, 16, "01"), "{parent}");
    let line = &capture.lines()[0];
    assert_eq!((line["trace_id"].as_str().unwrap(), line["span_id"].as_str().unwrap()), (parts[1], parts[2]));
    assert_eq!(line["task"], "poll");
}

#[tokio::test(flavor = "multi_thread")]
async fn user_and_password_of_the_collectors_address_are_sent_as_its_credentials() {
    let (endpoint, mut requests) = collector().await;
    let endpoint = endpoint.replace("http://", "http://user:s3%40cret@");
    let env = Env::from([("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())]);
    let (telemetry, dispatch, _) = Telemetry::build(&config("info", LogFormat::Json), &env, io::sink).unwrap();
    tracing::dispatcher::with_default(&dispatch, || drop(info_span!("publish").entered()));
    telemetry.shutdown(Duration::from_secs(10)).await;
    let (headers, _) = timeout(Duration::from_secs(10), requests.recv()).await.unwrap().unwrap();
    assert_eq!(headers["authorization"], "Basic dXNlcjpzM0BjcmV0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_that_is_not_sampled_travels_as_such_and_is_not_sent() {
    let (endpoint, mut requests) = collector().await;
    let env = Env::from([("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()), ("OTEL_TRACES_SAMPLER", "always_off")]);
    let (telemetry, dispatch, _) = Telemetry::build(&config("info", LogFormat::Json), &env, io::sink).unwrap();
    let parent = tracing::dispatcher::with_default(&dispatch, || info_span!("publish").in_scope(here));
    assert!(parent.unwrap().ends_with("-00"));
    telemetry.shutdown(Duration::from_secs(10)).await;
    assert!(requests.try_recv().is_err());
}

#[tokio::test]
async fn without_a_collector_there_are_no_traces() {
    let off = [
        Env::default(),
        Env::from([("OTEL_EXPORTER_OTLP_ENDPOINT", "http://x"), ("OTEL_SDK_DISABLED", "TRUE")]),
        Env::from([("OTEL_EXPORTER_OTLP_ENDPOINT", "http://x"), ("OTEL_TRACES_EXPORTER", "none")]),
    ];
    for env in off {
        let (telemetry, dispatch, _) = Telemetry::build(&config("info", LogFormat::Json), &env, io::sink).unwrap();
        tracing::dispatcher::with_default(&dispatch, || {
            assert_eq!(info_span!("publish").in_scope(here), None);
        });
        telemetry.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn settings_of_traces_that_are_not_followed_are_told() {
    let env = Env::from([
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9/custom"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
    ]);
    let (_, _, warnings) = Telemetry::build(&config("info", LogFormat::Json), &env, io::sink).unwrap();
    assert_eq!(warnings.len(), 2);
    for (endpoint, told) in [("http://127.0.0.1:4317", true), ("http://127.0.0.1:4318", false)] {
        let env = Env::from([("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)]);
        let (_, _, warnings) = Telemetry::build(&config("info", LogFormat::Json), &env, io::sink).unwrap();
        let about = |part| warnings.iter().any(|warning| warning.contains(part));
        assert!(warnings.len() == usize::from(told) && about("4318") == told && about("gRPC") == told, "{warnings:?}");
    }
}

#[tokio::test]
async fn a_collector_that_cannot_be_used_is_told_without_its_password() {
    for endpoint in ["no url", "user:s3cret@collector:4318", "//user:s3cret@collector", "ftp://user:s3cret@collector"] {
        let env = Env::from([("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)]);
        let error = Telemetry::build(&config("info", LogFormat::Json), &env, io::sink).unwrap_err();
        let told = crate::chain(&error);
        assert!(told.contains("OTEL_EXPORTER_OTLP_ENDPOINT") && !told.contains("s3cret"), "{endpoint}: {told}");
    }
    // Not escaped, and understood all the same.
    let env = Env::from([("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:s3^cret@127.0.0.1:9")]);
    Telemetry::build(&config("info", LogFormat::Json), &env, io::sink).unwrap();
    for secret in ["http://t0ken@127.0.0.1:4317/", "http://127.0.0.1:4317/?api-key=t0ken"] {
        let env = Env::from([("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", secret)]);
        let (_, _, warnings) = Telemetry::build(&config("info", LogFormat::Json), &env, io::sink).unwrap();
        assert!(warnings[0].starts_with("http://127.0.0.1:4317/ is where") && warnings.len() == 1, "{warnings:?}");
    }
}

#[test]
fn traces_outside_of_the_runtime_are_an_error_not_a_panic() {
    let env = Env::from([("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")]);
    let error = Telemetry::build(&config("info", LogFormat::Json), &env, io::sink).unwrap_err();
    assert!(matches!(error, TelemetryError::NoRuntime(_)), "{error}");
}
