//! What the other tests build on, and what an expression may not do.

use std::time::{Duration, Instant};

use serde_json::json;

use super::*;
use crate::decision::MaxAge;
use crate::resource::Resource;

const NOW: &str = "2026-07-01T12:00:00Z";

fn resource() -> Json {
    json!({
        "id": "r1", "kind": "Cluster", "href": "/clusters/r1", "generation": 3, "created_time": "2026-07-01T10:00:00Z",
        "labels": {"region": "us-east", "a-b": "x"},
        "spec": {"nodes": 3, "list": [1, 2, 3], "nested": {"deep": [{"x": "y"}]}, "empty": null},
        "status": {"conditions": [
            {"type": "Reconciled", "status": "False", "observed_generation": 3, "last_updated_time": "2026-07-01T11:00:00Z"},
            {"type": "DnsSuccessful", "status": "True", "observed_generation": 2},
        ]},
    })
}

fn with<T>(resource: &Json, work: impl FnOnce(Facts<'_>) -> T) -> T {
    let text = resource.to_string();
    let view = Resource::parse(&text).unwrap();
    work(Facts { resource, view: &view, now: NOW.parse().unwrap() })
}

/// The value of a field's source over [`resource`].
fn value(source: &str) -> Result<Json, String> {
    let field = Field::compile(source)
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join(" / "))?;
    with(&resource(), |facts| {
        let value = field.evaluate(facts, "why").map_err(|failure| format!("{} {failure}", failure.kind.as_str()))?;
        Ok(value.map_or(Json::Null, |value| serde_json::to_value(&value).unwrap()))
    })
}

#[test]
fn values() {
    for (source, wanted) in [
        ("resource.id", json!("r1")),
        ("resource.name", json!("")),
        ("resource.generation + 1", json!(4)),
        ("resource.spec.nodes == 3", json!(true)),
        ("resource.spec.nodes", json!(3)),
        ("resource.spec", resource()["spec"].clone()),
        ("has(resource.spec.nope)", json!(false)),
        ("has(resource.deleted_time)", json!(false)),
        ("resource.labels['a-b']", json!("x")),
        ("resource['labels']['a-b']", json!("x")),
        ("now - timestamp(resource.created_time) > duration('30m')", json!(true)),
        ("condition('Reconciled').status", json!("False")),
        ("condition('None').observed_generation", json!(0)),
        ("condition('None').message", json!("")),
        ("summary().observed_generation", json!(2)),
        ("summary().last_updated_time", json!("2026-07-01T11:00:00Z")),
        ("reason", json!("why")),
        ("resource.spec.list.map(x, x * 2.0)", json!([2, 4, 6])),
        ("resource.spec.list.filter(x, x > 1)", json!([2, 3])),
        ("resource.spec.list.map(x, x > 1, string(x))", json!(["2", "3"])),
        ("resource.spec.list.exists_one(x, x > 2)", json!(true)),
        ("resource.spec.list.all(x, x > 0) && resource.spec.list.exists(x, x == 2)", json!(true)),
        ("resource.labels.exists(k, k == 'region')", json!(true)),
        ("'us-east-1'.split('-').map(x, x.upperAscii()).join('_')", json!("US_EAST_1")),
        ("resource.spec.nope || true", json!(true)),
        ("{'a': [1, 'x'], 'b': {'c': now}}", json!({"a": [1, "x"], "b": {"c": NOW}})),
        ("resource.spec.empty", Json::Null),
        ("type(resource.spec.nodes) == double && type(resource.generation) == int", json!(true)),
    ] {
        assert_eq!(value(source), Ok(wanted), "{source}");
    }
}

