//! Private brokers live and die with their test.

use std::time::Duration;

use lapin::BasicProperties;
use lapin::options::BasicPublishOptions;
use watchfire_testkit::{Rabbit, Subscription, private_broker, private_emulator};

#[tokio::test]
async fn a_killed_broker_comes_back_with_its_durable_queue() {
    let Some(mut broker) = private_broker("a_killed_broker_comes_back_with_its_durable_queue").await else { return };
    let rabbit = Rabbit::connect(&broker.url()).await;
    rabbit.exchange("kept", "fanout").await;
    rabbit.queue("kept").await;
    rabbit.bind("kept", "kept", "").await;
    let channel = rabbit.channel();
    channel.confirm_select(lapin::options::ConfirmSelectOptions::default()).await.unwrap();
    let properties = BasicProperties::default().with_delivery_mode(2);
    let options = BasicPublishOptions::default();
    let confirm = channel.basic_publish("kept".into(), "".into(), options, b"hello", properties).await.unwrap();
    assert!(confirm.await.unwrap().is_ack());
    let pid = broker.pid().unwrap();
    broker.kill();
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    broker.restart().await;
    let mut consumer = Rabbit::connect(&broker.url()).await.consume("kept").await;
    assert_eq!(consumer.take(1).await[0].body, b"hello");
    broker.stop().await;
    broker.restart().await;
    assert!(broker.ctl(&["list_queues", "name"]).await.contains("kept"));
}

#[tokio::test]
async fn an_emulator_of_ones_own_takes_a_subscription() {
    let Some(emulator) = private_emulator("an_emulator_of_ones_own_takes_a_subscription").await else { return };
    let mut subscription = Subscription::create(&emulator.endpoint(), "test", "topic").await;
    assert!(subscription.next(Duration::from_millis(100)).await.is_none());
}
