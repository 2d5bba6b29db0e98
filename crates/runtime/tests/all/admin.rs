//! The admin server over real sockets.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use watchfire_runtime::{Admin, AdminConfig, Health, parse_bind_address};

use crate::DEADLINE;

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

struct Server {
    health: SocketAddr,
    metrics: SocketAddr,
    token: CancellationToken,
    task: JoinHandle<()>,
}

#[expect(clippy::disallowed_methods, reason = "a test's server lives as long as the test")]
fn start(admin: Admin) -> Server {
    let token = CancellationToken::new();
    let (health, metrics) = (admin.health_addr(), admin.metrics_addr());
    let stop = token.clone();
    let task = tokio::spawn(async move { admin.run(stop).await.unwrap() });
    Server { health, metrics, token, task }
}

async fn one_listener(health: &Health) -> Server {
    let config = AdminConfig { health: loopback(), metrics: loopback() };
    start(Admin::bind(config, health.clone(), Registry::default()).await.unwrap())
}

/// Sends bytes on a connection of their own and returns all that comes back until it closes.
async fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A server that closes with unread input resets the connection; what it said before is what counts.
    drop(timeout(DEADLINE, stream.read_to_end(&mut answer)).await.unwrap());
    String::from_utf8(answer).unwrap()
}

async fn get_with(address: SocketAddr, path: &str, headers: &str) -> (u16, String, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}\r\n");
    let answer = exchange(address, &request).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    (head[9..12].parse().unwrap(), head.to_lowercase(), body.to_owned())
}

async fn fetch(address: SocketAddr, path: &str) -> (u16, String) {
    let (status, _, body) = get_with(address, path, "").await;
    (status, body)
}

