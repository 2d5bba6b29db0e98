//! A deployment of today's Go sentinel, with the image exchanged and nothing else.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::Value;
use tokio::process::Command;
use watchfire_simulator::{Dialect, NewResource, Simulator};
use watchfire_testkit::{Rabbit, Receiver, Subscription, amqp_url, pubsub_endpoint, unique};

use crate::support::{Api, BINARY, Process, Sentinel, get, isolate, read, run, text};

/// What today's deployment mounts: a configuration, a `broker.yaml`, and the program as it is called there.
pub(crate) struct Deployment {
    pub(crate) folder: tempfile::TempDir,
}

impl Deployment {
    pub(crate) fn new(api: &str, more: &str, broker: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "sentinel:\n  name: east\nlog:\n  level: info\n  format: json\n  output: stdout\nclients:\n  hyperfleet_api:\n    \
             base_url: {api}\n    timeout: 5s\n    page_size: 20\n{more}resource_type: clusters\npoll_interval: 200ms\n\
             resource_selector:\n  - label: region\n    value: us-east\n"
        );
        std::fs::write(folder.path().join("config.yaml"), config).unwrap();
        std::fs::write(folder.path().join("broker.yaml"), broker).unwrap();
        std::os::unix::fs::symlink(BINARY, folder.path().join("sentinel")).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.path("sentinel"));
        isolate(&mut command);
        command.args(args).current_dir(self.folder.path());
        command
    }

    async fn start(&self, env: &[(&str, &str)]) -> Sentinel {
        let config = format!("--config={}", self.path("config.yaml").display());
        let ports = ["--health-server-bindaddress=127.0.0.1:0", "--metrics-server-bindaddress=127.0.0.1:0"];
        let mut command = self.command(&["serve", &config, ports[0], ports[1]]);
        command.envs(env.iter().copied());
        Sentinel::started(Process::start(command)).await
    }
}

pub(crate) async fn fleet() -> Api {
    let fleet = Simulator::new(Dialect::Hyperfleet);
    for (name, region) in [("alpha", "us-east"), ("bravo", "us-east"), ("charlie", "eu-west")] {
        fleet.create("clusters", NewResource::named(name).label("region", region)).unwrap();
    }
    Api::serve(fleet).await
}

