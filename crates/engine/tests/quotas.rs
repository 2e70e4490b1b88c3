//! Quotas of users: what exceeds them is rejected, other users and the owner are not affected, and freed capacity can be used.

use std::sync::{Arc, Barrier};

use serde_json::{Value, json};
use steprail_engine::{
    After, BoxFuture, CallSite, Capacity, Cursor, Engine, Error, Event, Expected, Limits, ManualClock,
    Options, Outcome, Overlap, Principal, Quota, Quotas, RunHandle, RunStatus, Schedule, SqliteStore, Start,
    ToolCall, ToolCaller, Tools, User, Visibility, Workflow,
};
use tempfile::TempDir;

const WAITS: &str = "name: waits\nsteps: [{ id: w, kind: wait, event: go }]";
const NESTED: &str = "name: nested\nsteps: [{ id: child, kind: workflow, name: waits }]";
const ECHO: &str = "name: echo\ninputs: { text: { type: string } }\nsteps: [{ id: e, tool: demo__echo, args: { text: '{{inputs.text}}' } }]";
const MINUTE: i64 = 60_000;

/// An engine whose owner is `owner`.
struct TestEngine {
    engine: Engine,
    clock: Arc<ManualClock>,
    folder: TempDir,
}

impl TestEngine {
    fn new(quotas: &Quotas) -> Self {
        Self::on(tempfile::tempdir().expect("a folder"), quotas)
    }

    fn on(folder: TempDir, quotas: &Quotas) -> Self {
        let store = SqliteStore::open(folder.path().join("test.db"), &Options::default()).expect("a store");
        let clock = Arc::new(ManualClock::at(1_800_000_000_000));
        let quotas = Quotas { owner: Some("owner".to_owned()), ..quotas.clone() };
        let tools = Tools::new().tool("demo__echo", |call| async move { Ok(call.args.value().clone()) });
        let builder = Engine::builder().store(store).tools(tools).clock(clock.clone());
        let engine = builder.limits(Limits { quotas, ..Limits::default() }).spawn().expect("an engine");
        Self { engine, clock, folder }
    }

    async fn restart(self, quotas: &Quotas) -> Self {
        self.engine.shutdown().await.expect("a shutdown");
        drop(self.engine);
        Self::on(self.folder, quotas)
    }

    /// Waits until the timers that are due have fired: at the latest after one more pass of the engine thread.
    async fn timers_fired(&self) {
        for _ in 0..2 {
            self.engine.ready().await.expect("a reply");
        }
    }

    fn user(&self, id: &str) -> User {
        self.engine.as_user(Principal::user(id))
    }
}

async fn start(user: &User, definition: &str) -> Result<RunHandle, Error> {
    start_with(user, definition, json!({}), None).await
}

async fn start_with(
    user: &User,
    definition: &str,
    inputs: Value,
    key: Option<&str>,
) -> Result<RunHandle, Error> {
    let workflow = Workflow::Inline { text: definition.to_owned(), source: "test".to_owned() };
    user.start(workflow, inputs, key.map(str::to_owned)).await
}

/// The quota that a request exceeded, and the seconds to wait.
fn exceeded<T>(result: Result<T, Error>) -> (Quota, Option<u64>) {
    match result {
        Err(Error::QuotaExceeded(exceeded)) => (exceeded.quota, exceeded.retry_after_secs()),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("the quota was not enforced"),
    }
}

#[tokio::test]
async fn ended_runs_make_room_for_new_ones() {
    let test = TestEngine::new(&Quotas { active_runs: Some(2), ..Quotas::default() });
    let ann = test.user("ann");
    let first = start(&ann, WAITS).await.expect("a run");
    start(&ann, WAITS).await.expect("a run");
    let error = start(&ann, WAITS).await.expect_err("the third");
    assert_eq!(error.code(), "quota_exceeded");
    assert_eq!(error.to_string(), "the quota of ann is exhausted: 2 unfinished runs");
    start(&test.user("bob"), WAITS).await.expect("a run of another user");
    for _ in 0..3 {
        start(&test.user("owner"), WAITS).await.expect("a run of the owner");
    }
    ann.cancel(first.id(), "to make room").await.expect("cancelled");
    start(&ann, WAITS).await.expect("the cancelled run does not count");
    assert_eq!(exceeded(start(&ann, WAITS).await), (Quota::ActiveRuns, None));
}

