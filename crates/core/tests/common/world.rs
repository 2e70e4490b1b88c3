//! A world without a store: one run, whose calls are all admitted.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};
use steprail_core::budget::Budget;
use steprail_core::expr::Ambient;
use steprail_core::limits::SLICE_EVENTS;
use steprail_core::plan::{Hash, Plan, Workflow};
use steprail_core::run::{
    Admission, Annotations, Child, Claim, Claimed, Event, Failure, FailureKind, Input, JudgedCall, Judgement,
    Millis, Payload, Record, Run, Starter, ValueChange, World, WorldError, decide,
};

/// The values of a run, and the plan of the workflow that it can start.
pub(crate) struct Memory {
    pub inputs: Payload,
    pub child: Option<Plan>,
    pub outputs: HashMap<u32, Payload>,
    /// Arguments of calls and items of loops.
    pub items: HashMap<u32, Payload>,
}

impl Memory {
    pub(crate) fn new(inputs: Value) -> Self {
        Self { inputs: Payload::new(inputs), child: None, outputs: HashMap::new(), items: HashMap::new() }
    }

    /// The state of a run that was created.
    pub(crate) fn start(&self, plan: &Plan) -> Run {
        let mut run = Run::default();
        let started = Event::RunStarted {
            definition: plan.name.clone(),
            version: 1,
            hash: plan.hash,
            by: "ann".into(),
            inputs: self.inputs.hash(),
            parent: None,
            rerun_of: None,
            facts: None,
        };
        run.apply(plan, &started);
        run
    }

    /// Begins a run and returns its events, until it waits or ends.
    pub(crate) fn begin(&mut self, plan: &Plan) -> Vec<Record> {
        let mut run = self.start(plan);
        let mut records = self.decide(plan, &mut run, Input::Continue);
        while run.owes_continuation() {
            records.extend(self.decide(plan, &mut run, Input::Continue));
        }
        records
    }

    /// Makes a decision and keeps its values.
    pub(crate) fn decide(&mut self, plan: &Plan, run: &mut Run, input: Input) -> Vec<Record> {
        let records = decide(plan, run, input, SLICE_EVENTS, self).expect("a decision");
        for record in &records {
            let (Some(payload), Some(step)) = (&record.payload, record.event.step()) else { continue };
            match record.event.changes().value {
                Some(ValueChange::StepOutput(_)) => drop(self.outputs.insert(step.n, payload.clone())),
                Some(ValueChange::StepInput(_)) => drop(self.items.insert(step.n, payload.clone())),
                _ => {}
            }
        }
        records
    }
}

/// How the run ended; `None` if it has not.
pub(crate) fn end(records: &[Record]) -> Option<Result<(), Failure>> {
    records.iter().find_map(|record| match &record.event {
        Event::RunCompleted { .. } => Some(Ok(())),
        Event::RunFailed { error } => Some(Err(error.clone())),
        _ => None,
    })
}

impl World for Memory {
    fn now(&self) -> Millis {
        0
    }

    fn random(&mut self) -> f64 {
        0.5
    }

    fn inputs(&mut self) -> Result<Payload, WorldError> {
        Ok(self.inputs.clone())
    }

    fn output(&mut self, n: u32) -> Result<Payload, WorldError> {
        self.outputs.get(&n).cloned().ok_or_else(|| WorldError("no output".to_owned()))
    }

    fn input(&mut self, n: u32) -> Result<Payload, WorldError> {
        self.items.get(&n).cloned().ok_or_else(|| WorldError("no input".to_owned()))
    }

    fn error(&mut self, _: u32) -> Result<Payload, WorldError> {
        Err(WorldError("no error".to_owned()))
    }

    fn event_value(&mut self, _: u64) -> Result<Payload, WorldError> {
        Err(WorldError("no event".to_owned()))
    }

    fn env(&self) -> Arc<Value> {
        Arc::new(json!({}))
    }

    fn ambient(&self, _: Ambient) -> Value {
        Value::Null
    }

    fn starter(&self) -> Starter {
        Starter { user: "ann".into(), agent: false, via: None }
    }

    fn pin(&self, _: &str) -> Option<Hash> {
        None
    }

    fn workflow_hash(&mut self, _: &Workflow) -> Result<Option<Hash>, WorldError> {
        Ok(None)
    }

    fn annotations(&self, _: &str) -> Annotations {
        Annotations::UNANNOTATED
    }

    fn provider(&self) -> Option<Box<str>> {
        None
    }

    fn admit(&mut self, _: &str, _: &str) -> Admission {
        Admission::Granted
    }

    fn release(&mut self) {}

    fn key(&self, path: &str) -> Box<str> {
        path.into()
    }

    fn claim(&mut self, _: &Claim<'_>) -> Result<Claimed, WorldError> {
        Ok(Claimed::Taken)
    }

    fn judge(&mut self, _: &JudgedCall<'_>, _: &mut Budget) -> Result<Judgement, WorldError> {
        Ok(Judgement::Unrestricted)
    }

    fn reuse(&mut self, _: &str, _: Hash) -> Result<Option<Payload>, WorldError> {
        Ok(None)
    }

    fn spawn(
        &mut self,
        child: &Child<'_>,
        budget: &mut Budget,
    ) -> Result<Result<Box<str>, Failure>, WorldError> {
        let Some(plan) = &self.child else { return Err(WorldError("no child".to_owned())) };
        let checked = plan.check_inputs(child.inputs.value(), budget);
        Ok(checked.map(|_| "child".into()).map_err(|problem| Failure::new(FailureKind::Validation, problem)))
    }
}
