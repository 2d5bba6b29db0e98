//! `watchfire sentinel explain`: asked of a running process, and of the API alone.

use std::process::Output;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use watchfire_runtime::clock;
use watchfire_simulator::{Dialect, Fault, NewReport, NewResource, Patch, Scope, Simulator, Status, Times};
use watchfire_testkit::{Answer, Receiver, eventually};

use crate::support::{Api, DEADLINE, Process, Sentinel, Setup, command, get, run, text};

const EAST: &str = "resource_selector: [{label: region, value: east}]\npoll_interval: 200ms";

struct Scene {
    api: Api,
    receiver: Receiver,
    setup: Setup,
    id: String,
}

async fn scene(more: &str) -> Scene {
    let fleet = Simulator::new(Dialect::Hyperfleet);
    let id = fleet.create("clusters", NewResource::named("alpha").label("region", "east")).unwrap().id;
    let (api, receiver) = (Api::serve(fleet).await, Receiver::start().await);
    let setup = Setup::new(&api.url, more, receiver.url()).env("HYPERFLEET_API_TOKEN", "s3cret-token");
    Scene { api, receiver, setup, id }
}

impl Scene {
    /// Asks the API alone.
    async fn alone(&self, id: &str, more: &[&str]) -> Output {
        let file = self.setup.folder.path().join("sentinel.yaml").display().to_string();
        let args: Vec<_> =
            ["sentinel", "explain", id, "--config", &file].into_iter().chain(more.iter().copied()).collect();
        run(&args, &[("HYPERFLEET_API_TOKEN", "s3cret-token")]).await
    }
}

/// Asks a running sentinel; every question is one request to its API.
async fn live(sentinel: &Sentinel, id: &str) -> Value {
    let (_, body) = get(&format!("{}/sentinel/explain/{id}", sentinel.health)).await;
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

#[tokio::test]
async fn a_running_sentinel_knows_what_became_of_the_last_event() {
    let Scene { api, receiver, setup, id } = scene(EAST).await;
    let sentinel = setup.start().await;
    receiver.wait_for(1).await;
    let published = async || Some(live(&sentinel, &id).await).filter(|answer| answer["last_event"].is_object());
    let answer = eventually(DEADLINE, "an outcome", published).await;
    assert_eq!((&answer["outcome"], &answer["from_memory"]), (&json!("not_due"), &json!(true)), "{answer}");
    let event: Value = serde_json::from_slice(&receiver.requests()[0].body).unwrap();
    assert_eq!(answer["last_event"]["id"], event["id"], "{answer}");
    assert_eq!(answer["decision"]["reason"], "event published, max age not expired");
    assert_eq!(answer["inputs"]["published"]["attempts"], 1);
    assert_eq!(answer["selector"][0], json!({"requirement": "region=east", "value": "east", "holds": true}));
    assert!(!answer.to_string().contains("s3cret-token"));
    let time = |value: &Value| value.as_str().expect("a time").parse::<Timestamp>().expect("a time");
    let due = time(&answer["last_event"]["at"]) + SignedDuration::from_secs(10);
    assert_eq!(time(&answer["decision"]["due"]), due, "{answer}");

    // For people: the verdict first.
    let output = run(&["sentinel", "explain", &id, "--server", &sentinel.health], &[]).await;
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert!(
        said.lines().next().unwrap().starts_with(&format!("Cluster {id}: no event is due: event published")),
        "{said}"
    );
    let next = said.lines().next().unwrap().split_once("; the next is in ").expect("when the next one is").1;
    assert!(next.contains(&format!("s, at {due:.0}, unless the resource changes")), "{said}");
    for part in [
        "last event",
        "confirmed",
        "seen by the adapters",
        "validation: has never reported",
        "region=east holds",
        "why not",
        "max age of 10s since our last event",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }

    // Gone from the API, and still known.
    api.fleet.force_delete("clusters", &id).unwrap();
    let output = run(&["sentinel", "explain", &id, "--server", &sentinel.health], &[]).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("deleted for good, no event will follow") && said.contains("confirmed"), "{said}");
    assert_eq!(get(&format!("{}/sentinel/explain/{id}", sentinel.health)).await.0, 404);
    sentinel.stop().await;
}

