//! Turns tokens into a compiled template, by the grammar of Go's own parser. Stricter in one way: what could only
//! fail when it is reached (too many arguments, `nil` as a command) is refused here.

use super::ast::{Binding, Call, Choice, Dot, Field, Function, Node, Operand, Pipe, Range};
use super::format;
use super::lex::{self, Kind, Token};
use super::literal::{self, Literal};
use super::{MAX_NESTING, Reason};

/// Why parsing stopped: the reason, the offending text and where it begins.
pub(super) struct Stop {
    pub(super) reason: Reason,
    pub(super) token: String,
    pub(super) at: usize,
}

type Parsed<T> = Result<T, Stop>;

/// Parses a whole template.
pub(super) fn parse(source: &str) -> Parsed<Vec<Node>> {
    let mut parser =
        Parser { source, tokens: lex::tokens(source), next: 0, variables: vec!["$"], nesting: 0, ranges: 0 };
    let (nodes, end) = parser.list()?;
    match end {
        Ending::Template => Ok(nodes),
        Ending::End(token) | Ending::Else(token) => Err(stop(&token, Reason::Syntax("no block is open".into()))),
    }
}

/// What closed a list of nodes.
enum Ending<'s> {
    Template,
    End(Token<'s>),
    Else(Token<'s>),
}

struct Parser<'s> {
    source: &'s str,
    tokens: Vec<Token<'s>>,
    next: usize,
    /// Names in scope. As in Go, a block's names are visible up to its `end`, its `else` included.
    variables: Vec<&'s str>,
    nesting: usize,
    ranges: usize,
}

fn stop(token: &Token<'_>, reason: Reason) -> Stop {
    Stop { reason, token: token.text.to_owned(), at: token.at }
}

fn unclosed(word: &Token<'_>) -> Stop {
    stop(word, Reason::Syntax("it has no {{end}}".into()))
}

fn unexpected(token: &Token<'_>, context: &str) -> Stop {
    let reason = match &token.kind {
        Kind::Bad(why) => why.clone(),
        _ => format!("unexpected token in {context}"),
    };
    stop(token, Reason::Syntax(reason))
}

