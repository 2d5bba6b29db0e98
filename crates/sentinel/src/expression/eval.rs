//! Runs an expression: in steps that are counted, so that it ends, and never takes more memory than it has steps.

use std::cmp::Ordering;

use super::arithmetic::{self, negate};
use super::functions::{self, Function, no_overload};
use super::tree::{Binary, Each, Node, Op, What};
use super::value::{self, BYTES_PER_UNIT, NoOrder, Record, Text, Type, Value};
use super::{Facts, MAX_WORK};

/// What an evaluation can fail of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A field, a key or an element that is not there.
    Missing,
    /// A value of a type that cannot be used so.
    WrongType,
    /// A position outside of a list or a text.
    OutOfRange,
    /// An argument that makes no sense, such as a time that is none.
    InvalidArgument,
    /// A number, a time or a duration beyond what its type holds, or a division by zero.
    Overflow,
    /// The bound on work was reached.
    TooExpensive,
}

/// Why a part of an expression has no value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Trouble {
    pub(super) kind: Kind,
    pub(super) what: String,
}

impl Trouble {
    pub(super) fn new(kind: Kind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into() }
    }
}

/// Trouble, and at which byte of the source.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stop {
    pub(super) at: usize,
    pub(super) trouble: Trouble,
}

type Outcome<'v> = Result<Value<'v>, Stop>;

/// One run over one resource.
pub(super) struct Run<'v> {
    facts: Facts<'v>,
    reason: &'v str,
    slots: Vec<Value<'v>>,
    work: usize,
}

impl<'v> Run<'v> {
    pub(super) fn new(facts: Facts<'v>, reason: &'v str, slots: usize) -> Self {
        Self { facts, reason, slots: vec![Value::Null; slots], work: 0 }
    }

    /// Keeps the value of a param for those after it.
    pub(super) fn set(&mut self, slot: usize, value: Value<'v>) {
        if let Some(place) = self.slots.get_mut(slot) {
            *place = value;
        }
    }

    fn charge(&mut self, work: usize) -> Result<(), Trouble> {
        self.work = self.work.saturating_add(work);
        if self.work > MAX_WORK {
            return Err(Trouble::new(Kind::TooExpensive, format!("takes more than {MAX_WORK} steps")));
        }
        Ok(())
    }

    pub(super) fn eval(&mut self, node: &'v Node) -> Outcome<'v> {
        let at = node.at;
        let stop = |trouble| Stop { at, trouble };
        self.charge(1).map_err(stop)?;
        match &node.op {
            Op::Text(text) => Ok(Value::text(text)),
            Op::Constant(value) => Ok(value.clone()),
            Op::Resource => Ok(Value::Json(self.facts.resource)),
            Op::Field(name, absent) => {
                let found = self.facts.resource.get(name).map(|json| Value::of_json(name, json));
                found.or_else(|| absent.clone()).ok_or_else(|| stop(missing(name)))
            }
            Op::Now => Ok(Value::Timestamp(self.facts.now.into())),
            Op::Reason => Ok(Value::text(self.reason)),
            Op::Slot(slot) => Ok(self.slots.get(*slot).cloned().unwrap_or(Value::Null)),
            Op::Select(of, name) => self.select(of, name),
            Op::HasField(name) => Ok(Value::Bool(self.facts.resource.get(name).is_some())),
            Op::Has(of, name) => self.has(of, name),
            Op::Index(nodes) => {
                let (of, key) = (self.eval(&nodes[0])?, self.eval(&nodes[1])?);
                self.charge(of.search_cost(&key)).map_err(stop)?;
                index(&of, &key).map_err(stop)
            }
            Op::Not(of) => match self.eval(of)? {
                Value::Bool(value) => Ok(Value::Bool(!value)),
                other => Err(stop(no_overload("!", &[other]))),
            },
            Op::Negate(of) => negate(&self.eval(of)?).map_err(stop),
            Op::Binary(operator, nodes) => {
                let (left, right) = (self.eval(&nodes[0])?, self.eval(&nodes[1])?);
                self.binary(*operator, &left, &right).map_err(stop)
            }
            Op::All(nodes) => self.logic(at, nodes, false),
            Op::Any(nodes) => self.logic(at, nodes, true),
            Op::Conditional(nodes) => match self.eval(&nodes[0])? {
                Value::Bool(true) => self.eval(&nodes[1]),
                Value::Bool(false) => self.eval(&nodes[2]),
                other => Err(stop(no_overload("?:", &[other]))),
            },
            Op::List(nodes) => Ok(Value::list(self.all_of(nodes)?)),
            Op::Map(entries) => self.map(at, entries),
            Op::Call(function, nodes) => self.call(at, *function, nodes),
            Op::Matches(text, regex) => match self.eval(text)? {
                Value::Text(text) => {
                    self.charge(functions::matching_work(text.as_str())).map_err(stop)?;
                    Ok(Value::Bool(regex.is_match(text.as_str())))
                }
                other => Err(stop(no_overload("matches", &[other]))),
            },
            Op::Each(each) => self.each(at, each),
        }
    }

    fn all_of(&mut self, nodes: &'v [Node]) -> Result<Vec<Value<'v>>, Stop> {
        nodes.iter().map(|node| self.eval(node)).collect()
    }

    /// A map's field of that name, which has to be there.
    fn select(&mut self, of: &'v Node, name: &'v str) -> Outcome<'v> {
        let value = self.eval(of)?;
        let stop = |trouble| Stop { at: of.at, trouble };
        let key = Value::text(name);
        self.charge(value.search_cost(&key)).map_err(stop)?;
        match value.kind() {
            Type::Map => value.get(&key).ok_or_else(|| stop(missing(name))),
            kind => Err(stop(Trouble::new(Kind::WrongType, format!("{kind} has no field {name:?}")))),
        }
    }

    /// Whether there is such a field: what is no map has none.
    fn has(&mut self, of: &'v Node, name: &'v str) -> Outcome<'v> {
        let value = self.eval(of)?;
        let key = Value::text(name);
        self.charge(value.search_cost(&key)).map_err(|trouble| Stop { at: of.at, trouble })?;
        Ok(Value::Bool(value.get(&key).is_some()))
    }

