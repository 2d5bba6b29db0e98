use std::path::Path;

use secrecy::ExposeSecret;
use watchfire_delivery::sink::rabbitmq::{ExchangeType, Transport};
use watchfire_runtime::config::{ConfigError, Env, Origin, Text};

use super::*;
use crate::config::{Form, Migrated};

fn load(settings: &[(&str, &str)]) -> Result<(BrokerConfig, String), String> {
    let env: Env = settings.iter().copied().collect();
    outcome(&Settings::from(&env), Problems::without_file())
}

fn outcome(settings: &Settings, mut problems: Problems) -> Result<(BrokerConfig, String), String> {
    let broker = check(settings, &mut problems);
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
            ("BROKER_TOPIC", "topic"),
        ];
        let (broker, _) = load(&settings).unwrap();
        let BrokerConfig::PubSub(pubsub) = broker else { panic!("{broker:?}") };
        assert_eq!((pubsub.topic.as_str(), pubsub.endpoint), ("topic", Endpoint::Emulator("127.0.0.1:8085".into())));
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
    let absent = [("BROKER_TYPE", "rabbitmq"), ("BROKER_HOST", "mq"), ("BROKER_USER", "u")];
    let error = load(&[&absent[..], &[("BROKER_PASSWORD_FILE", "/nowhere/password")]].concat()).unwrap_err();
    assert!(error.contains("BROKER_PASSWORD_FILE: read secret file /nowhere/password: No such file"), "{error}");
    assert!(!error.contains("missing"), "{error}");
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
fn a_host_with_a_password_in_it_is_refused_and_not_repeated() {
    for host in ["sentinel:s3cret@rabbitmq", "amqp://rabbitmq", "rabbitmq/s3cret", "rabbitmq s3cret"] {
        let error = load(&[("BROKER_TYPE", "rabbitmq"), ("BROKER_HOST", host)]).unwrap_err();
        assert!(error.contains("BROKER_HOST: is no host") && !error.contains("s3cret"), "{error}");
    }
    for host in ["rabbitmq", "10.0.0.1", "::1", "[::1]"] {
        assert_eq!(rabbitmq(&[("BROKER_HOST", host)]).host, host);
    }
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
    let BrokerConfig::Http { subscribers, store, topic } = broker else { panic!("{broker:?}") };
    assert_eq!(subscribers.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["dns", "validation"]);
    assert_eq!((store.as_path(), topic.as_str()), (Path::new("watchfire-broker.db"), DEFAULT_TOPIC));
    assert!(load(&settings[..1]).unwrap_err().contains("BROKER_HTTP_SUBSCRIBERS: missing"));
    let twice = [("BROKER_TYPE", "http"), ("BROKER_HTTP_SUBSCRIBERS", "a=http://x/,a=http://y/")];
    assert!(load(&twice).is_err());
}

/// What a file says, alone; the text is written to a file called `broker.yaml`.
fn file(text: &str) -> Result<(BrokerConfig, String), String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.yaml");
    std::fs::write(&path, text).unwrap();
    let mut problems = Problems::without_file();
    let told = match read(&path, &mut problems) {
        Ok(settings) => outcome(&settings, problems),
        Err(error) => Err(error.to_string()),
    };
    let short = |text: String| text.replace(&path.display().to_string(), "broker.yaml");
    told.map(|(broker, warnings)| (broker, short(warnings))).map_err(short)
}

