//! Checks a definition against the tools that it calls, so that problems appear before a run does.

mod arguments;
mod context;
mod draft;
mod policies;
mod references;
mod schema;
mod secrets;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use serde_json::{Value, json};
use steprail_core::diagnostic::{Code, Diagnostic, Diagnostics, Severity, nearest, quoted};
use steprail_core::document::{Data, Node};
use steprail_core::expr::Root;
use steprail_core::names::{self, alias};
use steprail_core::plan::{Call, Kind, Plan, Step, StepIx};
use steprail_core::source::{Source, Span};
use steprail_core::spec::policy::MissingTool;
use steprail_engine::{Error, User};

use crate::gateway::{Gateway, ToolInfo};
use crate::limits::{SERVERS_WAIT_SECS, SUGGESTIONS};
use crate::signature::signature;
use crate::suggest;
pub use context::CheckContext;
pub(crate) use context::{reason, servers, shortened};

/// Every problem of a definition. The tools are listed again first.
pub async fn examine(source: &Source, gateway: Option<&Gateway>) -> Vec<Diagnostic> {
    let mut loaded = steprail_core::load(source);
    if let (Some(plan), Some(gateway)) = (&loaded.plan, gateway) {
        loaded.diagnostics.extend(compare(plan, source, &CheckContext::refreshed(gateway).await));
    }
    loaded.diagnostics
}

/// Like [`examine`], for a user: also reports tools that they may not call and workflows that are not stored.
pub async fn examine_as(user: &User, source: &Source, gateway: Option<&Gateway>) -> Vec<Diagnostic> {
    let mut loaded = steprail_core::load(source);
    let Some(gateway) = gateway else { return loaded.diagnostics };
    let context = CheckContext::refreshed(gateway).await;
    loaded.diagnostics.extend(match &loaded.plan {
        Some(plan) => compare(plan, source, &context.for_user(user, plan).await),
        None => draft::check_draft(source, &context),
    });
    loaded.diagnostics
}

/// Problems of a definition with the tools as last listed, for a user. Does not wait for servers.
pub(crate) async fn check_tools_as(
    user: &User,
    plan: &Plan,
    source: &Source,
    gateway: &Gateway,
) -> Vec<Diagnostic> {
    let context = CheckContext::cached(gateway).with_servers(gateway.status());
    compare(plan, source, &context.for_user(user, plan).await)
}

/// Problems of a definition with the tools. Waits up to [`SERVERS_WAIT_SECS`] for servers that are starting.
pub async fn check_tools(source: &Source, gateway: &Gateway) -> Vec<Diagnostic> {
    let Some(plan) = steprail_core::load(source).plan else { return Vec::new() };
    let calls = plan.steps.iter().filter_map(|step| match &step.kind {
        Kind::Call(call) => Some(&*call.name),
        _ => None,
    });
    let timeout = Duration::from_secs(SERVERS_WAIT_SECS);
    let _ = tokio::time::timeout(timeout, gateway.settle(calls)).await;
    check(&plan, source, gateway)
}

/// Fails if one of the diagnostics is an error.
pub fn require_valid(diagnostics: &[Diagnostic]) -> Result<(), Error> {
    let is_error = |problem: &&Diagnostic| problem.code.severity() == Severity::Error;
    let errors: Vec<Diagnostic> = diagnostics.iter().filter(is_error).cloned().collect();
    if errors.is_empty() { Ok(()) } else { Err(Error::Invalid(errors)) }
}

/// Whether a run would fail or wait now: the problem is an error, or a tool, server or workflow is missing.
pub(crate) fn cannot_run(problem: &Diagnostic) -> bool {
    let missing =
        [Code::UnknownTool, Code::ServerDown, Code::UnknownWorkflow, Code::ToolDenied, Code::UnknownOutput];
    problem.code.severity() == Severity::Error || missing.contains(&problem.code)
}

/// Problems of a plan with the tools as last listed. Does not wait for servers.
pub fn check(plan: &Plan, source: &Source, gateway: &Gateway) -> Vec<Diagnostic> {
    compare(plan, source, &CheckContext::cached(gateway))
}

/// Problems of a plan with the tools, servers, workflows and permissions of a context.
pub fn compare(plan: &Plan, source: &Source, context: &CheckContext<'_>) -> Vec<Diagnostic> {
    let text = steprail_core::document::read(source, &mut Diagnostics::default());
    let nodes = text.as_ref().map(step_nodes).unwrap_or_default();
    let output_span = text.as_ref().and_then(|text| text.get("output")).map(|node| node.span);
    let mut check = Check {
        plan,
        context,
        gateway: context.gateway,
        nodes,
        output_span: output_span.unwrap_or_default(),
        diagnostics: Vec::new(),
        down: BTreeSet::new(),
    };
    for (index, step) in (0..).zip(&plan.steps) {
        match &step.kind {
            Kind::Call(call) => check.call(StepIx(index), step, call),
            Kind::Workflow(workflow) => check.workflow(step, &workflow.name),
            _ => {}
        }
    }
    check.references();
    check.diagnostics
}

/// The nodes of steps in the text, by step id.
fn step_nodes(root: &Node) -> HashMap<&str, &Node> {
    let mut nodes = HashMap::new();
    let mut queue = vec![root];
    while let Some(node) = queue.pop() {
        match &node.data {
            Data::List(items) => queue.extend(items),
            Data::Map(entries) => {
                if let Some(id) = node.get("id").and_then(Node::as_text) {
                    nodes.entry(id).or_insert(node);
                }
                for entry in entries {
                    if ["tool", "action", "name"].iter().any(|key| entry.value.get(key).is_some()) {
                        nodes.entry(&*entry.key).or_insert(&entry.value);
                    }
                    queue.push(&entry.value);
                }
            }
            _ => {}
        }
    }
    nodes
}

