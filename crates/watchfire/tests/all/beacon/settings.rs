//! What a file says is what is done.

use k8s_openapi::api::core::v1::Namespace as CoreNamespace;
use watchfire_testkit::free_port;

use super::*;

impl Stage {
    /// The usual file, with some of its text exchanged.
    fn exchanged(&self, texts: &[(&str, &str)], more: &str) -> String {
        let usual = self.config("", more, "warningThreshold: 100, criticalThreshold: 100");
        texts.iter().fold(usual, |config, (from, to)| {
            assert!(config.contains(from), "{config}");
            config.replace(from, to)
        })
    }

    async fn begin_as(&self, config: &str) -> Beacon {
        Beacon::started(self.process_of(&self.account.kubeconfig(), config)).await
    }
}

#[tokio::test]
async fn requests_and_events_are_as_the_file_has_them() {
    let Some(stage) = Stage::set("beacon::settings").await else { return };
    let more = "  headers: {x-cluster: north}\napp: {name: announcer, version: 7.8.9, logFormat: text, logLevel: debug}\n\
                cloudEvents: {source: /fleet/one, typePrefix: com.example.thing}\n";
    let texts = [("payload: {annotations: [bakerapps.net/maas]}", "payload: {labels: []}"), (KEY, "example.com/other")];
    for method in ["PUT", "PATCH"] {
        let config = stage.exchanged(&texts, &format!("  method: {method}\n{more}"));
        let mut process = stage.process_of(&stage.account.kubeconfig(), &config);
        let started = process.line(&["beacon started"]).await;
        assert!(started.contains("INFO") && started.contains("announcer"), "{started}");
        let metadata = json!({"name": method.to_lowercase(), "labels": {"app": "x"},
            "annotations": {"example.com/other": "1"}});
        let object = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        stage.objects().create(&PostParams::default(), &object).await.unwrap();
        stage.create(&format!("not-{}", method.to_lowercase()), Some("1")).await;
        let request = stage.receiver.wait_for(1).await.remove(0);
        assert_eq!(request.method.as_str(), method);
        assert_eq!((request.header("x-cluster"), request.header("user-agent")), ("north", "beacon/7.8.9"));
        let event = stage.events().remove(0);
        assert_eq!(event["type"], "com.example.thing.created");
        assert_eq!(event["source"], format!("/fleet/one/{}/ConfigMap", stage.namespace.name()));
        assert_eq!(event["data"]["metadata"].as_object().unwrap().keys().collect::<Vec<_>>(), ["resourceVersion"]);
        process.signal(Signal::TERM);
        assert!(process.ended().await.success());
        assert_eq!(stage.receiver.take().len(), 1, "the other key means nothing");
    }
}

#[tokio::test]
async fn probes_and_metrics_are_where_the_file_puts_them() {
    let Some(stage) = Stage::set("beacon::ports").await else { return };
    let (health, metrics) = (free_port(), free_port());
    let more = format!(
        "health: {{port: {health}, livenessPath: /live, readinessPath: /up}}\nmetrics: {{port: {metrics}, path: \
         /numbers}}\n"
    );
    let start = |more: &str| {
        Beacon::started(Process::start(stage.command(&stage.account.kubeconfig(), &stage.exchanged(&[], more))))
    };
    let status = async |port: u16, path: &str| get(&format!("http://127.0.0.1:{port}{path}")).await.0;
    let beacon = start(&more).await;
    eventually(DEADLINE, "ready", async || (status(health, "/up").await == 200).then_some(())).await;
    assert_eq!((status(health, "/live").await, status(metrics, "/numbers").await), (200, 200));
    let others = [(health, "/ready"), (health, "/healthz"), (metrics, "/metrics"), (health, "/numbers")];
    for (port, path) in others {
        assert_eq!(status(port, path).await, 404, "{path}");
    }
    beacon.stop().await;

    let one = format!("health: {{port: {health}}}\nmetrics: {{port: {health}}}\n");
    let beacon = start(&one).await;
    beacon.readiness(200).await;
    assert_eq!(status(health, "/metrics").await, 200);
    beacon.stop().await;

    let off = one.replace("metrics: {", "metrics: {enabled: false, ");
    let beacon = start(&off).await;
    beacon.readiness(200).await;
    assert_eq!(status(health, "/metrics").await, 404);
    beacon.stop().await;
}

