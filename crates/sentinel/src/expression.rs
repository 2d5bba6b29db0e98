//! Expressions in CEL: a decision of one's own, and fields of an event. Compiled, type-checked and bounded once; run
//! over each resource without a lock, without a copy of it, and never for long.
//!
//! The library parses; types and running are ours: no library bounds a run, and those that check types are wrong
//! about values whose type only the resource knows. Every step costs a unit of work, as do 16
//! bytes that are looked at or made, and beyond [`MAX_WORK`] the run ends with an error. What is written is bounded
//! before it is parsed ([`MAX_SOURCE`], [`MAX_NESTING`]).
//!
//! An expression sees `resource` (as the API serves it), `now`, `condition(name)`, `summary()` and the params before
//! it; a field of an event also sees `reason`. The functions are CEL's own and those of the strings extension.
//!
//! The surprise: as in a Go program that decodes JSON, numbers of the resource are doubles, but for `generation` and
//! `observed_generation`; `resource.spec.nodes + 1` fails, `resource.spec.nodes + 1.0` and
//! `int(resource.spec.nodes) + 1` do not. Comparing works either way.
//!
//! Different from today's sentinel on purpose: what could only fail is refused when it is compiled (a param that is
//! used before it is known, a result that is no bool, `duration("1x")`, `1 / 0`, a misspelt field of `condition()`,
//! texts compared with numbers), and bytes, messages, optional values, bindings, `format` and `quote` are not
//! supported.

mod arithmetic;
mod bounds;
mod built_in;
mod compile;
mod eval;
mod fate;
mod functions;
mod plan;
mod re2;
mod strings;
mod time;
mod tree;
mod types;
mod value;

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value as Json;

pub use bounds::{MAX_NESTING, MAX_SOURCE};
pub use eval::Kind;

use crate::partial;
use crate::resource::Resource;
use compile::{Declared, Fault, Purpose};
use eval::{Run, Stop};
use functions::Function;
use tree::{Node, Op};
use value::Value;

/// How much one evaluation may do: steps, and units of 16 bytes looked at or made. A few milliseconds, a few megabytes.
pub const MAX_WORK: usize = 256 * 1024;

/// How many params a decision may have.
const MAX_PARAMS: usize = 100;

/// What an expression is run over.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'v> {
    /// The resource, at least with the fields of [`Expression::top_level_fields`].
    pub resource: &'v Json,
    /// The same as the sentinel reads it.
    pub view: &'v Resource<'v>,
    /// The time of the decision.
    pub now: Timestamp,
}

/// A decision: named params, each visible to those after it, and a result.
#[derive(Debug)]
pub struct Expression {
    params: Vec<Compiled>,
    result: Compiled,
    /// The top-level fields of a resource that are read; nothing means all of it.
    fields: Option<BTreeSet<String>>,
    slots: usize,
    doubts: Vec<Problem>,
}

/// A field of an event.
#[derive(Debug)]
pub struct Field(Compiled, Vec<Problem>);

#[derive(Debug)]
struct Compiled {
    part: Part,
    source: String,
    node: Node,
    slots: usize,
}

/// A part of what was configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// A param, by its position from 0 and its name.
    Param(usize, String),
    /// The result.
    Result,
    /// A field of an event.
    Field,
}

/// An expression that can't be used, where, why, and what to try.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{part}line {line}, column {column}: {reason}; {hint}")]
pub struct Problem {
    /// Which part.
    pub part: Part,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub reason: String,
    /// What to try.
    pub hint: String,
}

/// An evaluation that failed, where and why.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{part}line {line}, column {column}: {what}")]
pub struct Failure {
    /// What kind of failure: there are few of them, and metrics count by them.
    pub kind: Kind,
    /// Which part.
    pub part: Part,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What happened.
    pub what: String,
}

/// What an expression came to, for whoever asks why.
#[derive(Debug)]
pub struct Explained<'e> {
    /// Each param's name, source and value, in order, up to the first that failed; of a list or a map its size alone.
    pub params: Vec<(&'e str, &'e str, Result<Json, Failure>)>,
    /// The result's source.
    pub source: &'e str,
    /// Whether the resource is due.
    pub result: Result<bool, Failure>,
}

