//! Traces of a whole process whose collector is away.

use std::process::ExitStatus;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;
use watchfire_runtime::{Env, LogConfig, LogFormat, LogOutput, Telemetry};

use crate::{DEADLINE, child};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the process that the other tests here start"]
async fn process() {
    let config = LogConfig {
        component: "sentinel".to_owned(),
        version: "1.2.3".to_owned(),
        level: "trace".to_owned(),
        format: LogFormat::Json,
        output: LogOutput::Stdout,
    };
    println!();
    let telemetry = Telemetry::init(&config, &Env::from_process()).unwrap();
    assert!(Telemetry::init(&config, &Env::default()).is_err(), "only one can be");
    let mut stdin = tokio::io::stdin();
    let mut bytes = [0; 1];
    // Each byte asks for a span; the end of input asks to end.
    while stdin.read(&mut bytes).await.unwrap() == 1 {
        tracing::info_span!(target: "watchfire_test", "work").in_scope(|| tracing::info!("working"));
    }
    let panicked = tokio::task::spawn_blocking(|| panic!("index 7")).await;
    assert!(panicked.is_err());
    telemetry.shutdown(Duration::from_secs(5)).await;
}

async fn lines_of(mut child: tokio::process::Child) -> (ExitStatus, Vec<Value>) {
    drop(child.stdin.take());
    let output = timeout(DEADLINE, child.wait_with_output()).await.unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // The test harness writes lines of its own.
    (output.status, text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

fn warnings(lines: &[Value]) -> Vec<&str> {
    lines.iter().filter(|line| line["level"] == "warn").map(|line| line["message"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_collector_that_is_away_is_told_once_and_a_panic_with_its_place() {
    let collector = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    let env = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()), ("OTEL_BSP_SCHEDULE_DELAY", "20")];
    let mut child = child("traces::process", &env);
    let mut stdin = child.stdin.take().unwrap();
    for _ in 0..5 {
        stdin.write_all(b".").await.unwrap();
        // Each span is one attempt to send, each of which is hung up on.
        drop(timeout(DEADLINE, collector.accept()).await.unwrap().unwrap());
    }
    drop(stdin);
    let (status, lines) = lines_of(child).await;
    assert!(status.success(), "{lines:?}");
    assert_eq!(warnings(&lines), ["traces can't be sent, spans are dropped until they can"]);
    let panic = lines.iter().find(|line| line["message"] == "panic").unwrap();
    assert_eq!((&panic["error"], &panic["level"]), (&Value::from("index 7"), &Value::from("error")));
    assert!(panic["location"].as_str().unwrap().contains("traces.rs:"), "{panic}");
}

#[tokio::test]
async fn a_collector_that_never_answers_does_not_hold_up_the_end() {
    let collector = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    let mut child = child("traces::process", &[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())]);
    child.stdin.as_mut().unwrap().write_all(b"...").await.unwrap();
    let (status, lines) = lines_of(child).await;
    assert!(status.success(), "{lines:?}");
    assert_eq!(lines.iter().filter(|line| line["message"] == "working").count(), 3);
}
