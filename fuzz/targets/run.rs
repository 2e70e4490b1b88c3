//! The values that expressions are evaluated against. The names `a`, `b-c`, `inputs` and `result` can be resolved.

use serde_json::{Value, json};
use steprail_core::diagnostic::Code;
use steprail_core::expr::{Context, Problem, Ref, RefPath, Resolve, Root, StepIx};

pub struct Run(Value);

impl Run {
    pub fn new() -> Self {
        let list: Vec<Value> = (0..20).map(|n| json!({ "n": n, "ok": n % 2 == 0, "deep": [[[n]], { "x": "y" }] })).collect();
        Self(json!({ "list": list, "text": "{{a}} $a äß", "n": 7, "half": 0.5, "null": null, "yes": true }))
    }
}

impl Resolve for Run {
    fn resolve(&mut self, path: RefPath) -> Result<Ref, Problem> {
        match path.name(0) {
            Some("a" | "b-c" | "inputs" | "result") => Ok(path.below(Root::Output(StepIx(0)), 1)),
            _ => Err(Problem::new(Code::UnknownTemplateVar, path.at.clone(), "unknown")),
        }
    }
}

impl Context for Run {
    fn value(&self, _: &Root) -> Option<&Value> {
        Some(&self.0)
    }
}

/// Asserts that the position of a problem is within the text.
pub fn check(problem: &Problem, text: &str) {
    assert!(problem.at.start <= problem.at.end && problem.at.end <= text.len(), "{problem:?}");
}
