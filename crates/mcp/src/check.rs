//! A definition compared with the tools that it calls: what would fail when it runs, told when it is written.

mod draft;
mod known;
mod references;
mod shape;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use serde_json::{Value, json};
use steprail_core::diagnostic::{Code, Diagnostic, Diagnostics, Severity, nearest, quoted};
use steprail_core::document::{Data, Node};
use steprail_core::expr::{Expr, Root, Template, ValueTemplate};
use steprail_core::names::alias;
use steprail_core::plan::{BlockIx, Call, Kind, Next, Plan, Step, StepIx, Target};
use steprail_core::source::{Source, Span};
use steprail_core::spec::policy::MissingTool;
use steprail_engine::{Error, FailureKind, User};

use crate::gateway::{Gateway, ToolInfo};
use crate::limits::{SERVERS_WAIT_SECS, SUGGESTIONS};
use crate::signature::signature;
use crate::suggest;
pub use known::Known;
pub(crate) use known::{reason, servers, shortened};
use shape::{Key, Shape};

/// Every problem of a definition, with the tools that are there now: the servers are asked.
pub async fn examine(source: &Source, gateway: Option<&Gateway>) -> Vec<Diagnostic> {
    let mut loaded = steprail_core::load(source);
    if let (Some(plan), Some(gateway)) = (&loaded.plan, gateway) {
        loaded.diagnostics.extend(compare(plan, source, &Known::asked(gateway).await));
    }
    loaded.diagnostics
}

/// The same for a user: also tools that they may not call, and workflows that are not stored.
pub async fn examine_as(user: &User, source: &Source, gateway: Option<&Gateway>) -> Vec<Diagnostic> {
    let mut loaded = steprail_core::load(source);
    let Some(gateway) = gateway else { return loaded.diagnostics };
    let known = Known::asked(gateway).await;
    loaded.diagnostics.extend(match &loaded.plan {
        Some(plan) => compare(plan, source, &known.of_user(user, plan).await),
        None => draft::draft(source, &known),
    });
    loaded.diagnostics
}

/// Problems of a definition with the tools, for a user, as far as they are known: nothing waits for a server.
pub(crate) async fn fitting_as(
    user: &User,
    plan: &Plan,
    source: &Source,
    gateway: &Gateway,
) -> Vec<Diagnostic> {
    let known = Known::now(gateway).with_servers(gateway.status());
    compare(plan, source, &known.of_user(user, plan).await)
}

/// What of a definition does not fit the tools. Servers that are starting are waited for, within a bounded time.
pub async fn fitting(source: &Source, gateway: &Gateway) -> Vec<Diagnostic> {
    let Some(plan) = steprail_core::load(source).plan else { return Vec::new() };
    let calls = plan.steps.iter().filter_map(|step| match &step.kind {
        Kind::Call(call) => Some(&*call.name),
        _ => None,
    });
    let patience = Duration::from_secs(SERVERS_WAIT_SECS);
    let _ = tokio::time::timeout(patience, gateway.settle(calls)).await;
    check(&plan, source, gateway)
}

/// Refuses a definition with errors.
pub fn need_sound(found: &[Diagnostic]) -> Result<(), Error> {
    let is_error = |problem: &&Diagnostic| problem.code.severity() == Severity::Error;
    let errors: Vec<Diagnostic> = found.iter().filter(is_error).cloned().collect();
    if errors.is_empty() { Ok(()) } else { Err(Error::Invalid(errors)) }
}

/// Whether a run would fail or wait as things stand: an error, or something that it needs and that is not there.
pub(crate) fn cannot_run(problem: &Diagnostic) -> bool {
    let missing =
        [Code::UnknownTool, Code::ServerDown, Code::UnknownWorkflow, Code::ToolDenied, Code::UnknownOutput];
    problem.code.severity() == Severity::Error || missing.contains(&problem.code)
}

/// Everything that does not fit between a definition and the tools that are known.
pub fn check(plan: &Plan, source: &Source, gateway: &Gateway) -> Vec<Diagnostic> {
    compare(plan, source, &Known::now(gateway))
}

