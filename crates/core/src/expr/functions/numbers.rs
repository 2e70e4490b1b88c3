//! Functions of numbers.

use std::cmp::Ordering;

use serde_json::{Number, Value};

use super::arguments::Arguments;
use super::{CONVERTED_BYTES, EvalResult, FunctionSpec, owned, plain};
use crate::budget::Budget;
use crate::expr::Operator;
use crate::expr::eval::{EvalError, arithmetic, compare};

/// The maximum number of arguments of `min` and `max`.
const MANY: usize = 16;
/// The maximum number of decimals of `round`, as many as a number has.
const DECIMALS: i64 = 15;
/// Numbers from which on `f64` is not within the range of integers.
const INTEGER_LIMIT: f64 = 9_223_372_036_854_775_808.0;

pub(super) const FUNCTIONS: &[FunctionSpec] = &[
    plain(
        ("int", "int(x)"),
        (1, 1),
        "number or text x as an integer, without its decimals.",
        r#"int("12.9") => 12"#,
        int,
    ),
    plain(
        ("intDiv", "intDiv(x, y)"),
        (2, 2),
        "integer x divided by integer y, without the rest; `x / y` has decimals.",
        "intDiv(7, 2) => 3",
        int_div,
    ),
    plain(("abs", "abs(x)"), (1, 1), "x without its sign.", "abs(-3.5) => 3.5", abs),
    plain(("floor", "floor(x)"), (1, 1), "the largest integer up to x.", "floor(-1.5) => -2", floor),
    plain(("ceil", "ceil(x)"), (1, 1), "the smallest integer from x on.", "ceil(1.2) => 2", ceil),
    plain(
        ("round", "round(x, [n])"),
        (1, 2),
        "x rounded to an integer, or to n decimals; halves are rounded away from zero.",
        "round(2.456, 2) => 2.46",
        round,
    ),
    plain(
        ("min", "min(x, …)"),
        (1, MANY),
        "the smallest of a list, or of several values: numbers or texts.",
        "min([3, 1, 2]) => 1",
        min,
    ),
    plain(
        ("max", "max(x, …)"),
        (1, MANY),
        "the largest of a list, or of several values: numbers or texts.",
        "max(3, 1.5) => 3",
        max,
    ),
    plain(("sum", "sum(x)"), (1, 1), "the sum of a list of numbers.", "sum([1, 2, 3.5]) => 6.5", sum),
    plain(("avg", "avg(x)"), (1, 1), "the average of a list of numbers.", "avg([1, 2]) => 1.5", avg),
];

fn int<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let parsed = match arguments.get(0) {
        Value::Number(number) => Some(number.clone()),
        Value::String(text) => {
            budget.charge(text.len() / CONVERTED_BYTES)?;
            serde_json::from_str::<Number>(text.trim()).ok()
        }
        _ => None,
    };
    let number = parsed.ok_or_else(|| arguments.type_error(arguments.get(0)))?;
    match number.as_i64() {
        Some(integer) => Ok(owned(integer)),
        None => integer(number.as_f64().unwrap_or(f64::NAN).trunc()).map(owned),
    }
}

fn int_div<'v>(arguments: &mut Arguments<'v>, _: &mut Budget) -> EvalResult<'v> {
    let (left, right) = (arguments.integer(0)?, arguments.integer(1)?);
    left.checked_div(right).map(owned).ok_or_else(|| arithmetic(right == 0))
}

fn abs<'v>(arguments: &mut Arguments<'v>, _: &mut Budget) -> EvalResult<'v> {
    let number = number(arguments)?;
    match number.as_i64() {
        Some(integer) => integer.checked_abs().map(owned).ok_or_else(|| arithmetic(false)),
        None => Ok(owned(number.as_f64().unwrap_or_default().abs())),
    }
}

fn floor<'v>(arguments: &mut Arguments<'v>, _: &mut Budget) -> EvalResult<'v> {
    whole(arguments, f64::floor)
}