#[tokio::test]
async fn an_object_that_is_in_no_namespace_is_announced_like_others() {
    let Some(cluster) = cluster("beacon::reach").await else { return };
    let stage = Stage::on(&cluster, Vec::new()).await;
    let (name, of_admin) = (stage.namespace.name(), stage.folder.path().join("admin"));
    cluster.write_kubeconfig(&of_admin);
    let beacon = stage.begin_with(&of_admin, "  - {apiVersion: v1, kind: Namespace}\n", "").await;
    beacon.readiness(200).await;
    let namespaces: Api<CoreNamespace> = Api::all(cluster.client());
    for value in [json!("1"), Value::Null] {
        let patch = json!({"metadata": {"annotations": {KEY: value}}});
        namespaces.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
    stage.tells(&[&format!("created {name}=1"), &format!("deleted {name}=1")]).await;
    let event = stage.events().remove(0);
    assert_eq!((&event["source"], &event["data"]["resource"]["namespace"]), (&json!("/beacon//Namespace"), &json!("")));
    beacon.stop().await;

    // One that is in none cannot be watched in some.
    let placed = format!("  - {{apiVersion: v1, kind: Namespace, namespaces: [{name}]}}\n");
    let beacon = stage.begin_with(&of_admin, &placed, "").await;
    let unready = beacon.readiness(503).await;
    assert!(unready.contains("it has no namespaces: leave out those of its entry"), "{unready}");
    beacon.stop().await;
}

/// While nothing is taken in, no list comes to its end.
#[tokio::test]
async fn a_scope_is_ready_before_its_first_comparison_where_the_file_says_so() {
    let Some(stage) = Stage::set("beacon::startup").await else { return };
    stage.create("a", Some("1")).await;
    let scope = format!("watch_configmap.{}", stage.namespace.name());
    for on_startup in [true, false] {
        let more = format!("reconciliation: {{onStartup: {on_startup}}}\n");
        let full = stage.config("", &more, "criticalThreshold: 1, warningThreshold: 1");
        let beacon = stage.begin_as(&full).await;
        beacon.process.line(&["the volume is nearly full"]).await;
        eventually(DEADLINE, "the list was asked for", async || {
            let heard = beacon.series("event_last_event_timestamp").await;
            heard.iter().any(|line| !line.ends_with(" 0") && !line.ends_with(" 0.0")).then_some(())
        })
        .await;
        let report: Value = serde_json::from_str(&beacon.readiness(503).await).unwrap();
        let expected = if on_startup { "error" } else { "ok" };
        assert_eq!(report["checks"][&scope]["status"], expected, "{report}");
        assert_eq!(report["checks"]["storage"]["status"], "error");
        beacon.stop().await;
    }
}

/// However few are read at a time, all are sent; and no more are read than that.
#[tokio::test]
async fn events_are_read_in_batches_of_the_size_that_the_file_has() {
    let Some(stage) = Stage::set("beacon::batch").await else { return };
    stage.receiver.otherwise(Answer::status(503));
    let beacon = stage.begin_over(&stage.account.kubeconfig(), "worker: {batchSize: 2, concurrency: 2}\n").await;
    for n in 0..9 {
        stage.create(&format!("n-{n}"), Some("1")).await;
    }
    eventually(DEADLINE, "nine wait", async || (stage.verify().await.1["pending"] == 9).then_some(())).await;
    stage.receiver.otherwise(Answer::status(200));
    eventually(DEADLINE, "all are taken", async || stage.verify().await.0.then_some(())).await;
    let larger = beacon.series("event_worker_batch_size_bucket{").await;
    let count = |le: &str| -> u64 {
        let line = larger.iter().find(|line| line.contains(&format!("le=\"{le}\"")));
        line.unwrap_or_else(|| panic!("{le}: {larger:?}")).rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(count("2") > 0 && count("2") == count("+Inf"), "{larger:?}");
    beacon.stop().await;
}
