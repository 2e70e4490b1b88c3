//! Definitions: stored as JSON, compiled on demand and cached.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use steprail_core::diagnostic::Severity;
use steprail_core::load;
use steprail_core::plan::{Kind, Plan};
use steprail_core::run::Millis;
use steprail_core::source::Source;
use steprail_store::{Definition, NewDefinition, Pins, Store, StoreError};

use super::{DefinitionVersion, Kernel};
use crate::error::Error;
use crate::limits::CACHED_PLANS;

/// Problems that are reported for one input.
const INPUT_PROBLEMS: usize = 10;

/// A definition ready to run.
pub struct Compiled {
    /// Its plan.
    pub plan: Plan,
    /// Its version.
    pub version: u32,
    /// Its number in the store.
    pub id: i64,
    /// What its tools were like when it was stored.
    pub pins: Pins,
}

impl Compiled {
    fn new(definition: &Definition) -> Result<Self, StoreError> {
        let loaded = load(&Source::new(format!("{}.json", definition.name), &*definition.spec_json));
        let Some(plan) = loaded.plan else {
            let message = loaded.diagnostics.first().map_or("it is empty", |first| &first.message);
            return Err(StoreError::Corrupt(format!(
                "version {} of `{}` no longer compiles: {message}",
                definition.version, definition.name
            )));
        };
        if plan.hash != definition.hash {
            let Definition { version, name, .. } = definition;
            return Err(StoreError::Corrupt(format!("version {version} of `{name}` was changed")));
        }
        let pins = definition.pins.clone();
        Ok(Self { plan, version: definition.version, id: definition.id, pins })
    }

    /// Fills in defaults and checks inputs against what the definition declares. Every problem is told.
    pub fn check_inputs(&self, given: &Value) -> Result<Value, String> {
        let Value::Object(given) = given else { return Err("inputs are a map".to_owned()) };
        let mut problems = Vec::new();
        let mut inputs = Map::new();
        for declared in &self.plan.inputs {
            match given.get(&*declared.name).or(declared.default.as_ref()) {
                Some(value) => drop(inputs.insert(declared.name.to_string(), value.clone())),
                None if declared.required => {
                    problems.push(format!("the input `{}` is missing", declared.name));
                }
                None => {}
            }
        }
        for declared in &self.plan.inputs {
            let Some(value) = inputs.get(&*declared.name) else { continue };
            let violations = declared.schema.check(value, INPUT_PROBLEMS);
            problems.extend(violations.iter().map(|found| format!("the input `{}`: {found}", declared.name)));
        }
        for name in given.keys().filter(|name| !inputs.contains_key(*name)) {
            let known: Vec<String> =
                self.plan.inputs.iter().map(|input| format!("`{}`", input.name)).collect();
            problems.push(format!("there is no input `{name}`; known: {}", known.join(", ")));
        }
        if problems.is_empty() { Ok(Value::Object(inputs)) } else { Err(problems.join("; ")) }
    }
}

/// Compiled definitions by their numbers.
#[derive(Default)]
pub(super) struct Plans(HashMap<i64, Arc<Compiled>>);

impl Plans {
    /// More may be known about the tools of a version than when it was compiled.
    fn forget_unless(&mut self, id: i64, pins: &Pins) {
        if self.0.get(&id).is_some_and(|known| known.pins != *pins) {
            self.0.remove(&id);
        }
    }

    pub(super) fn get(&mut self, store: &mut dyn Store, id: i64) -> Result<Arc<Compiled>, StoreError> {
        if let Some(known) = self.0.get(&id) {
            return Ok(known.clone());
        }
        let definition = store.definition(id)?;
        let definition = definition.ok_or_else(|| StoreError::Corrupt(format!("definition {id} is gone")))?;
        let compiled = Arc::new(Compiled::new(&definition)?);
        if self.0.len() >= CACHED_PLANS {
            self.0.retain(|_, known| Arc::strong_count(known) > 1);
        }
        self.0.insert(id, compiled.clone());
        Ok(compiled)
    }
}

impl Kernel {
    /// Stores a definition, given as canonical JSON.
    pub(super) fn define(
        &mut self,
        spec: &str,
        source: &str,
        by: &str,
        hidden: bool,
        now: Millis,
    ) -> Result<Result<DefinitionVersion, Error>, StoreError> {
        let loaded = load(&Source::new(source, spec));
        let Some(plan) = loaded.plan else {
            let errors = loaded.diagnostics.into_iter();
            let errors = errors.filter(|diagnostic| diagnostic.code.severity() == Severity::Error).collect();
            return Ok(Err(Error::Invalid(errors)));
        };
        let new = NewDefinition {
            name: &plan.name,
            hash: plan.hash,
            spec_json: spec,
            by,
            now,
            hidden,
            published: plan.settings.publish.is_some(),
            pins: &self.pins(&plan),
        };
        let stored = self.store.define(&new)?;
        self.plans.forget_unless(stored.id, &stored.pins);
        Ok(Ok(DefinitionVersion {
            id: stored.id,
            name: stored.name,
            version: stored.version,
            hash: stored.hash,
        }))
    }

    /// What is known now about the tools that a definition calls.
    fn pins(&self, plan: &Plan) -> Pins {
        let calls = plan.steps.iter().filter_map(|step| match &step.kind {
            Kind::Call(call) => Some(String::from(call.full_name())),
            _ => None,
        });
        calls.filter_map(|tool| self.tools.pin(&tool).map(|hash| (tool, hash))).collect()
    }
}