fn settings(path: &Path) -> Settings {
    read(path, &mut Problems::without_file()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn settings_are_read_from_a_mounted_folder_a_manifest_or_a_map() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("BROKER_TYPE"), "pubsub\n").unwrap();
    assert_eq!(settings(folder.path()).get("BROKER_TYPE"), Some("pubsub"));
    let file = folder.path().join("broker.yaml");
    std::fs::write(&file, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\ndata:\n  BROKER_TYPE: \"rabbitmq\"\n  BROKER_PORT: \"5672\"\n").unwrap();
    assert_eq!(settings(&file).get("BROKER_PORT"), Some("5672"));
    std::fs::write(&file, "BROKER_TYPE: rabbitmq\nBROKER_PORT: 5672\n").unwrap();
    assert_eq!(settings(&file).get("BROKER_PORT"), Some("5672"));
    assert!(read(Path::new("/nowhere"), &mut Problems::without_file()).is_err());
    // What is no broker's setting does not become one of the sentinel.
    std::fs::write(&file, "BROKER_TYPE: http\nHYPERFLEET_API_TOKEN: t0ken\nPUBSUB_EMULATOR_HOST: mq:1\n").unwrap();
    std::fs::write(folder.path().join("HYPERFLEET_API_TOKEN"), "t0ken").unwrap();
    for path in [folder.path(), &file] {
        assert_eq!(settings(path).get("HYPERFLEET_API_TOKEN"), None);
    }
    assert_eq!(settings(&file).get("PUBSUB_EMULATOR_HOST"), Some("mq:1"));
}

const BROKER_YAML: &str = "\
log_config: true
subscriber: {parallelism: 4}
broker:
  type: rabbitmq
  rabbitmq:
    url: amqp://guest:guest@mq:5673/team
    exchange_type: topic
    queue: adapters
    prefetch_count: 10
    prefetch_size: 0
    consumer_tag: me
    publisher_confirm: true
";

#[test]
fn a_query_of_the_brokers_address_is_not_dropped_in_silence() {
    let (_, warnings) = load(&[("BROKER_TYPE", "rabbitmq"), ("BROKER_URL", "amqp://mq/%2f?heartbeat=30")]).unwrap();
    assert!(warnings.contains("BROKER_URL: its query is not read"), "{warnings}");
    let (_, warnings) = load(&[("BROKER_TYPE", "rabbitmq"), ("BROKER_URL", "amqp://mq/%2f")]).unwrap();
    assert!(!warnings.contains("query"), "{warnings}");
}

#[test]
fn the_broker_yaml_of_todays_hyperfleet_is_read_and_what_is_the_adapters_is_left_alone() {
    let (broker, warnings) = file(BROKER_YAML).unwrap();
    let BrokerConfig::RabbitMq(config) = broker else { panic!("{broker:?}") };
    assert_eq!((config.host.as_str(), config.port, config.vhost.as_str()), ("mq", 5673, "team"));
    assert_eq!((config.exchange.as_str(), config.exchange_type), (DEFAULT_TOPIC, ExchangeType::Topic));
    assert!(!warnings.contains("confirm") && !warnings.contains("queue"), "{warnings}");
    assert!(warnings.contains("broker.yaml:6:5: broker.rabbitmq.url: holds credentials"), "{warnings}");

    let (broker, warnings) = file(
        "broker:\n  type: googlepubsub\n  googlepubsub:\n    project_id: p\n    create_topic_if_missing: true\n    \
         create_subscription_if_missing: true\n    ack_deadline_seconds: 60\n    retry_max_backoff: 600s\n    \
         dead_letter_max_attempts: 5\n    enable_message_ordering: false\n    num_goroutines: 1\n",
    )
    .unwrap();
    let BrokerConfig::PubSub(pubsub) = broker else { panic!("{broker:?}") };
    assert_eq!((pubsub.project.as_str(), pubsub.missing_topic), ("p", MissingTopic::Create));
    assert_eq!(warnings, "");
}

