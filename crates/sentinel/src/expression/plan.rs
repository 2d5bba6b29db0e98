//! Turns a checked syntax tree into the tree that is run: every name becomes a place, every macro a loop, and what
//! can be known beforehand is: regular expressions, times and durations that are written out, fields of `condition()`.

use cel_core::{BinaryOp, ComprehensionData, Expr, SpannedExpr, UnaryOp};
use watchfire_runtime::config::nearest;

use super::bounds::MAX_VALUE_NESTING;
use super::compile::{Declared, Fault, Planned, Purpose};
use super::eval::{Stop, Trouble};
use super::fate::{self, Fate};
use super::functions::{self, Function};
use super::tree::{Binary, Each, Node, Op, What};
use super::types::{self, Known, SIGNATURES, Style};
use super::value::{Record, Text, Type, Value};

/// How deep the parts of an expression nest: running recurses this far and no further.
const MAX_DEPTH: usize = 128;

/// How many elements a list or a map may be written with.
const MAX_LITERAL: usize = 100;

/// How deep macros nest: each level multiplies the work by the length of a list.
const MAX_LOOPS: usize = 2;

/// Fields that a resource always has for today's sentinel, and what they are where the API leaves them out.
static ALWAYS: [(&str, Value<'static>); 5] = [
    ("id", Value::Text(Text::Borrowed(""))),
    ("kind", Value::Text(Text::Borrowed(""))),
    ("href", Value::Text(Text::Borrowed(""))),
    ("name", Value::Text(Text::Borrowed(""))),
    ("generation", Value::Int(0)),
];

/// Fields that the API's resources may have, at the top level; an older API has the last two.
const FIELDS: [&str; 19] = [
    "id",
    "kind",
    "name",
    "href",
    "generation",
    "labels",
    "spec",
    "status",
    "owner_references",
    "references",
    "tenancy",
    "created_time",
    "updated_time",
    "deleted_time",
    "created_by",
    "updated_by",
    "deleted_by",
    "metadata",
    "ownerResource",
];

/// What to try where types do not go together.
const CONVERT: &str = "convert one of them, as in string(x), int(x), double(x) or timestamp(x)";

/// What becomes of what cannot have a value.
const ONLY_FAILS: &str = "as it is written, it fails on every resource";

/// The same of a part that others may decide without.
const FAILS_WHERE_IT_COUNTS: &str = "as it is written, it fails on every resource on which it counts";

/// What a macro asks of each element.
const WANTED: &str = "what is asked of each element";

/// Stands for what is wrong.
const NOTHING: (Op, Known) = (Op::Constant(Value::Null), None);

/// A part that was planned, and its type where it is known.
struct Typed {
    node: Node,
    ty: Known,
}

/// Plans one source.
pub(super) struct Planner<'a> {
    /// The slots: the params, then the variables of the macros around here.
    names: Vec<(&'a str, Known)>,
    params: usize,
    /// How deep the values of the params nest.
    nestings: Vec<usize>,
    declared: &'a [Declared],
    slots: usize,
    later: &'a [&'a str],
    purpose: Purpose,
    depth: usize,
    faults: Vec<Fault>,
    /// Fields of the resource that the API is not known to serve.
    unknown: Vec<Fault>,
}

