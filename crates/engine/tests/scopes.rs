//! Attacks with a scoped or revoked token: it sees and uses only what its scope covers, and nothing after its revocation.

use std::sync::Arc;

use serde_json::{Value, json};
use steprail_engine::{
    Access, After, Cursor, Engine, Error, Expected, FailureKind, Grants, ListRuns, ManualClock, Options,
    Principal, Right, RunId, RunStatus, RunView, Schedule, SqliteStore, TokenScope, Tools, User, Workflow,
};
use tempfile::TempDir;

const MINUTE: i64 = 60_000;

/// A workflow with a gate, whose runs stay unfinished.
const GATED: &str =
    "name: gated\nsteps: [{ id: ask, kind: approve, prompt: Go? }, { id: act, tool: crm__read }]";
/// A workflow that waits for a signal.
const WAITING: &str = "name: waiting\nsteps: [{ id: wait, kind: wait, event: go }]";
/// A workflow whose call has a key that all runs of the user share.
const KEYED: &str = "
name: keyed
steps:
  - { id: pay, tool: bank__pay, args: { sum: 5 }, idempotency_key: order-7, idempotency_scope: global }
";

struct Test {
    engine: Engine,
    access: Access,
    clock: Arc<ManualClock>,
    _folder: TempDir,
}

impl Test {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let store = SqliteStore::open(folder.path().join("t.db"), &Options::default()).expect("a store");
        let tool = |tools: Tools, name: &str| {
            let answer = json!({ "from": name });
            tools.tool(name, move |_| std::future::ready(Ok(answer.clone())))
        };
        let tools = ["crm__read", "crm__write", "bank__pay"].into_iter().fold(Tools::new(), tool);
        let access =
            Access::new([("ann".to_owned(), Grants::all()), ("bob".to_owned(), Grants::all())].into());
        let clock = Arc::new(ManualClock::at(1_800_000_000_000));
        let builder = Engine::builder().store(store).tools(tools).authorizer(access.clone());
        let engine = builder.clock(clock.clone()).spawn().expect("an engine");
        Self { engine, access, clock, _folder: folder }
    }

    /// Ann without a scope.
    fn ann(&self) -> User {
        self.engine.as_user(Principal::user("ann"))
    }

    /// Ann through a token that is scoped to tools or rights.
    fn token(&self, tools: Option<&[&str]>, may: Option<&[Right]>) -> User {
        let tools = tools.map(|tools| tools.iter().map(ToString::to_string).collect());
        let scope = TokenScope { tools, may: may.map(|may| may.iter().copied().collect()) };
        self.engine.as_user(Principal { scope: Some(scope), ..Principal::user("ann") })
    }

    /// The token of the attacks: some tools of ann, and no right to view.
    fn narrow(&self) -> User {
        self.token(Some(&["crm__*"]), Some(&[Right::Workflow]))
    }
}

async fn started(user: &User, text: &str) -> RunId {
    let workflow = Workflow::Inline { text: text.to_owned(), source: "test".to_owned() };
    user.start(workflow, json!({}), None).await.expect("a run").id()
}

async fn ended(user: &User, text: &str) -> RunView {
    let workflow = Workflow::Inline { text: text.to_owned(), source: "test".to_owned() };
    user.start(workflow, json!({}), None).await.expect("a run").wait().await.expect("an end")
}

/// The runs of a list, of the feed and of the open approvals that a user sees.
async fn visible(user: &User) -> [Vec<RunId>; 3] {
    let list = user.list(ListRuns::default()).await.expect("a list");
    let feed = user.feed(Cursor::START, 1_000).await.expect("a feed").events;
    let approvals = user.approvals(100).await.expect("approvals");
    let mut all = [
        list.iter().map(|row| row.run_id).collect::<Vec<_>>(),
        feed.iter().map(|(event, _)| event.run).collect(),
        approvals.iter().map(|open| open.run_id).collect(),
    ];
    for runs in &mut all {
        runs.sort();
        runs.dedup();
    }
    all
}

/// A change that ends a schedule.
type Change = fn(&Test);

fn is_not_found<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::NotFound(_)))
}

#[tokio::test]
async fn narrow_token_cannot_read_a_run_outside_its_scope() {
    let test = Test::new();
    let outside = started(&test.ann(), GATED).await;
    let (narrow, narrower) = (test.narrow(), test.token(Some(&["crm__read"]), Some(&[Right::Workflow])));
    let own = started(&narrow, GATED).await;
    let inner = started(&narrower, GATED).await;
    for (user, sees) in [(&narrow, vec![own, inner]), (&narrower, vec![inner])] {
        assert_eq!(visible(user).await, [sees.clone(), sees.clone(), sees]);
    }
    assert_eq!(visible(&test.ann()).await[0].len(), 3, "the user in person sees every run");
    assert!(is_not_found(&narrow.row(outside).await));
    assert!(is_not_found(&narrow.status(outside).await));
    assert!(is_not_found(&narrow.events(outside, After::Seq(0), 10).await.map(|page| page.events.len())));
    assert!(is_not_found(&narrow.follow(outside, After::Seq(0)).await.map(|_| ())));
    assert!(is_not_found(&narrow.run_approvals(outside).await));
    assert!(is_not_found(&narrow.cancel(outside, "no").await));
    assert!(is_not_found(&narrow.rerun(outside, None).await.map(|run| run.id())));
    assert_eq!(narrow.row(own).await.expect("its own run").run_id, own);
}

