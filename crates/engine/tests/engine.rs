//! The public API of the engine, with a runtime, a database file and failing tools.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use steprail_engine::{
    After, Authorizer, BoxFuture, Cursor, Engine, Error, Event, Failure, FailureKind, Limits, ListRuns,
    ManualClock, Options, Principal, RawEvent, RunStatus, Schedule, SqliteStore, Start, Starter, StepStatus,
    StoredEvent, Subscription, ToolCall, Tools, Visibility,
};
use tempfile::TempDir;
use tokio::sync::Notify;

fn ann() -> Principal {
    Principal::user("ann")
}

/// A database in a temporary directory.
struct TestDatabase(TempDir);

impl TestDatabase {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn store(&self) -> SqliteStore {
        SqliteStore::open(self.0.path().join("test.db"), &Options::default()).expect("a database")
    }

    fn engine(&self, tools: Tools) -> Engine {
        Engine::builder().store(self.store()).tools(tools).spawn().expect("an engine")
    }
}

fn echo() -> Tools {
    Tools::new().tool("demo__echo", |call: ToolCall| async move { Ok(call.args.value().clone()) })
}

const ECHO: &str = "
name: echo
inputs: { text: { type: string } }
steps:
  - { id: say, tool: demo__echo, args: { said: '{{inputs.text}}', run: $run_id, by: $user_id } }
";

const GATE: &str = "name: gate\nsteps:\n  - { id: g, kind: approve }\n";

#[tokio::test]
async fn stores_a_definition_and_runs_it() {
    let database = TestDatabase::new();
    let engine = database.engine(echo());
    let (first, warnings) = engine.define(ECHO, &ann()).await.expect("defined");
    assert_eq!((first.version, warnings.len()), (1, 0));
    let (same, _) = engine.define(ECHO, &ann()).await.expect("defined");
    assert_eq!(same.version, 1, "the same definition is the same version");
    let (second, _) = engine.define(&ECHO.replace("said", "spoke"), &ann()).await.expect("defined");
    assert_eq!(second.version, 2);
    let run =
        engine.start(Start::named("echo", ann()).inputs(json!({ "text": "hi" }))).await.expect("started");
    let view = run.wait().await.expect("ended");
    assert_eq!(view.run.status, RunStatus::Completed);
    let output: Value = serde_json::from_str(view.run.output.expect("an output").get()).expect("json");
    assert_eq!(output, json!({ "spoke": "hi", "run": run.id().to_string(), "by": "ann" }));
    assert_eq!((view.run.version, view.steps.len(), view.steps[0].status), (2, 1, StepStatus::Done));
    engine.delete_definition("echo").await.expect("deleted");
    let gone = engine.start(Start::named("echo", ann())).await.expect_err("an error");
    assert_eq!((gone.code(), gone.to_string()), ("not_found", "there is no definition `echo`".to_owned()));
}

#[tokio::test]
async fn invalid_inputs_are_rejected_with_all_reasons() {
    let database = TestDatabase::new();
    let engine = database.engine(echo());
    let invalid =
        engine.define("name: x\nsteps:\n  - { id: a, tol: b }\n", &ann()).await.expect_err("an error");
    assert!(matches!(&invalid, Error::Invalid(found) if !found.is_empty()), "{invalid}");
    let wrong = engine.start(Start::inline(ECHO, ann()).inputs(json!({ "text": 1, "more": 2 }))).await.err();
    assert_eq!(
        wrong.expect("an error").to_string(),
        "the input `text`: 1 is not of type \"string\"; there is no input `more`; known: `text`"
    );
}

#[tokio::test]
async fn repeated_start_returns_the_first_run() {
    let database = TestDatabase::new();
    let engine = database.engine(echo());
    let start = Start::inline(ECHO, ann()).inputs(json!({ "text": "hi" })).request_key("order 7");
    let first = engine.start(start.clone()).await.expect("started");
    let again = engine.start(start.clone()).await.expect("started");
    assert_eq!(first.id(), again.id());
    let other_inputs = start.inputs(json!({ "text": "ho" }));
    assert_eq!(engine.start(other_inputs).await.expect_err("an error").code(), "conflict");
    let other =
        Start::inline(ECHO, Principal::user("bob")).inputs(json!({ "text": "hi" })).request_key("order 7");
    assert_ne!(engine.start(other).await.expect("started").id(), first.id(), "keys belong to their user");
}

