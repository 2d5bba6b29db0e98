//! Reads an expression: a lexer, a descent by precedence, and the checks that the API makes while it walks the tree.

use std::iter::Peekable;
use std::vec::IntoIter;

use jiff::Timestamp;

use super::{Case, ConditionField, Expr, Field, Literal, MAX_DEPTH, MAX_LENGTH, Op};
use crate::problem::Problem;

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Number(f64),
    Time(Timestamp, String),
    Op(Op),
    Arithmetic(&'static str),
    Open,
    Close,
    OpenList,
    CloseList,
    Comma,
}

impl Token {
    fn is(&self, keyword: &str) -> bool {
        matches!(self, Self::Word(word) if word.eq_ignore_ascii_case(keyword))
    }
}

/// Parses and checks an expression; an empty one is none.
pub fn parse(text: &str) -> Result<Option<Expr>, Problem> {
    if text.len() > MAX_LENGTH {
        return Err(Problem::search(format!("search must be at most {MAX_LENGTH} characters")));
    }
    if text.trim().is_empty() {
        return Ok(None);
    }
    let mut parser = Parser { tokens: lex(text)?.into_iter().peekable(), depth: 0, within_not: false };
    let expr = parser.or()?;
    match parser.tokens.next() {
        None => Ok(Some(expr)),
        Some(token) => Err(malformed(&format!("unexpected {token:?}"))),
    }
}

fn malformed(what: &str) -> Problem {
    Problem::search(format!("Failed to parse search query: {what}"))
}

fn lex(text: &str) -> Result<Vec<Token>, Problem> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    let run = |from: usize, accept: fn(char) -> bool| chars[from..].iter().take_while(|&&c| accept(c)).count();
    while let Some(&first) = chars.get(at) {
        let next = chars.get(at + 1).copied();
        let (token, width) = match (first, next) {
            (c, _) if c.is_whitespace() => {
                at += 1;
                continue;
            }
            ('(', _) => (Token::Open, 1),
            (')', _) => (Token::Close, 1),
            ('[', _) => (Token::OpenList, 1),
            (']', _) => (Token::CloseList, 1),
            (',', _) => (Token::Comma, 1),
            ('=', Some('=')) => (Token::Op(Op::Eq), 2),
            ('=', _) => (Token::Op(Op::Eq), 1),
            ('!', Some('=')) | ('<', Some('>')) => (Token::Op(Op::Ne), 2),
            ('<', Some('=')) => (Token::Op(Op::Le), 2),
            ('<', _) => (Token::Op(Op::Lt), 1),
            ('>', Some('=')) => (Token::Op(Op::Ge), 2),
            ('>', _) => (Token::Op(Op::Gt), 1),
            ('+', _) => (Token::Arithmetic("ADD"), 1),
            ('-', _) => (Token::Arithmetic("SUB"), 1),
            ('*', _) => (Token::Arithmetic("MUL"), 1),
            ('%', _) => (Token::Arithmetic("MOD"), 1),
            ('/', _) => (Token::Arithmetic("DIV"), 1),
            ('\'' | '"', _) => {
                let (literal, width) = quoted(&chars[at..])?;
                (Token::Text(literal), width)
            }
            (c, _) if c.is_ascii_digit() => {
                let width = run(at, |c| c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '-' | '+'));
                let literal: String = chars[at..at + width].iter().collect();
                match (literal.parse(), literal.parse()) {
                    (Ok(time), _) => (Token::Time(time, literal), width),
                    (_, Ok(number)) => (Token::Number(number), width),
                    _ => return Err(malformed(&format!("'{literal}' is neither a number nor a time"))),
                }
            }
            (c, _) if c.is_alphabetic() || c == '_' => {
                let width = run(at, |c| c.is_alphanumeric() || matches!(c, '_' | '.' | '/'));
                (Token::Word(chars[at..at + width].iter().collect()), width)
            }
            (c, _) => return Err(malformed(&format!("unexpected character '{c}'"))),
        };
        tokens.push(token);
        at += width;
    }
    Ok(tokens)
}

