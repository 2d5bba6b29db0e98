//! Cuts a template into tokens, with the rules of Go's own lexer: where spaces count, what ends a word, and how
//! trim markers eat white space.

/// What a token is. `Keyword` holds the words that open or close a block.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Text,
    Open,
    Close,
    Space,
    Assign,
    Declare,
    Pipe,
    LeftParen,
    RightParen,
    Comma,
    Dot,
    Field,
    Variable,
    Identifier,
    Bool,
    Nil,
    Keyword,
    Number,
    Character,
    Quoted,
    Raw,
    End,
    /// The rest can't be cut into tokens, and why.
    Bad(String),
}

/// A token and where it begins, in bytes.
#[derive(Clone, Debug)]
pub(super) struct Token<'s> {
    pub(super) kind: Kind,
    pub(super) text: &'s str,
    pub(super) at: usize,
}

const OPEN: &str = "{{";
const CLOSE: &str = "}}";
const TRIM_CLOSE: &str = "-}}";
const SPACES: [char; 4] = [' ', '\t', '\r', '\n'];
const KEYWORDS: [&str; 10] = ["block", "break", "continue", "define", "else", "end", "if", "range", "template", "with"];

/// Cuts `source` into tokens; the last one is `End` or `Bad`.
pub(super) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut lexer = Lexer { source, at: 0, start: 0, parens: 0, tokens: Vec::new() };
    let last = match lexer.text() {
        Ok(()) => Kind::End,
        Err(why) => Kind::Bad(why),
    };
    lexer.emit(last);
    lexer.tokens
}