/// One check of a plan, with the diagnostics so far.
struct Check<'c> {
    plan: &'c Plan,
    context: &'c CheckContext<'c>,
    gateway: &'c Gateway,
    nodes: HashMap<&'c str, &'c Node>,
    /// The definition's `output` in the text.
    output_span: Span,
    diagnostics: Vec<Diagnostic>,
    /// Servers that were already reported as down.
    down: BTreeSet<String>,
}

impl Check<'_> {
    fn call(&mut self, index: StepIx, step: &Step, call: &Call) {
        let name = call.full_name();
        self.server(step, &name);
        self.secrets(step, &name, &call.secrets);
        if let Some(verify) = &call.verify {
            self.secrets(step, &verify.tool, &verify.secrets);
        }
        if self.context.denied.contains(&name) {
            let message = format!("you are not allowed to call `{name}`");
            let hint = "ask an administrator to grant it, or use a tool that workflow_tools lists";
            let span = self.field(step, &["tool", "action"]);
            self.report(Code::ToolDenied, step, span, message, Some(hint.to_owned()));
        }
        let Some(tool) = self.gateway.tool(&name) else { return self.unknown_tool(step, call, &name) };
        self.arguments(step, call, &tool);
        self.policies(index, step, call, &tool);
    }

    /// Reports a server that is down, once per definition.
    fn server(&mut self, step: &Step, tool: &str) {
        let Some((name, _)) = names::split(tool) else { return };
        let status = self.context.servers.iter().find(|server| alias(&server.name) == name);
        let reason = match status {
            Some(server) => reason(server),
            None if self.gateway.has_tool(tool).is_none() => Some("it has not answered yet".to_owned()),
            None => None,
        };
        let Some(reason) = reason.filter(|_| self.down.insert(name.to_owned())) else { return };
        let message = format!(
            "the server `{name}` cannot be reached, so steps that call its tools will wait: {reason}"
        );
        let hint = format!("ask the user to look at it: steprail servers; steprail servers restart {name}");
        let span = self.field(step, &["tool", "action"]);
        self.report(Code::ServerDown, step, span, message, Some(hint));
    }

    fn unknown_tool(&mut self, step: &Step, call: &Call, name: &str) {
        // The tool may be created by the run, or its server has not listed its tools yet.
        if call.missing_tool != MissingTool::Fail || self.gateway.has_tool(name).is_none() {
            return;
        }
        let tools = self.gateway.known_tools();
        let hint = suggest::hint(name, &tools, &self.context.aliases(&tools));
        let span = self.field(step, &["tool", "action"]);
        self.report(Code::UnknownTool, step, span, format!("there is no tool `{name}`"), Some(hint));
    }

    fn workflow(&mut self, step: &Step, name: &str) {
        let Some(names) = &self.context.workflows else { return };
        if names.iter().any(|known| known == name) || *name == *self.plan.name {
            return;
        }
        let all: Vec<&str> = names.iter().map(String::as_str).take(SUGGESTIONS).collect();
        let hint = match (nearest(name, names.iter().map(String::as_str)), all.as_slice()) {
            (Some(near), _) => format!("did you mean `{near}`?"),
            (None, []) => format!("no workflow is stored; define `{name}` first"),
            (None, all) => format!("define it first; the stored workflows are {}", quoted(all)),
        };
        let span = self.field(step, &["name"]);
        self.report(Code::UnknownWorkflow, step, span, format!("there is no workflow `{name}`"), Some(hint));
    }

    /// The schema of the value that a reference starts from, if it has one.
    fn schema_of(&self, root: &Root) -> Option<Value> {
        match root {
            Root::Inputs => Some(input_schema(self.plan)),
            Root::Output(source) => self.output_schema(*source),
            _ => None,
        }
    }

    /// The output schema of the tool that a step calls.
    fn output_schema(&self, source: StepIx) -> Option<Value> {
        let Kind::Call(call) = &self.plan.step(source).kind else { return None };
        self.gateway.tool(&call.full_name())?.output_schema.clone()
    }

    /// The span of the first of these fields that the step has, or of the step.
    fn field(&self, step: &Step, keys: &[&str]) -> Span {
        let node = self.nodes.get(&*step.id);
        let field = node.and_then(|node| keys.iter().find_map(|key| node.get(key)));
        self.span(step, field)
    }

    /// The span of a node, or of its step.
    fn span(&self, step: &Step, node: Option<&Node>) -> Span {
        let of_step = || self.nodes.get(&*step.id).map(|node| Span { end: node.span.start + 1, ..node.span });
        node.map(|node| node.span).or_else(of_step).unwrap_or_default()
    }

    fn report(&mut self, code: Code, step: &Step, span: Span, message: String, hint: Option<String>) {
        let mut diagnostic = Diagnostic::new(code, span, message);
        (diagnostic.hint, diagnostic.step) = (hint, Some(step.id.to_string()));
        self.diagnostics.push(diagnostic);
    }
}

/// The hint that lists the arguments of a tool.
fn arguments_hint(tool: &ToolInfo) -> String {
    match signature(&tool.input_schema) {
        line if line.is_empty() => "it takes no arguments".to_owned(),
        line => format!("it takes ({line})"),
    }
}

/// The inputs of a definition as one schema.
fn input_schema(plan: &Plan) -> Value {
    let all = plan.inputs.iter().map(|input| (input.name.to_string(), input.schema.json().clone()));
    json!({ "type": "object", "properties": all.collect::<serde_json::Map<_, _>>() })
}
