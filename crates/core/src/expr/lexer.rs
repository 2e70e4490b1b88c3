//! The lexer of expressions.

use super::Problem;
use super::reference::Segment;
use crate::diagnostic::Code;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Name(Box<str>),
    /// `$name`
    Dollar(Box<str>),
    /// `$.…` or `$[…`, as written
    JsonPath(Box<str>),
    Text(Box<str>),
    Integer(i64),
    Float(f64),
    Symbol(&'static str),
    End,
}

/// Longer symbols first, so that `<=` is not read as `<`.
const SYMBOLS: &[&str] = &[
    "&&", "||", "==", "!=", "<=", ">=", "}}", "<", ">", "!", "+", "-", "*", "/", "%", "(", ")", "[", "]",
    "{", "}", ",", "?", ":", ".", "|",
];

pub(super) struct Lexer<'t> {
    pub text: &'t str,
    pub at: usize,
}

impl<'t> Lexer<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    pub(super) fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    pub(super) fn next(&mut self) -> Result<Token, Problem> {
        self.skip_space();
        let Some(first) = self.rest().chars().next() else { return Ok(Token::End) };
        match first {
            '0'..='9' => self.number(),
            '_' => Ok(Token::Name(self.name())),
            letter if letter.is_alphabetic() => Ok(Token::Name(self.name())),
            '"' | '\'' => self.text_literal(first),
            '$' => self.dollar(),
            _ => self.symbol(first),
        }
    }

    /// Reads a name: letters, digits and `_`, with `-` between them, so that `steps.my-step` needs no quotes.
    /// A subtraction therefore needs spaces.
    pub(super) fn name(&mut self) -> Box<str> {
        let length = name_length(self.rest());
        let name = &self.rest()[..length];
        self.at += length;
        name.into()
    }

    fn number(&mut self) -> Result<Token, Problem> {
        let start = self.at;
        let digits = |rest: &str| rest.bytes().take_while(u8::is_ascii_digit).count();
        self.at += digits(self.rest());
        let mut is_float = false;
        if self.rest().starts_with('.') && digits(&self.rest()[1..]) > 0 {
            is_float = true;
            self.at += 1 + digits(&self.rest()[1..]);
        }
        if self.rest().starts_with(['e', 'E']) {
            let sign = usize::from(self.rest()[1..].starts_with(['+', '-']));
            let exponent = digits(&self.rest()[1 + sign..]);
            if exponent > 0 {
                is_float = true;
                self.at += 1 + sign + exponent;
            }
        }
        let text = &self.text[start..self.at];
        let token = if is_float {
            text.parse().ok().map(Token::Float)
        } else {
            text.parse().ok().map(Token::Integer)
        };
        let finite = token.filter(|token| !matches!(token, Token::Float(value) if !value.is_finite()));
        finite.ok_or_else(|| problem(start..self.at, format!("the number `{text}` is too large")))
    }

    fn text_literal(&mut self, quote: char) -> Result<Token, Problem> {
        let start = self.at;
        let mut value = String::new();
        let mut characters = self.rest().char_indices().skip(1);
        while let Some((offset, character)) = characters.next() {
            match character {
                _ if character == quote => {
                    self.at += offset + quote.len_utf8();
                    return Ok(Token::Text(value.into()));
                }
                '\\' => match characters.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, 't')) => value.push('\t'),
                    Some((_, 'r')) => value.push('\r'),
                    Some((_, escaped @ ('\\' | '"' | '\'' | '/'))) => value.push(escaped),
                    _ => {
                        let at = start + offset;
                        let problem = problem(at..at + 1, "unknown escape in text");
                        return Err(problem.hint("the escapes are \\n \\t \\r \\\\ \\\" \\'"));
                    }
                },
                _ => value.push(character),
            }
        }
        Err(problem(start..self.text.len(), format!("missing closing {quote}")))
    }

    fn dollar(&mut self) -> Result<Token, Problem> {
        let start = self.at;
        let after = &self.rest()[1..];
        if after.starts_with(['.', '[']) {
            self.at += 1 + jsonpath_length(after);
            return Ok(Token::JsonPath(self.text[start..self.at].into()));
        }
        let length = word_length(after);
        self.at += 1 + length;
        if length == 0 {
            return Err(problem(start..start + 1, "expected a name after `$`"));
        }
        Ok(Token::Dollar(after[..length].into()))
    }

    fn symbol(&mut self, first: char) -> Result<Token, Problem> {
        if let Some(symbol) = SYMBOLS.iter().find(|symbol| self.rest().starts_with(**symbol)) {
            self.at += symbol.len();
            return Ok(Token::Symbol(symbol));
        }
        let at = self.at..self.at + first.len_utf8();
        let problem = problem(at, format!("unexpected `{first}`"));
        Err(match first {
            '=' => problem.hint("compare with `==`"),
            '&' => problem.hint("write `&&` or `and`"),
            _ => problem,
        })
    }
}

