//! Documents that are generated from the binary: `make drift` compares them, and with `UPDATE_GOLDEN=1` rewrites them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;
use watchfire_sentinel::config::broker::{ADAPTERS, SHARED, variable};
use watchfire_sentinel::config::setting::SETTINGS;
use watchfire_simulator::{Dialect, Simulator};
use watchfire_testkit::Receiver;

use crate::support::{Api, Setup, get, root, run, text};

/// The variables that the sentinel reads for its broker: which brokers read it, and what it says.
const BROKER: [(&str, &str, &str); 21] = [
    (
        "BROKER_TYPE",
        "all",
        "`rabbitmq`, `pubsub` (also `googlepubsub` or `gcp-pubsub`), or `http` for the embedded broker. Required.",
    ),
    ("BROKER_CONFIG", "all", "Where these settings stand, if not in the environment; the flag `--broker-config`."),
    (
        "BROKER_CONFIG_FILE",
        "all",
        "The same by the name that today's HyperFleet has for it. Without either, a `broker.yaml` beside the program is read.",
    ),
    (
        "BROKER_TOPIC",
        "pubsub, rabbitmq",
        "The topic, as its short name; on RabbitMQ the exchange, where `BROKER_EXCHANGE` is not set. Default `hyperfleet-events`.",
    ),
    ("BROKER_PROJECT_ID", "pubsub", "The Google Cloud project. Required."),
    ("BROKER_HOST", "rabbitmq", "Host name. Required, unless `BROKER_URL` has it."),
    ("BROKER_PORT", "rabbitmq", "Default `5672`, with TLS `5671`."),
    ("BROKER_VHOST", "rabbitmq", "Virtual host. Default `/`."),
    ("BROKER_TLS", "rabbitmq", "`true` or `false` (default)."),
    ("BROKER_EXCHANGE", "rabbitmq", "The exchange; declared durable if it is not there. Default `hyperfleet-events`."),
    (
        "BROKER_EXCHANGE_TYPE",
        "rabbitmq",
        "`fanout` (default), `direct`, `topic` or `headers`; must be the type of an exchange that is there.",
    ),
    (
        "BROKER_ROUTING_KEY",
        "rabbitmq",
        "Default: empty, which adapters bind and a fanout exchange ignores. Anything else is warned about.",
    ),
    ("BROKER_RABBITMQ_PUBLISHER_CONFIRM", "rabbitmq", "Confirms are always on; `false` is warned about."),
    (
        "BROKER_GOOGLEPUBSUB_CREATE_TOPIC_IF_MISSING",
        "pubsub",
        "`true` creates a topic that is not there. Default `false`.",
    ),
    ("BROKER_USER", "rabbitmq", "Default `guest`, whom RabbitMQ lets in from its own host only."),
    ("BROKER_PASSWORD", "rabbitmq", "The user's password; never shown."),
    ("BROKER_PASSWORD_FILE", "rabbitmq", "A file with the password, read again when it changes."),
    (
        "BROKER_URL",
        "rabbitmq",
        "`amqp://host:port/vhost` or `amqps://...` in one; the variables above take precedence. Credentials in it work, are warned about and never shown.",
    ),
    (
        "BROKER_HTTP_SUBSCRIBERS",
        "http",
        "Who gets every event: `name=URL,name=URL`. A comma in a URL is written `%2C`. Userinfo becomes basic authentication and is never shown. Required.",
    ),
    (
        "BROKER_HTTP_STORE",
        "http",
        "The file of the embedded broker's queue, which belongs on a volume that survives the process; for `watchfire outbox`, the flag `--store`. Default `watchfire-broker.db`.",
    ),
    ("BROKER_SUBSCRIPTION_ID", "none", "For adapters, which may share these settings; the sentinel takes no notice."),
];

/// Every command; `serve` is `sentinel` by another name.
const COMMANDS: [&str; 24] = [
    "beacon",
    "beacon role",
    "beacon verify",
    "sentinel",
    "sentinel explain",
    "sentinel coverage",
    "sentinel record",
    "sentinel simulate",
    "run",
    "demo",
    "config check",
    "config show",
    "config migrate",
    "config schema",
    "config-dump",
    "outbox list",
    "outbox show",
    "outbox retry",
    "outbox discard",
    "outbox export",
    "outbox pause",
    "outbox resume",
    "completions",
    "version",
];

