//! Answers a request wrongly, on demand.

use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderValue, StatusCode, header};
use tokio_util::sync::CancellationToken;

use super::{empty, refuse, typed};
use crate::faults::{Fault, FaultBody};
use crate::problem::Problem;
use crate::server::Wire;

/// Bytes per chunk of a body that is too long.
const CHUNK: usize = 64 * 1024;
/// Chunks of a gigabyte.
const GIGABYTE: usize = 1024 * 1024 * 1024 / CHUNK;
/// One byte in so many of a garbled body.
const GARBLED: usize = 64;
/// The largest answer that is cut in half.
const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// Answers with the fault instead of, or around, the right answer.
pub(super) async fn apply(
    fault: Fault,
    right: impl Future<Output = Response>,
    path: &str,
    wire: &Wire,
    token: &CancellationToken,
) -> Response {
    match fault {
        Fault::Close => {
            wire.cut();
            empty(StatusCode::OK)
        }
        Fault::Delay(delay) => {
            // A server that stops does not wait for its own delays.
            token.run_until_cancelled(tokio::time::sleep(delay)).await;
            right.await
        }
        Fault::Answer { status, retry_after, body } => {
            let mut response = answer(body, status, right, path, token).await;
            // The right answer has a status of its own: a refusal stays one.
            if body != FaultBody::WrongType
                && let Ok(status) = StatusCode::from_u16(status)
            {
                *response.status_mut() = status;
            }
            if let Some(value) = retry_after.and_then(|text| HeaderValue::from_str(&text).ok()) {
                response.headers_mut().insert(header::RETRY_AFTER, value);
            }
            response
        }
    }
}

/// The answer of a faulty body, before its status.
async fn answer(
    body: FaultBody,
    status: u16,
    right: impl Future<Output = Response>,
    path: &str,
    token: &CancellationToken,
) -> Response {
    match body {
        FaultBody::Problem => refuse(&Problem::internal(status), path),
        FaultBody::Html => typed(
            StatusCode::OK,
            "text/html",
            "<html><head><title>502 Bad Gateway</title></head><body>upstream is away</body></html>",
        ),
        FaultBody::Empty => empty(StatusCode::OK),
        FaultBody::WrongType => {
            let mut response = right.await;
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
            response
        }
        FaultBody::Truncated => {
            let whole = whole(right.await).await;
            typed(StatusCode::OK, "application/json", whole.slice(..whole.len() / 2))
        }
        FaultBody::Cut => {
            let whole = whole(right.await).await;
            let half = whole.slice(..whole.len() / 2);
            let broken = stream::iter([Ok(half), Err(io::Error::from(io::ErrorKind::ConnectionReset))]);
            typed(StatusCode::OK, "application/json", paced(broken))
        }
        FaultBody::Garbled => {
            let mut garbled = whole(right.await).await.to_vec();
            garbled.iter_mut().skip(GARBLED / 2).step_by(GARBLED).for_each(|byte| *byte = 0xFF);
            typed(StatusCode::OK, "application/json", garbled)
        }
        FaultBody::Gigabyte => typed(StatusCode::OK, "application/json", flood(Some(GIGABYTE), token)),
        FaultBody::Endless => typed(StatusCode::OK, "application/json", flood(None, token)),
    }
}

async fn whole(response: Response) -> Bytes {
    axum::body::to_bytes(response.into_body(), MAX_ANSWER).await.unwrap_or_default()
}

/// Lets what was sent reach the client before the connection breaks.
fn paced(chunks: impl stream::Stream<Item = io::Result<Bytes>> + Send + 'static) -> Body {
    Body::from_stream(chunks.then(|chunk| async {
        if chunk.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        chunk
    }))
}

fn flood(chunks: Option<usize>, token: &CancellationToken) -> Body {
    let head = stream::once(std::future::ready(Bytes::from_static(b"{\"items\":[{\"id\":\"x\",\"name\":\"")));
    let chunk = Bytes::from(vec![b'x'; CHUNK]);
    let body = stream::repeat(chunk).take(chunks.unwrap_or(usize::MAX));
    let tail = stream::once(std::future::ready(Bytes::from_static(b"\"}],\"page\":1,\"size\":1,\"total\":1}")));
    let until = token.clone().cancelled_owned();
    Body::from_stream(head.chain(body).chain(tail).map(Ok::<_, io::Error>).take_until(until))
}
