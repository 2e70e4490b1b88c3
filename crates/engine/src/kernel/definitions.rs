//! Definitions: stored as JSON, compiled on demand and cached.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;
use steprail_core::budget::Budget;
use steprail_core::load;
use steprail_core::plan::{Kind, Plan};
use steprail_core::run::Millis;
use steprail_core::source::Source;
use steprail_store::{
    Commit, Definition, DefinitionChange, DefinitionQuery, NewDefinition, Pins, Refused, StoreError,
};

use super::batch::Batch;
use super::{Define, DefinitionVersion, Kernel};
use crate::error::Error;
use crate::limits::CACHED_PLANS;

/// A definition ready to run.
#[derive(Debug)]
pub struct Compiled {
    /// Its plan.
    pub plan: Arc<Plan>,
    /// Its version.
    pub version: u32,
    /// Its id in the store.
    pub id: i64,
    /// Hashes of the descriptions of its tools when it was stored.
    pub pins: Pins,
}

impl Compiled {
    pub(crate) fn new(definition: &Definition) -> Result<Self, StoreError> {
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
        Ok(Self::with_plan(definition, Arc::new(plan)))
    }

    fn with_plan(definition: &Definition, plan: Arc<Plan>) -> Self {
        Self { plan, version: definition.version, id: definition.id, pins: definition.pins.clone() }
    }

    /// Whether this is the compiled form of a definition. The id of a purged definition can be given to another one.
    fn is(&self, definition: &Definition) -> bool {
        self.plan.hash == definition.hash && self.pins == definition.pins
    }

    /// Fills in defaults and checks inputs against the declarations. The error lists every problem.
    pub fn check_inputs(&self, given: &Value) -> Result<Value, String> {
        self.plan.check_inputs(given, &mut Budget::check(given))
    }
}

/// Compiled definitions by their ids.
#[derive(Default)]
pub(super) struct Plans(HashMap<i64, Arc<Compiled>>);

impl Plans {
    /// The compiled definition with an id.
    pub(super) fn get(&mut self, batch: &mut Batch, id: i64) -> Result<Arc<Compiled>, StoreError> {
        if let Some(known) = self.0.get(&id) {
            return Ok(known.clone());
        }
        let definition = batch.definition(DefinitionQuery::Id(id))?;
        self.of(&definition.ok_or_else(|| StoreError::Corrupt(format!("definition {id} is missing")))?)
    }

    /// The compiled form of a definition.
    pub(super) fn of(&mut self, definition: &Definition) -> Result<Arc<Compiled>, StoreError> {
        match self.0.get(&definition.id).filter(|known| known.is(definition)) {
            Some(known) => Ok(known.clone()),
            None => Ok(self.keep(Compiled::new(definition)?)),
        }
    }

    /// Keeps a definition that a caller has compiled.
    pub(super) fn share(&mut self, compiled: &Arc<Compiled>) -> Arc<Compiled> {
        match self.0.get(&compiled.id).filter(|known| known.pins == compiled.pins) {
            Some(known) => known.clone(),
            None => self.insert(compiled.clone()),
        }
    }

    /// Caches a definition that was compiled elsewhere.
    fn keep(&mut self, compiled: Compiled) -> Arc<Compiled> {
        self.insert(Arc::new(compiled))
    }

    fn insert(&mut self, compiled: Arc<Compiled>) -> Arc<Compiled> {
        if self.0.len() >= CACHED_PLANS {
            self.0.retain(|_, known| Arc::strong_count(known) > 1);
        }
        self.0.insert(compiled.id, compiled.clone());
        compiled
    }
}

impl Kernel {
    /// Stores a definition in its own commit, so that the rest of the batch knows its id and version.
    pub(super) fn define(
        &mut self,
        define: &Define,
        hidden: bool,
        now: Millis,
    ) -> Result<Result<DefinitionVersion, Error>, StoreError> {
        Ok(self.store_definition(define, hidden, now)?.map(|compiled| DefinitionVersion {
            id: compiled.id,
            name: compiled.plan.name.to_string(),
            version: compiled.version,
            hash: compiled.plan.hash,
        }))
    }

    pub(super) fn store_definition(
        &mut self,
        define: &Define,
        hidden: bool,
        now: Millis,
    ) -> Result<Result<Arc<Compiled>, Error>, StoreError> {
        let plan = &define.plan;
        let new = NewDefinition {
            name: plan.name.to_string(),
            hash: plan.hash,
            spec_json: define.spec.clone(),
            by: define.by.clone(),
            hidden,
            published: plan.settings.publish.is_some(),
            pins: self.pins(plan),
            expected: define.expected,
            owner: define.owner.clone(),
        };
        let stored = match self.commit_definition(DefinitionChange::Put(new), now)? {
            Ok(stored) => stored,
            Err(error) => return Ok(Err(error)),
        };
        let Some(stored) = stored else {
            return Err(StoreError::Other("a definition was not stored".to_owned()));
        };
        let known = self.plans.0.get(&stored.id).filter(|known| known.is(&stored));
        Ok(Ok(match known {
            Some(known) => known.clone(),
            None => self.plans.keep(Compiled::with_plan(&stored, define.plan.clone())),
        }))
    }

    /// Commits a change of definitions. A failed precondition is an error of the request.
    pub(super) fn commit_definition(
        &mut self,
        change: DefinitionChange,
        now: Millis,
    ) -> Result<Result<Option<Definition>, Error>, StoreError> {
        let commit = Commit { now, definitions: vec![change], ..Commit::default() };
        match self.batch.store().commit(&commit) {
            Ok(mut committed) => Ok(Ok(committed.definitions.pop())),
            Err(Refused::Conflict(conflict)) => Ok(Err(conflict.into())),
            Err(Refused::Unavailable(error)) => Err(error),
            Err(Refused::Stale(_) | Refused::Held(_) | Refused::Damaged(..)) => {
                Err(StoreError::Other("a definition was refused".to_owned()))
            }
        }
    }

    /// Hashes of the descriptions of the tools that a definition calls, as far as they are known.
    fn pins(&self, plan: &Plan) -> Pins {
        let calls = plan.steps.iter().filter_map(|step| match &step.kind {
            Kind::Call(call) => Some(String::from(call.full_name())),
            _ => None,
        });
        calls.filter_map(|tool| self.tools.pin(&tool).map(|hash| (tool, hash))).collect()
    }
}
