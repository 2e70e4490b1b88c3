//! Resolves plain YAML scalars by the core schema of YAML 1.2, restricted to the values of JSON.

use serde_json::Number;

use super::Data;

/// A resolved plain scalar.
pub(super) enum Scalar {
    Plain(Data),
    /// A number that other YAML parsers read differently.
    Ambiguous(Data),
    /// `.inf` and `.nan`: JSON has no such numbers.
    NotFinite,
}

pub(super) fn resolve(scalar: &str) -> Scalar {
    match scalar {
        "" | "~" | "null" | "Null" | "NULL" => Scalar::Plain(Data::Null),
        "true" | "True" | "TRUE" => Scalar::Plain(Data::Bool(true)),
        "false" | "False" | "FALSE" => Scalar::Plain(Data::Bool(false)),
        _ if !starts_like_a_number(scalar) => Scalar::Plain(Data::Text(scalar.into())),
        _ => number(scalar).unwrap_or_else(|| Scalar::Plain(Data::Text(scalar.into()))),
    }
}

fn starts_like_a_number(scalar: &str) -> bool {
    scalar.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.'))
}

fn number(scalar: &str) -> Option<Scalar> {
    let unsigned = scalar.strip_prefix(['+', '-']).unwrap_or(scalar);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(scalar, ".nan" | ".NaN" | ".NAN") {
        return Some(Scalar::NotFinite);
    }
    if let Some(digits) = scalar.strip_prefix("0x") {
        return integer(digits, 16);
    }
    if let Some(digits) = scalar.strip_prefix("0o") {
        return integer(digits, 8);
    }
    if !is_decimal(unsigned) {
        return None;
    }
    let number = if unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
        let number =
            scalar.parse::<i64>().map(Number::from).or_else(|_| scalar.parse::<u64>().map(Number::from));
        number.ok().or_else(|| float(scalar))?
    } else {
        float(scalar)?
    };
    // YAML 1.1 reads `010` as eight, YAML 1.2 as ten.
    let leading_zero =
        unsigned.len() > 1 && unsigned.starts_with('0') && !unsigned[1..].starts_with(['.', 'e', 'E']);
    let data = Data::Number(number);
    Some(if leading_zero { Scalar::Ambiguous(data) } else { Scalar::Plain(data) })
}

fn integer(digits: &str, radix: u32) -> Option<Scalar> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok().map(|value| Scalar::Plain(Data::Number(value.into())))
}

fn float(scalar: &str) -> Option<Number> {
    scalar.parse::<f64>().ok().and_then(Number::from_f64)
}

/// `[0-9]+(\.[0-9]*)?` or `\.[0-9]+`, with an optional exponent.
fn is_decimal(unsigned: &str) -> bool {
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (unsigned, None),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    digits(whole)
        && digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
        && exponent.is_none_or(|exponent| !exponent.is_empty() && digits(exponent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_follow_the_core_schema() {
        let show = |scalar: &str| match resolve(scalar) {
            Scalar::Plain(data) => format!("{data:?}"),
            Scalar::Ambiguous(data) => format!("ambiguous {data:?}"),
            Scalar::NotFinite => "not finite".into(),
        };
        let scalars = [
            "",
            "~",
            "yes",
            "on",
            "True",
            "12",
            "-7",
            "+3",
            "017",
            "0",
            "0.5",
            "1.",
            ".5",
            "1e3",
            "-",
            ".",
            "1_000",
            "0x1F",
            "0o17",
            "0xZZ",
            "18446744073709551615",
            "99999999999999999999",
            "1e999",
            ".inf",
            "-.INF",
            ".nan",
            "1.2.3",
            "2026-11-15",
            "5m",
            "1-2",
        ];
        let table: String =
            scalars.iter().map(|scalar| format!("{scalar:?} -> {}\n", show(scalar))).collect();
        insta::assert_snapshot!(table);
    }
}
