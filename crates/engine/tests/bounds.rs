//! Limits and permissions that protect the engine from excessive or unauthorised requests.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use steprail_engine::{
    ArtefactStore, BoxFuture, Cursor, Edit, Engine, Event, Failure, FailureKind, Intervention, Options,
    Payload, Principal, RunId, RunStatus, RunView, SqliteStore, Start, ToolCall, Tools,
};
use tempfile::TempDir;
use tokio::sync::Notify;

fn ann() -> Principal {
    Principal::user("ann")
}

/// An engine on a database of its own, which is deleted with it.
struct TestEngine {
    engine: Engine,
    _folder: TempDir,
}

impl Deref for TestEngine {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

fn engine(tools: Tools) -> TestEngine {
    let folder = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(folder.path().join("test.db"), &Options::default()).expect("a database");
    let engine = Engine::builder().store(store).tools(tools).spawn().expect("an engine");
    TestEngine { engine, _folder: folder }
}

fn echo() -> Tools {
    Tools::new().tool("demo__echo", |call: ToolCall| async move { Ok(call.args.value().clone()) })
}

async fn run(engine: &Engine, definition: &str, inputs: Value) -> RunView {
    let start = Start::inline(definition, ann()).inputs(inputs);
    engine.start(start).await.expect("a run").wait().await.expect("an end")
}

fn error(view: &RunView) -> String {
    view.run.error.as_ref().map(ToString::to_string).unwrap_or_default()
}

#[tokio::test]
async fn endless_loop_ends_at_the_limit_of_visits() {
    let definition = "
        name: circle
        inputs: { s: { type: string } }
        start: a
        steps:
          a: { tool: demo__echo, args: { v: '{{inputs.s - 1}}' }, on_error: { goto: a }, done: true }
    ";
    let view = run(&engine(echo()), definition, json!({ "s": "text" })).await;
    assert_eq!(view.run.status, RunStatus::Failed);
    assert!(error(&view).contains("loop visits"), "{}", error(&view));
}

#[tokio::test]
async fn recursive_workflow_fails() {
    let branches = |n| format!("[{{ id: b{n}, kind: workflow, name: many }}]");
    let branches: Vec<String> = (0..10).map(branches).collect();
    let definition = format!("name: many\nsteps:\n  - {{ id: p, branches: [{}] }}\n", branches.join(", "));
    let engine = engine(echo());
    engine.define(&definition, &ann()).await.expect("a definition");
    let run = engine.start(Start::named("many", ann())).await.expect("a run");
    let view = run.wait().await.expect("an end");
    assert_eq!(view.run.status, RunStatus::Failed);
}

#[tokio::test]
async fn too_deep_and_too_large_values_are_rejected() {
    let nested = |levels| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    let engine = engine(echo().tool("demo__deep", move |_| async move { Ok(nested(101)) }));
    let definition = "name: takes\ninputs: { v: {} }\nsteps:\n  - { id: a, tool: demo__echo, args: { v: [['{{inputs.v}}']] } }\n";
    let rejected = engine.start(Start::inline(definition, ann()).inputs(json!({ "v": nested(100) }))).await;
    assert_eq!(
        rejected.err().map(|error| error.to_string()).as_deref(),
        Some("the inputs have more than 100 nested lists and maps")
    );
    let view = run(&engine, definition, json!({ "v": nested(98) })).await;
    assert_eq!(error(&view), "a: a value has more than 100 nested lists and maps");
    let view = run(&engine, "name: gives\nsteps:\n  - { id: a, tool: demo__deep }\n", json!({})).await;
    assert_eq!(error(&view), "a: a value has more than 100 nested lists and maps");
    let large = json!({ "v": "x".repeat(1024 * 1024) });
    let many = vec!["'{{inputs.v}}'"; 20].join(", ");
    let view = run(&engine, &definition.replace("[['{{inputs.v}}']]", &format!("[{many}]")), large).await;
    assert_eq!(error(&view), "a: the value is larger than 16777216 bytes");
}

#[tokio::test]
async fn interventions_cannot_bypass_a_gate() {
    let engine = engine(echo());
    let definition = "
        name: gated
        steps:
          - id: both
            branches:
              - [{ id: ask, kind: approve, prompt: 'Go on?' }]
    ";
    let run = engine.start(Start::inline(definition, ann())).await.expect("a run");
    let ask = |view: &RunView| view.steps.iter().find(|step| step.id == "ask").map(|step| step.path.clone());
    let path = ask(&engine.status(run.id()).await.expect("a run")).expect("a gate");
    let answer = Payload::new(json!({ "approved": true }));
    let bypasses = [
        Intervention::Skip { path: path.as_str().into() },
        Intervention::Skip { path: "both".into() },
        Intervention::SupplyResult { path: path.as_str().into(), output: answer },
        Intervention::SetValue(Edit { id: Some("ask".into()), value: json!({ "approved": true }) }),
    ];
    for bypass in bypasses {
        let error = engine.intervene(run.id(), bypass.clone(), &ann()).await.expect_err("a rejection");
        assert_eq!(error.code(), "denied", "{bypass:?}: {error}");
    }
    let skip = Intervention::Skip { path: path.as_str().into() };
    engine.intervene(run.id(), skip, &Principal::user("lea")).await.expect("lea may decide");
    assert_eq!(run.wait().await.expect("an end").run.status, RunStatus::Completed);
}

/// An artefact store that rejects every file.
struct FullArtefactStore;

impl ArtefactStore for FullArtefactStore {
    fn put(&self, _: RunId, _: &str, _: Value) -> BoxFuture<'_, Result<Value, Failure>> {
        Box::pin(async { Err(Failure::new(FailureKind::ToolError, "the store is full")) })
    }
}

#[tokio::test]
async fn call_whose_files_cannot_be_stored_is_not_repeated() {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let tools = Tools::new().tool("demo__export", move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok(json!({ "file_refs": ["a.txt"] })) }
    });
    let folder = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(folder.path().join("test.db"), &Options::default()).expect("a database");
    let engine =
        Engine::builder().store(store).tools(tools).artefacts(FullArtefactStore).spawn().expect("an engine");
    let definition = "name: files\nsteps:\n  - { id: a, tool: demo__export, effects: once, retry: 3 }\n";
    let run = engine.start(Start::inline(definition, ann())).await.expect("a run");
    let mut events = engine.subscribe(Some(run.id()), Cursor::START);
    while let Some(event) = events.next().await.expect("events") {
        if let Event::StepUncertain { .. } = event.event {
            break;
        }
    }
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn cancel_token_does_not_keep_the_engine_alive() {
    let release = Arc::new(Notify::new());
    let released = release.clone();
    let engine = engine(Tools::new().tool("demo__wait", move |_| {
        let released = released.clone();
        async move {
            released.notified().await;
            Ok(json!(1))
        }
    }));
    let definition = "name: long\nsteps:\n  - { id: a, tool: demo__wait }\n";
    let run = engine.start(Start::inline(definition, ann())).await.expect("a run");
    let _token = run.cancel_token(&ann());
    let mut events = engine.subscribe(Some(run.id()), Cursor::START);
    drop((engine, run));
    release.notify_one();
    let ended = async { while let Ok(Some(_)) = events.next().await {} };
    tokio::time::timeout(Duration::from_mins(1), ended).await.expect("the engine stops");
}
