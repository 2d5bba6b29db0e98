//! Carries comments from one YAML text to another that holds the same settings in another order.
//!
//! A comment belongs to the key on whose line it stands, or that follows it; what stands at the top with an empty line
//! below belongs to the file. No YAML library keeps them, so this goes by lines.

use std::collections::BTreeMap;

/// The comments of a text, by the key they belong to.
#[derive(Debug, Default)]
pub(super) struct Comments {
    top: Vec<String>,
    of: BTreeMap<String, Comment>,
}

#[derive(Debug, Default)]
struct Comment {
    above: Vec<String>,
    beside: Option<String>,
}

impl Comments {
    /// Reads the comments of `text`, of which each key stands on the given line.
    pub(super) fn read(text: &str, keys: &BTreeMap<u64, String>) -> Self {
        let mut comments = Self::default();
        let mut waiting = Vec::new();
        let mut block = None;
        for (number, line) in (1..).zip(text.lines()) {
            let content = line.trim();
            if block.is_some_and(|column| content.is_empty() || indent(line) > column) {
                continue;
            }
            block = block_text(line);
            if content.starts_with('#') {
                waiting.push(content.to_owned());
            } else if content.is_empty() {
                // A paragraph of its own, before the first key, is about the file.
                if comments.of.is_empty() && !waiting.is_empty() {
                    comments.top.append(&mut waiting);
                    comments.top.push(String::new());
                }
            } else if let Some(key) = keys.get(&number) {
                let comment = Comment { above: std::mem::take(&mut waiting), beside: beside(line).map(str::to_owned) };
                if !comment.above.is_empty() || comment.beside.is_some() {
                    comments.of.insert(key.clone(), comment);
                }
            }
        }
        comments.top.extend(waiting);
        comments
    }

    /// Writes them into `text`, each at the key that `renamed` says; returns it with the keys whose comments found no
    /// place.
    pub(super) fn write(
        mut self,
        text: &str,
        keys: &BTreeMap<u64, String>,
        renamed: impl Fn(&str) -> String,
    ) -> (String, Vec<String>) {
        let mut of: BTreeMap<_, _> =
            std::mem::take(&mut self.of).into_iter().map(|(key, comment)| (renamed(&key), (key, comment))).collect();
        let mut lines = self.top;
        for (number, line) in (1..).zip(text.lines()) {
            let found = keys.get(&number).and_then(|key| of.remove(key));
            let Some((_, Comment { above, beside })) = found else {
                lines.push(line.to_owned());
                continue;
            };
            let indent = &line[..indent(line)];
            lines.extend(above.iter().map(|comment| format!("{indent}{comment}")));
            lines.push(beside.map_or_else(|| line.to_owned(), |comment| format!("{line} {comment}")));
        }
        (lines.join("\n") + "\n", of.into_values().map(|(key, _)| key).collect())
    }
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Where a text begins below this line (`|` or `>`): the column that it is indented beyond. Nothing in it is a comment.
fn block_text(line: &str) -> Option<usize> {
    let content = beside(line).and_then(|comment| line.strip_suffix(comment)).unwrap_or(line).trim_end();
    let (before, header) = content.rsplit_once(' ')?;
    let marks = header.strip_prefix(['|', '>'])?;
    if !marks.chars().all(|c| matches!(c, '+' | '-' | '1'..='9')) {
        return None;
    }
    // Behind the dash of a list's item stands a key of its own, or the text itself.
    let mut column = indent(content);
    while let Some(rest) = before.get(column..).and_then(|rest| rest.strip_prefix("- ")) {
        column = before.len() - rest.trim_start().len();
    }
    Some(column)
}

/// The comment at the end of a line: behind a blank and outside of quotes.
pub(super) fn beside(line: &str) -> Option<&str> {
    let mut quote = None;
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (None, '#') if before.is_whitespace() => return line.get(at..),
            // An apostrophe inside of a word opens nothing.
            (None, '"' | '\'') if !before.is_alphanumeric() => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
        before = c;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(lines: &[(u64, &str)]) -> BTreeMap<u64, String> {
        lines.iter().map(|(line, key)| (*line, (*key).to_owned())).collect()
    }

    #[test]
    fn comments_follow_their_keys() {
        let text = "# the file\n\n# of a\na: 1 # beside\nb:\n  # of c\n  c: 'x # y' # z\nd: it's # here\n# the end\n";
        let comments = Comments::read(text, &keys(&[(4, "a"), (5, "b"), (7, "b.c"), (8, "d")]));
        let (written, lost) =
            comments.write("e:\n  c: x\n  a: 1\n", &keys(&[(1, "e"), (2, "e.c"), (3, "e.a")]), |key| {
                if key == "a" { "e.a".to_owned() } else { key.replace("b.", "e.") }
            });
        let expected = "# the file\n\n# the end\ne:\n  # of c\n  c: x # z\n  # of a\n  a: 1 # beside\n";
        assert_eq!((written.as_str(), lost), (expected, vec!["d".to_owned()]));
    }

    #[test]
    fn what_stands_in_a_text_of_several_lines_is_no_comment() {
        let text = "# of a\na: | # beside\n  # text\n\n  more\n# of b\nb:\n  - expr: >-\n      # text\n      x\n    # of name\n    \
                    name: y\n  - |2+\n    # text\n  # of the third\n  - name: z\n";
        let keys = keys(&[(2, "a"), (7, "b"), (8, "b.0.expr"), (12, "b.0.name"), (16, "b.2.name")]);
        let comments = Comments::read(text, &keys);
        let above = |key: &str| comments.of.get(key).map(|comment| comment.above.join(" "));
        assert_eq!(above("a").as_deref(), Some("# of a"));
        assert_eq!(above("b").as_deref(), Some("# of b"));
        assert_eq!(above("b.0.expr"), None);
        assert_eq!(above("b.0.name").as_deref(), Some("# of name"));
        assert_eq!(above("b.2.name").as_deref(), Some("# of the third"));
        assert_eq!(comments.of["a"].beside.as_deref(), Some("# beside"));
        let (written, lost) = comments.write(text, &keys, str::to_owned);
        assert!(written.contains("a: | # beside # beside\n  # text\n\n  more"), "{written}");
        assert_eq!(lost, Vec::<String>::new());
    }
}