impl<'a> Planner<'a> {
    pub(super) fn new(declared: &'a [Declared], later: &'a [&'a str], purpose: Purpose) -> Self {
        let names: Vec<_> = declared.iter().map(|param| (param.name.as_str(), param.ty)).collect();
        let (params, slots) = (names.len(), names.len());
        let nestings = declared.iter().map(|param| param.nesting).collect();
        let (faults, unknown) = (Vec::new(), Vec::new());
        Self { names, params, nestings, declared, slots, later, purpose, depth: 0, faults, unknown }
    }

    /// Plans a whole source, or tells all that is wrong with it.
    pub(super) fn plan(mut self, expr: &'a SpannedExpr) -> Result<Planned, Vec<Fault>> {
        let Typed { node, ty } = self.typed(expr);
        if self.purpose == Purpose::Result {
            self.must_be_bool(expr, ty, "the result");
        }
        let mut nesting = 0;
        if self.faults.is_empty() {
            nesting = node.nesting(&mut self.nestings);
            if nesting > MAX_VALUE_NESTING {
                let reason = format!("with the params in it, its value nests deeper than {MAX_VALUE_NESTING}");
                self.fault(expr, reason, "put lists into lists in fewer params");
            }
        }
        // A number, or a truth, of what nests is flat again.
        let nesting = if ty.is_none_or(|ty| matches!(ty, Type::List | Type::Map)) { nesting } else { 0 };
        if !self.faults.is_empty() {
            return Err(self.faults);
        }
        let (fate, doubts) = fate::find(&node, self.declared, self.slots);
        let always = match fate {
            Fate::Fails(Stop { at, trouble }) => return Err(vec![Fault::new(at, trouble.what, ONLY_FAILS)]),
            Fate::Is(value) => Some(value),
            Fate::Varies => None,
        };
        let doubts = doubts.into_iter().map(|stop| Fault::new(stop.at, stop.trouble.what, FAILS_WHERE_IT_COUNTS));
        let doubts = self.unknown.into_iter().chain(doubts).collect();
        Ok(Planned { node, ty, slots: self.slots, nesting, always, doubts })
    }

    /// Plans a part; after a fault what is returned does not matter.
    fn typed(&mut self, expr: &'a SpannedExpr) -> Typed {
        self.depth += 1;
        let (op, ty) = if self.depth > MAX_DEPTH {
            let hint = "divide it into params; && and || may be as long as you like";
            // Once: all that is below is as deep.
            if self.faults.is_empty() {
                self.fault(expr, format!("it nests deeper than {MAX_DEPTH}"), hint)
            } else {
                NOTHING
            }
        } else {
            self.op(expr)
        };
        self.depth -= 1;
        Typed { node: Node { at: expr.span.start, op }, ty }
    }

    fn node(&mut self, expr: &'a SpannedExpr) -> Node {
        self.typed(expr).node
    }

    /// Plans a part that must be true or false.
    fn truth(&mut self, expr: &'a SpannedExpr, what: &str) -> Node {
        let Typed { node, ty } = self.typed(expr);
        self.must_be_bool(expr, ty, what);
        node
    }

    fn must_be_bool(&mut self, expr: &SpannedExpr, ty: Known, what: &str) {
        if let Some(ty) = ty.filter(|ty| *ty != Type::Bool) {
            self.fault(expr, format!("{what} is {ty}, not true or false"), "compare it with something, as in x > 0");
        }
    }

    fn fault(&mut self, expr: &SpannedExpr, reason: impl Into<String>, hint: &str) -> (Op, Known) {
        self.faults.push(Fault::new(expr.span.start, reason, hint));
        NOTHING
    }

    fn unsupported(&mut self, expr: &SpannedExpr, what: &str) -> (Op, Known) {
        self.fault(expr, format!("{what} are not supported"), "see \"Expressions\" in docs/sentinel.md")
    }

    fn op(&mut self, expr: &'a SpannedExpr) -> (Op, Known) {
        let constant = |value: Value<'static>| {
            let kind = value.kind();
            (Op::Constant(value), Some(kind))
        };
        match &expr.node {
            Expr::Null => constant(Value::Null),
            Expr::Bool(value) => constant(Value::Bool(*value)),
            Expr::Int(value) => constant(Value::Int(*value)),
            Expr::UInt(value) => constant(Value::Uint(*value)),
            Expr::Float(value) => constant(Value::Double(*value)),
            Expr::String(text) => (Op::Text(text.clone()), Some(Type::String)),
            Expr::Ident(name) | Expr::RootIdent(name) => self.name(expr, name),
            Expr::Unary { op: UnaryOp::Not, expr } => {
                (Op::Not(Box::new(self.truth(expr, "what ! stands before"))), Some(Type::Bool))
            }
            Expr::Unary { op: UnaryOp::Neg, expr: of } => {
                let Typed { node, ty } = self.typed(of);
                match ty.filter(|ty| !matches!(ty, Type::Int | Type::Double)) {
                    Some(ty) => self.fault(expr, format!("- cannot take {ty}"), CONVERT),
                    None => (Op::Negate(Box::new(node)), ty),
                }
            }
            Expr::Binary { op, left, right } => self.binary(expr, *op, left, right),
            Expr::Ternary { cond, then_expr, else_expr } => {
                let cond = self.truth(cond, "what stands before ?");
                let (one, other) = (self.typed(then_expr), self.typed(else_expr));
                let ty = one.ty.filter(|_| one.ty == other.ty);
                (Op::Conditional(Box::new([cond, one.node, other.node])), ty)
            }
            Expr::Member { expr: of, field, optional: false } => {
                let of = self.typed(of);
                self.select(expr, of, field)
            }
            Expr::MemberTestOnly { expr: of, field } => self.has(expr, of, field),
            Expr::Index { expr: of, index, optional: false } => self.index(expr, of, index),
            Expr::Call { expr: callee, args } => self.call(expr, callee, args),
            Expr::Comprehension(data) => self.each(expr, data),
            Expr::List(items) if items.len() > MAX_LITERAL => self.too_many(expr),
            Expr::Map(entries) if entries.len() > MAX_LITERAL => self.too_many(expr),
            Expr::List(items) if items.iter().all(|item| !item.optional) => {
                (Op::List(items.iter().map(|item| self.node(&item.expr)).collect()), Some(Type::List))
            }
            Expr::Map(entries) if entries.iter().all(|entry| !entry.optional) => {
                let entries = entries.iter().map(|entry| [self.node(&entry.key), self.node(&entry.value)]);
                (Op::Map(entries.collect()), Some(Type::Map))
            }
            Expr::Bytes(_) => self.unsupported(expr, "bytes"),
            Expr::Struct { .. } => self.unsupported(expr, "messages"),
            Expr::Member { .. } | Expr::Index { .. } | Expr::List(_) | Expr::Map(_) => {
                self.unsupported(expr, "optional values")
            }
            Expr::Bind { .. } => self.unsupported(expr, "bindings"),
            Expr::Error => self.fault(expr, "it cannot be read", "the language is described at https://cel.dev"),
        }
    }

