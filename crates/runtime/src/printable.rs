//! Text from outside, fit to be shown to people.
//!
//! What stands in a file, a path or an answer of the network may hold characters that move a terminal's cursor, begin a
//! line of their own, or turn around what is read. Every line that people read goes through here, whoever wrote it.

/// Writes what misleads as it would be written in Rust (`\n`, `\u{1b}`): one line, in which nothing is hidden.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if misleads(c) { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

/// As [`one_line`], for text of several lines that are ours.
pub fn lines(text: &str) -> String {
    text.split('\n').map(one_line).collect::<Vec<_>>().join("\n")
}

/// No text from outside may begin a line of its own, move the cursor of a terminal, turn around what is read, or hide.
pub(crate) fn misleads(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_or_hides_is_written_out() {
        let text = "a\u{1b}[2J\u{9b}2J\r\n\u{7}\u{202e}b\u{2066}\u{2028}\u{200b}\u{200f}\u{feff}\u{e0041}\u{61c}c";
        let shown = r"a\u{1b}[2J\u{9b}2J\r\n\u{7}\u{202e}b\u{2066}\u{2028}\u{200b}\u{200f}\u{feff}\u{e0041}\u{61c}c";
        assert_eq!(one_line(text), shown);
        assert_eq!(lines("one\u{1b}\ntwo\u{202e}\n"), "one\\u{1b}\ntwo\\u{202e}\n");
        let harmless = "Größe e\u{301} 名前 \u{1f525} \\n \"x\" 'y'";
        assert_eq!(one_line(harmless), harmless);
    }
}