/// What a source fails of, where it is accepted at first.
#[test]
fn failures_name_kind_and_place() {
    for (source, wanted) in [
        ("resource.spec.nope", "missing line 1, column 1: there is no \"nope\""),
        ("resource.spec.nodes + 1", "wrong_type line 1, column 1: + cannot take double and int"),
        ("1 +\n resource.spec", "wrong_type line 1, column 1: + cannot take int and map"),
        ("resource.spec.list[7]", "out_of_range line 1, column 1: 7 is not a position in the list"),
        ("resource.id.charAt(9)", "out_of_range line 1, column 1: 9 is not a position in the text"),
        ("timestamp(resource.id)", "invalid_argument line 1, column 1: \"r1\" is no timestamp"),
        ("9223372036854775807 + resource.generation", "overflow line 1, column 1: + goes beyond what can be held"),
        ("1 / (resource.generation - 3)", "overflow line 1, column 1: a division by zero"),
        ("resource.id.matches(resource.id + '(')", "invalid_argument line 1, column 1: matches: unclosed group"),
        ("resource.spec ? 1 : 2", "wrong_type line 1, column 1: ?: cannot take map"),
        ("resource.spec.list.exists(x, x.y == 1)", "wrong_type line 1, column 30: double has no field \"y\""),
        ("resource.labels.region && resource.generation == 3", "wrong_type line 1, column 1: && cannot take string"),
    ] {
        assert_eq!(value(source), Err(wanted.to_owned()), "{source}");
    }
}

fn problems(params: &[(&str, &str)], result: &str) -> Vec<String> {
    let params: Vec<_> = params.iter().map(|(name, source)| ((*name).to_owned(), (*source).to_owned())).collect();
    match Expression::compile(&params, result) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.iter().map(|problem| format!("{}: {problem}", problem.part.key())).collect(),
    }
}

#[test]
fn what_can_only_fail_is_refused_with_what_to_try() {
    for (source, wanted) in [
        ("1 + 'a' == 2", "+ cannot take int and string; convert one of them"),
        ("nope", "nope is not known; there are resource, now, condition(), summary()"),
        ("reason == ''", "reason is not known"),
        ("nope()", "nope is not known"),
        ("resource.id.nope()", "nope is not known"),
        ("1", "the result is int, not true or false"),
        ("resource.id + 'x'", "the result is string, not true or false"),
        ("duration('1x') > duration('1s')", "\"1x\" is no duration; as it is written, it fails on every resource"),
        ("now > timestamp('yesterday')", "\"yesterday\" is no timestamp"),
        ("now == '2026-07-01T12:00:00Z'", "timestamp is never equal to string"),
        ("condition('Reconciled').stauts == 'True'", "there is no field stauts; there are status, observed_generation"),
        ("summary().phase == 'True'", "there is no field phase; there are generation"),
        ("resource.id.matches('(')", "no regular expression: unclosed group"),
        ("resource.id.matches('(a{500}){500}')", "no regular expression: it compiles to more than 64 KiB"),
        ("size(b'a') == 1", "bytes are not supported"),
        ("resource.id && true", "a part of && is string, not true or false"),
        ("resource.id.split(',', 1, 2) == []", "split takes 1 to 2 arguments"),
        ("split(resource.id, ',') == []", "split is a method: write x.split(..)"),
        ("resource.id.int() == 1", "int is no method: write int(..)"),
        ("resource.?id == 1", "optional values are not supported"),
        ("cel.bind(x, 1, x) == 1", "is not known"),
        ("'%d'.format([1]) == ''", "format is not known"),
        ("resource.a.exists(x, x.b.exists(y, y.exists(z, z)))", "macros nest deeper than 2"),
        ("1 +", "unexpected end of input"),
        (" ", "it is empty"),
    ] {
        let found = problems(&[], source);
        assert!(found.len() == 1 && found[0].contains(wanted), "{source}: {found:?}");
    }
}

#[test]
fn a_param_is_known_after_it_and_only_then() {
    assert_eq!(problems(&[("a", "1"), ("b", "a + 1")], "b == 2"), [""; 0]);
    assert_eq!(
        problems(&[("b", "a + 1"), ("a", "1")], "b == 2"),
        [
            "params.0.expr: param b, line 1, column 1: param a is not known yet; params see only those before them: move it further up"
        ]
    );
    assert_eq!(problems(&[("a", "a")], "a").len(), 1);
}