fn problem(at: std::ops::Range<usize>, message: impl Into<String>) -> Problem {
    Problem::new(Code::InvalidExpression, at, message)
}

/// Returns the length of the name at the start of a text, in bytes.
pub(super) fn name_length(text: &str) -> usize {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    let mut length = 0;
    for character in text.chars() {
        let joins = character == '-' && length > 0 && text[length + 1..].starts_with(is_word);
        if !is_word(character) && !joins {
            break;
        }
        length += character.len_utf8();
    }
    length
}

/// Returns the length of the name after a `$` (no `-`, no digit first) at the start of a text, in bytes.
pub(super) fn word_length(text: &str) -> usize {
    if text.starts_with(|first: char| first.is_ascii_digit()) {
        return 0;
    }
    text.chars()
        .take_while(|character| character.is_alphanumeric() || *character == '_')
        .map(char::len_utf8)
        .sum()
}

/// Returns the constant segment (`.name`, `[0]`, `["key"]`) at a byte offset, and where it ends.
pub(super) fn constant_segment(text: &str, at: usize) -> Option<(Segment, usize)> {
    let rest = &text[at..];
    if let Some(after) = rest.strip_prefix('.') {
        let length = name_length(after);
        let is_call = after[length..].trim_start().starts_with('(');
        let segment = Segment::Key(after[..length].into());
        return (length > 0 && !is_call).then_some((segment, at + 1 + length));
    }
    let inside = rest.strip_prefix('[')?;
    let mut lexer = Lexer { text, at: at + 1 };
    let negative = inside.trim_start().starts_with('-');
    if negative {
        lexer.next().ok()?;
    }
    let segment = match lexer.next().ok()? {
        Token::Integer(index) => Segment::Index(if negative { -index } else { index }),
        Token::Text(key) if !negative => Segment::Key(key),
        _ => return None,
    };
    let closed = lexer.next().ok()? == Token::Symbol("]");
    closed.then_some((segment, lexer.at))
}

/// Returns the length of a JSONPath after its `$`, in bytes: names, wildcards and brackets with quoted keys.
fn jsonpath_length(text: &str) -> usize {
    let mut at = 0;
    loop {
        let rest = &text[at..];
        at += match rest.as_bytes() {
            [b'[', ..] => match bracket_length(rest) {
                Some(length) => length,
                None => return text.len(),
            },
            [b'.', b'.', b'*', ..] => 3,
            [b'.', b'*', ..] => 2,
            [b'.', b'.', b'[', ..] => 2,
            [b'.', b'.', ..] if name_length(&rest[2..]) > 0 => 2 + name_length(&rest[2..]),
            [b'.', ..] if name_length(&rest[1..]) > 0 => 1 + name_length(&rest[1..]),
            _ => return at,
        };
    }
}

/// Returns the length of a path that starts with a name instead of `$.`, in bytes.
pub(super) fn path_length(text: &str) -> usize {
    let first = name_length(text);
    first + jsonpath_length(&text[first..])
}

/// Returns the length of a bracketed part including its brackets, in bytes; `None` if it is not closed.
fn bracket_length(text: &str) -> Option<usize> {
    let (mut depth, mut quote, mut escaped) = (0usize, None, false);
    for (at, byte) in text.bytes().enumerate() {
        match (quote, byte) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), b'\\') => escaped = true,
            (Some(open), _) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, b'[') => depth += 1,
            (None, b']') if depth == 1 => return Some(at + 1),
            (None, b']') => depth -= 1,
            _ => {}
        }
    }
    None
}
