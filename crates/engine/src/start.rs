//! Start requests: of a stored definition, of an inline definition, or of one tool call.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use steprail_core::diagnostic::{Diagnostic, Severity};
use steprail_core::load;
use steprail_core::plan::Plan;
use steprail_core::source::Source;
use steprail_store::{Origin, Principal};

use crate::direct_call;
use crate::error::Error;
use crate::limits::NOTIFICATION_TIME;

/// The name of a definition without a name or a file.
pub(crate) const UNNAMED: &str = "definition";

/// A request to start a run.
#[derive(Debug, Clone)]
pub struct Start {
    pub(crate) workflow: Workflow,
    pub(crate) inputs: Value,
    pub(crate) principal: Principal,
    pub(crate) request_key: Option<String>,
}

/// The definition that a run executes.
#[derive(Debug, Clone)]
pub enum Workflow {
    /// Name and version of a stored definition; the newest version if `None`.
    Named(String, Option<u32>),
    /// A definition that is part of the request.
    Inline {
        /// The definition as YAML or JSON.
        text: String,
        /// Name of its file, used as the name of the definition if it has none.
        source: String,
    },
}

impl Start {
    /// Starts the newest version of a stored definition.
    pub fn named(name: impl Into<String>, principal: Principal) -> Self {
        Self::of(Workflow::Named(name.into(), None), principal)
    }

    /// Starts a definition that is given as YAML or JSON.
    pub fn inline(text: impl Into<String>, principal: Principal) -> Self {
        Self::of(Workflow::Inline { text: text.into(), source: UNNAMED.to_owned() }, principal)
    }

    /// Starts a definition that was read from a file.
    pub fn file(source: impl Into<String>, text: impl Into<String>, principal: Principal) -> Self {
        Self::of(Workflow::Inline { text: text.into(), source: source.into() }, principal)
    }

    /// Calls one tool: a run of one step. If the outcome of the call is unknown, the run fails. An argument that is a
    /// reference to a secret is resolved when the call is sent.
    pub fn call(tool: &str, args: &Value, principal: Principal) -> Self {
        let template = direct_call::template(args);
        let steps = json!([{ "id": "call", "tool": tool, "args": template, "on_uncertain": "fail" }]);
        let inputs = json!({ "args": { "type": "object" } });
        let name = format!("call {tool}");
        let text = json!({ "name": name, "inputs": inputs, "steps": steps }).to_string();
        let principal = Principal { origin: Some(Origin::Direct), ..principal };
        Self::inline(text, principal).inputs(json!({ "args": args }))
    }

    /// Calls a tool to deliver a notification: a run of one step, which opens no approval and causes no notification. Only
    /// `secrets` are references to secrets; they are arguments like `args`.
    pub fn notification(
        tool: &str,
        args: Map<String, Value>,
        secrets: &BTreeMap<String, String>,
        service: Principal,
    ) -> Self {
        let mut template: Map<String, Value> =
            secrets.iter().map(|(name, text)| (name.clone(), Value::from(text.clone()))).collect();
        let (mut declared, mut inputs) = (Map::new(), Map::new());
        for (index, (name, value)) in args.into_iter().enumerate() {
            let input = format!("arg{index}");
            template.insert(name, Value::from(format!("{{{{inputs.{input}}}}}")));
            declared.insert(input.clone(), json!({}));
            inputs.insert(input, value);
        }
        let step = json!({
            "id": "call", "tool": tool, "args": template, "timeout": NOTIFICATION_TIME, "on_uncertain": "fail",
            "missing_tool": "fail",
        });
        let text = json!({ "name": format!("notify {tool}"), "inputs": declared, "steps": [step] });
        let principal = Principal { origin: Some(Origin::Notification), ..service };
        Self::inline(text.to_string(), principal).inputs(Value::Object(inputs))
    }

    /// Starts a workflow without inputs.
    pub fn of(workflow: Workflow, principal: Principal) -> Self {
        Self { workflow, inputs: Value::Object(Map::new()), principal, request_key: None }
    }

    /// Sets the inputs, which must be a JSON object.
    #[must_use]
    pub fn inputs(mut self, inputs: Value) -> Self {
        self.inputs = inputs;
        self
    }

    /// Sets an idempotency key: a second start with the same key returns the first run.
    #[must_use]
    pub fn request_key(mut self, key: impl Into<String>) -> Self {
        self.request_key = Some(key.into());
        self
    }
}

/// A definition that was checked and compiled. Callers do this before they send a request to the engine thread.
pub(crate) struct Checked {
    /// Canonical JSON of the definition.
    pub spec: Arc<str>,
    pub plan: Arc<Plan>,
    pub warnings: Vec<Diagnostic>,
}

/// Checks and compiles a definition. `publish` overrides the field of the definition that offers it as a tool.
pub(crate) fn check(source: &str, text: &str, publish: Option<bool>) -> Result<Checked, Error> {
    let loaded = load(&Source::new(source, text));
    let is_error = |diagnostic: &Diagnostic| diagnostic.code.severity() == Severity::Error;
    let (Some(mut spec), Some(plan)) = (loaded.spec, loaded.plan) else {
        return Err(Error::Invalid(loaded.diagnostics.into_iter().filter(is_error).collect()));
    };
    let warnings = loaded.diagnostics;
    let Some(publish) = publish else {
        return Ok(Checked { spec: spec.to_canonical_json().into(), plan: Arc::new(plan), warnings });
    };
    spec.publish(publish);
    let spec = spec.to_canonical_json();
    let changed = load(&Source::new(source, &*spec));
    match changed.plan {
        Some(plan) => Ok(Checked { spec: spec.into(), plan: Arc::new(plan), warnings }),
        None => Err(Error::Invalid(changed.diagnostics.into_iter().filter(is_error).collect())),
    }
}
