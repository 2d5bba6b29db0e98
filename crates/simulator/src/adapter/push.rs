//! Takes pushed events: one endpoint per adapter, for the embedded broker and other HTTP senders.
//!
//! The answer comes after the work, so that 2xx means handled: what a crash interrupts is pushed again.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::routing::post;
use http::StatusCode;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{Adapter, Error, Handled};

/// Events that one adapter works on at once; more wait for their turn, and their senders for the answer.
const AT_ONCE: usize = 64;

/// The bound endpoints of some adapters, not yet running.
#[derive(Debug)]
pub struct Push {
    listener: TcpListener,
    addr: SocketAddr,
    adapters: Vec<Adapter>,
}

impl Push {
    /// Binds the address; port 0 takes any free one.
    pub async fn bind(addr: SocketAddr, adapters: Vec<Adapter>) -> Result<Self, Error> {
        let bind = async {
            let listener = TcpListener::bind(addr).await?;
            let addr = listener.local_addr()?;
            Ok::<_, io::Error>((listener, addr))
        };
        let (listener, addr) = bind.await.map_err(Error::Serve)?;
        Ok(Self { listener, addr, adapters })
    }

    /// The address that it is bound to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where an adapter's events are to be pushed.
    pub fn url(&self, adapter: &str) -> String {
        format!("http://{}/{adapter}", self.addr)
    }

    /// Serves until the token is cancelled and what was begun is answered.
    pub async fn run(self, token: CancellationToken) -> Result<(), Error> {
        let adapters = self.adapters.into_iter().map(|adapter| (adapter, Semaphore::new(AT_ONCE)));
        let router = Router::new().route("/{adapter}", post(take)).with_state(adapters.collect());
        let serve = axum::serve(self.listener, router).with_graceful_shutdown(token.cancelled_owned());
        serve.await.map_err(Error::Serve)
    }
}

async fn take(
    State(adapters): State<Arc<[(Adapter, Semaphore)]>>,
    Path(name): Path<String>,
    body: Bytes,
) -> StatusCode {
    let Some((adapter, turns)) = adapters.iter().find(|(adapter, _)| adapter.name() == name) else {
        return StatusCode::NOT_FOUND;
    };
    // It is never closed, so a turn always comes.
    let Ok(_turn) = turns.acquire().await else { return StatusCode::SERVICE_UNAVAILABLE };
    match adapter.handle(&body).await {
        Handled::Done => StatusCode::NO_CONTENT,
        Handled::Rejected => StatusCode::BAD_REQUEST,
        Handled::Crashed => StatusCode::SERVICE_UNAVAILABLE,
    }
}
