//! Why a run waits, for whom, since when and what happens next; and how it ended.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use steprail_core::source::Source;
use steprail_engine::{
    Engine, Expected, Failure, FailureKind, ListRuns, ManualClock, Options, PolicyHandle, Principal,
    ReasonKind, Resume, RunId, RunReason, SqliteStore, Tools, User, Workflow, compile_policy,
};

const HOUR: i64 = 60 * 60 * 1_000;
/// How long a test waits for an event.
const WAIT: Duration = Duration::from_secs(10);

struct Harness {
    policy: PolicyHandle,
    engine: Engine,
    clock: Arc<ManualClock>,
    _folder: tempfile::TempDir,
}

fn time(millis: i64) -> String {
    jiff::Timestamp::from_millisecond(millis).expect("a time").strftime("%H:%M").to_string()
}

impl Harness {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store =
            SqliteStore::open(folder.path().join("test.db"), &Options::default()).expect("a database");
        let failure = |kind, message: &'static str| move |_| async move { Err(Failure::new(kind, message)) };
        let tools = Tools::new()
            .tool("slow__call", |_| std::future::pending())
            .tool("crm__read", |_| async { Ok(json!({ "rows": 3 })) })
            .tool("crm__down", failure(FailureKind::Transport, "connection refused"))
            .tool("crm__lost", failure(FailureKind::Lost, "the connection was lost"))
            .tool("crm__fail", failure(FailureKind::ToolError, "no such order"));
        // Thursday, 12:00 UTC.
        let clock = Arc::new(ManualClock::at(1_800_014_400_000));
        let policy = PolicyHandle::default();
        let builder = Engine::builder().store(store).tools(tools).clock(clock.clone());
        let engine = builder.policy(policy.clone()).spawn().expect("an engine");
        Self { policy, engine, clock, _folder: folder }
    }

    fn user(&self, id: &str) -> User {
        self.engine.as_user(Principal::user(id))
    }

    async fn start(&self, text: &str) -> RunId {
        let workflow = Workflow::Inline { text: text.to_owned(), source: "test".to_owned() };
        self.user("ann").start(workflow, json!({}), None).await.expect("a run").id()
    }

    /// The sentence of a run three minutes later, once it has a reason that lasts.
    async fn sentence(&self, run: RunId) -> String {
        loop {
            let row = self.engine.row(run).await.expect("a run");
            let seq = row.seq;
            let reason = self.engine.reason(row).await.expect("a reason");
            match reason.filter(|reason| reason.kind != ReasonKind::Slot) {
                Some(reason) => return reason.sentence(self.engine.now() + 3 * 60_000, time),
                None => drop(self.user("ann").wait(run, Some(seq), WAIT).await.expect("an event")),
            }
        }
    }

    async fn decide(&self, run: RunId, by: &str, approved: bool, reason: Option<&str>) {
        self.sentence(run).await;
        let decided = self.user(by).decide(run, "ask", approved, reason.map(str::to_owned), None).await;
        decided.expect("decided");
    }

    async fn ended(&self, run: RunId) -> String {
        while !self.engine.row(run).await.expect("a run").status.is_terminal() {
            tokio::task::yield_now().await;
        }
        self.sentence(run).await
    }
}

/// One line per case: its name and its sentence.
#[derive(Default)]
struct Table(String);

impl Table {
    fn add(&mut self, name: &str, sentence: &str) {
        let _ = writeln!(self.0, "{name:<22} {sentence}");
    }
}

