//! Kubernetes, the real one: the control plane that all tests share, or one of a test's own.
//!
//! A [`Cluster`] is what tests talk to: namespaces of their own, and users with exactly the rights that they are given.
//! A [`ControlPlane`] is the processes under it, to stop, kill and start again.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::{self as core, Node as KubeNode};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use crate::node::{Node, START, testbed};
use crate::{eventually, unique};

/// For one step of a test on a busy machine.
const STEP: Duration = Duration::from_secs(30);

/// A process of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// Where the API server keeps everything.
    Etcd,
    /// `kube-apiserver`.
    ApiServer,
    /// `kube-controller-manager`.
    ControllerManager,
    /// `kube-scheduler`.
    Scheduler,
    /// What plays nodes and pods.
    Kwok,
}

impl Component {
    const ALL: [Self; 5] = [Self::Etcd, Self::ApiServer, Self::ControllerManager, Self::Scheduler, Self::Kwok];

    fn as_str(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kwok => "kwok",
        }
    }
}

/// A control plane that belongs to one test; its processes end on drop.
pub struct ControlPlane {
    nodes: BTreeMap<Component, Node>,
    cluster: Cluster,
    // Last: the processes keep their files in it.
    dir: tempfile::TempDir,
}

impl ControlPlane {
    /// Starts one, and waits until Pods can be made. The programs are built first, if they were not yet.
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().expect("make a directory for the control plane");
        script(dir.path(), &["prepare"]).await;
        let nodes = Component::ALL.map(|component| (component, spawn(dir.path(), component)));
        script(dir.path(), &["wait", &START.as_secs().to_string()]).await;
        let cluster = Cluster::of(&dir.path().join("kubeconfig")).await;
        Self { nodes: nodes.into(), cluster, dir }
    }

    /// The cluster, as its administrator.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Where the API server listens; for a proxy in front of it.
    pub fn api_server(&self) -> SocketAddr {
        let text = std::fs::read(self.dir.path().join("ports.json")).expect("read the ports");
        let ports: Value = serde_json::from_slice(&text).expect("ports are JSON");
        let port = ports["kubeApiserver"].as_u64().and_then(|port| u16::try_from(port).ok());
        SocketAddr::from((Ipv4Addr::LOCALHOST, port.expect("the API server has a port")))
    }

    /// `kill -9`.
    pub fn kill(&mut self, component: Component) {
        drop(self.nodes.remove(&component));
    }

    /// An orderly stop; of the API server, which waits for what it answers, it takes up to a minute.
    pub async fn stop(&mut self, component: Component) {
        if let Some(mut node) = self.nodes.remove(&component) {
            node.terminate();
            eventually(START, component.as_str(), async || node.exited().then_some(())).await;
        }
    }

    /// Starts a component again where it listened before, and waits until the API server answers.
    pub async fn restart(&mut self, component: Component) {
        self.kill(component);
        self.nodes.insert(component, spawn(self.dir.path(), component));
        script(self.dir.path(), &["wait", &START.as_secs().to_string()]).await;
    }

    /// Forgets everything that was and is no more: whoever goes on with a watch from before gets a 410.
    pub async fn forget_history(&mut self) {
        self.kill(Component::ApiServer);
        script(self.dir.path(), &["compact"]).await;
        self.restart(Component::ApiServer).await;
    }

    /// What a user asked the API server for, in the order in which it began to answer.
    pub fn asked(&self, user: &str) -> Vec<Asked> {
        let text = std::fs::read_to_string(self.dir.path().join("audit.log")).unwrap_or_default();
        // The last line may be half written.
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut asked: Vec<(Value, Asked)> = Vec::new();
        for event in events.filter(|event| event["user"]["username"] == user) {
            // A watch is told twice: when it begins and when it ends.
            let id = event["auditID"].clone();
            match asked.iter_mut().find(|(known, _)| *known == id) {
                Some((_, known)) => *known = Asked::of(&event),
                None => asked.push((id, Asked::of(&event))),
            }
        }
        asked.into_iter().map(|(_, asked)| asked).collect()
    }
}

/// One request, as the API server's audit has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asked {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`.
    pub verb: String,
    /// `leases`, or `sentinelconfigs/status`.
    pub resource: String,
    /// Of which object, where it is about one.
    pub name: String,
    /// The answer's status; none while it has not begun.
    pub code: u16,
}

impl Asked {
    fn of(event: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let about = &event["objectRef"];
        let subresource = about["subresource"].as_str().map(|name| format!("/{name}")).unwrap_or_default();
        Self {
            verb: text(&event["verb"]),
            resource: format!("{}{subresource}", text(&about["resource"])),
            name: text(&about["name"]),
            code: event["responseStatus"]["code"]
                .as_u64()
                .and_then(|code| u16::try_from(code).ok())
                .unwrap_or_default(),
        }
    }
}

