//! The output of a run as the result of the tool call that started it.

use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock, InputRequiredResult, ResultType};
use serde_json::{Value, json};
use steprail_engine::RunRow;

/// The result of a relayed call, unchanged.
pub(super) fn relayed_result(run: &RunRow) -> CallToolResponse {
    if let Some(error) = &run.error {
        return match error.details.as_deref() {
            Some(sent) => parse_result(sent.clone()).into(),
            None => CallToolResult::error(vec![ContentBlock::text(error.message.as_ref())]).into(),
        };
    }
    let output = output_of(run);
    if output["resultType"] == "input_required"
        && let Some(required) = input_required(output.clone(), run)
    {
        return required.into();
    }
    parse_result(output).into()
}

/// The output of a run; null if it has none.
pub(super) fn output_of(run: &RunRow) -> Value {
    let output = run.output.as_ref().and_then(|output| serde_json::from_str(output.get()).ok());
    output.unwrap_or_default()
}

/// The input requests of a relayed tool. The `requestState` of its server is replaced by the id of the run, which stores it.
fn input_required(mut sent: Value, run: &RunRow) -> Option<InputRequiredResult> {
    let id = run.run_id.to_string();
    if sent["requestState"].is_string() {
        sent["requestState"] = id.clone().into();
    }
    let requests = sent.get_mut("inputRequests").and_then(Value::as_object_mut);
    for request in requests.into_iter().flat_map(serde_json::Map::values_mut) {
        // Revision 2026-07-28 has no `elicitationId`, but rmcp rejects URL requests without one.
        if request["params"]["mode"] == "url" && request["params"]["elicitationId"].is_null() {
            request["params"]["elicitationId"] = id.clone().into();
        }
    }
    serde_json::from_value(sent).ok()
}

/// Parses a result of a server. A block of a type that rmcp does not support becomes a text block with its JSON.
fn parse_result(mut sent: Value) -> CallToolResult {
    if sent == json!({}) {
        return CallToolResult::success(Vec::new());
    }
    let content = sent.get_mut("content").and_then(Value::as_array_mut);
    for block in content.into_iter().flatten() {
        if serde_json::from_value::<ContentBlock>(block.clone()).is_err() {
            *block = json!({ "type": "text", "text": block.to_string() });
        }
    }
    // Implementations of `ToolCaller` other than the gateway return plain values.
    let mut result = serde_json::from_value(sent.clone()).unwrap_or_else(|_| to_result(&sent));
    // Clients of 2026-07-28 require it for servers of every revision; rmcp omits it for older clients.
    result.result_type = Some(ResultType::COMPLETE);
    result
}

/// A value as a tool result: content blocks stay blocks, text stays text, everything else is structured content.
pub(super) fn to_result(output: &Value) -> CallToolResult {
    match output {
        Value::String(text) => CallToolResult::success(vec![ContentBlock::text(text)]),
        Value::Array(items) if items.iter().any(is_block) && items.iter().all(is_content) => {
            CallToolResult::success(items.iter().filter_map(block).collect())
        }
        value if is_block(value) => CallToolResult::success(block(value).into_iter().collect()),
        Value::Null => CallToolResult::success(vec![ContentBlock::text("done")]),
        Value::Object(_) => CallToolResult::structured(output.clone()),
        // Older revisions allow only maps as structured content.
        other => CallToolResult::structured(json!({ "result": other })),
    }
}

fn is_content(value: &Value) -> bool {
    value.is_string() || is_block(value)
}

/// Whether a value is a content block.
fn is_block(value: &Value) -> bool {
    let kind = value.get("type").and_then(Value::as_str);
    matches!(kind, Some("text" | "image" | "audio" | "resource" | "resource_link"))
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

    use super::{parse_result, to_result};

    #[test]
    fn content_blocks_survive_a_run() {
        let image = json!({ "type": "image", "data": "aGk=", "mimeType": "image/png" });
        let single = serde_json::to_value(to_result(&image)).expect("JSON");
        assert_eq!(single["content"], json!([image]));
        let mixed = serde_json::to_value(to_result(&json!(["a", image]))).expect("JSON");
        assert_eq!(mixed["content"], json!([{ "type": "text", "text": "a" }, image]));
        let plain = serde_json::to_value(to_result(&json!("hello"))).expect("JSON");
        assert_eq!(plain["content"][0]["text"], "hello");
        let map = serde_json::to_value(to_result(&json!({ "type": "invoice", "n": 1 }))).expect("JSON");
        assert_eq!(map["structuredContent"], json!({ "type": "invoice", "n": 1 }));
        let list = serde_json::to_value(to_result(&json!([1, 2]))).expect("JSON");
        assert_eq!(list["structuredContent"], json!({ "result": [1, 2] }));
    }

    #[test]
    fn relayed_result_keeps_every_part() {
        let sent = json!({
            "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b", "_meta": { "n": 1 } }],
            "structuredContent": { "n": 1 },
            "_meta": { "example.com/cost": 3 },
            "resultType": "complete",
        });
        assert_eq!(serde_json::to_value(parse_result(sent.clone())).expect("JSON"), sent);
        for plain in [json!("a"), json!(1), json!([1]), json!(null)] {
            assert_eq!(parse_result(plain.clone()).is_error, to_result(&plain).is_error, "a plain value");
        }
        let unknown = json!({ "content": [{ "type": "hologram", "data": "…" }], "isError": true });
        let parsed = serde_json::to_value(parse_result(unknown)).expect("JSON");
        assert_eq!(parsed["content"][0]["text"], r#"{"data":"…","type":"hologram"}"#);
        assert_eq!(parsed["isError"], true);
    }
}
