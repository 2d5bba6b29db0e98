//! What RabbitMQ's management API knows of the queues behind an exchange; AMQP has no question for it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, anyhow};
use secrecy::ExposeSecret;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use url::Url;
use watchfire_delivery::sink::rabbitmq::RabbitMqConfig;
use watchfire_runtime::http::{self, client_for};
use watchfire_sentinel::config::broker::BrokerConfig;

/// So many names are told; a broker can have thousands.
const MAX_NAMES: usize = 20;

/// Bytes of an answer; a binding has some hundred.
const MAX_ANSWER: usize = 64 << 20;

#[derive(Deserialize)]
struct Binding {
    source: String,
    destination: String,
    destination_type: String,
    routing_key: String,
}

/// Of a queue that was just declared nothing is counted yet.
#[derive(Deserialize)]
struct Queue {
    name: String,
    consumers: Option<u64>,
    messages: Option<u64>,
}

/// Reads the API's address. It is not repeated where it is refused: it may hold a password.
pub(super) fn management(given: &str, broker: &BrokerConfig) -> anyhow::Result<Url> {
    if !matches!(broker, BrokerConfig::RabbitMq(_)) {
        return Err(anyhow!("read --management-url: it is RabbitMQ's, and the broker is another one"));
    }
    let url = Url::parse(given).ok().filter(|url| ["http", "https"].contains(&url.scheme()));
    let url = url.context("read --management-url: expected an address such as http://rabbitmq:15672")?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(anyhow!("read --management-url: leave out user and password, the broker's are used"));
    }
    Ok(url)
}

/// Says which queues get what is published to the exchange, and who takes it from them.
pub(super) async fn behind(config: &RabbitMqConfig, management: &Url) -> anyhow::Result<String> {
    let bindings: Vec<Binding> = ask(config, management, "bindings", "").await?;
    let queues: Vec<Queue> = ask(config, management, "queues", "columns=name,consumers,messages").await?;
    let queues: BTreeMap<_, _> = queues.iter().map(|queue| (queue.name.as_str(), queue)).collect();
    let (ours, others): (Vec<_>, Vec<_>) = bindings.iter().partition(|binding| binding.source == config.exchange);
    if ours.is_empty() {
        // The default exchange has each queue, by its name.
        let others: BTreeSet<_> = others.iter().map(|other| &other.source).filter(|name| !name.is_empty()).collect();
        if others.is_empty() {
            return Ok(
                "no queue is bound to it, nor to any other exchange of the virtual host: nobody gets the events; \
                       bind the adapters' queues"
                    .to_owned(),
            );
        }
        let others = listed(others.into_iter().map(|name| format!("{name:?}")));
        return Ok(format!(
            "no queue is bound to it: nobody gets the events; queues are bound to {others}: name that exchange as the \
             topic if it is the one meant, else bind the adapters' queues"
        ));
    }
    let told = ours.into_iter().map(|binding| {
        let Binding { destination, destination_type, routing_key, .. } = binding;
        let key = if routing_key.is_empty() { String::new() } else { format!(" by {routing_key:?}") };
        let taken = queues.get(destination.as_str()).filter(|_| destination_type == "queue");
        let taken = taken.map(|queue| format!(" ({})", taken_from(queue))).unwrap_or_default();
        format!("{destination_type} {destination:?}{key}{taken}")
    });
    Ok(format!("bound to it: {}", listed(told)))
}

fn taken_from(queue: &Queue) -> String {
    let messages = queue.messages.map_or_else(|| "messages not counted yet".to_owned(), |n| format!("{n} messages"));
    match queue.consumers {
        Some(0) => format!("no consumer: start the adapter; {messages}"),
        Some(consumers) => format!("{consumers} consumers, {messages}"),
        None => format!("consumers not counted yet, {messages}"),
    }
}

fn listed(names: impl ExactSizeIterator<Item = String>) -> String {
    let more = names.len().saturating_sub(MAX_NAMES);
    let more = (more > 0).then(|| format!("and {more} more"));
    names.take(MAX_NAMES).chain(more).collect::<Vec<_>>().join(", ")
}

async fn ask<T: DeserializeOwned>(
    config: &RabbitMqConfig,
    management: &Url,
    what: &str,
    query: &str,
) -> anyhow::Result<T> {
    let mut url = management.clone();
    let mut path = url.path_segments_mut().map_err(|()| anyhow!("{management} is no address of an API"))?;
    path.pop_if_empty().extend(["api", what, &config.vhost]);
    drop(path);
    url.set_query(Some(query).filter(|query| !query.is_empty()));
    let asked = || format!("ask RabbitMQ's management API for {url}");
    let password = config.password.current().with_context(asked)?;
    let client = client_for(url.as_str()).timeout(config.timeout).build().context("make the client")?;
    let request = client.get(url.clone()).basic_auth(&config.user, Some(password.expose_secret()));
    let answer = request.send().await.map_err(http::Error::without_url).with_context(asked)?;
    let hint = match answer.status().as_u16() {
        200 => return read(answer).await.with_context(asked),
        401 => "the broker's user needs the tag monitoring there",
        404 => "look at the address, and whether the virtual host is there",
        _ => "look at the address",
    };
    Err(anyhow!("{}; {hint}", answer.status())).with_context(asked)
}

/// Reads JSON, as far as it has a sensible length.
async fn read<T: DeserializeOwned>(mut answer: http::Response) -> anyhow::Result<T> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(http::Error::without_url)? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_ANSWER {
            return Err(anyhow!("more than 64 MiB; is it RabbitMQ's management API?"));
        }
    }
    serde_json::from_slice(&body).context("it is not what RabbitMQ's management API answers")
}