/// A string, whose quote is written twice inside.
fn quoted(chars: &[char]) -> Result<(String, usize), Problem> {
    let quote = chars[0];
    let mut literal = String::new();
    let mut at = 1;
    loop {
        match (chars.get(at), chars.get(at + 1)) {
            (Some(&c), Some(&following)) if c == quote && following == quote => {
                literal.push(quote);
                at += 2;
            }
            (Some(&c), _) if c == quote => return Ok((literal, at + 1)),
            (Some(&c), _) => {
                literal.push(c);
                at += 1;
            }
            (None, _) => return Err(malformed("a string is not closed")),
        }
    }
}

struct Parser {
    tokens: Peekable<IntoIter<Token>>,
    depth: usize,
    within_not: bool,
}

impl Parser {
    fn accept(&mut self, keyword: &str) -> bool {
        self.tokens.next_if(|token| token.is(keyword)).is_some()
    }

    fn expect(&mut self, wanted: &Token) -> Result<(), Problem> {
        match self.tokens.next() {
            Some(token) if token == *wanted => Ok(()),
            Some(token) => Err(malformed(&format!("unexpected {token:?}"))),
            None => Err(malformed("unexpected end")),
        }
    }

    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T, Problem>) -> Result<T, Problem> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(malformed(&format!("nested deeper than {MAX_DEPTH}")));
        }
        let result = inner(self);
        self.depth -= 1;
        result
    }

    fn or(&mut self) -> Result<Expr, Problem> {
        let mut terms = vec![self.and()?];
        while self.accept("or") {
            terms.push(self.and()?);
        }
        Ok(balance(terms, Expr::Or))
    }

    fn and(&mut self) -> Result<Expr, Problem> {
        let mut terms = vec![self.term()?];
        while self.accept("and") {
            terms.push(self.term()?);
        }
        Ok(balance(terms, Expr::And))
    }

    fn term(&mut self) -> Result<Expr, Problem> {
        if self.accept("not") {
            return self.negated(|parser| parser.nested(Self::term));
        }
        if self.tokens.next_if_eq(&Token::Open).is_some() {
            let expr = self.nested(Self::or)?;
            self.expect(&Token::Close)?;
            return Ok(expr);
        }
        self.predicate()
    }

    /// The API refuses labels and conditions anywhere below a `not`.
    fn negated(&mut self, inner: impl FnOnce(&mut Self) -> Result<Expr, Problem>) -> Result<Expr, Problem> {
        let outer = std::mem::replace(&mut self.within_not, true);
        let expr = inner(self);
        self.within_not = outer;
        Ok(Expr::Not(Box::new(expr?)))
    }

    fn predicate(&mut self) -> Result<Expr, Problem> {
        let (name, turned) = match self.tokens.next() {
            Some(Token::Word(name)) => (name, None),
            Some(token) => {
                let literal = literal(token)?;
                let Some(Token::Op(op)) = self.tokens.next() else {
                    return Err(malformed("a comparison must follow a value"));
                };
                let Some(Token::Word(name)) = self.tokens.next() else {
                    return Err(malformed("one side of a comparison must be a field"));
                };
                (name, Some((op.mirrored(), literal)))
            }
            None => return Err(malformed("unexpected end")),
        };
        if let Some(Token::Arithmetic(op)) = self.tokens.peek() {
            // What a hyphen in a label key looks like to the grammar.
            return Err(Problem::search(format!("unsupported comparison operator: {op}")));
        }
        let within_not = self.within_not;
        let field = move |negated: bool| field(&name, within_not || negated);
        if let Some((op, literal)) = turned {
            return comparison(field(false)?, op, literal);
        }
        let token = self.tokens.next().ok_or_else(|| malformed("unexpected end"))?;
        match token {
            Token::Op(op) => {
                let literal = self.literal()?;
                comparison(field(false)?, op, literal)
            }
            token if token.is("is") => {
                let negated = self.accept("not");
                if !self.accept("null") {
                    return Err(malformed("null must follow is"));
                }
                let test = Expr::IsNull(field(negated)?);
                Ok(if negated { Expr::Not(Box::new(test)) } else { test })
            }
            token if token.is("not") => {
                let operator = self.tokens.next().ok_or_else(|| malformed("unexpected end"))?;
                let field = field(true)?;
                self.negated(|parser| parser.operator(&operator, field))
            }
            token => {
                let field = field(false)?;
                self.operator(&token, field)
            }
        }
    }

    fn operator(&mut self, operator: &Token, field: Field) -> Result<Expr, Problem> {
        let over_condition = matches!(field, Field::Condition(..));
        let refuse = |name: &str| {
            Problem::search(format!(
                "{name} is not supported for condition queries; use comparison operators (=, !=, <, <=, >, >=)"
            ))
        };
        if operator.is("in") {
            if over_condition {
                return Err(refuse("IN"));
            }
            let literals = self.list()?.into_iter().map(|value| typed(&field, value)).collect::<Result<_, _>>()?;
            Ok(Expr::In(field, literals))
        } else if operator.is("between") {
            if over_condition {
                return Err(refuse("BETWEEN"));
            }
            let low = typed(&field, self.literal()?)?;
            if !self.accept("and") {
                return Err(malformed("between needs two values joined by and"));
            }
            let high = typed(&field, self.literal()?)?;
            Ok(Expr::Between(field, low, high))
        } else if operator.is("like") || operator.is("ilike") {
            if over_condition {
                return Err(refuse("LIKE/ILIKE"));
            }
            let Literal::Text(pattern) = self.literal()? else {
                return Err(malformed("like needs a string"));
            };
            let case = if operator.is("like") { Case::Sensitive } else { Case::Insensitive };
            Ok(Expr::Like(field, pattern, case))
        } else {
            Err(malformed(&format!("unexpected {operator:?}")))
        }
    }

    fn list(&mut self) -> Result<Vec<Literal>, Problem> {
        let close = match self.tokens.next() {
            Some(Token::OpenList) => Token::CloseList,
            Some(Token::Open) => Token::Close,
            _ => return Err(malformed("expected array on right side of IN")),
        };
        let mut literals = vec![self.literal()?];
        while self.tokens.next_if_eq(&Token::Comma).is_some() {
            literals.push(self.literal()?);
        }
        self.expect(&close)?;
        Ok(literals)
    }

    fn literal(&mut self) -> Result<Literal, Problem> {
        match self.tokens.next() {
            Some(Token::Arithmetic("SUB")) => match self.tokens.next() {
                Some(Token::Number(number)) => Ok(Literal::Number(-number)),
                _ => Err(malformed("a number must follow a sign")),
            },
            Some(token) => literal(token),
            None => Err(malformed("unexpected end")),
        }
    }
}

