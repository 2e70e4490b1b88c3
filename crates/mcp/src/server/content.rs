//! What a run gave, as the content of a tool's result: the way back from what a step sees of an answer.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};

/// A value as a tool gives it: blocks of content stay blocks, texts stay texts, everything else is structured.
pub(super) fn result(output: &Value) -> CallToolResult {
    match output {
        Value::String(text) => CallToolResult::success(vec![ContentBlock::text(text)]),
        Value::Array(items) if items.iter().any(is_block) && items.iter().all(is_content) => {
            CallToolResult::success(items.iter().filter_map(block).collect())
        }
        value if is_block(value) => CallToolResult::success(block(value).into_iter().collect()),
        Value::Null => CallToolResult::success(vec![ContentBlock::text("done")]),
        Value::Object(_) => CallToolResult::structured(output.clone()),
        // A client of an older revision takes maps only.
        other => CallToolResult::structured(json!({ "result": other })),
    }
}

fn is_content(value: &Value) -> bool {
    value.is_string() || is_block(value)
}

/// Whether a value is a block of content. A text is one only if it says so and nothing else.
fn is_block(value: &Value) -> bool {
    let word = value.get("type").and_then(Value::as_str);
    matches!(word, Some("text" | "image" | "audio" | "resource" | "resource_link"))
        && serde_json::from_value::<ContentBlock>(value.clone()).is_ok()
}

fn block(value: &Value) -> Option<ContentBlock> {
    match value {
        Value::String(text) => Some(ContentBlock::text(text)),
        other => serde_json::from_value(other.clone()).ok(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::result;

    #[test]
    fn content_survives_the_way_through_a_run() {
        let image = json!({ "type": "image", "data": "aGk=", "mimeType": "image/png" });
        let given = serde_json::to_value(result(&image)).expect("JSON");
        assert_eq!(given["content"], json!([image]));
        let mixed = serde_json::to_value(result(&json!(["a", image]))).expect("JSON");
        assert_eq!(mixed["content"], json!([{ "type": "text", "text": "a" }, image]));
        let plain = serde_json::to_value(result(&json!("hello"))).expect("JSON");
        assert_eq!(plain["content"][0]["text"], "hello");
        let facts = serde_json::to_value(result(&json!({ "type": "invoice", "n": 1 }))).expect("JSON");
        assert_eq!(facts["structuredContent"], json!({ "type": "invoice", "n": 1 }));
        let list = serde_json::to_value(result(&json!([1, 2]))).expect("JSON");
        assert_eq!(list["structuredContent"], json!({ "result": [1, 2] }));
    }
}
