//! A run whose calls end when the test lets them, over a database file.

#![allow(dead_code, reason = "each test uses a part")]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::json;
use steprail_engine::{
    Engine, Error, Options, Principal, RunHandle, RunId, RunStatus, RunView, SqliteStore, Start, ToolCall,
    Tools,
};
use steprail_store::StoreError;
use tokio::sync::{Semaphore, watch};

/// A run of three calls, each of which ends when the test lets it.
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

/// What `c` of [`HOLD`] and `b` of [`PARKED`] give.
pub(crate) const SAID: &str = r#"{"said":"c after b after a after "}"#;
pub(crate) const SAID_TWICE: &str = r#"{"said":"b after a after "}"#;

pub(crate) fn ann() -> Principal {
    Principal::user("ann")
}

/// A tool whose calls end when they are let go.
#[derive(Clone)]
pub(crate) struct Hands {
    calls: Arc<watch::Sender<Vec<String>>>,
    leave: Arc<Semaphore>,
}

impl Hands {
    pub(crate) fn new(leave: usize) -> Self {
        Self { calls: Arc::new(watch::channel(Vec::new()).0), leave: Arc::new(Semaphore::new(leave)) }
    }

    pub(crate) fn tools(&self) -> Tools {
        let hands = self.clone();
        Tools::new().tool("demo__hold", move |call: ToolCall| {
            let hands = hands.clone();
            async move {
                hands.calls.send_modify(|calls| calls.push(call.path.to_string()));
                hands.leave.acquire().await.expect("leave").forget();
                let from = call.args.value()["from"].as_str().unwrap_or_default();
                Ok(json!({ "said": format!("{} after {from}", call.path) }))
            }
        })
    }

    pub(crate) fn let_go(&self, calls: usize) {
        self.leave.add_permits(calls);
    }

    pub(crate) async fn until_called(&self, path: &str) {
        let called = |calls: &Vec<String>| calls.iter().any(|called| called == path);
        self.calls.subscribe().wait_for(called).await.expect("a call");
    }

    pub(crate) async fn until_calls(&self, count: usize) {
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

pub(crate) fn engine(folder: &Path, hands: &Hands) -> Engine {
    let store = open(folder).expect("a database");
    Engine::builder().store(store).tools(hands.tools()).spawn().expect("an engine")
}

pub(crate) async fn start(engine: &Engine, text: &str) -> Result<RunHandle, Error> {
    engine.start(Start::inline(text, ann())).await
}

/// Waits until the engine says what is wrong.
pub(crate) async fn fault(engine: &Engine) -> StoreError {
    let mut faults = engine.faults();
    let found = faults.wait_for(Option::is_some).await.expect("an engine").clone();
    found.expect("a fault")
}

/// Waits for something that must come; a hang is a failure.
pub(crate) async fn soon<T>(what: &str, wanted: impl Future<Output = T>) -> T {
    let limit = Duration::from_mins(1);
    tokio::time::timeout(limit, wanted).await.unwrap_or_else(|_| panic!("{what}: not within {limit:?}"))
}

pub(crate) fn output(view: &RunView) -> &str {
    view.run.output.as_ref().map_or("", |output| output.get())
}

/// Rows and log fit together, and the file is sound.
pub(crate) fn assert_sound(folder: &Path) {
    let connection = Connection::open(database(folder)).expect("the database");
    assert_eq!(crate::audit::audit(&connection), Vec::<String>::new());
    let sound: String =
        connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("a check");
    assert_eq!(sound, "ok");
}

pub(crate) fn storage(error: Error) -> StoreError {
    match error {
        Error::Storage(error) => error,
        other => panic!("{other}"),
    }
}

/// A run that waits for an event, and no engine.
pub(crate) async fn park(folder: &Path, hands: &Hands) -> RunId {
    let engine = engine(folder, hands);
    let run = start(&engine, PARKED).await.expect("started");
    let mut events = engine.subscribe(Some(run.id()), 0);
    while let Some(event) = events.next().await.expect("events") {
        if event.event.step().is_some_and(|step| &*step.path == "w") {
            break;
        }
    }
    engine.shutdown().await.expect("shut down");
    run.id()
}

/// The run goes on when an engine is there again.
pub(crate) async fn unpark(folder: &Path, hands: &Hands, run: RunId) {
    let engine = engine(folder, hands);
    hands.let_go(1);
    engine.signal("go", json!(null), Some(run)).await.expect("signalled");
    let view = soon("the run ends", engine.handle(run).wait()).await.expect("ended");
    assert_eq!((view.run.status, output(&view)), (RunStatus::Completed, SAID_TWICE));
    assert_eq!(hands.calls(), ["a", "b"]);
    engine.shutdown().await.expect("shut down");
    assert_sound(folder);
}
