//! The sentinel as an operator: a process under exactly its Role, on a real API server, with a real broker.

mod bad;
mod leader;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::rbac::v1::{PolicyRule, Role};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    Api, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams, ValidationDirective,
};
use kube::{Client, CustomResourceExt, ResourceExt, discovery};
use serde_json::{Value, json};
use watchfire_sentinel::object::SentinelConfig;
use watchfire_simulator::{Dialect, NewResource, Simulator};
use watchfire_testkit::kubernetes::{Account, Cluster, Namespace};
use watchfire_testkit::{Consumer, Rabbit, amqp_url, cluster, eventually, unique};

use crate::support::{Api as Fleet, DEADLINE, Process, command, get, read, run, text};

/// Long enough for some polls, where nothing may come.
const QUIET: Duration = Duration::from_secs(2);

/// Shorter than from one event of a resource to the next: what came before this is what was there.
const LULL: Duration = Duration::from_millis(100);

/// The rights that the documented deployment gives.
fn role() -> Vec<PolicyRule> {
    let manifest = read("deploy/kubernetes/operator.yaml");
    let documents = manifest.split("\n---\n").map(|text| serde_saphyr::from_str::<Value>(text).expect("YAML"));
    let role = documents.into_iter().find(|document| document["kind"] == "Role").expect("a Role");
    serde_json::from_value::<Role>(role).expect("a Role").rules.expect("rules")
}

/// Makes SentinelConfig known to a cluster, as `watchfire crds | kubectl apply -f -` does.
async fn install(client: Client) {
    let printed = text(&run(&["crds"], &[]).await.stdout);
    let definition: CustomResourceDefinition = serde_saphyr::from_str(&printed).expect("a definition");
    let all: Api<CustomResourceDefinition> = Api::all(client);
    let apply = PatchParams::apply("test").force();
    all.patch(SentinelConfig::crd_name(), &apply, &Patch::Apply(&definition)).await.expect("install the definition");
    eventually(DEADLINE, "the definition is in force", async || {
        let conditions = all.get(SentinelConfig::crd_name()).await.ok()?.status?.conditions?;
        conditions.iter().find(|it| it.type_ == "Established" && it.status == "True").map(drop)
    })
    .await;
}

/// A namespace, a broker and a fleet, and processes that serve objects in it.
struct Stage {
    namespace: Namespace,
    account: Account,
    fleet: Fleet,
    amqp: String,
}

impl Stage {
    async fn set(test: &str) -> Option<Self> {
        let (cluster, amqp) = (cluster(test).await?, amqp_url(test)?);
        install(cluster.client()).await;
        Some(Self::on(&cluster, amqp, role()).await)
    }

    async fn on(cluster: &Cluster, amqp: String, rights: Vec<PolicyRule>) -> Self {
        let namespace = cluster.namespace().await;
        let account = namespace.service_account("hyperfleet-sentinel", rights).await;
        let fleet = Simulator::new(Dialect::Operator);
        for (index, region) in ["us-east", "us-west", "us-east", "us-west"].into_iter().enumerate() {
            fleet
                .create("clusters", NewResource::named(format!("c-{index}")).label("region", region))
                .expect("a cluster");
        }
        Self { namespace, account, fleet: Fleet::serve(fleet).await, amqp }
    }

    /// A spec that publishes what is due once a second, to an exchange.
    fn spec(&self, exchange: &str, region: &str) -> Value {
        json!({
            "resourceType": "clusters",
            "shardSelector": {"matchLabels": {"region": region}},
            "backoffNotReady": "1s",
            "pollInterval": "200ms",
            "hyperfleetAPI": {"url": self.fleet.url},
            "broker": {"type": "rabbitmq", "topic": exchange, "url": self.amqp},
        })
    }

    fn objects(&self) -> Api<SentinelConfig> {
        self.namespace.api()
    }

    async fn create(&self, name: &str, spec: Value) {
        self.try_create(name, spec).await.unwrap();
    }

    async fn try_create(&self, name: &str, spec: Value) -> kube::Result<SentinelConfig> {
        let object = json!({"apiVersion": "hyperfleet.redhat.com/v1alpha1", "kind": "SentinelConfig",
            "metadata": {"name": name}, "spec": spec});
        // As a user's file: what the type would add or refuse is the API server's affair.
        let api = Api::<DynamicObject>::namespaced_with(
            self.namespace.cluster().client(),
            self.namespace.name(),
            &kube::api::ApiResource::erase::<SentinelConfig>(&()),
        );
        let made = api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await?;
        Ok(made.try_parse().expect("a SentinelConfig"))
    }

