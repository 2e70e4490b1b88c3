//! Functions of lists.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt::Write as _;

use serde_json::{Number, Value};

use super::arguments::Arguments;
use super::{EvalResult, FunctionSpec, PART_COST, owned, plain};
use crate::budget::value::{charge_json, copy, order};
use crate::budget::{Budget, Exhausted};
use crate::expr::eval::{EvalError, EvalErrorKind, type_name};
use crate::limits;

pub(super) const FUNCTIONS: &[FunctionSpec] = &[
    plain(("first", "first(x)"), (1, 1), "the first item of a list.", "first([3, 4]) => 3", first),
    plain(("last", "last(x)"), (1, 1), "the last item of a list.", "last([3, 4]) => 4", last),
    plain(
        ("sort", "sort(x)"),
        (1, 1),
        "list x of numbers or of texts, in ascending order.",
        "sort([3, 1, 2]) => [1,2,3]",
        sort,
    ),
    plain(
        ("reverse", "reverse(x)"),
        (1, 1),
        "list or text x backwards.",
        "reverse([1, 2]) => [2,1]",
        reverse,
    ),
    plain(
        ("distinct", "distinct(x)"),
        (1, 1),
        "list x without repeated items; the first of each stays.",
        "distinct([2, 1, 2]) => [2,1]",
        distinct,
    ),
    plain(
        ("flatten", "flatten(x, [n])"),
        (1, 2),
        "list x with the items of the lists in it, n levels deep (default: 1).",
        "flatten([1, [2, [3]]]) => [1,2,[3]]",
        flatten,
    ),
    plain(
        ("zip", "zip(x, y)"),
        (2, 2),
        "pairs of the items of two lists, as many as the shorter list has.",
        r#"zip(["a", "b"], [1, 2, 3]) => [["a",1],["b",2]]"#,
        zip,
    ),
    plain(
        ("range", "range([start], end, [step])"),
        (1, 3),
        "the integers from start (default: 0) to before end.",
        "range(3) => [0,1,2]",
        range,
    ),
];

fn first<'v>(arguments: &mut Arguments<'v>, _: &mut Budget) -> EvalResult<'v> {
    pick(arguments, |_| 0)
}

fn last<'v>(arguments: &mut Arguments<'v>, _: &mut Budget) -> EvalResult<'v> {
    pick(arguments, |length| length.saturating_sub(1))
}

fn pick<'v>(arguments: &mut Arguments<'v>, at: fn(usize) -> usize) -> EvalResult<'v> {
    arguments.list(0)?;
    let picked = match arguments.take_first() {
        Cow::Borrowed(list) => {
            list.as_array().and_then(|items| items.get(at(items.len()))).map(Cow::Borrowed)
        }
        Cow::Owned(Value::Array(mut items)) if !items.is_empty() => {
            let at = at(items.len());
            Some(Cow::Owned(items.swap_remove(at)))
        }
        Cow::Owned(_) => None,
    };
    picked.ok_or_else(|| arguments.missing("of an empty list"))
}

fn sort<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let items = arguments.list(0)?;
    charge_sort(arguments.function.name, items, budget)?;
    let mut sorted = copies(items, budget)?;
    sorted.sort_by(ordering);
    Ok(owned(sorted))
}

/// Checks that keys can be ordered, and charges their sorting.
pub(super) fn charge_sort(name: &str, keys: &[Value], budget: &mut Budget) -> Result<(), EvalError> {
    let mut bytes = 0;
    for key in keys {
        let same = match (keys.first(), key) {
            (Some(Value::Number(_)), Value::Number(_)) => true,
            (Some(Value::String(_)), Value::String(text)) => {
                bytes += text.len();
                true
            }
            _ => false,
        };
        if !same {
            let first = keys.first().map_or("nothing", type_name);
            let message = format!("`{name}` orders numbers or texts, not {first} and {}", type_name(key));
            return Err(EvalError::new(EvalErrorKind::Type, message));
        }
    }
    let rounds = 1 + usize::try_from(keys.len().checked_ilog2().unwrap_or_default()).unwrap_or_default();
    budget.charge(keys.len().saturating_mul(rounds))?;
    Ok(budget.charge_bytes(bytes.saturating_mul(rounds))?)
}

