//! A node whose pods are processes: what they are given, what they leave, and how they end.

use std::pin::pin;
use std::time::Duration;

use futures_util::{AsyncBufReadExt, TryStreamExt};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ConfigMap, ContainerState, ContainerStateTerminated, ContainerStatus, Event, Pod, Secret,
};
use kube::api::{Api, DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, Config};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::time::timeout;
use watchfire_testkit::kubernetes::{Component, Namespace, rule};
use watchfire_testkit::{ProcessNode, cluster, control_plane, eventually, install_crypto, process_node, unique};

const DEADLINE: Duration = Duration::from_mins(1);

/// A namespace and a node, in the cluster that tests share.
async fn node(test: &str) -> Option<(Namespace, ProcessNode)> {
    let cluster = cluster(test).await?;
    Some((cluster.namespace().await, process_node(test, &cluster).await?))
}

fn shell(script: &str) -> Value {
    json!({"name": "main", "image": "none", "command": ["sh", "-c", script]})
}

/// Adds what `more` has to an object.
fn with(mut object: Value, more: Value) -> Value {
    let more = serde_json::from_value::<serde_json::Map<_, _>>(more).unwrap();
    object.as_object_mut().unwrap().extend(more);
    object
}

fn spec(node: &ProcessNode, container: &Value) -> Value {
    json!({"nodeName": node.name(), "restartPolicy": "Never", "containers": [container]})
}

async fn make<K>(namespace: &Namespace, name: &str, object: Value)
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let mut object: K = serde_json::from_value(object).unwrap();
    object.meta_mut().name = Some(name.to_owned());
    namespace.api::<K>().create(&PostParams::default(), &object).await.unwrap();
}

async fn until<T>(namespace: &Namespace, name: &str, what: &str, mut found: impl FnMut(&Pod) -> Option<T>) -> T {
    let pods: Api<Pod> = namespace.api();
    eventually(DEADLINE, what, async || found(&pods.get(name).await.ok()?)).await
}

fn status(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}

fn state(pod: &Pod) -> Option<&ContainerState> {
    status(pod)?.state.as_ref()
}

fn terminated(pod: &Pod) -> Option<ContainerStateTerminated> {
    state(pod)?.terminated.clone()
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Waits for the end of a pod.
async fn ended(namespace: &Namespace, name: &str) -> Pod {
    let over = |pod: &Pod| matches!(phase(pod), "Succeeded" | "Failed").then(|| pod.clone());
    until(namespace, name, "the pod has ended", over).await
}

/// Waits for the end of a Job: whether it is complete, and its only pod.
async fn job(namespace: &Namespace, name: &str, pod: Value) -> (bool, Pod) {
    let job = json!({"spec": {"backoffLimit": 0, "template": {"spec": pod}}});
    make::<Job>(namespace, name, job).await;
    let jobs: Api<Job> = namespace.api();
    let condition = eventually(DEADLINE, "the Job has ended", async || {
        let conditions = jobs.get(name).await.ok()?.status?.conditions?;
        conditions.into_iter().find(|it| it.status == "True" && matches!(it.type_.as_str(), "Complete" | "Failed"))
    })
    .await;
    let pods = namespace.api::<Pod>().list(&ListParams::default().labels(&format!("job-name={name}"))).await.unwrap();
    let [pod] = <[Pod; 1]>::try_from(pods.items).unwrap();
    (condition.type_ == "Complete", pod)
}

/// The processes with a word in their environment.
fn processes(word: &str) -> Vec<Pid> {
    let marked = |pid: &i32| {
        let text = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        text.windows(word.len()).any(|part| part == word.as_bytes())
    };
    let all = std::fs::read_dir("/proc").unwrap();
    let pids = all.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    pids.filter(marked).filter_map(Pid::from_raw).collect()
}

#[tokio::test]
async fn a_job_talks_to_the_api_server_with_its_own_account() {
    let Some((namespace, node)) = node("a_job_talks_to_the_api_server_with_its_own_account").await else { return };
    let account = namespace.service_account("reader", vec![rule("", &["configmaps"], &["get"])]).await;
    let this = std::env::current_exe().unwrap();
    let program = json!({
        "name": "main",
        "image": "none",
        "command": [this, "--exact", "kubelet::as_the_program_of_a_job", "--ignored"],
    });
    // As the pods of a controller come: by the scheduler.
    let pod = json!({
        "serviceAccountName": "reader",
        "restartPolicy": "Never",
        "containers": [program],
        "nodeSelector": {"kubernetes.io/hostname": node.name()},
        "tolerations": [{"key": ProcessNode::TAINT, "operator": "Exists"}],
    });
    let (complete, pod) = job(&namespace, "asks", pod).await;
    let ended = terminated(&pod).unwrap();
    assert!(
        complete,
        "{ended:?}: {:?}",
        namespace.api::<Pod>().logs(&pod.metadata.name.unwrap(), &LogParams::default()).await
    );
    assert_eq!(ended.message.unwrap(), account.user);
}

#[tokio::test]
#[ignore = "runs in a container of the test above"]
async fn as_the_program_of_a_job() {
    let Ok(config) = Config::incluster() else { return };
    install_crypto();
    let namespace = config.default_namespace.clone();
    let client = Client::try_from(config).unwrap();
    Api::<ConfigMap>::namespaced(client.clone(), &namespace).get("kube-root-ca.crt").await.unwrap();
    let refused = Api::<Secret>::namespaced(client.clone(), &namespace).get("any").await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused}");
    let reviews: Api<SelfSubjectReview> = Api::all(client);
    let review = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await.unwrap();
    std::fs::write("/dev/termination-log", review.status.unwrap().user_info.unwrap().username.unwrap()).unwrap();
}