impl<'s> Parser<'s> {
    fn peek(&self) -> Token<'s> {
        let last = self.tokens.len().saturating_sub(1);
        self.tokens.get(self.next.min(last)).cloned().unwrap_or(Token { kind: Kind::End, text: "", at: 0 })
    }

    fn take(&mut self) -> Token<'s> {
        let token = self.peek();
        self.next += 1;
        token
    }

    fn skip_spaces(&mut self) {
        while self.peek().kind == Kind::Space {
            self.next += 1;
        }
    }

    fn peek_word(&mut self) -> Token<'s> {
        self.skip_spaces();
        self.peek()
    }

    fn take_word(&mut self) -> Token<'s> {
        self.skip_spaces();
        self.take()
    }

    /// The source between two tokens, for messages.
    fn text_from(&self, from: usize) -> String {
        let to = self.peek().at;
        self.source.get(from..to).unwrap_or_default().trim().to_owned()
    }

    fn expect_close(&mut self, context: &str) -> Parsed<()> {
        let token = self.take_word();
        if token.kind == Kind::Close { Ok(()) } else { Err(unexpected(&token, context)) }
    }

    fn nest(&mut self, token: &Token<'_>) -> Parsed<()> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(stop(
                token,
                Reason::TooLarge(format!("blocks and parentheses nest deeper than {MAX_NESTING}")),
            ));
        }
        Ok(())
    }

    /// Text and actions up to what ends them.
    fn list(&mut self) -> Parsed<(Vec<Node>, Ending<'s>)> {
        let mut nodes = Vec::new();
        loop {
            let token = self.take();
            match token.kind {
                Kind::Text => nodes.push(Node::Text(token.text.to_owned())),
                Kind::End => return Ok((nodes, Ending::Template)),
                Kind::Open => {
                    let word = self.peek_word();
                    if word.kind != Kind::Keyword {
                        nodes.push(Node::Action(self.pipeline("command", &Kind::Close)?));
                        continue;
                    }
                    self.take();
                    match word.text {
                        "end" => {
                            self.expect_close("end")?;
                            return Ok((nodes, Ending::End(word)));
                        }
                        "else" => {
                            let follows = self.peek_word();
                            if !(follows.kind == Kind::Keyword && matches!(follows.text, "if" | "with")) {
                                self.expect_close("else")?;
                            }
                            return Ok((nodes, Ending::Else(word)));
                        }
                        _ => nodes.push(self.control(&word)?),
                    }
                }
                _ => return Err(unexpected(&token, "input")),
            }
        }
    }

    fn control(&mut self, word: &Token<'s>) -> Parsed<Node> {
        match word.text {
            "if" => self.block(word, |p| p.choice(word, Dot::Kept)),
            "with" => self.block(word, |p| p.choice(word, Dot::Moved)),
            "range" => self.block(word, |p| p.range(word)),
            "break" | "continue" => {
                self.expect_close(word.text)?;
                if self.ranges == 0 {
                    return Err(stop(word, Reason::Syntax("it stands outside of any range".into())));
                }
                Ok(if word.text == "break" { Node::Break } else { Node::Continue })
            }
            other => Err(stop(word, Reason::Unsupported(format!("the action {other}")))),
        }
    }

    /// Parses one block: bounded nesting, and its variables end with it.
    fn block(&mut self, word: &Token<'s>, parse: impl FnOnce(&mut Self) -> Parsed<Node>) -> Parsed<Node> {
        self.nest(word)?;
        let scope = self.variables.len();
        let node = parse(self)?;
        self.variables.truncate(scope);
        self.nesting -= 1;
        Ok(node)
    }

    /// `if` or `with`, with its chain of `else if` or `else with`.
    fn choice(&mut self, word: &Token<'s>, dot: Dot) -> Parsed<Node> {
        let mut branches = Vec::new();
        loop {
            let pipe = self.pipeline(word.text, &Kind::Close)?;
            let (body, ending) = self.list()?;
            branches.push((pipe, body));
            match ending {
                Ending::Template => return Err(unclosed(word)),
                Ending::End(_) => return Ok(Node::Choice(Choice { branches, otherwise: Vec::new(), dot })),
                Ending::Else(_) => {}
            }
            let follows = self.peek_word();
            if follows.kind == Kind::Keyword && follows.text == word.text {
                self.take();
                continue;
            }
            let otherwise = self.otherwise(word)?;
            return Ok(Node::Choice(Choice { branches, otherwise, dot }));
        }
    }

    fn range(&mut self, word: &Token<'s>) -> Parsed<Node> {
        let pipe = self.pipeline("range", &Kind::Close)?;
        self.ranges += 1;
        let (body, ending) = self.list()?;
        self.ranges -= 1;
        let otherwise = match ending {
            Ending::Template => return Err(unclosed(word)),
            Ending::End(_) => None,
            Ending::Else(_) => Some(self.otherwise(word)?),
        };
        Ok(Node::Range(Range { pipe, body, otherwise }))
    }

    fn otherwise(&mut self, word: &Token<'s>) -> Parsed<Vec<Node>> {
        match self.list()? {
            (nodes, Ending::End(_)) => Ok(nodes),
            (_, Ending::Else(token)) => Err(unexpected(&token, "else, where only end may follow")),
            (_, Ending::Template) => Err(unclosed(word)),
        }
    }

    fn pipeline(&mut self, context: &str, end: &Kind) -> Parsed<Pipe> {
        let start = self.peek_word();
        let (variables, binding) = self.declarations(context)?;
        let value = self.peek_word();
        let mut first = None;
        let mut rest = Vec::new();
        let mut text = String::new();
        loop {
            let token = self.peek_word();
            if token.kind == *end {
                self.take();
                break;
            }
            let stage = rest.len() + usize::from(first.is_some());
            let operand = self.command(stage)?;
            match (&first, operand) {
                (None, operand) => first = Some(operand),
                (Some(_), Operand::Call(call)) => rest.push(call),
                (Some(_), _) => return Err(never(&token, "it is not a function and can't be given a piped value")),
            }
            text = self.text_from(value.at);
        }
        let text = text.trim_end_matches('|').trim_end().to_owned();
        match first {
            Some(first) => Ok(Pipe { variables, binding, first, rest, text, at: start.at }),
            None => Err(stop(&start, Reason::Syntax(format!("missing value for {context}")))),
        }
    }

    /// `$x :=`, `$x =`, and for `range` `$i, $x :=`.
    fn declarations(&mut self, context: &str) -> Parsed<(Vec<String>, Binding)> {
        let known = self.variables.clone();
        let mut names = Vec::new();
        loop {
            let variable = self.peek_word();
            if variable.kind != Kind::Variable {
                return Ok((names, Binding::Declare));
            }
            let begin = self.next;
            self.take();
            let follows = self.peek_word();
            if !matches!(follows.kind, Kind::Assign | Kind::Declare | Kind::Comma) {
                self.next = begin;
                return Ok((names, Binding::Declare));
            }
            self.take();
            names.push(variable.text.to_owned());
            self.variables.push(variable.text);
            match follows.kind {
                Kind::Declare => return Ok((names, Binding::Declare)),
                Kind::Assign => {
                    if let Some(name) = names.iter().find(|n| !known.contains(&n.as_str())) {
                        return Err(never(&variable, &format!("undefined variable {name}: declare it with :=")));
                    }
                    return Ok((names, Binding::Assign));
                }
                _ if context != "range" => {
                    let reason = Reason::Syntax(format!("too many declarations in {context}"));
                    return Err(stop(&follows, reason));
                }
                _ if names.len() > 1 => {
                    return Err(stop(&follows, Reason::Syntax("range declares two variables at most".into())));
                }
                _ => {
                    let second = self.peek_word();
                    if !matches!(second.kind, Kind::Variable | Kind::Close | Kind::RightParen) {
                        return Err(stop(&second, Reason::Syntax("range can only initialize variables".into())));
                    }
                }
            }
        }
    }

    /// Operands up to a pipe or the end of the pipeline; `stage` is 0 for a pipeline's first command.
    fn command(&mut self, stage: usize) -> Parsed<Operand> {
        let start = self.peek_word();
        let mut head = None;
        let mut args = Vec::new();
        loop {
            let at = self.peek_word();
            if let Some(term) = self.operand()? {
                match &head {
                    None => head = Some(term),
                    Some(_) => args.push((self.argument(term, &at)?, at)),
                }
            }
            let token = self.peek();
            match token.kind {
                Kind::Space => {}
                Kind::Close | Kind::RightParen => break,
                Kind::Pipe => {
                    self.take();
                    break;
                }
                _ => return Err(unexpected(&token, "operand")),
            }
        }
        let text = self.text_from(start.at).trim_end_matches('|').trim_end().to_owned();
        match head {
            None => Err(stop(&start, Reason::Syntax("empty command".into()))),
            Some(Term::Function(function)) => {
                check_arity(function, args.len() + usize::from(stage > 0), &start)?;
                if let (Function::Printf, Some((Operand::Literal(Literal::Text(format)), token))) =
                    (function, args.first())
                {
                    format::check(format).map_err(|reason| stop(token, reason))?;
                }
                let args = args.into_iter().map(|(operand, _)| operand).collect();
                Ok(Operand::Call(Call { function, args, text, at: start.at }))
            }
            Some(Term::Operand(operand)) => {
                let literal = matches!(operand, Operand::Literal(_) | Operand::Dot);
                if let Some((_, argument)) = args.first() {
                    Err(never(argument, "what stands before it is not a function and takes no argument"))
                } else if stage > 0 && literal {
                    Err(stop(&start, Reason::Syntax("a value can't be piped into what is not a function".into())))
                } else if matches!(operand, Operand::Literal(Literal::Nil)) {
                    Err(never(&start, "nil is not a command"))
                } else {
                    Ok(operand)
                }
            }
        }
    }

    /// What `term` is when it stands as an argument: there a function is called with nothing.
    fn argument(&self, term: Term, token: &Token<'s>) -> Parsed<Operand> {
        match term {
            Term::Operand(operand) => Ok(operand),
            Term::Function(function) => {
                check_arity(function, 0, token)?;
                Ok(Operand::Call(Call { function, args: Vec::new(), text: self.text_from(token.at), at: token.at }))
            }
        }
    }

    /// A term and the fields that follow it; `None` when no operand begins here.
    fn operand(&mut self) -> Parsed<Option<Term>> {
        let start = self.peek_word();
        let Some(term) = self.term()? else { return Ok(None) };
        let mut names = Vec::new();
        if let Kind::Field = start.kind {
            names.push(start.text.trim_start_matches('.').to_owned());
        }
        while self.peek().kind == Kind::Field {
            let field = self.take();
            if let Term::Operand(Operand::Literal(_) | Operand::Dot) = term
                && start.kind != Kind::Field
            {
                return Err(stop(&field, Reason::Syntax(format!("unexpected . after term {}", start.text))));
            }
            names.push(field.text.trim_start_matches('.').to_owned());
        }
        if names.is_empty() {
            return Ok(Some(term));
        }
        let base = Box::new(self.argument(term, &start)?);
        let text = self.text_from(start.at);
        Ok(Some(Term::Operand(Operand::Field(Field { base, names, text, at: start.at }))))
    }

    fn term(&mut self) -> Parsed<Option<Term>> {
        let token = self.take_word();
        let wrong = |reason| stop(&token, reason);
        let literal = match token.kind {
            Kind::Identifier => {
                let function = Function::named(token.text)
                    .ok_or_else(|| wrong(Reason::Unsupported(format!("the function {}", token.text))))?;
                return Ok(Some(Term::Function(function)));
            }
            Kind::Dot | Kind::Field => return Ok(Some(Term::Operand(Operand::Dot))),
            Kind::Variable => {
                if !self.variables.contains(&token.text) {
                    return Err(wrong(Reason::Syntax("undefined variable".into())));
                }
                return Ok(Some(Term::Operand(Operand::Variable(token.text.to_owned()))));
            }
            Kind::LeftParen => {
                self.nest(&token)?;
                let pipe = self.pipeline("parenthesized pipeline", &Kind::RightParen)?;
                self.nesting -= 1;
                return Ok(Some(Term::Operand(Operand::Pipe(Box::new(pipe)))));
            }
            Kind::Nil => Literal::Nil,
            Kind::Bool => Literal::Bool(token.text == "true"),
            Kind::Number => literal::number(token.text).map_err(wrong)?,
            Kind::Character => literal::character(token.text).map_err(wrong)?,
            Kind::Quoted | Kind::Raw => Literal::Text(literal::string(token.text).map_err(wrong)?),
            _ => {
                self.next -= 1;
                return Ok(None);
            }
        };
        Ok(Some(Term::Operand(Operand::Literal(literal))))
    }
}

/// An operand, or a function's name whose arguments may follow.
enum Term {
    Operand(Operand),
    Function(Function),
}

fn check_arity(function: Function, given: usize, token: &Token<'_>) -> Parsed<()> {
    let (least, most) = function.arity();
    if (least..=most).contains(&given) {
        return Ok(());
    }
    let wanted = if least == most { least.to_string() } else { format!("at least {least}") };
    Err(never(token, &format!("wrong number of arguments for {}: want {wanted}, got {given}", function.name())))
}

/// Go accepts this, and fails whenever it is reached.
fn never(token: &Token<'_>, why: &str) -> Stop {
    stop(token, Reason::AlwaysFails(why.to_owned()))
}
