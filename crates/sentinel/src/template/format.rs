//! Go's `fmt` for the values of a template: `print`, `println`, and `printf` with the verbs `%s %d %v %q %f`.

use std::fmt::Write as _;

use serde_json::Value as Json;

use super::quote;
use super::value::Value;
use super::{MAX_OUTPUT, Reason};

/// How deep printed lists and objects may nest; what serde_json parses stays below.
const MAX_DEPTH: usize = 200;

/// A width or precision above this is none at all, as in Go.
const MAX_WIDTH: i64 = 1_000_000;

/// No digit of a float64 is significant beyond this many places, all that follow are zeros.
const MAX_DECIMALS: usize = 1_100;

/// Output that stops growing at its limit, and says so at the end.
#[derive(Default)]
pub(super) struct Buffer {
    text: String,
    full: bool,
}

impl Buffer {
    pub(super) fn push_str(&mut self, text: &str) {
        if self.fits(text.len()) {
            self.text.push_str(text);
        }
    }

    fn pad(&mut self, with: char, count: usize) {
        if self.fits(count) {
            self.text.extend(std::iter::repeat_n(with, count));
        }
    }

    fn fits(&mut self, bytes: usize) -> bool {
        self.full |= self.text.len() + bytes > MAX_OUTPUT;
        !self.full
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if self.full { Err(format!("the output is larger than {MAX_OUTPUT} bytes")) } else { Ok(()) }
    }

    pub(super) fn finish(self) -> Result<String, String> {
        self.check().map(|()| self.text)
    }
}

/// Refuses a format with a verb that isn't supported.
pub(super) fn check(format: &str) -> Result<(), Reason> {
    let mut rest = format;
    while let Some(percent) = rest.find('%') {
        rest = rest.get(percent + 1..).unwrap_or_default().trim_start_matches(['#', '0', '+', '-', ' ']);
        loop {
            let before = rest.len();
            rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '*');
            if rest.starts_with('[') {
                rest = rest.find(']').or(Some(0)).and_then(|end| rest.get(end + 1..)).unwrap_or_default();
            }
            if rest.len() == before {
                break;
            }
        }
        let mut chars = rest.chars();
        if let Some(verb) = chars.next()
            && !matches!(verb, 's' | 'd' | 'v' | 'q' | 'f' | '%')
        {
            return Err(Reason::Unsupported(format!("the verb %{verb}")));
        }
        rest = chars.as_str();
    }
    Ok(())
}

/// The flags of one directive.
#[derive(Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "they are Go's own flags, any set of them is valid")]
struct Flags {
    minus: bool,
    plus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    /// `%#v`: Go syntax.
    go_syntax: bool,
    width: Option<usize>,
    precision: Option<usize>,
}

/// Writes values as Go's `fmt` does.
pub(super) struct Printer<'b> {
    out: &'b mut Buffer,
    flags: Flags,
}

impl<'b> Printer<'b> {
    pub(super) fn new(out: &'b mut Buffer) -> Self {
        Printer { out, flags: Flags::default() }
    }

