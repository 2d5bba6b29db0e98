//! A beacon process under exactly its rights, on a real API server, with a real receiver.

mod cases;
mod endpoint;
mod faults;
mod metrics;
mod odd;
mod rights;
mod settings;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::process::Command;
use watchfire_delivery::store::open_beside;
use watchfire_testkit::kubernetes::{Account, Cluster, Namespace, rule};
use watchfire_testkit::{Answer, Mode, Proxy, Receiver, cluster, eventually};

use crate::support::{DEADLINE, Process, command, get, run, text};

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
        let rights = vec![rule("", &["configmaps"], &["get", "list", "watch"])];
        Some(Self::on(&cluster(test).await?, rights).await)
    }

    async fn on(cluster: &Cluster, rights: Vec<PolicyRule>) -> Self {
        let namespace = cluster.namespace().await;
        let account = namespace.service_account("beacon", rights).await;
        let (receiver, folder) = (Receiver::start().await, tempfile::tempdir().unwrap());
        Self { namespace, account, receiver, folder }
    }

    /// Starts a beacon, and waits until it has compared cluster and ledger.
    async fn start(&self) -> Beacon {
        let beacon = self.begin().await;
        beacon.readiness(200).await;
        beacon
    }

    async fn begin(&self) -> Beacon {
        self.begin_over(&self.account.kubeconfig(), "").await
    }

    /// With that kubeconfig, and more lines for the end of its file, which is about the endpoint.
    async fn begin_over(&self, kubeconfig: &Path, more: &str) -> Beacon {
        let entry = format!("  - {{apiVersion: v1, kind: ConfigMap, namespaces: [{}]}}\n", self.namespace.name());
        self.begin_with(kubeconfig, &entry, more).await
    }

    /// With more about its storage.
    async fn begin_stored(&self, storage: &str) -> Beacon {
        Beacon::started(self.process_stored(&self.account.kubeconfig(), "", "", storage)).await
    }

    async fn begin_with(&self, kubeconfig: &Path, entries: &str, more: &str) -> Beacon {
        Beacon::started(self.process(kubeconfig, entries, more)).await
    }

    fn process(&self, kubeconfig: &Path, entries: &str, more: &str) -> Process {
        self.process_stored(kubeconfig, entries, more, "warningThreshold: 100, criticalThreshold: 100")
    }

    fn process_stored(&self, kubeconfig: &Path, entries: &str, more: &str, storage: &str) -> Process {
        self.process_of(kubeconfig, &self.config(entries, more, storage))
    }

    fn config(&self, entries: &str, more: &str, storage: &str) -> String {
        let (namespace, url) = (self.namespace.name(), self.receiver.url());
        let usual = format!("  - {{apiVersion: v1, kind: ConfigMap, namespaces: [{namespace}]}}\n");
        let entries = if entries.is_empty() { &usual } else { entries };
        format!(
            "resources:\n{entries}annotation: {{key: {KEY}}}\npayload: {{annotations: [{KEY}]}}\nstorage: {{dbPath: {}, \
             {storage}}}\nendpoint:\n  url: {url}/events\n  retry: {{initialBackoff: 50ms, maxBackoff: 500ms}}\n{more}",
            self.ledger()
        )
    }

    fn process_of(&self, kubeconfig: &Path, config: &str) -> Process {
        let mut command = self.command(kubeconfig, config);
        command.args(["--health-bind-address=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0"]);
        command.env("ENDPOINT_AUTH_TOKEN", "example-token");
        Process::start(command)
    }

    fn command(&self, kubeconfig: &Path, config: &str) -> Command {
        let file = self.folder.path().join("beacon.yaml");
        std::fs::write(&file, config).unwrap();
        let mut command = command(&["beacon", "--config", &file.display().to_string()]);
        command.env("KUBECONFIG", kubeconfig);
        command
    }

    /// Asks whether cluster, ledger and deliveries are alike.
    async fn verify(&self) -> (bool, Value) {
        let file = self.folder.path().join("beacon.yaml").display().to_string();
        let mut command = command(&["beacon", "verify", "--config", &file, "--output", "json"]);
        let output = command.env("KUBECONFIG", self.account.kubeconfig()).output().await.unwrap();
        let found = serde_json::from_slice(&output.stdout);
        (output.status.success(), found.unwrap_or_else(|_| panic!("{}", text(&output.stderr))))
    }

    fn ledger(&self) -> String {
        self.folder.path().join("events.db").display().to_string()
    }

    fn objects(&self) -> Api<ConfigMap> {
        self.namespace.api()
    }

    /// One whose name is too long for a label.
    async fn create_with(&self, name: &str, value: &str) {
        let annotations = Some(BTreeMap::from([(KEY.to_owned(), value.to_owned())]));
        let metadata = ObjectMeta { name: Some(name.to_owned()), annotations, ..ObjectMeta::default() };
        let object = ConfigMap { metadata, ..ConfigMap::default() };
        self.objects().create(&PostParams::default(), &object).await.unwrap();
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

    /// Waits until what was seen so far is told: one more object is, and was seen behind it.
    async fn barrier(&self) {
        self.create("barrier", Some("x")).await;
        eventually(DEADLINE, "the barrier is told", async || {
            self.told().contains(&"created barrier=x".to_owned()).then_some(())
        })
        .await;
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
    metrics: String,
}

impl Beacon {
    async fn started(process: Process) -> Self {
        let line: Value = serde_json::from_str(&process.line(&["beacon started"]).await).unwrap();
        let address = |name: &str| format!("http://{}", line[name].as_str().unwrap());
        Self { health: address("health"), metrics: address("metrics"), process }
    }

    /// The series of the metrics that begin so.
    async fn series(&self, begin: &str) -> Vec<String> {
        let (_, served) = get(&format!("{}/metrics", self.metrics)).await;
        served.lines().filter(|line| line.starts_with(begin)).map(str::to_owned).collect()
    }

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
    eventually(DEADLINE, "five are told", async || (stage.told().len() >= 5).then_some(())).await;
    let told = stage.told();
    // Of one name in order, of two in any.
    let of = |name: &str| told.iter().filter(|it| it.contains(name)).map(String::as_str).collect::<Vec<_>>();
    assert_eq!(of(" orders="), ["created orders=true", "deleted orders=changed"]);
    assert_eq!(of(" plain="), ["created plain=later", "deleted plain=later"]);

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

/// S1, S10, S12, S15: nothing is told again, and what happened while nobody watched is told once, by a whole list: no
/// version to go on from is kept.
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
    let connection = open_beside(Path::new(&stage.ledger()), &[]).unwrap();
    let sql = "SELECT count(*) FROM managed_objects WHERE detection_source = 'reconciliation' AND cluster_state = ?1";
    let found = |state: &str| connection.query_row(sql, [state], |row| row.get::<_, u32>(0)).unwrap();
    assert_eq!((found("exists"), found("deleted")), (1, 2), "before it is ready");
    eventually(DEADLINE, "what was missed is told", async || (stage.told().len() >= 6).then_some(())).await;
    stage.barrier().await;
    let mut missed = stage.told().split_off(3);
    missed.retain(|told| !told.contains("barrier"));
    missed.sort();
    assert_eq!(missed, ["created comes=x", "deleted goes=x", "deleted loses=x"]);
    // What was under way when it was killed may have come twice, under the same id.
    let bodies: HashSet<_> = stage.receiver.requests().into_iter().map(|request| request.body).collect();
    assert_eq!(bodies.len(), 7);
    let said = beacon.process.out();
    assert!(said.contains("missed creation") && said.contains("missed deletion"), "{said}");
    beacon.stop().await;
}

/// S8, S9, S22: with the endpoint away, everything about one name arrives in its order.
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
    let listed = text(&run(&["outbox", "--store", &stage.ledger(), "list"], &[]).await.stdout);
    assert!(listed.contains("status 400"), "{listed}");
    assert_eq!(stage.verify().await.1["dead"], 1);
    run(&["outbox", "--store", &stage.ledger(), "discard", "--state", "dead", "--reason", "test"], &[]).await;
    let (alike, found) = stage.verify().await;
    assert!(!alike && found["discarded"] == 1, "nobody was told of it: {found}");
    let served =
        [("BROKER_TYPE", "http"), ("BROKER_HTTP_STORE", &*stage.ledger()), ("BROKER_HTTP_SUBSCRIBERS", "a=http://a")];
    let sentinel = stage.folder.path().join("sentinel.yaml");
    std::fs::write(&sentinel, "resource_type: clusters\nhyperfleet_api: {endpoint: http://127.0.0.1:1}\n").unwrap();
    let refused = run(&["sentinel", "--config", &sentinel.display().to_string()], &served).await;
    assert!(text(&refused.stderr).contains("it is another service's"), "{}", text(&refused.stderr));
}

