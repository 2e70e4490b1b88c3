//! Expressions whose cost grows with a value: each kind of work that is charged.

use serde_json::{Value, json};

/// An expression, and how to make its values from a size.
pub(crate) struct Case {
    pub name: &'static str,
    pub text: &'static str,
    pub values: fn(usize) -> Value,
    /// A size that stays just within the budget of an evaluation, and one that exceeds it.
    pub sizes: (usize, usize),
}

fn case(name: &'static str, text: &'static str, sizes: (usize, usize), values: fn(usize) -> Value) -> Case {
    Case { name, text, values, sizes }
}

fn rows(count: usize) -> Value {
    (0..count).map(|n| json!({ "id": n, "name": format!("row {n}"), "ok": n % 2 == 0 })).collect()
}

fn numbers(count: usize) -> Value {
    (0..count).map(Value::from).collect()
}

/// Random zeros and ones, between letters that no pattern below matches.
fn bits(count: usize) -> String {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let bit = |at: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        match (at % 97, state & 1) {
            (0, _) => 'é',
            (_, 0) => '0',
            _ => '1',
        }
    };
    (0..count).map(bit).collect()
}

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case("in_numbers", "-1 in x", (900_000, 1_100_000), |n| json!({ "x": numbers(n) })),
        case(
            "in_texts",
            "'none' in x",
            (900_000, 1_100_000),
            |n| json!({ "x": (0..n).map(|n| format!("{n:04}")).collect::<Value>() }),
        ),
        case("equality_of_rows", "x == y", (40_000, 70_000), |n| json!({ "x": rows(n), "y": rows(n) })),
        case("regex", r"matches(x, '\\w*1\\w{100}\\b[^é01]')", (30_000, 50_000), |n| json!({ "x": bits(n) })),
        case("jsonpath", "$.x[*].name", (30_000, 60_000), |n| json!({ "x": rows(n) })),
        case(
            "jsonpath_filter",
            "$.x[?@.id > 5 && @.ok == true].name",
            (9_000, 20_000),
            |n| json!({ "x": rows(n) }),
        ),
        case("jsonpath_union", "$.x[*,*][*,*]", (150, 300), |n| json!({ "x": vec![vec![0; n]; n] })),
        case("jsonpath_descent", "$.x..id", (50_000, 100_000), |n| json!({ "x": rows(n) })),
        case("to_json", "toJson(x)", (24_000, 100_000), |n| json!({ "x": rows(n) })),
        case("from_json", "fromJson(x)", (250_000, 0), |n| json!({ "x": numbers(n / 2).to_string() })),
        case("search", "contains(x, 'needle')", (7_000_000, 9_000_000), |n| json!({ "x": "n".repeat(n) })),
        case("lower", "lower(x)", (500_000, 2_100_000), |n| json!({ "x": "Ä".repeat(n / 2) })),
        case("split", "split(x, ',')", (170_000, 250_000), |n| json!({ "x": "a,".repeat(n) })),
        case("join", "join(x, '')", (300_000, 600_000), |n| json!({ "x": vec![""; n] })),
        case(
            "keys",
            "keys(x)",
            (190_000, 210_000),
            |n| json!({ "x": (0..n).map(|n| (n.to_string(), Value::Null)).collect::<serde_json::Map<_, _>>() }),
        ),
        case("macro", "x.all(i, i >= 0)", (90_000, 130_000), |n| json!({ "x": numbers(n) })),
        case("macro_map", "x.map(i, i.name)", (60_000, 90_000), |n| json!({ "x": rows(n) })),
        case(
            "macro_in_macro",
            "x.map(i, x.filter(j, i + j == 0))",
            (200, 400),
            |n| json!({ "x": numbers(n) }),
        ),
        case("group_by", "x.groupBy(i, i.ok)", (55_000, 80_000), |n| json!({ "x": rows(n) })),
        case("sort_by", "x.sortBy(i, i.name)", (26_000, 50_000), |n| json!({ "x": rows(n) })),
        case("sort", "sort(x)", (40_000, 60_000), |n| json!({ "x": numbers(n) })),
        case("distinct", "distinct(x)", (30_000, 50_000), |n| json!({ "x": rows(n) })),
        case("sum", "sum(x)", (450_000, 600_000), |n| json!({ "x": numbers(n) })),
        case("replace", "replace(x, 'a', 'bb')", (500_000, 0), |n| json!({ "x": "a".repeat(n) })),
        case(
            "regex_matches",
            "regexExtractAll(x, '[a-z]')",
            (100_000, 140_000),
            |n| json!({ "x": "ab".repeat(n / 2) }),
        ),
        case(
            "regex_unbounded",
            "regexExtractAll(x, '.*[^A-Z]|[A-Z]')",
            (3_000, 5_000),
            |n| json!({ "x": "A".repeat(n) }),
        ),
        case("hash", "hash(x)", (900_000, 0), |n| json!({ "x": "x".repeat(n) })),
        case("slice", "x[1:]", (600_000, 2_200_000), |n| json!({ "x": numbers(n) })),
        case(
            "times",
            "x.map(i, addTime('2026-01-01T00:00:00Z', i))",
            (7_000, 11_000),
            |n| json!({ "x": numbers(n) }),
        ),
        case("url_encode", "urlEncode(x)", (300_000, 0), |n| json!({ "x": "ü".repeat(n / 2) })),
        case("copy_of_numbers", "[x]", (1_900_000, 2_100_000), |n| json!({ "x": numbers(n) })),
        case("copy_of_rows", "[x]", (150_000, 300_000), |n| json!({ "x": rows(n) })),
    ]
}