fn spawn(dir: &Path, component: Component) -> Node {
    let log = dir.join(format!("{}.log", component.as_str()));
    Node::spawn(&testbed("kubernetes"), &[&dir.to_string_lossy(), component.as_str()], &log)
}

async fn script(dir: &Path, args: &[&str]) {
    let mut command = Command::new(testbed("kubernetes"));
    command.arg(dir).args(args).kill_on_drop(true);
    // The first time, everything is built: that has no deadline of ours.
    let output = command.output().await.expect("run testbed/kubernetes");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "testbed/kubernetes {args:?}: {said}{}", logs(dir));
}

/// The end of what each component said.
fn logs(dir: &Path) -> String {
    let end = |component: Component| {
        let text = std::fs::read_to_string(dir.join(format!("{}.log", component.as_str()))).unwrap_or_default();
        let from = text.len().saturating_sub(1_000);
        let from = (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        format!("\n== {}\n{}", component.as_str(), &text[from..])
    };
    Component::ALL.map(end).concat()
}

/// A cluster, as its administrator.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    kubeconfig: Kubeconfig,
}

impl Cluster {
    /// The cluster of a kubeconfig.
    pub async fn of(path: &Path) -> Self {
        crate::install_crypto();
        let kubeconfig = Kubeconfig::read_from(path).expect("read the kubeconfig");
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig.clone(), &options).await.expect("use the kubeconfig");
        Self { client: Client::try_from(config).expect("make a client of the cluster"), kubeconfig }
    }

    /// Another client, for another runtime: a client lives in the one that it was made in.
    pub(crate) async fn connect(&self) -> Option<Client> {
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(self.kubeconfig.clone(), &options).await.ok()?;
        Client::try_from(config).ok()
    }

    /// A client with every right.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Writes a kubeconfig of its administrator.
    pub fn write_kubeconfig(&self, path: &Path) {
        let text = serde_json::to_string(&self.kubeconfig).expect("write the kubeconfig");
        std::fs::write(path, text).expect("write the kubeconfig");
    }

    /// Where the API server listens; for a proxy in front of it.
    pub fn address(&self) -> SocketAddr {
        let cluster = self.kubeconfig.clusters.iter().find_map(|cluster| cluster.cluster.as_ref());
        let server = cluster.and_then(|cluster| cluster.server.as_deref()?.strip_prefix("https://"));
        server.and_then(|server| server.parse().ok()).expect("the API server has an address on this machine")
    }

    /// A namespace of this test's own, deleted on drop.
    pub async fn namespace(&self) -> Namespace {
        let name = unique("test");
        let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
        let namespace = core::Namespace { metadata, ..core::Namespace::default() };
        let all = Api::all(self.client());
        all.create(&PostParams::default(), &namespace).await.expect("make a namespace");
        // Nobody may make Pods in it before.
        let accounts: Api<core::ServiceAccount> = Api::namespaced(self.client(), &name);
        eventually(STEP, "the namespace has its ServiceAccount", async || accounts.get_opt("default").await.ok()?)
            .await;
        Namespace { name, cluster: self.clone() }
    }

    /// A node whose pods KWOK plays (testbed/controlplane/stages.yaml says how), deleted on drop; waits until it is
    /// ready.
    pub async fn play_node(&self) -> PlayedNode {
        let nodes: Api<KubeNode> = Api::all(self.client());
        let name = unique("node");
        let metadata = json!({"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"}});
        let node = serde_json::from_value(json!({"metadata": metadata})).expect("a node");
        nodes.create(&PostParams::default(), &node).await.expect("make a node");
        eventually(STEP, "the node is ready", async || {
            let conditions = nodes.get(&name).await.ok()?.status?.conditions?;
            conditions.iter().find(|condition| condition.type_ == "Ready" && condition.status == "True").map(drop)
        })
        .await;
        PlayedNode { name, cluster: self.clone() }
    }

    /// Deletes an object from the drop of whatever stands for it: on a thread, since the test's own runtime may be at
    /// its end. What cannot be deleted is not worth a failure.
    fn delete<K>(&self, name: &str)
    where
        K: kube::Resource<Scope = k8s_openapi::ClusterResourceScope, DynamicType = ()>,
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let (cluster, name) = (self.clone(), name.to_owned());
        let deleted = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
            runtime.block_on(async {
                let all: Api<K> = Api::all(cluster.connect().await?);
                timeout(STEP, all.delete(&name, &DeleteParams::background())).await.ok()?.ok().map(drop)
            })
        });
        drop(deleted.join());
    }

    /// Waits until the API server has heard of somebody's rights: it reads them behind the request that gives them.
    async fn until_allowed(&self, user: &str, asks: ResourceAttributes) {
        let spec = SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            resource_attributes: Some(asks),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client());
        eventually(STEP, "the rights are given", async || {
            let answer = reviews.create(&PostParams::default(), &review).await.ok()?;
            answer.status?.allowed.then_some(())
        })
        .await;
    }

    /// The kubeconfig of somebody with a token, who reaches the API server there.
    fn with_token(&self, token: &str, server: Option<SocketAddr>) -> Kubeconfig {
        let mut kubeconfig = self.kubeconfig.clone();
        for user in &mut kubeconfig.auth_infos {
            user.auth_info =
                Some(kube::config::AuthInfo { token: Some(token.to_owned().into()), ..Default::default() });
        }
        if let Some(server) = server {
            for cluster in kubeconfig.clusters.iter_mut().filter_map(|cluster| cluster.cluster.as_mut()) {
                cluster.server = Some(format!("https://{server}"));
            }
        }
        kubeconfig
    }
}

