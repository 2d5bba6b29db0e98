use std::collections::BTreeMap;

use serde::Deserialize;

use super::*;
use crate::duration::GoDuration;

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct Raw {
    poll_interval: Option<GoDuration>,
    max_age_ready: Option<GoDuration>,
    resource_selector: Option<Vec<Label>>,
    hyperfleet_api: Option<Api>,
    message_data: Option<BTreeMap<String, serde_json::Value>>,
    enabled: Option<bool>,
    shards: Option<u8>,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct Label {
    label: Option<String>,
    value: Option<String>,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct Api {
    endpoint: Option<String>,
    timeout: Option<GoDuration>,
}

fn parse(text: &str) -> Result<Document<Raw>, ConfigError> {
    Document::parse("s.yaml", text)
}

fn refusal(text: &str) -> String {
    parse(text).err().map_or_else(|| panic!("accepted: {text}"), |error| error.to_string())
}

fn problems(text: &str) -> String {
    parse(text).unwrap().problems().finish().unwrap_err().to_string()
}

const GOOD: &str = "\
# a comment
poll_interval: 5s
resource_selector:
  - label: region
    value: us-east
hyperfleet_api:
  endpoint: http://api:8080
  timeout: 10s
message_data:
  id: .id
  app.kubernetes.io/name: {nested: [1, .nan, 2.5, true, ~]}
";

#[test]
fn a_good_file_is_read_and_has_no_problem() {
    let doc = parse(GOOD).unwrap();
    assert_eq!(doc.value.poll_interval, Some(GoDuration::from_secs(5)));
    assert_eq!(doc.value.hyperfleet_api.as_ref().unwrap().endpoint.as_deref(), Some("http://api:8080"));
    assert_eq!(doc.value.message_data.as_ref().unwrap().len(), 2);
    assert_eq!(doc.problems().finish().unwrap(), []);
}

#[test]
fn unknown_keys_at_every_depth_are_told_together_each_with_its_place() {
    let text = "\
pol_interval: 5s
resource_selector:
  - label: region
    valeu: us-east
  - {labels: a, value: b}
hyperfleet_api:
  endPoint: http://api:8080
zebra: 1
enabled: true
";
    assert_eq!(
        problems(text),
        "\
s.yaml:1:1: pol_interval: unknown key, did you mean poll_interval?
s.yaml:4:5: resource_selector[0].valeu: unknown key, did you mean value?
s.yaml:5:6: resource_selector[1].labels: unknown key, did you mean label?
s.yaml:7:3: hyperfleet_api.endPoint: unknown key, did you mean endpoint?
s.yaml:8:1: zebra: unknown key, known are poll_interval, max_age_ready, resource_selector, hyperfleet_api, \
message_data, enabled, shards"
    );
}

#[test]
fn a_renamed_key_names_the_right_one_and_a_refused_one_says_why() {
    let doc = parse("backoffReady: 5s\nhyperfleet_api:\n  token: abc\n").unwrap();
    let doc = doc
        .renamed(&[("backoffReady", "max_age_ready")])
        .refused(&[("hyperfleet_api.token", "secrets are not read from YAML, set HYPERFLEET_API_TOKEN")]);
    assert_eq!(
        doc.problems().finish().unwrap_err().to_string(),
        "s.yaml:1:1: backoffReady: unknown key, write max_age_ready\n\
         s.yaml:3:3: hyperfleet_api.token: secrets are not read from YAML, set HYPERFLEET_API_TOKEN"
    );
}

#[test]
fn problems_of_meaning_join_the_unknown_keys_in_the_order_of_the_file() {
    let doc = parse(&format!("{GOOD}typo: 1\n")).unwrap();
    let mut problems = doc.problems();
    problems.push(Origin::flag("--workers"), "must be at least 1");
    problems.push(Origin::env("BROKER_TYPE"), "is not set");
    problems.push("hyperfleet_api.timeout", "must be shorter than poll_interval");
    problems.push("hyperfleet_api.retries.max", "is required");
    problems.push("resource_selector[0].label", "has a hyphen");
    problems.push("resource_type", "is required");
    assert_eq!(problems.take("poll_interval", "9x".parse::<u8>()), None);
    assert!(!problems.is_empty());
    problems.warn("poll_interval", "is shorter than a second");
    let error = problems.finish().unwrap_err();
    assert_eq!(
        error.to_string(),
        "\
s.yaml:2:1: poll_interval: invalid digit found in string
s.yaml:4:5: resource_selector[0].label: has a hyphen
s.yaml:6:1: hyperfleet_api.retries.max: is required
s.yaml:8:3: hyperfleet_api.timeout: must be shorter than poll_interval
s.yaml:12:1: typo: unknown key, known are poll_interval, max_age_ready, resource_selector, hyperfleet_api, \
message_data, enabled, shards
s.yaml: resource_type: is required
environment variable BROKER_TYPE: is not set
flag --workers: must be at least 1"
    );
    let first = &error.problems()[0];
    assert_eq!((first.line(), first.column(), first.origin()), (Some(2), Some(1), &Origin::key("poll_interval")));
}

#[test]
fn warnings_are_returned_when_nothing_is_wrong() {
    let mut problems = parse(GOOD).unwrap().problems();
    problems.warn("poll_interval", "is short");
    assert_eq!(problems.finish().unwrap()[0].to_string(), "s.yaml:2:1: poll_interval: is short");
    let mut problems = Problems::without_file();
    problems.push("poll_interval", "is required");
    assert_eq!(problems.finish().unwrap_err().to_string(), "poll_interval: is required");
}

#[test]
fn a_type_error_stops_with_file_line_column_and_key() {
    let table = [
        ("poll_interval: 5\n", "s.yaml:1:16: poll_interval: ", "the unit is missing"),
        ("poll_interval: soon\n", "s.yaml:1:16: poll_interval: ", "write for example"),
        ("poll_interval: [5s]\n", "s.yaml:1:16: poll_interval: ", "expected text"),
        ("enabled: maybe\n", "s.yaml:1:10: enabled: ", "expected true or false"),
        ("enabled: true\nshards: 300\n", "s.yaml:2:9: shards: ", "from 0 to 255"),
        ("shards: -1\n", "s.yaml:1:9: shards: ", "from 0 to 255"),
        ("hyperfleet_api: http://api\n", "s.yaml:1:17: hyperfleet_api: ", "expected keys with values"),
        ("hyperfleet_api:\n  timeout: 1d\n", "s.yaml:2:12: hyperfleet_api.timeout: ", "unknown unit"),
        ("resource_selector:\n  - label: [a]\n", "s.yaml:2:12: resource_selector[0].label: ", "expected text"),
        ("resource_selector: {label: a}\n", "s.yaml:1:20: resource_selector: ", "expected a list"),
        ("hyperfleet_api:\n  endpoint:\n    a: b\n", "s.yaml:3:5: hyperfleet_api.endpoint: ", "expected text"),
        (
            "message_data: &m {label: [x], value: [y]}\nresource_selector:\n  - {<<: *m}\n",
            "s.yaml:3:10: resource_selector[0]: ",
            "expected text",
        ),
        ("- a\n- b\n", "s.yaml:1:1: ", "expected keys with values"),
        ("just text\n", "s.yaml:1:1: ", "expected keys with values"),
    ];
    for (text, at, message) in table {
        let error = refusal(text);
        assert!(error.starts_with(at), "{text:?}: {error}");
        assert!(error.contains(message), "{text:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn every_value_of_the_wrong_kind_is_told_at_once_and_with_all_else_that_is_wrong() {
    let text = "\
poll_interval: 5 # no unit
enabled: 'perhaps'
resource_selector:
- label: region
  value: us-east
- label: [a,
    b]
  value: v
hyperfleet_api:
  endpoint:
    # a map
    a: b
# and the rest

  timeout: 1d
typo: 1
shards: 300
";
    let doc = Text::new("s.yaml", text).parse_as_far_as_possible::<Raw>().unwrap();
    assert_eq!(doc.value.resource_selector.as_ref().unwrap()[1], Label { label: None, value: Some("v".to_owned()) });
    let mut problems = doc.problems();
    problems.push("hyperfleet_api.endpoint", "missing");
    problems.push("max_age_ready", "missing");
    let said = problems.finish().unwrap_err().to_string();
    let told: Vec<_> = said.lines().map(|line| line.split_inclusive(": ").take(2).collect::<String>()).collect();
    assert_eq!(
        told,
        [
            "s.yaml:1:16: poll_interval: ",
            "s.yaml:2:10: enabled: ",
            "s.yaml:6:10: resource_selector[1].label: ",
            "s.yaml:12:5: hyperfleet_api.endpoint: ",
            "s.yaml:15:12: hyperfleet_api.timeout: ",
            "s.yaml:16:1: typo: ",
            "s.yaml:17:9: shards: ",
            "s.yaml: max_age_ready: ",
        ],
        "{said}"
    );
    // Whoever wants all or nothing gets what could not be taken.
    assert_eq!(refusal(text).lines().count(), 6);
}

#[test]
fn what_was_left_out_around_a_value_is_not_told_to_be_missing() {
    // Beside a comment it is not known where a value ends, so that the whole of the map is not there.
    let text = "hyperfleet_api: {typo: 1, timeout: 1d # a day\n  , endpoint: [a]}\nshards: x\n";
    let doc = Text::new("s.yaml", text).parse_as_far_as_possible::<Raw>().unwrap();
    let mut problems = doc.problems();
    problems.push("hyperfleet_api.endpoint", "missing");
    problems.push("hyperfleet_api", "missing");
    let said = problems.finish().unwrap_err().to_string();
    let places: Vec<_> = said.lines().map(|line| line.split_inclusive(": ").take(2).collect::<String>()).collect();
    // A key that nobody knows is wrong all the same.
    let expected =
        ["s.yaml:1:18: hyperfleet_api.typo: ", "s.yaml:1:36: hyperfleet_api.timeout: ", "s.yaml:3:9: shards: "];
    assert_eq!(places, expected, "{said}");
    assert_eq!(
        refusal("resource_selector:\n  - text\n  - 5\nshards: x\n").lines().count(),
        3,
        "each item, and what follows"
    );
    assert!(refusal("enabled: x\nshards: y\nshards: z\n").contains("duplicate"), "what is no YAML comes first");
}

#[test]
fn what_is_of_the_wrong_kind_is_no_warning_besides() {
    let doc = Text::new("s.yaml", "shards: x\nhyperfleet_api: 5\n").parse_as_far_as_possible::<Raw>().unwrap();
    let mut problems = doc.problems();
    problems.warn("shards", "empty");
    problems.warn("hyperfleet_api.endpoint", "empty");
    problems.warn("enabled", "empty");
    assert!(problems.is_left_out("hyperfleet_api.timeout") && !problems.is_left_out("enabled"));
    let told: Vec<_> = problems.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(told, ["s.yaml: enabled: empty"]);
}

#[test]
fn every_value_of_the_wrong_kind_between_brackets_is_told() {
    let text = "\
hyperfleet_api: {endpoint: [x, {y: 'z, }'}], timeout: [1]}
resource_selector: [{label: [a], value: \"v, }\\\"\"}, {label: b,
  value: {c:
    d}}, text, {label: e, valeu: f}]
enabled: {a: b}
";
    let doc = Text::new("s.yaml", text).parse_as_far_as_possible::<Raw>().unwrap();
    let selector = doc.value.resource_selector.as_ref().unwrap();
    assert_eq!(selector[0], Label { label: None, value: Some("v, }\"".to_owned()) });
    assert_eq!(selector[1].label.as_deref(), Some("b"));
    let said = doc.problems().finish().unwrap_err().to_string();
    let places: Vec<_> = said.lines().map(|line| line.split_inclusive(": ").take(2).collect::<String>()).collect();
    let expected = [
        "s.yaml:1:28: hyperfleet_api.endpoint: ",
        "s.yaml:1:55: hyperfleet_api.timeout: ",
        "s.yaml:2:29: resource_selector[0].label: ",
        "s.yaml:3:10: resource_selector[1].value: ",
        "s.yaml:4:10: resource_selector[2]: ",
        "s.yaml:4:27: resource_selector[3].valeu: ",
        "s.yaml:5:10: enabled: ",
    ];
    assert_eq!(places, expected, "{said}");
    // What is not plain to see takes nothing beside it along.
    let text = "hyperfleet_api: {timeout: [don't, x], endpoint: 'http://a'}\nshards: x\n";
    assert_eq!(refusal(text).lines().count(), 2, "{}", refusal(text));
}

/// A type of our own that refuses a value knows no place: the library tells the last key.
#[test]
fn what_a_type_of_ours_refuses_is_told_at_its_key() {
    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Odd {
        map: BTreeMap<String, bool>,
        flags: BTreeMap<String, Flag>,
    }
    #[derive(Debug, PartialEq)]
    struct Flag(bool);
    impl<'de> Deserialize<'de> for Flag {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Visitor;
            impl serde::de::Visitor<'_> for Visitor {
                type Value = Flag;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("a flag")
                }
                fn visit_bool<E>(self, flag: bool) -> Result<Flag, E> {
                    Ok(Flag(flag))
                }
            }
            deserializer.deserialize_any(Visitor)
        }
    }
    let text = "flags:\n  a: [x]\n  b: true\n  c: {d: e}\nmap:\n  g: []\n  typo: true\nother: 1\n";
    let doc = Text::new("s.yaml", text).parse_as_far_as_possible::<Odd>().unwrap();
    assert!(doc.value.flags["b"] == Flag(true) && doc.value.map.contains_key("typo"), "the rest is read");
    let said = doc.problems().finish().unwrap_err().to_string();
    let expected = "s.yaml:2:3: flags.a: expected a flag\ns.yaml:4:6: flags.c: expected a flag\n\
                    s.yaml:6:6: map.g: expected text\ns.yaml:8:1: other: unknown key, known are map, flags";
    assert_eq!(said, expected);
}

#[test]
fn a_problem_is_one_line_whatever_it_quotes() {
    let mut problems = Text::new("a\u{1b}[2J.yaml", "shards: 1\n").parse::<Raw>().unwrap().problems();
    problems.push("shards", "read /x\nwatchfire: fine\u{202e}: no such file");
    let said = problems.finish().unwrap_err().to_string();
    assert_eq!(said, r"a\u{1b}[2J.yaml:1:1: shards: read /x\nwatchfire: fine\u{202e}: no such file");
}

#[test]
fn a_template_that_is_not_quoted_is_told_to_be() {
    let error = refusal("message_data:\n  id: .id\n  generation: {{ .generation }}\n");
    assert!(error.starts_with("s.yaml:3:") && error.ends_with("has to be quoted, as in '{{ .name }}'"), "{error}");
}

#[test]
fn a_syntax_error_stops_with_file_line_and_column() {
    let table = [
        ("a: b: c\n", "s.yaml:1:"),
        // The library places this one where the value before the tab begins.
        ("enabled: true\n\tshards: 1\n", "s.yaml:1:10"),
        ("resource_selector: [a, b\n", "s.yaml:"),
        ("a: \"unclosed\n", "s.yaml:"),
        ("a: *nowhere\n", "s.yaml:1:4"),
        ("enabled: true\n  shards: 1\n", "s.yaml:"),
        ("? {a: b}\n: c\n", "s.yaml:1:"),
        ("a: %b\n@c: d\n", "s.yaml:"),
    ];
    for (text, at) in table {
        let error = refusal(text);
        assert!(error.starts_with(at), "{text:?}: {error}");
        assert!(!error.contains("at line"), "the place is told once: {error}");
    }
}

#[test]
fn duplicate_keys_are_errors_known_or_not() {
    for (text, at) in [
        ("enabled: true\nenabled: false\n", "s.yaml:2:1"),
        ("zzz: 1\nzzz: 1\n", "s.yaml:2:1"),
        ("hyperfleet_api:\n  timeout: 1s\n  timeout: 2s\n", "s.yaml:3:3"),
        ("message_data:\n  a: 1\n  a: 2\n", "s.yaml:3:3"),
    ] {
        let error = refusal(text);
        assert!(error.starts_with(at) && error.contains("duplicate"), "{text:?}: {error}");
    }
}

#[test]
fn an_empty_file_says_that_nothing_is_configured() {
    for text in ["", "\n\n", "# only a comment\n", "---\n", "---\n# x\n...\n", "  \u{20}\n"] {
        assert_eq!(refusal(text), "s.yaml: the file is empty, nothing is configured", "{text:?}");
    }
}

#[test]
fn two_documents_in_one_file_are_refused_with_what_to_do() {
    let error = refusal("enabled: true\n---\nenabled: false\n");
    assert!(error.starts_with("s.yaml:3:") && error.contains("more than one YAML document"), "{error}");
}

#[test]
fn an_alias_bomb_is_refused_at_once() {
    let level =
        |level: usize| format!("a{level}: &a{level} [{}]\n", [format!("*a{}", level - 1).as_str(); 10].join(","));
    let bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned() + &(1..12).map(level).collect::<Vec<_>>().concat();
    let error = refusal(&bomb);
    assert!(error.starts_with("s.yaml:"), "{error}");
    assert!(error.contains("too large or too complex"), "{error}");
    let wide = format!("message_data:\n  a: &a [{}1]\n  b: [{}1]\n", "1,".repeat(1_000), "*a,".repeat(20));
    assert!(refusal(&wide).starts_with("s.yaml:3:"), "20,000 nodes by repetition are too many");
}

#[test]
fn aliases_and_merges_of_ordinary_use_are_fine() {
    let doc = parse("resource_selector:\n  - &a {label: x, value: y}\n  - *a\n  - <<: *a\n    value: z\n").unwrap();
    let selector = doc.value.resource_selector.as_ref().unwrap();
    assert_eq!(selector[1], selector[0]);
    assert_eq!(selector[2].value.as_deref(), Some("z"));
    doc.problems().finish().unwrap();
}

#[test]
fn deep_nesting_is_refused_in_either_style() {
    let flow = format!("message_data: {}1{}\n", "{a: ".repeat(5_000), "}".repeat(5_000));
    let list = format!("message_data: {}\n", "[".repeat(100_000));
    let block = (0..400).map(|depth| " ".repeat(depth) + "a:\n").collect::<String>() + &" ".repeat(401) + "b: 1\n";
    for text in [flow, list, block] {
        let error = refusal(&text);
        assert!(error.starts_with("s.yaml:"), "{error}");
    }
}

#[test]
fn a_huge_file_is_refused_before_it_is_parsed() {
    let text = format!("# {}\nenabled: true\n", "x".repeat(1024 * 1024));
    assert_eq!(refusal(&text), "s.yaml: the file is larger than 1 MiB, is it the right one?");
    let error = Document::<Raw>::read("/dev/zero").unwrap_err().to_string();
    assert_eq!(error, "/dev/zero: the file is larger than 1 MiB, is it the right one?");
    let many = format!("message_data: [{}]\n", "1,".repeat(200_000));
    assert!(refusal(&many).starts_with("s.yaml:"));
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = Document::<Raw>::read(dir.path().join("none.yaml")).unwrap_err();
    assert!(error.to_string().ends_with("none.yaml") && std::error::Error::source(&error).is_some());
    assert!(matches!(Document::<Raw>::read(dir.path()), Err(ConfigError::Read { .. })));
    let latin = dir.path().join("latin.yaml");
    std::fs::write(&latin, b"a: \xe9\n").unwrap();
    let error = Document::<Raw>::read(&latin).unwrap_err();
    assert!(crate::error::chain(&error).contains("utf-8"), "{error}");
    let good = dir.path().join("good.yaml");
    std::fs::write(&good, format!("\u{feff}{}", GOOD.replace('\n', "\r\n"))).unwrap();
    let doc = Document::<Raw>::read(&good).unwrap();
    assert_eq!(doc.file(), good.display().to_string());
    doc.problems().finish().unwrap();
}

#[test]
fn a_key_that_yaml_would_take_for_something_else_has_its_own_place() {
    let text = |key: &str| format!("poll_interval: 5s\nmessage_data:\n  a: 1\n  {key}: 2\n");
    for key in ["y", "n", "yes", "no", "on", "off", "true", "0x10", "1e3"] {
        let document = parse(&text(key)).unwrap();
        assert_eq!(document.value.message_data.as_ref().unwrap()[key], 2, "{key}");
        let mut problems = document.problems();
        problems.push(format!("message_data.{key}"), "wrong");
        let said = problems.finish().unwrap_err().to_string();
        assert_eq!(said, format!("s.yaml:4:3: message_data.{key}: wrong"));
    }
    for key in ["null", "~"] {
        assert!(refusal(&text(key)).starts_with("s.yaml:4:3: "), "{}", refusal(&text(key)));
    }
}

#[test]
fn no_text_makes_the_reader_panic() {
    use proptest::prelude::*;
    proptest!(|(text in "[a-c:\\[\\]{}&*#!|>\"'%@\\- \n\t,?~0-9é]{0,60}")| {
        if let Ok(doc) = parse(&text) {
            let _outcome = doc.problems().finish();
        }
    });
}

#[test]
fn the_environment_is_a_map_in_which_empty_means_absent() {
    let env = Env::from([("A", "1"), ("EMPTY", ""), ("BROKER_TYPE", "s3cret")]);
    assert_eq!((env.get("A"), env.get("EMPTY"), env.get("NONE")), (Some("1"), None, None));
    assert_eq!(env.names("BROKER_").collect::<Vec<_>>(), ["BROKER_TYPE"]);
    assert!(!format!("{env:?}").contains("s3cret"));
    let both = env.or(&Env::from([("A", "2"), ("B", "3")]));
    assert_eq!((both.get("A"), both.get("B")), (Some("1"), Some("3")));
    assert!(Env::from_process().get("PATH").is_some());
}

#[test]
fn a_variable_whose_value_is_not_utf_8_is_named() {
    use std::os::unix::ffi::OsStringExt as _;
    let text = |bytes: &[u8]| std::ffi::OsString::from_vec(bytes.to_vec());
    let variables = [(&b"A"[..], &b"fine"[..]), (b"B", b"s\xe9cret"), (b"\xe9", b"x")];
    let env = Env::from_system(variables.map(|(name, value)| (text(name), text(value))));
    assert_eq!(env.garbled().collect::<Vec<_>>(), ["B"]);
    assert_eq!((env.get("A"), env.names("").count()), (Some("fine"), 2));
    let above = Env::from([("B", "fine")]).or(&env);
    assert_eq!((above.garbled().count(), env.or(&above).garbled().count()), (0, 1));
}

#[test]
fn a_mounted_config_map_is_an_environment() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("..2026")).unwrap();
    std::fs::write(dir.path().join("..2026/BROKER_TYPE"), "rabbitmq\n").unwrap();
    std::os::unix::fs::symlink("..2026", dir.path().join("..data")).unwrap();
    std::os::unix::fs::symlink("..data/BROKER_TYPE", dir.path().join("BROKER_TYPE")).unwrap();
    let env = Env::from_directory(dir.path(), |_| true).unwrap();
    assert_eq!(env.get("BROKER_TYPE"), Some("rabbitmq"));
    assert_eq!(env.names("").count(), 1);
    let refused =
        |path: &std::path::Path| crate::chain(&Env::from_directory(path, |name| name != "keystore").unwrap_err());
    assert!(refused(&dir.path().join("none")).starts_with("read configuration file "));
    // What nobody asks for may be anything.
    std::fs::write(dir.path().join("keystore"), b"\xff").unwrap();
    std::fs::write(dir.path().join("BROKER_HOST"), b"caf\xe9").unwrap();
    let said = refused(dir.path());
    assert!(said.contains(&format!("{}: ", dir.path().join("BROKER_HOST").display())), "{said}");
    std::fs::remove_file(dir.path().join("BROKER_HOST")).unwrap();
    assert_eq!(Env::from_directory(dir.path(), |name| name != "keystore").unwrap().names("").count(), 1);
}

#[test]
fn the_durations_of_the_guide_are_read() {
    let guide = include_str!("../../../../docs/config-format.md");
    let start = guide.split_once("```durations\n").unwrap().1;
    for example in start.split_once("```").unwrap().0.split_whitespace() {
        example.parse::<GoDuration>().unwrap();
    }
}
