//! What the settings say about RabbitMQ.

use secrecy::SecretString;
use watchfire_delivery::sink::rabbitmq::{RabbitMqConfig, Transport};
use watchfire_runtime::SecretSource;
use watchfire_runtime::config::{Origin, Problems};

use super::DEFAULT_TOPIC;
use super::settings::Settings;

/// An exchange's name is an AMQP short string.
const MAX_SHORT: usize = 255;

/// Reads them all, and tells every problem.
pub(super) fn check(settings: &Settings, problems: &mut Problems) -> Option<RabbitMqConfig> {
    let before = problems.count();
    let mut config = RabbitMqConfig::new(exchange(settings, problems));
    address(settings, &mut config, problems);
    routing(settings, &mut config, problems);
    credentials(settings, &mut config, problems);
    (problems.count() == before).then_some(config)
}

fn exchange(settings: &Settings, problems: &mut Problems) -> String {
    let named = ["BROKER_EXCHANGE", "BROKER_TOPIC"].into_iter().find_map(|name| Some((name, settings.get(name)?)));
    let Some((name, exchange)) = named else { return DEFAULT_TOPIC.to_owned() };
    if exchange.len() > MAX_SHORT {
        let length = exchange.len();
        let message = format!("{length} bytes are too long for the name of an exchange, at most {MAX_SHORT}");
        problems.push(settings.origin(name), message);
    } else if exchange.chars().any(char::is_control) {
        problems
            .push(settings.origin(name), format!("{exchange:?} is no name of an exchange: it has control characters"));
    }
    exchange.to_owned()
}

fn address(settings: &Settings, config: &mut RabbitMqConfig, problems: &mut Problems) {
    let url = settings.get("BROKER_URL");
    if let Some(url) = url {
        let origin = || settings.origin("BROKER_URL");
        if let Some(parsed) = problems.take(origin(), config.clone().with_url(&SecretString::from(url))) {
            *config = parsed;
        }
        let better = match origin() {
            Origin::Key(key) if key.ends_with("SecretRef") => None,
            Origin::Key(_) => Some("urlSecretRef"),
            _ => Some("set BROKER_USER and BROKER_PASSWORD"),
        };
        if let Some(better) = better.filter(|_| has_userinfo(url)) {
            problems.warn(origin(), format!("holds credentials; better {better}"));
        }
        if url.contains('?') {
            problems.warn(origin(), "its query is not read: heartbeat, timeouts and limits are the sentinel's own");
        }
    }
    match settings.get("BROKER_HOST") {
        // Not repeated: what stands before an @ may be a password.
        Some(host) if host.contains(|c: char| matches!(c, '@' | '/') || c.is_whitespace()) => {
            let message = "is no host: write its name or address alone, for example rabbitmq.hyperfleet-system.svc; \
                           user and password have BROKER_USER and BROKER_PASSWORD";
            problems.push(settings.origin("BROKER_HOST"), message);
        }
        Some(host) => host.clone_into(&mut config.host),
        None if url.is_none() && !settings.is_left_out("BROKER_URL") => {
            let message = "missing; write the host of RabbitMQ, for example rabbitmq.hyperfleet-system.svc, or its \
                           whole address as BROKER_URL (broker.rabbitmq.url in broker.yaml)";
            problems.push(settings.origin("BROKER_HOST"), message);
        }
        None => {}
    }
    match flag(settings, "BROKER_TLS", problems) {
        Some(true) => config.transport = Transport::Tls,
        Some(false) => config.transport = Transport::Plain,
        None => {}
    }
    match settings.get("BROKER_PORT").map(|text| (text, text.parse())) {
        Some((_, Ok(port))) if port > 0 => config.port = port,
        Some((text, _)) => {
            let hint = if text.contains("://") {
                "; Kubernetes sets it for a Service called broker: rename the Service, or set enableServiceLinks: false"
            } else {
                ""
            };
            let message = format!("{text:?} is not a port, 1 to 65535{hint}");
            problems.push(settings.origin("BROKER_PORT"), message);
        }
        None if url.is_none() && config.transport == Transport::Tls => config.port = 5671,
        None => {}
    }
    if let Some(vhost) = settings.get("BROKER_VHOST") {
        vhost.clone_into(&mut config.vhost);
    }
}

