//! Functions of values of any type.

use std::borrow::Cow;

use serde_json::Value;

use super::arguments::Arguments;
use super::{CONVERTED_BYTES, EvalResult, Form, FunctionSpec, declare, owned, plain};
use crate::budget::Budget;
use crate::expr::eval::{self, bounded, json_text};

pub(super) const FUNCTIONS: &[FunctionSpec] = &[
    plain(
        ("size", "size(x)"),
        (1, 1),
        "characters of a text, items of a list, keys of a map.",
        r#"size("été") => 3"#,
        size,
    ),
    declare(
        ("has", "has(x)"),
        (1, 1),
        "whether reference x exists and is not null.",
        "has(order.discount) => false",
        Form::Has,
    ),
    declare(
        ("default", "default(x, y)"),
        (2, 2),
        "x, or y if x is absent or null.",
        "order.discount | default(0) => 0",
        Form::Default,
    ),
    plain(
        ("contains", "contains(x, y)"),
        (2, 2),
        "whether text x contains y, list x has the item y, or map x has the key y.",
        "[1, 2].contains(2) => true",
        contains,
    ),
    plain(
        ("string", "string(x)"),
        (1, 1),
        "x as text; a value that is not text becomes JSON.",
        r#"string([1, "a"]) => "[1,\"a\"]""#,
        string,
    ),
    plain(("number", "number(x)"), (1, 1), "text x parsed as a number.", r#"number("12.5") => 12.5"#, number),
];

fn size<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    match arguments.get(0) {
        Value::String(text) => {
            budget.charge_bytes(text.len())?;
            Ok(owned(text.chars().count()))
        }
        Value::Array(items) => Ok(owned(items.len())),
        Value::Object(map) => Ok(owned(map.len())),
        other => Err(arguments.type_error(other)),
    }
}

fn contains<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    eval::contains(arguments.get(0), arguments.get(1), budget).map(owned)
}

fn string<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    match arguments.get(0) {
        Value::String(_) => Ok(arguments.take_first()),
        other => bounded(json_text(other, budget)?),
    }
}

fn number<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    match arguments.get(0) {
        Value::Number(_) => Ok(arguments.take_first()),
        Value::String(text) => {
            budget.charge(text.len() / CONVERTED_BYTES)?;
            match serde_json::from_str(text.trim()) {
                Ok(number @ Value::Number(_)) => Ok(Cow::Owned(number)),
                _ => Err(arguments.type_error(arguments.get(0))),
            }
        }
        other => Err(arguments.type_error(other)),
    }
}
