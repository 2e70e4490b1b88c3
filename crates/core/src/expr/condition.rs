//! Conditions: an expression, a JSONPath, or one of the six `result` forms of the graph form.

use serde_json::Value;

use super::eval::{Context, EvalError};
use super::lexer::{Token, name_length};
use super::reference::{IfMissing, Ref, RefPath, Resolve, Segment};
use super::{Expr, Problem, jsonpath, parser};
use crate::budget::Budget;
use crate::diagnostic::Code;

/// A condition, which is true or false.
#[derive(Debug, Clone)]
pub enum Condition {
    /// True if the value is truthy.
    Expr(Expr),
    /// One of the six `result` forms.
    Result {
        /// The reference to the result.
        result: Ref,
        /// The right side of the comparison.
        is: ResultIs,
        /// Whether the comparison is negated (`!=`).
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
    /// This text, or a number or boolean that is written as this text.
    Text(Box<str>),
}

impl Condition {
    /// Parses an expression, with or without surrounding `{{…}}`, or a JSONPath.
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

    /// Parses `on`, which accepts only a JSONPath.
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

    /// Parses any condition, including the six `result` forms.
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

    /// Computes the parts without references once.
    pub(crate) fn folded(self) -> Self {
        match self {
            Self::Expr(expr) => Self::Expr(expr.folded()),
            other @ Self::Result { .. } => other,
        }
    }

    /// Whether the condition is true.
    pub fn holds(&self, context: &dyn Context, budget: &mut Budget) -> Result<bool, EvalError> {
        match self {
            Self::Expr(expr) => expr.holds(context, budget),
            Self::Result { result, is, not } => {
                result.eval(context, budget).map(|value| is.matches(value) != *not)
            }
        }
    }

    /// Calls `visit` with every root that an evaluation can read.
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
            // The output of a gate is a map, which compares as `approved` or `denied`.
            (Self::Text(text), Value::Object(map)) => match map.get("approved") {
                Some(Value::Bool(true)) => &**text == "approved",
                Some(Value::Bool(false)) => &**text == "denied",
                _ => false,
            },
            (Self::Text(_), _) => false,
        }
    }
}

/// Makes a JSONPath without a match false. Any other reference to a missing value is an error.
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

/// Returns V of `result == V` or `result != V`, and whether the comparison is negated.
fn result_sides(text: &str) -> Option<(&str, bool)> {
    let rest = text.trim().strip_prefix("result")?.trim_start();
    match (rest.strip_prefix("=="), rest.strip_prefix("!=")) {
        (Some(rest), _) => Some((rest.trim(), false)),
        (_, Some(rest)) => Some((rest.trim(), true)),
        _ => None,
    }
}

/// Parses `result == V`, where V is text without spaces that does not start with a known name, such as `v1.2`.
fn result_text(text: &str, names: &mut dyn Resolve) -> Option<(ResultIs, bool)> {
    let (rest, not) = result_sides(text)?;
    let has_syntax = rest.contains(|c: char| c.is_whitespace() || "\"'()[]{}<>=!&|,$".contains(c));
    let first = &rest[..name_length(rest)];
    (!rest.is_empty() && !has_syntax && !names.is_known(first)).then(|| (ResultIs::Text(rest.into()), not))
}

/// Parses `result == V` or `result != V`, where V is a constant, quoted text or bare words.
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

/// Returns the content of a quoted text that has no escapes.
fn unquote(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|first| matches!(first, '"' | '\''))?;
    let inside = text.strip_prefix(quote)?.strip_suffix(quote)?;
    (!inside.contains([quote, '\\'])).then_some(inside)
}

/// Whether a text is plain words and not an expression: no operators, no dots.
fn is_bare(text: &str) -> bool {
    let plain = |word: &str| word.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
    // These are operators only between words: `in progress` and `not found` are text.
    let operator = |word: &str| matches!(word, "and" | "or" | "in");
    !text.is_empty() && text.split(' ').all(plain) && !text.split(' ').skip(1).any(operator)
}
