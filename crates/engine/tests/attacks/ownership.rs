//! Attacks through definitions: a user or an agent tries to make somebody else's runs do something else, or to use rights
//! that they do not have.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use steprail_core::plan::Hash;
use steprail_core::source::Source;
use steprail_engine::{
    Access, Cursor, DecisionRequest, Engine, Error, Expected, FailureKind, Grants, ManualClock, Options,
    PolicyHandle, Principal, Right, RunStatus, RunView, Schedule, ScheduledVersion, SqliteStore, TokenScope,
    ToolCall, Tools, User, Workflow, compile_policy,
};
use tempfile::TempDir;

/// A full hour.
const START: i64 = 1_800_000_000_000;
const HOUR: i64 = 3_600_000;

/// An engine with users, whose tools record their calls.
struct Fixture {
    folder: TempDir,
    access: Access,
    policy: PolicyHandle,
    clock: Arc<ManualClock>,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Fixture {
    /// ann and lea may call everything, bob only what reads. adam administers.
    fn new() -> Self {
        let may = [Right::Workflow, Right::Approve, Right::Publish];
        let grants = |tools: &[&str], may: &[Right]| Grants {
            tools: tools.iter().map(ToString::to_string).collect(),
            may: may.iter().copied().collect(),
            ..Grants::default()
        };
        let users = [
            ("ann", grants(&["*"], &may)),
            ("lea", grants(&["*"], &may)),
            ("bob", grants(&["crm__read"], &[Right::Workflow])),
            ("adam", Grants::all()),
        ];
        Self {
            folder: tempfile::tempdir().expect("a folder"),
            access: Access::new(users.map(|(name, grants)| (name.to_owned(), grants)).into()),
            policy: PolicyHandle::default(),
            clock: Arc::new(ManualClock::at(START)),
            calls: Arc::default(),
        }
    }

    fn engine(&self) -> Engine {
        let store = SqliteStore::open(self.folder.path().join("test.db"), &Options::default());
        let tools = ["crm__read", "crm__delete", "mail__send"].iter().fold(Tools::new(), |tools, name| {
            let calls = self.calls.clone();
            tools.tool(name, move |call: ToolCall| {
                calls.lock().expect("calls").push(format!("{}({})", call.tool, call.args.json()));
                async { Ok(Value::Null) }
            })
        });
        let builder = Engine::builder().store(store.expect("a database")).tools(tools);
        let builder = builder.authorizer(self.access.clone()).policy(self.policy.clone());
        builder.clock(self.clock.clone()).spawn().expect("an engine")
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().expect("calls"))
    }

    fn load_policy(&self, text: &str) {
        let (policy, problems) = compile_policy(&Source::new("policy.yaml", text));
        assert!(problems.is_empty(), "{problems:?}");
        self.policy.replace(policy);
    }
}

fn user(engine: &Engine, id: &str) -> User {
    engine.as_user(Principal::user(id))
}

fn agent(engine: &Engine, id: &str) -> User {
    engine.as_user(Principal::user(id).through_agent())
}

async fn define(user: &User, text: &str) {
    user.define(text, None, Expected::Any).await.unwrap_or_else(|error| panic!("{error}\n{text}"));
}

async fn run(user: &User, name: &str) -> RunView {
    let named = Workflow::Named(name.to_owned(), None);
    let run = user.start(named, json!({}), None).await.expect("a run");
    run.wait().await.expect("an end")
}

fn failure(view: &RunView) -> (FailureKind, String) {
    let error = view.run.error.as_ref().expect("a failed run");
    (error.kind, error.message.to_string())
}

/// The names of the administrative actions.
async fn actions(engine: &Engine) -> Vec<&'static str> {
    let page = engine.registry().actions(Cursor::START, 1_000).await.expect("actions");
    page.events.iter().map(|stored| stored.event.action.name()).collect()
}

fn calls_tool(name: &str, tool: &str) -> String {
    format!("name: {name}\nsteps: [{{ id: call, tool: {tool} }}]")
}

fn calls_workflow(name: &str, rest: &str) -> String {
    format!("name: {name}\nsteps: [{{ id: sub, kind: workflow, {rest} }}]")
}