#[tokio::test]
async fn a_container_is_given_its_files_and_environment_and_leaves_a_message_and_a_code() {
    let test = "a_container_is_given_its_files_and_environment_and_leaves_a_message_and_a_code";
    let Some((namespace, node)) = node(test).await else { return };
    make::<ConfigMap>(&namespace, "settings", json!({"data": {"colour": "green", "run": "#!/bin/sh\nexit 3"}})).await;
    make::<Secret>(&namespace, "password", json!({"stringData": {"word": "sesame"}})).await;
    let script = r#"
        ! touch /etc/settings/new || exit 1
        mkdir "/etc/$HOSTNAME" || exit 1
        set -- "$(cat /etc/settings/colour)" "$(cat /var/run/password)" "$COLOUR" "$S_word" "$GREETING" "$WHERE" "$PWD"
        echo "$*" >/tmp/message
        exec /etc/settings/run
    "#;
    let container = with(
        shell(script),
        json!({
            "workingDir": "/usr/share",
            "terminationMessagePath": "/tmp/message",
            "envFrom": [{"prefix": "S_", "secretRef": {"name": "password"}}],
            "env": [
                {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "colour"}}},
                {"name": "WHERE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "ABSENT", "valueFrom": {"secretKeyRef": {"name": "none", "key": "none", "optional": true}}},
                {"name": "GREETING", "value": "$$(COLOUR)=$(COLOUR)$(ABSENT)"},
            ],
            "volumeMounts": [
                {"name": "settings", "mountPath": "/etc/settings"},
                {"name": "password", "mountPath": "/var/run/password", "subPath": "of/word"},
            ],
        }),
    );
    let volumes = json!([
        {"name": "settings", "configMap": {"name": "settings", "defaultMode": 0o755}},
        {"name": "password", "secret": {"secretName": "password", "items": [{"key": "word", "path": "of/word"}]}},
    ]);
    let (complete, pod) = job(&namespace, "fails", with(spec(&node, &container), json!({"volumes": volumes}))).await;
    let ended = terminated(&pod).unwrap();
    assert!(!complete);
    assert_eq!((phase(&pod), ended.exit_code, ended.reason.as_deref()), ("Failed", 3, Some("Error")));
    let message = format!("green sesame green sesame $(COLOUR)=green$(ABSENT) {} /usr/share\n", node.name());
    assert_eq!(ended.message.unwrap(), message);
    // What it has written was its own.
    let name = pod.metadata.name.unwrap();
    assert!(!std::path::Path::new("/etc").join(&name).exists());
    assert!(!std::path::Path::new("/etc/settings").exists());
}

