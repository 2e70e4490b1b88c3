//! Evaluation of expressions against the values of a run.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::{Map, Number, Value};

use super::reference::{IfMissing, Ref, Root, Segment};
use super::{Expr, Operator};
use crate::budget::value::{self, equal, owned};
use crate::budget::{Budget, Exhausted};
use crate::limits;

/// The cost of following one segment of a reference.
const SEGMENT_COST: usize = 3;
/// The cost of an entry of a map that is built.
const ENTRY_COST: usize = 5;
/// Bytes of an index in a message.
const INDEX_BYTES: usize = 80;

/// The values that an evaluation reads.
pub trait Context {
    /// Returns the value of a root; `None` if it does not exist, such as the output of a step that did not run.
    fn value(&self, root: &Root) -> Option<&Value>;

    /// Returns a new UUID; `None` where values are not recorded.
    fn uuid(&self) -> Option<String> {
        None
    }
}

/// Why an expression has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvalError {
    /// The kind of the error.
    pub kind: EvalErrorKind,
    /// The message, for humans.
    pub message: String,
}

/// The kind of an evaluation error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvalErrorKind {
    /// A path that does not exist.
    Missing,
    /// A value of a type that the operation does not accept.
    Type,
    /// Division by zero, or a number out of range.
    Arithmetic,
    /// A result above [`limits::RESULT_BYTES`], or an evaluation that exhausts its budget.
    Limit,
}

impl EvalError {
    pub(super) fn new(kind: EvalErrorKind, message: String) -> Self {
        Self { kind, message }
    }

    pub(super) fn too_large() -> Self {
        Self::new(EvalErrorKind::Limit, format!("the result is larger than {} bytes", limits::RESULT_BYTES))
    }
}

impl std::fmt::Display for EvalError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for EvalError {}

impl From<Exhausted> for EvalError {
    fn from(exhausted: Exhausted) -> Self {
        Self::new(EvalErrorKind::Limit, exhausted.to_string())
    }
}

impl Expr {
    /// Evaluates the expression. Existing values are borrowed.
    pub fn eval<'c>(
        &'c self,
        context: &'c dyn Context,
        budget: &mut Budget,
    ) -> Result<Cow<'c, Value>, EvalError> {
        budget.charge(1)?;
        match self {
            Self::Literal(value) => Ok(Cow::Borrowed(value)),
            Self::Ref(reference) => reference.eval(context, budget).map(Cow::Borrowed),
            Self::Query(query) => query.eval(context, budget).map(Cow::Owned),
            Self::List(items) => {
                let values = items.iter().map(|item| Ok(owned(item.eval(context, budget)?, budget)?));
                values.collect::<Result<Vec<_>, EvalError>>().map(|list| Cow::Owned(Value::Array(list)))
            }
            Self::Not(inner) => {
                inner.eval(context, budget).map(|value| Cow::Owned(Value::Bool(!truthy(&value))))
            }
            Self::Negate(inner) => negate(&*inner.eval(context, budget)?),
            Self::Binary(operator, sides) => operator.eval(&sides.0, &sides.1, context, budget),
            Self::Choose(parts) => {
                let chosen = if truthy(&*parts.0.eval(context, budget)?) { &parts.1 } else { &parts.2 };
                chosen.eval(context, budget)
            }
            Self::Get(parts) => {
                let value = parts.0.eval(context, budget)?;
                get(value, &*parts.1.eval(context, budget)?, budget)
            }
            Self::Map(entries) => {
                let mut map = Map::new();
                for (key, value) in entries {
                    budget.charge(ENTRY_COST)?;
                    map.insert(key.to_string(), owned(value.eval(context, budget)?, budget)?);
                }
                Ok(Cow::Owned(Value::Object(map)))
            }
            Self::Slice(parts) => {
                let value = parts.0.eval(context, budget)?;
                let start = bound(parts.1.as_ref(), context, budget)?;
                let end = bound(parts.2.as_ref(), context, budget)?;
                slice(&value, start, end, budget)
            }
            Self::Call(function, arguments) => function.eval(arguments, context, budget),
            Self::Regex(call) => call.eval(context, budget),
            Self::Macro(call) => call.eval(context, budget),
        }
    }
}