#[test]
fn a_broker_yaml_is_refused_by_line_and_key_all_at_once() {
    let told = |text: &str| file(text).err().unwrap_or_else(|| panic!("accepted: {text}"));
    let error = told(
        "brokr: {}\nbroker:\n  type: rabbitmq\n  topic: t\n  rabbitmq:\n    urll: amqp://mq\n    exchangeType: topic\n    exchange_type: \
         fan\n    publisher_confirm: maybe\n",
    );
    for part in [
        "broker.yaml:1:1: brokr: unknown key, did you mean broker?",
        "broker.yaml:4:3: broker.topic: the topic stands in the sentinel's file (clients.broker.topic)",
        "broker.yaml:6:5: broker.rabbitmq.urll: unknown key, did you mean url?",
        "broker.yaml:7:5: broker.rabbitmq.exchangeType: unknown key, did you mean exchange_type?",
        "broker.yaml:8:5: broker.rabbitmq.exchange_type: read the exchange type \"fan\"",
        "broker.yaml:9:5: broker.rabbitmq.publisher_confirm: \"maybe\" is not true or false",
        "BROKER_HOST: missing",
        "broker.rabbitmq.url in broker.yaml",
    ] {
        assert!(error.contains(part), "{part} not in:\n{error}");
    }
    for kind in ["kafka", "stub", "RabbitMQ"] {
        let error = told(&format!("broker:\n  type: {kind}\n"));
        let expected = format!("broker.yaml:2:3: broker.type: \"{kind}\" is not rabbitmq, pubsub");
        assert!(error.contains(&expected), "{error}");
    }
    assert!(told("rabbitmq:\n  url: amqp://mq\n").contains("broker.yaml:1:1: rabbitmq: unknown key"));
    for (text, at) in
        [("broker:\n  type: [rabbitmq]\n", "broker.yaml:2:"), ("BROKER_TYPE: [rabbitmq]\n", "broker.yaml:1:")]
    {
        let error = told(text);
        assert!(error.starts_with(at) && error.contains("expected text, a number, true or false"), "{error}");
    }
}

#[test]
fn the_variables_of_todays_hyperfleet_stand_above_its_file_and_below_ours() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.yaml");
    std::fs::write(&path, BROKER_YAML).unwrap();
    let with = |variables: &[(&str, &str)]| {
        let env: Env = variables.iter().copied().collect();
        let settings = Settings::from(&env).or(settings(&path));
        match outcome(&settings, Problems::without_file()).unwrap().0 {
            BrokerConfig::RabbitMq(rabbitmq) => (rabbitmq.host, rabbitmq.exchange_type),
            BrokerConfig::PubSub(pubsub) => (pubsub.project, ExchangeType::Fanout),
            other @ BrokerConfig::Http { .. } => panic!("{other:?}"),
        }
    };
    let theirs = [("BROKER_RABBITMQ_URL", "amqp://theirs"), ("BROKER_RABBITMQ_EXCHANGE_TYPE", "direct")];
    assert_eq!(with(&theirs), ("theirs".to_owned(), ExchangeType::Direct));
    let both = [theirs[0], theirs[1], ("BROKER_URL", "amqp://ours")];
    assert_eq!(with(&both), ("ours".to_owned(), ExchangeType::Direct));
    let pubsub = [("BROKER_TYPE", "googlepubsub"), ("BROKER_GOOGLEPUBSUB_PROJECT_ID", "proj")];
    assert_eq!(with(&pubsub).0, "proj");
}

#[test]
fn every_key_of_broker_yaml_is_either_ours_or_the_adapters() {
    fn leaves(value: &serde_json::Value, path: &str, schema: &serde_json::Value, found: &mut Vec<String>) {
        let reference = value.pointer("/anyOf/0/$ref").or_else(|| value.get("$ref")).and_then(|name| name.as_str());
        let value = reference.and_then(|name| schema.pointer(name.trim_start_matches('#'))).unwrap_or(value);
        match value.get("properties").and_then(|properties| properties.as_object()) {
            Some(properties) => properties.iter().for_each(|(key, value)| {
                leaves(value, &format!("{path}.{key}"), schema, found);
            }),
            None => found.push(path.trim_start_matches('.').to_owned()),
        }
    }
    let schema = serde_json::to_value(schemars::schema_for!(RawBrokerFile)).unwrap();
    let mut found = Vec::new();
    leaves(&schema, "", &schema, &mut found);
    let mut known: Vec<_> = SHARED.iter().map(|(_, key)| *key).chain(ADAPTERS).map(str::to_owned).collect();
    found.sort();
    known.sort();
    assert_eq!(found, known);
}

