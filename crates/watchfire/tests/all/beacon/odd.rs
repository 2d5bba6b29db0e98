//! What a cluster, a file and a disk may do to a beacon that nobody planned.

use std::time::Duration;

use k8s_openapi::api::rbac::v1::RoleBinding;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject};
use watchfire_testkit::unique;

use super::*;

/// S21: whoever may not look any more says so by name, and takes nothing to be gone.
#[tokio::test]
async fn a_lost_permission_is_a_named_state_and_never_a_deletion() {
    let Some(stage) = Stage::set("beacon::permission").await else { return };
    let proxy = Proxy::start(stage.namespace.cluster().address()).await;
    stage.create("a", Some("1")).await;
    let beacon = stage.begin_over(&stage.account.kubeconfig_over(proxy.address()), "").await;
    beacon.readiness(200).await;
    stage.tells(&["created a=1"]).await;
    let bindings: Api<RoleBinding> = stage.namespace.api();
    let mut binding = bindings.get("beacon").await.unwrap();
    bindings.delete("beacon", &DeleteParams::default()).await.unwrap();
    // What is watched already goes on: a right is looked at when a watch begins.
    let unready = eventually(DEADLINE, "the scope is not ready", async || {
        let (status, body) = get(&format!("{}/ready", beacon.health)).await;
        if status == 200 {
            proxy.cut();
        }
        (status == 503 && body.contains("forbidden")).then_some(body)
    })
    .await;
    assert!(unready.contains("watch_configmap"), "{unready}");
    assert!(get(&format!("{}/healthz", beacon.health)).await.0 == 200);
    binding.metadata.resource_version = None;
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    beacon.readiness(200).await;
    stage.barrier().await;
    assert_eq!(stage.told(), ["created a=1", "created barrier=x"]);
    let said = beacon.process.out();
    assert!(said.matches("the cluster does not answer").count() <= 3, "{said}");
    beacon.stop().await;
}

#[tokio::test]
async fn a_kind_that_the_cluster_learns_later_is_watched_without_a_restart() {
    let Some(cluster) = cluster("beacon::later").await else { return };
    let group = format!("{}.example.com", unique("g"));
    let rights = vec![rule(&group, &["widgets"], &["get", "list", "watch"])];
    let stage = Stage::on(&cluster, rights).await;
    let entry = format!("  - {{apiVersion: {group}/v1, kind: Widget, namespaces: [{}]}}\n", stage.namespace.name());
    let beacon = stage.begin_with(&stage.account.kubeconfig(), &entry, "").await;
    let unready = beacon.readiness(503).await;
    assert!(unready.contains(&format!("watch_widget.{group}")), "{unready}");

    let definition = json!({
        "metadata": {"name": format!("widgets.{group}")},
        "spec": {
            "group": group,
            "names": {"kind": "Widget", "plural": "widgets", "singular": "widget", "listKind": "WidgetList"},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
    });
    let definition: CustomResourceDefinition = serde_json::from_value(definition).unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client());
    definitions.create(&PostParams::default(), &definition).await.unwrap();
    beacon.readiness(200).await;
    let kind = ApiResource {
        group: group.clone(),
        version: "v1".into(),
        api_version: format!("{group}/v1"),
        kind: "Widget".into(),
        plural: "widgets".into(),
    };
    let widgets: Api<DynamicObject> = Api::namespaced_with(cluster.client(), stage.namespace.name(), &kind);
    let mut widget = DynamicObject::new("first", &kind);
    widget.metadata.annotations = Some([(KEY.to_owned(), "1".to_owned())].into());
    widgets.create(&PostParams::default(), &widget).await.unwrap();
    stage.tells(&["created first=1"]).await;
    assert_eq!(stage.events()[0]["source"], format!("/beacon/{}/Widget", stage.namespace.name()));

    // What goes with its kind is gone; what there was of the kind before is not announced again when it is back.
    definitions.delete(&format!("widgets.{group}"), &DeleteParams::default()).await.unwrap();
    stage.tells(&["created first=1", "deleted first=1"]).await;
    let unready = beacon.readiness(503).await;
    assert!(
        unready.contains(&format!("watch_widget.{group}")) && unready.contains("nothing is concluded"),
        "{unready}"
    );
    eventually(DEADLINE, "the kind can be defined anew", async || {
        definitions.create(&PostParams::default(), &definition).await.is_ok().then_some(())
    })
    .await;
    beacon.readiness(200).await;
    eventually(DEADLINE, "another can be made", async || {
        widgets.create(&PostParams::default(), &widget).await.is_ok().then_some(())
    })
    .await;
    stage.tells(&["created first=1", "deleted first=1", "created first=1"]).await;
    beacon.stop().await;
    definitions.delete(&format!("widgets.{group}"), &DeleteParams::default()).await.unwrap();
}