#[tokio::test]
async fn panicking_tool_fails_only_its_step() {
    let database = TestDatabase::new();
    let tools = echo().tool("demo__boom", |_| async { panic!("out of range") });
    let engine = database.engine(tools);
    let text = "name: boom\nsteps:\n  - { id: b, tool: demo__boom, on_error: continue }\n  - { id: e, tool: demo__echo, args: { why: '{{steps.b.error.message}}' } }\n";
    let view = engine.start(Start::inline(text, ann())).await.expect("started").wait().await.expect("ended");
    assert_eq!(view.run.output.expect("an output").get(), r#"{"why":"the tool panicked: out of range"}"#);
}

#[tokio::test]
async fn cancel_reaches_every_call_in_flight() {
    let database = TestDatabase::new();
    let (started, stopped) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let all = Arc::new(Notify::new());
    let tools = Tools::new().tool("demo__wait", {
        let (started, stopped, all) = (started.clone(), stopped.clone(), all.clone());
        move |call: ToolCall| {
            let (started, stopped, all) = (started.clone(), stopped.clone(), all.clone());
            async move {
                if started.fetch_add(1, Ordering::SeqCst) == 99 {
                    all.notify_one();
                }
                call.cancelled.cancelled().await;
                stopped.fetch_add(1, Ordering::SeqCst);
                Err(Failure::new(FailureKind::Cancelled, "stopped"))
            }
        }
    });
    let engine = database.engine(tools);
    let items: Vec<u32> = (0..100).collect();
    let text = format!(
        "name: many\nsteps:\n  - id: each\n    kind: foreach\n    items: {items:?}\n    concurrency: 100\n    steps: [{{ id: w, tool: demo__wait }}]\n"
    );
    let run = engine.start(Start::inline(text, ann())).await.expect("started");
    all.notified().await;
    let token = run.cancel_token(&ann());
    token.cancel();
    let view = run.wait().await.expect("ended");
    assert_eq!(view.run.status, RunStatus::Cancelled);
    engine.shutdown().await.expect("shut down");
    assert_eq!((started.load(Ordering::SeqCst), stopped.load(Ordering::SeqCst)), (100, 100));
}

#[tokio::test]
async fn concurrency_limit_is_respected() {
    let database = TestDatabase::new();
    let (current, peak) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let tools = Tools::new().tool("demo__count", {
        let (current, peak) = (current.clone(), peak.clone());
        move |_| {
            let (current, peak) = (current.clone(), peak.clone());
            async move {
                peak.fetch_max(current.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                current.fetch_sub(1, Ordering::SeqCst);
                Ok(Value::Null)
            }
        }
    });
    let limits = Limits { calls: 5, calls_per_definition: 4, calls_per_server: 3, ..Limits::default() };
    let engine =
        Engine::builder().store(database.store()).tools(tools).limits(limits).spawn().expect("an engine");
    let items: Vec<u32> = (0..40).collect();
    let text = format!(
        "name: many\nsteps:\n  - id: each\n    kind: foreach\n    items: {items:?}\n    concurrency: 20\n    steps: [{{ id: c, tool: demo__count }}]\n"
    );
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(engine.start(Start::inline(text.clone(), ann())).await.expect("started"));
    }
    for run in runs {
        assert_eq!(run.wait().await.expect("ended").run.status, RunStatus::Completed);
    }
    assert_eq!(peak.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn subscription_has_no_gaps_and_no_repetitions() {
    let database = TestDatabase::new();
    let engine = database.engine(echo());
    let mut all = engine.subscribe(None, Cursor::START);
    let mut seen: Vec<StoredEvent> = Vec::new();
    for turn in 0..20 {
        let start = Start::inline(ECHO, ann()).inputs(json!({ "text": format!("{turn}") }));
        let run = engine.start(start).await.expect("started");
        run.wait().await.expect("ended");
        // Reads some events, then the rest with a new subscription from the cursor.
        for _ in 0..turn % 4 {
            seen.push(all.next().await.expect("an event").expect("an event"));
        }
        all = engine.subscribe(None, seen.last().map_or(Cursor::START, |last| last.cursor));
    }
    while seen.len() < 80 {
        seen.push(all.next().await.expect("an event").expect("an event"));
    }
    let logged = engine.feed(Cursor::START, 1_000, Visibility::default()).await.expect("events").events;
    let logged: Vec<_> = logged.iter().map(|(event, _)| event.cursor).collect();
    assert_eq!(seen.iter().map(|event| event.cursor).collect::<Vec<_>>(), logged);
    assert_eq!(logged.last(), Some(&engine.cursor()));
}

struct OnlyBob;

impl Authorizer for OnlyBob {
    fn may_call<'a>(&'a self, principal: &'a Principal, tool: &'a str) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            if principal.id == "bob" { Ok(()) } else { Err(format!("{} may not call {tool}", principal.id)) }
        })
    }
}

