//! `watchfire config`, the command line, and what both say when something is wrong.

use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::support::{command, root, run, text};

const MINIMAL: &str = "resource_type: clusters\nhyperfleet_api:\n  endpoint: http://api:8000\n";
const BROKER: [(&str, &str); 2] =
    [("BROKER_TYPE", "http"), ("BROKER_HTTP_SUBSCRIBERS", "validation=http://validation:8080/events")];

type Env<'a> = &'a [(&'a str, &'a str)];

/// `config check` on this file; the exit status and what was said on standard error.
async fn check(file: &Path, env: Env<'_>) -> (Option<i32>, String) {
    let output = run(&["config", "check", "--config", &file.display().to_string()], env).await;
    (output.status.code(), text(&output.stderr))
}

#[tokio::test]
async fn bad_files_are_told_with_file_line_key_and_what_to_try() {
    let folder = tempfile::tempdir().unwrap();
    let table: [(&str, &[u8], &[&str]); 15] = [
        ("unknown-key.yaml", b"pol_interval: 5s\n", &[":1:1: pol_interval: unknown key, did you mean poll_interval?"]),
        ("nested.yaml", b"hyperfleet_api:\n  endpiont: http://x\n", &[":2:3: hyperfleet_api.endpiont", "endpoint?"]),
        ("token.yaml", b"hyperfleet_api:\n  token: abc\n", &[":2:3: hyperfleet_api.token", "HYPERFLEET_API_TOKEN"]),
        ("wrong-type.yaml", b"resource_type: [a]\n", &[":1:", "resource_type", "expected"]),
        ("list.yaml", b"- resource_type: clusters\n", &[":1:", "expected keys with values"]),
        (
            "unit.yaml",
            b"resource_type: clusters\npoll_interval: 5\n",
            &[":2:", "poll_interval", "write for example \"10s\""],
        ),
        ("soon.yaml", b"poll_interval: soon\n", &[":1:", "poll_interval", "soon", "write for example"]),
        ("zero.yaml", b"poll_interval: 0s\n", &[":1:1: poll_interval: must be longer than 0, for example 5s"]),
        ("template.yaml", b"message_data:\n  id: .id\n  x: '{{ if }}'\n", &[":3:3: message_data.x", "line 1, column"]),
        (
            "endpoint.yaml",
            b"hyperfleet_api:\n  endpoint: api:8000\n",
            &[":2:3: hyperfleet_api.endpoint", "write it like http://"],
        ),
        ("syntax.yaml", b"resource_type: clusters\n  bad: [\n", &["syntax.yaml:"]),
        ("twice.yaml", b"poll_interval: 5s\npoll_interval: 6s\n", &[":2:", "poll_interval"]),
        ("empty.yaml", b"# nothing\n\n", &["the file is empty, nothing is configured"]),
        (
            "two.yaml",
            b"resource_type: a\n---\nresource_type: b\n",
            &["more than one YAML document", "files of their own"],
        ),
        ("binary.yaml", b"\x7fELF\x02\x01\x01\x00\xff\xfe", &["binary.yaml", "UTF-8", "is it the right file?"]),
    ];
    for (name, content, parts) in table {
        let file = folder.path().join(name);
        std::fs::write(&file, content).unwrap();
        let (status, said) = check(&file, &BROKER).await;
        assert_eq!(status, Some(64), "{name}: {said}");
        assert!(said.starts_with("watchfire: ") && said.contains(name), "{name}: {said}");
        for part in parts {
            assert!(said.contains(part), "{part:?} not in: {said}");
        }
        assert!(!said.contains("abc"), "no token is repeated: {said}");
    }
}

#[tokio::test]
async fn files_that_cannot_be_read_are_told_with_what_to_try() {
    let folder = tempfile::tempdir().unwrap();
    for (path, parts) in [
        (folder.path().join("missing.yaml"), ["missing.yaml: No such file", "check the path"]),
        (folder.path().to_owned(), ["Is a directory", "name the file in it"]),
        // The one file that even the superuser cannot read from its beginning.
        ("/proc/self/mem".into(), ["/proc/self/mem: ", "check that it is a plain file"]),
        ("/dev/zero".into(), ["/dev/zero", "larger than 1 MiB, is it the right one?"]),
    ] {
        let (status, said) = check(&path, &BROKER).await;
        assert_eq!(status, Some(64), "{said}");
        for part in parts {
            assert!(said.contains(part), "{part:?} not in: {said}");
        }
    }
}

