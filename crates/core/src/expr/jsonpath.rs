//! JSONPath (RFC 9535) over the values of a run: `$.list.files[?@.size > 0].uri`.
//!
//! The first name is resolved like any reference, so a query never needs a copy of the whole run. A path
//! of names and indexes is a plain reference. The value of any other query is a list, even with one match.

use std::ops::Range;

use serde_json::Value;
use serde_json_path::JsonPath;

use super::eval::{Context, EvalError};
use super::lexer::constant_segment;
use super::reference::{Ref, RefPath, Resolve, Segment};
use super::{Expr, Problem};
use crate::budget::value::copy;
use crate::budget::{Budget, Exhausted};
use crate::diagnostic::Code;
use crate::limits;

/// The maximum number of commas in a query. Each union (`[a,b]`) can multiply the number of matches.
const COMMAS: usize = 8;
/// The cost of visiting a value with one segment of a query.
const VISIT_COST: usize = 3;
/// Bytes of a filter that are evaluated for one unit.
const FILTER_BYTES: usize = 2;

/// A query that can match any number of values.
#[derive(Debug, Clone)]
pub struct Query {
    /// The reference that the query starts at.
    pub base: Ref,
    /// The query from there.
    path: JsonPath,
    /// An upper bound of its cost for each value that it can visit.
    cost: usize,
    /// The number of levels that it can visit; `None` with `..`.
    levels: Option<usize>,
}

impl Query {
    /// Returns the list of matches. The library cannot be interrupted, so the query is charged before it runs, for every
    /// value that it can visit.
    pub fn eval(&self, context: &dyn Context, budget: &mut Budget) -> Result<Value, EvalError> {
        let start = self.base.eval(context, budget)?;
        self.charge_visits(start, self.levels, budget)?;
        let found = self.path.query(start);
        let copies = found.iter().map(|found| Ok(copy(found, budget)?));
        copies.collect::<Result<Vec<_>, EvalError>>().map(Value::Array)
    }

    fn charge_visits(
        &self,
        value: &Value,
        levels: Option<usize>,
        budget: &mut Budget,
    ) -> Result<(), Exhausted> {
        budget.charge(self.cost)?;
        let below = match levels {
            Some(0) => return Ok(()),
            levels => levels.map(|levels| levels - 1),
        };
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.charge_visits(item, below, budget)),
            Value::Object(map) => map.values().try_for_each(|item| self.charge_visits(item, below, budget)),
            _ => Ok(()),
        }
    }
}

/// Compiles a query that starts with `$`. Problems are reported at `at`, its range in the enclosing text.
pub(super) fn compile(text: &str, at: Range<usize>, names: &mut dyn Resolve) -> Result<Expr, Problem> {
    let range = at.clone();
    compile_query(text, at, names).map_err(|problem| Problem { at: range, ..problem })
}

fn compile_query(text: &str, range: Range<usize>, names: &mut dyn Resolve) -> Result<Expr, Problem> {
    let mut shape = check(text)?;
    let (segments, at) = leading_segments(text);
    shape.segments = shape.segments.saturating_sub(segments.len());
    if !matches!(segments.first(), Some(Segment::Key(_))) {
        return Err(problem(text, "a JSONPath starts with the name of a step or input")
            .hint("write `$.step.field`; for text that starts with a dollar sign, write `$$`"));
    }
    // A syntax error is reported before an unknown first name.
    let query = if at < text.len() { Some(parse_query(text, at)?) } else { None };
    let path = RefPath { dollar: false, segments, written: text.into(), at: range };
    let base = names.resolve(path)?;
    Ok(match query {
        Some(path) => Expr::Query(Query { base, path, cost: shape.cost(), levels: shape.levels() }),
        None => Expr::Ref(base),
    })
}