/// A namespace that belongs to one test.
pub struct Namespace {
    name: String,
    cluster: Cluster,
}

impl Namespace {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The cluster that it is in.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Objects of a kind in it, as the administrator.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.cluster.client(), &self.name)
    }

    /// A ServiceAccount with exactly these rights in this namespace.
    pub async fn service_account(&self, name: &str, rules: Vec<PolicyRule>) -> Account {
        let metadata = || ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let post = PostParams::default();
        let account = core::ServiceAccount { metadata: metadata(), ..core::ServiceAccount::default() };
        let accounts: Api<core::ServiceAccount> = self.api();
        accounts.create(&post, &account).await.expect("make a ServiceAccount");
        let asks = rules.last().and_then(attributes);
        let role = Role { metadata: metadata(), rules: Some(rules) };
        self.api().create(&post, &role).await.expect("make a Role");
        let binding = RoleBinding {
            metadata: metadata(),
            role_ref: RoleRef { api_group: "rbac.authorization.k8s.io".into(), kind: "Role".into(), name: name.into() },
            subjects: Some(vec![Subject { kind: "ServiceAccount".into(), name: name.into(), ..Subject::default() }]),
        };
        self.api().create(&post, &binding).await.expect("bind the Role");
        let user = format!("system:serviceaccount:{}:{name}", self.name);
        if let Some(asks) = asks {
            let asks = ResourceAttributes { namespace: Some(self.name.clone()), ..asks };
            self.cluster.until_allowed(&user, asks).await;
        }
        let request = TokenRequest { spec: TokenRequestSpec::default(), ..TokenRequest::default() };
        let token = accounts.create_token_request(name, &post, &request).await.expect("request a token");
        let token = token.status.expect("a token").token;
        let folder = tempfile::tempdir().expect("make a directory for kubeconfigs");
        Account { user, token, cluster: self.cluster.clone(), folder }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.cluster.delete::<core::Namespace>(&self.name);
    }
}

/// A node that is played.
pub struct PlayedNode {
    name: String,
    cluster: Cluster,
}

impl PlayedNode {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for PlayedNode {
    fn drop(&mut self) {
        self.cluster.delete::<KubeNode>(&self.name);
    }
}

/// A ServiceAccount, as a program that acts in its name uses it.
pub struct Account {
    /// Its user's name, as the API server's audit has it.
    pub user: String,
    token: String,
    cluster: Cluster,
    folder: tempfile::TempDir,
}

impl Account {
    /// A kubeconfig for a program, which reaches the API server directly.
    pub fn kubeconfig(&self) -> PathBuf {
        self.write("direct", None)
    }

    /// A kubeconfig for a program, which reaches the API server over a proxy.
    pub fn kubeconfig_over(&self, proxy: SocketAddr) -> PathBuf {
        self.write("proxied", Some(proxy))
    }

    fn write(&self, name: &str, server: Option<SocketAddr>) -> PathBuf {
        let path = self.folder.path().join(name);
        // JSON is YAML.
        let text = serde_json::to_vec(&self.cluster.with_token(&self.token, server)).expect("write a kubeconfig");
        std::fs::write(&path, text).expect("write a kubeconfig");
        path
    }

    /// A client with exactly the rights of the account.
    pub async fn client(&self) -> Client {
        Cluster::of(&self.kubeconfig()).await.client()
    }
}

/// What the last right of a rule is about.
fn attributes(rule: &PolicyRule) -> Option<ResourceAttributes> {
    let last = |texts: &Option<Vec<String>>| texts.as_ref().and_then(|texts| texts.last().cloned());
    let resource = last(&rule.resources)?;
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, subresource)) => (resource.to_owned(), Some(subresource.to_owned())),
        None => (resource, None),
    };
    Some(ResourceAttributes {
        group: last(&rule.api_groups),
        resource: Some(resource),
        subresource,
        name: last(&rule.resource_names),
        verb: rule.verbs.last().cloned(),
        ..ResourceAttributes::default()
    })
}

/// A rule that allows these verbs on these resources.
pub fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}