#[tokio::test]
async fn allowed_tools_also_restrict_sub_workflows() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    let ann = user(&engine, "ann");
    define(&ann, &calls_tool("wipe", "crm__delete")).await;
    define(&ann, &calls_workflow("middle", "name: wipe")).await;
    let outer = format!("allowed_tools: [\"crm__read\"]\n{}", calls_workflow("outer", "name: middle"));
    define(&ann, &outer).await;
    let view = run(&ann, "outer").await;
    let (kind, message) = failure(&view);
    assert_eq!(kind, FailureKind::Permission, "{message}");
    assert!(message.contains("`allowed_tools` of an enclosing workflow"), "{message}");
    assert!(fixture.calls().is_empty());
    assert_eq!(run(&ann, "middle").await.run.status, RunStatus::Completed, "without the restriction");
}

#[tokio::test]
async fn allowed_tools_restrict_sub_workflows_after_a_restart() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    let ann = user(&engine, "ann");
    let child =
        "name: later\nsteps: [{ id: ask, kind: approve, allow_self: true }, { id: call, tool: crm__delete }]";
    define(&ann, child).await;
    let outer = format!("allowed_tools: [\"crm__read\"]\n{}", calls_workflow("outer", "name: later"));
    define(&ann, &outer).await;
    let named = Workflow::Named("outer".to_owned(), None);
    let id = ann.start(named, json!({}), None).await.expect("a run").id();
    let mut events = engine.subscribe(None, Cursor::START);
    while let Some(stored) = events.next().await.expect("events") {
        if stored.event.name() == "approval_requested" {
            break;
        }
    }
    engine.shutdown().await.expect("shut down");
    drop((ann, events, engine));
    let engine = fixture.engine();
    let ann = user(&engine, "ann");
    let open = ann.run_approvals(id).await.expect("approvals").pop().expect("an approval");
    let approved =
        DecisionRequest { approved: true, digest: Some(open.digest), ..DecisionRequest::default() };
    ann.decide_with(open.run_id, &open.path, approved).await.expect("approved");
    let view = engine.handle(id).wait().await.expect("an end");
    assert_eq!(failure(&view).0, FailureKind::Permission);
    assert!(fixture.calls().is_empty());
}

#[tokio::test]
async fn an_author_cannot_use_the_rights_of_the_starter() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    let (ann, bob) = (user(&engine, "ann"), user(&engine, "bob"));
    define(&bob, &calls_tool("trap", "crm__delete")).await;
    let started = ann.start(Workflow::Named("trap".to_owned(), None), json!({}), None).await;
    let error = started.expect_err("the author may not call the tool");
    assert_eq!(error.code(), "author_denied", "{error}");
    assert!(
        error.to_string().contains("bob") && error.to_string().contains("adopt the definition"),
        "{error}"
    );
    // Neither through a sub-workflow of somebody who has the right,
    define(&ann, &calls_tool("wipe", "crm__delete")).await;
    define(&bob, &calls_workflow("deputy", "name: wipe")).await;
    let (kind, message) = failure(&run(&ann, "deputy").await);
    assert_eq!(kind, FailureKind::Permission, "{message}");
    assert!(message.contains("bob, the author of the definition"), "{message}");
    // nor as a sub-workflow of somebody who has it.
    define(&ann, &calls_workflow("trusting", "name: trap")).await;
    let (kind, message) = failure(&run(&ann, "trusting").await);
    assert!(kind == FailureKind::Permission && message.contains("bob"), "{message}");
    assert!(fixture.calls().is_empty());
}

