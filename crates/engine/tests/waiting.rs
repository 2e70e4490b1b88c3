//! What a run waits for, and the next action on it.

use std::time::Duration;

use serde_json::{Value, json};
use steprail_engine::{
    Engine, Expected, Failure, FailureKind, NextAction, Options, Principal, RunStatus, RunView, SqliteStore,
    Tools, User, WaitCause, WaitingFor, Workflow, next_action,
};

struct Harness {
    user: User,
    _folder: tempfile::TempDir,
}

impl Harness {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store =
            SqliteStore::open(folder.path().join("test.db"), &Options::default()).expect("a database");
        let tools = Tools::new()
            .tool("crm__down", |_| async { Err(Failure::new(FailureKind::Transport, "connection refused")) })
            .tool("crm__fail", |_| async { Err(Failure::new(FailureKind::ToolError, "no such order")) });
        let engine = Engine::builder().store(store).tools(tools).spawn().expect("an engine");
        Self { user: engine.as_user(Principal::user("ann")), _folder: folder }
    }

    /// Starts a run and waits until it waits for something.
    async fn start(&self, text: &str) -> (RunView, Vec<WaitingFor>) {
        let workflow = Workflow::Inline { text: text.to_owned(), source: "test".to_owned() };
        let run = self.user.start(workflow, json!({}), None).await.expect("a run").id();
        loop {
            let view = self.user.status(run).await.expect("a run");
            let waiting = self.user.waiting(&view).await.expect("waits");
            if !waiting.is_empty() || view.run.status.is_terminal() {
                return (view, waiting);
            }
            self.user.wait(run, Some(view.run.seq), Duration::from_secs(10)).await.expect("an event");
        }
    }
}

#[tokio::test]
async fn gate_waits_for_a_decision() {
    let (view, waiting) = Harness::new()
        .start("name: gate\nsteps: [{ id: ask, kind: approve, prompt: 'Continue?', timeout: 1h }]")
        .await;
    let [wait] = waiting.as_slice() else { panic!("{waiting:?}") };
    assert_eq!((wait.run_id, wait.step.as_str()), (view.run.run_id, "ask"));
    assert!(
        matches!(&wait.cause, WaitCause::Approval { prompt, deadline: Some(_), .. } if prompt == "Continue?"),
        "{wait:?}"
    );
    assert_eq!(next_action(view.run.status, &waiting), Some(NextAction::Decide(wait)));
    let json = serde_json::to_value(wait).expect("JSON");
    assert_eq!((&json["step"], &json["for"]), (&json!("ask"), &json!("approval")));
    assert_eq!(serde_json::from_value::<WaitingFor>(json).expect("a wait"), *wait);
}

#[tokio::test]
async fn event_wait_is_ended_by_a_signal_and_a_paused_run_by_resume() {
    let (view, waiting) = Harness::new()
        .start("name: waits\nsteps: [{ id: paid, kind: wait, event: payment, correlate: { order: o-1 } }]")
        .await;
    let [wait] = waiting.as_slice() else { panic!("{waiting:?}") };
    let event =
        WaitCause::Signal { event: Some("payment".to_owned()), correlate: Some(json!({ "order": "o-1" })) };
    assert_eq!(wait.cause, event);
    assert_eq!(next_action(view.run.status, &waiting), Some(NextAction::Signal(wait)));
    assert_eq!(next_action(RunStatus::Paused, &waiting), Some(NextAction::Resume));
    assert_eq!(next_action(RunStatus::Interrupted, &waiting), Some(NextAction::Resume));
    assert_eq!(next_action(RunStatus::Completed, &[]), None);
}

#[tokio::test]
async fn timers_retries_and_servers_need_no_action() {
    let harness = Harness::new();
    let (view, waiting) = harness.start("name: naps\nsteps: [{ id: nap, kind: sleep, for: 1h }]").await;
    assert!(
        matches!(&waiting[..], [WaitingFor { cause: WaitCause::Time { until: Some(due) }, .. }] if *due > view.run.started_at),
        "{waiting:?}"
    );
    assert_eq!(next_action(view.run.status, &waiting), Some(NextAction::Wait));
    let retried = "name: retried\nsteps: [{ id: call, tool: crm__fail, effects: read, retry: { max_attempts: 3, initial_delay_ms: 3600000, max_delay_ms: 3600000 } }]";
    let (view, waiting) = harness.start(retried).await;
    assert!(
        matches!(&waiting[..], [WaitingFor { cause: WaitCause::Retry { until: Some(due) }, .. }] if *due > view.run.started_at),
        "{waiting:?}"
    );
    let (view, waiting) = harness.start("name: down\nsteps: [{ id: call, tool: crm__down }]").await;
    assert!(
        matches!(&waiting[..], [WaitingFor { cause: WaitCause::Server { error }, .. }] if &*error.message == "connection refused"),
        "{waiting:?}"
    );
    assert_eq!(next_action(view.run.status, &waiting), Some(NextAction::Wait));
}

#[tokio::test]
async fn parent_lists_its_sub_workflow_and_the_gate_in_it() {
    let harness = Harness::new();
    harness
        .user
        .define("name: inner\nsteps: [{ id: ask, kind: approve }]", None, Expected::Any)
        .await
        .expect("defined");
    let (view, mut waiting) =
        harness.start("name: outer\nsteps: [{ id: sub, kind: workflow, name: inner }]").await;
    while waiting.len() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        waiting = harness
            .user
            .waiting(&harness.user.status(view.run.run_id).await.expect("a run"))
            .await
            .expect("waits");
    }
    let json: Vec<Value> = waiting.iter().map(|wait| json!([wait.step, json!(wait)["for"]])).collect();
    assert_eq!(json, [json!(["ask", "approval"]), json!(["sub", "workflow"])]);
    let WaitCause::Workflow { run } = waiting[1].cause else { panic!("{waiting:?}") };
    assert_eq!(Some(waiting[0].run_id), run);
}