/// Everything else that the environment can say and that is no key of a file.
const OTHER: [(&str, &str); 22] = [
    ("HYPERFLEET_CONFIG", "The sentinel's file; the flag `--config`."),
    ("HYPERFLEET_API_TOKEN", "The bearer token for the API; never shown. Takes precedence over any token file."),
    ("RUST_LOG", "Levels per module, for example `info,watchfire_sentinel=debug`; overrides the level."),
    ("HOSTNAME", "The `hostname` in log lines. Default: the machine's name."),
    (
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "Where traces are sent, over HTTP (`http/protobuf`, port 4318 by custom); `/v1/traces` is added. Without it there are none.",
    ),
    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "The same, taken as it is; takes precedence."),
    (
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        "Only `http/protobuf`; others are warned about. `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL` takes precedence.",
    ),
    (
        "OTEL_EXPORTER_OTLP_HEADERS",
        "`name=value,name=value`, for a collector that asks who sends. `OTEL_EXPORTER_OTLP_TRACES_HEADERS` takes precedence.",
    ),
    ("OTEL_TRACES_EXPORTER", "`none` sends no traces."),
    ("OTEL_SDK_DISABLED", "`true` sends no traces."),
    (
        "OTEL_TRACES_SAMPLER",
        "Which cycles are traced: `parentbased_always_on` (default), `always_on`, `always_off`, `traceidratio`, `parentbased_traceidratio` or `parentbased_always_off`.",
    ),
    ("OTEL_TRACES_SAMPLER_ARG", "For `traceidratio`: the share, from 0 to 1."),
    ("OTEL_SERVICE_NAME", "The `service.name` of traces. Default `sentinel`."),
    ("OTEL_RESOURCE_ATTRIBUTES", "`name=value,name=value`, on every span."),
    ("OTEL_BSP_MAX_QUEUE_SIZE", "Spans that wait to be sent, default 2,048; more are dropped and counted."),
    ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "Spans that are sent at once, default 512."),
    ("OTEL_BSP_SCHEDULE_DELAY", "Milliseconds from one batch to the next, default 5,000."),
    (
        "HYPERFLEET_TRACE_RESOURCES",
        "Which resources have a span of their own, `sentinel.evaluate`, in the trace of each cycle: ids separated by commas, or `all`. Default: none.",
    ),
    ("SSL_CERT_FILE", "A file in PEM form with the authorities that TLS trusts, in place of the system's."),
    (
        "SSL_CERT_DIR",
        "Folders of such files, separated by colons. Where neither is set and the system has none, those built in are trusted.",
    ),
    ("PUBSUB_EMULATOR_HOST", "`host:port` of a Pub/Sub emulator; a missing topic is then created."),
    (
        "GOOGLE_APPLICATION_CREDENTIALS",
        "Credentials for Pub/Sub, where the machine does not provide them (workload identity does).",
    ),
];

/// Compares a document with what it should be, or rewrites it.
pub(crate) fn golden(path: &str, expected: &str) {
    let file = root().join(path);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, expected).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    let different = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    assert!(found == expected, "{path} is out of date ({different:?}); run UPDATE_GOLDEN=1 make drift");
}

/// One line of text, as a cell of a table takes it.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// The rows of one object of the schema, its own objects after each key.
fn rows(schema: &Value, object: &Value, prefix: &str, out: &mut String) {
    let resolve = |value: &Value| match value["$ref"].as_str().and_then(|reference| reference.strip_prefix("#/$defs/"))
    {
        Some(name) => schema["$defs"][name].clone(),
        None => value.clone(),
    };
    for (key, property) in object["properties"].as_object().expect("properties") {
        let variants = property["anyOf"].as_array().cloned().unwrap_or_else(|| vec![property.clone()]);
        let variants: Vec<_> = variants.iter().map(resolve).filter(|variant| variant["type"] != "null").collect();
        // A choice of forms, each documented on its own.
        let forms: Vec<_> =
            variants.iter().flat_map(|v| v["anyOf"].as_array().cloned().unwrap_or_else(|| vec![v.clone()])).collect();
        let kinds: BTreeSet<_> = forms.iter().map(|form| kind(&resolve(form))).collect();
        let kinds = kinds.into_iter().collect::<Vec<_>>().join(" or ");
        let about = cell(property["description"].as_str().unwrap_or_default());
        writeln!(out, "| `{prefix}{key}` | {kinds} | {about} |").unwrap();
        for form in forms.iter().map(resolve) {
            if form["properties"].is_object() {
                rows(schema, &form, &format!("{prefix}{key}."), out);
            } else if form["items"]["$ref"].is_string() {
                rows(schema, &resolve(&form["items"]), &format!("{prefix}{key}[]."), out);
            }
        }
    }
}

