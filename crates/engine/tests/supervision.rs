//! Supervision: a panic in the decision of a run stops that run, and a panic of the engine thread is reported to everyone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use steprail_engine::{
    BoxFuture, CallSite, Capacity, Clock, Engine, Error, ManualClock, Notice, Notifier, Options, Outcome,
    Principal, RunHandle, RunStatus, SqliteStore, Start, ToolCall, ToolCaller,
};
use tempfile::TempDir;
use tokio::sync::Notify;

const GOOD: &str = "name: good\nsteps: [{ id: a, tool: good__call }]";
const BAD: &str = "name: bad\nsteps: [{ id: w, kind: wait, event: go }, { id: a, tool: bad__call }]";
const WAITS: &str = "name: waits\nsteps: [{ id: w, kind: wait, event: go }]";
const SLEEPS: &str = "name: sleeps\nsteps: [{ id: s, kind: sleep, for: 1s }, { id: a, tool: bad__call }]";

/// Tools whose server `bad` panics when its capacity is asked for, while `panics` is true.
#[derive(Clone, Default)]
struct PanickingTools {
    panics: Arc<AtomicBool>,
}

impl ToolCaller for PanickingTools {
    fn call(&self, _: ToolCall) -> BoxFuture<'_, Outcome> {
        Box::pin(async { Ok(json!("done")) })
    }

    fn capacity(&self, call: &CallSite<'_>) -> Capacity {
        assert!(!(call.tool == "bad__call" && self.panics.load(Ordering::SeqCst)), "no capacity");
        Capacity::unlimited("any")
    }
}

/// A clock that panics on the engine thread from some time on.
#[derive(Default)]
struct PanickingClock {
    clock: ManualClock,
    panics: AtomicBool,
}

impl Clock for PanickingClock {
    fn now(&self) -> i64 {
        let is_engine = std::thread::current().name() == Some("steprail");
        assert!(!(is_engine && self.panics.load(Ordering::SeqCst)), "the clock stopped");
        self.clock.now()
    }

    fn on_change(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.clock.on_change(wake);
    }
}

fn store(folder: &TempDir) -> SqliteStore {
    SqliteStore::open(folder.path().join("test.db"), &Options::default()).expect("a store")
}

async fn start(engine: &Engine, definition: &str) -> RunHandle {
    engine.start(Start::inline(definition, Principal::user("ann"))).await.expect("a run")
}

async fn ended(run: &RunHandle) -> RunStatus {
    run.wait().await.expect("an end").run.status
}

/// An engine whose clock panics as soon as it is told to.
fn fragile(folder: &TempDir) -> (Engine, Arc<PanickingClock>) {
    let clock = Arc::new(PanickingClock::default());
    let builder = Engine::builder().store(store(folder)).tools(PanickingTools::default());
    (builder.clock(clock.clone()).spawn().expect("an engine"), clock)
}

fn break_engine(clock: &PanickingClock) {
    clock.panics.store(true, Ordering::SeqCst);
    clock.clock.advance(1);
}

#[tokio::test]
async fn panic_in_a_decision_quarantines_its_run_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let tools = PanickingTools { panics: Arc::new(true.into()) };
    let engine = Engine::builder().store(store(&folder)).tools(tools.clone()).spawn().expect("an engine");
    let (bad, waits) = (start(&engine, BAD).await, start(&engine, WAITS).await);
    let waiting = tokio::spawn({
        let bad = bad.clone();
        async move { bad.wait().await.expect_err("the run does not continue") }
    });
    let error = engine.signal("go", json!(null), Some(bad.id())).await.expect_err("the decision panics");
    assert_eq!(error.code(), "run_quarantined", "{error}");
    assert!(error.to_string().contains(&bad.id().to_string()), "{error}");
    assert!(error.to_string().contains("no capacity"), "{error}");
    assert_eq!(waiting.await.expect("a waiter").code(), "run_quarantined");
    let view = engine.status(bad.id()).await.expect("a status");
    assert_eq!((view.run.status, view.damage), (RunStatus::Running, Some(error.to_string())));
    assert_eq!(engine.damaged_runs(), 1);
    assert_eq!(ended(&start(&engine, GOOD).await).await, RunStatus::Completed);
    engine.signal("go", json!(null), Some(waits.id())).await.expect("a signal");
    assert_eq!(ended(&waits).await, RunStatus::Completed);
    assert!(engine.fault().is_none(), "the store accepts writes");
    engine.probe(Duration::from_secs(10)).await.expect("the engine thread responds");

    // The signal was rolled back with the decision. After a start without the cause, the run continues.
    engine.shutdown().await.expect("a shutdown");
    drop((engine, bad.clone()));
    let run = bad.id();
    drop((bad, waits));
    tools.panics.store(false, Ordering::SeqCst);
    let engine = Engine::builder().store(store(&folder)).tools(tools).spawn().expect("an engine");
    engine.signal("go", json!(null), Some(run)).await.expect("a signal");
    assert_eq!(ended(&engine.handle(run)).await, RunStatus::Completed);
}