    /// `&&` and `||` in any order: a part that fails does not matter where another one decides.
    fn logic(&mut self, at: usize, nodes: &'v [Node], decides: bool) -> Outcome<'v> {
        let mut failed = None;
        for node in nodes {
            match self.eval(node) {
                Ok(Value::Bool(value)) if value == decides => return Ok(Value::Bool(decides)),
                Ok(Value::Bool(_)) => {}
                Ok(other) => {
                    let operator = if decides { "||" } else { "&&" };
                    failed = failed.or_else(|| Some(Stop { at, trouble: no_overload(operator, &[other]) }));
                }
                Err(stop) => failed = failed.or(Some(stop)),
            }
        }
        failed.map_or(Ok(Value::Bool(!decides)), Err)
    }

    fn map(&mut self, at: usize, entries: &'v [[Node; 2]]) -> Outcome<'v> {
        let stop = |trouble| Stop { at, trouble };
        let mut made: Vec<(Value<'v>, Value<'v>)> = Vec::with_capacity(entries.len());
        for [key, value] in entries {
            let key = self.eval(key)?;
            if !matches!(key, Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Text(_)) {
                return Err(stop(no_overload("a key of a map", &[key])));
            }
            self.charge(made.len() * (1 + key.bytes() / BYTES_PER_UNIT)).map_err(stop)?;
            let value = self.eval(value)?;
            // The last of equal keys counts, as in Go.
            made.retain(|(known, _)| !value::same_key(known, &key));
            made.push((key, value));
        }
        Ok(Value::Map(made.into()))
    }

    fn call(&mut self, at: usize, function: Function, nodes: &'v [Node]) -> Outcome<'v> {
        let args = self.all_of(nodes)?;
        let called = match (function, args.as_slice()) {
            (Function::Condition, [Value::Text(name)]) => {
                let (found, looked_at) = functions::condition(self.facts.resource, name.as_str());
                self.charge(looked_at * (1 + name.as_str().len() / BYTES_PER_UNIT)).map(|()| found)
            }
            (Function::Summary, []) => Ok(Value::Record(Record::Summary(self.facts.view))),
            (function, args) => functions::call(function, args, &mut |work| self.charge(work)),
        };
        called.map_err(|trouble| Stop { at, trouble })
    }

    fn binary(&mut self, operator: Binary, left: &Value<'v>, right: &Value<'v>) -> Result<Value<'v>, Trouble> {
        let refused = || no_overload(operator.sign(), &[left.clone(), right.clone()]);
        let ordered = |run: &mut Self, wanted: fn(Ordering) -> bool| {
            run.charge(left.bytes().min(right.bytes()) / BYTES_PER_UNIT)?;
            let order = value::order(left, right).map_err(|NoOrder| refused())?;
            Ok(Value::Bool(order.is_some_and(wanted)))
        };
        match operator {
            Binary::Equal | Binary::Unequal => {
                let equal = value::equal(left, right, &mut |work| self.charge(work))?;
                Ok(Value::Bool(equal == (operator == Binary::Equal)))
            }
            Binary::Less => ordered(self, Ordering::is_lt),
            Binary::LessOrEqual => ordered(self, Ordering::is_le),
            Binary::Greater => ordered(self, Ordering::is_gt),
            Binary::GreaterOrEqual => ordered(self, Ordering::is_ge),
            Binary::In => self.contains(left, right)?.map(Value::Bool).ok_or_else(refused),
            Binary::Add => match (left, right) {
                (Value::Text(left), Value::Text(right)) => self.concat(left, right),
                (left, right) if left.kind() == Type::List && right.kind() == Type::List => self.append(left, right),
                _ => arithmetic::binary(operator, left, right),
            },
            Binary::Subtract | Binary::Multiply | Binary::Divide | Binary::Remainder => {
                arithmetic::binary(operator, left, right)
            }
        }
    }

    /// `x in list` and `key in map`; `None` where there is nothing to be in.
    fn contains(&mut self, wanted: &Value<'v>, of: &Value<'v>) -> Result<Option<bool>, Trouble> {
        match of.kind() {
            Type::Map => {
                self.charge(of.search_cost(wanted))?;
                Ok(Some(of.get(wanted).is_some()))
            }
            Type::List => {
                for item in of.items() {
                    if value::equal(wanted, &item, &mut |work| self.charge(work))? {
                        return Ok(Some(true));
                    }
                }
                Ok(Some(false))
            }
            _ => Ok(None),
        }
    }

    fn concat(&mut self, left: &Text<'v>, right: &Text<'v>) -> Result<Value<'v>, Trouble> {
        let (left, right) = (left.as_str(), right.as_str());
        self.charge((left.len() + right.len()) / BYTES_PER_UNIT)?;
        Ok(Value::made(&[left, right].concat()))
    }

    fn append(&mut self, left: &Value<'v>, right: &Value<'v>) -> Result<Value<'v>, Trouble> {
        let lengths = (left.len().unwrap_or(0), right.len().unwrap_or(0));
        self.charge(lengths.0 + lengths.1)?;
        Ok(Value::list(left.items().chain(right.items()).collect()))
    }

