//! Processes on the real brokers: stopped in mid-cycle, beside each other, and through an outage.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use rustix::process::Signal;
use serde_json::Value;
use watchfire_simulator::{Dialect, Fault, FleetState, NewResource, Scope, Simulator, Times};
use watchfire_testkit::{Consumer, Mode, Proxy, Rabbit, Subscription, amqp_url, eventually, pubsub_endpoint, unique};

use crate::support::{Api, DEADLINE, Sentinel, Setup};

/// Publishes to this exchange.
fn over(setup: Setup, url: &str, exchange: &str) -> Setup {
    setup.env("BROKER_TYPE", "rabbitmq").env("BROKER_URL", url).env("BROKER_EXCHANGE", exchange)
}

/// Where events arrive, as an adapter would get them.
enum Queue {
    RabbitMq(Consumer),
    /// With the ids of the messages that came, since some come again.
    PubSub(Subscription, HashSet<String>),
}

impl Queue {
    /// The body of the next message, or `None` when none comes within `wait`.
    async fn next(&mut self, wait: Duration) -> Option<Vec<u8>> {
        match self {
            Self::RabbitMq(consumer) => consumer.next(wait).await.map(|message| message.body),
            Self::PubSub(subscription, known) => loop {
                let message = subscription.next(wait).await?;
                if known.insert(message.message_id) {
                    return Some(message.data.to_vec());
                }
            },
        }
    }

    async fn delete(self) {
        match self {
            Self::RabbitMq(consumer) => consumer.delete().await,
            // The emulator forgets by itself.
            Self::PubSub(..) => {}
        }
    }
}

/// What a queue got: the events by the resource that they are about.
#[derive(Default)]
struct Inbox(HashMap<String, Vec<Value>>);

impl Inbox {
    async fn take(&mut self, queue: &mut Queue, count: usize) {
        for _ in 0..count {
            self.add(&queue.next(DEADLINE).await.expect("a message in time"));
        }
    }

    fn add(&mut self, body: &[u8]) {
        let event: Value = serde_json::from_slice(body).expect("an event");
        let resource = event["data"]["id"].as_str().expect("a resource").to_owned();
        self.0.entry(resource).or_default().push(event);
    }

    fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}

async fn a_stop_in_mid_cycle_loses_nothing(mut queue: Queue, over: impl FnOnce(Setup) -> Setup) {
    const FLEET: usize = 3000;
    let fleet = Simulator::new(Dialect::Hyperfleet);
    fleet.seed("clusters", u32::try_from(FLEET).unwrap(), FleetState::Due).unwrap();
    fleet.faults().arm(Scope::Lists, Fault::Delay(Duration::from_millis(150)), Times::Always);
    let api = Api::serve(fleet).await;
    let setup = over(Setup::new(&api.url, "", "http://nobody"));

    let mut sentinel = setup.start().await;
    let mut inbox = Inbox::default();
    inbox.take(&mut queue, 200).await;
    sentinel.process.signal(Signal::TERM);
    assert_eq!(sentinel.process.ended().await.code(), Some(0), "{}", sentinel.process.err());
    let published = sentinel.process.out().matches("\"event published\"").count();
    assert!((200..FLEET).contains(&published), "in mid-cycle: {published}");
    let rest = published - inbox.count();
    inbox.take(&mut queue, rest).await;
    assert!(queue.next(Duration::from_millis(500)).await.is_none(), "what is in the queue was confirmed, and told");

    api.fleet.faults().clear();
    let sentinel = setup.start().await;
    while inbox.0.len() < FLEET {
        inbox.take(&mut queue, 1).await;
    }
    sentinel.stop().await;
    let mut again = 0;
    for (resource, events) in &inbox.0 {
        again += usize::from(events.len() > 1);
        let ids: HashSet<_> = events.iter().map(|event| &event["id"]).collect();
        assert_eq!(ids.len(), 1, "{resource} has one cause and one id: {ids:?}");
    }
    assert!(again > 0, "what had gone out before the stop has gone out once more");
    queue.delete().await;
}

#[tokio::test]
async fn a_stop_in_mid_cycle_over_rabbitmq_loses_nothing_and_repeats_under_the_same_ids() {
    let name = "a_stop_in_mid_cycle_over_rabbitmq_loses_nothing_and_repeats_under_the_same_ids";
    let (Some(url), exchange) = (amqp_url(name), unique("stop")) else { return };
    let queue = Queue::RabbitMq(Rabbit::listen(&url, &exchange, "fanout", "").await);
    a_stop_in_mid_cycle_loses_nothing(queue, |setup| over(setup, &url, &exchange)).await;
}

#[tokio::test]
async fn a_stop_in_mid_cycle_over_pubsub_loses_nothing_and_repeats_under_the_same_ids() {
    let name = "a_stop_in_mid_cycle_over_pubsub_loses_nothing_and_repeats_under_the_same_ids";
    let (Some(endpoint), topic) = (pubsub_endpoint(name), unique("stop")) else { return };
    let queue = Queue::PubSub(Subscription::create(&endpoint, "watchfire", &topic).await, HashSet::new());
    let over = |setup: Setup| {
        let setup = setup.env("BROKER_TYPE", "pubsub").env("PUBSUB_EMULATOR_HOST", &endpoint);
        setup.env("BROKER_PROJECT_ID", "watchfire").env("BROKER_TOPIC", &topic)
    };
    a_stop_in_mid_cycle_loses_nothing(queue, over).await;
}