    async fn edit(&self, name: &str, spec: Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.objects().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Waits until the Ready condition of the newest spec has this reason, and returns its message.
    async fn reason(&self, name: &str, reason: &str) -> String {
        let said = async || {
            let object = self.objects().get(name).await.ok()?;
            let status = object.status?;
            let ready = status.conditions.iter().find(|it| it.type_ == "Ready")?;
            let is_of_this = status.observed_generation == object.metadata.generation;
            (is_of_this && ready.reason == reason).then(|| ready.message.clone())
        };
        eventually(DEADLINE, &format!("{name} is {reason}"), said).await
    }

    /// Waits until the newest spec is said to fail for this reason; it must not be said to be ready meanwhile.
    async fn never_ready_until(&self, name: &str, reason: &str) {
        let said = async || {
            let object = self.objects().get(name).await.ok()?;
            let status = object.status?;
            let ready = status.conditions.iter().find(|it| it.type_ == "Ready")?;
            let is_of_this = status.observed_generation == object.metadata.generation;
            assert!(!is_of_this || ready.status == "False", "ready by what was before: {status:?}");
            (is_of_this && ready.reason == reason).then_some(())
        };
        eventually(DEADLINE, &format!("{name} is {reason}"), said).await;
    }

    async fn delete(&self, name: &str) {
        self.objects().delete(name, &DeleteParams::default()).await.unwrap();
    }

    async fn start(&self, args: &[&str]) -> Operator {
        Operator::start(self, args, &self.account.kubeconfig()).await
    }

    async fn listen(&self, exchange: &str) -> Consumer {
        Rabbit::listen(&self.amqp, exchange, "fanout", "").await
    }
}

/// A process that serves objects.
struct Operator {
    process: Process,
    health: String,
    metrics: String,
}

impl Operator {
    async fn start(stage: &Stage, args: &[&str], kubeconfig: &std::path::Path) -> Self {
        let mut command = command(&["sentinel", "--namespace", stage.namespace.name()]);
        command.args(args).env("KUBECONFIG", kubeconfig);
        command.args(["--metrics-bind-address", "127.0.0.1:0", "--health-probe-bind-address", "127.0.0.1:0"]);
        let process = Process::start(command);
        let line = process.line(&["serving SentinelConfig objects"]).await;
        let line: Value = serde_json::from_str(&line).unwrap();
        let address = |name: &str| format!("http://{}", line[name].as_str().unwrap());
        Self { health: address("health"), metrics: address("metrics"), process }
    }

    /// Waits until /readyz has this status and says this.
    async fn readiness(&self, status: u16, part: &str) {
        let url = format!("{}/readyz", self.health);
        let answer = async || {
            let (found, body) = get(&url).await;
            (found == status && body.contains(part)).then_some(())
        };
        eventually(DEADLINE, &format!("{url} answers {status} with {part:?}"), answer).await;
    }