#[tokio::test]
async fn run_has_the_permissions_of_its_starter() {
    let database = TestDatabase::new();
    let engine = Engine::builder()
        .store(database.store())
        .tools(echo())
        .authorizer(OnlyBob)
        .spawn()
        .expect("an engine");
    let text = "name: e\nsteps:\n  - { id: e, tool: demo__echo, retry: 3 }\n";
    let denied =
        engine.start(Start::inline(text, ann())).await.expect("started").wait().await.expect("ended");
    let error = denied.run.error.expect("an error");
    assert_eq!((error.kind, &*error.message), (FailureKind::Permission, "ann may not call demo__echo"));
    assert_eq!(denied.steps.len(), 1, "a missing right is not retried");
    let bob = Principal::user("bob");
    let allowed = engine.start(Start::inline(text, bob)).await.expect("started").wait().await.expect("ended");
    assert_eq!(allowed.run.status, RunStatus::Completed);
}

#[tokio::test]
async fn timer_that_was_due_while_the_engine_was_down_fires() {
    let database = TestDatabase::new();
    let clock = Arc::new(ManualClock::at(1_800_000_000_000));
    let text = "name: nap\nsteps:\n  - { id: nap, kind: sleep, for: 1h }\n  - { id: e, tool: demo__echo }\n";
    let start =
        |engine: Engine| async move { engine.start(Start::inline(text, ann())).await.expect("started") };
    let builder = || Engine::builder().store(database.store()).tools(echo()).clock(clock.clone());
    let engine = builder().spawn().expect("an engine");
    let run = start(engine.clone()).await.id();
    engine.shutdown().await.expect("shut down");
    drop(engine);
    clock.advance(3_600_000);
    let engine = builder().spawn().expect("an engine");
    let view = engine.handle(run).wait().await.expect("ended");
    assert_eq!(view.run.status, RunStatus::Completed);
    assert_eq!(view.steps[0].completed_at, Some(1_800_003_600_000));
}

#[tokio::test]
async fn purge_deletes_only_old_ended_runs() {
    let database = TestDatabase::new();
    let clock = Arc::new(ManualClock::at(1_800_000_000_000));
    let engine = Engine::builder()
        .store(database.store())
        .tools(echo())
        .clock(clock.clone())
        .spawn()
        .expect("an engine");
    for _ in 0..250 {
        let start = Start::inline(ECHO, ann()).inputs(json!({ "text": "x" }));
        engine.start(start).await.expect("started").wait().await.expect("ended");
    }
    let before = engine.cursor();
    clock.advance(1_000);
    let open = engine.start(Start::inline(GATE, ann())).await.expect("started");
    clock.advance(86_400_000);
    assert_eq!(engine.purge(Duration::from_hours(24)).await.expect("purged"), 250);
    let left = engine.list(ListRuns { limit: 10, ..ListRuns::default() }).await.expect("a list");
    assert_eq!(left.iter().map(|run| run.run_id).collect::<Vec<_>>(), [open.id()]);
    let mut events = engine.subscribe(None, Cursor::START);
    let first = events.next().await.expect("an event").expect("an event");
    assert!(first.cursor > before, "cursors of deleted events are not reused");
}