#[tokio::test]
async fn rights_of_an_author_are_checked_at_each_call() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    let (ann, lea) = (user(&engine, "ann"), user(&engine, "lea"));
    let text = "name: shared\nsteps: [{ id: wait, kind: wait, event: go }, { id: call, tool: crm__delete }]";
    define(&lea, text).await;
    let started = ann.start(Workflow::Named("shared".to_owned(), None), json!({}), None).await;
    let started = started.expect("a run");
    fixture.access.revoke("lea");
    ann.signal("go", Value::Null, Some(started.id())).await.expect("a signal");
    let (kind, message) = failure(&started.wait().await.expect("an end"));
    assert_eq!(kind, FailureKind::Permission, "{message}");
    assert!(message.contains("lea, the author"), "{message}");
    let again = ann.start(Workflow::Named("shared".to_owned(), None), json!({}), None).await;
    assert_eq!(again.expect_err("lea lost the right").code(), "author_denied");
    assert!(fixture.calls().is_empty());

    // Somebody with the rights takes the definition over, which nobody else and no agent can.
    for denied in [
        ann.adopt_definition("shared", Expected::Any).await,
        agent(&engine, "adam").adopt_definition("shared", Expected::Any).await,
    ] {
        assert!(matches!(denied, Err(Error::Denied(_))), "{denied:?}");
    }
    let unseen = user(&engine, "adam").adopt_definition("shared", Expected::Version(9)).await;
    assert!(matches!(unseen, Err(Error::Conflict(_))), "{unseen:?}");
    let adopted =
        user(&engine, "adam").adopt_definition("shared", Expected::Version(1)).await.expect("adopted");
    assert_eq!((adopted.version, &*adopted.created_by), (1, "adam"));
    let run = ann.start(Workflow::Named("shared".to_owned(), None), json!({}), None).await.expect("a run");
    ann.signal("go", Value::Null, Some(run.id())).await.expect("a signal");
    assert_eq!(run.wait().await.expect("an end").run.status, RunStatus::Completed);
    assert!(actions(&engine).await.contains(&"definition_adopted"));
}

#[tokio::test]
async fn a_definition_is_adopted_only_by_somebody_who_may_call_its_tools() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    define(&user(&engine, "lea"), &calls_tool("wipe", "crm__delete")).await;
    let may = [Right::Workflow, Right::Administer].into();
    fixture.access.grant("kim", Grants { tools: vec!["crm__read".to_owned()], may, ..Grants::default() });
    let denied = user(&engine, "kim").adopt_definition("wipe", Expected::Any).await;
    assert!(matches!(&denied, Err(Error::Denied(reason)) if reason.contains("crm__delete")), "{denied:?}");
    // An earlier version can be started, too.
    define(&user(&engine, "lea"), &calls_tool("wipe", "crm__read")).await;
    let denied = user(&engine, "kim").adopt_definition("wipe", Expected::Any).await;
    let names_it = |reason: &str| reason.contains("crm__delete") && reason.contains("version 1 of `wipe`");
    assert!(matches!(&denied, Err(Error::Denied(reason)) if names_it(reason)), "{denied:?}");
    assert_eq!(engine.definition("wipe", Some(1)).await.expect("it").created_by, "lea");
}

#[tokio::test]
async fn a_sub_workflow_keeps_its_version() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    let (ann, lea) = (user(&engine, "ann"), user(&engine, "lea"));
    define(&lea, &calls_tool("report", "crm__read")).await;
    define(&ann, &calls_workflow("nightly", "name: report")).await;
    define(&lea, &calls_tool("report", "crm__delete")).await;
    assert_eq!(run(&ann, "nightly").await.run.status, RunStatus::Completed);
    assert_eq!(fixture.calls(), ["crm__read({})"], "the version that existed when it was stored");
    // Storing it again keeps the version of that time.
    define(&ann, &calls_workflow("nightly", "name: report")).await;
    assert_eq!(ann.definition("nightly", None).await.expect("it").version, 2);
    run(&ann, "nightly").await;
    assert_eq!(fixture.calls(), ["crm__delete({})"]);
    define(&ann, &calls_workflow("nightly", "name: report, version: 1")).await;
    run(&ann, "nightly").await;
    assert_eq!(fixture.calls(), ["crm__read({})"]);
    lea.delete_definition("report", Expected::Any).await.expect("deleted");
    let (kind, message) = failure(&run(&ann, "nightly").await);
    assert!(kind == FailureKind::NotFound && message.contains("deleted"), "{message}");
}

#[tokio::test]
async fn the_number_of_a_deleted_version_is_not_used_again() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    let (ann, lea) = (user(&engine, "ann"), user(&engine, "lea"));
    define(&lea, &calls_tool("report", "crm__read")).await;
    define(&ann, &calls_workflow("nightly", "name: report")).await;
    define(&ann, &calls_workflow("weekly", "name: report, version: 1")).await;
    lea.delete_definition("report", Expected::Any).await.expect("deleted");
    engine.purge(Duration::ZERO).await.expect("purged");
    define(&lea, &calls_tool("report", "crm__delete")).await;
    assert_eq!(lea.definition("report", None).await.expect("it").version, 2, "also after a purge");
    for name in ["nightly", "weekly"] {
        let (kind, message) = failure(&run(&ann, name).await);
        assert_eq!(kind, FailureKind::NotFound, "{message}");
    }
    assert!(fixture.calls().is_empty());
}