    /// The sum of the samples whose line has all of these parts.
    async fn metric(&self, parts: &[&str]) -> f64 {
        let (_, text) = get(&format!("{}/metrics", self.metrics)).await;
        let lines = text.lines().filter(|line| parts.iter().all(|part| line.contains(part)));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    async fn published(&self) -> f64 {
        self.metric(&["hyperfleet_sentinel_events_published_total{"]).await
    }

    async fn stop(mut self) -> String {
        self.process.signal(rustix::process::Signal::TERM);
        let status = self.process.ended().await;
        let said = format!("{}{}", self.process.out(), self.process.err());
        assert_eq!(status.code(), Some(0), "{said}");
        said
    }
}

fn event(body: &[u8]) -> Value {
    serde_json::from_slice(body).expect("JSON")
}

#[tokio::test]
async fn an_object_is_created_edited_broken_repaired_deleted_and_made_again_while_events_flow() {
    let test = "an_object_is_created_edited_broken_repaired_deleted_and_made_again_while_events_flow";
    let Some(stage) = Stage::set(test).await else { return };
    let (first, second) = (unique("exchange"), unique("exchange"));
    let (mut at_first, mut at_second) = (stage.listen(&first).await, stage.listen(&second).await);
    let operator = stage.start(&["--config", "east"]).await;
    operator.readiness(503, "there is no SentinelConfig east").await;

    stage.create("east", stage.spec(&first, "us-east")).await;
    let came = at_first.take(4).await;
    for message in &came {
        let event = event(&message.body);
        assert_eq!(event["type"], "com.redhat.hyperfleet.cluster.reconcile");
        let data = event["data"].as_object().unwrap();
        assert_eq!(data.keys().collect::<Vec<_>>(), ["resourceType", "resourceId", "reason"]);
        assert_eq!((&data["resourceType"], &data["reason"]), (&json!("clusters"), &json!("backoff-expired")));
        let resource = stage.fleet.fleet.get("clusters", data["resourceId"].as_str().unwrap()).unwrap();
        assert_eq!(resource.labels["region"], "us-east");
    }
    stage.reason("east", "Polling").await;
    operator.readiness(200, "").await;
    let status = stage.objects().get("east").await.unwrap().status.unwrap();
    assert_eq!(status.resources, Some(2));
    assert!(status.last_poll_time.is_some());
    let pending = ["hyperfleet_sentinel_pending_resources{", "shard=\"region=us-east\"", "resource_type=\"clusters\""];
    assert!((operator.metric(&pending).await - 2.0).abs() < 0.1, "all that are in the shard");

    // Edited: to another exchange and another shard.
    stage
        .edit("east", json!({"broker": {"topic": second}, "shardSelector": {"matchLabels": {"region": "us-west"}}}))
        .await;
    let moved = at_second.take(2).await;
    let ids: Vec<_> = moved.iter().map(|message| event(&message.body)["data"]["resourceId"].clone()).collect();
    assert_ne!(ids[0], ids[1]);
    at_first.drain(QUIET).await;
    assert!(at_first.drain(QUIET).await.is_empty(), "nothing goes where it went before");
    assert!(operator.metric(&["hyperfleet_sentinel_config_reloads_total{"]).await >= 2.0);
    assert!(operator.metric(&pending).await.abs() < 0.1, "nothing is said of a shard that nobody watches");

    // Broken: events flow on as the last one that held says.
    let failed = ["hyperfleet_sentinel_api_errors_total{", "operation=\"config_load\"", "shard=\"region=us-west\""];
    assert!(operator.metric(&failed).await.abs() < 0.1);
    stage.edit("east", json!({"shardSelector": {"matchExpressions": [{"key": "region", "operator": "Within"}]}})).await;
    let why = stage.reason("east", "InvalidConfig").await;
    assert!(why.contains("spec.shardSelector.matchExpressions[0].operator") && why.contains("stays in force"), "{why}");
    at_second.drain(LULL).await;
    at_second.take(2).await;
    operator.readiness(200, "").await;
    assert!(operator.metric(&failed).await >= 1.0);
    let contradiction = json!({"matchExpressions": [{"key": "region", "operator": "DoesNotExist"}]});
    stage.edit("east", json!({"shardSelector": contradiction})).await;
    let why = stage.reason("east", "InvalidConfig").await;
    assert!(why.contains("nothing can match"), "{why}");

    // Repaired, to an API that is not there: what the sentinel before came to says nothing of this one.
    stage
        .edit(
            "east",
            json!({"shardSelector": {"matchExpressions": null}, "hyperfleetAPI": {"url": "http://127.0.0.1:9"}}),
        )
        .await;
    stage.never_ready_until("east", "ApiUnavailable").await;
    stage.edit("east", json!({"hyperfleetAPI": {"url": stage.fleet.url}})).await;
    stage.reason("east", "Polling").await;
    assert_eq!(stage.objects().get("east").await.unwrap().status.unwrap().resources, Some(2));
    at_second.take(2).await;

    stage.delete("east").await;
    operator.readiness(503, "there is no SentinelConfig east").await;
    at_second.drain(QUIET).await;
    assert!(at_second.drain(QUIET).await.is_empty(), "nothing is published any more");
    stage.create("east", stage.spec(&second, "us-east")).await;
    at_second.take(2).await;
    stage.reason("east", "Polling").await;
    operator.stop().await;
}

#[tokio::test]
async fn objects_of_one_api_share_its_polls() {
    let Some(stage) = Stage::set("objects_of_one_api_share_its_polls").await else { return };
    let exchange = unique("exchange");
    let mut inbox = stage.listen(&exchange).await;
    let regions = ["us-east", "us-west"];
    for region in regions {
        stage.create(region, stage.spec(&exchange, region)).await;
    }
    let operator = stage.start(&["--all-configs"]).await;
    inbox.take(8).await;
    for region in regions {
        stage.reason(region, "Polling").await;
    }
    let polls = async || operator.metric(&["hyperfleet_sentinel_poll_duration_seconds_count{"]).await;
    let before = polls().await;
    stage.fleet.fleet.faults().forget_requests();
    eventually(DEADLINE, "each has polled ten times", async || (polls().await >= before + 20.0).then_some(())).await;
    let lists = stage.fleet.fleet.faults().lists();
    let walks = lists.iter().filter(|list| list.query("search").is_none_or(|search| !search.starts_with("id > ")));
    let walks = walks.count();
    // Two polls of two sentinels are one walk; some more or less between two looks.
    assert!((9..15).contains(&walks), "{lists:?}");
    operator.stop().await;
}

#[tokio::test]
async fn what_is_deployed_is_taken_by_the_api_server() {
    let Some(cluster) = cluster("what_is_deployed_is_taken_by_the_api_server").await else { return };
    let client = cluster.client();
    install(client.clone()).await;
    for file in ["deploy/kubernetes/operator.yaml", "deploy/kubernetes/sentinel.yaml"] {
        for document in read(file).split("\n---\n").map(|text| serde_saphyr::from_str::<DynamicObject>(text).unwrap()) {
            let kind = GroupVersionKind::try_from(document.types.as_ref().unwrap()).unwrap();
            let (resource, capabilities) = discovery::pinned_kind(&client, &kind).await.unwrap();
            let name = document.name_any();
            let objects = match (&capabilities.scope, document.namespace()) {
                (discovery::Scope::Namespaced, Some(namespace)) => {
                    Api::namespaced_with(client.clone(), &namespace, &resource)
                }
                (discovery::Scope::Namespaced, None) => Api::namespaced_with(client.clone(), "default", &resource),
                (discovery::Scope::Cluster, _) => Api::<DynamicObject>::all_with(client.clone(), &resource),
            };
            // The others need the namespace.
            let dry_run = kind.kind != "Namespace";
            let apply = PatchParams {
                dry_run,
                field_validation: Some(ValidationDirective::Strict),
                ..PatchParams::apply("test").force()
            };
            let taken = objects.patch(&name, &apply, &Patch::Apply(&document)).await;
            taken.unwrap_or_else(|error| panic!("{file}: {} {name}: {error}", kind.kind));
        }
    }
}

#[tokio::test]
async fn two_operators_share_an_exchange_and_each_publishes_its_own_shard() {
    let Some(stage) = Stage::set("two_operators_share_an_exchange_and_each_publishes_its_own_shard").await else {
        return;
    };
    let exchange = unique("exchange");
    let mut inbox = stage.listen(&exchange).await;
    let mut operators = Vec::new();
    for region in ["us-east", "us-west"] {
        stage.create(region, stage.spec(&exchange, region)).await;
        operators.push(stage.start(&["--config", region]).await);
    }
    let came = inbox.take(12).await;
    let mut times: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for message in &came {
        let event = event(&message.body);
        times.entry(event["data"]["resourceId"].as_str().unwrap().to_owned()).or_default().push(event["id"].clone());
    }
    assert_eq!(times.len(), 4, "every resource, once in each second");
    for ids in times.values() {
        let once: BTreeSet<_> = ids.iter().map(ToString::to_string).collect();
        assert_eq!(once.len(), ids.len(), "no event twice");
    }
    for operator in operators {
        assert!(operator.published().await >= 2.0);
        operator.stop().await;
    }
}

#[tokio::test]
async fn what_is_wrong_with_one_object_is_nothing_to_the_others_of_its_namespace() {
    let test = "what_is_wrong_with_one_object_is_nothing_to_the_others_of_its_namespace";
    let Some(stage) = Stage::set(test).await else { return };
    let exchange = unique("exchange");
    let mut inbox = stage.listen(&exchange).await;
    let operator = stage.start(&["--all-configs"]).await;
    operator.readiness(200, "").await;
    let mut broken = stage.spec(&exchange, "us-west");
    broken["hyperfleetAPI"]["url"] = json!("ftp://nowhere");
    stage.create("west", broken).await;
    stage.create("east", stage.spec(&exchange, "us-east")).await;
    inbox.take(4).await;
    let why = stage.reason("west", "InvalidConfig").await;
    assert!(why.contains("spec.hyperfleetAPI.url") && why.contains("http or https"), "{why}");
    operator.readiness(503, "west: ").await;
    // Who asks about a resource is answered by the sentinel that watches it.
    let id = event(&inbox.take(1).await[0].body)["data"]["resourceId"].as_str().unwrap().to_owned();
    let (status, answer) = get(&format!("{}/sentinel/explain/{id}", operator.health)).await;
    assert!(status == 200 && answer.contains("backoff"), "{status}: {answer}");
    stage.edit("west", json!({"hyperfleetAPI": {"url": stage.fleet.url}})).await;
    stage.reason("west", "Polling").await;
    operator.readiness(200, "").await;
    let (_, page) = get(&operator.health).await;
    assert!(page.contains("east.sentinel") && page.contains("west.sentinel"), "{page}");
    operator.stop().await;
}
