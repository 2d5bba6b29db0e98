//! `docs/errors.md` has a heading for every error that an operator can meet, and every hint, word by word.

use std::path::{Path, PathBuf};

use crate::support::{read, root};

/// Where errors are declared, and the section of the document that is about them.
const SOURCES: [(&str, &str); 16] = [
    ("crates/beacon/src/service.rs", "The beacon"),
    ("crates/beacon/src/drift.rs", "The beacon"),
    ("crates/sentinel/src/api.rs", "The API"),
    ("crates/runtime/src/secret.rs", "The API"),
    ("crates/sentinel/src/resource.rs", "A resource"),
    ("crates/sentinel/src/expression.rs", "Expressions"),
    ("crates/sentinel/src/recording.rs", "Recordings"),
    ("crates/sentinel/src/recording/kept.rs", "Recordings"),
    ("crates/sentinel/src/explain/ask.rs", "Explanations"),
    ("crates/delivery/src/sink.rs", "The broker"),
    ("crates/delivery/src/store.rs", "The embedded broker"),
    ("crates/delivery/src/embedded.rs", "The embedded broker"),
    ("crates/runtime/src/config/problems.rs", "Configuration"),
    ("crates/runtime/src/admin.rs", "The process"),
    ("crates/runtime/src/tasks.rs", "The process"),
    ("crates/runtime/src/telemetry.rs", "The process"),
];

/// Where hints stand besides the errors' own.
const HINTS: [&str; 3] = [
    "crates/delivery/src/sink/rabbitmq/link.rs",
    "crates/delivery/src/sink/pubsub.rs",
    "crates/watchfire/src/failure.rs",
];

/// The string literals of a piece of code, with its line continuations joined.
fn literals(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut chars = code.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '/' && chars.peek() == Some(&'/') {
            chars.by_ref().find(|c| *c == '\n');
        } else if c == '"' {
            let mut text = String::new();
            while let Some(c) = chars.next().filter(|c| *c != '"') {
                match c {
                    '\\' => match chars.next() {
                        Some('\n') => while chars.next_if(|c| c.is_whitespace()).is_some() {},
                        Some(c) => text.push(c),
                        None => {}
                    },
                    c => text.push(c),
                }
            }
            found.push(text);
        }
    }
    found
}

/// The piece between two marks, each time.
fn between<'a>(code: &'a str, from: &'a str, to: &'a str) -> impl Iterator<Item = &'a str> {
    code.split(from).skip(1).filter_map(move |rest| rest.split_once(to).map(|(piece, _)| piece))
}

/// A message as a heading shows it: what differs from case to case is an ellipsis.
fn heading(message: &str) -> String {
    let mut heading = String::new();
    let mut rest = message;
    while let Some((before, after)) = rest.split_once('{') {
        heading.push_str(before);
        heading.push('…');
        rest = after.split_once('}').expect("a closing brace").1;
    }
    format!("### `{heading}{rest}`")
}

/// Text as it is compared: without line breaks, code marks and capitals.
fn squeezed(text: &str) -> String {
    text.replace('`', "").split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

#[test]
fn every_error_has_its_heading_in_its_section() {
    // The mark ends the last section as the next heading ends every other.
    let document = read("docs/errors.md") + "\n## ";
    let mut count = 0;
    for (source, title) in SOURCES {
        let begin = format!("\n## {title}\n");
        let section = between(&document, &begin, "\n## ").next();
        let section = section.unwrap_or_else(|| panic!("docs/errors.md has no section {title:?}"));
        for attribute in between(&read(source), "#[error(", ")]\n") {
            let message = literals(attribute).into_iter().next().expect("a message");
            // A list of problems is told as it is: the section is about them.
            if message == "{}" {
                continue;
            }
            let heading = heading(&message);
            assert!(section.lines().any(|line| line == heading), "docs/errors.md lacks, in {title:?}: {heading}");
            count += 1;
        }
    }
    assert!(count > 40, "{count} errors found: is the search still right?");
}

#[test]
fn every_hint_is_in_the_document() {
    let document = squeezed(&read("docs/errors.md"));
    let mut count = 0;
    let sources = SOURCES.iter().map(|(source, _)| *source).chain(HINTS);
    for source in sources {
        let code = read(source);
        let functions = between(&code, "fn hint(", "\n    }\n").chain(between(&code, "fn hint(error", "\n}\n"));
        let choices = between(&code, "let hint = match", "\n    };");
        let fields = between(&code, "hint: \"", "\",").chain(between(&code, "let hint = \"", "\";"));
        let hints =
            functions.chain(choices).flat_map(literals).chain(fields.flat_map(|text| literals(&format!("\"{text}\""))));
        // What a hint calls a key is that of the file's form; the document says how the two go together.
        let keys = |hint: String| {
            let keys = [
                ("{endpoint}", "hyperfleet_api.endpoint"),
                ("{timeout}", "hyperfleet_api.timeout"),
                ("{resource_type}", "resource_type"),
                ("{interval}", "poll_interval"),
                ("{token}", "HYPERFLEET_API_TOKEN or the token file"),
            ];
            keys.iter().fold(hint, |hint, (name, key)| hint.replace(name, key))
        };
        for hint in hints.map(keys).filter(|hint| hint.len() > 12 && hint.contains(' ')) {
            assert!(document.contains(&squeezed(&hint)), "docs/errors.md lacks, of {source}: {hint}");
            count += 1;
        }
    }
    assert!(count > 35, "{count} hints found: is the search still right?");
}

/// What each call is given, up to the bracket that closes it.
fn calls<'a>(code: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    code.split(name).skip(1).map(|rest| {
        let (mut depth, mut quoted, mut escaped) = (1, false, false);
        let end = rest.find(|c| {
            match c {
                _ if escaped => escaped = false,
                '\\' if quoted => escaped = true,
                '"' => quoted = !quoted,
                '(' if !quoted => depth += 1,
                ')' if !quoted => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        &rest[..end.unwrap_or(rest.len())]
    })
}

/// Every Rust file below a folder, but for those of tests.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_warning_of_the_log_is_in_the_document() {
    let document = squeezed(&read("docs/errors.md"));
    let mut files = Vec::new();
    for name in ["beacon", "delivery", "runtime", "sentinel", "watchfire"] {
        sources(&root().join("crates").join(name).join("src"), &mut files);
    }
    let mut count = 0;
    for file in files {
        let code = std::fs::read_to_string(&file).expect("a source");
        let (code, _) = code.split_once("#[cfg(test)]\nmod tests {").unwrap_or((&code, ""));
        // The message is what stands last.
        for message in
            ["warn!(", "error!("].iter().flat_map(|name| calls(code, name)).filter_map(|it| literals(it).pop())
        {
            assert!(document.contains(&squeezed(&message)), "docs/errors.md lacks, of {}: {message}", file.display());
            count += 1;
        }
    }
    assert!(count > 35, "{count} messages found: is the search still right?");
}

#[test]
fn messages_become_headings() {
    assert_eq!(heading("read {0:?} of {file}"), "### `read … of …`");
    assert_eq!(literals("x(\"a \\\n   b\", // \"c\"\n\"d\\\"e\")"), ["a b", "d\"e"]);
}
