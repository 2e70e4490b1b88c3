//! Values for expressions: resolves references from the scope of a step and reads the values.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::decide::Decision;
use super::r#let::{Uuids, time_text};
use super::parts::ScopeKey;
use super::payload::fits;
use super::state::StepStatus;
use super::{Failure, Payload, WorldError};
use crate::budget::Budget;
use crate::budget::value::owned;
use crate::expr::{Condition, Context, EvalError, Root, StepIx, Template, ValueTemplate};
use crate::limits;

/// The cost of finding the value of a root.
const ROOT_COST: usize = 5;

/// The result of an evaluation. The outer error is a failure of the store, the inner one of the expression.
pub(super) type Evaluated<T> = Result<Result<T, Failure>, WorldError>;

/// The values that an expression can read, by root.
#[derive(Default)]
pub(super) struct Bindings {
    sources: HashMap<Root, Source>,
    /// The UUIDs of a `let` step.
    uuids: Option<Uuids>,
}

enum Source {
    Payload(Payload),
    Item(Payload, u32),
    Field(Payload, &'static str),
    Value(Value),
}

impl Source {
    /// The size of the stored value, as JSON.
    fn bytes(&self) -> usize {
        match self {
            Self::Payload(payload) | Self::Item(payload, _) | Self::Field(payload, _) => payload.json().len(),
            Self::Value(_) => 0,
        }
    }
}

impl Context for Bindings {
    fn value(&self, root: &Root) -> Option<&Value> {
        match self.sources.get(root)? {
            Source::Payload(payload) => Some(payload.value()),
            Source::Item(payload, index) => payload.value().get(*index as usize),
            Source::Field(payload, key) => payload.value().get(key),
            Source::Value(value) => Some(value),
        }
    }

    fn uuid(&self) -> Option<String> {
        self.uuids.as_ref().map(Uuids::next)
    }
}

impl Bindings {
    /// Binds the output of a `verify` call.
    pub(super) fn probe(output: Payload) -> Self {
        let sources = HashMap::from([(Root::Probe, Source::Payload(output))]);
        Self { sources, uuids: None }
    }

    /// Values of a `let` step, which can make UUIDs.
    pub(super) fn with_uuids(uuids: Uuids) -> Self {
        Self { sources: HashMap::new(), uuids: Some(uuids) }
    }

    pub(super) fn insert(&mut self, root: Root, value: Value) {
        self.sources.insert(root, Source::Value(value));
    }

    /// Removes a value that was inserted.
    pub(super) fn take(&mut self, root: &Root) -> Option<Value> {
        match self.sources.remove(root)? {
            Source::Value(value) => Some(value),
            Source::Payload(_) | Source::Item(..) | Source::Field(..) => None,
        }
    }
}

impl Decision<'_> {
    pub(super) fn eval(&mut self, scope: ScopeKey, template: &ValueTemplate) -> Evaluated<Value> {
        let bindings = match self.bind(scope, Bindings::default(), |visit| template.roots(visit))? {
            Ok(bindings) => bindings,
            Err(error) => return Ok(Err(error)),
        };
        let value = self.within_budget(|budget| template.eval(&bindings, budget));
        Ok(value.and_then(|value| fits(&value, 0).map(|()| value)))
    }

    pub(super) fn eval_text(&mut self, scope: ScopeKey, template: &Template) -> Evaluated<Value> {
        self.eval_text_with(scope, template, Bindings::default())
    }

    pub(super) fn eval_text_with(
        &mut self,
        scope: ScopeKey,
        template: &Template,
        initial: Bindings,
    ) -> Evaluated<Value> {
        let bindings = match self.bind(scope, initial, |visit| template.roots(visit))? {
            Ok(bindings) => bindings,
            Err(error) => return Ok(Err(error)),
        };
        Ok(self.within_budget(|budget| Ok(owned(template.eval(&bindings, budget)?, budget)?)))
    }

    pub(super) fn holds(&mut self, scope: ScopeKey, condition: &Condition) -> Evaluated<bool> {
        self.holds_with(scope, condition, Bindings::default())
    }

    pub(super) fn holds_with(
        &mut self,
        scope: ScopeKey,
        condition: &Condition,
        initial: Bindings,
    ) -> Evaluated<bool> {
        let bindings = match self.bind(scope, initial, |visit| condition.roots(visit))? {
            Ok(bindings) => bindings,
            Err(error) => return Ok(Err(error)),
        };
        Ok(self.within_budget(|budget| condition.holds(&bindings, budget)))
    }

    /// Evaluates within the budget of one evaluation, and charges the cost to the decision.
    pub(super) fn within_budget<T>(
        &mut self,
        eval: impl FnOnce(&mut Budget) -> Result<T, EvalError>,
    ) -> Result<T, Failure> {
        let mut part = self.budget.part();
        let result = eval(&mut part);
        self.budget.settle(&part);
        result.map_err(Failure::from)
    }

    /// Adds the values of the roots that `visit_roots` reports.
    pub(super) fn bind(
        &mut self,
        scope: ScopeKey,
        mut bindings: Bindings,
        visit_roots: impl Fn(&mut dyn FnMut(&Root)),
    ) -> Evaluated<Bindings> {
        let (mut roots, mut seen, mut visited) = (Vec::new(), HashSet::new(), 0);
        visit_roots(&mut |root| {
            visited += 1;
            if seen.insert(root.clone()) {
                roots.push(root.clone());
            }
        });
        if let Err(exhausted) = self.budget.charge(visited + ROOT_COST * roots.len()) {
            return Ok(Err(EvalError::from(exhausted).into()));
        }
        let mut bytes = 0;
        for root in roots {
            if let Some(source) = self.source(scope, &root)? {
                bytes += source.bytes();
                bindings.sources.insert(root, source);
            }
            if bytes > limits::EVALUATION_BYTES {
                let limit = limits::EVALUATION_BYTES;
                let message =
                    format!("the values that the evaluation reads exceed the limit of {limit} bytes");
                return Ok(Err(Failure::limit(message)));
            }
        }
        Ok(Ok(bindings))
    }

