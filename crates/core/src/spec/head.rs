//! What a definition says about itself, beside its steps.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use super::fields::{FromNode, Reader, choice, record};
use super::policy::{MissingTool, OnUncertain};
use super::step::Steps;
use super::value::{Spanned, Text};
use crate::diagnostic::{Code, Diagnostic, quoted, suggest};
use crate::document::{Data, Entry, Node};
use crate::limits;

record! {
    /// What a definition says about itself, beside its steps.
    pub struct Head {
        /// The definition's name; that of the file by default.
        name: Text,
        /// What it is for, for people and agents.
        description: Text,
        /// What a run is started with: a JSON Schema per input.
        inputs: BTreeMap<String, Input>,
        /// What a run gives back; strings in it may hold references. By default the output of the last step.
        output: Node,
        /// The only tools that its steps may call, as names or patterns (`crm__read_*`). It narrows what the
        /// user may do and never widens it.
        allowed_tools: Vec<Text>,
        /// What happens to a run when the server restarts; `resume` by default.
        on_restart: OnRestart,
        /// What happens when a call's outcome is unknown, where the step does not say.
        on_uncertain: OnUncertain,
        /// What happens when a tool does not exist at run time, where the step does not say.
        missing_tool: MissingTool,
        /// Steps that run when the run fails; they may read `error`.
        on_failure: Steps,
        /// Bounds of a run, below those of the server.
        limits: LimitFields,
        /// Words to find the definition by.
        labels: BTreeMap<String, Text>,
        /// Whether the workflow is offered to agents as a tool.
        publish: Spanned<bool>,
    }
}

choice! {
    /// What happens to a run when the server restarts.
    pub enum OnRestart {
        /// It goes on by itself.
        Resume = "resume",
        /// It is marked `interrupted` and waits for someone to resume it.
        Interrupt = "interrupt",
    }
}

record! {
    /// Bounds of a run; they may only be lower than the server's.
    pub struct LimitFields("`limits`") {
        /// Step executions in one run.
        step_runs: Spanned<u32>,
        /// Items of one `foreach`.
        foreach_items: Spanned<u32>,
        /// Times that one step of a graph may be entered.
        loop_visits: Spanned<u32>,
        /// Steps of one run in flight at the same time.
        concurrency: Spanned<u32>,
    }
}

/// One declared input.
#[derive(Debug, Clone)]
pub struct Input {
    /// Its JSON Schema, with `default` and without `optional`.
    pub schema: Node,
    /// Whether a run may be started without it.
    pub optional: bool,
}

const TYPES: &[&str] = &["string", "number", "integer", "boolean", "array", "object", "null"];

impl Input {
    /// The value if none is given.
    pub fn default(&self) -> Option<&Node> {
        self.schema.get("default")
    }

    fn check_types(&self, reader: &mut Reader) {
        let Some(kind) = self.schema.get("type") else { return };
        let named: Vec<&Node> = match &kind.data {
            Data::Text(_) => vec![kind],
            Data::List(kinds) => kinds.iter().collect(),
            _ => return reader.wrong_type(kind, &format!("one of {}", quoted(TYPES))),
        };
        for node in &named {
            let word = node.as_text().unwrap_or_default();
            if !TYPES.contains(&word) {
                let mut diagnostic =
                    Diagnostic::new(Code::InvalidValue, node.span, format!("`{word}` is no JSON type"));
                diagnostic.hint = suggest(word, TYPES);
                return reader.report(diagnostic);
            }
        }
        let fits =
            |default: &Node| named.iter().any(|node| has_type(default, node.as_text().unwrap_or_default()));
        if let Some(default) = self.default().filter(|default| !fits(default)) {
            let message =
                format!("the default is {}, which the input's type does not allow", default.type_name());
            reader.report(Diagnostic::new(Code::InvalidValue, default.span, message));
        }
    }
}

fn has_type(node: &Node, word: &str) -> bool {
    match &node.data {
        Data::Null => word == "null",
        Data::Bool(_) => word == "boolean",
        Data::Number(number) => {
            word == "number" || (word == "integer" && number.as_f64().is_some_and(|n| n.fract() == 0.0))
        }
        Data::Text(_) => word == "string",
        Data::List(_) => word == "array",
        Data::Map(_) => word == "object",
    }
}

impl FromNode for Input {
    fn from_node(node: Node, reader: &mut Reader) -> Option<Self> {
        let span = node.span;
        let mut entries = match node.data {
            Data::Map(entries) => entries,
            // `date: string` is short for `date: { type: string }`.
            Data::Text(_) => vec![Entry { key: "type".into(), key_span: span, value: node }],
            _ => {
                reader.wrong_type(&node, "a JSON Schema (a map), or the name of a type");
                return None;
            }
        };
        let mut optional = false;
        if let Some(at) = entries.iter().position(|entry| &*entry.key == "optional") {
            optional = bool::from_node(entries.swap_remove(at).value, reader)?;
        }
        let input = Self { schema: Node { span, data: Data::Map(entries) }, optional };
        input.check_types(reader);
        Some(input)
    }
}

impl Serialize for Input {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Data::Map(entries) = &self.schema.data else { return self.schema.serialize(serializer) };
        let mut entries = entries.clone();
        if self.optional {
            let value = Node { data: Data::Bool(true), ..Node::default() };
            entries.push(Entry { key: "optional".into(), key_span: value.span, value });
        }
        Node { data: Data::Map(entries), span: self.schema.span }.serialize(serializer)
    }
}

impl JsonSchema for Input {
    fn schema_name() -> Cow<'static, str> {
        "Input".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A JSON Schema, or the name of a type.",
            "anyOf": [
                { "enum": TYPES },
                {
                    "type": "object",
                    "properties": {
                        "type": { "anyOf": [{ "enum": TYPES }, { "type": "array", "items": { "enum": TYPES } }] },
                        "description": { "type": "string" },
                        "default": { "description": "The value if none is given." },
                        "optional": { "type": "boolean", "description": "Whether a run may be started without it." },
                    },
                },
            ],
        })
    }
}

impl Head {
    pub(super) fn check(&self, reader: &mut Reader) {
        if let Some(name) = &self.name {
            let length = name.chars().count();
            let allowed = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ' ');
            if length == 0 || length > limits::NAME_CHARS || !name.chars().all(allowed) {
                let message = format!("`{}` cannot be a definition's name", name.value);
                let hint = "use 1 to 128 letters, digits, spaces, `_`, `-` or `.`";
                reader.invalid(name.span, message, hint);
            }
        }
        if let Some((labels, name)) =
            self.labels.as_ref().zip(self.labels.iter().flatten().nth(limits::LABELS))
        {
            let message = format!("{} labels are more than the limit of {}", labels.len(), limits::LABELS);
            reader.report(Diagnostic::new(Code::LimitExceeded, name.1.span, message));
        }
        for pattern in self.allowed_tools.iter().flatten() {
            let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-' | b'*');
            if pattern.is_empty() || !pattern.bytes().all(valid) {
                let message = format!("`{}` is not a tool name or pattern", pattern.value);
                let diagnostic = Diagnostic::new(Code::InvalidToolName, pattern.span, message);
                reader.report(diagnostic.hint("write a tool's name, or a pattern such as `crm__read_*`"));
            }
        }
    }
}
