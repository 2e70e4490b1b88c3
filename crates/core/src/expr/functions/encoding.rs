//! JSON, base64, hashes and UUIDs.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest as _, Sha256, Sha512};

use super::arguments::Arguments;
use super::{CONVERTED_BYTES, EvalResult, Form, FunctionSpec, declare, plain};
use crate::budget::Budget;
use crate::expr::eval::{Context, EvalError, EvalErrorKind, bounded, json_text, push_text};
use crate::limits;

/// The cost of hashing a text, besides its bytes.
const HASH_COST: usize = 50;
/// The cost of a UUID, which is derived from a hash.
const UUID_COST: usize = 100;

pub(super) const FUNCTIONS: &[FunctionSpec] = &[
    plain(
        ("toJson", "toJson(x)"),
        (1, 1),
        "x as JSON text.",
        r#"toJson({a: [1]}) => "{\"a\":[1]}""#,
        to_json,
    ),
    plain(
        ("fromJson", "fromJson(x)"),
        (1, 1),
        "the value of JSON text x.",
        r#"fromJson("[1, 2]")[1] => 2"#,
        from_json,
    ),
    plain(
        ("base64Encode", "base64Encode(x)"),
        (1, 1),
        "text x in base64.",
        r#"base64Encode("hé") => "aMOp""#,
        base64_encode,
    ),
    plain(
        ("base64Decode", "base64Decode(x)"),
        (1, 1),
        "the text of base64 x, which must be UTF-8.",
        r#"base64Decode("aMOp") => "hé""#,
        base64_decode,
    ),
    plain(
        ("hash", "hash(x, [algorithm])"),
        (1, 2),
        "the SHA-256 hash of text x, or of x as JSON, in hexadecimal digits; `\"sha512\"` is the other algorithm.",
        r#"hash("abc")[0:8] => "ba7816bf""#,
        hash,
    ),
    declare(
        ("uuid", "uuid()"),
        (0, 0),
        "a new UUID (version 8), in `let` only. It is unique and recorded, and can be computed by those who know the run: it is no secret.",
        "size(uuid()) => 36",
        Form::Uuid,
    ),
];

fn to_json<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    bounded(json_text(arguments.get(0), budget)?)
}

fn from_json<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let text = arguments.text(0)?;
    budget.charge(text.len() / CONVERTED_BYTES)?;
    if text.len() > limits::RESULT_BYTES {
        return Err(EvalError::too_large());
    }
    let parsed = serde_json::from_str(text).map(Cow::Owned);
    parsed.map_err(|error| arguments.invalid(&format!("invalid JSON: {error}")))
}

fn base64_encode<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let text = arguments.text(0)?;
    budget.charge_search(text.len())?;
    bounded(STANDARD.encode(text))
}

fn base64_decode<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let text = arguments.text(0)?;
    budget.charge_search(text.len())?;
    let bytes =
        STANDARD.decode(text).map_err(|error| arguments.invalid(&format!("invalid base64: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|_| arguments.invalid("the decoded bytes are not UTF-8"))?;
    bounded(text)
}

fn hash<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let mut text = String::new();
    push_text(arguments.get(0), &mut text, budget)?;
    budget.charge(HASH_COST + text.len() / CONVERTED_BYTES)?;
    match arguments.text_or(1, "sha256")? {
        "sha256" => bounded(hex(&Sha256::digest(text))),
        "sha512" => bounded(hex(&Sha512::digest(text))),
        _ => Err(arguments.invalid("the algorithms are `sha256` and `sha512`")),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn uuid<'v>(context: &dyn Context, budget: &mut Budget) -> EvalResult<'v> {
    budget.charge(UUID_COST)?;
    let uuid = context.uuid();
    let no_value = || EvalError::new(EvalErrorKind::Missing, "`uuid()` has no value here".to_owned());
    uuid.map(|uuid| Cow::Owned(Value::String(uuid))).ok_or_else(no_value)
}
