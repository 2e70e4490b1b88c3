//! Text as a part of a command, a URL or a query.

use serde_json::Value;

use super::arguments::Arguments;
use super::{CONVERTED_BYTES, EvalResult, FunctionSpec, owned, plain};
use crate::budget::Budget;
use crate::expr::eval::{EvalError, bounded, push_text};
use crate::limits;

const HEX_DIGITS: &[u8; 16] = b"0123456789ABCDEF";

pub(super) const FUNCTIONS: &[FunctionSpec] = &[
    plain(
        ("shellQuote", "shellQuote(x)"),
        (1, 1),
        "x as one word of a POSIX shell; the words of a list, with spaces between them.",
        r#"shellQuote(["rm", "it's"]) => "'rm' 'it'\\''s'""#,
        shell_quote,
    ),
    plain(
        ("urlEncode", "urlEncode(x)"),
        (1, 1),
        "x as a part of a URL: all bytes except letters, digits and `-._~` as `%XX`.",
        r#"urlEncode("a b/ü") => "a%20b%2F%C3%BC""#,
        url_encode,
    ),
    plain(
        ("urlDecode", "urlDecode(x)"),
        (1, 1),
        "text x with its `%XX` decoded.",
        r#"urlDecode("a%20b") => "a b""#,
        url_decode,
    ),
    plain(
        ("sqlQuote", "sqlQuote(x)"),
        (1, 1),
        "x as a literal of standard SQL: text in single quotes, numbers, booleans and null as they are. Prefer the parameters of a tool; MySQL treats `\\` differently.",
        r#"sqlQuote("it's") => "'it''s'""#,
        sql_quote,
    ),
];

/// The text of a scalar. Lists and maps have no quoted form.
fn scalar(arguments: &Arguments<'_>, value: &Value, budget: &mut Budget) -> Result<String, EvalError> {
    if matches!(value, Value::Array(_) | Value::Object(_) | Value::Null) {
        return Err(arguments.type_error(value));
    }
    let mut text = String::new();
    push_text(value, &mut text, budget)?;
    budget.charge(text.len() / CONVERTED_BYTES)?;
    if text.contains('\0') {
        return Err(arguments.invalid("the text contains a NUL character"));
    }
    Ok(text)
}

fn shell_quote<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let words = match arguments.get(0) {
        Value::Array(items) => items.as_slice(),
        other => std::slice::from_ref(other),
    };
    let mut out = String::new();
    for word in words {
        let word = scalar(arguments, word, budget)?;
        out.push_str(if out.is_empty() { "'" } else { " '" });
        out.push_str(&word.replace('\'', r"'\''"));
        out.push('\'');
        if out.len() > limits::RESULT_BYTES {
            return Err(EvalError::too_large());
        }
    }
    bounded(out)
}

fn url_encode<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let text = scalar(arguments, arguments.get(0), budget)?;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let digit = |value: u8| char::from(HEX_DIGITS[usize::from(value & 15)]);
            out.extend(['%', digit(byte >> 4), digit(byte)]);
        }
    }
    bounded(out)
}

fn url_decode<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let text = arguments.text(0)?;
    budget.charge(text.len() / CONVERTED_BYTES)?;
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        if *byte != b'%' {
            out.push(*byte);
            at += 1;
            continue;
        }
        let digits = bytes.get(at + 1..at + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let decoded = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.push(decoded.ok_or_else(|| arguments.invalid("`%` is not followed by two hexadecimal digits"))?);
        at += 3;
    }
    let text = String::from_utf8(out).map_err(|_| arguments.invalid("the decoded bytes are not UTF-8"))?;
    bounded(text)
}

fn sql_quote<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    match arguments.get(0) {
        Value::Null => Ok(owned("NULL")),
        Value::Bool(value) => Ok(owned(if *value { "TRUE" } else { "FALSE" })),
        number @ Value::Number(_) => bounded(scalar(arguments, number, budget)?),
        other => bounded(format!("'{}'", scalar(arguments, other, budget)?.replace('\'', "''"))),
    }
}
