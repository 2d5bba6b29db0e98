//! Which paths a template reads from the root, so that a server need not send the rest.

use super::ast::{Choice, Dot, Field, Node, Operand, Pipe, Range};

/// Reports paths until the root is found to be used as a whole (`false`). `dot` says whether dot is still the root.
pub(super) fn nodes(nodes: &[Node], dot: Dot, read: &mut dyn FnMut(&[String])) -> bool {
    nodes.iter().all(|node| node_paths(node, dot, read))
}

fn node_paths(node: &Node, dot: Dot, read: &mut dyn FnMut(&[String])) -> bool {
    match node {
        Node::Text(_) | Node::Break | Node::Continue => true,
        Node::Action(p) => pipe(p, dot, read),
        Node::Choice(Choice { branches, otherwise, dot: moved }) => {
            let inner = if dot == Dot::Moved { dot } else { *moved };
            branches.iter().all(|(p, body)| pipe(p, dot, read) && nodes(body, inner, read))
                && nodes(otherwise, dot, read)
        }
        Node::Range(Range { pipe: p, body, otherwise }) => {
            pipe(p, dot, read)
                && nodes(body, Dot::Moved, read)
                && otherwise.as_ref().is_none_or(|o| nodes(o, dot, read))
        }
    }
}

fn pipe(pipe: &Pipe, dot: Dot, read: &mut dyn FnMut(&[String])) -> bool {
    let args = pipe.rest.iter().flat_map(|call| &call.args);
    std::iter::once(&pipe.first).chain(args).all(|o| operand(o, dot, read))
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
        Operand::Call(call) => call.args.iter().all(|o| operand(o, dot, read)),
    }
}
