//! The dashboards and the alerts ask for what the services serve, and every alert leads to what to do. What is deployed
//! is a configuration that is right, at the ports and paths that are served.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use serde_json::{Value, json};
use watchfire_simulator::{Dialect, NewResource, Simulator};
use watchfire_testkit::{Rabbit, Receiver, amqp_url, cluster, process_node};

use crate::documents::has_heading;
use crate::support::{Api, BINARY, Setup, get, read, root, run, text};

/// What is deployed, each with the reference of what its service serves.
const SERVICES: [(&str, &str); 2] = [("sentinel", "docs/metrics.md"), ("beacon", "docs/metrics-beacon.md")];

/// How our metrics begin; whatever else stands in an expression is of the query language or of Prometheus itself.
const PREFIXES: [&str; 6] = ["event_", "hyperfleet_", "outbox_", "process_", "store_", "watchfire_"];

/// A label that begins as metrics do.
const NO_METRIC: &str = "event_type";

/// Labels that every series has, or gets when it is scraped.
const EVERYWHERE: [&str; 5] = ["component", "instance", "job", "le", "version"];

struct Family {
    histogram: bool,
    labels: BTreeSet<String>,
}

/// The families of the reference, which is what a fresh process serves.
fn families(reference: &str) -> BTreeMap<String, Family> {
    let document = read(reference);
    let rows = document.lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let labels = cells[3].split(", ").map(|label| label.trim_matches('`').to_owned()).collect();
        (cells[1].trim_matches('`').to_owned(), Family { histogram: cells[2] == "histogram", labels })
    };
    rows.map(row).collect()
}

/// The series of an expression: each name of ours, with the labels that are asked for in the braces behind it.
fn series(expression: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find(|c: char| c.is_ascii_alphabetic() || c == '"') {
        rest = &rest[at..];
        if let Some(quoted) = rest.strip_prefix('"') {
            rest = quoted.split_once('"').expect("an end of the text").1;
            continue;
        }
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':').unwrap_or(rest.len());
        let (name, behind) = rest.split_at(end);
        rest = behind;
        if name != NO_METRIC && PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            let braces = behind.strip_prefix('{').and_then(|matchers| matchers.split_once('}'));
            let matchers = braces.map_or("", |(matchers, _)| matchers).split(',').filter(|matcher| !matcher.is_empty());
            let labels = matchers.map(|matcher| matcher.split(['=', '!']).next().unwrap().to_owned());
            found.push((name.to_owned(), labels.collect()));
        }
    }
    found
}

/// Everything that an expression asks for is served.
fn check(families: &BTreeMap<String, Family>, expression: &str) -> usize {
    let asked = series(expression);
    for (name, labels) in &asked {
        let part = ["_bucket", "_count", "_sum"].iter().find_map(|part| name.strip_suffix(part));
        let of_histogram = part.and_then(|whole| families.get(whole)).filter(|family| family.histogram);
        let family = families.get(name).filter(|family| !family.histogram).or(of_histogram);
        let family = family.unwrap_or_else(|| panic!("nothing serves {name}: {expression}"));
        for label in labels {
            let known = family.labels.contains(label) || EVERYWHERE.contains(&label.as_str());
            assert!(known, "{name} has no label {label}: {expression}");
        }
    }
    asked.len()
}

/// Every text under this key, however deep.
fn texts<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::String(text) if name == key => found.push(text),
                    member => texts(member, key, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| texts(item, key, found)),
        Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => {}
    }
}

#[test]
fn series_are_found_in_an_expression_and_nothing_else() {
    let expression = r#"sum by (reason) (rate(hyperfleet_a_total{b!="outbox_c",d=~"e"}[5m])) > up{f="g"} + store_h"#;
    let found = series(expression);
    let labels = ["b".to_owned(), "d".to_owned()].to_vec();
    assert_eq!(found, [("hyperfleet_a_total".to_owned(), labels), ("store_h".to_owned(), Vec::new())]);
}

#[test]
fn the_dashboards_ask_for_what_is_served() {
    for (service, reference) in SERVICES {
        check_dashboard(&format!("deploy/dashboards/{service}.json"), &families(reference));
    }
}