#[test]
fn every_problem_of_every_part_is_told() {
    let found = problems(&[("a", "nope"), ("b", "a + 1 > 2"), ("c", "")], "a + 'x'");
    let keys: Vec<_> = found.iter().map(|problem| problem.split(':').next().unwrap()).collect();
    assert_eq!(keys, ["params.0.expr", "params.2.expr", "result"], "{found:?}");
}

#[test]
fn a_name_must_be_one_and_free() {
    for name in ["", "1a", "a-b", "resource", "now", "in", "ä"] {
        assert_eq!(problems(&[(name, "1")], "true").len(), 1, "{name}");
    }
    assert_eq!(
        problems(&[("a", "1"), ("a", "2")], "true"),
        ["params.1.expr: param a, line 1, column 1: a stands twice; choose another name: letters, digits and _"]
    );
    // A function's name is free, and so is the name of a type.
    assert_eq!(problems(&[("condition", "1"), ("size", "2"), ("int", "3")], "condition + size + int == 6"), [""; 0]);
    let many: Vec<_> = (0..101).map(|at| (format!("p{at}"), "1".to_owned())).collect();
    assert!(Expression::compile(&many, "true").is_err());
}

/// However it is written, it is refused or compiled, quickly, and the process lives.
#[test]
fn what_nests_or_grows_without_end_is_refused() {
    let repeat = |what: &str, times: usize| what.repeat(times);
    for source in [
        format!("{}1{} == 1", repeat("(", 5_000), repeat(")", 5_000)),
        format!("{}1{} == 1", repeat("(", 100), repeat(")", 100)),
        format!("{}1{} == [1]", repeat("[", 100), repeat("]", 100)),
        format!("1{} == 1", repeat(" + 1", 2_000)),
        format!("1{} == 1", repeat("+1", 2_000)),
        format!("{}true", repeat("!", 4_000)),
        format!("{}true", repeat("! ", 2_000)),
        format!("{}1 == 1", repeat("- ", 2_000)),
        format!("{}true", repeat("true?false:", 370)),
        format!("{}true", repeat("true||false&&", 300)),
        format!("resource{} == 1", repeat(".a", 2_000)),
        format!("resource{} == 1", repeat("[0]", 1_300)),
        format!("resource{}", repeat(".map(a,a)", 400)),
        format!("resource{}", repeat(".f()", 900)),
        format!("[{}] == []", repeat("1,", 101)),
        format!("{{{}1:1}} == {{}}", (0..200).map(|at| at.to_string()).collect::<Vec<_>>().join(":1,") + ":1,"),
        format!("'{}' == ''", repeat("x", 5_000)),
        repeat("\"", 4_000),
        repeat("x.", 2_000),
        format!("{}1", repeat("1<", 2_000)),
        format!("{}1", repeat("1==", 1_300)),
        format!("{}1{}", repeat("resource.map(a,", 60), repeat(")", 60)),
        format!("{}1{}", repeat("resource.f(", 60), repeat(")", 60)),
        format!("{}1{}", repeat("{1:", 60), repeat("}", 60)),
    ] {
        let begun = Instant::now();
        let shown: String = source.chars().take(40).collect();
        let found = problems(&[], &source);
        assert!(begun.elapsed() < Duration::from_secs(10), "{shown}: {:?}", begun.elapsed());
        let longer = shown.starts_with("true||");
        assert_eq!(found.is_empty(), longer, "{shown}: {found:?}");
    }
}

