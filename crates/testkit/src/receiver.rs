//! An HTTP receiver that records what it gets and answers as told.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::eventually;

/// The largest body it takes.
const MAX_BODY: usize = 64 << 20;
const STEP: Duration = Duration::from_secs(30);

/// One recorded request.
#[derive(Debug, Clone)]
pub struct Request {
    /// Its method.
    pub method: Method,
    /// Path and query.
    pub uri: Uri,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, complete.
    pub body: Bytes,
    /// When its body was complete.
    pub at: Instant,
}

impl Request {
    /// A header's value, empty when it is absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// What to answer.
#[derive(Debug, Clone)]
pub struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    times: usize,
    delay: Duration,
    hang: bool,
}

impl Answer {
    /// An empty answer with this status, at once.
    pub fn status(status: u16) -> Self {
        let status = StatusCode::from_u16(status).expect("a status code");
        Self { status, headers: HeaderMap::new(), body: Bytes::new(), times: 1, delay: Duration::ZERO, hang: false }
    }

    /// No answer, ever; the request is recorded, the connection stays open.
    pub fn hang() -> Self {
        Self { hang: true, ..Self::status(200) }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        let name = HeaderName::try_from(name).expect("a header name");
        self.headers.append(name, HeaderValue::try_from(value).expect("a header value"));
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends the body so many times over, as one.
    #[must_use]
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// Answers only after `delay`.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }
}

type Choice = Box<dyn Fn(&Request) -> Option<Answer> + Send>;

struct Shared {
    requests: Vec<Request>,
    choice: Option<Choice>,
    script: VecDeque<Answer>,
    otherwise: Answer,
}

/// An HTTP server on loopback; it answers 200 until told otherwise, and ends on drop.
pub struct Receiver {
    url: String,
    shared: Arc<Mutex<Shared>>,
    _stop: DropGuard,
}

impl Receiver {
    /// Starts a receiver on a free port.
    #[expect(clippy::disallowed_methods, reason = "tests have no supervisor; the task ends with the receiver")]
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind the receiver");
        let url = format!("http://{}", listener.local_addr().expect("read the bound address"));
        let otherwise = Answer::status(200);
        let shared =
            Arc::new(Mutex::new(Shared { requests: Vec::new(), choice: None, script: VecDeque::new(), otherwise }));
        let router = Router::new().fallback(receive).with_state(Arc::clone(&shared));
        let token = CancellationToken::new();
        let serving = token.clone();
        tokio::spawn(async move { serving.run_until_cancelled(axum::serve(listener, router).into_future()).await });
        Self { url, shared, _stop: token.drop_guard() }
    }

    /// `http://127.0.0.1:port`; any path below it is received.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// `127.0.0.1:port`; for a proxy in front of it.
    pub fn address(&self) -> std::net::SocketAddr {
        self.url.trim_start_matches("http://").parse().expect("a socket address")
    }

    /// Answers the next requests with these, one each.
    pub fn script(&self, answers: impl IntoIterator<Item = Answer>) {
        lock(&self.shared).script.extend(answers);
    }

    /// Answers by looking at the request; where this says `None`, the script goes on.
    pub fn choose(&self, choice: impl Fn(&Request) -> Option<Answer> + Send + 'static) {
        lock(&self.shared).choice = Some(Box::new(choice));
    }

    /// Answers every request that the script does not cover with this.
    pub fn otherwise(&self, answer: Answer) {
        lock(&self.shared).otherwise = answer;
    }

    /// What was received so far, in the order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.shared).requests.clone()
    }

    /// How many of them are posts; cheap, for a condition that is looked at again and again.
    pub fn posts(&self) -> usize {
        lock(&self.shared).requests.iter().filter(|request| request.method == Method::POST).count()
    }

    /// Forgets what was received, and returns it.
    pub fn take(&self) -> Vec<Request> {
        std::mem::take(&mut lock(&self.shared).requests)
    }

    /// Waits until `n` requests have come, 30 seconds at most, and returns all that have.
    pub async fn wait_for(&self, n: usize) -> Vec<Request> {
        eventually(STEP, &format!("{n} requests received"), async || {
            let shared = lock(&self.shared);
            (shared.requests.len() >= n).then(|| shared.requests.clone())
        })
        .await
    }
}

async fn receive(State(shared): State<Arc<Mutex<Shared>>>, request: axum::extract::Request) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, MAX_BODY).await else {
        // The sender went away in mid-body: nothing was received.
        return Response::default();
    };
    let request = Request { method: parts.method, uri: parts.uri, headers: parts.headers, body, at: Instant::now() };
    let answer = {
        let mut shared = lock(&shared);
        let chosen = shared.choice.as_ref().and_then(|choice| choice(&request));
        shared.requests.push(request);
        let next = chosen.or_else(|| shared.script.pop_front());
        next.unwrap_or_else(|| shared.otherwise.clone())
    };
    if answer.hang {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(answer.delay).await;
    let body = match answer.times {
        1 => Body::from(answer.body),
        times => Body::from_stream(stream::iter(std::iter::repeat_n(Ok::<_, Infallible>(answer.body), times))),
    };
    let mut response = Response::new(body);
    *response.status_mut() = answer.status;
    response.headers_mut().extend(answer.headers);
    response
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
