//! A node that really runs its pods: each container is a process of this machine.
//!
//! A container has file systems, processes and a host name of its own. What an image would bring are this machine's
//! files, and whatever it writes to them is gone with it; so its `command` has to name a program that is here. It
//! shares the network: pods have the address 127.0.0.1, and the API server is where it really listens.
//!
//! Images, resources, probes, hooks and security contexts are passed over: everything runs as the user of the tests. A
//! pod with init containers, or with volumes of other kinds than [`volumes`] knows, fails with the reason
//! `Unsupported`.

mod container;
mod environment;
mod logs;
mod pod;
mod process;
mod sources;
mod volumes;

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::watcher::{self, watcher};
use kube::{Client, Resource};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::kubernetes::Cluster;
use crate::node::START;
use crate::{eventually, unique};
use pod::Pod;
pub(crate) use process::possible;

/// Between two attempts at what does not work yet; a real kubelet waits some seconds.
const RETRY: Duration = Duration::from_millis(200);
/// Well within the time after which a node counts as lost.
const LEASE_EVERY: Duration = Duration::from_secs(10);
/// For telling the API server about the end of everything. It may be gone.
const FAREWELL: Duration = Duration::from_secs(10);

/// A node whose pods run as processes. On drop they are killed and deleted, and the node is.
///
/// It is tainted: pods come by `nodeName`, or tolerate [`ProcessNode::TAINT`] and select the label
/// `kubernetes.io/hostname`.
pub struct ProcessNode {
    name: String,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl ProcessNode {
    /// Keeps away what other tests want to have scheduled; its effect is `NoSchedule`.
    pub const TAINT: &str = "watchfire.dev/process-node";

    /// Makes a node and waits until it is ready; what it needs of this machine has to be there, see
    /// [`process_node`](crate::process_node).
    pub(crate) async fn start(cluster: &Cluster) -> Self {
        let (name, stop) = (unique("process-node"), CancellationToken::new());
        // A thread of its own: it is there while the test blocks or is dropped, and its processes end with it.
        let of_thread = (cluster.clone(), name.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let (cluster, name, stop) = of_thread;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("make a runtime for the kubelet").block_on(run(cluster, name, stop));
        });
        let node = Self { name, stop, thread: Some(thread) };
        let nodes: Api<core::Node> = Api::all(cluster.client());
        eventually(START, "the node is there", async || nodes.get_opt(&node.name).await.ok()?).await;
        node
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for ProcessNode {
    fn drop(&mut self) {
        self.stop.cancel();
        // An error is a panic of the kubelet, which has told about itself.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// What runs here, by its uid.
#[derive(Default)]
struct Pods(Mutex<HashMap<String, Arc<Pod>>>);

impl Pods {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Pod>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn named(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.lock().values().find(|pod| pod.is_named(namespace, name)).cloned()
    }

    /// Ends what the API server no longer has.
    fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.lock().retain(|uid, pod| {
            let kept = keep(uid);
            if !kept {
                pod.delete_within(Duration::ZERO);
            }
            kept
        });
    }
}

async fn run(cluster: Cluster, node: String, stop: CancellationToken) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("listen for the API server");
    let port = listener.local_addr().expect("read the bound address").port();
    // The test's own client lives in the test's runtime.
    let client = cluster.connect().await.expect("make a client of the cluster");
    let reporter = Reporter { controller: "process-kubelet".into(), instance: Some(node.clone()) };
    let recorder = Recorder::new(client.clone(), reporter);
    let dir = tempfile::tempdir().expect("make a directory for pods");
    let kubelet = Arc::new(Kubelet { client, recorder, api_server: cluster.address(), node, dir });
    let (pods, mut running) = (Arc::new(Pods::default()), JoinSet::new());
    let uid = kubelet.register(port).await;
    tokio::select! {
        () = stop.cancelled() => {}
        () = kubelet.renew_lease(&uid) => {}
        () = kubelet.watch(&pods, &mut running) => {}
        () = logs::serve(listener, Arc::clone(&pods)) => {}
    }
    pods.retain(|_| false);
    let farewell = async {
        while running.join_next().await.is_some() {}
        let nodes: Api<core::Node> = Api::all(kubelet.client.clone());
        nodes.delete(&kubelet.node, &DeleteParams::default()).await
    };
    // What cannot be deleted is not worth a failure; what still runs is killed with its future.
    drop(timeout(FAREWELL, farewell).await);
}

/// What all pods of a node share.
struct Kubelet {
    client: Client,
    recorder: Recorder,
    api_server: SocketAddr,
    node: String,
    dir: TempDir,
}

impl Kubelet {
    /// Makes the node; its uid.
    async fn register(&self, port: u16) -> String {
        let room = json!({"cpu": "1k", "memory": "1Ti", "pods": "1k"});
        let (now, name) = (now(), &self.node);
        let ready = json!({
            "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "containers are processes",
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        });
        let node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
            "spec": {"taints": [{"key": ProcessNode::TAINT, "effect": "NoSchedule"}]},
            "status": {
                "capacity": room,
                "allocatable": room,
                "conditions": [ready],
                // No host name: the API server would ask for it first.
                "addresses": [{"type": "InternalIP", "address": Ipv4Addr::LOCALHOST}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            },
        });
        let node = serde_json::from_value(node).expect("a node");
        let nodes: Api<core::Node> = Api::all(self.client.clone());
        let made = nodes.create(&PostParams::default(), &node).await.expect("make a node");
        made.metadata.uid.expect("an object has a uid")
    }

    /// For ever.
    async fn renew_lease(&self, node_uid: &str) {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-node-lease");
        let name = &self.node;
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid});
        loop {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name, "ownerReferences": [owner]},
                "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": MicroTime(now().0)},
            });
            let params = PatchParams::apply("process-kubelet").force();
            // While the API server is away, soon again.
            let renewed = leases.patch(name, &params, &Patch::Apply(lease)).await;
            sleep(if renewed.is_ok() { LEASE_EVERY } else { RETRY }).await;
        }
    }

    /// Runs what comes to the node, for ever.
    async fn watch(self: &Arc<Self>, pods: &Pods, running: &mut JoinSet<()>) {
        let here = watcher::Config::default().fields(&format!("spec.nodeName={}", self.node));
        let mut events = pin!(watcher(Api::<core::Pod>::all(self.client.clone()), here));
        let mut listed = HashSet::new();
        loop {
            let event = tokio::select! {
                Some(event) = events.next() => event,
                // A defect of ours ends the node, not only the pod.
                Some(ended) = running.join_next() => {
                    ended.expect("run a pod");
                    continue;
                }
            };
            match event {
                Ok(watcher::Event::Init) => listed.clear(),
                Ok(watcher::Event::InitApply(pod)) => {
                    listed.extend(pod.metadata.uid.clone());
                    self.see(&pod, pods, running);
                }
                Ok(watcher::Event::InitDone) => pods.retain(|uid| listed.contains(uid)),
                Ok(watcher::Event::Apply(pod)) => self.see(&pod, pods, running),
                Ok(watcher::Event::Delete(pod)) => pods.retain(|uid| pod.metadata.uid.as_deref() != Some(uid)),
                // The API server is away; the watcher begins anew.
                Err(_) => sleep(RETRY).await,
            }
        }
    }

    fn see(self: &Arc<Self>, object: &core::Pod, pods: &Pods, running: &mut JoinSet<()>) {
        let uid = object.metadata.uid.clone().expect("an object has a uid");
        let mut pods = pods.lock();
        let pod = pods.entry(uid).or_insert_with(|| {
            let pod = Arc::new(Pod::new(Arc::clone(self), object.clone()));
            running.spawn(Arc::clone(&pod).run());
            pod
        });
        pod.heed(object);
    }

    /// Tells about a pod what its status has no place for.
    async fn warn(&self, pod: &core::Pod, reason: &str, note: &str) {
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_owned(),
            note: Some(note.to_owned()),
            action: reason.to_owned(),
            secondary: None,
        };
        // It is told again with the next attempt, or was of no importance.
        drop(self.recorder.publish(&event, &pod.object_ref(&())).await);
    }
}

#[expect(clippy::disallowed_methods, reason = "what a kubelet writes into a status is read by others")]
fn now() -> Time {
    Time(Timestamp::now())
}
