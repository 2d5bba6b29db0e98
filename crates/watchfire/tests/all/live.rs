//! `config check --live`: what is said about an API and a broker before anything is published.

use std::path::Path;

use serde_json::Value;
use watchfire_delivery::EventSink;
use watchfire_delivery::sink::pubsub::{Endpoint, MissingTopic, PubSub, PubSubConfig};
use watchfire_testkit::{
    Rabbit, Receiver, Subscription, amqp_url, eventually, free_port, private_broker_with, pubsub_endpoint, unique,
};

use crate::dropin::{Deployment, fleet};
use crate::support::{DEADLINE, run, text};

async fn check_live(config: &Path, env: &[(&str, &str)]) -> (Option<i32>, String) {
    check_live_with(config, env, &[]).await
}

async fn check_live_with(config: &Path, env: &[(&str, &str)], more: &[&str]) -> (Option<i32>, String) {
    let config = config.display().to_string();
    let output = run(&[&["config", "check", "--live", "-c", &config], more].concat(), env).await;
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

/// Nobody is asked where nobody can be: the cause and what to try are about this machine.
#[tokio::test]
async fn credentials_of_pubsub_that_are_not_there_are_told_with_their_path_and_how_to_get_some() {
    let api = fleet().await;
    let deployment = Deployment::new(&api.url, "", "{}");
    let path = deployment.path("missing.json").display().to_string();
    let home = deployment.folder.path().to_str().unwrap();
    let pubsub = [("BROKER_TYPE", "pubsub"), ("BROKER_PROJECT_ID", "hyperfleet"), ("BROKER_TOPIC", "events")];
    let of_a_file = [("GOOGLE_APPLICATION_CREDENTIALS", path.as_str())];
    // Neither the file that gcloud makes, nor the server that tells who one is in Google's cloud.
    let none = [("HOME", home), ("GCE_METADATA_HOST", "127.0.0.1:1")];
    for (env, cause) in [(&of_a_file[..], path.as_str()), (&none, "127.0.0.1:1")] {
        let env = [&pubsub, env].concat();
        let (status, said) = check_live(&deployment.path("config.yaml"), &env).await;
        assert_eq!(status, Some(1), "{said}");
        for part in
            ["broker: FAILED: use projects", cause, "gcloud auth application-default login", "PUBSUB_EMULATOR_HOST"]
        {
            assert!(said.contains(part), "{part} is not in:\n{said}");
        }
    }
}

#[tokio::test]
async fn a_live_check_says_what_api_and_broker_answer() {
    let (api, receiver) = (fleet().await, Receiver::start().await);
    let deployment = Deployment::new(&api.url, "", "{}");
    let subscribers = format!("adapter={}", receiver.url());
    let http = [("BROKER_TYPE", "http"), ("BROKER_HTTP_SUBSCRIBERS", subscribers.as_str())];
    let (status, said) = check_live(&deployment.path("config.yaml"), &http).await;
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("answers: 2 clusters with labels.region='us-east'"), "{said}");
    assert!(
        said.contains("broker: embedded, in watchfire-broker.db; subscribers, who are not asked: adapter"),
        "{said}"
    );
    let away = Deployment::new("http://127.0.0.1:1", "", "{}");
    let (status, said) = check_live(&away.path("config.yaml"), &http).await;
    assert!(status == Some(1) && said.contains("API: FAILED: reach http://127.0.0.1:1"), "{said}");
    let file = away.path("config.yaml").display().to_string();
    let output = run(&["config", "check", "--live", "-o", "json", "-c", &file], &http).await;
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let live = &document["live"];
    let ok = (output.status.code(), &document["valid"], &live["api"]["ok"], &live["broker"]["ok"]);
    assert_eq!(ok, (Some(1), &true.into(), &false.into(), &true.into()), "{document}");
    assert!(live["api"]["message"].as_str().unwrap().contains("reach http://127.0.0.1:1"), "{document}");
}

#[tokio::test]
async fn a_live_check_finds_an_exchange_of_another_type_and_declares_none() {
    let Some(url) = amqp_url("live::rabbitmq") else { return };
    let (api, topic) = (fleet().await, unique("live"));
    let deployment = Deployment::new(&api.url, "", "{}");
    let env = [("BROKER_TYPE", "rabbitmq"), ("BROKER_URL", url.as_str()), ("HYPERFLEET_BROKER_TOPIC", topic.as_str())];
    for _ in 0..2 {
        // Twice: the first look has not made it.
        let (status, said) = check_live(&deployment.path("config.yaml"), &env).await;
        assert!(
            status == Some(0) && said.contains("is not there yet and will be declared, durable and fanout"),
            "{said}"
        );
    }
    let queue = Rabbit::listen(&url, &topic, "topic", "").await;
    let (status, said) = check_live(&deployment.path("config.yaml"), &env).await;
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("broker: FAILED: use exchange") && said.contains("BROKER_EXCHANGE_TYPE"), "{said}");
    let right = [env[0], env[1], env[2], ("BROKER_RABBITMQ_EXCHANGE_TYPE", "topic")];
    let (status, said) = check_live(&deployment.path("config.yaml"), &right).await;
    assert!(status == Some(0) && said.contains("is there, durable and topic"), "{said}");
    queue.delete().await;
}