#[tokio::test]
async fn cursor_of_a_deleted_event_stays_valid_after_a_restart() {
    let database = TestDatabase::new();
    let clock = Arc::new(ManualClock::at(1_800_000_000_000));
    let spawn = || Engine::builder().store(database.store()).tools(echo()).clock(clock.clone()).spawn();
    let echoed = |text: &str| Start::inline(ECHO, ann()).inputs(json!({ "text": text }));
    let engine = spawn().expect("an engine");
    engine.start(echoed("first")).await.expect("started").wait().await.expect("ended");
    let last = engine.cursor();
    clock.advance(86_400_000);
    assert_eq!(engine.purge(Duration::ZERO).await.expect("purged"), 1);
    engine.shutdown().await.expect("shut down");
    drop(engine);

    let engine = spawn().expect("an engine");
    assert_eq!(engine.cursor(), last);
    assert!(engine.feed(last, 10, Visibility::default()).await.expect("a page").events.is_empty());
    let run = engine.start(echoed("second")).await.expect("started");
    run.wait().await.expect("ended");
    let page = engine.feed(last, 1, Visibility::default()).await.expect("a page");
    assert_eq!((page.events[0].0.run, page.events[0].0.seq), (run.id(), 1));
    assert_eq!(page.next, Some(page.events[0].0.cursor));
}

#[tokio::test]
async fn events_of_a_run_are_read_after_any_cursor_of_the_log() {
    let database = TestDatabase::new();
    let engine = database.engine(echo());
    let start = || engine.start(Start::inline(GATE, ann()));
    let (first, second) = (start().await.expect("started"), start().await.expect("started"));
    engine.cancel(first.id(), &ann(), "enough").await.expect("cancelled");
    engine.cancel(second.id(), &ann(), "enough").await.expect("cancelled");
    let log = engine.feed(Cursor::START, 100, Visibility::default()).await.expect("events").events;
    assert!(log.len() >= 6, "{log:?}");
    for run in [first.id(), second.id()] {
        for after in [Cursor::START].into_iter().chain(log.iter().map(|(event, _)| event.cursor)) {
            let of_run = |event: &&(RawEvent, Arc<Starter>)| event.0.run == run && event.0.cursor > after;
            let expected: Vec<u64> = log.iter().filter(of_run).map(|(event, _)| event.seq).collect();
            let page = engine.events(run, After::Cursor(after), 100).await.expect("events");
            let found: Vec<u64> = page.events.iter().map(|event| event.seq).collect();
            assert_eq!(found, expected, "after {after}");
            let mut subscription = engine.subscribe(Some(run), after);
            for seq in expected {
                assert_eq!(subscription.next().await.expect("events").expect("an event").seq, seq);
            }
        }
    }
}

#[tokio::test]
async fn cursor_of_another_database_is_rejected() {
    let (database, other) = (TestDatabase::new(), TestDatabase::new());
    let (engine, busy) = (database.engine(echo()), other.engine(echo()));
    let run = engine.start(Start::inline(GATE, ann())).await.expect("started").id();
    for _ in 0..3 {
        let start = Start::inline(ECHO, ann()).inputs(json!({ "text": "x" }));
        busy.start(start).await.expect("started").wait().await.expect("ended");
    }
    let cursor = busy.cursor();
    let of_all = engine.feed(cursor, 10, Visibility::default()).await.expect_err("an error");
    let of_run = engine.events(run, After::Cursor(cursor), 10).await.expect_err("an error");
    assert_eq!((of_all.code(), of_run.code()), ("invalid_cursor", "invalid_cursor"));
    assert!(of_all.to_string().contains("beyond the end of the log"), "{of_all}");
}

