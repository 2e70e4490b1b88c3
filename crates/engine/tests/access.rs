//! Permissions to call tools: directly and through a workflow, at the start of a run and later.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use steprail_engine::{
    Access, Engine, Error, Expected, FailureKind, Grants, Principal, Right, RunStatus, RunView, Tools, User,
    Workflow,
};
use steprail_engine::{Options, SqliteStore};
use tempfile::TempDir;
use tokio::sync::Notify;

struct TestDatabase(TempDir);

impl TestDatabase {
    fn new() -> Self {
        Self(TempDir::new().expect("a folder"))
    }

    fn store(&self) -> SqliteStore {
        SqliteStore::open(self.0.path().join("access.db"), &Options::default()).expect("a database")
    }
}

const TOOLS: [&str; 4] = ["crm__read_contact", "crm__write_contact", "git__log", "plain"];

fn grants(tools: &[&str], may: &[Right]) -> Grants {
    Grants {
        tools: tools.iter().map(ToString::to_string).collect(),
        may: may.iter().copied().collect(),
        ..Grants::default()
    }
}

/// Users with different rights and tools.
fn users() -> BTreeMap<String, Grants> {
    let named = [
        ("owner", Grants::all()),
        ("reader", grants(&["crm__read_*"], &[Right::Workflow])),
        ("git", grants(&["git__*", "plain"], &[Right::Workflow, Right::View])),
        ("runs_nothing", grants(&["*"], &[])),
        ("calls_nothing", grants(&[], &Right::ALL)),
    ];
    named.map(|(name, grants)| (name.to_owned(), grants)).into()
}

fn tools() -> Tools {
    TOOLS.iter().fold(Tools::new(), |tools, name| {
        tools.tool(name, |call| async move { Ok(call.args.value().clone()) })
    })
}

fn step(tool: &str) -> Workflow {
    Workflow::Inline {
        text: format!("name: one\nsteps: [{{ id: one, tool: {tool} }}]"),
        source: "one".to_owned(),
    }
}

async fn ended(started: Result<steprail_engine::RunHandle, Error>) -> Result<RunView, Error> {
    started?.wait().await
}

/// The outcome of a run as one word: `ok`, `refused`, `failed` or an error code.
fn outcome(view: Result<RunView, Error>) -> &'static str {
    match view {
        Ok(view) if view.run.status == RunStatus::Completed => "ok",
        Ok(view) if view.run.error.as_ref().is_some_and(|error| error.kind == FailureKind::Permission) => {
            "refused"
        }
        Ok(_) => "failed",
        Err(error) => error.code(),
    }
}

#[tokio::test]
async fn workflow_has_exactly_the_permissions_of_its_starter() {
    let database = TestDatabase::new();
    let access = Access::new(users());
    let engine = Engine::builder()
        .store(database.store())
        .tools(tools())
        .authorizer(access)
        .spawn()
        .expect("an engine");
    let mut table = String::new();
    let names: Vec<String> = users().into_keys().chain(["nobody".to_owned()]).collect();
    for name in &names {
        for agent in [false, true] {
            let principal = Principal { agent, ..Principal::user(name) };
            let user = engine.as_user(principal);
            for tool in TOOLS {
                let direct = outcome(ended(user.call_tool(tool, &json!({})).await).await);
                let wrapped = outcome(ended(user.start(step(tool), json!({}), None).await).await);
                assert!(wrapped != "ok" || direct == "ok", "{name}: a workflow grants access to {tool}");
                let through = if agent { " (agent)" } else { "" };
                table.push_str(&format!("{name}{through} {tool}: direct {direct}, step {wrapped}\n"));
            }
        }
    }
    insta::assert_snapshot!(table);
}

/// A workflow of two calls, of which the first blocks until it is released.
const TWO: &str = "name: two\nsteps: [{ id: first, tool: git__wait }, { id: second, tool: git__log }]";