#[tokio::test]
async fn a_deadline_ends_every_process_of_a_pod() {
    let Some((namespace, node)) = node("a_deadline_ends_every_process_of_a_pod").await else { return };
    let mark = unique("mark");
    let script = "trap '' TERM; sleep 1000 & setsid sh -c 'sleep 1000; true' & wait; sleep 1000";
    let container = with(shell(script), json!({"env": [{"name": "MARK", "value": mark}]}));
    let grace = json!({"terminationGracePeriodSeconds": 1});
    make::<Pod>(&namespace, "slow", json!({"spec": with(spec(&node, &container), grace)})).await;
    eventually(DEADLINE, "all processes run", async || (processes(&mark).len() == 4).then_some(())).await;
    // Set while it runs, which a busy machine may be slow to bring about.
    let deadline = Patch::Merge(json!({"spec": {"activeDeadlineSeconds": 1}}));
    namespace.api::<Pod>().patch("slow", &PatchParams::default(), &deadline).await.unwrap();
    let pod = ended(&namespace, "slow").await;
    assert_eq!(processes(&mark), []);
    assert_eq!(phase(&pod), "Failed");
    assert_eq!(pod.status.as_ref().unwrap().reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(terminated(&pod).unwrap().exit_code, 137);
}

#[tokio::test]
async fn a_pod_that_is_deleted_is_asked_to_end_and_then_made_to() {
    let Some((namespace, node)) = node("a_pod_that_is_deleted_is_asked_to_end_and_then_made_to").await else { return };
    let mark = unique("mark");
    let heeds = "trap 'echo bye >/dev/termination-log; exit 7' TERM; echo ready; while :; do sleep 0.1; done";
    let ignores = "trap '' TERM; echo ready; sleep 1000; true";
    let pods: Api<Pod> = namespace.api();
    for (name, script, grace, code, message) in
        [("heeds", heeds, 60, 7, Some("bye\n")), ("ignores", ignores, 1, 137, None)]
    {
        let container = with(shell(script), json!({"env": [{"name": "MARK", "value": mark}]}));
        let spec = with(spec(&node, &container), json!({"terminationGracePeriodSeconds": grace}));
        make::<Pod>(&namespace, name, json!({"spec": spec})).await;
        let ready = async || pods.logs(name, &LogParams::default()).await.ok().filter(|log| log == "ready\n");
        eventually(DEADLINE, "the trap is set", ready).await;
        assert!(!processes(&mark).is_empty());
        let from = pods.get(name).await.unwrap().metadata.resource_version.unwrap();
        let events = pods.watch(&WatchParams::default().fields(&format!("metadata.name={name}")), &from).await.unwrap();
        pods.delete(name, &DeleteParams::default()).await.unwrap();
        let gone = events.try_filter_map(async |event| match event {
            WatchEvent::Deleted(pod) => Ok(Some(pod)),
            _ => Ok(None),
        });
        let pod = timeout(DEADLINE, pin!(gone).try_next()).await.unwrap().unwrap().unwrap();
        assert_eq!(processes(&mark), []);
        let ended = terminated(&pod).unwrap();
        assert_eq!((ended.exit_code, ended.message.as_deref(), phase(&pod)), (code, message, "Failed"));
    }
}

#[tokio::test]
async fn logs_are_read_through_the_api_server_while_they_are_written_and_after() {
    let test = "logs_are_read_through_the_api_server_while_they_are_written_and_after";
    let Some((namespace, node)) = node(test).await else { return };
    let pods: Api<Pod> = namespace.api();
    let waits = "trap 'echo two >&2; exit' TERM; echo one; while :; do sleep 0.1; done";
    make::<Pod>(&namespace, "waits", json!({"spec": spec(&node, &shell(waits))})).await;
    let follow = LogParams { follow: true, ..LogParams::default() };
    let stream = eventually(DEADLINE, "the pod has a log", async || pods.log_stream("waits", &follow).await.ok()).await;
    let mut lines = stream.lines();
    assert_eq!(lines.try_next().await.unwrap().as_deref(), Some("one"));
    pods.delete("waits", &DeleteParams::default()).await.unwrap();
    assert_eq!(lines.try_next().await.unwrap().as_deref(), Some("two"));
    assert_eq!(lines.try_next().await.unwrap(), None);

    make::<Pod>(&namespace, "counts", json!({"spec": spec(&node, &shell("seq 100"))})).await;
    ended(&namespace, "counts").await;
    let read = async |params: &LogParams| pods.logs("counts", params).await;
    let last = LogParams { tail_lines: Some(2), ..LogParams::default() };
    assert_eq!(read(&last).await.unwrap(), "99\n100\n");
    assert_eq!(read(&LogParams { follow: true, ..last }).await.unwrap(), "99\n100\n");
    assert_eq!(read(&LogParams { limit_bytes: Some(4), ..LogParams::default() }).await.unwrap(), "1\n2\n");
    let refused = read(&LogParams { timestamps: true, ..LogParams::default() }).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 400), "{refused}");
}