impl Part {
    /// The name of a param; nothing for the other parts.
    pub fn name(&self) -> &str {
        match self {
            Self::Param(_, name) => name,
            Self::Result | Self::Field => "",
        }
    }

    /// The key below `message_decision` that holds it.
    pub fn key(&self) -> String {
        match self {
            Self::Param(index, _) => format!("params.{index}.expr"),
            Self::Result => "result".to_owned(),
            Self::Field => String::new(),
        }
    }
}

impl fmt::Display for Part {
    /// Ends with a comma and a space: a field's own key stands before it anyway.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Param(_, name) => write!(f, "param {name}, "),
            Self::Result => f.write_str("result, "),
            Self::Field => Ok(()),
        }
    }
}

impl Kind {
    /// Every kind, in the order of the enum; metrics create their labels from it.
    pub const ALL: [Self; 6] =
        [Self::Missing, Self::WrongType, Self::OutOfRange, Self::InvalidArgument, Self::Overflow, Self::TooExpensive];

    /// The kind as a label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::WrongType => "wrong_type",
            Self::OutOfRange => "out_of_range",
            Self::InvalidArgument => "invalid_argument",
            Self::Overflow => "overflow",
            Self::TooExpensive => "too_expensive",
        }
    }

    /// What to try.
    pub fn hint(self) -> &'static str {
        match self {
            Self::Missing => "guard it with has(), as in has(resource.labels) && has(resource.labels.tier)",
            Self::WrongType => {
                "look at the resource, and convert with string(), int() or double(): numbers of a resource are doubles"
            }
            Self::OutOfRange => "compare with size() first",
            Self::InvalidArgument => {
                "guard what may be empty, as in x != \"\" && now - timestamp(x) > duration(\"1m\")"
            }
            Self::Overflow => "compare before calculating",
            Self::TooExpensive => {
                "look at less of the resource: fewer macros inside of macros, no text put together from texts"
            }
        }
    }
}

impl Expression {
    /// Compiles a decision. Every problem of every part is told, not the first alone.
    pub fn compile(params: &[(String, String)], result: &str) -> Result<Self, Vec<Problem>> {
        compile::on_large_stack(|| Self::compile_here(params, result))
            .unwrap_or_else(|fault| Err(vec![problem(Part::Result, "", fault)]))
    }

    fn compile_here(params: &[(String, String)], result: &str) -> Result<Self, Vec<Problem>> {
        let (mut problems, mut doubts) = (Vec::new(), Vec::new());
        let mut declared: Vec<Declared> = Vec::new();
        let mut compiled = Vec::new();
        let mut later: Vec<&str> = params.iter().map(|(name, _)| name.as_str()).collect();
        if params.len() > MAX_PARAMS {
            let fault = Fault::new(0, format!("there are more than {MAX_PARAMS} params"), "put some of them together");
            return Err(vec![problem(Part::Result, result, fault)]);
        }
        for (index, (name, source)) in params.iter().enumerate() {
            let part = Part::Param(index, name.clone());
            if let Err(fault) = check_name(name, &declared) {
                problems.push(problem(part.clone(), source, fault));
            }
            // A param that is wrong is known all the same, so that what uses it is not wrong, too.
            let (mut ty, mut nesting, mut always) = (None, 0, None);
            match compile::compile(source, &declared, &later, Purpose::Param) {
                Ok(mut planned) => {
                    (ty, nesting, always) = (planned.ty, planned.nesting, planned.always.take());
                    let told = planned.doubts.drain(..).map(|fault| problem(part.clone(), source, fault));
                    doubts.extend(told);
                    compiled.push(Compiled::new(part, source, planned));
                }
                Err(faults) => problems.extend(faults.into_iter().map(|fault| problem(part.clone(), source, fault))),
            }
            declared.push(Declared { name: name.clone(), ty, nesting, always });
            later.retain(|later| later != name);
        }
        match compile::compile(result, &declared, &[], Purpose::Result) {
            Ok(mut planned) if problems.is_empty() => {
                doubts.extend(planned.doubts.drain(..).map(|fault| problem(Part::Result, result, fault)));
                Ok(Self { doubts, ..Self::of(compiled, Compiled::new(Part::Result, result, planned)) })
            }
            Ok(_) => Err(problems),
            Err(faults) => {
                problems.extend(faults.into_iter().map(|fault| problem(Part::Result, result, fault)));
                Err(problems)
            }
        }
    }