fn check_dashboard(file: &str, families: &BTreeMap<String, Family>) {
    let dashboard: Value = serde_json::from_str(&read(file)).expect("JSON");
    let mut expressions = Vec::new();
    for key in ["expr", "definition"] {
        texts(&dashboard, key, &mut expressions);
    }
    for expression in &expressions {
        assert!(check(families, expression) > 0, "asks for nothing of ours: {expression}");
    }
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut taken = BTreeSet::new();
    for panel in panels {
        let place = |key: &str| panel["gridPos"][key].as_u64().expect("a place");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(x < 24 && taken.insert((x, y)), "{} stands where another does", panel["title"]);
            }
        }
        let described = panel["type"] == "row" || panel["description"].as_str().is_some_and(|text| !text.is_empty());
        assert!(described, "{} does not say what it shows", panel["title"]);
    }
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "ids are unique");
}

#[test]
fn every_alert_asks_for_what_is_served_is_tested_and_leads_to_what_to_do() {
    for (service, reference) in SERVICES {
        let names = check_alerts(service, &families(reference));
        let guide = read(&format!("docs/{service}.md"));
        let heading = |line: &str| line.strip_prefix("#### ").map(str::to_owned);
        let row = |line: &str| {
            line.strip_prefix("| `Beacon")
                .and_then(|rest| rest.split_once('`'))
                .map(|(name, _)| format!("Beacon{name}"))
        };
        let documented: BTreeSet<_> = guide.lines().filter_map(|line| heading(line).or_else(|| row(line))).collect();
        assert_eq!(documented, names, "the guide has each alert, and no other");
    }
}

/// Checks each alert; returns their names.
fn check_alerts(service: &str, families: &BTreeMap<String, Family>) -> BTreeSet<String> {
    let rules: Value = serde_saphyr::from_str(&read(&format!("deploy/alerts/{service}.yaml"))).expect("YAML");
    let tests = read(&format!("deploy/alerts/{service}_test.yaml"));
    let rules: Vec<_> =
        rules["groups"].as_array().unwrap().iter().flat_map(|it| it["rules"].as_array().unwrap()).collect();
    let mut names = BTreeSet::new();
    for rule in &rules {
        let name = rule["alert"].as_str().expect("an alert");
        assert!(names.insert(name.to_owned()), "{name} twice");
        assert!(check(families, rule["expr"].as_str().unwrap()) > 0, "{name}");
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning"].contains(&severity), "{name}: {severity}");
        for annotation in ["summary", "description"] {
            assert!(
                rule["annotations"][annotation].as_str().is_some_and(|text| text.len() > 10),
                "{name}: {annotation}"
            );
        }
        let runbook = rule["annotations"]["runbook_url"].as_str().expect("a runbook");
        let (file, anchor) = runbook.split_once('#').expect("a heading");
        assert!([&*format!("docs/{service}.md"), "docs/errors.md"].contains(&file), "{name}: {runbook}");
        assert!(has_heading(&root().join(file), anchor), "{name}: {runbook}");
        let fires = [format!("{{alertname=\"{name}\""), format!("alertname: {name}\n")];
        assert!(fires.iter().any(|fires| tests.contains(fires)), "no test in which {name} fires");
    }
    names
}

/// The object of this kind in the installation of a service.
fn object(service: &str, kind: &str) -> Value {
    let file = read(&format!("deploy/kubernetes/{service}.yaml"));
    let mut objects = file.split("\n---\n").map(|text| serde_saphyr::from_str::<Value>(text).expect("YAML"));
    objects.find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

/// What the help says is the default of a flag.
async fn default_of(flag: &str) -> String {
    let help = text(&run(&["serve", "--help"], &[]).await.stdout);
    let (_, about) = help.split_once(flag).expect("the flag");
    about.split_once("[default: ").expect("a default").1.split([';', ']']).next().expect("an end").to_owned()
}

#[tokio::test]
async fn the_configuration_that_is_deployed_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("..token"), "a-token").unwrap();
    for (name, value) in object("sentinel", "ConfigMap")["data"].as_object().expect("data") {
        let value = value.as_str().expect("text").replace("/run/secrets/hyperfleet/token", &path("..token"));
        std::fs::write(path(name), value).unwrap();
    }
    let broker = folder.path().display().to_string();
    let output = run(&["config", "check", "--config", &path("config.yaml"), "--broker-config", &broker], &[]).await;
    assert_eq!(text(&output.stdout), "the configuration is valid\n", "no warnings; {}", text(&output.stderr));
    let shown = run(&["config", "show", "--config", &path("config.yaml"), "--broker-config", &broker], &[]).await;
    assert!(text(&shown.stdout).contains("BROKER_HTTP_STORE: /var/lib/sentinel/broker.db"), "{}", text(&shown.stdout));
}

