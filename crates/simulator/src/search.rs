//! The `search` parameter: a subset of the Tree Search Language, with the API's refusals.
//!
//! Evaluation follows SQL: a missing label is NULL, a comparison with NULL is unknown, and only what is true matches,
//! so `labels.k != 'v'` leaves out what has no label `k`. Input is bounded in length, depth and number of terms.

mod parse;

use std::cmp::Ordering;

use jiff::Timestamp;

pub use parse::parse;

/// The longest expression that is read.
pub const MAX_LENGTH: usize = 4096;
/// How deep parentheses and `not` may nest.
pub const MAX_DEPTH: usize = 64;

/// A parsed expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    /// Both.
    And(Box<Expr>, Box<Expr>),
    /// Either.
    Or(Box<Expr>, Box<Expr>),
    /// The opposite; never over labels or conditions.
    Not(Box<Expr>),
    /// `field op value`.
    Compare(Field, Op, Literal),
    /// `field in [..]`.
    In(Field, Vec<Literal>),
    /// `field between low and high`.
    Between(Field, Literal, Literal),
    /// `field like 'a%'`; `ilike` ignores case.
    Like(Field, String, Case),
    /// `field is null`.
    IsNull(Field),
}

/// Whether letters of different case are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// They differ.
    Sensitive,
    /// They are the same.
    Insensitive,
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// `=`
    Eq,
    /// `!=`
    Ne,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
}

impl Op {
    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Self::Eq => ordering.is_eq(),
            Self::Ne => ordering.is_ne(),
            Self::Lt => ordering.is_lt(),
            Self::Le => ordering.is_le(),
            Self::Gt => ordering.is_gt(),
            Self::Ge => ordering.is_ge(),
        }
    }

    fn mirrored(self) -> Self {
        match self {
            Self::Lt => Self::Gt,
            Self::Le => Self::Ge,
            Self::Gt => Self::Lt,
            Self::Ge => Self::Le,
            Self::Eq | Self::Ne => self,
        }
    }
}

/// What an expression can ask about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// `id`
    Id,
    /// `name`
    Name,
    /// `kind`
    Kind,
    /// `generation`
    Generation,
    /// `created_time`
    CreatedTime,
    /// `updated_time`
    UpdatedTime,
    /// `deleted_time`
    DeletedTime,
    /// `created_by` and `updated_by`
    Author,
    /// `owner_id`
    OwnerId,
    /// `labels.KEY`
    Label(String),
    /// `spec.a.b`
    Spec(Vec<String>),
    /// `status.conditions.TYPE`
    Condition(String, ConditionField),
}

/// What of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionField {
    /// The status itself.
    Status,
    /// `.last_updated_time`
    LastUpdatedTime,
    /// `.last_transition_time`
    LastTransitionTime,
    /// `.observed_generation`
    ObservedGeneration,
}

/// A value written in the expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Literal {
    /// `'text'`
    Text(String),
    /// `42`
    Number(f64),
    /// `2026-01-01T00:00:00Z`, quoted or not
    Time(Timestamp, String),
    /// `true` or `false`
    Bool(bool),
    /// `null`
    Null,
}

/// A value of a resource.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// There is none.
    Null,
    /// Text.
    Text(&'a str),
    /// Text that had to be built.
    Owned(String),
    /// A number.
    Number(f64),
    /// A time.
    Time(Timestamp),
}

impl Value<'_> {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Owned(text) => Some(text),
            Self::Null | Self::Number(_) | Self::Time(_) => None,
        }
    }

    /// Orders two values of one column; nothing comes last, as in PostgreSQL.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Null, Self::Null) => Ordering::Equal,
            (Self::Null, _) => Ordering::Greater,
            (_, Self::Null) => Ordering::Less,
            (Self::Number(left), Self::Number(right)) => left.total_cmp(right),
            (Self::Time(left), Self::Time(right)) => left.cmp(right),
            _ => self.text().cmp(&other.text()),
        }
    }

    /// Compares as SQL does; `None` is SQL's unknown.
    fn compare(&self, literal: &Literal) -> Option<Ordering> {
        match (self, literal) {
            (Self::Number(number), Literal::Number(other)) => number.partial_cmp(other),
            (Self::Number(number), Literal::Text(other)) => number.partial_cmp(&other.parse().ok()?),
            (Self::Time(time), Literal::Time(other, _)) => Some(time.cmp(other)),
            (_, Literal::Text(other) | Literal::Time(_, other)) => Some(self.text()?.cmp(other)),
            (_, Literal::Bool(other)) => Some(self.text()?.cmp(if *other { "true" } else { "false" })),
            (_, Literal::Number(other)) => self.text()?.parse::<f64>().ok()?.partial_cmp(other),
            (_, Literal::Null) => None,
        }
    }
}

