//! Which paths a template reads from the root, so that a server need not send the rest.

use super::ast::{Choice, Dot, Field, Node, Operand, Pipe, Range};

/// Reports every path; `false` if the root is used as a whole. `dot` says whether dot is still the root.
pub(super) fn nodes(nodes: &[Node], dot: Dot, read: &mut dyn FnMut(&[String])) -> bool {
    // Every part is visited, also after the answer is known to be false: callers may want the paths anyway.
    nodes.iter().fold(true, |all, node| node_paths(node, dot, read) && all)
}

fn node_paths(node: &Node, dot: Dot, read: &mut dyn FnMut(&[String])) -> bool {
    match node {
        Node::Text(_) | Node::Break | Node::Continue => true,
        Node::Action(p) => pipe(p, dot, read),
        Node::Choice(Choice { branches, otherwise, dot: moved }) => {
            let inner = if dot == Dot::Moved { dot } else { *moved };
            let taken = branches.iter().fold(true, |all, (p, body)| {
                let condition = pipe(p, dot, read);
                nodes(body, inner, read) && condition && all
            });
            nodes(otherwise, dot, read) && taken
        }
        Node::Range(Range { pipe: p, body, otherwise }) => {
            let head = pipe(p, dot, read);
            let body = nodes(body, Dot::Moved, read);
            otherwise.as_ref().is_none_or(|o| nodes(o, dot, read)) && head && body
        }
    }
}

fn pipe(pipe: &Pipe, dot: Dot, read: &mut dyn FnMut(&[String])) -> bool {
    let args = pipe.rest.iter().flat_map(|call| &call.args);
    std::iter::once(&pipe.first).chain(args).fold(true, |all, o| operand(o, dot, read) && all)
}

fn operand(o: &Operand, dot: Dot, read: &mut dyn FnMut(&[String])) -> bool {
    match o {
        Operand::Literal(_) => true,
        Operand::Dot => dot == Dot::Moved,
        Operand::Variable(name) => name != "$",
        Operand::Field(Field { base, names, .. }) => match base.as_ref() {
            Operand::Dot if dot == Dot::Moved => true,
            Operand::Dot => {
                read(names);
                true
            }
            Operand::Variable(name) if name == "$" => {
                read(names);
                true
            }
            base => operand(base, dot, read),
        },
        Operand::Pipe(p) => pipe(p, dot, read),
        Operand::Call(call) => call.args.iter().fold(true, |all, o| operand(o, dot, read) && all),
    }
}