    /// Spaces stand between two values of which neither is a string.
    pub(super) fn print(&mut self, args: &[Value<'_>]) {
        let mut after_string = true;
        for arg in args {
            let string = arg.as_str().is_some();
            if !string && !after_string {
                self.out.push_str(" ");
            }
            self.argument(arg, 'v');
            after_string = string;
        }
    }

    pub(super) fn println(&mut self, args: &[Value<'_>]) {
        for (i, arg) in args.iter().enumerate() {
            if i > 0 {
                self.out.push_str(" ");
            }
            self.argument(arg, 'v');
        }
        self.out.push_str("\n");
    }

    pub(super) fn printf(&mut self, format: &str, args: &[Value<'_>]) -> Result<(), String> {
        check(format).map_err(|reason| reason.to_string())?;
        let mut directives = Directives { rest: format, args, next: 0, reordered: false, indexed: false, good: true };
        while let Some(percent) = directives.rest.find('%') {
            self.out.push_str(directives.rest.get(..percent).unwrap_or_default());
            directives.rest = directives.rest.get(percent + 1..).unwrap_or_default();
            self.directive(&mut directives);
        }
        self.out.push_str(directives.rest);
        if let Some(extra @ [_, ..]) = args.get(directives.next..)
            && !directives.reordered
        {
            self.flags = Flags::default();
            self.out.push_str("%!(EXTRA ");
            for (i, arg) in extra.iter().enumerate() {
                if i > 0 {
                    self.out.push_str(", ");
                }
                if let Value::Nil = arg {
                    self.out.push_str("<nil>");
                } else {
                    self.typed(arg);
                }
            }
            self.out.push_str(")");
        }
        Ok(())
    }

    /// One directive, after its `%`: flags, `[n]`, width, `.precision`, `[n]`, verb.
    fn directive(&mut self, d: &mut Directives<'_, '_>) {
        (d.good, d.indexed) = (true, false);
        self.flags = d.flags();
        d.index();
        self.width(d);
        if d.rest.len() > 1 && d.rest.starts_with('.') {
            d.skip(1);
            self.precision(d);
        }
        if !d.indexed {
            d.index();
        }
        let Some(verb) = d.rest.chars().next() else {
            self.out.push_str("%!(NOVERB)");
            return;
        };
        d.skip(verb.len_utf8());
        if verb == '%' {
            self.out.push_str("%");
        } else if !d.good {
            self.out.push_str(&format!("%!{verb}(BADINDEX)"));
        } else if let Some(arg) = d.args.get(d.next) {
            if verb == 'v' {
                self.flags.go_syntax = self.flags.sharp;
                self.flags.sharp = false;
                self.flags.plus = false;
            }
            d.next += 1;
            self.argument(arg, verb);
        } else {
            self.out.push_str(&format!("%!{verb}(MISSING)"));
        }
    }

    /// A number, or `*` for the next argument; a negative one pads on the right.
    fn width(&mut self, d: &mut Directives<'_, '_>) {
        if !d.rest.starts_with('*') {
            self.flags.width = d.number();
            d.good &= !(d.indexed && self.flags.width.is_some());
            return;
        }
        d.skip(1);
        match d.integer() {
            Some(width) => {
                self.flags.minus |= width.is_negative();
                self.flags.width = usize::try_from(width.unsigned_abs()).ok();
            }
            None => self.out.push_str("%!(BADWIDTH)"),
        }
        d.indexed = false;
    }

    /// What follows the point: `[n]`, and a number or `*`.
    fn precision(&mut self, d: &mut Directives<'_, '_>) {
        d.good &= !d.indexed;
        d.index();
        if !d.rest.starts_with('*') {
            self.flags.precision = Some(d.number().unwrap_or(0));
            return;
        }
        d.skip(1);
        self.flags.precision = d.integer().and_then(|n| usize::try_from(n).ok());
        if self.flags.precision.is_none() {
            self.out.push_str("%!(BADPREC)");
        }
        d.indexed = false;
    }

    fn argument(&mut self, value: &Value<'_>, verb: char) {
        match value {
            Value::Nil if verb == 'v' => self.padded("<nil>"),
            Value::Nil => self.out.push_str(&format!("%!{verb}(<nil>)")),
            value => self.value(value, verb, 0),
        }
    }

    fn value(&mut self, value: &Value<'_>, verb: char, depth: usize) {
        if depth > MAX_DEPTH {
            self.out.full = true;
        }
        if self.out.full {
            return;
        }
        match (value, verb) {
            (Value::Bool(b), 'v') => self.padded(if *b { "true" } else { "false" }),
            (Value::Byte(b), 'v') if self.flags.go_syntax => self.padded(&format!("{b:#x}")),
            (Value::Byte(b), 'v' | 'd') => self.integer(i64::from(*b)),
            (Value::Byte(b), 'q') => self.character(i64::from(*b)),
            (Value::Int(i) | Value::Int64(i), 'v' | 'd') => self.integer(*i),
            (Value::Int(i) | Value::Int64(i), 'q') => self.character(*i),
            (Value::Float(f), 'v' | 'f') => self.float(*f, verb),
            (Value::List(list), _) => {
                let brackets = if self.flags.go_syntax { ["[]interface {}{", ", ", "}"] } else { ["[", " ", "]"] };
                self.out.push_str(brackets[0]);
                for (i, item) in list.iter().enumerate() {
                    if i > 0 {
                        self.out.push_str(brackets[1]);
                    }
                    self.nested(item, verb, depth);
                }
                self.out.push_str(brackets[2]);
            }
            (Value::Map(map), _) => {
                let brackets =
                    if self.flags.go_syntax { ["map[string]interface {}{", ", ", "}"] } else { ["map[", " ", "]"] };
                let mut entries: Vec<_> = map.iter().collect();
                entries.sort_unstable_by_key(|(key, _)| key.as_str());
                self.out.push_str(brackets[0]);
                for (i, (key, item)) in entries.into_iter().enumerate() {
                    if i > 0 {
                        self.out.push_str(brackets[1]);
                    }
                    self.value(&Value::Str(key), verb, depth);
                    self.out.push_str(":");
                    self.nested(item, verb, depth);
                }
                self.out.push_str(brackets[2]);
            }
            (value, verb) => match (value.as_str(), verb) {
                (Some(text), 'v') if self.flags.go_syntax => self.quoted(text),
                (Some(text), 'v' | 's') => {
                    let text = self.truncated(text);
                    self.padded(text);
                }
                (Some(text), 'q') => self.quoted(text),
                _ => {
                    self.out.push_str(&format!("%!{verb}("));
                    self.typed(value);
                    self.out.push_str(")");
                }
            },
        }
    }

    fn nested(&mut self, item: &Json, verb: char, depth: usize) {
        match item {
            Json::Null if self.flags.go_syntax => self.out.push_str("interface {}(nil)"),
            Json::Null => self.out.push_str("<nil>"),
            item => self.value(&Value::new(item, ""), verb, depth + 1),
        }
    }

    /// `type=value`, where a verb does not fit or an argument is left over.
    fn typed(&mut self, value: &Value<'_>) {
        self.out.push_str(value.type_name());
        self.out.push_str("=");
        self.value(value, 'v', 0);
    }

    fn padded(&mut self, text: &str) {
        let fill = self.flags.width.map_or(0, |width| width.saturating_sub(text.chars().count()));
        if self.flags.minus {
            self.out.push_str(text);
            self.out.pad(' ', fill);
        } else {
            self.out.pad(if self.flags.zero { '0' } else { ' ' }, fill);
            self.out.push_str(text);
        }
    }

    fn truncated<'t>(&self, text: &'t str) -> &'t str {
        let end = self.flags.precision.and_then(|n| text.char_indices().nth(n)).map_or(text.len(), |(end, _)| end);
        text.get(..end).unwrap_or(text)
    }

    fn quoted(&mut self, text: &str) {
        let text = self.truncated(text);
        let quoted = if self.flags.sharp && quote::fits_raw(text) {
            format!("`{text}`")
        } else {
            quote::quoted(text, '"', self.flags.plus)
        };
        self.padded(&quoted);
    }

    fn character(&mut self, code: i64) {
        let c = u32::try_from(code).ok().and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER);
        let quoted = quote::quoted(c.encode_utf8(&mut [0; 4]), '\'', self.flags.plus);
        self.padded(&quoted);
    }