/// Each param nests within its own bound, and what they make together is compared on the stack of a worker.
#[test]
fn what_params_nest_together_is_bounded() {
    let nested = |params: usize, open: &str, close: &str, times: usize| {
        let deeper = |at: usize| {
            let before = at.checked_sub(1).map_or_else(|| "[1]".to_owned(), |before| format!("p{before}"));
            (format!("p{at}"), format!("{}{before}{}", open.repeat(times), close.repeat(times)))
        };
        (0..params).map(deeper).collect::<Vec<_>>()
    };
    for (open, close, times) in [
        ("[", "]", 60),
        ("{1: ", "}", 60),
        ("dyn([", "])", 30),
        ("[true ? [] : ", "]", 60),
        ("[[1] + ", "]", 30),
        ("[[1].map(a, [", "])]", 2),
    ] {
        let told: Vec<_> = match Expression::compile(&nested(100, open, close, times), "p99 == p99") {
            Ok(_) => panic!("{open} is accepted"),
            Err(problems) => problems.iter().map(ToString::to_string).collect(),
        };
        assert!(told[0].contains("its value nests deeper than 256"), "{open}: {told:?}");
    }
    let flat: Vec<_> =
        (0..100).map(|at| (format!("p{at}"), format!("{}1{} == [1]", "[".repeat(9), "]".repeat(9)))).collect();
    assert!(Expression::compile(&flat, "p99").is_ok(), "what is true or false nests no deeper");
    let deepest = Expression::compile(&nested(4, "[", "]", 60), "p3 == p3 && p3 != [p2]").unwrap();
    let worker = std::thread::Builder::new().stack_size(2 << 20);
    let compared = worker.spawn(move || with(&resource(), |facts| deepest.evaluate(facts)));
    assert_eq!(compared.unwrap().join().unwrap(), Ok(true));
}

/// What is accepted may still be run over a resource of any size.
#[test]
fn what_would_take_for_ever_or_a_gigabyte_ends() {
    let list: Vec<_> = (0..3_000).map(|at| json!({"name": format!("node-{at}"), "n": at})).collect();
    let big = json!({"id": "r", "spec": {"list": list, "text": "a".repeat(1_000_000)}});
    let doubled = (0..40).map(|at| (format!("t{}", at + 1), format!("t{at} + t{at}")));
    let doubled: Vec<_> = std::iter::once(("t0".to_owned(), "'x'".to_owned())).chain(doubled).collect();
    let replaced = (0..40).map(|at| (format!("t{}", at + 1), format!("t{at}.replace('', t{at})")));
    let replaced: Vec<_> = std::iter::once(("t0".to_owned(), "'xyz'".to_owned())).chain(replaced).collect();
    let lists = (0..40).map(|at| (format!("t{}", at + 1), format!("t{at} + t{at}")));
    let lists: Vec<_> = std::iter::once(("t0".to_owned(), "[1]".to_owned())).chain(lists).collect();
    let nested = (0..40).map(|at| (format!("t{}", at + 1), format!("[t{at}, t{at}]")));
    let nested: Vec<_> = std::iter::once(("t0".to_owned(), "[1]".to_owned())).chain(nested).collect();
    let l = "resource.spec.list";
    for (params, result) in [
        (doubled, "t40 == ''".to_owned()),
        (replaced, "t40 == ''".to_owned()),
        (lists, "t40 == []".to_owned()),
        (nested, "t40 == [t39, t39]".to_owned()),
        (Vec::new(), format!("{l}.all(a, {l}.all(b, a.n >= b.n || a.n < b.n))")),
        (Vec::new(), format!("{l}.map(a, {l}.map(b, b)).size() == 0")),
        (Vec::new(), format!("{l}.map(a, {l} + {l}).size() == 0")),
        (Vec::new(), format!("{l}.exists(a, {l} == {l}.filter(b, true) && false)")),
        (Vec::new(), "resource.spec.text.matches('(a|aa|aaa)*b')".to_owned()),
        (Vec::new(), format!("{l}.all(a, resource.spec.text.matches('(a*)*b' + a.name) == false)")),
        (Vec::new(), format!("{l}.all(a, a.name.matches(a.name + '.*[a-z]{{1,50}}') == false)")),
        (Vec::new(), "resource.spec.text.split('').size() == 0".to_owned()),
        (Vec::new(), format!("{l}.map(a, resource.spec.text.split('a')).size() == 0")),
        (Vec::new(), format!("{l}.map(a, resource.spec.text.lowerAscii()).join('') == ''")),
        (Vec::new(), format!("{l}.all(a, resource.spec.text.contains('b') == false)")),
        (Vec::new(), format!("{l}.all(a, resource.spec.text.lastIndexOf('aab') == -1)")),
        (Vec::new(), format!("{l}.all(a, resource.spec.text <= resource.spec.text)")),
        (Vec::new(), format!("{l}.all(a, resource.spec.text + 'a' > resource.spec.text)")),
        (Vec::new(), format!("{l}.exists(a, resource.spec[resource.spec.text] == a)")),
        (Vec::new(), format!("{l}.exists(a, resource.spec.text in resource.spec)")),
        (Vec::new(), format!("{l}.exists(a, resource.spec.text in {{'a': 1}})")),
        (Vec::new(), format!("{l}.exists(a, {{resource.spec.text: 1, resource.spec.text: 2}}.size() == 0)")),
        (Vec::new(), format!("{l}.exists(a, {{resource.spec.text: 1}} != {{resource.spec.text: 1}})")),
        (Vec::new(), format!("{l}.exists(a, a.name.indexOf(resource.spec.text) == 1)")),
        (Vec::new(), format!("{l}.exists(a, a.name.lastIndexOf(resource.spec.text) == 1)")),
        (Vec::new(), format!("{l}.exists(a, a.name.replace(resource.spec.text, '') == '')")),
        (Vec::new(), format!("{l}.exists(a, a.name.split(resource.spec.text).size() == 0)")),
        (Vec::new(), format!("{l}.exists(a, a.name.endsWith(resource.spec.text))")),
        (Vec::new(), format!("{l}.exists(a, a.name.matches(resource.spec.text))")),
        (Vec::new(), format!("{l}.exists(a, now.getHours(resource.spec.text) == 25)")),
    ] {
        let expression = Expression::compile(&params, &result).unwrap_or_else(|problems| panic!("{problems:?}"));
        let begun = Instant::now();
        let failure = with(&big, |facts| expression.evaluate(facts)).unwrap_err();
        assert_eq!(failure.kind, Kind::TooExpensive, "{result}: {failure}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{result}: {:?}", begun.elapsed());
    }
}