#[tokio::test]
async fn waits() {
    let harness = Harness::new();
    let inner = "name: inner\nsteps: [{ id: ask, kind: approve, approvers: [lea] }]";
    let naps = "name: naps\nsteps: [{ id: nap, kind: sleep, for: 2h }]";
    for definition in [inner, naps] {
        harness.user("ann").define(definition, None, Expected::Any).await.expect("defined");
    }
    let mut table = Table::default();
    for (name, steps) in [
        ("approval", "[{ id: ask, kind: approve, approvers: [lea] }]"),
        ("approval of anyone", "[{ id: ask, kind: approve }]"),
        ("quorum", "[{ id: ask, kind: approve, approvers: [user:lea, bob], quorum: 2 }]"),
        ("deadline", "[{ id: ask, kind: approve, approvers: [lea, 'group:ops'], timeout: 4h }]"),
        (
            "escalation",
            "[{ id: ask, kind: approve, approvers: [lea], timeout: 4h, escalate: [{ after: 2h, notify: 'group:ops' }] }]",
        ),
        ("needs_human", "[{ id: pay, tool: crm__read, needs_human: { approvers: [lea] } }]"),
        ("sleep", "[{ id: nap, kind: sleep, for: 2h }]"),
        ("signal", "[{ id: paid, kind: wait, event: payment }]"),
        ("signal with timeout", "[{ id: paid, kind: wait, event: payment, timeout: 2h }]"),
        (
            "retry",
            "[{ id: call, tool: crm__fail, effects: read, retry: { max_attempts: 3, initial_delay_ms: 7200000, max_delay_ms: 7200000 } }]",
        ),
        ("server", "[{ id: call, tool: crm__down }]"),
        ("unknown outcome", "[{ id: call, tool: crm__lost }]"),
        ("approval below", "[{ id: sub, kind: workflow, name: inner }]"),
        ("sleep below", "[{ id: sub, kind: workflow, name: naps }]"),
        (
            "several",
            "[{ id: all, kind: parallel, branches: { a: [{ id: nap, kind: sleep, for: 2h }], b: [{ id: ask, kind: approve, approvers: [lea] }], c: [{ id: paid, kind: wait, event: payment }] } }]",
        ),
    ] {
        let run = harness.start(&format!("name: {}\nsteps: {steps}", name.replace(' ', "-"))).await;
        // A run with several waits begins them one after the other.
        let mut sentence = harness.sentence(run).await;
        while (name.contains("below") && sentence.contains("sub-workflow"))
            || (name == "several" && !sentence.contains("2 more"))
        {
            tokio::task::yield_now().await;
            sentence = harness.sentence(run).await;
        }
        table.add(name, &sentence);
    }
    let run = harness.start("name: paused\nsteps: [{ id: nap, kind: sleep, for: 2h }]").await;
    harness.sentence(run).await;
    harness.user("ann").pause(run).await.expect("paused");
    table.add("paused", &harness.sentence(run).await);
    harness.user("ann").resume(run, Resume::default()).await.expect("resumed");
    table.add("resumed", &harness.sentence(run).await);
    insta::assert_snapshot!(table.0);
}

#[tokio::test]
async fn ends() {
    let harness = Harness::new();
    let mut table = Table::default();
    let gate = |rest: &str| format!("name: gate\nsteps: [{{ id: ask, kind: approve{rest} }}]");
    for (name, rest, reason) in [
        ("denied", "", Some("too risky")),
        ("denied, no reason", "", None),
        ("denied, cancels", ", on_deny: cancel", Some("not\u{202e} today")),
    ] {
        let run = harness.start(&gate(rest)).await;
        harness.decide(run, "bob", false, reason).await;
        table.add(name, &harness.ended(run).await);
    }
    let run = harness.start(&gate(", timeout: 1h")).await;
    harness.sentence(run).await;
    harness.clock.advance(HOUR);
    table.add("expired", &harness.ended(run).await);
    let run = harness.start(&gate("")).await;
    harness.sentence(run).await;
    harness.user("ann").cancel(run, "not needed any more").await.expect("cancelled");
    table.add("cancelled", &harness.ended(run).await);
    let run = harness.start("name: fails\nsteps: [{ id: call, tool: crm__fail }]").await;
    table.add("failed", &harness.ended(run).await);
    insta::assert_snapshot!(table.0);
}

