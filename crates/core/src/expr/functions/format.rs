//! `format`: text with verbs such as `%s` and `%.2f`, as in CEL.

use std::fmt::Write as _;

use serde_json::Value;

use crate::budget::Budget;
use crate::expr::eval::{EvalError, push_text};
use crate::limits;

/// The decimals of `%f` and `%e` without a number.
const DEFAULT_DIGITS: usize = 6;
/// The cost of a number that is written.
const NUMBER_COST: usize = 10;

/// Why a text cannot be formatted.
pub(super) enum FormatError {
    Eval(EvalError),
    Invalid(String),
    /// A verb, and a value that it does not accept.
    Value(String, Value),
}

impl<E: Into<EvalError>> From<E> for FormatError {
    fn from(error: E) -> Self {
        Self::Eval(error.into())
    }
}

/// Replaces each verb of a text by the next value.
pub(super) fn format(text: &str, values: &[Value], budget: &mut Budget) -> Result<String, FormatError> {
    budget.charge_search(text.len())?;
    let mut out = String::new();
    let mut values = values.iter();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        let (verb, digits, length) = verb(after)?;
        rest = &after[length..];
        if verb == '%' {
            out.push('%');
            continue;
        }
        let value = values.next().ok_or_else(|| too_few(values.len()))?;
        budget.charge(NUMBER_COST + digits)?;
        write_value(verb, digits, value, &mut out, budget)?;
        if out.len() > limits::RESULT_BYTES {
            return Err(EvalError::too_large().into());
        }
    }
    out.push_str(rest);
    match values.len() {
        0 => Ok(out),
        left => Err(FormatError::Invalid(format!("{left} value(s) have no verb such as `%s`"))),
    }
}

fn too_few(_: usize) -> FormatError {
    FormatError::Invalid("the list has fewer values than the text has verbs".to_owned())
}

/// The verb after a `%`, its number of decimals, and its length in bytes.
fn verb(text: &str) -> Result<(char, usize, usize), FormatError> {
    let (mut digits, mut at) = (DEFAULT_DIGITS, 0);
    if let Some(after) = text.strip_prefix('.') {
        let count = after.bytes().take_while(u8::is_ascii_digit).count();
        digits = after[..count].parse().unwrap_or(usize::MAX);
        at = 1 + count;
    }
    if digits > limits::FORMAT_DIGITS {
        let message = format!("a verb has at most {} decimals", limits::FORMAT_DIGITS);
        return Err(FormatError::Invalid(message));
    }
    match text[at..].chars().next() {
        Some(verb @ ('s' | 'd' | 'x' | 'X' | 'o' | 'b' | '%')) if at == 0 => Ok((verb, 0, 1)),
        Some(verb @ ('f' | 'e')) => Ok((verb, digits, at + 1)),
        Some(verb) => Err(FormatError::Invalid(format!("unknown verb `%{}{verb}`", &text[..at]))),
        None => Err(FormatError::Invalid("the text ends with `%`; write `%%` for a percent sign".to_owned())),
    }
}

fn write_value(
    verb: char,
    digits: usize,
    value: &Value,
    out: &mut String,
    budget: &mut Budget,
) -> Result<(), FormatError> {
    let written = match (verb, value, value.as_i64(), value.as_f64()) {
        ('s', ..) => return Ok(push_text(value, out, budget)?),
        ('d', Value::Number(number), Some(_), _) => write!(out, "{number}"),
        ('x', _, Some(number), _) => write!(out, "{}{:x}", sign(number), number.unsigned_abs()),
        ('X', _, Some(number), _) => write!(out, "{}{:X}", sign(number), number.unsigned_abs()),
        ('o', _, Some(number), _) => write!(out, "{}{:o}", sign(number), number.unsigned_abs()),
        ('b', _, Some(number), _) => write!(out, "{}{:b}", sign(number), number.unsigned_abs()),
        ('f', _, _, Some(number)) => write!(out, "{number:.digits$}"),
        ('e', _, _, Some(number)) => write!(out, "{number:.digits$e}"),
        _ => return Err(FormatError::Value(format!("%{verb}"), value.clone())),
    };
    written.map_err(|_| FormatError::Invalid("the value cannot be written".to_owned()))
}

fn sign(number: i64) -> &'static str {
    if number < 0 { "-" } else { "" }
}