    /// Says whether a resource is due; fails when a param or the result does.
    pub fn evaluate(&self, facts: Facts<'_>) -> Result<bool, Failure> {
        let mut run = Run::new(facts, "", self.slots);
        for (slot, param) in self.params.iter().enumerate() {
            let value = run.eval(&param.node).map_err(|stop| param.failure(stop))?;
            run.set(slot, value);
        }
        run.truth(&self.result.node).map_err(|stop| self.result.failure(stop))
    }

    /// Says whether a resource is due, as [`Expression::evaluate`], reading no more of its JSON than is needed.
    pub fn answer(&self, json: &str, view: &Resource<'_>, now: Timestamp) -> Result<bool, Failure> {
        let resource = self.read(json).map_err(|error| Failure {
            kind: Kind::InvalidArgument,
            part: Part::Result,
            line: 1,
            column: 1,
            what: format!("the resource cannot be read: {error}"),
        })?;
        self.evaluate(Facts { resource: &resource, view, now })
    }

    /// Reads what the expression needs of a resource.
    pub fn read(&self, json: &str) -> Result<Json, serde_json::Error> {
        match &self.fields {
            Some(fields) if fields.is_empty() => Ok(Json::Null),
            fields => partial::read(json, fields.as_ref()),
        }
    }

    /// Says what each part came to.
    pub fn explain(&self, facts: Facts<'_>) -> Explained<'_> {
        let mut run = Run::new(facts, "", self.slots);
        let mut params = Vec::new();
        let mut failed = None;
        for (slot, param) in self.params.iter().enumerate() {
            let value = match run.eval(&param.node) {
                Ok(value) => {
                    let shown = value.shown();
                    run.set(slot, value);
                    Ok(shown)
                }
                Err(stop) => Err(param.failure(stop)),
            };
            failed = value.as_ref().err().cloned();
            params.push((param.part.name(), param.source.as_str(), value));
            if failed.is_some() {
                break;
            }
        }
        let result = match failed {
            Some(failure) => Err(failure),
            None => run.truth(&self.result.node).map_err(|stop| self.result.failure(stop)),
        };
        Explained { params, source: &self.result.source, result }
    }

    /// Parts that can only fail, and without which it may have a result all the same.
    pub fn doubts(&self) -> &[Problem] {
        &self.doubts
    }

    /// Each param's name and source, in order, and the result's source.
    pub fn sources(&self) -> (impl Iterator<Item = (&str, &str)>, &str) {
        (self.params.iter().map(|param| (param.part.name(), param.source.as_str())), &self.result.source)
    }

    /// The top-level fields of a resource that are read; `None` when the resource is read as a whole.
    pub fn top_level_fields(&self) -> Option<&BTreeSet<String>> {
        self.fields.as_ref()
    }

    fn of(params: Vec<Compiled>, result: Compiled) -> Self {
        let parts = || params.iter().chain([&result]);
        let mut fields = BTreeSet::new();
        let fields = parts().all(|part| reads(&part.node, &mut fields)).then_some(fields);
        let slots = parts().map(|part| part.slots).max().unwrap_or(0);
        Self { params, result, fields, slots, doubts: Vec::new() }
    }
}

impl Field {
    /// Compiles the source of a field.
    pub fn compile(source: &str) -> Result<Self, Vec<Problem>> {
        let planned = compile::on_large_stack(|| compile::compile(source, &[], &[], Purpose::Field))
            .unwrap_or_else(|fault| Err(vec![fault]));
        let problems = |faults: Vec<Fault>| -> Vec<_> {
            faults.into_iter().map(|fault| problem(Part::Field, source, fault)).collect()
        };
        let mut planned = planned.map_err(problems)?;
        let doubts = problems(std::mem::take(&mut planned.doubts));
        Ok(Self(Compiled::new(Part::Field, source, planned), doubts))
    }

