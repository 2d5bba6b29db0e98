//! One pod from its arrival to its end: its containers, what ends them, and what its status says.
//!
//! Its processes do not wait for the API server: the status is written beside them, and only its latest version.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{self as core, ContainerStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{Kubelet, RETRY, container, now, volumes};

/// All pods have it: they share the network of this machine.
pub(super) const ADDRESS: &str = "127.0.0.1";

pub(super) struct Pod {
    pub(super) object: core::Pod,
    pub(super) spec: core::PodSpec,
    pub(super) dir: PathBuf,
    kubelet: Arc<Kubelet>,
    arrived: Instant,
    began: Time,
    end: watch::Sender<End>,
    view: watch::Sender<View>,
}

/// When its processes have to be gone, and whether the pod itself has to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct End {
    /// When they are asked to go.
    deadline: Option<Instant>,
    /// When they are made to. They are asked as soon as this is known.
    pub(super) by: Option<Instant>,
    deleted: bool,
}

/// What its status says.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    pub(super) containers: Vec<ContainerStatus>,
    /// Nothing runs, and nothing will.
    over: bool,
    /// The reason and the message of a failure that is the pod's, not a container's.
    failed: Option<(&'static str, String)>,
}

impl Pod {
    pub(super) fn new(kubelet: Arc<Kubelet>, object: core::Pod) -> Self {
        let spec = object.spec.clone().expect("a pod has a spec");
        let dir = kubelet.dir.path().join(object.metadata.uid.as_deref().expect("an object has a uid"));
        let containers = spec.containers.iter().map(container::created).collect();
        let view = watch::Sender::new(View { containers, ..View::default() });
        let end = watch::Sender::default();
        Self { object, spec, dir, kubelet, arrived: Instant::now(), began: now(), end, view }
    }