/// Everything that does not fit between a definition and what is known.
pub fn compare(plan: &Plan, source: &Source, known: &Known<'_>) -> Vec<Diagnostic> {
    let text = steprail_core::document::read(source, &mut Diagnostics::default());
    let places = text.as_ref().map(places).unwrap_or_default();
    let output_place = text.as_ref().and_then(|text| text.get("output")).map(|node| node.span);
    let mut check = Check {
        plan,
        known,
        gateway: known.gateway,
        places,
        output_place: output_place.unwrap_or_default(),
        found: Vec::new(),
        down: BTreeSet::new(),
    };
    for (at, step) in (0..).zip(&plan.steps) {
        match &step.kind {
            Kind::Call(call) => check.call(StepIx(at), step, call),
            Kind::Workflow(workflow) => check.workflow(step, &workflow.name),
            _ => {}
        }
    }
    check.references();
    check.found
}

/// Where steps stand in the text, by their ids.
fn places(root: &Node) -> HashMap<&str, &Node> {
    let mut places = HashMap::new();
    let mut left = vec![root];
    while let Some(node) = left.pop() {
        match &node.data {
            Data::List(items) => left.extend(items),
            Data::Map(entries) => {
                if let Some(id) = node.get("id").and_then(Node::as_text) {
                    places.entry(id).or_insert(node);
                }
                for entry in entries {
                    if ["tool", "action", "name"].iter().any(|key| entry.value.get(key).is_some()) {
                        places.entry(&*entry.key).or_insert(&entry.value);
                    }
                    left.push(&entry.value);
                }
            }
            _ => {}
        }
    }
    places
}

struct Check<'c> {
    plan: &'c Plan,
    known: &'c Known<'c>,
    gateway: &'c Gateway,
    places: HashMap<&'c str, &'c Node>,
    /// Where the definition's `output` stands.
    output_place: Span,
    found: Vec<Diagnostic>,
    /// Servers that cannot be reached and were told.
    down: BTreeSet<String>,
}

/// An argument of a step, or a part of one.
struct Spot<'s> {
    step: &'s Step,
    tool: &'s ToolInfo,
    path: String,
    node: Option<&'s Node>,
}

impl Spot<'_> {
    fn key(&self, key: &str) -> Self {
        let path = if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        Self { path, node: self.node.and_then(|node| node.get(key)), ..*self }
    }

    fn item(&self, at: usize) -> Self {
        let node = self.node.and_then(|node| match &node.data {
            Data::List(nodes) => nodes.get(at),
            _ => None,
        });
        Self { path: format!("{}[{at}]", self.path), node, ..*self }
    }
}

