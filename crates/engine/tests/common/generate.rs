//! Generates random valid definitions in all three forms from a seed.

mod graph;
mod policy;
mod steps;
mod values;

use serde_json::{Map, Value, json};
use steprail_core::load;
use steprail_core::source::Source;

/// The features to generate; all by default.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each lets a kind or a policy be left out")]
pub(crate) struct Options {
    /// `approve` and `needs_human`.
    pub gates: bool,
    pub waits: bool,
    pub sleeps: bool,
    pub workflows: bool,
    /// `timeout`, on all steps that accept it.
    pub timeouts: bool,
    pub idempotency: bool,
    /// `effects` and `on_uncertain`.
    pub unknown: bool,
    /// Limits that a run may reach.
    pub limits: bool,
    /// Limits on the concurrency of a run.
    pub concurrency: bool,
    pub on_failure: bool,
    /// `let`.
    pub values: bool,
    /// The maximum number of steps in the main definition.
    pub steps: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            gates: true,
            waits: true,
            sleeps: true,
            workflows: true,
            timeouts: true,
            idempotency: true,
            unknown: true,
            limits: true,
            concurrency: true,
            on_failure: true,
            values: true,
            steps: 12,
        }
    }
}

/// A definition, its sub-workflows, and inputs to start it with.
#[derive(Debug, Clone)]
pub(crate) struct Generated {
    pub main: String,
    /// Sub-workflows in the order in which they must be defined, from `child0`.
    pub children: Vec<String>,
    pub inputs: Value,
}

/// The name of the main definition.
pub(crate) const MAIN: &str = "main";

/// Generates a definition in one of the three forms, in YAML or JSON.
pub(crate) fn generate(rng: &mut fastrand::Rng, options: &Options) -> Generated {
    let mut children = Vec::new();
    if options.workflows {
        for number in 0..rng.u32(0..3) {
            let small = Options { steps: 4, ..options.clone() };
            children.push(compiling(rng, &small, &format!("child{number}"), number));
        }
    }
    let count = u32::try_from(children.len()).expect("a small number");
    let main = compiling(rng, options, MAIN, count);
    Generated { main, children, inputs: inputs(rng) }
}

/// Generates a definition that compiles. Invalid ones are discarded, which must be rare.
fn compiling(rng: &mut fastrand::Rng, options: &Options, name: &str, children: u32) -> String {
    let mut rejected = String::new();
    for _ in 0..5 {
        let size = rng.usize(1..=options.steps).max(rng.usize(1..=options.steps));
        let definition = Writer::new(rng, options, children, size).definition(name);
        let text = if rng.bool() { definition.to_string() } else { yaml(&definition) };
        let loaded = load(&Source::new("definition", text.as_str()));
        if loaded.plan.is_some() {
            return text;
        }
        rejected = format!("{:#?}\n{text}", loaded.diagnostics);
    }
    panic!("five definitions in a row do not compile; the last one:\n{rejected}");
}

/// Generates valid inputs. Inputs with a default may be omitted.
fn inputs(rng: &mut fastrand::Rng) -> Value {
    let word = ["a", "b", "c"][rng.usize(0..3)];
    let mut inputs = json!({ "word": word });
    let optional = [("n", json!(rng.u32(0..10))), ("flag", json!(rng.bool())), ("list", json!([1, 2, 3]))];
    for (name, value) in optional {
        if rng.bool() {
            inputs[name] = value;
        }
    }
    inputs
}

/// The state of the generation of one definition.
struct Writer<'g> {
    rng: &'g mut fastrand::Rng,
    options: &'g Options,
    /// Number of sub-workflows.
    children: u32,
    /// Number of generated steps.
    ids: usize,
    /// Number of steps that may still be generated.
    left: usize,
    /// Names of the items of the enclosing loops.
    loops: Vec<String>,
    /// Whether a loop of the graph form could be endless.
    endless: bool,
}