    fn sign(&self, negative: bool) -> &'static str {
        match (negative, self.flags.plus, self.flags.space) {
            (true, _, _) => "-",
            (false, true, _) => "+",
            (false, false, true) => " ",
            (false, false, false) => "",
        }
    }

    fn integer(&mut self, value: i64) {
        let flags = self.flags;
        let sign = self.sign(value < 0);
        let digits = match flags.precision {
            Some(0) if value == 0 => {
                self.out.pad(' ', flags.width.unwrap_or(0));
                return;
            }
            Some(precision) => precision,
            None if flags.zero && !flags.minus => flags.width.unwrap_or(0).saturating_sub(sign.len()),
            None => 0,
        };
        let magnitude = value.unsigned_abs().to_string();
        let zeros = "0".repeat(digits.saturating_sub(magnitude.len()));
        // An integer's zeros are digits, made above; what is left of the width is spaces.
        self.flags.zero = false;
        self.padded(&format!("{sign}{zeros}{magnitude}"));
        self.flags = flags;
    }

    fn float(&mut self, value: f64, verb: char) {
        let flags = self.flags;
        let magnitude = value.abs();
        let mut digits = match (verb, flags.precision) {
            ('v', precision) => general(magnitude, precision),
            (_, precision) => fixed(magnitude, precision.unwrap_or(6)),
        };
        if flags.sharp {
            with_point(&mut digits, if verb == 'v' { flags.precision.unwrap_or(6) } else { 0 });
        }
        let sign = self.sign(value.is_sign_negative());
        // The sign comes before zeros that pad.
        if !sign.is_empty() && flags.zero && !flags.minus {
            self.out.push_str(sign);
            self.out.pad('0', flags.width.unwrap_or(0).saturating_sub(digits.len() + 1));
            self.out.push_str(&digits);
        } else {
            self.padded(&format!("{sign}{digits}"));
        }
    }
}

/// `%f`: so many decimals, all of them exact.
fn fixed(magnitude: f64, decimals: usize) -> String {
    let exact = decimals.min(MAX_DECIMALS);
    let mut text = format!("{magnitude:.exact$}");
    text.extend(std::iter::repeat_n('0', decimals.min(MAX_OUTPUT) - exact));
    text
}

