//! Far sides that go away and come back: nothing is lost, next to nothing is sent twice, and nobody has to restart
//! anything. Liveness stays green throughout, readiness says what is wrong.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use watchfire_delivery::sink::pubsub::PubSub;
use watchfire_delivery::{CloudEvent, EventSink, sink};
use watchfire_sentinel::config::broker::BrokerConfig;
use watchfire_simulator::{Dialect, FleetState, NewResource};
use watchfire_testkit::{Mode, Proxy, Rabbit, Subscription, eventually, private_broker, private_emulator};

use crate::far::{self, Far};
use crate::support::{Api, Bench, Live, Memory, minimal};

/// Starting a broker on a machine whose cores are all busy.
const STEP: Duration = Duration::from_mins(2);

/// Due all at once: many windows, so that the kill finds one in flight.
const DUE: u32 = 10_000;

/// Events confirmed before the kill.
const BEFORE: usize = 2_000;

/// Bytes on the wire; an event with its headers has about 1,100.
const HALF_A_WINDOW: u64 = 400_000;

/// Passes everything on, and remembers what was asked and answered.
struct Witness {
    sink: Arc<dyn EventSink>,
    in_flight: Mutex<HashSet<String>>,
    calls: Mutex<Vec<Vec<(String, bool)>>>,
}

impl Witness {
    fn new(sink: Arc<dyn EventSink>) -> Arc<Self> {
        Arc::new(Self { sink, in_flight: Mutex::default(), calls: Mutex::default() })
    }

    /// What the broker confirmed since that call, in order, repeated where it was confirmed twice.
    fn confirmed(&self, since: usize) -> Vec<String> {
        let calls = self.calls.lock().unwrap();
        calls[since..].iter().flatten().filter(|(_, ok)| *ok).map(|(id, _)| id.clone()).collect()
    }

    /// What it did not confirm since that call.
    fn refused(&self, since: usize) -> Vec<String> {
        let calls = self.calls.lock().unwrap();
        calls[since..].iter().flatten().filter(|(_, ok)| !ok).map(|(id, _)| id.clone()).collect()
    }

    fn calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    /// What was handed over and has no answer yet.
    fn in_flight(&self) -> HashSet<String> {
        self.in_flight.lock().unwrap().clone()
    }
}

impl EventSink for Witness {
    fn kind(&self) -> &'static str {
        self.sink.kind()
    }

    fn publish_all<'a>(&'a self, events: &'a [CloudEvent]) -> BoxFuture<'a, Vec<Result<(), sink::Error>>> {
        async move {
            *self.in_flight.lock().unwrap() = events.iter().map(|event| event.id().to_owned()).collect();
            let outcomes = self.sink.publish_all(events).await;
            self.in_flight.lock().unwrap().clear();
            let call = events.iter().zip(&outcomes).map(|(event, outcome)| (event.id().to_owned(), outcome.is_ok()));
            self.calls.lock().unwrap().push(call.collect());
            outcomes
        }
        .boxed()
    }

    fn check(&self) -> BoxFuture<'_, Result<(), sink::Error>> {
        self.sink.check()
    }
}

/// A fleet that is due as a whole, and a sentinel at it.
async fn load(witness: &Arc<Witness>) -> (Api, Live) {
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.seed("clusters", DUE, FleetState::Due).unwrap();
    let sink = Arc::clone(witness) as Arc<dyn EventSink>;
    let live = Bench::new(&format!("{}poll_interval: 200ms\n", minimal(&api.url)), sink).run();
    eventually(STEP, "it is in the middle of it", async || (witness.confirmed(0).len() >= BEFORE).then_some(())).await;
    (api, live)
}

