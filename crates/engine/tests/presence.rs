//! Presence and single-use codes: decisions without proof, wrong, replayed and stale codes, each refused and recorded.

use std::sync::Arc;

use serde_json::{Value, json};
use steprail_core::source::Source;
use steprail_engine::{
    Access, AdminAction, Approval, CodeRequest, Cursor, DecisionRequest, Engine, Error, Event, Grants,
    InterventionAction, InterventionRequest, ManualClock, Options, PolicyHandle, Presence, Principal,
    RedeemRequest, Relay, Remember, RunId, RunStatus, SqliteStore, ToolCall, Tools, User, Workflow,
    compile_policy,
};
use steprail_store::After;
use tempfile::TempDir;

const GATED: &str = "
name: gated
steps:
  - { id: ask, kind: approve, prompt: Go on? }
  - { id: act, tool: mail__send, args: { to: bob } }
";

struct Fixture {
    engine: Engine,
    clock: Arc<ManualClock>,
    _folder: TempDir,
}

impl Fixture {
    fn new(presence: Presence, policy: Option<&str>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store =
            SqliteStore::open(folder.path().join("test.db"), &Options::default()).expect("a database");
        let tools =
            Tools::new().tool("mail__send", |call: ToolCall| async move { Ok(call.args.value().clone()) });
        let users = ["ann", "lea", "max"].map(|name| (name.to_owned(), Grants::all()));
        let clock = Arc::new(ManualClock::at(1_800_000_000_000));
        let builder = Engine::builder().store(store).tools(tools).clock(clock.clone()).presence(presence);
        let builder = builder.authorizer(Access::new(users.into()));
        let compiled = policy.map(|text| {
            let (policy, problems) = compile_policy(&Source::new("policy.yaml", text));
            assert!(problems.is_empty(), "{problems:?}");
            policy.expect("a policy")
        });
        let engine = builder.policy(PolicyHandle::new(compiled)).spawn().expect("an engine");
        Self { engine, clock, _folder: folder }
    }

    fn user(&self, id: &str, presence: Presence) -> User {
        let mut principal = Principal::user(id);
        principal.provenance.presence = presence;
        self.engine.as_user(principal)
    }

    /// A client of a user.
    fn agent(&self, id: &str) -> User {
        self.engine.as_user(Principal::user(id).through_agent())
    }

    /// A run of `ann` that waits, and its approval.
    async fn waiting(&self, text: &str) -> (RunId, Approval) {
        let workflow = Workflow::Inline { text: text.to_owned(), source: "test".to_owned() };
        let run = self.agent("ann").start(workflow, json!({}), None).await.expect("a run").id();
        (run, self.approval(run).await)
    }

    async fn approval(&self, run: RunId) -> Approval {
        let ann = self.agent("ann");
        ann.wait(run, None, std::time::Duration::from_secs(10)).await.expect("a run");
        ann.run_approvals(run).await.expect("approvals").pop().expect("an approval")
    }

    async fn code(&self, by: &User, approval: &Approval, approved: bool) -> String {
        by.issue_code(request(approval, approved)).await.expect("a code").code
    }

    /// The names of the actions that record refusals.
    async fn refusals(&self) -> Vec<&'static str> {
        let actions = self.engine.registry().actions(Cursor::START, 1_000).await.expect("actions").events;
        let is_refusal = |action: &AdminAction| {
            matches!(action, AdminAction::DecisionRejected { .. } | AdminAction::CodeRejected { .. })
        };
        let actions = actions.iter().map(|stored| &stored.event.action);
        actions.filter(|action| is_refusal(action)).map(AdminAction::name).collect()
    }

    async fn status(&self, run: RunId) -> RunStatus {
        self.engine.row(run).await.expect("a run").status
    }

    /// The provenance of the approval of a run, as the log has it.
    async fn provenance(&self, run: RunId) -> Value {
        let events = self.engine.events(run, After::Seq(0), 1_000).await.expect("events").events;
        let decided = events.iter().find(|stored| matches!(stored.event, Event::ApprovalGranted { .. }));
        serde_json::to_value(&decided.expect("a decision").event).expect("JSON")["provenance"].clone()
    }
}

