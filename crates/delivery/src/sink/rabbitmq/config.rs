//! Where the broker is and what to publish through.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use lapin::ExchangeKind;
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use secrecy::{ExposeSecret, SecretString};
use watchfire_runtime::secret::{self, SecretSource};

/// Two missed heartbeats end a connection; short enough to notice a dead peer between two polls.
const HEARTBEAT_SECONDS: u16 = 10;

/// Everything the sink needs to know; nothing is contacted until the first publish or check.
#[derive(Debug, Clone)]
pub struct RabbitMqConfig {
    /// Host name or address.
    pub host: String,
    /// Port: 5672, with TLS usually 5671.
    pub port: u16,
    /// Virtual host.
    pub vhost: String,
    /// User.
    pub user: String,
    /// Password; asked for with each connection, so that a rotated one is used by the next.
    pub password: SecretSource,
    /// Whether the connection is encrypted.
    pub transport: Transport,
    /// Exchange to declare and publish to.
    pub exchange: String,
    /// Type of the exchange; one that exists with another type is refused by the broker (406).
    pub exchange_type: ExchangeType,
    /// Routing key of every message; consumers in the field bind the empty one.
    pub routing_key: String,
    /// How long connecting, and each window of events, may take.
    pub timeout: Duration,
}

/// Whether the connection is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// `amqp`.
    Plain,
    /// `amqps`: roots from the system's store, or from the file that `SSL_CERT_FILE` names.
    Tls,
}

/// Type of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExchangeType {
    /// Every bound queue gets every message.
    #[default]
    Fanout,
    /// Queues bound with the routing key get the message.
    Direct,
    /// Queues bound with a pattern that matches the routing key get the message.
    Topic,
    /// Queues are matched by message headers.
    Headers,
}

/// A text is not the URL of an AMQP broker. It is not repeated here: it may hold a password.
#[derive(Debug, thiserror::Error)]
#[error("read the broker url: expected amqp://user:password@host:5672/vhost, or amqps://")]
pub struct UrlError;

/// A text is not the type of an exchange.
#[derive(Debug, thiserror::Error)]
#[error("read the exchange type {0:?}: expected fanout, direct, topic or headers")]
pub struct ExchangeTypeError(String);

impl RabbitMqConfig {
    /// The broker's defaults: guest on this machine, a fanout exchange of this name, 10 seconds.
    pub fn new(exchange: impl Into<String>) -> Self {
        Self {
            host: "localhost".to_owned(),
            port: 5672,
            vhost: "/".to_owned(),
            user: "guest".to_owned(),
            password: SecretSource::literal("guest"),
            transport: Transport::Plain,
            exchange: exchange.into(),
            exchange_type: ExchangeType::default(),
            routing_key: String::new(),
            timeout: Duration::from_secs(10),
        }
    }

    /// Takes host, port, virtual host and TLS from a URL, with AMQP's defaults for what it leaves out; user and
    /// password where it has them. A query, as other clients read it (`?heartbeat=30`), is not followed.
    pub fn with_url(mut self, url: &SecretString) -> Result<Self, UrlError> {
        let parsed = url::Url::parse(url.expose_secret()).map_err(|_| UrlError)?;
        // Behind the host it ends a password that is not escaped, and what stands there is shown.
        if [Some(parsed.path()), parsed.query(), parsed.fragment()].iter().flatten().any(|part| part.contains('@')) {
            return Err(UrlError);
        }
        let uri: AMQPUri = url.expose_secret().parse().map_err(|_| UrlError)?;
        self.host = uri.authority.host;
        self.port = uri.authority.port;
        // `amqp://host/` is written for the default everywhere, and by Go's client taken for it.
        self.vhost = Some(uri.vhost).filter(|vhost| !vhost.is_empty()).unwrap_or_else(|| "/".to_owned());
        self.transport = match uri.scheme {
            AMQPScheme::AMQP => Transport::Plain,
            AMQPScheme::AMQPS => Transport::Tls,
        };
        if !parsed.username().is_empty() {
            self.user = uri.authority.userinfo.username;
        }
        if parsed.password().is_some() {
            self.password = SecretSource::literal(uri.authority.userinfo.password);
        }
        Ok(self)
    }

