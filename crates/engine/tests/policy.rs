//! The policy of an engine: direct calls, inline definitions, reloads, the freeze and remembered approvals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde_json::json;
use steprail_core::source::Source;
use steprail_engine::{
    Access, DecisionRequest, Engine, Error, Expected, ExplainCall, Grants, Options, PolicyHandle, Principal,
    Remember, RunStatus, SqliteStore, Start, StepStatus, ToolCall, Tools, User, WaitCause, Workflow,
    compile_policy,
};
use tempfile::TempDir;

/// A tool that counts its calls.
struct Fixture {
    folder: TempDir,
    calls: Arc<AtomicU32>,
    policy: PolicyHandle,
}

impl Fixture {
    fn new(policy: &str) -> Self {
        let fixture = Self {
            folder: tempfile::tempdir().expect("a folder"),
            calls: Arc::default(),
            policy: PolicyHandle::default(),
        };
        fixture.load(policy);
        fixture
    }

    fn load(&self, text: &str) {
        load(&self.policy, text);
    }

    /// An engine with a handle of its own, as after a restart of the process.
    fn engine(&self) -> Engine {
        let path = self.folder.path().join("test.db");
        let store = SqliteStore::open(path, &Options::default()).expect("a database");
        let calls = self.calls.clone();
        let tools = Tools::new().tool("mail__send", move |call: ToolCall| {
            calls.fetch_add(1, Ordering::SeqCst);
            async move { Ok(call.args.value().clone()) }
        });
        let all = |groups: &[&str]| Grants {
            groups: groups.iter().map(ToString::to_string).collect(),
            ..Grants::all()
        };
        let users = [("ann", all(&["staff"])), ("lea", all(&["finance"])), ("max", Grants::default())];
        let access = Access::new(users.map(|(name, grants)| (name.to_owned(), grants)).into());
        let builder = Engine::builder().store(store).tools(tools).authorizer(access);
        builder.policy(self.policy.clone()).spawn().expect("an engine")
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }
}

fn load(handle: &PolicyHandle, text: &str) {
    let (policy, problems) = compile_policy(&Source::new("policy.yaml", text));
    assert!(problems.is_empty(), "{problems:?}");
    handle.replace(policy);
}

fn user(engine: &Engine, id: &str) -> User {
    engine.as_user(Principal::user(id))
}

const ASK: &str = "{ default: require_approval }";
const MAIL: &str = "name: mail\nsteps: [{ id: send, tool: mail__send }]\n";

#[tokio::test]
async fn a_direct_call_runs_once_after_its_approval() {
    let fixture = Fixture::new(ASK);
    let engine = fixture.engine();
    let run =
        user(&engine, "ann").call_tool("mail__send", &json!({ "to": "bob" })).await.expect("a run").id();
    engine.ready().await.expect("ready");
    assert_eq!(fixture.calls(), 0);
    engine.shutdown().await.expect("stopped");
    drop(engine);
    let engine = fixture.engine();
    let lea = user(&engine, "lea");
    let open = lea.approvals(10).await.expect("approvals");
    assert_eq!((open.len(), open[0].tool.as_deref()), (1, Some("mail__send")));
    lea.decide(run, "call", true, None, Some(open[0].digest)).await.expect("approved");
    let repeated = lea.decide(run, "call", true, None, Some(open[0].digest)).await;
    assert!(repeated.is_ok(), "the same decision again has no effect: {repeated:?}");
    let ended = engine.handle(run).wait().await.expect("ended");
    assert_eq!((ended.run.status, fixture.calls()), (RunStatus::Completed, 1));
}

#[tokio::test]
async fn the_name_of_an_inline_definition_does_not_count() {
    let policy = "{ default: deny, rules: [
        { name: stored, workflows: mail, then: allow }, { name: direct, calls: direct, then: allow } ] }";
    let fixture = Fixture::new(policy);
    let engine = fixture.engine();
    let ann = Principal::user("ann");
    engine.define(MAIL, &ann).await.expect("defined");
    let status = async |start: Start| {
        engine.start(start).await.expect("a run").wait().await.expect("ended").run.status
    };
    assert_eq!(status(Start::inline(MAIL, ann.clone())).await, RunStatus::Failed);
    let disguised = MAIL.replace("name: mail", "name: call mail__send");
    assert_eq!(status(Start::inline(disguised, ann.clone())).await, RunStatus::Failed);
    assert_eq!(status(Start::named("mail", ann.clone())).await, RunStatus::Completed);
    assert_eq!(status(Start::call("mail__send", &json!({}), ann)).await, RunStatus::Completed);
    assert_eq!(fixture.calls(), 2);
}