    fn too_many(&mut self, expr: &SpannedExpr) -> (Op, Known) {
        self.fault(expr, format!("more than {MAX_LITERAL} elements are written out"), "write a pattern, or fewer")
    }

    /// The innermost variable of that name, else a param, else what every expression has.
    fn name(&mut self, expr: &SpannedExpr, name: &str) -> (Op, Known) {
        if let Some(slot) = self.names.iter().rposition(|(known, _)| *known == name) {
            return (Op::Slot(slot), self.names.get(slot).and_then(|(_, ty)| *ty));
        }
        match name {
            "resource" => return (Op::Resource, Some(Type::Map)),
            "now" => return (Op::Now, Some(Type::Timestamp)),
            "reason" if self.purpose == Purpose::Field => return (Op::Reason, Some(Type::String)),
            _ => {}
        }
        if let Some(kind) = Type::ALL.iter().find(|kind| kind.name() == name) {
            return (Op::Constant(Value::Type(*kind)), Some(Type::Meta));
        }
        if self.later.contains(&name) {
            let hint = "params see only those before them: move it further up";
            return self.fault(expr, format!("param {name} is not known yet"), hint);
        }
        let reason = if self.purpose == Purpose::Field { ", reason" } else { "" };
        let mut names = vec!["summary()"];
        // What a macro stands for has names of its own making, and an inner variable may hide an outer one.
        for (name, _) in self.names.iter().filter(|(name, _)| !name.starts_with("__")) {
            if !names.contains(name) && *name != "now" {
                names.push(name);
            }
        }
        let names = names.join(", ");
        let hint = format!("there are resource, now{reason}, condition(), {names}");
        self.fault(expr, format!("{name} is not known"), &hint)
    }

    fn select(&mut self, expr: &SpannedExpr, of: Typed, field: &str) -> (Op, Known) {
        let known: &[(&str, Type)] = match &of.node.op {
            Op::Resource => {
                self.doubt_field(expr, field);
                let absent = ALWAYS.iter().find(|(name, _)| *name == field).map(|(_, absent)| absent.clone());
                let ty = absent.as_ref().map(Value::kind);
                return (Op::Field(field.to_owned(), absent), ty);
            }
            Op::Call(Function::Condition, _) => &Record::CONDITION,
            Op::Call(Function::Summary, _) => &Record::SUMMARY,
            _ => &[],
        };
        let ty = known.iter().find(|(name, _)| *name == field).map(|(_, ty)| *ty);
        // Misspelt, it would fail on every resource.
        if !known.is_empty() && ty.is_none() {
            let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
            return self.fault(expr, format!("there is no field {field}"), &format!("there are {}", names.join(", ")));
        }
        if let Some(ty) = of.ty.filter(|ty| *ty != Type::Map) {
            return self.fault(expr, format!("{ty} has no field {field:?}"), "look at the resource's shape");
        }
        (Op::Select(Box::new(of.node), field.to_owned()), ty)
    }

