//! The same reading and the same bytes with nothing in between.

use std::io::Write;
use std::time::Instant;

use anyhow::{Context, bail};
use futures_util::future::join_all;
use google_cloud_auth::credentials::anonymous;
use google_cloud_pubsub::client::Publisher;
use google_cloud_pubsub::model::Message;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use tokio::sync::mpsc;

/// Messages in one request to Pub/Sub, and its bytes: as the sentinel sends them. The client's own number is a tenth.
const BATCH: u32 = 1_000;
const BATCH_BYTES: u32 = 4 << 20;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The simulated API.
    #[arg(long)]
    api: String,
    /// The value of `fields=`.
    #[arg(long)]
    fields: String,
    /// Where to publish: an exchange at an AMQP address, or a topic at an emulator. Nowhere: only read.
    #[arg(long)]
    amqp: Option<String>,
    #[arg(long)]
    emulator: Option<String>,
    #[arg(long, default_value = "")]
    topic: String,
    /// How many bytes a message has.
    #[arg(long, default_value_t = 0)]
    size: usize,
}

/// Prints how many seconds it took.
pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let (sender, receiver) = mpsc::channel(16);
    let target = Target::open(args).await?;
    let begun = Instant::now();
    let (read, published) = tokio::join!(read(args, sender), publish(target, receiver, vec![b'x'; args.size]));
    read?;
    published?;
    writeln!(std::io::stdout(), "{}", begun.elapsed().as_secs_f64())?;
    Ok(())
}

/// Reads every page by key and says how many items each has.
async fn read(args: &Args, pages: mpsc::Sender<usize>) -> anyhow::Result<()> {
    let client = reqwest::Client::new();
    let mut last = String::new();
    loop {
        let mut url: url::Url = format!("{}/api/hyperfleet/v1/clusters", args.api).parse()?;
        url.query_pairs_mut().extend_pairs([("size", "100"), ("order", "id asc"), ("fields", &args.fields)]);
        if !last.is_empty() {
            url.query_pairs_mut().append_pair("search", &format!("id > '{last}'"));
        }
        let body = client.get(url).send().await?.error_for_status()?.bytes().await?;
        let text = std::str::from_utf8(&body)?;
        let items = text.matches("\"kind\":\"Cluster\"").count();
        if items > 0 {
            pages.send(items).await.context("hand on a page")?;
        }
        if items < 100 {
            return Ok(());
        }
        let at = text.rfind("\"id\":\"").context("find the last id")?;
        last = text[at + 6..].split('"').next().unwrap_or_default().to_owned();
    }
}

struct RabbitMq {
    channel: Channel,
    exchange: String,
    properties: BasicProperties,
    _connection: Connection,
}

/// What stands beside the body, as the sentinel sends it.
const ID: &str = "6487f98e-0000-5000-8000-000000000000";
const ATTRIBUTES: [(&str, &str); 6] = [
    ("specversion", "1.0"),
    ("id", ID),
    ("source", "hyperfleet-sentinel"),
    ("type", "com.redhat.hyperfleet.cluster.reconcile"),
    ("time", "2026-07-01T10:05:00.000000Z"),
    ("datacontenttype", "application/json"),
];

fn properties() -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("_watermill_message_uuid".into(), AMQPValue::LongString(ID.into()));
    for (name, value) in ATTRIBUTES {
        headers.insert(format!("cloudEvents:{name}").into(), AMQPValue::LongString(value.into()));
    }
    BasicProperties::default()
        .with_delivery_mode(2)
        .with_message_id(ID.into())
        .with_content_type("application/cloudevents+json".into())
        .with_headers(headers)
}

fn attributes() -> impl Iterator<Item = (String, String)> {
    let uuid = ("_watermill_message_uuid".to_owned(), ID.to_owned());
    ATTRIBUTES.into_iter().map(|(name, value)| (["ce-", name].concat(), value.to_owned())).chain([uuid])
}

enum Target {
    Nowhere,
    RabbitMq(Box<RabbitMq>),
    PubSub(Box<Publisher>),
}

impl Target {
    async fn open(args: &Args) -> anyhow::Result<Self> {
        if let Some(url) = &args.amqp {
            let connection = Connection::connect(url, ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            let exchange = args.topic.clone();
            return Ok(Self::RabbitMq(Box::new(RabbitMq {
                channel,
                exchange,
                properties: properties(),
                _connection: connection,
            })));
        }
        let Some(emulator) = &args.emulator else { return Ok(Self::Nowhere) };
        let publisher = Publisher::builder(&args.topic)
            .set_message_count_threshold(BATCH)
            .set_byte_threshold(BATCH_BYTES)
            .with_endpoint(format!("http://{emulator}"))
            .with_credentials(anonymous::Builder::new().build());
        Ok(Self::PubSub(Box::new(publisher.build().await?)))
    }

    /// What is in flight together, as it is of the sentinel.
    fn window(&self) -> usize {
        match self {
            Self::Nowhere | Self::RabbitMq(_) => 1_000,
            Self::PubSub(_) => 4 * BATCH as usize,
        }
    }

    async fn publish(&self, count: usize, body: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::Nowhere => Ok(()),
            Self::RabbitMq(rabbitmq) => {
                let RabbitMq { channel, exchange, .. } = &**rabbitmq;
                let publish = |_| async {
                    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
                    let properties = rabbitmq.properties.clone();
                    channel.basic_publish(exchange.as_str().into(), "".into(), options, body, properties).await?.await
                };
                for confirm in join_all((0..count).map(publish)).await {
                    if !confirm?.is_ack() {
                        bail!("the broker refused a message");
                    }
                }
                Ok(())
            }
            Self::PubSub(publisher) => {
                let publish =
                    |_| publisher.publish(Message::new().set_data(body.to_vec()).set_attributes(attributes()));
                let sent: Vec<_> = (0..count).map(publish).collect();
                // What fills no request would wait for the client's timer.
                publisher.flush().await;
                for published in join_all(sent).await {
                    published?;
                }
                Ok(())
            }
        }
    }
}

async fn publish(target: Target, mut pages: mpsc::Receiver<usize>, body: Vec<u8>) -> anyhow::Result<()> {
    let (mut waiting, window) = (0, target.window());
    while let Some(items) = pages.recv().await {
        waiting += items;
        while waiting >= window {
            target.publish(window, &body).await?;
            waiting -= window;
        }
    }
    target.publish(waiting, &body).await
}
