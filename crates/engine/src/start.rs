//! What can be started: a stored definition, one that comes along, or one call of a tool.

use std::sync::Arc;

use serde_json::{Value, json};
use steprail_core::diagnostic::{Diagnostic, Severity};
use steprail_core::load;
use steprail_core::source::Source;
use steprail_core::spec::Spec;
use steprail_store::Principal;

use crate::error::Error;

/// What a definition is called that has neither a name nor a file.
pub(crate) const UNNAMED: &str = "definition";

/// What to start.
#[derive(Debug, Clone)]
pub struct Start {
    pub(crate) workflow: Workflow,
    pub(crate) inputs: Value,
    pub(crate) principal: Principal,
    pub(crate) request_key: Option<String>,
}

/// What a run runs.
#[derive(Debug, Clone)]
pub enum Workflow {
    /// A stored definition: its newest version, or a given one.
    Named(String, Option<u32>),
    /// A definition that comes with the start.
    Inline {
        /// YAML or JSON.
        text: String,
        /// The name of its file, which it goes by if it has no name of its own.
        source: String,
    },
}

impl Start {
    /// The newest version of a stored definition.
    pub fn named(name: impl Into<String>, principal: Principal) -> Self {
        Self::of(Workflow::Named(name.into(), None), principal)
    }

    /// A definition as text.
    pub fn inline(text: impl Into<String>, principal: Principal) -> Self {
        Self::of(Workflow::Inline { text: text.into(), source: UNNAMED.to_owned() }, principal)
    }

    /// A definition as text, from a file with a name.
    pub fn file(source: impl Into<String>, text: impl Into<String>, principal: Principal) -> Self {
        Self::of(Workflow::Inline { text: text.into(), source: source.into() }, principal)
    }

    /// One call of a tool: a run of one step. A call whose outcome is unknown fails; nobody is asked.
    pub fn call(tool: &str, args: &Value, principal: Principal) -> Self {
        let steps =
            json!([{ "id": "call", "tool": tool, "args": "{{inputs.args}}", "on_uncertain": "fail" }]);
        let inputs = json!({ "args": { "type": "object" } });
        let name = format!("call {tool}");
        let text = json!({ "name": name, "inputs": inputs, "steps": steps }).to_string();
        Self::inline(text, principal).inputs(json!({ "args": args }))
    }

    /// Whatever there is to run.
    pub fn of(workflow: Workflow, principal: Principal) -> Self {
        Self { workflow, inputs: Value::Object(serde_json::Map::new()), principal, request_key: None }
    }

    /// With inputs: a map.
    #[must_use]
    pub fn inputs(mut self, inputs: Value) -> Self {
        self.inputs = inputs;
        self
    }

    /// With a key: a second start with the same key is the first run.
    #[must_use]
    pub fn request_key(mut self, key: impl Into<String>) -> Self {
        self.request_key = Some(key.into());
        self
    }
}

/// Checks a definition; gives its canonical JSON and warnings.
pub(crate) fn check(source: &str, text: &str) -> Result<(Arc<str>, Vec<Diagnostic>), Error> {
    check_with(source, text, |_| ())
}

/// Checks a definition and changes it.
pub(crate) fn check_with(
    source: &str,
    text: &str,
    change: impl FnOnce(&mut Spec),
) -> Result<(Arc<str>, Vec<Diagnostic>), Error> {
    let loaded = load(&Source::new(source, text));
    let is_error = |diagnostic: &Diagnostic| diagnostic.code.severity() == Severity::Error;
    match (loaded.spec, loaded.plan) {
        (Some(mut spec), Some(_)) => {
            change(&mut spec);
            Ok((spec.to_canonical_json().into(), loaded.diagnostics))
        }
        _ => Err(Error::Invalid(loaded.diagnostics.into_iter().filter(is_error).collect())),
    }
}
