//! Which types go together: what is known before anything runs. `None` is a type that only the resource knows.

use super::functions::Function;
use super::time::Part;
use super::tree::Binary;
use super::value::Type;

/// A type, or none that is known.
pub(super) type Known = Option<Type>;

/// Whether a function is called by itself, or on its first argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Call,
    Method,
    Either,
}

/// A function by its name: what it takes, the last `optional` of which may be left out, and what it yields.
#[derive(Debug)]
pub(super) struct Signature {
    pub(super) name: &'static str,
    pub(super) function: Function,
    pub(super) style: Style,
    args: &'static [&'static [Type]],
    optional: usize,
    pub(super) result: Known,
}

const ANY: &[Type] = &[];
const TEXT: &[Type] = &[Type::String];
const INT: &[Type] = &[Type::Int];
const LIST: &[Type] = &[Type::List];
const SIZED: &[Type] = &[Type::String, Type::List, Type::Map];
const TIME: &[Type] = &[Type::Timestamp];
const SPAN: &[Type] = &[Type::Timestamp, Type::Duration];

const fn call(name: &'static str, function: Function, args: &'static [&'static [Type]], result: Type) -> Signature {
    Signature { name, function, style: Style::Call, args, optional: 0, result: Some(result) }
}

const fn to(kind: Type, args: &'static [&'static [Type]]) -> Signature {
    call(kind.short(), Function::To(kind), args, kind)
}

const fn method(
    name: &'static str,
    function: Function,
    args: &'static [&'static [Type]],
    optional: usize,
    result: Type,
) -> Signature {
    Signature { name, function, style: Style::Method, args, optional, result: Some(result) }
}

