//! The functions of expressions. Each takes time linear in its arguments, and none repeats text.

use std::borrow::Cow;

use serde_json::Value;

use super::eval::{Context, EvalError, EvalErrorKind, bounded, json_text};
use super::reference::Resolve;
use super::{Expr, Problem};
use crate::bounded_regex::RegexError;
use crate::budget::{Budget, Exhausted};
use crate::diagnostic::Code;
use crate::limits;

/// The cost of a text that a function creates, besides its bytes.
const PART_COST: usize = 5;
/// Bytes of text that are parsed or change their case for one unit.
const CONVERTED_BYTES: usize = 2;

macro_rules! functions {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal $arity:expr;)+) => {
        /// A function that expressions can call: `f(a, b)`, `a.f(b)` or `a | f(b)`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Function { $($(#[doc = $doc])+ $name,)+ }

        impl Function {
            /// The names of all functions.
            pub const NAMES: &[&str] = &[$($word),+];

            /// Each function's name and description, for the reference page.
            pub const DOCS: &[(&str, &str)] = &[$(($word, concat!($($doc),+))),+];

            /// The function with a name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($word => Some(Self::$name),)+ _ => None }
            }

            /// The name of the function.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $word),+ }
            }

            fn arity(self) -> usize {
                match self { $(Self::$name => $arity),+ }
            }
        }
    };
}

functions! {
    /// `size(x)`: characters of a text, items of a list, keys of a map.
    Size = "size" 1;
    /// `has(x)`: whether reference x exists and is not null.
    Has = "has" 1;
    /// `default(x, y)`: x, or y if x is absent or null.
    Default = "default" 2;
    /// `contains(x, y)`: whether text x contains y, list x has the item y, or map x has the key y.
    Contains = "contains" 2;
    /// `startsWith(x, y)`: whether text x starts with y.
    StartsWith = "startsWith" 2;
    /// `endsWith(x, y)`: whether text x ends with y.
    EndsWith = "endsWith" 2;
    /// `matches(x, "pattern")`: whether the regular expression matches a part of text x.
    Matches = "matches" 2;
    /// `lower(x)`: text x in lower case.
    Lower = "lower" 1;
    /// `upper(x)`: text x in upper case.
    Upper = "upper" 1;
    /// `trim(x)`: text x without white space at its ends.
    Trim = "trim" 1;
    /// `join(x, y)`: the items of list x as one text, with y between them.
    Join = "join" 2;
    /// `split(x, y)`: the parts of text x between the y's.
    Split = "split" 2;
    /// `first(x)`: the first item of a list.
    First = "first" 1;
    /// `last(x)`: the last item of a list.
    Last = "last" 1;
    /// `keys(x)`: the keys of a map, sorted.
    Keys = "keys" 1;
    /// `string(x)`: x as text; a value that is not text becomes JSON.
    String = "string" 1;
    /// `number(x)`: text x parsed as a number.
    Number = "number" 1;
    /// `toJson(x)`: x as JSON text.
    ToJson = "toJson" 1;
    /// `fromJson(x)`: the value of JSON text x.
    FromJson = "fromJson" 1;
}

impl Function {
    /// Checks the arguments and creates the call.
    pub(super) fn call(
        self,
        mut arguments: Vec<Expr>,
        at: std::ops::Range<usize>,
        names: &mut dyn Resolve,
    ) -> Result<Expr, Problem> {
        let problem = |message: String| Problem::new(Code::InvalidExpression, at.clone(), message);
        if arguments.len() != self.arity() {
            let (word, arity) = (self.name(), self.arity());
            let message = format!("`{word}` takes {arity} argument(s), not {}", arguments.len());
            return Err(problem(message).hint(example(self)));
        }
        match self {
            Self::Has if !matches!(arguments[0], Expr::Ref(_) | Expr::Query(_) | Expr::Get(_)) => {
                Err(problem("`has` takes a reference, such as `has(steps.a.output.b)`".to_owned()))
            }
            Self::Matches => {
                let Some(Expr::Literal(Value::String(pattern))) = arguments.pop() else {
                    return Err(problem("the pattern of `matches` must be text in quotes".to_owned()));
                };
                let regex = names.regex(&pattern).map_err(|error| invalid_regex(&error, at.clone()))?;
                Ok(Expr::Matches(Box::new(arguments.remove(0)), regex))
            }
            _ => Ok(Expr::Call(self, arguments)),
        }
    }

