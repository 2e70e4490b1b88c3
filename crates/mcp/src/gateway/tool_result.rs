//! Converts results of tools to outcomes of steps.

use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ContentBlock, RequestMetaObject,
};
use serde_json::{Map, Value, json};
use steprail_engine::{Failure, FailureKind, Outcome, Relay};

use super::connection::Connection;
use super::era::Era;
use crate::redact;

/// The outcome of a call: the structured content, otherwise the content blocks. A text that is a JSON list or map is
/// parsed.
pub(super) fn outcome(result: CallToolResult) -> Outcome {
    if result.is_error == Some(true) {
        return Err(Failure::new(FailureKind::ToolError, reason(&result.content)));
    }
    let files = files(&result.content);
    let value = match result.structured_content {
        Some(value) => value,
        None => plain(result.content),
    };
    Ok(with_files(value, files))
}

/// Adds the capabilities, input responses and state of the client of a relayed call.
pub(super) fn add_relay_params(
    relay: &Relay,
    params: &mut CallToolRequestParams,
    meta: &mut RequestMetaObject,
    connection: &Connection,
) {
    params.request_state.clone_from(&relay.state);
    params.input_responses =
        relay.responses.clone().and_then(|responses| serde_json::from_value(responses).ok());
    if connection.era == Era::Modern
        && let Ok(mut declared) = serde_json::from_value::<ClientCapabilities>(relay.capabilities.clone())
    {
        // The gateway polls tasks, so its own extensions count.
        declared.extensions.clone_from(&connection.listener.capabilities().extensions);
        meta.set_client_capabilities(declared);
    }
}

/// The result as the server sent it. A tool error becomes a failure with the whole result as details.
pub(super) fn raw_outcome(result: Value) -> Outcome {
    if result["isError"] != true {
        return Ok(result);
    }
    let content = serde_json::from_value::<Vec<ContentBlock>>(result["content"].clone());
    let failure = Failure::new(FailureKind::ToolError, reason(&content.unwrap_or_default()));
    Err(failure.details(result))
}

/// The error message of a tool.
fn reason(content: &[ContentBlock]) -> String {
    match texts(content) {
        text if text.is_empty() => "the tool failed without a message".to_owned(),
        // Before the message is cut to its limit, which could leave a part of a secret.
        text => redact::text(&text).into_owned(),
    }
}

/// The text blocks, joined by newlines.
fn texts(content: &[ContentBlock]) -> String {
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

/// Resource links, for `file_refs`.
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
    fn results_become_values() {
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