/// S13, S16: a watch that breaks is begun anew, and what was missed meanwhile is told; nothing is concluded from
/// silence.
#[tokio::test]
async fn a_watch_that_is_cut_off_loses_nothing_and_invents_nothing() {
    let Some(stage) = Stage::set("beacon::cut").await else { return };
    let proxy = Proxy::start(stage.namespace.cluster().address()).await;
    stage.create("stays", Some("1")).await;
    stage.create("goes", Some("1")).await;
    let beacon = stage.begin_over(&stage.account.kubeconfig_over(proxy.address()), "").await;
    beacon.readiness(200).await;
    eventually(DEADLINE, "two are told", async || (stage.told().len() == 2).then_some(())).await;
    proxy.set(Mode::Refuse).await;
    proxy.cut();
    let unready = beacon.readiness(503).await;
    assert!(unready.contains("watch_configmap") && unready.contains("nothing is concluded from it"), "{unready}");
    stage.delete("goes").await;
    stage.create("goes", Some("2")).await;
    stage.create("passes", Some("1")).await;
    stage.delete("passes").await;
    stage.create("comes", Some("1")).await;
    assert_eq!(stage.told().len(), 2, "nobody was heard");
    proxy.set(Mode::Pass).await;
    beacon.readiness(200).await;
    // What comes and goes unseen is told only if the watch goes on from where it was.
    let told =
        async || stage.told().split_off(2).into_iter().filter(|told| !told.contains("passes")).collect::<Vec<_>>();
    eventually(DEADLINE, "what was missed is told", async || (told().await.len() >= 3).then_some(())).await;
    stage.barrier().await;
    let mut told = told().await;
    told.retain(|told| !told.contains("barrier"));
    let of_goes: Vec<_> = told.iter().filter(|told| told.contains("goes")).map(String::as_str).collect();
    assert_eq!(of_goes, ["deleted goes=1", "created goes=2"]);
    assert!(told.len() == 3 && told.contains(&"created comes=1".to_owned()), "{told:?}");
    beacon.stop().await;
}