/// What kind of value a key takes.
fn kind(form: &Value) -> String {
    let listed = |values: &[Value]| {
        let names: Vec<_> = values.iter().filter_map(Value::as_str).map(|name| format!("`{name}`")).collect();
        names.join(" or ")
    };
    if let Some(choices) = form["oneOf"].as_array() {
        let names: Vec<_> = choices.iter().map(|choice| choice["const"].clone()).collect();
        return listed(&names);
    }
    if let Some(names) = form["enum"].as_array() {
        return listed(names);
    }
    let ty = &form["type"];
    let ty = ty
        .as_str()
        .or_else(|| ty.as_array().and_then(|all| all.iter().filter_map(Value::as_str).find(|ty| *ty != "null")));
    match ty {
        Some("string") if form["pattern"].is_string() => "duration",
        Some("string") => "text",
        Some("integer" | "number") => "number",
        Some("boolean") => "true or false",
        Some("object") if form["additionalProperties"].is_object() => "map",
        Some("object") => "keys",
        Some("array") => "list",
        Some(other) => panic!("{other} has no name yet"),
        None => "map",
    }
    .to_owned()
}

#[tokio::test]
async fn the_reference_of_the_configuration_is_what_the_binary_says() {
    let schema = async |form| -> Value {
        serde_json::from_slice(&run(&["config", "schema", "--form", form], &[]).await.stdout).expect("JSON")
    };
    let mut doc = "# Configuration of the sentinel

Generated; `UPDATE_GOLDEN=1 make drift` writes it anew. How files are read, durations, and what errors look like:
[config-format.md](config-format.md). By example: [sentinel.md](sentinel.md). `watchfire config schema` prints a JSON
Schema for editors, `watchfire config check` reports every problem at once, and `watchfire config show` prints what is
in effect.

A file has one of two forms, told by its keys: the sentinel's own, or that of today's HyperFleet
([migrate-hyperfleet-sentinel.md](migrate-hyperfleet-sentinel.md)). `watchfire config migrate` turns one into the other.

## The file

| key | value | |
|---|---|---|
"
    .to_owned();
    let flat = schema("flat").await;
    rows(&flat, &flat, "", &mut doc);
    doc.push_str("\n## The file in the form of today's HyperFleet\n\n| key | value | |\n|---|---|---|\n");
    let nested = schema("hyperfleet").await;
    rows(&nested, &nested, "", &mut doc);
    doc.push_str("\n## The same by variable and flag\n\nA flag stands above a variable, and that above the file. They work with either form.\n\n| key | variable | flag |\n|---|---|---|\n");
    for setting in &SETTINGS {
        let variables: Vec<_> = setting.variables.iter().map(|name| format!("`{name}`")).collect();
        let by_flag = setting.flag.map(|flag| format!("`--{flag}`")).unwrap_or_default();
        writeln!(doc, "| `{}` | {} | {by_flag} |", setting.key, variables.join(", ")).unwrap();
    }
    doc.push_str("\n## The broker\n\nFrom the environment, or from what `--broker-config` names: a `broker.yaml`, a mounted ConfigMap's folder, a\nConfigMap's manifest, or a YAML map of these names. The environment takes precedence.\n\n| variable | broker | |\n|---|---|---|\n");
    for (name, brokers, about) in BROKER {
        writeln!(doc, "| `{name}` | {brokers} | {} |", cell(about)).unwrap();
    }
    doc.push_str("\n## broker.yaml\n\nToday's HyperFleet keeps these in a file that adapters share; its variables are the keys in capitals.\n\n| key | variable | the same as |\n|---|---|---|\n");
    for (name, key) in SHARED {
        writeln!(doc, "| `{key}` | `{}` | `{name}` |", variable(key)).unwrap();
    }
    let theirs: Vec<_> = ADAPTERS.iter().map(|key| format!("`{key}`")).collect();
    writeln!(doc, "\nOnly adapters read: {}.", theirs.join(", ")).unwrap();
    doc.push_str("\n## Other variables\n\n| variable | |\n|---|---|\n");
    for (name, about) in OTHER {
        writeln!(doc, "| `{name}` | {} |", cell(about)).unwrap();
    }
    doc.push_str("\n## Flags\n");
    for command in COMMANDS {
        let args: Vec<_> = command.split(' ').chain(["--help"]).collect();
        let help = text(&run(&args, &[]).await.stdout);
        let help: Vec<_> = help.trim_end().lines().map(str::trim_end).collect();
        write!(doc, "\n```text\n$ watchfire {command} --help\n{}\n```\n", help.join("\n")).unwrap();
    }
    golden("docs/config.md", &doc);
}

