//! Templates: text with `{{…}}` and `$key` references, and values that contain such text.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::eval::{Context, EvalError, EvalErrorKind, push_text};
use super::lexer::{Token, constant_segment, word_length};
use super::reference::{Ambient, RefPath, Resolve, Root, Segment};
use super::secret::SecretText;
use super::{Expr, Problem, jsonpath, parser, secret};
use crate::budget::Budget;
use crate::budget::value::{charge_copy, copy};
use crate::diagnostic::Code;
use crate::limits;

/// The cost of an entry of a map that is built.
const ENTRY_COST: usize = 5;

/// A text that can contain references.
#[derive(Debug, Clone)]
pub enum Template {
    /// Text without references.
    Literal(Value),
    /// A single reference without other text. Its value keeps its type.
    Whole(Expr),
    /// References within text. Their values become text.
    Mixed(Vec<Part>),
}

/// A part of a mixed template.
#[derive(Debug, Clone)]
pub enum Part {
    /// Literal text.
    Text(Box<str>),
    /// An expression.
    Expr(Expr),
    /// `${secret:NAME}`, the name of a secret. Its value is the reference itself: only the caller of a tool resolves it.
    Secret(Box<str>),
}

impl Template {
    /// Parses a text. Reports every problem, and returns the parts without problems.
    pub fn parse(text: &str, names: &mut dyn Resolve, problems: &mut Vec<Problem>) -> Self {
        if !text.contains(['$', '{']) {
            return Self::Literal(Value::from(text));
        }
        if text.len() > limits::TEMPLATE_BYTES {
            let message = format!("a text with references has at most {} bytes", limits::TEMPLATE_BYTES);
            problems.push(Problem::new(Code::LimitExceeded, 0..0, message));
            return Self::Literal(Value::Null);
        }
        if text.starts_with("$.") || text.starts_with("$[") {
            return match jsonpath::compile(text, 0..text.len(), names) {
                Ok(expr) => Self::Whole(expr),
                Err(problem) => {
                    problems.push(problem);
                    Self::Literal(Value::Null)
                }
            };
        }
        let mut scanner = Scanner { text, at: 0, names, problems, parts: Vec::new(), plain: String::new() };
        scanner.scan();
        scanner.finish()
    }

    /// Evaluates the template.
    pub fn eval<'c>(
        &'c self,
        context: &'c dyn Context,
        budget: &mut Budget,
    ) -> Result<Cow<'c, Value>, EvalError> {
        match self {
            Self::Literal(text) => Ok(Cow::Borrowed(text)),
            Self::Whole(expr) => expr.eval(context, budget),
            Self::Mixed(parts) => {
                let mut out = String::new();
                for part in parts {
                    match part {
                        Part::Text(text) => {
                            budget.charge_bytes(text.len())?;
                            out.push_str(text);
                        }
                        Part::Expr(expr) => push_text(&*expr.eval(context, budget)?, &mut out, budget)?,
                        Part::Secret(name) => {
                            budget.charge_bytes(name.len())?;
                            out.push_str(&secret::written(name));
                        }
                    }
                }
                Ok(Cow::Owned(Value::String(out)))
            }
        }
    }

    /// Calls `visit` with every root that an evaluation can read.
    pub fn roots(&self, visit: &mut dyn FnMut(&Root)) {
        match self {
            Self::Literal(_) => {}
            Self::Whole(expr) => expr.roots(visit),
            Self::Mixed(parts) => parts.iter().for_each(|part| {
                if let Part::Expr(expr) = part {
                    expr.roots(visit);
                }
            }),
        }
    }
}

struct Scanner<'t, 'n> {
    text: &'t str,
    at: usize,
    names: &'n mut dyn Resolve,
    problems: &'n mut Vec<Problem>,
    parts: Vec<Part>,
    /// Plain text since the last part.
    plain: String,
}

impl Scanner<'_, '_> {
    fn scan(&mut self) {
        while self.at < self.text.len() && self.problems.len() < limits::DIAGNOSTICS {
            let rest = &self.text[self.at..];
            let plain = rest.find(['{', '$']).unwrap_or(rest.len());
            self.plain.push_str(&rest[..plain]);
            self.at += plain;
            let rest = &rest[plain..];
            if rest.starts_with("{{{{") {
                self.literal("{{", 4);
            } else if rest.starts_with("{{") {
                self.expression();
            } else if rest.starts_with("$$") {
                self.literal("$", 2);
            } else if rest.starts_with(secret::OPEN) {
                self.secret();
            } else if rest.starts_with('$') && word_length(&rest[1..]) > 0 {
                self.dollar();
            } else if let Some(first) = rest.chars().next() {
                self.literal(first.encode_utf8(&mut [0; 4]), first.len_utf8());
            }
        }
    }

    fn literal(&mut self, text: &str, length: usize) {
        self.plain.push_str(text);
        self.at += length;
    }

    fn expression(&mut self) {
        let open = self.at;
        let problem = match parser::parse_prefix(self.text, open + 2, self.names) {
            Ok((expr, rest)) if rest.token == Token::Symbol("}}") => {
                self.part(expr);
                self.at = rest.end;
                return;
            }
            Ok((_, rest)) if rest.token == Token::End => {
                Problem::new(Code::InvalidTemplate, open..self.text.len(), "`{{` is not closed by `}}`")
                    .hint("write `{{{{` for literal braces")
            }
            Ok((_, rest)) => {
                Problem::new(Code::InvalidTemplate, rest.start..rest.end, "expected an operator or `}}` here")
            }
            Err(problem) if problem.code == Code::InvalidExpression => {
                Problem { code: Code::InvalidTemplate, ..problem }
            }
            Err(problem) => problem,
        };
        self.problems.push(problem);
        let close = self.text[open..].find("}}").map_or(self.text.len(), |at| open + at + 2);
        self.at = close;
    }

