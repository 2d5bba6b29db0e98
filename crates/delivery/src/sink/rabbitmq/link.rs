//! One connection to the broker with one confirming channel, and what its failures mean.
//!
//! The client library runs each connection on a thread that waits for the peer as long as it takes, even during the
//! handshake. So a link keeps a second handle to its socket: whoever gives up on a link shuts the socket down, and
//! the thread ends.

use std::error::Error as StdError;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lapin::options::{ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::tcp::TLSConfig;
use lapin::types::{FieldTable, ShortString};
use lapin::uri::AMQPScheme;
use lapin::{AsyncTcpStream, Channel, Connection, ConnectionProperties, ErrorKind};
use tokio::time::{Instant, timeout_at};
use watchfire_runtime::secret;

use super::config::RabbitMqConfig;
use crate::sink::Error;

/// The name that the broker's connection list shows.
const CONNECTION_NAME: &str = "watchfire";

/// An open connection whose exchange is declared.
pub(super) struct Link {
    // Drops first: a link that is given up loses its socket before the library says goodbye over it.
    pub(super) fuse: Fuse,
    pub(super) connection: Connection,
    pub(super) channel: Channel,
    /// A window ran into its timeout while the broker blocked the connection: its messages may still go out, so
    /// nothing else is published over this link. It is kept until the broker unblocks it, because a broker that
    /// blocks does not notice that a client went away, and would collect one dead connection per attempt.
    pub(super) stale: bool,
}

impl Link {
    /// Connects, opens the channel and declares the exchange, all before `deadline`.
    pub(super) async fn open(config: &RabbitMqConfig, deadline: Instant) -> lapin::Result<Self> {
        let mut fuse = Fuse { socket: Socket::default(), armed: true };
        let opening = async {
            let connection = connect(config, fuse.socket.clone(), deadline).await?;
            let channel = declare(config, &connection).await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok((connection, channel))
        };
        let (connection, channel) = within(deadline, opening).await?;
        fuse.disarm();
        Ok(Self { fuse, connection, channel, stale: false })
    }

    /// Whether a message can go out over it.
    pub(super) fn usable(&self) -> bool {
        !self.stale && self.connection.status().connected() && self.channel.status().connected()
    }

    /// Whether the broker takes no messages from it, for want of memory or disk space. One that broke meanwhile hears
    /// of no end of it: the library forgets a block only when the broker takes it back.
    pub(super) fn is_blocked(&self) -> bool {
        let status = self.connection.status();
        status.connected() && status.blocked()
    }

    /// Asks the broker whether the exchange is still there.
    pub(super) async fn probe(&self, config: &RabbitMqConfig, deadline: Instant) -> lapin::Result<()> {
        let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        within(deadline, exchange_declare(config, &self.channel, options)).await
    }
}

/// Whether the exchange is there, of the configured type. Declares nothing that is not.
pub(super) async fn look(config: &RabbitMqConfig, deadline: Instant) -> lapin::Result<bool> {
    let fuse = Fuse { socket: Socket::default(), armed: true };
    let looking = async {
        let connection = connect(config, fuse.socket.clone(), deadline).await?;
        let channel = connection.create_channel().await?;
        let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let found = match exchange_declare(config, &channel, passive).await {
            Ok(()) => true,
            Err(e) if matches!(refusal(&e), Some(AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND))) => false,
            Err(e) => return Err(e),
        };
        // As at start; where it is there, this only compares, and the broker refuses another type.
        if found {
            declare(config, &connection).await?;
        }
        Ok((connection, found))
    };
    let (connection, found) = within(deadline, looking).await?;
    // The answer is in, however the goodbye goes.
    drop(within(deadline, connection.close(200, short("looked")?)).await);
    Ok(found)
}

async fn connect(config: &RabbitMqConfig, socket: Socket, deadline: Instant) -> lapin::Result<Connection> {
    let runtime = lapin::runtime::default_runtime()?;
    let properties = ConnectionProperties::default().with_connection_name(CONNECTION_NAME.into());
    // Inline, because only the signature of `connector` names the types of this closure.
    let connector = Connection::connector(
        config.uri().map_err(io::Error::other)?,
        runtime,
        async move |uri, runtime| {
            let dialing = async {
                let authority = (uri.authority.host.clone(), uri.authority.port);
                let stream = AsyncTcpStream::connect(&runtime, runtime.to_socket_addrs(authority)).await?;
                if let AsyncTcpStream::Plain(plain) = &stream {
                    plain.get_ref().set_nodelay(true)?;
                    socket.keep(TcpStream::from(plain.get_ref().as_fd().try_clone_to_owned()?))?;
                }
                Ok(match uri.scheme {
                    AMQPScheme::AMQP => stream,
                    AMQPScheme::AMQPS => stream.into_tls(&uri.authority.host, TLSConfig::default()).await?,
                })
            };
            within(deadline, dialing).await
        },
        properties,
    );
    connector.await
}

/// Declares the exchange, durable. A user who may not configure it can still publish to one that exists.
async fn declare(config: &RabbitMqConfig, connection: &Connection) -> lapin::Result<Channel> {
    let channel = connection.create_channel().await?;
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let Err(refused) = exchange_declare(config, &channel, durable).await else { return Ok(channel) };
    if !matches!(refusal(&refused), Some(AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED))) {
        return Err(refused);
    }
    let channel = connection.create_channel().await?;
    let passive = ExchangeDeclareOptions { passive: true, ..durable };
    // Not there either: the refusal to create it is the better explanation.
    exchange_declare(config, &channel, passive).await.map_err(|_| refused)?;
    Ok(channel)
}

