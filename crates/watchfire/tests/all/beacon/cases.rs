//! Subtle cases, each by its number in the list of what notifiers get wrong.

use std::time::Duration;

use super::*;

impl Stage {
    /// Two namespaces, and a beacon for both.
    fn entries(namespaces: &[&str]) -> String {
        format!("  - {{apiVersion: v1, kind: ConfigMap, namespaces: [{}]}}\n", namespaces.join(", "))
    }

    fn is_told(&self, event: &str) -> bool {
        self.told().iter().any(|told| told == event)
    }
}

/// S1, S2: of more objects than fit on a page each is told once, at the first start, and none again at the next.
#[tokio::test]
async fn what_is_there_at_the_first_start_is_told_once_and_never_again() {
    let Some(stage) = Stage::set("beacon::first").await else { return };
    for n in 0..120 {
        stage.create(&format!("n-{n}"), Some("1")).await;
    }
    let often = "reconciliation: {interval: 50ms}\n";
    let beacon = stage.begin_over(&stage.account.kubeconfig(), often).await;
    eventually(DEADLINE, "all are told", async || (stage.told().len() == 120).then_some(())).await;
    eventually(DEADLINE, "all is noted", async || stage.verify().await.0.then_some(())).await;
    assert!(!beacon.process.out().contains("missed"), "nothing was missed before anybody watched");
    beacon.kill().await;
    let beacon = stage.start().await;
    stage.barrier().await;
    assert_eq!(stage.events().len(), 121);
    let seen = beacon.series("event_events_total{").await;
    assert!(
        seen.iter().all(|line| line.contains("\"add\"") && line.ends_with(" 1") || line.ends_with(" 0")),
        "{seen:?}"
    );
    beacon.stop().await;
}

/// S3, S4: a value that changes among those that count is no event, one that enters or leaves them is.
#[tokio::test]
async fn values_that_count_are_entered_and_left() {
    let Some(stage) = Stage::set("beacon::values").await else { return };
    let config = stage.config("", "", "warningThreshold: 100, criticalThreshold: 100");
    let config =
        config.replace(&format!("annotation: {{key: {KEY}}}"), &format!("annotation: {{key: {KEY}, values: [x, y]}}"));
    let beacon = Beacon::started(stage.process_of(&stage.account.kubeconfig(), &config)).await;
    beacon.readiness(200).await;
    stage.create("a", Some("z")).await;
    stage.annotate("a", Some("x")).await;
    stage.annotate("a", Some("y")).await;
    stage.annotate("a", Some("z")).await;
    stage.annotate("a", Some("y")).await;
    stage.delete("a").await;
    stage.tells(&["created a=x", "deleted a=y", "created a=y", "deleted a=y"]).await;
    beacon.stop().await;
}

