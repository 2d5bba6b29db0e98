//! The rights that a configuration is said to need are those that it needs.

use k8s_openapi::api::core::v1::{Namespace as CoreNamespace, Secret};
use kube::api::{ApiResource, DynamicObject};
use watchfire_testkit::unique;

use super::*;

#[tokio::test]
async fn the_roles_that_are_printed_suffice_and_allow_nothing_else() {
    let Some(cluster) = cluster("beacon::rights").await else { return };
    let namespace = cluster.namespace().await;
    let account = namespace.service_account(&unique("beacon"), Vec::new()).await;
    let (receiver, folder) = (Receiver::start().await, tempfile::tempdir().unwrap());
    let stage = Stage { namespace, account, receiver, folder };
    let here = stage.namespace.name();
    let entries = format!(
        "  - {{apiVersion: v1, kind: ConfigMap, namespaces: [{here}]}}\n  - {{apiVersion: v1, kind: Namespace}}\n  - \
         {{apiVersion: apps/v1, kind: Deployment, namespaces: [{here}]}}\n"
    );
    let kubeconfig = stage.account.kubeconfig();
    let beacon = stage.begin_with(&kubeconfig, &entries, "reconciliation: {interval: 500ms}\n").await;
    let unready = beacon.readiness(503).await;
    assert!(unready.contains("forbidden") || unready.contains("not checked yet"), "{unready}");

    let user = stage.account.user.clone();
    let name = user.rsplit(':').next().unwrap();
    let file = stage.folder.path().join("beacon.yaml").display().to_string();
    let whom = format!("{here}/{name}");
    let name = format!("{here}-{name}");
    let printed = async |format: &str| {
        let mut command = command(&["beacon", "role", "--config", &file, "--service-account", &whom, "-o", format]);
        let output = command.env("KUBECONFIG", &kubeconfig).output().await.unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let documents = printed("text").await;
    assert_eq!(documents.matches("\n---\n").count(), 3, "{documents}");
    assert!(documents.starts_with("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\n"), "{documents}");
    let list: Value = serde_json::from_str(&printed("json").await).unwrap();
    let mut applied = Vec::new();
    for item in list["items"].as_array().unwrap() {
        let kind = item["kind"].as_str().unwrap();
        let resource = ApiResource {
            group: "rbac.authorization.k8s.io".into(),
            version: "v1".into(),
            api_version: "rbac.authorization.k8s.io/v1".into(),
            kind: kind.into(),
            plural: format!("{}s", kind.to_lowercase()),
        };
        let api: Api<DynamicObject> = match item["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(cluster.client(), namespace, &resource),
            None => Api::all_with(cluster.client(), &resource),
        };
        api.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(item)).await.unwrap();
        applied.push((api, kind.to_owned()));
    }
    beacon.readiness(200).await;
    let alike = async || stage.verify().await.0.then_some(());
    stage.create("a", Some("1")).await;
    stage.tells(&["created a=1"]).await;
    eventually(DEADLINE, "cluster, ledger and deliveries are alike", alike).await;
    // To be asked about, an object has to be got.
    let connection = open_beside(Path::new(&stage.ledger()), &[]).unwrap();
    connection.execute_batch("DELETE FROM episodes").unwrap();
    eventually(DEADLINE, "it is told again", async || (stage.told().len() == 2).then_some(())).await;
    let mut check = command(&["config", "check", "--live", "--config", &file]);
    let checked = check.env("KUBECONFIG", &kubeconfig).output().await.unwrap();
    let said = text(&checked.stdout);
    assert!(checked.status.success() && said.matches("may be listed and watched").count() == 3, "{said}");
    beacon.stop().await;

    let client = stage.account.client().await;
    let here = |api: &str| format!("{api} is allowed");
    let elsewhere: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    assert!(elsewhere.list(&ListParams::default()).await.is_err(), "{}", here("another namespace"));
    let secrets: Api<Secret> = Api::namespaced(client.clone(), stage.namespace.name());
    assert!(secrets.list(&ListParams::default()).await.is_err(), "{}", here("another kind"));
    let objects: Api<ConfigMap> = Api::namespaced(client.clone(), stage.namespace.name());
    assert!(objects.delete("a", &DeleteParams::default()).await.is_err(), "{}", here("to delete"));
    let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    assert!(objects.patch("a", &PatchParams::default(), &patch).await.is_err(), "{}", here("to write"));
    let namespaces: Api<CoreNamespace> = Api::all(client);
    assert!(
        namespaces.delete(stage.namespace.name(), &DeleteParams::default()).await.is_err(),
        "{}",
        here("to delete")
    );
    for (api, _) in applied.iter().filter(|(_, kind)| kind.starts_with("Cluster")) {
        api.delete(&name, &DeleteParams::default()).await.unwrap();
    }
}

#[tokio::test]
async fn a_right_that_is_missing_is_named_before_it_is_missed() {
    let Some(cluster) = cluster("beacon::rights").await else { return };
    let stage = Stage::on(&cluster, vec![rule("", &["configmaps"], &["list", "watch"])]).await;
    let file = stage.folder.path().join("beacon.yaml").display().to_string();
    std::fs::write(&file, stage.config("", "", "warningThreshold: 100, criticalThreshold: 100")).unwrap();
    let mut check = command(&["config", "check", "--live", "--config", &file]);
    let checked = check.env("KUBECONFIG", stage.account.kubeconfig()).output().await.unwrap();
    let said = text(&checked.stdout) + &text(&checked.stderr);
    assert!(!checked.status.success(), "{said}");
    assert!(
        said.contains("may list configmaps, and not get them") && said.contains("endpoint: http://127.0.0.1"),
        "{said}"
    );
}
