//! The control plane: real, and in the hands of a test.

use std::time::Duration;

use futures_util::TryStreamExt;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, ObjectMeta, PostParams, WatchEvent, WatchParams};
use serde_json::json;
use watchfire_testkit::kubernetes::{Asked, Component, Namespace, rule};
use watchfire_testkit::{Mode, Proxy, cluster, control_plane, eventually};

const DEADLINE: Duration = Duration::from_mins(1);

fn config_map(name: &str) -> ConfigMap {
    ConfigMap { metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }, ..ConfigMap::default() }
}

/// Makes a Job for a played node, and waits for its end: whether it succeeded.
async fn play(namespace: &Namespace, node: &str, name: &str, play: serde_json::Value) -> bool {
    let job = json!({
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": {
            "metadata": {"annotations": play},
            "spec": {"restartPolicy": "Never", "nodeName": node, "containers": [{"name": "main", "image": "none"}]},
        }},
    });
    let jobs: Api<Job> = namespace.api();
    jobs.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
    eventually(DEADLINE, "the Job has ended", async || {
        let conditions = jobs.get(name).await.ok()?.status?.conditions?;
        conditions.into_iter().find(|it| it.status == "True" && matches!(it.type_.as_str(), "Complete" | "Failed"))
    })
    .await
    .type_
        == "Complete"
}

#[tokio::test]
async fn pods_of_a_played_node_end_as_their_annotations_say() {
    let Some(cluster) = cluster("pods_of_a_played_node_end_as_their_annotations_say").await else { return };
    let (namespace, node) = (cluster.namespace().await, cluster.play_node().await);
    assert!(play(&namespace, node.name(), "good", json!({})).await);
    assert!(!play(&namespace, node.name(), "bad", json!({"play.watchfire.dev/exit-code": "3"})).await);
    assert!(play(&namespace, node.name(), "slow", json!({"play.watchfire.dev/delay": "1s"})).await);
}

#[tokio::test]
async fn an_account_may_do_what_it_was_given_and_nothing_else() {
    let Some(cluster) = cluster("an_account_may_do_what_it_was_given_and_nothing_else").await else { return };
    let namespace = cluster.namespace().await;
    let account = namespace.service_account("reader", vec![rule("", &["configmaps"], &["get", "list"])]).await;
    let maps: Api<ConfigMap> = Api::namespaced(account.client().await, namespace.name());
    maps.list(&ListParams::default()).await.unwrap();
    let refused = maps.create(&PostParams::default(), &config_map("mine")).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused}");
}

#[tokio::test]
async fn a_control_plane_of_a_tests_own_is_stopped_cut_off_and_audited() {
    let Some(mut own) = control_plane("a_control_plane_of_a_tests_own_is_stopped_cut_off_and_audited").await else {
        return;
    };
    let namespace = own.cluster().clone().namespace().await;
    let account =
        namespace.service_account("writer", vec![rule("", &["configmaps"], &["create", "get", "list", "watch"])]);
    let account = account.await;
    let proxy = Proxy::start(own.api_server()).await;
    let client = watchfire_testkit::kubernetes::Cluster::of(&account.kubeconfig_over(proxy.address())).await.client();
    let maps: Api<ConfigMap> = Api::namespaced(client, namespace.name());
    let first = maps.create(&PostParams::default(), &config_map("first")).await.unwrap();
    let audited = async || (!own.asked(&account.user).is_empty()).then(|| own.asked(&account.user));
    let asked = eventually(DEADLINE, "an audit", audited).await;
    let create = Asked { verb: "create".into(), resource: "configmaps".into(), name: "first".into(), code: 201 };
    assert_eq!(asked, [create]);

    proxy.set(Mode::Refuse).await;
    proxy.cut();
    maps.get("first").await.unwrap_err();
    proxy.set(Mode::Pass).await;
    eventually(DEADLINE, "the way is free again", async || maps.get("first").await.ok()).await;

    own.kill(Component::ApiServer);
    maps.get("first").await.unwrap_err();
    own.restart(Component::ApiServer).await;
    eventually(DEADLINE, "it is served again", async || maps.get("first").await.ok()).await;

    // A watch that has ended is one request: what was asked after it is audited after both of its entries.
    let briefly = WatchParams::default().timeout(1);
    let heard: Vec<_> = maps.watch(&briefly, "0").await.unwrap().try_collect().await.unwrap();
    assert!(!heard.is_empty());
    let watches = || own.asked(&account.user).into_iter().filter(|asked| asked.verb == "watch").count();
    maps.get("first").await.unwrap();
    let asked_after = || own.asked(&account.user).last().is_some_and(|asked| asked.verb == "get");
    eventually(DEADLINE, "what came after the watch is audited", async || asked_after().then_some(())).await;
    assert_eq!(watches(), 1);

    maps.create(&PostParams::default(), &config_map("second")).await.unwrap();
    own.forget_history().await;
    let from = first.metadata.resource_version.unwrap();
    let mut events = Box::pin(maps.watch(&WatchParams::default(), &from).await.unwrap());
    let gone = events.try_next().await.unwrap();
    assert!(matches!(&gone, Some(WatchEvent::Error(status)) if status.code == 410), "{gone:?}");
}