/// S5: another object under the name, while somebody watches.
#[tokio::test]
async fn an_object_that_takes_a_name_over_is_another_one() {
    let Some(stage) = Stage::set("beacon::recreate").await else { return };
    let beacon = stage.start().await;
    let first = stage.create("a", Some("1")).await;
    stage.delete("a").await;
    let second = stage.create("a", Some("2")).await;
    stage.tells(&["created a=1", "deleted a=1", "created a=2"]).await;
    let uids: Vec<_> =
        stage.events().iter().map(|event| event["data"]["resource"]["uid"].as_str().unwrap().to_owned()).collect();
    assert_eq!(uids, [first.clone(), first, second]);
    let ids: HashSet<_> = stage.events().iter().map(|event| event["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids.len(), 3, "each has an id of its own");
    beacon.stop().await;
}

/// S7, S11: what comes and goes before it could be told is told, both ends, unless nobody ran to see it.
#[tokio::test]
async fn what_comes_and_goes_is_told_unless_nobody_ran() {
    let Some(stage) = Stage::set("beacon::passes").await else { return };
    stage.receiver.otherwise(Answer::status(503));
    let beacon = stage.start().await;
    stage.create("seen", Some("1")).await;
    stage.delete("seen").await;
    eventually(DEADLINE, "both ends are in the ledger", async || {
        (stage.verify().await.1["pending"] == 2).then_some(())
    })
    .await;
    beacon.stop().await;
    stage.create("unseen", Some("1")).await;
    stage.delete("unseen").await;
    stage.receiver.take();
    stage.receiver.otherwise(Answer::status(200));
    let beacon = stage.start().await;
    stage.barrier().await;
    assert!(stage.is_told("created seen=1") && stage.is_told("deleted seen=1"));
    assert!(!stage.told().iter().any(|told| told.contains("unseen")), "it left no trace");
    beacon.stop().await;
}

/// S19, S20: two namespaces of a kind never touch each other's objects; what is not watched any more stays as it is,
/// and goes on when it is watched again.
#[tokio::test]
async fn scopes_keep_to_themselves_whatever_the_configuration_becomes() {
    let Some(cluster) = cluster("beacon::scopes").await else { return };
    let rights = || vec![rule("", &["configmaps"], &["get", "list", "watch"])];
    let stage = Stage::on(&cluster, rights()).await;
    let other = cluster.namespace().await;
    let metadata = |name: &str| ObjectMeta {
        name: Some(name.to_owned()),
        annotations: Some(BTreeMap::from([(KEY.to_owned(), "1".to_owned())])),
        ..ObjectMeta::default()
    };
    let theirs: Api<ConfigMap> = other.api();
    let post = PostParams::default();
    let make = async |name: &str| {
        theirs.create(&post, &ConfigMap { metadata: metadata(name), ..ConfigMap::default() }).await.unwrap();
    };
    let kubeconfig = stage.folder.path().join("kubeconfig");
    cluster.write_kubeconfig(&kubeconfig);
    let both = Stage::entries(&[stage.namespace.name(), other.name()]);
    let often = "reconciliation: {interval: 200ms}\n";
    stage.create("here", Some("1")).await;
    make("there").await;
    let beacon = stage.begin_with(&kubeconfig, &both, often).await;
    beacon.readiness(200).await;
    eventually(DEADLINE, "both are told", async || (stage.told().len() == 2).then_some(())).await;
    let runs = async || {
        let series = beacon.series("event_reconciliation_runs_total{").await;
        let done = series.iter().find(|line| line.contains("success")).unwrap();
        done.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    eventually(DEADLINE, "both were compared, often", async || (runs().await > 10.0).then_some(())).await;
    assert_eq!(stage.told().len(), 2, "no storm");
    beacon.stop().await;

    let beacon = stage.begin_with(&kubeconfig, &Stage::entries(&[stage.namespace.name()]), often).await;
    beacon.readiness(200).await;
    assert!(beacon.process.out().contains("no longer watched"));
    theirs.delete("there", &DeleteParams::default()).await.unwrap();
    stage.barrier().await;
    assert_eq!(stage.told().len(), 3, "nothing is concluded from what nobody looks at");
    beacon.stop().await;

    make("later").await;
    let beacon = stage.begin_with(&kubeconfig, &both, often).await;
    beacon.readiness(200).await;
    eventually(DEADLINE, "it goes on", async || (stage.told().len() >= 5).then_some(())).await;
    let mut last = stage.told().split_off(3);
    last.sort();
    assert_eq!(last, ["created later=1", "deleted there=1"]);
    beacon.stop().await;
}

/// S24: what the endpoint chokes on for ever does not stand in anybody's way.
#[tokio::test]
async fn events_that_fail_for_ever_hold_up_nobody() {
    let Some(stage) = Stage::set("beacon::poison").await else { return };
    for n in 0..10 {
        stage.create(&format!("poison-{n}"), Some("1")).await;
    }
    stage.receiver.choose(|request| {
        let event: Value = serde_json::from_slice(&request.body).unwrap();
        event["subject"].as_str().unwrap().starts_with("poison").then(|| Answer::status(500))
    });
    let beacon = stage.start().await;
    for n in 0..30 {
        stage.create(&format!("good-{n}"), Some("1")).await;
    }
    eventually(DEADLINE, "all others are taken", async || {
        let (_, found) = stage.verify().await;
        (found["pending"] == 10).then_some(())
    })
    .await;
    assert!((0..30).all(|n| stage.is_told(&format!("created good-{n}=1"))));
    stage.receiver.choose(|_| None);
    eventually(DEADLINE, "what failed is taken, too", async || stage.verify().await.0.then_some(())).await;
    beacon.stop().await;
}

/// S27: killed with a request on its way, it is sent once more, the same; told to stop, it is waited for.
#[tokio::test]
async fn a_request_on_its_way_is_finished_or_sent_again_the_same() {
    let Some(stage) = Stage::set("beacon::in_flight").await else { return };
    let beacon = stage.start().await;
    stage.receiver.script([Answer::status(200).after(Duration::from_secs(20))]);
    stage.create("killed", Some("1")).await;
    stage.receiver.wait_for(1).await;
    beacon.kill().await;
    let beacon = stage.start().await;
    let requests = stage.receiver.wait_for(2).await;
    assert_eq!(requests[0].body, requests[1].body);
    eventually(DEADLINE, "it is noted", async || stage.verify().await.0.then_some(())).await;

    stage.receiver.script([Answer::status(200).after(Duration::from_secs(2))]);
    stage.create("stopped", Some("1")).await;
    stage.receiver.wait_for(3).await;
    beacon.stop().await;
    assert!(stage.verify().await.0, "it was waited for, and noted");
    let beacon = stage.start().await;
    stage.barrier().await;
    assert_eq!(stage.receiver.requests().len(), 4);
    beacon.stop().await;
}

/// S25, S26: what the endpoint took and nobody could note is remembered, and not sent again unless the process dies.
#[tokio::test]
async fn what_is_taken_and_cannot_be_noted_is_sent_again_only_after_a_kill() {
    let Some(stage) = Stage::set("beacon::noted").await else { return };
    let beacon = stage.start().await;
    let somebody = open_beside(Path::new(&stage.ledger()), &[]).unwrap();
    let slow = || Answer::status(200).after(Duration::from_secs(3));
    stage.receiver.script([slow()]);
    stage.create("a", Some("1")).await;
    stage.receiver.wait_for(1).await;
    somebody.execute_batch("BEGIN IMMEDIATE").unwrap();
    beacon.process.line(&["the outbox cannot be used"]).await;
    somebody.execute_batch("COMMIT").unwrap();
    eventually(DEADLINE, "it is noted", async || stage.verify().await.0.then_some(())).await;
    assert_eq!(stage.receiver.posts(), 1);

    stage.receiver.script([slow()]);
    stage.create("b", Some("1")).await;
    stage.receiver.wait_for(2).await;
    somebody.execute_batch("BEGIN IMMEDIATE").unwrap();
    eventually(DEADLINE, "the answer came", async || {
        let sent = beacon.series("event_notifications_sent_total{").await;
        sent.iter().any(|line| line.contains("success") && line.ends_with(" 2")).then_some(())
    })
    .await;
    beacon.kill().await;
    somebody.execute_batch("COMMIT").unwrap();
    let beacon = stage.start().await;
    let requests = stage.receiver.wait_for(3).await;
    assert_eq!(requests[1].body, requests[2].body);
    eventually(DEADLINE, "it is noted", async || stage.verify().await.0.then_some(())).await;
    assert_eq!(stage.receiver.posts(), 3);
    beacon.stop().await;
}

/// S34: what was given up is a dead letter, told once with all that it says, and has as many attempts again when
/// somebody sends it again.
#[tokio::test]
async fn an_event_that_is_given_up_can_be_sent_again() {
    let Some(stage) = Stage::set("beacon::given_up").await else { return };
    let config = stage.config("", "", "warningThreshold: 100, criticalThreshold: 100");
    let config = config.replace("maxBackoff: 500ms", "maxBackoff: 500ms, maxAttempts: 3");
    stage.receiver.otherwise(Answer::status(503));
    let beacon = Beacon::started(stage.process_of(&stage.account.kubeconfig(), &config)).await;
    stage.create("a", Some("secretless")).await;
    beacon.process.line(&["an event is given up after maxAttempts", "secretless"]).await;
    assert_eq!(stage.receiver.posts(), 3);
    stage.receiver.script([Answer::status(503), Answer::status(503)]);
    stage.receiver.otherwise(Answer::status(200));
    let again = run(&["outbox", "--store", &stage.ledger(), "retry", "--state", "dead"], &[]).await;
    assert!(again.status.success(), "{}", text(&again.stderr));
    eventually(DEADLINE, "it is taken", async || stage.verify().await.0.then_some(())).await;
    assert_eq!(stage.receiver.posts(), 6);
    assert_eq!(beacon.process.out().matches("an event is given up").count(), 1);
    beacon.stop().await;
}

/// S39: of an object nothing is asked for, and nothing kept, but what may be sent.
#[tokio::test]
async fn of_an_object_nothing_is_kept_but_what_is_sent() {
    let Some(stage) = Stage::set("beacon::size").await else { return };
    let beacon = stage.start().await;
    let annotations =
        BTreeMap::from([(KEY.to_owned(), "1".to_owned()), ("example.com/large".to_owned(), "x".repeat(200_000))]);
    let metadata =
        ObjectMeta { name: Some("large".to_owned()), annotations: Some(annotations), ..ObjectMeta::default() };
    let data = BTreeMap::from([("file".to_owned(), "y".repeat(700_000))]);
    let object = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
    stage.objects().create(&PostParams::default(), &object).await.unwrap();
    stage.tells(&["created large=1"]).await;
    let connection = open_beside(Path::new(&stage.ledger()), &[]).unwrap();
    let sql = "SELECT length(labels) + length(annotations) + length(full_metadata) FROM managed_objects";
    let kept: u32 = connection.query_row(sql, [], |row| row.get(0)).unwrap();
    assert!(kept < 200, "{kept} bytes");
    assert!(stage.receiver.requests()[0].body.len() < 1_000);
    beacon.stop().await;
}
