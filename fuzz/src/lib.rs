//! What each fuzz target does with its bytes: reads them as the product would, and checks what is promised of whatever
//! comes out. Nothing may panic, nothing may grow without bound, and what is refused is refused with an error.

use jiff::Timestamp;
use serde_json::{Value, json};
use watchfire_delivery::CloudEvent;
use watchfire_runtime::config::{Env, Problems, Text};
use watchfire_sentinel::config::{self, Overrides, broker};
use watchfire_sentinel::decision::{MaxAge, Policy, Rules, decide};
use watchfire_sentinel::event::reconcile;
use watchfire_sentinel::expression::{Expression, Facts, Field};
use watchfire_sentinel::page::Page;
use watchfire_sentinel::payload::{Leaves, Payload};
use watchfire_sentinel::resource::{Labels, Resource};
use watchfire_sentinel::selector::{Operator, Requirement, Selector};
use watchfire_sentinel::template::MAX_OUTPUT;
use watchfire_simulator::search;

/// What a target does with its bytes.
pub type Target = fn(&[u8]);

/// Each target by its name, which is also that of its corpus.
pub const TARGETS: [(&str, Target); 6] = [
    ("template", template),
    ("selector", selector),
    ("cel", cel),
    ("config", config),
    ("page", page),
    ("event", event),
];

