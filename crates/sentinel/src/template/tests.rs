use std::fmt::Write as _;

use serde_json::json;

use super::*;

fn no_alias<'a>(_: &'a Json, _: &[String]) -> Option<Found<'a>> {
    None
}

/// The output, and the missing keys that were used.
fn render(source: &str, root: &Json) -> (Result<String, RenderError>, Vec<String>) {
    let mut missing = Vec::new();
    let template = Template::parse(source).unwrap_or_else(|error| panic!("{source}: {error}"));
    let text = template.render(&Data { root, alias: no_alias }, &mut |path| missing.push(path.to_owned()));
    (text, missing)
}

fn refusal(source: &str) -> Error {
    Template::parse(source).expect_err(source)
}

/// What the comparison with Go in `tests/all/template_go.rs` recorded; here it needs no Go.
#[test]
fn hand_written_templates_render_as_go_rendered_them() {
    let data: Json = serde_json::from_str(include_str!("../../tests/all/template_go/data.json")).unwrap();
    let answers = include_str!("../../tests/all/template_go/answers.jsonl");
    for answer in answers.lines().map(|line| serde_json::from_str::<Json>(line).unwrap()) {
        let source = answer["template"].as_str().unwrap();
        match (Template::parse(source), answer["fails"].as_str()) {
            (Err(_), fails) => assert!(fails.is_some(), "{source}"),
            (Ok(template), fails) => {
                let text = template.render(&Data { root: &data, alias: no_alias }, &mut |_| {});
                assert_eq!(text.as_deref().ok(), answer["text"].as_str(), "{source}");
                assert_eq!(fails, text.is_err().then_some("exec"), "{source}");
            }
        }
    }
}