#[tokio::test]
async fn a_completed_run_has_no_reason_and_a_freeze_is_one() {
    let harness = Harness::new();
    let run = harness.start("name: reads\nsteps: [{ id: call, tool: crm__read }]").await;
    while !harness.engine.row(run).await.expect("a run").status.is_terminal() {
        tokio::task::yield_now().await;
    }
    let rows = harness.user("ann").list(ListRuns::default()).await.expect("runs");
    let reasons = harness.user("ann").reasons(rows).await.expect("reasons");
    assert!(matches!(&reasons[..], [(_, None)]), "{reasons:?}");
    harness.user("ann").freeze(Some("an incident".to_owned())).await.expect("frozen");
    let run = harness.start("name: reads\nsteps: [{ id: call, tool: crm__read }]").await;
    let sentence = harness.sentence(run).await;
    let expected = "`call` waits since 3 min, because calls were frozen by ann: an incident; continues when the freeze is lifted";
    assert_eq!(sentence, expected);
}

#[tokio::test]
async fn a_wait_is_found_behind_a_long_log() {
    let harness = Harness::new();
    let many: Vec<u32> = (0..300).collect();
    let definition = json!({ "name": "long", "steps": [{ "id": "all", "kind": "parallel", "branches": {
        "a": [{ "id": "nap", "kind": "sleep", "for": "2h" }],
        "b": [{ "id": "each", "kind": "foreach", "items": many, "steps": [{ "id": "call", "tool": "crm__read" }] }],
    } }] });
    let run = harness.start(&definition.to_string()).await;
    let mut seq = 0;
    while seq < 900 {
        let row = harness.user("ann").wait(run, Some(seq), WAIT).await.expect("an event");
        seq = row.seq;
    }
    let sentence = harness.sentence(run).await;
    assert!(sentence.contains("nap` sleeps since 3 min"), "{sentence}");
}

const POLICY: &str = "
rules:
  - { name: crm-rate, tools: crm__read, then: { limit: { rate: 1/h, per: user } } }
  - { name: big-calls, tools: slow__call, then: { require_approval: { approvers: [user:lea] } } }
default: allow
";

#[tokio::test]
async fn the_policy_is_named() {
    let harness = Harness::new();
    let (policy, problems) = compile_policy(&Source::new("policy.yaml", POLICY));
    assert!(problems.is_empty(), "{problems:?}");
    harness.policy.replace(policy);
    let mut table = Table::default();
    let run = harness.start("name: asks\nsteps: [{ id: call, tool: slow__call }]").await;
    table.add("rule", &harness.sentence(run).await);
    harness.start("name: first\nsteps: [{ id: call, tool: crm__read }]").await;
    let run = harness.start("name: second\nsteps: [{ id: call, tool: crm__read }]").await;
    table.add("rate limit", &harness.sentence(run).await);
    insta::assert_snapshot!(table.0);
}

#[tokio::test]
async fn a_step_waits_for_the_key_of_another() {
    let harness = Harness::new();
    let text =
        "name: keys\nsteps: [{ id: call, tool: slow__call, idempotency_key: k, idempotency_scope: global }]";
    let first = harness.start(text).await;
    while harness.engine.row(first).await.expect("a run").seq < 2 {
        tokio::task::yield_now().await;
    }
    let second = harness.start(text).await;
    let expected = "`call` waits for another step with the same idempotency key since 3 min";
    assert_eq!(harness.sentence(second).await, expected);
}

/// Reasons that need a fault, from their parts.
#[test]
fn sentences_of_parts() {
    let mut table = Table::default();
    let since = "2027-01-15T12:00:00.000Z";
    for (name, parts) in [
        ("input", json!({ "kind": "input", "step": "ask", "for": ["lea"], "since": since })),
        ("interrupted", json!({ "kind": "interrupted", "since": since })),
        ("damaged", json!({ "kind": "damaged", "detail": "a decision of the run panicked" })),
        ("sub-workflow", json!({ "kind": "workflow", "step": "sub", "since": since, "more": 4 })),
    ] {
        let reason: RunReason = serde_json::from_value(parts.clone()).expect("a reason");
        assert_eq!(serde_json::to_value(&reason).expect("JSON"), parts);
        for hours in [0, 1, 60] {
            let now = 1_800_014_400_000 + hours * HOUR;
            table.add(name, &reason.sentence(now, time));
        }
    }
    insta::assert_snapshot!(table.0);
}