#[test]
fn what_is_legal_in_broker_yaml_and_dangerous_is_warned_about() {
    let text = "broker:\n  type: rabbitmq\n  rabbitmq:\n    url: amqp://mq\n    exchange_type: topic\n    routing_key: '#'\n    \
                publisher_confirm: false\n";
    let (broker, warnings) = file(text).unwrap();
    let BrokerConfig::RabbitMq(config) = broker else { panic!("{broker:?}") };
    assert_eq!(config.routing_key, "#");
    for part in [
        "broker.yaml:6:5: broker.rabbitmq.routing_key: \"#\" on every message, and HyperFleet's adapters bind",
        "broker.yaml:7:5: broker.rabbitmq.publisher_confirm: not used: confirms are always on",
        "BROKER_USER: not set, connecting as guest",
    ] {
        assert!(warnings.contains(part), "{part} not in:\n{warnings}");
    }
    for settings in ["BROKER_USER: guest\nBROKER_PASSWORD: x\nBROKER_HOST: mq\n", "BROKER_URL: amqp://guest:guest@mq\n"]
    {
        let (_, warnings) = file(&format!("BROKER_TYPE: rabbitmq\n{settings}")).unwrap();
        assert!(warnings.contains("guest is the user") && !warnings.contains("not set"), "{warnings}");
    }
    let (_, warnings) = file("BROKER_TYPE: rabbitmq\nBROKER_HOST: mq\nBROKER_PASSWORD: hunter2\n").unwrap();
    assert!(warnings.contains("broker.yaml:3:1: BROKER_PASSWORD: a password in a file that is kept in the open"));
    assert!(!warnings.contains("hunter2"), "{warnings}");
}

#[test]
fn names_that_no_broker_takes_are_refused() {
    let long = "t".repeat(400);
    let rabbitmq = |name| load(&[("BROKER_TYPE", "rabbitmq"), ("BROKER_HOST", "mq"), ("BROKER_TOPIC", name)]);
    assert!(rabbitmq(&long).unwrap_err().contains("BROKER_TOPIC: 400 bytes are too long"));
    assert!(rabbitmq("a\u{7}b").unwrap_err().contains("control characters"));
    let key = load(&[("BROKER_TYPE", "rabbitmq"), ("BROKER_HOST", "mq"), ("BROKER_ROUTING_KEY", &long)]);
    assert!(key.unwrap_err().contains("BROKER_ROUTING_KEY: 400 bytes are too long for a routing key"));
    let pubsub = |name| load(&[("BROKER_TYPE", "pubsub"), ("BROKER_PROJECT_ID", "p"), ("BROKER_TOPIC", name)]);
    for name in [&long, "a", "goog-topic", "1st", "a topic", "a:b"] {
        let error = pubsub(name).unwrap_err();
        assert!(error.contains("BROKER_TOPIC: ") && error.contains("is no name of a topic"), "{error}");
        assert!(error.len() < 400, "{error}");
    }
    for name in ["abc", "hyperfleet-system-clusters", "a_b.c~d+e%f"] {
        assert!(pubsub(name).is_ok(), "{name}");
    }
}

#[test]
fn what_goes_before_an_address_is_told_and_not_lost() {
    let table = [
        ("BROKER_URL: amqp://mq\nBROKER_VHOST: /prod\nBROKER_TLS: 'true'\n", &["BROKER_VHOST", "BROKER_TLS"][..]),
        ("BROKER_HOST: other\nBROKER_URL: amqp://mq\n", &["BROKER_HOST"]),
        ("BROKER_PORT: 5673\n", &["BROKER_PORT"]),
        ("BROKER_HOST: mq\nBROKER_PORT: 5673\nBROKER_VHOST: /prod\n", &[]),
    ];
    for (settings, told) in table {
        let file = Text::new("seed.yaml", settings);
        let Migrated { text, notes } = migrate(&file, Some(Form::HyperFleet)).unwrap();
        assert_eq!(notes.len(), told.len(), "{notes:?}");
        assert!(told.iter().all(|name| notes.iter().any(|note| note.starts_with(name))), "{notes:?}");
        assert_eq!(text.contains("amqp://mq:5673/%2fprod"), told.is_empty(), "{text}");
        assert!(!text.contains("other"), "{text}");
    }
}