#[tokio::test]
async fn groups_are_those_of_the_user_now() {
    let fixture =
        Fixture::new("{ default: deny, rules: [{ name: staff, principals: group:staff, then: allow }] }");
    let engine = fixture.engine();
    let status = async |id: &str| {
        let run =
            engine.start(Start::call("mail__send", &json!({}), Principal::user(id))).await.expect("a run");
        run.wait().await.expect("ended").run.status
    };
    assert_eq!(status("ann").await, RunStatus::Completed);
    assert_eq!(status("lea").await, RunStatus::Failed);
}

/// A call that both versions of a policy reject is never made, however often they replace each other.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_never_admits_what_both_versions_reject() {
    let one = "{ default: allow, rules: [
        { name: no-eve, tools: mail__send, when: 'args.to == \"eve\"', then: deny } ] }";
    let other = "{ default: deny, rules: [{ name: bob, when: 'args.to == \"bob\"', then: allow }] }";
    let fixture = Fixture::new(one);
    let engine = fixture.engine();
    let stop = Arc::new(AtomicBool::new(false));
    let reloads = std::thread::spawn({
        let (handle, stop) = (fixture.policy.clone(), stop.clone());
        move || {
            while !stop.load(Ordering::Relaxed) {
                load(&handle, other);
                load(&handle, one);
            }
        }
    });
    for _ in 0..100 {
        let call =
            |to: &str| engine.start(Start::call("mail__send", &json!({ "to": to }), Principal::user("ann")));
        let (eve, bob) = tokio::join!(call("eve"), call("bob"));
        assert_eq!(eve.expect("a run").wait().await.expect("ended").run.status, RunStatus::Failed);
        assert_eq!(bob.expect("a run").wait().await.expect("ended").run.status, RunStatus::Completed);
    }
    stop.store(true, Ordering::Relaxed);
    reloads.join().expect("no panic");
    assert_eq!(fixture.calls(), 100);
}

#[tokio::test]
async fn a_freeze_survives_a_restart() {
    let fixture = Fixture::new("{ default: allow }");
    let engine = fixture.engine();
    let agent = engine.as_user(Principal::user("ann").through_agent());
    assert!(matches!(agent.freeze(None).await, Err(Error::Denied(_))));
    assert!(matches!(user(&engine, "max").freeze(None).await, Err(Error::Denied(_))));
    user(&engine, "ann").freeze(Some("an incident".to_owned())).await.expect("frozen");
    engine.shutdown().await.expect("stopped");
    drop(engine);
    fixture.policy.replace(None);
    let fixture = Fixture { policy: PolicyHandle::default(), ..fixture };
    let engine = fixture.engine();
    let ann = user(&engine, "ann");
    let run = ann.call_tool("mail__send", &json!({})).await.expect("a run").id();
    engine.ready().await.expect("ready");
    let view = ann.status(run).await.expect("a run");
    assert_eq!((view.steps[0].status, fixture.calls()), (StepStatus::Ready, 0));
    let waiting = ann.waiting(&view).await.expect("waiting");
    let reason = Some("an incident".to_owned());
    assert_eq!(waiting[0].cause, WaitCause::Freeze { by: "ann".to_owned(), reason });
    ann.unfreeze().await.expect("calls start");
    assert_eq!(engine.handle(run).wait().await.expect("ended").run.status, RunStatus::Completed);
    assert_eq!(fixture.calls(), 1);
}