async fn exchange_declare(
    config: &RabbitMqConfig,
    channel: &Channel,
    options: ExchangeDeclareOptions,
) -> lapin::Result<()> {
    let name = short(&config.exchange)?;
    channel.exchange_declare(name, config.exchange_type.kind(), options, FieldTable::default()).await
}

/// A name as AMQP carries it: 255 bytes at most.
pub(super) fn short(text: &str) -> lapin::Result<ShortString> {
    ShortString::try_new(text).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e).into())
}

/// Waits until `deadline`; what does not come is the I/O error `TimedOut`.
async fn within<T>(deadline: Instant, step: impl Future<Output = lapin::Result<T>>) -> lapin::Result<T> {
    timeout_at(deadline, step).await.unwrap_or_else(|_| Err(timed_out()))
}

/// A step that was given up on.
pub(super) fn timed_out() -> lapin::Error {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

/// What the broker refused, if it is the broker that spoke.
pub(super) fn refusal(error: &lapin::Error) -> Option<&AMQPErrorKind> {
    match error.kind() {
        ErrorKind::ProtocolError(refusal) => Some(refusal.kind()),
        _ => None,
    }
}

/// Says what an error means for the event that got it, and what to do about it.
pub(super) fn explain(config: &RabbitMqConfig, error: lapin::Error) -> Error {
    let target = config.target();
    let said = match error.kind() {
        ErrorKind::ProtocolError(refusal) => said(refusal),
        ErrorKind::IOError(e) if e.kind() == io::ErrorKind::TimedOut => {
            return Error::Timeout { target, after: config.timeout };
        }
        // The password's file is not there or holds none.
        ErrorKind::IOError(e) if e.get_ref().is_some_and(<dyn StdError + Send + Sync>::is::<secret::Error>) => {
            return Error::Denied { target, source: error.into() };
        }
        ErrorKind::ParsingError(_) | ErrorKind::InvalidProtocolVersion(_) => return no_amqp(target),
        _ => return Error::Connect { target, source: error.into() },
    };
    let hint = match refusal(&error) {
        // One event of the window is too large; this one was on the same channel.
        Some(_) if size_limit(&error).is_some() => return Error::Refused { target, detail: said },
        Some(AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED)) => {
            "the exchange exists with another type or is not durable: set BROKER_EXCHANGE_TYPE, or exchange_type in \
             broker.yaml, to the type it has (rabbitmqctl list_exchanges name type durable), or delete it and let it be \
             declared again"
        }
        Some(AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND)) => {
            "the exchange was deleted: it is declared again with the next connection"
        }
        // `vhost not found` and `access to vhost refused for user` share one code.
        Some(AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED)) if said.contains("not found") => {
            "the virtual host does not exist: check BROKER_VHOST or the end of the URL (the default is /), or create \
             it with rabbitmqctl add_vhost"
        }
        Some(AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) | AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED)) => {
            return Error::Denied { target, source: error.into() };
        }
        _ => return Error::Connect { target, source: error.into() },
    };
    Error::Misconfigured { target, detail: said, hint }
}

/// Something else has this port: the library would tell of bytes that it cannot parse.
fn no_amqp(target: String) -> Error {
    let hint = "check the port: RabbitMQ has 5672, and 5671 for amqps; 15672 is that of its management UI";
    Error::Misconfigured { target, detail: "what answers there does not speak AMQP 0-9-1".to_owned(), hint }
}

/// The largest message that the broker takes, if it refused one for its size: `message size 300 is larger than
/// configured max size 200`. There is no other way to learn it.
pub(super) fn size_limit(error: &lapin::Error) -> Option<usize> {
    let ErrorKind::ProtocolError(refusal) = error.kind() else { return None };
    let text = refusal.get_message().as_str();
    let is_size = matches!(refusal.kind(), AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED));
    let (_, limit) = text.split_once("message size ").filter(|_| is_size)?.1.rsplit_once(' ')?;
    limit.parse().ok()
}

fn said(refusal: &AMQPError) -> String {
    format!("{} {}", refusal.get_id(), refusal.get_message())
}

/// A second handle to a link's socket; when dropped armed, it shuts the connection down.
pub(super) struct Fuse {
    socket: Socket,
    armed: bool,
}

#[derive(Clone, Default)]
struct Socket(Arc<Mutex<State>>);

#[derive(Default)]
enum State {
    #[default]
    Dialing,
    Open(TcpStream),
    Shut,
}

impl Fuse {
    /// From here on, dropping it shuts the connection down.
    pub(super) fn arm(&mut self) {
        self.armed = true;
    }

    /// Whether dropping it shuts the connection down.
    pub(super) fn is_armed(&self) -> bool {
        self.armed
    }

    /// From here on, dropping it leaves the connection to an orderly close.
    pub(super) fn disarm(&mut self) {
        self.armed = false;
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        if self.armed {
            self.socket.shut();
        }
    }
}

impl Socket {
    /// Keeps the handle, or refuses it when nobody waits for the connection any more.
    fn keep(&self, stream: TcpStream) -> io::Result<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Shut = *state {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        *state = State::Open(stream);
        Ok(())
    }

    fn shut(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Open(stream) = std::mem::replace(&mut *state, State::Shut) {
            // It fails only when the connection is down already.
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

/// How long to wait between two looks at a blocked connection; the library has no signal for one task to wait on.
pub(super) const BLOCKED_POLL: Duration = Duration::from_millis(100);