/// The conditions of a resource, all as long as the one that is asked for.
#[test]
fn a_condition_is_not_looked_for_at_any_length() {
    let name = "a".repeat(100_000);
    let conditions: Vec<_> = (0..100).map(|_| json!({"type": format!("{name}b"), "status": "True"})).collect();
    let resource = json!({"id": "r", "name": format!("{name}c"), "status": {"conditions": conditions},
        "spec": {"list": vec![0; 1_000]}});
    let expression =
        Expression::compile(&[], "resource.spec.list.exists(a, condition(resource.name).status == 'True')");
    let failure = with(&resource, |facts| expression.unwrap().evaluate(facts)).unwrap_err();
    assert_eq!(failure.kind, Kind::TooExpensive, "{failure}");
}

/// What is made of few steps may still be written out at any length: each of 3,000 elements holds the whole.
#[test]
fn what_would_be_written_without_end_is_not_written() {
    let list: Vec<_> = (0..3_000).collect();
    let big = json!({"id": "r", "spec": {"list": list, "text": "a".repeat(100_000)}});
    for source in ["resource.spec.list.map(a, resource.spec)", "resource.spec.list.map(a, {'b': resource.spec.text})"] {
        let field = Field::compile(source).unwrap();
        let failure = with(&big, |facts| field.evaluate(facts, "").map(|_| ())).unwrap_err();
        assert_eq!(failure.kind, Kind::TooExpensive, "{source}: {failure}");
        assert!(with(&big, |facts| Field::compile("resource.spec").unwrap().evaluate(facts, "").is_ok()));
    }
    let doubled = (0..40).map(|at| (format!("t{}", at + 1), format!("[t{at}, t{at}]")));
    let params: Vec<_> = std::iter::once(("t0".to_owned(), "[1]".to_owned())).chain(doubled).collect();
    let expression = Expression::compile(&params, "t40.size() == 2").unwrap();
    let explained = with(&resource(), |facts| {
        let explained = expression.explain(facts);
        (explained.params[0].2.clone(), explained.params[40].2.clone(), explained.result)
    });
    let list = |size| Ok(json!({"type": "list", "size": size}));
    assert_eq!(explained, (list(1), list(2), Ok(true)));
}

