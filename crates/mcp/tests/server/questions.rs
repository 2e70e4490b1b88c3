//! Gates and tools' questions, put to the user of a client.

use std::sync::{Arc, Mutex};

use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult,
    ElicitationAction, ErrorData, Implementation, ProtocolVersion,
};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt, RequestContext, RunningService};
use rmcp::{ClientHandler, RoleClient};
use serde_json::{Value, json};
use steprail_mcp::Settings;

use super::support::{House, principal};

/// A client whose user says the same to everything, and remembers what was asked.
struct User {
    says: Value,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl ClientHandler for User {
    fn get_info(&self) -> ClientConfig {
        let asks = ClientCapabilities::builder().enable_elicitation().build();
        ClientConfig::new(asks, Implementation::new("user", "1"))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let asked = serde_json::to_value(&request).expect("JSON");
        self.asked.lock().expect("a list").push(asked["requestedSchema"]["properties"].clone());
        Ok(match &self.says {
            Value::Null => ElicitResult::new(ElicitationAction::Decline),
            says => ElicitResult::new(ElicitationAction::Accept).with_content(says.clone()),
        })
    }
}

const ERAS: [fn() -> ClientLifecycleMode; 2] = [
    || ClientLifecycleMode::Initialize,
    || ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] },
];

async fn client(
    house: &House,
    lifecycle: ClientLifecycleMode,
    user: User,
) -> RunningService<RoleClient, User> {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let (read, write) = tokio::io::split(ours);
    // As a daemon has it: the client is an agent, its user a person.
    // Where clients are asked, there is one user, and nobody else could decide.
    let owner = steprail_engine::Principal { alone: true, ..principal("admin").through_agent() };
    tokio::spawn(house.server.for_user(owner).serve(read, write));
    user.serve_with_lifecycle(theirs, lifecycle).await.expect("a client")
}

/// Starts a workflow of one step; gives how it stands, and what the user was asked.
async fn started(
    ask_clients: bool,
    era: ClientLifecycleMode,
    step: &str,
    says: Value,
) -> (Value, Vec<Value>) {
    let house = House::with(Settings { ask_clients, ..Settings::default() });
    let asked = Arc::new(Mutex::new(Vec::new()));
    let client = client(&house, era, User { says, asked: asked.clone() }).await;
    let spec = json!({ "spec_yaml": format!("name: one\nsteps: [{step}]"), "wait_s": 5 });
    let start = CallToolRequestParams::new("workflow_start")
        .with_arguments(spec.as_object().cloned().expect("a map"));
    let answer = client.call_tool(start).await.expect("an answer");
    let asked = asked.lock().expect("a list").clone();
    (answer.structured_content.expect("facts"), asked)
}

const GATE: &str = "{ id: one, kind: approve, prompt: 'Go on?' }";
const ASKS: &str = "{ id: one, tool: crm__ask }";

#[tokio::test]
async fn a_gate_is_put_to_the_user_of_a_client() {
    for era in ERAS {
        let (facts, asked) = started(true, era(), GATE, json!({ "confirm": true })).await;
        assert_eq!((&facts["status"], asked.len()), (&json!("completed"), 1), "{facts}");
        let (facts, _) = started(true, era(), GATE, Value::Null).await;
        assert_eq!(facts["status"], "failed", "{facts}");
        // A form that is accepted as it is decides nothing, and is not put again.
        let (facts, asked) = started(true, era(), GATE, json!({})).await;
        assert_eq!((&facts["status"], asked.len()), (&json!("paused"), 1), "{facts}");
        let (facts, asked) = started(false, era(), GATE, json!({ "confirm": true })).await;
        assert_eq!(
            (&facts["status"], asked.len()),
            (&json!("paused"), 0),
            "nobody is asked unless it is meant so"
        );
    }
}

#[tokio::test]
async fn what_a_tool_asks_is_asked_and_the_answer_reaches_it() {
    for era in ERAS {
        let (facts, asked) = started(true, era(), ASKS, json!({ "region": "eu" })).await;
        assert_eq!(facts["output"], json!({ "told": { "region": "eu" }, "state": "s-1" }), "{facts}");
        assert_eq!(asked, [json!({ "region": { "type": "string" } })]);
        let (facts, _) = started(true, era(), ASKS, Value::Null).await;
        assert_eq!(facts["output"]["told"], Value::Null, "the tool hears that nobody tells it");
    }
}