/// As from `--config <(helm template ..)`: what was read once is gone.
#[tokio::test]
async fn a_configuration_is_read_from_a_pipe() {
    let piped = async |args: &[&str], input: &str| {
        let mut command = command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).envs(BROKER);
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).await.unwrap();
        let output = child.wait_with_output().await.unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    assert!(piped(&["config", "check", "--config", "/dev/stdin"], MINIMAL).await.contains("is valid"));
    assert!(piped(&["config", "migrate", "/dev/stdin"], MINIMAL).await.contains("base_url: http://api:8000"));
    let variables = piped(&["config", "migrate", "/dev/stdin"], "broker:\n  type: rabbitmq\n").await;
    assert_eq!(variables, "BROKER_TYPE=rabbitmq\n");
}

#[tokio::test]
async fn the_guide_shows_what_is_really_said() {
    let guide = std::fs::read_to_string(root().join("docs/config-format.md")).unwrap();
    let block = |kind: &str| {
        let start = guide.split_once(&format!("```{kind}\n")).unwrap().1;
        start.split_once("```").unwrap().0.to_owned()
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sentinel.yaml");
    std::fs::write(&file, block("yaml")).unwrap();
    let env = [("BROKER_TYPE", "rabbitmq"), ("BROKER_HOST", "mq"), ("BROKER_PORT", "amqp")];
    let (_, said) = check(&file, &env).await;
    let said = said.replace(&file.display().to_string(), "sentinel.yaml");
    assert_eq!(said.strip_prefix("watchfire: "), Some(block("text").as_str()));
}

#[tokio::test]
async fn everything_wrong_in_file_and_environment_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sentinel.yaml");
    std::fs::write(&file, "poll_interval: 0s\nbackoffReady: 30m\n").unwrap();
    let (status, said) = check(&file, &[("BROKER_TYPE", "kafka")]).await;
    assert_eq!(status, Some(64));
    for part in [
        ":1:1: poll_interval: must be longer than 0",
        ":2:1: backoffReady: unknown key, write max_age_ready",
        "resource_type: missing; write the plural",
        "hyperfleet_api: missing; write the API's address",
        "environment variable BROKER_TYPE: \"kafka\" is not rabbitmq, pubsub (or googlepubsub, gcp-pubsub) or http",
    ] {
        assert!(said.contains(part), "{part:?} not in: {said}");
    }
}

#[tokio::test]
async fn broker_settings_that_do_not_hold_name_the_variable_and_what_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sentinel.yaml");
    std::fs::write(&file, MINIMAL).unwrap();
    let table: [(Env, &[&str]); 9] = [
        (&[], &["BROKER_TYPE: missing; set it to rabbitmq, pubsub, or http"]),
        (&[("BROKER_TYPE", "")], &["BROKER_TYPE: missing"]),
        (&[("BROKER_TYPE", "pubsub")], &["BROKER_PROJECT_ID: missing", "for example"]),
        (&[("BROKER_TYPE", "rabbitmq")], &["BROKER_HOST: missing"]),
        (&[("BROKER_TYPE", "rabbitmq"), ("BROKER_HOST", "mq"), ("BROKER_PORT", "amqp")], &["BROKER_PORT"]),
        (&[("BROKER_TYPE", "rabbitmq"), ("BROKER_URL", "http://u:hunter2@mq")], &["BROKER_URL", "amqp://"]),
        (
            &[("BROKER_TYPE", "rabbitmq"), ("BROKER_HOST", "mq"), ("BROKER_EXCHANGE_TYPE", "fan")],
            &["BROKER_EXCHANGE_TYPE", "fanout, direct, topic or headers"],
        ),
        (&[("BROKER_TYPE", "http")], &["BROKER_HTTP_SUBSCRIBERS: missing; write name=URL"]),
        (
            &[("BROKER_TYPE", "http"), ("BROKER_HTTP_SUBSCRIBERS", "http://u:hunter2@x/")],
            &["BROKER_HTTP_SUBSCRIBERS", "write name=URL"],
        ),
    ];
    for (env, parts) in table {
        let (status, said) = check(&file, env).await;
        assert_eq!(status, Some(64), "{env:?}: {said}");
        assert!(!said.contains("hunter2"), "{said}");
        for part in parts {
            assert!(said.contains(part), "{part:?} not in: {said}");
        }
    }
}