    pub(super) fn eval<'c>(
        self,
        arguments: &'c [Expr],
        context: &'c dyn Context,
        budget: &mut Budget,
    ) -> Result<Cow<'c, Value>, EvalError> {
        let [first, rest @ ..] = arguments else { return Ok(Cow::Owned(Value::Null)) };
        let first = first.eval(context, budget);
        match self {
            Self::Has => return non_null(first).map(|value| owned(value.is_some())),
            Self::Default => {
                return match (non_null(first)?, rest) {
                    (None, [fallback]) => fallback.eval(context, budget),
                    (value, _) => Ok(value.unwrap_or_default()),
                };
            }
            _ => {}
        }
        let first = first?;
        match rest {
            [] => self.eval_unary(first, budget),
            [second, ..] => {
                let second = second.eval(context, budget)?;
                self.eval_binary(&first, &second, budget)
            }
        }
    }

    fn eval_unary<'v>(self, value: Cow<'v, Value>, budget: &mut Budget) -> Result<Cow<'v, Value>, EvalError> {
        self.charge_unary(&value, budget)?;
        match (self, &*value) {
            (Self::Size, Value::String(text)) => Ok(owned(text.chars().count())),
            (Self::Size, Value::Array(items)) => Ok(owned(items.len())),
            (Self::Size, Value::Object(map)) => Ok(owned(map.len())),
            (Self::Lower, Value::String(text)) => bounded(text.to_lowercase()),
            (Self::Upper, Value::String(text)) => bounded(text.to_uppercase()),
            (Self::Trim, Value::String(text)) => Ok(owned(text.trim())),
            (Self::First | Self::Last, Value::Array(_)) => self.first_or_last(value),
            (Self::Keys, Value::Object(map)) => {
                let mut keys: Vec<&String> = map.keys().collect();
                keys.sort();
                Ok(owned(keys.into_iter().cloned().collect::<Vec<_>>()))
            }
            (Self::String, Value::String(_)) => Ok(value),
            (Self::String | Self::ToJson, other) => bounded(json_text(other, budget)?),
            (Self::Number, Value::Number(_)) => Ok(value),
            (Self::Number, Value::String(text)) => match serde_json::from_str(text.trim()) {
                Ok(Value::Number(number)) => Ok(owned(Value::Number(number))),
                _ => Err(self.type_error(&value)),
            },
            (Self::FromJson, Value::String(text)) if text.len() <= limits::RESULT_BYTES => {
                serde_json::from_str(text).map(Cow::Owned).map_err(|error| {
                    EvalError::new(EvalErrorKind::Type, format!("`fromJson`: invalid JSON: {error}"))
                })
            }
            _ => Err(self.type_error(&value)),
        }
    }

    /// Charges a function of one argument, except for conversions to JSON.
    fn charge_unary(self, value: &Value, budget: &mut Budget) -> Result<(), Exhausted> {
        match (self, value) {
            (Self::Size, Value::String(text)) => budget.charge_bytes(text.len()),
            (Self::Trim, Value::String(text)) => budget.charge_search(text.len()),
            (Self::Lower | Self::Upper | Self::Number | Self::FromJson, Value::String(text)) => {
                budget.charge(text.len() / CONVERTED_BYTES)
            }
            (Self::Keys, Value::Object(map)) => {
                let bytes: usize = map.keys().map(String::len).sum();
                budget.charge(map.len() * PART_COST)?;
                budget.charge_bytes(bytes)
            }
            _ => Ok(()),
        }
    }

    fn first_or_last(self, list: Cow<'_, Value>) -> Result<Cow<'_, Value>, EvalError> {
        let pick = |length: usize| if self == Self::First { 0 } else { length.saturating_sub(1) };
        let picked = match list {
            Cow::Borrowed(list) => {
                list.as_array().and_then(|items| items.get(pick(items.len()))).map(Cow::Borrowed)
            }
            Cow::Owned(Value::Array(mut items)) if !items.is_empty() => {
                let at = pick(items.len());
                Some(Cow::Owned(items.swap_remove(at)))
            }
            Cow::Owned(_) => None,
        };
        picked.ok_or_else(|| {
            EvalError::new(EvalErrorKind::Missing, format!("`{}` of an empty list", self.name()))
        })
    }

    fn eval_binary(
        self,
        first: &Value,
        second: &Value,
        budget: &mut Budget,
    ) -> Result<Cow<'static, Value>, EvalError> {
        match (self, first, second) {
            (Self::Contains, container, item) => super::eval::contains(container, item, budget).map(owned),
            (Self::StartsWith, Value::String(text), Value::String(part)) => {
                budget.charge_bytes(part.len())?;
                Ok(owned(text.starts_with(part.as_str())))
            }
            (Self::EndsWith, Value::String(text), Value::String(part)) => {
                budget.charge_bytes(part.len())?;
                Ok(owned(text.ends_with(part.as_str())))
            }
            (Self::Join, Value::Array(items), Value::String(between)) => {
                let mut out = String::new();
                for (index, item) in items.iter().enumerate() {
                    budget.charge_bytes(between.len())?;
                    out.push_str(if index > 0 { between } else { "" });
                    super::eval::push_text(item, &mut out, budget)?;
                }
                bounded(out)
            }
            (Self::Split, Value::String(text), Value::String(between)) if !between.is_empty() => {
                if text.len() > limits::RESULT_BYTES {
                    return Err(EvalError::too_large());
                }
                budget.charge_search(text.len())?;
                let mut parts = Vec::new();
                for part in text.split(between.as_str()) {
                    budget.charge(PART_COST)?;
                    parts.push(Value::from(part));
                }
                Ok(owned(parts))
            }
            _ => Err(self.type_error(first)),
        }
    }

    fn type_error(self, value: &Value) -> EvalError {
        let kind = super::eval::type_name(value);
        EvalError::new(
            EvalErrorKind::Type,
            format!("`{}` does not accept {kind}: {}", self.name(), example(self)),
        )
    }
}

/// Returns the value, or `None` if it is missing or null.
fn non_null(result: Result<Cow<'_, Value>, EvalError>) -> Result<Option<Cow<'_, Value>>, EvalError> {
    match result {
        Ok(value) if value.is_null() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind == EvalErrorKind::Missing => Ok(None),
        Err(error) => Err(error),
    }
}

/// The problem of a pattern that cannot be compiled.
fn invalid_regex(error: &RegexError, at: std::ops::Range<usize>) -> Problem {
    let code = match error {
        RegexError::Invalid(_) => Code::InvalidExpression,
        RegexError::TooLarge(_) => Code::LimitExceeded,
    };
    Problem::new(code, at, error.to_string())
}

fn owned<'v>(value: impl Into<Value>) -> Cow<'v, Value> {
    Cow::Owned(value.into())
}

fn example(function: Function) -> &'static str {
    let docs = Function::DOCS.iter().find(|(word, _)| *word == function.name());
    docs.map_or("", |(_, text)| text.trim())
}