/// Parses what follows the leading names and indexes.
fn parse_query(text: &str, mut at: usize) -> Result<JsonPath, Problem> {
    let mut query = String::from("$");
    while at < text.len() {
        if let Some((Segment::Key(key), end)) = constant_segment(text, at) {
            // RFC 9535 allows hyphens only in bracketed names.
            query.push_str(&format!("[{}]", Value::from(&*key)));
            at = end;
        } else {
            let end = next_segment(text, at);
            query.push_str(&text[at..end]);
            at = end;
        }
    }
    JsonPath::parse(&query).map_err(|error| {
        problem(text, &format!("invalid JSONPath: {}", error.message()))
            .hint("for text that starts with a dollar sign, write `$$`")
    })
}

/// Returns the leading names and indexes, and where they end.
fn leading_segments(text: &str) -> (Vec<Segment>, usize) {
    let (mut segments, mut at) = (Vec::new(), 1);
    while let Some((segment, end)) = constant_segment(text, at) {
        segments.push(segment);
        at = end;
    }
    (segments, at)
}

/// Returns the end of the next segment that is not constant: the next `.` or `[` outside brackets.
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

/// Iterates over the bytes from an offset: offset, byte, and whether it is inside quotes.
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

/// The parts of a query that determine its cost.
#[derive(Default)]
struct Shape {
    /// Names, brackets and the like, also inside filters.
    segments: usize,
    /// The number of `..`.
    descents: usize,
    /// The number of commas outside quotes.
    commas: usize,
    /// The bytes of filters.
    filter_bytes: usize,
}

impl Shape {
    /// An upper bound of the cost for each value that the query can visit. A union of n selectors multiplies the matches by
    /// n, and at most doubles them for each comma.
    fn cost(&self) -> usize {
        (VISIT_COST * self.segments.max(1) + self.filter_bytes / FILTER_BYTES) << self.commas
    }

    fn levels(&self) -> Option<usize> {
        (self.descents == 0).then_some(self.segments)
    }
}

/// Rejects queries that would overflow the stack of the library or take excessive time, and measures the others.
fn check(text: &str) -> Result<Shape, Problem> {
    if text.len() > limits::JSONPATH_BYTES {
        let message = format!("a JSONPath has at most {} bytes", limits::JSONPATH_BYTES);
        return Err(Problem::new(Code::LimitExceeded, 0..text.len(), message));
    }
    if !strings_are_closed(text) {
        return Err(problem(text, "a quoted text is not closed or has an incomplete escape"));
    }
    let (mut depth, mut filters, mut shape) = (0usize, Vec::new(), Shape::default());
    let mut previous = 0;
    for (at, byte, quoted) in unquoted(text, 0) {
        shape.filter_bytes += usize::from(!filters.is_empty());
        if quoted {
            previous = 0;
            continue;
        }
        match byte {
            b'[' | b'(' => {
                depth += 1;
                shape.segments += 1;
            }
            b']' | b')' => {
                depth = depth.saturating_sub(1);
                filters.retain(|opened| *opened <= depth);
            }
            b'?' if !filters.is_empty() => {
                return Err(problem(text, "filters cannot be nested"));
            }
            b'?' => filters.push(depth),
            b'$' if at > 0 => {
                return Err(problem(text, "a filter can compare with constants and `@`, not with `$`")
                    .hint("use an expression instead, or compare in a later step"));
            }
            b'.' if previous == b'.' && !filters.is_empty() => {
                return Err(problem(text, "`..` is not allowed inside a filter"));
            }
            b'.' if previous == b'.' => shape.descents += 1,
            b'.' => shape.segments += 1,
            b',' => shape.commas += 1,
            b'!' | b'-' if !filters.is_empty() && previous == byte => {
                return Err(problem(text, "repeated operator"));
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
    match shape {
        Shape { descents: 2.., .. } => Err(problem(text, "`..` is allowed only once in a JSONPath")),
        Shape { commas, .. } if commas > COMMAS => {
            Err(problem(text, &format!("a JSONPath has at most {COMMAS} `,`")))
        }
        shape => Ok(shape),
    }
}

/// Whether every quote is closed and every `\u` has its four digits: the library panics on input that ends
/// inside a string.
fn strings_are_closed(text: &str) -> bool {
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