    fn each(&mut self, at: usize, each: &'v Each) -> Outcome<'v> {
        let range = self.eval(&each.range)?;
        let stop = |trouble| Stop { at, trouble };
        if range.len().is_none() {
            return Err(stop(no_overload("a macro", &[range])));
        }
        let mut kept = Vec::new();
        let mut matched = 0_usize;
        let mut failed = None;
        for item in range.items() {
            self.charge(1).map_err(stop)?;
            self.set(each.slot, item);
            match &each.what {
                // As with `||` and `&&`: one that decides outweighs those that fail.
                What::Exists(node) | What::All(node) => {
                    let decides = matches!(each.what, What::Exists(_));
                    match self.truth(node) {
                        Ok(truth) if truth == decides => return Ok(Value::Bool(decides)),
                        Ok(_) => {}
                        Err(stop) => failed = failed.or(Some(stop)),
                    }
                }
                What::ExistsOne(node) => matched += usize::from(self.truth(node)?),
                What::Collect { wanted, kept: node } => {
                    if wanted.as_ref().map_or(Ok(true), |wanted| self.truth(wanted))? {
                        kept.push(self.eval(node)?);
                    }
                }
            }
        }
        match (&each.what, failed) {
            (_, Some(stop)) => Err(stop),
            (What::Exists(_), None) => Ok(Value::Bool(false)),
            (What::All(_), None) => Ok(Value::Bool(true)),
            (What::ExistsOne(_), None) => Ok(Value::Bool(matched == 1)),
            (What::Collect { .. }, None) => Ok(Value::list(kept)),
        }
    }

    /// Accounts for all that will be written of a value.
    pub(super) fn write(&mut self, at: usize, value: &Value<'_>) -> Result<(), Stop> {
        value::written(value, &mut |work| self.charge(work)).map_err(|trouble| Stop { at, trouble })
    }

    /// A value that must be true or false.
    pub(super) fn truth(&mut self, node: &'v Node) -> Result<bool, Stop> {
        match self.eval(node)? {
            Value::Bool(value) => Ok(value),
            other => {
                let what = format!("{} where true or false is needed", other.kind());
                Err(Stop { at: node.at, trouble: Trouble::new(Kind::WrongType, what) })
            }
        }
    }
}

fn missing(name: &str) -> Trouble {
    Trouble::new(Kind::Missing, format!("there is no {:?}", functions::shortened(name)))
}

fn index<'v>(of: &Value<'v>, key: &Value<'v>) -> Result<Value<'v>, Trouble> {
    match of.kind() {
        Type::Map => match key {
            Value::Text(name) => of.get(key).ok_or_else(|| missing(name.as_str())),
            Value::Double(number) => {
                let whole = value::exact_integer(*number).map(Value::Int);
                whole.and_then(|whole| of.get(&whole)).ok_or_else(|| missing("that number"))
            }
            _ => of.get(key).ok_or_else(|| missing("that key")),
        },
        Type::List => {
            let whole = match key {
                Value::Int(index) => Some(*index),
                Value::Uint(index) => Some(i64::try_from(*index).unwrap_or(i64::MAX)),
                Value::Double(index) => value::exact_integer(*index),
                _ => None,
            };
            let whole = whole.ok_or_else(|| no_overload("a position in a list", std::slice::from_ref(key)))?;
            usize::try_from(whole)
                .ok()
                .and_then(|index| of.nth(index))
                .ok_or_else(|| Trouble::new(Kind::OutOfRange, format!("{whole} is not a position in the list")))
        }
        _ => Err(no_overload("[]", &[of.clone(), key.clone()])),
    }
}