#[tokio::test]
async fn a_live_check_counts_who_subscribes_to_the_topic() {
    let Some(endpoint) = pubsub_endpoint("live::pubsub") else { return };
    let (api, project) = (fleet().await, unique("p"));
    let deployment = Deployment::new(&api.url, "", "{}");
    let env = [
        ("BROKER_TYPE", "googlepubsub"),
        ("BROKER_GOOGLEPUBSUB_PROJECT_ID", project.as_str()),
        ("HYPERFLEET_BROKER_TOPIC", "clusters"),
        ("PUBSUB_EMULATOR_HOST", endpoint.as_str()),
    ];
    let (status, said) = check_live(&deployment.path("config.yaml"), &env).await;
    assert!(status == Some(0) && said.contains("topic \"clusters\" is not there yet and will be created"), "{said}");

    let mut config = PubSubConfig::new(&project, "clusters");
    config.endpoint = Endpoint::Emulator(endpoint.clone());
    config.missing_topic = MissingTopic::Create;
    PubSub::new(config).check().await.unwrap();
    let (status, said) = check_live(&deployment.path("config.yaml"), &env).await;
    assert!(status == Some(0) && said.contains("with 0 subscriptions: nobody gets the events"), "{said}");
    let _subscription = Subscription::create(&endpoint, &project, "clusters").await;
    let (status, said) = check_live(&deployment.path("config.yaml"), &env).await;
    assert!(status == Some(0) && said.contains("with 1 subscriptions\n"), "{said}");
}

#[tokio::test]
async fn a_live_check_takes_no_client_that_cannot_be_made_for_a_topic_that_is_missing() {
    let api = fleet().await;
    let deployment = Deployment::new(&api.url, "", "{}");
    let env = [
        ("BROKER_TYPE", "googlepubsub"),
        ("BROKER_GOOGLEPUBSUB_PROJECT_ID", "p"),
        ("PUBSUB_EMULATOR_HOST", "http://no address"),
    ];
    let (status, said) = check_live(&deployment.path("config.yaml"), &env).await;
    assert!(status == Some(1) && said.contains("broker: FAILED: reach projects/p/topics/"), "{said}");
}

#[tokio::test]
async fn a_live_check_says_which_queues_are_bound_and_who_consumes_them() {
    let port = free_port();
    let conf = format!("management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n");
    let Some(broker) = private_broker_with("live::management", &conf).await else { return };
    let (api, url) = (fleet().await, broker.url());
    let deployment = Deployment::new(&api.url, "", "{}");
    let config = deployment.path("config.yaml");
    let management = format!("http://127.0.0.1:{port}");
    let ask = async |topic: &str| {
        let env = [("BROKER_TYPE", "rabbitmq"), ("BROKER_URL", url.as_str()), ("HYPERFLEET_BROKER_TOPIC", topic)];
        check_live_with(&config, &env, &["--management-url", &management]).await
    };
    let (status, said) = ask("clusters").await;
    assert_eq!(status, Some(0), "{said}");
    assert!(
        said.contains("is not there yet and will be declared, durable and fanout; no queue is bound to it"),
        "{said}"
    );
    assert!(said.contains("nor to any other exchange of the virtual host: nobody gets the events"), "{said}");

    let consumed = Rabbit::listen(&url, "clusters", "fanout", "").await;
    let rabbit = Rabbit::connect(&url).await;
    rabbit.queue("left behind").await;
    rabbit.bind("left behind", "clusters", "a.key").await;
    // The broker counts every few seconds.
    let said = eventually(DEADLINE, "the queues are counted", async || {
        let (status, said) = ask("clusters").await;
        assert_eq!(status, Some(0), "{said}");
        (!said.contains("not counted yet")).then_some(said)
    })
    .await;
    assert!(said.contains(&format!("queue {:?} (1 consumers, 0 messages)", consumed.queue())), "{said}");
    let left = "queue \"left behind\" by \"a.key\" (no consumer: start the adapter; 0 messages)";
    assert!(said.contains("is there, durable and fanout; bound to it: ") && said.contains(left), "{said}");

    // Today's most common mistake: the sentinel's topic is not the adapters' exchange.
    let (_, said) = ask("nodepools").await;
    assert!(said.contains("nobody gets the events; queues are bound to \"clusters\": name that exchange"), "{said}");

    for (given, why) in [
        ("http://me:hunter2@mq:15672", "leave out user and password, the broker's are used"),
        ("mq:15672", "expected an address such as http://rabbitmq:15672"),
        ("http://127.0.0.1:1", "ask RabbitMQ's management API for http://127.0.0.1:1/api/bindings/%2F"),
        (&format!("{management}/elsewhere"), "look at the address"),
    ] {
        let env = [("BROKER_TYPE", "rabbitmq"), ("BROKER_URL", url.as_str())];
        let (status, said) = check_live_with(&config, &env, &["--management-url", given]).await;
        assert!(status != Some(0) && said.contains(why) && !said.contains("hunter2"), "{given}: {status:?} {said}");
    }
    let http = [("BROKER_TYPE", "http"), ("BROKER_HTTP_SUBSCRIBERS", "a=http://127.0.0.1:1")];
    let (status, said) = check_live_with(&config, &http, &["--management-url", &management]).await;
    assert!(
        status == Some(64) && said.contains("--management-url: it is RabbitMQ's, and the broker is another one"),
        "{said}"
    );
}
