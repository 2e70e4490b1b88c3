//! Forms: the JSON Schema of the answer to an elicitation.

use serde_json::{Map, Value};

/// Fills in the default of each field that the answer omits.
pub(crate) fn with_defaults(form: &Value, answer: Value) -> Value {
    let (Some(fields), Value::Object(mut values)) = (form["properties"].as_object(), answer.clone()) else {
        return answer;
    };
    for (name, field) in fields {
        if let Some(value) = value_or_default(field, values.remove(name)) {
            values.insert(name.clone(), value);
        }
    }
    Value::Object(values)
}

/// Returns the value of a field: the given value, its default, or an object of the defaults of its own fields.
fn value_or_default(field: &Value, value: Option<Value>) -> Option<Value> {
    match (value, field.get("default")) {
        (Some(value), _) => Some(with_defaults(field, value)),
        (None, Some(default)) => Some(default.clone()),
        (None, None) => {
            let inner = with_defaults(field, Value::Object(Map::new()));
            inner.as_object().is_some_and(|inner| !inner.is_empty()).then_some(inner)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn omitted_fields_get_their_defaults() {
        let form = json!({ "type": "object", "properties": {
            "name": { "type": "string", "default": "Ann" },
            "age": { "type": "integer", "default": 30 },
            "city": { "type": "string" },
        } });
        assert_eq!(with_defaults(&form, json!({ "age": 7 })), json!({ "name": "Ann", "age": 7 }));
        assert_eq!(with_defaults(&form, json!({ "name": null })), json!({ "name": null, "age": 30 }));
        assert_eq!(with_defaults(&form, json!("yes")), json!("yes"));
    }

    #[test]
    fn nested_fields_get_their_defaults() {
        let part =
            json!({ "type": "object", "properties": { "ok": { "type": "boolean", "default": true } } });
        let plain = json!({ "type": "object", "properties": { "why": { "type": "string" } } });
        let form = json!({ "type": "object", "properties": { "a": part, "b": plain } });
        assert_eq!(with_defaults(&form, json!({})), json!({ "a": { "ok": true } }));
        let given = json!({ "a": { "ok": false }, "b": { "why": "so" } });
        assert_eq!(with_defaults(&form, given.clone()), given);
    }
}
