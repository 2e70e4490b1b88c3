//! Order and types of JSON values, as JSON Schema defines them.

use std::cmp::Ordering;

use serde_json::Value;

use crate::budget::value::order;

/// Whether a number is less than another.
pub(super) fn less(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => order(left, right) == Some(Ordering::Less),
        _ => false,
    }
}

/// Whether a number is a multiple of another, up to the rounding of binary fractions.
pub(super) fn is_multiple(value: &Value, of: &Value) -> bool {
    let (Value::Number(value), Value::Number(of)) = (value, of) else { return true };
    if let (Some(value), Some(of)) = (value.as_i128(), of.as_i128()) {
        return of == 0 || value % of == 0;
    }
    let (Some(value), Some(of)) = (value.as_f64(), of.as_f64()) else { return true };
    let quotient = value / of;
    quotient.is_finite() && (quotient - quotient.round()).abs() <= 1e-9 * quotient.abs().max(1.0)
}

/// Whether a value has a type. A number without a fraction is an integer.
pub(super) fn is_type(value: &Value, word: &str) -> bool {
    match word {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => {
            value.as_i64().is_some()
                || value.as_u64().is_some()
                || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        _ => false,
    }
}
