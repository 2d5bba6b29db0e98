//! A beacon process under exactly its rights, on a real API server, with a real receiver.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use rustix::process::Signal;
use serde_json::{Value, json};
use watchfire_testkit::kubernetes::{Account, Namespace, rule};
use watchfire_testkit::{Answer, Receiver, cluster, eventually};

use crate::support::{DEADLINE, Process, command, get};

/// Long enough for what would come by mistake.
const QUIET: Duration = Duration::from_secs(1);

const KEY: &str = "bakerapps.net/maas";

/// A namespace, a receiver, and beacons that watch ConfigMaps of the one for the other.
struct Stage {
    namespace: Namespace,
    account: Account,
    receiver: Receiver,
    folder: tempfile::TempDir,
}

impl Stage {
    async fn set(test: &str) -> Option<Self> {
        let namespace = cluster(test).await?.namespace().await;
        let rights = vec![rule("", &["configmaps"], &["get", "list", "watch"])];
        let account = namespace.service_account("beacon", rights).await;
        let (receiver, folder) = (Receiver::start().await, tempfile::tempdir().unwrap());
        Some(Self { namespace, account, receiver, folder })
    }

    /// Starts a beacon, and waits until it has compared cluster and ledger.
    async fn start(&self) -> Beacon {
        let beacon = self.begin().await;
        beacon.readiness(200).await;
        beacon
    }

    async fn begin(&self) -> Beacon {
        let path = self.folder.path();
        let (namespace, url) = (self.namespace.name(), self.receiver.url());
        let config = format!(
            "resources:\n  - {{apiVersion: v1, kind: ConfigMap, namespaces: [{namespace}]}}\nannotation: {{key: {KEY}}}\n\
             payload: {{annotations: [{KEY}]}}\nstorage: {{dbPath: {}}}\nendpoint:\n  url: {url}/events\n  retry: \
             {{initialBackoff: 50ms, maxBackoff: 500ms}}\n",
            path.join("events.db").display()
        );
        let file = path.join("beacon.yaml");
        std::fs::write(&file, config).unwrap();
        let ports = ["--health-bind-address=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0"];
        let mut command = command(&["beacon", "--config", &file.display().to_string(), ports[0], ports[1]]);
        command.env("KUBECONFIG", self.account.kubeconfig()).env("ENDPOINT_AUTH_TOKEN", "example-token");
        let process = Process::start(command);
        let line: Value = serde_json::from_str(&process.line(&["beacon started"]).await).unwrap();
        Beacon { process, health: format!("http://{}", line["health"].as_str().unwrap()) }
    }

    fn objects(&self) -> Api<ConfigMap> {
        self.namespace.api()
    }

    async fn create(&self, name: &str, value: Option<&str>) -> String {
        let annotations = value.map(|value| BTreeMap::from([(KEY.to_owned(), value.to_owned())]));
        let labels = Some(BTreeMap::from([("app".to_owned(), name.to_owned())]));
        let metadata = ObjectMeta { name: Some(name.to_owned()), annotations, labels, ..ObjectMeta::default() };
        let object = ConfigMap { metadata, ..ConfigMap::default() };
        self.objects().create(&PostParams::default(), &object).await.unwrap().metadata.uid.unwrap()
    }

