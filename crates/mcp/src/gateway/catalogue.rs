//! The tools of a server: what they are called here, what they take, and what is known about them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jsonschema::Validator;
use rmcp::model::Tool;
use serde_json::{Value, json};
use steprail_core::plan::Hash;
use steprail_engine::Annotations;

use super::connection::Listed;
use crate::config::Entry;
use crate::limits::TOOLS;
use crate::names::full_name;

/// A tool of a server.
pub struct ToolInfo {
    /// What it is called here.
    pub name: String,
    /// What its server calls it.
    pub original: String,
    /// What it does, in its server's words.
    pub description: String,
    /// What it takes.
    pub input_schema: Value,
    /// What it gives, if it says so.
    pub output_schema: Option<Value>,
    /// Its annotations.
    pub annotations: Annotations,
    /// A hash of everything that its server says about it.
    pub pin: Hash,
    /// As its server describes it.
    described: Tool,
    validator: Option<Validator>,
}

impl std::fmt::Debug for ToolInfo {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("ToolInfo").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The tools of a server by the names that they have here.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    pub tools: BTreeMap<String, Arc<ToolInfo>>,
    /// What is wrong with some of them.
    pub warnings: Vec<String>,
}

/// How the tools of a server become a catalogue.
#[derive(Clone)]
pub(super) struct Listing {
    pub alias: String,
    pub entry: Entry,
    /// Whether the server deduplicates calls by the idempotency key in `_meta`.
    pub honours_key: bool,
}

/// In a tool's `_meta`, or among a server's extensions: it deduplicates calls by our idempotency key.
pub(super) const HONOURS_KEY: &str = "dev.steprail/idempotency";

impl Listing {
    pub(super) fn catalogue(&self, tools: Vec<Listed>) -> Catalogue {
        let mut catalogue = Catalogue::default();
        let mut refused = BTreeSet::new();
        if tools.len() > TOOLS {
            catalogue.warnings.push(format!("of {} tools the first {TOOLS} are used", tools.len()));
        }
        for listed in tools.into_iter().take(TOOLS) {
            let (tool, warning) = match listed {
                Listed::Sound(tool) => (Some(tool), None),
                Listed::Mended(tool, warning) => (Some(tool), Some(warning)),
                Listed::Unusable(warning) => (None, Some(warning)),
            };
            catalogue.warnings.extend(warning);
            let Some(tool) = tool.filter(|tool| self.entry.has_tool(&tool.name)) else { continue };
            let name = full_name(&self.alias, &tool.name);
            if refused.contains(&name) {
                continue;
            }
            if let Some(other) = catalogue.tools.get(&name) {
                let message = format!(
                    "`{}` and `{}` would both be called `{name}`; neither is used",
                    other.original, tool.name
                );
                catalogue.warnings.push(message);
                catalogue.tools.remove(&name);
                refused.insert(name);
                continue;
            }
            catalogue.tools.insert(name.clone(), Arc::new(self.tool(name, tool)));
        }
        catalogue
    }

    fn tool(&self, name: String, tool: Tool) -> ToolInfo {
        let of_tool =
            tool.meta.as_ref().is_some_and(|meta| meta.0.get(HONOURS_KEY) == Some(&Value::Bool(true)));
        let mut info = ToolInfo::new(name, tool);
        info.annotations.honours_key = self.honours_key || of_tool;
        info.annotations.on_uncertain = self.entry.on_uncertain;
        info
    }
}

impl ToolInfo {
    fn new(name: String, tool: Tool) -> Self {
        let hints = tool.annotations.as_ref();
        let hint = |read: fn(&rmcp::model::ToolAnnotations) -> Option<bool>| hints.and_then(read);
        let input_schema = Value::Object((*tool.input_schema).clone());
        let options = jsonschema::options().with_pattern_options(jsonschema::PatternOptions::regex());
        let described = tool.clone();
        // What a definition is written for; not pictures, titles, or what clients keep for themselves.
        let schema = (&described.input_schema, &described.output_schema);
        let said = json!([described.name, described.description, schema, described.annotations]);
        let pin = Hash::of(said.to_string().as_bytes());
        Self {
            name,
            described,
            pin,
            original: tool.name.into_owned(),
            description: tool.description.map(std::borrow::Cow::into_owned).unwrap_or_default(),
            // A schema that cannot be read checks nothing: its server will.
            validator: options.build(&input_schema).ok(),
            input_schema,
            output_schema: tool.output_schema.map(|schema| Value::Object((*schema).clone())),
            annotations: Annotations {
                read_only: hint(|hints| hints.read_only_hint),
                idempotent: hint(|hints| hints.idempotent_hint),
                destructive: hint(|hints| hints.destructive_hint),
                ..Annotations::UNANNOTATED
            },
        }
    }

    /// As its server describes it, for the cache.
    pub(super) fn described(&self) -> &Tool {
        &self.described
    }

    /// The tool as we offer it to our own clients, under a name of ours.
    pub(crate) fn as_mcp(&self, name: &str) -> Tool {
        let mut tool = self.described.clone();
        tool.name = name.to_owned().into();
        // A run that takes longer gives something else than the tool.
        tool.output_schema = None;
        tool
    }

    /// Every way in which arguments are not what the tool takes.
    pub fn problems(&self, args: &Value) -> Vec<String> {
        let Some(validator) = &self.validator else { return Vec::new() };
        let place = |path: String| if path.is_empty() { String::new() } else { format!("`{path}`: ") };
        let told = validator
            .iter_errors(args)
            .map(|error| format!("{}{error}", place(error.instance_path().to_string())));
        told.take(10).collect()
    }
}
