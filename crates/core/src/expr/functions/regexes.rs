//! Functions with a regular expression, which is compiled with the definition.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;

use super::arguments::Arguments;
use super::{EvalResult, Form, Function, FunctionSpec, PART_COST, declare, owned};
use crate::bounded_regex::{BoundedRegex, RegexError};
use crate::budget::Budget;
use crate::diagnostic::Code;
use crate::expr::eval::{Context, EvalError, bounded};
use crate::expr::reference::Resolve;
use crate::expr::{Expr, Problem};
use crate::limits;

/// Evaluates a function with its pattern, which is not among the arguments.
pub(super) type RegexEval = for<'v> fn(&Arguments<'v>, &BoundedRegex, &mut Budget) -> EvalResult<'v>;

pub(super) const FUNCTIONS: &[FunctionSpec] = &[
    declare(
        ("matches", "matches(x, \"pattern\")"),
        (2, 2),
        "whether the regular expression matches a part of text x.",
        r#""AB-12".matches("^[A-Z]+-[0-9]+$") => true"#,
        Form::Regex(matches),
    ),
    declare(
        ("regexExtract", "regexExtract(x, \"pattern\")"),
        (2, 2),
        "the first match of the regular expression in text x, or its first group if it has one. Without a match, `default` applies.",
        r#""order 4711 paid".regexExtract("order ([0-9]+)") => "4711""#,
        Form::Regex(extract),
    ),
    declare(
        ("regexExtractAll", "regexExtractAll(x, \"pattern\")"),
        (2, 2),
        "the list of all matches, or of their first groups.",
        r#""a1 b22".regexExtractAll("[0-9]+") => ["1","22"]"#,
        Form::Regex(extract_all),
    ),
    declare(
        ("regexReplace", "regexReplace(x, \"pattern\", y)"),
        (3, 3),
        "text x with y in place of each match; `$1` or `${name}` in y is a group, `$$` a dollar sign.",
        r#""2026-11-18".regexReplace("([0-9]+)-([0-9]+)-([0-9]+)", "$3.$2.$1") => "18.11.2026""#,
        Form::Regex(replace),
    ),
];

/// A call of a function with a pattern.
#[derive(Debug, Clone)]
pub struct RegexCall {
    function: Function,
    eval: RegexEval,
    /// The arguments without the pattern.
    pub arguments: Vec<Expr>,
    regex: BoundedRegex,
}

impl RegexCall {
    pub(super) fn compile(
        function: Function,
        eval: RegexEval,
        arguments: Vec<Expr>,
        pattern: &str,
        at: Range<usize>,
        names: &mut dyn Resolve,
    ) -> Result<Expr, Problem> {
        let regex = names.regex(pattern).map_err(|error| invalid_regex(&error, at))?;
        Ok(Expr::Regex(Box::new(Self { function, eval, arguments, regex })))
    }

    pub(in crate::expr) fn eval<'c>(
        &'c self,
        context: &'c dyn Context,
        budget: &mut Budget,
    ) -> EvalResult<'c> {
        let values = self.arguments.iter().map(|argument| argument.eval(context, budget));
        let values = values.collect::<Result<Vec<_>, EvalError>>()?;
        (self.eval)(&Arguments { function: self.function.0, values }, &self.regex, budget)
    }
}

/// The problem of a pattern that cannot be compiled.
fn invalid_regex(error: &RegexError, at: Range<usize>) -> Problem {
    let code = match error {
        RegexError::Invalid(_) => Code::InvalidExpression,
        RegexError::TooLarge(_) => Code::LimitExceeded,
    };
    Problem::new(code, at, error.to_string())
}

fn matches<'v>(arguments: &Arguments<'v>, regex: &BoundedRegex, budget: &mut Budget) -> EvalResult<'v> {
    Ok(owned(regex.is_match(arguments.text(0)?, budget)?))
}

fn extract<'v>(arguments: &Arguments<'v>, regex: &BoundedRegex, budget: &mut Budget) -> EvalResult<'v> {
    let mut found = None;
    regex.for_each_match(arguments.text(0)?, 1, budget, |captures, _| {
        found = Some(first_group(captures));
        Ok::<_, EvalError>(())
    })?;
    let found = found.ok_or_else(|| arguments.missing("found no match"))?;
    Ok(Cow::Owned(found))
}

fn extract_all<'v>(arguments: &Arguments<'v>, regex: &BoundedRegex, budget: &mut Budget) -> EvalResult<'v> {
    let mut found = Vec::new();
    regex.for_each_match(arguments.text(0)?, usize::MAX, budget, |captures, budget| {
        budget.charge(PART_COST)?;
        found.push(first_group(captures));
        Ok::<_, EvalError>(())
    })?;
    Ok(owned(found))
}

fn replace<'v>(arguments: &Arguments<'v>, regex: &BoundedRegex, budget: &mut Budget) -> EvalResult<'v> {
    let (text, new) = (arguments.text(0)?, arguments.text(1)?);
    let (mut out, mut at) = (String::new(), 0);
    regex.for_each_match(text, usize::MAX, budget, |captures, budget| {
        let Some(whole) = captures.get(0) else { return Ok(()) };
        out.push_str(&text[at..whole.start()]);
        at = whole.end();
        // Each reference to a group is at least two bytes long and adds at most the match.
        let most = new.len().saturating_add((new.len() / 2).saturating_mul(whole.len()));
        budget.charge(PART_COST)?;
        budget.charge_search(most)?;
        captures.expand(new, &mut out);
        if out.len() > limits::RESULT_BYTES { Err(EvalError::too_large()) } else { Ok(()) }
    })?;
    out.push_str(&text[at..]);
    bounded(out)
}

/// The first group of a match that took part in it, or the whole match of a pattern without groups.
fn first_group(captures: &regex::Captures<'_>) -> Value {
    let group = if captures.len() > 1 { captures.get(1) } else { captures.get(0) };
    group.map_or(Value::Null, |group| group.as_str().into())
}