#[tokio::test]
async fn the_adapter_that_leaves_our_last_event_without_a_report_is_named() {
    let Scene { api, receiver, setup, id } = scene("max_age_not_ready: 50ms").await;
    for (adapter, ago) in [("validation", 0), ("dns", 90)] {
        let at = clock::now() - SignedDuration::from_secs(ago);
        api.fleet.report_at("clusters", &id, NewReport::new(adapter, 1, Status::False, at), at).unwrap();
    }
    let sentinel = setup.start().await;
    // So often that the adapter had the time.
    receiver.wait_for(5).await;
    let published = async || live(&sentinel, &id).await["last_event"].is_object().then_some(());
    eventually(DEADLINE, "an outcome", published).await;
    let output = run(&["sentinel", "explain", &id, "--server", &sentinel.health], &[]).await;
    let said = text(&output.stdout);
    let adapter =
        |name: &str| said.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name}: {said}"));
    assert!(adapter("dns: saw generation 1").ends_with("; silent since our last event"), "{said}");
    assert!(!adapter("validation: saw generation 1").contains("silent"), "{said}");
    sentinel.stop().await;
}

#[tokio::test]
async fn the_api_alone_tells_what_would_be_decided_and_that_it_knows_no_more() {
    let scene = scene(EAST).await;
    let output = scene.alone(&scene.id, &[]).await;
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert!(said.contains("generation changed - new spec to reconcile; the next cycle publishes it"), "{said}");
    assert!(said.contains("only the API was asked; --server URL asks the running sentinel"), "{said}");
    let output = scene.alone(&scene.id, &["-o", "json"]).await;
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["outcome"], &answer["from_memory"]), (&json!("due"), &json!(false)));
    // The service publishes the very event that was foretold.
    let sentinel = scene.setup.start().await;
    let event: Value = serde_json::from_slice(&scene.receiver.wait_for(1).await[0].body).unwrap();
    assert_eq!(answer["event"], event["id"]);
    sentinel.stop().await;
}

#[tokio::test]
async fn what_is_not_selected_names_the_requirement() {
    let scene = scene("resource_selector: [{label: region, value: west}, {label: tier, value: gold}]").await;
    let output = scene.alone(&scene.id, &[]).await;
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0));
    assert!(said.contains("does not watch it: its selector asks for region=west, and it has \"east\""), "{said}");
    assert!(said.contains("tier=gold does not hold"), "{said}");
}

#[tokio::test]
async fn what_is_being_deleted_says_so() {
    let scene = scene("").await;
    scene.api.fleet.delete("clusters", &scene.id).unwrap();
    let said = text(&scene.alone(&scene.id, &[]).await.stdout);
    assert!(said.contains("deletion requested") && said.contains("being deleted since"), "{said}");
}

#[tokio::test]
async fn each_failure_says_what_to_try() {
    let scene = scene("").await;
    let table = [
        ("019a0c5e-0000-7000-8000-00000000ffff", "has no such thing among its clusters: check the id"),
        ("../nodepools", "this is no id that an API gives"),
        ("..", "this is no id that an API gives"),
        ("a/statuses", "this is no id that an API gives"),
        ("%2e%2e", "this is no id that an API gives"),
        ("a\u{1b}[31m", "this is no id that an API gives"),
    ];
    for (id, expected) in table {
        let output = scene.alone(id, &[]).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{id}: {said}");
        assert!(said.contains(expected) && !said.contains('\u{1b}'), "{id}: {said}");
    }
    let asked = scene.api.fleet.faults().requests().len();
    assert_eq!(asked, 1, "only what may be an id is asked for");

    let api = Receiver::start().await;
    let file = scene.setup.folder.path().join("other.yaml").display().to_string();
    let ask = async |answer: Answer| {
        api.otherwise(answer);
        std::fs::write(
            &file,
            format!("resource_type: clusters\nhyperfleet_api:\n  endpoint: {}\n  timeout: 1s\n", api.url()),
        )
        .unwrap();
        let output = run(&["sentinel", "explain", "a", "--config", &file], &[]).await;
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr)
    };
    let said = ask(Answer::status(403)).await;
    assert!(said.contains("the API does not show it") && said.contains("check its role and tenant"), "{said}");
    let said = ask(Answer::hang()).await;
    assert!(said.contains("the API does not show it") && said.contains("no complete answer"), "{said}");
    drop(api);
    std::fs::write(&file, "resource_type: clusters\nhyperfleet_api:\n  endpoint: http://127.0.0.1:9\n").unwrap();
    let said = text(&run(&["sentinel", "explain", "a", "--config", &file], &[]).await.stderr);
    assert!(said.contains("the API does not show it") && said.contains("check hyperfleet_api.endpoint"), "{said}");
}