#[test]
fn no_password_is_migrated_however_an_address_is_written() {
    for (setting, kept) in [
        ("BROKER_URL: amqp://me:hunter2@mq:5673/v", Some("amqp://mq:5673/v")),
        ("BROKER_URL: amqp://mq:5673/v", Some("amqp://mq:5673/v")),
        // Not escaped, so that the password ends the address.
        ("BROKER_URL: amqp://me:hun#hunter2@mq", None),
        ("BROKER_URL: amqp://me:hun/hunter2@mq", None),
        ("BROKER_URL: amqp://me:5672/hunter2@mq", None),
        ("BROKER_URL: amqp://me:5672?hunter2@mq", None),
        ("BROKER_URL: me:hunter2@mq", None),
        ("BROKER_HOST: me:hunter2@mq", None),
        ("BROKER_HTTP_SUBSCRIBERS: dns=http://me:hunter2@dns/", None),
        ("BROKER_HTTP_SUBSCRIBERS: dns=http://dns/?key=hunter2", None),
        ("BROKER_PASSWORD: hunter2", None),
    ] {
        let file = Text::new("seed.yaml", format!("{setting}\n"));
        for form in [Form::Flat, Form::HyperFleet] {
            let Migrated { text, notes } = migrate(&file, Some(form)).unwrap();
            let (written, name) = (format!("{text}{}", notes.join("\n")), setting.split(':').next().unwrap());
            assert!(!written.contains("hunter2"), "{setting}:\n{written}");
            match kept {
                Some(kept) => assert!(text.contains(kept), "{setting}:\n{written}"),
                None => assert!(notes.iter().any(|note| note.contains(name) && note.contains("not written here"))),
            }
        }
    }
}