#[tokio::test]
async fn scope_that_names_view_reads_every_run_with_its_tools() {
    let test = Test::new();
    let outside = started(&test.ann(), GATED).await;
    let own = started(&test.narrow(), GATED).await;
    let of_bob = started(&test.engine.as_user(Principal::user("bob")), GATED).await;
    let all = vec![outside, own, of_bob];
    let viewer = test.token(None, Some(&[Right::View]));
    assert_eq!(visible(&viewer).await, [all.clone(), all.clone(), all.clone()]);
    let approver = test.token(None, Some(&[Right::Approve]));
    assert_eq!(visible(&approver).await, [vec![], vec![], all], "it decides, and does not read runs");
    let with_tools = test.token(Some(&["crm__*"]), Some(&[Right::View]));
    assert_eq!(visible(&with_tools).await, [vec![own], vec![own], vec![own]]);
    let decided = test.token(Some(&["crm__*"]), None).decide(of_bob, "ask", true, None, None).await;
    assert!(is_not_found(&decided), "a gate outside the scope");
}

#[tokio::test]
async fn narrow_token_cannot_signal_a_run_outside_its_scope() {
    let test = Test::new();
    let outside = started(&test.ann(), WAITING).await;
    let narrow = test.token(Some(&["crm__*"]), None);
    assert!(is_not_found(&narrow.signal("go", Value::Null, Some(outside)).await));
    let broadcast = narrow.signal("go", Value::Null, None).await;
    assert!(matches!(broadcast, Err(Error::Denied(_))), "{broadcast:?}");
    let own = started(&narrow, WAITING).await;
    assert_eq!(narrow.signal("go", Value::Null, Some(own)).await.expect("a signal"), 1);
    assert_eq!(test.ann().row(outside).await.expect("a run").status, RunStatus::Running);
}

#[tokio::test]
async fn narrow_token_gets_no_cached_result_of_a_tool_outside_its_scope() {
    let test = Test::new();
    let first = ended(&test.ann(), KEYED).await;
    assert_eq!(first.run.status, RunStatus::Completed);
    let view = ended(&test.narrow(), KEYED).await;
    assert_eq!(view.run.error.expect("a failure").kind, FailureKind::Permission);
    assert!(view.steps.iter().all(|step| step.output.is_none()), "no result");
    let covered = ended(&test.token(Some(&["bank__pay"]), None), KEYED).await;
    assert_eq!(
        covered.run.status,
        RunStatus::Completed,
        "a token with the tool gets it, and nothing is paid twice"
    );
}

#[tokio::test]
async fn narrow_token_gets_no_run_by_the_request_key_of_another_token() {
    let test = Test::new();
    let start = async |user: &User| {
        let workflow = Workflow::Inline { text: GATED.to_owned(), source: "test".to_owned() };
        user.start(workflow, json!({}), Some("key-1".to_owned())).await.map(|run| run.id())
    };
    let run = start(&test.ann()).await.expect("a run");
    let repeated = start(&test.narrow()).await;
    let Err(Error::Conflict(message)) = repeated else { panic!("{repeated:?}") };
    assert!(!message.contains(&run.to_string()), "{message}");
    assert_eq!(start(&test.ann()).await.expect("the same run"), run);
}

/// A schedule of ann through a token, and what becomes of it after a change of her rights.
async fn schedule_after(change: impl FnOnce(&Test)) -> (Schedule, usize) {
    let test = Test::new();
    test.access.add_token("t1", 1_800_000_000_000 + 90 * MINUTE);
    let ann = test.engine.as_user(Principal { token: Some("t1".into()), ..Principal::user("ann") });
    ann.define(GATED, None, Expected::Any).await.expect("a definition");
    let schedule = Schedule::new("often", "gated", "* * * * *", Principal::default());
    ann.schedule(schedule).await.expect("a schedule");
    change(&test);
    test.clock.advance(MINUTE);
    test.engine.ready().await.expect("fired");
    let bob = test.engine.as_user(Principal::user("bob"));
    let schedule = loop {
        let schedule = bob.schedules().await.expect("schedules").remove(0);
        if schedule.last.is_some() {
            break schedule;
        }
        tokio::task::yield_now().await;
    };
    (schedule, bob.list(ListRuns::default()).await.expect("a list").len())
}

#[tokio::test]
async fn schedule_ends_when_its_token_or_its_user_loses_the_rights() {
    let (schedule, runs) = schedule_after(|_| {}).await;
    assert_eq!((schedule.due.is_some(), runs), (true, 1), "it fires");
    let changes: [(&str, Change); 4] = [
        ("was revoked", |test| test.access.revoke_token("t1")),
        ("has expired", |test| test.access.add_token("t1", 1_800_000_000_000 + MINUTE / 2)),
        ("may not define and run workflows", |test| test.access.grant("ann", Grants::default())),
        ("may not define and run workflows", |test| test.access.revoke("ann")),
    ];
    for (reason, change) in changes {
        let (schedule, runs) = schedule_after(change).await;
        assert_eq!((schedule.due, runs), (None, 0), "{reason}");
        let error = schedule.last.and_then(|last| last.error).expect("a reason");
        assert!(error.contains(reason), "{error}");
    }
}

#[tokio::test]
async fn run_of_a_revoked_token_makes_no_further_calls() {
    let test = Test::new();
    test.access.add_token("t1", i64::MAX);
    let ann = test.engine.as_user(Principal { token: Some("t1".into()), ..Principal::user("ann") });
    let definition =
        "name: later\nsteps: [{ id: wait, kind: wait, event: go }, { id: act, tool: crm__write }]";
    let run = started(&ann, definition).await;
    test.access.revoke_token("t1");
    assert!(matches!(ann.cancel(run, "no").await, Err(Error::Denied(_))), "the handle is useless, too");
    test.ann().signal("go", Value::Null, Some(run)).await.expect("a signal");
    let view = test.engine.handle(run).wait().await.expect("an end");
    assert_eq!(view.run.error.expect("a failure").kind, FailureKind::Permission);
}
