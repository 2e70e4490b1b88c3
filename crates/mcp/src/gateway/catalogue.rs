//! The catalogue of a server: its tools with their full names, schemas and annotations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rmcp::model::Tool;
use serde_json::{Value, json};
use steprail_core::plan::Hash;
use steprail_core::schema::{Schema, SchemaError};
use steprail_engine::Annotations;

use super::connection::ListedTool;
use crate::config::ServerEntry;
use crate::limits::TOOLS;
use crate::names::full_name;
use crate::redact;

/// The maximum number of violations that are reported for one call.
const PROBLEMS: usize = 10;

/// A tool of a server.
pub struct ToolInfo {
    /// The full name, `server__tool`.
    pub name: String,
    /// The name at its server.
    pub original: String,
    /// The description by its server; may be empty.
    pub description: String,
    /// JSON Schema of the arguments.
    pub input_schema: Value,
    /// JSON Schema of the structured result, if the server declares one.
    pub output_schema: Option<Value>,
    /// Annotations of the server, with `on_uncertain` of its entry.
    pub annotations: Annotations,
    /// Hash of the name, description, schemas and annotations. Detects changes of the tool.
    pub pin: Hash,
    /// The tool as its server lists it.
    listed: Tool,
    arguments: Result<Schema, SchemaError>,
}

impl std::fmt::Debug for ToolInfo {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("ToolInfo").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The tools of a server by full name.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    pub tools: BTreeMap<String, Arc<ToolInfo>>,
    /// Problems with the descriptions of tools.
    pub warnings: Vec<String>,
}

/// Builds the catalogue of a server from its list of tools.
#[derive(Clone)]
pub(super) struct Listing {
    pub alias: String,
    pub entry: ServerEntry,
    /// Whether the server deduplicates calls by the idempotency key in `_meta`.
    pub honours_key: bool,
}

/// Key in the `_meta` of a tool, or in the capabilities of a server, that declares deduplication by our idempotency key.
pub(super) const HONOURS_KEY: &str = "dev.steprail/idempotency";

impl Listing {
    pub(super) fn catalogue(&self, tools: Vec<ListedTool>) -> Catalogue {
        let mut catalogue = Catalogue::default();
        let mut ambiguous = BTreeSet::new();
        if tools.len() > TOOLS {
            catalogue.warnings.push(format!("only the first {TOOLS} of {} tools are used", tools.len()));
        }
        for listed in tools.into_iter().take(TOOLS) {
            let (tool, warning) = match listed {
                ListedTool::Valid(tool) => (Some(tool), None),
                ListedTool::Repaired(tool, warning) => (Some(tool), Some(warning)),
                ListedTool::Invalid(warning) => (None, Some(warning)),
            };
            catalogue.warnings.extend(warning);
            let Some(tool) = tool.filter(|tool| self.entry.has_tool(&tool.name)) else { continue };
            let name = full_name(&self.alias, &tool.name);
            if ambiguous.contains(&name) {
                continue;
            }
            if let Some(other) = catalogue.tools.get(&name) {
                let message = format!(
                    "`{}` and `{}` have the same full name `{name}`; neither is used",
                    other.original, tool.name
                );
                catalogue.warnings.push(message);
                catalogue.tools.remove(&name);
                ambiguous.insert(name);
                continue;
            }
            let tool = self.tool(name.clone(), tool);
            catalogue.warnings.extend(tool.warning());
            catalogue.tools.insert(name, Arc::new(tool));
        }
        catalogue
    }

    fn tool(&self, name: String, mut tool: Tool) -> ToolInfo {
        tool.description = tool.description.map(|text| redact::text(&text).into_owned().into());
        let tool_honours_key =
            tool.meta.as_ref().is_some_and(|meta| meta.0.get(HONOURS_KEY) == Some(&Value::Bool(true)));
        let mut info = ToolInfo::new(name, tool);
        info.annotations.honours_key = self.honours_key || tool_honours_key;
        info.annotations.on_uncertain = self.entry.on_uncertain;
        info
    }
}

impl ToolInfo {
    fn new(name: String, tool: Tool) -> Self {
        let hints = tool.annotations.as_ref();
        let hint = |read: fn(&rmcp::model::ToolAnnotations) -> Option<bool>| hints.and_then(read);
        let input_schema = Value::Object((*tool.input_schema).clone());
        let listed = tool.clone();
        // The parts that a definition depends on: not icons, titles or `_meta`.
        let schemas = (&listed.input_schema, &listed.output_schema);
        let pinned = json!([listed.name, listed.description, schemas, listed.annotations]);
        let pin = Hash::of(pinned.to_string().as_bytes());
        Self {
            name,
            listed,
            pin,
            original: tool.name.into_owned(),
            description: tool.description.map(std::borrow::Cow::into_owned).unwrap_or_default(),
            arguments: Schema::tolerant(&input_schema),
            input_schema,
            output_schema: tool.output_schema.map(|schema| Value::Object((*schema).clone())),
            annotations: Annotations {
                read_only: hint(|hints| hints.read_only_hint),
                idempotent: hint(|hints| hints.idempotent_hint),
                destructive: hint(|hints| hints.destructive_hint),
                open_world: hint(|hints| hints.open_world_hint),
                ..Annotations::UNANNOTATED
            },
        }
    }

    /// The tool as its server lists it, for the cache.
    pub(super) fn listed(&self) -> &Tool {
        &self.listed
    }

    /// The tool as it is exposed to clients under another name.
    pub(crate) fn as_mcp(&self, name: &str) -> Tool {
        let mut tool = self.listed.clone();
        tool.name = name.to_owned().into();
        // A call that takes long returns a run instead of the tool's result.
        tool.output_schema = None;
        tool
    }

    /// Violations of the input schema, at most ten.
    pub fn problems(&self, args: &Value) -> Vec<String> {
        match &self.arguments {
            Ok(schema) => schema.check(args, PROBLEMS).iter().map(ToString::to_string).collect(),
            Err(error) => vec![format!("the input schema of the tool cannot be used: {error}")],
        }
    }

    /// The input schema as far as it is enforced.
    pub(crate) fn checked_schema(&self) -> &Value {
        self.arguments.as_ref().map_or(&self.input_schema, Schema::json)
    }

    /// The first violation of a part of [`Self::checked_schema`].
    pub(crate) fn problem_of(&self, part: &Value, value: &Value) -> Option<String> {
        let schema = self.arguments.as_ref().ok()?;
        schema.check_part(part, value, 1).first().map(ToString::to_string)
    }

    /// Why the input schema is not fully enforced.
    fn warning(&self) -> Option<String> {
        let name = &self.original;
        match &self.arguments {
            Ok(schema) => {
                let first = schema.unsupported().first()?;
                Some(format!("`{name}`: a part of its input schema is not enforced: {first}"))
            }
            Err(error) => {
                Some(format!("`{name}`: calls fail, because its input schema cannot be used: {error}"))
            }
        }
    }
}
