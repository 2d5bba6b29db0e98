//! No secret is in anything that the binary says, at any log level, whatever goes wrong.

use serde_json::Value;
use watchfire_testkit::{Answer, Receiver, amqp_url};

use super::api;
use crate::support::{Api, Process, Setup, command, get, text};

const TOKEN: &str = "tok3n-of-the-api";
const PASSWORD: &str = "hunter2-of-the-broker";
const USERINFO: &str = "pa55-of-the-subscriber";
const HEADER: &str = "k3y-of-the-tenant";

/// Every library at its loudest, also those that are tamed by default.
const LOUD: &str = "trace,hyper=trace,hyper_util=trace,reqwest=trace,h2=trace,rustls=trace,lapin=trace,tower=trace";

fn check(what: &str, said: &str) {
    assert!(!said.is_empty(), "{what} says nothing");
    // `cGE1NS1vZi10aGUtc3Vic2NyaWJlcg` is the userinfo's password as basic authentication would show it.
    for secret in [TOKEN, PASSWORD, USERINFO, HEADER, "cGE1NS1vZi10aGUtc3Vic2NyaWJlcg", "OnBhNTUtb2Yt"] {
        let line = said.lines().find(|line| line.contains(secret));
        assert!(line.is_none(), "{what} tells {secret}: {line:?}");
    }
}

async fn guarded(clusters: usize) -> Api {
    let api = api(clusters).await;
    api.fleet.faults().require_token(Some(TOKEN.into()));
    api
}

#[tokio::test]
async fn no_secret_of_api_and_subscribers_is_in_logs_pages_and_settings() {
    for level in ["trace", LOUD] {
        let (api, receiver) = (guarded(2).await, Receiver::start().await);
        receiver.script([Answer::status(401), Answer::status(500)]);
        let subscriber = receiver.url().replace("http://", &format!("http://user:{USERINFO}@"));
        let setup = Setup::new(&api.url, "poll_interval: 200ms", &format!("{subscriber}/e?key={PASSWORD}"))
            .env("HYPERFLEET_API_TOKEN", TOKEN)
            .env("HYPERFLEET_DEBUG_CONFIG", "true")
            .arg("--log-level", level);
        let file = std::fs::read_to_string(&setup.args[1]).unwrap();
        std::fs::write(&setup.args[1], format!("{file}  headers: {{X-Api-Key: {HEADER}}}\n")).unwrap();
        let sentinel = setup.start().await;
        let requests = receiver.wait_for(3).await;
        let credentials = requests[0].header("authorization");
        assert!(credentials.starts_with("Basic "), "the credentials are used: {credentials:?}");
        sentinel.readiness(200).await;
        for page in ["/", "/healthz", "/readyz", "/metrics"] {
            check(page, &get(&format!("{}{page}", sentinel.health)).await.1);
        }
        // A token that the API does not take.
        api.fleet.faults().require_token(Some("another".into()));
        let denied: Value = serde_json::from_str(&sentinel.readiness(503).await).unwrap();
        check("the refusal", &denied.to_string());
        assert!(denied.to_string().contains("HYPERFLEET_API_TOKEN"), "{denied}");
        let log = sentinel.stop().await;
        check("the log", &log);
        assert!(log.contains("X-Api-Key"), "the configuration in effect is in it");
        for task in ["show", "check"] {
            let mut command = command(&["config", task, "--config", &setup.args[1]]);
            let output = command.envs(setup.env.iter().cloned()).output().await.unwrap();
            check(task, &format!("{}{}", text(&output.stdout), text(&output.stderr)));
        }
    }
}

#[tokio::test]
async fn no_password_of_rabbitmq_is_in_the_log() {
    // One that refuses the password, where there is one; and one that is not there.
    let running = amqp_url("no_password_of_rabbitmq_is_in_the_log");
    let address = running.as_deref().and_then(|url| url.rsplit_once('@')).map(|(_, address)| address.to_owned());
    for address in address.into_iter().chain(["127.0.0.1:1/%2f".to_owned()]) {
        let api = guarded(1).await;
        let by_url = [("BROKER_URL", format!("amqp://sentinel:{PASSWORD}@{address}"))].to_vec();
        let by_variables = [
            ("BROKER_URL", format!("amqp://{address}")),
            ("BROKER_USER", "sentinel".to_owned()),
            ("BROKER_PASSWORD", PASSWORD.to_owned()),
        ];
        for env in [by_url, by_variables.to_vec()] {
            let mut setup = Setup::new(&api.url, "poll_interval: 200ms", "http://unused")
                .env("BROKER_TYPE", "rabbitmq")
                .env("HYPERFLEET_API_TOKEN", TOKEN)
                .arg("--log-level", LOUD);
            for (name, value) in env {
                setup = setup.env(name, &value);
            }
            let sentinel = setup.start().await;
            let line = sentinel.process.line(&["the broker does not take events"]).await;
            assert!(line.contains("hint"), "{line}");
            check("readiness", &sentinel.readiness(503).await);
            check("the log", &sentinel.stop().await);
        }
    }
}

#[tokio::test]
async fn a_token_file_is_read_again_when_it_changes_and_never_told() {
    let (api, receiver) = (guarded(1).await, Receiver::start().await);
    let mut setup = Setup::new(&api.url, "poll_interval: 200ms", receiver.url()).arg("--log-level", "trace");
    let file = setup.folder.path().join("token");
    setup = setup.env("HYPERFLEET_API_TOKEN_FILE", &file.display().to_string());
    let sentinel = setup.start().await;
    let missing = sentinel.readiness(503).await;
    assert!(missing.contains("token") || missing.contains("not checked yet"), "{missing}");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    sentinel.readiness(200).await;
    check("the log", &sentinel.stop().await);
}

#[tokio::test]
async fn a_token_that_no_header_can_carry_is_told_as_such() {
    let (api, receiver) = (guarded(1).await, Receiver::start().await);
    let token = format!("{TOKEN}\n{PASSWORD}");
    let setup = Setup::new(&api.url, "", receiver.url()).env("HYPERFLEET_API_TOKEN", &token);
    let sentinel = setup.start().await;
    let line = sentinel.process.line(&["cannot list resources"]).await;
    assert!(line.contains("characters that a header cannot carry") && line.contains("line breaks"), "{line}");
    check("readiness", &sentinel.readiness(503).await);
    check("the log", &sentinel.stop().await);
}

#[tokio::test]
async fn a_command_line_that_is_wrong_does_not_repeat_the_environment() {
    let mut command = command(&["sentinel", "--config", "/nowhere"]);
    command.env("HYPERFLEET_API_TOKEN", TOKEN).env("BROKER_PASSWORD", PASSWORD);
    let mut process = Process::start(command);
    assert_eq!(process.ended().await.code(), Some(64));
    check("the complaint", &process.err());
}