impl Expr {
    /// Whether a resource matches, given how to look up its fields.
    pub fn matches<'a>(&self, lookup: &dyn Fn(&Field) -> Value<'a>) -> bool {
        self.evaluate(lookup) == Some(true)
    }

    fn evaluate<'a>(&self, lookup: &dyn Fn(&Field) -> Value<'a>) -> Option<bool> {
        match self {
            Self::And(left, right) => match (left.evaluate(lookup), right.evaluate(lookup)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            },
            Self::Or(left, right) => match (left.evaluate(lookup), right.evaluate(lookup)) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (Some(false), Some(false)) => Some(false),
                _ => None,
            },
            Self::Not(inner) => inner.evaluate(lookup).map(|holds| !holds),
            Self::Compare(field, op, literal) => lookup(field).compare(literal).map(|ordering| op.holds(ordering)),
            Self::In(field, literals) => {
                let value = lookup(field);
                let equal: Vec<_> =
                    literals.iter().map(|literal| value.compare(literal).map(Ordering::is_eq)).collect();
                if equal.contains(&Some(true)) {
                    Some(true)
                } else if equal.contains(&None) {
                    None
                } else {
                    Some(false)
                }
            }
            Self::Between(field, low, high) => {
                let value = lookup(field);
                Some(value.compare(low)?.is_ge() && value.compare(high)?.is_le())
            }
            Self::Like(field, pattern, case) => {
                let value = lookup(field);
                let text = value.text()?;
                Some(match case {
                    Case::Sensitive => like(text, pattern),
                    Case::Insensitive => like(&text.to_lowercase(), &pattern.to_lowercase()),
                })
            }
            Self::IsNull(field) => Some(lookup(field) == Value::Null),
        }
    }

    fn only_labels(&self) -> bool {
        match self {
            Self::And(left, right) | Self::Or(left, right) => left.only_labels() && right.only_labels(),
            Self::Not(inner) => inner.only_labels(),
            Self::Compare(field, ..)
            | Self::In(field, _)
            | Self::Between(field, ..)
            | Self::Like(field, ..)
            | Self::IsNull(field) => matches!(field, Field::Label(_)),
        }
    }
}

/// SQL's LIKE: `%` is any text, `_` any one character, `\` takes the next literally.
fn like(text: &str, pattern: &str) -> bool {
    let (text, pattern): (Vec<char>, Vec<char>) = (text.chars().collect(), pattern.chars().collect());
    let (mut at, mut in_pattern) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while at < text.len() {
        let step = match pattern.get(in_pattern) {
            Some('%') => {
                retry = Some((at, in_pattern));
                in_pattern += 1;
                continue;
            }
            Some('_') => Some(1),
            Some('\\') => (pattern.get(in_pattern + 1) == Some(&text[at])).then_some(2),
            Some(other) => (*other == text[at]).then_some(1),
            None => None,
        };
        if let Some(width) = step {
            at += 1;
            in_pattern += width;
        } else if let Some((from, percent)) = retry {
            retry = Some((from + 1, percent));
            at = from + 1;
            in_pattern = percent + 1;
        } else {
            return false;
        }
    }
    pattern[in_pattern..].iter().all(|&rest| rest == '%')
}

/// An expression taken apart for paging by key.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Only ids above this one match.
    pub after: Option<String>,
    /// What else must hold.
    pub rest: Option<Expr>,
    /// Whether `rest` asks about labels alone.
    pub only_labels: bool,
}

/// Takes the outer `id > 'x'` out of an expression.
pub fn plan(expr: Option<Expr>) -> Plan {
    let mut plan = Plan::default();
    if let Some(expr) = expr {
        split(expr, &mut plan);
    }
    plan.only_labels = plan.rest.as_ref().is_some_and(Expr::only_labels);
    plan
}

fn split(expr: Expr, plan: &mut Plan) {
    match expr {
        Expr::And(left, right) => {
            split(*left, plan);
            split(*right, plan);
        }
        Expr::Compare(Field::Id, Op::Gt, Literal::Text(id)) => {
            plan.after = plan.after.take().max(Some(id));
        }
        other => {
            plan.rest = Some(match plan.rest.take() {
                Some(before) => Expr::And(Box::new(before), Box::new(other)),
                None => other,
            });
        }
    }
}

#[cfg(test)]
mod tests;
