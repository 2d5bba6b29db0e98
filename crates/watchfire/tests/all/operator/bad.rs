//! What can be wrong with an object, and around it: each told on the object, in the log and in the metric.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::Role;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use watchfire_sentinel::object::SentinelConfig;
use watchfire_testkit::kubernetes::rule;
use watchfire_testkit::{Mode, Proxy, amqp_url, control_plane, eventually, unique};

use super::{LULL, Operator, Stage, install, role};
use crate::support::{DEADLINE, run, text};

#[tokio::test]
async fn the_api_server_refuses_what_cannot_hold_and_fills_in_what_is_left_out() {
    let test = "the_api_server_refuses_what_cannot_hold_and_fills_in_what_is_left_out";
    let Some(stage) = Stage::set(test).await else { return };
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut spec = stage.spec("events", "us-east");
        change(&mut spec);
        spec
    };
    let without = |path: &'static str, key: &'static str| {
        changed(&move |spec| {
            spec.pointer_mut(path).and_then(Value::as_object_mut).and_then(|map| map.remove(key)).unwrap();
        })
    };
    let with =
        |path: &'static str, value: Value| changed(&move |spec| *spec.pointer_mut(path).unwrap() = value.clone());
    let also = |path: &'static str, key: &'static str, value: Value| {
        changed(&move |spec| spec.pointer_mut(path).unwrap()[key] = value.clone())
    };
    let cases = [
        (without("", "resourceType"), "spec.resourceType: Required value"),
        (without("", "hyperfleetAPI"), "spec.hyperfleetAPI: Required value"),
        (without("/hyperfleetAPI", "url"), "spec.hyperfleetAPI.url: Required value"),
        (without("", "broker"), "spec.broker: Required value"),
        (without("/broker", "topic"), "spec.broker.topic: Required value"),
        (with("/broker/topic", json!("")), "spec.broker.topic"),
        (without("/broker", "url"), "url or urlSecretRef is required for rabbitmq"),
        (with("/resourceType", json!("nodes")), "Unsupported value: \"nodes\""),
        (with("/broker/type", json!("kafka")), "Unsupported value: \"kafka\""),
        (with("/broker/type", json!("gcp-pubsub")), "projectID is required for gcp-pubsub"),
        (with("/pollInterval", json!("0s")), "must be a duration longer than 0, for example 5s"),
        (with("/backoffNotReady", json!("soon")), "spec.backoffNotReady"),
        (also("", "backoffReady", json!("-1m")), "must be a duration longer than 0, for example 30m"),
        (also("/hyperfleetAPI", "timeout", json!(10)), "spec.hyperfleetAPI.timeout"),
        (also("/broker", "urlSecretRef", json!({"name": "a", "key": "b"})), "url and urlSecretRef exclude each other"),
    ];
    for (spec, part) in cases {
        let refused = stage.try_create("wrong", spec.clone()).await.expect_err(&format!("{spec} holds"));
        assert!(refused.to_string().contains(part), "{part:?} is not in {refused}");
    }
    let spec = json!({
        "resourceType": "nodepools",
        "hyperfleetAPI": {"url": "http://api"},
        "broker": {"type": "gcp-pubsub", "topic": "events", "projectID": "prod"},
    });
    let made = stage.try_create("right", spec).await.unwrap().spec;
    let filled = [&made.backoff_not_ready, &made.backoff_ready, &made.poll_interval, &made.hyperfleet_api.timeout];
    assert_eq!(filled, ["10s", "30m", "5s", "10s"]);
}

#[tokio::test]
async fn a_secret_is_read_by_its_name_waited_for_and_read_again() {
    let Some(stage) = Stage::set("a_secret_is_read_by_its_name_waited_for_and_read_again").await else { return };
    let exchange = unique("exchange");
    let mut inbox = stage.listen(&exchange).await;
    let mut spec = stage.spec(&exchange, "us-east");
    spec["broker"]["url"] = Value::Null;
    spec["broker"]["urlSecretRef"] = json!({"name": "hyperfleet-sentinel", "key": "broker-url"});
    stage.create("east", spec).await;
    let operator = stage.start(&["--config", "east"]).await;
    let why = stage.reason("east", "SecretUnavailable").await;
    assert!(why.contains("the Secret hyperfleet-sentinel is not there; create it"), "{why}");
    operator.readiness(503, "the Secret hyperfleet-sentinel is not there").await;
    operator.process.line(&["\"level\":\"error\"", "the Secret hyperfleet-sentinel is not there"]).await;
    assert!(operator.metric(&["hyperfleet_sentinel_api_errors_total{", "operation=\"config_load\""]).await >= 1.0);

    let metadata = ObjectMeta { name: Some("hyperfleet-sentinel".to_owned()), ..ObjectMeta::default() };
    // What is not read of a URL tells where it is shown.
    let url = format!("{}?hidden=hidden", stage.amqp);
    let data = [("broker-url".to_owned(), ByteString(url.into_bytes()))].into();
    let secret = Secret { metadata, data: Some(data), ..Secret::default() };
    stage.namespace.api::<Secret>().create(&PostParams::default(), &secret).await.unwrap();
    // Tried again every 30 seconds.
    stage.reason("east", "Polling").await;
    inbox.take(2).await;
    // Of another Secret it may not read, and says so; the last one stays in force.
    stage.edit("east", json!({"broker": {"urlSecretRef": {"name": "?watch=1"}}})).await;
    let why = stage.reason("east", "SecretUnavailable").await;
    assert!(why.contains("\"?watch=1\" is no name of a Secret"), "{why}");
    stage.edit("east", json!({"broker": {"urlSecretRef": {"name": "other"}}})).await;
    let forbidden = async || Some(stage.reason("east", "SecretUnavailable").await).filter(|why| why.contains("other"));
    let why = eventually(DEADLINE, "the other Secret is told", forbidden).await;
    assert!(why.contains("the Secret other may not be read; allow") && why.contains("stays in force"), "{why}");
    inbox.drain(LULL).await;
    inbox.take(2).await;
    let status = serde_json::to_string(&stage.objects().get("east").await.unwrap().status).unwrap();
    let said = operator.stop().await;
    assert!(!said.contains("hidden") && !status.contains("hidden"), "the password is told: {said} {status}");
}