/// A watch over a connection that is half open says nothing, and looks well.
#[tokio::test]
async fn a_cluster_that_says_nothing_any_more_is_noticed_by_the_comparison() {
    let Some(stage) = Stage::set("beacon::silent").await else { return };
    let proxy = Proxy::start(stage.namespace.cluster().address()).await;
    let often = "reconciliation: {interval: 200ms, timeout: 500ms}\n";
    let beacon = stage.begin_over(&stage.account.kubeconfig_over(proxy.address()), often).await;
    beacon.readiness(200).await;
    proxy.set(Mode::Blackhole).await;
    let unready = beacon.readiness(503).await;
    assert!(unready.contains("comparison_configmap") && unready.contains("no answer within 500ms"), "{unready}");
    proxy.set(Mode::Pass).await;
    proxy.cut();
    beacon.readiness(200).await;
    beacon.stop().await;
}

/// S33: a second service is kept out, and says by what.
#[tokio::test]
async fn one_ledger_has_one_service() {
    let Some(stage) = Stage::set("beacon::lock").await else { return };
    let first = stage.start().await;
    let mut second = stage.process(&stage.account.kubeconfig(), "", "");
    let status = second.ended().await;
    let said = second.err();
    assert!(!status.success() && said.contains("another service has it open"), "{said}");
    std::fs::remove_file(stage.ledger() + ".lock").unwrap();
    stage.create("a", Some("1")).await;
    let unready = first.readiness(503).await;
    assert!(unready.contains("its lock file was removed") && unready.contains("restart the service"), "{unready}");
    assert!(stage.told().is_empty(), "another may tell it");
    first.stop().await;
    let again = stage.start().await;
    stage.tells(&["created a=1"]).await;
    again.stop().await;
}

/// S29: while the volume is fuller than it may be, nothing is taken in and nothing is lost; what was taken in is
/// delivered.
#[tokio::test]
async fn a_full_volume_closes_the_intake_and_the_cluster_keeps_what_it_has_to_say() {
    let Some(stage) = Stage::set("beacon::full").await else { return };
    stage.receiver.otherwise(Answer::status(503));
    let beacon = stage.start().await;
    stage.create("before", Some("1")).await;
    eventually(DEADLINE, "it waits", async || (stage.verify().await.1["pending"] == 1).then_some(())).await;
    beacon.stop().await;
    stage.receiver.take();
    stage.receiver.otherwise(Answer::status(200));

    let full = "criticalThreshold: 1, warningThreshold: 1";
    let beacon = stage.begin_stored(full).await;
    let unready = beacon.readiness(503).await;
    assert!(unready.contains("nothing more is taken in") && unready.contains("\"storage\""), "{unready}");
    stage.create("a", Some("1")).await;
    beacon.process.line(&["the volume is nearly full"]).await;
    stage.tells(&["created before=1"]).await;
    let pressure = beacon.series("event_storage_pressure{").await;
    assert!(pressure.iter().any(|line| line.contains("\"critical\"") && line.ends_with(" 1")), "{pressure:?}");
    assert_eq!(stage.told().len(), 1);
    beacon.stop().await;
    let beacon = stage.begin_stored("criticalThreshold: 100, warningThreshold: 100").await;
    beacon.readiness(200).await;
    stage.tells(&["created before=1", "created a=1"]).await;
    beacon.stop().await;
}

