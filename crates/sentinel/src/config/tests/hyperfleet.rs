//! The form of today's HyperFleet: read, refused, and the same as the other one.

use secrecy::ExposeSecret;
use watchfire_runtime::config::Env;
use watchfire_runtime::redact::to_yaml;
use watchfire_runtime::telemetry::{LogFormat, LogOutput};

use super::super::*;

const NESTED: &str = "sentinel: {name: east}\nclients:\n  hyperfleet_api:\n    base_url: http://api:8000\n";

fn reading(text: &str, env: &[(&str, &str)], flags: &[(&str, Option<&str>)]) -> Result<Reading, String> {
    let env: Env = env.iter().copied().collect();
    read(&Text::new("config.yaml", text), &Overrides::new(&env, flags), &env).map_err(|error| error.to_string())
}

fn loaded(text: &str, env: &[(&str, &str)], flags: &[(&str, Option<&str>)]) -> (SentinelConfig, Process, String) {
    let reading = reading(text, env, flags).unwrap();
    let warnings = reading.problems.finish().unwrap_or_else(|error| panic!("{error}"));
    let warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
    (reading.sentinel.unwrap(), reading.process.unwrap(), warnings.join("\n"))
}

fn refused(text: &str, env: &[(&str, &str)]) -> String {
    match reading(text, env, &[]) {
        Ok(reading) => reading.problems.finish().map(|_| format!("accepted: {text}")).unwrap_err().to_string(),
        Err(error) => error,
    }
}

/// The file with every key.
fn full() -> &'static str {
    include_str!("../../../tests/data/hyperfleet-full.yaml")
}

#[test]
fn every_key_of_todays_hyperfleet_is_read() {
    let text = full();
    let (config, process, warnings) = loaded(text, &[], &[]);
    let absent = "config.yaml:21:7: clients.hyperfleet_api.auth.token_path: read secret file ";
    assert!(warnings.starts_with(absent) && warnings.lines().count() == 1, "{warnings}");
    assert_eq!(config.api.endpoint.as_str(), "http://hyperfleet-api:8000/");
    assert_eq!((config.api.timeout, config.api.page_size), (Duration::from_secs(10), 20));
    assert!(config.api.token.is_some());
    assert_eq!((config.api.resource_type.as_str(), config.poll_interval), ("clusters", Duration::from_secs(5)));
    assert_eq!(config.selector.labels().as_deref(), Some("region=us-east"));
    assert_eq!((process.name.as_str(), process.log_level.as_str()), ("hyperfleet-sentinel-us-east", "debug"));
    assert_eq!((process.log_format, process.log_output), (LogFormat::Text, LogOutput::Stderr));
    assert!(process.debug_config && !process.tracing);
    assert!(config.expression.is_some() && config.republish == Republish::Always);
    let topic = reading(text, &[], &[]).unwrap().topic.unwrap();
    assert_eq!(topic.0, "hyperfleet-system-clusters");
}

#[test]
fn defaults_are_those_of_todays_hyperfleet_but_for_the_page() {
    let (config, process, _) = loaded(&format!("{NESTED}resource_type: clusters\n"), &[], &[]);
    assert_eq!((config.poll_interval, config.api.timeout), (Duration::from_secs(5), Duration::from_secs(10)));
    assert_eq!((config.api.page_size, config.effective.decision), (100, Some(RawPolicy::Expression)));
    assert_eq!((process.log_level.as_str(), process.log_format), ("info", LogFormat::Json));
    assert!(process.tracing && !process.debug_config);
    assert!(config.expression.is_some() && config.republish == Republish::InFlight);
}

