//! Nothing that a file says is passed over, told by halves, or let loose on the terminal.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use watchfire_simulator::{Dialect, NewResource, Simulator};

use crate::support::{Api, command, run, text};

const MINIMAL: &str = "resource_type: clusters\nhyperfleet_api:\n  endpoint: http://api:8000\n";
const BROKER: [(&str, &str); 2] =
    [("BROKER_TYPE", "http"), ("BROKER_HTTP_SUBSCRIBERS", "validation=http://validation:8080/events")];

/// Files in a folder, written by name.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, content: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

/// The exit status, and what was said on standard output and standard error.
async fn told(args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let output = run(args, env).await;
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Text that would clear the screen, begin a line of its own, and turn around what follows.
const ODD: &str = "x\u{1b}[2Jy\nwatchfire: forged\u{202e}z\u{9b}2J";

fn assert_harmless(said: &str) {
    let steers = |c: char| (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c);
    assert!(!said.contains(steers), "{said:?}");
    assert!(!said.lines().any(|line| line.starts_with("watchfire: forged")), "{said}");
}

#[tokio::test]
async fn what_a_file_or_a_path_says_does_not_steer_the_terminal() {
    let folder = Folder::new();
    let quoted = serde_json::to_string(ODD).unwrap();
    let api = |key: &str| format!("{MINIMAL}  {key}: {quoted}\n");
    for (name, content, args) in [
        ("ca.yaml", api("ca_file"), &["config", "check", "--config"][..]),
        ("token.yaml", api("token_file"), &["config", "check", "--config"]),
        ("key.yaml", format!("{MINIMAL}{quoted}: 1\n"), &["config", "check", "--config"]),
        (
            "cel.yaml",
            format!("{MINIMAL}message_decision:\n  result: \"true \\u001b[2J \\u202e\"\n"),
            &["config", "check", "--config"],
        ),
        ("list.yaml", format!("sentinels:\n  - name: a\n    config: {quoted}\n"), &["run", "--config"]),
        ("broker.yaml", format!("BROKER_URL: amqp://mq\nBROKER_TOPIC: {quoted}\n"), &["config", "migrate"]),
        (
            "nested.yaml",
            format!(
                "clients:\n  hyperfleet_api: {{base_url: http://a}}\n  broker: {{topic: {quoted}}}\nresource_type: a\n"
            ),
            &["config", "migrate"],
        ),
        ("forged.recording.gz", ODD.to_owned(), &["sentinel", "simulate", "--config", "/dev/null", "--recording"]),
        (ODD, String::new(), &["config", "check", "--config"]),
        (ODD, "a: b: c".to_owned(), &["sentinel", "coverage"]),
    ] {
        let file = folder.write(name, &content);
        let (_, out, err) = told(&[args, &[&file]].concat(), &BROKER).await;
        // What is migrated is a file, byte by byte; what is noted about it is for people.
        let said = if args.contains(&"migrate") { err } else { format!("{out}\n{err}") };
        assert!(!said.trim().is_empty(), "{name}: nothing was said");
        assert_harmless(&said);
    }
    // The header of a recording is JSON that anybody can write.
    let header = serde_json::json!({"watchfire_recording": 1, "resource_type": ODD, "by": "sentinel",
        "continues": false, "begun": "2026-07-01T12:00:00Z", "poll_millis": 1000, "selector": ODD, "fields": null,
        "redacted": [ODD]});
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(format!("{header}\n").as_bytes()).unwrap();
    let recording = folder.path("a.recording.gz");
    std::fs::write(&recording, gzip.finish().unwrap()).unwrap();
    let config = folder.write("fine.yaml", MINIMAL);
    let (status, out, err) = told(&["sentinel", "simulate", "--config", &config, "--recording", &recording], &[]).await;
    assert!(status == Some(1) && err.contains("it is of x"), "{err}");
    assert_harmless(&(out + &err));
}

#[tokio::test]
async fn labels_that_turn_text_around_are_written_out() {
    let fleet = Simulator::new(Dialect::Hyperfleet);
    fleet.create("clusters", NewResource::named("cluster-a").label("region", "east\u{202e}tsew\u{200b}")).unwrap();
    let api = Api::serve(fleet).await;
    let folder = Folder::new();
    let selector = "resource_selector: [{label: region, value: west}]\n";
    let file = folder.write("a.yaml", &format!("{}{selector}", MINIMAL.replace("http://api:8000", &api.url)));
    let (status, out, _) = told(&["sentinel", "coverage", &file], &[]).await;
    assert_eq!(status, Some(1));
    assert!(out.contains(r"region=east\u{202e}tsew\u{200b}"), "{out}");
    assert_harmless(&out);
}

#[tokio::test]
async fn a_list_tells_every_file_that_cannot_be_read_with_all_else() {
    let folder = Folder::new();
    folder.write("bad.yaml", &format!("{MINIMAL}poll_interval: 0s\n"));
    folder.write("good.yaml", MINIMAL);
    let list = folder.write(
        "run.yaml",
        "sentinels:\n  - {name: a, config: missing.yaml}\n  - {name: b, config: bad.yaml}\n  - name: c\n    \
         config: good.yaml\n    broker_config: absent.yaml\n  - {name: a b, config: .}\n",
    );
    let (status, _, said) = told(&["run", "--config", &list], &BROKER).await;
    assert_eq!(status, Some(64), "{said}");
    for part in [
        "run.yaml:2:15: sentinels[0].config: read configuration file ",
        "missing.yaml: No such file or directory (os error 2); check the path",
        "bad.yaml:4:1: poll_interval: must be longer than 0",
        "run.yaml:6:5: sentinels[2].broker_config: read configuration file ",
        "run.yaml:7:6: sentinels[3].name: each needs a name of its own",
        "run.yaml:7:17: sentinels[3].config: read configuration file ",
        "Is a directory (os error 21); name the file in it",
    ] {
        assert!(said.contains(part), "{part:?} not in:\n{said}");
    }
    assert!(!said.contains("BROKER_TYPE"), "what stands in a file that cannot be read is not missing: {said}");
    // The same of a file that the command line, or a variable, names.
    let bad = folder.path("bad.yaml");
    let absent = folder.path("absent.yaml");
    let (_, _, said) = told(&["config", "check", "--config", &bad, "--broker-config", &absent], &[]).await;
    assert!(
        said.contains("poll_interval: must be") && said.contains("flag --broker-config: read configuration file"),
        "{said}"
    );
    let (_, _, said) = told(&["config", "check", "--config", &bad], &[("BROKER_CONFIG", &absent)]).await;
    assert!(said.contains("environment variable BROKER_CONFIG: read configuration file"), "{said}");
}

#[tokio::test]
async fn coverage_takes_a_list_for_the_files_that_it_names() {
    let fleet = Simulator::new(Dialect::Hyperfleet);
    for region in ["east", "west"] {
        fleet.create("clusters", NewResource::named(region).label("region", region)).unwrap();
    }
    let api = Api::serve(fleet).await;
    let folder = Folder::new();
    for region in ["east", "west"] {
        let selector = format!("resource_selector: [{{label: region, value: {region}}}]\n");
        folder.write(&format!("{region}.yaml"), &(MINIMAL.replace("http://api:8000", &api.url) + &selector));
    }
    let list =
        folder.write("run.yaml", "sentinels:\n  - {name: e, config: east.yaml}\n  - {name: w, config: west.yaml}\n");
    let (status, out, err) = told(&["sentinel", "coverage", &list], &[]).await;
    assert_eq!((status, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("2 of them covered exactly once") && out.contains(&folder.path("west.yaml")), "{out}");
    let list = folder.write(
        "run.yaml",
        "sentinels:\n  - {name: e, config: east.yaml}\n  - {name: w, config: nowhere.yaml}\n  - {name: n}\n",
    );
    let (status, _, err) = told(&["sentinel", "coverage", &list, &folder.path("gone.yaml")], &[]).await;
    assert_eq!(status, Some(64), "{err}");
    let none = folder.write("none.yaml", "sentinels: []\n");
    for args in [["sentinel", "coverage", &none].as_slice(), &["run", "--config", &none]] {
        let (status, out, said) = told(args, &BROKER).await;
        assert!(status == Some(64) && said.contains("sentinels: missing; list at least one"), "{out}{said}");
    }
    for part in [
        "run.yaml:3:15: sentinels[1].config: read",
        "run.yaml:4:5: sentinels[2].config: missing",
        "gone.yaml: read configuration file",
    ] {
        assert!(err.contains(part), "{part:?} not in:\n{err}");
    }
}

#[tokio::test]
async fn warnings_are_shown_beside_what_is_wrong() {
    let folder = Folder::new();
    let file = folder.write("a.yaml", &format!("{MINIMAL}max_age_not_ready: 1h\npoll_interval: 0s\n"));
    let (status, out, err) = told(&["config", "check", "--config", &file], &BROKER).await;
    assert_eq!(status, Some(64));
    assert!(err.contains(":5:1: poll_interval: must be longer") && !err.contains("max_age"), "{err}");
    assert!(out.contains("warning: ") && out.contains(":4:1: max_age_not_ready: longer than"), "{out}");
    assert!(!out.contains("valid"), "{out}");
    let (_, out, _) = told(&["config", "check", "--config", &file, "-o", "json"], &BROKER).await;
    let document: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(document["valid"], false);
    assert_eq!(document["problems"][0]["key"], "poll_interval", "{document}");
    assert_eq!(document["warnings"][0]["key"], "max_age_not_ready", "{document}");
}

#[tokio::test]
async fn a_variable_that_stands_above_a_brokers_file_is_warned_about() {
    let folder = Folder::new();
    let (file, broker) = (folder.write("a.yaml", MINIMAL), folder.path("broker.yaml"));
    folder.write("broker.yaml", "BROKER_TYPE: rabbitmq\nBROKER_HOST: mq\nBROKER_USER: me\nBROKER_PASSWORD: hunter2\n");
    let env = [("BROKER_HOST", "other"), ("BROKER_USER", "me"), ("BROKER_PASSWORD", "hunter3")];
    let (status, out, err) = told(&["config", "check", "--config", &file, "--broker-config", &broker], &env).await;
    assert_eq!(status, Some(0), "{err}");
    for part in [
        "broker.yaml:2:1: BROKER_HOST: not used: environment variable BROKER_HOST says something else",
        "broker.yaml:4:1: BROKER_PASSWORD: not used: environment variable BROKER_PASSWORD",
    ] {
        assert!(out.contains(part), "{part:?} not in:\n{out}");
    }
    assert!(!out.contains("BROKER_USER: not used") && !out.contains("hunter"), "{out}");
}

#[tokio::test]
async fn embedded_brokers_with_one_store_and_different_settings_are_told_the_way_out() {
    let folder = Folder::new();
    folder.write("a.yaml", MINIMAL);
    folder.write("one.yaml", "BROKER_TYPE: http\nBROKER_HTTP_SUBSCRIBERS: a=http://a/\nBROKER_HTTP_STORE: x.db\n");
    folder.write("two.yaml", "BROKER_TYPE: http\nBROKER_HTTP_SUBSCRIBERS: b=http://b/\nBROKER_HTTP_STORE: ./x.db\n");
    let list = folder.write(
        "run.yaml",
        "sentinels:\n  - {name: a, config: a.yaml, broker_config: one.yaml}\n  - {name: b, config: a.yaml, \
         broker_config: two.yaml}\n",
    );
    let (status, _, said) = told(&["run", "--config", &list], &[]).await;
    assert_eq!(status, Some(64), "{said}");
    assert!(
        said.contains("run.yaml:3:31: sentinels[1].broker_config: its embedded broker has the store of \"a\""),
        "{said}"
    );
    assert!(said.contains("give each a BROKER_HTTP_STORE of its own"), "{said}");
}

#[tokio::test]
async fn who_asks_nobody_why_is_told_whom_to_ask() {
    let (status, _, said) = told(&["sentinel", "explain", "abc"], &[]).await;
    assert_eq!(status, Some(64), "{said}");
    for part in ["explain abc: ", "--server URL", "--config FILE", "/etc/hyperfleet/config.yaml", "HYPERFLEET_CONFIG"] {
        assert!(said.contains(part), "{part:?} not in: {said}");
    }
    let (_, _, said) = told(&["config", "check"], &BROKER).await;
    assert!(said.contains("name the sentinel's file with --config, or in HYPERFLEET_CONFIG"), "{said}");
}

#[tokio::test]
async fn coverage_reads_a_pipe_once() {
    let api = Api::serve(Simulator::new(Dialect::Hyperfleet)).await;
    let mut coverage = command(&["sentinel", "coverage", "/dev/stdin"]);
    coverage.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut coverage = coverage.spawn().unwrap();
    let file = MINIMAL.replace("http://api:8000", &api.url);
    coverage.stdin.take().unwrap().write_all(file.as_bytes()).await.unwrap();
    let output = coverage.wait_with_output().await.unwrap();
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

#[tokio::test]
async fn what_all_sentinels_share_is_told_once() {
    let folder = Folder::new();
    folder.write("a.yaml", MINIMAL);
    folder.write("b.yaml", &format!("{MINIMAL}poll_interval: 0s\n"));
    let list = folder.write("run.yaml", "sentinels:\n  - {name: a, config: a.yaml}\n  - {name: b, config: b.yaml}\n");
    let absent = folder.path("absent.yaml");
    for variable in [("HYPERFLEET_API_TIMEOUT", "soon"), ("BROKER_CONFIG", absent.as_str())] {
        let (status, _, said) = told(&["run", "--config", &list], &[BROKER[0], BROKER[1], variable]).await;
        let lines = said.lines().filter(|line| line.contains(&format!("environment variable {}: ", variable.0)));
        assert_eq!((status, lines.count()), (Some(64), 1), "{said}");
        assert!(said.contains("b.yaml:4:1: poll_interval"), "{said}");
    }
}

#[tokio::test]
async fn a_variable_that_is_not_utf_8_is_refused_and_not_shown() {
    let folder = Folder::new();
    let file = folder.write("a.yaml", MINIMAL);
    let set = [("BROKER_TYPE", "rabbitmq"), ("BROKER_HOST", "mq"), ("BROKER_USER", "me")];
    for name in ["BROKER_PASSWORD", "HYPERFLEET_API_TOKEN", "BROKER_PORT"] {
        let mut check = command(&["config", "check", "--config", &file]);
        check.envs(set).env("BROKER_PASSWORD", "x").env(name, OsStr::from_bytes(b"hunter\xe92"));
        let output = check.output().await.unwrap();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{said}");
        assert!(said.contains(&format!("environment variable {name}: is not UTF-8")), "{said}");
        assert_eq!(said.lines().filter(|line| line.contains(name)).count(), 1, "{said}");
        assert!(!said.contains("hunter"), "{said}");
    }
}

#[tokio::test]
async fn a_topic_of_the_wrong_kind_is_not_empty_besides() {
    let folder = Folder::new();
    let file = folder.write(
        "a.yaml",
        "clients:\n  hyperfleet_api:\n    base_url: http://a\n  broker:\n    topic: [x]\nresource_type: clusters\n",
    );
    let (status, out, err) = told(&["config", "check", "--config", &file], &BROKER).await;
    assert!(status == Some(64) && err.contains("a.yaml:5:12: clients.broker.topic: expected text"), "{err}");
    assert!(!out.contains("empty"), "{out}");
}
