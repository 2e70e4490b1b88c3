//! Recorded databases: every later version opens, verifies and resumes them.
//!
//! `STEPRAIL_RECORD=NAME` records a database in the current format as `tests/formats/NAME.db`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::json;
use steprail_engine::{
    Annotations, Engine, Expected, Options, Principal, RunStatus, Schedule, SqliteStore, Start, ToolCall,
    Tools,
};
use steprail_store::ListRuns;
use steprail_store::sqlite::{Restore, backup, verify};

/// Every recorded format.
const RECORDED: [&str; 2] = ["001", "004"];

/// A run with every kind of row: a loop with retries, a large value, an approval, a timer, a signal and a key.
const WORKFLOW: &str = "
name: recorded
inputs: { items: { type: array, default: [1, 2, 3] } }
steps:
  - id: each
    kind: foreach
    items: '{{inputs.items}}'
    steps:
      - { id: work, tool: demo__work, args: { item: '{{item}}' }, retry: 1, idempotency_key: 'k-{{item}}' }
  - { id: large, tool: demo__large }
  - id: split
    kind: parallel
    branches:
      asks: [{ id: ask, kind: approve, prompt: 'Go on?', timeout: 30d }]
      waits: [{ id: wait, kind: wait, event: go }]
  - { id: last, tool: demo__work, args: { item: '{{size(steps.large.output.text)}}' } }
output: '{{steps.last.output}}'
";

fn tools() -> Tools {
    let work = |call: ToolCall| async move { Ok(json!({ "did": call.args.value()["item"] })) };
    let large = |_| async { Ok(json!({ "text": "x".repeat(10_000) })) };
    Tools::new().tool_with("demo__work", Annotations::IDEMPOTENT, work).tool_with(
        "demo__large",
        Annotations::IDEMPOTENT,
        large,
    )
}

fn ann() -> Principal {
    Principal::user("ann")
}

fn recorded(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats").join(format!("{name}.db"))
}

fn engine(database: &Path) -> Engine {
    let store = SqliteStore::open(database, &Options::default()).expect("a database");
    Engine::builder().store(store).tools(tools()).spawn().expect("an engine")
}

async fn record(name: &str, folder: &Path) {
    let engine = engine(&folder.join("new.db"));
    engine.define(WORKFLOW, &ann()).await.expect("a definition");
    engine
        .as_user(ann())
        .define("name: other\nsteps: [{ id: a, kind: pass }]", Some(true), Expected::Absent)
        .await
        .expect("a definition");
    let ended = engine.start(Start::named("other", ann())).await.expect("a run");
    ended.wait().await.expect("an end");
    let run = engine.start(Start::named("recorded", ann()).request_key("once")).await.expect("a run");
    let mut events = engine.subscribe(Some(run.id()), steprail_engine::Cursor::START);
    let is_waiting = |word: &str| word == "wait";
    while let Some(stored) = events.next().await.expect("events") {
        if stored.event.step().is_some_and(|step| is_waiting(&step.path)) {
            break;
        }
    }
    engine.schedule(Schedule::new("nightly", "other", "0 2 * * *", ann())).await.expect("a schedule");
    engine.shutdown().await.expect("shut down");
    let to = recorded(name);
    let _ = std::fs::remove_file(&to);
    backup(&folder.join("new.db"), &to, &mut |_, _| {}).expect("a backup");
}

#[tokio::test]
async fn recorded_databases_are_verified_and_resumed() {
    let folder = tempfile::tempdir().expect("a folder");
    if let Ok(name) = std::env::var("STEPRAIL_RECORD") {
        record(&name, folder.path()).await;
    }
    for name in RECORDED {
        let database = folder.path().join(format!("{name}.db"));
        let restore = Restore::prepare(&recorded(name), &database, &mut |_, _| {}).expect("a backup");
        restore.put(&folder.path().join("none.db")).expect("restored");
        let audit = verify(&database, None, &mut |_, _| ControlFlow::Continue(())).expect("an audit");
        assert_eq!((audit.damages, audit.complete, audit.runs), (0, true, 2), "{name}: {audit:?}");
        resume(&database).await;
    }
}

async fn resume(database: &Path) {
    let engine = engine(database);
    assert_eq!(engine.resume_interrupted(&ann()).await.expect("runs"), 1);
    let runs = engine.list(ListRuns { name: Some("recorded".to_owned()), ..ListRuns::default() }).await;
    let run = engine.handle(runs.expect("runs")[0].run_id);
    let open = engine.approvals(10).await.expect("approvals").pop().expect("an open approval");
    let lea = Principal::user("lea");
    engine.approve(run.id(), "ask", &lea, None, Some(open.digest)).await.expect("approved");
    engine.signal("go", json!(null), Some(run.id())).await.expect("a signal");
    let view = run.wait().await.expect("an end");
    assert_eq!(view.run.status, RunStatus::Completed, "{:?}", view.run.error);
    assert_eq!(view.run.output.expect("an output").get(), r#"{"did":10000}"#);
    let repeated = engine.start(Start::named("recorded", ann()).request_key("once")).await.expect("a run");
    assert_eq!(repeated.id(), run.id(), "the request key is known");
    assert_eq!(engine.schedules().await.expect("schedules").len(), 1);
    engine.shutdown().await.expect("shut down");
}
