//! A definition compared with the tools that it calls: what would fail when it runs, told when it is written.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Value, json};
use steprail_core::diagnostic::{Code, Diagnostic, Diagnostics, Severity, nearest};
use steprail_core::document::{Data, Node};
use steprail_core::expr::{Expr, Root, Segment, Template, ValueTemplate};
use steprail_core::plan::{BlockIx, Call, Kind, Next, Plan, Step, StepIx, Target};
use steprail_core::source::{Source, Span};
use steprail_core::spec::policy::MissingTool;
use steprail_engine::{Error, FailureKind};

use crate::gateway::{Gateway, ToolInfo};

/// Everything that is wrong with a definition, with the tools that are there now: the servers are asked.
pub async fn examine(source: &Source, gateway: Option<&Gateway>) -> Vec<Diagnostic> {
    let mut loaded = steprail_core::load(source);
    if let (Some(plan), Some(gateway)) = (&loaded.plan, gateway) {
        gateway.refresh().await;
        loaded.diagnostics.extend(check(plan, source, gateway));
    }
    loaded.diagnostics
}

/// What of a definition does not fit the tools, as far as they are known: nobody waits for a server.
pub fn fitting(source: &Source, gateway: &Gateway) -> Vec<Diagnostic> {
    steprail_core::load(source).plan.map(|plan| check(&plan, source, gateway)).unwrap_or_default()
}

/// Refuses a definition with errors.
pub fn need_sound(found: &[Diagnostic]) -> Result<(), Error> {
    let is_error = |problem: &&Diagnostic| problem.code.severity() == Severity::Error;
    let errors: Vec<Diagnostic> = found.iter().filter(is_error).cloned().collect();
    if errors.is_empty() { Ok(()) } else { Err(Error::Invalid(errors)) }
}

/// Everything that does not fit between a definition and the tools that are known.
pub fn check(plan: &Plan, source: &Source, gateway: &Gateway) -> Vec<Diagnostic> {
    let text = steprail_core::document::read(source, &mut Diagnostics::default());
    let places = text.as_ref().map(places).unwrap_or_default();
    let mut check = Check { plan, gateway, places, found: Vec::new() };
    for (at, step) in (0..).zip(&plan.steps) {
        if let Kind::Call(call) = &step.kind {
            check.call(StepIx(at), step, call);
        }
    }
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
                    if ["tool", "action"].iter().any(|key| entry.value.get(key).is_some()) {
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
    gateway: &'c Gateway,
    places: HashMap<&'c str, &'c Node>,
    found: Vec<Diagnostic>,
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

/// The schema of a value, with the document that its references lead into.
#[derive(Clone, Copy)]
struct Shape<'s> {
    schema: &'s Value,
    root: &'s Value,
}

impl<'s> Shape<'s> {
    fn new(schema: &'s Value) -> Self {
        Self { schema, root: schema }.followed()
    }

    /// Follows a reference within the document.
    fn followed(self) -> Self {
        let target = self.schema.get("$ref").and_then(Value::as_str).and_then(|at| at.strip_prefix('#'));
        match target.and_then(|at| self.root.pointer(at)) {
            Some(schema) => Self { schema, ..self },
            None => self,
        }
    }

    fn inner(self, schema: &'s Value) -> Self {
        Self { schema, ..self }.followed()
    }

    /// What a key leads to; an error if the schema rules it out.
    fn key(self, key: &str) -> Result<Option<Self>, ()> {
        match self.schema.get("properties").and_then(|all| all.get(key)) {
            Some(schema) => Ok(Some(self.inner(schema))),
            None if self.schema.get("patternProperties").is_some() => Ok(None),
            None if self.schema.get("additionalProperties") == Some(&Value::Bool(false)) => Err(()),
            None => Ok(None),
        }
    }

    fn items(self) -> Option<Self> {
        self.schema.get("items").filter(|items| items.is_object()).map(|items| self.inner(items))
    }

    /// The types that it allows, if it names them.
    fn types(self) -> Option<Vec<&'s str>> {
        match self.schema.get("type")? {
            Value::String(word) => Some(vec![word]),
            Value::Array(words) => Some(words.iter().filter_map(Value::as_str).collect()),
            _ => None,
        }
    }

    /// A schema that stands for itself, for a validator; none if it leads to places that it would not have.
    fn standalone(self) -> Option<Value> {
        let mut schema = self.schema.clone();
        for key in ["$defs", "definitions"] {
            if let (Value::Object(schema), Some(definitions)) = (&mut schema, self.root.get(key)) {
                schema.entry(key).or_insert_with(|| definitions.clone());
            }
        }
        refers_to_definitions_only(&schema).then_some(schema)
    }
}

