//! Forms: the JSON Schema of the answer that a tool asks for in an elicitation.

use serde_json::{Map, Value};

/// An answer with the form's default for each field that it leaves out.
pub(crate) fn with_defaults(form: &Value, answer: Value) -> Value {
    let (Some(fields), Value::Object(mut given)) = (form["properties"].as_object(), answer.clone()) else {
        return answer;
    };
    for (name, field) in fields {
        if let Some(value) = default_of(field, given.remove(name)) {
            given.insert(name.clone(), value);
        }
    }
    Value::Object(given)
}

/// A field's value: given, its default, or the defaults of the fields in it.
fn default_of(field: &Value, given: Option<Value>) -> Option<Value> {
    match (given, field.get("default")) {
        (Some(given), _) => Some(with_defaults(field, given)),
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
    fn what_an_answer_leaves_out_has_its_default() {
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
    fn several_questions_in_one_form_have_their_own_defaults() {
        let part =
            json!({ "type": "object", "properties": { "ok": { "type": "boolean", "default": true } } });
        let plain = json!({ "type": "object", "properties": { "why": { "type": "string" } } });
        let form = json!({ "type": "object", "properties": { "a": part, "b": plain } });
        assert_eq!(with_defaults(&form, json!({})), json!({ "a": { "ok": true } }));
        let given = json!({ "a": { "ok": false }, "b": { "why": "so" } });
        assert_eq!(with_defaults(&form, given.clone()), given);
    }
}