/// S19: a ledger that differs from the cluster is mended by the comparison, each difference once.
#[tokio::test]
async fn a_comparison_finds_what_no_watch_told_of() {
    let Some(stage) = Stage::set("beacon::drift").await else { return };
    for name in ["a", "b"] {
        stage.create(name, Some("1")).await;
    }
    let beacon = stage.begin_over(&stage.account.kubeconfig(), "reconciliation: {interval: 300ms}\n").await;
    beacon.readiness(200).await;
    eventually(DEADLINE, "two are told", async || (stage.told().len() == 2).then_some(())).await;
    let alike = async || stage.verify().await.0.then_some(());
    eventually(DEADLINE, "what was told is noted", alike).await;
    // Somebody edits the ledger: one is forgotten, and one invented.
    let edit = "
        DELETE FROM episodes WHERE name = 'a';
        INSERT INTO episodes (id, scope, uid, episode, namespace, name, annotation_value, state, detection_source,
            created_at, labels, annotations, resource_version, created_sent_at)
        SELECT 'ghost', scope, 'ghost', 1, namespace, 'ghost', 'x', 'exists', 'watch', 0, '{}', '{}', '', 0 FROM episodes;";
    let connection = open_beside(Path::new(&stage.ledger()), &[]).unwrap();
    connection.execute_batch(edit).unwrap();
    eventually(DEADLINE, "the differences are told", async || (stage.told().len() >= 4).then_some(())).await;
    eventually(DEADLINE, "cluster and ledger are alike again", alike).await;
    stage.barrier().await;
    let mut told = stage.told().split_off(2);
    told.retain(|told| !told.contains("barrier"));
    told.sort();
    assert_eq!(told, ["created a=1", "deleted ghost=x"]);
    let drift = beacon.series("event_reconciliation_drift_detected_total").await;
    for (kind, count) in [("missed_creation", 1), ("missed_deletion", 1)] {
        let of =
            |line: &&String| line.contains(&format!("drift_type=\"{kind}\"")) && line.ends_with(&format!(" {count}"));
        assert!(drift.iter().any(|line| of(&line)), "{kind}: {drift:?}");
    }
    beacon.stop().await;
}

#[tokio::test]
async fn verify_says_what_differs_also_while_the_service_runs() {
    let Some(stage) = Stage::set("beacon::verify").await else { return };
    stage.create("before", Some("1")).await;
    stage.receiver.otherwise(Answer::status(503));
    let beacon = stage.start().await;
    let (alike, found) = stage.verify().await;
    assert_eq!((alike, &found["objects"], &found["pending"]), (false, &json!(1), &json!(1)), "{found}");
    stage.receiver.otherwise(Answer::status(200));
    eventually(DEADLINE, "all is alike", async || stage.verify().await.0.then_some(())).await;
    beacon.stop().await;
    stage.create("later", Some("1")).await;
    stage.delete("before").await;
    let (alike, found) = stage.verify().await;
    assert!(!alike, "{found}");
    assert_eq!((&found["unannounced"][0]["name"], &found["vanished"][0]["name"]), (&json!("later"), &json!("before")));
}
