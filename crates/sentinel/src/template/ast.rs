//! A compiled template. What can be known before any data is seen has been checked: functions, their number of
//! arguments, verbs of literal formats, variables.

use super::literal::Literal;

#[derive(Debug)]
pub(super) enum Node {
    Text(String),
    Action(Pipe),
    Choice(Choice),
    Range(Range),
    Break,
    Continue,
}

/// `if` and `with`: the first branch whose pipeline is true, else `otherwise`.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) branches: Vec<(Pipe, Vec<Node>)>,
    pub(super) otherwise: Vec<Node>,
    pub(super) dot: Dot,
}

/// What a branch sees as dot: what the block around it sees (`if`), or its pipeline's value (`with`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Dot {
    Kept,
    Moved,
}

#[derive(Debug)]
pub(super) struct Range {
    pub(super) pipe: Pipe,
    pub(super) body: Vec<Node>,
    pub(super) otherwise: Option<Vec<Node>>,
}

/// `$x := first | rest | ...`
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) variables: Vec<String>,
    pub(super) binding: Binding,
    pub(super) first: Operand,
    pub(super) rest: Vec<Call>,
    /// As written, for messages; an element of what this pipeline yields is named by it.
    pub(super) text: String,
    pub(super) at: usize,
}

/// Whether a pipeline's variables are declared by it or were before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Binding {
    Declare,
    Assign,
}

#[derive(Debug)]
pub(super) enum Operand {
    Literal(Literal),
    Dot,
    Variable(String),
    Field(Field),
    Pipe(Box<Pipe>),
    Call(Call),
}

/// `.a.b`, `$x.a.b`, `(pipeline).a.b`.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) base: Box<Operand>,
    pub(super) names: Vec<String>,
    pub(super) text: String,
    pub(super) at: usize,
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) function: Function,
    pub(super) args: Vec<Operand>,
    pub(super) text: String,
    pub(super) at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Function {
    And,
    Or,
    Not,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Index,
    Len,
    Print,
    Printf,
    Println,
}

impl Function {
    pub(super) const ALL: [(&'static str, Function); 14] = [
        ("and", Function::And),
        ("or", Function::Or),
        ("not", Function::Not),
        ("eq", Function::Eq),
        ("ne", Function::Ne),
        ("lt", Function::Lt),
        ("le", Function::Le),
        ("gt", Function::Gt),
        ("ge", Function::Ge),
        ("index", Function::Index),
        ("len", Function::Len),
        ("print", Function::Print),
        ("printf", Function::Printf),
        ("println", Function::Println),
    ];

    pub(super) fn named(name: &str) -> Option<Function> {
        Self::ALL.iter().find(|(n, _)| *n == name).map(|(_, f)| *f)
    }

    pub(super) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, f)| *f == self).map_or("", |(n, _)| n)
    }

    /// The least and the greatest number of arguments.
    pub(super) fn arity(self) -> (usize, usize) {
        match self {
            Function::And | Function::Or | Function::Index | Function::Printf => (1, usize::MAX),
            Function::Not | Function::Len => (1, 1),
            Function::Eq => (2, usize::MAX),
            Function::Ne | Function::Lt | Function::Le | Function::Gt | Function::Ge => (2, 2),
            Function::Print | Function::Println => (0, usize::MAX),
        }
    }
}