fn http_broker(receiver: &Receiver) -> [(&'static str, String); 2] {
    [("BROKER_HTTP_SUBSCRIBERS", format!("adapter={}", receiver.url())), ("BROKER_HTTP_STORE", "broker.db".to_owned())]
}

#[tokio::test]
async fn the_image_is_exchanged_and_the_adapters_get_their_events_over_rabbitmq() {
    let Some(url) = amqp_url("dropin::rabbitmq") else { return };
    let (api, topic) = (fleet().await, unique("dropin"));
    let mut queue = Rabbit::listen(&url, &topic, "topic", "").await;
    let broker = "broker:\n  type: rabbitmq\n  rabbitmq:\n    url: amqp://nobody@nowhere:5672/\n    exchange_type: topic\n    \
                  queue: adapters\nsubscriber:\n  parallelism: 1\n";
    let deployment = Deployment::new(&api.url, "  broker:\n    topic: \"\"\n", broker);
    let broker_yaml = deployment.path("broker.yaml").display().to_string();
    let env = [
        ("BROKER_CONFIG_FILE", broker_yaml.as_str()),
        ("BROKER_RABBITMQ_URL", url.as_str()),
        ("HYPERFLEET_BROKER_TOPIC", topic.as_str()),
    ];
    let sentinel = deployment.start(&env).await;
    let messages = queue.take(2).await;
    for message in &messages {
        let event: Value = serde_json::from_slice(&message.body).unwrap();
        assert_eq!(event["type"], "com.redhat.hyperfleet.cluster.reconcile");
        assert!(event["data"]["generation"].is_number() && event["data"]["href"].is_string(), "{event}");
    }
    sentinel.readiness(200).await;
    sentinel.stop().await;
    queue.delete().await;
}

#[tokio::test]
async fn the_image_is_exchanged_and_the_adapters_get_their_events_over_pubsub() {
    let Some(endpoint) = pubsub_endpoint("dropin::pubsub") else { return };
    let (api, project) = (fleet().await, unique("p"));
    let mut subscription = Subscription::create(&endpoint, &project, "hyperfleet-system-clusters").await;
    let broker = "broker:\n  type: googlepubsub\n  googlepubsub:\n    project_id: another\n    create_topic_if_missing: false\n\
                  subscriber:\n  parallelism: 1\n";
    let topic = "  broker:\n    topic: hyperfleet-system-clusters\n";
    let deployment = Deployment::new(&api.url, topic, broker);
    let env = [("BROKER_GOOGLEPUBSUB_PROJECT_ID", project.as_str()), ("PUBSUB_EMULATOR_HOST", endpoint.as_str())];
    let sentinel = deployment.start(&env).await;
    for message in subscription.take(2).await {
        let event: Value = serde_json::from_slice(&message.data).unwrap();
        assert_eq!(event["type"], "com.redhat.hyperfleet.cluster.reconcile");
        assert!(event["data"]["generation"].is_number() && event["data"]["href"].is_string(), "{event}");
        assert_eq!(message.attributes["_watermill_message_uuid"], event["id"]);
    }
    sentinel.readiness(200).await;
    let (_, served) = get(&format!("{}/metrics", sentinel.metrics)).await;
    assert!(served.contains("broker_type=\"gcp-pubsub\""), "{served}");
    sentinel.stop().await;
}

#[tokio::test]
async fn probes_and_log_lines_look_as_they_did() {
    let (api, receiver) = (fleet().await, Receiver::start().await);
    let deployment =
        Deployment::new(&api.url, "  broker:\n    topic: hyperfleet-clusters\n", "broker:\n  type: http\n");
    let broker = http_broker(&receiver);
    let env: Vec<_> = broker.iter().map(|(name, value)| (*name, value.as_str())).collect();
    // The broker's file stands beside the program, where nobody names it.
    let sentinel = deployment.start(&env).await;
    receiver.wait_for(2).await;
    let ready: Value = serde_json::from_str(&sentinel.readiness(200).await).unwrap();
    assert_eq!(ready["status"], "ok");
    for check in ["broker", "sentinel_poll"] {
        assert_eq!(ready["checks"][check]["status"], "ok", "{ready}");
    }
    let (status, alive) = get(&format!("{}/healthz", sentinel.health)).await;
    assert!(status == 200 && alive.contains("\"status\":\"ok\""), "{alive}");
    let line: Value = serde_json::from_str(&sentinel.process.line(&["event published"]).await).unwrap();
    for (field, value) in [
        ("level", "info"),
        ("component", "sentinel"),
        ("subset", "clusters"),
        ("topic", "hyperfleet-clusters"),
        ("message", "event published"),
    ] {
        assert_eq!(line[field], value, "{line}");
    }
    for field in ["timestamp", "version", "hostname", "decision_reason"] {
        assert!(line[field].is_string(), "{field}: {line}");
    }
    sentinel.stop().await;
}

#[tokio::test]
async fn metrics_have_the_names_and_labels_that_they_had() {
    let (api, receiver) = (fleet().await, Receiver::start().await);
    let deployment = Deployment::new(&api.url, "", "broker:\n  type: http\n");
    let broker = http_broker(&receiver);
    let env: Vec<_> = broker.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let sentinel = deployment.start(&env).await;
    receiver.wait_for(2).await;
    sentinel.readiness(200).await;
    let (_, served) = get(&format!("{}/metrics", sentinel.metrics)).await;
    // Name and label names of each series.
    let series = |text: &str| -> BTreeSet<(String, BTreeSet<String>)> {
        let series = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
        let of = |(series, _): (&str, &str)| {
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let labels = labels.split("=\"").filter_map(|part| part.rsplit(['"', ',', '{']).next());
            let labels = labels.filter(|label| !label.is_empty() && *label != "}").map(str::to_owned).collect();
            (name.to_owned(), labels)
        };
        series.map(of).collect()
    };
    let ours = series(&served);
    let has =
        |name: &str, labels: &BTreeSet<String>| ours.iter().any(|(ours, more)| ours == name && labels.is_subset(more));
    for (name, labels) in series(&read("crates/watchfire/tests/recorded/go-sentinel-metrics.txt")) {
        assert!(has(&name, &labels), "{name} {labels:?} is not in:\n{served}");
    }
    // Those that the recording had no reason to show.
    for (name, labels) in [
        ("hyperfleet_sentinel_resources_skipped_total", &["resource_type", "resource_selector", "reason"][..]),
        ("hyperfleet_sentinel_api_errors_total", &["resource_type", "resource_selector", "error_type"]),
        ("hyperfleet_sentinel_broker_errors_total", &["resource_type", "resource_selector", "error_type"]),
        ("hyperfleet_broker_errors_total", &["topic", "error_type", "component", "version"]),
    ] {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        assert!(has(name, &labels), "{name} {labels:?} is not in:\n{served}");
    }
    assert!(served.contains("resource_selector=\"region:us-east\""), "{served}");
    sentinel.stop().await;
}

#[tokio::test]
async fn config_dump_prints_what_serve_would_use_and_version_its_version() {
    let deployment = Deployment::new("http://api:8000", "", "broker:\n  type: http\n");
    let dump = deployment.command(&["config-dump", "-c", "config.yaml"]).env("HYPERFLEET_POLL_INTERVAL", "7s").output();
    let dump = dump.await.unwrap();
    let said = text(&dump.stdout);
    assert!(dump.status.success(), "{}", text(&dump.stderr));
    for part in ["name: east", "base_url: http://api:8000", "poll_interval: 7s", "page_size: 20", "level: info"] {
        assert!(said.contains(part), "{part} not in:\n{said}");
    }
    assert!(!said.contains("null"), "{said}");
    // What is printed is a configuration again.
    std::fs::write(deployment.path("config.yaml"), &said).unwrap();
    let again = deployment.command(&["config-dump", "-c", "config.yaml"]).output().await.unwrap();
    assert_eq!(text(&again.stdout), said, "{}", text(&again.stderr));
    let version = deployment.command(&["version"]).output().await.unwrap();
    assert!(text(&version.stdout).contains(env!("CARGO_PKG_VERSION")));
}

#[tokio::test]
async fn an_empty_topic_is_warned_about_and_an_older_key_names_the_one_of_today() {
    let folder = Deployment::new("http://api:8000", "  broker:\n    topic: \"\"\n", "broker:\n  type: http\n");
    let check = |more: &'static str| {
        let config = std::fs::read_to_string(folder.path("config.yaml")).unwrap() + more;
        let path = folder.path("checked.yaml");
        std::fs::write(&path, config).unwrap();
        async move {
            let args = ["config", "check", "-c", &path.display().to_string()].map(str::to_owned);
            let env = [("BROKER_TYPE", "http"), ("BROKER_HTTP_SUBSCRIBERS", "a=http://a")];
            let output = run(&args.each_ref().map(String::as_str), &env).await;
            (output.status.code(), text(&output.stdout) + &text(&output.stderr))
        }
    };
    let (status, said) = check("").await;
    assert!(status == Some(0) && said.contains("clients.broker.topic: empty: events go to"), "{said}");
    let (status, said) = check("messaging_system: rabbitmq\nhyperfleet_api:\n  endpoint: http://x\n").await;
    assert_eq!(status, Some(64), "{said}");
    for part in ["messaging_system: removed", "hyperfleet_api: unknown key, write clients.hyperfleet_api"] {
        assert!(said.contains(part), "{said}");
    }
}

