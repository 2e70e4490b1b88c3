//! What a run gave, as the result of the tool call that started it.

use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock, InputRequiredResult, ResultType};
use serde_json::{Value, json};
use steprail_engine::RunRow;

/// The result of a relayed call, as its server sent it.
pub(super) fn exact(run: &RunRow) -> CallToolResponse {
    if let Some(error) = &run.error {
        return match error.details.as_deref() {
            Some(sent) => typed(sent.clone()).into(),
            None => CallToolResult::error(vec![ContentBlock::text(error.message.as_ref())]).into(),
        };
    }
    let output = run.output.as_ref().and_then(|output| serde_json::from_str::<Value>(output.get()).ok());
    let output = output.unwrap_or_default();
    if output["resultType"] == "input_required"
        && let Some(asks) = input_required(output.clone(), run)
    {
        return asks.into();
    }
    typed(output).into()
}

/// What a tool asks. The state that its server wants back stays with the run, which the client names instead.
fn input_required(mut sent: Value, run: &RunRow) -> Option<InputRequiredResult> {
    let id = run.run_id.to_string();
    if sent["requestState"].is_string() {
        sent["requestState"] = id.clone().into();
    }
    let requests = sent.get_mut("inputRequests").and_then(Value::as_object_mut);
    for request in requests.into_iter().flat_map(serde_json::Map::values_mut) {
        // Revision 2026-07-28 has no such id; rmcp reads no URL request without one.
        if request["params"]["mode"] == "url" && request["params"]["elicitationId"].is_null() {
            request["params"]["elicitationId"] = id.clone().into();
        }
    }
    serde_json::from_value(sent).ok()
}

/// A result as rmcp has it. A block of a type that rmcp does not know becomes a text with the block's JSON.
fn typed(mut sent: Value) -> CallToolResult {
    if sent == json!({}) {
        return CallToolResult::success(Vec::new());
    }
    let content = sent.get_mut("content").and_then(Value::as_array_mut);
    for block in content.into_iter().flatten() {
        if serde_json::from_value::<ContentBlock>(block.clone()).is_err() {
            *block = json!({ "type": "text", "text": block.to_string() });
        }
    }
    // A caller of tools other than the gateway gives plain values.
    let mut typed = serde_json::from_value(sent.clone()).unwrap_or_else(|_| result(&sent));
    // Clients of 2026-07-28 need it, whatever revision the server has; rmcp leaves it out for older ones.
    typed.result_type = Some(ResultType::COMPLETE);
    typed
}

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

    use super::{result, typed};

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

    #[test]
    fn a_result_of_a_server_keeps_every_part() {
        let sent = json!({
            "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b", "_meta": { "n": 1 } }],
            "structuredContent": { "n": 1 },
            "_meta": { "example.com/cost": 3 },
            "resultType": "complete",
        });
        assert_eq!(serde_json::to_value(typed(sent.clone())).expect("JSON"), sent);
        for plain in [json!("a"), json!(1), json!([1]), json!(null)] {
            assert_eq!(typed(plain.clone()).is_error, result(&plain).is_error, "what is no result at all");
        }
        let unknown = json!({ "content": [{ "type": "hologram", "data": "…" }], "isError": true });
        let kept = serde_json::to_value(typed(unknown)).expect("JSON");
        assert_eq!(kept["content"][0]["text"], r#"{"data":"…","type":"hologram"}"#);
        assert_eq!(kept["isError"], true);
    }
}