    fn secret(&mut self) {
        let rest = &self.text[self.at..];
        if let Some((name, length)) = secret::reference_at_start(rest) {
            self.flush();
            self.parts.push(Part::Secret(name.into()));
            self.at += length;
            return;
        }
        let message = "`${secret:` is not followed by the name of a secret and `}`";
        let problem = Problem::new(Code::InvalidTemplate, self.at..self.at + secret::OPEN.len(), message);
        self.problems.push(problem.hint("write `$${secret:` for literal text"));
        self.at += secret::OPEN.len();
    }

    /// Parses `$name` with its path. Built-in values such as `$run_id` are text and have no path.
    fn dollar(&mut self) {
        let start = self.at;
        let length = word_length(&self.text[start + 1..]);
        let name = &self.text[start + 1..start + 1 + length];
        let mut end = start + 1 + length;
        let mut segments = vec![Segment::Key(name.into())];
        while Ambient::from_name(name).is_none() {
            let Some((segment, segment_end)) = constant_segment(self.text, end) else { break };
            segments.push(segment);
            end = segment_end;
        }
        let path = RefPath { dollar: true, segments, written: self.text[start..end].into(), at: start..end };
        match self.names.resolve(path) {
            Ok(reference) => self.part(Expr::Ref(reference)),
            Err(problem) => self.problems.push(problem),
        }
        self.at = end;
    }

    fn part(&mut self, expr: Expr) {
        self.flush();
        self.parts.push(Part::Expr(expr));
    }

    fn flush(&mut self) {
        if !self.plain.is_empty() {
            self.parts.push(Part::Text(std::mem::take(&mut self.plain).into()));
        }
    }

    fn finish(mut self) -> Template {
        if self.parts.is_empty() {
            return Template::Literal(Value::from(self.plain));
        }
        self.flush();
        match (self.parts.len(), self.parts.pop()) {
            (1, Some(Part::Expr(expr))) => Template::Whole(expr),
            (_, last) => {
                self.parts.extend(last);
                Template::Mixed(self.parts)
            }
        }
    }
}

/// A value whose texts can contain references.
#[derive(Debug, Clone)]
pub enum ValueTemplate {
    /// A value without references.
    Literal(Value),
    /// A text with references.
    Text(Template),
    /// A list that contains references.
    List(Vec<ValueTemplate>),
    /// A map that contains references. Its keys are literal.
    Map(Vec<(Box<str>, ValueTemplate)>),
}

impl ValueTemplate {
    /// Evaluates all references.
    pub fn eval(&self, context: &dyn Context, budget: &mut Budget) -> Result<Value, EvalError> {
        self.eval_within(context, budget, &mut { limits::PAYLOAD_BYTES })
    }

    /// Evaluates with a number of bytes left: several references to a large value can exceed the limit of a value.
    fn eval_within(
        &self,
        context: &dyn Context,
        budget: &mut Budget,
        bytes: &mut usize,
    ) -> Result<Value, EvalError> {
        match self {
            Self::Literal(value) => Ok(copy(value, budget)?),
            Self::Text(template) => {
                let value = template.eval(context, budget)?;
                charge_copy(&value, budget)?;
                *bytes = bytes.checked_sub(weight(&value)).ok_or_else(|| {
                    let message = format!("the value is larger than {} bytes", limits::PAYLOAD_BYTES);
                    EvalError::new(EvalErrorKind::Limit, message)
                })?;
                Ok(value.into_owned())
            }
            Self::List(items) => items.iter().map(|item| item.eval_within(context, budget, bytes)).collect(),
            Self::Map(entries) => {
                let mut map = Map::new();
                for (key, value) in entries {
                    budget.charge(ENTRY_COST)?;
                    budget.charge_bytes(key.len())?;
                    map.insert(key.to_string(), value.eval_within(context, budget, bytes)?);
                }
                Ok(Value::Object(map))
            }
        }
    }

    /// The texts that contain references to secrets.
    pub fn secrets(&self) -> Vec<SecretText> {
        let mut found = Vec::new();
        self.find_secrets("", &mut found);
        found
    }

    fn find_secrets(&self, pointer: &str, found: &mut Vec<SecretText>) {
        match self {
            Self::Text(Template::Mixed(parts)) => {
                let names = parts.iter().filter_map(|part| match part {
                    Part::Secret(name) => Some(name.clone()),
                    Part::Text(_) | Part::Expr(_) => None,
                });
                let names: Box<[Box<str>]> = names.collect();
                if !names.is_empty() {
                    found.push(SecretText { pointer: pointer.into(), names });
                }
            }
            Self::Literal(_) | Self::Text(_) => {}
            Self::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    item.find_secrets(&format!("{pointer}/{index}"), found);
                }
            }
            Self::Map(entries) => {
                for (key, value) in entries {
                    let key = key.replace('~', "~0").replace('/', "~1");
                    value.find_secrets(&format!("{pointer}/{key}"), found);
                }
            }
        }
    }

    /// Calls `visit` with every root that an evaluation can read.
    pub fn roots(&self, visit: &mut dyn FnMut(&Root)) {
        match self {
            Self::Literal(_) => {}
            Self::Text(template) => template.roots(visit),
            Self::List(items) => items.iter().for_each(|item| item.roots(visit)),
            Self::Map(entries) => entries.iter().for_each(|(_, value)| value.roots(visit)),
        }
    }
}

/// Returns a lower bound of the size of a value as JSON, in bytes.
fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(weight).sum::<usize>(),
        Value::Object(map) => 2 + map.iter().map(|(key, value)| key.len() + weight(value)).sum::<usize>(),
        _ => 1,
    }
}