#[test]
fn a_form_is_told_by_its_keys() {
    let form = |text: &str, by_address| Form::of(&Text::new("f.yaml", text), by_address).unwrap();
    for text in [
        "clients: {}",
        "sentinel: {name: a}",
        "log: {level: info}",
        "message_decision: {}",
        "hyperfleet_api: {base_url: x}",
    ] {
        assert_eq!(form(text, false), Form::HyperFleet, "{text}");
    }
    for text in ["hyperfleet_api: {endpoint: x}", "resource_type: clusters", "max_age_ready: 1h"] {
        assert_eq!(form(text, false), Form::Flat, "{text}");
    }
    assert_eq!(form("resource_type: clusters", true), Form::HyperFleet);
    assert_eq!(form("hyperfleet_api: {endpoint: x}", true), Form::Flat);
}

#[test]
fn flags_stand_above_variables_and_these_above_the_file() {
    let text = format!("{NESTED}resource_type: file\npoll_interval: 1s\n");
    for setting in &setting::SETTINGS {
        let value = |way: &str| match setting.key {
            "debug_config" | "tracing_enabled" => (way == "flag").to_string(),
            "hyperfleet_api.timeout" | "poll_interval" | "clients.hyperfleet_api.auth.token_cache_ttl" => {
                if way == "flag" { "7s" } else { "8s" }.to_owned()
            }
            "hyperfleet_api.page_size" => if way == "flag" { "7" } else { "8" }.to_owned(),
            "log.level" => if way == "flag" { "warn" } else { "debug" }.to_owned(),
            "log.format" => if way == "flag" { "text" } else { "json" }.to_owned(),
            "log.output" => if way == "flag" { "stderr" } else { "stdout" }.to_owned(),
            "hyperfleet_api.endpoint" => format!("http://{way}/"),
            _ => way.to_owned(),
        };
        let seen = |env: &[(&str, &str)], flags: &[(&str, Option<&str>)]| {
            let reading = reading(&text, env, flags).unwrap();
            let (config, process) = (reading.sentinel.unwrap(), reading.process.unwrap());
            format!("{:?} {process:?} {:?}", config.effective, reading.topic)
        };
        let (by_file, by_flag, by_variable) = (seen(&[], &[]), value("flag"), value("variable"));
        for variable in setting.variables {
            let env = [(*variable, by_variable.as_str())];
            let with_variable = seen(&env, &[]);
            // Two of them mean nothing to us, and are still read.
            let means_nothing = setting.key.ends_with("version") || setting.key.ends_with("token_cache_ttl");
            let is_default = matches!(setting.key, "debug_config" | "log.format" | "log.output");
            assert_eq!(with_variable == by_file, means_nothing || is_default, "{variable}");
            if let Some(flag) = setting.flag {
                let with_flag = seen(&[], &[(flag, Some(&by_flag))]);
                let values = |seen: String| seen.replace("Flag(", "").replace("Env(", "");
                assert_eq!(values(seen(&env, &[(flag, Some(&by_flag))])), values(with_flag), "{flag}");
            }
        }
    }
}

#[test]
fn what_is_wrong_is_told_under_the_name_that_the_user_wrote() {
    let text = "clients:\n  hyperfleet_api:\n    base_url: ftp://x\n    timeout: 0s\n    page_size: 501\n    headers: {Host: x}\n\
                poll_interval: 0s\nlog: {format: xml}\n";
    let told = refused(text, &[("HYPERFLEET_RESOURCE_TYPE", "a/b"), ("HYPERFLEET_LOG_OUTPUT", "file")]);
    for part in [
        "config.yaml:3:5: clients.hyperfleet_api.base_url: the scheme must be http or https",
        "config.yaml:4:5: clients.hyperfleet_api.timeout: must be longer than 0",
        "config.yaml:5:5: clients.hyperfleet_api.page_size: 501 is out of range",
        "config.yaml:6:15: clients.hyperfleet_api.headers.Host: is set by the sentinel itself",
        "config.yaml:7:1: poll_interval: must be longer than 0",
        "config.yaml:8:7: log.format: log format \"xml\": write json or text",
        "environment variable HYPERFLEET_RESOURCE_TYPE: \"a/b\" is not a plural",
        "environment variable HYPERFLEET_LOG_OUTPUT: log output \"file\": write stdout or stderr",
    ] {
        assert!(told.contains(part), "{part} not in:\n{told}");
    }
    let told = refused(&format!("{NESTED}resource_type: c\n"), &[("HYPERFLEET_POLL_INTERVAL", "soon")]);
    assert!(told.starts_with("environment variable HYPERFLEET_POLL_INTERVAL: invalid duration"), "{told}");
    let told = refused("sentinel: {name: a}\nresource_type: c\n", &[]);
    assert!(told.contains("clients.hyperfleet_api: missing; write the API's address, for example base_url:"), "{told}");
}