    fn source(&mut self, scope: ScopeKey, root: &Root) -> Result<Option<Source>, WorldError> {
        Ok(match root {
            Root::Inputs => Some(Source::Payload(match self.run.overrides.get(&None).copied() {
                Some(seq) => self.event_value(seq)?,
                None => self.world.inputs()?,
            })),
            Root::Output(step) => self.output_of(scope, *step)?.map(Source::Payload),
            Root::FileRefs(step) => {
                self.output_of(scope, *step)?.map(|output| Source::Field(output, "file_refs"))
            }
            Root::Status(step) => {
                let status = self.done(scope, *step).map(|(_, status)| status.name());
                status.map(|word| Source::Value(word.into()))
            }
            Root::Error(step) => match self.done(scope, *step) {
                Some((n, StepStatus::Failed)) => Some(Source::Payload(self.error(n)?)),
                Some(_) => Some(Source::Value(Value::Null)),
                None => None,
            },
            Root::Item(step) => match self.item(scope, *step) {
                Some(key) => Some(Source::Item(self.input(key.n)?, key.index)),
                None => None,
            },
            Root::Env => Some(Source::Value((*self.world.env()).clone())),
            Root::Ambient(what) => Some(Source::Value(self.world.ambient(*what))),
            Root::Failure => self.run.failing.as_ref().map(|error| Source::Value(serde_json::json!(error))),
            Root::Probe | Root::Call(_) | Root::Variable(_) | Root::Let(_) => None,
            Root::Now => Some(Source::Value(time_text(self.now()))),
        })
    }

    /// Returns the output of a step as visible from a scope; null if the step ended without one.
    fn output_of(&mut self, scope: ScopeKey, step: StepIx) -> Result<Option<Payload>, WorldError> {
        if let Some(seq) = self.run.overrides.get(&Some(step)).copied() {
            return self.event_value(seq).map(Some);
        }
        match self.done(scope, step) {
            Some((n, StepStatus::Done)) => self.output(n).map(Some),
            Some(_) => Ok(Some(Payload::default())),
            None => Ok(None),
        }
    }

    /// Returns how a step ended. Searches the scope and the enclosing ones.
    fn done(&self, mut scope: ScopeKey, step: StepIx) -> Option<(u32, StepStatus)> {
        loop {
            let found = self.run.scopes.get(&scope).and_then(|scope| scope.done.get(&step));
            if let Some(done) = found {
                return Some((done.n, done.status));
            }
            scope = self.enclosing(scope)?;
        }
    }

    /// Whether a step has ended, as visible from a scope.
    pub(super) fn has_ended(&self, scope: ScopeKey, step: StepIx) -> bool {
        self.done(scope, step).is_some()
    }

    /// Whether a scope is inside an item of a `foreach` step.
    pub(super) fn is_item(&self, scope: ScopeKey, step: StepIx) -> bool {
        self.item(scope, step).is_some()
    }

    /// Returns the scope of the current item of a `foreach` step.
    fn item(&self, mut scope: ScopeKey, step: StepIx) -> Option<ScopeKey> {
        loop {
            if self.run.live.get(&scope.n).is_some_and(|live| live.step == step) {
                return Some(scope);
            }
            scope = self.enclosing(scope)?;
        }
    }

    fn enclosing(&self, scope: ScopeKey) -> Option<ScopeKey> {
        match scope {
            ScopeKey::ROOT => None,
            ScopeKey::FAILURE => Some(ScopeKey::ROOT),
            _ => self.run.live.get(&scope.n).map(|live| live.scope),
        }
    }

    /// Returns the output of an execution, from this decision or the store.
    pub(super) fn output(&mut self, n: u32) -> Result<Payload, WorldError> {
        match self.outputs.get(&n) {
            Some(payload) => Ok(payload.clone()),
            None => self.world.output(n),
        }
    }

    /// Returns the input of an execution, from this decision or the store.
    pub(super) fn input(&mut self, n: u32) -> Result<Payload, WorldError> {
        match self.inputs.get(&n) {
            Some(payload) => Ok(payload.clone()),
            None => self.world.input(n),
        }
    }

    fn error(&mut self, n: u32) -> Result<Payload, WorldError> {
        let recorded = self.records.iter().rev().find_map(|record| {
            let change = record.event.changes().step.filter(|change| change.step.n == n && change.ends())?;
            change.error
        });
        match recorded {
            Some(error) => Ok(Payload::new(serde_json::json!(error))),
            None => self.world.error(n),
        }
    }

    /// Returns the value that is stored in an event, from this decision or the log.
    pub(super) fn event_value(&mut self, seq: u64) -> Result<Payload, WorldError> {
        let committed = self.run.seq - self.records.len() as u64;
        let recorded =
            seq.checked_sub(committed + 1).and_then(|at| self.records.get(usize::try_from(at).ok()?));
        match recorded.and_then(|record| record.event.changes().run.inline) {
            Some(value) => Ok(Payload::new(value.clone())),
            None => self.world.event_value(seq),
        }
    }
}
