//! A scripted HTTP receiver on loopback, waiting for conditions, and what a test logs.

use std::cell::RefCell;
use std::future::ready;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, StatusCode, Uri};
use jiff::Timestamp;
use serde_json::value::RawValue;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use url::Url;

use crate::event::{Attributes, CloudEvent};

/// One request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn event(&self) -> CloudEvent {
        CloudEvent::from_structured(&self.body).unwrap()
    }

    pub(crate) fn id(&self) -> String {
        self.event().id().to_owned()
    }

    pub(crate) fn subject(&self) -> String {
        self.event().attributes().subject.clone().unwrap_or_default()
    }
}

/// Records every request when it arrives, and answers as the script says. Stops when dropped.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    server: AbortHandle,
}

impl Receiver {
    /// Answers with `status` until it is switched on, and with 200 from then on.
    pub(crate) async fn switched(status: StatusCode) -> (Self, Arc<AtomicBool>) {
        let on = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&on);
        let script = move |_| ready(if asked.load(Ordering::SeqCst) { StatusCode::OK } else { status });
        (Self::start(script).await, on)
    }

    /// Answers with `status` to one event, and with 200 to every other.
    pub(crate) async fn refusing(id: &'static str, status: StatusCode) -> Self {
        Self::start(move |seen| ready(if seen.id() == id { status } else { StatusCode::OK })).await
    }

    #[expect(clippy::disallowed_methods, reason = "a test's server ends with the test")]
    pub(crate) async fn start<F, R>(script: F) -> Self
    where
        F: Fn(Seen) -> R + Clone + Send + Sync + 'static,
        R: Future<Output: IntoResponse> + Send + 'static,
    {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&seen);
        let answer = move |request: Request| -> BoxFuture<'static, Response> {
            let (record, script) = (Arc::clone(&record), script.clone());
            Box::pin(async move {
                let (parts, body) = request.into_parts();
                let body = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
                let seen = Seen { method: parts.method, uri: parts.uri, headers: parts.headers, body };
                record.lock().unwrap().push(seen.clone());
                script(seen).await.into_response()
            })
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = axum::serve(listener, Router::new().fallback(answer));
        let server = tokio::spawn(async move { server.await.unwrap() }).abort_handle();
        Self { address, seen, server }
    }

    pub(crate) fn url(&self) -> Url {
        format!("http://{}/events", self.address).parse().unwrap()
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.seen().iter().map(Seen::id).collect()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

pub(crate) fn event(id: &str, subject: &str) -> CloudEvent {
    let attributes = Attributes {
        id: id.into(),
        source: "test".into(),
        ty: "test.happened".into(),
        subject: (!subject.is_empty()).then(|| subject.into()),
        time: Some(Timestamp::from_second(1_800_000_000).unwrap()),
        extensions: vec![("traceparent".into(), "00-f5be02881b1851634873d85b2eb0030f-773964d182f7ff52-01".into())],
    };
    CloudEvent::new(attributes, RawValue::from_string(format!(r#"{{"id":"{id}","generation":3}}"#)).unwrap())
}

/// How long anything in these tests may take on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Waits until `condition` holds, and fails the test if it does not in time.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    watchfire_testkit::eventually(DEADLINE, what, async || condition().await.then_some(())).await;
}

thread_local! {
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

struct ThreadLog;

impl io::Write for ThreadLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What this thread, which is this test, has logged at INFO and above since the last call. The first call begins it.
///
/// One subscriber for all threads: one per thread would not see what a thread without it reached first.
pub(crate) fn log_of_this_thread() -> String {
    static START: Once = Once::new();
    START.call_once(|| {
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_ansi(false);
        log.with_writer(|| ThreadLog).init();
    });
    String::from_utf8(LOG.take()).unwrap()
}