fn request(approval: &Approval, approved: bool) -> CodeRequest {
    let (run, path, digest) = (approval.run_id, approval.path.clone(), approval.digest);
    CodeRequest { run, path, digest, approved, answer: None, reason: None }
}

async fn redeem(client: &User, run: RunId, path: &str, approved: bool, code: &str) -> Result<(), Error> {
    client.redeem_code(RedeemRequest { run, path, approved, code, note: None }).await
}

fn is_presence_required(result: &Result<(), Error>, factor: Presence) -> bool {
    matches!(result, Err(Error::PresenceRequired(required)) if *required == factor)
}

#[tokio::test]
async fn decisions_need_the_factor() {
    let fixture = Fixture::new(Presence::Pin, None);
    let (run, approval) = fixture.waiting(GATED).await;
    let (absent, present) = (fixture.user("lea", Presence::None), fixture.user("lea", Presence::Pin));
    assert!(absent.may_decide(run, "ask").await, "the right does not depend on the factor");
    let refused = absent.decide(run, "ask", true, None, Some(approval.digest)).await;
    assert!(is_presence_required(&refused, Presence::Pin));
    assert!(is_presence_required(&absent.decide(run, "ask", false, None, None).await, Presence::Pin));
    // An answer of an MCP client never proves presence, whatever its request carried.
    let relayed = fixture.agent("lea").in_person();
    assert!(is_presence_required(&relayed.decide(run, "ask", true, None, None).await, Presence::Pin));
    let relayed = present.in_person();
    assert!(is_presence_required(&relayed.decide(run, "ask", true, None, None).await, Presence::Pin));
    let agent = fixture.agent("lea").decide(run, "ask", true, None, None).await;
    assert!(matches!(agent, Err(Error::Denied(_))), "{agent:?}");
    assert_eq!(fixture.refusals().await, ["decision_rejected"; 4]);
    assert_eq!(fixture.status(run).await, RunStatus::Paused);
    present.decide(run, "ask", true, None, Some(approval.digest)).await.expect("approved");
    assert_eq!(fixture.provenance(run).await, json!({ "presence": "pin" }));
}

#[tokio::test]
async fn interventions_and_resolutions_need_the_factor() {
    let fixture = Fixture::new(Presence::Pin, None);
    let (run, _) = fixture.waiting(GATED).await;
    for action in [InterventionAction::SetArguments, InterventionAction::Skip] {
        let step = if action == InterventionAction::Skip { "ask" } else { "act" };
        let value = Some(json!({ "to": "eve" }));
        let request = InterventionRequest { action, step: Some(step.to_owned()), value, digest: None };
        let refused = fixture.user("lea", Presence::None).intervene(run, request.clone()).await;
        assert!(is_presence_required(&refused, Presence::Pin));
        fixture.user("lea", Presence::Totp).intervene(run, request).await.expect("changed");
    }
}

#[tokio::test]
async fn rule_of_the_policy_can_need_a_stronger_factor() {
    let policy = "
default: allow
rules:
  - { name: mails, tools: mail__*, then: { require_approval: { presence: totp } } }
";
    let fixture = Fixture::new(Presence::Pin, Some(policy));
    let (run, _) = fixture.waiting(GATED).await;
    // The approval of the gate covers the call. It does not satisfy the rule, because it was given with a PIN.
    fixture.user("lea", Presence::Pin).decide(run, "ask", true, None, None).await.expect("approved");
    let approval = fixture.approval(run).await;
    assert_eq!((&*approval.path, fixture.engine.presence_at(&approval)), ("act", Presence::Totp));
    let refused = fixture.user("lea", Presence::Pin).decide(run, "act", true, None, None).await;
    assert!(is_presence_required(&refused, Presence::Totp));
    fixture.user("lea", Presence::Totp).decide(run, "act", true, None, None).await.expect("approved");
    let (run, _) = fixture.waiting(GATED).await;
    fixture.user("lea", Presence::Totp).decide(run, "ask", true, None, None).await.expect("approved");
    let ended =
        fixture.agent("ann").wait(run, None, std::time::Duration::from_secs(10)).await.expect("a run");
    assert_eq!(ended.status, RunStatus::Completed, "nobody is asked twice");
}