#[tokio::test]
async fn approvals_are_listed_and_decided_once() {
    let database = TestDatabase::new();
    let engine = database.engine(echo());
    let text = "name: g\nsteps:\n  - { id: gate, kind: approve, prompt: 'Go?' }\n";
    let run = engine.start(Start::inline(text, ann())).await.expect("started");
    let open = engine.approvals(10).await.expect("a list");
    assert_eq!((open.len(), open[0].prompt.as_str(), open[0].run_id), (1, "Go?", run.id()));
    let own = engine.approve(run.id(), "gate", &ann(), None, None).await.expect_err("an error");
    assert_eq!(own.code(), "denied");
    let (other, bob) = (steprail_core::plan::Hash([7; 32]), Principal::user("bob"));
    let stale = engine.approve(run.id(), "gate", &bob, None, Some(other)).await.expect_err("an error");
    assert_eq!(stale.code(), "conflict");
    engine
        .approve(run.id(), "gate", &bob, Some("fine".to_owned()), Some(open[0].digest))
        .await
        .expect("approved");
    let view = run.wait().await.expect("ended");
    assert_eq!(view.run.output.expect("an output").get(), r#"{"approved":true,"by":"bob","reason":"fine"}"#);
    let late =
        engine.deny(run.id(), "gate", &Principal::user("eve"), None, None).await.expect_err("an error");
    assert_eq!(late.to_string(), "`gate` was already approved by bob");
    engine
        .approve(run.id(), "gate", &bob, None, Some(open[0].digest))
        .await
        .expect("the same decision again");
    let stale = engine.approve(run.id(), "gate", &bob, None, Some(other)).await.expect_err("another digest");
    assert_eq!(stale.code(), "conflict");
}

#[tokio::test]
async fn resume_interrupted_resumes_all_interrupted_runs() {
    let database = TestDatabase::new();
    let text = "name: nap\nsteps:\n  - { id: nap, kind: sleep, for: 1h }\n";
    let engine = database.engine(echo());
    for _ in 0..3 {
        engine.start(Start::inline(text, ann())).await.expect("started");
    }
    engine.shutdown().await.expect("shut down");
    drop(engine);
    let engine = Engine::builder()
        .store(database.store())
        .tools(echo())
        .recover_as_interrupted()
        .spawn()
        .expect("an engine");
    assert_eq!(engine.resume_interrupted(&ann()).await.expect("resumed"), 3);
    let running = ListRuns { status: Some(RunStatus::Running), limit: 10, ..ListRuns::default() };
    assert_eq!(engine.list(running).await.expect("a list").len(), 3);
}

#[tokio::test]
async fn schedule_starts_runs_and_catches_up_once_for_missed_times() {
    const HOUR: i64 = 3_600_000;
    let database = TestDatabase::new();
    let clock = Arc::new(ManualClock::at(1_800_000_000_000 - 1_800_000_000_000 % (24 * HOUR)));
    let build = |clock: &Arc<ManualClock>| {
        let engine = Engine::builder().store(database.store()).tools(echo()).clock(clock.clone());
        engine.spawn().expect("an engine")
    };
    let engine = build(&clock);
    engine.define(ECHO, &ann()).await.expect("defined");
    let mut hourly = Schedule::new("hourly", "echo", "0 * * * *", ann());
    let nothing = engine.schedule(Schedule { definition: "none".into(), ..hourly.clone() }).await;
    assert_eq!(nothing.expect_err("an error").to_string(), "there is no definition `none`; define it first");
    let never = engine.schedule(Schedule { cron: "often".into(), ..hourly.clone() }).await;
    assert_eq!(never.expect_err("an error").code(), "bad_input");
    let wrong = engine.schedule(Schedule { inputs: json!({ "txt": "tick" }), ..hourly.clone() }).await;
    assert!(wrong.expect_err("an error").to_string().contains("there is no input `txt`"));
    hourly.inputs = json!({ "text": "tick" });
    let due = engine.schedule(hourly).await.expect("scheduled").expect("a time");
    let mut events = engine.subscribe(None, Cursor::START);
    clock.advance(HOUR);
    assert_eq!(next_start(&mut events).await, due);
    engine.shutdown().await.expect("shut down");
    drop((engine, events));

    clock.advance(5 * HOUR + 60_000);
    let engine = build(&clock);
    let mut events = engine.subscribe(None, Cursor::START);
    next_start(&mut events).await;
    assert_eq!(
        next_start(&mut events).await,
        due + 5 * HOUR + 60_000,
        "five times were missed, and one run catches up"
    );
    engine.ready().await.expect("ready");
    let schedule = engine.schedules().await.expect("a list").remove(0);
    assert_eq!(schedule.due, Some(due + 6 * HOUR));
    assert_eq!(schedule.last.expect("a last time").error, None);
    let runs = engine.list(ListRuns { limit: 10, ..ListRuns::default() }).await.expect("a list");
    assert_eq!(runs.len(), 2);
    engine.unschedule("hourly").await.expect("unscheduled");
    assert_eq!(engine.unschedule("hourly").await.expect_err("it is gone").code(), "not_found");
}

/// Returns the time at which the next run starts.
async fn next_start(events: &mut Subscription) -> i64 {
    loop {
        let event = events.next().await.expect("events").expect("an event");
        if let Event::RunStarted { .. } = event.event {
            return event.at;
        }
    }
}
