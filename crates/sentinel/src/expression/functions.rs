//! What an expression can call: the standard functions of CEL, `condition` and `summary`. Those of texts are in
//! [`super::strings`].

use std::fmt;

use regex::{Regex, RegexBuilder};
use serde_json::Value as Json;

use super::eval::{Kind, Trouble};
use super::re2;
use super::time::{self, Part};
use super::types::SIGNATURES;
use super::value::{BYTES_PER_UNIT, Record, Type, Value};

/// A function, or a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Condition,
    /// What the sentinel itself reads off the resource.
    Summary,
    Size,
    Matches,
    /// `type(x)`.
    TypeOf,
    /// `dyn(x)`: the same value, whose type is not checked.
    Dyn,
    To(Type),
    Part(Part),
    Contains,
    StartsWith,
    EndsWith,
    CharAt,
    IndexOf,
    LastIndexOf,
    LowerAscii,
    UpperAscii,
    Replace,
    Split,
    Substring,
    Trim,
    Reverse,
    Join,
}

/// What a regular expression may take when it is compiled.
const MAX_REGEX: usize = 64 * 1024;

/// What compiling one while the expression runs counts for.
const REGEX_WORK: usize = 16 * 1024;

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SIGNATURES.iter().find(|known| known.function == *self).map_or("", |known| known.name))
    }
}

/// Compiles a regular expression of RE2 within its bounds.
pub(super) fn regex(pattern: &str) -> Result<Regex, String> {
    let built = RegexBuilder::new(&re2::translate(pattern)?)
        .size_limit(MAX_REGEX)
        .dfa_size_limit(MAX_REGEX)
        .nest_limit(32)
        .build();
    built.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "it compiles to more than 64 KiB".to_owned(),
        // Several lines with a drawing of the place; the last one says what is wrong.
        error => error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    })
}

/// What looking for a regular expression in a text counts for: a byte can cost as much as the whole program.
pub(super) fn matching_work(text: &str) -> usize {
    8 * text.len()
}

/// A named condition of a resource, and how many were looked at. Where a name stands twice, the last one counts, as
/// in today's sentinel.
pub(super) fn condition<'v>(resource: &'v Json, name: &str) -> (Value<'v>, usize) {
    let conditions = resource.get("status").and_then(|status| status.get("conditions")).and_then(Json::as_array);
    let of_name = |condition: &&Json| condition.get("type").and_then(Json::as_str) == Some(name);
    let found = conditions.and_then(|all| all.iter().rev().find(of_name));
    (Value::Record(Record::Condition(found)), conditions.map_or(0, Vec::len))
}

/// Calls a function that is not one of texts alone.
pub(super) fn call<'v>(
    function: Function,
    args: &[Value<'v>],
    charge: &mut dyn FnMut(usize) -> Result<(), Trouble>,
) -> Result<Value<'v>, Trouble> {
    match (function, args) {
        (Function::Size, [Value::Text(text)]) => {
            charge(text.as_str().len() / BYTES_PER_UNIT)?;
            Ok(int(text.as_str().chars().count()))
        }
        (Function::Size, [value]) => value.len().map(int).ok_or_else(|| no_overload("size", args)),
        (Function::Matches, [Value::Text(text), Value::Text(pattern)]) => {
            charge(REGEX_WORK + matching_work(pattern.as_str()) + matching_work(text.as_str()))?;
            let regex = regex(pattern.as_str()).map_err(|why| invalid(format!("matches: {why}")))?;
            Ok(Value::Bool(regex.is_match(text.as_str())))
        }
        (Function::TypeOf, [value]) => Ok(Value::Type(value.kind())),
        (Function::Dyn, [value]) => Ok(value.clone()),
        (Function::To(kind), [value]) => convert(kind, value, charge),
        (Function::Part(part), [Value::Timestamp(time), rest @ ..]) => {
            let zone = match rest {
                [Value::Text(zone)] => Some(zone.as_str()),
                [] => None,
                _ => return Err(no_overload(&function.to_string(), args)),
            };
            charge(zone.map_or(0, str::len) / BYTES_PER_UNIT)?;
            let found = time::part_of_timestamp(*time, part, zone);
            let unknown = || invalid(format!("unknown time zone {:?}", shortened(zone.unwrap_or_default())));
            found.map(Value::Int).ok_or_else(unknown)
        }
        (Function::Part(part), [Value::Duration(nanos)]) => {
            let found = time::part_of_duration(*nanos, part);
            found.map(Value::Int).ok_or_else(|| no_overload(&function.to_string(), args))
        }
        _ => super::strings::call(function, args, charge),
    }
}

