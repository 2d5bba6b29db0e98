//! Our templates against Go's own `text/template`: the same result on the same data, failures included.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests; what was compared and what was skipped is printed"
)]

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value as Json, json};
use watchfire_sentinel::template::{Data, Reason, RenderError, Template};

/// Written by hand: one line for each thing a template can do, and for each way to get it wrong.
const CASES: &str = include_str!("template_go/cases.txt");

/// How many templates are made from seeds, once as they are and once damaged.
const GENERATED: u64 = 3_000;

/// What Go made of them, for the tests beside the code, which run without Go.
const ANSWERS: &str = include_str!("template_go/answers.jsonl");

fn data() -> Json {
    serde_json::from_str(include_str!("template_go/data.json")).unwrap()
}

/// What became of a template: its text, or at which step it failed and why.
#[derive(Debug)]
enum Outcome {
    Text(String),
    Refused(Reason),
    Failed(RenderError),
}

fn ours(template: &str, data: &Json) -> (Outcome, Vec<String>) {
    let mut missing = Vec::new();
    let outcome = match Template::parse(template) {
        Err(error) => Outcome::Refused(error.reason),
        Ok(template) => {
            let data = Data { root: data, alias: |_, _| None };
            match template.render(&data, &mut |path| missing.push(path.to_owned())) {
                Ok(text) => Outcome::Text(text),
                Err(error) => Outcome::Failed(error),
            }
        }
    };
    (outcome, missing)
}

/// Go's answer to each case, or `None` without Go.
fn go(test: &str, cases: &[(String, Outcome, Vec<String>)], data: &Json) -> Option<Vec<Json>> {
    let oracle = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracle/template.go");
    let child = Command::new("go")
        .args(["run", oracle])
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            skip(test, &format!("go: {error}: install Go 1.24 or later and put it on the PATH"));
            return None;
        }
    };
    let mut stdin = child.stdin.take().unwrap();
    let line = |template: &String| json!({"template": template, "data": data}).to_string();
    let lines = cases.iter().map(|(template, ..)| line(template)).collect::<Vec<_>>().join("\n");
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "the oracle failed");
    let answers: Vec<Json> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), cases.len());
    Some(answers)
}

fn skip(test: &str, why: &str) {
    let line = format!("SKIPPED {test}: {why}\n");
    print!("{line}");
    if let Some(path) = std::env::var_os("WATCHFIRE_TEST_SKIPS") {
        std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap().write_all(line.as_bytes()).unwrap();
    }
    assert_ne!(std::env::var("WATCHFIRE_TEST_REQUIRE").as_deref(), Ok("all"), "{line}");
}

/// Whether the two must agree. Not where a missing key was used, nor where we refuse what Go only fails on when it is
/// reached, or what is outside of what we support: see the list in `template`'s documentation.
fn is_comparable(outcome: &Outcome, missing: &[String], go: &Json) -> bool {
    let missing_inside = go.get("exec").and_then(Json::as_str).is_some_and(|e| e.contains("index of"));
    let refused =
        matches!(outcome, Outcome::Refused(Reason::AlwaysFails(_) | Reason::Unsupported(_) | Reason::TooLarge(_)));
    missing.is_empty() && !refused && !(missing_inside && matches!(outcome, Outcome::Text(_)))
}

fn agree(outcome: &Outcome, go: &Json) -> bool {
    let text = go.get("ok").and_then(Json::as_str);
    match outcome {
        Outcome::Text(ours) => text == Some(ours),
        Outcome::Failed(_) => go.get("exec").is_some(),
        Outcome::Refused(_) => text.is_none(),
    }
}

fn is_bounded(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failed(error) if error.what.contains("more than") || error.what.contains("larger than"))
}

