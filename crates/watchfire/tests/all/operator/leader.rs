//! Three replicas, of which one publishes: killed, stopped, and cut off from the API server.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use k8s_openapi::api::coordination::v1::Lease;
use rustix::process::Signal;
use watchfire_testkit::{Mode, Proxy, eventually, unique};

use super::{LULL, Operator, Stage, event};
use crate::support::DEADLINE;

const ELECT: [&str; 9] = [
    "--config",
    "east",
    "--leader-elect",
    "--leader-elect-lease-duration",
    "3s",
    "--leader-elect-renew-deadline",
    "2s",
    "--leader-elect-retry-period",
    "300ms",
];

/// Who leads, in the metrics.
const LEADS: [&str; 1] = ["leader_election_master_status{"];

/// Who holds the lease.
async fn holder(stage: &Stage) -> Option<String> {
    let lease = stage.namespace.api::<Lease>().get_opt("watchfire-sentinel-east").await.ok()??;
    lease.spec?.holder_identity.filter(|holder| !holder.is_empty())
}

/// A replica, the identity under which it takes part, and its own way to the API server.
struct Replica {
    operator: Operator,
    identity: String,
    way: Proxy,
}

/// Waits until another than `before` leads, and takes it out.
async fn leader(stage: &Stage, replicas: &mut Vec<Replica>, before: Option<&str>) -> Replica {
    let new = async || holder(stage).await.filter(|holder| Some(holder.as_str()) != before);
    let holder = eventually(DEADLINE, "there is a new leader", new).await;
    let at = replicas.iter().position(|replica| replica.identity == holder).expect("a replica that runs");
    replicas.swap_remove(at)
}

#[tokio::test]
async fn of_three_replicas_one_publishes_whatever_becomes_of_it() {
    let Some(stage) = Stage::set("of_three_replicas_one_publishes_whatever_becomes_of_it").await else { return };
    let server: SocketAddr = stage.namespace.cluster().address();
    let exchange = unique("exchange");
    let mut inbox = stage.listen(&exchange).await;
    stage.create("east", stage.spec(&exchange, "us-east")).await;
    let mut replicas = Vec::new();
    for _ in 0..3 {
        let way = Proxy::start(server).await;
        let operator = Operator::start(&stage, &ELECT, &stage.account.kubeconfig_over(way.address())).await;
        let line = operator.process.line(&["leader elected", "identity"]).await;
        let identity =
            serde_json::from_str::<serde_json::Value>(&line).unwrap()["identity"].as_str().unwrap().to_owned();
        replicas.push(Replica { operator, identity, way });
    }
    // By what an event is about and when it became due, whoever published it.
    let mut ids: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    let mut count = |messages: Vec<watchfire_testkit::Message>| {
        for message in messages {
            let event = event(&message.body);
            let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
            ids.entry((text(&event["data"]["resourceId"]), text(&event["time"]))).or_default().push(text(&event["id"]));
        }
    };
    count(inbox.take(4).await);
    let first = leader(&stage, &mut replicas, None).await;
    for standby in &replicas {
        assert!(standby.operator.published().await.abs() < 0.1, "who does not lead publishes nothing");
        standby.operator.readiness(200, "").await;
        assert!(standby.operator.metric(&LEADS).await.abs() < 0.1, "who stands by does not say that it leads");
    }
    assert!((first.operator.metric(&LEADS).await - 1.0).abs() < 0.1);

    // Killed: the lease runs out.
    first.operator.process.signal(Signal::KILL);
    let second = leader(&stage, &mut replicas, Some(&first.identity)).await;
    count(inbox.drain(LULL).await);
    count(inbox.take(2).await);

    // Cut off: it knows by itself that it leads no more, before the other one begins.
    second.way.set(Mode::Refuse).await;
    second.way.cut();
    second.operator.process.line(&["leads no more"]).await;
    assert!(second.operator.metric(&LEADS).await.abs() < 0.1);
    let third = leader(&stage, &mut replicas, Some(&second.identity)).await;
    let before = second.operator.published().await;
    count(inbox.drain(LULL).await);
    count(inbox.take(2).await);
    assert!((second.operator.published().await - before).abs() < 0.1, "who was cut off published");
    second.way.set(Mode::Pass).await;

    // Stopped for longer than its lease: it goes on where it stood, and publishes nothing.
    third.operator.process.signal(Signal::STOP);
    let before = third.operator.process.out().len();
    replicas.push(second);
    let fourth = leader(&stage, &mut replicas, Some(&third.identity)).await;
    third.operator.process.signal(Signal::CONT);
    let told = async || {
        let out = third.operator.process.out();
        out[before..]
            .lines()
            .any(|line| line.contains("leader elected") && line.contains(&fourth.identity))
            .then_some(())
    };
    eventually(DEADLINE, "it has heard who leads", told).await;
    let awake = third.operator.process.out()[before..].to_owned();
    assert!(!awake.contains("event published"), "published on waking: {awake}");
    count(inbox.drain(LULL).await);
    count(inbox.take(2).await);
    // What is repeated carries the same id, and is no more than three leaders left in flight, of two resources each.
    assert!(ids.values().all(|ids| ids.iter().all(|id| *id == ids[0])), "{ids:?}");
    let repeated: usize = ids.values().map(|ids| ids.len() - 1).sum();
    assert!(repeated <= 6, "{ids:?}");

    // An orderly stop gives the lease back: the next one need not wait for its end.
    let fourth_identity = fourth.identity.clone();
    let said = fourth.operator.stop().await;
    assert!(said.contains("lease given back"), "{said}");
    replicas.push(third);
    leader(&stage, &mut replicas, Some(&fourth_identity)).await.operator.stop().await;
}
