//! Definitions and runs, written as an engine would write them.

use serde_json::Value;
use steprail_core::plan::Hash;
use steprail_core::run::{Event, Payload, Record, Run};
use steprail_store::sqlite::SqliteStore;
use steprail_store::{NewDefinition, NewRun, Principal, RunId, Store};

const SPEC: &str = r#"{"name":"one","steps":[{"id":"a","tool":"demo__a"}]}"#;

/// A run that has begun, in one commit. `more` happens to it in the same commit.
pub(crate) fn begin(store: &mut SqliteStore, number: u128, inputs: Value, more: Vec<Record>) -> RunId {
    store.begin().expect("a transaction");
    let new = NewDefinition {
        name: "one",
        hash: Hash([1; 32]),
        spec_json: SPEC,
        by: "ann",
        now: 1,
        hidden: false,
        published: false,
        pins: &steprail_store::Pins::new(),
    };
    let definition = store.define(&new).expect("a definition");
    let inputs = Payload::new(inputs);
    let principal = Principal::user("ann");
    let id = RunId(uuid::Uuid::from_u128(number));
    let key = store
        .create_run(&NewRun {
            id,
            definition: definition.id,
            principal: &principal,
            inputs: &inputs,
            parent: None,
            rerun: None,
            interruptible: false,
            request_key: None,
            now: 1,
        })
        .expect("a run");
    let mut head = store.head(key).expect("a head");
    let plan = steprail_core::load(&steprail_core::source::Source::new("one", SPEC)).plan.expect("a plan");
    let started = Event::RunStarted {
        definition: "one".into(),
        version: 1,
        hash: Hash([1; 32]),
        by: "ann".into(),
        inputs: inputs.hash(),
        parent: None,
        rerun_of: None,
    };
    let mut run = Run::default();
    let records: Vec<Record> = [Record::plain(started)].into_iter().chain(more).collect();
    records.iter().for_each(|record| run.apply(&plan, &record.event));
    store.append(&mut head, &run, &records, 1).expect("events");
    store.commit().expect("a commit");
    id
}