impl Check<'_> {
    fn call(&mut self, at: StepIx, step: &Step, call: &Call) {
        let name = call.full_name();
        self.server(step, &name);
        if self.known.denied.contains(&name) {
            let message = format!("you may not call `{name}`");
            let hint = "ask an administrator to grant it, or use a tool that workflow_tools lists";
            let place = self.field(step, &["tool", "action"]);
            self.tell(Code::ToolDenied, step, place, message, Some(hint.to_owned()));
        }
        let Some(tool) = self.gateway.tool(&name) else { return self.unknown(step, call, &name) };
        self.arguments(step, call, &tool);
        self.policies(at, step, call, &tool);
    }

    /// A server that cannot be reached, once.
    fn server(&mut self, step: &Step, tool: &str) {
        let Some((name, _)) = tool.split_once("__") else { return };
        let status = self.known.servers.iter().find(|server| alias(&server.name) == name);
        let why = match status {
            Some(server) => reason(server),
            None if self.gateway.has_tool(tool).is_none() => Some("it has not answered yet".to_owned()),
            None => None,
        };
        let Some(why) = why.filter(|_| self.down.insert(name.to_owned())) else { return };
        let message =
            format!("the server `{name}` cannot be reached, so steps that call its tools will wait: {why}");
        let hint = format!("ask the user to look at it: steprail servers; steprail servers restart {name}");
        let place = self.field(step, &["tool", "action"]);
        self.tell(Code::ServerDown, step, place, message, Some(hint));
    }

    fn unknown(&mut self, step: &Step, call: &Call, name: &str) {
        // What is created when it is missing, or may come up with its server, is no mistake.
        if call.missing_tool != MissingTool::Fail || self.gateway.has_tool(name).is_none() {
            return;
        }
        let tools = self.gateway.known_tools();
        let hint = suggest::hint(name, &tools, &self.known.aliases(&tools));
        let place = self.field(step, &["tool", "action"]);
        self.tell(Code::UnknownTool, step, place, format!("there is no tool `{name}`"), Some(hint));
    }

    fn workflow(&mut self, step: &Step, name: &str) {
        let Some(names) = &self.known.workflows else { return };
        if names.iter().any(|known| known == name) || *name == *self.plan.name {
            return;
        }
        let all: Vec<&str> = names.iter().map(String::as_str).take(SUGGESTIONS).collect();
        let hint = match (nearest(name, names.iter().map(String::as_str)), all.as_slice()) {
            (Some(near), _) => format!("did you mean `{near}`?"),
            (None, []) => format!("none is stored; define `{name}` first"),
            (None, all) => format!("define it first; stored are {}", quoted(all)),
        };
        let place = self.field(step, &["name"]);
        self.tell(Code::UnknownWorkflow, step, place, format!("there is no workflow `{name}`"), Some(hint));
    }

    fn arguments(&mut self, step: &Step, call: &Call, tool: &ToolInfo) {
        let wanted = Shape::new(&tool.input_schema);
        let given: Vec<&str> = match &call.args {
            ValueTemplate::Map(entries) => entries.iter().map(|(key, _)| &**key).collect(),
            ValueTemplate::Literal(Value::Object(map)) => map.keys().map(String::as_str).collect(),
            // A map that is computed as a whole is checked when it is there.
            ValueTemplate::Literal(_) | ValueTemplate::Text(_) | ValueTemplate::List(_) => return,
        };
        let required = tool.input_schema.get("required").and_then(Value::as_array);
        for name in required.into_iter().flatten().filter_map(Value::as_str) {
            if !given.contains(&name) && call.idempotency_arg.as_deref() != Some(name) {
                let place = self.field(step, &["args", "tool", "action"]);
                let message = format!("`{}` needs the argument `{name}`", tool.name);
                self.tell(Code::WrongArguments, step, place, message, Some(takes(tool)));
            }
        }
        let node = self.places.get(&*step.id).and_then(|node| node.get("args"));
        self.value(&Spot { step, tool, path: String::new(), node }, &call.args, wanted);
    }

    /// Compares what is written with what a tool takes.
    fn value(&mut self, spot: &Spot<'_>, given: &ValueTemplate, wanted: Shape<'_>) {
        match given {
            ValueTemplate::Literal(Value::Object(map)) => {
                for (key, value) in map {
                    self.entry(spot, key, &ValueTemplate::Literal(value.clone()), wanted);
                }
            }
            ValueTemplate::Map(entries) => {
                entries.iter().for_each(|(key, value)| self.entry(spot, key, value, wanted));
            }
            ValueTemplate::List(items) => {
                let Some(wanted) = wanted.items() else { return };
                for (at, item) in items.iter().enumerate() {
                    self.value(&spot.item(at), item, wanted);
                }
            }
            ValueTemplate::Text(Template::Whole(expr)) => self.reference(spot, expr, wanted),
            ValueTemplate::Text(Template::Mixed(_)) => {
                let text = json!({ "type": "string" });
                self.types(spot, Shape::new(&text), wanted, "this");
            }
            ValueTemplate::Literal(value) | ValueTemplate::Text(Template::Literal(value)) => {
                self.literal(spot, value, wanted);
            }
        }
    }

    fn entry(&mut self, spot: &Spot<'_>, key: &str, value: &ValueTemplate, wanted: Shape<'_>) {
        let below = spot.key(key);
        let (code, message) = match wanted.key(key) {
            Key::Known(wanted) => return self.value(&below, value, wanted),
            Key::Open => return,
            Key::Unnamed => {
                let message =
                    format!("`{}` names no argument `{}` and may ignore it", spot.tool.name, below.path);
                (Code::UnknownArgument, message)
            }
            Key::Refused => {
                (Code::WrongArguments, format!("`{}` has no argument `{}`", spot.tool.name, below.path))
            }
        };
        let all = wanted.schema.get("properties").and_then(Value::as_object);
        let near = all.and_then(|all| nearest(key, all.keys().map(String::as_str)));
        let near = near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
        let hint = if spot.path.is_empty() { format!("{near}{}", takes(spot.tool)) } else { near };
        let hint = Some(hint.trim_end().to_owned()).filter(|hint| !hint.is_empty());
        self.tell(code, spot.step, self.place(spot.step, below.node), message, hint);
    }

    fn literal(&mut self, spot: &Spot<'_>, value: &Value, wanted: Shape<'_>) {
        let options = jsonschema::options().with_pattern_options(jsonschema::PatternOptions::regex());
        let validator = wanted.standalone().and_then(|schema| options.build(&schema).ok());
        let Some(validator) = validator else { return };
        if let Some(problem) = validator.iter_errors(value).next().map(|error| error.to_string()) {
            let message = format!("`{}` of `{}`: {problem}", spot.path, spot.tool.name);
            self.tell(Code::WrongArguments, spot.step, self.place(spot.step, spot.node), message, None);
        }
    }

    /// A reference, where it is known what it leads to.
    fn reference(&mut self, spot: &Spot<'_>, expr: &Expr, wanted: Shape<'_>) {
        let Expr::Ref(reference) = expr else { return };
        let Some(schema) = self.schema_of(&reference.root) else { return };
        if let Ok(shape) = Shape::new(&schema).follow(&reference.path) {
            self.types(spot, shape, wanted, &format!("`{}`", reference.written));
        }
    }

    /// The schema of what references begin at, if it has one.
    fn schema_of(&self, root: &Root) -> Option<Value> {
        match root {
            Root::Inputs => Some(inputs(self.plan)),
            Root::Output(source) => self.output(*source),
            _ => None,
        }
    }

    fn types(&mut self, spot: &Spot<'_>, given: Shape<'_>, wanted: Shape<'_>, what: &str) {
        let (Some(given), Some(wanted)) = (given.types(), wanted.types()) else { return };
        let fits =
            |given: &&str| wanted.contains(given) || (*given == "integer" && wanted.contains(&"number"));
        // A whole number may well come out of something that gives numbers.
        let may = |given: &&str| *given == "number" && wanted.contains(&"integer");
        if given.iter().any(|word| fits(word) || may(word)) {
            return;
        }
        let (wanted, given) = (wanted.join(" or "), given.join(" or "));
        let message =
            format!("`{}` of `{}` takes {wanted}, and {what} is {given}", spot.path, spot.tool.name);
        self.tell(Code::DoubtfulArgument, spot.step, self.place(spot.step, spot.node), message, None);
    }

    /// What a step gives, if its tool says so.
    fn output(&self, source: StepIx) -> Option<Value> {
        let Kind::Call(call) = &self.plan.step(source).kind else { return None };
        self.gateway.tool(&call.full_name())?.output_schema.clone()
    }

    fn policies(&mut self, at: StepIx, step: &Step, call: &Call, tool: &ToolInfo) {
        let place = self.field(step, &["tool", "action"]);
        if tool.annotations.is_destructive() && !step.needs_human && !self.is_gated(at, step.block) {
            let message = format!("`{}` may destroy something, and nobody is asked before it", tool.name);
            let hint = "put an `approve` step before it, or `needs_human: true` on it";
            self.tell(Code::UngatedDestruction, step, place, message, Some(hint.to_owned()));
        }
        if let Some(effects) = call.effects.filter(|effects| tool.annotations.contradicts(*effects)) {
            let place = self.field(step, &["effects"]);
            let message =
                format!("`{}` is annotated otherwise than `effects: {}`", tool.name, effects.word());
            let hint = "remove `effects`: the annotations of the tool count";
            self.tell(Code::ContradictedEffects, step, place, message, Some(hint.to_owned()));
        }
        self.retried(step, call, tool);
    }

    /// A retry policy that does not cover lost connections, although its author may think so.
    fn retried(&mut self, step: &Step, call: &Call, tool: &ToolInfo) {
        let Some(retry) = step.retry.as_ref().filter(|retry| retry.max_attempts > 1) else { return };
        let named = retry.retry_on.as_deref().unwrap_or_default().contains(&FailureKind::Lost);
        let keyed = call.idempotency_arg.is_some() || tool.annotations.honours_key;
        let told = call.on_uncertain.is_some() || call.verify.is_some();
        if named || keyed || told || tool.annotations.is_repeatable(call.effects) {
            return;
        }
        let place = self.field(step, &["retry", "tool", "action"]);
        let message = format!(
            "`{}` is not annotated as repeatable: `retry` does not cover a lost connection or a timeout",
            tool.name
        );
        let hint = "without more, a human is asked then; to repeat it, pass the key with `idempotency_arg` or name `lost` \
                    in `retry_on`";
        self.tell(Code::RetriedEffect, step, place, message, Some(hint.to_owned()));
    }

    /// Whether a gate stands before a step: in its block, or in one around it.
    fn is_gated(&self, at: StepIx, block: BlockIx) -> bool {
        let is_gate = |at: &StepIx| {
            let step = self.plan.step(*at);
            matches!(step.kind, Kind::Approve(_)) || step.needs_human
        };
        let here = before(self.plan, at, block).iter().any(is_gate);
        let around = self.plan.block(block).owner;
        here || around.is_some_and(|owner| {
            let step = self.plan.step(owner);
            step.needs_human || self.is_gated(owner, step.block)
        })
    }

    fn field(&self, step: &Step, keys: &[&str]) -> Span {
        let node = self.places.get(&*step.id);
        let field = node.and_then(|node| keys.iter().find_map(|key| node.get(key)));
        self.place(step, field)
    }

    /// The place of a node, or of its step.
    fn place(&self, step: &Step, node: Option<&Node>) -> Span {
        let of_step =
            || self.places.get(&*step.id).map(|node| Span { end: node.span.start + 1, ..node.span });
        node.map(|node| node.span).or_else(of_step).unwrap_or_default()
    }

    fn tell(&mut self, code: Code, step: &Step, place: Span, message: String, hint: Option<String>) {
        let mut diagnostic = Diagnostic::new(code, place, message);
        (diagnostic.hint, diagnostic.step) = (hint, Some(step.id.to_string()));
        self.found.push(diagnostic);
    }
}