#[tokio::test]
async fn what_is_deployed_is_asked_where_it_answers_and_has_what_it_needs() {
    let pod = object("sentinel", "Deployment")["spec"]["template"]["spec"].clone();
    let container = &pod["containers"][0];
    let ports = container["ports"].as_array().expect("ports");
    let port = |name: &str| ports.iter().find(|port| port["name"] == name).expect(name)["containerPort"].to_string();
    assert_eq!(format!(":{}", port("health")), default_of("--health-bind-address").await);
    assert_eq!(format!(":{}", port("metrics")), default_of("--metrics-bind-address").await);
    for served in object("sentinel", "Service")["spec"]["ports"].as_array().expect("ports") {
        assert_eq!(served["port"].to_string(), port(served["targetPort"].as_str().expect("a name")));
    }
    let (api, receiver) = (Api::serve(Simulator::new(Dialect::Hyperfleet)).await, Receiver::start().await);
    let sentinel = Setup::new(&api.url, "", receiver.url()).start().await;
    sentinel.readiness(200).await;
    for (probe, wanted) in [("livenessProbe", "/healthz"), ("startupProbe", "/healthz"), ("readinessProbe", "/readyz")]
    {
        let asked = &container[probe]["httpGet"];
        assert_eq!((asked["path"].as_str(), asked["port"].as_str()), (Some(wanted), Some("health")), "{probe}");
        let (status, said) = get(&format!("{}{wanted}", sentinel.health)).await;
        assert_eq!(status, 200, "{said}");
    }
    sentinel.stop().await;

    check_pod(
        "sentinel",
        &["/var/lib/sentinel/broker.db"],
        &["/etc/hyperfleet/config.yaml", "/run/secrets/hyperfleet/token"],
    )
    .await;
    let args: Vec<_> = container["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    assert_eq!(args, ["serve", "--config=/etc/hyperfleet/config.yaml", "--broker-config=/etc/hyperfleet"]);
}

/// The pod has time to stop, a user, and files that it may write, or only read; there is one.
async fn check_pod(service: &str, written: &[&str], read_only: &[&str]) {
    let deployment = object(service, "Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let grace: u64 = default_of("--grace-period").await.trim_end_matches('s').parse().expect("seconds");
    assert!(pod["terminationGracePeriodSeconds"].as_u64().expect("seconds") > grace);
    assert!(read("deploy/Dockerfile").contains(&format!("USER {0}:{0}\n", pod["securityContext"]["runAsUser"])));
    let (mounts, volumes) = (container["volumeMounts"].as_array().unwrap(), pod["volumes"].as_array().unwrap());
    let mounted = |path: &str| {
        let mount = mounts.iter().find(|it| path.starts_with(it["mountPath"].as_str().unwrap()));
        let mount = mount.unwrap_or_else(|| panic!("nothing is mounted for {path}"));
        volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap_or_else(|| panic!("no volume for {path}"));
        mount["readOnly"] != true
    };
    assert!(written.iter().all(|path| mounted(path)) && !read_only.iter().any(|path| mounted(path)));
    let (replicas, strategy) = (&deployment["spec"]["replicas"], &deployment["spec"]["strategy"]["type"]);
    assert_eq!((replicas, strategy), (&1.into(), &"Recreate".into()));
}

#[tokio::test]
async fn the_beacon_that_is_deployed_may_do_what_it_is_configured_to_and_is_asked_where_it_answers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let config = object("beacon", "ConfigMap")["data"]["config.yaml"].as_str().unwrap().to_owned();
    // So that nobody has to be asked.
    std::fs::write(&file, config.replace("kind: Pod\n", "kind: Pod\n    resource: pods\n")).unwrap();
    let path = file.display().to_string();
    let output = run(&["config", "check", "--config", &path], &[]).await;
    assert_eq!(text(&output.stdout), "the configuration is valid\n", "no warnings; {}", text(&output.stderr));
    let shown = run(&["config", "show", "--config", &path, "-o", "json"], &[]).await;
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");

    let printed = run(&["beacon", "role", "--config", &path, "-o", "json"], &[]).await;
    let printed: Value = serde_json::from_slice(&printed.stdout).expect("JSON");
    for right in printed["items"].as_array().unwrap() {
        let deployed = object("beacon", right["kind"].as_str().unwrap());
        for part in ["rules", "subjects", "roleRef"] {
            assert_eq!(deployed[part], right[part], "{part}");
        }
        assert_eq!(deployed["metadata"]["name"], right["metadata"]["name"]);
    }
    let account = object("beacon", "ServiceAccount");
    let deployment = object("beacon", "Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], account["metadata"]["name"]);
    let container = &pod["containers"][0];
    assert_eq!(container["args"], json!(["beacon", "--config=/config/config.yaml"]));
    let port = &container["ports"][0];
    assert_eq!((&port["name"], &port["containerPort"]), (&json!("http"), &shown["health"]["port"]));
    assert_eq!(shown["health"]["port"], shown["metrics"]["port"]);
    let probes =
        [("livenessProbe", "livenessPath"), ("startupProbe", "livenessPath"), ("readinessProbe", "readinessPath")];
    for (probe, wanted) in probes {
        let asked = &container[probe]["httpGet"];
        assert_eq!((&asked["path"], &asked["port"]), (&shown["health"][wanted], &json!("http")), "{probe}");
    }
    assert_eq!(object("beacon", "Service")["spec"]["ports"][0]["targetPort"], "http");
    check_pod("beacon", &[shown["storage"]["dbPath"].as_str().unwrap()], &["/config/config.yaml"]).await;
}

#[tokio::test]
async fn the_topic_has_the_namespace_that_kubernetes_fills_in() {
    let name = "the_topic_has_the_namespace_that_kubernetes_fills_in";
    let (Some(cluster), Some(url)) = (cluster(name).await, amqp_url(name)) else { return };
    let Some(node) = process_node(name, &cluster).await else { return };
    let namespace = cluster.namespace().await;
    let fleet = Simulator::new(Dialect::Hyperfleet);
    let id = fleet.create("clusters", NewResource::named("alpha")).unwrap().id;
    let api = Api::serve(fleet).await;
    let exchange = format!("{}-clusters", namespace.name());
    let mut queue = Rabbit::listen(&url, &exchange, "fanout", "").await;

    // As the guide has it.
    let guide = read("docs/sentinel.md");
    let (_, guide) = guide.split_once("**A topic for each namespace**").unwrap();
    let shown = guide.split("```").nth(1).unwrap().trim_start_matches("text");
    let mut env = serde_saphyr::from_str::<Value>(shown).unwrap()["env"].as_array().unwrap().clone();
    env.push(json!({"name": "BROKER_TYPE", "value": "rabbitmq"}));
    env.push(json!({"name": "BROKER_URL", "value": url}));
    let config = format!("resource_type: clusters\nhyperfleet_api: {{endpoint: '{}'}}\n", api.url);
    let config = ConfigMap { data: Some([("sentinel.yaml".to_owned(), config)].into()), ..config_map("sentinel") };
    namespace.api::<ConfigMap>().create(&PostParams::default(), &config).await.unwrap();
    let pod = json!({
        "metadata": {"name": "sentinel"},
        "spec": {
            "nodeName": node.name(),
            "volumes": [{"name": "config", "configMap": {"name": "sentinel"}}],
            "containers": [{
                "name": "sentinel",
                "image": "none",
                "command": [BINARY, "sentinel", "--config=/etc/watchfire/sentinel.yaml"],
                "args": ["--health-bind-address=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0"],
                "env": env,
                "volumeMounts": [{"name": "config", "mountPath": "/etc/watchfire"}],
            }],
        },
    });
    let pod: Pod = serde_json::from_value(pod).unwrap();
    namespace.api::<Pod>().create(&PostParams::default(), &pod).await.unwrap();
    let message = queue.take(1).await.remove(0);
    let event: Value = serde_json::from_slice(&message.body).unwrap();
    assert_eq!((message.exchange, &event["data"]["id"]), (exchange, &json!(id)));
    queue.delete().await;
}

fn config_map(name: &str) -> ConfigMap {
    ConfigMap { metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }, ..ConfigMap::default() }
}
