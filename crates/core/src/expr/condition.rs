//! Conditions: an expression, a JSONPath, or one of the graph form's six `result` forms.

use serde_json::Value;

use super::eval::{Context, EvalError, truthy};
use super::lexer::{Token, name_length};
use super::reference::{IfMissing, Ref, RefPath, Resolve, Segment};
use super::{Expr, Problem, jsonpath, parser};
use crate::diagnostic::Code;

/// Something that holds or does not.
#[derive(Debug, Clone)]
pub enum Condition {
    /// Holds if the value counts as true.
    Expr(Expr),
    /// One of the six forms.
    Result {
        /// The result that is looked at.
        result: Ref,
        /// What it is compared with.
        is: ResultIs,
        /// Whether the comparison is turned round (`!=`).
        not: bool,
    },
}

/// The right side of a `result` form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResultIs {
    /// `true` or `"true"`
    True,
    /// `false` or `"false"`
    False,
    /// null, `""` or `"nil"`
    Nil,
    /// This text, or a number or the like that is written so.
    Text(Box<str>),
}

impl Condition {
    /// Parses an expression, with or without `{{…}}` around it, or a JSONPath.
    pub fn parse(text: &str, names: &mut dyn Resolve) -> Result<Self, Problem> {
        let trimmed = text.trim();
        let wrapped = trimmed.starts_with("{{") && trimmed.ends_with("}}");
        let start = text.len() - text.trim_start().len() + if wrapped { 2 } else { 0 };
        let (expr, rest) = parser::parse_prefix(text, start, names)?;
        let (close, after) = if wrapped { (Token::Symbol("}}"), rest.end) } else { (Token::End, text.len()) };
        if rest.token == close && text[after..].trim().is_empty() {
            return Ok(Self::Expr(absent_is_false(expr)));
        }
        let message = "expected an operator or the end here";
        let problem = Problem::new(Code::InvalidExpression, rest.start..rest.end, message);
        let braces_allowed = usize::from(wrapped);
        Err(if text.matches("{{").count() > braces_allowed {
            problem.hint("a condition is one expression: write names without `{{` and `}}`")
        } else {
            problem
        })
    }

    /// Parses `on`: a JSONPath and nothing else.
    pub fn parse_jsonpath(text: &str, names: &mut dyn Resolve) -> Result<Self, Problem> {
        if !text.starts_with("$.") && !text.starts_with("$[") {
            let problem = Problem::new(Code::InvalidJsonPath, 0..text.len(), "`on` takes a JSONPath");
            return Err(problem.hint("write `on: $.step.field`, or use `if` for an expression"));
        }
        let compiled = jsonpath::compile(text, 0..text.len(), names);
        compiled.map(absent_is_false).map(Self::Expr).map_err(|problem| match problem.hint {
            None => problem.hint("for comparisons, use `if` with an expression"),
            Some(_) => problem,
        })
    }

    /// Parses any condition; the six `result` forms mean exactly what they always did.
    pub fn parse_result(text: &str, names: &mut dyn Resolve) -> Result<Self, Problem> {
        match result_form(text).or_else(|| result_text(text, names)) {
            Some((is, not)) => Self::compare_result(is, not, text, names),
            None => Self::parse(text, names),
        }
    }

    fn compare_result(is: ResultIs, not: bool, text: &str, names: &mut dyn Resolve) -> Result<Self, Problem> {
        let path = RefPath {
            dollar: false,
            segments: vec![Segment::Key("result".into())],
            written: "result".into(),
            at: 0..text.len().min("result".len()),
        };
        let result = Ref { if_missing: IfMissing::Null, ..names.resolve(path)? };
        Ok(Self::Result { result, is, not })
    }

    /// Whether it holds.
    pub fn holds(&self, context: &dyn Context) -> Result<bool, EvalError> {
        match self {
            Self::Expr(expr) => expr.eval(context).map(|value| truthy(&value)),
            Self::Result { result, is, not } => result.eval(context).map(|value| is.matches(value) != *not),
        }
    }

    /// Calls `visit` with every root that evaluating may read.
    pub fn roots(&self, visit: &mut dyn FnMut(&super::Root)) {
        match self {
            Self::Expr(expr) => expr.roots(visit),
            Self::Result { result, .. } => visit(&result.root),
        }
    }
}

impl ResultIs {
    fn matches(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::True, value) => *value == Value::Bool(true) || *value == "true",
            (Self::False, value) => *value == Value::Bool(false) || *value == "false",
            (Self::Nil, value) => value.is_null() || *value == "" || *value == "nil",
            (Self::Text(text), Value::String(value)) => **text == **value,
            (Self::Text(text), Value::Number(_) | Value::Bool(_)) => **text == *value.to_string(),
            // A gate's output is a map; compared with a word it is `approved` or `denied`.
            (Self::Text(text), Value::Object(map)) => match map.get("approved") {
                Some(Value::Bool(true)) => &**text == "approved",
                Some(Value::Bool(false)) => &**text == "denied",
                _ => false,
            },
            (Self::Text(_), _) => false,
        }
    }
}

/// A JSONPath that finds nothing does not hold; any other path that leads nowhere is an error.
fn absent_is_false(mut expr: Expr) -> Expr {
    let reference = match &mut expr {
        Expr::Ref(reference) => reference,
        Expr::Query(query) => &mut query.base,
        _ => return expr,
    };
    if reference.written.starts_with('$') && reference.if_missing == IfMissing::Fail {
        reference.if_missing = IfMissing::Null;
    }
    expr
}

/// The sides of `result == V` (false) or `result != V` (true).
fn result_sides(text: &str) -> Option<(&str, bool)> {
    let rest = text.trim().strip_prefix("result")?.trim_start();
    match (rest.strip_prefix("=="), rest.strip_prefix("!=")) {
        (Some(rest), _) => Some((rest.trim(), false)),
        (_, Some(rest)) => Some((rest.trim(), true)),
        _ => None,
    }
}

/// `result == V` where V is one piece of text that starts with no known name, such as `v1.2` or `a/b`.
fn result_text(text: &str, names: &mut dyn Resolve) -> Option<(ResultIs, bool)> {
    let (rest, not) = result_sides(text)?;
    let has_syntax = rest.contains(|c: char| c.is_whitespace() || "\"'()[]{}<>=!&|,$".contains(c));
    let first = &rest[..name_length(rest)];
    (!rest.is_empty() && !has_syntax && !names.knows(first)).then(|| (ResultIs::Text(rest.into()), not))
}

/// `result == V` or `result != V`, where V is a constant, text in quotes, or bare words.
fn result_form(text: &str) -> Option<(ResultIs, bool)> {
    let (rest, not) = result_sides(text)?;
    let is = match rest {
        "true" => ResultIs::True,
        "false" => ResultIs::False,
        "nil" | "null" => ResultIs::Nil,
        _ => ResultIs::Text(unquote(rest).or_else(|| is_bare(rest).then_some(rest))?.into()),
    };
    Some((is, not))
}

/// The inside of a quoted text without escapes.
fn unquote(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|first| matches!(first, '"' | '\''))?;
    let inside = text.strip_prefix(quote)?.strip_suffix(quote)?;
    (!inside.contains([quote, '\\'])).then_some(inside)
}

/// Words that are no expression: no operators, no dots.
fn is_bare(text: &str) -> bool {
    let plain = |word: &str| word.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
    // Between words these are operators; `in progress` and `not found` are words.
    let operator = |word: &str| matches!(word, "and" | "or" | "in");
    !text.is_empty() && text.split(' ').all(plain) && !text.split(' ').skip(1).any(operator)
}
