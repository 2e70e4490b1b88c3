//! A tool whose calls end when the test releases them, and runs that call it.

#![allow(dead_code, reason = "each test uses a part")]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::json;
use steprail_engine::{
    Cursor, Engine, Error, Options, Principal, RunHandle, RunId, RunStatus, RunView, SqliteStore, Start,
    ToolCall, Tools,
};
use steprail_store::StoreError;
use tokio::sync::{Semaphore, watch};

/// A run of three calls of the held tool.
pub(crate) const HOLD: &str = "
name: hold
steps:
  - { id: a, tool: demo__hold }
  - { id: b, tool: demo__hold, args: { from: '{{steps.a.output.said}}' } }
  - { id: c, tool: demo__hold, args: { from: '{{steps.b.output.said}}' } }
";

/// A run that waits between two calls.
pub(crate) const PARKED: &str = "
name: parked
steps:
  - { id: a, tool: demo__hold }
  - { id: w, kind: wait, event: go }
  - { id: b, tool: demo__hold, args: { from: '{{steps.a.output.said}}' } }
";

/// Output of [`HOLD`].
pub(crate) const SAID: &str = r#"{"said":"c after b after a after "}"#;
/// Output of [`PARKED`].
pub(crate) const SAID_TWICE: &str = r#"{"said":"b after a after "}"#;

pub(crate) fn ann() -> Principal {
    Principal::user("ann")
}

/// A tool whose calls block until they are released.
#[derive(Clone)]
pub(crate) struct HeldTool {
    calls: Arc<watch::Sender<Vec<String>>>,
    permits: Arc<Semaphore>,
}

impl HeldTool {
    pub(crate) fn new(permits: usize) -> Self {
        Self { calls: Arc::new(watch::channel(Vec::new()).0), permits: Arc::new(Semaphore::new(permits)) }
    }

    pub(crate) fn tools(&self) -> Tools {
        let tool = self.clone();
        Tools::new().tool("demo__hold", move |call: ToolCall| {
            let tool = tool.clone();
            async move {
                tool.calls.send_modify(|calls| calls.push(call.path.to_string()));
                tool.permits.acquire().await.expect("a permit").forget();
                let from = call.args.value()["from"].as_str().unwrap_or_default();
                Ok(json!({ "said": format!("{} after {from}", call.path) }))
            }
        })
    }

    pub(crate) fn release(&self, calls: usize) {
        self.permits.add_permits(calls);
    }

    pub(crate) async fn wait_for_call(&self, path: &str) {
        let called = |calls: &Vec<String>| calls.iter().any(|called| called == path);
        self.calls.subscribe().wait_for(called).await.expect("a call");
    }

    pub(crate) async fn wait_for_calls(&self, count: usize) {
        self.calls.subscribe().wait_for(|calls| calls.len() >= count).await.expect("calls");
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.calls.borrow().clone()
    }
}

pub(crate) fn database(folder: &Path) -> PathBuf {
    folder.join("test.db")
}

pub(crate) fn open(folder: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(database(folder), &Options::default())
}

pub(crate) fn engine(folder: &Path, tool: &HeldTool) -> Engine {
    let store = open(folder).expect("a database");
    Engine::builder().store(store).tools(tool.tools()).spawn().expect("an engine")
}

pub(crate) async fn start(engine: &Engine, text: &str) -> Result<RunHandle, Error> {
    engine.start(Start::inline(text, ann())).await
}

/// Waits until the engine reports a fault.
pub(crate) async fn fault(engine: &Engine) -> StoreError {
    let mut faults = engine.faults();
    let found = faults.wait_for(Option::is_some).await.expect("an engine").clone();
    found.expect("a fault")
}

/// Waits for a future. Panics if it takes longer than a minute.
pub(crate) async fn within_a_minute<T>(what: &str, wanted: impl Future<Output = T>) -> T {
    let limit = Duration::from_mins(1);
    tokio::time::timeout(limit, wanted).await.unwrap_or_else(|_| panic!("{what}: not within {limit:?}"))
}

pub(crate) fn output(view: &RunView) -> &str {
    view.run.output.as_ref().map_or("", |output| output.get())
}

/// Asserts that rows and log are consistent and that the file passes SQLite's integrity check.
pub(crate) fn assert_sound(folder: &Path) {
    let connection = Connection::open(database(folder)).expect("the database");
    assert_eq!(crate::audit::audit(&connection), Vec::<String>::new());
    let result: String =
        connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("a check");
    assert_eq!(result, "ok");
}

pub(crate) fn storage(error: Error) -> StoreError {
    match error {
        Error::Storage(error) => error,
        other => panic!("{other}"),
    }
}

/// Creates a run that waits for a signal, and stops the engine.
pub(crate) async fn park(folder: &Path, tool: &HeldTool) -> RunId {
    let engine = engine(folder, tool);
    let run = start(&engine, PARKED).await.expect("started");
    let mut events = engine.subscribe(Some(run.id()), Cursor::START);
    while let Some(event) = events.next().await.expect("events") {
        if event.event.step().is_some_and(|step| &*step.path == "w") {
            break;
        }
    }
    engine.shutdown().await.expect("shut down");
    run.id()
}

/// Continues the run with a new engine until it ends.
pub(crate) async fn unpark(folder: &Path, tool: &HeldTool, run: RunId) {
    let engine = engine(folder, tool);
    tool.release(1);
    engine.signal("go", json!(null), Some(run)).await.expect("signalled");
    let view = within_a_minute("the run ends", engine.handle(run).wait()).await.expect("ended");
    assert_eq!((view.run.status, output(&view)), (RunStatus::Completed, SAID_TWICE));
    assert_eq!(tool.calls(), ["a", "b"]);
    engine.shutdown().await.expect("shut down");
    assert_sound(folder);
}