fn ceil<'v>(arguments: &mut Arguments<'v>, _: &mut Budget) -> EvalResult<'v> {
    whole(arguments, f64::ceil)
}

fn round<'v>(arguments: &mut Arguments<'v>, _: &mut Budget) -> EvalResult<'v> {
    if !arguments.has(1) {
        return whole(arguments, f64::round);
    }
    let (number, digits) = (number(arguments)?, arguments.integer(1)?);
    if !(-DECIMALS..=DECIMALS).contains(&digits) {
        return Err(
            arguments.invalid(&format!("the number of decimals is between -{DECIMALS} and {DECIMALS}"))
        );
    }
    if digits >= 0 && number.is_i64() {
        return Ok(owned(Value::Number(number.clone())));
    }
    let value = number.as_f64().unwrap_or(f64::NAN);
    let scale = 10_f64.powi(i32::try_from(digits.abs()).unwrap_or_default());
    if digits < 0 {
        return integer((value / scale).round() * scale).map(owned);
    }
    let scaled = (value * scale).round() / scale;
    // A number that is too large to be scaled has no decimals.
    Ok(owned(if scaled.is_finite() { scaled } else { value }))
}

/// Rounds to an integer.
fn whole<'v>(arguments: &Arguments<'v>, round: fn(f64) -> f64) -> EvalResult<'v> {
    let number = number(arguments)?;
    match number.as_i64() {
        Some(integer) => Ok(owned(integer)),
        None => integer(round(number.as_f64().unwrap_or(f64::NAN))).map(owned),
    }
}

/// A number without decimals as an integer.
#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
fn integer(value: f64) -> Result<i64, EvalError> {
    let is_inside = (-INTEGER_LIMIT..INTEGER_LIMIT).contains(&value);
    if is_inside { Ok(value as i64) } else { Err(arithmetic(false)) }
}

fn number<'a>(arguments: &'a Arguments<'_>) -> Result<&'a Number, EvalError> {
    match arguments.get(0) {
        Value::Number(number) => Ok(number),
        other => Err(arguments.type_error(other)),
    }
}

fn min<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    extreme(arguments, Ordering::Less, budget)
}

fn max<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    extreme(arguments, Ordering::Greater, budget)
}

/// The first of the values that is `wanted` than all others.
fn extreme<'v>(arguments: &Arguments<'v>, wanted: Ordering, budget: &mut Budget) -> EvalResult<'v> {
    let items: Vec<&Value> = match arguments.get(0) {
        Value::Array(items) if !arguments.has(1) => items.iter().collect(),
        _ => arguments.values.iter().map(|value| &**value).collect(),
    };
    budget.charge(items.len())?;
    let mut items = items.into_iter();
    let Some(mut best) = items.next() else { return Err(arguments.missing("of an empty list")) };
    if !matches!(best, Value::Number(_) | Value::String(_)) {
        return Err(arguments.type_error(best));
    }
    for item in items {
        if compare(item, best, budget)? == wanted {
            best = item;
        }
    }
    Ok(owned(crate::budget::value::copy(best, budget)?))
}

fn sum<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    total(arguments, budget).map(owned)
}

fn avg<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let count = arguments.list(0)?.len();
    if count == 0 {
        return Err(arguments.missing("of an empty list"));
    }
    let total = total(arguments, budget)?;
    Operator::Divide.compute(&total, &Value::from(count), budget)
}

fn total(arguments: &Arguments<'_>, budget: &mut Budget) -> Result<Value, EvalError> {
    let items = arguments.list(0)?;
    budget.charge(items.len() * 2)?;
    let mut total = Value::from(0);
    for item in items {
        if !item.is_number() {
            return Err(arguments.type_error(item));
        }
        total = Operator::Add.compute(&total, item, budget)?.into_owned();
    }
    Ok(total)
}
