//! The functions of texts: those of the standard, and the strings extension. Positions count characters.

use super::eval::{Kind, Trouble};
use super::functions::{Function, int, invalid, no_overload};
use super::value::{BYTES_PER_UNIT, Text, Type, Value};

type Charge<'c> = &'c mut dyn FnMut(usize) -> Result<(), Trouble>;

/// Calls a function of texts; each charges for the bytes that it looks at, and for those that it makes before it
/// makes them.
pub(super) fn call<'v>(function: Function, args: &[Value<'v>], charge: Charge<'_>) -> Result<Value<'v>, Trouble> {
    let refused = || no_overload(&function.to_string(), args);
    if let (Function::Join, [list, rest @ ..]) = (function, args) {
        let separator = match rest {
            [] => "",
            [Value::Text(separator)] => separator.as_str(),
            _ => return Err(refused()),
        };
        return join(list, separator, charge)?.ok_or_else(refused);
    }
    let [Value::Text(text), rest @ ..] = args else { return Err(refused()) };
    let text = text.as_str();
    charge(args.iter().map(Value::bytes).sum::<usize>() / BYTES_PER_UNIT)?;
    let made = |text: String| Ok(Value::made(&text));
    match (function, rest) {
        (Function::Contains, [Value::Text(part)]) => Ok(Value::Bool(text.contains(part.as_str()))),
        (Function::StartsWith, [Value::Text(part)]) => Ok(Value::Bool(text.starts_with(part.as_str()))),
        (Function::EndsWith, [Value::Text(part)]) => Ok(Value::Bool(text.ends_with(part.as_str()))),
        (Function::CharAt, [Value::Int(at)]) => {
            let range = range(text, *at, Some(*at).filter(|at| to_index(text, *at) != Some(text.len())))?;
            let end = text.get(range.start..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
            made(text.get(range.start..range.start + end).unwrap_or_default().to_owned())
        }
        (Function::IndexOf | Function::LastIndexOf, [Value::Text(part), rest @ ..]) => {
            position(function, text, part.as_str(), rest).ok_or_else(refused)?
        }
        (Function::LowerAscii, []) => made(text.to_ascii_lowercase()),
        (Function::UpperAscii, []) => made(text.to_ascii_uppercase()),
        (Function::Replace, [Value::Text(from), Value::Text(to), rest @ ..]) => {
            let limit = limit(rest).ok_or_else(refused)?;
            made(replace(text, from, to, limit, charge)?)
        }
        (Function::Split, [Value::Text(separator), rest @ ..]) => {
            let limit = limit(rest).ok_or_else(refused)?;
            split(text, separator.as_str(), limit, charge)
        }
        (Function::Substring, [Value::Int(from)]) => made(text[range(text, *from, None)?].to_owned()),
        (Function::Substring, [Value::Int(from), Value::Int(to)]) => {
            made(text[range(text, *from, Some(*to))?].to_owned())
        }
        (Function::Trim, []) => made(text.trim().to_owned()),
        (Function::Reverse, []) => made(text.chars().rev().collect()),
        _ => Err(refused()),
    }
}

/// How often, at most; `None` for arguments that do not say. A negative number is no bound.
fn limit(rest: &[Value<'_>]) -> Option<usize> {
    match rest {
        [] => Some(usize::MAX),
        [Value::Int(limit)] => Some(usize::try_from(*limit).unwrap_or(usize::MAX)),
        _ => None,
    }
}

/// The byte at which a character begins, the end of the text included.
fn to_index(text: &str, at: i64) -> Option<usize> {
    let at = usize::try_from(at).ok()?;
    text.char_indices().map(|(index, _)| index).chain([text.len()]).nth(at)
}

fn out_of_range(at: i64) -> Trouble {
    Trouble::new(Kind::OutOfRange, format!("{at} is not a position in the text"))
}

fn range(text: &str, from: i64, to: Option<i64>) -> Result<std::ops::Range<usize>, Trouble> {
    let start = to_index(text, from).ok_or_else(|| out_of_range(from))?;
    let end = to.map_or(Ok(text.len()), |to| to_index(text, to).ok_or_else(|| out_of_range(to)))?;
    if start > end {
        return Err(invalid(format!("a range from {from} to {}", to.unwrap_or_default())));
    }
    Ok(start..end)
}

/// `indexOf` and `lastIndexOf`, with or without a position to begin at; -1 when there is none.
fn position(function: Function, text: &str, part: &str, rest: &[Value<'_>]) -> Option<Result<Value<'static>, Trouble>> {
    let from = match rest {
        [] => None,
        [Value::Int(from)] => Some(*from),
        _ => return None,
    };
    if let Some(from) = from.filter(|_| part.is_empty()) {
        return Some(Ok(Value::Int(from)));
    }
    if let Some(from) = from.filter(|from| *from < 0) {
        return Some(Err(out_of_range(from)));
    }
    let at = from.map(|from| to_index(text, from).unwrap_or(text.len()));
    let found = match function {
        _ if at == Some(text.len()) && !text.is_empty() => None,
        Function::IndexOf => {
            text.get(at.unwrap_or(0)..).and_then(|rest| rest.find(part)).map(|index| at.unwrap_or(0) + index)
        }
        // The last one that begins at the position, or before it.
        _ => {
            let end = at.map_or(text.len(), |at| (at + part.len()).min(text.len()));
            let end = (end..=text.len()).find(|end| text.is_char_boundary(*end)).unwrap_or(text.len());
            text.get(..end).and_then(|rest| rest.rfind(part)).filter(|index| at.is_none_or(|at| *index <= at))
        }
    };
    let characters = |index: usize| int(text.get(..index).map_or(0, |before| before.chars().count()));
    Some(Ok(found.map_or(Value::Int(-1), characters)))
}

fn replace(text: &str, from: &Text<'_>, to: &Text<'_>, limit: usize, charge: Charge<'_>) -> Result<String, Trouble> {
    let (from, to) = (from.as_str(), to.as_str());
    let times = text.matches(from).count().min(limit);
    // What is made is known before it is made: a replacement may be far longer than what it replaces.
    charge((text.len() + times.saturating_mul(to.len())) / BYTES_PER_UNIT)?;
    Ok(text.replacen(from, to, times))
}

fn split<'v>(text: &str, separator: &str, limit: usize, charge: Charge<'_>) -> Result<Value<'v>, Trouble> {
    let most = if separator.is_empty() { text.chars().count() } else { text.matches(separator).count() + 1 };
    charge(most.min(limit))?;
    let pieces: Vec<&str> = match (limit, separator) {
        (0, _) => Vec::new(),
        (limit, "") => characters(text, limit),
        (limit, separator) => text.splitn(limit, separator).collect(),
    };
    Ok(Value::list(pieces.into_iter().map(Value::made).collect()))
}

/// Each character by itself; the last of `limit` pieces is the rest.
fn characters(text: &str, limit: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let (piece, after) = if pieces.len() + 1 < limit { rest.split_at(next.len_utf8()) } else { (rest, "") };
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// Puts a list of texts together; `None` when it is none.
fn join<'v>(list: &Value<'v>, separator: &str, charge: Charge<'_>) -> Result<Option<Value<'v>>, Trouble> {
    if list.kind() != Type::List {
        return Ok(None);
    }
    let mut out = String::new();
    for (index, item) in list.items().enumerate() {
        let Value::Text(item) = item else { return Ok(None) };
        charge(1 + (separator.len() + item.as_str().len()) / BYTES_PER_UNIT)?;
        if index > 0 {
            out.push_str(separator);
        }
        out.push_str(item.as_str());
    }
    Ok(Some(Value::made(&out)))
}