/// Waits until everything due is confirmed, with liveness green all the while; each event was confirmed once.
async fn all_confirmed(witness: &Witness, live: &Live) {
    eventually(STEP, "everything due is confirmed", async || {
        live.is_alive();
        (witness.confirmed(0).len() >= DUE as usize).then_some(())
    })
    .await;
    live.recovers().await;
    let confirmed = witness.confirmed(0);
    assert_eq!(confirmed.iter().collect::<HashSet<_>>().len(), confirmed.len(), "what is confirmed is not sent again");
    assert_eq!(confirmed.len(), DUE as usize);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rabbitmq_killed_and_restarted_under_load_loses_nothing_and_repeats_only_what_was_in_flight() {
    let name = "rabbitmq_killed_and_restarted_under_load_loses_nothing_and_repeats_only_what_was_in_flight";
    let Some(mut broker) = private_broker(name).await else { return };
    let proxy = Proxy::start(broker.address()).await;
    let far = Far::RabbitMq { url: format!("amqp://{}/%2f", proxy.address()), topic: "load".to_owned() };
    let rabbit = Rabbit::connect(&broker.url()).await;
    rabbit.exchange("load", "fanout").await;
    rabbit.queue("adapter").await;
    rabbit.bind("adapter", "load", "").await;
    let witness = Witness::new(far.sink());
    let (_api, live) = load(&witness).await;

    // In the middle of a window: some of it written, and not yet confirmed.
    let sent = proxy.sent();
    eventually(STEP, "half a window is written", async || (proxy.sent() >= sent + HALF_A_WINDOW).then_some(())).await;
    // From here on no confirm comes through, so that the window in flight is so until the kill.
    proxy.set(Mode::Blackhole).await;
    let in_flight = eventually(STEP, "a window is in flight", async || {
        Some(witness.in_flight()).filter(|in_flight| !in_flight.is_empty())
    })
    .await;
    broker.kill();
    proxy.cut();
    proxy.set(Mode::Pass).await;
    live.complains("broker", "reach exchange \"load\"").await;
    let before = witness.confirmed(0).len();
    assert!(before < DUE as usize, "it was over before the kill");
    assert!(live.metric("hyperfleet_sentinel_broker_errors_total", &["rabbitmq"]).is_some());
    broker.restart().await;
    all_confirmed(&witness, &live).await;

    let mut consumer = Rabbit::connect(&broker.url()).await.consume("adapter").await;
    let mut messages = consumer.take(DUE as usize).await;
    messages.extend(consumer.drain(Duration::from_secs(1)).await);
    let mut times: HashMap<String, usize> = HashMap::new();
    let mut resources = HashSet::new();
    for message in &messages {
        let event: Value = serde_json::from_slice(&message.body).unwrap();
        resources.insert(event["data"]["id"].as_str().unwrap().to_owned());
        *times.entry(event["id"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    assert_eq!((resources.len(), times.len()), (DUE as usize, DUE as usize), "nothing lost, one event per resource");
    let repeats = messages.len() - times.len();
    assert!(repeats <= in_flight.len(), "{repeats} repeats of {} in flight", in_flight.len());
    for (id, times) in times.iter().filter(|(_, times)| **times > 1) {
        assert!(in_flight.contains(id), "{id} came {times} times and was not in flight at the kill");
    }
    live.stop().await;
}

/// The emulator forgets topics and messages: what it confirmed before the kill is its own loss, what came after is all
/// there, on a topic made anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emulator_killed_and_restarted_under_load_gets_everything_that_it_had_not_confirmed() {
    let name = "an_emulator_killed_and_restarted_under_load_gets_everything_that_it_had_not_confirmed";
    let Some(mut emulator) = private_emulator(name).await else { return };
    let proxy = Proxy::start(emulator.address()).await;
    let far = Far::PubSub { endpoint: proxy.address().to_string(), topic: "load".to_owned() };
    let BrokerConfig::PubSub(mut config) = far::config(far.env()) else { unreachable!() };
    config.timeout = Duration::from_secs(3);
    let witness = Witness::new(Arc::new(PubSub::new(config)));
    let (_api, live) = load(&witness).await;

    emulator.kill();
    live.complains("broker", "projects/watchfire/topics/load").await;
    assert!(witness.confirmed(0).len() < DUE as usize, "it was over before the kill");
    // Kept away until there is a subscription again, which the emulator forgot as well.
    proxy.down().await;
    emulator.restart().await;
    let mut subscription = Subscription::create(&emulator.endpoint(), "watchfire", "load").await;
    let restarted = witness.calls();
    proxy.up().await;
    all_confirmed(&witness, &live).await;

    let mut missing: HashSet<_> = witness.confirmed(restarted).into_iter().collect();
    while !missing.is_empty() {
        let message = subscription.next(STEP).await.unwrap_or_else(|| panic!("{} did not come", missing.len()));
        missing.remove(&message.attributes["_watermill_message_uuid"]);
    }
    live.stop().await;
}

/// Without anybody's help: the topic is made again by the sentinel itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emulator_that_forgot_the_topic_is_used_again_without_a_restart() {
    let name = "an_emulator_that_forgot_the_topic_is_used_again_without_a_restart";
    let Some(mut emulator) = private_emulator(name).await else { return };
    let far = Far::PubSub { endpoint: emulator.endpoint(), topic: "forgotten".to_owned() };
    let BrokerConfig::PubSub(mut config) = far::config(far.env()) else { unreachable!() };
    config.timeout = Duration::from_secs(3);
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.create("clusters", NewResource::named("alpha")).unwrap();
    let text = format!("{}poll_interval: 200ms\n", minimal(&api.url));
    let live = Bench::new(&text, Arc::new(PubSub::new(config))).run();
    eventually(STEP, "the first is out", async || (live.published() >= 1).then_some(())).await;
    emulator.kill();
    live.complains("broker", "projects/watchfire/topics/forgotten").await;
    emulator.restart().await;
    live.recovers().await;
    let inbox = Far::PubSub { endpoint: emulator.endpoint(), topic: "forgotten".to_owned() }.listen().await;
    let id = api.fleet.create("clusters", NewResource::named("beta")).unwrap().id;
    assert_eq!(inbox.wait_for(1).await[0].resource(), id);
    live.stop().await;
}

/// With ages of a second, an outage of a few outlasts them all: what was due before is due for the same reason after.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_keeps_its_id_for_as_long_as_the_broker_stays_away() {
    let api = Api::start(Dialect::Hyperfleet).await;
    api.fleet.create("clusters", NewResource::named("alpha")).unwrap();
    let memory = Arc::new(Memory::default());
    let ages = "max_age_not_ready: 1s\nmax_age_ready: 1s\n";
    let config = format!("{}{ages}", minimal(&api.url));
    let witness = Witness::new(Arc::clone(&memory) as Arc<dyn EventSink>);
    let mut bench = Bench::new(&config, Arc::clone(&witness) as Arc<dyn EventSink>);
    assert_eq!(bench.cycle().await.unwrap().published, 1);
    let first = memory.take().remove(0);
    *memory.down.lock().unwrap() = true;
    let before = witness.calls();
    let mut cycles = 0;
    let begun = Instant::now();
    // On a busy machine a cycle, with its retries, may take longer than an age.
    while begun.elapsed() < Duration::from_millis(2500) || cycles < 2 {
        let cycle = bench.cycle().await.unwrap();
        assert_eq!(cycle.published, 0);
        cycles += cycle.failed;
    }
    *memory.down.lock().unwrap() = false;
    assert_eq!(bench.cycle().await.unwrap().published, 1);
    let second = memory.take().remove(0);
    assert_ne!(second.id(), first.id(), "the first again, though it was confirmed");
    let refused = witness.refused(before);
    assert!(refused.iter().all(|id| id == second.id()), "{refused:?} and then {}", second.id());
    let apart = second.attributes().time.unwrap().duration_since(first.attributes().time.unwrap());
    assert!(apart >= jiff::SignedDuration::from_secs(1), "{apart:?}");
}

/// Time passes in an outage: alive, not ready, and for a reason that names the API.
async fn endure(live: &Live, outage: Duration) {
    live.complains("hyperfleet_api", "reach http://127.0.0.1:").await;
    let begun = Instant::now();
    eventually(outage + STEP, "the outage lasts", async || {
        live.is_alive();
        let said = live.complaint("hyperfleet_api");
        assert!(said.contains("check hyperfleet_api.endpoint, DNS, and that the API is running"), "{said}");
        (begun.elapsed() >= outage).then_some(())
    })
    .await;
}

/// Down at start, up, down for a while, up again: one process throughout. `arrived` gives the events that came so far.
async fn an_api_away_for([at_start, later]: [Duration; 2], sink: Arc<dyn EventSink>, arrived: impl Fn() -> Vec<Value>) {
    let (address, fleet) = Api::start(Dialect::Hyperfleet).await.stop().await;
    let first = fleet.create("clusters", NewResource::named("alpha")).unwrap().id;
    let config = format!("{}poll_interval: 200ms\n", minimal(&format!("http://{address}")));
    let live = Bench::new(&config, sink).run();
    let comes = async |id: &str| {
        let about = || arrived().iter().any(|event| event["data"]["id"] == id);
        eventually(STEP, "its event comes", async || about().then_some(())).await;
    };
    endure(&live, at_start).await;
    assert!(arrived().is_empty());

    let api = Api::serve_at(address, fleet).await;
    live.recovers().await;
    let last = "hyperfleet_sentinel_last_successful_poll_timestamp_seconds";
    eventually(STEP, "a cycle succeeds", async || (live.metric(last, &[]) > Some(1e9)).then_some(())).await;
    comes(&first).await;

    let (address, fleet) = api.stop().await;
    let second = fleet.create("clusters", NewResource::named("beta")).unwrap().id;
    live.complains("hyperfleet_api", "reach").await;
    let stood = live.metric(last, &[]);
    endure(&live, later).await;
    assert_eq!(live.metric(last, &[]), stood, "a dead man's switch that does not stop is none");
    assert!(live.complaint("broker").is_empty(), "the broker is fine, and said to be");

    let _api = Api::serve_at(address, fleet).await;
    live.recovers().await;
    comes(&second).await;
    live.stop().await;
    // An outage longer than a max age makes the first due again, for a reason of its own.
    let events = arrived();
    let ids: HashSet<_> = events.iter().map(|event| event["id"].to_string()).collect();
    assert_eq!(ids.len(), events.len(), "no event twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_is_down_at_start_and_for_a_while_is_endured_without_a_restart() {
    let memory = Arc::new(Memory::default());
    let read = |event: &CloudEvent| serde_json::from_slice(event.body()).unwrap();
    let arrived = || memory.events().iter().map(read).collect();
    an_api_away_for([Duration::from_millis(1500); 2], Arc::clone(&memory) as Arc<dyn EventSink>, arrived).await;
}

/// Over RabbitMQ, and for longer than a liveness probe, a heartbeat of AMQP or an idle connection is given.
#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_is_down_for_two_minutes_is_endured_without_a_restart() {
    let Some(far) = Far::rabbitmq("an_api_that_is_down_for_two_minutes_is_endured_without_a_restart") else { return };
    let inbox = far.listen().await;
    let arrived = || inbox.all().into_iter().map(|arrived| arrived.event).collect();
    an_api_away_for([Duration::from_secs(1), Duration::from_mins(2)], far.sink(), arrived).await;
    far.clean().await;
}
