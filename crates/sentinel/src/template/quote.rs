//! Go's quoting of strings and characters, as `%q` prints them.

use std::fmt::Write as _;

/// Whether `text` can stand between back quotes as it is.
pub(super) fn fits_raw(text: &str) -> bool {
    !text.chars().any(|c| matches!(c, '`' | '\u{7f}' | '\u{feff}') || c < ' ' && c != '\t')
}

/// `text` between `quote`s, with everything that isn't printable escaped; with `ascii` also what isn't ASCII.
pub(super) fn quoted(text: &str, quote: char, ascii: bool) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars() {
        match c {
            '\x07' => out.push_str("\\a"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x0b' => out.push_str("\\v"),
            c if c == quote || c == '\\' => out.extend(['\\', c]),
            c if c.is_ascii() && !c.is_ascii_control() || !c.is_ascii() && !ascii && printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                // Writing to a String can't fail.
                match code {
                    0..0x80 => write!(out, "\\x{code:02x}"),
                    0x80..0x1_0000 => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                }
                .unwrap_or_default();
            }
        }
    }
    out.push(quote);
    out
}

/// Whether Go prints `c` as it is: letters, marks, numbers, punctuation and symbols. The standard library knows them
/// by what it escapes; of a string it escapes marks only at the front, so `c` is put second.
fn printable(c: char) -> bool {
    let mut text = [0; 5];
    text[0] = b'a';
    let length = text.get_mut(1..).map_or(0, |rest| c.encode_utf8(rest).len());
    let text = text.get(..=length).and_then(|t| std::str::from_utf8(t).ok()).unwrap_or_default();
    text.escape_debug().nth(1) == Some(c)
}