/// A step whose results can be referenced.
#[derive(Debug, Clone)]
struct Readable {
    id: String,
    output: OutputType,
    /// Whether it has always run, with an output, before a step that can reference it.
    always_set: bool,
    /// Whether it declares its output under a name.
    declares: bool,
}

/// The type of the output of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutputType {
    Map,
    Flag,
    List,
    Number,
    Answer,
    Other,
}

impl<'g> Writer<'g> {
    fn new(rng: &'g mut fastrand::Rng, options: &'g Options, children: u32, left: usize) -> Self {
        Self { rng, options, children, ids: 0, left, loops: Vec::new(), endless: false }
    }

    /// Returns true with a probability in percent.
    fn chance(&mut self, percent: u32) -> bool {
        self.rng.u32(0..100) < percent
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.rng.usize(0..from.len())].clone()
    }

    fn id(&mut self) -> String {
        self.ids += 1;
        format!("s{}", self.ids)
    }

    fn definition(&mut self, name: &str) -> Value {
        let mut definition = json!({
            "name": name,
            "inputs": {
                "n": { "type": "integer", "default": 3 }, "word": "string",
                "flag": { "type": "boolean", "default": false },
                "list": { "type": "array", "default": [1, 2] },
            },
        });
        let seen = if self.chance(35) {
            let (start, steps, seen) = self.graph();
            definition["start"] = start.into();
            definition["steps"] = Value::Object(steps);
            seen
        } else {
            let (steps, seen) = self.list(3, &[], self.left);
            definition["steps"] = steps.into();
            seen
        };
        self.head(&mut definition, &seen);
        definition
    }

    /// Adds the fields of a definition besides its steps.
    fn head(&mut self, definition: &mut Value, seen: &[Readable]) {
        if self.chance(45) {
            definition["output"] = self.arguments(seen);
        }
        if self.options.on_failure && self.chance(25) {
            definition["on_failure"] = self.on_failure(seen);
        }
        if self.options.unknown && self.chance(10) {
            definition["on_uncertain"] = self.pick(&["ask", "retry", "fail", "skip"]).into();
        }
        let limits = self.limits();
        if !limits.is_empty() {
            definition["limits"] = Value::Object(limits);
        }
    }

    fn on_failure(&mut self, seen: &[Readable]) -> Value {
        self.left = self.rng.usize(1..=2);
        let maybe_unset: Vec<Readable> =
            seen.iter().map(|seen| Readable { always_set: false, ..seen.clone() }).collect();
        let (mut steps, _) = self.list(1, &maybe_unset, self.left);
        let id = self.id();
        steps.insert(0, json!({ "id": id, "tool": "demo__tell", "args": { "why": "{{error.kind}}" } }));
        // A list in which a step has `depends_on` is a DAG; this step can start at any time.
        steps.into()
    }

    fn limits(&mut self) -> Map<String, Value> {
        let mut limits = Map::new();
        if self.endless || (self.options.limits && self.chance(20)) {
            limits.insert("loop_visits".into(), self.rng.u32(1..6).into());
        }
        if self.options.limits && self.chance(5) {
            limits.insert("step_runs".into(), self.rng.u32(1..20).into());
        }
        if self.options.limits && self.chance(5) {
            limits.insert("foreach_items".into(), self.rng.u32(1..4).into());
        }
        if self.options.concurrency && self.chance(25) {
            limits.insert("concurrency".into(), self.rng.u32(1..4).into());
        }
        limits
    }
}

/// YAML in block style.
fn yaml(value: &Value) -> String {
    let mut out = String::new();
    write_yaml(value, 0, &mut out);
    out.trim_start().to_owned() + "\n"
}

fn write_yaml(value: &Value, indent: usize, out: &mut String) {
    let pad = "  ".repeat(indent);
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                out.push_str(&format!("\n{pad}{key}:"));
                write_yaml(value, indent + 1, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                out.push_str(&format!("\n{pad}-"));
                write_yaml(item, indent + 1, out);
            }
        }
        Value::String(text) => out.push_str(&format!(" '{}'", text.replace('\'', "''"))),
        scalar => out.push_str(&format!(" {scalar}")),
    }
}
