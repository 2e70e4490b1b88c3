//! Definitions and runs, written as an engine would write them.

use serde_json::Value;
use std::sync::Arc;
use steprail_core::plan::Hash;
use steprail_core::run::{Event, Payload, Record, Run, RunStatus};
use steprail_store::{
    Commit, DefinitionChange, Expected, NewDefinition, NewRun, Principal, RunCommit, RunId, RunState, Store,
};

const SPEC: &str = r#"{"name":"one","steps":[{"id":"a","tool":"demo__a"}]}"#;

/// A definition called `one`.
pub(crate) fn definition() -> NewDefinition {
    NewDefinition {
        name: "one".to_owned(),
        hash: Hash([1; 32]),
        spec_json: SPEC.into(),
        by: steprail_store::Actor::user("ann"),
        hidden: false,
        published: false,
        pins: steprail_store::Pins::new(),
        workflows: steprail_store::WorkflowPins::new(),
        expected: Expected::Any,
        owner: None,
    }
}

/// The first decision of a run, which `more` events follow.
pub(crate) fn first_decision(definition: i64, id: RunId, inputs: Value, more: Vec<Record>) -> RunCommit {
    let inputs = Payload::new(inputs);
    let plan = steprail_core::load(&steprail_core::source::Source::new("one", SPEC)).plan.expect("a plan");
    let new = NewRun {
        definition,
        principal: Arc::new(Principal::user("ann")),
        inputs: inputs.clone(),
        parent: None,
        rerun: None,
        interruptible: false,
        request_key: None,
    };
    let started = Event::RunStarted {
        definition: "one".into(),
        version: 1,
        hash: Hash([1; 32]),
        by: "ann".into(),
        inputs: inputs.hash(),
        parent: None,
        rerun_of: None,
        facts: Some(steprail_store::new_run_facts(&new).expect("facts")),
    };
    let mut run = Run::default();
    let records: Vec<Record> = [Record::plain(started)].into_iter().chain(more).collect();
    records.iter().for_each(|record| run.apply(&plan, &record.event));
    RunCommit {
        run: id,
        expected_seq: 0,
        new: Some(Box::new(new)),
        records,
        before: RunState { status: RunStatus::Pending, active: false },
        after: RunState { status: run.status(), active: false },
        claims: Vec::new(),
        stored_bytes: 0,
    }
}

/// A run that has begun. `more` happens to it in the same commit.
#[allow(dead_code, reason = "not every test binary uses it")]
pub(crate) fn begin(store: &mut impl Store, number: u128, inputs: Value, more: Vec<Record>) -> RunId {
    let definitions = vec![DefinitionChange::Put(definition())];
    let stored = store.commit(&Commit { now: 1, definitions, ..Commit::default() }).expect("a definition");
    let id = RunId(uuid::Uuid::from_u128(number));
    let runs = vec![first_decision(stored.definitions[0].id, id, inputs, more)];
    store.commit(&Commit { now: 1, runs, ..Commit::default() }).expect("a run");
    id
}

#[allow(dead_code, reason = "not every test binary uses it")]
/// A further decision of a run, which moves it from one status to another.
pub(crate) fn decide(
    store: &mut (impl Store + ?Sized),
    run: RunId,
    seq: u64,
    states: [RunStatus; 2],
    record: Record,
) {
    let [before, after] = states.map(|status| RunState { status, active: false });
    let decision = RunCommit {
        run,
        expected_seq: seq,
        new: None,
        records: vec![record],
        before,
        after,
        claims: Vec::new(),
        stored_bytes: 0,
    };
    store.commit(&Commit { now: 2, runs: vec![decision], ..Commit::default() }).expect("a decision");
}
