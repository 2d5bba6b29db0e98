//! Opens the configured brokers, one connection for all sentinels of a process that publish to the same one.

use std::convert::Infallible;
use std::sync::Arc;

use watchfire_delivery::EventSink;
use watchfire_delivery::embedded::{self, Embedded};
use watchfire_delivery::metrics::Metrics;
use watchfire_delivery::sink::pubsub::PubSub;
use watchfire_delivery::sink::rabbitmq::RabbitMq;
use watchfire_delivery::store::Store;
use watchfire_runtime::health::Health;
use watchfire_runtime::tasks::{Stage, Tasks};
use watchfire_sentinel::config::broker::{BrokerConfig, Settings};

/// A broker, ready to publish to.
#[derive(Clone)]
pub(crate) struct Broker {
    pub(crate) sink: Arc<dyn EventSink>,
    /// Topic or exchange.
    pub(crate) topic: String,
    /// Where the embedded one keeps what it delivers.
    pub(crate) store: Option<Store>,
}

/// The brokers of a process.
pub(crate) struct Brokers<'a> {
    metrics: &'a Metrics,
    opened: Vec<(Settings, Broker)>,
}

impl<'a> Brokers<'a> {
    pub(crate) fn new(metrics: &'a Metrics) -> Self {
        Self { metrics, opened: Vec::new() }
    }

    /// Opens a broker, unless it is open already; its checks are then among those of whoever came first. The topic of
    /// the embedded one is a name in logs and metrics only, so that all topics share its store.
    pub(crate) async fn open(
        &mut self,
        settings: Settings,
        config: BrokerConfig,
        health: &Health,
        tasks: &mut Tasks,
    ) -> anyhow::Result<Broker> {
        let topic = config.topic().to_owned();
        let settings = match config {
            BrokerConfig::Http { .. } => settings.without_topic(),
            BrokerConfig::RabbitMq(_) | BrokerConfig::PubSub(_) => settings,
        };
        if let Some((_, broker)) = self.opened.iter().find(|(opened, _)| *opened == settings) {
            return Ok(Broker { topic, ..broker.clone() });
        }
        let (sink, store) = open(config, self.metrics, health, tasks).await?;
        let broker = Broker { sink, topic, store };
        self.opened.push((settings, broker.clone()));
        Ok(broker)
    }
}

/// Opens the broker. The real ones connect with the first event; the embedded one opens its store here.
async fn open(
    config: BrokerConfig,
    metrics: &Metrics,
    health: &Health,
    tasks: &mut Tasks,
) -> anyhow::Result<(Arc<dyn EventSink>, Option<Store>)> {
    Ok(match config {
        BrokerConfig::RabbitMq(rabbitmq) => (Arc::new(RabbitMq::new(rabbitmq)), None),
        BrokerConfig::PubSub(pubsub) => (Arc::new(PubSub::new(pubsub)), None),
        BrokerConfig::Http { subscribers, store, .. } => {
            let broker = embedded(embedded::Config::new(store, subscribers), metrics, health, tasks).await?;
            let store = broker.store().clone();
            (Arc::new(broker), Some(store))
        }
    })
}

/// Opens the embedded broker; its deliveries become tasks of this process.
pub(crate) async fn embedded(
    config: embedded::Config,
    metrics: &Metrics,
    health: &Health,
    tasks: &mut Tasks,
) -> anyhow::Result<Embedded> {
    let (broker, work) = Embedded::open(config, metrics, health).await?;
    for worker in work.workers {
        tasks.essential_at(Stage::Workers, "broker-delivery", worker.run(tasks.stage_token(Stage::Workers)));
    }
    // Deliveries need no cleaning to go on.
    tasks.auxiliary_at(Stage::Workers, "broker-retention", move |token| work.retention.clone().run(token));
    // After the workers, which mark in it what they delivered.
    let (store, stop) = (broker.store().clone(), tasks.stage_token(Stage::Outbox));
    tasks.essential_at(Stage::Outbox, "broker-store", async move {
        stop.cancelled().await;
        store.close().await;
        Ok::<_, Infallible>(())
    });
    Ok(broker)
}
