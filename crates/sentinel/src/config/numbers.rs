//! Keeps the numbers of `message_data` as they were written, where YAML has many spellings of one: `1.10`, `0x10`,
//! `1e3`.
//!
//! A version that somebody forgot to quote is read best as it was typed. No YAML library keeps it, so this goes by
//! lines.

use std::collections::{BTreeMap, BTreeSet};

use super::comments::beside;

/// What stands above them.
const DATA: &str = "message_data.";

/// Returns `new` with the spellings of `old`, and a note for each number that is spelt as nothing in `old` is. Each
/// text comes with the key of each of its lines.
pub(super) fn keep(
    (old, old_keys): (&str, &BTreeMap<u64, String>),
    (new, new_keys): (&str, &BTreeMap<u64, String>),
) -> (String, Vec<String>) {
    let spelt: BTreeMap<_, _> = numbers(old, old_keys).filter_map(|(_, key, number)| Some((key?, number?))).collect();
    let separates = |c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']' | '{' | '}');
    let anywhere: BTreeSet<_> = old.split(separates).collect();
    let (mut lines, mut notes) = (Vec::new(), Vec::new());
    for (line, key, number) in numbers(new, new_keys) {
        let (Some(key), Some(number)) = (key, number) else {
            lines.push(line.to_owned());
            continue;
        };
        let was = spelt.get(key).copied().unwrap_or(number);
        if !anywhere.contains(was) {
            notes.push(format!("{key} is written as {was}: the same number, spelt otherwise"));
        }
        lines.push(format!("{}{was}", line.strip_suffix(number).unwrap_or(line)));
    }
    (lines.join("\n") + "\n", notes)
}

/// The lines of a text, each with its key, if that is one of `message_data`, and with the number that stands there.
fn numbers<'t>(
    text: &'t str,
    keys: &'t BTreeMap<u64, String>,
) -> impl Iterator<Item = (&'t str, Option<&'t str>, Option<&'t str>)> {
    (1..).zip(text.lines()).map(|(at, line)| {
        let key = keys.get(&at).map(String::as_str).filter(|key| key.starts_with(DATA));
        (line, key, number(line))
    })
}

/// The number that is the whole value on a line.
fn number(line: &str) -> Option<&str> {
    let content = beside(line).and_then(|comment| line.strip_suffix(comment)).unwrap_or(line).trim_end();
    let (before, value) = content.rsplit_once(' ')?;
    let begins = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.');
    (before.trim_end().ends_with([':', '-']) && value.starts_with(begins)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(lines: &[(u64, &str)]) -> BTreeMap<u64, String> {
        let below = |key: &str| if key == "poll" { key.to_owned() } else { format!("{DATA}{key}") };
        lines.iter().map(|(line, key)| (*line, below(key))).collect()
    }

    #[test]
    fn a_number_on_a_line_of_its_own_is_spelt_as_it_was_and_others_are_noted() {
        let old = "poll: 1.10\nmessage_data:\n  a: 1.10 # beside\n  b:\n    - 0x10\n  c: '1.10'\n  d: {e: 1e3, f: 7}\n";
        let new = "message_data:\n  a: 1.1\n  b:\n    - 16\n  c: \"1.10\"\n  d:\n    e: 1000.0\n    f: 7\npoll: 1.1\n";
        let old_keys = keys(&[(1, "poll"), (3, "a"), (5, "b.0"), (6, "c"), (7, "d")]);
        let new_keys = keys(&[(2, "a"), (4, "b.0"), (5, "c"), (6, "d"), (7, "d.e"), (8, "d.f"), (9, "poll")]);
        let (text, notes) = keep((old, &old_keys), (new, &new_keys));
        let kept =
            "message_data:\n  a: 1.10\n  b:\n    - 0x10\n  c: \"1.10\"\n  d:\n    e: 1000.0\n    f: 7\npoll: 1.1\n";
        assert_eq!(text, kept);
        assert_eq!(notes, ["message_data.d.e is written as 1000.0: the same number, spelt otherwise"]);
    }
}