/// The order of two numbers or of two texts.
pub(super) fn ordering(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => order(left, right).unwrap_or(Ordering::Equal),
        (Value::String(left), Value::String(right)) => left.cmp(right),
        _ => Ordering::Equal,
    }
}

fn copies(items: &[Value], budget: &mut Budget) -> Result<Vec<Value>, Exhausted> {
    budget.charge(items.len())?;
    items.iter().map(|item| copy(item, budget)).collect()
}

fn reverse<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    if let Value::String(text) = arguments.get(0) {
        budget.charge_search(text.len())?;
        return Ok(owned(text.chars().rev().collect::<String>()));
    }
    let mut items = copies(arguments.list(0)?, budget)?;
    items.reverse();
    Ok(owned(items))
}

fn distinct<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let mut seen = HashSet::new();
    let mut out = Vec::new();
    for item in arguments.list(0)? {
        budget.charge(PART_COST)?;
        charge_json(item, budget)?;
        let mut key = String::new();
        write_key(item, &mut key);
        if seen.insert(key) {
            out.push(copy(item, budget)?);
        }
    }
    Ok(owned(out))
}

/// Writes a text that is the same for equal values: numbers are equal by value, so 1.0 is written as 1.
fn write_key(value: &Value, out: &mut String) {
    match value {
        Value::Number(number) => write_number(number, out),
        Value::Array(items) => {
            out.push('[');
            for item in items {
                write_key(item, out);
                out.push(',');
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (key, item) in map {
                let _ = write!(out, "{}:", Value::from(key.as_str()));
                write_key(item, out);
                out.push(',');
            }
            out.push('}');
        }
        other => drop(write!(out, "{other}")),
    }
}

fn write_number(number: &Number, out: &mut String) {
    let _ = match number.as_f64().filter(|_| number.is_f64()) {
        // `Display` of a float has no decimals if it is whole.
        Some(float) => write!(out, "{}", if float == 0.0 { 0.0 } else { float }),
        None => write!(out, "{number}"),
    };
}

fn flatten<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let levels = usize::try_from(arguments.integer_or(1, 1)?).unwrap_or_default().min(limits::VALUE_DEPTH);
    let mut out = Vec::new();
    push_flat(arguments.list(0)?, levels, &mut out, budget)?;
    Ok(owned(out))
}

fn push_flat(
    items: &[Value],
    levels: usize,
    out: &mut Vec<Value>,
    budget: &mut Budget,
) -> Result<(), Exhausted> {
    for item in items {
        budget.charge(1)?;
        match item {
            Value::Array(inner) if levels > 0 => push_flat(inner, levels - 1, out, budget)?,
            other => out.push(copy(other, budget)?),
        }
    }
    Ok(())
}

fn zip<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let mut pairs = Vec::new();
    for (left, right) in arguments.list(0)?.iter().zip(arguments.list(1)?) {
        budget.charge(PART_COST)?;
        pairs.push(Value::Array(vec![copy(left, budget)?, copy(right, budget)?]));
    }
    Ok(owned(pairs))
}

fn range<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let (start, end) = if arguments.has(1) {
        (arguments.integer(0)?, arguments.integer(1)?)
    } else {
        (0, arguments.integer(0)?)
    };
    let step = arguments.integer_or(2, 1)?;
    if step == 0 {
        return Err(arguments.invalid("the step is 0"));
    }
    let distance =
        if step > 0 { i128::from(end) - i128::from(start) } else { i128::from(start) - i128::from(end) };
    let count = usize::try_from(
        (distance.max(0) + i128::from(step.unsigned_abs()) - 1) / i128::from(step.unsigned_abs()),
    );
    let count = count.ok().filter(|count| *count <= limits::RANGE_ITEMS);
    let Some(count) = count else {
        let message = format!("`range` returns at most {} items", limits::RANGE_ITEMS);
        return Err(EvalError::new(EvalErrorKind::Limit, message));
    };
    budget.charge(count)?;
    let mut next = Some(start);
    let items = std::iter::from_fn(|| {
        let item = next?;
        next = item.checked_add(step);
        Some(Value::from(item))
    });
    Ok(owned(items.take(count).collect::<Vec<_>>()))
}