const fn part(name: &'static str, part: Part, of: &'static [&'static [Type]]) -> Signature {
    method(name, Function::Part(part), of, 1, Type::Int)
}

/// Everything that can be called.
pub(super) static SIGNATURES: [Signature; 37] = [
    call("condition", Function::Condition, &[TEXT], Type::Map),
    call("summary", Function::Summary, &[], Type::Map),
    call("type", Function::TypeOf, &[ANY], Type::Meta),
    Signature { name: "dyn", function: Function::Dyn, style: Style::Call, args: &[ANY], optional: 0, result: None },
    to(Type::Bool, &[&[Type::Bool, Type::String]]),
    to(Type::Int, &[&[Type::Int, Type::Uint, Type::Double, Type::String, Type::Timestamp]]),
    to(Type::Uint, &[&[Type::Uint, Type::Int, Type::Double, Type::String]]),
    to(Type::Double, &[&[Type::Double, Type::Int, Type::Uint, Type::String]]),
    to(
        Type::String,
        &[&[Type::String, Type::Bool, Type::Int, Type::Uint, Type::Double, Type::Timestamp, Type::Duration]],
    ),
    to(Type::Timestamp, &[&[Type::Timestamp, Type::String, Type::Int]]),
    to(Type::Duration, &[&[Type::Duration, Type::String]]),
    Signature {
        name: "size",
        function: Function::Size,
        style: Style::Either,
        args: &[SIZED],
        optional: 0,
        result: Some(Type::Int),
    },
    Signature {
        name: "matches",
        function: Function::Matches,
        style: Style::Either,
        args: &[TEXT, TEXT],
        optional: 0,
        result: Some(Type::Bool),
    },
    part("getDate", Part::Date, &[TIME, TEXT]),
    part("getDayOfMonth", Part::DayOfMonth, &[TIME, TEXT]),
    part("getDayOfWeek", Part::DayOfWeek, &[TIME, TEXT]),
    part("getDayOfYear", Part::DayOfYear, &[TIME, TEXT]),
    part("getFullYear", Part::FullYear, &[TIME, TEXT]),
    part("getMonth", Part::Month, &[TIME, TEXT]),
    part("getHours", Part::Hours, &[SPAN, TEXT]),
    part("getMinutes", Part::Minutes, &[SPAN, TEXT]),
    part("getSeconds", Part::Seconds, &[SPAN, TEXT]),
    part("getMilliseconds", Part::Milliseconds, &[SPAN, TEXT]),
    method("contains", Function::Contains, &[TEXT, TEXT], 0, Type::Bool),
    method("startsWith", Function::StartsWith, &[TEXT, TEXT], 0, Type::Bool),
    method("endsWith", Function::EndsWith, &[TEXT, TEXT], 0, Type::Bool),
    method("charAt", Function::CharAt, &[TEXT, INT], 0, Type::String),
    method("indexOf", Function::IndexOf, &[TEXT, TEXT, INT], 1, Type::Int),
    method("lastIndexOf", Function::LastIndexOf, &[TEXT, TEXT, INT], 1, Type::Int),
    method("lowerAscii", Function::LowerAscii, &[TEXT], 0, Type::String),
    method("upperAscii", Function::UpperAscii, &[TEXT], 0, Type::String),
    method("replace", Function::Replace, &[TEXT, TEXT, TEXT, INT], 1, Type::String),
    method("split", Function::Split, &[TEXT, TEXT, INT], 1, Type::List),
    method("substring", Function::Substring, &[TEXT, INT, INT], 1, Type::String),
    method("trim", Function::Trim, &[TEXT], 0, Type::String),
    method("reverse", Function::Reverse, &[TEXT], 0, Type::String),
    method("join", Function::Join, &[LIST, TEXT], 1, Type::String),
];

impl Signature {
    /// Whether these arguments can be right; else why not.
    pub(super) fn check(&self, args: &[Known], on: Style) -> Result<(), String> {
        let name = self.name;
        match (self.style, on) {
            (Style::Call, Style::Method) => return Err(format!("{name} is no method: write {name}(..)")),
            (Style::Method, Style::Call) => return Err(format!("{name} is a method: write x.{name}(..)")),
            _ => {}
        }
        if !(self.args.len() - self.optional..=self.args.len()).contains(&args.len()) {
            let receiver = usize::from(on == Style::Method);
            let most = self.args.len() - receiver;
            let least = if self.optional > 0 { format!("{} to ", most - self.optional) } else { String::new() };
            return Err(format!("{name} takes {least}{most} arguments"));
        }
        let refused = self
            .args
            .iter()
            .zip(args)
            .find_map(|(wanted, found)| found.filter(|found| !wanted.is_empty() && !wanted.contains(found)));
        refused.map_or(Ok(()), |refused| Err(format!("{name} cannot take {refused}")))
    }
}

/// What can be added and so on.
const ARITHMETIC: [(Binary, Type, Type, Type); 22] = [
    (Binary::Add, Type::Int, Type::Int, Type::Int),
    (Binary::Add, Type::Uint, Type::Uint, Type::Uint),
    (Binary::Add, Type::Double, Type::Double, Type::Double),
    (Binary::Add, Type::String, Type::String, Type::String),
    (Binary::Add, Type::List, Type::List, Type::List),
    (Binary::Add, Type::Timestamp, Type::Duration, Type::Timestamp),
    (Binary::Add, Type::Duration, Type::Timestamp, Type::Timestamp),
    (Binary::Add, Type::Duration, Type::Duration, Type::Duration),
    (Binary::Subtract, Type::Int, Type::Int, Type::Int),
    (Binary::Subtract, Type::Uint, Type::Uint, Type::Uint),
    (Binary::Subtract, Type::Double, Type::Double, Type::Double),
    (Binary::Subtract, Type::Timestamp, Type::Timestamp, Type::Duration),
    (Binary::Subtract, Type::Timestamp, Type::Duration, Type::Timestamp),
    (Binary::Subtract, Type::Duration, Type::Duration, Type::Duration),
    (Binary::Multiply, Type::Int, Type::Int, Type::Int),
    (Binary::Multiply, Type::Uint, Type::Uint, Type::Uint),
    (Binary::Multiply, Type::Double, Type::Double, Type::Double),
    (Binary::Divide, Type::Int, Type::Int, Type::Int),
    (Binary::Divide, Type::Uint, Type::Uint, Type::Uint),
    (Binary::Divide, Type::Double, Type::Double, Type::Double),
    (Binary::Remainder, Type::Int, Type::Int, Type::Int),
    (Binary::Remainder, Type::Uint, Type::Uint, Type::Uint),
];

/// What an operator yields, or why it cannot.
pub(super) fn binary(operator: Binary, left: Known, right: Known) -> Result<Known, String> {
    let fits = |known: Known, wanted: Type| known.is_none_or(|known| known == wanted);
    let shown = |known: Known| known.map_or_else(|| "something".to_owned(), |known| known.to_string());
    let refused = || Err(format!("{} cannot take {} and {}", operator.sign(), shown(left), shown(right)));
    match operator {
        Binary::Add | Binary::Subtract | Binary::Multiply | Binary::Divide | Binary::Remainder => {
            let mut results = ARITHMETIC
                .iter()
                .filter(|(of, one, other, _)| *of == operator && fits(left, *one) && fits(right, *other))
                .map(|(.., result)| *result);
            let Some(first) = results.next() else { return refused() };
            Ok(Some(first).filter(|first| results.all(|other| other == *first)))
        }
        Binary::Equal | Binary::Unequal => match (left, right) {
            (Some(Type::Null), _) | (_, Some(Type::Null)) => Ok(Some(Type::Bool)),
            (Some(left), Some(right)) if left != right && !(is_number(left) && is_number(right)) => {
                Err(format!("{left} is never equal to {right}"))
            }
            _ => Ok(Some(Type::Bool)),
        },
        Binary::In if right.is_none_or(|right| matches!(right, Type::List | Type::Map)) => Ok(Some(Type::Bool)),
        Binary::In => refused(),
        Binary::Less | Binary::LessOrEqual | Binary::Greater | Binary::GreaterOrEqual => {
            let ordered = |known: Known| {
                known.is_none_or(|known| !matches!(known, Type::Null | Type::List | Type::Map | Type::Meta))
            };
            let together = match (left, right) {
                (Some(left), Some(right)) => left == right || (is_number(left) && is_number(right)),
                _ => true,
            };
            if ordered(left) && ordered(right) && together { Ok(Some(Type::Bool)) } else { refused() }
        }
    }
}

fn is_number(kind: Type) -> bool {
    matches!(kind, Type::Int | Type::Uint | Type::Double)
}