    async fn annotate(&self, name: &str, value: Option<&str>) {
        let patch = json!({"metadata": {"annotations": {KEY: value}}});
        self.objects().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    async fn delete(&self, name: &str) {
        self.objects().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// The events that came, each once, as `created a=value`.
    fn told(&self) -> Vec<String> {
        let mut seen = Vec::new();
        let mut told = Vec::new();
        for event in self.events() {
            let id = event["id"].as_str().unwrap().to_owned();
            if !seen.contains(&id) {
                seen.push(id);
                told.push(short(&event));
            }
        }
        told
    }

    fn events(&self) -> Vec<Value> {
        self.receiver.requests().iter().map(|request| serde_json::from_slice(&request.body).unwrap()).collect()
    }

    /// Waits until exactly these have come.
    async fn tells(&self, events: &[&str]) {
        let what = format!("the events {events:?}");
        eventually(DEADLINE, &what, async || (self.told().len() >= events.len()).then_some(())).await;
        assert_eq!(self.told(), events);
    }
}

fn short(event: &Value) -> String {
    let kind = event["type"].as_str().unwrap().rsplit('.').next().unwrap();
    let resource = &event["data"]["resource"];
    format!("{kind} {}={}", resource["name"].as_str().unwrap(), resource["annotationValue"].as_str().unwrap())
}

/// A running beacon.
struct Beacon {
    process: Process,
    health: String,
}

impl Beacon {
    async fn readiness(&self, status: u16) -> String {
        let url = format!("{}/ready", self.health);
        eventually(DEADLINE, &format!("{status} of readiness"), async || {
            let (answered, body) = get(&url).await;
            (answered == status).then_some(body)
        })
        .await
    }

    async fn stop(mut self) {
        self.process.signal(Signal::TERM);
        let status = self.process.ended().await;
        assert!(status.success(), "{status}: {}{}", self.process.out(), self.process.err());
    }

    async fn kill(mut self) {
        self.process.signal(Signal::KILL);
        self.process.ended().await;
    }
}

#[tokio::test]
async fn objects_and_annotations_come_and_go() {
    let Some(stage) = Stage::set("beacon::flows").await else { return };
    let uid = stage.create("before", Some("1")).await;
    stage.create("plain", None).await;
    let beacon = stage.start().await;
    stage.tells(&["created before=1"]).await;
    stage.create("orders", Some("true")).await;
    stage.tells(&["created before=1", "created orders=true"]).await;
    stage.annotate("plain", Some("later")).await;
    stage.annotate("orders", Some("changed")).await;
    stage.delete("orders").await;
    stage.annotate("plain", None).await;
    stage
        .tells(&[
            "created before=1",
            "created orders=true",
            "created plain=later",
            "deleted orders=changed",
            "deleted plain=later",
        ])
        .await;

    let request = stage.receiver.requests().remove(0);
    assert_eq!((request.method.as_str(), request.uri.path()), ("POST", "/events"));
    assert_eq!(request.header("content-type"), "application/cloudevents+json; charset=UTF-8");
    assert_eq!(request.header("authorization"), "Bearer example-token");
    assert!(request.header("user-agent").starts_with("beacon/") && request.header("x-request-id").len() == 36);
    let event = stage.events().remove(0);
    assert_eq!(event["source"], format!("/beacon/{}/ConfigMap", stage.namespace.name()));
    assert_eq!(event["type"], "net.bakerapps.beacon.resource.created");
    assert_eq!((&event["subject"], &event["data"]["resource"]["uid"]), (&json!("before"), &json!(uid)));
    assert_eq!(event["data"]["metadata"]["annotations"], json!({KEY: "1"}));
    assert_eq!(event["data"]["metadata"]["labels"], json!({"app": "before"}));
    let said = beacon.process.out();
    assert!(!said.contains("missed creation") && !said.contains("example-token"), "{said}");
    assert!(said.contains("annotation added") && said.contains("annotation removed"), "{said}");
    beacon.stop().await;
}

/// S1, S10, S12: nothing is told again, and what happened while nobody watched is told once.
#[tokio::test]
async fn a_restart_tells_what_was_missed_and_nothing_else() {
    let Some(stage) = Stage::set("beacon::restart").await else { return };
    for name in ["stays", "goes", "loses"] {
        stage.create(name, Some("x")).await;
    }
    let beacon = stage.start().await;
    eventually(DEADLINE, "three are told", async || (stage.told().len() == 3).then_some(())).await;
    beacon.kill().await;
    stage.delete("goes").await;
    stage.annotate("loses", None).await;
    stage.create("comes", Some("x")).await;

    let beacon = stage.start().await;
    eventually(DEADLINE, "what was missed is told", async || (stage.told().len() >= 6).then_some(())).await;
    tokio::time::sleep(QUIET).await;
    let mut missed = stage.told().split_off(3);
    missed.sort();
    assert_eq!(missed, ["created comes=x", "deleted goes=x", "deleted loses=x"]);
    // What was under way when it was killed may have come twice, under the same id.
    let bodies: HashSet<_> = stage.receiver.requests().into_iter().map(|request| request.body).collect();
    assert_eq!(bodies.len(), 6);
    let said = beacon.process.out();
    assert!(said.contains("missed creation") && said.contains("missed deletion"), "{said}");
    beacon.stop().await;
}

/// S6, S8, S9, S22: with the endpoint away, everything about one name arrives in its order.
#[tokio::test]
async fn what_happened_under_one_name_arrives_in_order_once_the_endpoint_is_back() {
    let Some(stage) = Stage::set("beacon::order").await else { return };
    stage.receiver.otherwise(Answer::status(503));
    let beacon = stage.start().await;
    stage.create("a", Some("1")).await;
    stage.annotate("a", None).await;
    stage.annotate("a", Some("2")).await;
    stage.delete("a").await;
    stage.create("a", Some("3")).await;
    stage.create("b", Some("1")).await;
    eventually(DEADLINE, "attempts", async || (stage.receiver.posts() >= 4).then_some(())).await;
    stage.receiver.take();
    stage.receiver.otherwise(Answer::status(200));
    eventually(DEADLINE, "six are told", async || (stage.told().len() >= 6).then_some(())).await;
    let told = stage.told();
    let of_a: Vec<_> = told.iter().filter(|told| told.contains(" a=")).map(String::as_str).collect();
    assert_eq!(of_a, ["created a=1", "deleted a=1", "created a=2", "deleted a=2", "created a=3"]);
    assert!(told.contains(&"created b=1".to_owned()));
    beacon.stop().await;
}

/// S23: what is refused for good holds up nothing, and is a dead letter.
#[tokio::test]
async fn a_permanent_failure_is_kept_and_the_deletion_is_told_all_the_same() {
    let Some(stage) = Stage::set("beacon::permanent").await else { return };
    let beacon = stage.start().await;
    stage.receiver.script([Answer::status(400)]);
    stage.create("a", Some("1")).await;
    stage.receiver.wait_for(1).await;
    stage.delete("a").await;
    stage.tells(&["created a=1", "deleted a=1"]).await;
    beacon.stop().await;
    let store = stage.folder.path().join("events.db").display().to_string();
    let listed = crate::support::run(&["outbox", "--store", &store, "list"], &[]).await;
    let listed = crate::support::text(&listed.stdout);
    assert!(listed.contains("status 400"), "{listed}");
}
