//! Compiles a source: bounds first, then syntax by the library, then names and types.

use cel_core::SpannedExpr;
use cel_core::parser::{MacroRegistry, ParseOptions, parse_with_options};

use super::bounds;
use super::plan::Planner;
use super::tree::Node;
use super::types::Known;
use super::value::Value;

/// The parser recurses; this is enough for the largest source (see the tests), and only what is used is ever touched.
const STACK: usize = 64 * 1024 * 1024;

/// The macros of the standard; others that the library knows do not exist in today's sentinel.
const MACROS: [(&str, &[usize]); 7] = [
    ("has", &[1]),
    ("all", &[2]),
    ("exists", &[2]),
    ("exists_one", &[2]),
    ("existsOne", &[2]),
    ("map", &[2, 3]),
    ("filter", &[2]),
];

/// What is wrong, where, and what to try.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) reason: String,
    pub(super) hint: String,
}

impl Fault {
    pub(super) fn new(at: usize, reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { at, reason: reason.into(), hint: hint.into() }
    }
}

/// What the source is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A param: any value.
    Param,
    /// The result: true or false.
    Result,
    /// A field of an event: any value, and `reason` is known.
    Field,
}

/// A param that was compiled before; its value is in the slot of the same position.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) name: String,
    pub(super) ty: Known,
    /// How deep lists and maps nest in its value.
    pub(super) nesting: usize,
    /// Its value, where that is the same over every resource.
    pub(super) always: Option<Value<'static>>,
}

/// A compiled source.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) node: Node,
    pub(super) ty: Known,
    /// How many slots it needs, those of the params before it included.
    pub(super) slots: usize,
    /// How deep lists and maps nest in its value, those of the params in it included.
    pub(super) nesting: usize,
    /// Its value, where that is the same over every resource.
    pub(super) always: Option<Value<'static>>,
    /// Parts that can only fail, and that others may decide without.
    pub(super) doubts: Vec<Fault>,
}

/// Runs `work` where the parser cannot exhaust the stack.
pub(super) fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, Fault> {
    let failed = |reason: String| Fault::new(0, reason, "report it with the expression");
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("expression".to_owned()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, work).map_err(|error| failed(format!("start a thread: {error}")))?;
        thread.join().map_err(|_| failed("the parser panicked".to_owned()))
    })
}

/// Compiles one source, which may use the params `declared` before it; `later` are those that it may not use yet.
/// Call it on a large stack.
pub(super) fn compile(
    source: &str,
    declared: &[Declared],
    later: &[&str],
    purpose: Purpose,
) -> Result<Planned, Vec<Fault>> {
    let expr = parse(source).map_err(|fault| vec![fault])?;
    Planner::new(declared, later, purpose).plan(&expr)
}

fn parse(source: &str) -> Result<SpannedExpr, Fault> {
    bounds::check(source)
        .map_err(|(at, reason)| Fault::new(at, reason, "make it smaller, or divide it into params"))?;
    if source.trim().is_empty() {
        return Err(Fault::new(0, "it is empty", "write an expression, or leave the key out"));
    }
    let standard = MacroRegistry::standard();
    let mut macros = MacroRegistry::new();
    for (name, counts) in MACROS {
        for count in counts {
            let found = [true, false].into_iter().find_map(|receiver| standard.lookup(name, *count, receiver));
            if let Some(found) = found {
                macros.register(found.clone());
            }
        }
    }
    let parsed = parse_with_options(source, ParseOptions::with_macros(macros));
    let syntax = |at, reason: &str| Fault::new(at, reason, "the language is described at https://cel.dev");
    if let Some(error) = parsed.errors.first() {
        return Err(syntax(error.span.start, &error.message));
    }
    parsed.ast.ok_or_else(|| syntax(0, "it cannot be read"))
}