fn literal(token: Token) -> Result<Literal, Problem> {
    match token {
        Token::Text(text) => Ok(Literal::Text(text)),
        Token::Number(number) => Ok(Literal::Number(number)),
        Token::Time(time, text) => Ok(Literal::Time(time, text)),
        ref word if word.is("null") => Ok(Literal::Null),
        ref word if word.is("true") => Ok(Literal::Bool(true)),
        ref word if word.is("false") => Ok(Literal::Bool(false)),
        other => Err(malformed(&format!("a value was expected, not {other:?}"))),
    }
}

/// Folds many terms into a shallow tree, so that evaluation never recurses deeper than a logarithm.
fn balance(mut terms: Vec<Expr>, join: fn(Box<Expr>, Box<Expr>) -> Expr) -> Expr {
    while terms.len() > 1 {
        let mut pairs = Vec::with_capacity(terms.len().div_ceil(2));
        let mut left = terms.into_iter();
        while let Some(first) = left.next() {
            pairs.push(match left.next() {
                Some(second) => join(Box::new(first), Box::new(second)),
                None => first,
            });
        }
        terms = pairs;
    }
    terms.pop().unwrap_or(Expr::Compare(Field::Id, Op::Eq, Literal::Null))
}

fn field(name: &str, within_not: bool) -> Result<Field, Problem> {
    if let Some(key) = name.strip_prefix("labels.") {
        return match key {
            _ if within_not => Err(Problem::search("NOT operator is not supported with label queries")),
            "" => Err(Problem::search("label key cannot be empty")),
            key => Ok(Field::Label(key.to_owned())),
        };
    }
    if let Some(condition) = name.strip_prefix("status.conditions.") {
        if within_not {
            return Err(Problem::search("NOT operator is not supported with condition queries"));
        }
        let (ty, subfield) = condition.split_once('.').unwrap_or((condition, ""));
        if !ty.starts_with(|c: char| c.is_ascii_uppercase()) || !ty.chars().all(|c| c.is_ascii_alphanumeric()) {
            return Err(Problem::search(format!(
                "condition type '{ty}' is invalid: must be PascalCase (e.g., Reconciled, Available)"
            )));
        }
        let subfield = match subfield {
            "" => ConditionField::Status,
            "last_updated_time" => ConditionField::LastUpdatedTime,
            "last_transition_time" => ConditionField::LastTransitionTime,
            "observed_generation" => ConditionField::ObservedGeneration,
            other => {
                return Err(Problem::search(format!(
                    "condition subfield '{other}' is not supported; use last_updated_time, last_transition_time, or \
                     observed_generation"
                )));
            }
        };
        return Ok(Field::Condition(ty.to_owned(), subfield));
    }
    if let Some(path) = name.strip_prefix("spec.") {
        return Ok(Field::Spec(path.split('.').map(str::to_owned).collect()));
    }
    match name {
        "id" => Ok(Field::Id),
        "name" => Ok(Field::Name),
        "kind" => Ok(Field::Kind),
        "generation" => Ok(Field::Generation),
        "created_time" => Ok(Field::CreatedTime),
        "updated_time" => Ok(Field::UpdatedTime),
        "deleted_time" => Ok(Field::DeletedTime),
        "created_by" | "updated_by" => Ok(Field::Author),
        "owner_id" => Ok(Field::OwnerId),
        other => Err(Problem::search(format!("{other} is not a valid field name"))),
    }
}

