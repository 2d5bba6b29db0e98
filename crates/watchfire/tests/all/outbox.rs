//! `watchfire outbox`: beside a running sentinel with its embedded broker.

use serde_json::Value;
use tokio::process::Command;
use watchfire_simulator::{Dialect, NewResource, Simulator};
use watchfire_testkit::{Answer, Receiver, eventually};

use crate::support::{Api, BINARY, DEADLINE, Setup, isolate, read, run, text};

async fn outbox(store: &str, args: &[&str]) -> (Option<i32>, String) {
    let all: Vec<&str> = ["outbox", "--store", store].into_iter().chain(args.iter().copied()).collect();
    let output = run(&all, &[]).await;
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

#[tokio::test]
async fn a_dead_letter_is_listed_shown_and_delivered_when_it_is_retried() {
    let fleet = Simulator::new(Dialect::Hyperfleet);
    fleet.create("clusters", NewResource::named("alpha")).unwrap();
    let (api, receiver) = (Api::serve(fleet).await, Receiver::start().await);
    receiver.otherwise(Answer::status(422));
    let setup = Setup::new(&api.url, "poll_interval: 200ms\nmax_age_not_ready: 1h\nmax_age_ready: 1h", receiver.url());
    let store = setup.folder.path().join("broker.db").display().to_string();
    let sentinel = setup.start().await;
    let listed = eventually(DEADLINE, "a dead letter", async || {
        let (code, said) = outbox(&store, &["list", "-o", "json"]).await;
        (code == Some(0) && said.contains("\"dead\"")).then_some(said)
    })
    .await;
    let entry: Value = serde_json::from_str(listed.trim()).unwrap();
    assert!(entry["reason"].as_str().unwrap().contains("422"), "{entry}");

    let number = entry["number"].to_string();
    let (_, shown) = outbox(&store, &["show", &number]).await;
    assert!(shown.contains("com.redhat.hyperfleet.cluster.reconcile"), "{shown}");
    let refused = text(&receiver.requests()[0].body);
    let exported = async |args: &[&str]| outbox(&store, &[&["export"][..], args].concat()).await;
    assert_eq!(exported(&[]).await, (Some(0), format!("{refused}\n")), "byte by byte what the subscriber refused");
    assert_eq!(exported(&["--state", "delivered"]).await, (Some(0), String::new()));
    let (_, table) = outbox(&store, &["list"]).await;
    assert!(table.starts_with("  NUMBER") && table.contains(entry["id"].as_str().unwrap()), "{table}");

    receiver.otherwise(Answer::status(204));
    receiver.take();
    assert_eq!(outbox(&store, &["retry"]).await, (Some(0), "1 queued again\n".to_owned()));
    let requests = receiver.wait_for(1).await;
    let event: Value = serde_json::from_slice(&requests[0].body).unwrap();
    assert_eq!(event["id"], entry["id"], "the same event");
    let delivered = async || (exported(&["--state", "delivered"]).await.1 == format!("{refused}\n")).then_some(());
    eventually(DEADLINE, "it is noted as delivered", delivered).await;
    assert_eq!(exported(&[]).await, (Some(0), String::new()), "nothing is left to deliver");
    let (_, listed) = outbox(&store, &["list", "--state", "delivered", "-o", "json"]).await;
    let delivered_as = serde_json::from_str::<Value>(listed.trim()).unwrap()["number"].to_string();
    for (args, part) in [
        (&["retry", "--number", &number][..], "one that was queued again has another"),
        (&["retry", "--number", &delivered_as], "to validation, is delivered: nothing is left to do about it"),
        (&["list", "--number", &delivered_as, "--state", "dead"], "is delivered: --sink or --state leaves it out"),
    ] {
        let (code, said) = outbox(&store, args).await;
        assert!(code == Some(64) && said.contains(part), "{said}");
    }
    sentinel.stop().await;
    assert_eq!(exported(&["--state", "delivered"]).await, (Some(0), format!("{refused}\n")), "the file is enough");
}

#[tokio::test]
async fn what_is_not_there_is_told_with_what_is() {
    let fleet = Simulator::new(Dialect::Hyperfleet);
    let (api, receiver) = (Api::serve(fleet).await, Receiver::start().await);
    let setup = Setup::new(&api.url, "", receiver.url());
    let store = setup.folder.path().join("broker.db").display().to_string();
    let (code, said) = outbox(&store, &["list"]).await;
    assert!(code == Some(1) && said.contains(&store) && said.contains("--store"), "{said}");
    assert!(said.contains("there is no such file; check the path") && !said.contains("disk"), "{said}");
    assert_eq!(said.matches(&store).count(), 1, "{said}");
    let sentinel = setup.start().await;
    for (args, part) in [
        (&["show", "7"][..], "no delivery has the number 7; `watchfire outbox list` has"),
        (&["list", "--number", "7"], "no delivery has the number 7"),
        (&["export", "--number", "7"], "no delivery has the number 7"),
        (&["retry", "--number", "7"], "no delivery has the number 7"),
        (&["discard", "--number", "7", "--reason", "none"], "no delivery has the number 7"),
        (&["list", "--state", "lost"], "pending, delivered, dead, discarded"),
        (&["resume", "nobody"], "known are"),
    ] {
        let (code, said) = outbox(&store, args).await;
        assert!(code == Some(64) && said.contains(part), "{said}");
    }
    let (code, said) = outbox(&store, &["pause", "validation", "--reason", "maintenance"]).await;
    assert_eq!((code, said.as_str()), (Some(0), "deliveries to validation are paused\n"));
    assert_eq!(outbox(&store, &["resume", "validation"]).await.0, Some(0));
    assert_eq!(outbox(&store, &["discard", "--reason", "none"]).await, (Some(0), "0 discarded\n".to_owned()));
    sentinel.stop().await;
}

#[tokio::test]
async fn every_command_of_the_guide_to_the_outbox_works() {
    let fleet = Simulator::new(Dialect::Hyperfleet);
    fleet.create("clusters", NewResource::named("alpha")).unwrap();
    let (api, receiver) = (Api::serve(fleet).await, Receiver::start().await);
    receiver.otherwise(Answer::status(422));
    let setup =
        Setup::new(&api.url, "", receiver.url()).env("BROKER_HTTP_SUBSCRIBERS", &format!("dns={}", receiver.url()));
    let store = setup.folder.path().join("broker.db").display().to_string();
    let sentinel = setup.start().await;
    let dead = async || outbox(&store, &["list", "-o", "json"]).await.1.lines().next().map(str::to_owned);
    let document = read("docs/delivery.md");
    let commands: Vec<_> = document.lines().filter(|line| line.starts_with("    watchfire outbox ")).collect();
    assert!(commands.len() >= 6, "{commands:?}");
    for line in commands {
        let mut line = line.replace("watchfire-broker.db", &store);
        // What was queued again has another number once it is dead again.
        if line.contains("17") {
            let entry: Value = serde_json::from_str(&eventually(DEADLINE, "a dead letter", dead).await).unwrap();
            line = line.replace("17", &entry["number"].to_string());
        }
        let mut command = Command::new("bash");
        isolate(&mut command);
        command.args(["-euc", &line.replace("watchfire ", &format!("{BINARY} "))]).current_dir(setup.folder.path());
        let output = tokio::time::timeout(DEADLINE, command.output()).await.expect("an end in time").expect("bash");
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    }
    sentinel.stop().await;
}
