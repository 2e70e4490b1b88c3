//! Checks the inputs of a run against the declared ones.

use serde_json::{Map, Value};

use super::Plan;
use crate::budget::Budget;

/// Violations that are reported for one input.
const VIOLATIONS: usize = 10;
/// Unknown inputs that are reported.
const UNKNOWN: usize = 10;
/// Known inputs that a message lists.
const KNOWN: usize = 50;

impl Plan {
    /// Fills in defaults and checks inputs against the declared ones. All checks share the budget. The error lists every
    /// problem.
    pub fn check_inputs(&self, given: &Value, budget: &mut Budget) -> Result<Value, String> {
        let Value::Object(given) = given else { return Err("inputs must be a map".to_owned()) };
        let mut problems = Vec::new();
        let mut inputs = Map::new();
        for declared in &self.inputs {
            match given.get(&*declared.name).or(declared.default.as_ref()) {
                Some(value) => drop(inputs.insert(declared.name.to_string(), value.clone())),
                None if declared.required => {
                    problems.push(format!("the input `{}` is missing", declared.name));
                }
                None => {}
            }
        }
        for declared in &self.inputs {
            let Some(value) = inputs.get(&*declared.name) else { continue };
            let violations = declared.schema.check_within(value, VIOLATIONS, budget);
            problems.extend(violations.iter().map(|found| format!("the input `{}`: {found}", declared.name)));
            if budget.is_exhausted() {
                break;
            }
        }
        let known = self.known_inputs();
        for name in given.keys().filter(|name| !inputs.contains_key(*name)).take(UNKNOWN) {
            problems.push(format!("there is no input `{name}`; known: {known}"));
        }
        if problems.is_empty() { Ok(Value::Object(inputs)) } else { Err(problems.join("; ")) }
    }

    fn known_inputs(&self) -> String {
        let shown: Vec<String> =
            self.inputs.iter().take(KNOWN).map(|input| format!("`{}`", input.name)).collect();
        let more = if self.inputs.len() > KNOWN { ", …" } else { "" };
        format!("{}{more}", shown.join(", "))
    }
}