fn has_userinfo(url: &str) -> bool {
    url.split_once("://").is_some_and(|(_, rest)| rest.contains('@'))
}

fn routing(settings: &Settings, config: &mut RabbitMqConfig, problems: &mut Problems) {
    if let Some(text) = settings.get("BROKER_EXCHANGE_TYPE")
        && let Some(exchange_type) = problems.take(settings.origin("BROKER_EXCHANGE_TYPE"), text.parse())
    {
        config.exchange_type = exchange_type;
    }
    if let Some(key) = settings.get("BROKER_ROUTING_KEY") {
        key.clone_into(&mut config.routing_key);
        if key.len() > MAX_SHORT {
            let message = format!("{} bytes are too long for a routing key, at most {MAX_SHORT}", key.len());
            problems.push(settings.origin("BROKER_ROUTING_KEY"), message);
        }
        let message = format!(
            "{key:?} on every message, and HyperFleet's adapters bind their queues with the empty one: on a topic or \
             direct exchange they get nothing; leave it out unless your consumers bind it"
        );
        problems.warn(settings.origin("BROKER_ROUTING_KEY"), message);
    }
    let confirm = "BROKER_RABBITMQ_PUBLISHER_CONFIRM";
    if flag(settings, confirm, problems) == Some(false) {
        let message = "not used: confirms are always on, an event counts once the broker has confirmed it";
        problems.warn(settings.origin(confirm), message);
    }
}

fn credentials(settings: &Settings, config: &mut RabbitMqConfig, problems: &mut Problems) {
    let file = "BROKER_PASSWORD_FILE";
    if let Some(user) = settings.get("BROKER_USER") {
        user.clone_into(&mut config.user);
    }
    match (settings.get("BROKER_USER"), password(settings, problems)) {
        (_, Some(password)) => config.password = password,
        // A file that cannot be read, or named, was told already.
        (Some(_), None) if settings.get(file).is_some() || settings.is_left_out(file) => {}
        (Some(_), None) => {
            let message = "missing; BROKER_USER is set, so its password is needed";
            problems.push(settings.origin("BROKER_PASSWORD"), message);
        }
        (None, None) => {}
    }
    let named = settings.get("BROKER_USER").is_some() || settings.get("BROKER_URL").is_some_and(has_userinfo);
    let left_out = ["BROKER_USER", "BROKER_URL"].into_iter().any(|name| settings.is_left_out(name));
    if config.user == "guest" && (named || !left_out) {
        let whom = if named { "guest is the user" } else { "not set, connecting as guest" };
        let in_url = settings.get("BROKER_USER").is_none() && settings.get("BROKER_URL").is_some_and(has_userinfo);
        let key = if in_url { "BROKER_URL" } else { "BROKER_USER" };
        problems.warn(settings.origin(key), format!("{whom}, whom RabbitMQ lets in from its own host only"));
    }
}

fn password(settings: &Settings, problems: &mut Problems) -> Option<SecretSource> {
    if let Some(password) = settings.get("BROKER_PASSWORD") {
        return Some(SecretSource::literal(password));
    }
    let file = SecretSource::file(settings.get("BROKER_PASSWORD_FILE")?);
    problems.take(settings.origin("BROKER_PASSWORD_FILE"), file.current()).map(|_| file)
}

/// Reads a flag as YAML and Go write it.
pub(super) fn flag(settings: &Settings, name: &str, problems: &mut Problems) -> Option<bool> {
    let text = settings.get(name)?;
    match text.to_lowercase().as_str() {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => {
            problems.push(settings.origin(name), format!("{text:?} is not true or false"));
            None
        }
    }
}