#[tokio::test]
async fn code_decides_once_as_the_person_who_issued_it() {
    let fixture = Fixture::new(Presence::Pin, None);
    let (run, approval) = fixture.waiting(GATED).await;
    let absent = fixture.user("lea", Presence::None).issue_code(request(&approval, true)).await;
    assert!(is_presence_required(&absent.map(drop), Presence::Pin));
    let agent = fixture.agent("lea").issue_code(request(&approval, true)).await;
    assert!(matches!(agent.map(drop), Err(Error::Denied(_))), "an agent gets no code");
    let starter = fixture.user("ann", Presence::Pin).issue_code(request(&approval, true)).await;
    assert!(matches!(starter.map(drop), Err(Error::Denied(_))), "the starter may not decide");
    let code = fixture.code(&fixture.user("lea", Presence::Pin), &approval, true).await;
    let typed = code.to_lowercase().replace('-', " ");
    redeem(&fixture.agent("lea"), run, "ask", true, &typed).await.expect("approved");
    assert_eq!(fixture.provenance(run).await, json!({ "surface": "mcp", "presence": "pin", "code": true }));
    let replayed = redeem(&fixture.agent("lea"), run, "ask", true, &code).await;
    assert!(matches!(replayed, Err(Error::Denied(_))), "{replayed:?}");
    assert_eq!(fixture.refusals().await, ["code_rejected"]);
}

#[tokio::test]
async fn code_is_bound_to_its_decision() {
    let fixture = Fixture::new(Presence::None, None);
    let ((run, approval), (other, _)) = (fixture.waiting(GATED).await, fixture.waiting(GATED).await);
    let lea = fixture.user("lea", Presence::None);
    let code = fixture.code(&lea, &approval, true).await;
    let attempts = [
        (fixture.agent("lea"), other, "ask", true, "another run"),
        (fixture.agent("lea"), run, "act", true, "another step"),
        (fixture.agent("lea"), run, "ask", false, "another decision"),
        (fixture.agent("max"), run, "ask", true, "a client of another user"),
    ];
    for (client, run, path, approved, what) in attempts {
        let refused = redeem(&client, run, path, approved, &code).await;
        assert!(matches!(refused, Err(Error::Denied(_))), "{what}: {refused:?}");
    }
    let wrong_digest = CodeRequest { digest: steprail_core::plan::Hash([0; 32]), ..request(&approval, true) };
    assert!(matches!(lea.issue_code(wrong_digest).await.map(drop), Err(Error::Conflict(_))));
    redeem(&fixture.agent("lea"), run, "ask", true, &code).await.expect("approved");
    assert_eq!(fixture.refusals().await, ["code_rejected"; 4]);
}

#[tokio::test]
async fn code_is_void_after_its_request_changed_and_after_ten_minutes() {
    let fixture = Fixture::new(Presence::None, None);
    let (run, approval) = fixture.waiting(GATED).await;
    let lea = fixture.user("lea", Presence::None);
    let code = fixture.code(&lea, &approval, true).await;
    let (step, value) = (Some("act".to_owned()), Some(json!({ "to": "eve" })));
    let edit = InterventionRequest { action: InterventionAction::SetArguments, step, value, digest: None };
    lea.intervene(run, edit).await.expect("edited");
    let stale = redeem(&fixture.agent("lea"), run, "ask", true, &code).await;
    assert!(matches!(stale, Err(Error::Conflict(_))), "{stale:?}");
    assert_eq!(fixture.status(run).await, RunStatus::Paused);
    let renewed = fixture.approval(run).await;
    assert_ne!(renewed.digest, approval.digest);
    let code = fixture.code(&lea, &renewed, true).await;
    fixture.clock.advance(10 * 60 * 1_000);
    let expired = redeem(&fixture.agent("lea"), run, "ask", true, &code).await;
    assert!(matches!(expired, Err(Error::Denied(_))), "{expired:?}");
    let first = fixture.code(&lea, &renewed, true).await;
    let second = fixture.code(&lea, &renewed, false).await;
    let replaced = redeem(&fixture.agent("lea"), run, "ask", true, &first).await;
    assert!(matches!(replaced, Err(Error::Denied(_))), "a newer code replaces it");
    redeem(&fixture.agent("lea"), run, "ask", false, &second).await.expect("denied");
}

