//! JSONPath (RFC 9535) over the values of a run: `$.list.files[?@.size > 0].uri`.
//!
//! The first name is resolved like any reference, so a query never needs a copy of the whole run. A path
//! of names and indexes is a plain reference; anything else gives a list, however many values it finds.

use std::ops::Range;

use serde_json::Value;
use serde_json_path::JsonPath;

use super::eval::{Context, EvalError};
use super::lexer::constant_segment;
use super::reference::{Ref, RefPath, Resolve, Segment};
use super::{Expr, Problem};
use crate::diagnostic::Code;
use crate::limits;

/// Unions (`[a,b]`) in one query: each may multiply what the query finds.
const UNIONS: usize = 8;

/// A query that may find any number of values.
#[derive(Debug, Clone)]
pub struct Query {
    /// Where it starts.
    pub base: Ref,
    /// What it looks for below.
    path: JsonPath,
}

impl Query {
    /// The list of what it finds.
    pub fn eval(&self, context: &dyn Context) -> Result<Value, EvalError> {
        let start = self.base.eval(context)?;
        Ok(self.path.query(start).iter().map(|found| (*found).clone()).collect())
    }
}

/// Compiles a query that starts with `$`.
/// All its problems are at `at`, where it stands in a larger text.
pub(super) fn compile(text: &str, at: Range<usize>, names: &mut dyn Resolve) -> Result<Expr, Problem> {
    let place = at.clone();
    compile_here(text, at, names).map_err(|problem| Problem { at: place, ..problem })
}

fn compile_here(text: &str, place: Range<usize>, names: &mut dyn Resolve) -> Result<Expr, Problem> {
    check(text)?;
    let (segments, at) = leading_segments(text);
    if !matches!(segments.first(), Some(Segment::Key(_))) {
        return Err(problem(text, "a JSONPath starts with the name of a step or input")
            .hint("write `$.step.field`; for text that starts with a dollar sign, write `$$`"));
    }
    // The whole query first: where it is none, what its first name means is no matter.
    let query = if at < text.len() { Some(parse_query(text, at)?) } else { None };
    let path = RefPath { dollar: false, segments, written: text.into(), at: place };
    let base = names.resolve(path)?;
    Ok(match query {
        Some(path) => Expr::Query(Query { base, path }),
        None => Expr::Ref(base),
    })
}

/// Parses what follows the leading names and indexes.
fn parse_query(text: &str, mut at: usize) -> Result<JsonPath, Problem> {
    let mut query = String::from("$");
    while at < text.len() {
        if let Some((Segment::Key(key), end)) = constant_segment(text, at) {
            // Names with hyphens are ours; the standard has them in brackets only.
            query.push_str(&format!("[{}]", Value::from(&*key)));
            at = end;
        } else {
            let end = next_segment(text, at);
            query.push_str(&text[at..end]);
            at = end;
        }
    }
    JsonPath::parse(&query).map_err(|error| {
        problem(text, &format!("not a JSONPath: {}", error.message()))
            .hint("for text that starts with a dollar sign, write `$$`")
    })
}

/// The names and indexes at the front, and where they end.
fn leading_segments(text: &str) -> (Vec<Segment>, usize) {
    let (mut segments, mut at) = (Vec::new(), 1);
    while let Some((segment, end)) = constant_segment(text, at) {
        segments.push(segment);
        at = end;
    }
    (segments, at)
}

/// Where the next segment that is not a constant ends: at the next `.` or `[` outside of brackets.
fn next_segment(text: &str, start: usize) -> usize {
    let mut depth = 0usize;
    let mut seen_name = false;
    for (at, byte, quoted) in unquoted(text, start) {
        match byte {
            _ if quoted => {}
            b'[' if depth == 0 && at > start && seen_name => return at,
            b'[' => depth += 1,
            b']' if depth <= 1 => return at + 1,
            b']' => depth -= 1,
            b'.' if depth == 0 && seen_name => return at,
            b'.' => {}
            _ => seen_name = true,
        }
    }
    text.len()
}

/// The bytes from a place on, each with whether it stands inside quotes.
fn unquoted(text: &str, start: usize) -> impl Iterator<Item = (usize, u8, bool)> + '_ {
    let (mut quote, mut escaped) = (None, false);
    text.bytes().enumerate().skip(start).map(move |(at, byte)| {
        let inside = quote.is_some();
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if byte == b'\\' => escaped = true,
            Some(open) if byte == open => quote = None,
            Some(_) => {}
            None if matches!(byte, b'"' | b'\'') => quote = Some(byte),
            None => {}
        }
        (at, byte, inside || quote.is_some())
    })
}

/// Refuses what the library would overflow its stack or run away on.
fn check(text: &str) -> Result<(), Problem> {
    if text.len() > limits::JSONPATH_BYTES {
        let message = format!("a JSONPath has at most {} bytes", limits::JSONPATH_BYTES);
        return Err(Problem::new(Code::LimitExceeded, 0..text.len(), message));
    }
    if !strings_are_whole(text) {
        return Err(problem(text, "a text in quotes is not closed, or has an escape that is cut short"));
    }
    let (mut depth, mut filters, mut descents, mut unions) = (0usize, Vec::new(), 0, 0);
    let mut previous = 0;
    for (at, byte, quoted) in unquoted(text, 0) {
        if quoted {
            previous = 0;
            continue;
        }
        match byte {
            b'[' | b'(' => depth += 1,
            b']' | b')' => {
                depth = depth.saturating_sub(1);
                filters.retain(|opened| *opened <= depth);
            }
            b'?' if !filters.is_empty() => {
                return Err(problem(text, "a filter cannot stand inside a filter"));
            }
            b'?' => filters.push(depth),
            b'$' if at > 0 => {
                return Err(problem(text, "a filter can compare with constants and `@`, not with `$`")
                    .hint("use an expression instead, or compare in a later step"));
            }
            b'.' if previous == b'.' && !filters.is_empty() => {
                return Err(problem(text, "`..` cannot stand inside a filter"));
            }
            b'.' if previous == b'.' => descents += 1,
            b',' if filters.is_empty() => unions += 1,
            b'!' | b'-' if !filters.is_empty() && previous == byte => {
                return Err(problem(text, "an operator stands twice"));
            }
            _ => {}
        }
        if !byte.is_ascii_whitespace() {
            previous = byte;
        }
        if depth > limits::JSONPATH_DEPTH {
            let message = format!("brackets are nested deeper than {}", limits::JSONPATH_DEPTH);
            return Err(Problem::new(Code::LimitExceeded, 0..text.len(), message));
        }
    }
    match (descents, unions) {
        (2.., _) => Err(problem(text, "`..` can stand once in a JSONPath")),
        (_, unions) if unions > UNIONS => Err(problem(text, &format!("a JSONPath has at most {UNIONS} `,`"))),
        _ => Ok(()),
    }
}

/// Whether every quote is closed and every `\u` has its four digits: the library panics on input that ends
/// inside a string.
fn strings_are_whole(text: &str) -> bool {
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if !matches!(byte, b'"' | b'\'') {
            continue;
        }
        loop {
            match rest.next() {
                None => return false,
                Some(b'\\') => match rest.next() {
                    None => return false,
                    Some(b'u')
                        if !(0..4).all(|_| rest.next().is_some_and(|digit| digit.is_ascii_hexdigit())) =>
                    {
                        return false;
                    }
                    Some(_) => {}
                },
                Some(inside) if inside == byte => break,
                Some(_) => {}
            }
        }
    }
    true
}

fn problem(text: &str, message: &str) -> Problem {
    Problem::new(Code::InvalidJsonPath, 0..text.len(), message)
}