#[tokio::test]
async fn the_reference_of_the_beacons_configuration_is_what_the_binary_says() {
    let schema = run(&["config", "schema", "--form", "beacon"], &[]).await.stdout;
    let schema: Value = serde_json::from_slice(&schema).expect("JSON");
    let mut doc = "# Configuration of the beacon

Generated; `UPDATE_GOLDEN=1 make drift` writes it anew. How files are read, durations, and what errors look like:
[config-format.md](config-format.md). By example: [beacon.md](beacon.md). `watchfire config schema --form beacon` prints a JSON
Schema for editors. Everything that is wrong with a file is told at once, before anything is watched.

| key | value | |
|---|---|---|
"
    .to_owned();
    rows(&schema, &schema, "", &mut doc);
    doc.push_str("\n| variable | |\n|---|---|\n");
    for (name, about) in [
        (
            "CONFIG_PATH",
            "The file of `watchfire beacon` and of what one asks it; the flag `--config`. `watchfire config` takes the flag alone.",
        ),
        ("DB_PATH", "Takes precedence over `storage.dbPath`."),
        ("ENDPOINT_URL", "Takes precedence over `endpoint.url`."),
        ("ENDPOINT_AUTH_TOKEN", "The bearer token; never shown. Takes precedence over `endpoint.tokenFile`."),
        (
            "ENDPOINT_SIGNING_SECRET",
            "Signing secrets; never shown. Takes precedence over `endpoint.signingSecretFile`.",
        ),
        ("KUBECONFIG", "The cluster, outside of one; without it `~/.kube/config`."),
    ] {
        writeln!(doc, "| `{name}` | {about} |").unwrap();
    }
    golden("docs/config-beacon.md", &doc);
}

#[tokio::test]
async fn every_variable_of_the_broker_is_in_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sentinel.yaml").display().to_string();
    std::fs::write(&file, "resource_type: clusters\nhyperfleet_api:\n  endpoint: http://api\n").unwrap();
    let env = [("BROKER_NONSENSE", "1"), ("BROKER_TYPE", "pubsub"), ("BROKER_PROJECT_ID", "p")];
    let said = text(&run(&["config", "check", "--config", &file], &env).await.stdout);
    let known = said.split_once("known are ").expect("the list").1.lines().next().unwrap().to_owned();
    let known: BTreeSet<_> = known.split(", ").collect();
    let documented: BTreeSet<_> = BROKER.iter().map(|(name, ..)| *name).collect();
    assert_eq!(known, documented);
}

#[tokio::test]
async fn the_list_of_metrics_is_what_a_fresh_process_serves() {
    let api = Api::serve(Simulator::new(Dialect::Hyperfleet)).await;
    let receiver = Receiver::start().await;
    let setup = Setup::new(&api.url, "", receiver.url());
    let sentinel = setup.start().await;
    sentinel.readiness(200).await;
    let (_, served) = get(&format!("{}/metrics", sentinel.metrics)).await;
    let mut doc = "# Metrics of the sentinel

Generated; `UPDATE_GOLDEN=1 make drift` writes it anew. Every series also carries `component` and `version`. Known label
values exist from the start, so that a rate exists before the first failure. `outbox_*` and `store_*` belong to the
embedded broker (`BROKER_TYPE=http`); their `sink` is a subscriber's name. Dashboard, alerts
and what to do when one fires: [sentinel.md](sentinel.md#watching-it).

`resource_type`, `resource_selector` and `shard` say which sentinel it is. The last two hold its selector, or `all`:
`shard` as Kubernetes writes it (`region=us-east`), `resource_selector` as today's sentinel does (`region:us-east`).

`decision_latency_seconds` counts from `updated_time`, which the API projects to the second and by its own clock.
`hyperfleet_broker_message_duration_seconds` of other HyperFleet components is the time that a consumer spent on a
message; the sentinel consumes none. What its broker took is `hyperfleet_sentinel_publish_duration_seconds`.

| metric | type | labels | |
|---|---|---|---|
"
    .to_owned();
    doc.push_str(&families(&served));
    golden("docs/metrics.md", &doc);
}

/// A row for each family that a process serves: name, type, labels, what it says.
pub(crate) fn families(served: &str) -> String {
    let mut families: Vec<String> = Vec::new();
    for family in served.split("# HELP ").skip(1) {
        let mut lines = family.lines();
        let (name, help) = lines.next().and_then(|line| line.split_once(' ')).expect("a name and a sentence");
        let ty = lines.next().and_then(|line| line.rsplit_once(' ')).expect("a type").1;
        let series = lines.next().expect("a series");
        let labels =
            series.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')).map_or("", |(labels, _)| labels);
        // Values may hold commas, names are followed by `="`.
        let labels = labels.split("=\"").filter_map(|part| part.rsplit(['"', ',']).next().map(str::to_owned));
        let common = if name.starts_with("event_component_") { "" } else { "component" };
        let hidden = [common, "version", "le", ""];
        let labels: Vec<_> =
            labels.filter(|label| !hidden.contains(&label.as_str())).map(|l| format!("`{l}`")).collect();
        families.push(format!("| `{name}` | {ty} | {} | {} |", labels.join(", "), cell(help.trim_end_matches('.'))));
    }
    families.sort();
    families.join("\n") + "\n"
}