#[test]
fn what_is_missing_is_quoted_in_short() {
    let big = json!({"id": "r", "name": "n".repeat(1_000_000)});
    for (source, kind) in
        [("{'a': 1}[resource.name] == 1", Kind::Missing), ("now.getHours(resource.name) == 1", Kind::InvalidArgument)]
    {
        let failure = with(&big, |facts| Expression::compile(&[], source).unwrap().evaluate(facts)).unwrap_err();
        assert_eq!(failure.kind, kind);
        assert!(failure.to_string().len() < 200, "{}", failure.to_string().len());
    }
}

#[test]
fn only_the_fields_that_are_read_are_named() {
    let fields = |params: &[(&str, &str)], result: &str| {
        let params: Vec<_> = params.iter().map(|(name, source)| ((*name).to_owned(), (*source).to_owned())).collect();
        let expression = Expression::compile(&params, result).unwrap();
        let fields = expression.top_level_fields();
        fields.map(|fields| fields.iter().cloned().collect::<Vec<_>>().join(" "))
    };
    assert_eq!(
        fields(&[("a", "resource.spec.x == 1")], "a || condition('b').status == ''"),
        Some("spec status".into())
    );
    assert_eq!(fields(&[], "has(resource.labels) && resource['href'] == ''"), Some("href labels".into()));
    assert_eq!(fields(&[], "resource.list.all(resource, resource.x == 1)"), Some("list".into()));
    assert_eq!(fields(&[], "resource.all(k, k != '')"), None);
    assert_eq!(fields(&[], "summary().ready"), Some(String::new()));
}

#[test]
fn explaining_shows_each_param_up_to_the_one_that_fails() {
    let params = [("a", "[1, 2]"), ("b", "resource.nope"), ("c", "true")];
    let params = params.map(|(name, source)| (name.to_owned(), source.to_owned()));
    let expression = Expression::compile(&params, "c").unwrap();
    with(&resource(), |facts| {
        let explained = expression.explain(facts);
        assert_eq!(explained.params.len(), 2);
        assert_eq!(explained.params[0], ("a", "[1, 2]", Ok(json!({"type": "list", "size": 2}))));
        let failure = explained.params[1].2.clone().unwrap_err();
        assert_eq!(failure.to_string(), "param b, line 1, column 1: there is no \"nope\"");
        assert_eq!(explained.result, Err(failure.clone()));
        assert_eq!(expression.evaluate(facts), Err(failure));
    });
}

#[test]
fn explaining_shows_no_resource_as_a_whole() {
    let shown = |source: &str| {
        let expression = Expression::compile(&[("r".to_owned(), source.to_owned())], "true").unwrap();
        let resource = json!({"id": "r", "name": "ä".repeat(1_000), "spec": {"password": "s3cret"}});
        with(&resource, |facts| expression.explain(facts).params[0].2.clone().unwrap())
    };
    assert_eq!(shown("resource"), json!({"type": "map", "size": 3}));
    assert_eq!(shown("[resource]"), json!({"type": "list", "size": 1}));
    assert_eq!(shown("resource.name"), json!(format!("{}…", "ä".repeat(300))));
    assert_eq!(shown("resource.id"), json!("r"));
}

#[test]
fn every_kind_has_a_label_and_a_hint() {
    for (at, kind) in Kind::ALL.into_iter().enumerate() {
        assert_eq!(kind as usize, at);
        assert!(!kind.as_str().is_empty() && !kind.hint().is_empty());
    }
}

#[test]
fn the_built_in_decision_compiles_and_reads_nothing_but_the_summary() {
    let max_age = MaxAge { ready: Duration::from_millis(1_800_500), not_ready: Duration::from_secs(10) };
    let expression = Expression::built_in(&max_age).unwrap();
    assert_eq!(expression.top_level_fields(), Some(&BTreeSet::new()));
    assert_eq!(expression.params.len(), 7);
    with(&resource(), |facts| assert_eq!(expression.evaluate(facts), Ok(true)));
}

