//! One run with many transitions leaves room for others: commits are bounded, and continuations are not starved.

mod common;

use std::sync::{Arc, Mutex};

use common::shared::Shared;
use common::{Bench, NoTools};
use serde_json::{Value, json};
use steprail_engine::kernel::{Command, Handled};
use steprail_engine::{Limits, RunId, RunStatus};
use steprail_store::sqlite::SqliteStore;

const SMALL: &str = "name: small\nsteps:\n  - { id: one, kind: pass }\n";

const EACH: &str = "
name: each
inputs: { items: { type: array } }
steps:
  - id: all
    kind: foreach
    items: '{{inputs.items}}'
    as: item
    concurrency: 256
    steps:
      - STEP
";

/// A kernel whose runs continue only when the test says so.
fn bench(step: &str, limits: Limits) -> Bench {
    let store = Arc::new(Mutex::new(SqliteStore::in_memory().expect("a database")));
    let mut bench = Bench::new(Box::new(Shared::new(store)), NoTools::default(), limits, 1);
    bench.define(SMALL);
    bench.define(&EACH.replace("STEP", step));
    bench.by_hand = true;
    bench
}

fn items(count: usize) -> Value {
    json!({ "items": (0..count).collect::<Vec<_>>() })
}

fn status(bench: &mut Bench, run: RunId) -> RunStatus {
    bench.kernel().inspect(run).expect("a store").expect("a run").status()
}

/// The number of events of each commit until no run owes a continuation.
fn continue_all(bench: &mut Bench) -> Vec<u32> {
    let mut sizes = Vec::new();
    while bench.kernel().owes_continuation() {
        sizes.push(events(&bench.commit(Vec::new())));
    }
    sizes
}

fn events(handled: &Handled) -> u32 {
    assert!(handled.fault.is_none(), "{:?}", handled.fault);
    handled.stats.events()
}

/// The events that one commit may have: four slices, and a few events per decision beyond its limit.
const COMMIT: u32 = 4 * 256 + 64;

#[test]
fn other_run_ends_while_a_foreach_continues() {
    let mut bench = bench("{ id: one, kind: pass }", Limits::default());
    let (large, _, handled) = bench.start("each", items(5_000));
    assert!((1..=COMMIT).contains(&events(&handled)), "{}", events(&handled));
    let (small, _, _) = bench.start("small", json!({}));
    assert_eq!(status(&mut bench, small), RunStatus::Completed);
    assert_eq!(status(&mut bench, large), RunStatus::Running);
    let sizes = continue_all(&mut bench);
    assert!(sizes.iter().all(|size| *size <= COMMIT), "{sizes:?}");
    assert_eq!(status(&mut bench, large), RunStatus::Completed);
    let output = bench.kernel().result(large).expect("a store").expect("an output");
    assert_eq!(output.value().as_array().map(Vec::len), Some(5_000));
}

#[test]
fn cancellation_of_many_steps_leaves_room_for_other_runs() {
    let branches: Vec<String> = (0..20).map(|n| format!("[{{ id: w{n}, kind: wait, event: e }}]")).collect();
    let step = format!("{{ id: split, kind: parallel, branches: [{}] }}", branches.join(", "));
    let mut bench = bench(&step, Limits::default());
    let (large, _, _) = bench.start("each", items(256));
    continue_all(&mut bench);
    let cancel = Command::Cancel { run: large, by: "ann".to_owned(), reason: "enough".to_owned() };
    let (answer, _) = bench.command(cancel);
    assert!(matches!(answer, Some(Ok(()))), "{answer:?}");
    assert_eq!(status(&mut bench, large), RunStatus::Running);
    let (small, _, handled) = bench.start("small", json!({}));
    assert_eq!(status(&mut bench, small), RunStatus::Completed);
    assert!(events(&handled) <= COMMIT);
    let sizes = continue_all(&mut bench);
    assert!(sizes.len() > 2 && sizes.iter().all(|size| *size <= COMMIT), "{sizes:?}");
    assert_eq!(status(&mut bench, large), RunStatus::Cancelled);
}

#[test]
fn requests_do_not_starve_continuations() {
    let limits = Limits { slice_events: 3, slices_per_commit: 1, ..Limits::default() };
    let mut bench = bench("{ id: one, kind: pass }", limits);
    let (large, _, _) = bench.start("each", items(10));
    for _ in 0..40 {
        bench.start("small", json!({}));
    }
    assert_eq!(status(&mut bench, large), RunStatus::Completed);
}
