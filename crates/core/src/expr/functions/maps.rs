//! Functions of maps.

use serde_json::{Map, Value, json};

use super::arguments::Arguments;
use super::{EvalResult, FunctionSpec, PART_COST, owned, plain};
use crate::budget::value::copy;
use crate::budget::{Budget, Exhausted};

/// The maximum number of arguments of `merge`.
const MANY: usize = 16;

pub(super) const FUNCTIONS: &[FunctionSpec] = &[
    plain(
        ("keys", "keys(x)"),
        (1, 1),
        "the keys of a map, sorted.",
        r#"keys({b: 1, a: 2}) => ["a","b"]"#,
        keys,
    ),
    plain(
        ("values", "values(x)"),
        (1, 1),
        "the values of a map, in the order of its keys.",
        "values({b: 1, a: 2}) => [2,1]",
        values,
    ),
    plain(
        ("entries", "entries(x)"),
        (1, 1),
        "the list of `{key, value}` of a map, in the order of its keys.",
        r#"entries({a: 2}) => [{"key":"a","value":2}]"#,
        entries,
    ),
    plain(
        ("fromEntries", "fromEntries(x)"),
        (1, 1),
        "the map of a list of `{key, value}` or `[key, value]`. The last of equal keys stays.",
        r#"fromEntries([["a", 1], ["b", 2]]) => {"a":1,"b":2}"#,
        from_entries,
    ),
    plain(
        ("merge", "merge(x, y, …)"),
        (1, MANY),
        "one map with the keys of all maps; of equal keys, that of the last map.",
        r#"merge({a: 1, b: 1}, {b: 2}) => {"a":1,"b":2}"#,
        merge,
    ),
    plain(
        ("pick", "pick(x, keys)"),
        (2, 2),
        "map x with these keys only, as far as it has them.",
        r#"pick({a: 1, b: 2}, ["a"]) => {"a":1}"#,
        pick,
    ),
    plain(
        ("omit", "omit(x, keys)"),
        (2, 2),
        "map x without these keys.",
        r#"omit({a: 1, b: 2}, ["a"]) => {"b":2}"#,
        omit,
    ),
];

fn charge_keys(map: &Map<String, Value>, budget: &mut Budget) -> Result<(), Exhausted> {
    let bytes: usize = map.keys().map(String::len).sum();
    budget.charge(map.len() * PART_COST)?;
    budget.charge_bytes(bytes)
}

fn keys<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let map = arguments.map(0)?;
    charge_keys(map, budget)?;
    let mut keys: Vec<&String> = map.keys().collect();
    keys.sort();
    Ok(owned(keys.into_iter().cloned().collect::<Vec<_>>()))
}

/// The entries of a map in the order of its keys.
fn sorted(map: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by_key(|(key, _)| *key);
    entries
}

fn values<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let map = arguments.map(0)?;
    charge_keys(map, budget)?;
    let values = sorted(map).into_iter().map(|(_, value)| copy(value, budget));
    Ok(owned(values.collect::<Result<Vec<_>, _>>()?))
}

fn entries<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let map = arguments.map(0)?;
    charge_keys(map, budget)?;
    budget.charge(map.len() * PART_COST)?;
    let mut out = Vec::with_capacity(map.len());
    for (key, value) in sorted(map) {
        out.push(json!({ "key": key, "value": copy(value, budget)? }));
    }
    Ok(owned(out))
}

fn from_entries<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let mut out = Map::new();
    for entry in arguments.list(0)? {
        let (key, value) = match entry {
            Value::Object(map) => (map.get("key"), map.get("value")),
            Value::Array(pair) => (pair.first(), pair.get(1)),
            other => return Err(arguments.type_error(other)),
        };
        let (Some(Value::String(key)), Some(value)) = (key, value) else {
            return Err(arguments.invalid("an entry is `{key, value}` or `[key, value]`, with text as key"));
        };
        insert(&mut out, key, value, budget)?;
    }
    Ok(owned(Value::Object(out)))
}

fn insert(
    map: &mut Map<String, Value>,
    key: &str,
    value: &Value,
    budget: &mut Budget,
) -> Result<(), Exhausted> {
    budget.charge(PART_COST)?;
    budget.charge_bytes(key.len())?;
    map.insert(key.to_owned(), copy(value, budget)?);
    Ok(())
}

fn merge<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let mut out = Map::new();
    for index in 0..arguments.values.len() {
        for (key, value) in arguments.map(index)? {
            insert(&mut out, key, value, budget)?;
        }
    }
    Ok(owned(Value::Object(out)))
}

fn pick<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let (map, mut out) = (arguments.map(0)?, Map::new());
    for key in arguments.list(1)? {
        let Value::String(key) = key else { return Err(arguments.type_error(key)) };
        budget.charge_search(key.len())?;
        if let Some(value) = map.get(key) {
            insert(&mut out, key, value, budget)?;
        }
    }
    Ok(owned(Value::Object(out)))
}

fn omit<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let mut left_out = std::collections::BTreeSet::new();
    for key in arguments.list(1)? {
        let Value::String(key) = key else { return Err(arguments.type_error(key)) };
        budget.charge(PART_COST)?;
        left_out.insert(key.as_str());
    }
    let mut out = Map::new();
    for (key, value) in arguments.map(0)? {
        budget.charge_search(key.len())?;
        if !left_out.contains(key.as_str()) {
            insert(&mut out, key, value, budget)?;
        }
    }
    Ok(owned(Value::Object(out)))
}