    /// Tells of a field that is not known, and no more: an API may have others.
    fn doubt_field(&mut self, expr: &SpannedExpr, field: &str) {
        if FIELDS.contains(&field) {
            return;
        }
        let hint = match nearest(field, &FIELDS) {
            Some(meant) => format!("did you mean {meant}?"),
            None => format!("known are {}", FIELDS.join(", ")),
        };
        let reason = format!("the API's resources are not known to have {field:?}");
        self.unknown.push(Fault::new(expr.span.start, reason, hint));
    }

    fn has(&mut self, expr: &SpannedExpr, of: &'a SpannedExpr, field: &str) -> (Op, Known) {
        let of = self.typed(of);
        let op = match (&of.node.op, of.ty) {
            (Op::Resource, _) if ALWAYS.iter().any(|(name, _)| *name == field) => Op::Constant(Value::Bool(true)),
            (Op::Resource, _) => {
                self.doubt_field(expr, field);
                Op::HasField(field.to_owned())
            }
            (_, Some(ty)) if ty != Type::Map => {
                return self.fault(expr, format!("{ty} has no field {field:?}"), "look at the resource's shape");
            }
            _ => Op::Has(Box::new(of.node), field.to_owned()),
        };
        (op, Some(Type::Bool))
    }

    fn index(&mut self, expr: &SpannedExpr, of: &'a SpannedExpr, key: &'a SpannedExpr) -> (Op, Known) {
        let (of, key) = (self.typed(of), self.typed(key));
        let number = |ty: Known| ty.is_none_or(|ty| matches!(ty, Type::Int | Type::Uint | Type::Double));
        match (of.ty, key.node.op) {
            (None | Some(Type::Map), Op::Text(name)) => self.select(expr, of, &name),
            (None | Some(Type::Map), op) => (Op::Index(Box::new([of.node, Node { at: key.node.at, op }])), None),
            (Some(Type::List), op) if number(key.ty) => {
                (Op::Index(Box::new([of.node, Node { at: key.node.at, op }])), None)
            }
            (Some(ty), _) => self.fault(expr, format!("{ty} has no such element"), "look at the resource's shape"),
        }
    }

    fn binary(
        &mut self,
        expr: &SpannedExpr,
        op: BinaryOp,
        left: &'a SpannedExpr,
        right: &'a SpannedExpr,
    ) -> (Op, Known) {
        let operator = match op {
            BinaryOp::And | BinaryOp::Or => return (self.logic(op, left, right), Some(Type::Bool)),
            BinaryOp::Add => Binary::Add,
            BinaryOp::Sub => Binary::Subtract,
            BinaryOp::Mul => Binary::Multiply,
            BinaryOp::Div => Binary::Divide,
            BinaryOp::Mod => Binary::Remainder,
            BinaryOp::Eq => Binary::Equal,
            BinaryOp::Ne => Binary::Unequal,
            BinaryOp::Lt => Binary::Less,
            BinaryOp::Le => Binary::LessOrEqual,
            BinaryOp::Gt => Binary::Greater,
            BinaryOp::Ge => Binary::GreaterOrEqual,
            BinaryOp::In => Binary::In,
        };
        let (left, right) = (self.typed(left), self.typed(right));
        match types::binary(operator, left.ty, right.ty) {
            Ok(ty) => (Op::Binary(operator, Box::new([left.node, right.node])), ty),
            Err(reason) => self.fault(expr, reason, CONVERT),
        }
    }

    /// `a && b && c` is one node: as long as it may be, it nests no deeper.
    fn logic(&mut self, op: BinaryOp, left: &'a SpannedExpr, right: &'a SpannedExpr) -> Op {
        let mut parts = vec![right];
        let mut rest = left;
        while let Expr::Binary { op: inner, left, right } = &rest.node
            && *inner == op
        {
            parts.push(right);
            rest = left;
        }
        parts.push(rest);
        let what = if op == BinaryOp::And { "a part of &&" } else { "a part of ||" };
        let parts = parts.into_iter().rev().map(|part| self.truth(part, what)).collect();
        if op == BinaryOp::And { Op::All(parts) } else { Op::Any(parts) }
    }