/// The arguments of a tool, for a hint.
fn takes(tool: &ToolInfo) -> String {
    match signature(&tool.input_schema) {
        line if line.is_empty() => "it takes no arguments".to_owned(),
        line => format!("it takes ({line})"),
    }
}

/// The steps of a block that lead to a step.
fn before(plan: &Plan, at: StepIx, block: BlockIx) -> BTreeSet<StepIx> {
    let leads = |from: &StepIx, to: StepIx| match &plan.step(*from).next {
        Next::End => false,
        Next::Step(next) => *next == to,
        Next::Dependents(next) => next.contains(&to),
        Next::Choose { choices, otherwise } => {
            let ways = choices.iter().map(|choice| &choice.to).chain(otherwise);
            ways.into_iter().any(|way| *way == Target::Step(to))
        }
    };
    let mut found = BTreeSet::new();
    let mut left = vec![at];
    while let Some(step) = left.pop() {
        let here = plan.block(block).steps.iter().filter(|from| leads(from, step)).copied();
        left.extend(here.filter(|from| found.insert(*from)));
    }
    found
}

/// The inputs of a run as one schema.
fn inputs(plan: &Plan) -> Value {
    let all = plan.inputs.iter().map(|input| (input.name.to_string(), input.schema.json().clone()));
    json!({ "type": "object", "properties": all.collect::<serde_json::Map<_, _>>() })
}
