//! `watchfire demo` as lines: what scripts and logs see.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::AsyncReadExt;

use crate::support::{DEADLINE, Process, command, run, text};

/// The seconds in front of a line of the story.
fn at(line: &str) -> f64 {
    line.trim_start().split('s').next().and_then(|seconds| seconds.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

#[tokio::test]
async fn the_demo_makes_everything_ready_tells_its_story_and_ends_well() {
    // Also where the environment names a proxy, which cannot reach what runs here.
    let proxy = [("http_proxy", "http://127.0.0.1:9"), ("ALL_PROXY", "http://127.0.0.1:9")];
    let output = run(&["demo", "--seconds", "14", "--plain", "--spec-change"], &proxy).await;
    let story = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{story}{}", text(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    let first = |parts: &[&str]| {
        let found = story.lines().find(|line| parts.iter().all(|part| line.contains(part)));
        at(found.unwrap_or_else(|| panic!("{parts:?} not in:\n{story}")))
    };
    assert!(first(&["  event  ", "com.redhat.hyperfleet.cluster.reconcile"]) < 2.0, "a first result at once:\n{story}");
    first(&["  event  ", "com.redhat.hyperfleet.nodepool.reconcile"]);
    assert!(first(&["report", "dns False"]) < first(&["READY", "cluster/"]), "dns waits for validation:\n{story}");
    first(&["report", "validation True"]);
    first(&["READY", "nodepool/"]);
    let last = story.lines().last().unwrap_or_default();
    let (_, after) = last.split_once("8 of 8 resources Ready, all of them for the first time after ").expect(last);
    let (after, events) = after.split_once("s; ").expect(last);
    assert!(after.parse::<f64>().unwrap() < 7.0, "before the spec was changed: {last}");
    assert!(events.contains(" events published in 14."), "{last}");

    // Ready resources are left alone for longer than this demo lasts: an event is there because of the change.
    let lines: Vec<_> = story.lines().collect();
    let changed = lines.iter().position(|line| line.contains("  changed ")).expect("a spec change");
    let cluster = lines[changed].split_whitespace().nth(2).expect("a subject");
    let told = lines[changed..].iter().any(|line| line.contains("  event  ") && line.contains(cluster));
    assert!(told, "no event after the change:\n{story}");
    let ready = lines[changed..].iter().any(|line| line.contains("READY") && line.contains("generation 2"));
    assert!(ready, "{story}");
}

#[tokio::test]
async fn a_demo_that_is_too_short_fails_and_says_so() {
    let output = run(&["demo", "--seconds", "1", "--plain"], &[]).await;
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    let said = text(&output.stderr);
    assert!(said.contains("did not become Ready in time; give it more --seconds"), "{said}");
}

#[tokio::test]
async fn the_demo_takes_as_many_clusters_as_it_is_told_and_one_second_is_the_least() {
    let process = Process::start(command(&["demo", "--plain", "--seconds", "30", "--clusters", "9"]));
    process.line(&["created", "cluster/alpha-8", "generation 1, id "]).await;
    for args in [
        ["--clusters", "0"],
        ["--clusters", "201"],
        ["--seconds", "x"],
        ["--seconds", "0"],
        ["--seconds", "18446744073709551615"],
    ] {
        let output = run(&["demo", args[0], args[1]], &[]).await;
        assert_eq!(output.status.code(), Some(64), "{args:?}: {}", text(&output.stderr));
    }
}

#[tokio::test]
async fn a_closed_pipe_ends_the_printing_and_nothing_else() {
    let mut command = command(&["demo", "--seconds", "9", "--plain"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a start");
    let mut first = [0; 20];
    child.stdout.take().expect("piped").read_exact(&mut first).await.expect("a beginning");
    let output = tokio::time::timeout(DEADLINE, child.wait_with_output()).await.expect("in time").expect("an end");
    assert!(output.status.success() && output.stderr.is_empty(), "{:?} {}", output.status, text(&output.stderr));
}

#[tokio::test]
async fn an_interrupt_ends_the_demo_with_success() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut process = Process::start(command(&["demo", "--plain"]));
        process.line(&["  event  "]).await;
        process.signal(signal);
        let status = process.ended().await;
        assert_eq!(status.code(), Some(0), "{signal:?}: {}", process.err());
        assert!(process.out().contains(" resources Ready, "), "{}", process.out());
        assert!(process.begun.elapsed() < Duration::from_secs(30));
    }
}