#[tokio::test]
async fn latest_needs_the_same_owner() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    let (ann, lea) = (user(&engine, "ann"), user(&engine, "lea"));
    define(&lea, &calls_tool("report", "crm__read")).await;
    let latest = calls_workflow("nightly", "name: report, version: latest");
    let denied = ann.define(&latest, None, Expected::Any).await;
    assert!(matches!(&denied, Err(Error::Denied(reason)) if reason.contains("belongs to lea")), "{denied:?}");
    // A name that is taken later by somebody else is not followed either.
    define(&ann, &calls_workflow("weekly", "name: summary")).await;
    define(&lea, &calls_tool("summary", "crm__delete")).await;
    let (kind, message) = failure(&run(&ann, "weekly").await);
    assert!(kind == FailureKind::Permission && message.contains("belongs to lea"), "{message}");
    // A person's definition does not follow that of an agent.
    define(&agent(&engine, "ann"), &calls_tool("helper", "crm__read")).await;
    let follows = calls_workflow("daily", "name: helper, version: latest");
    let denied = ann.define(&follows, None, Expected::Any).await;
    assert!(matches!(&denied, Err(Error::Denied(reason)) if reason.contains("an agent")), "{denied:?}");
    assert!(fixture.calls().is_empty());
    // The same owner is followed.
    define(&ann, &calls_tool("own", "crm__read")).await;
    define(&ann, &calls_workflow("follows", "name: own, version: latest")).await;
    define(&ann, &calls_tool("own", "mail__send")).await;
    run(&ann, "follows").await;
    assert_eq!(fixture.calls(), ["mail__send({})"]);
}

#[tokio::test]
async fn a_sub_workflow_that_is_stored_later_keeps_the_version_of_its_first_run() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    let ann = user(&engine, "ann");
    define(&ann, &calls_workflow("outer", "name: inner")).await;
    assert_eq!(failure(&run(&ann, "outer").await).0, FailureKind::NotFound);
    define(&ann, &calls_tool("inner", "crm__read")).await;
    run(&ann, "outer").await;
    define(&ann, &calls_tool("inner", "crm__delete")).await;
    run(&ann, "outer").await;
    assert_eq!(fixture.calls(), ["crm__read({})", "crm__read({})"]);
    assert!(actions(&engine).await.contains(&"definition_pinned"));
}

#[tokio::test]
async fn an_approval_covers_the_version_that_is_kept() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    let (ann, lea) = (user(&engine, "ann"), user(&engine, "lea"));
    define(&lea, &calls_tool("pay", "crm__read")).await;
    let gated = |rest: &str| {
        format!("name: gated\nsteps: [{{ id: ask, kind: approve }}, {{ id: sub, kind: workflow, {rest} }}]")
    };
    define(&ann, &gated("name: pay")).await;
    let started = ann.start(Workflow::Named("gated".to_owned(), None), json!({}), None).await.expect("a run");
    let id = started.id();
    let mut events = engine.subscribe(Some(id), Cursor::START);
    while events
        .next()
        .await
        .expect("events")
        .is_some_and(|stored| stored.event.name() != "approval_requested")
    {}
    let open = engine.run_approvals(id).await.expect("approvals").pop().expect("an approval");
    // Another version changes nothing that was shown, because it does not run.
    define(&lea, &calls_tool("pay", "crm__delete")).await;
    lea.decide(id, "ask", true, None, Some(open.digest)).await.expect("approved");
    assert_eq!(started.wait().await.expect("an end").run.status, RunStatus::Completed);
    assert_eq!(fixture.calls(), ["crm__read({})"]);
}