#[tokio::test]
async fn health_endpoints_answer_with_each_check_by_name() {
    let health = Health::new();
    let server = one_listener(&health).await;
    let ok = (200, r#"{"status":"ok","checks":{}}"#.to_owned());
    assert_eq!(fetch(server.health, "/healthz").await, ok);
    assert_eq!(fetch(server.health, "/readyz").await, ok);
    let broker = health.dependency("broker");
    let _poll = health.heartbeat("poll", Duration::from_mins(1));
    let body = r#"{"status":"error","checks":{"broker":{"status":"error","message":"not checked yet"}}}"#;
    for path in ["/readyz", "/ready"] {
        assert_eq!(fetch(server.health, path).await, (503, body.to_owned()));
    }
    assert_eq!(
        fetch(server.health, "/healthz").await,
        (200, r#"{"status":"ok","checks":{"poll":{"status":"ok"}}}"#.to_owned())
    );
    broker.up();
    assert_eq!(fetch(server.health, "/readyz").await.0, 200);
    health.draining();
    let (status, body) = fetch(server.health, "/readyz").await;
    assert!(status == 503 && body.contains("the process is stopping"), "{body}");
}

#[tokio::test]
async fn metrics_come_in_the_format_that_is_asked_for() {
    let mut registry = watchfire_runtime::metrics::registry([("component", "sentinel"), ("version", "1.2.3")]);
    let counter: Counter = Counter::default();
    registry.register("events_published", "Events published", counter.clone());
    counter.inc();
    let config = AdminConfig { health: loopback(), metrics: loopback() };
    let server = start(Admin::bind(config, Health::new(), registry).await.unwrap());
    let sample = "events_published_total{component=\"sentinel\",version=\"1.2.3\"} 1\n";

    let (status, head, body) = get_with(server.metrics, "/metrics", "").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert!(body.contains(sample) && body.contains("# TYPE events_published_total counter\n"), "{body}");
    assert!(body.contains("# TYPE watchfire_build_info gauge\n") && !body.contains("# EOF"), "{body}");

    let accept = "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3\r\n";
    let (_, head, body) = get_with(server.metrics, "/metrics", accept).await;
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
    assert!(body.contains(sample) && body.ends_with("# EOF\n"), "{body}");
}

#[tokio::test]
async fn two_addresses_are_two_listeners_and_one_is_one() {
    let config = AdminConfig { health: loopback(), metrics: (Ipv4Addr::new(127, 0, 0, 2), 0).into() };
    let server = start(Admin::bind(config, Health::new(), Registry::default()).await.unwrap());
    assert_ne!(server.health, server.metrics);
    assert_eq!(fetch(server.health, "/healthz").await.0, 200);
    assert_eq!(fetch(server.health, "/metrics").await.0, 404);
    assert_eq!(fetch(server.metrics, "/metrics").await.0, 200);
    assert_eq!(fetch(server.metrics, "/healthz").await.0, 404);
    let server = one_listener(&Health::new()).await;
    assert_eq!(server.health, server.metrics);
    assert_eq!(fetch(server.health, "/metrics").await.0, 200);
}

#[tokio::test]
async fn every_interface_is_ipv4_and_ipv6() {
    let all = parse_bind_address(":0").unwrap();
    let config = AdminConfig { health: all, metrics: all };
    let server = start(Admin::bind(config, Health::new(), Registry::default()).await.unwrap());
    let port = server.health.port();
    assert_eq!(fetch((Ipv4Addr::LOCALHOST, port).into(), "/healthz").await.0, 200);
    if server.health.is_ipv6() {
        assert_eq!(fetch((Ipv6Addr::LOCALHOST, port).into(), "/healthz").await.0, 200);
    }
}

#[tokio::test]
async fn a_taken_address_is_an_error_that_names_it() {
    let server = one_listener(&Health::new()).await;
    let config = AdminConfig { health: loopback(), metrics: server.health };
    let error = Admin::bind(config, Health::new(), Registry::default()).await.unwrap_err();
    assert!(error.to_string().contains(&format!("listen on {} for metrics", server.health)), "{error}");
    assert!(std::error::Error::source(&error).is_some());
}

#[tokio::test]
async fn the_console_lists_services_checks_and_pages_and_escapes_them() {
    let health = Health::new();
    health.service("sentinel", "clusters in <region>");
    health.dependency("api").down("<script>alert('1')</script> & \"more\"");
    let config = AdminConfig { health: loopback(), metrics: loopback() };
    let admin = Admin::bind(config, health.clone(), Registry::default()).await.unwrap();
    let pages = Router::new().route("/", get(async || "all")).route("/{id}", get(async || "one"));
    let server = start(admin.route("/resources", pages));

    let (status, head, body) = get_with(server.health, "/", "").await;
    assert_eq!(status, 200);
    for expected in [
        "clusters in &lt;region&gt;",
        "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt; &amp; &quot;more&quot;",
        "<a href=\"/resources\">",
        "<a href=\"/metrics\">",
        "Readiness: <span class=\"error\">error</span>",
        "Liveness: <span class=\"ok\">ok</span>",
    ] {
        assert!(body.contains(expected), "{expected} in {body}");
    }
    assert!(!body.contains("<script") && !body.contains("src=") && !body.contains("http"), "{body}");
    assert!(head.contains("content-security-policy: default-src 'none'"), "{head}");
    assert!(head.contains("cache-control: no-store") && head.contains("nosniff"), "{head}");
    assert_eq!(fetch(server.health, "/resources").await, (200, "all".to_owned()));
    assert_eq!(fetch(server.health, "/resources/7").await, (200, "one".to_owned()));
    let (status, body) = fetch(server.health, "/nothing").await;
    assert!(status == 404 && body.contains("/ lists"), "{body}");
}

#[tokio::test]
async fn what_is_no_small_request_is_refused() {
    let server = one_listener(&Health::new()).await;
    let status = async |request: String| exchange(server.health, &request).await.get(9..12).unwrap_or("").to_owned();
    let head = "GET /healthz HTTP/1.1\r\nHost: test\r\nConnection: close\r\n";
    assert_eq!(status(format!("{head}X: {}\r\n\r\n", "x".repeat(64 * 1024))).await, "431");
    assert_eq!(status(format!("{head}{}\r\n", "X: y\r\n".repeat(100))).await, "431");
    assert_eq!(status("NONSENSE\r\n\r\n".to_owned()).await, "400");
    assert_eq!(
        status("POST /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".into()).await,
        "405"
    );
    assert_eq!(fetch(server.health, "/healthz").await.0, 200, "and the next one is served");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_dawdles_is_hung_up_on() {
    let server = one_listener(&Health::new()).await;
    // With the clock paused, time jumps to the next timeout whenever nothing else is left to do.
    assert_eq!(exchange(server.health, "GET /healthz HTT").await, "");
    let idle = exchange(server.health, "GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n").await;
    assert!(idle.starts_with("HTTP/1.1 200"), "answered, then closed for silence: {idle}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_takes_too_long_is_given_up() {
    let config = AdminConfig { health: loopback(), metrics: loopback() };
    let admin = Admin::bind(config, Health::new(), Registry::default()).await.unwrap();
    let never = Router::new().route("/", get(async || std::future::pending::<&str>().await));
    let server = start(admin.route("/never", never));
    assert_eq!(fetch(server.health, "/never").await, (503, "the answer took too long\n".to_owned()));
}

#[tokio::test]
async fn clients_that_ask_nothing_keep_no_probe_waiting() {
    let server = one_listener(&Health::new()).await;
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(TcpStream::connect(server.health).await.unwrap());
    }
    let probe = timeout(Duration::from_secs(5), fetch(server.health, "/healthz"));
    assert_eq!(probe.await.expect("an answer well before the silent are hung up on").0, 200);
    let closed = timeout(Duration::from_secs(5), idle[0].read(&mut [0])).await.expect("the oldest made room");
    assert_eq!(closed.unwrap(), 0);
}

#[tokio::test]
async fn the_server_stops_when_told_though_clients_are_connected() {
    let server = one_listener(&Health::new()).await;
    let mut kept = TcpStream::connect(server.health).await.unwrap();
    kept.write_all(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    kept.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    server.token.cancel();
    // Well before the idle connection's own timeout.
    timeout(Duration::from_secs(5), server.task).await.unwrap().unwrap();
    assert!(TcpStream::connect(server.health).await.is_err());
}
