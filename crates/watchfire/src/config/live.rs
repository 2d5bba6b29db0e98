//! `watchfire config check --live`: asks the API and the broker, changes nothing, and says what they answer.

use anyhow::{Context, anyhow};
use url::Url;
use watchfire_delivery::EventSink;
use watchfire_delivery::sink::pubsub::{MissingTopic, PubSub};
use watchfire_delivery::sink::rabbitmq::{Exchange, RabbitMq};
use watchfire_runtime::{chain, crypto};
use watchfire_sentinel::SentinelConfig;
use watchfire_sentinel::api::{Api, ApiConfig};
use watchfire_sentinel::config::broker::BrokerConfig;

use super::{Loaded, queues};
use crate::failure::Failure;

/// Who was asked, and what came of it.
pub(super) type Answer = (String, anyhow::Result<String>);

/// Asks both, and where it is named, RabbitMQ's management API.
pub(super) fn ask(loaded: Loaded, management: Option<&str>) -> Result<Vec<Answer>, Failure> {
    let management = management.map(|given| queues::management(given, &loaded.broker)).transpose();
    let management = management.map_err(Failure::Configuration)?;
    crypto::install_crypto_provider();
    let runtime = tokio::runtime::Runtime::new().context("start the async runtime")?;
    let (api, broker) =
        runtime.block_on(async { tokio::join!(api(&loaded.sentinel), broker(loaded.broker, management.as_ref())) });
    Ok(vec![("API".to_owned(), api), ("broker".to_owned(), broker)])
}

/// Fails if one of those who were asked does.
pub(super) fn verdict(answers: &[Answer]) -> Result<(), Failure> {
    if answers.iter().all(|(_, answer)| answer.is_ok()) {
        return Ok(());
    }
    let asked: Vec<_> = answers.iter().map(|(name, _)| name.as_str()).collect();
    Err(anyhow!("ask {}: not all are as they must be", asked.join(", ")).into())
}

/// Lists one resource, as the sentinel would, and reads how many there are.
async fn api(config: &SentinelConfig) -> anyhow::Result<String> {
    let one = ApiConfig { page_size: 1, ..config.api.clone() };
    let api = Api::new(&one).context("make the API client")?;
    let (search, labels) = (config.selector.search(), config.selector.labels());
    let mut query = vec![("size", "1"), ("order", "id asc")];
    query.extend(search.as_deref().map(|search| ("search", search)));
    query.extend(labels.as_deref().map(|labels| ("labels", labels)));
    let page = api.once(&query).await.map_err(|error| anyhow!("{}; {}", chain(&error), error.hint(config.form)))?;
    let count = page.total.unwrap_or(page.len() as u64);
    let what = &config.api.resource_type;
    let by = search.map(|search| format!(" with {search}")).unwrap_or_default();
    let rest = match (&labels, config.selector.is_searchable()) {
        (Some(labels), false) => format!("; {labels} is looked at here, since the API cannot search for all of it"),
        _ => String::new(),
    };
    let none = if count == 0 { ", so that there is nothing to publish: check resource_type and selector" } else { "" };
    Ok(format!("{} answers: {count} {what}{by}{none}{rest}", config.api.endpoint))
}

async fn broker(config: BrokerConfig, management: Option<&Url>) -> anyhow::Result<String> {
    let told = |error: watchfire_delivery::sink::Error| anyhow!("{}; {}", chain(&error), error.hint());
    match config {
        BrokerConfig::RabbitMq(config) => {
            let (name, kind) = (config.exchange.clone(), config.exchange_type);
            let found = match RabbitMq::new(config.clone()).look().await.map_err(told)? {
                Exchange::There => "is there",
                Exchange::Missing => "is not there yet and will be declared",
            };
            let queues = match management {
                Some(management) => queues::behind(&config, management).await?,
                None => {
                    "which queues are bound AMQP does not tell, --management-url asks; the sentinel is not ready and \
                         says so if none is"
                        .to_owned()
                }
            };
            Ok(format!("exchange {name:?} {found}, durable and {kind}; {queues}"))
        }
        BrokerConfig::PubSub(mut config) => {
            let (topic, creates) = (config.topic.clone(), config.missing_topic == MissingTopic::Create);
            config.missing_topic = MissingTopic::Fail;
            let pubsub = PubSub::new(config);
            if creates && !pubsub.exists().await.map_err(told)? {
                return Ok(format!("topic {topic:?} is not there yet and will be created"));
            }
            pubsub.check().await.map_err(told)?;
            let subscriptions = match pubsub.subscriptions().await {
                // Who is let in and may not look can still publish.
                Err(error) if error.kind() == "denied" => {
                    return Ok(format!(
                        "topic {topic:?} may not be looked at without pubsub.topics.get, which publishing does not need: \
                         whether it is there, and who subscribes, is not known"
                    ));
                }
                counted => counted.map_err(told)?,
            };
            let none = if subscriptions == 0 { ": nobody gets the events; subscribe the adapters" } else { "" };
            Ok(format!("topic {topic:?} is there, with {subscriptions} subscriptions{none}"))
        }
        BrokerConfig::Http { subscribers, store, .. } => {
            let names: Vec<_> = subscribers.iter().map(|subscriber| subscriber.name.as_str()).collect();
            Ok(format!("embedded, in {}; subscribers, who are not asked: {}", store.display(), names.join(", ")))
        }
    }
}