async fn run_with_changed_grants(before: Grants, after: Grants) -> RunView {
    let database = TestDatabase::new();
    let access = Access::new([("ann".to_owned(), before)].into());
    let (started, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (notify_started, wait_for_release) = (started.clone(), release.clone());
    let tools = tools().tool("git__wait", move |_| {
        let (notify_started, wait_for_release) = (notify_started.clone(), wait_for_release.clone());
        async move {
            notify_started.notify_one();
            wait_for_release.notified().await;
            Ok(Value::Null)
        }
    });
    let builder = Engine::builder().store(database.store()).tools(tools).authorizer(access.clone());
    let engine = builder.spawn().expect("an engine");
    let two = Workflow::Inline { text: TWO.to_owned(), source: "two".to_owned() };
    let user: User = engine.as_user(Principal::user("ann"));
    let run = user.start(two, json!({}), None).await.expect("a run");
    started.notified().await;
    access.grant("ann", after);
    release.notify_one();
    run.wait().await.expect("an end")
}

#[tokio::test]
async fn revoked_grant_stops_the_next_call() {
    let view = run_with_changed_grants(
        grants(&["git__*"], &[Right::Workflow]),
        grants(&["crm__*"], &[Right::Workflow]),
    )
    .await;
    let error = view.run.error.expect("an error");
    assert_eq!((error.kind, error.step.as_deref()), (FailureKind::Permission, Some("second")));
}

#[tokio::test]
async fn later_grant_does_not_extend_a_run() {
    let before = grants(&["git__wait"], &[Right::Workflow]);
    let view = run_with_changed_grants(before, grants(&["*"], &Right::ALL)).await;
    let error = view.run.error.expect("an error");
    assert_eq!(error.kind, FailureKind::Permission);
    assert!(error.message.contains("when the run was started"), "{}", error.message);
}

#[tokio::test]
async fn users_see_their_own_runs_and_decide_with_the_right_approve() {
    let database = TestDatabase::new();
    let engine = Engine::builder().store(database.store()).tools(tools()).authorizer(Access::new(users()));
    let engine = engine.spawn().expect("an engine");
    let gate = "name: gate\nsteps: [{ id: ask, kind: approve }]";
    let gate = Workflow::Inline { text: gate.to_owned(), source: "gate".to_owned() };
    let reader = engine.as_user(Principal::user("reader"));
    let run = reader.start(gate, json!({}), None).await.expect("a run").id();
    let as_user = |name: &str| engine.as_user(Principal::user(name));
    // A run that a user may not see is reported as not found.
    let code = |result: Result<RunView, Error>| result.map_or_else(|error| error.code(), |_| "seen");
    let mut seen = Vec::new();
    for name in ["reader", "git", "runs_nothing", "owner", "nobody"] {
        seen.push(code(as_user(name).status(run).await));
    }
    assert_eq!(seen, ["seen", "seen", "not_found", "seen", "not_found"]);
    for (name, cancelled) in [("git", "denied"), ("runs_nothing", "not_found")] {
        assert_eq!(as_user(name).cancel(run, "x").await.expect_err("a refusal").code(), cancelled);
    }
    let decided = reader.decide(run, "ask", true, None, None).await.expect_err("a refusal");
    assert_eq!(
        decided.to_string(),
        "reader may not decide at gates: the right `approve` (130002) is missing"
    );
    let agent = engine.as_user(Principal::user("owner").through_agent());
    assert_eq!(agent.decide(run, "ask", true, None, None).await.expect_err("a refusal").code(), "denied");
    as_user("owner").decide(run, "ask", true, None, None).await.expect("the owner decides");
    assert_eq!(engine.handle(run).wait().await.expect("an end").run.status, RunStatus::Completed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_name_is_created_by_one_of_two_users() {
    let database = TestDatabase::new();
    let workflow = || grants(&[], &[Right::Workflow]);
    let users = BTreeMap::from([("ann".to_owned(), workflow()), ("bob".to_owned(), workflow())]);
    let engine = Engine::builder().store(database.store()).authorizer(Access::new(users)).spawn();
    let engine = engine.expect("an engine");
    for round in 0..200 {
        let define = |user: &str| {
            let user = engine.as_user(Principal::user(user));
            let text = format!(
                "name: n{round}\ndescription: of {}\nsteps: [{{ id: a, kind: pass }}]",
                user.principal().id
            );
            tokio::spawn(async move { user.define(&text, None, Expected::Any).await.is_ok() })
        };
        let (ann, bob) = (define("ann"), define("bob"));
        let created = [ann.await.expect("a task"), bob.await.expect("a task")];
        assert_eq!(created.iter().filter(|created| **created).count(), 1, "round {round}");
    }
}