#[tokio::test]
async fn run_that_panics_in_recovery_does_not_stop_the_engine() {
    let folder = tempfile::tempdir().expect("a folder");
    let tools = PanickingTools::default();
    let clock = Arc::new(ManualClock::at(0));
    let spawn = || {
        let builder = Engine::builder().store(store(&folder)).tools(tools.clone()).clock(clock.clone());
        builder.spawn().expect("an engine")
    };
    let engine = spawn();
    let run = start(&engine, SLEEPS).await.id();
    engine.shutdown().await.expect("a shutdown");
    drop(engine);
    clock.advance(1_000);
    tools.panics.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let engine = spawn();
        engine.ready().await.expect("recovery has finished");
        let error = engine.handle(run).wait().await.expect_err("the run is quarantined");
        assert_eq!(error.code(), "run_quarantined");
        assert_eq!(ended(&start(&engine, GOOD).await).await, RunStatus::Completed);
        engine.shutdown().await.expect("a shutdown");
    }
    tools.panics.store(false, Ordering::SeqCst);
    assert_eq!(ended(&spawn().handle(run)).await, RunStatus::Completed);
}

#[tokio::test]
async fn panic_of_the_engine_thread_is_reported_to_waiters_and_later_callers() {
    let folder = tempfile::tempdir().expect("a folder");
    let (engine, clock) = fragile(&folder);
    let run = start(&engine, WAITS).await;
    engine.probe(Duration::from_secs(10)).await.expect("the engine thread responds");
    let waiting = tokio::spawn({
        let run = run.clone();
        async move { run.wait().await.expect_err("the engine failed") }
    });
    engine.ready().await.expect("the wait has reached the engine");
    break_engine(&clock);
    let failure = engine.failed().await;
    assert_eq!(failure.code(), "engine_failed");
    assert!(failure.to_string().contains("the clock stopped"), "{failure}");
    assert_eq!(waiting.await.expect("a waiter").code(), "engine_failed");
    let rejected = engine.start(Start::inline(WAITS, Principal::user("ann"))).await;
    assert_eq!(rejected.expect_err("no start").code(), "engine_failed");
    assert_eq!(engine.probe(Duration::from_secs(10)).await.expect_err("no response").code(), "engine_failed");
    assert_eq!(engine.status(run.id()).await.expect("reads continue").run.status, RunStatus::Running);
    assert_eq!(engine.shutdown().await.expect_err("nothing to stop").code(), "engine_failed");
}

#[tokio::test]
async fn recovery_continues_after_a_panic_of_the_engine_thread() {
    let folder = tempfile::tempdir().expect("a folder");
    let (engine, clock) = fragile(&folder);
    let run = start(&engine, WAITS).await.id();
    break_engine(&clock);
    engine.failed().await;
    drop(engine);
    let (engine, _) = fragile(&folder);
    engine.signal("go", json!(null), Some(run)).await.expect("a signal");
    assert_eq!(ended(&engine.handle(run)).await, RunStatus::Completed);
}

#[tokio::test]
async fn engine_that_was_shut_down_has_not_failed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (engine, _) = fragile(&folder);
    engine.shutdown().await.expect("a shutdown");
    assert!(engine.failure().is_none());
    let error = engine.probe(Duration::from_secs(10)).await.expect_err("no response");
    assert!(matches!(error, Error::Stopped), "{error}");
}

/// Tools that block the engine thread until they are released.
struct StuckTools(Arc<std::sync::Barrier>);

impl ToolCaller for StuckTools {
    fn call(&self, _: ToolCall) -> BoxFuture<'_, Outcome> {
        Box::pin(async { Ok(json!("done")) })
    }

    fn capacity(&self, _: &CallSite<'_>) -> Capacity {
        self.0.wait();
        Capacity::unlimited("any")
    }
}

#[tokio::test]
async fn probe_detects_a_stuck_engine_thread() {
    let folder = tempfile::tempdir().expect("a folder");
    let barrier = Arc::new(std::sync::Barrier::new(2));
    let builder = Engine::builder().store(store(&folder)).tools(StuckTools(barrier.clone()));
    let engine = builder.spawn().expect("an engine");
    engine.ready().await.expect("recovery");
    let starting = tokio::spawn({
        let engine = engine.clone();
        async move { start(&engine, GOOD).await }
    });
    // The start reaches the engine before the probe.
    while engine.probe(Duration::from_millis(100)).await.is_ok() {}
    let error = engine.probe(Duration::from_millis(1)).await.expect_err("no response");
    assert_eq!(error.code(), "engine_unresponsive");
    // `capacity` is called for the admission and for the order of the call.
    tokio::task::spawn_blocking(move || (0..2).for_each(|_| _ = barrier.wait())).await.expect("released");
    assert_eq!(ended(&starting.await.expect("a run")).await, RunStatus::Completed);
    engine.probe(Duration::from_secs(10)).await.expect("it responds again");
}

/// A notifier that panics and says that it was called.
struct PanickingNotifier(Arc<Notify>);

impl Notifier for PanickingNotifier {
    fn notify(&self, _: Notice) -> BoxFuture<'_, ()> {
        self.0.notify_one();
        panic!("no notices")
    }
}

#[tokio::test]
async fn panic_of_the_notifier_does_not_stop_the_engine() {
    let folder = tempfile::tempdir().expect("a folder");
    let called = Arc::new(Notify::new());
    let builder = Engine::builder().store(store(&folder)).tools(PanickingTools::default());
    let engine = builder.notifier(PanickingNotifier(called.clone())).spawn().expect("an engine");
    assert_eq!(ended(&start(&engine, GOOD).await).await, RunStatus::Completed);
    called.notified().await;
    assert_eq!(ended(&start(&engine, GOOD).await).await, RunStatus::Completed);
    assert!(engine.failure().is_none());
}
