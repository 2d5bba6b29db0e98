//! `watchfire sentinel coverage`: a fleet that several configurations share.

use serde_json::Value;
use watchfire_simulator::{Dialect, NewResource, Simulator};
use watchfire_testkit::{Answer, Receiver};

use crate::support::{Api, run, text};

/// Configurations in a folder of their own, by name and selector.
fn files(api: &str, selectors: &[(&str, &str)]) -> (tempfile::TempDir, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let file = |(name, selector): &(&str, &str)| {
        let path = folder.path().join(name).display().to_string();
        let selector = if selector.is_empty() { String::new() } else { format!("resource_selector: {selector}\n") };
        let config = format!("resource_type: clusters\n{selector}hyperfleet_api:\n  endpoint: {api}\n  timeout: 2s\n");
        std::fs::write(&path, config).unwrap();
        path
    };
    let paths = selectors.iter().map(file).collect();
    (folder, paths)
}

fn fleet(labels: &[&[(&str, &str)]]) -> (Simulator, Vec<String>) {
    let fleet = Simulator::new(Dialect::Hyperfleet);
    let ids = labels.iter().enumerate().map(|(index, labels)| {
        let resource = NewResource::named(format!("cluster-{index}"));
        let resource = labels.iter().fold(resource, |resource, (key, value)| resource.label(key, value));
        fleet.create("clusters", resource).unwrap().id
    });
    let ids = ids.collect();
    (fleet, ids)
}

async fn coverage(files: &[String], more: &[&str]) -> (Option<i32>, String, String) {
    let args = ["sentinel", "coverage"].into_iter().chain(files.iter().map(String::as_str)).chain(more.iter().copied());
    // The service's own file in the environment is no obstacle.
    let output = run(&args.collect::<Vec<_>>(), &[("HYPERFLEET_CONFIG", "/absent.yaml")]).await;
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

const EAST: &str = "[{label: region, value: east}]";
const WEST: &str = "[{label: region, value: west}]";
const GOLD: &str = "{matchLabels: {tier: gold}}";

#[tokio::test]
async fn gaps_and_overlaps_are_named_and_counted() {
    let (fleet, ids) =
        fleet(&[&[("region", "east")], &[("region", "north")], &[("region", "west"), ("tier", "gold")], &[]]);
    let api = Api::serve(fleet).await;
    let (_folder, files) = files(&api.url, &[("east.yaml", EAST), ("west.yaml", WEST), ("gold.yaml", GOLD)]);
    let (code, out, err) = coverage(&files, &[]).await;
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(err.contains("3 of 4 resources are not covered exactly once"), "{err}");
    assert!(out.contains("4 listed, 1 of them covered exactly once"), "{out}");
    let line = |id: &str| out.lines().find(|line| line.contains(id)).map(str::to_owned);
    assert!(line(&ids[1]).unwrap().contains("region=north") && line(&ids[3]).unwrap().contains("(no labels)"), "{out}");
    let twice = line(&ids[2]).unwrap();
    assert!(twice.contains(&files[1]) && twice.contains(&files[2]) && !twice.contains(&files[0]), "{out}");
    assert_eq!(line(&ids[0]), None, "what is covered once is only counted: {out}");

    let (code, out, _) = coverage(&files, &["-o", "json"]).await;
    let document: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, &document["covered"]), (Some(1), &false.into()));
    let list = &document["lists"][0];
    assert_eq!((&list["uncovered"]["count"], &list["overlapping"]["count"]), (&2.into(), &1.into()));
    assert_eq!(list["overlapping"]["first"][0]["id"], ids[2].as_str());
    assert_eq!(api.fleet.faults().lists().len(), 2, "the list is read once per run, whatever the number of files");
}

#[tokio::test]
async fn a_fleet_that_is_divided_well_is_a_success() {
    let (fleet, _) = fleet(&[&[("region", "east")], &[("region", "west")]]);
    let api = Api::serve(fleet).await;
    let (_folder, both) = files(&api.url, &[("east.yaml", EAST), ("west.yaml", WEST)]);
    let (code, out, err) = coverage(&both, &[]).await;
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("2 listed, 2 of them covered exactly once"), "{out}");
    let (_folder, all) = files(&api.url, &[("all.yaml", "")]);
    assert_eq!(coverage(&all, &["-o", "json"]).await.0, Some(0));
}

