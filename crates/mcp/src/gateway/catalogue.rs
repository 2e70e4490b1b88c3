//! The tools of a server: what they are called here, what they take, and what is known about them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jsonschema::Validator;
use rmcp::model::Tool;
use serde_json::{Value, json};
use steprail_core::plan::Hash;
use steprail_engine::Traits;

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
    /// What a repeated call does.
    pub traits: Traits,
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

impl Catalogue {
    pub(super) fn new(alias: &str, entry: &Entry, tools: Vec<Tool>) -> Self {
        let mut catalogue = Self::default();
        let mut refused = BTreeSet::new();
        if tools.len() > TOOLS {
            catalogue.warnings.push(format!("of {} tools the first {TOOLS} are used", tools.len()));
        }
        for tool in tools.into_iter().take(TOOLS).filter(|tool| entry.has_tool(&tool.name)) {
            let name = full_name(alias, &tool.name);
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
            catalogue.tools.insert(name.clone(), Arc::new(ToolInfo::new(name, tool)));
        }
        catalogue
    }
}

impl ToolInfo {
    fn new(name: String, tool: Tool) -> Self {
        let hints = tool.annotations.as_ref();
        let hint = |read: fn(&rmcp::model::ToolAnnotations) -> Option<bool>| hints.and_then(read);
        let read_only = hint(|hints| hints.read_only_hint).unwrap_or(false);
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
            traits: Traits {
                read_only,
                idempotent: read_only || hint(|hints| hints.idempotent_hint).unwrap_or(false),
                // A server that says nothing may destroy nothing that it has not named.
                destructive: !read_only && hint(|hints| hints.destructive_hint).unwrap_or(false),
            },
        }
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
