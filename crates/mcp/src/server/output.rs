//! The result of a tool: structured content for programs, and the same facts as text for models.

use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock, Resource};
use serde_json::{Map, Value};
use steprail_engine::RunId;

/// The result of a tool, before it is encoded.
pub(super) struct ToolOutput {
    fields: Map<String, Value>,
    message: String,
    /// Fields that the message states in full: the text does not repeat them as JSON.
    in_message: &'static [&'static str],
    next: Option<String>,
    run: Option<RunId>,
    blocks: Vec<ContentBlock>,
}

impl ToolOutput {
    /// A result with structured fields and a message that summarises them.
    pub(super) fn new(fields: Value, message: impl Into<String>) -> Self {
        let fields = match fields {
            Value::Object(map) => map,
            other => Map::from_iter([("result".to_owned(), other)]),
        };
        Self { fields, message: message.into(), in_message: &[], next: None, run: None, blocks: Vec::new() }
    }

    /// Adds the next call or action.
    pub(super) fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// Names the fields that the message states in full.
    pub(super) fn in_message(mut self, keys: &'static [&'static str]) -> Self {
        self.in_message = keys;
        self
    }

    /// Adds a link to the resource of a run.
    pub(super) fn link_run(mut self, run: RunId) -> Self {
        self.run = Some(run);
        self
    }

    /// Adds images, audio and files.
    pub(super) fn with_blocks(mut self, blocks: Vec<ContentBlock>) -> Self {
        self.blocks = blocks;
        self
    }

    pub(super) fn into_result(self) -> CallToolResult {
        let Self { mut fields, message, in_message, next, run, blocks } = self;
        let mut text = message.clone();
        if let Some(next) = &next {
            text.push_str(&format!("\nNext: {next}"));
        }
        let rest = fields.iter().filter(|(key, _)| !in_message.contains(&key.as_str()));
        let rest: Map<String, Value> = rest.map(|(key, value)| (key.clone(), value.clone())).collect();
        if !rest.is_empty() {
            text.push_str(&format!("\n{}", Value::Object(rest)));
        }
        fields.insert("message".to_owned(), message.into());
        fields.extend(next.map(|next| ("next".to_owned(), next.into())));
        let mut content = vec![ContentBlock::text(text)];
        content.extend(blocks);
        content.extend(run.map(|run| ContentBlock::ResourceLink(run_link(run))));
        let mut result = CallToolResult::success(content);
        result.structured_content = Some(Value::Object(fields));
        result
    }
}

impl From<ToolOutput> for CallToolResponse {
    fn from(output: ToolOutput) -> Self {
        Self::Complete(output.into_result())
    }
}

/// Adds a field to a result, and a line to its text.
pub(super) fn add_field(result: &mut CallToolResult, key: &str, value: Value, line: &str) {
    if let Some(Value::Object(fields)) = &mut result.structured_content {
        fields.insert(key.to_owned(), value);
    }
    match result.content.first_mut() {
        Some(ContentBlock::Text(text)) => text.text.push_str(&format!("\n{line}")),
        _ => result.content.push(ContentBlock::text(line)),
    }
}

/// A link to the resource of a run.
pub(super) fn run_link(run: RunId) -> Resource {
    let name = format!("run {run}");
    Resource::new(format!("workflow://runs/{run}"), name).with_mime_type("application/json")
}