    fn call(&mut self, expr: &SpannedExpr, callee: &'a SpannedExpr, args: &'a [SpannedExpr]) -> (Op, Known) {
        let (name, receiver) = match &callee.node {
            Expr::Ident(name) | Expr::RootIdent(name) => (name, None),
            Expr::Member { expr: receiver, field, .. } => (field, Some(&**receiver)),
            _ => return self.unsupported(expr, "calls of a value"),
        };
        let Some(signature) = SIGNATURES.iter().find(|known| known.name == name) else {
            let names: Vec<_> = SIGNATURES.iter().map(|known| known.name).collect();
            return self.fault(
                expr,
                format!("function {name} is not known"),
                &format!("there are {}", names.join(", ")),
            );
        };
        let args: Vec<Typed> = receiver.into_iter().chain(args).map(|arg| self.typed(arg)).collect();
        let types: Vec<Known> = args.iter().map(|arg| arg.ty).collect();
        let style = if receiver.is_some() { Style::Method } else { Style::Call };
        if let Err(reason) = signature.check(&types, style) {
            return self.fault(expr, reason, CONVERT);
        }
        let nodes: Vec<Node> = args.into_iter().map(|arg| arg.node).collect();
        let nodes = match (signature.function, <[Node; 2]>::try_from(nodes)) {
            (Function::Matches, Ok([text, Node { op: Op::Text(pattern), .. }])) => {
                return match functions::regex(&pattern) {
                    Ok(regex) => (Op::Matches(Box::new(text), Box::new(regex)), signature.result),
                    Err(why) => self.fault(expr, format!("no regular expression: {why}"), "RE2's syntax is understood"),
                };
            }
            (_, Ok(two)) => two.into(),
            (_, Err(nodes)) => nodes,
        };
        match self.known(signature.function, &nodes) {
            Some(Ok(value)) => (Op::Constant(value), signature.result),
            Some(Err(trouble)) => self.fault(expr, trouble.what, ONLY_FAILS),
            None => (Op::Call(signature.function, nodes), signature.result),
        }
    }

    /// What a call of constants yields, or why it can only fail.
    fn known(&self, function: Function, nodes: &[Node]) -> Option<Result<Value<'static>, Trouble>> {
        let constant = |node: &Node| match &node.op {
            Op::Text(text) => Some(Value::made(text)),
            Op::Constant(value) => Some(value.clone()),
            _ => None,
        };
        let args: Vec<Value<'static>> = nodes.iter().map(constant).collect::<Option<_>>()?;
        let here = matches!(function, Function::Condition | Function::Summary) || !self.faults.is_empty();
        (!here).then(|| functions::call(function, &args, &mut |_| Ok(())))
    }

    /// A macro, as the parser expands it: recognised by its step, and run as the loop that it is.
    fn each(&mut self, expr: &'a SpannedExpr, data: &'a ComprehensionData) -> (Op, Known) {
        let range = self.typed(&data.iter_range);
        if let Some(ty) = range.ty.filter(|ty| !matches!(ty, Type::List | Type::Map)) {
            return self.fault(expr, format!("{ty} has no elements"), "look at the resource's shape");
        }
        let slot = self.names.len();
        if slot - self.params >= MAX_LOOPS {
            let hint = "the work multiplies; ask for less, or divide it into params";
            return self.fault(expr, format!("macros nest deeper than {MAX_LOOPS}"), hint);
        }
        self.slots = self.slots.max(slot + 1);
        self.names.push((&data.iter_var, None));
        let what = match &data.loop_step.node {
            Expr::Binary { op: BinaryOp::Or, left, .. } => Some(What::Exists(self.truth(left, WANTED))),
            Expr::Binary { op: BinaryOp::And, left, .. } => Some(What::All(self.truth(left, WANTED))),
            Expr::Ternary { cond, then_expr, .. } => match &then_expr.node {
                Expr::Binary { op: BinaryOp::Add, right, .. } if matches!(right.node, Expr::Int(1)) => {
                    Some(What::ExistsOne(self.truth(cond, WANTED)))
                }
                step => appended(step)
                    .map(|kept| What::Collect { wanted: Some(self.truth(cond, WANTED)), kept: self.node(kept) }),
            },
            step => appended(step).map(|kept| What::Collect { wanted: None, kept: self.node(kept) }),
        };
        self.names.pop();
        match what {
            Some(what) => {
                let ty = if matches!(what, What::Collect { .. }) { Type::List } else { Type::Bool };
                (Op::Each(Box::new(Each { range: range.node, slot, what })), Some(ty))
            }
            None => self.unsupported(expr, "macros of this kind"),
        }
    }
}

/// What `result + [x]` appends.
fn appended(step: &Expr) -> Option<&SpannedExpr> {
    let Expr::Binary { op: BinaryOp::Add, right, .. } = step else { return None };
    let Expr::List(items) = &right.node else { return None };
    items.first().map(|item| &item.expr)
}