/// S30: a ledger that is damaged is refused, and untouched.
#[tokio::test]
async fn a_damaged_ledger_is_refused_with_what_to_do() {
    let Some(stage) = Stage::set("beacon::damaged").await else { return };
    stage.create("a", Some("1")).await;
    let beacon = stage.start().await;
    stage.tells(&["created a=1"]).await;
    beacon.stop().await;
    let mut bytes = std::fs::read(stage.ledger()).unwrap();
    let length = bytes.len();
    bytes[1024..length.min(16_384)].fill(0xAA);
    std::fs::write(stage.ledger(), &bytes).unwrap();
    let mut process = stage.process(&stage.account.kubeconfig(), "", "");
    let status = process.ended().await;
    let said = process.err();
    assert!(!status.success() && said.contains("it is damaged") && said.contains("put a copy of it back"), "{said}");
    assert_eq!(std::fs::read(stage.ledger()).unwrap(), bytes);
}

#[tokio::test]
async fn values_at_their_limits_arrive_whole() {
    let Some(stage) = Stage::set("beacon::limits").await else { return };
    let beacon = stage.start().await;
    // A name has at most 253 characters, all annotations together 256 KiB.
    let (name, value) = ("n".repeat(253), format!("ä \u{1F525} \"\\\n{}", "x".repeat(255 * 1024)));
    stage.create(&"n".repeat(63), Some("ü")).await;
    stage.create_with(&name, &value).await;
    stage.delete(&name).await;
    eventually(DEADLINE, "three are told", async || (stage.told().len() >= 3).then_some(())).await;
    let events = stage.events();
    let of_long: Vec<_> = events.iter().filter(|event| event["subject"] == name).collect();
    assert_eq!(of_long.len(), 2);
    assert!(of_long.iter().all(|event| event["data"]["resource"]["annotationValue"] == value));
    beacon.stop().await;
}

/// S36, S37: answers that are odd, or far away, cost a retry and nothing else.
#[tokio::test]
async fn an_endpoint_that_answers_oddly_gets_each_event_once_it_takes_it() {
    let Some(stage) = Stage::set("beacon::answers").await else { return };
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let file = stage.folder.path().join("secret");
    std::fs::write(&file, secret).unwrap();
    let more = format!("  timeout: 1s\n  signingSecretFile: {}\n", file.display());
    let beacon = stage.begin_over(&stage.account.kubeconfig(), &more).await;
    beacon.readiness(200).await;
    // A gigabyte.
    let endless = Answer::status(500).body("x".repeat(1 << 20)).times(1_000);
    let answers = [
        endless,
        Answer::hang(),
        Answer::status(429).header("retry-after", "1"),
        Answer::status(503).after(Duration::from_millis(100)),
    ];
    stage.receiver.script(answers);
    stage.create("a", Some("1")).await;
    let requests = eventually(DEADLINE, "it is taken", async || {
        let requests = stage.receiver.requests();
        (requests.len() >= 5).then_some(requests)
    })
    .await;
    assert!(requests.iter().all(|request| request.body == requests[0].body), "the same bytes each time");
    let after = requests[3].at - requests[2].at;
    assert!(after >= Duration::from_secs(1), "{after:?} after Retry-After: 1");
    let header = |name: &'static str| requests.iter().map(move |request| request.header(name)).collect::<HashSet<_>>();
    assert_eq!((header("webhook-id").len(), header("x-request-id").len()), (1, 5));
    assert!(header("webhook-timestamp").len() > 1 && header("webhook-signature").len() > 1, "fresh with each attempt");
    eventually(DEADLINE, "it is noted", async || stage.verify().await.0.then_some(())).await;
    let attempts = beacon.series("event_notification_attempts_total_sum").await;
    assert!(attempts.len() == 1 && attempts[0].ends_with(" 5.0") || attempts[0].ends_with(" 5"), "{attempts:?}");
    assert!(beacon.process.peak_memory() < 100 << 10, "{} KiB", beacon.process.peak_memory());

    // While a secret is exchanged, whoever knows either can check.
    let signatures = async |secrets: &str, n: usize| {
        std::fs::write(&file, secrets).unwrap();
        stage.receiver.take();
        stage.create(&format!("rotated-{n}"), Some("1")).await;
        let request = stage.receiver.wait_for(1).await.remove(0);
        request.header("webhook-signature").split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    let other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    assert_eq!(signatures(&format!("{secret}\n{other}\n"), 2).await.len(), 2);
    assert_eq!(signatures(other, 1).await.len(), 1);
    beacon.stop().await;
}
