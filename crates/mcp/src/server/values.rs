//! Values of a run in a tool result: bounded, with binaries as content blocks or links instead of base64.

use rmcp::model::ContentBlock;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use steprail_engine::RunId;

use super::output::run_link;
use crate::limits::BLOCK_BYTES;

/// Renders the values of one result and collects the content blocks of their binaries.
pub(super) struct ValueRenderer {
    run: RunId,
    blocks: Vec<ContentBlock>,
    /// Bytes of base64 that further blocks may have.
    bytes_left: usize,
}

/// The part of a value that a result includes, in bytes of its JSON.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByteRange {
    pub from: usize,
    pub bytes: usize,
}

impl ValueRenderer {
    pub(super) fn new(run: RunId) -> Self {
        Self { run, blocks: Vec::new(), bytes_left: BLOCK_BYTES }
    }

    pub(super) fn into_blocks(self) -> Vec<ContentBlock> {
        self.blocks
    }

    /// Renders a value, or the part of it in a range. `more` names the call that returns the part at an offset.
    pub(super) fn render(
        &mut self,
        raw: &RawValue,
        range: ByteRange,
        more: impl FnOnce(usize) -> String,
    ) -> Value {
        let value: Value = serde_json::from_str(raw.get()).unwrap_or_default();
        let value = self.extract_binaries(value);
        let text = value.to_string();
        if range.from == 0 && text.len() <= range.bytes {
            return value;
        }
        let from = text.floor_char_boundary(range.from.min(text.len()));
        let to = text.floor_char_boundary(from.saturating_add(range.bytes).min(text.len()));
        let mut part = json!({ "json_part": text[from..to], "from": from, "to": to, "bytes": text.len() });
        if to < text.len() {
            part["rest"] = more(to).into();
        }
        part
    }

    fn extract_binaries(&mut self, value: Value) -> Value {
        match value {
            Value::Object(map) if is_binary(&map) => self.extract_binary(map),
            Value::Object(map) => {
                map.into_iter().map(|(key, value)| (key, self.extract_binaries(value))).collect()
            }
            Value::Array(items) => items.into_iter().map(|item| self.extract_binaries(item)).collect(),
            other => other,
        }
    }

    /// Moves a binary into a content block, or links the run if the blocks are full. Returns a placeholder.
    fn extract_binary(&mut self, map: Map<String, Value>) -> Value {
        let kind = map["type"].clone();
        let (data, mime) = match map.get("resource") {
            Some(resource) => (&resource["blob"], resource["mimeType"].clone()),
            None => (&map["data"], map["mimeType"].clone()),
        };
        let size = data.as_str().map_or(0, str::len);
        let mut placeholder = json!({ "type": kind, "mimeType": mime, "bytes": size / 4 * 3 });
        let block = serde_json::from_value::<ContentBlock>(Value::Object(map)).ok();
        if let Some(block) = block.filter(|_| size <= self.bytes_left) {
            self.bytes_left -= size;
            self.blocks.push(block);
            placeholder["content_block"] = self.blocks.len().into();
        } else {
            let link = run_link(self.run);
            placeholder["in_resource"] = link.uri.as_str().into();
            let is_same = |block: &ContentBlock| matches!(block, ContentBlock::ResourceLink(other) if other.uri == link.uri);
            if !self.blocks.iter().any(is_same) {
                self.blocks.push(ContentBlock::ResourceLink(link));
            }
        }
        placeholder
    }
}

/// Whether a map is a content block that holds base64.
fn is_binary(map: &Map<String, Value>) -> bool {
    match map.get("type").and_then(Value::as_str) {
        Some("image" | "audio") => map.get("data").is_some_and(Value::is_string),
        Some("resource") => map.get("resource").is_some_and(|resource| resource["blob"].is_string()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, value::to_raw_value};
    use steprail_engine::RunId;

    use super::{ByteRange, ValueRenderer};

    fn run() -> RunId {
        "01a1e1d7-5812-75b1-816e-c4fed3e789fc".parse().expect("an id")
    }

    #[test]
    fn binaries_become_blocks_and_large_ones_links() {
        let mut values = ValueRenderer::new(run());
        let range = ByteRange { from: 0, bytes: 1_000 };
        let image = |data: String| json!({ "type": "image", "data": data, "mimeType": "image/png" });
        let small = to_raw_value(&json!({ "picture": image("aGk=".to_owned()), "n": 1 })).expect("JSON");
        let shown = values.render(&small, range, |_| String::new());
        let placeholder = json!({ "type": "image", "mimeType": "image/png", "bytes": 3, "content_block": 1 });
        assert_eq!(shown, json!({ "picture": placeholder, "n": 1 }));
        let large = to_raw_value(&image("a".repeat(super::BLOCK_BYTES + 1))).expect("JSON");
        let shown = values.render(&large, range, |_| String::new());
        assert_eq!(shown["in_resource"], format!("workflow://runs/{}", run()));
        let blocks = serde_json::to_value(values.into_blocks()).expect("JSON");
        assert_eq!((&blocks[0]["data"], &blocks[1]["type"]), (&json!("aGk="), &json!("resource_link")));
    }

    #[test]
    fn truncated_value_names_the_call_for_the_rest() {
        let text = to_raw_value(&"ä".repeat(100)).expect("JSON");
        let mut values = ValueRenderer::new(run());
        let first =
            values.render(&text, ByteRange { from: 0, bytes: 50 }, |offset| format!("offset {offset}"));
        assert_eq!(
            (&first["to"], &first["bytes"], &first["rest"]),
            (&json!(49), &json!(202), &json!("offset 49"))
        );
        let last =
            values.render(&text, ByteRange { from: 190, bytes: 50 }, |offset| format!("offset {offset}"));
        assert_eq!((&last["to"], last.get("rest")), (&json!(202), None));
    }
}