/// A field of `message_data`, and behind the first zero byte the resource that it is filled in from.
pub fn template(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (source, data) = text.split_once('\0').unwrap_or((text, "{}"));
    let Ok(payload) = Payload::compile(&json!({"field": source}), Leaves::Mixed) else { return };
    let data: Value = serde_json::from_str(data).unwrap_or_default();
    let (view, now) = (Resource::parse(r#"{"id":"a"}"#).expect("a resource"), Timestamp::UNIX_EPOCH);
    let build = |resource| payload.build(Facts { resource, view: &view, now }, "a reason");
    let filled_in = build(&data);
    let filled: Value = serde_json::from_str(filled_in.data.get()).expect("what is built is JSON");
    if let Some(text) = filled["field"].as_str() {
        // A bare path hands on what stands there, however long.
        assert!(text.len() <= MAX_OUTPUT.max(data.to_string().len()), "the output is bounded");
    }
    if let Some(fields) = payload.top_level_fields() {
        // It reads nothing else, so that only these are asked of the API.
        let whole = data.as_object().cloned().unwrap_or_default();
        let read: Value = whole.into_iter().filter(|(name, _)| fields.contains(name)).collect();
        if data.is_object() {
            assert_eq!(build(&read).data.get(), filled_in.data.get(), "its fields are all that a payload reads");
        }
    }
}

/// Requirements, one a line: `key=value`, `key!value,value`, `key~value,value`, `+key` and `-key`; behind the first zero
/// byte the labels, likewise.
pub fn selector(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (requirements, labels) = text.split_once('\0').unwrap_or((text, ""));
    let values = |text: &str| text.split(',').map(str::to_owned).collect();
    let requirement = |line: &str| {
        let (key, operator) = if let Some((key, value)) = line.split_once('=') {
            (key, Operator::In(vec![value.to_owned()]))
        } else if let Some((key, of)) = line.split_once('~') {
            (key, Operator::In(values(of)))
        } else if let Some((key, of)) = line.split_once('!') {
            (key, Operator::NotIn(values(of)))
        } else if let Some(key) = line.strip_prefix('-') {
            (key, Operator::DoesNotExist)
        } else {
            (line.strip_prefix('+').unwrap_or(line), Operator::Exists)
        };
        Requirement { key: key.to_owned(), operator }
    };
    let Ok(selector) = Selector::new(requirements.lines().map(requirement).collect()) else { return };
    let labels: Labels<'_> = labels.lines().filter_map(|line| line.split_once('=')).collect();
    let matches = selector.matches(&labels);
    assert!(!selector.metric_label().is_empty());
    assert_eq!(selector.labels().is_none(), selector.is_everything());
    let Some(asked) = selector.search() else { return };
    let found = search::parse(&asked).expect("the API takes it").expect("a search that asks something");
    let lookup = |field: &search::Field| match field {
        search::Field::Label(key) => labels.get(key).map_or(search::Value::Null, search::Value::Text),
        _ => search::Value::Null,
    };
    // The API may send more than is selected, never less.
    assert!(!matches || found.matches(&lookup), "{asked} leaves out what is selected");
}

/// A decision, and a field, in CEL; behind the first zero byte the resource that they are about.
pub fn cel(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (source, item) = text.split_once('\0').unwrap_or((text, r#"{"id":"a"}"#));
    let (expression, field) = (Expression::compile(&[], source), Field::compile(source));
    for problems in [expression.as_ref().err(), field.as_ref().err()].into_iter().flatten() {
        assert!(!problems.is_empty() && problems.iter().all(|problem| !problem.to_string().is_empty()));
    }
    let (Ok(view), Ok(resource)) = (Resource::parse(item), serde_json::from_str::<Value>(item)) else { return };
    let now = Timestamp::from_second(1_800_000_000).expect("a time");
    let facts = Facts { resource: &resource, view: &view, now };
    if let Ok(expression) = expression {
        let due = expression.evaluate(facts).ok();
        if let Some(fields) = expression.top_level_fields() {
            // It reads nothing else, so that only these are asked of the API.
            let whole = resource.as_object().cloned().unwrap_or_default();
            let read = whole.into_iter().filter(|(name, _)| fields.contains(name)).collect();
            let narrow = expression.evaluate(Facts { resource: &read, ..facts }).ok();
            assert_eq!(due, narrow, "its fields are all that a decision reads");
        }
    }
    if let Ok(field) = field
        && let Ok(Some(value)) = field.evaluate(facts, "a reason")
    {
        // A map whose keys JSON cannot have is an error, and no panic.
        let text = serde_json::to_string(&value).unwrap_or_default();
        assert!(text.len() < 64 << 20, "what it yields is bounded");
    }
}

/// The sentinel's file, in whichever form; and the broker's.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let file = Text::new("sentinel.yaml", text);
    match config::read(&file, &Overrides::default(), &Env::default()) {
        Ok(reading) => finish(reading.problems, reading.sentinel.is_some()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(migrated) = config::migrate(&file, None, &Env::default()) {
        let again = config::migrate(&Text::new("migrated.yaml", migrated.text.as_str()), None, &Env::default());
        assert!(again.is_ok(), "what is migrated can be read: {}", migrated.text);
    }
    let mut problems = Problems::without_file();
    match broker::parse(&Text::new("broker.yaml", text), &mut problems) {
        Ok(settings) => {
            let broker = broker::check(&settings, &mut problems);
            finish(problems, broker.is_some());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn finish(problems: Problems, is_checked: bool) {
    match problems.finish() {
        Ok(_) => assert!(is_checked, "what has no problem is a configuration"),
        Err(error) => assert!(!error.problems().is_empty() && !error.to_string().is_empty()),
    }
}

/// An answer of the API, from its items to the events about them.
pub fn page(bytes: &[u8]) {
    let Ok(page) = String::from_utf8(bytes.to_vec()).map_err(drop).and_then(|body| Page::parse(body).map_err(drop))
    else {
        return;
    };
    let (payload, now) = (Payload::default_payload(), Timestamp::from_second(1_800_000_000).expect("a time"));
    let max_age = MaxAge { ready: std::time::Duration::from_mins(30), not_ready: std::time::Duration::from_secs(10) };
    assert_eq!(page.items().count(), page.len());
    for item in page.items() {
        let resource = match Resource::parse(item) {
            Ok(resource) => resource,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                continue;
            }
        };
        for policy in [Policy::GenerationAware, Policy::TimeOnly] {
            let decision = decide(&Rules::new(policy, max_age), &resource, None, now);
            let Ok(value) = serde_json::from_str::<Value>(item) else { continue };
            let facts = Facts { resource: &value, view: &resource, now };
            let data = payload.build(facts, decision.reason.as_str()).data;
            let built = reconcile(&resource, &decision, data, "clusters", now);
            let again = CloudEvent::from_structured(built.body()).expect("what is built is a cloudevent");
            assert_eq!((again.id(), again.body()), (built.id(), built.body()));
        }
    }
}

/// A cloudevent as it came from elsewhere.
pub fn event(bytes: &[u8]) {
    let event = match CloudEvent::from_structured(bytes) {
        Ok(event) => event,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(event.body().as_ref(), bytes, "an event keeps the bytes that it was read from");
    let rebuilt = CloudEvent::new(event.attributes().clone(), event.data().to_owned());
    let again = CloudEvent::from_structured(rebuilt.body()).expect("what is built is a cloudevent");
    assert_eq!(again.id(), event.id());
    assert_eq!(event.binary_headers().len(), rebuilt.binary_headers().len());
}
