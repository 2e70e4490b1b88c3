//! Definitions: stored as JSON, compiled on demand and cached.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};
use steprail_core::budget::Budget;
use steprail_core::load;
use steprail_core::plan::{Hash, Kind, Plan};
use steprail_core::run::Millis;
use steprail_core::source::Source;
use steprail_store::{
    Actor, Commit, Definition, DefinitionChange, DefinitionQuery, Expected, NewDefinition, Pins, Refused,
    StoreError, WorkflowPins,
};

use super::batch::Batch;
use super::{AcceptedProposal, Define, DefinitionVersion, Kernel, sub_workflows};
use crate::error::Error;
use crate::limits::CACHED_PLANS;
use crate::ports::ToolCaller;

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
    /// The versions of its sub-workflows.
    pub workflows: WorkflowPins,
    /// The user who wrote it.
    pub author: Box<str>,
    /// Whether an agent stored it.
    pub by_agent: bool,
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
        Self {
            plan,
            version: definition.version,
            id: definition.id,
            pins: definition.pins.clone(),
            workflows: definition.workflows.clone(),
            author: definition.created_by.as_str().into(),
            by_agent: definition.by_agent,
        }
    }

    /// Whether this is the compiled form of a definition. The id of a purged definition can be given to another one.
    pub(super) fn is(&self, definition: &Definition) -> bool {
        self.plan.hash == definition.hash
            && self.pins == definition.pins
            && self.workflows == definition.workflows
            && *self.author == *definition.created_by
            && self.by_agent == definition.by_agent
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
        match self.0.get(&compiled.id).filter(|known| Arc::ptr_eq(known, compiled)) {
            Some(known) => known.clone(),
            None => self.insert(compiled.clone()),
        }
    }

    /// Forgets the versions of a definition whose author changed.
    fn forget(&mut self, name: &str) {
        self.0.retain(|_, known| *known.plan.name != *name);
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
        if define.propose {
            return self.propose(define, now);
        }
        Ok(self.store_definition(define, hidden, now)?.map(|compiled| DefinitionVersion {
            id: compiled.id,
            name: compiled.plan.name.to_string(),
            version: compiled.version,
            hash: compiled.plan.hash,
            proposed: false,
        }))
    }

    /// Stores a proposal, unless the newest version is the same.
    fn propose(
        &mut self,
        define: &Define,
        now: Millis,
    ) -> Result<Result<DefinitionVersion, Error>, StoreError> {
        let (name, hash) = (define.plan.name.to_string(), define.plan.hash);
        let newest = self.batch.definition(DefinitionQuery::Newest(&name))?;
        if let Some(Definition { id, version, .. }) = newest.filter(|newest| newest.hash == hash) {
            return Ok(Ok(DefinitionVersion { id, name, version, hash, proposed: false }));
        }
        let new = match self.new_definition(define, false)? {
            Ok(new) => new,
            Err(error) => return Ok(Err(error)),
        };
        let outbox = self.proposal_notification(&name, &define.by.id).into_iter().collect();
        let definitions = vec![DefinitionChange::Propose(new)];
        let proposed = self.commit_now(&Commit { now, definitions, outbox, ..Commit::default() })?;
        Ok(proposed.map(|_| DefinitionVersion { id: 0, name, version: 0, hash, proposed: true }))
    }

    /// Makes a user the owner and author of a definition.
    pub(super) fn adopt(
        &mut self,
        name: &str,
        expected: Expected,
        by: &Actor,
        now: Millis,
    ) -> Result<Result<(), Error>, StoreError> {
        let change = DefinitionChange::Adopt { name: name.to_owned(), expected, by: by.clone() };
        let adopted = self.commit_definitions(vec![change], now)?;
        self.plans.forget(name);
        self.quotas.purged();
        Ok(adopted.map(drop))
    }

    pub(super) fn store_definition(
        &mut self,
        define: &Define,
        hidden: bool,
        now: Millis,
    ) -> Result<Result<Arc<Compiled>, Error>, StoreError> {
        let new = match self.new_definition(define, hidden)? {
            Ok(new) => new,
            Err(error) => return Ok(Err(error)),
        };
        let is_shown = |shown: &AcceptedProposal| shown.pinned == pins_hash(&new.pins, &new.workflows);
        if !define.accepts.as_ref().is_none_or(is_shown) {
            let message =
                "a tool or a sub-workflow of the proposal has changed since you saw it; look at it again";
            return Ok(Err(Error::Conflict(message.to_owned())));
        }
        let accepted = define.accepts.map(|AcceptedProposal { hash, .. }| {
            let (name, by) = (new.name.clone(), new.by.clone());
            DefinitionChange::CloseProposal { name, hash, accepted: true, by }
        });
        let changes = [DefinitionChange::Put(new)].into_iter().chain(accepted).collect();
        let stored = match self.commit_definitions(changes, now)? {
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

    /// A definition to store, with the tools and the versions of sub-workflows as they are now.
    fn new_definition(
        &mut self,
        define: &Define,
        hidden: bool,
    ) -> Result<Result<NewDefinition, Error>, StoreError> {
        let plan = &define.plan;
        let workflows = match sub_workflows::pins(&mut self.batch, plan, &define.by.id, define.by.agent)? {
            Ok(workflows) => workflows,
            Err(error) => return Ok(Err(error)),
        };
        Ok(Ok(NewDefinition {
            name: plan.name.to_string(),
            hash: plan.hash,
            spec_json: define.spec.clone(),
            by: define.by.clone(),
            hidden,
            published: plan.settings.publish.is_some(),
            pins: tool_pins(&*self.tools, plan),
            workflows,
            expected: define.expected,
            owner: define.owner.clone(),
        }))
    }

    /// Commits changes of definitions together. A failed precondition is an error of the request.
    pub(super) fn commit_definitions(
        &mut self,
        definitions: Vec<DefinitionChange>,
        now: Millis,
    ) -> Result<Result<Option<Definition>, Error>, StoreError> {
        self.commit_now(&Commit { now, definitions, ..Commit::default() })
    }

    fn commit_now(&mut self, commit: &Commit) -> Result<Result<Option<Definition>, Error>, StoreError> {
        match self.batch.store().commit(commit) {
            Ok(mut committed) => {
                self.batch.outbox_committed |= !commit.outbox.is_empty();
                Ok(Ok(committed.definitions.pop()))
            }
            Err(Refused::Conflict(conflict)) => Ok(Err(conflict.into())),
            Err(Refused::Unavailable(error)) => Err(error),
            Err(Refused::Stale(_) | Refused::Held(_) | Refused::Damaged(..)) => {
                Err(StoreError::Other("a definition was refused".to_owned()))
            }
        }
    }
}

/// Hashes of the descriptions of the tools that a definition calls, as far as they are known.
pub(crate) fn tool_pins(tools: &dyn ToolCaller, plan: &Plan) -> Pins {
    let calls = plan.steps.iter().filter_map(|step| match &step.kind {
        Kind::Call(call) => Some(String::from(call.full_name())),
        _ => None,
    });
    calls.filter_map(|tool| tools.pin(&tool).map(|hash| (tool, hash))).collect()
}

/// Hash of the tools and the versions of sub-workflows that a definition is stored with.
pub(crate) fn pins_hash(tools: &Pins, workflows: &WorkflowPins) -> Hash {
    Hash::of(json!([tools, workflows]).to_string().as_bytes())
}