#[tokio::test]
async fn a_good_file_passes_with_its_warnings() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sentinel.yaml").display().to_string();
    std::fs::write(&file, format!("{MINIMAL}max_age_not_ready: 1h\n")).unwrap();
    let env = [BROKER[0], BROKER[1], ("BROKER_COLOUR", "red")];
    let output = run(&["config", "check", "--config", &file], &env).await;
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for part in
        ["max_age_not_ready: longer than max_age_ready", "BROKER_COLOUR: not a setting", "the configuration is valid"]
    {
        assert!(said.contains(part), "{said}");
    }
    // The same by the variable that names the file.
    let output = run(&["config", "check"], &[BROKER[0], BROKER[1], ("HYPERFLEET_CONFIG", &file)]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[tokio::test]
async fn show_prints_what_is_in_effect_and_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sentinel.yaml").display().to_string();
    std::fs::write(&file, MINIMAL).unwrap();
    let broker = folder.path().join("broker.yaml").display().to_string();
    std::fs::write(&broker, "BROKER_TYPE: rabbitmq\nBROKER_HOST: mq\nBROKER_PORT: 5673\nBROKER_VHOST: /\n").unwrap();
    let env = [
        ("HYPERFLEET_API_TOKEN", "hunter2-token"),
        ("BROKER_USER", "sentinel"),
        ("BROKER_PASSWORD", "hunter2-password"),
        ("BROKER_VHOST", "from-environment"),
        ("BROKER_TLS", "true"),
    ];
    let output = run(&["config", "show", "--config", &file, "--broker-config", &broker], &env).await;
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for part in [
        "poll_interval: 5s",
        "max_age_ready: 30m",
        "token: <redacted>",
        "BROKER_PASSWORD: <redacted>",
        "BROKER_VHOST: from-environment",
        "BROKER_TLS: ",
        "BROKER_EXCHANGE: hyperfleet-events",
        "5673",
    ] {
        assert!(said.contains(part), "{part:?} not in: {said}");
    }
    assert!(!said.contains("hunter2"), "{said}");
}

#[tokio::test]
async fn the_schema_is_one_of_the_files_keys() {
    let output = run(&["config", "schema"], &[]).await;
    assert_eq!(output.status.code(), Some(0));
    let schema: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(schema["properties"]["max_age_not_ready"]["description"].as_str().is_some_and(|text| text.contains("10s")));
}

#[tokio::test]
async fn the_schema_speaks_of_the_file_and_not_of_the_program() {
    for (form, title) in [
        ("flat", "Configuration of a Watchfire sentinel"),
        ("hyperfleet", "Configuration of a sentinel, in the form of today's HyperFleet"),
        ("broker", "broker.yaml"),
    ] {
        let said = text(&run(&["config", "schema", "--form", form], &[]).await.stdout);
        let schema: Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(schema["title"], title);
        for ours in ["file as typed", "decision` as typed", "crate::", "`Debug`"] {
            assert!(!said.contains(ours), "{form}: {ours:?} in {said}");
        }
    }
}

#[tokio::test]
async fn the_schema_of_the_broker_takes_what_the_file_takes() {
    let said = text(&run(&["config", "schema", "--form", "broker"], &[]).await.stdout);
    let schema: Value = serde_json::from_str(&said).expect("JSON");
    let takes = |name: &str, ty: &str| {
        let types = schema["$defs"][name]["type"].as_array().expect("several types");
        types.iter().any(|known| known == ty)
    };
    assert!(takes("Plain", "boolean"), "publisher_confirm: true");
    assert!(takes("Theirs", "number"), "prefetch_count: 20");
}

#[tokio::test]
async fn a_file_to_migrate_is_named_as_for_the_other_commands() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sentinel.yaml").display().to_string();
    std::fs::write(&file, MINIMAL).unwrap();
    let plain = run(&["config", "migrate", &file], &[]).await;
    let named = run(&["config", "migrate", "--config", &file], &[]).await;
    assert_eq!(named.status.code(), Some(0), "{}", text(&named.stderr));
    assert_eq!(named.stdout, plain.stdout);
    for wrong in [&["config", "migrate"][..], &["config", "migrate", &file, "--config", &file]] {
        assert_eq!(run(wrong, &[]).await.status.code(), Some(64), "{wrong:?}");
    }
}

