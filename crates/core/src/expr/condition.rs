//! Conditions: an expression, a JSONPath, or one of the graph form's six `result` forms.

use serde_json::Value;

use super::eval::{Context, EvalError, truthy};
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
        let inner = trimmed.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}")).unwrap_or(trimmed);
        let offset = inner.as_ptr().addr() - text.as_ptr().addr();
        let expr = parser::parse(inner, names).map_err(|problem| {
            let hint = "a condition is one expression: write names without `{{` and `}}`";
            let problem = if inner.contains("{{") { problem.hint(hint) } else { problem };
            problem.shifted(offset)
        })?;
        Ok(Self::Expr(absent_is_false(expr)))
    }

    /// Parses `on`: a JSONPath and nothing else.
    pub fn parse_jsonpath(text: &str, names: &mut dyn Resolve) -> Result<Self, Problem> {
        if !text.starts_with("$.") && !text.starts_with("$[") {
            let problem = Problem::new(Code::InvalidJsonPath, 0..text.len(), "`on` takes a JSONPath");
            return Err(problem.hint("write `on: $.step.field`, or use `if` for an expression"));
        }
        let compiled = jsonpath::compile(text, names);
        compiled.map(absent_is_false).map(Self::Expr).map_err(|problem| match problem.hint {
            None => problem.hint("for comparisons, use `if` with an expression"),
            Some(_) => problem,
        })
    }

    /// Parses a condition of the graph form: the six `result` forms mean exactly what they always did.
    pub fn parse_result(text: &str, names: &mut dyn Resolve) -> Result<Self, Problem> {
        let Some((is, not)) = result_form(text) else {
            return Self::parse(text, names).or_else(|problem| match result_text(text) {
                Some((is, not)) => Self::compare_result(is, not, text, names),
                None => Err(problem),
            });
        };
        Self::compare_result(is, not, text, names)
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

/// `result == V` where V is no expression but one piece of text, such as `v1.2` or `a/b`. What starts with
/// a well-known name is a reference that went wrong.
fn result_text(text: &str) -> Option<(ResultIs, bool)> {
    let (rest, not) = result_sides(text)?;
    let first = rest.split(['.', '[']).next().unwrap_or_default();
    let is_reference = matches!(first, "inputs" | "input" | "steps" | "item" | "env" | "result" | "error");
    let has_syntax = rest.contains(|c: char| c.is_whitespace() || "\"'()[]{}<>=!&|,$".contains(c));
    (!rest.is_empty() && !is_reference && !has_syntax).then(|| (ResultIs::Text(rest.into()), not))
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
