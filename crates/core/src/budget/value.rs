//! Operations on JSON values that are charged to a budget.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::{Number, Value};

use super::{Budget, Exhausted};

/// Bytes that are compared or copied for one unit.
const COPIED_BYTES: usize = 64;
/// Bytes of text that are searched for one unit.
const SEARCHED_BYTES: usize = 8;
/// Bytes of text that are escaped for one unit.
const ESCAPED_BYTES: usize = 4;
/// Items of a list that are copied for one unit. A copy can take up to ten times as long as its charge (lists of maps):
/// the limits of values bound copies, and the copy of a value within these limits must not exhaust a budget.
const COPIED_ITEMS: usize = 2;
/// The cost of looking up a key in another map.
const LOOKUP_COST: usize = 4;

impl Budget {
    /// Charges the comparison or the copy of bytes.
    pub(crate) fn charge_bytes(&mut self, bytes: usize) -> Result<(), Exhausted> {
        self.charge(1 + bytes / COPIED_BYTES)
    }

    /// Charges a search in a text.
    pub(crate) fn charge_search(&mut self, bytes: usize) -> Result<(), Exhausted> {
        self.charge(1 + bytes / SEARCHED_BYTES)
    }
}

/// The number of values in a value, including itself.
pub(crate) fn nodes(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(nodes).sum::<usize>(),
        Value::Object(map) => 1 + map.values().map(nodes).sum::<usize>(),
        _ => 1,
    }
}

/// Copies a value.
pub(crate) fn copy(value: &Value, budget: &mut Budget) -> Result<Value, Exhausted> {
    charge_copy(value, budget)?;
    Ok(value.clone())
}

/// Returns a value that can be kept. Borrowed values are copied.
pub(crate) fn owned(value: Cow<'_, Value>, budget: &mut Budget) -> Result<Value, Exhausted> {
    match value {
        Cow::Borrowed(value) => copy(value, budget),
        Cow::Owned(value) => Ok(value),
    }
}

/// Charges the copy of a value.
pub(crate) fn charge_copy(value: &Value, budget: &mut Budget) -> Result<(), Exhausted> {
    match value {
        Value::String(text) => budget.charge_bytes(text.len()),
        Value::Array(items) => {
            budget.charge(1 + items.len() / COPIED_ITEMS)?;
            items.iter().try_for_each(|item| charge_copy(item, budget))
        }
        Value::Object(map) => map.iter().try_for_each(|(key, item)| {
            budget.charge_bytes(key.len())?;
            charge_copy(item, budget)
        }),
        _ => Ok(()),
    }
}

/// Charges the conversion of a value to JSON text.
pub(crate) fn charge_json(value: &Value, budget: &mut Budget) -> Result<(), Exhausted> {
    match value {
        Value::String(text) => budget.charge(1 + text.len() / ESCAPED_BYTES),
        Value::Array(items) => {
            budget.charge(1)?;
            items.iter().try_for_each(|item| charge_json(item, budget))
        }
        Value::Object(map) => {
            budget.charge(1)?;
            map.iter().try_for_each(|(key, item)| {
                budget.charge(1 + key.len() / ESCAPED_BYTES)?;
                charge_json(item, budget)
            })
        }
        Value::Number(_) => budget.charge(3),
        Value::Null | Value::Bool(_) => budget.charge(1),
    }
}

/// JSON equality, except that numbers are equal by value: `1 == 1.0`.
pub(crate) fn equal(left: &Value, right: &Value, budget: &mut Budget) -> Result<bool, Exhausted> {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => {
            budget.charge(1)?;
            Ok(order(left, right) == Some(Ordering::Equal))
        }
        (Value::String(left), Value::String(right)) => {
            let is_equal_length = left.len() == right.len();
            budget.charge_bytes(if is_equal_length { left.len() } else { 0 })?;
            Ok(left == right)
        }
        (Value::Array(left), Value::Array(right)) => {
            budget.charge(1)?;
            if left.len() != right.len() {
                return Ok(false);
            }
            all(left.iter().zip(right), |(left, right)| equal(left, right, budget))
        }
        (Value::Object(left), Value::Object(right)) => {
            budget.charge(1)?;
            if left.len() != right.len() {
                return Ok(false);
            }
            all(left, |(key, value)| {
                budget.charge(LOOKUP_COST + key.len() / COPIED_BYTES)?;
                right.get(key).map_or(Ok(false), |other| equal(value, other, budget))
            })
        }
        _ => {
            budget.charge(1)?;
            Ok(left == right)
        }
    }
}

fn all<T>(
    items: impl IntoIterator<Item = T>,
    mut holds: impl FnMut(T) -> Result<bool, Exhausted>,
) -> Result<bool, Exhausted> {
    for item in items {
        if !holds(item)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The order of two numbers by value.
pub(crate) fn order(left: &Number, right: &Number) -> Option<Ordering> {
    match (left.as_i128(), right.as_i128()) {
        (Some(left), Some(right)) => Some(left.cmp(&right)),
        _ => left.as_f64()?.partial_cmp(&right.as_f64()?),
    }
}
