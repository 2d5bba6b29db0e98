//! Reads Go's literals: numbers in every base, characters, quoted and raw strings.

use super::Reason;

/// A constant written in a template.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Literal {
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

/// Reads a number as Go does where no type asks for another: an integer, or a float if it is spelt like one.
pub(super) fn number(text: &str) -> Result<Literal, Reason> {
    if text.ends_with('i') {
        return Err(Reason::Unsupported("a complex number".into()));
    }
    let illegal = || Reason::Syntax(format!("illegal number syntax {text:?}"));
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let negative = text.starts_with('-');
    if !underscores_ok(unsigned) {
        return Err(illegal());
    }
    let plain = unsigned.replace('_', "");
    // Go's rule counts every `e` as an exponent, in `-0x1e` as well: only an unsigned hexadecimal integer is exempt.
    let hex = (text.starts_with("0x") || text.starts_with("0X")) && !text.contains(['p', 'P']);
    let float = text.contains(['.', 'e', 'E', 'p', 'P']) && !hex;
    if let Some((digits, base)) = integer_digits(&plain) {
        let overflow = || Reason::Syntax(format!("integer overflow: {text:?}"));
        let magnitude = u64::from_str_radix(digits, base).map(i128::from).map_err(|_| overflow())?;
        let value = if negative { -magnitude } else { magnitude };
        let value = i64::try_from(value).map_err(|_| overflow())?;
        #[expect(clippy::cast_precision_loss, reason = "Go's own conversion, reached by `-0x1e` alone")]
        return Ok(if float { Literal::Float(value as f64) } else { Literal::Int(value) });
    }
    let value = if plain.starts_with("0x") || plain.starts_with("0X") { hex_float(&plain) } else { decimal(&plain) };
    match value {
        Some(value) if value.is_finite() && float => Ok(Literal::Float(if negative { -value } else { value })),
        _ => Err(illegal()),
    }
}

/// The digits of an integer without its sign, and their base; `None` if it isn't one.
fn integer_digits(plain: &str) -> Option<(&str, u32)> {
    let rest = |n: usize| plain.get(n..).unwrap_or_default();
    let (digits, base) = match plain.get(..2).unwrap_or_default() {
        "0x" | "0X" => (rest(2), 16),
        "0b" | "0B" => (rest(2), 2),
        "0o" | "0O" => (rest(2), 8),
        _ if plain.len() > 1 && plain.starts_with('0') => (rest(1), 8),
        _ => (plain, 10),
    };
    (!digits.is_empty() && digits.chars().all(|c| c.is_digit(base))).then_some((digits, base))
}

fn decimal(plain: &str) -> Option<f64> {
    // Rust would also read "inf" and "nan"; the lexer never makes such a token.
    plain.parse().ok()
}

fn hex_float(plain: &str) -> Option<f64> {
    let (mantissa, exponent) = plain.get(2..)?.split_once(['p', 'P'])?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let value = u64::from_str_radix(&digits, 16).ok()?;
    let exponent: i32 = exponent.parse().ok()?;
    let shift = exponent.checked_sub(i32::try_from(fraction.len()).ok()?.checked_mul(4)?)?;
    #[expect(clippy::cast_precision_loss, reason = "rounded to the nearest, as Go does")]
    Some(value as f64 * 2f64.powi(shift))
}

/// An underscore stands between two digits, or between the base prefix and a digit.
fn underscores_ok(unsigned: &str) -> bool {
    let bytes = unsigned.as_bytes();
    let prefixed = bytes.len() >= 2 && bytes[0] == b'0' && matches!(bytes[1] | 0x20, b'b' | b'o' | b'x');
    let hex = prefixed && bytes[1] | 0x20 == b'x';
    let digit = |b: u8| b.is_ascii_digit() || hex && b.is_ascii_hexdigit();
    bytes.iter().enumerate().all(|(i, &b)| {
        let before = i.checked_sub(1).is_some_and(|p| digit(bytes[p]) || prefixed && p == 1);
        b != b'_' || before && bytes.get(i + 1).is_some_and(|&b| digit(b))
    })
}

/// Reads `'x'`, with its quotes.
pub(super) fn character(text: &str) -> Result<Literal, Reason> {
    let malformed = || Reason::Syntax(format!("malformed character constant {text}"));
    let mut rest = text.get(1..).unwrap_or_default();
    let value = match escape(&mut rest, '\'') {
        Some(Unit::Char(c)) => u32::from(c),
        Some(Unit::Byte(b)) => u32::from(b),
        None => return Err(malformed()),
    };
    if rest == "'" { Ok(Literal::Int(i64::from(value))) } else { Err(malformed()) }
}

/// Reads `"text"` or a raw string, with its quotes.
pub(super) fn string(text: &str) -> Result<String, Reason> {
    let inner = text.get(1..text.len().saturating_sub(1)).unwrap_or_default();
    if text.starts_with('`') {
        return Ok(inner.replace('\r', ""));
    }
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while !rest.is_empty() {
        match escape(&mut rest, '"') {
            Some(Unit::Char(c)) => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            Some(Unit::Byte(b)) => bytes.push(b),
            None => return Err(Reason::Syntax(format!("invalid escape in string {text}"))),
        }
    }
    String::from_utf8(bytes).map_err(|_| Reason::Unsupported(format!("the bytes of {text}, which are not UTF-8,")))
}

/// What one step of a quoted literal stands for; `\xNN` and `\NNN` are bytes, not characters.
enum Unit {
    Char(char),
    Byte(u8),
}

/// Takes one character or escape from the front of `rest`; `None` if it isn't valid inside these quotes.
fn escape(rest: &mut &str, quote: char) -> Option<Unit> {
    let mut chars = rest.chars();
    let first = chars.next()?;
    if first == quote {
        return None;
    }
    if first != '\\' {
        *rest = chars.as_str();
        return Some(Unit::Char(first));
    }
    let kind = chars.next()?;
    let mut number = |digits: usize, base: u32| {
        let text = chars.as_str().get(..digits).filter(|d| d.chars().all(|c| c.is_digit(base)))?;
        chars = chars.as_str().get(digits..)?.chars();
        u32::from_str_radix(text, base).ok()
    };
    let unit = match kind {
        'a' => Unit::Char('\x07'),
        'b' => Unit::Char('\x08'),
        'f' => Unit::Char('\x0c'),
        'n' => Unit::Char('\n'),
        'r' => Unit::Char('\r'),
        't' => Unit::Char('\t'),
        'v' => Unit::Char('\x0b'),
        '\\' => Unit::Char('\\'),
        'x' => Unit::Byte(u8::try_from(number(2, 16)?).ok()?),
        'u' => Unit::Char(char::from_u32(number(4, 16)?)?),
        'U' => Unit::Char(char::from_u32(number(8, 16)?)?),
        '0'..='7' => {
            let low = number(2, 8)?;
            Unit::Byte(u8::try_from(kind.to_digit(8)? * 64 + low).ok()?)
        }
        c if c == quote => Unit::Char(c),
        _ => return None,
    };
    *rest = chars.as_str();
    Some(unit)
}
