//! What a part of an expression comes to whatever the resource: what can only fail does not start.
//!
//! Parts that read nothing are run once, as they would be over any resource. Around them it is as in a run: a part that
//! fails does not matter where another one decides. What fails only where it counts is a doubt, and told as one.

use serde_json::Value as Json;

use jiff::Timestamp;

use super::Facts;
use super::compile::Declared;
use super::eval::{Kind, Run, Stop, Trouble};
use super::functions::{Function, shortened};
use super::time;
use super::tree::{Binary, Each, Node, Op, What};
use super::value::{Text, Value};
use crate::resource::Resource;

/// What is known of a part before it runs.
pub(super) enum Fate {
    /// This, over every resource.
    Is(Value<'static>),
    /// It fails over every resource.
    Fails(Stop),
    /// Only the resource knows.
    Varies,
}

/// Finds what a whole source comes to, and where else it can only fail.
pub(super) fn find(node: &Node, declared: &[Declared], slots: usize) -> (Fate, Vec<Stop>) {
    let mut search = Search { declared, slots, doubts: Vec::new() };
    let fate = search.of(node);
    (fate, search.doubts)
}

struct Search<'d> {
    declared: &'d [Declared],
    slots: usize,
    doubts: Vec<Stop>,
}

impl Search<'_> {
    fn of(&mut self, node: &Node) -> Fate {
        if self.reads_nothing(node, &mut Vec::new()) {
            return self.run(node);
        }
        let before = self.doubts.len();
        let fate = match &node.op {
            Op::All(nodes) => self.logic(nodes, false),
            Op::Any(nodes) => self.logic(nodes, true),
            Op::Conditional(nodes) => self.conditional(nodes),
            Op::Each(each) => self.each(each),
            Op::Select(of, _) | Op::Has(of, _) | Op::Not(of) | Op::Negate(of) | Op::Matches(of, _) => {
                self.all_of([&**of])
            }
            Op::Index(nodes) => self.all_of(&nodes[..]),
            Op::List(nodes) => self.all_of(nodes),
            Op::Map(entries) => self.all_of(entries.iter().flatten()),
            Op::Binary(operator, nodes) => match self.all_of(&nodes[..]) {
                Fate::Varies if self.divides_by_zero(*operator, &nodes[1]) => {
                    Fate::Fails(Stop { at: node.at, trouble: Trouble::new(Kind::Overflow, "a division by zero") })
                }
                fate => fate,
            },
            Op::Call(function, nodes) => match (self.all_of(nodes), unknown_zone(*function, nodes)) {
                (Fate::Varies, Some(trouble)) => Fate::Fails(Stop { at: node.at, trouble }),
                (fate, _) => fate,
            },
            Op::Text(_)
            | Op::Constant(_)
            | Op::Resource
            | Op::Field(..)
            | Op::HasField(_)
            | Op::Now
            | Op::Reason
            | Op::Slot(_) => Fate::Varies,
        };
        if matches!(fate, Fate::Is(_)) {
            // What is decided anyway leaves no doubt.
            self.doubts.truncate(before);
        }
        fate
    }

    /// What needs all of its parts fails with any of them.
    fn all_of<'n>(&mut self, nodes: impl IntoIterator<Item = &'n Node>) -> Fate {
        let mut failed = None;
        for node in nodes {
            if let Fate::Fails(stop) = self.of(node) {
                failed = failed.or(Some(stop));
            }
        }
        failed.map_or(Fate::Varies, Fate::Fails)
    }

    /// Whatever is divided: a double cannot be divided by an integer.
    fn divides_by_zero(&self, operator: Binary, by: &Node) -> bool {
        matches!(operator, Binary::Divide | Binary::Remainder)
            && self.reads_nothing(by, &mut Vec::new())
            && matches!(self.run(by), Fate::Is(Value::Int(0) | Value::Uint(0)))
    }

    fn logic(&mut self, nodes: &[Node], decides: bool) -> Fate {
        let fates: Vec<_> = nodes.iter().map(|node| self.of(node)).collect();
        if fates.iter().any(|fate| matches!(fate, Fate::Is(Value::Bool(value)) if *value == decides)) {
            return Fate::Is(Value::Bool(decides));
        }
        let varies = fates.iter().any(|fate| matches!(fate, Fate::Varies));
        let mut failing =
            fates.into_iter().filter_map(|fate| if let Fate::Fails(stop) = fate { Some(stop) } else { None });
        if varies {
            self.doubts.extend(failing);
            return Fate::Varies;
        }
        failing.next().map_or(Fate::Varies, Fate::Fails)
    }

    fn conditional(&mut self, nodes: &[Node; 3]) -> Fate {
        match self.of(&nodes[0]) {
            Fate::Fails(stop) => Fate::Fails(stop),
            Fate::Is(Value::Bool(true)) => self.of(&nodes[1]),
            Fate::Is(Value::Bool(false)) => self.of(&nodes[2]),
            Fate::Is(_) | Fate::Varies => match (self.of(&nodes[1]), self.of(&nodes[2])) {
                (Fate::Fails(stop), Fate::Fails(_)) => Fate::Fails(stop),
                (Fate::Fails(stop), _) | (_, Fate::Fails(stop)) => {
                    self.doubts.push(stop);
                    Fate::Varies
                }
                _ => Fate::Varies,
            },
        }
    }

    /// Of an empty list nothing is asked.
    fn each(&mut self, each: &Each) -> Fate {
        let range = self.of(&each.range);
        let parts = match &each.what {
            What::Exists(node) | What::All(node) | What::ExistsOne(node) => [Some(node), None],
            What::Collect { wanted, kept } => [wanted.as_ref(), Some(kept)],
        };
        for node in parts.into_iter().flatten() {
            if let Fate::Fails(stop) = self.of(node) {
                self.doubts.push(stop);
            }
        }
        if matches!(range, Fate::Fails(_)) { range } else { Fate::Varies }
    }

    /// Runs what reads nothing.
    fn run(&self, node: &Node) -> Fate {
        let Ok(view) = Resource::parse(r#"{"id": "none"}"#) else { return Fate::Varies };
        let mut run =
            Run::new(Facts { resource: &Json::Null, view: &view, now: Timestamp::UNIX_EPOCH }, "", self.slots);
        for (slot, param) in self.declared.iter().enumerate() {
            run.set(slot, param.always.clone().unwrap_or(Value::Null));
        }
        match run.eval(node) {
            Ok(value) => kept(&value).map_or(Fate::Varies, Fate::Is),
            Err(stop) => Fate::Fails(stop),
        }
    }

    /// Whether a part comes to the same over every resource; `bound` are the variables of the macros around it.
    fn reads_nothing(&self, node: &Node, bound: &mut Vec<usize>) -> bool {
        match &node.op {
            Op::Text(_) | Op::Constant(_) => true,
            Op::Resource
            | Op::Field(..)
            | Op::HasField(_)
            | Op::Now
            | Op::Reason
            | Op::Call(Function::Condition | Function::Summary, _) => false,
            Op::Slot(slot) => {
                bound.contains(slot) || self.declared.get(*slot).is_some_and(|param| param.always.is_some())
            }
            Op::Select(of, _) | Op::Has(of, _) | Op::Not(of) | Op::Negate(of) | Op::Matches(of, _) => {
                self.reads_nothing(of, bound)
            }
            Op::Index(nodes) | Op::Binary(_, nodes) => nodes.iter().all(|node| self.reads_nothing(node, bound)),
            Op::Conditional(nodes) => nodes.iter().all(|node| self.reads_nothing(node, bound)),
            Op::All(nodes) | Op::Any(nodes) | Op::List(nodes) | Op::Call(_, nodes) => {
                nodes.iter().all(|node| self.reads_nothing(node, bound))
            }
            Op::Map(entries) => entries.iter().flatten().all(|node| self.reads_nothing(node, bound)),
            Op::Each(each) => {
                if !self.reads_nothing(&each.range, bound) {
                    return false;
                }
                bound.push(each.slot);
                let nothing = match &each.what {
                    What::Exists(node) | What::All(node) | What::ExistsOne(node) => self.reads_nothing(node, bound),
                    What::Collect { wanted, kept } => {
                        wanted.iter().all(|wanted| self.reads_nothing(wanted, bound)) && self.reads_nothing(kept, bound)
                    }
                };
                bound.pop();
                nothing
            }
        }
    }
}

