//! A checked expression, with every name resolved to where its value is.

use regex::Regex;

use super::functions::Function;
use super::value::Value;

/// A part of an expression, and at which byte of the source it stands.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) at: usize,
    pub(super) op: Op,
}

#[derive(Debug)]
pub(super) enum Op {
    Text(String),
    Constant(Value<'static>),
    /// The resource as a whole.
    Resource,
    /// A top-level field of the resource, and what stands for it where the API leaves it out.
    Field(String, Option<Value<'static>>),
    /// Whether the resource has a top-level field.
    HasField(String),
    Now,
    Reason,
    /// A param that was evaluated before, or the variable of an `Each` around this.
    Slot(usize),
    Select(Box<Node>, String),
    Has(Box<Node>, String),
    Index(Box<[Node; 2]>),
    Not(Box<Node>),
    Negate(Box<Node>),
    Binary(Binary, Box<[Node; 2]>),
    /// One is false, else one fails, else true.
    All(Vec<Node>),
    /// One is true, else one fails, else false.
    Any(Vec<Node>),
    Conditional(Box<[Node; 3]>),
    List(Vec<Node>),
    Map(Vec<[Node; 2]>),
    Call(Function, Vec<Node>),
    /// A regular expression that was compiled with the expression.
    Matches(Box<Node>, Box<Regex>),
    Each(Box<Each>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
}

/// One of the macros that go through a list, or through the keys of a map.
#[derive(Debug)]
pub(super) struct Each {
    pub(super) range: Node,
    /// Where the element is kept meanwhile.
    pub(super) slot: usize,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    Exists(Node),
    All(Node),
    ExistsOne(Node),
    /// `map` and `filter`: what is kept of the elements that are wanted.
    Collect {
        wanted: Option<Node>,
        kept: Node,
    },
}

impl Node {
    /// How deep lists and maps nest in its value, but for those of the resource; `slots` says it of params and
    /// variables.
    pub(super) fn nesting(&self, slots: &mut Vec<usize>) -> usize {
        let mut deepest = |nodes: &[Node]| nodes.iter().map(|node| node.nesting(slots)).max().unwrap_or(0);
        match &self.op {
            Op::Slot(slot) => slots.get(*slot).copied().unwrap_or(0),
            Op::List(nodes) => 1 + deepest(nodes),
            Op::Map(entries) => 1 + entries.iter().map(|entry| deepest(entry)).max().unwrap_or(0),
            Op::Select(of, _) => of.nesting(slots),
            // Whichever of them it is: a choice, two lists put together, an element, what `dyn` was given.
            Op::Conditional(nodes) => deepest(&nodes[..]),
            Op::Binary(_, nodes) | Op::Index(nodes) => deepest(&nodes[..]),
            Op::Call(_, nodes) => deepest(nodes).max(1),
            Op::Each(each) => {
                let range = each.range.nesting(slots);
                slots.truncate(each.slot);
                slots.push(range);
                match &each.what {
                    What::Collect { kept, .. } => 1 + kept.nesting(slots),
                    What::Exists(_) | What::All(_) | What::ExistsOne(_) => 0,
                }
            }
            Op::Text(_)
            | Op::Constant(_)
            | Op::Resource
            | Op::Field(..)
            | Op::HasField(_)
            | Op::Now
            | Op::Reason
            | Op::Has(..)
            | Op::Not(_)
            | Op::Negate(_)
            | Op::All(_)
            | Op::Any(_)
            | Op::Matches(..) => 0,
        }
    }

    /// Calls `visit` with this node and with all below it.
    pub(super) fn walk(&self, visit: &mut dyn FnMut(&Op)) {
        visit(&self.op);
        let mut each = |nodes: &[Node]| nodes.iter().for_each(|node| node.walk(visit));
        match &self.op {
            Op::Text(_)
            | Op::Constant(_)
            | Op::Resource
            | Op::Field(..)
            | Op::HasField(_)
            | Op::Now
            | Op::Reason
            | Op::Slot(_) => {}
            Op::Select(node, _) | Op::Has(node, _) | Op::Not(node) | Op::Negate(node) | Op::Matches(node, _) => {
                node.walk(visit);
            }
            Op::Index(nodes) | Op::Binary(_, nodes) => each(&nodes[..]),
            Op::Conditional(nodes) => each(&nodes[..]),
            Op::All(nodes) | Op::Any(nodes) | Op::List(nodes) | Op::Call(_, nodes) => each(nodes),
            Op::Map(entries) => entries.iter().for_each(|entry| each(entry)),
            Op::Each(of) => {
                of.range.walk(visit);
                match &of.what {
                    What::Exists(node) | What::All(node) | What::ExistsOne(node) => node.walk(visit),
                    What::Collect { wanted, kept } => {
                        if let Some(wanted) = wanted {
                            wanted.walk(visit);
                        }
                        kept.walk(visit);
                    }
                }
            }
        }
    }
}
