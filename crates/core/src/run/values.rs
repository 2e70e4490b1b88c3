//! The values that expressions read: found from where a step stands, fetched, and put under their names.

use serde_json::Value;

use super::decide::Decision;
use super::event::Event;
use super::parts::ScopeKey;
use super::payload::fits;
use super::state::StepStatus;
use super::{Failure, Payload, WorldError};
use crate::expr::{Condition, Context, EvalError, Root, StepIx, Template, ValueTemplate};

/// The result of evaluating: the store may not answer, and the expression may have no value.
pub(super) type Evaluated<T> = Result<Result<T, Failure>, WorldError>;

/// The values that one expression may read.
#[derive(Default)]
pub(super) struct Fetched(Vec<(Root, Source)>);

enum Source {
    Payload(Payload),
    Item(Payload, u32),
    Field(Payload, &'static str),
    Value(Value),
}

impl Context for Fetched {
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

impl Fetched {
    /// With the answer of a `verify` call.
    pub(super) fn probe(answer: Payload) -> Self {
        Self(vec![(Root::Probe, Source::Payload(answer))])
    }
}

impl Decision<'_> {
    pub(super) fn eval(&mut self, scope: ScopeKey, template: &ValueTemplate) -> Evaluated<Value> {
        let fetched = self.fetch(scope, Fetched::default(), |visit| template.roots(visit))?;
        let value = template.eval(&fetched).map_err(Failure::from);
        Ok(value.and_then(|value| fits(&value, 0).map(|()| value)))
    }

    /// The value of a text.
    pub(super) fn eval_text(&mut self, scope: ScopeKey, template: &Template) -> Evaluated<Value> {
        let fetched = self.fetch(scope, Fetched::default(), |visit| template.roots(visit))?;
        Ok(template.eval(&fetched).map(std::borrow::Cow::into_owned).map_err(Failure::from))
    }

    pub(super) fn holds(&mut self, scope: ScopeKey, condition: &Condition) -> Evaluated<bool> {
        self.holds_with(scope, condition, Fetched::default())
    }

    pub(super) fn holds_with(
        &mut self,
        scope: ScopeKey,
        condition: &Condition,
        known: Fetched,
    ) -> Evaluated<bool> {
        let fetched = self.fetch(scope, known, |visit| condition.roots(visit))?;
        Ok(condition.holds(&fetched).map_err(|error: EvalError| Failure::from(error)))
    }

    fn fetch(
        &mut self,
        scope: ScopeKey,
        mut fetched: Fetched,
        roots: impl Fn(&mut dyn FnMut(&Root)),
    ) -> Result<Fetched, WorldError> {
        let mut wanted: Vec<Root> = Vec::new();
        roots(&mut |root| {
            if !wanted.contains(root) {
                wanted.push(root.clone());
            }
        });
        for root in wanted {
            if let Some(source) = self.source(scope, &root)? {
                fetched.0.push((root, source));
            }
        }
        Ok(fetched)
    }

    fn source(&mut self, scope: ScopeKey, root: &Root) -> Result<Option<Source>, WorldError> {
        Ok(match root {
            Root::Inputs => Some(Source::Payload(match self.run.sets.get(&None).copied() {
                Some(seq) => self.noted(seq)?,
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

    /// What a step gave, as it can be read from a place; null if it gave nothing.
    fn output_of(&mut self, scope: ScopeKey, step: StepIx) -> Result<Option<Payload>, WorldError> {
        if let Some(seq) = self.run.sets.get(&Some(step)).copied() {
            return self.noted(seq).map(Some);
        }
        match self.done(scope, step) {
            Some((n, StepStatus::Done)) => self.output(n).map(Some),
            Some(_) => Ok(Some(Payload::default())),
            None => Ok(None),
        }
    }

    /// How a step ended, looked for in the block and in those around it.
    fn done(&self, mut scope: ScopeKey, step: StepIx) -> Option<(u32, StepStatus)> {
        loop {
            let found = self.run.scopes.get(&scope).and_then(|scope| scope.done.get(&step));
            if let Some(done) = found {
                return Some((done.n, done.status));
            }
            scope = self.around(scope)?;
        }
    }

    /// The block of a loop's item around a place.
    fn item(&self, mut scope: ScopeKey, step: StepIx) -> Option<ScopeKey> {
        loop {
            if self.run.live.get(&scope.n).is_some_and(|live| live.step == step) {
                return Some(scope);
            }
            scope = self.around(scope)?;
        }
    }

    fn around(&self, scope: ScopeKey) -> Option<ScopeKey> {
        match scope {
            ScopeKey::ROOT => None,
            ScopeKey::FAILURE => Some(ScopeKey::ROOT),
            _ => self.run.live.get(&scope.n).map(|live| live.scope),
        }
    }

    /// What an execution gave: in this decision, or before.
    pub(super) fn output(&mut self, n: u32) -> Result<Payload, WorldError> {
        match self.outputs.get(&n) {
            Some(payload) => Ok(payload.clone()),
            None => self.world.output(n),
        }
    }

    /// What an execution was given: in this decision, or before.
    pub(super) fn input(&mut self, n: u32) -> Result<Payload, WorldError> {
        match self.inputs.get(&n) {
            Some(payload) => Ok(payload.clone()),
            None => self.world.input(n),
        }
    }

    fn error(&mut self, n: u32) -> Result<Payload, WorldError> {
        let recorded = self.records.iter().rev().find_map(|record| match &record.event {
            Event::StepFailed { step, error } if step.n == n => Some(error),
            _ => None,
        });
        match recorded {
            Some(error) => Ok(Payload::new(serde_json::json!(error))),
            None => self.world.error(n),
        }
    }

    /// The value that an event carries, of this decision or of the log.
    pub(super) fn noted(&mut self, seq: u64) -> Result<Payload, WorldError> {
        let committed = self.run.seq - self.records.len() as u64;
        let recorded =
            seq.checked_sub(committed + 1).and_then(|at| self.records.get(usize::try_from(at).ok()?));
        match recorded.map(|record| &record.event) {
            Some(
                Event::SignalReceived { payload: value, .. }
                | Event::ArgumentsEdited { args: value, .. }
                | Event::ValueSet { value, .. },
            ) => Ok(Payload::new(value.clone())),
            _ => self.world.noted(seq),
        }
    }
}
