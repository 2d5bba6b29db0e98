//! RE2's syntax, as today's sentinel understands it, in the words of the library that matches here.
//!
//! Most of it is the same. What is not would mean something else without an error: classes such as `\w` are ASCII
//! there, and `[a&&b]`, `[a[b]`, `\<` and `\Q..\E` have no special meaning here, or another one.

use std::iter::Peekable;
use std::str::Chars;

/// Writes a pattern so that it means here what it means in RE2; names a flag that RE2 does not have. What else is wrong
/// with it stays wrong.
pub(super) fn translate(pattern: &str) -> Result<String, String> {
    let mut out = String::with_capacity(pattern.len());
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => escape(&mut chars, &mut out)?,
            '[' => class(&mut chars, &mut out),
            '(' if chars.next_if_eq(&'?').is_some() => {
                out.push_str("(?");
                while let Some(flag) = chars.next_if(|c| c.is_ascii_alphabetic() || *c == '-') {
                    if matches!(flag, 'x' | 'u' | 'R') {
                        return Err(format!("(?{flag}) is no flag"));
                    }
                    out.push(flag);
                    // `(?P<name>..)`
                    if flag == 'P' {
                        break;
                    }
                }
            }
            _ => out.push(c),
        }
    }
    Ok(out)
}

/// What stands behind a backslash outside of brackets.
fn escape(chars: &mut Peekable<Chars<'_>>, out: &mut String) -> Result<(), String> {
    let Some(c) = chars.next() else {
        out.push('\\');
        return Ok(());
    };
    match c {
        'Q' => {
            let rest: String = chars.by_ref().collect();
            let (literal, behind) = rest.split_once("\\E").unwrap_or((&rest, ""));
            out.push_str(&regex::escape(literal));
            out.push_str(&translate(behind)?);
        }
        'b' | 'B' => out.extend(["(?-u:\\", c.encode_utf8(&mut [0; 4]), ")"]),
        '<' | '>' => out.push(c),
        _ => match perl(c) {
            Some((negated, members)) => out.extend(["[", if negated { "^" } else { "" }, members, "]"]),
            None => out.extend(['\\', c]),
        },
    }
    Ok(())
}

/// A class in brackets, from behind the opening one.
fn class(chars: &mut Peekable<Chars<'_>>, out: &mut String) {
    out.push('[');
    out.extend(chars.next_if_eq(&'^'));
    if chars.next_if_eq(&']').is_some() {
        out.push_str("\\]");
    }
    // A hyphen that begins a class is itself, and so is one behind the hyphen of a range.
    let mut literal = !out.ends_with(']');
    while let Some(c) = chars.next() {
        let literally = std::mem::take(&mut literal);
        match c {
            ']' => {
                out.push(']');
                return;
            }
            '[' if chars.peek() == Some(&':') => {
                out.push('[');
                // A name in colons; without its end it is wrong there as well.
                for c in chars.by_ref() {
                    out.push(c);
                    if c == ']' {
                        break;
                    }
                }
            }
            '[' | '&' | '~' => out.extend(['\\', c]),
            '-' if literally => out.push_str("\\-"),
            '-' => {
                out.push('-');
                literal = true;
            }
            '\\' => match chars.next() {
                Some(c) => match perl(c) {
                    Some((false, members)) => out.push_str(members),
                    Some((true, members)) => out.extend(["[^", members, "]"]),
                    None => out.extend(['\\', c]),
                },
                None => out.push('\\'),
            },
            _ => out.push(c),
        }
    }
}

/// The classes with a letter: whether it is what is not in them, and what is in them.
fn perl(c: char) -> Option<(bool, &'static str)> {
    let members = match c.to_ascii_lowercase() {
        'd' => "0-9",
        's' => "\\t\\n\\x0C\\r ",
        'w' => "0-9A-Za-z_",
        _ => return None,
    };
    Some((c.is_ascii_uppercase(), members))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_of_ascii_and_what_only_the_library_knows_is_literal() {
        let table = [
            (r"^\w+-\D$", "^[0-9A-Za-z_]+-[^0-9]$"),
            (r"[\d\S-]", r"[0-9[^\t\n\x0C\r ]-]"),
            (r"\bx\B", r"(?-u:\b)x(?-u:\B)"),
            (r"a\<b\.c\\d", r"a<b\.c\\d"),
            (r"\Qa.b\E.\d", r"a\.b.[0-9]"),
            (r"\Qa.b", r"a\.b"),
            ("[a&&b~~]", r"[a\&\&b\~\~]"),
            ("[a[b]c", r"[a\[b]c"),
            ("[]a]|[^]a]", r"[\]a]|[^\]a]"),
            ("[--/]|[+--]", r"[\--/]|[+-\-]"),
            (r"[^--/]|[a^-z]|[\[-a]|[]-a]", r"[^\--/]|[a^-z]|[\[-a]|[\]-a]"),
            (r"[[:alpha:]\]x]", r"[[:alpha:]\]x]"),
            (r"\p{L}(?i)é", r"\p{L}(?i)é"),
            // What is wrong stays wrong.
            ("[a", "[a"),
            ("[[:al", "[[:al"),
            (r"a\", r"a\"),
            (r"[a\", r"[a\"),
        ];
        for (pattern, expected) in table {
            assert_eq!(translate(pattern).unwrap(), expected, "{pattern}");
        }
        assert_eq!(translate("(?i)(?P<u>x)(?<x>u)(?:x)").unwrap(), "(?i)(?P<u>x)(?<x>u)(?:x)");
        for pattern in ["(?x) a", "a(?i-u:b)", r"\Qa\E(?sR)"] {
            assert!(translate(pattern).unwrap_err().ends_with("is no flag"), "{pattern}");
        }
    }
}