#[tokio::test]
async fn a_remembered_approval_survives_a_restart_and_can_be_revoked() {
    let fixture = Fixture::new(ASK);
    let engine = fixture.engine();
    let call = async |engine: &Engine| {
        let run = user(engine, "ann").call_tool("mail__send", &json!({})).await.expect("a run").id();
        engine.ready().await.expect("ready");
        run
    };
    let run = call(&engine).await;
    let remember = Some(Remember { any_arguments: false, millis: 3_600_000 });
    let decision = DecisionRequest { approved: true, remember, ..DecisionRequest::default() };
    user(&engine, "lea").decide_with(run, "call", decision).await.expect("approved");
    engine.handle(run).wait().await.expect("ended");
    engine.shutdown().await.expect("stopped");
    drop(engine);
    let fixture = Fixture { policy: PolicyHandle::default(), ..fixture };
    fixture.load(ASK);
    let engine = fixture.engine();
    let run = call(&engine).await;
    assert_eq!(engine.handle(run).wait().await.expect("ended").run.status, RunStatus::Completed);
    let known = user(&engine, "ann").remembered_approvals();
    assert_eq!((known.len(), known[0].by.as_str(), known[0].rule.as_str()), (1, "lea", "default"));
    assert!(matches!(user(&engine, "max").revoke_remembered(&known[0].id).await, Err(Error::Denied(_))));
    user(&engine, "ann").revoke_remembered(&known[0].id).await.expect("revoked");
    let run = call(&engine).await;
    assert_eq!(user(&engine, "ann").status(run).await.expect("a run").run.status, RunStatus::Paused);
    assert_eq!(fixture.calls(), 2);
}

#[tokio::test]
async fn explanations_name_the_rule_and_charge_nothing() {
    let fixture = Fixture::new(
        "{ default: allow, rules: [
            { name: agents, by: agent, then: deny }, { name: few, tools: mail__send, then: { limit: { budget: 1/d } } } ] }",
    );
    let engine = fixture.engine();
    let mut call = ExplainCall {
        tool: "mail__send".to_owned(),
        args: json!({}),
        annotations: None,
        user: "ann".to_owned(),
        groups: None,
        agent: false,
        client: None,
        workflow: None,
    };
    for _ in 0..2 {
        let explained = user(&engine, "ann").explain_policy(&call).expect("allowed").expect("a policy");
        assert_eq!((&*explained.verdict.rule, explained.verdict.action.name()), ("few", "limit"));
        assert_eq!(explained.rules[0].1.as_deref(), Some("`by` does not match"));
    }
    call.agent = true;
    let explained = user(&engine, "ann").explain_policy(&call).expect("allowed").expect("a policy");
    assert_eq!(&*explained.verdict.rule, "agents");
    assert!(matches!(user(&engine, "max").explain_policy(&call), Err(Error::Denied(_))));
}

#[tokio::test]
async fn definitions_by_agents_can_be_denied() {
    let fixture = Fixture::new("{ default: allow, definitions: { by_agents: denied } }");
    let engine = fixture.engine();
    let ann = user(&engine, "ann");
    let agent = engine.as_user(Principal::user("ann").through_agent());
    let inline = || Workflow::Inline { text: MAIL.to_owned(), source: "mail.yaml".to_owned() };
    for denied in [
        agent.define(MAIL, None, Expected::Any).await.map(drop),
        agent.start(inline(), json!({}), None).await.map(drop),
    ] {
        assert!(matches!(denied, Err(Error::Denied(_))), "{denied:?}");
    }
    ann.define(MAIL, None, Expected::Any).await.expect("defined");
    assert!(matches!(agent.delete_definition("mail", Expected::Any).await, Err(Error::Denied(_))));
    let run = agent.start(Workflow::Named("mail".to_owned(), None), json!({}), None).await.expect("a run");
    assert_eq!(run.wait().await.expect("ended").run.status, RunStatus::Completed);
}

#[tokio::test]
async fn an_agent_cannot_change_the_definition_of_a_person() {
    let fixture = Fixture::new("{ default: allow }");
    let engine = fixture.engine();
    let ann = user(&engine, "ann");
    let agent = engine.as_user(Principal::user("ann").through_agent());
    ann.define(MAIL, None, Expected::Any).await.expect("defined");
    let changed = MAIL.replace("send,", "deliver,");
    let denied = agent.define(&changed, None, Expected::Any).await.map(drop);
    assert!(matches!(denied, Err(Error::Denied(_))), "{denied:?}");
    assert!(matches!(agent.delete_definition("mail", Expected::Any).await, Err(Error::Denied(_))));
    let own = changed.replace("name: mail", "name: draft");
    agent.define(&own, None, Expected::Any).await.expect("a name of its own");
    agent.define(&own.replace("deliver,", "send,"), None, Expected::Any).await.expect("its own definition");
    ann.define(&own, None, Expected::Any).await.expect("people change what their agents defined");
    let taken_over = agent.define(&own.replace("deliver,", "send,"), None, Expected::Any).await.map(drop);
    assert!(matches!(taken_over, Err(Error::Denied(_))), "{taken_over:?}");
}