#[tokio::test]
async fn a_server_that_is_no_sentinel_is_told() {
    let other = Receiver::start().await;
    let table = [
        (other.url().to_owned(), "not as a sentinel does"),
        ("http://127.0.0.1:9".to_owned(), "check that it runs"),
        ("localhost:8080".to_owned(), "write the health address"),
        ("ftp://x".to_owned(), "write the health address"),
    ];
    for (server, expected) in table {
        let output = run(&["sentinel", "explain", "a", "--server", &server], &[]).await;
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(expected), "{server}: {said}");
    }
    let output = run(&["sentinel", "explain", "a", "--config", "/absent.yaml"], &[]).await;
    assert_eq!(output.status.code(), Some(64), "{}", text(&output.stderr));
}

#[tokio::test]
async fn questions_cost_the_api_one_request_each_and_a_flood_is_turned_away() {
    let Scene { api, receiver, setup, id } = scene("poll_interval: 1h").await;
    let sentinel = setup.start().await;
    receiver.wait_for(1).await;
    let before = api.fleet.faults().requests().len();
    live(&sentinel, &id).await;
    assert_eq!(api.fleet.faults().requests().len(), before + 1);
    api.fleet.patch("clusters", &id, Patch::spec(&json!({"x": 1}))).unwrap();
    assert_eq!(live(&sentinel, &id).await["outcome"], "due", "asked anew each time");

    let url = format!("{}/sentinel/explain/{id}", sentinel.health);
    let answers = futures_util::future::join_all((0..60).map(|_| get(&url))).await;
    let served = answers.iter().filter(|(status, _)| *status == 200).count();
    assert!(served >= 1 && answers.iter().all(|(status, _)| matches!(status, 200 | 503)), "{answers:?}");
    let asked = api.fleet.faults().requests().len() - before - 2;
    assert_eq!(asked, served, "who is turned away costs the API nothing");
    for odd in ["..%2f..%2fstatuses", "%00", "a%20b"] {
        assert_eq!(get(&format!("{}/sentinel/explain/{odd}", sentinel.health)).await.0, 400, "{odd}");
    }
    sentinel.stop().await;
}

#[tokio::test]
async fn an_event_that_the_broker_did_not_take_is_told_and_an_api_that_is_down_does_not_hide_it() {
    let scene = scene("poll_interval: 200ms").await;
    // Nobody listens there: the sentinel goes on, and no event is confirmed.
    let setup = scene
        .setup
        .env("BROKER_TYPE", "rabbitmq")
        .env("BROKER_HOST", "127.0.0.1")
        .env("BROKER_PORT", "9")
        .env("BROKER_VHOST", "/")
        .env("BROKER_USER", "user")
        .env("BROKER_PASSWORD", "s3cret-password");
    let sentinel = setup.start().await;
    let refused = async || Some(live(&sentinel, &scene.id).await).filter(|it| it["last_event"]["refused"].is_string());
    let answer = eventually(DEADLINE, "a refusal", refused).await;
    assert_eq!(answer["outcome"], "due", "{answer}");
    assert!(!answer.to_string().contains("s3cret"), "{answer}");
    let Api { fleet, .. } = &scene.api;
    fleet.faults().arm(Scope::All, Fault::status(503), Times::Always);
    let output = run(&["sentinel", "explain", &scene.id, "--server", &sentinel.health], &[]).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("status 503") && said.contains("its last event: not confirmed"), "{said}");
    sentinel.stop().await;
}

/// One process with two sentinels of clusters, each with an API and a region.
async fn two(setup: &Setup, sentinels: [(&str, &str); 2]) -> Sentinel {
    let path = |name: &str| setup.folder.path().join(name);
    for (name, (api, region)) in ["a", "b"].into_iter().zip(sentinels) {
        let config = format!(
            "resource_type: clusters\nresource_selector: [{{label: region, value: {region}}}]\n\
             hyperfleet_api: {{endpoint: '{api}', timeout: 6s}}\n"
        );
        std::fs::write(path(&format!("{name}.yaml")), config).unwrap();
    }
    let list = "sentinels:\n  - {name: a, config: a.yaml}\n  - {name: b, config: b.yaml}\n";
    std::fs::write(path("run.yaml"), list).unwrap();
    let file = path("run.yaml").display().to_string();
    let ports = ["--health-bind-address=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0"];
    let mut command = command(&["run", "-c", &file, ports[0], ports[1], "--record", "recordings"]);
    command.envs(setup.env.iter().cloned()).current_dir(setup.folder.path());
    Sentinel::started(Process::start(command)).await
}

#[tokio::test]
async fn an_api_that_is_away_is_not_hidden_by_a_sentinel_that_watches_something_else() {
    let Scene { api, receiver: _receiver, setup, id } = scene("").await;
    let sentinel = two(&setup, [(&api.url, "west"), ("http://127.0.0.1:9", "east")]).await;
    let answer = live(&sentinel, &id).await;
    assert_eq!(answer["outcome"], "api_failed", "{answer}");
    sentinel.stop().await;
}

