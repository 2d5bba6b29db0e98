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