    /// Where to connect and as whom, with the password as it is at this moment.
    pub(super) fn uri(&self) -> Result<AMQPUri, secret::Error> {
        let password = self.password.current()?.expose_secret().to_owned();
        let userinfo = AMQPUserInfo { username: self.user.clone(), password };
        Ok(AMQPUri {
            scheme: match self.transport {
                Transport::Plain => AMQPScheme::AMQP,
                Transport::Tls => AMQPScheme::AMQPS,
            },
            authority: AMQPAuthority { userinfo, host: self.host.clone(), port: self.port },
            vhost: self.vhost.clone(),
            query: AMQPQueryString { heartbeat: Some(HEARTBEAT_SECONDS), ..AMQPQueryString::default() },
        })
    }

    /// Names the target in errors: no user, no password.
    pub(super) fn target(&self) -> String {
        let scheme = match self.transport {
            Transport::Plain => "amqp",
            Transport::Tls => "amqps",
        };
        let Self { exchange, host, port, vhost, .. } = self;
        format!("exchange {exchange:?} at {scheme}://{host}:{port}, vhost {vhost:?}")
    }
}

impl ExchangeType {
    pub(super) fn kind(self) -> ExchangeKind {
        match self {
            Self::Fanout => ExchangeKind::Fanout,
            Self::Direct => ExchangeKind::Direct,
            Self::Topic => ExchangeKind::Topic,
            Self::Headers => ExchangeKind::Headers,
        }
    }
}

impl fmt::Display for ExchangeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fanout => "fanout",
            Self::Direct => "direct",
            Self::Topic => "topic",
            Self::Headers => "headers",
        })
    }
}

impl FromStr for ExchangeType {
    type Err = ExchangeTypeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::Fanout, Self::Direct, Self::Topic, Self::Headers];
        let found = all.into_iter().find(|exchange_type| exchange_type.to_string() == text);
        found.ok_or_else(|| ExchangeTypeError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_url(url: &str) -> Result<RabbitMqConfig, UrlError> {
        RabbitMqConfig::new("events").with_url(&SecretString::from(url))
    }

    fn password(config: &RabbitMqConfig) -> String {
        config.password.current().unwrap().expose_secret().to_owned()
    }

    #[test]
    fn a_url_gives_every_part_and_its_escapes_are_undone() {
        let config = with_url("amqps://us%40er:p%2Fss@broker.example:5999/team%2Fa").unwrap();
        assert_eq!((config.host.as_str(), config.port, config.vhost.as_str()), ("broker.example", 5999, "team/a"));
        assert_eq!((config.user.as_str(), password(&config).as_str()), ("us@er", "p/ss"));
        assert_eq!(config.transport, Transport::Tls);
    }

    #[test]
    fn a_url_without_userinfo_keeps_the_credentials_given_elsewhere() {
        let mut config = RabbitMqConfig::new("events");
        config.user = "sentinel".to_owned();
        config.password = SecretSource::literal("secret");
        let config = config.with_url(&SecretString::from("amqp://broker:5672/%2f")).unwrap();
        assert_eq!((config.user.as_str(), password(&config).as_str()), ("sentinel", "secret"));
        assert_eq!(config.vhost, "/");
    }

    #[test]
    fn no_text_of_ours_shows_the_password() {
        let config = with_url("amqp://user:hunter2@broker/%2f").unwrap();
        let texts =
            [format!("{config:?}"), config.target(), with_url("http://user:hunter2@x").unwrap_err().to_string()];
        assert!(texts.iter().all(|text| !text.contains("hunter2")), "{texts:?}");
        assert_eq!(config.target(), r#"exchange "events" at amqp://broker:5672, vhost "/""#);
    }

    #[test]
    fn a_password_that_is_not_escaped_does_not_become_a_virtual_host() {
        for url in ["amqp://me:5672/hunter2@mq", "amqp://me:5672?hunter2@mq", "amqp://me:5672#hunter2@mq"] {
            let error = with_url(url).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
        for default in ["amqp://mq", "amqp://mq/", "amqp://mq:5672/", "amqp://mq/%2f"] {
            assert_eq!(with_url(default).unwrap().vhost, "/", "{default}");
        }
        assert_eq!(with_url("amqp://mq/team%40a").unwrap().vhost, "team@a");
    }

    #[test]
    fn exchange_types_are_read_as_they_are_written() {
        for text in ["fanout", "direct", "topic", "headers"] {
            assert_eq!(text.parse::<ExchangeType>().unwrap().to_string(), text);
        }
        assert!("Fanout".parse::<ExchangeType>().is_err());
    }
}
