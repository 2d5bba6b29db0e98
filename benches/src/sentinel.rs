//! The rows of the sentinel: cycles over an idle fleet and over one in which everything is due.

use std::process::Command;

use anyhow::{Context, bail, ensure};
use lapin::options::{
    ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use tokio_util::sync::CancellationToken;
use watchfire_sentinel::api::projection::{Projection, Reads};
use watchfire_sentinel::payload::Payload;
use watchfire_simulator::{Dialect, FleetState, Server, Simulator};
use watchfire_testkit::beside;

use crate::process::Service;
use crate::report::{Row, median};

/// What the sentinel asks for with its default payload, of resources that have no owner; a ceiling reads the same.
fn fields() -> anyhow::Result<String> {
    let payload = Payload::default_payload();
    match Projection::new([Reads { payload: &payload, expression: None }]) {
        Projection::Unproven(candidates) => {
            let mut without_owner = candidates.into_iter().filter(|fields| !fields.contains("owner_references"));
            without_owner.next().context("find what the sentinel asks for")
        }
        other => bail!("the default payload cannot be projected: {other:?}"),
    }
}

/// What an event of the default payload weighs.
const EVENT_BYTES: usize = 480;

pub(crate) async fn rows(resources: u32, rounds: usize, million: bool) -> anyhow::Result<Vec<Row>> {
    let mut rows = binary(rounds).await?;
    rows.extend(idle(resources, rounds, "<= 2 s", "<= 0.8 s").await?);
    if million {
        rows.extend(idle(1_000_000, 1, "<= 60 s", "<= 10 s").await?);
    }
    match std::env::var("PUBSUB_EMULATOR_HOST") {
        Ok(host) => rows.push(pubsub(&host, resources, rounds).await?),
        Err(_) => tell("Pub/Sub is left out: PUBSUB_EMULATOR_HOST is not set (see testbed/up)"),
    }
    // Last: it is busy with what it was given for a while.
    match std::env::var("WATCHFIRE_TEST_AMQP_URL") {
        Ok(url) => rows.push(rabbitmq(&url, resources, rounds).await?),
        Err(_) => tell("RabbitMQ is left out: WATCHFIRE_TEST_AMQP_URL is not set (see testbed/up)"),
    }
    Ok(rows)
}

/// A simulated API in this process; stops when dropped.
struct Api {
    url: String,
    token: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Api {
    async fn start(resources: u32, state: FleetState) -> anyhow::Result<Self> {
        let fleet = Simulator::new(Dialect::Hyperfleet);
        fleet.seed("clusters", resources, state).map_err(|problem| anyhow::anyhow!("{problem:?}"))?;
        let server = Server::bind(([127, 0, 0, 1], 0).into(), fleet).await?;
        let (url, token) = (server.url(), CancellationToken::new());
        let (stop, handle) = (token.clone(), tokio::runtime::Handle::current());
        let thread = std::thread::spawn(move || drop(handle.block_on(server.run(stop))));
        Ok(Self { url, token, thread: Some(thread) })
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.token.cancel();
        // It uses the runtime, which may end next.
        if let Some(thread) = self.thread.take() {
            drop(tokio::task::block_in_place(|| thread.join()));
        }
    }
}

fn nobody() -> Vec<(&'static str, String)> {
    vec![
        ("BROKER_TYPE", "http".to_owned()),
        ("BROKER_HTTP_SUBSCRIBERS", "nobody=http://127.0.0.1:9/".to_owned()),
        ("BROKER_HTTP_STORE", "broker.db".to_owned()),
    ]
}

async fn binary(rounds: usize) -> anyhow::Result<Vec<Row>> {
    let size = std::fs::metadata(beside("watchfire"))?.len();
    let api = Api::start(100, FleetState::Fresh).await?;
    let (mut starts, mut memory) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut sentinel = Service::sentinel(&api.url, &nobody())?;
        starts.push(sentinel.ready().await?);
        memory.push(sentinel.memory("VmRSS")?);
    }
    let row = |what: &str, value, unit, must, aim| Row { what: what.to_owned(), value, unit, ceiling: None, must, aim };
    #[expect(clippy::cast_precision_loss, reason = "megabytes")]
    let megabytes = size as f64 / 1e6;
    Ok(vec![
        row("the binary: size", megabytes, "MB", "40 MB", "30 MB"),
        row("the binary: idle memory of a sentinel", median(memory), "MiB", "32 MiB", "20 MiB"),
        row("the binary: start to ready", median(starts), "ms", "300 ms", "100 ms"),
    ])
}

async fn idle(resources: u32, rounds: usize, must: &'static str, aim: &'static str) -> anyhow::Result<Vec<Row>> {
    let api = Api::start(resources, FleetState::Fresh).await?;
    let (mut cycles, mut ceilings, mut peaks) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut sentinel = Service::sentinel(&api.url, &nobody())?;
        cycles.push(sentinel.first_cycle().await?);
        peaks.push(sentinel.memory("VmHWM")?);
        drop(sentinel);
        ceilings.push(ceiling(&["--api", &api.url, "--fields", &fields()?])?);
    }
    Ok(vec![
        Row {
            what: format!("{resources} resources, none due: one cycle"),
            value: median(cycles),
            unit: "s",
            ceiling: Some(median(ceilings)),
            must,
            aim,
        },
        Row {
            what: format!("{resources} resources, none due: peak memory"),
            value: median(peaks),
            unit: "MiB",
            ceiling: None,
            must: "<= 64 MiB",
            aim: "<= 32 MiB",
        },
    ])
}

