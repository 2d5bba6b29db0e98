//! A TCP proxy that breaks connections on demand.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{eventually, free_port};

const STEP: Duration = Duration::from_secs(30);

/// A slow connection passes a portion of its bytes this often,
const PORTION_EVERY: Duration = Duration::from_millis(50);
/// which makes so many portions a second.
const PORTIONS: usize = 20;

/// How the proxy treats bytes and new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Everything passes.
    Pass,
    /// New connections are refused by the kernel; open ones go on.
    Refuse,
    /// Connections are taken and stay open, and nothing passes in either direction: a half-open peer.
    Blackhole,
    /// What goes to the target passes, and its answers wait: the far side does its work, and nobody hears of it.
    OneWay,
    /// New connections are taken and reset; open ones are reset by the next [`Proxy::cut`], and go on until then.
    Reset,
    /// Every chunk waits this long.
    Delay(Duration),
    /// So many bytes a second pass in each direction.
    Slow(usize),
}

/// Where bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

impl Mode {
    /// How many of the waiting bytes go out, after which pause; `None` while they have to wait.
    fn passes(self, direction: Direction, waiting: usize) -> Option<(usize, Duration)> {
        match self {
            Self::Blackhole => None,
            Self::OneWay if direction == Direction::Down => None,
            Self::Pass | Self::Refuse | Self::OneWay | Self::Reset => Some((waiting, Duration::ZERO)),
            Self::Delay(delay) => Some((waiting, delay)),
            Self::Slow(rate) => Some((waiting.min((rate / PORTIONS).max(1)), PORTION_EVERY)),
        }
    }
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    mode: watch::Sender<Mode>,
    // Replaced at each cut: cancelling the old one closes every connection that was made under it.
    open: watch::Sender<CancellationToken>,
    listening: watch::Sender<bool>,
    connections: AtomicUsize,
    up: AtomicU64,
    down: AtomicU64,
}

/// A proxy on loopback in front of `target`; it ends on drop, and its connections with it.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _stop: DropGuard,
}

impl Proxy {
    /// Starts a proxy on a port that nobody takes while it refuses; it passes everything until told otherwise.
    #[expect(clippy::disallowed_methods, reason = "tests have no supervisor; the task ends with the proxy")]
    pub async fn start(target: SocketAddr) -> Self {
        let bind = async || TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).await.ok();
        let listener = eventually(STEP, "the proxy has a port", bind).await;
        let address = listener.local_addr().expect("read the bound address");
        let token = CancellationToken::new();
        let shared = Arc::new(Shared {
            target,
            mode: watch::Sender::new(Mode::Pass),
            open: watch::Sender::new(token.child_token()),
            listening: watch::Sender::new(true),
            connections: AtomicUsize::new(0),
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
        });
        let (accepting, all) = (Arc::clone(&shared), token.clone());
        tokio::spawn(async move { all.run_until_cancelled(accept(listener, address, accepting)).await });
        Self { address, shared, _stop: token.drop_guard() }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the treatment of bytes and new connections, and returns when it holds.
    pub async fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
        let mut listening = self.shared.listening.subscribe();
        let wanted = mode != Mode::Refuse;
        let applied = listening.wait_for(|listening| *listening == wanted);
        tokio::time::timeout(STEP, applied).await.expect("the proxy changes mode").expect("the proxy runs");
    }

    /// Closes every open connection; new ones are as the mode says.
    pub fn cut(&self) {
        self.shared.open.send_replace(CancellationToken::new()).cancel();
    }

    /// The far side is down: no connection, and no new one.
    pub async fn down(&self) {
        self.set(Mode::Refuse).await;
        self.cut();
        eventually(STEP, "all connections end", async || (self.open() == 0).then_some(())).await;
    }

    /// The far side is up again.
    pub async fn up(&self) {
        self.set(Mode::Pass).await;
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Bytes passed towards the target.
    pub fn sent(&self) -> u64 {
        self.shared.up.load(Ordering::SeqCst)
    }

    /// Bytes passed back.
    pub fn received(&self) -> u64 {
        self.shared.down.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
    }
}

#[expect(clippy::disallowed_methods, reason = "tests have no supervisor; a connection ends with its token")]
async fn accept(first: TcpListener, address: SocketAddr, shared: Arc<Shared>) {
    let mut listener = Some(first);
    let mut mode = shared.mode.subscribe();
    loop {
        if *mode.borrow_and_update() == Mode::Refuse {
            listener = None;
        } else if listener.is_none() {
            listener = Some(listen_again(address).await);
        }
        shared.listening.send_replace(listener.is_some());
        let Some(open) = &listener else {
            if mode.changed().await.is_err() {
                return;
            }
            continue;
        };
        tokio::select! {
            changed = mode.changed() => if changed.is_err() { return },
            accepted = open.accept() => if let Ok((client, _)) = accepted {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    carry(client, &shared).await;
                    shared.connections.fetch_sub(1, Ordering::SeqCst);
                });
            },
        }
    }
}

/// Whoever was given the port meanwhile has it for a moment only: see [`free_port`].
async fn listen_again(address: SocketAddr) -> TcpListener {
    let deadline = Instant::now() + STEP;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => assert!(Instant::now() < deadline, "listen on {address} again: {error}"),
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Carries one connection until either side closes it, or it is cut.
async fn carry(mut client: TcpStream, shared: &Shared) {
    let token = shared.open.borrow().clone();
    let resets = || *shared.mode.borrow() == Mode::Reset;
    if resets() {
        // An error means that it is gone already.
        drop(client.set_zero_linger());
        return;
    }
    let Some(Ok(mut server)) = token.run_until_cancelled(TcpStream::connect(shared.target)).await else { return };
    // Without it, small frames of a request and its answer wait for each other.
    drop((client.set_nodelay(true), server.set_nodelay(true)));
    let (mut client_read, mut client_write) = client.split();
    let (mut server_read, mut server_write) = server.split();
    tokio::select! {
        // First, so that nothing that was held back slips out at the end.
        biased;
        () = token.cancelled() => if resets() {
            drop((client.set_zero_linger(), server.set_zero_linger()));
        },
        () = pump(&mut client_read, &mut server_write, shared, Direction::Up) => {},
        () = pump(&mut server_read, &mut client_write, shared, Direction::Down) => {},
    }
}

async fn pump(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    shared: &Shared,
    direction: Direction,
) {
    let count = match direction {
        Direction::Up => &shared.up,
        Direction::Down => &shared.down,
    };
    let mut mode = shared.mode.subscribe();
    let mut chunk = vec![0; 64 << 10];
    while let Ok(n @ 1..) = from.read(&mut chunk).await {
        let mut waiting = &chunk[..n];
        while !waiting.is_empty() {
            let passing = mode.wait_for(|mode| mode.passes(direction, waiting.len()).is_some()).await.map(|mode| *mode);
            let Some((portion, pause)) = passing.ok().and_then(|mode| mode.passes(direction, waiting.len())) else {
                return;
            };
            sleep(pause).await;
            if to.write_all(&waiting[..portion]).await.is_err() {
                return;
            }
            count.fetch_add(portion as u64, Ordering::SeqCst);
            waiting = &waiting[portion..];
        }
    }
}