/// The comparable templates with Go's answers, one a line; `None` without Go.
fn compare(test: &str, templates: Vec<String>) -> Option<String> {
    let data = data();
    let rendered = templates.into_iter().map(|template| {
        let (outcome, missing) = ours(&template, &data);
        (template, outcome, missing)
    });
    // What meets our bounds would keep Go busy for a very long time.
    let cases: Vec<_> = rendered.filter(|(_, outcome, _)| !is_bounded(outcome)).collect();
    let answers = go(test, &cases, &data)?;
    let (mut report, mut answered) = (String::new(), String::new());
    let (mut texts, mut failures, mut refusals) = (0, 0, 0);
    for ((template, outcome, missing), answer) in cases.iter().zip(&answers) {
        if !is_comparable(outcome, missing, answer) {
            continue;
        }
        let line = match answer.get("ok") {
            Some(output) => json!({"template": template, "text": output}),
            None if answer.get("parse").is_some() => json!({"template": template, "fails": "parse"}),
            None => json!({"template": template, "fails": "exec"}),
        };
        writeln!(answered, "{line}").unwrap();
        match outcome {
            outcome if !agree(outcome, answer) => {
                write!(report, "{template:?}\nours: {outcome:?}\n  go: {answer}\n").unwrap();
            }
            Outcome::Text(_) => texts += 1,
            Outcome::Failed(_) => failures += 1,
            Outcome::Refused(_) => refusals += 1,
        }
    }
    println!("{test}: {texts} texts, {failures} failures and {refusals} refusals as in Go, of {}", cases.len());
    assert!(report.is_empty(), "{report}");
    assert!(texts > cases.len() / 10 && failures + refusals > cases.len() / 10, "the cases prove too little");
    Some(answered)
}

#[test]
fn hand_written_templates_render_as_in_go() {
    let cases = CASES.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    // Line breaks and other control characters are written as escapes in the file.
    let cases = cases.map(|line| line.replace("\\n;", "\n").replace("\\t;", "\t").replace("\\r;", "\r")).collect();
    let Some(answers) = compare("hand_written_templates_render_as_in_go", cases) else { return };
    if std::env::var_os("WATCHFIRE_TEST_RECORD").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/template_go/answers.jsonl");
        std::fs::write(path, answers).unwrap();
    } else {
        assert!(answers == ANSWERS, "the answers on file are not Go's: run this test with WATCHFIRE_TEST_RECORD=1");
    }
}

#[test]
fn generated_templates_render_as_in_go() {
    let cases = (0..GENERATED).map(|seed| Generator::new(seed).template()).collect();
    compare("generated_templates_render_as_in_go", cases);
}

#[test]
fn damaged_templates_are_accepted_and_refused_as_in_go() {
    let cases = (GENERATED..2 * GENERATED).map(|seed| Generator::new(seed).damaged()).collect();
    compare("damaged_templates_are_accepted_and_refused_as_in_go", cases);
}

/// Makes templates from a seed; most are valid, and most of those succeed on [`data`].
struct Generator {
    state: u64,
    variables: Vec<&'static str>,
    ranges: usize,
    at_root: bool,
}

impl Generator {
    fn new(seed: u64) -> Self {
        let mut generator = Generator {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            variables: vec![],
            ranges: 0,
            at_root: true,
        };
        generator.below(2);
        generator.below(2);
        generator
    }

    fn below(&mut self, n: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        usize::try_from(self.state >> 33).unwrap() % n
    }

