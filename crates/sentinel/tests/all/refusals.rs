//! Brokers that take nothing: readiness says why and what to do, nothing is lost, and no restart is needed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use watchfire_delivery::sink::pubsub::{MissingTopic, PubSub};
use watchfire_delivery::{EventSink, sink};
use watchfire_sentinel::config::broker::BrokerConfig;
use watchfire_simulator::{Dialect, NewResource};
use watchfire_testkit::{Rabbit, eventually};

use crate::far::{self, Far};
use crate::support::{Api, Bench, DEADLINE, Live, Memory, Refusal, minimal};

const STEP: Duration = Duration::from_secs(30);

async fn some_clusters(n: usize) -> (Api, HashSet<String>) {
    let api = Api::start(Dialect::Hyperfleet).await;
    let create = |i| api.fleet.create("clusters", NewResource::named(format!("c-{i}"))).unwrap().id;
    let ids = (0..n).map(create).collect();
    (api, ids)
}

fn run(api: &Api, sink: Arc<dyn EventSink>) -> Live {
    Bench::new(&format!("{}poll_interval: 100ms\n", minimal(&api.url)), sink).run()
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_no_queue_takes_are_counted_told_and_go_out_once_a_queue_is_bound() {
    let name = "events_that_no_queue_takes_are_counted_told_and_go_out_once_a_queue_is_bound";
    let Some(far) = Far::rabbitmq(name) else { return };
    let (api, ids) = some_clusters(25).await;
    let live = run(&api, far.sink());
    live.complains("broker", "no queue is bound").await;
    assert!(live.complaint("broker").contains("bind a queue to the exchange"), "{}", live.complaint("broker"));
    eventually(DEADLINE, "all are counted", async || {
        let counted = live.metric("hyperfleet_sentinel_broker_errors_total", &["publish_error", "rabbitmq"]);
        (counted >= Some(25.0)).then_some(())
    })
    .await;
    assert_eq!(live.published(), 0, "a returned message is no published one");
    assert_eq!(live.metric("hyperfleet_sentinel_last_successful_poll_timestamp_seconds", &[]), Some(0.0));

    let inbox = far.listen().await;
    let all = inbox.wait_for(25).await;
    live.recovers().await;
    let arrived: HashSet<_> = all.iter().map(|event| event.resource().to_owned()).collect();
    assert_eq!(arrived, ids, "none lost");
    assert_eq!(live.stop().await, 25, "and none twice");
    assert_eq!(inbox.all().len(), 25);
    far.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_of_another_type_is_told_with_what_to_do_and_mended_without_a_restart() {
    let name = "an_exchange_of_another_type_is_told_with_what_to_do_and_mended_without_a_restart";
    let Some(far) = Far::rabbitmq(name) else { return };
    let Far::RabbitMq { url, topic } = &far else { unreachable!() };
    Rabbit::connect(url).await.exchange(topic, "topic").await;
    let (api, ids) = some_clusters(3).await;
    let live = run(&api, far.sink());
    live.complains("broker", "406").await;
    let said = live.complaint("broker");
    assert!(said.contains("BROKER_EXCHANGE_TYPE") && said.contains("list_exchanges"), "{said}");
    far.clone().clean().await;
    let inbox = far.listen().await;
    let all = inbox.wait_for(3).await;
    assert_eq!(all.iter().map(|event| event.resource().to_owned()).collect::<HashSet<_>>(), ids);
    live.recovers().await;
    live.stop().await;
    far.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_broker_refuses_is_told_with_what_to_check_and_without_secrets() {
    let name = "what_a_broker_refuses_is_told_with_what_to_check_and_without_secrets";
    let Some(far) = Far::rabbitmq(name) else { return };
    let changed = |name: &'static str, value: &str| {
        let mut env = far.env();
        env.push((name, value.to_owned()));
        far::open(env)
    };
    let nobody = "amqp://guest:hunter2@127.0.0.1:9/%2f".to_owned();
    let absent = far::open([("BROKER_TYPE", "rabbitmq".to_owned()), ("BROKER_URL", nobody)]);
    let cases = [
        (changed("BROKER_PASSWORD", "hunter2"), "authenticate to", "check user, password and permissions"),
        (changed("BROKER_VHOST", "nowhere"), "vhost \"nowhere\"", "BROKER_VHOST"),
        (absent, "reach exchange", "check that the address is right and that the far side is running"),
    ];
    let told = cases.map(|(sink, said, hint)| async move {
        let (api, _) = some_clusters(2).await;
        let live = run(&api, sink);
        live.complains("broker", said).await;
        let message = live.complaint("broker");
        assert!(message.contains(hint), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
        // Once the first poll is over.
        let fine = async || live.complaint("hyperfleet_api").is_empty().then_some(());
        eventually(STEP, "the API is fine, and said to be", fine).await;
        eventually(STEP, "it is counted", async || {
            (live.metric("hyperfleet_broker_errors_total", &["publish"]) >= Some(2.0)).then_some(())
        })
        .await;
        live.is_alive();
        live.stop().await;
    });
    join_all(told.map(Box::pin)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_does_not_exist_is_told_with_what_to_do_and_used_once_it_does() {
    let name = "a_topic_that_does_not_exist_is_told_with_what_to_do_and_used_once_it_does";
    let Some(far) = Far::pubsub(name) else { return };
    // As against the service itself: nothing is created.
    let BrokerConfig::PubSub(mut config) = far::config(far.env()) else { unreachable!() };
    config.missing_topic = MissingTopic::Fail;
    let (api, ids) = some_clusters(3).await;
    let live = run(&api, Arc::new(PubSub::new(config)));
    live.complains("broker", "the topic does not exist").await;
    let said = live.complaint("broker");
    assert!(said.contains("gcloud pubsub topics create") && said.contains("BROKER_TOPIC"), "{said}");
    let inbox = far.listen().await;
    let all = inbox.wait_for(3).await;
    assert_eq!(all.iter().map(|event| event.resource().to_owned()).collect::<HashSet<_>>(), ids);
    live.recovers().await;
    live.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emulator_without_the_topic_gets_it() {
    let Some(far) = Far::pubsub("an_emulator_without_the_topic_gets_it") else { return };
    let (api, _) = some_clusters(2).await;
    let live = run(&api, far.sink());
    eventually(STEP, "both are published", async || (live.published() >= 2).then_some(())).await;
    live.recovers().await;
    live.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_refuses_every_event_is_told_until_it_takes_one_and_a_refused_one_alone_is_not() {
    let full = || sink::Error::Refused { target: "memory".into(), detail: "the queue is full".into() };
    let (api, ids) = some_clusters(3).await;
    let memory = Arc::new(Memory::default());
    let mut bench = Bench::new(&minimal(&api.url), Arc::clone(&memory) as Arc<dyn EventSink>);
    let refuse = |positions: &[usize]| {
        // As often as an event is tried within a cycle.
        (0..4).for_each(|_| memory.refuse(Refusal(positions.to_vec(), full)));
    };
    for _ in 0..2 {
        refuse(&[0, 1, 2]);
        assert_eq!(bench.cycle().await.unwrap().failed, 3);
        // That it answers does not make it ready.
        let told = bench.health.readiness().checks["broker"].message.clone();
        assert!(told.contains("the queue is full") && told.contains("the queue's limits"), "{told}");
    }
    // Of three, the first is refused to the end.
    refuse(&[0]);
    let cycle = bench.cycle().await.unwrap();
    assert_eq!((cycle.published, cycle.failed), (2, 1));
    assert_eq!(bench.health.readiness().checks["broker"].message, "");
    refuse(&[0]);
    assert_eq!(bench.cycle().await.unwrap().failed, 1);
    assert_eq!(bench.health.readiness().checks["broker"].message, "", "it may be the event");
    assert_eq!(bench.cycle().await.unwrap().published, 1);
    assert_eq!(memory.take().len(), ids.len());
}