#[tokio::test]
async fn concurrent_starts_do_not_exceed_the_quota() {
    let test = TestEngine::new(&Quotas { active_runs: Some(5), ..Quotas::default() });
    let ann = test.user("ann");
    let starts = (0..50).map(|_| {
        let ann = ann.clone();
        tokio::spawn(async move { start(&ann, WAITS).await.is_ok() })
    });
    let mut started = 0;
    for start in starts.collect::<Vec<_>>() {
        started += usize::from(start.await.expect("a task"));
    }
    assert_eq!(started, 5);
}

#[tokio::test]
async fn unfinished_runs_count_after_a_restart() {
    let quotas = Quotas { active_runs: Some(2), ..Quotas::default() };
    let test = TestEngine::new(&quotas);
    let first = start(&test.user("ann"), WAITS).await.expect("a run").id();
    start(&test.user("ann"), WAITS).await.expect("a run");
    let test = test.restart(&quotas).await;
    let ann = test.user("ann");
    assert_eq!(exceeded(start(&ann, WAITS).await), (Quota::ActiveRuns, None));
    ann.cancel(first, "to make room").await.expect("cancelled");
    start(&ann, WAITS).await.expect("a run");
    assert_eq!(exceeded(start(&ann, WAITS).await), (Quota::ActiveRuns, None));
}

#[tokio::test]
async fn runs_of_sub_workflows_do_not_count() {
    let test = TestEngine::new(&Quotas { active_runs: Some(2), ..Quotas::default() });
    let ann = test.user("ann");
    ann.define(WAITS, None, Expected::Any).await.expect("a definition");
    let parent = start(&ann, NESTED).await.expect("a run");
    start(&ann, NESTED).await.expect("two runs and two children");
    assert_eq!(exceeded(start(&ann, NESTED).await), (Quota::ActiveRuns, None));
    ann.cancel(parent.id(), "to make room").await.expect("cancelled");
    parent.wait().await.expect("an end");
    start(&ann, NESTED).await.expect("the end of a child frees nothing, that of its parent one");
    assert_eq!(exceeded(start(&ann, NESTED).await), (Quota::ActiveRuns, None));
}

#[tokio::test]
async fn rate_recovers_after_its_window() {
    let test = TestEngine::new(&Quotas { starts_per_minute: Some(6), ..Quotas::default() });
    let ann = test.user("ann");
    for _ in 0..6 {
        start(&ann, WAITS).await.expect("a start within the rate");
    }
    assert_eq!(exceeded(start(&ann, WAITS).await), (Quota::StartsPerMinute, Some(10)));
    start(&test.user("owner"), WAITS).await.expect("a start of the owner");
    test.clock.advance(9_999);
    assert_eq!(exceeded(start(&ann, WAITS).await), (Quota::StartsPerMinute, Some(1)));
    test.clock.advance(1);
    start(&ann, WAITS).await.expect("one start after ten seconds");
    assert_eq!(exceeded(start(&ann, WAITS).await), (Quota::StartsPerMinute, Some(10)));
    test.clock.advance(MINUTE);
    for _ in 0..6 {
        start(&ann, WAITS).await.expect("all starts after a minute");
    }
    exceeded(start(&ann, WAITS).await);
}

#[tokio::test]
async fn repeated_start_returns_its_run_though_the_quota_is_exhausted() {
    let test = TestEngine::new(&Quotas { active_runs: Some(1), ..Quotas::default() });
    let ann = test.user("ann");
    let first = start_with(&ann, WAITS, json!({}), Some("k1")).await.expect("a run");
    let again = start_with(&ann, WAITS, json!({}), Some("k1")).await.expect("the same run");
    assert_eq!(first.id(), again.id());
    exceeded(start_with(&ann, WAITS, json!({}), Some("k2")).await);
}