#[test]
fn keys_of_older_releases_name_the_ones_of_today() {
    let text = "sentinel: {name: a}\nhyperfleet_api:\n  base_url: http://x\nmessaging_system: rabbitmq\nresourceType: c\n\
                pollInterval: 5s\nmessageDecision: {}\nlog_level: debug\ntopic: t\nbroker: {type: rabbitmq}\nclients:\n  \
                hyperfleet_api: {endpoint: http://x, pageSize: 20, token_path: /t, token: secret}\n  broker: {type: rabbitmq}\n";
    let told = refused(text, &[]);
    for part in [
        "config.yaml:2:1: hyperfleet_api: unknown key, write clients.hyperfleet_api (base_url,",
        "config.yaml:4:1: messaging_system: removed: it follows from the broker's type",
        "config.yaml:5:1: resourceType: unknown key, write resource_type",
        "config.yaml:6:1: pollInterval: unknown key, write poll_interval",
        "config.yaml:7:1: messageDecision: unknown key, write message_decision",
        "config.yaml:8:1: log_level: unknown key, write log.level",
        "config.yaml:9:1: topic: unknown key, write clients.broker.topic",
        "config.yaml:10:1: broker: the broker has its own settings",
        "config.yaml:12:20: clients.hyperfleet_api.endpoint: unknown key, write clients.hyperfleet_api.base_url",
        "clients.hyperfleet_api.pageSize: unknown key, write clients.hyperfleet_api.page_size",
        "clients.hyperfleet_api.token_path: unknown key, write clients.hyperfleet_api.auth.token_path",
        "clients.hyperfleet_api.token: a token is never read from a file",
        "clients.broker.type: the broker has its own settings",
    ] {
        assert!(told.contains(part), "{part} not in:\n{told}");
    }
    assert!(!told.contains("secret"), "{told}");
    let older = refused("hyperfleet_api:\n  base_url: http://x\nresource_type: c\n", &[]);
    assert!(older.contains("hyperfleet_api: unknown key, write clients.hyperfleet_api"), "{older}");
    let typo = refused(&format!("{NESTED}resource_type: c\npol_interval: 5s\n"), &[]);
    assert!(typo.contains("pol_interval: unknown key, did you mean poll_interval?"), "{typo}");
}

#[test]
fn what_is_legal_and_dangerous_is_warned_about() {
    let text = "clients:\n  hyperfleet_api:\n    base_url: http://x\n    version: v2\n    page_size: 500\n    \
                headers: {X-Api-Key: abc}\nresource_type: c\n";
    let (config, _, warnings) = loaded(text, &[], &[]);
    assert_eq!(config.api.page_size, 100);
    for part in [
        "config.yaml:4:5: clients.hyperfleet_api.version: \"v2\" is not used",
        "config.yaml:5:5: clients.hyperfleet_api.page_size: 500 is more than the API serves, asking for 100",
        "config.yaml:6:15: clients.hyperfleet_api.headers.X-Api-Key: seems to be secret",
    ] {
        assert!(warnings.contains(part), "{part} not in:\n{warnings}");
    }
    for selector in [
        "{matchLabels: {a: x}, matchExpressions: [{key: a, operator: NotIn, values: [x, y]}]}",
        "{matchExpressions: [{key: a, operator: Exists}, {key: a, operator: DoesNotExist}]}",
        "{matchLabels: {a: x}, matchExpressions: [{key: a, operator: In, values: [y]}]}",
    ] {
        let (.., warnings) = loaded(&format!("{NESTED}resource_type: c\nresource_selector: {selector}\n"), &[], &[]);
        assert!(
            warnings.contains("resource_selector: nothing can match: the requirements for label \"a\""),
            "{warnings}"
        );
    }
}