#[tokio::test]
async fn a_schedule_keeps_its_version() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    let (ann, lea) = (user(&engine, "ann"), user(&engine, "lea"));
    define(&lea, &calls_tool("report", "crm__read")).await;
    let schedule = |version| Schedule {
        version,
        ..Schedule::new("hourly", "report", "0 * * * *", Principal::default())
    };
    let latest = ann.schedule(schedule(Some(ScheduledVersion::Latest))).await;
    assert!(matches!(&latest, Err(Error::Denied(reason)) if reason.contains("belongs to lea")), "{latest:?}");
    let stored = ann.schedule(schedule(None)).await.expect("a schedule");
    assert!(matches!(stored.version, Some(ScheduledVersion::Pinned(pin)) if pin.version == 1), "{stored:?}");
    define(&lea, &calls_tool("report", "crm__delete")).await;
    let fired = async |hour: i64| {
        fixture.clock.advance(HOUR);
        loop {
            let last = engine.schedules().await.expect("schedules")[0].last.clone();
            match last.filter(|last| last.at >= START + hour * HOUR) {
                Some(last) => return last,
                None => tokio::task::yield_now().await,
            }
        }
    };
    let started = fired(1).await.run.expect("a run");
    engine.handle(started).wait().await.expect("an end");
    assert_eq!(fixture.calls(), ["crm__read({})"]);
    // The author loses the right: the next time starts nothing and says why.
    fixture.access.revoke("lea");
    let last = fired(2).await;
    assert!(last.run.is_none(), "{last:?}");
    assert!(last.error.as_ref().is_some_and(|error| error.contains("lea may not call")), "{last:?}");
    assert!(fixture.calls().is_empty());
}

const PROPOSED: &str = "{ default: allow, definitions: { by_agents: proposed } }";

#[tokio::test]
async fn a_definition_of_an_agent_waits_for_a_person() {
    let fixture = Fixture::new();
    fixture.load_policy(PROPOSED);
    let engine = fixture.engine();
    let (ann, agent) = (user(&engine, "ann"), agent(&engine, "ann"));
    define(&ann, &calls_tool("report", "crm__read")).await;
    let changed = calls_tool("report", "crm__delete");
    let (proposed, _) = agent.define(&changed, None, Expected::Any).await.expect("a proposal");
    assert!(proposed.proposed && proposed.version == 0, "{proposed:?}");
    let (new, _) = agent.define(&calls_tool("fresh", "crm__read"), None, Expected::Any).await.expect("one");
    assert!(new.proposed);
    // It does not run, neither by name nor inline.
    run(&agent, "report").await;
    assert_eq!(fixture.calls(), ["crm__read({})"]);
    let inline = Workflow::Inline { text: changed.clone(), source: "x.yaml".to_owned() };
    for started in [
        agent.start(Workflow::Named("fresh".to_owned(), None), json!({}), None).await,
        agent.start(inline, json!({}), None).await,
    ] {
        assert!(matches!(started, Err(Error::NotFound(_) | Error::Denied(_))), "{started:?}");
    }
    // The agent cannot accept it, nor can another user.
    let shown = ann.proposal("report").await.expect("a proposal");
    assert_eq!(shown.base.as_ref().map(|base| base.version), Some(1));
    for other in [&agent, &user(&engine, "lea"), &user(&engine, "bob")] {
        let accepted = other.accept_proposal("report", shown.digest).await;
        assert!(matches!(accepted, Err(Error::Denied(_) | Error::NotFound(_))), "{accepted:?}");
    }
    // A proposal that changed after it was shown is not accepted.
    agent.define(&calls_tool("report", "mail__send"), None, Expected::Any).await.expect("a proposal");
    let stale = ann.accept_proposal("report", shown.digest).await;
    assert!(matches!(&stale, Err(Error::Conflict(reason)) if reason.contains("has changed")), "{stale:?}");
    let shown = ann.proposal("report").await.expect("a proposal");
    define(&ann, &format!("description: d\n{}", calls_tool("report", "crm__read"))).await;
    let stale = ann.accept_proposal("report", shown.digest).await;
    assert!(matches!(stale, Err(Error::Conflict(_))), "the definition changed: {stale:?}");
    let shown = ann.proposal("report").await.expect("a proposal");
    let (accepted, _) = ann.accept_proposal("report", shown.digest).await.expect("accepted");
    assert_eq!(accepted.version, 3);
    let newest = ann.definition("report", None).await.expect("it");
    assert_eq!((newest.version, &*newest.created_by, newest.by_agent), (3, "ann", false));
    run(&agent, "report").await;
    assert_eq!(fixture.calls(), ["mail__send({})"]);
    let fresh = ann.proposal("fresh").await.expect("a proposal");
    assert!(matches!(ann.reject_proposal("fresh", Hash([0; 32])).await, Err(Error::Conflict(_))));
    ann.reject_proposal("fresh", fresh.digest).await.expect("rejected");
    assert!(ann.proposals().await.expect("proposals").is_empty());
    assert!(matches!(ann.proposal("fresh").await, Err(Error::NotFound(_))));
    let actions = actions(&engine).await;
    for action in ["definition_proposed", "proposal_accepted", "proposal_rejected"] {
        assert!(actions.contains(&action), "{action}: {actions:?}");
    }
}