#[tokio::test]
async fn a_file_is_migrated_to_the_other_form_and_its_broker_to_variables() {
    let broker =
        "broker:\n  type: rabbitmq\n  rabbitmq:\n    url: amqp://me:hunter2@mq:5672/v\n    exchange_type: topic\n";
    let deployment = Deployment::new("http://api:8000", "  broker:\n    topic: clusters # theirs\n", broker);
    let migrate = async |file: &str| {
        let output = deployment.command(&["config", "migrate", file]).output().await.unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let (flat, notes) = migrate("config.yaml").await;
    assert!(flat.contains("hyperfleet_api:\n  endpoint: http://api:8000"), "{flat}");
    assert!(
        notes.contains("set HYPERFLEET_BROKER_TOPIC=clusters") && notes.contains("HYPERFLEET_LOG_LEVEL=info"),
        "{notes}"
    );
    std::fs::write(deployment.path("flat.yaml"), flat).unwrap();
    let (nested, _) = migrate("flat.yaml").await;
    assert!(nested.contains("base_url: http://api:8000") && !nested.contains("decision"), "{nested}");
    let (variables, notes) = migrate("broker.yaml").await;
    assert_eq!(variables, "BROKER_EXCHANGE_TYPE=topic\nBROKER_TYPE=rabbitmq\nBROKER_URL=amqp://mq:5672/v\n");
    assert!(notes.contains("set BROKER_USER and BROKER_PASSWORD") && !notes.contains("hunter2"), "{notes}");
    let seeds =
        "BROKER_TYPE: rabbitmq\nBROKER_HOST: mq\nBROKER_PORT: 5673\nBROKER_VHOST: /\nBROKER_PASSWORD: hunter2\n";
    std::fs::write(deployment.path("seed.yaml"), seeds).unwrap();
    let (yaml, notes) = migrate("seed.yaml").await;
    assert!(yaml.contains("url: amqp://mq:5673/%2f") && yaml.contains("type: rabbitmq"), "{yaml}");
    assert!(notes.contains("BROKER_PASSWORD is secret") && !(yaml + &notes).contains("hunter2"));
}

#[tokio::test]
async fn two_sentinels_in_one_process_take_less_than_twice_the_memory_of_one() {
    const EACH: usize = 500;
    let fleet = Simulator::new(Dialect::Hyperfleet);
    for index in 0..2 * EACH {
        let region = ["us-east", "eu-west"][index % 2];
        fleet.create("clusters", NewResource::named(format!("c-{index}")).label("region", region)).unwrap();
    }
    let api = Api::serve(fleet).await;
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: String| std::fs::write(folder.path().join(name), content).unwrap();
    let mut peaks = Vec::new();
    for (regions, list) in [(&["us-east"][..], "one.yaml"), (&["us-east", "eu-west"], "two.yaml")] {
        let mut sentinels = "sentinels:\n".to_owned();
        for region in regions {
            let selector = format!("resource_selector: [{{label: region, value: {region}}}]");
            let config = format!("resource_type: clusters\n{selector}\nhyperfleet_api: {{endpoint: '{}'}}\n", api.url);
            write(&format!("{region}.yaml"), config);
            writeln!(sentinels, "  - {{name: {region}, config: {region}.yaml}}").unwrap();
        }
        write(list, sentinels);
        let receiver = Receiver::start().await;
        let file = folder.path().join(list).display().to_string();
        let args = ["run", "-c", &file, "--health-bind-address=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0"];
        let mut command = crate::support::command(&args);
        let store = folder.path().join(format!("{list}.db"));
        command.env("BROKER_TYPE", "http").envs(http_broker(&receiver)).env("BROKER_HTTP_STORE", store);
        let sentinel = Sentinel::started(Process::start(command)).await;
        receiver.wait_for(EACH * regions.len()).await;
        peaks.push(sentinel.process.peak_memory());
        sentinel.stop().await;
    }
    println!("peak memory of one and of two sentinels in KiB: {peaks:?}");
    assert!(peaks[1] < 2 * peaks[0], "{peaks:?}");
}

#[tokio::test]
async fn several_sentinels_run_in_one_process() {
    let (api, receiver) = (fleet().await, Receiver::start().await);
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: String| std::fs::write(folder.path().join(name), content).unwrap();
    for region in ["us-east", "eu-west"] {
        write(
            &format!("{region}.yaml"),
            format!(
                "resource_type: clusters\npoll_interval: 200ms\nresource_selector: [{{label: region, value: {region}}}]\n\
                 hyperfleet_api:\n  endpoint: {}\n",
                api.url
            ),
        );
    }
    let list = "sentinels:\n  - {name: east, config: us-east.yaml}\n  - {name: west, config: eu-west.yaml}\n";
    write("run.yaml", list.to_owned());
    let file = folder.path().join("run.yaml").display().to_string();
    let args = ["run", "-c", &file, "--health-bind-address=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0"];
    let mut command = crate::support::command(&args);
    command.env("BROKER_TYPE", "http").envs(http_broker(&receiver)).current_dir(folder.path());
    let sentinel = Sentinel::started(Process::start(command)).await;
    receiver.wait_for(3).await;
    let ready: Value = serde_json::from_str(&sentinel.readiness(200).await).unwrap();
    for check in ["east.broker", "west.broker", "east.hyperfleet_api", "west.hyperfleet_api"] {
        assert_eq!(ready["checks"][check]["status"], "ok", "{ready}");
    }
    let (_, served) = get(&format!("{}/metrics", sentinel.metrics)).await;
    for region in ["us-east", "eu-west"] {
        assert!(served.contains(&format!("resource_selector=\"region:{region}\"")), "{served}");
    }
    let said = sentinel.stop().await;
    assert!(said.contains("\"sentinel\":\"east\"") && said.contains("\"sentinel\":\"west\""), "{said}");

    write("us-east.yaml", "resource_type: clusters\n".to_owned());
    write("run.yaml", format!("{list}  - {{name: east, config: eu-west.yaml}}\n  - {{name: a b}}\nsentinel: []\n"));
    let output = run(&["run", "-c", &file], &[("BROKER_TYPE", "kafka")]).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{said}");
    for part in [
        "us-east.yaml: hyperfleet_api: missing",
        "\"kafka\" is not rabbitmq",
        "run.yaml:4:6: sentinels[2].name: \"east\" is the name of another one",
        "sentinels[3].name: each needs a name of its own",
        "sentinels[3].config: missing",
        "run.yaml:6:1: sentinel: unknown key, did you mean sentinels?",
    ] {
        assert!(said.contains(part), "{part} not in:\n{said}");
    }
}

#[tokio::test]
async fn several_topics_share_the_store_of_the_embedded_broker() {
    let (api, receiver) = (fleet().await, Receiver::start().await);
    let deployment = Deployment::new(&api.url, "  broker:\n    topic: east-events\n", "{}");
    let config = std::fs::read_to_string(deployment.path("config.yaml")).unwrap();
    std::fs::write(deployment.path("west.yaml"), config.replace("us-east", "eu-west").replace("east-", "west-"))
        .unwrap();
    let list = "sentinels:\n  - {name: east, config: config.yaml}\n  - {name: west, config: west.yaml}\n";
    std::fs::write(deployment.path("run.yaml"), list).unwrap();
    let ports = ["--health-bind-address=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0"];
    let mut command = deployment.command(&["run", "-c", "run.yaml", ports[0], ports[1]]);
    command.env("BROKER_TYPE", "http").envs(http_broker(&receiver));
    let sentinel = Sentinel::started(Process::start(command)).await;
    receiver.wait_for(3).await;
    let (_, served) = get(&format!("{}/metrics", sentinel.metrics)).await;
    for topic in ["east-events", "west-events"] {
        assert!(served.contains(&format!("topic=\"{topic}\"")), "{served}");
    }
    sentinel.stop().await;
}

#[tokio::test]
async fn several_sentinels_read_the_brokers_file_that_a_variable_names() {
    let deployment = Deployment::new("http://api:8000", "", "broker:\n  type: kafka\n");
    let other = deployment.path("other.yaml").display().to_string();
    std::fs::write(&other, "broker:\n  type: stub\n").unwrap();
    std::fs::write(deployment.path("run.yaml"), "sentinels: [{name: east, config: config.yaml}]\n").unwrap();
    let (run_yaml, broker) = (deployment.path("run.yaml"), deployment.path("broker.yaml"));
    let (run_yaml, broker) = (run_yaml.display().to_string(), broker.display().to_string());
    for variables in
        [&[("BROKER_CONFIG", &broker), ("BROKER_CONFIG_FILE", &other)][..], &[("BROKER_CONFIG_FILE", &broker)]]
    {
        let env: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let output = run(&["run", "-c", &run_yaml], &env).await;
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(64) && said.contains("\"kafka\" is not rabbitmq"), "{env:?}: {said}");
    }
}