fn convert<'v>(
    kind: Type,
    value: &Value<'v>,
    charge: &mut dyn FnMut(usize) -> Result<(), Trouble>,
) -> Result<Value<'v>, Trouble> {
    if let Value::Text(text) = value {
        charge(text.as_str().len() / BYTES_PER_UNIT)?;
    }
    if value.kind() == kind {
        return Ok(value.clone());
    }
    let out_of_range = || Trouble::new(Kind::Overflow, format!("{kind} out of range"));
    let unreadable = |text: &str| invalid(format!("{:?} is no {kind}", shortened(text)));
    match (kind, value) {
        (Type::Bool, Value::Text(text)) => match text.as_str() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
            other => Err(unreadable(other)),
        },
        (Type::Int, Value::Uint(value)) => i64::try_from(*value).map(Value::Int).map_err(|_| out_of_range()),
        (Type::Int, Value::Double(value)) => truncated(*value)
            .and_then(|whole| i64::try_from(whole).ok())
            .filter(|whole| !matches!(*whole, i64::MIN | i64::MAX))
            .map(Value::Int)
            .ok_or_else(out_of_range),
        (Type::Int, Value::Text(text)) => text.as_str().parse().map(Value::Int).map_err(|_| unreadable(text.as_str())),
        (Type::Int, Value::Timestamp(time)) => Ok(Value::Int(time.as_second())),
        (Type::Uint, Value::Int(value)) => u64::try_from(*value).map(Value::Uint).map_err(|_| out_of_range()),
        (Type::Uint, Value::Double(value)) => {
            truncated(*value).and_then(|whole| u64::try_from(whole).ok()).map(Value::Uint).ok_or_else(out_of_range)
        }
        (Type::Uint, Value::Text(text)) => {
            text.as_str().parse().map(Value::Uint).map_err(|_| unreadable(text.as_str()))
        }
        #[expect(clippy::cast_precision_loss, reason = "as everywhere in CEL")]
        (Type::Double, Value::Int(value)) => Ok(Value::Double(*value as f64)),
        #[expect(clippy::cast_precision_loss, reason = "as everywhere in CEL")]
        (Type::Double, Value::Uint(value)) => Ok(Value::Double(*value as f64)),
        (Type::Double, Value::Text(text)) => {
            text.as_str().parse().map(Value::Double).map_err(|_| unreadable(text.as_str()))
        }
        (Type::String, value) => string(value)
            .map(|text| Value::made(&text))
            .ok_or_else(|| no_overload("string", std::slice::from_ref(value))),
        (Type::Timestamp, Value::Text(text)) => {
            time::parse_timestamp(text.as_str()).map(Value::Timestamp).ok_or_else(|| unreadable(text.as_str()))
        }
        (Type::Timestamp, Value::Int(seconds)) => {
            time::from_seconds(*seconds).map(Value::Timestamp).ok_or_else(out_of_range)
        }
        (Type::Duration, Value::Text(text)) => {
            time::parse_duration(text.as_str()).map(Value::Duration).ok_or_else(|| unreadable(text.as_str()))
        }
        (kind, value) => Err(no_overload(kind.name(), std::slice::from_ref(value))),
    }
}

/// Enough of a text of the resource to recognise it.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

/// `string(x)`.
fn string(value: &Value<'_>) -> Option<String> {
    Some(match value {
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => value.to_string(),
        Value::Double(value) => double(*value),
        Value::Timestamp(time) => time::format_timestamp(*time),
        Value::Duration(nanos) => time::format_duration(*nanos),
        _ => return None,
    })
}

/// The shortest digits that read back the same; an exponent outside of 1e-4..1e6, as Go's `%g` of a double.
pub(super) fn double(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) { format!("{value}") } else { format!("{mantissa}e{exponent:+03}") }
}

/// The part before the point; `None` for what is no number.
fn truncated(value: f64) -> Option<i128> {
    #[expect(clippy::cast_possible_truncation, reason = "saturates far beyond what is accepted")]
    (value.is_finite()).then_some(value as i128)
}

pub(super) fn int(value: usize) -> Value<'static> {
    Value::Int(i64::try_from(value).unwrap_or(i64::MAX))
}

pub(super) fn invalid(what: impl Into<String>) -> Trouble {
    Trouble::new(Kind::InvalidArgument, what)
}

pub(super) fn no_overload(what: &str, args: &[Value<'_>]) -> Trouble {
    let kinds: Vec<_> = args.iter().map(|arg| arg.kind().to_string()).collect();
    Trouble::new(Kind::WrongType, format!("{what} cannot take {}", kinds.join(" and ")))
}