#[tokio::test]
async fn a_list_of_sentinels_is_known_for_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.yaml").display().to_string();
    std::fs::write(&file, "sentinels:\n  - name: clusters\n    config: clusters.yaml\n").unwrap();
    for command in [&["config", "check"][..], &["config", "migrate"], &["sentinel"]] {
        let output = run(&[command, &["--config", &file]].concat(), &[]).await;
        assert_eq!(output.status.code(), Some(64), "{command:?}");
        let said = text(&output.stderr);
        assert!(said.contains("sentinels: this is a list for `watchfire run`"), "{said}");
        assert!(said.contains("check each file that it names") && !said.contains("unknown"), "{said}");
    }
}

#[tokio::test]
async fn wrong_usage_is_64_and_help_is_0() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sentinel.yaml").display().to_string();
    std::fs::write(&file, MINIMAL).unwrap();
    let config = ["--config", file.as_str()];
    let wrong: [&[&str]; 10] = [
        &[],
        &["nonsense"],
        &["demo", "--nonsense"],
        &["sentinel"],
        &["config"],
        &["config", "check", "--config"],
        &["sentinel", config[0], config[1], "--grace-period", "soon"],
        &["sentinel", config[0], config[1], "--log-format", "xml"],
        &["sentinel", config[0], config[1], "--log-level", "lots=of=it"],
        &["sentinel", config[0], config[1], "--health-bind-address", "8080"],
    ];
    for args in wrong {
        let output = run(args, &BROKER).await;
        assert_eq!(output.status.code(), Some(64), "{args:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{args:?}");
    }
    let right: [&[&str]; 8] = [
        &["--help"],
        &["help", "sentinel"],
        &["sentinel", "--help"],
        &["demo", "-h"],
        &["version"],
        &["--version"],
        &["sentinel", "--version"],
        &["completions", "bash"],
    ];
    for args in right {
        let output = run(args, &[]).await;
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{args:?}");
    }
}

/// What the documents that specified the sentinel wrote down as YAML, each file as it stands there.
#[tokio::test]
async fn every_example_of_the_specifications_is_accepted_or_refused_with_what_to_write() {
    let folder = root().join("crates/watchfire/tests/data");
    let several: &[&str] = &["more than one YAML document"];
    let object: &[&str] = &["is a Kubernetes object", "begin with resource_type"];
    let spec: &[&str] = &[
        "kind: this is a SentinelConfig object",
        "decision: time_only",
        "spec.resourceType: write resource_type",
        "spec.backoffNotReady: write max_age_not_ready",
        "spec.shardSelector: write resource_selector",
        "spec.broker: set BROKER_TYPE",
    ];
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let expected: Result<(), &[&str]> = match name.as_str() {
            "object-several.yaml" | "object-rbac.yaml" => Err(several),
            "object-crd.yaml" | "object-deployment.yaml" => Err(object),
            name if name.starts_with("object-sentinelconfig") => Err(spec),
            _ => Ok(()),
        };
        let own = tempfile::tempdir().unwrap();
        let file = own.path().join("sentinel.yaml");
        let example = std::fs::read_to_string(&path).unwrap();
        let (status, said) = if name.starts_with("broker-") {
            std::fs::write(&file, MINIMAL).unwrap();
            let args = [
                "--config".to_owned(),
                file.display().to_string(),
                "--broker-config".into(),
                path.display().to_string(),
            ];
            let args: Vec<_> = ["config", "show"].into_iter().chain(args.iter().map(String::as_str)).collect();
            let output = run(&args, &[]).await;
            let kind = if name.contains("pubsub") { "BROKER_TYPE: pubsub" } else { "BROKER_TYPE: rabbitmq" };
            assert!(text(&output.stdout).contains(kind), "{name}: {}", text(&output.stderr));
            (output.status.code(), text(&output.stderr))
        } else {
            // A fragment shows one key; the two that are required stand around it.
            let rest = if name.starts_with("fragment-") { MINIMAL } else { "" };
            std::fs::write(&file, format!("{example}{rest}")).unwrap();
            check(&file, &BROKER).await
        };
        match expected {
            Ok(()) => assert_eq!(status, Some(0), "{name}: {said}"),
            Err(parts) => {
                assert_eq!(status, Some(64), "{name}: {said}");
                for part in parts {
                    assert!(said.contains(part), "{name}: {part:?} not in: {said}");
                }
            }
        }
        count += 1;
    }
    assert_eq!(count, 19, "an example that nobody thought of");
}

