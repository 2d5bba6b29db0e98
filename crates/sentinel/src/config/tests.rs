use jiff::Timestamp;
use watchfire_runtime::config::ConfigError;

use super::*;
use crate::decision::{Policy, Spread};
use crate::expression::Facts;
use crate::resource::{Labels, Resource};

mod hyperfleet;

const MINIMAL: &str = "resource_type: clusters\nhyperfleet_api:\n  endpoint: http://api:8000\n";

fn load(text: &str, env: &Env) -> Result<(SentinelConfig, Vec<String>), Vec<String>> {
    let document = Document::parse("sentinel.yaml", text).map_err(|error| lines(&error))?;
    let (config, problems) = check(document, env);
    let warnings = problems.finish().map_err(|error| lines(&error))?;
    Ok((config.unwrap(), warnings.iter().map(ToString::to_string).collect()))
}

fn lines(error: &ConfigError) -> Vec<String> {
    error.problems().iter().map(ToString::to_string).collect()
}

fn ok(text: &str) -> SentinelConfig {
    load(text, &Env::default()).unwrap().0
}

fn refused(text: &str) -> Vec<String> {
    load(text, &Env::default()).unwrap_err()
}

#[test]
fn defaults_are_those_of_the_specification() {
    let config = ok(MINIMAL);
    assert_eq!(config.poll_interval, Duration::from_secs(5));
    assert_eq!(config.rules.max_age.not_ready, Duration::from_secs(10));
    assert_eq!(config.rules.max_age.ready, Duration::from_mins(30));
    assert_eq!(config.api.timeout, Duration::from_secs(10));
    assert!(config.selector.is_everything());
    assert_eq!((config.rules.policy, config.republish), (Policy::GenerationAware, Republish::InFlight));
    assert!(config.api.token.is_none());
}