#[tokio::test]
async fn rejected_start_stores_no_definition() {
    let test = TestEngine::new(&Quotas { active_runs: Some(1), ..Quotas::default() });
    let ann = test.user("ann");
    start(&ann, WAITS).await.expect("a run");
    exceeded(start(&ann, NESTED).await);
    let connection = rusqlite::Connection::open(test.folder.path().join("test.db")).expect("the database");
    let stored: i64 = connection
        .query_row("SELECT count(*) FROM workflow_definitions", [], |row| row.get(0))
        .expect("a count");
    assert_eq!(stored, 1);
}

#[tokio::test]
async fn stored_bytes_are_freed_by_retention() {
    let quotas = Quotas { stored_bytes: Some(20_000), ..Quotas::default() };
    let test = TestEngine::new(&quotas);
    let large = json!({ "text": "x".repeat(15_000) });
    let run = start_with(&test.user("ann"), ECHO, large.clone(), None).await.expect("a run");
    assert_eq!(run.wait().await.expect("an end").run.status, RunStatus::Completed);
    assert_eq!(exceeded(start(&test.user("ann"), WAITS).await), (Quota::StoredBytes, None));
    assert_eq!(
        exceeded(test.user("ann").define(WAITS, None, Expected::Any).await),
        (Quota::StoredBytes, None)
    );
    start_with(&test.user("bob"), ECHO, large, None).await.expect("a run of another user");
    let test = test.restart(&quotas).await;
    let ann = test.user("ann");
    assert_eq!(exceeded(start(&ann, WAITS).await), (Quota::StoredBytes, None), "after a restart");
    test.clock.advance(MINUTE);
    assert!(test.engine.purge(std::time::Duration::ZERO).await.expect("a purge") > 0);
    start(&ann, WAITS).await.expect("a run");
}

#[tokio::test]
async fn schedules_are_limited_and_their_starts_count_for_their_user() {
    let quotas = Quotas { schedules: Some(1), starts_per_minute: Some(1), ..Quotas::default() };
    let test = TestEngine::new(&quotas);
    let ann = test.user("ann");
    ann.define(WAITS, None, Expected::Any).await.expect("a definition");
    let schedule = |name: &str| Schedule {
        name: name.to_owned(),
        definition: "waits".to_owned(),
        version: None,
        cron: "* * * * *".to_owned(),
        zone: "UTC".to_owned(),
        inputs: json!({}),
        principal: Principal::default(),
        overlap: Overlap::Allow,
        due: Some(0),
        last: None,
    };
    ann.schedule(schedule("first")).await.expect("a schedule");
    assert_eq!(exceeded(ann.schedule(schedule("second")).await), (Quota::Schedules, None));
    ann.schedule(schedule("first")).await.expect("a changed schedule");
    test.user("bob").schedule(schedule("third")).await.expect("a schedule of another user");
    start(&ann, WAITS).await.expect("a run");
    test.clock.advance(MINUTE / 2);
    test.clock.advance(MINUTE / 2 - 1);
    test.timers_fired().await;
    exceeded(start(&ann, WAITS).await);
    test.clock.advance(1);
    test.timers_fired().await;
    let fired = |name: &'static str| {
        let ann = test.user("ann");
        async move {
            let schedules = ann.schedules().await.expect("schedules");
            schedules
                .into_iter()
                .find(|known| known.name == name)
                .and_then(|known| known.last)
                .expect("a start")
        }
    };
    assert!(fired("first").await.run.is_some(), "the minute is over");
    assert!(fired("third").await.run.is_some());
    assert_eq!(
        exceeded(start(&ann, WAITS).await).0,
        Quota::StartsPerMinute,
        "the schedule has started the run"
    );
}

