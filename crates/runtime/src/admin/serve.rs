//! Serving HTTP to whoever connects, within limits.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Probes, scrapers and some people's browsers. Beyond that the oldest connection makes room for the newest, so that
/// clients which hold theirs and ask nothing keep no probe waiting.
const MAX_CONNECTIONS: usize = 128;
/// How long a client may take to send a request's head, and stay silent between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A head has this many fields at most: a browser sends about 20.
const MAX_HEAD_FIELDS: usize = 64;
/// The read buffer, which a request's head must fit into.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Nothing here takes a body.
const MAX_BODY_BYTES: usize = 4 * 1024;
/// How long an answer may take to make.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection lives, so that a client that never reads its answer gives its place back.
const CONNECTION_LIFETIME: Duration = Duration::from_mins(1);
/// How long a connection that was told to close may take to do so.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause after a failed accept; most often the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers connections until the token is cancelled.
pub(super) async fn serve(listener: TcpListener, router: Router, token: CancellationToken) {
    let router = router
        .fallback(async || (StatusCode::NOT_FOUND, "not found, / lists what there is\n"))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(from_fn(bounded));
    let mut connections = JoinSet::new();
    let mut oldest_first = VecDeque::new();
    let mut refused = false;
    while let Some(accepted) = token.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, _)) => {
                refused = false;
                make_room(&mut oldest_first);
                oldest_first.push_back(connections.spawn(connection(stream, router.clone(), token.clone())));
            }
            Err(error) => {
                if !std::mem::replace(&mut refused, true) {
                    warn!(%error, "admin server can't accept a connection");
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

fn make_room(oldest_first: &mut VecDeque<AbortHandle>) {
    oldest_first.retain(|connection| !connection.is_finished());
    while oldest_first.len() >= MAX_CONNECTIONS {
        if let Some(oldest) = oldest_first.pop_front() {
            oldest.abort();
        }
    }
}

async fn connection(stream: TcpStream, router: Router, token: CancellationToken) {
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_headers(MAX_HEAD_FIELDS)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
    );
    // How a client's connection ended is the client's affair.
    tokio::select! {
        _ = &mut connection => return,
        () = token.cancelled() => {}
        () = sleep(CONNECTION_LIFETIME) => {}
    }
    connection.as_mut().graceful_shutdown();
    drop(timeout(CLOSE_TIMEOUT, connection).await);
}

/// Limits the time of an answer, and says that it is neither to be kept nor to be interpreted.
async fn bounded(request: Request, next: Next) -> Response {
    let mut response = match timeout(ANSWER_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the answer took too long\n").into_response(),
    };
    let fixed: [(HeaderName, &str); 2] =
        [(header::CACHE_CONTROL, "no-store"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    for (name, value) in fixed {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}