#[test]
fn the_example_of_the_specification_is_accepted_as_written() {
    let config = ok(include_str!("../../tests/data/seed-us-east.yaml"));
    assert_eq!(config.selector.search().as_deref(), Some("labels.region='us-east'"));
    assert_eq!(config.api.endpoint.as_str(), "http://hyperfleet-api.hyperfleet-system.svc.cluster.local:8080/");
    let resource =
        serde_json::json!({"id": "cls-123", "kind": "Cluster", "metadata": {"labels": {"region": "us-east"}}});
    let text = resource.to_string();
    let view = Resource::parse(&text).unwrap();
    let data = config.payload.build(Facts { resource: &resource, view: &view, now: Timestamp::UNIX_EPOCH }, "").data;
    assert_eq!(data.get(), r#"{"resource_id":"cls-123","resource_type":"Cluster","region":"us-east"}"#);
}

#[test]
fn the_other_examples_are_accepted_as_written() {
    let west = ok(include_str!("../../tests/data/seed-us-west.yaml"));
    assert_eq!(
        (west.rules.max_age.not_ready, west.rules.max_age.ready),
        (Duration::from_secs(15), Duration::from_hours(1))
    );
    let nodepools = ok(include_str!("../../tests/data/seed-nodepools.yaml"));
    assert_eq!(nodepools.api.resource_type, "nodepools");
    assert!(nodepools.selector.is_everything());
}

#[test]
fn every_problem_is_told_at_once_with_its_line() {
    let problems = refused(
        "poll_interval: 0s\nresource_typ: clusters\nhyperfleet_api:\n  endpoint: ftp://x\n  timeout: 10s\n\
         resource_selector:\n  - label: region\nmessage_data:\n  id: \"\"\n  x: '{{ nonsense }}'\n",
    );
    let text = problems.join("\n");
    for part in [
        "sentinel.yaml:1:1: poll_interval: must be longer than 0",
        "sentinel.yaml:2:1: resource_typ: unknown key",
        "sentinel.yaml:4:3: hyperfleet_api.endpoint: the scheme must be http or https",
        "resource_selector[0].value: missing",
        "sentinel.yaml:9:3: message_data.id",
        "sentinel.yaml:10:3: message_data.x",
        "resource_type: missing",
    ] {
        assert!(text.contains(part), "{part} not in:\n{text}");
    }
}

#[test]
fn a_type_error_stops_with_file_line_and_key() {
    let problems = refused("resource_type: clusters\npoll_interval: soon\n");
    assert!(problems[0].starts_with("sentinel.yaml:2:"), "{problems:?}");
    assert!(problems[0].contains("poll_interval") && problems[0].contains("soon"), "{problems:?}");
}

#[test]
fn foreign_and_older_keys_name_the_right_one() {
    let text = refused(&format!("{MINIMAL}backoffReady: 30m\nshardSelector: {{}}\nbroker: {{}}\n")).join("\n");
    assert!(text.contains("backoffReady: unknown key, write max_age_ready"), "{text}");
    assert!(text.contains("shardSelector: unknown key, write resource_selector"), "{text}");
    assert!(text.contains("BROKER_TYPE"), "{text}");
    let text = refused("resource_type: clusters\nhyperfleet_api:\n  url: http://x\n  token: abc\n").join("\n");
    assert!(text.contains("write hyperfleet_api.endpoint"), "{text}");
    assert!(text.contains("HYPERFLEET_API_TOKEN") && !text.contains("abc"), "{text}");
}

#[test]
fn a_resource_type_is_one_path_segment() {
    for plural in ["clusters/x", "../clusters", "clusters?x=1", "a b", "%2e"] {
        let text = refused(&format!("resource_type: '{plural}'\nhyperfleet_api: {{endpoint: http://a}}\n")).join("\n");
        assert!(text.contains("is not a plural"), "{plural}: {text}");
    }
    assert_eq!(
        ok("resource_type: wif_configs-2\nhyperfleet_api: {endpoint: http://a}\n").api.resource_type,
        "wif_configs-2"
    );
}

#[test]
fn an_endpoint_has_no_credentials_and_no_query() {
    for (endpoint, part) in [
        ("http://user:pw@api", "credentials"),
        ("http://api?x=1", "query"),
        ("http://api#x", "query"),
        ("api:8000", "scheme"),
        ("not an address", "not an address"),
        ("''", "missing"),
    ] {
        let text = refused(&format!("resource_type: clusters\nhyperfleet_api:\n  endpoint: {endpoint}\n")).join("\n");
        assert!(text.contains(part) && !text.contains("pw"), "{endpoint}: {text}");
    }
    assert!(refused("resource_type: clusters\n")[0].contains("hyperfleet_api: missing"));
}

#[test]
fn selectors_come_in_both_forms() {
    let kubernetes = ok(&format!(
        "{MINIMAL}resource_selector:\n  matchLabels: {{region: us}}\n  matchExpressions:\n  \
         - {{key: tier, operator: NotIn, values: [a, b]}}\n  - {{key: x, operator: Exists}}\n  \
         - {{key: y, operator: DoesNotExist}}\n  - {{key: z, operator: In, values: [c]}}\n"
    ));
    assert_eq!(kubernetes.selector.labels().unwrap(), "region=us,tier notin (a,b),x,!y,z=c");
    let labels: Labels<'_> = [("region", "us"), ("x", ""), ("z", "c")].into_iter().collect();
    assert!(kubernetes.selector.matches(&labels));
    assert!(ok(&format!("{MINIMAL}resource_selector: []\n")).selector.is_everything());
    assert!(ok(&format!("{MINIMAL}resource_selector:\n")).selector.is_everything());
}

#[test]
fn selectors_that_cannot_be_meant_are_refused() {
    for (selector, part) in [
        ("[{label: '', value: x}]", "no name"),
        ("[{label: a, value: x}, {label: a, value: y}]", "twice"),
        ("[{value: x}]", "label: missing"),
        ("[{label: a b, value: x}]", "not a label key"),
        ("{matchExpressions: [{key: a, operator: Near}]}", "Near"),
        ("{matchExpressions: [{key: a, operator: Exists, values: [x]}]}", "takes no values"),
        ("{matchExpressions: [{key: a, operator: In}]}", "no values"),
        ("{matchLabel: {a: b}}", "matchLabel"),
        ("[{label: a, value: b, oper: c}]", "oper"),
        ("7", "list of label/value pairs"),
    ] {
        let text = refused(&format!("{MINIMAL}resource_selector: {selector}\n")).join("\n");
        assert!(text.contains(part), "{selector}: {text}");
    }
}

#[test]
fn the_token_comes_from_environment_or_file_and_is_never_shown() {
    let env = Env::from([("HYPERFLEET_API_TOKEN", "s3cret")]);
    let text = format!("{MINIMAL}  token_file: /token\n");
    let (config, warnings) = load(&text, &env).unwrap();
    assert!(warnings[0].contains("HYPERFLEET_API_TOKEN is set"), "{warnings:?}");
    let broker = broker::check(
        &broker::Settings::from(&Env::from([
            ("BROKER_TYPE", "rabbitmq"),
            ("BROKER_HOST", "mq"),
            ("BROKER_USER", "u"),
            ("BROKER_PASSWORD", "hunter2"),
        ])),
        &mut Problems::without_file(),
    )
    .unwrap();
    let process = Process::read(&Overrides::default()).0.unwrap();
    let shown = watchfire_runtime::redact::to_yaml(&config.show(&process, &broker)).unwrap();
    assert!(shown.contains("<redacted>") && shown.contains("poll_interval: 5s"), "{shown}");
    let everything = format!("{shown}{config:?}{broker:?}");
    assert!(!everything.contains("s3cret") && !everything.contains("hunter2"), "{everything}");
    assert!(ok(&text).api.token.is_some());
}

#[test]
fn what_is_legal_but_odd_is_warned_about() {
    let (_, warnings) = load(&format!("{MINIMAL}max_age_not_ready: 1h\n"), &Env::default()).unwrap();
    assert!(warnings[0].contains("max_age_not_ready: longer than max_age_ready"), "{warnings:?}");
}

#[test]
fn policies_are_read_by_their_names() {
    let config = ok(&format!("{MINIMAL}decision: time_only\nrepublish: always\n"));
    assert_eq!((config.rules.policy, config.republish), (Policy::TimeOnly, Republish::Always));
    assert!(refused(&format!("{MINIMAL}decision: sometimes\n"))[0].contains("sometimes"));
}

#[test]
fn what_is_not_said_about_pace_is_as_the_specification_has_it() {
    let config = ok(MINIMAL);
    assert_eq!(config.rules, Rules::new(Policy::GenerationAware, config.rules.max_age));
    assert_eq!(config.max_events_per_second, None);
    let effective = config.effective;
    assert_eq!(effective.refresh_spread.as_deref(), Some("0%"));
    assert_eq!(effective.no_progress_after, effective.max_age_ready);
    assert_eq!(effective.max_age_no_progress, effective.max_age_not_ready);
}

#[test]
fn pace_is_read_and_kept_within_its_bounds() {
    let pace = |text: &str| format!("{MINIMAL}{text}");
    let config =
        ok(&pace("refresh_spread: 20%\nno_progress_after: 5m\nmax_age_no_progress: 30m\nmax_events_per_second: 200\n"));
    assert_eq!(Some(config.rules.refresh_spread), Spread::from_percent(20));
    assert_eq!(config.rules.no_progress.after, Duration::from_mins(5));
    assert_eq!(config.rules.no_progress.max_age, Duration::from_mins(30));
    assert_eq!(config.max_events_per_second, NonZeroU32::new(200));
    ok(&pace("max_age_no_progress: 10s\nrefresh_spread: 50 %\n"));
    for (text, why) in [
        ("refresh_spread: 51%", "\"51%\" is not a percentage from 0% to 50%"),
        ("refresh_spread: -1%", "is not a percentage"),
        ("refresh_spread: 6m", "is not a percentage"),
        ("refresh_spread: 20", "is not a percentage"),
        ("no_progress_after: 0s", "must be longer than 0"),
        ("max_age_no_progress: 9s", "must be from max_age_not_ready (10s) to max_age_ready (30m"),
        ("max_age_no_progress: 31m", "must be from max_age_not_ready (10s)"),
        ("max_events_per_second: 0", "0 would publish nothing"),
    ] {
        let problems = refused(&pace(text));
        assert!(problems.len() == 1 && problems[0].contains(why), "{text}: {problems:?}");
    }
    // Ages the wrong way round are told on their own account.
    ok(&pace("max_age_not_ready: 1h\n"));
}

#[test]
fn a_message_decision_implies_expression_and_republishes_always() {
    let decision = "message_decision:\n  params:\n  - name: stale\n    \
                    expr: 'now - timestamp(resource.updated_time) > duration(\"2m\")'\n  result: stale\n";
    let config = ok(&format!("{MINIMAL}{decision}"));
    assert!(config.expression.is_some());
    assert_eq!((config.republish, config.effective.decision), (Republish::Always, Some(RawPolicy::Expression)));
    let built_in = ok(&format!("{MINIMAL}decision: expression\n"));
    assert!(built_in.expression.is_some());
    assert_eq!(built_in.republish, Republish::InFlight);
    assert_eq!(ok(&format!("{MINIMAL}{decision}republish: in_flight\n")).republish, Republish::InFlight);
    assert!(ok(MINIMAL).expression.is_none());
    let aged = |more: &str| {
        let text = format!("{MINIMAL}max_age_ready: 1h\nmax_age_not_ready: 20s\n{more}");
        let (config, warnings) = load(&text, &Env::default()).unwrap();
        (config.effective.max_age_ready.is_some(), warnings)
    };
    let (shown, told) = aged(decision);
    assert_eq!((shown, told.len()), (false, 2), "{told:?}");
    assert!(told.iter().all(|it| it.contains("not used here, where message_decision alone decides")), "{told:?}");
    assert_eq!(aged(&format!("{decision}republish: in_flight\n")), (true, Vec::new()));
    assert_eq!(aged("decision: expression\nrepublish: always\n"), (true, Vec::new()));
    let both = load(&format!("{MINIMAL}{decision}decision: time_only\n"), &Env::default()).unwrap_err();
    assert!(both[0].contains("message_decision: not used by this decision"), "{both:?}");
}

#[test]
fn each_expression_that_cannot_be_used_is_told_at_its_key() {
    let text = format!(
        "{MINIMAL}message_decision:\n  params:\n  - {{name: late, expr: early + 1}}\n  \
         - {{name: early, expr: \"1 + 'a'\"}}\n  result: '1'\nmessage_data:\n  id: resource.id + 1\n"
    );
    let errors = load(&text, &Env::default()).unwrap_err();
    for part in [
        "message_decision.params[0].expr: param late, line 1, column 1: param early is not known yet",
        "message_decision.params[1].expr: param early, line 1, column 1: + cannot take int and string",
        "message_decision.result: result, line 1, column 1: the result is int, not true or false",
        "message_data.id: expression: line 1, column 1: + cannot take",
    ] {
        assert!(errors.iter().any(|error| error.contains(part)), "{part}: {errors:?}");
    }
}

#[test]
fn every_fault_of_a_selector_is_told_at_its_place() {
    let pairs = "  - {label: -a, value: b}\n  - {label: c, value: d}\n  - {label: c, value: e}\n  - {value: x}\n  \
                 - label: d\n    value: /e\n";
    let said = refused(&format!("{MINIMAL}resource_selector:\n{pairs}"));
    for part in [
        "sentinel.yaml:5:5: resource_selector[0]: \"-a\" is not a label key",
        "sentinel.yaml:7:5: resource_selector[2]: label \"c\" appears twice",
        "sentinel.yaml:8:5: resource_selector[3].label: missing",
        "sentinel.yaml:9:5: resource_selector[4]: \"/e\" is not a label value",
    ] {
        assert!(said.iter().any(|line| line.starts_with(part)), "{part}: {said:#?}");
    }
    let kubernetes = "  matchLabels:\n    z: /z\n  matchExpressions:\n    - {key: a, operator: Foo}\n    \
                      - {key: b, operator: In, values: []}\n    - {key: c, operator: Exists, values: [x]}\n";
    let said = refused(&format!("{MINIMAL}resource_selector:\n{kubernetes}poll_interval: 0s\n"));
    for part in [
        "sentinel.yaml:6:5: resource_selector.matchLabels.z: \"/z\" is not",
        "sentinel.yaml:8:16: resource_selector.matchExpressions[0].operator: \"Foo\" is not",
        "sentinel.yaml:9:7: resource_selector.matchExpressions[1]: label \"b\" has no values",
        "sentinel.yaml:10:34: resource_selector.matchExpressions[2].values: Exists takes no values",
        "sentinel.yaml:11:1: poll_interval: must be longer",
    ] {
        assert!(said.iter().any(|line| line.starts_with(part)), "{part}: {said:#?}");
    }
}

/// What is of the wrong kind is told together with what is wrong in meaning, and is not called missing besides.
#[test]
fn values_of_the_wrong_kind_anywhere_leave_the_rest_to_be_told() {
    let text = "\
resource_type: clusters
resource_selector:
  matchLabels: 5
  matchExpressions:
    - key: [a]
      operator: Foo
    - key: b
      operator: {a: b}
      values:
        - [x]
        - ok
hyperfleet_api:
  endpoint: ftp://api
  headers:
    fine: x
    x-a: [x]
    x-b: {file: [x]}
poll_interval: []
message_data:
  id: .id
  weight: .nan
";
    let text = Text::new("sentinel.yaml", text);
    let said = read(&text, &Overrides::default(), &Env::default()).unwrap().problems.finish().unwrap_err().to_string();
    let places: Vec<_> = said.lines().map(|line| line.split(": ").take(2).collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "sentinel.yaml:3:16 resource_selector.matchLabels",
        "sentinel.yaml:5:12 resource_selector.matchExpressions[0].key",
        "sentinel.yaml:6:7 resource_selector.matchExpressions[0].operator",
        "sentinel.yaml:8:17 resource_selector.matchExpressions[1].operator",
        "sentinel.yaml:10:11 resource_selector.matchExpressions[1].values[0]",
        "sentinel.yaml:13:3 hyperfleet_api.endpoint",
        "sentinel.yaml:16:5 hyperfleet_api.headers.x-a",
        "sentinel.yaml:17:17 hyperfleet_api.headers.x-b.file",
        "sentinel.yaml:18:16 poll_interval",
        "sentinel.yaml:21:3 message_data.weight",
    ];
    assert_eq!(places, expected, "{said}");
}

#[test]
fn a_half_of_a_pair_that_is_of_the_wrong_kind_is_not_missing() {
    let text = "resource_type: a\nhyperfleet_api:\n  endpoint: http://a\nresource_selector:\n  - label: [a]\n    \
                value: b\nmessage_decision:\n  params:\n    - name: a\n      expr: [x]\n  result: a\n";
    let text = Text::new("a.yaml", text);
    let said = read(&text, &Overrides::default(), &Env::default()).unwrap().problems.finish().unwrap_err().to_string();
    let places: Vec<_> = said.lines().map(|line| line.split(": ").take(2).collect::<Vec<_>>().join(" ")).collect();
    let expected = ["a.yaml:5:12 resource_selector[0].label", "a.yaml:10:13 message_decision.params[0].expr"];
    assert_eq!(places, expected, "{said}");
}

#[test]
fn message_data_that_is_no_map_is_refused() {
    for (data, part) in [
        (".nan", "message_data: invalid value: no finite number"),
        ("-.inf", "no finite number, expected a value that JSON has"),
        ("[.id]", "message_data: must be a map"),
        ("5", "message_data: must be a map"),
        ("\"\"", "message_data: must be a map"),
        ("{}", "message_data: must be a map"),
        ("{a: [.inf]}", "message_data.a[0]: invalid value"),
    ] {
        let said = refused(&format!("{MINIMAL}message_data: {data}\n")).join("\n");
        assert!(said.contains(part), "{data}: {said}");
    }
}

#[test]
fn headers_that_differ_in_capitals_only_are_one_header() {
    let said = refused(&format!("{MINIMAL}  headers:\n    X-Tenant: a\n    x-tenant: b\n    other: c\n"));
    assert_eq!(said.len(), 1, "{said:?}");
    let place = "sentinel.yaml:6:5: hyperfleet_api.headers.x-tenant: stands twice: capitals make no other header";
    assert!(said[0].starts_with(place), "{said:?}");
}

#[test]
fn what_is_migrated_and_refused_is_noted_as_that() {
    let file = Text::new("a.yaml", format!("{MINIMAL}poll_interval: 0s\nmessage_data: {{id: ''}}\n"));
    let notes = migrate(&file, None, &Env::default()).unwrap().notes.join("\n");
    assert!(notes.contains("`config check` refuses this: a.yaml:4:1: poll_interval: must be longer"), "{notes}");
    assert!(notes.contains("`config check` refuses this: a.yaml:5:16: message_data.id: "), "{notes}");
    assert_eq!(migrate(&Text::new("a.yaml", MINIMAL), None, &Env::default()).unwrap().notes, Vec::<String>::new());
}

#[test]
fn expressions_that_can_only_fail_are_refused_or_warned_about() {
    let only = format!("{MINIMAL}message_decision:\n  params:\n    - {{name: a, expr: 1 / 0}}\n  result: a > 0\n");
    let said = refused(&only).join("\n");
    assert!(
        said.starts_with("sentinel.yaml:6:17: message_decision.params[0].expr: param a, line 1, column 1: a division"),
        "{said}"
    );
    let part = "message_decision:\n  result: resource.id == \"a\" && 1 / 0 > 0\nmessage_data:\n  id: .id\n  \
                x: {z: 'resource.id == \"a\" ? 1 : 1 / 0'}\n";
    let (_, warnings) = load(&format!("{MINIMAL}{part}"), &Env::default()).unwrap();
    let places: Vec<_> = warnings.iter().map(|it| it.split(", ").next().unwrap()).collect();
    assert_eq!(
        places,
        [
            "sentinel.yaml:5:3: message_decision.result: result",
            "sentinel.yaml:8:7: message_data.x.z: expression: line 1"
        ]
    );
    assert!(warnings.iter().all(|it| it.contains("a division by zero")), "{warnings:?}");
}

#[test]
fn one_age_that_is_wrong_hides_nothing_of_what_goes_by_it() {
    let said = refused(&format!(
        "{MINIMAL}max_age_ready: 0s\nrefresh_spread: 90%\nno_progress_after: 0s\nmax_age_no_progress: 1h\n\
         message_decision:\n  result: 1 +\n"
    ));
    let keys: Vec<_> = said.iter().map(|line| line.split(": ").nth(1).unwrap()).collect();
    assert_eq!(keys, ["max_age_ready", "refresh_spread", "no_progress_after", "message_decision.result"], "{said:#?}");
}

/// Errors and warnings of a file in which values are of the wrong kind.
fn all_of(text: &str) -> Vec<String> {
    let problems = read(&Text::new("a.yaml", text), &Overrides::default(), &Env::default()).unwrap().problems;
    let warnings = problems.warnings();
    let found = problems.finish().unwrap_err();
    let all = found.problems().iter().chain(&warnings).map(ToString::to_string);
    all.map(|line| line.split(": ").take(2).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn nothing_is_judged_by_what_stands_for_a_value_of_the_wrong_kind() {
    for (text, place) in [
        ("max_age_ready: [x]\nmax_age_no_progress: 1h\n", "a.yaml:4:16 max_age_ready"),
        ("max_age_ready: [x]\nmax_age_not_ready: 1h\n", "a.yaml:4:16 max_age_ready"),
        ("max_age_not_ready: [x]\nmax_age_no_progress: 1s\n", "a.yaml:4:20 max_age_not_ready"),
        ("decision: [x]\nmessage_data: {id: resource.id}\n", "a.yaml:4:11 decision"),
        ("decision: [x]\nmessage_data: {id: .id}\n", "a.yaml:4:11 decision"),
        ("decision: [x]\nmessage_decision: {result: 'true'}\nrefresh_spread: 10%\n", "a.yaml:4:11 decision"),
        ("message_decision: [x]\nmessage_data: {id: resource.id}\n", "a.yaml:4:19 message_decision"),
    ] {
        assert_eq!(all_of(&format!("{MINIMAL}{text}")), [place], "{text}");
    }
    // What is wrong whatever decides is told.
    let text = format!("{MINIMAL}decision: [x]\nmessage_data: {{id: '{{{{ nonsense }}}}', kind: ''}}\n");
    let expected = ["a.yaml:4:11 decision", "a.yaml:5:16 message_data.id", "a.yaml:5:38 message_data.kind"];
    assert_eq!(all_of(&text), expected);
}

#[test]
fn a_level_that_is_none_is_refused_and_an_interval_that_is_none_is_warned_about() {
    let text = Text::new("a.yaml", format!("{MINIMAL}poll_interval: 1ns\n"));
    let read = |env: &[(&'static str, &'static str)]| {
        let env: Env = env.iter().copied().collect();
        super::read(&text, &Overrides::new(&env, &[]), &env).unwrap().problems.finish()
    };
    let warnings = read(&[]).unwrap();
    assert!(warnings.iter().any(|warning| warning.to_string().contains("poll_interval: lists the whole fleet")));
    let refused = read(&[("LOG_LEVEL", "inof")]).unwrap_err().to_string();
    assert!(refused.contains("environment variable LOG_LEVEL: log level \"inof\": write off, error"), "{refused}");
}