/// What a command prints for programs.
async fn json(args: &[&str], env: Env<'_>) -> (Option<i32>, Value) {
    let output = run(&[args, &["-o", "json"]].concat(), env).await;
    let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output.status.code(), document)
}

#[tokio::test]
async fn programs_are_answered_in_json() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sentinel.yaml").display().to_string();
    let check = ["config", "check", "--config", &file];
    std::fs::write(&file, MINIMAL).unwrap();
    assert_eq!(json(&check, &BROKER).await, (Some(0), json!({"valid": true, "warnings": []})));
    let (status, document) = json(&check, &[BROKER[0], BROKER[1], ("BROKER_NONSENSE", "1")]).await;
    assert_eq!((status, &document["warnings"][0]["variable"]), (Some(0), &"BROKER_NONSENSE".into()), "{document}");
    assert!(document["warnings"][0]["message"].as_str().unwrap().contains("known are"), "{document}");

    std::fs::write(&file, format!("{MINIMAL}pol: 1\n")).unwrap();
    let (status, document) = json(&check, &[("BROKER_TYPE", "kafka")]).await;
    assert_eq!((status, &document["valid"]), (Some(64), &false.into()), "{document}");
    let problems = document["problems"].as_array().unwrap();
    let place = |problem: &Value| ["file", "line", "column", "key"].map(|name| problem[name].clone());
    assert!(problems.iter().any(|it| place(it) == [json!(file), json!(4), json!(1), json!("pol")]), "{document}");
    assert!(problems.iter().any(|it| it["variable"] == "BROKER_TYPE"), "{document}");
    let (status, document) = json(&["config", "check", "--config", "/missing.yaml"], &BROKER).await;
    let said = document["problems"][0]["message"].as_str().unwrap();
    assert!(status == Some(64) && said.contains("/missing.yaml: No such file"), "{document}");

    std::fs::write(&file, MINIMAL).unwrap();
    let (_, shown) = json(&["config", "show", "--config", &file], &BROKER).await;
    let known = (&shown["resource_type"], &shown["hyperfleet_api"]["endpoint"]);
    assert_eq!(known, (&"clusters".into(), &"http://api:8000".into()), "{shown}");
    assert_eq!(json(&["version"], &[]).await.1, json!({"version": env!("CARGO_PKG_VERSION")}));
}

#[tokio::test]
async fn a_beacons_file_is_checked_and_shown_without_its_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("beacon.yaml");
    let path = file.display().to_string();
    let show = async |content: &str| {
        std::fs::write(&file, content).unwrap();
        let output = run(&["config", "show", "--config", &path], &[]).await;
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let shown = show(
        "resources: [{apiVersion: v1, kind: Pod}]\nannotation: {key: a/b, values: [y, x]}\nendpoint:\n  url: \
         https://u:s3cret@events.example.com/s3cret?s3cret=1\n  headers: {X-Key: s3cret}\n  retry: {maxAttempts: 7}\n",
    )
    .await;
    assert!(!shown.contains("s3cret"), "{shown}");
    for part in
        ["url: https://events.example.com\n", "X-Key: <redacted>", "maxAttempts: 7", "interval: 15m", "concurrency: 5"]
    {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert_eq!(show(&shown).await, shown, "it is a file, and says the same");

    let (status, said) = check(&file, &[]).await;
    assert_eq!((status, said.as_str()), (Some(0), ""));
    std::fs::write(&file, "resources: [{apiVersion: v1}]\nendpoint: {url: events, retry: {jitter: 2}}\n").unwrap();
    let (status, said) = check(&file, &[]).await;
    assert_eq!(status, Some(64), "{said}");
    for part in ["resources[0].kind: missing", "endpoint.url: is no address", "jitter: 2 is not from 0 to 1"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    std::fs::write(&file, "resources: [{apiVersion: v1, kind: Pod}]\nendpoint: {url: 'http://a'}\n").unwrap();
    let asked = run(&["config", "check", "--live", "--management-url", "http://a", "--config", &path], &[]).await;
    assert!(text(&asked.stderr).contains("this is a beacon's file"), "{}", text(&asked.stderr));
}