#[tokio::test]
async fn schedule_beyond_the_quota_records_the_reason() {
    let test = TestEngine::new(&Quotas { active_runs: Some(1), ..Quotas::default() });
    let ann = test.user("ann");
    ann.define(WAITS, None, Expected::Any).await.expect("a definition");
    let schedule = Schedule {
        name: "often".to_owned(),
        definition: "waits".to_owned(),
        version: None,
        cron: "* * * * *".to_owned(),
        zone: "UTC".to_owned(),
        inputs: json!({}),
        principal: Principal::default(),
        overlap: Overlap::Allow,
        due: Some(0),
        last: None,
    };
    ann.schedule(schedule).await.expect("a schedule");
    start(&ann, WAITS).await.expect("a run");
    test.clock.advance(MINUTE);
    test.timers_fired().await;
    let last = ann.schedules().await.expect("schedules")[0].last.clone().expect("a time");
    assert_eq!(last.error.as_deref(), Some("the quota of ann is exhausted: 1 unfinished runs"));
}

#[tokio::test]
async fn open_subscriptions_are_limited() {
    let test = TestEngine::new(&Quotas { subscriptions: Some(1), ..Quotas::default() });
    let ann = test.user("ann");
    let run = start(&ann, WAITS).await.expect("a run").id();
    let open = ann.follow(run, After::Seq(0)).await.expect("a subscription");
    assert_eq!(exceeded(ann.follow(run, After::Seq(0)).await), (Quota::Subscriptions, None));
    test.user("owner").follow(run, After::Seq(0)).await.expect("a subscription of the owner");
    drop(open);
    ann.follow(run, After::Seq(0)).await.expect("a subscription");
}

/// Tools that block the engine thread until they are released.
struct StuckTools(Arc<Barrier>);

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
async fn cancel_of_the_owner_overtakes_the_requests_of_others() {
    const STARTS: usize = 1_000;
    let folder = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(folder.path().join("test.db"), &Options::default()).expect("a store");
    let barrier = Arc::new(Barrier::new(2));
    let quotas = Quotas { owner: Some("owner".to_owned()), ..Quotas::default() };
    // One slot less than the others need: the queue is full.
    let limits = Limits { requests: STARTS, quotas, ..Limits::default() };
    let builder = Engine::builder().store(store).tools(StuckTools(barrier.clone())).limits(limits);
    let engine = builder.spawn().expect("an engine");
    let (ann, owner) = (Principal::user("ann"), Principal::user("owner"));
    engine.define(WAITS, &ann).await.expect("a definition");
    let run = engine.start(Start::named("waits", ann.clone())).await.expect("a run").id();
    let call = "name: call\nsteps: [{ id: a, tool: any__call }]";
    let starts = std::iter::once(Start::inline(call, ann.clone()))
        .chain((0..STARTS).map(|_| Start::named("waits", ann.clone())));
    let starts: Vec<_> = starts
        .map(|start| {
            let engine = engine.clone();
            tokio::spawn(async move { engine.start(start).await })
        })
        .collect();
    let cancel = tokio::spawn({
        let engine = engine.clone();
        async move { engine.cancel(run, &owner, "enough").await }
    });
    // Every task has sent its request, or waits for a slot.
    tokio::task::yield_now().await;
    tokio::task::spawn_blocking(move || (0..2).for_each(|_| _ = barrier.wait())).await.expect("released");
    cancel.await.expect("a task").expect("cancelled");
    for start in starts {
        start.await.expect("a task").expect("a run");
    }
    let events = engine.feed(Cursor::START, 10 * STARTS, Visibility::default()).await.expect("events").events;
    let events: Vec<_> = events.into_iter().map(|(event, _)| event.read().expect("an event").event).collect();
    let is_cancelled = |event: &Event| matches!(event, Event::RunCancelled { .. });
    let before = events.iter().take_while(|event| !is_cancelled(event));
    let started = before.filter(|event| matches!(event, Event::RunStarted { .. })).count();
    assert!(started < STARTS, "{started} of {STARTS} starts were handled before the cancel");
}