    fn pick(&mut self, from: &[&'static str]) -> &'static str {
        let i = self.below(from.len());
        from[i]
    }

    fn template(&mut self) -> String {
        self.list(3)
    }

    fn damaged(&mut self) -> String {
        let mut text: Vec<char> = self.template().chars().collect();
        for _ in 0..=self.below(2) {
            let at = self.below(text.len().max(1));
            match self.below(3) {
                0 if !text.is_empty() => {
                    text.remove(at.min(text.len() - 1));
                }
                1 => {
                    let extra = self.pick(&[
                        "{{", "}}", " ", "-", ".", "$", "(", ")", "|", ":=", "=", "\"", "`", "'", "e", "0x", ",", "\n",
                        "é", "end", "/*",
                    ]);
                    let at = at.min(text.len());
                    text.splice(at..at, extra.chars());
                }
                _ => {
                    let to = (at + self.below(6)).min(text.len());
                    text.drain(at.min(to)..to);
                }
            }
        }
        text.into_iter().collect()
    }

    fn list(&mut self, depth: usize) -> String {
        let scope = self.variables.len();
        let list = (0..=self.below(3)).map(|_| self.node(depth)).collect();
        self.variables.truncate(scope);
        list
    }

    fn action(&mut self, inside: &str) -> String {
        let open = self.pick(&["{{", "{{", "{{", "{{ ", "{{- ", "{{\n"]);
        let close = self.pick(&["}}", "}}", "}}", " }}", " -}}", "\t}}", "  -}}"]);
        format!("{open}{inside}{close}")
    }

    fn node(&mut self, depth: usize) -> String {
        let kind = if depth == 0 { self.below(5) } else { self.below(11) };
        match kind {
            0 => self.pick(&[" ", "text", "\n", " a b ", "\t-\n", "日本", "}}", "{ ", "x\r\n"]).to_owned(),
            1 => {
                let comment = self.pick(&["/**/", "/* a }} comment */", "/*\n*/"]);
                let open = self.pick(&["{{", "{{- "]);
                let close = self.pick(&["}}", " -}}"]);
                format!("{open}{comment}{close}")
            }
            2 | 3 => {
                let pipe = self.pipeline(2);
                self.action(&pipe)
            }
            4 => {
                let pipe = self.pipeline(1);
                let name = self.pick(&["$x", "$y", "$long_name", "$é"]);
                let assign = if self.variables.contains(&name) { self.pick(&[":=", " = "]) } else { ":=" };
                self.variables.push(name);
                self.action(&format!("{name}{assign}{pipe}"))
            }
            5 if self.ranges > 0 => {
                let word = self.pick(&["break", "continue"]);
                self.action(word)
            }
            5..=7 => self.choice("if", depth),
            8 => self.choice("with", depth),
            _ => self.range(depth),
        }
    }

    fn choice(&mut self, word: &'static str, depth: usize) -> String {
        let scope = self.variables.len();
        let root = self.at_root;
        let mut pipe = self.pipeline(1);
        if self.below(4) == 0 {
            self.variables.push("$c");
            pipe = format!("$c := {pipe}");
        }
        let mut text = self.action(&format!("{word} {pipe}"));
        self.at_root = root && word == "if";
        text += &self.list(depth - 1);
        self.at_root = root;
        if self.below(3) == 0 {
            let pipe = self.pipeline(1);
            text += &self.action(&format!("else {word} {pipe}"));
            text += &self.list(depth - 1);
        }
        if self.below(2) == 0 {
            text += &self.action("else");
            text += &self.list(depth - 1);
        }
        self.variables.truncate(scope);
        text + &self.action("end")
    }

    fn range(&mut self, depth: usize) -> String {
        let scope = self.variables.len();
        let over = if self.at_root {
            self.pick(&[
                ".list",
                ".numbers",
                ".labels",
                ".objects",
                ".mixed",
                ".nothing",
                ".none",
                ".generation",
                "3",
                "0",
                ".deep",
                "$.objects",
            ])
        } else {
            self.pick(&["$.list", "$.numbers", "$.labels", "$.objects", "$.nothing", "2", "."])
        };
        let mut text = match self.below(4) {
            0 => {
                self.variables.push("$v");
                self.action(&format!("range $v := {over}"))
            }
            1 => {
                self.variables.extend(["$i", "$v"]);
                self.action(&format!("range $i, $v := {over}"))
            }
            2 if self.variables.contains(&"$x") => self.action(&format!("range $x = {over}")),
            _ => self.action(&format!("range {over}")),
        };
        let root = std::mem::replace(&mut self.at_root, false);
        self.ranges += 1;
        text += &self.list(depth - 1);
        self.ranges -= 1;
        self.at_root = root;
        if self.below(3) == 0 {
            text += &self.action("else");
            text += &self.list(depth - 1);
        }
        self.variables.truncate(scope);
        text + &self.action("end")
    }

    fn pipeline(&mut self, depth: usize) -> String {
        let mut text = if self.below(2) == 0 { self.operand(depth) } else { self.call(depth, false) };
        for _ in 0..self.below(3) / 2 {
            let stage = self.call(depth, true);
            text = format!("{text}{}{stage}", self.pick(&[" | ", "|", " |\n"]));
        }
        text
    }

    fn call(&mut self, depth: usize, piped: bool) -> String {
        let typed = !piped || self.below(20) == 0;
        let function = if typed {
            self.pick(&[
                "and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "index", "len", "print", "println", "printf",
                "printf", "printf", "eq", "index",
            ])
        } else {
            self.pick(&["print", "printf", "println", "and", "or", "not"])
        };
        let mut args = Vec::new();
        let given = usize::from(piped);
        match function {
            "printf" => {
                args.push(self.format());
                for _ in 0..=self.below(2) {
                    args.push(self.operand(depth));
                }
            }
            "not" | "len" if piped => {}
            "len" if self.below(10) > 0 => {
                args.push(
                    self.pick(&["$.id", "$.list", "$.labels", "\"é\"", "$.none", "$.deep.a", "(print 1)"]).to_owned(),
                );
            }
            "not" | "len" => args.push(self.operand(depth)),
            "index" if !piped && self.below(20) > 0 => args.extend(
                self.pick(&[
                    "$.labels \"region\"",
                    "$.list 1",
                    "$.objects 2 \"n\"",
                    "$.mixed 4 `k` 0",
                    "$.list 3",
                    "$.id 0",
                    "$.mixed 1.5",
                ])
                .split(' ')
                .map(str::to_owned),
            ),
            "eq" | "ne" | "lt" | "le" | "gt" | "ge" => {
                // Of one type more often than not.
                let family: &[&str] = match self.below(3) {
                    0 => &["$.id", "\"cls-123\"", "`b`", "$.empty", "(index $.list 0)"],
                    1 => &["$.generation", "3", "-17", "$.negative", "(len $.list)", "(index $.id 0)", "'c'"],
                    _ => &["$.ratio", "0.25", "2.0", "$.whole", "$.large"],
                };
                let count = if function == "eq" { 2 + self.below(2) } else { 2 };
                for _ in given..count {
                    args.push(if self.below(20) == 0 { self.operand(depth) } else { self.pick(family).to_owned() });
                }
            }
            _ => {
                for _ in 0..=self.below(3) {
                    args.push(self.operand(depth));
                }
            }
        }
        std::iter::once(function.to_owned()).chain(args).collect::<Vec<_>>().join(self.pick(&[" ", "  ", "\n "]))
    }

    fn format(&mut self) -> String {
        let mut text = String::new();
        for _ in 0..=self.below(2) {
            text += self.pick(&["", "a", "%%", "é "]);
            text += "%";
            for _ in 0..self.below(3) {
                text += self.pick(&["", "#", "0", "+", "-", " "]);
            }
            text += self.pick(&["", "", "", "3", "12", "*", "[1]", "[2]"]);
            text += self.pick(&["", "", ".", ".0", ".1", ".3", ".25", ".*"]);
            text += self.pick(&["s", "d", "v", "q", "f", "v", "s"]);
        }
        format!("`{text}`")
    }

    fn operand(&mut self, depth: usize) -> String {
        match self.below(if depth == 0 { 8 } else { 10 }) {
            0 | 1 if self.at_root => self
                .pick(&[".id", ".generation", ".yes", ".deep.a.b.c.d", ".ratio", ".labels.region", ".list", "."])
                .to_owned(),
            0..=3 => self
                .pick(&[
                    "$.id",
                    "$.kind",
                    "$.generation",
                    "$.zero",
                    "$.negative",
                    "$.big",
                    "$.beyond",
                    "$.ratio",
                    "$.whole",
                    "$.large",
                    "$.small",
                    "$.third",
                    "$.yes",
                    "$.no",
                    "$.empty",
                    "$.text",
                    "$.unicode",
                    "$.raw",
                    "$.labels",
                    "$.metadata.labels.region",
                    "$.list",
                    "$.numbers",
                    "$.mixed",
                    "$.objects",
                    "$.nothing",
                    "$.none",
                    "$.deep",
                    "$.deep.a.b",
                    "$.absent",
                    "$.deep.absent.x",
                    ".",
                    "$",
                ])
                .to_owned(),
            4 if !self.variables.is_empty() => {
                let i = self.below(self.variables.len());
                self.variables[i].to_owned()
            }
            8 => {
                let pipe = self.pipeline(depth - 1);
                format!("({pipe})")
            }
            9 => format!("({})", self.call(depth - 1, false)),
            _ => self
                .pick(&[
                    "1",
                    "0",
                    "-3",
                    "0x1F",
                    "017",
                    "0b101",
                    "1_000",
                    "1.5",
                    "1e3",
                    "-0.0",
                    ".5",
                    "1e21",
                    "'a'",
                    "'\\n'",
                    "'é'",
                    "\"s\"",
                    "\"\\u00e9\\x41\\101\\t\"",
                    "`raw\\n`",
                    "true",
                    "false",
                    "nil",
                    "\"\"",
                    "0",
                    "1e-7",
                    "123456789.0",
                    "0x1p-2",
                    "print",
                    "100000",
                    "2",
                ])
                .to_owned(),
        }
    }
}
