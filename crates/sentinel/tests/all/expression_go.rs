//! Our expressions against cel-go in the environment of today's sentinel: the same value, or refused, or failed.
//!
//! What Go answers is on file, so that nothing but recording needs Go: `WATCHFIRE_TEST_RECORD=1` writes it again.

#![expect(clippy::unwrap_used, reason = "in a test, what cannot go on is the failure to report")]

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use jiff::Timestamp;
use serde_json::{Value as Json, json};
use watchfire_sentinel::expression::{Expression, Facts, Field};
use watchfire_sentinel::resource::Resource;

const CASES: &str = include_str!("expression_go/cases.txt");
const DATA: &str = include_str!("expression_go/data.json");
const NOW: &str = "2026-07-01T12:00:00Z";

/// The decision of today's sentinel where none is written, word for word.
const DEFAULT: [(&str, &str); 7] = [
    ("ref_time", r#"condition("Reconciled").last_updated_time"#),
    ("is_reconciled", r#"condition("Reconciled").status == "True""#),
    ("has_ref_time", r#"ref_time != """#),
    ("is_new_resource", "resource.generation == 1 && !has_ref_time"),
    ("generation_mismatch", r#"resource.generation > condition("Reconciled").observed_generation"#),
    ("reconciled_and_stale", r#"is_reconciled && has_ref_time && now - timestamp(ref_time) > duration("30m")"#),
    (
        "not_reconciled_and_debounced",
        r#"!is_reconciled && has_ref_time && now - timestamp(ref_time) > duration("10s")"#,
    ),
];
const DEFAULT_RESULT: &str =
    "is_new_resource || generation_mismatch || reconciled_and_stale || not_reconciled_and_debounced";

/// What Go answers, from the file of that name, or from Go itself where it is to be written again.
fn answers(name: &str, cases: &[Json]) -> Vec<Json> {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests");
    let file = tests.join("all/expression_go").join(name);
    if std::env::var_os("WATCHFIRE_TEST_RECORD").is_some() {
        std::fs::write(&file, ask_go(&tests.join("oracle/cel"), cases)).unwrap();
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let answers: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), cases.len(), "{name} is of other cases: record it again");
    answers
}

fn ask_go(oracle: &std::path::Path, cases: &[Json]) -> String {
    let mut child = Command::new("go")
        .args(["run", "."])
        .current_dir(oracle)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let lines = cases.iter().map(Json::to_string).collect::<Vec<_>>().join("\n");
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "the oracle failed");
    String::from_utf8(output.stdout).unwrap()
}

fn with<T>(resource: &Json, now: &str, work: impl FnOnce(Facts<'_>) -> T) -> T {
    let text = resource.to_string();
    let view = Resource::parse(&text).unwrap();
    work(Facts { resource, view: &view, now: now.parse().unwrap() })
}

/// `value`, `refused` or `failed`, as Go's answers are written.
fn ours(source: &str, resource: &Json) -> Json {
    let field = match Field::compile(source) {
        Ok(field) => field,
        Err(problems) => return json!({"refused": problems[0].to_string()}),
    };
    with(resource, NOW, |facts| match field.evaluate(facts, "why") {
        Ok(value) => json!({"value": value.map(|value| serde_json::to_value(&value).unwrap())}),
        Err(failure) => json!({"failed": failure.to_string()}),
    })
}

/// Numbers are the same by their value: Go writes a whole double as an integer, too.
fn same(ours: &Json, go: &Json) -> bool {
    match (ours, go) {
        (Json::Number(ours), Json::Number(go)) => ours == go || ours.as_f64() == go.as_f64(),
        (Json::Array(ours), Json::Array(go)) => {
            ours.len() == go.len() && ours.iter().zip(go).all(|(ours, go)| same(ours, go))
        }
        (Json::Object(ours), Json::Object(go)) => {
            ours.len() == go.len() && ours.iter().all(|(key, value)| go.get(key).is_some_and(|go| same(value, go)))
        }
        (ours, go) => ours == go,
    }
}

fn agree(mark: &str, ours: &Json, go: &Json) -> bool {
    match mark {
        "<" => ours.get("refused").is_some() && go.get("refused").is_none(),
        ">" => ours.get("refused").is_none() && go.get("refused").is_some(),
        // What can only fail we refuse; what Go's types refuse may fail here when it runs.
        _ => match go.get("value") {
            Some(value) => ours.get("value").is_some_and(|ours| same(ours, value)),
            None => ours.get("value").is_none(),
        },
    }
}

#[test]
fn expressions_mean_what_they_mean_today() {
    let resource: Json = serde_json::from_str(DATA).unwrap();
    let lines = CASES.lines().filter(|line| !line.is_empty() && (!line.starts_with('#') || *line == "#"));
    let marked: Vec<(&str, &str)> =
        lines.map(|line| line.split_at(usize::from(line.starts_with(['<', '>'])))).collect();
    let cases: Vec<Json> =
        marked.iter().map(|(_, source)| json!({"result": source, "resource": resource, "now": NOW})).collect();
    let answers = answers("answers.jsonl", &cases);
    let mut wrong = Vec::new();
    for ((mark, source), go) in marked.iter().zip(&answers) {
        let ours = ours(source, &resource);
        if !agree(mark, &ours, go) {
            wrong.push(format!("{mark}{source}\n  ours {ours}\n  Go   {go}"));
        }
    }
    println!("{} expressions compared with cel-go", cases.len());
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Every combination of generation, what adapters have seen, state and age.
fn fleet() -> Vec<(String, Json)> {
    let mut fleet = Vec::new();
    let now: Timestamp = NOW.parse().unwrap();
    for generation in [1, 2, 3] {
        for seen in [None, Some(1), Some(2), Some(3)] {
            for state in [None, Some("True"), Some("False")] {
                for age in [-60, 0, 9, 10, 11, 1_799, 1_800, 1_801] {
                    let at = (now - jiff::SignedDuration::from_secs(age)).to_string();
                    let mut conditions = Vec::new();
                    if let Some(state) = state {
                        // As the API aggregates: always the resource's own generation.
                        conditions
                            .push(json!({"type": "Reconciled", "status": state, "observed_generation": generation,
                            "last_updated_time": at, "last_transition_time": at}));
                    }
                    if let Some(seen) = seen {
                        conditions.push(json!({"type": "DnsSuccessful", "status": "True", "observed_generation": seen,
                            "last_updated_time": at, "last_transition_time": at}));
                    }
                    let name = format!("generation {generation}, seen {seen:?}, Reconciled {state:?}, {age} s ago");
                    let resource = json!({"id": "r", "kind": "Cluster", "generation": generation,
                        "status": {"conditions": conditions}});
                    fleet.push((name, resource));
                }
            }
        }
    }
    fleet
}

#[test]
fn the_default_of_today_decides_as_it_does_there_row_by_row() {
    let fleet = fleet();
    let params: Vec<_> = DEFAULT.map(|(name, expr)| json!({"name": name, "expr": expr})).into();
    let case = |(_, resource): &(String, Json)| json!({"params": params, "result": DEFAULT_RESULT, "resource": resource, "now": NOW});
    let answers = answers("default.jsonl", &fleet.iter().map(case).collect::<Vec<_>>());
    let params = DEFAULT.map(|(name, expr)| (name.to_owned(), expr.to_owned()));
    let theirs = Expression::compile(&params, DEFAULT_RESULT).unwrap();
    let max_age = watchfire_sentinel::decision::MaxAge {
        ready: std::time::Duration::from_mins(30),
        not_ready: std::time::Duration::from_secs(10),
    };
    let built_in = Expression::built_in(&max_age).unwrap();
    for ((name, resource), go) in fleet.iter().zip(&answers) {
        let go = go["value"].as_bool().unwrap();
        with(resource, NOW, |facts| {
            assert_eq!(theirs.evaluate(facts), Ok(go), "{name}");
            // Where ours differs from it, it is one of the reasons that the guide gives.
            let ours = built_in.evaluate(facts).unwrap();
            let seen = facts.view.status.observed_generation.unwrap_or(0);
            let age = facts.view.status.last_updated.map(|at| facts.now.duration_since(at).as_secs());
            let spec_not_seen = facts.view.generation.unwrap() > seen;
            let no_report_yet = age.is_none_or(|age| age < 0);
            let exactly_due = matches!((age, facts.view.status.ready), (Some(10), false) | (Some(1_800), true));
            assert!(ours == go || spec_not_seen || no_report_yet || exactly_due, "{name}: ours {ours}, today's {go}");
            assert!(ours || !go || no_report_yet || facts.view.generation.unwrap() < seen, "{name}: lost");
        });
    }
    println!("{} resources decided as today's sentinel does", fleet.len());
}
