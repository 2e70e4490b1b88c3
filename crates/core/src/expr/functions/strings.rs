//! Functions of text.

use serde_json::Value;

use super::arguments::Arguments;
use super::{CONVERTED_BYTES, EvalResult, FunctionSpec, PART_COST, format, owned, plain};
use crate::budget::Budget;
use crate::expr::eval::{EvalError, EvalErrorKind, bounded, push_text, type_name};
use crate::limits;

pub(super) const FUNCTIONS: &[FunctionSpec] = &[
    plain(
        ("startsWith", "startsWith(x, y)"),
        (2, 2),
        "whether text x starts with y.",
        r#""report.pdf".startsWith("report") => true"#,
        starts_with,
    ),
    plain(
        ("endsWith", "endsWith(x, y)"),
        (2, 2),
        "whether text x ends with y.",
        r#""report.pdf".endsWith(".pdf") => true"#,
        ends_with,
    ),
    plain(("lower", "lower(x)"), (1, 1), "text x in lower case.", r#"lower("ÀB") => "àb""#, lower),
    plain(("upper", "upper(x)"), (1, 1), "text x in upper case.", r#"upper("àb") => "ÀB""#, upper),
    plain(
        ("trim", "trim(x)"),
        (1, 1),
        "text x without white space at its ends.",
        r#"trim("  a b ") => "a b""#,
        trim,
    ),
    plain(
        ("join", "join(x, [y])"),
        (1, 2),
        "the items of list x as one text, with y between them.",
        r#"["a", 1].join("-") => "a-1""#,
        join,
    ),
    plain(
        ("split", "split(x, y, [n])"),
        (2, 3),
        "the parts of text x between the y's; at most n parts, of which the last is the rest.",
        r#""a,b,c".split(",", 2) => ["a","b,c"]"#,
        split,
    ),
    plain(
        ("replace", "replace(x, y, z, [n])"),
        (3, 4),
        "text x with z in place of each y, or of the first n.",
        r#""a-b-c".replace("-", "+") => "a+b+c""#,
        replace,
    ),
    plain(
        ("substring", "substring(x, start, [end])"),
        (2, 3),
        "the characters of text x from start to before end. Positions outside the text are errors; `x[0:10]` accepts them.",
        r#""steprail".substring(4) => "rail""#,
        substring,
    ),
    plain(
        ("indexOf", "indexOf(x, y)"),
        (2, 2),
        "the position of the first y in text x, in characters, or -1.",
        r#""a-b-c".indexOf("-") => 1"#,
        index_of,
    ),
    plain(
        ("lastIndexOf", "lastIndexOf(x, y)"),
        (2, 2),
        "the position of the last y in text x, in characters, or -1.",
        r#""a-b-c".lastIndexOf("-") => 3"#,
        last_index_of,
    ),
    plain(
        ("padStart", "padStart(x, n, [c])"),
        (2, 3),
        "text x with characters c (default: spaces) before it, so that it has n characters.",
        r#"string(7).padStart(3, "0") => "007""#,
        pad_start,
    ),
    plain(
        ("padEnd", "padEnd(x, n, [c])"),
        (2, 3),
        "text x with characters c (default: spaces) after it, so that it has n characters.",
        r#""ab".padEnd(4, ".") => "ab..""#,
        pad_end,
    ),
    plain(
        ("format", "format(x, list)"),
        (2, 2),
        "text x with the values of the list: `%s` any value, `%d` an integer, `%f` or `%.2f` decimals, `%e` an exponent, `%x` `%X` `%o` `%b` other bases, `%%` a percent sign.",
        r#""%s: %.2f".format(["total", 2.5]) => "total: 2.50""#,
        format_values,
    ),
];

fn starts_with<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let (text, part) = (arguments.text(0)?, arguments.text(1)?);
    budget.charge_bytes(part.len())?;
    Ok(owned(text.starts_with(part)))
}

fn ends_with<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let (text, part) = (arguments.text(0)?, arguments.text(1)?);
    budget.charge_bytes(part.len())?;
    Ok(owned(text.ends_with(part)))
}

fn lower<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let text = arguments.text(0)?;
    budget.charge(text.len() / CONVERTED_BYTES)?;
    bounded(text.to_lowercase())
}

fn upper<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let text = arguments.text(0)?;
    budget.charge(text.len() / CONVERTED_BYTES)?;
    bounded(text.to_uppercase())
}

fn trim<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let text = arguments.text(0)?;
    budget.charge_search(text.len())?;
    Ok(owned(text.trim()))
}