struct Lexer<'s> {
    source: &'s str,
    at: usize,
    start: usize,
    parens: usize,
    tokens: Vec<Token<'s>>,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        self.source.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn accept(&mut self, valid: &str) -> bool {
        let found = self.peek().is_some_and(|c| valid.contains(c));
        if found {
            self.at += 1;
        }
        found
    }

    fn accept_while(&mut self, valid: impl Fn(char) -> bool) {
        while self.peek().is_some_and(&valid) {
            self.next();
        }
    }

    fn emit(&mut self, kind: Kind) {
        let text = self.source.get(self.start..self.at).unwrap_or_default();
        self.tokens.push(Token { kind, text, at: self.start });
        self.start = self.at;
    }

    /// The whole template: text and actions in turn.
    fn text(&mut self) -> Result<(), String> {
        while let Some(x) = self.rest().find(OPEN) {
            let inside = self.rest().get(x + OPEN.len()..).unwrap_or_default();
            let trim = inside.starts_with('-') && inside.get(1..).is_some_and(|s| s.starts_with(SPACES));
            let text = self.rest().get(..x).unwrap_or_default();
            let kept = if trim { text.trim_end_matches(SPACES) } else { text };
            self.at += kept.len();
            if !kept.is_empty() {
                self.emit(Kind::Text);
            }
            self.at += text.len() - kept.len();
            self.start = self.at;
            let marker = if trim { 2 } else { 0 };
            if inside.get(marker..).is_some_and(|s| s.starts_with("/*")) {
                self.at += OPEN.len() + marker;
                self.comment()?;
            } else {
                self.at += OPEN.len();
                self.emit(Kind::Open);
                self.at += marker;
                self.start = self.at;
                self.action()?;
            }
        }
        if !self.rest().is_empty() {
            self.at = self.source.len();
            self.emit(Kind::Text);
        }
        Ok(())
    }

    fn comment(&mut self) -> Result<(), String> {
        self.at += 2; // `/*`, whose star does not end it
        let end = self.rest().find("*/").ok_or("unclosed comment")?;
        self.at += end + 2;
        if !self.close() {
            return Err("comment ends before closing delimiter".into());
        }
        self.start = self.at;
        Ok(())
    }

    /// Steps over `}}`, or ` -}}` and the white space after it.
    fn close(&mut self) -> bool {
        let rest = self.rest();
        if rest.starts_with(CLOSE) {
            self.at += CLOSE.len();
        } else if rest.starts_with(SPACES) && rest.get(1..).is_some_and(|s| s.starts_with(TRIM_CLOSE)) {
            self.at += 1 + TRIM_CLOSE.len();
            self.accept_while(|c| SPACES.contains(&c));
        } else {
            return false;
        }
        true
    }

    fn action(&mut self) -> Result<(), String> {
        self.parens = 0;
        loop {
            let before = self.at;
            if self.close() {
                if self.parens > 0 {
                    self.at = before;
                    return Err("unclosed left paren".into());
                }
                self.emit(Kind::Close);
                return Ok(());
            }
            let kind = self.inside()?;
            self.emit(kind);
        }
    }

    fn inside(&mut self) -> Result<Kind, String> {
        let Some(c) = self.next() else { return Err("unclosed action".into()) };
        Ok(match c {
            ' ' | '\t' | '\r' | '\n' => {
                // The space before `-}}` belongs to the delimiter.
                while self.peek().is_some_and(|c| SPACES.contains(&c))
                    && !self.rest().get(1..).is_some_and(|s| s.starts_with(TRIM_CLOSE))
                {
                    self.next();
                }
                Kind::Space
            }
            '=' => Kind::Assign,
            ':' if self.accept("=") => Kind::Declare,
            ':' => return Err("expected :=".into()),
            '|' => Kind::Pipe,
            ',' => Kind::Comma,
            '(' => {
                self.parens += 1;
                Kind::LeftParen
            }
            ')' => {
                self.parens = self.parens.checked_sub(1).ok_or("unexpected right paren")?;
                Kind::RightParen
            }
            '"' | '\'' => self.quoted(c)?,
            '`' => {
                let end = self.rest().find('`').ok_or("unterminated raw quoted string")?;
                self.at += end + 1;
                Kind::Raw
            }
            '$' => self.word(Kind::Variable)?,
            '.' if !self.peek().is_some_and(|c| c.is_ascii_digit()) => self.word(Kind::Field)?,
            '.' | '+' | '-' | '0'..='9' => self.number(),
            c if alphanumeric(c) => self.word(Kind::Identifier)?,
            c => return Err(format!("unexpected {c:?} in action")),
        })
    }

    fn quoted(&mut self, quote: char) -> Result<Kind, String> {
        let (kind, what) =
            if quote == '"' { (Kind::Quoted, "quoted string") } else { (Kind::Character, "character constant") };
        loop {
            match self.next() {
                Some('\\') => {
                    self.next();
                }
                None | Some('\n') => return Err(format!("unterminated {what}")),
                Some(c) if c == quote => return Ok(kind),
                Some(_) => {}
            }
        }
    }

    /// A word, a field or a variable, whose first character is taken.
    fn word(&mut self, kind: Kind) -> Result<Kind, String> {
        self.accept_while(alphanumeric);
        let ended = match self.peek() {
            None | Some(' ' | '\t' | '\r' | '\n' | '.' | ',' | '|' | ':' | ')' | '(') => true,
            Some(_) => self.rest().starts_with(CLOSE),
        };
        if !ended {
            let bad = self.peek().unwrap_or_default();
            self.next();
            return Err(format!("bad character {bad:?}"));
        }
        let word = self.source.get(self.start..self.at).unwrap_or_default();
        Ok(match (kind, word) {
            (Kind::Field, ".") => Kind::Dot,
            (Kind::Identifier, "true" | "false") => Kind::Bool,
            (Kind::Identifier, "nil") => Kind::Nil,
            (Kind::Identifier, word) if KEYWORDS.contains(&word) => Kind::Keyword,
            (kind, _) => kind,
        })
    }

    /// Takes what looks like a number and whose first character is taken, with all that is glued to it; whether it is
    /// one is decided when it is read.
    fn number(&mut self) -> Kind {
        self.accept_while(alphanumeric);
        if self.accept(".") {
            self.accept_while(alphanumeric);
        }
        // An exponent's sign, or the second half of a complex number.
        self.accept_while(|c| alphanumeric(c) || c == '+' || c == '-');
        Kind::Number
    }
}

fn alphanumeric(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}
