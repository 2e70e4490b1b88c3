//! What a server answers, as a step sees it.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Map, Value, json};
use steprail_engine::{Failure, FailureKind, Outcome};

/// The result of a call. What is structured is taken as it is; a single text is JSON if it reads as a list or a map.
pub(super) fn outcome(result: CallToolResult) -> Outcome {
    if result.is_error == Some(true) {
        let message = match told(&result.content) {
            text if text.is_empty() => "the tool failed and did not say why".to_owned(),
            text => text,
        };
        return Err(Failure::new(FailureKind::ToolError, message));
    }
    let files = files(&result.content);
    let value = match result.structured_content {
        Some(value) => value,
        None => plain(result.content),
    };
    Ok(with_files(value, files))
}

/// Every text of an answer.
fn told(content: &[ContentBlock]) -> String {
    let texts = content.iter().filter_map(|block| match block {
        ContentBlock::Text(text) => Some(text.text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn plain(content: Vec<ContentBlock>) -> Value {
    let mut values: Vec<Value> = content.into_iter().map(block).collect();
    match values.len() {
        0 => Value::Null,
        1 => values.remove(0),
        _ => Value::Array(values),
    }
}

fn block(block: ContentBlock) -> Value {
    match block {
        ContentBlock::Text(text) => match serde_json::from_str::<Value>(&text.text) {
            Ok(value @ (Value::Object(_) | Value::Array(_))) => value,
            _ => text.text.into(),
        },
        other => serde_json::to_value(other).unwrap_or_default(),
    }
}

/// Links to what a call made, for `file_refs`.
fn files(content: &[ContentBlock]) -> Vec<Value> {
    let links = content.iter().filter_map(|block| match block {
        ContentBlock::ResourceLink(link) => {
            Some(json!({ "uri": link.uri, "name": link.name, "mime": link.mime_type }))
        }
        _ => None,
    });
    links.collect()
}

fn with_files(value: Value, files: Vec<Value>) -> Value {
    match value {
        value if files.is_empty() => value,
        Value::Object(mut map) => {
            map.entry("file_refs").or_insert(Value::Array(files));
            Value::Object(map)
        }
        other => Value::Object(Map::from_iter([
            ("result".to_owned(), other),
            ("file_refs".to_owned(), Value::Array(files)),
        ])),
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::{CallToolResult, ContentBlock};
    use serde_json::json;
    use steprail_engine::FailureKind;

    use super::outcome;

    #[test]
    fn answers_become_values() {
        let text = |text: &str| CallToolResult::success(vec![ContentBlock::text(text)]);
        assert_eq!(outcome(text("hello")).expect("a value"), json!("hello"));
        assert_eq!(outcome(text(r#"{"a": 1}"#)).expect("a value"), json!({ "a": 1 }));
        assert_eq!(outcome(text("42")).expect("a value"), json!("42"), "a number in a text stays a text");
        let two = CallToolResult::success(vec![ContentBlock::text("a"), ContentBlock::text("b")]);
        assert_eq!(outcome(two).expect("a value"), json!(["a", "b"]));
        let failed = outcome(CallToolResult::error(vec![ContentBlock::text("no such file")]));
        let failed = failed.expect_err("a failure");
        assert_eq!((failed.kind, failed.message.as_ref()), (FailureKind::ToolError, "no such file"));
    }
}