impl Ref {
    /// Returns the value that the reference points to.
    pub fn eval<'c>(&'c self, context: &'c dyn Context, budget: &mut Budget) -> Result<&'c Value, EvalError> {
        static NULL: Value = Value::Null;
        static EMPTY: Value = Value::String(String::new());
        budget.charge(SEGMENT_COST * (1 + self.path.len()))?;
        let found = match context.value(&self.root) {
            None => Err(None),
            Some(start) => walk(start, &self.path).map_err(|segment| Some((start, segment))),
        };
        match (found, self.if_missing) {
            (Ok(value), _) => Ok(value),
            (Err(_), IfMissing::Null) => Ok(&NULL),
            (Err(_), IfMissing::Empty) => Ok(&EMPTY),
            (Err(Some((start, _))), IfMissing::Whole) => Ok(start),
            (Err(at), _) => Err(self.missing(at)),
        }
    }

    /// `at` is the value of the root, and the index of the first segment that does not exist.
    fn missing(&self, at: Option<(&Value, usize)>) -> EvalError {
        let segment = at.and_then(|(start, at)| Some((start, at, self.path.get(at)?)));
        let reason = match segment {
            None => "it has no value yet".to_owned(),
            Some((_, 0, Segment::Key(name))) if self.root == Root::Env => {
                format!(
                    "the environment variable {name} is not set, or not listed in the setting `definitions.env`"
                )
            }
            Some((start, at, segment)) => {
                let found = walk(start, &self.path[..at]).map(present).unwrap_or_default();
                match segment {
                    Segment::Key(key) => format!("there is no `{key}`{found}"),
                    Segment::Index(index) => format!("there is no item {index}{found}"),
                }
            }
        };
        EvalError::new(EvalErrorKind::Missing, format!("`{}` cannot be resolved: {reason}", self.written))
    }
}

/// Describes a value for a message about a missing key: names and types, never contents.
fn present(value: &Value) -> String {
    match value {
        Value::Object(map) if map.is_empty() => "; the map is empty".to_owned(),
        Value::Object(map) => {
            let short = |key: &&String| key.len() <= limits::SHOWN_KEY_BYTES;
            let keys: Vec<&str> =
                map.keys().take(limits::SHOWN_KEYS).filter(short).map(String::as_str).collect();
            let left = map.len() - keys.len();
            let more = if left > 0 { format!(" and {left} more") } else { String::new() };
            format!("; there is {}{more}", crate::diagnostic::quoted(&keys))
        }
        Value::Array(items) if items.len() == 1 => "; the list has 1 item".to_owned(),
        Value::Array(items) => format!("; the list has {} items", items.len()),
        other => format!("; the value is {}", type_name(other)),
    }
}

/// Follows a path. The error is the index of the first segment that does not exist.
fn walk<'v>(start: &'v Value, path: &[Segment]) -> Result<&'v Value, usize> {
    path.iter().enumerate().try_fold(start, |value, (index, segment)| step(value, segment).ok_or(index))
}

fn step<'v>(value: &'v Value, segment: &Segment) -> Option<&'v Value> {
    match (value, segment) {
        (Value::Object(map), Segment::Key(key)) => map.get(&**key),
        (Value::Array(items), Segment::Index(index)) => items.get(position(*index, items.len())?),
        (Value::Array(items), Segment::Key(key)) => items.get(key.parse::<usize>().ok()?),
        _ => None,
    }
}

/// Converts an index to a position in a list; negative ones count from the end.
fn position(index: i64, length: usize) -> Option<usize> {
    let back = usize::try_from(index.unsigned_abs()).ok()?;
    if index < 0 { length.checked_sub(back) } else { Some(back) }
}

/// Evaluates `a[b]`.
fn get<'c>(value: Cow<'c, Value>, index: &Value, budget: &mut Budget) -> Result<Cow<'c, Value>, EvalError> {
    budget.charge(SEGMENT_COST)?;
    let segment = match index {
        Value::String(key) => {
            budget.charge_search(key.len())?;
            Segment::Key(key.as_str().into())
        }
        Value::Number(number) => match number.as_i64() {
            Some(index) => Segment::Index(index),
            None => return Err(wrong_type("an index is a whole number or text", index)),
        },
        other => return Err(wrong_type("an index is a whole number or text", other)),
    };
    let found = match value {
        Cow::Borrowed(value) => step(value, &segment).map(Cow::Borrowed),
        Cow::Owned(value) => match step(&value, &segment) {
            Some(found) => Some(Cow::Owned(value::copy(found, budget)?)),
            None => None,
        },
    };
    found.ok_or_else(|| {
        let index = limits::cut(index.to_string(), INDEX_BYTES);
        EvalError::new(EvalErrorKind::Missing, format!("there is no item or key {index}"))
    })
}

