//! Values for expressions: resolves references from the scope of a step and reads the values.

use serde_json::Value;

use super::decide::Decision;
use super::parts::ScopeKey;
use super::payload::fits;
use super::state::StepStatus;
use super::{Failure, Payload, WorldError};
use crate::expr::{Condition, Context, EvalError, Root, StepIx, Template, ValueTemplate};

/// The result of an evaluation. The outer error is a failure of the store, the inner one of the expression.
pub(super) type Evaluated<T> = Result<Result<T, Failure>, WorldError>;

/// The values that an expression can read, by root.
#[derive(Default)]
pub(super) struct Bindings(Vec<(Root, Source)>);

enum Source {
    Payload(Payload),
    Item(Payload, u32),
    Field(Payload, &'static str),
    Value(Value),
}

impl Context for Bindings {
    fn value(&self, root: &Root) -> Option<&Value> {
        let source = self.0.iter().find(|(known, _)| known == root).map(|(_, source)| source)?;
        match source {
            Source::Payload(payload) => Some(payload.value()),
            Source::Item(payload, index) => payload.value().get(*index as usize),
            Source::Field(payload, key) => payload.value().get(key),
            Source::Value(value) => Some(value),
        }
    }
}

impl Bindings {
    /// Binds the output of a `verify` call.
    pub(super) fn probe(output: Payload) -> Self {
        Self(vec![(Root::Probe, Source::Payload(output))])
    }
}

impl Decision<'_> {
    pub(super) fn eval(&mut self, scope: ScopeKey, template: &ValueTemplate) -> Evaluated<Value> {
        let bindings = self.bind(scope, Bindings::default(), |visit| template.roots(visit))?;
        let value = template.eval(&bindings).map_err(Failure::from);
        Ok(value.and_then(|value| fits(&value, 0).map(|()| value)))
    }

    pub(super) fn eval_text(&mut self, scope: ScopeKey, template: &Template) -> Evaluated<Value> {
        let bindings = self.bind(scope, Bindings::default(), |visit| template.roots(visit))?;
        Ok(template.eval(&bindings).map(std::borrow::Cow::into_owned).map_err(Failure::from))
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
        let bindings = self.bind(scope, initial, |visit| condition.roots(visit))?;
        Ok(condition.holds(&bindings).map_err(|error: EvalError| Failure::from(error)))
    }

    /// Adds the values of the roots that `visit_roots` reports.
    fn bind(
        &mut self,
        scope: ScopeKey,
        mut bindings: Bindings,
        visit_roots: impl Fn(&mut dyn FnMut(&Root)),
    ) -> Result<Bindings, WorldError> {
        let mut roots: Vec<Root> = Vec::new();
        visit_roots(&mut |root| {
            if !roots.contains(root) {
                roots.push(root.clone());
            }
        });
        for root in roots {
            if let Some(source) = self.source(scope, &root)? {
                bindings.0.push((root, source));
            }
        }
        Ok(bindings)
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
                let status = self.done(scope, *step).map(|(_, status)| status.word());
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
            Root::Probe => None,
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