#[tokio::test]
async fn the_command_of_the_image_serves_with_what_todays_deployment_mounts() {
    let image = read("deploy/Dockerfile");
    let last = |instruction: &str| {
        let found = image.lines().rev().find_map(|line| line.strip_prefix(instruction)).map(str::trim);
        found.unwrap_or_else(|| panic!("deploy/Dockerfile has no {instruction}")).to_owned()
    };
    let words = |instruction| -> Vec<String> { serde_json::from_str(&last(instruction)).unwrap() };
    assert_eq!(last("USER "), "65532:65532", "as today's");
    let toolchain = read("Cargo.toml");
    let version = toolchain.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap().trim_matches('"');
    assert!(image.contains(&format!("FROM rust:{version}-")), "it is built with the toolchain of the workspace");
    assert!(image.contains("cp target/release/watchfire /app/ && ln -s watchfire /app/sentinel"), "{image}");
    assert!(image.contains("COPY --from=build /app /app"), "{image}");

    // Its folder, as it says above, with the mounted files where they are mounted.
    let (api, receiver) = (fleet().await, Receiver::start().await);
    let deployment = Deployment::new(&api.url, "", "broker:\n  type: http\n");
    let app = deployment.path("app");
    std::fs::create_dir(&app).unwrap();
    std::os::unix::fs::symlink(BINARY, app.join("watchfire")).unwrap();
    std::os::unix::fs::symlink("watchfire", app.join("sentinel")).unwrap();
    let mut command = words("ENTRYPOINT ");
    command.extend(words("CMD "));
    let program = deployment.path(command.remove(0).trim_start_matches('/'));
    let mut process = Command::new(program);
    isolate(&mut process);
    process.args(command).envs(http_broker(&receiver)).current_dir(deployment.folder.path());
    process.env("HYPERFLEET_CONFIG", deployment.path("config.yaml")).env("BROKER_CONFIG_FILE", "broker.yaml");
    process.args(["--health-server-bindaddress=127.0.0.1:0", "--metrics-server-bindaddress=127.0.0.1:0"]);
    let sentinel = Sentinel::started(Process::start(process)).await;
    receiver.wait_for(2).await;
    sentinel.readiness(200).await;
    sentinel.stop().await;
}