/// Evaluates an end of a slice.
fn bound(expr: Option<&Expr>, context: &dyn Context, budget: &mut Budget) -> Result<Option<i64>, EvalError> {
    let Some(expr) = expr else { return Ok(None) };
    let value = expr.eval(context, budget)?;
    match value.as_i64() {
        Some(index) => Ok(Some(index)),
        None => Err(wrong_type("the ends of a slice are whole numbers", &value)),
    }
}

/// Evaluates `a[start:end]`. Ends outside the list or text are its ends; negative ones count from its end.
fn slice<'v>(
    value: &Value,
    start: Option<i64>,
    end: Option<i64>,
    budget: &mut Budget,
) -> Result<Cow<'v, Value>, EvalError> {
    let clamp = |index: i64, length: usize| position(index, length).unwrap_or(0).min(length);
    let range = |length: usize| {
        let end = end.map_or(length, |end| clamp(end, length));
        start.map_or(0, |start| clamp(start, length)).min(end)..end
    };
    match value {
        Value::Array(items) => {
            let part = &items[range(items.len())];
            budget.charge(part.len())?;
            let copies = part.iter().map(|item| value::copy(item, budget));
            Ok(Cow::Owned(Value::Array(copies.collect::<Result<_, _>>()?)))
        }
        Value::String(text) => {
            budget.charge_search(2 * text.len())?;
            let range = range(text.chars().count());
            bounded(text.chars().skip(range.start).take(range.len()).collect())
        }
        other => Err(wrong_type("a slice is of a list or text", other)),
    }
}

/// Whether a value is truthy: not `false`, `null`, 0, `""` or an empty list or map.
pub fn truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

impl Operator {
    fn eval<'c>(
        self,
        left: &'c Expr,
        right: &'c Expr,
        context: &'c dyn Context,
        budget: &mut Budget,
    ) -> Result<Cow<'c, Value>, EvalError> {
        let left = left.eval(context, budget)?;
        let is_decided = match self {
            Self::And => !truthy(&left),
            Self::Or => truthy(&left),
            _ => false,
        };
        if is_decided {
            return Ok(Cow::Owned(Value::Bool(self == Self::Or)));
        }
        let right = right.eval(context, budget)?;
        match self.answer(&left, &right, budget)? {
            Some(answer) => Ok(Cow::Owned(Value::Bool(answer))),
            None => self.compute(&left, &right, budget),
        }
    }

    /// The answer of an operator that asks something about two values; `None` for one that computes a value.
    pub(super) fn answer(
        self,
        left: &Value,
        right: &Value,
        budget: &mut Budget,
    ) -> Result<Option<bool>, EvalError> {
        Ok(Some(match self {
            Self::And | Self::Or => truthy(right),
            Self::Equal => equal(left, right, budget)?,
            Self::NotEqual => !equal(left, right, budget)?,
            Self::Less => compare(left, right, budget)?.is_lt(),
            Self::LessOrEqual => compare(left, right, budget)?.is_le(),
            Self::Greater => compare(left, right, budget)?.is_gt(),
            Self::GreaterOrEqual => compare(left, right, budget)?.is_ge(),
            Self::In => contains(right, left, budget)?,
            Self::Add | Self::Subtract | Self::Multiply | Self::Divide | Self::Remainder => return Ok(None),
        }))
    }

    pub(super) fn compute(
        self,
        left: &Value,
        right: &Value,
        budget: &mut Budget,
    ) -> Result<Cow<'static, Value>, EvalError> {
        match (left, right) {
            (Value::Number(left), Value::Number(right)) => match (left.as_i64(), right.as_i64()) {
                (Some(left), Some(right)) => self.compute_integers(left, right),
                _ => {
                    self.compute_floats(left.as_f64().unwrap_or(f64::NAN), right.as_f64().unwrap_or(f64::NAN))
                }
            },
            (Value::String(left), Value::String(right)) if self == Self::Add => {
                if left.len() + right.len() > limits::RESULT_BYTES {
                    return Err(EvalError::too_large());
                }
                budget.charge_bytes(left.len() + right.len())?;
                bounded(format!("{left}{right}"))
            }
            (Value::Number(_), other) | (other, _) => Err(wrong_type("arithmetic takes numbers", other)),
        }
    }

    fn compute_integers(self, left: i64, right: i64) -> Result<Cow<'static, Value>, EvalError> {
        let result = match self {
            Self::Add => left.checked_add(right),
            Self::Subtract => left.checked_sub(right),
            Self::Multiply => left.checked_mul(right),
            // The quotient is an integer if there is no rest: 6 / 2 is 3, and 7 / 2 is 3.5.
            #[expect(clippy::cast_precision_loss, reason = "the quotient is a real number")]
            Self::Divide if right != 0 && left.checked_rem(right) != Some(0) => {
                return self.compute_floats(left as f64, right as f64);
            }
            Self::Divide => left.checked_div(right),
            _ => left.checked_rem(right),
        };
        result.map(|number| Cow::Owned(number.into())).ok_or_else(|| arithmetic(right == 0))
    }

    fn compute_floats(self, left: f64, right: f64) -> Result<Cow<'static, Value>, EvalError> {
        let result = match self {
            Self::Add => left + right,
            Self::Subtract => left - right,
            Self::Multiply => left * right,
            Self::Divide => left / right,
            _ => left % right,
        };
        let number = Number::from_f64(result).ok_or_else(|| arithmetic(right == 0.0))?;
        Ok(Cow::Owned(Value::Number(number)))
    }
}