#[test]
fn values_of_the_wrong_kind_are_told_with_all_else_and_are_not_missing() {
    let settings = "BROKER_HOST: mq\nBROKER_TYPE: [http]\nBROKER_VHOST: {a: b}\nBROKER_PASSWORD: x\n";
    let indented = format!("  {}\n", settings.trim_end().replace('\n', "\n  "));
    for (text, line, key) in [(settings.to_owned(), 2, ""), (format!("kind: ConfigMap\ndata:\n{indented}"), 4, "data.")]
    {
        let said = file(&text).unwrap_err();
        assert_eq!(said.lines().count(), 2, "{said}");
        for (at, name) in [(line, "BROKER_TYPE"), (line + 1, "BROKER_VHOST")] {
            let place = format!("broker.yaml:{at}:");
            let told = |line: &str| line.starts_with(&place) && line.contains(&format!(" {key}{name}: expected text"));
            assert!(said.lines().any(told), "{name}: {said}");
        }
    }
    let said = file("broker:\n  type: [http]\n  rabbitmq:\n    url: {a: b}\n    typo: 1\n").unwrap_err();
    for part in [
        "broker.yaml:2:3: broker.type: expected",
        "4:10: broker.rabbitmq.url: expected",
        "5:5: broker.rabbitmq.typo: unknown",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(said.lines().count(), 3, "{said}");
}

#[test]
fn a_broker_yaml_inside_of_a_config_map_is_not_passed_over_in_silence() {
    let both = "data:\n  BROKER_TYPE: http\n  BROKER_HTTP_SUBSCRIBERS: a=http://a/\n  broker.yaml: |\n    broker: {}\n";
    let (_, warnings) = file(both).unwrap();
    assert!(warnings.contains("broker.yaml:4:3: data.broker.yaml: is not read: the BROKER_* settings"), "{warnings}");
    let said = file("data:\n  broker.yaml: |\n    broker: {}\n").unwrap_err();
    assert!(
        said.contains("broker.yaml:2:3: data.broker.yaml: is not read here") && said.contains("a file of its own"),
        "{said}"
    );

    let folder = tempfile::tempdir().unwrap();
    let told = || {
        let mut problems = Problems::without_file();
        let settings = read(folder.path(), &mut problems).unwrap();
        outcome(&settings, problems)
    };
    let yaml = folder.path().join("broker.yaml").display().to_string();
    std::fs::write(&yaml, "broker: {type: http}\n").unwrap();
    let said = told().unwrap_err();
    assert!(said.contains(&format!("{yaml}: is not read here")) && said.contains("name that file"), "{said}");
    // What is wrong in a mounted folder is told with its file.
    let kind = folder.path().join("BROKER_TYPE").display().to_string();
    std::fs::write(&kind, "kafka").unwrap();
    assert!(told().unwrap_err().contains(&format!("{kind}: \"kafka\" is not")));
    std::fs::write(&kind, "http").unwrap();
    std::fs::write(folder.path().join("BROKER_HTTP_SUBSCRIBERS"), "a=http://a/").unwrap();
    assert!(told().unwrap().1.contains(&format!("{yaml}: is not read: the BROKER_* settings beside it are")));
}

#[test]
fn settings_that_others_stand_above_are_told_and_not_shown() {
    let parsed = |text: &str| parse(&Text::new("b.yaml", text), &mut Problems::without_file()).unwrap();
    let map = parsed("BROKER_TYPE: http\nBROKER_PASSWORD: hunter2\nBROKER_TOPIC: one\nBROKER_HOST: mq\n");
    let yaml = parsed("broker:\n  rabbitmq:\n    url: amqp://u:hunter2@mq\n");
    let env: Env = [("BROKER_TYPE", "http"), ("BROKER_PASSWORD", "hunter3"), ("BROKER_RABBITMQ_URL", "amqp://hunter4")]
        .into_iter()
        .collect();
    let mut settings = Settings::from(&env);
    let mut problems = Problems::without_file();
    settings.prefer_topic("two", &Origin::key("clients.broker.topic"), &mut problems);
    settings.warn_of_overruled(&map, &mut problems);
    settings.warn_of_overruled(&yaml, &mut problems);
    let told: Vec<_> = problems.finish().unwrap().iter().map(ToString::to_string).collect();
    let not_used = "says something else, and takes precedence";
    assert_eq!(
        told,
        [
            format!("b.yaml:2:1: BROKER_PASSWORD: not used: environment variable BROKER_PASSWORD {not_used}"),
            format!("b.yaml:3:1: BROKER_TOPIC: not used: clients.broker.topic {not_used}"),
            format!("b.yaml:3:5: broker.rabbitmq.url: not used: environment variable BROKER_RABBITMQ_URL {not_used}"),
        ]
    );
    // The topic of the sentinel's file, below a variable.
    let mut problems = Problems::without_file();
    let mut settings = Settings::from(&Env::from([("BROKER_TOPIC", "one")]));
    settings.prefer_topic("two", &Origin::key("clients.broker.topic"), &mut problems);
    assert_eq!((settings.get("BROKER_TOPIC"), problems.warnings().len()), (Some("one"), 1));
    settings.prefer_topic("three", &Origin::flag("--broker-topic"), &mut problems);
    assert_eq!((settings.get("BROKER_TOPIC"), problems.warnings().len()), (Some("three"), 1));
}

#[test]
fn todays_names_are_known_in_a_map_too() {
    let settings = "BROKER_TYPE: rabbitmq\nBROKER_RABBITMQ_URL: amqp://theirs\n";
    let (broker, warnings) = file(settings).unwrap();
    assert!(matches!(broker, BrokerConfig::RabbitMq(rabbitmq) if rabbitmq.host == "theirs"), "{warnings}");
}

/// What is told of a file, errors and warnings.
fn all_of(text: &str) -> Vec<String> {
    let mut problems = Problems::without_file();
    let settings = parse(&Text::new("b.yaml", text), &mut problems).unwrap();
    let _checked = check(&settings, &mut problems);
    let warnings = problems.warnings();
    let found = problems.finish().err();
    let found = found.iter().flat_map(ConfigError::problems);
    found.chain(&warnings).map(ToString::to_string).collect()
}

#[test]
fn one_value_of_the_wrong_kind_is_one_complaint() {
    let rabbitmq = "BROKER_TYPE: rabbitmq\nBROKER_HOST: mq\n";
    for (text, place) in [
        ("broker: {type: rabbitmq, rabbitmq: {url: [x]}}\n".to_owned(), "b.yaml:1:37: broker.rabbitmq.url"),
        ("broker:\n  type: rabbitmq\n  rabbitmq: x\n".to_owned(), "b.yaml:3:13: broker.rabbitmq"),
        ("BROKER_TYPE: rabbitmq\nBROKER_URL: [x]\n".to_owned(), "b.yaml:2:1: BROKER_URL"),
        ("BROKER_TYPE: rabbitmq\nBROKER_RABBITMQ_URL: [x]\n".to_owned(), "b.yaml:2:1: BROKER_RABBITMQ_URL"),
        (format!("{rabbitmq}BROKER_USER: [x]\n"), "b.yaml:3:1: BROKER_USER"),
        (format!("{rabbitmq}BROKER_USER: u\nBROKER_PASSWORD_FILE: [x]\n"), "b.yaml:4:1: BROKER_PASSWORD_FILE"),
        (
            "BROKER_TYPE: pubsub\nBROKER_GOOGLEPUBSUB_PROJECT_ID: [x]\n".to_owned(),
            "b.yaml:2:1: BROKER_GOOGLEPUBSUB_PROJECT_ID",
        ),
        ("kind: ConfigMap\ndata: [x]\n".to_owned(), "b.yaml:2:7: data"),
    ] {
        let told = all_of(&text);
        assert!(told.len() == 1 && told[0].starts_with(&format!("{place}: expected")), "{text}: {told:#?}");
    }
}

#[test]
fn a_topic_of_the_wrong_kind_is_named_all_the_same() {
    for text in ["BROKER_TOPIC: [x]\n", "BROKER_EXCHANGE: [x]\n", "broker: {rabbitmq: {exchange: [x]}}\n"] {
        assert!(parse(&Text::new("b.yaml", text), &mut Problems::without_file()).unwrap().names_a_topic(), "{text}");
    }
    assert!(!Settings::default().names_a_topic());
}

#[test]
fn a_value_of_the_wrong_kind_that_is_no_brokers_is_no_setting_beside_a_broker_yaml() {
    for text in
        ["data:\n  TOKEN: [x]\n  broker.yaml: b\n", "kind: ConfigMap\nmetadata: {<<: 5}\ndata: {broker.yaml: b}\n"]
    {
        let Ok(settings) = parse(&Text::new("b.yaml", text), &mut Problems::without_file()) else { continue };
        assert!(settings.is_empty(), "{text}");
    }
    let told = all_of("data:\n  TOKEN: [x]\n  broker.yaml: b\n");
    let expected = "b.yaml:3:3: data.broker.yaml: is not read here, and there is no BROKER_* setting beside it";
    assert!(told.iter().any(|line| line.starts_with(expected)), "{told:#?}");
}

#[test]
fn two_names_of_one_setting_that_differ_are_warned_about() {
    let settings = |theirs| {
        let all = [("BROKER_TYPE", "rabbitmq"), ("BROKER_URL", "amqp://a:one@mq"), ("BROKER_RABBITMQ_URL", theirs)];
        load(&all).unwrap().1
    };
    let warnings = settings("amqp://a:two@mq");
    let expected = "environment variable BROKER_RABBITMQ_URL: not used: environment variable BROKER_URL says something \
                    else, and takes precedence";
    assert!(warnings.lines().any(|line| line == expected), "{warnings}");
    assert!(!warnings.contains("one") && !warnings.contains("two"), "{warnings}");
    assert!(!settings("amqp://a:one@mq").contains("not used"));
    let told = all_of("BROKER_TYPE: pubsub\nBROKER_PROJECT_ID: p\nBROKER_GOOGLEPUBSUB_PROJECT_ID: q\n");
    let place = "b.yaml:3:1: BROKER_GOOGLEPUBSUB_PROJECT_ID: not used: BROKER_PROJECT_ID in b.yaml says";
    assert!(told.len() == 1 && told[0].starts_with(place), "{told:#?}");
}
