use secrecy::ExposeSecret;
use watchfire_delivery::sink::rabbitmq::ExchangeType;

use super::*;

fn load(settings: &[(&str, &str)]) -> Result<(BrokerConfig, String), String> {
    let env: Env = settings.iter().copied().collect();
    let mut problems = Problems::without_file();
    let broker = check(&env, &mut problems);
    let warnings = problems.finish().map_err(|error| error.to_string())?;
    let warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    Ok((broker.unwrap(), warnings.join("\n")))
}

fn rabbitmq(settings: &[(&str, &str)]) -> RabbitMqConfig {
    let mut all = vec![("BROKER_TYPE", "rabbitmq")];
    all.extend(settings);
    match load(&all).unwrap().0 {
        BrokerConfig::RabbitMq(rabbitmq) => rabbitmq,
        other => panic!("{other:?}"),
    }
}

fn password(config: &RabbitMqConfig) -> String {
    config.password.current().unwrap().expose_secret().to_owned()
}

#[test]
fn the_rabbitmq_example_of_the_specification_is_accepted_as_written() {
    let settings = [
        ("BROKER_TYPE", "rabbitmq"),
        ("BROKER_HOST", "rabbitmq.hyperfleet-system.svc.cluster.local"),
        ("BROKER_PORT", "5672"),
        ("BROKER_VHOST", "/"),
        ("BROKER_EXCHANGE", "hyperfleet-events"),
        ("BROKER_EXCHANGE_TYPE", "fanout"),
    ];
    let (broker, warnings) = load(&settings).unwrap();
    assert!(warnings.contains("guest"), "{warnings}");
    assert_eq!(broker.topic(), "hyperfleet-events");
    let config = rabbitmq(&settings[1..]);
    assert_eq!((config.host.as_str(), config.port), ("rabbitmq.hyperfleet-system.svc.cluster.local", 5672));
    assert_eq!(
        (config.vhost.as_str(), config.exchange_type, config.routing_key.as_str()),
        ("/", ExchangeType::Fanout, "")
    );
}

#[test]
fn the_pubsub_example_of_the_specification_is_accepted_as_written() {
    let (broker, warnings) = load(&[("BROKER_TYPE", "pubsub"), ("BROKER_PROJECT_ID", "hyperfleet-prod")]).unwrap();
    assert_eq!((broker.topic(), warnings.as_str()), ("hyperfleet-events", ""));
    let BrokerConfig::PubSub(pubsub) = broker else { panic!("{broker:?}") };
    assert_eq!((pubsub.project.as_str(), pubsub.endpoint), ("hyperfleet-prod", Endpoint::Google));
}

#[test]
fn pubsub_goes_by_three_names_and_to_the_emulator_where_one_is_named() {
    for name in ["pubsub", "gcp-pubsub", "googlepubsub"] {
        let settings = [
            ("BROKER_TYPE", name),
            ("BROKER_PROJECT_ID", "p"),
            ("PUBSUB_EMULATOR_HOST", "127.0.0.1:8085"),
            ("BROKER_TOPIC", "t"),
        ];
        let (broker, _) = load(&settings).unwrap();
        let BrokerConfig::PubSub(pubsub) = broker else { panic!("{broker:?}") };
        assert_eq!((pubsub.topic.as_str(), pubsub.endpoint), ("t", Endpoint::Emulator("127.0.0.1:8085".into())));
    }
}

#[test]
fn credentials_and_their_place() {
    let config = rabbitmq(&[("BROKER_HOST", "mq"), ("BROKER_USER", "sentinel"), ("BROKER_PASSWORD", "hunter2")]);
    assert_eq!((config.user.as_str(), password(&config).as_str()), ("sentinel", "hunter2"));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "from-file\n").unwrap();
    let path = file.path().to_str().unwrap();
    let config = rabbitmq(&[("BROKER_HOST", "mq"), ("BROKER_USER", "u"), ("BROKER_PASSWORD_FILE", path)]);
    assert_eq!(password(&config), "from-file");
    std::fs::write(file.path(), "rotated").unwrap();
    assert_eq!(password(&config), "rotated");
    std::fs::write(file.path(), "\n").unwrap();
    let empty = [("BROKER_TYPE", "rabbitmq"), ("BROKER_HOST", "mq"), ("BROKER_PASSWORD_FILE", path)];
    assert!(load(&empty).unwrap_err().contains("is empty"));
    let error = load(&[("BROKER_TYPE", "rabbitmq"), ("BROKER_HOST", "mq"), ("BROKER_USER", "u")]).unwrap_err();
    assert!(error.contains("BROKER_PASSWORD: missing"), "{error}");
}

