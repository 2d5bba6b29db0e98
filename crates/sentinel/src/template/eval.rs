//! Runs a compiled template over one resource: bounded in time and output, never panics.

use std::cmp::Ordering;
use std::rc::Rc;

use serde_json::{Map, Value as Json};

use super::ast::{Binding, Call, Choice, Dot, Field, Function, Node, Operand, Pipe, Range};
use super::format::{Buffer, Printer};
use super::literal::Literal;
use super::value::Value;
use super::{Data, Found, MAX_WORK};

/// Why a run stopped, and where in the template.
pub(super) struct Stop {
    pub(super) what: String,
    pub(super) at: usize,
}

type Run<T> = Result<T, Stop>;

/// What follows a list of nodes.
#[derive(PartialEq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// Renders `nodes` with `data` as dot and as `$`.
pub(super) fn run<'v>(nodes: &'v [Node], data: &Data<'v>, missing: &mut dyn FnMut(&str)) -> Run<String> {
    let root = Value::new(data.root, ".");
    let variables = vec![("$", root.clone())];
    let mut eval = Eval { data, variables, out: Buffer::default(), work: 0, missing };
    eval.walk(&root, nodes)?;
    eval.out.finish().map_err(|what| Stop { what, at: 0 })
}

struct Eval<'v, 'r> {
    data: &'r Data<'v>,
    /// As Go keeps them: a stack, and a name means the topmost of that name.
    variables: Vec<(&'v str, Value<'v>)>,
    out: Buffer,
    work: usize,
    missing: &'r mut dyn FnMut(&str),
}

