//! Go templates over JSON: the part of `text/template` that puts a payload together, compiled once, with Go's
//! result on the same data.
//!
//! Supported: text, fields (`.a.b`, `$`, `$x.a`, `(pipeline).a`), `if`, `with`, `range` with their `else`, `break`,
//! `continue`, variables, pipelines, parentheses, every literal but complex numbers, comments, trim markers, and the
//! functions `and or not eq ne lt le gt ge index len print printf println` with the verbs `%s %d %v %q %f %%`.
//! Everything else is refused when the template is parsed.
//!
//! As in a Go program that decodes JSON, integers are `int64`, other numbers `float64`, objects
//! `map[string]interface {}` (ranged over in the order of their keys).
//!
//! Different from Go on purpose:
//!
//! - A key that is absent or null, at any depth, is the empty string instead of `<no value>`, `<nil>` or an error.
//!   It is false in `if`, an empty list for `range`, equal to `nil` and to `""`, and different from everything else. A
//!   callback hears of it, unless the template only asked whether it is there (`if`, `with`, `and`, `or`, `not`,
//!   `eq .. nil`, a `range` that has an `else`).
//! - What could only fail when it is reached is refused at once: `nil` as a command, arguments to what is not a
//!   function, a wrong number of arguments, assignment to an undeclared variable, an integer constant beyond 64 bits.
//! - Bounds: [`MAX_SOURCE`], [`MAX_NESTING`], [`MAX_OUTPUT`], [`MAX_WORK`]. A template ends, and never exhausts
//!   stack or memory.
//! - Strings are UTF-8: a literal whose escapes make other bytes is refused.
//! - Letters in names are Unicode's alphabetic characters (Go: its letters, without combining marks), and the
//!   newest characters print as they are in `%q` when this build's Unicode tables know them and Go's do not.

mod ast;
mod eval;
mod format;
mod lex;
mod literal;
mod parse;
mod quote;
mod reads;
mod value;

use std::fmt;

use serde_json::Value as Json;

/// The largest template, in bytes: ten times what anyone writes by hand.
pub const MAX_SOURCE: usize = 64 * 1024;

/// How deep blocks and parentheses nest together: parsing and running recurse this far and no further.
pub const MAX_NESTING: usize = 64;

/// The largest output of a template, and of each `print` in it, in bytes: below what every broker takes.
pub const MAX_OUTPUT: usize = 1024 * 1024;

/// How much a run may do: values looked at plus bytes compared and made, some tens of milliseconds.
pub const MAX_WORK: usize = 4 * 1024 * 1024;

/// A compiled template.
#[derive(Debug)]
pub struct Template {
    source: String,
    nodes: Vec<ast::Node>,
}

/// What a template is run over: the value of `.` and `$`, and where else an absent field may be found.
#[derive(Clone, Copy)]
pub struct Data<'v> {
    /// The value of `.` and `$`.
    pub root: &'v Json,
    /// Asked for a path of fields that starts at the root and is absent there.
    pub alias: for<'a> fn(root: &'a Json, path: &[String]) -> Option<Found<'a>>,
}

/// What stands for an absent field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Found<'a> {
    /// Another part of the same data.
    Json(&'a Json),
    /// A word derived from it.
    Text(&'static str),
}

/// A template that can't be used, and where in it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("line {line}, column {column}, at {token}: {reason}")]
pub struct Error {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The offending text, quoted and cut to a readable length.
    pub token: String,
    /// What is wrong with it.
    pub reason: Reason,
}

/// Why a template is refused.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// Not a template in Go either.
    Syntax(String),
    /// A template in Go, but outside of what is supported here.
    Unsupported(String),
    /// Go would accept it, and fail whenever it is reached.
    AlwaysFails(String),
    /// Beyond a bound.
    TooLarge(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Syntax(why) | Reason::AlwaysFails(why) | Reason::TooLarge(why) => f.write_str(why),
            Reason::Unsupported(what) => {
                write!(
                    f,
                    "{what} is not supported; supported are the actions if, with, range, break, continue, the functions"
                )?;
                for (name, _) in ast::Function::ALL {
                    write!(f, " {name}")?;
                }
                f.write_str(", the verbs %s %d %v %q %f %%, and UTF-8 text")
            }
        }
    }
}

/// A run that failed, and where in the template.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("line {line}, column {column}: {what}")]
pub struct RenderError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What happened.
    pub what: String,
}

impl Template {
    /// Compiles `source`.
    pub fn parse(source: &str) -> Result<Self, Error> {
        let stopped = |stop: parse::Stop| {
            let (line, column) = position(source, stop.at);
            let shown: String = stop.token.chars().take(40).collect();
            let token = match shown.as_str() {
                "" => "the end".to_owned(),
                shown => format!("{shown:?}"),
            };
            Error { line, column, token, reason: stop.reason }
        };
        if source.len() > MAX_SOURCE {
            let reason = Reason::TooLarge(format!("the template is larger than {MAX_SOURCE} bytes"));
            return Err(stopped(parse::Stop { reason, token: String::new(), at: source.len() }));
        }
        let nodes = parse::parse(source).map_err(stopped)?;
        Ok(Template { source: source.to_owned(), nodes })
    }

    /// Runs the template. `missing` hears the text of each absent key that was used, as often as it was.
    pub fn render(&self, data: &Data<'_>, missing: &mut dyn FnMut(&str)) -> Result<String, RenderError> {
        eval::run(&self.nodes, data, missing).map_err(|stop| {
            let (line, column) = position(&self.source, stop.at);
            RenderError { line, column, what: stop.what }
        })
    }

    /// Calls `read` with each path of fields that the template reads from the root, longest form as written; `false`
    /// when it also uses the root as a whole, so that no list of paths is enough.
    pub fn paths(&self, read: &mut dyn FnMut(&[String])) -> bool {
        reads::nodes(&self.nodes, ast::Dot::Kept, read)
    }
}

/// Line and column, both from 1, of a byte offset.
fn position(source: &str, at: usize) -> (usize, usize) {
    let before = source.get(..at).unwrap_or(source);
    let line_start = before.rfind('\n').map_or(0, |n| n + 1);
    let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
    (before.matches('\n').count() + 1, column)
}

#[cfg(test)]
mod tests;