#[tokio::test]
async fn a_proposal_whose_sub_workflow_changed_after_it_was_shown_is_not_accepted() {
    let fixture = Fixture::new();
    fixture.load_policy(PROPOSED);
    let engine = fixture.engine();
    let (ann, agent) = (user(&engine, "ann"), agent(&engine, "ann"));
    define(&ann, &calls_tool("inner", "crm__read")).await;
    let outer = "name: outer\nsteps: [{ id: sub, kind: workflow, name: inner }]";
    agent.define(outer, None, Expected::Any).await.expect("a proposal");
    let shown = ann.proposal("outer").await.expect("a proposal");
    assert_eq!(shown.workflows["inner"].version, 1);
    define(&ann, &calls_tool("inner", "crm__delete")).await;
    let stale = ann.accept_proposal("outer", shown.digest).await;
    assert!(matches!(&stale, Err(Error::Conflict(reason)) if reason.contains("has changed")), "{stale:?}");
    let shown = ann.proposal("outer").await.expect("a proposal");
    ann.accept_proposal("outer", shown.digest).await.expect("accepted");
    run(&agent, "outer").await;
    assert_eq!(fixture.calls(), ["crm__delete({})"]);
}

#[tokio::test]
async fn a_proposal_for_the_definition_of_another_user_is_rejected() {
    let fixture = Fixture::new();
    fixture.load_policy(PROPOSED);
    let engine = fixture.engine();
    define(&user(&engine, "lea"), &calls_tool("report", "crm__read")).await;
    let denied =
        agent(&engine, "ann").define(&calls_tool("report", "crm__delete"), None, Expected::Any).await;
    assert!(matches!(&denied, Err(Error::Denied(reason)) if reason.contains("belongs to lea")), "{denied:?}");
    agent(&engine, "ann").define(&calls_tool("other", "crm__read"), None, Expected::Any).await.expect("one");
    let denied = agent(&engine, "lea").define(&calls_tool("other", "crm__delete"), None, Expected::Any).await;
    assert!(matches!(denied, Err(Error::Denied(_))), "the name has a proposal of ann: {denied:?}");
}

#[tokio::test]
async fn the_name_of_a_deleted_definition_is_not_free_for_others() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    let lea = user(&engine, "lea");
    define(&lea, &calls_tool("deploy", "crm__read")).await;
    lea.delete_definition("deploy", Expected::Any).await.expect("deleted");
    let hijack = calls_tool("deploy", "crm__delete");
    for other in [user(&engine, "ann"), agent(&engine, "ann"), agent(&engine, "lea")] {
        let denied = other.define(&hijack, None, Expected::Any).await;
        assert!(matches!(denied, Err(Error::Denied(_))), "{denied:?}");
    }
    define(&lea, &calls_tool("deploy", "crm__read")).await;
}

#[tokio::test]
async fn publishing_is_a_right_of_its_own() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    let bob = user(&engine, "bob");
    let text = calls_tool("report", "crm__read");
    for published in [
        bob.define(&text, Some(true), Expected::Any).await,
        bob.define(&format!("publish: true\n{text}"), None, Expected::Any).await,
        bob.define(&format!("publish: {{ as: report }}\n{text}"), None, Expected::Any).await,
    ] {
        assert!(
            matches!(&published, Err(Error::Denied(reason)) if reason.contains("`publish`")),
            "{published:?}"
        );
    }
    define(&bob, &text).await;
    assert!(engine.published().await.expect("definitions").is_empty());
}