/// `%g`: the shortest digits that read back the same, or so many significant ones; an exponent outside of 1e-4..1e6
/// or the precision.
fn general(magnitude: f64, precision: Option<usize>) -> String {
    if magnitude == 0.0 {
        return "0".to_owned();
    }
    let scientific = match precision {
        None => format!("{magnitude:e}"),
        Some(p) => format!("{magnitude:.*e}", p.clamp(1, MAX_DECIMALS) - 1),
    };
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let digits = mantissa.replace('.', "");
    let digits = match digits.trim_end_matches('0') {
        "" => "0",
        digits => digits,
    };
    let limit = precision.and_then(|p| i32::try_from(p.max(1)).ok()).unwrap_or(6);
    let mut text = String::new();
    let whole = usize::try_from(exponent).map_or(0, |e| e + 1);
    if exponent < -4 || exponent >= limit {
        text.push_str(digits.get(..1).unwrap_or_default());
        if digits.len() > 1 {
            text.push('.');
            text.push_str(digits.get(1..).unwrap_or_default());
        }
        // Writing to a String can't fail.
        write!(text, "e{exponent:+03}").unwrap_or_default();
    } else if exponent < 0 {
        text.push_str("0.");
        text.extend(std::iter::repeat_n('0', usize::try_from(-exponent - 1).unwrap_or(0)));
        text.push_str(digits);
    } else if digits.len() > whole {
        let (before, after) = digits.split_at_checked(whole).unwrap_or((digits, ""));
        text = format!("{before}.{after}");
    } else {
        text.push_str(digits);
        text.extend(std::iter::repeat_n('0', whole - digits.len()));
    }
    text
}

/// The flag `#`: always a decimal point, and zeros up to so many significant digits.
fn with_point(text: &mut String, significant: usize) {
    let exponent = text.find('e').map(|e| text.split_off(e)).unwrap_or_default();
    let point = text.contains('.');
    let counted = text.trim_start_matches(['0', '.']).bytes().filter(u8::is_ascii_digit).count();
    let counted = if text == "0" { 1 } else { counted };
    if !point {
        text.push('.');
    }
    text.extend(std::iter::repeat_n('0', significant.saturating_sub(counted)));
    text.push_str(&exponent);
}

/// A format being read, and the arguments it has come to.
struct Directives<'f, 'a> {
    rest: &'f str,
    args: &'a [Value<'a>],
    next: usize,
    /// Some `[n]` was used: then left over arguments are no mistake.
    reordered: bool,
    indexed: bool,
    good: bool,
}

impl Directives<'_, '_> {
    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    fn flags(&mut self) -> Flags {
        let mut flags = Flags::default();
        while let Some(c) = self.rest.chars().next() {
            match c {
                '#' => flags.sharp = true,
                '0' => flags.zero = true,
                '+' => flags.plus = true,
                '-' => flags.minus = true,
                ' ' => flags.space = true,
                _ => break,
            }
            self.skip(1);
        }
        flags
    }

    /// A decimal number, if one stands here and is not absurd.
    fn number(&mut self) -> Option<usize> {
        let digits = self.rest.len() - self.rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (text, rest) = self.rest.split_at_checked(digits)?;
        let number = text.parse().ok();
        if digits > 0 && number.is_none_or(|n: i64| n / 10 > MAX_WIDTH) {
            // Go gives up on the rest of the format.
            self.rest = "";
            return None;
        }
        self.rest = rest;
        number.and_then(|n| usize::try_from(n).ok())
    }

    /// `[n]`: the next argument is the nth.
    fn index(&mut self) {
        self.indexed = false;
        if !self.rest.starts_with('[') {
            return;
        }
        self.reordered = true;
        let Some(end) = self.rest.find(']').filter(|_| self.rest.len() > 2) else {
            self.good = false;
            self.skip(1);
            return;
        };
        let digits = self.rest.get(1..end).filter(|n| n.chars().all(|c| c.is_ascii_digit()));
        let number: Option<usize> = digits.and_then(|n| n.parse().ok());
        self.skip(end + 1);
        self.indexed = number.is_some();
        match number.and_then(|n| n.checked_sub(1)) {
            Some(index) if index < self.args.len() => self.next = index,
            _ => self.good = false,
        }
    }

    /// The next argument, as a width or precision.
    fn integer(&mut self) -> Option<i64> {
        let arg = self.args.get(self.next)?;
        self.next += 1;
        let value = match arg {
            Value::Int(i) | Value::Int64(i) => *i,
            Value::Byte(b) => i64::from(*b),
            _ => return None,
        };
        Some(value).filter(|v| (-MAX_WIDTH..=MAX_WIDTH).contains(v))
    }
}
