//! The schema evaluator: messages, bounds, and agreement with another implementation.

use proptest::prelude::*;
use serde_json::{Value, json};
use steprail_core::schema::Schema;

fn check(schema: &Value, value: &Value) -> Vec<String> {
    let schema = Schema::new(schema).expect("a schema");
    schema.check(value, 10).iter().map(ToString::to_string).collect()
}

#[test]
fn violations_name_the_position_and_the_rule() {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "minLength": 2, "pattern": "^[a-z]+$" },
            "age": { "type": ["integer", "null"], "minimum": 0, "multipleOf": 2 },
            "tags": { "items": { "enum": ["a", "b", "c"] }, "uniqueItems": true, "maxItems": 3 },
            "kind": { "const": "x" },
            "shape": { "oneOf": [{ "required": ["r"] }, { "required": ["a", "b"] }] },
            "any": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
        },
        "required": ["name", "age"],
        "additionalProperties": false,
        "dependentRequired": { "tags": ["kind"] },
    });
    let values = [
        json!({}),
        json!({ "name": "A", "age": "1", "extra": 1, "more": 2 }),
        json!({ "name": "bob", "age": -3, "tags": ["a", "d", "a", "a"] }),
        json!({ "name": "bob", "age": 4, "kind": "y", "shape": { "r": 1, "a": 1, "b": 1 }, "any": 5 }),
        json!([]),
    ];
    let shown: Vec<String> =
        values.iter().map(|value| format!("{value}\n  {}", check(&schema, value).join("\n  "))).collect();
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn invalid_schemas_are_rejected_with_the_position() {
    let schemas = [
        json!({ "type": "text" }),
        json!({ "properties": { "a": { "minimum": "1" } } }),
        json!({ "properties": { "a": 1 } }),
        json!({ "items": { "$ref": "#/$defs/missing" } }),
        json!({ "required": "name" }),
        json!({ "anyOf": { "type": "string" } }),
        json!({ "maxItems": -1 }),
        json!("string"),
        json!({ "properties": { "a": { "pattern": "^(?!a)" } } }),
        json!({ "patternProperties": { "(": true } }),
        json!({ "items": { "$ref": "https://example.com/other.json" } }),
        json!({ "properties": { "a": { "pattern": "a{3000}" } } }),
    ];
    let errors: Vec<String> =
        schemas.iter().map(|schema| Schema::new(schema).expect_err("an error").to_string()).collect();
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn what_cannot_be_enforced_is_listed() {
    let schema = json!({ "pattern": "^(?!a)", "items": { "$ref": "https://example.com/other.json" } });
    let schema = Schema::tolerant(&schema).expect("a schema");
    assert_eq!(schema.unsupported(), ["^(?!a)", "https://example.com/other.json"]);
    assert!(schema.check(&json!("abc"), 1).is_empty());
}

#[test]
fn invalid_keywords_of_tools_are_not_enforced_and_listed() {
    let schema = json!({
        "type": "object",
        "properties": { "a": { "type": "text" }, "b": { "type": "string", "minLength": -1 }, "c": 5 },
        "required": true,
    });
    let schema = Schema::tolerant(&schema).expect("a schema");
    insta::assert_snapshot!(schema.unsupported().join("\n"), @r#"
    the root: `required`: true is not a list of names
    /properties/a: `type`: "text" is not a type
    /properties/b: `minLength`: -1 is not a non-negative whole number
    /properties/c: a schema is a map, `true` or `false`, not 5
    "#);
    let found = schema.check(&json!({ "a": 1, "b": 2, "c": 3 }), 10);
    assert_eq!(found.len(), 1, "the rest is enforced: {found:?}");
}

/// Twenty-six levels that each refer to the next one twice: 2^26 evaluations.
fn exponential() -> Value {
    let mut levels = serde_json::Map::new();
    for level in 0..26 {
        let next = json!({ "$ref": format!("#/$defs/l{}", level + 1) });
        levels.insert(format!("l{level}"), json!({ "anyOf": [next.clone(), next] }));
    }
    levels.insert("l26".to_owned(), json!({ "type": "boolean" }));
    json!({ "$defs": levels, "$ref": "#/$defs/l0" })
}

#[test]
fn evaluation_stops_at_its_budget() {
    let problems = check(&exponential(), &json!("text"));
    assert_eq!(problems, ["the cost of the check exceeds the limit of 1000100 units; simplify the schema"]);
    let recursive = json!({ "$ref": "#" });
    let problems = check(&recursive, &json!(1));
    assert_eq!(problems, ["the check nests more than 400 schemas; a reference may lead back to itself"]);
    let items: Vec<Value> = (0..50_000).map(Value::from).collect();
    assert_eq!(
        check(&json!({ "uniqueItems": true }), &Value::from(items)).len(),
        1,
        "comparing all pairs exceeds the budget"
    );
    let alike: Vec<Value> = (0..2_000).map(|n| json!([vec![1; 70], n])).collect();
    assert_eq!(
        check(&json!({ "uniqueItems": true }), &Value::from(alike)).len(),
        1,
        "comparing costs the size"
    );
    let names: Vec<String> = (0..2_000).map(|n| n.to_string()).collect();
    let full = json!({ "properties": {}, "required": names });
    let objects = json!(vec![json!({}); 1_000]);
    let found = check(&json!({ "items": { "anyOf": [{}, full.clone()], "not": full } }), &objects);
    assert_eq!(found.len(), 1, "required names cost: {found:?}");
    let large: Vec<Value> = (0..100_000).map(|n| json!({ "id": n, "name": "x" })).collect();
    let schema = json!({ "items": { "properties": { "id": { "type": "integer" } }, "required": ["name"] } });
    assert!(check(&schema, &Value::from(large)).is_empty(), "a large value has a large budget");
}

#[test]
fn deep_schemas_and_values_do_not_exhaust_the_stack() {
    let deep = (0..65).fold(json!({}), |inner, _| json!({ "items": inner }));
    let error = Schema::new(&deep).expect_err("too deep");
    assert!(error.message.contains("64 levels"), "{error}");
    let list =
        json!({ "$defs": { "list": { "items": { "$ref": "#/$defs/list" } } }, "$ref": "#/$defs/list" });
    let value = (0..120).fold(json!(1), |inner, _| json!([inner]));
    assert!(check(&list, &value).is_empty());
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3_i64..4).prop_map(Value::from),
        prop_oneof![Just(0.5), Just(1.0), Just(-2.5)].prop_map(Value::from),
        "[ab]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[ab]", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn any_schema() -> impl Strategy<Value = Value> {
    let types = prop_oneof![
        Just("string"),
        Just("integer"),
        Just("number"),
        Just("null"),
        Just("boolean"),
        Just("array"),
        Just("object")
    ];
    let leaf = prop_oneof![
        types.prop_map(|word| json!({ "type": word })),
        any_value().prop_map(|value| json!({ "const": value })),
        prop::collection::vec(any_value(), 1..3).prop_map(|values| json!({ "enum": values })),
        (-2_i64..3).prop_map(|n| json!({ "minimum": n, "exclusiveMaximum": n + 2 })),
        (0_u64..3).prop_map(|n| json!({ "minLength": n, "maxItems": n, "maxProperties": n })),
        Just(json!({ "pattern": "^a" })),
        Just(json!({ "required": ["a"] })),
        Just(json!({ "uniqueItems": true })),
        any::<bool>().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 3, |inner| {
        let two = prop::collection::vec(inner.clone(), 1..3);
        prop_oneof![
            two.clone().prop_map(|all| json!({ "allOf": all })),
            two.clone().prop_map(|all| json!({ "anyOf": all })),
            two.clone().prop_map(|all| json!({ "oneOf": all })),
            inner.clone().prop_map(|one| json!({ "not": one })),
            (inner.clone(), inner.clone(), inner.clone())
                .prop_map(|(a, b, c)| json!({ "if": a, "then": b, "else": c })),
            (inner.clone(), inner.clone())
                .prop_map(|(a, b)| json!({ "properties": { "a": a }, "additionalProperties": b })),
            (two, inner.clone()).prop_map(|(all, rest)| json!({ "prefixItems": all, "items": rest })),
            inner.clone().prop_map(|one| json!({ "contains": one, "maxContains": 1 })),
            (inner.clone(), inner.clone()).prop_map(
                |(a, b)| json!({ "allOf": [{ "properties": { "a": a } }], "unevaluatedProperties": b })
            ),
            (inner.clone(), inner)
                .prop_map(|(a, b)| json!({ "anyOf": [{ "prefixItems": [a] }, true], "unevaluatedItems": b })),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]
    #[test]
    fn agrees_with_another_implementation(schema in any_schema(), value in any_value()) {
        let other = jsonschema::validator_for(&schema).expect("a schema").is_valid(&value);
        let found = check(&schema, &value);
        prop_assert_eq!(found.is_empty(), other, "{:?}", found);
    }
}