fn refers_to_definitions_only(schema: &Value) -> bool {
    let stays = |at: &str| at.starts_with("#/$defs/") || at.starts_with("#/definitions/");
    match schema {
        Value::Object(map) => map.iter().all(|(key, value)| match (key.as_str(), value) {
            ("$ref" | "$dynamicRef", Value::String(at)) => stays(at),
            _ => refers_to_definitions_only(value),
        }),
        Value::Array(items) => items.iter().all(refers_to_definitions_only),
        _ => true,
    }
}

impl Check<'_> {
    fn call(&mut self, at: StepIx, step: &Step, call: &Call) {
        let name = call.full_name();
        let Some(tool) = self.gateway.tool(&name) else { return self.unknown(step, call, &name) };
        self.arguments(step, call, &tool);
        self.policies(at, step, call, &tool);
    }

    fn unknown(&mut self, step: &Step, call: &Call, name: &str) {
        // What is created when it is missing, or may come up with its server, is no mistake.
        if call.missing_tool != MissingTool::Fail || self.gateway.has_tool(name).is_none() {
            return;
        }
        let known = self.gateway.known_tools();
        let near =
            nearest(name, known.iter().map(String::as_str)).map(|near| format!("did you mean `{near}`?"));
        let place = self.field(step, &["tool", "action"]);
        self.tell(Code::UnknownTool, step, place, format!("there is no tool `{name}`"), near);
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
                self.tell(Code::WrongArguments, step, place, message, None);
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
        match wanted.key(key) {
            Ok(Some(wanted)) => self.value(&below, value, wanted),
            Ok(None) => {}
            Err(()) => {
                let all = wanted.schema.get("properties").and_then(Value::as_object);
                let near = all.and_then(|all| nearest(key, all.keys().map(String::as_str)));
                let near = near.map(|near| format!("did you mean `{near}`?"));
                let message = format!("`{}` has no argument `{}`", spot.tool.name, below.path);
                self.tell(Code::WrongArguments, spot.step, self.place(spot.step, below.node), message, near);
            }
        }
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
        let schema = match reference.root {
            Root::Inputs => Some(inputs(self.plan)),
            Root::Output(source) => self.output(source),
            _ => None,
        };
        let Some(schema) = schema else { return };
        let mut shape = Shape::new(&schema);
        for segment in &reference.path {
            let next = match segment {
                Segment::Key(key) => shape.key(key),
                Segment::Index(_) => Ok(shape.items()),
            };
            match next {
                Ok(Some(next)) => shape = next,
                Ok(None) => return,
                Err(()) => {
                    let message = format!("`{}` leads to nothing that the step gives", reference.written);
                    return self.tell(
                        Code::DoubtfulArgument,
                        spot.step,
                        self.place(spot.step, spot.node),
                        message,
                        None,
                    );
                }
            }
        }
        self.types(spot, shape, wanted, &format!("`{}`", reference.written));
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
        if tool.traits.is_destructive() && !step.needs_human && !self.is_gated(at, step.block) {
            let message = format!("`{}` may destroy something, and nobody is asked before it", tool.name);
            let hint = "put an `approve` step before it, or `needs_human: true` on it";
            self.tell(Code::UngatedDestruction, step, place, message, Some(hint.to_owned()));
        }
        if let Some(effects) = call.effects.filter(|effects| tool.traits.contradicts(*effects)) {
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
        let keyed = call.idempotency_arg.is_some() || tool.traits.honours_key;
        let told = call.on_uncertain.is_some() || call.verify.is_some();
        if named || keyed || told || tool.traits.is_repeatable(call.effects) {
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
    let all = plan.inputs.iter().map(|input| (input.name.to_string(), input.schema.clone()));
    json!({ "type": "object", "properties": all.collect::<serde_json::Map<_, _>>() })
}
