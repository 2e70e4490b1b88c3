//! Values of a run in an answer: bounded, with images, audio and files as content blocks or links instead of base64.

use rmcp::model::{ContentBlock, Resource};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use steprail_engine::RunId;

use crate::limits::BLOCK_BYTES;

/// The values of one answer, with the blocks that belong to them.
pub(super) struct Values {
    run: RunId,
    blocks: Vec<ContentBlock>,
    /// Bytes of blocks that there is still room for.
    room: usize,
}

/// The part of a value that is shown, in bytes of its JSON.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub from: usize,
    pub bytes: usize,
}

impl Values {
    pub(super) fn new(run: RunId) -> Self {
        Self { run, blocks: Vec::new(), room: BLOCK_BYTES }
    }

    pub(super) fn into_blocks(self) -> Vec<ContentBlock> {
        self.blocks
    }

    /// A value as far as there is room for it. `more` is the call that shows what follows, for an offset.
    pub(super) fn show(&mut self, raw: &RawValue, part: Part, more: impl FnOnce(usize) -> String) -> Value {
        let value: Value = serde_json::from_str(raw.get()).unwrap_or_default();
        let value = self.without_binaries(value);
        let text = value.to_string();
        if part.from == 0 && text.len() <= part.bytes {
            return value;
        }
        let from = text.floor_char_boundary(part.from.min(text.len()));
        let to = text.floor_char_boundary(from.saturating_add(part.bytes).min(text.len()));
        let mut shown = json!({ "json_part": text[from..to], "from": from, "to": to, "bytes": text.len() });
        if to < text.len() {
            shown["rest"] = more(to).into();
        }
        shown
    }

    fn without_binaries(&mut self, value: Value) -> Value {
        match value {
            Value::Object(map) if is_binary(&map) => self.binary(map),
            Value::Object(map) => {
                map.into_iter().map(|(key, value)| (key, self.without_binaries(value))).collect()
            }
            Value::Array(items) => items.into_iter().map(|item| self.without_binaries(item)).collect(),
            other => other,
        }
    }

    /// Puts a binary beside the text; what stands for it names the block.
    fn binary(&mut self, map: Map<String, Value>) -> Value {
        let kind = map["type"].clone();
        let (data, mime) = match map.get("resource") {
            Some(resource) => (&resource["blob"], resource["mimeType"].clone()),
            None => (&map["data"], map["mimeType"].clone()),
        };
        let size = data.as_str().map_or(0, str::len);
        let mut shown = json!({ "type": kind, "mimeType": mime, "bytes": size / 4 * 3 });
        let block =
            serde_json::from_value::<ContentBlock>(Value::Object(map)).ok().filter(|_| size <= self.room);
        if let Some(block) = block {
            self.room -= size;
            self.blocks.push(block);
            shown["content_block"] = self.blocks.len().into();
        } else {
            let uri = format!("workflow://runs/{}", self.run);
            shown["in_resource"] = uri.as_str().into();
            let is_linked =
                |block: &ContentBlock| matches!(block, ContentBlock::ResourceLink(link) if link.uri == uri);
            if !self.blocks.iter().any(is_linked) {
                let link =
                    Resource::new(&uri, format!("run {}", self.run)).with_mime_type("application/json");
                self.blocks.push(ContentBlock::ResourceLink(link));
            }
        }
        shown
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

    use super::{Part, Values};

    fn run() -> RunId {
        "01a1e1d7-5812-75b1-816e-c4fed3e789fc".parse().expect("an id")
    }

    #[test]
    fn a_binary_is_a_block_and_a_large_one_a_link() {
        let mut values = Values::new(run());
        let part = Part { from: 0, bytes: 1_000 };
        let image = |data: String| json!({ "type": "image", "data": data, "mimeType": "image/png" });
        let small = to_raw_value(&json!({ "picture": image("aGk=".to_owned()), "n": 1 })).expect("JSON");
        let shown = values.show(&small, part, |_| String::new());
        let stands_for = json!({ "type": "image", "mimeType": "image/png", "bytes": 3, "content_block": 1 });
        assert_eq!(shown, json!({ "picture": stands_for, "n": 1 }));
        let large = to_raw_value(&image("a".repeat(super::BLOCK_BYTES + 1))).expect("JSON");
        let shown = values.show(&large, part, |_| String::new());
        assert_eq!(shown["in_resource"], format!("workflow://runs/{}", run()));
        let blocks = serde_json::to_value(values.into_blocks()).expect("JSON");
        assert_eq!((&blocks[0]["data"], &blocks[1]["type"]), (&json!("aGk="), &json!("resource_link")));
    }

    #[test]
    fn what_is_cut_says_how_to_read_on() {
        let text = to_raw_value(&"ä".repeat(100)).expect("JSON");
        let mut values = Values::new(run());
        let first = values.show(&text, Part { from: 0, bytes: 50 }, |offset| format!("offset {offset}"));
        assert_eq!(
            (&first["to"], &first["bytes"], &first["rest"]),
            (&json!(49), &json!(202), &json!("offset 49"))
        );
        let last = values.show(&text, Part { from: 190, bytes: 50 }, |offset| format!("offset {offset}"));
        assert_eq!((&last["to"], last.get("rest")), (&json!(202), None));
    }
}