async fn rabbitmq(url: &str, resources: u32, rounds: usize) -> anyhow::Result<Row> {
    let exchange = format!("watchfire-bench-{}", std::process::id());
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(exchange.as_str().into(), ExchangeKind::Fanout, options, FieldTable::default()).await?;
    let api = Api::start(resources, FleetState::Due).await?;
    let broker =
        [("BROKER_TYPE", "rabbitmq".to_owned()), ("BROKER_URL", url.to_owned()), ("BROKER_EXCHANGE", exchange.clone())];
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        fresh_queue(&channel, &exchange).await?;
        ours.push(due(&api.url, &broker, resources).await?);
        fresh_queue(&channel, &exchange).await?;
        let size = EVENT_BYTES.to_string();
        let seconds = ceiling(&[
            "--api",
            &api.url,
            "--fields",
            &fields()?,
            "--amqp",
            url,
            "--topic",
            &exchange,
            "--size",
            &size,
        ])?;
        bare.push(f64::from(resources) / seconds);
    }
    channel.queue_delete(exchange.as_str().into(), QueueDeleteOptions::default()).await?;
    channel.exchange_delete(exchange.as_str().into(), ExchangeDeleteOptions::default()).await?;
    Ok(Row {
        what: format!("{resources} resources, all due, RabbitMQ with confirms"),
        value: median(ours),
        unit: "/s",
        ceiling: Some(median(bare)),
        must: ">= 80 %",
        aim: ">= 90 %",
    })
}

/// An empty durable queue on the exchange, so that every round begins with the same broker.
async fn fresh_queue(channel: &Channel, exchange: &str) -> anyhow::Result<()> {
    channel.queue_delete(exchange.into(), QueueDeleteOptions::default()).await?;
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(exchange.into(), options, FieldTable::default()).await?;
    let options = QueueBindOptions::default();
    channel.queue_bind(exchange.into(), exchange.into(), "".into(), options, FieldTable::default()).await?;
    Ok(())
}

async fn pubsub(host: &str, resources: u32, rounds: usize) -> anyhow::Result<Row> {
    let api = Api::start(resources, FleetState::Due).await?;
    let topic = format!("watchfire-bench-{}", std::process::id());
    let broker = [
        ("BROKER_TYPE", "pubsub".to_owned()),
        ("BROKER_PROJECT_ID", "watchfire".to_owned()),
        ("BROKER_TOPIC", topic.clone()),
        ("PUBSUB_EMULATOR_HOST", host.to_owned()),
    ];
    let topic = format!("projects/watchfire/topics/{topic}");
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(due(&api.url, &broker, resources).await?);
        let size = EVENT_BYTES.to_string();
        let seconds = ceiling(&[
            "--api",
            &api.url,
            "--fields",
            &fields()?,
            "--emulator",
            host,
            "--topic",
            &topic,
            "--size",
            &size,
        ])?;
        bare.push(f64::from(resources) / seconds);
    }
    Ok(Row {
        what: format!("{resources} resources, all due, Pub/Sub emulator"),
        value: median(ours),
        unit: "/s",
        ceiling: Some(median(bare)),
        must: ">= 60 %",
        aim: ">= 80 %",
    })
}

/// Publishes everything once and returns the rate.
async fn due(api: &str, broker: &[(&str, String)], resources: u32) -> anyhow::Result<f64> {
    let mut sentinel = Service::sentinel(api, broker)?;
    let seconds = sentinel.first_cycle().await?;
    let published = sentinel.published().await;
    ensure!(published >= f64::from(resources), "{published} of {resources} events were confirmed");
    Ok(f64::from(resources) / seconds)
}

/// Runs a ceiling as a process of its own and returns its seconds.
fn ceiling(args: &[&str]) -> anyhow::Result<f64> {
    let output =
        tokio::task::block_in_place(|| Command::new(std::env::current_exe()?).arg("ceiling").args(args).output())?;
    ensure!(output.status.success(), "the ceiling failed: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().parse().context("read the ceiling's seconds")
}

/// Says what is left out, and why.
fn tell(text: &str) {
    use std::io::Write;
    // Nobody is left to tell if standard error is closed.
    _ = writeln!(std::io::stderr(), "{text}");
}