#[tokio::test]
async fn two_processes_share_an_exchange_and_each_publishes_its_own_at_its_own_pace() {
    let name = "two_processes_share_an_exchange_and_each_publishes_its_own_at_its_own_pace";
    let Some(url) = amqp_url(name) else { return };
    let fleet = Simulator::new(Dialect::Hyperfleet);
    let mut owners = HashMap::new();
    for index in 0..8 {
        let region = ["us-east", "us-west"][index % 2];
        let new = NewResource::named(format!("c-{index}")).label("region", region);
        owners.insert(fleet.create("clusters", new).unwrap().id, region);
    }
    fleet.create("clusters", NewResource::named("nobodys").label("region", "eu-west")).unwrap();
    let (api, exchange) = (Api::serve(fleet).await, unique("two"));
    let mut queue = Queue::RabbitMq(Rabbit::listen(&url, &exchange, "fanout", "").await);
    let ages = [("us-east", 1), ("us-west", 3)];
    let start = async |(region, seconds): (&str, i64)| -> Sentinel {
        let config = format!(
            "poll_interval: 100ms\nmax_age_not_ready: {seconds}s\nresource_selector: [{{label: region, value: {region}}}]\n\
             message_data:\n  id: .id\n  by: '{{{{ \"{region}\" }}}}'"
        );
        over(Setup::new(&api.url, &config, "http://nobody"), &url, &exchange).start().await
    };
    let sentinels = [start(ages[0]).await, start(ages[1]).await];
    let mut inbox = Inbox::default();
    // Nobody reports: each resource comes again after its max age.
    let enough = |inbox: &Inbox| {
        let times = |id: &str| inbox.0.get(id).map_or(0, Vec::len);
        owners.iter().all(|(id, region)| times(id) >= if *region == "us-east" { 4 } else { 2 })
    };
    while !enough(&inbox) {
        inbox.take(&mut queue, 1).await;
    }
    for sentinel in sentinels {
        sentinel.stop().await;
    }
    for (id, events) in &inbox.0 {
        let owner = *owners.get(id).expect("published though nobody selects it");
        let age =
            ages.iter().find(|(region, _)| *region == owner).map(|(_, seconds)| SignedDuration::from_secs(*seconds));
        let time = |event: &Value| event["time"].as_str().unwrap().parse::<Timestamp>().unwrap();
        assert!(events.iter().all(|event| event["data"]["by"] == owner), "published by the other: {events:?}");
        // An event's time is when it became due: one max age after the one before was confirmed.
        let apart: Vec<_> = events.windows(2).map(|pair| time(&pair[1]).duration_since(time(&pair[0]))).collect();
        assert!(apart.iter().all(|apart| *apart >= age.unwrap()), "{owner}: {apart:?}");
    }
    queue.delete().await;
}

#[tokio::test]
async fn memory_stays_flat_while_the_broker_is_away_and_everything_goes_out_once_afterwards() {
    const FLEET: usize = 2000;
    const OUTAGE: Duration = Duration::from_mins(1);
    let name = "memory_stays_flat_while_the_broker_is_away_and_everything_goes_out_once_afterwards";
    let Some(url) = amqp_url(name) else { return };
    let fleet = Simulator::new(Dialect::Hyperfleet);
    fleet.seed("clusters", u32::try_from(FLEET).unwrap(), FleetState::Due).unwrap();
    let (api, exchange) = (Api::serve(fleet).await, unique("away"));
    let mut queue = Queue::RabbitMq(Rabbit::listen(&url, &exchange, "fanout", "").await);
    let (credentials, rest) = url.trim_start_matches("amqp://").rsplit_once('@').expect("credentials");
    let (address, vhost) = rest.split_once('/').expect("a virtual host");
    let address = tokio::net::lookup_host(address).await.unwrap().find(std::net::SocketAddr::is_ipv4).unwrap();
    let proxy = Proxy::start(address).await;
    proxy.set(Mode::Refuse).await;
    let through = format!("amqp://{credentials}@{}/{vhost}", proxy.address());
    let setup = over(Setup::new(&api.url, "poll_interval: 100ms", "http://nobody"), &through, &exchange);
    let (sentinel, begun) = (setup.start().await, Instant::now());
    // A cycle asks for twenty pages, and for some more before the first.
    let cycles = async |count: usize| {
        api.fleet.faults().forget_requests();
        let asked = async || (api.fleet.faults().lists().len() > count * FLEET / 100).then_some(());
        eventually(DEADLINE, "cycles without a broker", asked).await;
    };
    cycles(3).await;
    let early = sentinel.process.peak_memory();
    eventually(2 * OUTAGE, "the outage lasts", async || {
        assert!(sentinel.readiness(503).await.contains("Connection refused"));
        (begun.elapsed() >= OUTAGE).then_some(())
    })
    .await;
    cycles(3).await;
    let late = sentinel.process.peak_memory();
    assert!(late < early + 8 * 1024, "{early} KiB after 3 cycles of an outage, {late} KiB after {OUTAGE:?}");

    proxy.set(Mode::Pass).await;
    let mut inbox = Inbox::default();
    inbox.take(&mut queue, FLEET).await;
    sentinel.readiness(200).await;
    sentinel.stop().await;
    assert_eq!(inbox.0.len(), FLEET, "each once");
    assert!(queue.next(Duration::from_millis(500)).await.is_none(), "and none twice");
    queue.delete().await;
}