#[test]
fn a_missing_key_is_empty_and_reported_when_it_is_used() {
    let data = json!({"here": "x", "null": null, "n": 1, "list": [null, "a"], "map": {"null": null}});
    let all = [
        ("[{{.gone}}]", "[]", vec![".gone"]),
        ("[{{.null}}]", "[]", vec![".null"]),
        ("[{{.gone.deeper.still}}]", "[]", vec![".gone.deeper.still"]),
        ("[{{.null.deeper}}]", "[]", vec![".null.deeper"]),
        ("[{{$.gone}}{{ .gone }}]", "[]", vec!["$.gone", ".gone"]),
        ("[{{(.map).gone}}]", "[]", vec!["(.map).gone"]),
        ("[{{(.gone).x}}]", "[]", vec!["(.gone).x"]),
        ("[{{$x := .gone}}{{$x}}{{$x.y}}]", "[]", vec![".gone", "$x.y"]),
        ("[{{with .map}}{{.gone}}{{end}}]", "[]", vec![".gone"]),
        (r#"[{{index .map "gone"}}]"#, "[]", vec![r#"index .map "gone""#]),
        (r#"[{{index .map "null" "x"}}]"#, "[]", vec![r#"index .map "null" "x""#]),
        ("[{{index .gone 3}}]", "[]", vec![".gone"]),
        ("[{{index .list 0}}]", "[]", vec!["index .list 0"]),
        ("[{{range .list}}{{.}}{{end}}]", "[a]", vec![".list"]),
        ("[{{range $k, $v := .map}}{{$k}}{{$v}}{{end}}]", "[null]", vec![".map"]),
        ("[{{range .gone}}x{{end}}]", "[]", vec![".gone"]),
        (r#"[{{print .gone "-" .null}}]"#, "[-]", vec![".gone", ".null"]),
        (
            r#"[{{printf "%s|%5s|%q|%v|%d" .gone .gone .gone .gone .gone}}]"#,
            r#"[|     |""||%!d(string=)]"#,
            vec![".gone"; 5],
        ),
        ("[{{println .gone}}]", "[\n]", vec![".gone"]),
        ("[{{printf .gone}}]", "[]", vec![".gone"]),
        ("[{{len .gone}}]", "[0]", vec![".gone"]),
        (r#"[{{eq .gone "x"}}{{eq "x" .gone}}{{ne .gone 1}}]"#, "[falsefalsetrue]", vec![".gone"; 3]),
        (
            r#"[{{eq .gone ""}}{{eq "" .gone}}{{eq .gone .null}}]"#,
            "[truetruetrue]",
            vec![".gone", ".gone", ".gone", ".null"],
        ),
        (r#"[{{lt .gone "a"}}{{gt "a" .gone}}]"#, "[truetrue]", vec![".gone", ".gone"]),
        ("[{{.gone | printf \"%s\"}}]", "[]", vec![".gone"]),
        ("[{{or .gone .null}}]", "[]", vec![".null"]),
        ("[{{and .gone 1}}]", "[]", vec![".gone"]),
        ("[{{index .map .gone}}]", "[]", vec![".gone", "index .map .gone"]),
    ];
    for (source, text, reported) in all {
        let (result, missing) = render(source, &data);
        assert_eq!(result.as_deref(), Ok(text), "{source}");
        assert_eq!(missing, reported, "{source}");
    }
}

#[test]
fn asking_whether_a_key_is_there_reports_nothing() {
    let data = json!({"null": null});
    let all = [
        ("{{if .gone}}a{{else if .null}}b{{else}}c{{end}}", "c"),
        ("{{if .gone.deeper}}a{{else if .null.deeper}}b{{else}}c{{end}}", "c"),
        ("{{with .gone}}a{{else with .null}}b{{else}}c{{end}}", "c"),
        ("{{with .gone}}a{{end}}", ""),
        ("{{range .gone}}a{{else}}c{{end}}", "c"),
        ("{{not .gone}}", "true"),
        (r#"{{or .gone "c"}}"#, "c"),
        ("{{eq .gone nil}}{{eq nil .null}}{{ne .gone nil}}", "truetruefalse"),
        ("{{$x := .gone}}{{if $x}}a{{end}}", ""),
        ("{{if and .gone (eq .gone.kind 1)}}a{{end}}", ""),
    ];
    for (source, text) in all {
        assert_eq!(render(source, &data), (Ok(text.to_owned()), vec![]), "{source}");
    }
}

#[test]
fn null_inside_a_printed_list_or_object_prints_as_in_go() {
    let data = json!({"a": [1, null], "b": null});
    let all = [("{{.}}", "map[a:[1 <nil>] b:<nil>]"), (r#"{{printf "%d" .a}}"#, "[1 <nil>]")];
    for (source, text) in all {
        assert_eq!(render(source, &data), (Ok(text.to_owned()), vec![]), "{source}");
    }
    assert_eq!(render(r#"{{printf "%#v" .a}}"#, &data).0.unwrap(), "[]interface {}{1, interface {}(nil)}");
}

#[test]
fn an_alias_is_asked_for_absent_paths_of_the_root_only() {
    fn alias<'a>(root: &'a Json, path: &[String]) -> Option<Found<'a>> {
        match path.join(".").as_str() {
            "metadata.name" => root.get("name").map(Found::Json),
            "phase" => Some(Found::Text("Ready")),
            "nothing" => Some(Found::Json(&Json::Null)),
            _ => None,
        }
    }
    let root = json!({"name": "a", "metadata": {"x": 1}, "null": {"metadata": null}, "list": [{"x": 1}]});
    let all = [
        ("{{.metadata.name}}{{$.metadata.name}}{{(.).phase}}", "aaReady", 0),
        ("{{$r := .}}{{$r.metadata.name}}{{with $}}{{.phase}}{{end}}", "aReady", 0),
        ("{{.nothing}}{{.other}}", "", 2),
        ("{{with .metadata}}{{.name}}{{.phase}}{{end}}", "", 2),
        ("{{range .list}}{{.phase}}{{$.phase}}{{end}}", "Ready", 1),
        ("{{.null.metadata}}", "", 1),
    ];
    for (source, text, missing) in all {
        let mut count = 0;
        let rendered = Template::parse(source).unwrap().render(&Data { root: &root, alias }, &mut |_| count += 1);
        assert_eq!((rendered.as_deref(), count), (Ok(text), missing), "{source}");
    }
}

#[test]
fn a_refusal_shows_the_place_and_the_token() {
    let all = [
        ("{{.a", 1, 5, "the end", "unclosed action"),
        ("a\nb {{.x}} {{foo .y}}", 2, 12, "\"foo\"", "the function foo is not supported"),
        ("日本{{ html .x }}", 1, 6, "\"html\"", "the function html is not supported; supported are"),
        ("{{.a-b}}", 1, 3, "\".a-\"", "bad character '-'"),
        ("{{\n  if .a }}x", 2, 3, "\"if\"", "it has no {{end}}"),
        ("{{with .a}}x{{else}}y", 1, 3, "\"with\"", "it has no {{end}}"),
        ("{{range .a}}x", 1, 3, "\"range\"", "it has no {{end}}"),
        ("{{if .a}}{{else}}{{else}}{{end}}", 1, 20, "\"else\"", "only end may follow"),
        ("x{{end}}", 1, 4, "\"end\"", "no block is open"),
        ("x{{else}}", 1, 4, "\"else\"", "no block is open"),
        ("{{break}}", 1, 3, "\"break\"", "outside of any range"),
        ("{{continue}}", 1, 3, "\"continue\"", "outside of any range"),
        ("{{template \"x\"}}", 1, 3, "\"template\"", "the action template is not supported"),
        ("{{printf \"%5x\" 1}}", 1, 10, "\"\\\"%5x\\\"\"", "the verb %x is not supported"),
        ("{{printf \"%[1]*.[2]t\" 1}}", 1, 10, "\"\\\"%[1]*.[2]t\\\"\"", "the verb %t is not supported"),
        ("{{$x}}", 1, 3, "\"$x\"", "undefined variable"),
        ("{{$x = 1}}", 1, 3, "\"$x\"", "undefined variable $x: declare it with :="),
        ("{{range $i, $x = .a}}{{end}}", 1, 13, "\"$x\"", "undefined variable $i"),
        ("{{nil}}", 1, 3, "\"nil\"", "nil is not a command"),
        ("{{.a 1}}", 1, 6, "\"1\"", "takes no argument"),
        ("{{1 | .a}}", 1, 7, "\".a\"", "can't be given a piped value"),
        ("{{1 | 2}}", 1, 7, "\"2\"", "can't be piped"),
        ("{{len}}", 1, 3, "\"len\"", "wrong number of arguments for len: want 1, got 0"),
        ("{{eq 1}}", 1, 3, "\"eq\"", "want at least 2, got 1"),
        ("{{print len}}", 1, 9, "\"len\"", "want 1, got 0"),
        ("{{if}}{{end}}", 1, 5, "\"}}\"", "missing value for if"),
        ("{{()}}", 1, 4, "\")\"", "missing value for parenthesized pipeline"),
        ("{{(1}}", 1, 5, "the end", "unclosed left paren"),
        ("{{1)}}", 1, 4, "\")\"", "unexpected right paren"),
        ("{{1 2i}}", 1, 5, "\"2i\"", "a complex number is not supported"),
        ("{{0x}}", 1, 3, "\"0x\"", "illegal number syntax"),
        ("{{9223372036854775808}}", 1, 3, "\"9223372036854775808\"", "integer overflow"),
        ("{{'ab'}}", 1, 3, "\"'ab'\"", "malformed character constant"),
        ("{{\"\\xff\"}}", 1, 3, "\"\\\"\\\\xff\\\"\"", "not UTF-8"),
        ("{{\"\\q\"}}", 1, 3, "\"\\\"\\\\q\\\"\"", "invalid escape"),
        ("{{\"a}}", 1, 3, "\"\\\"a}}\"", "unterminated quoted string"),
        ("{{`a}}", 1, 3, "\"`\"", "unterminated raw quoted string"),
        ("{{'a", 1, 3, "\"'a\"", "unterminated character constant"),
        ("{{/* a", 1, 1, "\"{{/*\"", "unclosed comment"),
        ("{{/* a */ b}}", 1, 1, "\"{{/* a */\"", "comment ends before closing delimiter"),
        ("{{\"a\".b}}", 1, 6, "\".b\"", "unexpected . after term"),
        ("{{$a, $b := .x}}", 1, 5, "\",\"", "too many declarations in command"),
        ("{{range $a, $b, $c := .x}}{{end}}", 1, 15, "\",\"", "two variables at most"),
        ("{{range $a, .b}}{{end}}", 1, 13, "\".b\"", "range can only initialize variables"),
        ("{{\"a\\\n\"}}", 1, 3, "\"\\\"a\\\\\\n\\\"\"", "invalid escape"),
        ("{{.5.3}}", 1, 3, "\".5.3\"", "illegal number syntax"),
        ("{{if .a}}{{else end}}{{end}}", 1, 17, "\"end\"", "unexpected token in else"),
        ("{{if | 1}}{{end}}", 1, 6, "\"|\"", "empty command"),
        ("{{.a ? .b}}", 1, 6, "\"?\"", "unexpected '?' in action"),
        ("{{.a , .b}}", 1, 6, "\",\"", "unexpected token in operand"),
        ("{{.a : .b}}", 1, 6, "\":\"", "expected :="),
    ];
    for (source, line, column, token, why) in all {
        let error = refusal(source);
        let message = error.to_string();
        assert_eq!((error.line, error.column, error.token.as_str()), (line, column, token), "{source}: {message}");
        assert!(message.contains(why), "{source}: {message}");
        assert!(message.starts_with(&format!("line {line}, column {column}, at {token}: ")), "{message}");
    }
}

#[test]
fn a_refusal_of_what_is_outside_names_what_is_supported() {
    let message = refusal("{{urlquery .a}}").to_string();
    for name in ["if", "with", "range", "and", "or", "not", "eq", "index", "len", "print", "printf", "println", "%q"] {
        assert!(message.contains(&format!(" {name}")), "{name}: {message}");
    }
    assert!(matches!(refusal("{{urlquery .a}}").reason, Reason::Unsupported(_)));
    assert!(matches!(refusal("{{nil}}").reason, Reason::AlwaysFails(_)));
}

#[test]
fn a_long_token_is_cut() {
    let error = refusal(&format!("{{{{{}}}}}", "x".repeat(1000)));
    assert_eq!(error.token, format!("{:?}", "x".repeat(40)));
}

#[test]
fn a_failed_run_shows_its_place() {
    let data = json!({"s": "text", "n": 1, "list": [1]});
    let all = [
        ("a\n{{index .list 5}}", 2, 3, "index: index out of range: 5"),
        ("{{index .list -1}}", 1, 3, "index out of range: -1"),
        ("{{ .s.x }}", 1, 4, "can't evaluate field x in type string"),
        ("{{.n | eq \"a\"}}", 1, 8, "eq: incompatible types for comparison: string and int64"),
        ("{{lt true false}}", 1, 3, "lt: invalid type for comparison"),
        ("{{eq .list .list}}", 1, 3, "non-comparable type []interface {}"),
        ("{{range .s}}{{end}}", 1, 9, "range can't iterate over a string"),
        ("{{range $i, $v := 3}}{{end}}", 1, 9, "more than one variable"),
        ("{{len 3}}", 1, 3, "len: len of type int"),
        ("{{printf .n}}", 1, 3, "printf: wrong type for the format; expected string; got int64"),
        ("{{printf (print \"%x\") 1}}", 1, 3, "the verb %x is not supported"),
        ("{{if false}}{{$x := 1}}{{else}}{{$x}}{{end}}", 1, 34, "undefined variable: $x"),
        ("{{if false}}{{$x := 1}}{{else}}{{$x = 1}}{{end}}", 1, 34, "undefined variable: $x"),
    ];
    for (source, line, column, why) in all {
        let error = render(source, &data).0.expect_err(source);
        assert_eq!((error.line, error.column), (line, column), "{source}: {error}");
        assert!(error.what.contains(why), "{source}: {error}");
    }
}

#[test]
fn nesting_is_bounded_when_parsed() {
    let blocks = |n: usize| format!("{}x{}", "{{if true}}".repeat(n), "{{end}}".repeat(n));
    assert_eq!(render(&blocks(MAX_NESTING), &json!({})).0.unwrap(), "x");
    let error = refusal(&blocks(MAX_NESTING + 1));
    assert!(matches!(error.reason, Reason::TooLarge(_)), "{error}");
    assert!(error.to_string().contains("nest deeper than 64"), "{error}");

    let parens = |n: usize| format!("{{{{{}1{}}}}}", "(".repeat(n), ")".repeat(n));
    assert_eq!(render(&parens(MAX_NESTING), &json!({})).0.unwrap(), "1");
    for n in [MAX_NESTING + 1, 20_000] {
        assert!(matches!(refusal(&parens(n)).reason, Reason::TooLarge(_)), "{n}");
    }
    for open in ["{{if .a}}", "{{with .a}}", "{{range .a}}", "{{if .a}}{{else}}"] {
        assert!(matches!(refusal(&open.repeat(3_000)).reason, Reason::TooLarge(_)), "{open}");
    }
    // Nesting that has ended does not count.
    let siblings = "{{if (true)}}{{range .a}}{{end}}{{else if true}}{{with (1)}}{{end}}{{end}}".repeat(200);
    assert_eq!(render(&siblings, &json!({})).0.unwrap(), "");
    let chain = format!("{{{{if false}}}}{}{{{{end}}}}", "{{else if (false)}}".repeat(3_000));
    assert_eq!(render(&chain, &json!({})).0.unwrap(), "");
}

#[test]
fn the_deepest_template_runs_on_a_small_stack() {
    let source = format!(
        "{}{{{{{}1{}}}}}{}",
        "{{range $.list}}".repeat(32),
        "(print ".repeat(32),
        ")".repeat(32),
        "{{end}}".repeat(32)
    );
    let thread = std::thread::Builder::new().stack_size(1024 * 1024);
    let text = thread.spawn(move || render(&source, &json!({"list": [1]})).0.unwrap()).unwrap().join().unwrap();
    assert_eq!(text, "1");
}

#[test]
fn size_is_bounded_when_parsed() {
    assert_eq!(render(&"x".repeat(MAX_SOURCE), &json!({})).0.unwrap().len(), MAX_SOURCE);
    let error = refusal(&"x".repeat(MAX_SOURCE + 1));
    assert_eq!(error.reason, Reason::TooLarge("the template is larger than 65536 bytes".into()));
}

#[test]
fn output_is_bounded() {
    let data = json!({"s": "x".repeat(MAX_OUTPUT), "list": ["y".repeat(600_000), "y".repeat(600_000)]});
    assert_eq!(render("{{.s}}", &data).0.unwrap().len(), MAX_OUTPUT);
    assert_eq!(render("{{print .s}}", &data).0.unwrap().len(), MAX_OUTPUT);
    assert_eq!(render("{{printf \"%-1048576d\" 1}}", &data).0.unwrap().len(), MAX_OUTPUT);
    for source in [
        "{{.s}}!",
        "!{{.s}}",
        "{{.s}}{{.s}}",
        "{{len (print .s 1)}}",
        "{{.list}}",
        "{{printf \"%2000000d\" 1}}",
        "{{len (printf \"%s!%d!\" .s 1)}}",
        "{{printf \"%-9000000s\" 1}}",
        "{{printf \"%.9000000f\" 1.0}}",
        "{{printf \"%9000000v\" .list}}",
    ] {
        let error = render(source, &data).0.expect_err(source);
        assert!(error.what.contains("larger than 1048576 bytes"), "{source}: {error}");
    }
}

#[test]
fn work_is_bounded() {
    let map: serde_json::Map<_, _> = (0..10_000).map(|i| (i.to_string(), json!(i))).collect();
    let data = json!({"n": i64::MAX, "map": map, "s": "x".repeat(500_000), "list": vec![0; 1000], "big": vec!["y"; 100_000],
            "long": {"x".repeat(100_000): 1}});
    for source in [
        "{{range .n}}{{end}}",
        "{{range 9223372036854775807}}{{continue}}{{end}}",
        "{{range .list}}{{range $.list}}{{range $.list}}{{end}}{{end}}{{end}}",
        "{{range .list}}{{if eq $.s $.s}}{{end}}{{end}}",
        "{{range .list}}{{if lt $.s $.s}}{{end}}{{end}}",
        "{{range .list}}{{if le $.s $.s}}{{end}}{{end}}",
        "{{range .list}}{{if gt $.s $.s}}{{end}}{{end}}",
        "{{range .list}}{{if ge $.s $.s}}{{end}}{{end}}",
        "{{range .list}}{{if index $.map $.s}}{{end}}{{end}}",
        "{{range .list}}{{range $.long}}{{break}}{{end}}{{end}}",
        "{{range .list}}{{$x := print $.s}}{{end}}",
        "{{range .list}}{{range $.map}}{{break}}{{end}}{{end}}",
        "{{range .list}}{{$x := printf \"%100000d\" 1}}{{end}}",
        "{{$x := \"x\"}}{{range .n}}{{$x = print $x $x}}{{end}}",
        "{{range .list}}{{range $.list}}{{if 1}}{{if 1}}{{if 1}}{{if 1}}{{end}}{{end}}{{end}}{{end}}{{end}}{{end}}",
    ] {
        let error = render(source, &data).0.expect_err(source);
        assert!(error.what.contains("more than") || error.what.contains("larger than"), "{source}: {error}");
    }
    assert_eq!(render("{{range .list}}{{range $.list}}{{end}}{{end}}", &data).0.unwrap(), "");
    // One step for the number, one for each round.
    assert_eq!(render("{{range 4194303}}{{end}}", &data).0.unwrap(), "");
    assert!(render("{{range 4194304}}{{end}}", &data).0.is_err());
}

#[test]
fn data_nested_deeper_than_json_can_be_is_an_error_not_an_overflow() {
    let nested = |n: usize| {
        (0..n).fold(json!(1), |inner, i| match i % 2 {
            0 => Json::Array(vec![inner]),
            _ => Json::Object([("a".to_owned(), inner)].into_iter().collect()),
        })
    };
    assert!(render("{{.}}", &nested(200)).0.is_ok());
    assert!(render("{{.}}", &nested(201)).0.is_err());
    let abyss = nested(20_000);
    assert!(render("{{.}}", &abyss).0.is_err());
    // Dropping it would recurse as deep.
    std::mem::forget(abyss);
}

#[test]
fn paths_are_those_read_from_the_root() {
    let all = [
        ("{{.a.b}}-{{$.c}}", Some("a.b c")),
        ("{{if .a}}{{.b}}{{else if .c}}{{.d}}{{else}}{{.e}}{{end}}", Some("a b c d e")),
        ("{{with .a}}{{.b}}{{.}}{{$.c}}{{else}}{{.d}}{{end}}", Some("a c d")),
        ("{{range .a}}{{.b}}{{.}}{{break}}{{continue}}{{else}}{{.d}}{{end}}", Some("a d")),
        ("{{with .a}}{{with .b}}{{.c}}{{else}}{{.d}}{{end}}{{if .e}}{{.f}}{{end}}{{end}}", Some("a")),
        ("{{print .a (index .b 1) (.c)}}{{.d | printf .e .f}}", Some("a b c d e f")),
        ("{{$x := .a}}{{$x}}{{$x.b}}{{(.c.d).e}}{{1}}", Some("a c.d")),
        ("{{/* nothing */}}text", Some("")),
        ("{{.}}", None),
        ("{{$}}", None),
        ("{{print .}}", None),
        ("{{print 1 | printf \"%v\" .}}", None),
        ("{{(.).a}}", None),
        ("{{($).a}}", None),
        ("{{with $}}{{.a}}{{end}}", None),
        ("{{with .a}}{{$}}{{end}}", None),
        ("{{range .}}{{.a}}{{end}}", None),
        ("{{range .a}}{{else}}{{.}}{{end}}", None),
        ("{{range .a}}{{$}}{{end}}", None),
        ("{{with .a}}{{else}}{{.}}{{end}}", None),
        ("{{if .a}}{{.}}{{end}}", None),
        ("{{if .a}}{{else if .}}{{end}}", None),
        ("{{$x := .}}{{$x.a}}", None),
        ("{{if and .a $}}{{end}}", None),
    ];
    for (source, paths) in all {
        let mut read = String::new();
        let complete = Template::parse(source).unwrap().paths(&mut |path| {
            write!(read, "{} ", path.join(".")).unwrap();
        });
        assert_eq!(complete.then_some(read.trim()), paths, "{source}");
    }
}

proptest::proptest! {
    #[test]
    fn any_text_is_parsed_or_refused_and_never_panics(source in r#"(\{\{|\}\}|[ -~]|é|\n| -|if |end|range |print(f|ln)? |"%v"|\.a|\$x|:=|\(|\))*"#) {
        if let Ok(template) = Template::parse(&source) {
            let root = json!({"a": [1, "x", {"b": null}]});
            let text = template.render(&Data { root: &root, alias: no_alias }, &mut |_| {});
            proptest::prop_assert!(text.is_ok() || text.is_err_and(|error| error.line > 0 && error.column > 0));
        }
    }
}