pub(super) fn arithmetic(by_zero: bool) -> EvalError {
    let message = if by_zero { "division by zero" } else { "the number is out of range" };
    EvalError::new(EvalErrorKind::Arithmetic, message.to_owned())
}

fn negate(value: &Value) -> Result<Cow<'static, Value>, EvalError> {
    match value {
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => {
                integer.checked_neg().map(|number| Cow::Owned(number.into())).ok_or_else(|| arithmetic(false))
            }
            (None, float) => Ok(Cow::Owned(Value::from(-float.unwrap_or_default()))),
        },
        other => Err(wrong_type("`-` takes a number", other)),
    }
}

pub(super) fn compare(left: &Value, right: &Value, budget: &mut Budget) -> Result<Ordering, EvalError> {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => {
            value::order(left, right).ok_or_else(|| arithmetic(false))
        }
        (Value::String(left), Value::String(right)) => {
            budget.charge_bytes(left.len().min(right.len()))?;
            Ok(left.cmp(right))
        }
        _ => Err(EvalError::new(
            EvalErrorKind::Type,
            format!("cannot order {} and {}", type_name(left), type_name(right)),
        )),
    }
}

pub(super) fn contains(container: &Value, item: &Value, budget: &mut Budget) -> Result<bool, EvalError> {
    match (container, item) {
        (Value::Array(items), _) => {
            for other in items {
                if equal(other, item, budget)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (Value::Object(map), Value::String(key)) => {
            budget.charge_search(key.len())?;
            Ok(map.contains_key(key))
        }
        (Value::String(text), Value::String(part)) => {
            budget.charge_search(text.len() + part.len())?;
            Ok(text.contains(part.as_str()))
        }
        (other, _) => Err(wrong_type("expected a list, a map or text", other)),
    }
}

fn wrong_type(expected: &str, found: &Value) -> EvalError {
    EvalError::new(EvalErrorKind::Type, format!("{expected}, found {}", type_name(found)))
}

pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

/// Converts text to a value, within the limit.
pub(super) fn bounded<'v>(text: String) -> Result<Cow<'v, Value>, EvalError> {
    if text.len() > limits::RESULT_BYTES {
        Err(EvalError::too_large())
    } else {
        Ok(Cow::Owned(Value::String(text)))
    }
}

/// Appends a value as text. Values that are not text are appended as JSON.
pub(super) fn push_text(value: &Value, out: &mut String, budget: &mut Budget) -> Result<(), EvalError> {
    match value {
        Value::String(text) => {
            budget.charge_bytes(text.len())?;
            out.push_str(text);
        }
        other => out.push_str(&json_text(other, budget)?),
    }
    if out.len() > limits::RESULT_BYTES { Err(EvalError::too_large()) } else { Ok(()) }
}

/// Converts a value to JSON text.
pub(super) fn json_text(value: &Value, budget: &mut Budget) -> Result<String, EvalError> {
    value::charge_json(value, budget)?;
    Ok(value.to_string())
}