#[tokio::test]
async fn each_tenant_has_a_list_of_its_own() {
    let (fleet, _) = fleet(&[&[("region", "east")]]);
    let api = Api::serve(fleet).await;
    let (_folder, files) = files(&api.url, &[("a.yaml", ""), ("b.yaml", ""), ("c.yaml", ""), ("d.yaml", "")]);
    for (file, more) in
        files.iter().zip(["headers: {x-tenant: one}", "headers: {x-tenant: two}", "token_file: /absent"])
    {
        let config = std::fs::read_to_string(file).unwrap();
        std::fs::write(file, format!("{config}  {more}\n")).unwrap();
    }
    let (code, out, err) = coverage(&files[..2], &["-o", "json"]).await;
    let document: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, document["lists"].as_array().map(Vec::len)), (Some(0), Some(2)), "{out}{err}");
    // Another token; it is asked for, and not there.
    let (code, out, err) = coverage(&[files[3].clone(), files[2].clone()], &[]).await;
    assert!(code == Some(1) && err.contains("read secret file /absent"), "{out}{err}");
}

#[tokio::test]
async fn long_findings_are_cut_unless_all_are_asked_for() {
    let labels: [(&str, &str); 1] = [("region", "north")];
    let (fleet, _) = fleet(&vec![labels.as_slice(); 130]);
    let api = Api::serve(fleet).await;
    let (_folder, files) = files(&api.url, &[("east.yaml", EAST)]);
    let lines = |out: &str| out.lines().filter(|line| line.contains("region=north")).count();
    let (_, short, _) = coverage(&files, &[]).await;
    assert!(lines(&short) == 20 && short.contains("and 110 more, which --all names"), "{short}");
    let (_, long, _) = coverage(&files, &["--all"]).await;
    assert_eq!(lines(&long), 130);
}

#[tokio::test]
async fn an_api_that_cannot_be_listed_is_told_with_what_to_try() {
    let api = Receiver::start().await;
    api.otherwise(Answer::status(403));
    let (_folder, files) = files(api.url(), &[("east.yaml", EAST)]);
    let (code, out, err) = coverage(&files, &[]).await;
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.contains("list the fleet: list ") && err.contains("status 403"), "{err}");
    assert!(err.contains("check its role and tenant"), "{err}");
}

#[tokio::test]
async fn every_problem_of_every_file_is_told_before_anything_is_asked() {
    let api = Receiver::start().await;
    let (folder, mut files) = files(api.url(), &[("east.yaml", EAST)]);
    for name in ["one.yaml", "two.yaml"] {
        let path = folder.path().join(name).display().to_string();
        std::fs::write(&path, "resource_type: clusters/../x\nhyperfleet_api:\n  endpoint: ftp://x\n").unwrap();
        files.push(path);
    }
    let (code, _, err) = coverage(&files, &[]).await;
    assert_eq!(code, Some(64), "{err}");
    for name in ["one.yaml", "two.yaml"] {
        assert_eq!(err.lines().filter(|line| line.contains(name)).count(), 2, "{err}");
    }
    assert!(api.requests().is_empty(), "nothing was asked");
}

#[tokio::test]
async fn a_list_that_is_shorter_than_its_own_count_is_no_success() {
    let list = r#"{"kind":"ClusterList","page":1,"size":1,"total":40,"items":[{"id":"a","generation":1}]}"#;
    let api = Receiver::start().await;
    api.otherwise(Answer::status(200).header("content-type", "application/json").body(list));
    let (_folder, files) = files(api.url(), &[("all.yaml", "")]);
    let (code, out, err) = coverage(&files, &[]).await;
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains("counted by the API and not listed: 39; nothing is published for them: check"), "{out}");
    assert!(err.contains("39 of 40 resources are not covered exactly once"), "{err}");
    let (code, out, _) = coverage(&files, &["-o", "json"]).await;
    let document: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, &document["lists"][0]["unlisted"]), (Some(1), &39.into()));
}