#[tokio::test]
async fn broker_and_api_that_fail_are_told_on_the_object() {
    let Some(stage) = Stage::set("broker_and_api_that_fail_are_told_on_the_object").await else { return };
    let exchange = unique("exchange");
    let mut inbox = stage.listen(&exchange).await;
    let mut spec = stage.spec(&exchange, "us-east");
    spec["hyperfleetAPI"]["url"] = json!("http://127.0.0.1:9");
    stage.create("east", spec).await;
    let operator = stage.start(&["--config", "east"]).await;
    let why = stage.reason("east", "ApiUnavailable").await;
    assert!(why.contains("check spec.hyperfleetAPI.url"), "{why}");
    stage
        .edit("east", json!({"hyperfleetAPI": {"url": stage.fleet.url}, "broker": {"url": "amqp://127.0.0.1:9"}}))
        .await;
    let why = stage.reason("east", "BrokerUnavailable").await;
    assert!(why.contains("127.0.0.1:9"), "{why}");
    stage.edit("east", json!({"broker": {"url": stage.amqp}})).await;
    stage.reason("east", "Polling").await;
    inbox.take(2).await;
    operator.stop().await;
}

#[tokio::test]
async fn what_the_cluster_lacks_is_told_and_waited_for_and_only_the_rights_of_the_role_are_used() {
    let test = "what_the_cluster_lacks_is_told_and_waited_for_and_only_the_rights_of_the_role_are_used";
    let Some(amqp) = amqp_url(test) else { return };
    let Some(mut own) = control_plane(test).await else { return };
    let stage = Stage::on(&own.cluster().clone(), amqp, role()).await;
    let operator = stage.start(&["--config", "east", "--leader-elect"]).await;
    operator.readiness(503, "watchfire crds | kubectl apply -f -").await;
    operator.process.line(&["\"level\":\"error\"", "the cluster does not know SentinelConfig"]).await;
    assert!(operator.metric(&["hyperfleet_sentinel_api_errors_total{", "operation=\"config_load\""]).await >= 1.0);
    install(own.cluster().client()).await;
    let exchange = unique("exchange");
    let mut inbox = stage.listen(&exchange).await;
    stage.create("east", stage.spec(&exchange, "us-east")).await;
    inbox.take(2).await;
    stage.reason("east", "Polling").await;

    let asked = own.asked(&stage.account.user);
    assert!(asked.iter().any(|asked| asked.resource == "leases") && asked.iter().any(|asked| asked.verb == "patch"));
    let refused: Vec<_> = asked.iter().filter(|asked| matches!(asked.code, 401 | 403)).collect();
    assert!(refused.is_empty(), "asked for what the Role does not give: {refused:?}");

    // Its history forgotten, the watch begins anew, and nothing stops meanwhile that needs no API server.
    own.forget_history().await;
    inbox.drain(LULL).await;
    inbox.take(2).await;
    stage.edit("east", json!({"backoffNotReady": "2s"})).await;
    let metric = ["hyperfleet_sentinel_config_reloads_total{"];
    let reloaded = async || (operator.metric(&metric).await >= 2.0).then_some(());
    eventually(DEADLINE, "the edit is heard", reloaded).await;

    // What may not be done: to write the status, then to watch.
    let roles = stage.namespace.api::<Role>();
    let rights = |rules| Patch::Merge(json!({"rules": rules}));
    let read = rule("hyperfleet.redhat.com", &["sentinelconfigs"], &["get", "list", "watch"]);
    let leases = rule("coordination.k8s.io", &["leases"], &["get", "create", "update"]);
    roles.patch("hyperfleet-sentinel", &PatchParams::default(), &rights(vec![read.clone(), leases])).await.unwrap();
    until_refused(&stage).await;
    stage.edit("east", json!({"backoffNotReady": "1s"})).await;
    operator.process.line(&["\"level\":\"warn\"", "cannot write the status", "sentinelconfigs/status"]).await;
    assert!(operator.metric(&["hyperfleet_sentinel_api_errors_total{", "operation=\"status_update\""]).await >= 1.0);
    // Nor to have the lease: it leads no more, and says what it needs.
    roles.patch("hyperfleet-sentinel", &PatchParams::default(), &rights(vec![read])).await.unwrap();
    operator.readiness(503, "allow the ServiceAccount to get, create and update leases").await;
    operator.process.line(&["leads no more"]).await;
    operator.stop().await;
    roles.patch("hyperfleet-sentinel", &PatchParams::default(), &rights(Vec::new())).await.unwrap();
    let operator = stage.start(&["--config", "east"]).await;
    operator.readiness(503, "allow the ServiceAccount to get, list and watch sentinelconfigs").await;
    operator.stop().await;
}