impl<'v> Eval<'v, '_> {
    /// Accounts for work: an operand or a round of a range is one unit, so is a byte compared or made for later.
    /// What is written out is bounded by itself.
    fn spend(&mut self, units: usize, at: usize) -> Run<()> {
        self.work = self.work.saturating_add(units).saturating_add(1);
        if self.work > MAX_WORK {
            return fail(at, format!("the template does more than {MAX_WORK} steps"));
        }
        Ok(())
    }

    fn walk(&mut self, dot: &Value<'v>, nodes: &'v [Node]) -> Run<Flow> {
        for node in nodes {
            let flow = match node {
                Node::Text(text) => {
                    self.out.push_str(text);
                    Flow::Next
                }
                Node::Action(pipe) => {
                    let value = self.pipeline(dot, pipe)?;
                    if pipe.variables.is_empty() {
                        self.write(&value, pipe.at)?;
                    }
                    Flow::Next
                }
                Node::Choice(choice) => self.choice(dot, choice)?,
                Node::Range(range) => {
                    let scope = self.variables.len();
                    let flow = self.range(dot, range)?;
                    self.variables.truncate(scope);
                    flow
                }
                Node::Break => Flow::Break,
                Node::Continue => Flow::Continue,
            };
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn write(&mut self, value: &Value<'v>, at: usize) -> Run<()> {
        self.report(value);
        match value {
            Value::Nil => self.out.push_str("<no value>"),
            value => match value.as_str() {
                Some(text) => self.out.push_str(text),
                None => Printer::new(&mut self.out).print(std::slice::from_ref(value)),
            },
        }
        self.out.check().map_err(|what| Stop { what, at })
    }

    /// Tells that a missing key was used for more than asking whether it is there.
    fn report(&mut self, value: &Value<'v>) {
        if let Value::Missing(path) = value {
            (self.missing)(path);
        }
    }

    fn choice(&mut self, dot: &Value<'v>, choice: &'v Choice) -> Run<Flow> {
        let scope = self.variables.len();
        let mut taken = None;
        for (pipe, body) in &choice.branches {
            let value = self.pipeline(dot, pipe)?;
            if value.is_true() {
                taken = Some((value, body));
                break;
            }
        }
        let flow = match (taken, choice.dot) {
            (Some((value, body)), Dot::Moved) => self.walk(&value, body)?,
            (Some((_, body)), Dot::Kept) => self.walk(dot, body)?,
            (None, _) => self.walk(dot, &choice.otherwise)?,
        };
        self.variables.truncate(scope);
        Ok(flow)
    }

    fn range(&mut self, dot: &Value<'v>, range: &'v Range) -> Run<Flow> {
        let value = self.pipeline(dot, &range.pipe)?;
        let at = range.pipe.at;
        let text = range.pipe.text.as_str();
        let mut empty = true;
        let mut each = |eval: &mut Self, index: Value<'v>, item: Value<'v>| {
            empty = false;
            eval.iteration(range, &index, &item)
        };
        match value {
            Value::Int(_) | Value::Int64(_) | Value::Byte(_) => {
                if range.pipe.variables.len() > 1 {
                    return fail(at, "can't use a number to iterate over more than one variable");
                }
                let mut i = 0;
                while let Some(item) = counted(&value, i) {
                    if each(self, Value::Nil, item)? == Flow::Break {
                        return Ok(Flow::Next);
                    }
                    i += 1;
                }
            }
            Value::List(list) => {
                for (i, item) in (0..).zip(list) {
                    if each(self, Value::Int(i), Value::new(item, text))? == Flow::Break {
                        return Ok(Flow::Next);
                    }
                }
            }
            Value::Map(map) => {
                // Keys that begin alike are compared to their ends.
                self.spend(map.keys().map(|key| 1 + key.len()).sum(), at)?;
                let mut entries: Vec<_> = map.iter().collect();
                entries.sort_unstable_by_key(|(key, _)| key.as_str());
                for (key, item) in entries {
                    if each(self, Value::Str(key), Value::new(item, text))? == Flow::Break {
                        return Ok(Flow::Next);
                    }
                }
            }
            Value::Nil => {}
            Value::Missing(path) => {
                if range.otherwise.is_none() {
                    (self.missing)(path);
                }
            }
            Value::Bool(_) | Value::Float(_) | Value::Str(_) | Value::Text(_) => {
                return fail(at, format!("range can't iterate over a {}", value.type_name()));
            }
        }
        match &range.otherwise {
            // As in Go, a break in here ends the range it belongs to by its place, which is this one.
            Some(nodes) if empty => match self.walk(dot, nodes)? {
                Flow::Break => Ok(Flow::Next),
                flow => Ok(flow),
            },
            _ => Ok(Flow::Next),
        }
    }

    fn iteration(&mut self, range: &'v Range, index: &Value<'v>, item: &Value<'v>) -> Run<Flow> {
        self.spend(0, range.pipe.at)?;
        let scope = self.variables.len();
        let names = &range.pipe.variables;
        // Of one variable it is the item, of two the index comes first.
        let values = if names.len() == 1 { [item, index] } else { [index, item] };
        for (i, (name, value)) in names.iter().zip(values).enumerate() {
            let value = value.clone();
            match range.pipe.binding {
                Binding::Assign => self.assign(name, value, range.pipe.at)?,
                Binding::Declare => {
                    if let Some(slot) = self.variables.get_mut(scope - names.len() + i) {
                        slot.1 = value;
                    }
                }
            }
        }
        let flow = self.walk(item, &range.body)?;
        self.variables.truncate(scope);
        Ok(flow)
    }

    fn assign(&mut self, name: &str, value: Value<'v>, at: usize) -> Run<()> {
        match self.variables.iter_mut().rev().find(|(n, _)| *n == name) {
            Some(slot) => {
                slot.1 = value;
                Ok(())
            }
            None => fail(at, format!("undefined variable: {name}")),
        }
    }

    fn pipeline(&mut self, dot: &Value<'v>, pipe: &'v Pipe) -> Run<Value<'v>> {
        let mut value = self.operand(dot, &pipe.first, pipe.at)?;
        for call in &pipe.rest {
            value = self.call(dot, call, Some(value))?;
        }
        for name in &pipe.variables {
            match pipe.binding {
                Binding::Declare => self.variables.push((name, value.clone())),
                Binding::Assign => self.assign(name, value.clone(), pipe.at)?,
            }
        }
        Ok(value)
    }

    fn operand(&mut self, dot: &Value<'v>, operand: &'v Operand, at: usize) -> Run<Value<'v>> {
        self.spend(0, at)?;
        Ok(match operand {
            Operand::Literal(Literal::Nil) => Value::Nil,
            Operand::Literal(Literal::Bool(b)) => Value::Bool(*b),
            Operand::Literal(Literal::Int(i)) => Value::Int(*i),
            Operand::Literal(Literal::Float(f)) => Value::Float(*f),
            Operand::Literal(Literal::Text(text)) => Value::Str(text),
            Operand::Dot => dot.clone(),
            Operand::Variable(name) => match self.variables.iter().rev().find(|(n, _)| n == name) {
                Some((_, value)) => value.clone(),
                None => return fail(at, format!("undefined variable: {name}")),
            },
            Operand::Field(field) => {
                let base = self.operand(dot, &field.base, field.at)?;
                self.field(base, field)?
            }
            Operand::Pipe(pipe) => self.pipeline(dot, pipe)?,
            Operand::Call(call) => self.call(dot, call, None)?,
        })
    }

    fn field(&self, base: Value<'v>, field: &'v Field) -> Run<Value<'v>> {
        let missing = Value::Missing(field.text.as_str());
        let of_root =
            matches!((&base, self.data.root), (Value::Map(map), Json::Object(root)) if std::ptr::eq(*map, root));
        let mut value = base;
        for name in &field.names {
            value = match value {
                Value::Map(map) => match map.get(name) {
                    Some(json) => Value::new(json, &field.text),
                    None if of_root => {
                        return Ok(match (self.data.alias)(self.data.root, &field.names) {
                            Some(Found::Json(json)) => Value::new(json, &field.text),
                            Some(Found::Text(text)) => Value::Str(text),
                            None => missing,
                        });
                    }
                    None => return Ok(missing),
                },
                Value::Nil | Value::Missing(_) => return Ok(missing),
                other => return fail(field.at, format!("can't evaluate field {name} in type {}", other.type_name())),
            };
        }
        Ok(value)
    }

    fn call(&mut self, dot: &Value<'v>, call: &'v Call, piped: Option<Value<'v>>) -> Run<Value<'v>> {
        if let Function::And | Function::Or = call.function {
            return self.logic(dot, call, piped);
        }
        let mut args = Vec::with_capacity(call.args.len() + 1);
        for arg in &call.args {
            args.push(self.operand(dot, arg, call.at)?);
        }
        args.extend(piped);
        let result = match (call.function, args.as_slice()) {
            (Function::Not, [arg]) => Ok(Value::Bool(!arg.is_true())),
            (Function::Eq, [first, others @ ..]) => self.equal_any(first, others, call.at)?.map(Value::Bool),
            (Function::Ne, [a, b]) => self.equal_any(a, std::slice::from_ref(b), call.at)?.map(|eq| Value::Bool(!eq)),
            (Function::Lt, [a, b]) => self.ordered(a, b, call.at, |o| o == Some(Ordering::Less))?,
            (Function::Le, [a, b]) => {
                self.ordered(a, b, call.at, |o| matches!(o, Some(Ordering::Less | Ordering::Equal)))?
            }
            // Go's own definitions: greater is "not less or equal", so that a NaN is greater than everything.
            (Function::Gt, [a, b]) => {
                self.ordered(a, b, call.at, |o| !matches!(o, Some(Ordering::Less | Ordering::Equal)))?
            }
            (Function::Ge, [a, b]) => self.ordered(a, b, call.at, |o| o != Some(Ordering::Less))?,
            (Function::Len, [arg]) => self.length(arg),
            (Function::Index, [item, keys @ ..]) => {
                self.spend(keys.iter().map(bytes).sum(), call.at)?;
                self.index(item, keys, &call.text)
            }
            (Function::Print | Function::Println | Function::Printf, args) => self.print(call.function, args),
            (function, _) => Err(format!("wrong number of arguments for {}", function.name())),
        };
        let value = result.map_err(|what| Stop { what: format!("{}: {what}", call.function.name()), at: call.at })?;
        if let Value::Text(text) = &value {
            self.spend(text.len(), call.at)?;
        }
        Ok(value)
    }

    /// `and` and `or`: the first argument that decides, or the last one; the others are not evaluated.
    fn logic(&mut self, dot: &Value<'v>, call: &'v Call, piped: Option<Value<'v>>) -> Run<Value<'v>> {
        let mut last = Value::Nil;
        for arg in &call.args {
            last = self.operand(dot, arg, call.at)?;
            if last.is_true() == (call.function == Function::Or) {
                return Ok(last);
            }
        }
        Ok(piped.unwrap_or(last))
    }

    fn equal_any(&mut self, first: &Value<'v>, others: &[Value<'v>], at: usize) -> Run<Result<bool, String>> {
        // `eq .x nil` asks whether a key is there; any other comparison uses it.
        if others.iter().any(|other| !matches!(other, Value::Nil)) {
            self.report(first);
        }
        if !matches!(first, Value::Nil) {
            for other in others {
                self.report(other);
            }
        }
        for other in others {
            self.spend(bytes(first).min(bytes(other)), at)?;
            match first.equals(other) {
                Ok(false) => {}
                decided => return Ok(decided),
            }
        }
        Ok(Ok(false))
    }

    fn ordered(
        &mut self,
        a: &Value<'v>,
        b: &Value<'v>,
        at: usize,
        test: impl FnOnce(Option<Ordering>) -> bool,
    ) -> Run<Result<Value<'v>, String>> {
        self.report(a);
        self.report(b);
        self.spend(bytes(a).min(bytes(b)), at)?;
        Ok(a.order(b).map(|order| Value::Bool(test(order))))
    }

    fn length(&mut self, arg: &Value<'v>) -> Result<Value<'v>, String> {
        self.report(arg);
        let length = match arg {
            Value::List(list) => list.len(),
            Value::Map(map) => map.len(),
            other => match other.as_str() {
                Some(text) => text.len(),
                None => return Err(format!("len of type {}", other.type_name())),
            },
        };
        Ok(Value::Int(i64::try_from(length).unwrap_or(i64::MAX)))
    }

    fn index(&mut self, item: &Value<'v>, keys: &[Value<'v>], text: &'v str) -> Result<Value<'v>, String> {
        let mut item = item.clone();
        if let Value::Nil = item {
            return Err("index of untyped nil".into());
        }
        for key in keys {
            self.report(key);
            item = match item {
                Value::Map(map) => match key.as_str() {
                    Some(key) => entry(map, key, text),
                    None => return Err(format!("value has type {}; should be string", key.type_name())),
                },
                Value::List(list) => Value::new(at(key, list)?, text),
                Value::Missing(path) => Value::Missing(path),
                other => match other.as_str() {
                    Some(s) => Value::Byte(*at(key, s.as_bytes())?),
                    None => return Err(format!("can't index item of type {}", other.type_name())),
                },
            };
        }
        Ok(item)
    }

    fn print(&mut self, function: Function, args: &[Value<'v>]) -> Result<Value<'v>, String> {
        for arg in args {
            self.report(arg);
        }
        let mut out = Buffer::default();
        let mut printer = Printer::new(&mut out);
        match (function, args) {
            (Function::Printf, [format, args @ ..]) => {
                let Some(format) = format.as_str() else {
                    return Err(format!("wrong type for the format; expected string; got {}", format.type_name()));
                };
                printer.printf(format, args)?;
            }
            (Function::Println, args) => printer.println(args),
            (_, args) => printer.print(args),
        }
        Ok(Value::Text(Rc::from(out.finish()?)))
    }
}

fn fail<T>(at: usize, what: impl Into<String>) -> Run<T> {
    Err(Stop { what: what.into(), at })
}

/// How long a text is.
fn bytes(value: &Value<'_>) -> usize {
    value.as_str().map_or(0, str::len)
}

fn entry<'v>(map: &'v Map<String, Json>, key: &str, text: &'v str) -> Value<'v> {
    map.get(key).map_or(Value::Missing(text), |json| Value::new(json, text))
}

/// The `i`th value when counting up to `limit`, of the same type as it.
fn counted(limit: &Value<'_>, i: i64) -> Option<Value<'static>> {
    match limit {
        Value::Int(n) if i < *n => Some(Value::Int(i)),
        Value::Int64(n) if i < *n => Some(Value::Int64(i)),
        Value::Byte(n) => u8::try_from(i).ok().filter(|i| i < n).map(Value::Byte),
        _ => None,
    }
}

/// The element at an index given as a value.
fn at<'a, T>(key: &Value<'_>, items: &'a [T]) -> Result<&'a T, String> {
    let index = match key {
        Value::Int(i) | Value::Int64(i) => *i,
        Value::Byte(b) => i64::from(*b),
        Value::Nil => return Err("cannot index slice/array with nil".into()),
        other => return Err(format!("cannot index slice/array with type {}", other.type_name())),
    };
    usize::try_from(index).ok().and_then(|i| items.get(i)).ok_or_else(|| format!("index out of range: {index}"))
}