#[tokio::test]
async fn several_apis_that_do_not_answer_take_no_longer_than_one() {
    let Scene { api: _api, receiver: _receiver, setup, id } = scene("").await;
    let api = Receiver::start().await;
    api.otherwise(Answer::hang());
    let sentinel = two(&setup, [(api.url(), "west"), (api.url(), "east")]).await;
    // Within the ten seconds that the page is given.
    let answer = live(&sentinel, &id).await;
    assert_eq!(answer["outcome"], "api_failed", "{answer}");
}

#[tokio::test]
async fn of_several_sentinels_the_one_that_watches_it_answers() {
    let Scene { api, receiver, setup, id } = scene("").await;
    let sentinel = two(&setup, [(&api.url, "west"), (&api.url, "east")]).await;
    receiver.wait_for(1).await;
    assert_eq!(live(&sentinel, &id).await["selector"][0]["requirement"], "region=east");
    sentinel.stop().await;
    // Each has recorded what it saw, and what became of its events.
    for (name, events) in [("a", 0), ("b", 1)] {
        let path = |name: String| setup.folder.path().join(name).display().to_string();
        let (recording, config) = (path(format!("recordings/{name}")), path(format!("{name}.yaml")));
        let args = ["sentinel", "simulate", "--recording", &recording, "--config", &config, "-o", "json"];
        let output = run(&args, &[]).await;
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
        assert_eq!(report["runs"][0]["events"], events, "{name}: {report}");
    }
}

/// The embedded broker confirms for its subscribers: that one of them refused an event for good, it alone knows.
#[tokio::test]
async fn a_dead_letter_is_seen_by_whoever_asks_why() {
    let Scene { api, receiver, setup, id } = scene(EAST).await;
    receiver.otherwise(Answer::status(400));
    let sentinel = setup.start().await;
    let dead = async || Some(live(&sentinel, &id).await).filter(|answer| answer["deliveries"][0]["state"] == "dead");
    let answer = eventually(DEADLINE, "a dead letter", dead).await;
    assert_eq!(answer["deliveries"][0]["attempts"], 1, "{answer}");
    let output = run(&["sentinel", "explain", &id, "--server", &sentinel.health], &[]).await;
    let said = text(&output.stdout);
    let line = said.lines().find(|line| line.contains("to a subscriber")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("dead") && line.contains("1 attempt: ") && line.contains("400"), "{line}");
    let store = setup.folder.path().join("broker.db").display().to_string();
    let number = answer["deliveries"][0]["number"].as_i64().expect("a number").to_string();
    let way_out = format!("`watchfire outbox --store {store} retry --number {number}` sends it again");
    assert!(line.ends_with(&way_out), "{line}");

    // Also where the API has no more to say.
    api.fleet.force_delete("clusters", &id).unwrap();
    let output = run(&["sentinel", "explain", &id, "--server", &sentinel.health], &[]).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("; to validation: dead") && said.contains(&way_out), "{said}");
    let output = run(&["outbox", "--store", &store, "retry", "--number", &number], &[]).await;
    assert_eq!(text(&output.stdout).trim_end(), "1 queued again", "{}", text(&output.stderr));
    sentinel.stop().await;
}

/// A file in the form of today's HyperFleet, with an expression that decides.
#[tokio::test]
async fn an_expression_is_explained_part_by_part() {
    let scene = scene("").await;
    let file = scene.setup.folder.path().join("config.yaml").display().to_string();
    let config = |result: &str| {
        format!(
            "clients:\n  hyperfleet_api:\n    base_url: {}\nresource_type: clusters\nmessage_decision:\n  params:\n    \
             - {{name: seen, expr: summary().observed_generation}}\n  result: {result}\nmessage_data:\n  id: resource.id\n",
            scene.api.url
        )
    };
    let ask = async |result: &str| {
        std::fs::write(&file, config(result)).unwrap();
        let output = run(&["sentinel", "explain", &scene.id, "--config", &file], &[]).await;
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let said = ask("resource.generation > seen").await;
    for part in ["message decision matched; the next cycle", "0 <- summary().observed_generation", "true <- resource"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let said = ask("resource.generation < seen").await;
    assert!(said.contains("result is false; it is asked again in every cycle"), "{said}");
    let said = ask("resource.spec.nodes > 2 || seen > 1").await;
    assert!(said.contains("message decision failed") && said.contains("the expression cannot be evaluated"), "{said}");
}