/// Why a source is refused, or where else it can only fail.
fn fate(source: &str) -> Result<Vec<String>, String> {
    match Field::compile(source) {
        Ok(field) => Ok(field.doubts().iter().map(ToString::to_string).collect()),
        Err(problems) => Err(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join(" / ")),
    }
}

#[test]
fn what_can_only_fail_is_refused_with_its_place_and_its_reason() {
    for (source, place, why) in [
        ("1 / 0", 1, "a division by zero"),
        ("2 + 1 % 0", 5, "a division by zero"),
        ("1u / 0u", 1, "a division by zero"),
        ("9223372036854775807 + 1", 1, "+ goes beyond what can be held"),
        ("timestamp('9999-12-31T23:59:59Z') + duration('1s') > now", 1, "+ goes beyond"),
        ("resource.generation / 0", 1, "a division by zero"),
        ("resource.spec.nodes % (2 - 2)", 1, "a division by zero"),
        ("resource.generation > 1 && [1, 2][2] == 1 && 1 / 0 > 0 ? 1 : 1 / 0", 64, ""),
        ("resource.generation > 1 ? 1 / 0 : 2 / 0", 27, "a division by zero"),
        ("now.getHours('Nowhere/Land')", 1, "unknown time zone \"Nowhere/Land\""),
        ("timestamp(resource.id).getHours('Nowhere/Land') + 1", 1, "unknown time zone"),
        ("{'a': [resource.id, string(1 / 0)]}", 28, "a division by zero"),
        ("{'a': 1}.b", 1, "there is no \"b\""),
        ("[1 / 0].exists(x, resource.generation == x)", 2, "a division by zero"),
        ("(1 / 0 > 0 || false) && 1 / 0 > 0", 2, "a division by zero"),
        ("dyn(1) + dyn('a') == resource.id", 1, "+ cannot take int and string"),
        ("!(resource.generation / 0 == 1)", 3, "a division by zero"),
    ] {
        let said = fate(source);
        if why.is_empty() {
            // Of a choice whose condition may fail as well, nothing is certain.
            assert!(said.is_ok(), "{source}: {said:?}");
            continue;
        }
        let said = said.expect_err(source);
        let place = format!("line 1, column {place}: {why}");
        assert!(
            said.starts_with(&place) && said.ends_with("as it is written, it fails on every resource"),
            "{source}: {said}"
        );
    }
}

#[test]
fn what_others_decide_without_is_no_failure_and_a_doubt_only_where_they_may_not() {
    for source in [
        "false && 1 / 0 > 0",
        "1 / 0 > 0 && false",
        "true || 1 / 0 > 0",
        "1 / 0 > 0 || resource.id == 'a' || true",
        "true ? 1 : 1 / 0",
        "true ? resource.generation : resource.generation / 0",
        "[].exists(x, 1 / 0 > x)",
        "[1, 2].exists(x, 1 / (x - 1) > 0)",
        "1.0 / 0.0 > 1.0",
        "resource.generation / 2",
        "resource.spec.nodes / 0.0 > 1.0",
        "now.getHours('Europe/Berlin') + now.getHours(resource.id) + now.getHours('-05:00')",
    ] {
        assert_eq!(fate(source), Ok(Vec::new()), "{source}");
    }
    for (source, place) in [
        ("resource.id == 'a' && 1 / 0 > 0", 23),
        ("resource.id == 'a' || true && 1 / 0 > 0", 31),
        ("resource.generation > 1 ? 1 : 1 / 0", 31),
        ("resource.generation > 1 ? 1 / 0 : 1", 27),
        ("resource.spec.list.all(x, x > 1.0 / 1.0 && 9223372036854775807 + 1 > 0)", 44),
        ("resource.spec.list.map(x, 1 / 0)", 27),
        ("resource.id == 'a' && now.getHours('Nowhere/Land') > 3", 23),
    ] {
        let told = fate(source).expect(source);
        assert_eq!(told.len(), 1, "{source}: {told:?}");
        assert!(told[0].starts_with(&format!("line 1, column {place}: ")), "{source}: {told:?}");
        assert!(told[0].ends_with("it fails on every resource on which it counts"), "{source}: {told:?}");
    }
}