    /// Parts that can only fail, and without which it may have a value all the same.
    pub fn doubts(&self) -> &[Problem] {
        &self.1
    }

    /// The field's value as JSON would have it; `None` for null.
    pub fn evaluate<'v>(
        &'v self,
        facts: Facts<'v>,
        reason: &'v str,
    ) -> Result<Option<impl Serialize + use<'v>>, Failure> {
        let mut run = Run::new(facts, reason, self.0.slots);
        let value = run.eval(&self.0.node).map_err(|stop| self.0.failure(stop))?;
        run.write(self.0.node.at, &value).map_err(|stop| self.0.failure(stop))?;
        Ok(Some(value).filter(|value| !matches!(value, Value::Null)))
    }

    /// Adds the top-level fields that are read; `false` when the resource is read as a whole.
    pub fn reads(&self, fields: &mut BTreeSet<String>) -> bool {
        reads(&self.0.node, fields)
    }
}

impl Compiled {
    fn new(part: Part, source: &str, planned: compile::Planned) -> Self {
        Self { part, source: source.to_owned(), node: planned.node, slots: planned.slots }
    }

    fn failure(&self, stop: Stop) -> Failure {
        let (line, column) = position(&self.source, stop.at);
        let eval::Trouble { kind, what } = stop.trouble;
        Failure { kind, part: self.part.clone(), line, column, what }
    }
}

/// Params are known by their names, which must be names.
fn check_name(name: &str, declared: &[Declared]) -> Result<(), Fault> {
    const TAKEN: [&str; 18] = [
        "resource", "now", "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for",
        "function", "if", "import", "let", "loop", "return",
    ];
    let fault = |reason: String| Err(Fault::new(0, reason, "choose another name: letters, digits and _"));
    let mut chars = name.chars();
    if !chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        || !chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
    {
        return fault(format!("{name:?} is not a name"));
    }
    if TAKEN.contains(&name) {
        return fault(format!("{name} is taken"));
    }
    if declared.iter().any(|before| before.name == name) {
        return fault(format!("{name} stands twice"));
    }
    Ok(())
}

fn problem(part: Part, source: &str, fault: Fault) -> Problem {
    let (line, column) = position(source, fault.at);
    Problem { part, line, column, reason: fault.reason, hint: fault.hint }
}

/// Line and column, both from 1, of a byte offset.
fn position(source: &str, at: usize) -> (usize, usize) {
    let before = source.get(..at).unwrap_or(source);
    let line_start = before.rfind('\n').map_or(0, |n| n + 1);
    let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
    (before.matches('\n').count() + 1, column)
}

/// Adds the top-level fields of a resource that `node` reads; `false` when it reads the resource as a whole.
fn reads(node: &Node, fields: &mut BTreeSet<String>) -> bool {
    let mut whole = false;
    node.walk(&mut |op| match op {
        Op::Resource => whole = true,
        Op::Field(name, _) | Op::HasField(name) => {
            fields.insert(name.clone());
        }
        Op::Call(Function::Condition, _) => {
            fields.insert("status".to_owned());
        }
        Op::Text(_)
        | Op::Constant(_)
        | Op::Now
        | Op::Reason
        | Op::Slot(_)
        | Op::Select(..)
        | Op::Has(..)
        | Op::Index(_)
        | Op::Not(_)
        | Op::Negate(_)
        | Op::Binary(..)
        | Op::All(_)
        | Op::Any(_)
        | Op::Conditional(_)
        | Op::List(_)
        | Op::Map(_)
        | Op::Call(..)
        | Op::Matches(..)
        | Op::Each(_) => {}
    });
    !whole
}

#[cfg(test)]
mod tests;
