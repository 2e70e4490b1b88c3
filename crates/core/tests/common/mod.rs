//! A context of values for expression tests.

use std::collections::HashMap;

use serde_json::Value;
use steprail_core::expr::{Context, Problem, Ref, RefPath, Resolve, Root, StepIx};

/// Values by first name: `a.b` reads the key `b` of the value `a`.
#[derive(Default)]
pub(crate) struct Names {
    known: Vec<String>,
    values: HashMap<u32, Value>,
    now: Value,
}

impl Names {
    pub(crate) fn new(values: &Value) -> Self {
        let mut names = Self { now: "2026-11-18T13:00:00Z".into(), ..Self::default() };
        for (name, value) in values.as_object().into_iter().flatten() {
            names.values.insert(u32::try_from(names.known.len()).unwrap(), value.clone());
            names.known.push(name.clone());
        }
        names
    }
}

impl Resolve for Names {
    fn resolve(&mut self, path: RefPath) -> Result<Ref, Problem> {
        let first = path.name(0).unwrap_or_default();
        match self.known.iter().position(|name| name == first) {
            Some(at) => Ok(path.below(Root::Output(StepIx(u32::try_from(at).unwrap())), 1)),
            None => Err(Problem::new(
                steprail_core::diagnostic::Code::UnknownTemplateVar,
                path.at.clone(),
                format!("unknown {first}"),
            )),
        }
    }

    fn records_values(&self) -> bool {
        true
    }
}

impl Context for Names {
    fn value(&self, root: &Root) -> Option<&Value> {
        match root {
            Root::Output(step) => self.values.get(&step.0),
            Root::Now => Some(&self.now),
            _ => None,
        }
    }

    fn uuid(&self) -> Option<String> {
        Some("01234567-89ab-8def-8123-456789abcdef".to_owned())
    }
}