#[test]
fn a_url_gives_what_the_other_settings_do_not() {
    let url = ("BROKER_URL", "amqps://me:hunter2@mq.example:5999/team");
    let config = rabbitmq(&[url, ("BROKER_EXCHANGE", "e")]);
    assert_eq!((config.host.as_str(), config.port, config.vhost.as_str()), ("mq.example", 5999, "team"));
    assert_eq!((config.user.as_str(), config.transport), ("me", Transport::Tls));
    let config = rabbitmq(&[url, ("BROKER_HOST", "other"), ("BROKER_PORT", "1"), ("BROKER_VHOST", "v")]);
    assert_eq!((config.host.as_str(), config.port, config.vhost.as_str()), ("other", 1, "v"));
    let (_, warnings) = load(&[("BROKER_TYPE", "rabbitmq"), url]).unwrap();
    assert!(warnings.contains("BROKER_URL") && !warnings.contains("hunter2"), "{warnings}");
    let error = load(&[("BROKER_TYPE", "rabbitmq"), ("BROKER_URL", "http://me:hunter2@mq")]).unwrap_err();
    assert!(error.contains("BROKER_URL") && !error.contains("hunter2"), "{error}");
}

#[test]
fn every_wrong_setting_is_told_at_once() {
    let error = load(&[
        ("BROKER_TYPE", "rabbitmq"),
        ("BROKER_PORT", "tcp://10.0.0.1:5672"),
        ("BROKER_EXCHANGE_TYPE", "broadcast"),
        ("BROKER_TLS", "maybe"),
    ])
    .unwrap_err();
    for part in ["BROKER_HOST: missing", "enableServiceLinks", "broadcast", "maybe"] {
        assert!(error.contains(part), "{part} not in {error}");
    }
    assert!(load(&[]).unwrap_err().contains("BROKER_TYPE: missing"));
    assert!(load(&[("BROKER_TYPE", "kafka")]).unwrap_err().contains("kafka"));
    assert!(load(&[("BROKER_TYPE", "pubsub")]).unwrap_err().contains("BROKER_PROJECT_ID: missing"));
    let long = [("BROKER_TYPE", "pubsub"), ("BROKER_PROJECT_ID", "projects/p")];
    assert!(load(&long).unwrap_err().contains("short name"));
    for port in ["0", "65536", "-1"] {
        let error = load(&[("BROKER_TYPE", "rabbitmq"), ("BROKER_HOST", "h"), ("BROKER_PORT", port)]).unwrap_err();
        assert!(error.contains("is not a port"), "{error}");
    }
}

#[test]
fn tls_has_its_own_default_port() {
    let config = rabbitmq(&[("BROKER_HOST", "mq"), ("BROKER_TLS", "true")]);
    assert_eq!((config.transport, config.port), (Transport::Tls, 5671));
}

#[test]
fn a_misspelt_setting_is_warned_about_and_what_kubernetes_adds_is_not() {
    let (_, warnings) = load(&[
        ("BROKER_TYPE", "pubsub"),
        ("BROKER_PROJECT_ID", "p"),
        ("BROKER_TOPICS", "t"),
        ("BROKER_SUBSCRIPTION_ID", "theirs"),
        ("BROKER_SERVICE_HOST", "10.0.0.1"),
        ("BROKER_PORT_5672_TCP", "x"),
    ])
    .unwrap();
    assert!(warnings.contains("BROKER_TOPICS") && warnings.lines().count() == 1, "{warnings}");
}

#[test]
fn the_embedded_broker_names_its_subscribers() {
    let settings = [("BROKER_TYPE", "http"), ("BROKER_HTTP_SUBSCRIBERS", "dns=http://dns:1/e, validation=https://v/")];
    let (broker, _) = load(&settings).unwrap();
    let BrokerConfig::Http { subscribers, store } = broker else { panic!("{broker:?}") };
    assert_eq!(subscribers.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["dns", "validation"]);
    assert_eq!(store, Path::new("watchfire-broker.db"));
    assert!(load(&settings[..1]).unwrap_err().contains("BROKER_HTTP_SUBSCRIBERS: missing"));
    let twice = [("BROKER_TYPE", "http"), ("BROKER_HTTP_SUBSCRIBERS", "a=http://x/,a=http://y/")];
    assert!(load(&twice).is_err());
}

#[test]
fn settings_are_read_from_a_mounted_folder_a_manifest_or_a_map() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("BROKER_TYPE"), "pubsub\n").unwrap();
    assert_eq!(read(folder.path()).unwrap().get("BROKER_TYPE"), Some("pubsub"));
    let file = folder.path().join("broker.yaml");
    std::fs::write(&file, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\ndata:\n  BROKER_TYPE: \"rabbitmq\"\n  BROKER_PORT: \"5672\"\n").unwrap();
    assert_eq!(read(&file).unwrap().get("BROKER_PORT"), Some("5672"));
    std::fs::write(&file, "BROKER_TYPE: rabbitmq\nBROKER_PORT: 5672\n").unwrap();
    assert_eq!(read(&file).unwrap().get("BROKER_PORT"), Some("5672"));
    assert!(read(Path::new("/nowhere")).is_err());
    // What is no broker's setting does not become one of the sentinel.
    std::fs::write(&file, "BROKER_TYPE: http\nHYPERFLEET_API_TOKEN: t0ken\nPUBSUB_EMULATOR_HOST: mq:1\n").unwrap();
    std::fs::write(folder.path().join("HYPERFLEET_API_TOKEN"), "t0ken").unwrap();
    for path in [folder.path(), &file] {
        assert_eq!(read(path).unwrap().get("HYPERFLEET_API_TOKEN"), None);
    }
    assert_eq!(read(&file).unwrap().get("PUBSUB_EMULATOR_HOST"), Some("mq:1"));
}