#[tokio::test]
async fn the_name_of_a_published_tool_is_reserved() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    let (ann, lea) = (user(&engine, "ann"), user(&engine, "lea"));
    define(&ann, &format!("publish: true\n{}", calls_tool("pay invoice", "crm__read"))).await;
    let same = [
        ("pay.invoice", "true"),
        ("pay_invoice", "true"),
        ("Pay-Invoice", "true"),
        ("other", "{ as: wf_pay_invoice }"),
        ("other", "{ as: WF_pay-invoice }"),
    ];
    for (name, publish) in same {
        let text = format!("publish: {publish}\n{}", calls_tool(name, "crm__delete"));
        let taken = lea.define(&text, None, Expected::Any).await;
        assert!(
            matches!(&taken, Err(Error::Conflict(reason)) if reason.contains("reserved")),
            "{name}: {taken:?}"
        );
    }
    assert_eq!(engine.published().await.expect("definitions").len(), 1);
    define(&lea, &format!("publish: {{ as: pay }}\n{}", calls_tool("pay_invoice", "crm__read"))).await;
}

#[tokio::test]
async fn a_group_named_like_a_user_is_not_an_approver_by_accident() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    let ann = user(&engine, "ann");
    let gated = |approver: &str| {
        format!("name: gated\nsteps: [{{ id: ask, kind: approve, approvers: [\"{approver}\"] }}]")
    };
    define(&ann, &gated("lea")).await;
    fixture.access.add_group("lea");
    for text in [
        gated("lea"),
        "name: notified\nsteps: [{ id: ask, kind: approve, notify_user: lea }]".to_owned(),
        "name: escalated\nsteps: [{ id: ask, kind: approve, timeout: 2h, escalate: [{ after: 1h, notify: lea }] }]"
            .to_owned(),
        "name: level\nsteps: [{ id: ask, kind: approve, escalate: [{ after: 1h, approvers: lea }] }]".to_owned(),
        "name: called\nsteps: [{ id: a, tool: crm__read, needs_human: { approvers: [lea] } }]".to_owned(),
    ] {
        let stored = ann.define(&text, None, Expected::Any).await;
        assert!(
            matches!(&stored, Err(Error::Invalid(found)) if found[0].code.id() == "SR514"),
            "{text}: {stored:?}"
        );
        let inline = Workflow::Inline { text: text.clone(), source: "x.yaml".to_owned() };
        assert!(matches!(ann.start(inline, json!({}), None).await, Err(Error::Invalid(_))), "{text}");
    }
    define(&ann, &gated("user:lea")).await;
    define(&ann, &gated("group:lea")).await;
}

#[tokio::test]
async fn a_scoped_token_stores_only_definitions_within_its_scope() {
    let fixture = Fixture::new();
    let engine = fixture.engine();
    define(&user(&engine, "ann"), &calls_tool("wipe", "crm__delete")).await;
    let scope = TokenScope { may: None, tools: Some(vec!["crm__read".to_owned()]) };
    let token = engine.as_user(Principal { scope: Some(scope), ..Principal::user("ann").through_agent() });
    let outside = calls_workflow("deputy", "name: wipe");
    let widened = format!("allowed_tools: [\"crm__*\"]\n{}", calls_workflow("deputy", "name: wipe"));
    let verified =
        "name: verified\nsteps: [{ id: a, tool: crm__read, verify: { tool: crm__delete, when: result } }]";
    for text in [calls_tool("trap", "crm__delete"), outside, widened, verified.to_owned()] {
        let stored = token.define(&text, None, Expected::Any).await;
        assert!(
            matches!(&stored, Err(Error::Denied(reason)) if reason.contains("scope")),
            "{text}: {stored:?}"
        );
    }
    define(&token, &calls_tool("fine", "crm__read")).await;
    let within = format!("allowed_tools: [\"crm__read\"]\n{}", calls_workflow("restricted", "name: wipe"));
    define(&token, &within).await;
    assert_eq!(failure(&run(&user(&engine, "ann"), "restricted").await).0, FailureKind::Permission);
    assert!(fixture.calls().is_empty());
}