#[test]
fn headers_come_from_the_file_or_for_secrets_from_elsewhere() {
    let with = |headers: &str| format!("{NESTED}    headers: {headers}\nresource_type: c\n");
    let text = with("{X-HyperFleet-System: true, x-tenant: {env: TENANT}, X-Key: {file: /run/key}}");
    let (config, _, warnings) = loaded(&text, &[("TENANT", "t1")], &[]);
    let names: Vec<_> = config.api.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((names, warnings.as_str()), (vec!["x-hyperfleet-system", "x-key", "x-tenant"], ""));
    for (headers, part) in [
        ("{x-tenant: {env: TENANT}}", "the variable TENANT is not set"),
        ("{x-tenant: {}}", "needs one of file: PATH and env: NAME"),
        ("{x-tenant: {file: a, env: b}}", "needs one of file: PATH and env: NAME"),
        ("{'x tenant': a}", "is not the name of a header"),
        ("{Authorization: Bearer x}", "a token goes into HYPERFLEET_API_TOKEN"),
        ("{x: \"a\\nb\"}", "characters that a header cannot carry"),
        ("{x: {from: a}}", "unknown key"),
        ("{x: [a]}", "expected text, or file: PATH or env: NAME"),
    ] {
        let told = refused(&with(headers), &[]);
        assert!(told.contains(part), "{headers}: {told}");
    }
}

#[test]
fn what_a_file_implies_is_said_in_the_other_form_and_in_what_is_shown() {
    let flat = "resource_type: c\nhyperfleet_api:\n  endpoint: http://a\nmessage_decision:\n  result: 'true'\n";
    let migrated = migrate(&Text::new("a.yaml", flat), None, &Env::default()).unwrap().text;
    let (config, _, _) = loaded(&migrated, &[], &[]);
    assert!(config.expression.is_some(), "{migrated}");
    // The default leaves owner_references out where there are none, which no file can say.
    let (config, process, _) = loaded(&format!("{NESTED}resource_type: c\n"), &[], &[]);
    let shown = to_yaml(&config.file(&process, None)).unwrap();
    let (again, _, _) = loaded(&shown, &[], &[]);
    let sends = |config: &SentinelConfig| format!("{:?}", config.payload);
    assert_eq!(sends(&again), sends(&config), "{shown}");
}

#[test]
fn the_value_of_a_header_is_sent_and_migrated_and_never_shown() {
    let key = "k3y-of-tenant";
    for text in [
        format!("{NESTED}    headers: {{X-Key: {key}, X-Other: {{file: /run/key}}}}\nresource_type: c\n"),
        format!("resource_type: c\nhyperfleet_api:\n  endpoint: http://x\n  headers: {{X-Key: {key}}}\n"),
    ] {
        let Reading { sentinel, process, .. } = reading(&text, &[], &[]).unwrap();
        let (config, process) = (sentinel.unwrap(), process.unwrap());
        assert_eq!(config.api.headers[0].1.current().unwrap().expose_secret(), key);
        let shown = to_yaml(&config.file(&process, None)).unwrap();
        assert!(shown.contains("X-Key: <redacted>"), "{shown}");
        assert_eq!(shown.contains("file: /run/key"), text.contains("/run/key"), "where it stands is no secret");
        for said in [shown, format!("{config:?}")] {
            assert!(!said.contains(key), "{said}");
        }
        let migrated = migrate(&Text::new("a.yaml", text.as_str()), None, &Env::default()).unwrap().text;
        assert!(migrated.contains(&format!("X-Key: {key}")), "{migrated}");
    }
    let raw =
        Text::new("a.yaml", format!("hyperfleet_api: {{headers: {{X-Key: {key}}}}}")).parse::<RawConfig>().unwrap();
    let said = format!("{:?}", raw.value);
    assert!(said.contains("<redacted>") && !said.contains(key), "{said}");
}