fn comparison(field: Field, op: Op, literal: Literal) -> Result<Expr, Problem> {
    if let Field::Condition(_, ConditionField::Status) = &field {
        if op != Op::Eq {
            return Err(Problem::search("only the = operator is supported for condition status"));
        }
        if !matches!(&literal, Literal::Text(text) if matches!(text.as_str(), "True" | "False" | "Unknown")) {
            return Err(Problem::search("condition status must be True, False, or Unknown"));
        }
    }
    let literal = typed(&field, literal)?;
    Ok(Expr::Compare(field, op, literal))
}

/// Checks that a typed field is compared with a value of its type, and reads a quoted time as one.
fn typed(field: &Field, literal: Literal) -> Result<Literal, Problem> {
    let (name, hint) = match field {
        Field::CreatedTime => ("created_time", "a time"),
        Field::UpdatedTime => ("updated_time", "a time"),
        Field::DeletedTime => ("deleted_time", "a time"),
        Field::Condition(_, ConditionField::LastUpdatedTime) => ("last_updated_time", "a time"),
        Field::Condition(_, ConditionField::LastTransitionTime) => ("last_transition_time", "a time"),
        Field::Generation => ("generation", "an integer"),
        Field::Condition(_, ConditionField::ObservedGeneration) => ("observed_generation", "an integer"),
        Field::Id
        | Field::Name
        | Field::Kind
        | Field::Author
        | Field::OwnerId
        | Field::Label(_)
        | Field::Spec(_)
        | Field::Condition(_, ConditionField::Status) => return Ok(literal),
    };
    let wants_time = hint == "a time";
    match literal {
        Literal::Null => Ok(Literal::Null),
        Literal::Time(..) if wants_time => Ok(literal),
        Literal::Text(text) if wants_time && text.parse::<Timestamp>().is_ok() => {
            Ok(text.parse().map_or(Literal::Null, |time| Literal::Time(time, text)))
        }
        Literal::Number(_) if !wants_time => Ok(literal),
        Literal::Text(_) | Literal::Number(_) | Literal::Time(..) | Literal::Bool(_) => {
            let example = if wants_time { "an RFC3339 timestamp (e.g. 2026-01-01T00:00:00Z)" } else { hint };
            Err(Problem::search(format!("field '{name}' must be compared with {example}")))
        }
    }
}