#[tokio::test]
async fn an_api_server_that_says_nothing_or_does_not_know_us_is_told() {
    let test = "an_api_server_that_says_nothing_or_does_not_know_us_is_told";
    let Some(stage) = Stage::set(test).await else { return };
    let way = Proxy::start(stage.namespace.cluster().address()).await;
    way.set(Mode::Blackhole).await;
    let kubeconfig = stage.account.kubeconfig_over(way.address());
    let operator = Operator::start(&stage, &["--all-configs"], &kubeconfig).await;
    operator.readiness(503, "no answer yet; check that the API server answers").await;
    way.set(Mode::Pass).await;
    way.cut();
    operator.readiness(200, "").await;
    operator.process.line(&["are watched", "\"objects\":0"]).await;
    operator.stop().await;

    let mut stranger: Value = serde_json::from_slice(&std::fs::read(&kubeconfig).unwrap()).unwrap();
    stranger["users"][0]["user"]["token"] = json!("expired");
    std::fs::write(&kubeconfig, stranger.to_string()).unwrap();
    let operator = Operator::start(&stage, &["--all-configs"], &kubeconfig).await;
    operator.readiness(503, "does not take the token or certificate").await;
    operator.stop().await;
}

#[tokio::test]
async fn an_object_that_its_finalizer_holds_is_said_to_be_on_its_way() {
    let test = "an_object_that_its_finalizer_holds_is_said_to_be_on_its_way";
    let Some(stage) = Stage::set(test).await else { return };
    let exchange = unique("exchange");
    let mut inbox = stage.listen(&exchange).await;
    stage.create("east", stage.spec(&exchange, "us-east")).await;
    let held = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    let objects = stage.objects();
    objects.patch("east", &PatchParams::default(), &held(json!(["example.com/held"]))).await.unwrap();
    let operator = stage.start(&["--config", "east"]).await;
    inbox.take(2).await;
    stage.delete("east").await;
    operator.readiness(503, "is being deleted, and its finalizers hold it").await;
    inbox.drain(LULL).await;
    objects.patch("east", &PatchParams::default(), &held(json!([]))).await.unwrap();
    operator.readiness(503, "there is no SentinelConfig east").await;
    assert!(inbox.drain(LULL).await.is_empty(), "nothing is published for what is on its way");
    operator.stop().await;
}

/// Waits until the API server has heard that statuses may not be written any more.
async fn until_refused(stage: &Stage) {
    let client = stage.account.client().await;
    let own: Api<SentinelConfig> = Api::namespaced(client, stage.namespace.name());
    let nothing = Patch::Merge(json!({}));
    let refused = async || {
        let answer = own.patch_status("east", &PatchParams::default(), &nothing).await;
        matches!(&answer, Err(kube::Error::Api(status)) if status.code == 403).then_some(())
    };
    eventually(DEADLINE, "the right is taken", refused).await;
}

#[tokio::test]
async fn what_stands_in_an_object_is_no_flag_and_what_elects_has_to_be_in_order() {
    for (args, part) in [
        (&["--config", "east", "--poll-interval", "5s"][..], "--poll-interval is not for SentinelConfig objects"),
        (&["--config", "east", "--leader-elect-renew-deadline", "20s"], "a renew deadline below it"),
        (&["--config", "east", "--leader-elect-lease-duration", "15500ms"], "a lease duration of whole seconds"),
        (&["--config", "east", "--record", "here"], "--record is not for SentinelConfig objects"),
        (&["--config", "east", "--broker-config", "here"], "write it into spec.broker"),
        (&["--config", "east.yaml", "--leader-elect"], "--leader-elect is for SentinelConfig objects"),
        (&["--config", "east", "--all-configs"], "cannot be used with"),
        (&["--config", "east"], "east is no file here, and so the name of a SentinelConfig"),
        (&["--all-configs"], "find the cluster by KUBECONFIG"),
    ] {
        let nowhere = [("KUBECONFIG", "/nowhere"), ("HOME", "/nowhere")];
        let output = run(&[&["sentinel"], args].concat(), &nowhere).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{args:?}: {said}");
        assert!(said.contains(part), "{args:?}: {said}");
    }
}
