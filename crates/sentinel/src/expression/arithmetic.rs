//! Sums and differences of numbers, times and durations: exact, or an error.

use super::eval::{Kind, Trouble};
use super::functions::no_overload;
use super::time;
use super::tree::Binary;
use super::value::Value;

/// Whether the two go together is seen here; texts and lists are added elsewhere.
pub(super) fn binary<'v>(operator: Binary, left: &Value<'v>, right: &Value<'v>) -> Result<Value<'v>, Trouble> {
    let value = match (left, right) {
        (Value::Int(left), Value::Int(right)) => integers(operator, *left, *right)?.map(Value::Int),
        (Value::Uint(left), Value::Uint(right)) => unsigned(operator, *left, *right)?.map(Value::Uint),
        (Value::Double(left), Value::Double(right)) => match operator {
            Binary::Add => Some(Value::Double(left + right)),
            Binary::Subtract => Some(Value::Double(left - right)),
            Binary::Multiply => Some(Value::Double(left * right)),
            Binary::Divide => Some(Value::Double(left / right)),
            _ => return Err(no_overload(operator.sign(), &[Value::Double(*left), Value::Double(*right)])),
        },
        (Value::Timestamp(time), Value::Duration(nanos)) | (Value::Duration(nanos), Value::Timestamp(time))
            if operator == Binary::Add =>
        {
            time::shift(*time, i128::from(*nanos)).map(Value::Timestamp)
        }
        (Value::Timestamp(time), Value::Duration(nanos)) if operator == Binary::Subtract => {
            time::shift(*time, -i128::from(*nanos)).map(Value::Timestamp)
        }
        (Value::Timestamp(left), Value::Timestamp(right)) if operator == Binary::Subtract => {
            i64::try_from(left.as_nanosecond() - right.as_nanosecond()).ok().map(Value::Duration)
        }
        (Value::Duration(left), Value::Duration(right)) if operator == Binary::Add => {
            left.checked_add(*right).map(Value::Duration)
        }
        (Value::Duration(left), Value::Duration(right)) if operator == Binary::Subtract => {
            left.checked_sub(*right).map(Value::Duration)
        }
        _ => return Err(no_overload(operator.sign(), &[left.clone(), right.clone()])),
    };
    value.ok_or_else(|| overflow(operator.sign()))
}

/// `-x`.
pub(super) fn negate<'v>(value: &Value<'v>) -> Result<Value<'v>, Trouble> {
    match value {
        Value::Int(value) => value.checked_neg().map(Value::Int).ok_or_else(|| overflow("-")),
        Value::Double(value) => Ok(Value::Double(-value)),
        other => Err(no_overload("-", std::slice::from_ref(other))),
    }
}

/// Calculates with one kind of whole numbers: nothing where the result cannot be held.
macro_rules! whole {
    ($name:ident, $number:ty) => {
        fn $name(operator: Binary, left: $number, right: $number) -> Result<Option<$number>, Trouble> {
            if right == 0 && matches!(operator, Binary::Divide | Binary::Remainder) {
                return Err(by_zero());
            }
            Ok(match operator {
                Binary::Add => left.checked_add(right),
                Binary::Subtract => left.checked_sub(right),
                Binary::Multiply => left.checked_mul(right),
                Binary::Divide => left.checked_div(right),
                Binary::Remainder => left.checked_rem(right),
                _ => None,
            })
        }
    };
}
whole!(integers, i64);
whole!(unsigned, u64);

fn overflow(sign: &str) -> Trouble {
    Trouble::new(Kind::Overflow, format!("{sign} goes beyond what can be held"))
}

fn by_zero() -> Trouble {
    Trouble::new(Kind::Overflow, "a division by zero")
}

impl Binary {
    /// As it is written.
    pub(super) fn sign(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Remainder => "%",
            Self::Equal => "==",
            Self::Unequal => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::In => "in",
        }
    }
}
