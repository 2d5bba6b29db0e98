//! What is refused before anybody parses it: the parser recurses, and has no bound of its own.

use std::iter::Peekable;
use std::str::CharIndices;

/// The largest expression, in bytes: ten times what anyone writes by hand.
pub const MAX_SOURCE: usize = 4 * 1024;

/// How deep brackets nest.
pub const MAX_NESTING: usize = 64;

/// How deep lists and maps may nest in a value that params put together: comparing recurses this far, and as deep as
/// the resource's own JSON. A few hundred bytes of stack for each.
pub(super) const MAX_VALUE_NESTING: usize = 256;

/// Where a source goes beyond a bound, and which.
pub(super) fn check(source: &str) -> Result<(), (usize, String)> {
    if source.len() > MAX_SOURCE {
        return Err((0, format!("it is longer than {MAX_SOURCE} bytes")));
    }
    let mut depth = 0_usize;
    let mut signs = 0_usize;
    let mut chars = source.char_indices().peekable();
    let mut raw = false;
    while let Some((at, c)) = chars.next() {
        match c {
            '"' | '\'' => skip_text(&mut chars, source, at, c, raw),
            '/' if source[at..].starts_with("//") => while chars.next_if(|(_, c)| *c != '\n').is_some() {},
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        raw = matches!(c, 'r' | 'R') || (raw && matches!(c, 'b' | 'B'));
        // `!!!!` recurses like brackets, and so does `-` before `-`.
        signs = if matches!(c, '!' | '-') || (signs > 0 && c.is_whitespace()) { signs + 1 } else { 0 };
        if depth > MAX_NESTING || signs > MAX_NESTING {
            return Err((at, format!("it nests deeper than {MAX_NESTING}")));
        }
    }
    Ok(())
}

/// Goes to the end of a text that begins at `start`.
fn skip_text(chars: &mut Peekable<CharIndices<'_>>, source: &str, start: usize, quote: char, raw: bool) {
    let triple = [quote; 3].iter().collect::<String>();
    let long = source[start..].starts_with(&triple);
    if long {
        chars.next();
        chars.next();
    }
    while let Some((at, c)) = chars.next() {
        if c == '\\' && !raw {
            chars.next();
        } else if c == quote && !long {
            return;
        } else if long && source[at..].starts_with(&triple) {
            chars.next();
            chars.next();
            return;
        }
    }
}
