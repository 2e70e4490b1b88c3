//! Approvals and input requests of tools, answered by the user of a client.

use std::sync::{Arc, Mutex};

use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, ClientConfig, CustomNotification, ElicitRequestParams,
    ElicitResult, ElicitationAction, ErrorData, Implementation, ProtocolVersion,
};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt, RequestContext, RunningService};
use rmcp::{ClientHandler, RoleClient};
use serde_json::{Value, json};
use steprail_engine::{Cursor, RunId, RunStatus};
use steprail_mcp::Settings;

use super::support::{Fixture, principal};

/// A client whose user gives the same answer to every elicitation, and records the forms. `Null` declines.
struct User {
    answer: Value,
    forms: Arc<Mutex<Vec<Value>>>,
}

impl ClientHandler for User {
    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_elicitation().build();
        ClientConfig::new(capabilities, Implementation::new("user", "1"))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let request = serde_json::to_value(&request).expect("JSON");
        self.forms.lock().expect("a list").push(request["requestedSchema"]["properties"].clone());
        Ok(match &self.answer {
            Value::Null => ElicitResult::new(ElicitationAction::Decline),
            answer => ElicitResult::new(ElicitationAction::Accept).with_content(answer.clone()),
        })
    }
}

const ERAS: [fn() -> ClientLifecycleMode; 2] = [
    || ClientLifecycleMode::Initialize,
    || ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] },
];

async fn client(
    fixture: &Fixture,
    lifecycle: ClientLifecycleMode,
    user: User,
) -> RunningService<RoleClient, User> {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let (read, write) = tokio::io::split(ours);
    // As in a daemon with one user: the client is an agent, and the user may decide on their own runs.
    let owner = steprail_engine::Principal { sole_user: true, ..principal("admin").through_agent() };
    tokio::spawn(fixture.server.for_user(owner).serve(read, write));
    user.serve_with_lifecycle(theirs, lifecycle).await.expect("a client")
}

/// Starts a workflow of one step. Returns its state, and the forms that the user saw.
async fn start(
    ask_clients: bool,
    era: ClientLifecycleMode,
    step: &str,
    answer: Value,
) -> (Value, Vec<Value>) {
    let fixture = Fixture::with(Settings { ask_clients, ..Settings::default() });
    let forms = Arc::new(Mutex::new(Vec::new()));
    let client = client(&fixture, era, User { answer, forms: forms.clone() }).await;
    let spec = json!({ "spec_yaml": format!("name: one\nsteps: [{step}]"), "wait_s": 5 });
    let start = CallToolRequestParams::new("workflow_start")
        .with_arguments(spec.as_object().cloned().expect("a map"));
    let result = client.call_tool(start).await.expect("a result");
    let forms = forms.lock().expect("a list").clone();
    (result.structured_content.expect("structured content"), forms)
}

#[tokio::test]
async fn scripted_answer_to_a_gate_is_refused_if_presence_is_required() {
    for era in ERAS {
        let fixture = Fixture::with_pin();
        let forms = Arc::new(Mutex::new(Vec::new()));
        let script = User { answer: json!({ "confirm": true }), forms: forms.clone() };
        let client = client(&fixture, era(), script).await;
        let start = json!({ "spec_yaml": format!("name: one\nsteps: [{GATE}]"), "wait_s": 1 });
        let start = CallToolRequestParams::new("workflow_start")
            .with_arguments(start.as_object().cloned().expect("a map"));
        let run = client.call_tool(start).await.expect("a result").structured_content.expect("fields");
        assert_eq!(
            (&run["status"], forms.lock().expect("a list").len()),
            (&json!("paused"), 0),
            "not asked: {run}"
        );
        // The client answers a request that it did not get.
        let run: RunId = run["run_id"].as_str().expect("a run").parse().expect("a run");
        let open = fixture.engine.run_approvals(run).await.expect("approvals").pop().expect("an approval");
        let digest = open.digest.to_string();
        let key = format!("gate:{}:{}:{}", open.path, open.n, &digest[..8]);
        let answer = json!({ "action": "accept", "content": { "confirm": true } });
        let mut forged = CallToolRequestParams::new("workflow_start").with_arguments(serde_json::Map::new());
        forged.request_state = Some(format!("{run}.{}", &digest[..8]));
        forged.input_responses = Some([(key, answer)].into());
        let reply = client.call_tool(forged).await.expect("a result");
        assert_eq!(super::support::outcome(&reply), "presence_required", "{reply:?}");
        let decision = json!({ "workflow_id": run, "step_id": "one", "approved": true });
        let notification = CustomNotification::new("notifications/$/dcc.approveResponse", Some(decision));
        client.send_notification(notification.into()).await.expect("sent");
        // The response to a later request shows that the notification was handled.
        client.list_all_tools().await.expect("tools");
        assert_eq!(fixture.engine.row(run).await.expect("a run").status, RunStatus::Paused);
        let actions = fixture.engine.registry().actions(Cursor::START, 100).await.expect("actions").events;
        let refused =
            actions.iter().filter(|stored| stored.event.action.name() == "decision_rejected").count();
        assert!(refused >= 1, "{actions:?}");
    }
}

const GATE: &str = "{ id: one, kind: approve, prompt: 'Continue?' }";
const REQUESTS_INPUT: &str = "{ id: one, tool: crm__ask }";

#[tokio::test]
async fn approval_is_requested_from_the_user_of_a_client() {
    for era in ERAS {
        let (run, forms) = start(true, era(), GATE, json!({ "confirm": true })).await;
        assert_eq!((&run["status"], forms.len()), (&json!("completed"), 1), "{run}");
        let (run, _) = start(true, era(), GATE, Value::Null).await;
        assert_eq!(run["status"], "failed", "{run}");
        // An empty answer is not a decision, and the request is not repeated.
        let (run, forms) = start(true, era(), GATE, json!({})).await;
        assert_eq!((&run["status"], forms.len()), (&json!("paused"), 1), "{run}");
        let (run, forms) = start(false, era(), GATE, json!({ "confirm": true })).await;
        assert_eq!(
            (&run["status"], forms.len()),
            (&json!("paused"), 0),
            "clients are not asked without the setting"
        );
    }
}

#[tokio::test]
async fn input_request_of_a_tool_is_answered_by_the_client() {
    for era in ERAS {
        let (run, forms) = start(true, era(), REQUESTS_INPUT, json!({ "region": "eu" })).await;
        assert_eq!(run["output"], json!({ "answer": { "region": "eu" }, "state": "s-1" }), "{run}");
        assert_eq!(forms, [json!({ "region": { "type": "string" } })]);
        let (run, _) = start(true, era(), REQUESTS_INPUT, Value::Null).await;
        assert_eq!(run["output"]["answer"], Value::Null, "the tool receives no answer");
    }
}