#[test]
fn certificates_are_read_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.pem");
    let text = format!("{NESTED}    ca_file: {}\nresource_type: c\n", path.display());
    assert!(refused(&text, &[]).contains("config.yaml:5:5: clients.hyperfleet_api.ca_file: read"));
    std::fs::write(&path, "no certificate").unwrap();
    assert!(refused(&text, &[]).contains("holds no certificate; it has to be in PEM form"));
    std::fs::File::create(&path).unwrap().set_len(5 << 20).unwrap();
    assert!(refused(&text, &[]).contains("it is larger than 4 MiB, is the path right?"));
    let device = format!("{NESTED}    ca_file: /dev/zero\nresource_type: c\n");
    assert!(refused(&device, &[]).contains("read /dev/zero: not a regular file"));
}

#[test]
fn our_own_keys_are_the_same_in_either_form_and_carried_over_to_the_other() {
    let ours = "decision: generation_aware\nmax_age_not_ready: 20s\nmax_age_ready: 1h\nrefresh_spread: 20%\n\
                no_progress_after: 15m\nmax_age_no_progress: 10m # not more often\nmax_events_per_second: 500\n\
                republish: always\n";
    let nested = format!("{NESTED}resource_type: c\n{ours}");
    let flat = format!("resource_type: c\nhyperfleet_api:\n  endpoint: http://api:8000\n{ours}");
    let meant = |text: &str| {
        let (config, _, warnings) = loaded(text, &[], &[]);
        // With republish: always nothing is known of progress.
        let of_progress = |line: &str| line.contains("no_progress") && line.contains("not used here");
        assert!(warnings.lines().count() == 2 && warnings.lines().all(of_progress), "{warnings}");
        (config.rules, config.max_events_per_second, config.republish, format!("{:?}", config.effective))
    };
    let (rules, ceiling, republish, effective) = meant(&nested);
    let seconds = Duration::from_secs;
    assert_eq!((rules.max_age.not_ready, rules.max_age.ready), (seconds(20), seconds(3_600)));
    assert_eq!((rules.no_progress.after, rules.no_progress.max_age), (seconds(900), seconds(600)));
    assert_eq!((rules.refresh_spread.percent(), ceiling, republish), (20, NonZeroU32::new(500), Republish::Always));
    let meaning = (rules, ceiling, republish, effective);
    assert_eq!(meant(&flat), meaning);
    for file in [&nested, &flat] {
        let migrated = migrate(&Text::new("a.yaml", file.as_str()), None, &Env::default()).unwrap();
        assert!(migrated.text.contains("max_age_no_progress: 10m # not more often"), "{}", migrated.text);
        assert_eq!(meant(&migrated.text), meaning, "{}", migrated.text);
    }
}

#[test]
fn keys_that_a_decision_takes_no_notice_of_are_warned_about_and_not_in_effect() {
    let pace = "refresh_spread: 20%\nno_progress_after: 5m\nmax_age_no_progress: 10m\n";
    for (decision, unused) in [
        ("generation_aware", &[][..]),
        ("time_only", &["no_progress_after", "max_age_no_progress"]),
        ("expression", &["refresh_spread", "no_progress_after", "max_age_no_progress"]),
    ] {
        let text = format!("{NESTED}resource_type: c\ndecision: {decision}\n{pace}");
        let (config, _, warnings) = loaded(&text, &[], &[]);
        let warned: Vec<_> = warnings.lines().filter_map(|line| line.split(": ").nth(1)).collect();
        assert_eq!(warned, unused, "{warnings}");
        let RawConfig { refresh_spread, no_progress_after, max_age_no_progress, .. } = config.effective;
        let shown = [refresh_spread.is_some(), no_progress_after.is_some(), max_age_no_progress.is_some()];
        assert_eq!(shown.into_iter().filter(|shown| *shown).count(), 3 - unused.len(), "{decision}");
    }
}