#[tokio::test]
async fn guessing_codes_voids_them_and_locks_out() {
    let fixture = Fixture::new(Presence::None, None);
    let (run, approval) = fixture.waiting(GATED).await;
    let lea = fixture.user("lea", Presence::None);
    let code = fixture.code(&lea, &approval, true).await;
    for guess in ["", "00000000", "0000-0001", "€", &"A".repeat(100_000)] {
        let refused = redeem(&fixture.agent("lea"), run, "ask", true, guess).await;
        assert!(matches!(refused, Err(Error::Denied(_))), "{refused:?}");
    }
    let fresh = fixture.code(&lea, &approval, true).await;
    let locked =
        redeem(&fixture.agent("lea"), run, "ask", true, &fresh).await.expect_err("locked").to_string();
    assert!(locked.contains("too many wrong codes"), "{locked}");
    assert_eq!(
        fixture.refusals().await,
        ["code_rejected"; 5],
        "attempts during the lockout are not recorded"
    );
    fixture.clock.advance(60_000);
    let voided = redeem(&fixture.agent("lea"), run, "ask", true, &code).await;
    assert!(matches!(voided, Err(Error::Denied(_))), "the code before the lockout is void");
    redeem(&fixture.agent("lea"), run, "ask", true, &fresh).await.expect("approved");
}

#[tokio::test]
async fn client_of_a_relayed_call_cannot_decide_gates() {
    let fixture = Fixture::new(Presence::Pin, None);
    let (run, _) = fixture.waiting(GATED).await;
    let relaying = fixture.agent("ann").relaying(Relay::default());
    let refused = relaying.decide(run, "ask", true, None, None).await;
    assert!(matches!(refused, Err(Error::Denied(_))), "{refused:?}");
}

const LEVELS: &str = "
name: gated
steps:
  - { id: ask, kind: approve, approvers: ['user:lea'], escalate: [{ after: 1h, approvers: ['user:max'] }] }
";

impl Fixture {
    /// Lets an hour pass, and waits until the timers have fired.
    async fn an_hour_later(&self) {
        self.clock.advance(3_600_000);
        // The timers fire after the requests that came before them.
        for _ in 0..2 {
            self.engine.ready().await.expect("ready");
        }
    }
}

#[tokio::test]
async fn code_of_a_later_level_is_issued_when_the_level_is_reached() {
    let fixture = Fixture::new(Presence::Pin, None);
    let (run, approval) = fixture.waiting(LEVELS).await;
    let max = fixture.user("max", Presence::Pin);
    let early = max.issue_code(request(&approval, true)).await.map(drop);
    assert!(matches!(&early, Err(Error::Denied(reason)) if reason.contains("escalated")), "{early:?}");
    assert!(!max.may_decide(run, "ask").await);
    fixture.an_hour_later().await;
    assert!(max.may_decide(run, "ask").await);
    let code = fixture.code(&max, &approval, true).await;
    redeem(&fixture.agent("max"), run, "ask", true, &code).await.expect("approved");
    fixture.engine.handle(run).wait().await.expect("ended");
    assert_eq!(fixture.status(run).await, RunStatus::Completed);
}

#[tokio::test]
async fn an_approval_of_a_later_level_is_not_remembered() {
    let policy = "{ default: allow, rules: [{ name: ask, tools: mail__send, then: { require_approval: {
        approvers: ['user:lea'], escalate: [{ after: 1h, approvers: ['user:max'] }] } } }] }";
    let fixture = Fixture::new(Presence::None, Some(policy));
    let (run, _) = fixture.waiting("name: mail\nsteps: [{ id: send, tool: mail__send }]").await;
    fixture.an_hour_later().await;
    let remember = Some(Remember { any_arguments: true, millis: 3_600_000 });
    let decision = || DecisionRequest { approved: true, ..DecisionRequest::default() };
    let max = fixture.user("max", Presence::None);
    let refused = max.decide_with(run, "send", DecisionRequest { remember, ..decision() }).await;
    assert!(matches!(&refused, Err(Error::BadInput(reason)) if reason.contains("remembered")), "{refused:?}");
    max.decide_with(run, "send", decision()).await.expect("approved");
    fixture.engine.handle(run).wait().await.expect("ended");
    assert_eq!(fixture.status(run).await, RunStatus::Completed);
}