#[tokio::test]
async fn what_is_missing_is_told_and_waited_for() {
    let Some((namespace, node)) = node("what_is_missing_is_told_and_waited_for").await else { return };
    let from = json!({"configMapKeyRef": {"name": "settings", "key": "colour"}});
    let wants = with(shell("test $COLOUR = green"), json!({"env": [{"name": "COLOUR", "valueFrom": from}]}));
    make::<Pod>(&namespace, "wants-value", json!({"spec": spec(&node, &wants)})).await;
    let waiting = |pod: &Pod| state(pod)?.waiting.clone().filter(|it| it.message.is_some());
    let pause = until(&namespace, "wants-value", "the pod waits", waiting).await;
    assert_eq!(pause.reason.as_deref(), Some("CreateContainerConfigError"));
    assert_eq!(pause.message.as_deref(), Some(r#"configmap "settings" not found"#));

    let mounts = json!({"volumeMounts": [{"name": "password", "mountPath": "/password"}]});
    let wants = with(shell("test $(cat /password/word) = sesame"), mounts);
    let volumes = json!({"volumes": [{"name": "password", "secret": {"secretName": "password"}}]});
    make::<Pod>(&namespace, "wants-file", json!({"spec": with(spec(&node, &wants), volumes)})).await;
    let events: Api<Event> = namespace.api();
    let told = eventually(DEADLINE, "what is missing is told", async || {
        let events = events.list(&ListParams::default().fields("reason=FailedMount")).await.ok()?;
        events.items.into_iter().find(|it| it.involved_object.name.as_deref() == Some("wants-file"))?.message
    });
    assert_eq!(told.await, r#"MountVolume.SetUp failed for volume "password": secret "password" not found"#);
    assert_eq!(phase(&namespace.api::<Pod>().get("wants-file").await.unwrap()), "Pending");

    make::<ConfigMap>(&namespace, "settings", json!({"data": {"colour": "green"}})).await;
    make::<Secret>(&namespace, "password", json!({"stringData": {"word": "sesame"}})).await;
    for name in ["wants-value", "wants-file"] {
        assert_eq!(phase(&ended(&namespace, name).await), "Succeeded");
    }
}

#[tokio::test]
async fn a_container_that_fails_is_started_again_where_its_pod_says_so() {
    let test = "a_container_that_fails_is_started_again_where_its_pod_says_so";
    let Some((namespace, node)) = node(test).await else { return };
    let script = "echo attempt; test -e /kept/tried || { touch /kept/tried; exit 5; }";
    let container = with(
        shell(script),
        json!({
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [{"name": "kept", "mountPath": "/kept"}],
        }),
    );
    let more = json!({"restartPolicy": "OnFailure", "volumes": [{"name": "kept", "emptyDir": {}}]});
    make::<Pod>(&namespace, "retries", json!({"spec": with(spec(&node, &container), more)})).await;
    let pod = ended(&namespace, "retries").await;
    let status = status(&pod).unwrap().clone();
    assert_eq!((phase(&pod), status.restart_count), ("Succeeded", 1));
    let first = status.last_state.unwrap().terminated.unwrap();
    assert_eq!((first.exit_code, first.message.as_deref()), (5, Some("attempt\n")));
    let log = namespace.api::<Pod>().logs("retries", &LogParams::default()).await.unwrap();
    assert_eq!(log, "attempt\n");
}

#[tokio::test]
async fn what_cannot_run_says_why() {
    let Some((namespace, node)) = node("what_cannot_run_says_why").await else { return };
    let nothing = json!({"name": "main", "image": "some/image"});
    make::<Pod>(&namespace, "nothing", json!({"spec": spec(&node, &nothing)})).await;
    let waiting = |pod: &Pod| state(pod)?.waiting.clone().filter(|it| it.message.is_some());
    let pause = until(&namespace, "nothing", "the pod waits", waiting).await;
    assert_eq!(pause.reason.as_deref(), Some("CreateContainerError"));

    let absent = json!({"name": "main", "image": "none", "command": ["no-such-program"]});
    make::<Pod>(&namespace, "absent", json!({"spec": spec(&node, &absent)})).await;
    let ended_at_once = terminated(&ended(&namespace, "absent").await).unwrap();
    assert_eq!((ended_at_once.exit_code, ended_at_once.reason.as_deref()), (128, Some("StartError")));
    assert!(ended_at_once.message.unwrap().contains("no-such-program"));

    let first = json!({"initContainers": [with(shell("true"), json!({"name": "first"}))]});
    make::<Pod>(&namespace, "first", json!({"spec": with(spec(&node, &shell("true")), first)})).await;
    let status = ended(&namespace, "first").await.status.unwrap();
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("Unsupported")));
    assert!(status.message.unwrap().contains("init containers"));
}

#[tokio::test]
async fn a_pod_outlives_the_api_server_and_its_end_is_told_later() {
    let test = "a_pod_outlives_the_api_server_and_its_end_is_told_later";
    let Some(mut own) = control_plane(test).await else { return };
    let Some(node) = process_node(test, own.cluster()).await else { return };
    let namespace = own.cluster().clone().namespace().await;
    let mark = unique("mark");
    let container = json!({"name": "main", "image": "none", "command": ["sleep", "1000"]});
    let container = with(container, json!({"env": [{"name": "MARK", "value": mark}]}));
    make::<Pod>(&namespace, "lasts", json!({"spec": spec(&node, &container)})).await;
    until(&namespace, "lasts", "the pod runs", |pod| state(pod)?.running.clone()).await;
    own.kill(Component::ApiServer);
    let [first] = <[Pid; 1]>::try_from(processes(&mark)).unwrap();
    kill_process(first, Signal::KILL).unwrap();
    own.restart(Component::ApiServer).await;
    assert_eq!(terminated(&ended(&namespace, "lasts").await).unwrap().exit_code, 137);
    let after = json!({"spec": spec(&node, &shell("true"))});
    make::<Pod>(&namespace, "after", after).await;
    assert_eq!(phase(&ended(&namespace, "after").await), "Succeeded");
}

#[tokio::test]
async fn nothing_is_left_of_a_node_that_is_dropped() {
    let Some((namespace, node)) = node("nothing_is_left_of_a_node_that_is_dropped").await else { return };
    let mark = unique("mark");
    let container = with(shell("trap '' TERM; sleep 1000; true"), json!({"env": [{"name": "MARK", "value": mark}]}));
    make::<Pod>(&namespace, "lasts", json!({"spec": spec(&node, &container)})).await;
    until(&namespace, "lasts", "the pod runs", |pod| state(pod)?.running.clone()).await;
    let name = node.name().to_owned();
    drop(node);
    assert_eq!(processes(&mark), []);
    assert!(namespace.api::<Pod>().get_opt("lasts").await.unwrap().is_none());
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(namespace.cluster().client());
    assert!(nodes.get_opt(&name).await.unwrap().is_none());
}
