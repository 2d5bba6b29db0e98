//! The logs of containers, for the API server. It is asked for no credentials, on loopback.

use std::io::{self, SeekFrom};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{self, Query, State};
use axum::routing::get;
use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde::Deserialize;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::Pods;
use super::pod::View;

/// How often a log that is followed is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Connections are taken one after the other: none may keep the others for long.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// What of the API's parameters can be asked for; the others are refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Wanted {
    #[serde(default)]
    follow: bool,
    tail_lines: Option<usize>,
    limit_bytes: Option<usize>,
}

/// The log of an attempt, in its directory.
pub(super) fn file(dir: &Path) -> PathBuf {
    dir.join("log")
}

/// Where the last so many lines begin.
pub(super) fn last_lines(text: &[u8], lines: usize) -> usize {
    let Some(before) = lines.checked_sub(1) else { return text.len() };
    let whole = text.strip_suffix(b"\n").unwrap_or(text);
    let mut ends = whole.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    ends.nth(before).map_or(0, |(at, _)| at + 1)
}

pub(super) async fn serve(listener: TcpListener, pods: Arc<Pods>) {
    let router = Router::new().route("/containerLogs/{namespace}/{pod}/{container}", get(logs)).with_state(pods);
    // It does not return.
    drop(axum::serve(Tls { listener, acceptor: acceptor() }, router).await);
}

/// With a certificate that nobody has signed: this API server does not ask who a kubelet is.
fn acceptor() -> TlsAcceptor {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("make a certificate");
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(vec![made.cert.der().clone()], key.into()).expect("use the certificate");
    TlsAcceptor::from(Arc::new(config))
}

struct Tls {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, from) = axum::serve::Listener::accept(&mut self.listener).await;
            if let Ok(Ok(stream)) = timeout(HANDSHAKE, self.acceptor.accept(stream)).await {
                return (stream, from);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

async fn logs(
    State(pods): State<Arc<Pods>>,
    extract::Path((namespace, name, container)): extract::Path<(String, String, String)>,
    Query(wanted): Query<Wanted>,
) -> Result<Body, (StatusCode, String)> {
    let refuse = |status, why: &str| (status, format!("container {container:?} in pod {name:?} {why}"));
    let absent = || refuse(StatusCode::NOT_FOUND, "is not here");
    let pod = pods.named(&namespace, &name).ok_or_else(absent)?;
    let view = pod.view();
    let (at, attempt) = {
        let containers = &view.borrow().containers;
        let at = containers.iter().position(|it| it.name == container).ok_or_else(absent)?;
        if containers[at].container_id.is_none() {
            return Err(refuse(StatusCode::BAD_REQUEST, "is waiting to start"));
        }
        (at, containers[at].restart_count)
    };
    let path = file(&pod.container_dir(&container, attempt));
    let unreadable = |_: io::Error| refuse(StatusCode::INTERNAL_SERVER_ERROR, "has no log");
    let text = tokio::fs::read(&path).await.map_err(unreadable)?;
    let from = wanted.tail_lines.map_or(0, |lines| last_lines(&text, lines));
    if !wanted.follow {
        let text = &text[from..];
        return Ok(Body::from(text[..text.len().min(wanted.limit_bytes.unwrap_or(usize::MAX))].to_vec()));
    }
    let mut log = File::open(&path).await.map_err(unreadable)?;
    log.seek(SeekFrom::Start(from as u64)).await.map_err(unreadable)?;
    let left = wanted.limit_bytes.unwrap_or(usize::MAX);
    let followed = Followed { log, left, view, at, attempt };
    Ok(Body::from_stream(stream::unfold(followed, |mut it| async { Some((it.next().await?, it)) })))
}

struct Followed {
    log: File,
    left: usize,
    view: watch::Receiver<View>,
    at: usize,
    attempt: i32,
}

impl Followed {
    /// The next piece; none when the attempt has ended and all was read.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            // Asked first: what it has written last is read after that.
            let ended = self.ended();
            let mut piece = vec![0; self.left.min(8192)];
            match self.log.read(&mut piece).await {
                Ok(0) if ended || self.left == 0 => return None,
                Ok(0) => sleep(LOOK).await,
                Ok(length) => {
                    self.left -= length;
                    piece.truncate(length);
                    return Some(Ok(piece.into()));
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    fn ended(&self) -> bool {
        let container = &self.view.borrow().containers[self.at];
        let runs = container.state.as_ref().is_some_and(|state| state.running.is_some());
        !runs || container.restart_count != self.attempt
    }
}