fn join<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let (items, between) = (arguments.list(0)?, arguments.text_or(1, "")?);
    let mut out = String::new();
    for (index, item) in items.iter().enumerate() {
        budget.charge_bytes(between.len())?;
        out.push_str(if index > 0 { between } else { "" });
        push_text(item, &mut out, budget)?;
    }
    bounded(out)
}

fn split<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let text = arguments.text(0)?;
    if arguments.text(1)?.is_empty() {
        return Err(arguments.type_error(arguments.get(0)));
    }
    let between = arguments.text(1)?;
    if text.len() > limits::RESULT_BYTES {
        return Err(EvalError::too_large());
    }
    let count = match usize::try_from(arguments.integer_or(2, i64::MAX)?) {
        Ok(count) if count > 0 => count,
        _ => return Err(arguments.invalid("the number of parts is at least 1")),
    };
    budget.charge_search(text.len())?;
    let mut parts = Vec::new();
    for part in text.splitn(count, between) {
        budget.charge(PART_COST)?;
        parts.push(Value::from(part));
    }
    Ok(owned(parts))
}

fn replace<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let (text, old, new) = (arguments.text(0)?, arguments.filled_text(1)?, arguments.text(2)?);
    let limit = usize::try_from(arguments.integer_or(3, i64::MAX)?).unwrap_or_default();
    budget.charge_search(text.len())?;
    let count = text.matches(old).take(limit).count();
    let bytes = (text.len() - count * old.len()).saturating_add(count.saturating_mul(new.len()));
    if bytes > limits::RESULT_BYTES {
        return Err(EvalError::too_large());
    }
    budget.charge(count)?;
    budget.charge_search(text.len())?;
    budget.charge_bytes(bytes)?;
    bounded(text.replacen(old, new, limit))
}

fn substring<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let text = arguments.text(0)?;
    budget.charge_search(text.len())?;
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let (start, end) = (arguments.integer(1)?, arguments.integer_or(2, length)?);
    if !(0..=end).contains(&start) || end > length {
        let message = format!("from {start} to {end} of a text with {length} characters");
        return Err(arguments.missing(&message));
    }
    let (start, count) = (usize::try_from(start).unwrap_or(0), usize::try_from(end - start).unwrap_or(0));
    Ok(owned(text.chars().skip(start).take(count).collect::<String>()))
}

fn index_of<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    position(arguments, budget, |text, part| text.find(part))
}

fn last_index_of<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    position(arguments, budget, |text, part| text.rfind(part))
}

fn position<'v>(
    arguments: &Arguments<'v>,
    budget: &mut Budget,
    find: impl Fn(&str, &str) -> Option<usize>,
) -> EvalResult<'v> {
    let (text, part) = (arguments.text(0)?, arguments.text(1)?);
    budget.charge_search(2 * text.len() + part.len())?;
    Ok(match find(text, part) {
        Some(at) => owned(text[..at].chars().count()),
        None => owned(-1),
    })
}

fn pad_start<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let (text, padding) = (arguments.text(0)?, padding(arguments, budget)?);
    bounded(padding + text)
}

fn pad_end<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let padding = padding(arguments, budget)?;
    bounded(arguments.text(0)?.to_owned() + &padding)
}

/// The characters that a text needs to have the length of the second argument.
fn padding(arguments: &Arguments<'_>, budget: &mut Budget) -> Result<String, EvalError> {
    let (text, pad) = (arguments.text(0)?, arguments.text_or(2, " ")?);
    let length = usize::try_from(arguments.integer(1)?).unwrap_or_default();
    let mut characters = pad.chars();
    let (Some(character), None) = (characters.next(), characters.next()) else {
        return Err(arguments.invalid("the padding is one character"));
    };
    budget.charge_search(text.len())?;
    let count = length.saturating_sub(text.chars().count());
    if count.saturating_mul(character.len_utf8()).saturating_add(text.len()) > limits::RESULT_BYTES {
        return Err(EvalError::too_large());
    }
    budget.charge_search(count)?;
    Ok(std::iter::repeat_n(character, count).collect())
}

fn format_values<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let (text, values) = (arguments.text(0)?, arguments.list(1)?);
    match format::format(text, values, budget) {
        Ok(text) => bounded(text),
        Err(format::FormatError::Eval(error)) => Err(error),
        Err(format::FormatError::Invalid(reason)) => Err(arguments.invalid(&reason)),
        Err(format::FormatError::Value(verb, value)) => {
            let message = format!("`format`: `{verb}` does not accept {}", type_name(&value));
            Err(EvalError::new(EvalErrorKind::Type, message))
        }
    }
}
