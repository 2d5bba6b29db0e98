//! Serves a simulator over HTTP.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::api;
use crate::simulator::Simulator;

/// How long to wait before accepting again when the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A bound server, not yet running.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    addr: SocketAddr,
    simulator: Simulator,
}

impl Server {
    /// Binds the address; port 0 takes any free one.
    pub async fn bind(addr: SocketAddr, simulator: Simulator) -> io::Result<Self> {
        let listener = TcpListener::bind(addr).await?;
        let addr = listener.local_addr()?;
        Ok(Self { listener, addr, simulator })
    }

    /// The address that it is bound to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The address as a base URL, without trailing slash.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Serves until the token is cancelled and the open requests are answered.
    pub async fn run(self, token: CancellationToken) -> io::Result<()> {
        let service = api::router(self.simulator, token.clone()).into_make_service_with_connect_info::<Wire>();
        axum::serve(Wires(self.listener), service).with_graceful_shutdown(token.cancelled_owned()).await
    }
}

/// A switch that breaks one connection, so that a request ends without an answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wire(Arc<AtomicBool>);

impl Wire {
    pub(crate) fn cut(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Connected<IncomingStream<'_, Wires>> for Wire {
    fn connect_info(stream: IncomingStream<'_, Wires>) -> Self {
        stream.io().wire.clone()
    }
}

struct Wires(TcpListener);

struct Connection {
    stream: TcpStream,
    wire: Wire,
}

impl Listener for Wires {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            match self.0.accept().await {
                Ok((stream, addr)) => {
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "no TCP_NODELAY on a connection");
                    }
                    return (Connection { stream, wire: Wire::default() }, addr);
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl Connection {
    fn check(&self) -> io::Result<()> {
        if self.wire.0.load(Ordering::Relaxed) { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