    pub(super) fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    pub(super) fn namespace(&self) -> &str {
        self.object.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// Its name, as far as a host may have it.
    pub(super) fn hostname(&self) -> &str {
        let name = self.name();
        name[..name.len().min(63)].trim_end_matches(['-', '.'])
    }

    pub(super) fn is_named(&self, namespace: &str, name: &str) -> bool {
        self.namespace() == namespace && self.name() == name
    }

    pub(super) fn client(&self) -> Client {
        self.kubelet.client.clone()
    }

    pub(super) fn kubelet(&self) -> &Kubelet {
        &self.kubelet
    }

    pub(super) fn container_dir(&self, name: &str, attempt: i32) -> PathBuf {
        self.dir.join("containers").join(name).join(attempt.to_string())
    }

    pub(super) fn volume_dir(&self, name: &str) -> PathBuf {
        self.dir.join("volumes").join(name)
    }

    pub(super) fn end(&self) -> watch::Receiver<End> {
        self.end.subscribe()
    }

    pub(super) fn view(&self) -> watch::Receiver<View> {
        self.view.subscribe()
    }

    /// Changes what is said of a container.
    pub(super) fn tell(&self, container: usize, change: impl FnOnce(&mut ContainerStatus)) {
        self.view.send_modify(|view| change(&mut view.containers[container]));
    }

    /// Does what the API server's version of the pod asks for.
    pub(super) fn heed(&self, object: &core::Pod) {
        let deadline = seconds(object.spec.as_ref().and_then(|spec| spec.active_deadline_seconds));
        self.end.send_modify(|end| end.deadline = deadline.map(|time| self.arrived + time));
        if object.metadata.deletion_timestamp.is_some() {
            self.delete_within(seconds(object.metadata.deletion_grace_period_seconds).unwrap_or_default());
        }
    }

    /// Ends its processes and then the pod; a shorter time takes the place of a longer one.
    pub(super) fn delete_within(&self, grace: Duration) {
        self.end.send_modify(|end| end.deleted = true);
        self.end_within(grace);
    }

    fn end_within(&self, grace: Duration) {
        let by = Instant::now() + grace;
        self.end.send_modify(|end| end.by = Some(end.by.map_or(by, |earlier| earlier.min(by))));
    }

    /// Waits, and says whether the pod still goes on.
    pub(super) async fn goes_on_after(&self, pause: Duration) -> bool {
        let mut end = self.end();
        let ended = async { end.wait_for(|end| end.by.is_some()).await.map(drop) };
        timeout(pause, ended).await.is_err()
    }

    /// Returns when the pod is deleted.
    pub(super) async fn run(self: Arc<Self>) {
        let work = async {
            tokio::select! {
                () = self.work() => {}
                () = self.expire() => {}
            }
            self.view.send_modify(|view| view.over = true);
        };
        tokio::join!(Box::pin(work), self.report());
        drop(self.end().wait_for(|end| end.deleted).await);
        // What is not there cannot be removed, and the rest goes with the node.
        drop(std::fs::remove_dir_all(&self.dir));
        self.delete().await;
    }

    async fn work(&self) {
        if let Some(what) = unsupported(&self.spec) {
            self.view.send_modify(|view| view.failed = Some(("Unsupported", what)));
            return;
        }
        let mut told = String::new();
        while let Err(problem) = volumes::fill(self).await {
            if problem != told {
                self.kubelet.warn(&self.object, "FailedMount", &problem).await;
            }
            told = problem;
            if !self.goes_on_after(RETRY).await {
                return;
            }
        }
        join_all(self.spec.containers.iter().enumerate().map(|(at, it)| container::run(self, at, it))).await;
    }

    /// Ends a pod that takes too long; never returns.
    async fn expire(&self) {
        let mut end = self.end();
        loop {
            let deadline = end.borrow_and_update().deadline;
            tokio::select! {
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => break,
                Ok(()) = end.changed() => {}
            }
        }
        let message = "Pod was active on the node longer than the specified deadline".to_owned();
        self.view.send_modify(|view| view.failed = Some(("DeadlineExceeded", message)));
        self.end_within(seconds(self.spec.termination_grace_period_seconds).unwrap_or_default());
        std::future::pending::<()>().await;
    }

    fn pods(&self) -> Api<core::Pod> {
        Api::namespaced(self.client(), self.namespace())
    }

    /// Writes every change of the view, until it is over.
    async fn report(&self) {
        let (mut views, pods, patch) = (self.view(), self.pods(), PatchParams::default());
        let mut since = (false, self.began.clone());
        loop {
            let view = views.borrow_and_update().clone();
            if view.ready() != since.0 {
                since = (view.ready(), now());
            }
            // Strategic: others have conditions of their own.
            let status = json!({"metadata": {"uid": self.object.metadata.uid}, "status": self.status(&view, &since.1)});
            while let Err(error) = pods.patch_status(self.name(), &patch, &Patch::Strategic(&status)).await {
                if is_gone(&error) {
                    return;
                }
                assert!(!is_refused(&error), "the status of {}: {error}: {status}", self.name());
                sleep(RETRY).await;
            }
            if view.over || views.changed().await.is_err() {
                return;
            }
        }
    }

    fn status(&self, view: &View, since: &Time) -> Value {
        let phase = view.phase();
        let unready = match phase {
            "Succeeded" => "PodCompleted",
            "Failed" => "PodFailed",
            _ => "ContainersNotReady",
        };
        let holds = |of| json!({"type": of, "status": "True", "lastTransitionTime": self.began});
        let ready = |of| {
            let (status, reason) = if view.ready() { ("True", None) } else { ("False", Some(unready)) };
            json!({"type": of, "status": status, "reason": reason, "lastTransitionTime": since})
        };
        let failed = view.failed.as_ref().filter(|_| view.over);
        json!({
            "phase": phase,
            "reason": failed.map(|(reason, _)| reason),
            "message": failed.map(|(_, message)| message),
            "startTime": self.began,
            "hostIP": ADDRESS,
            "podIP": ADDRESS,
            "podIPs": [{"ip": ADDRESS}],
            "conditions": [holds("PodScheduled"), holds("Initialized"), ready("ContainersReady"), ready("Ready")],
            "containerStatuses": view.containers,
        })
    }

    async fn delete(&self) {
        let preconditions = Some(Preconditions { uid: self.object.metadata.uid.clone(), resource_version: None });
        let at_once = DeleteParams { grace_period_seconds: Some(0), preconditions, ..DeleteParams::default() };
        while let Err(error) = self.pods().delete(self.name(), &at_once).await {
            if is_gone(&error) {
                return;
            }
            sleep(RETRY).await;
        }
    }
}

impl View {
    fn ready(&self) -> bool {
        self.containers.iter().all(|container| container.ready)
    }

    fn phase(&self) -> &'static str {
        if self.over {
            let succeeded = self.failed.is_none() && self.containers.iter().all(|it| exit_code(it) == Some(0));
            return if succeeded { "Succeeded" } else { "Failed" };
        }
        // Between two attempts it runs.
        let began = |it: &ContainerStatus| {
            exit_code(it).is_some() || it.state.as_ref().is_some_and(|state| state.running.is_some())
        };
        if self.containers.iter().all(began) { "Running" } else { "Pending" }
    }
}

fn seconds(seconds: Option<i64>) -> Option<Duration> {
    seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs)
}

/// Of the last attempt that ended.
fn exit_code(container: &ContainerStatus) -> Option<i32> {
    let ended = |state: &Option<core::ContainerState>| Some(state.as_ref()?.terminated.as_ref()?.exit_code);
    ended(&container.state).or_else(|| ended(&container.last_state))
}

fn unsupported(spec: &core::PodSpec) -> Option<String> {
    if spec.init_containers.as_ref().is_some_and(|containers| !containers.is_empty()) {
        return Some("a process node runs no init containers".to_owned());
    }
    let unknown = spec.volumes.iter().flatten().find(|volume| volumes::content(volume).is_none())?;
    Some(format!("a process node has no volumes of the kind of {}", unknown.name))
}

/// There is no such pod, or one of the same name only.
fn is_gone(error: &kube::Error) -> bool {
    let other = |status: &kube::core::Status| status.code == 409 && status.message.contains("Precondition failed");
    matches!(error, kube::Error::Api(status) if status.code == 404 || other(status))
}

/// Another attempt would not be better.
fn is_refused(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 400 | 422))
}
