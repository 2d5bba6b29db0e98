//! `watchfire sentinel record` and `simulate`: as processes, with full volumes and files that are no recordings.

use std::fmt::Write as _;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};
use watchfire_simulator::{Dialect, NewResource, Patch, Simulator};
use watchfire_testkit::{Answer, Receiver, eventually};

use crate::support::{Api, BINARY, DEADLINE, Process, Sentinel, Setup, command, isolate, run, text};

fn setup(api: &str, receiver: &str) -> (Setup, String, String) {
    let setup = Setup::new(api, "poll_interval: 100ms\nmax_age_not_ready: 1s", receiver);
    let path = |name: &str| setup.folder.path().join(name).display().to_string();
    let (file, folder) = (path("sentinel.yaml"), path("recording"));
    (setup, file, folder)
}

async fn fleet(clusters: usize) -> (Api, Vec<String>) {
    let fleet = Simulator::new(Dialect::Hyperfleet);
    let ids =
        (0..clusters).map(|id| fleet.create("clusters", NewResource::named(format!("c-{id}"))).unwrap().id).collect();
    (Api::serve(fleet).await, ids)
}

async fn simulate(recording: &str, configs: &[&str]) -> Value {
    let configs = configs.iter().flat_map(|config| ["--config", config]);
    let args: Vec<_> =
        ["sentinel", "simulate", "--recording", recording, "-o", "json"].into_iter().chain(configs).collect();
    let output = run(&args, &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn segments(folder: &str) -> Vec<std::path::PathBuf> {
    let files = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    files.filter(|file| file.to_string_lossy().ends_with(".recording.gz")).collect()
}

#[tokio::test]
async fn what_is_recorded_is_simulated_and_two_configurations_are_compared() {
    let (api, ids) = fleet(3).await;
    let receiver = Receiver::start().await;
    let (setup, file, folder) = setup(&api.url, receiver.url());
    let mut recording = Process::start(command(&["sentinel", "record", "--config", &file, "--output", &folder]));
    recording.line(&["recording clusters every 100ms"]).await;
    eventually(DEADLINE, "some polls", async || (api.fleet.faults().lists().len() > 8).then_some(())).await;
    api.fleet.patch("clusters", &ids[0], Patch::spec(&json!({"replicas": 2}))).unwrap();
    let polls = api.fleet.faults().lists().len();
    eventually(DEADLINE, "more polls", async || (api.fleet.faults().lists().len() > polls + 8).then_some(())).await;
    recording.signal(Signal::TERM);
    assert_eq!(recording.ended().await.code(), Some(0), "{}", recording.err());
    assert!(recording.out().contains("recorded "), "{}", recording.out());

    let alone = simulate(&folder, &[&file]).await;
    let run_a = &alone["runs"][0];
    assert_eq!(run_a["resources"], 3, "{alone}");
    assert!(run_a["by_reason"]["generation changed - new spec to reconcile"].as_u64() >= Some(4), "{alone}");
    assert_eq!(run_a["latency"]["count"], 1, "one spec changed: {alone}");
    assert_eq!((&alone["difference"], &alone["cuts"]), (&Value::Null, &json!([])));

    let other = setup.folder.path().join("other.yaml").display().to_string();
    let config = std::fs::read_to_string(&file).unwrap().replace("max_age_not_ready: 1s", "max_age_not_ready: 200ms");
    std::fs::write(&other, config).unwrap();
    let both = simulate(&folder, &[&file, &other]).await;
    assert!(both["runs"][1]["events"].as_u64() > both["runs"][0]["events"].as_u64(), "{both}");
    assert!(both["difference"]["only_b"].as_u64() > Some(0) && both["difference"]["first"][0]["only"] == "B", "{both}");

    // For people.
    let output =
        run(&["sentinel", "simulate", "--recording", &folder, "--config", &file, "--config", &other], &[]).await;
    let said = text(&output.stdout);
    for part in [
        "A: ",
        "B: ",
        "events about 3 resources",
        "at most",
        "p95",
        "most events:",
        "reports stand as they were recorded",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(receiver.requests().is_empty(), "nothing was published");
}

#[tokio::test]
async fn the_service_records_what_it_decided_on_and_what_became_of_it() {
    let (api, _) = fleet(3).await;
    let receiver = Receiver::start().await;
    let (setup, file, folder) = setup(&api.url, receiver.url());
    let setup = setup.arg("--record", &folder).arg("--record-redact", ".labels.owner");
    let sentinel = setup.start().await;
    receiver.wait_for(6).await;
    sentinel.stop().await;
    let report = simulate(&folder, &[&file]).await;
    assert!(report["runs"][0]["events"].as_u64() >= Some(6), "{report}");
    // Killed: what was flushed is read, and where it ends is said.
    let mut sentinel = setup.start().await;
    let before = receiver.requests().len();
    receiver.wait_for(before + 3).await;
    sentinel.process.signal(Signal::KILL);
    sentinel.process.ended().await;
    let report = simulate(&folder, &[&file]).await;
    assert_eq!(report["cuts"].as_array().map(Vec::len), Some(1), "{report}");
    assert_eq!(segments(&folder).len(), 2);
    let output = run(&["sentinel", "simulate", "--recording", &folder, "--config", &file], &[]).await;
    let said = text(&output.stdout);
    assert!(said.contains("is not whole, after") && said.contains("it breaks off"), "{said}");
}

/// A command whose files may not grow beyond so many KiB: what a full volume looks like without one.
fn limited(kib: usize, args: &[String]) -> tokio::process::Command {
    let mut command = tokio::process::Command::new("bash");
    isolate(&mut command);
    let script = format!("trap '' XFSZ; ulimit -f {kib}; exec \"$@\"");
    command.args(["-c", &script, "bash", BINARY, "sentinel"]).args(args);
    command
}

/// Clusters that take more room than a limit; of one of them a sentinel is in charge.
async fn bulky() -> Api {
    let fleet = Simulator::new(Dialect::Hyperfleet);
    let mut noise = 1_u64;
    for id in 0..300 {
        let mut text = String::new();
        for _ in 0..1000 {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            write!(text, "{noise:016x}").unwrap();
        }
        // Hyphens cannot be searched for: the list has them all.
        let new = NewResource::named(format!("c-{id}")).label("in-charge", if id == 0 { "yes" } else { "no" });
        let id = fleet.create("clusters", new).unwrap().id;
        fleet.patch("clusters", &id, Patch::spec(&json!({"noise": text}))).unwrap();
    }
    Api::serve(fleet).await
}

#[tokio::test]
async fn a_full_volume_ends_a_recording_and_never_the_service() {
    let (api, receiver) = (bulky().await, Receiver::start().await);
    let more = "poll_interval: 100ms\nmax_age_not_ready: 300ms\nresource_selector: [{label: in-charge, value: 'yes'}]\n\
                message_data: {id: .id, size: .spec.size}";
    let setup = Setup::new(&api.url, more, receiver.url());
    let path = |name: &str| setup.folder.path().join(name).display().to_string();
    let (file, folder) = (path("sentinel.yaml"), path("recording"));

    let args = ["record", "--config", &file, "--output", &folder].map(str::to_owned);
    let mut recording = Process::start(limited(1024, &args));
    assert_eq!(recording.ended().await.code(), Some(1));
    let said = recording.err();
    println!("{said}");
    assert!(said.contains("write the recording") && said.contains("check the volume"), "{said}");
    assert!(segments(&folder).is_empty(), "what is of no use is not left behind");

    let setup = setup.arg("--record", &folder);
    let mut command = limited(1024, &setup.args);
    command.envs(setup.env.iter().cloned()).current_dir(setup.folder.path());
    let sentinel = Sentinel::started(Process::start(command)).await;
    let told = sentinel.process.line(&["cannot record, trying again every minute; the service goes on"]).await;
    assert!(told.contains("check the volume"), "{told}");
    let before = receiver.requests().len();
    receiver.wait_for(before + 3).await;
    sentinel.readiness(200).await;
    sentinel.stop().await;
}

#[tokio::test]
async fn a_folder_that_cannot_be_made_is_told_before_anything_runs() {
    let (api, _) = fleet(1).await;
    let receiver = Receiver::start().await;
    let (setup, file, _) = setup(&api.url, receiver.url());
    // A file is no folder, whoever asks.
    let folder = format!("{file}/recording");
    for args in [
        vec!["record", "--config", &file, "--output", &folder],
        vec!["--config", &file, "--record", &folder, "--health-bind-address", ":0", "--metrics-bind-address", ":0"],
    ] {
        let env: Vec<_> = setup.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let output = run(&[&["sentinel"], args.as_slice()].concat(), &env).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("open the folder of recordings") && said.contains("may read and write it"), "{said}");
    }
    assert!(receiver.requests().is_empty());
}

#[tokio::test]
async fn the_form_of_todays_hyperfleet_is_taken_everywhere() {
    let (api, ids) = fleet(1).await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (file, recording) = (path("config.yaml"), path("recording"));
    let config = format!("clients:\n  hyperfleet_api:\n    base_url: {}\nresource_type: clusters\n", api.url);
    std::fs::write(&file, config).unwrap();
    for args in [
        vec!["explain", &ids[0], "--config", &file],
        vec!["coverage", &file],
        vec!["record", "--config", &file, "--output", &recording, "--for", "500ms"],
        vec!["simulate", "--config", &file, "--recording", &recording],
    ] {
        let output = run(&[&["sentinel"], args.as_slice()].concat(), &[("HYPERFLEET_POLL_INTERVAL", "100ms")]).await;
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
        println!("{}", text(&output.stdout));
    }
}

#[tokio::test]
async fn what_is_no_recording_is_refused_by_name() {
    let (api, _) = fleet(1).await;
    let receiver = Receiver::start().await;
    let (setup, file, folder) = setup(&api.url, receiver.url());
    let output = run(&["sentinel", "record", "--config", &file, "--output", &folder, "--for", "300ms"], &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let path = |name: &str| setup.folder.path().join(name);
    std::fs::write(path("garbage"), b"\x1f\x8bgarbage that looks like gzip").unwrap();
    std::fs::write(path("empty"), b"").unwrap();
    let nodepools = path("nodepools.yaml");
    std::fs::write(&nodepools, std::fs::read_to_string(&file).unwrap().replace("clusters", "nodepools")).unwrap();
    let table: [(&Path, &Path, &str); 5] = [
        (&path("garbage"), file.as_ref(), "it is no recording of a sentinel"),
        (&path("empty"), file.as_ref(), "it is empty"),
        (&path("absent"), file.as_ref(), "check the path"),
        (setup.folder.path(), file.as_ref(), "no file there ends in .recording.gz"),
        (folder.as_ref(), &nodepools, "it is of clusters, not of nodepools"),
    ];
    for (recording, config, expected) in table {
        let (recording, config) = (recording.display().to_string(), config.display().to_string());
        let output = run(&["sentinel", "simulate", "--recording", &recording, "--config", &config], &[]).await;
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(expected), "{recording}: {said}");
    }
    // And into a folder of others, or without what decisions read.
    let nodepools = nodepools.display().to_string();
    let output = run(&["sentinel", "record", "--config", &nodepools, "--output", &folder, "--for", "300ms"], &[]).await;
    assert!(text(&output.stderr).contains("it is of clusters, not of nodepools"));
    let output = run(&["sentinel", "record", "--config", &file, "--output", &folder, "--redact", ".status"], &[]).await;
    assert_eq!(output.status.code(), Some(64));
    assert!(text(&output.stderr).contains("decisions read it"), "{}", text(&output.stderr));
}

#[tokio::test]
async fn an_api_that_asks_to_be_left_alone_is_and_the_recording_ends_all_the_same() {
    let (api, receiver) = (Receiver::start().await, Receiver::start().await);
    let list = Answer::status(200).header("content-type", "application/json");
    api.script([list.body(r#"{"items":[],"page":1,"size":0,"total":0}"#)]);
    api.otherwise(Answer::status(429).header("retry-after", "120"));
    let (_setup, file, folder) = setup(api.url(), receiver.url());
    let output = run(&["sentinel", "record", "--config", &file, "--output", &folder, "--for", "1s"], &[]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(api.requests().len(), 2, "one list, and one refusal in ten polls");
}

#[tokio::test]
async fn a_recording_that_saw_no_list_is_not_simulated_as_a_fleet_without_events() {
    let (api, receiver) = (Receiver::start().await, Receiver::start().await);
    let list = Answer::status(200).header("content-type", "application/json");
    api.script([list.body(r#"{"items":[{"id":"a","kind":"Cluster","generation":1}],"page":1,"size":1,"total":2}"#)]);
    api.otherwise(Answer::hang());
    let (_setup, file, folder) = setup(api.url(), receiver.url());
    let output = run(&["sentinel", "record", "--config", &file, "--output", &folder, "--for", "1s"], &[]).await;
    assert!(text(&output.stdout).contains("recorded no whole poll"), "{}", text(&output.stdout));
    let output = run(&["sentinel", "simulate", "--recording", &folder, "--config", &file], &[]).await;
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("no whole list of the fleet is in it"), "{}", text(&output.stderr));
}

#[tokio::test]
async fn a_path_to_take_out_that_was_nowhere_is_told_at_the_end() {
    let (api, receiver) = (Receiver::start().await, Receiver::start().await);
    let item = r#"{"id":"a","kind":"Cluster","generation":1,"labels":{"owner":"x"}}"#;
    let list = Answer::status(200).header("content-type", "application/json");
    api.otherwise(list.body(format!(r#"{{"items":[{item}],"page":1,"size":1,"total":1}}"#)));
    let (_setup, file, folder) = setup(api.url(), receiver.url());
    let redact = ["--redact", ".Labels.owner", "--redact", ".labels.owner"];
    let args = [&["sentinel", "record", "--config", &file, "--output", &folder, "--for", "1s"][..], &redact].concat();
    let output = run(&args, &[]).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("\".Labels.owner\" was nowhere") && !said.contains("\".labels.owner\""), "{said}");
}

#[tokio::test]
async fn an_api_that_cannot_be_listed_at_first_ends_a_recording() {
    let (api, receiver) = (Receiver::start().await, Receiver::start().await);
    api.otherwise(Answer::status(404));
    let (_setup, file, folder) = setup(api.url(), receiver.url());
    let output = run(&["sentinel", "record", "--config", &file, "--output", &folder], &[]).await;
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("check resource_type"), "{said}");
}

#[tokio::test]
async fn a_list_that_is_short_again_is_told_again() {
    let (api, receiver) = (Receiver::start().await, Receiver::start().await);
    let list = |items: &str, size: usize, total: usize| {
        let body = format!(r#"{{"items":[{items}],"page":1,"size":{size},"total":{total}}}"#);
        api.otherwise(Answer::status(200).header("content-type", "application/json").body(body));
    };
    let short = || list(r#"{"id":"a","kind":"Cluster","generation":1}"#, 1, 40);
    let (_setup, file, folder) = setup(api.url(), receiver.url());
    short();
    let mut recording = Process::start(command(&["sentinel", "record", "--config", &file, "--output", &folder]));
    let told = |recording: &Process| recording.err().matches("resources that it does not list").count();
    for times in 1..=2 {
        short();
        eventually(DEADLINE, "a short list", async || (told(&recording) >= times).then_some(())).await;
        list("", 0, 0);
        let before = api.requests().len();
        eventually(DEADLINE, "whole lists", async || (api.requests().len() > before + 6).then_some(())).await;
        assert_eq!(told(&recording), times, "{}", recording.err());
    }
    recording.signal(Signal::TERM);
    assert_eq!(recording.ended().await.code(), Some(0), "{}", recording.err());
}