#[test]
fn a_param_that_is_the_same_over_every_resource_is_known_to_those_after_it() {
    let params = |sources: &[(&str, &str)]| -> Vec<(String, String)> {
        sources.iter().map(|(name, source)| ((*name).to_owned(), (*source).to_owned())).collect()
    };
    let zero = params(&[("zero", "1 - 1"), ("half", "resource.generation / zero")]);
    let problems = Expression::compile(&zero, "half > 0").unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].to_string().starts_with("param half, line 1, column 1: a division by zero"), "{problems:?}");
    let on = params(&[("off", "false"), ("rest", "off && 1 / 0 > 0")]);
    assert_eq!(Expression::compile(&on, "rest || now > timestamp('2020-01-01T00:00:00Z')").unwrap().doubts(), []);
    let doubtful = Expression::compile(&params(&[("a", "resource.id == 'a' && 1 / 0 > 0")]), "a || 1 % 0 > 0").unwrap();
    let told: Vec<_> = doubtful.doubts().iter().map(|doubt| doubt.part.key()).collect();
    assert_eq!(told, ["params.0.expr", "result"]);
}

#[test]
fn a_field_that_the_api_is_not_known_to_serve_is_a_doubt() {
    let told = |source: &str, place: usize, field: &str, hint: &str| {
        let wanted = format!("line 1, column {place}: the API's resources are not known to have {field:?}; {hint}");
        let said = fate(source).expect(source);
        assert!(said.len() == 1 && said[0].starts_with(&wanted), "{source}: {said:?}");
    };
    told("1 + resource.generaton", 5, "generaton", "did you mean generation?");
    told("has(resource.delete_time)", 1, "delete_time", "did you mean deleted_time?");
    told("resource['createdTime'] == 'x'", 1, "createdTime", "did you mean created_time?");
    told("resource.spec.list.exists(x, x == resource.nam)", 35, "nam", "did you mean name?");
    told("false && resource.flavour == 'x'", 10, "flavour", "known are id, kind, name, href, generation, labels, spec");
    for source in
        ["resource.metadata.name", "resource.tenancy.x", "has(resource.deleted_by)", "resource.spec.generaton"]
    {
        assert_eq!(fate(source), Ok(Vec::new()), "{source}");
    }
    let params = [("a".to_owned(), "has(resource.label)".to_owned())];
    let told = Expression::compile(&params, "a || resource.nme == 'x'").unwrap();
    let told: Vec<_> = told.doubts().iter().map(|doubt| doubt.part.key()).collect();
    assert_eq!(told, ["params.0.expr", "result"]);
}

/// A clock would say little of a faster machine: what ends it is the bound of a run.
#[test]
fn looking_for_what_can_only_fail_ends() {
    let many = vec!["1"; 100].join(",");
    let product = vec!["x * y"; 20].join(" + ");
    let loops = format!("[{many}].map(x, [{many}].map(y, {product}))");
    let said = fate(&loops).unwrap_err();
    assert!(said.contains(&format!("takes more than {MAX_WORK} steps")), "{said}");
    let said = fate(&format!("resource.id == 'a' && size({loops}) > 0")).unwrap();
    assert!(said.len() == 1 && said[0].contains(&format!("takes more than {MAX_WORK} steps")), "{said:?}");
    let deep = format!("resource.generation{}", " / (resource.generation".repeat(60) + &")".repeat(60));
    assert_eq!(fate(&deep), Ok(Vec::new()));
    let wide = vec!["resource.id == 'a' && 1 / 0 > 0"; 100].join(" || ");
    assert_eq!(fate(&wide).map(|doubts| doubts.len()), Ok(100));
}