/// Texts that are kept for the params after them: what is longer is left to the run, which is bounded as a whole.
const MAX_KEPT: usize = 4096;

/// A value by itself; lists, maps and long texts are left to the run.
fn kept(value: &Value<'_>) -> Option<Value<'static>> {
    Some(match value {
        Value::Null => Value::Null,
        Value::Bool(value) => Value::Bool(*value),
        Value::Int(value) => Value::Int(*value),
        Value::Uint(value) => Value::Uint(*value),
        Value::Double(value) => Value::Double(*value),
        Value::Text(text) if text.as_str().len() > MAX_KEPT => return None,
        Value::Text(text) => Value::Text(Text::Made(text.as_str().into())),
        Value::Timestamp(time) => Value::Timestamp(*time),
        Value::Duration(nanos) => Value::Duration(*nanos),
        Value::Type(kind) => Value::Type(*kind),
        Value::List(_) | Value::Map(_) | Value::Json(_) | Value::Record(_) => return None,
    })
}

/// A zone that is written out and does not exist: there is no time that has a part in it.
fn unknown_zone(function: Function, nodes: &[Node]) -> Option<Trouble> {
    match (function, nodes) {
        (Function::Part(_), [_, Node { op: Op::Text(zone), .. }]) if !time::is_zone(zone) => {
            Some(Trouble::new(Kind::InvalidArgument, format!("unknown time zone {:?}", shortened(zone))))
        }
        _ => None,
    }
}