#[test]
fn a_file_goes_to_the_other_form_and_back_with_its_comments() {
    let nested = full();
    let flat = migrate(&Text::new("a.yaml", nested), None, &Env::default()).unwrap();
    assert_eq!(Form::of(&Text::new("b.yaml", flat.text.clone()), false).unwrap(), Form::Flat);
    for part in ["# Where the API is", "  # A projected token", "region # one shard of two"] {
        assert!(flat.text.contains(part), "{part} not in:\n{}", flat.text);
    }
    let notes = flat.notes.join("\n");
    for part in [
        "log.level has no key in this form: set HYPERFLEET_LOG_LEVEL=debug",
        "clients.broker.topic has no key in this form: set HYPERFLEET_BROKER_TOPIC=hyperfleet-system-clusters",
        "the comment of log.level",
    ] {
        assert!(notes.contains(part), "{part} not in:\n{notes}");
    }
    let back = migrate(&Text::new("b.yaml", flat.text.clone()), Some(Form::HyperFleet), &Env::default()).unwrap();
    assert_eq!(back.notes, Vec::<String>::new(), "{}", flat.text);
    let effective = |text: &str| format!("{:?}", loaded(text, &[], &[]).0.effective);
    assert_eq!(effective(nested), effective(&flat.text));
    assert_eq!(effective(nested), effective(&back.text));
    for seed in
        [include_str!("../../../tests/data/seed-us-east.yaml"), include_str!("../../../tests/data/seed-nodepools.yaml")]
    {
        let nested = migrate(&Text::new("seed.yaml", seed), None, &Env::default()).unwrap();
        assert_eq!(nested.notes, Vec::<String>::new());
        assert_eq!(effective(seed), effective(&nested.text), "{}", nested.text);
    }
    let policy = format!("{NESTED}resource_type: c\ndecision: generation_aware\nmessage_data: {{id: resource.id}}\n");
    let notes = migrate(&Text::new("a.yaml", policy), None, &Env::default()).unwrap().notes.join("\n");
    assert!(notes.contains("message_data has expressions"), "{notes}");
    let same = migrate(&Text::new("a.yaml", nested), Some(Form::HyperFleet), &Env::default()).unwrap();
    assert!(same.text == nested && same.notes[0].contains("in this form already"));
    assert!(
        migrate(&Text::new("a.yaml", format!("{nested}typo: 1\n")), None, &Env::default())
            .unwrap_err()
            .to_string()
            .contains("typo")
    );
}

#[test]
fn numbers_of_the_payload_are_migrated_as_they_are_written() {
    let api = "resource_type: clusters\nhyperfleet_api:\n  endpoint: http://api:8000\n";
    let text = format!("{api}message_data:\n  id: .id\n  version: 1.10 # of the contract\n  mask: 0x10\n  most: 1e3\n");
    let migrated = migrate(&Text::new("a.yaml", text), None, &Env::default()).unwrap();
    for line in ["  version: 1.10 # of the contract\n", "  mask: 0x10\n", "  most: 1e3\n"] {
        assert!(migrated.text.contains(line), "{}", migrated.text);
    }
    assert!(!migrated.notes.iter().any(|note| note.contains("spelt")), "{:?}", migrated.notes);
    let flow = format!("{api}message_data: {{id: .id, mask: 0x10, version: 1.5}}\n");
    let migrated = migrate(&Text::new("a.yaml", flow), None, &Env::default()).unwrap();
    let spelt: Vec<_> = migrated.notes.iter().filter(|note| note.contains("spelt")).collect();
    assert_eq!(spelt, ["message_data.mask is written as 16: the same number, spelt otherwise"]);
}
