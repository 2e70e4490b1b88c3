//! What clients hear without asking: lists and runs that change, progress, and the notifications of `$/dcc`.

use rmcp::model::{
    CallToolRequestParams, ClientConfig, CustomNotification, Implementation, ProgressNotificationParam,
    ProtocolVersion, ResourceUpdatedNotificationParam, SubscribeRequestParams, SubscriptionFilter,
};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt, NotificationContext, RunningService};
use rmcp::{ClientHandler, RoleClient};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::support::{House, principal};

/// A client that writes down what it hears.
struct Ears(mpsc::UnboundedSender<Value>);

impl Ears {
    fn hear(&self, what: Value) {
        self.0.send(what).expect("somebody listens");
    }
}

impl ClientHandler for Ears {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(rmcp::model::ClientCapabilities::default(), Implementation::new("ears", "1"))
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.hear(json!("tools"));
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.hear(json!(params.uri));
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.hear(json!({ "progress": params.progress, "message": params.message }));
    }

    async fn on_custom_notification(&self, said: CustomNotification, _: NotificationContext<RoleClient>) {
        let params = said.params.unwrap_or_default();
        self.hear(json!([said.method, params["detail"]["kind"], params["detail"]["step_id"]]));
    }
}

type Heard = mpsc::UnboundedReceiver<Value>;

async fn client(
    house: &House,
    name: &str,
    lifecycle: ClientLifecycleMode,
) -> (RunningService<RoleClient, Ears>, Heard) {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let (read, write) = tokio::io::split(ours);
    tokio::spawn(house.server.for_user(principal(name)).serve(read, write));
    let (sender, heard) = mpsc::unbounded_channel();
    (Ears(sender).serve_with_lifecycle(theirs, lifecycle).await.expect("a client"), heard)
}

fn today() -> ClientLifecycleMode {
    ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
}

fn call(tool: &'static str, args: &Value) -> CallToolRequestParams {
    CallToolRequestParams::new(tool).with_arguments(args.as_object().cloned().expect("a map"))
}

const PUBLISHED: &str = "name: p\npublish: true\nsteps: [{ id: r, tool: crm__read }]";

#[tokio::test]
#[expect(deprecated, reason = "what older clients do")]
async fn a_client_with_a_session_hears_of_tools_and_of_runs_that_it_watches() {
    let house = House::new();
    let run = house.waiting_run().await;
    let (client, mut heard) = client(&house, "admin", ClientLifecycleMode::Initialize).await;
    client.call_tool(call("workflow_define", &json!({ "spec_yaml": PUBLISHED }))).await.expect("defined");
    assert_eq!(heard.recv().await, Some(json!("tools")));
    let uri = format!("workflow://runs/{run}");
    client.subscribe(SubscribeRequestParams::new(uri.clone())).await.expect("watched");
    let approve = json!({ "run_id": run, "step_name": "ask" });
    client.call_tool(call("workflow_approve", &approve)).await.expect("approved");
    assert_eq!(heard.recv().await, Some(json!(uri)));
}

#[tokio::test]
async fn a_client_of_today_listens() {
    let house = House::new();
    let run = house.waiting_run().await;
    let uri = format!("workflow://runs/{run}");
    let (client, _heard) = client(&house, "admin", today()).await;
    let filter =
        SubscriptionFilter::builder().tools_list_changed().resource_subscription(uri.clone()).build();
    let mut listening = client.listen(filter).await.expect("a subscription");
    client.call_tool(call("workflow_define", &json!({ "spec_yaml": PUBLISHED }))).await.expect("defined");
    let approve = json!({ "run_id": run, "step_name": "ask" });
    client.call_tool(call("workflow_approve", &approve)).await.expect("approved");
    let (mut tools, mut updated) = (false, false);
    while !(tools && updated) {
        let news = serde_json::to_value(listening.next().await.expect("news")).expect("JSON");
        tools |= news["method"] == "notifications/tools/list_changed";
        updated |= news["params"]["uri"] == uri.as_str();
    }
}

#[tokio::test]
async fn whoever_calls_by_the_old_names_hears_in_the_old_words() {
    let house = House::new();
    let (client, mut heard) = client(&house, "admin", ClientLifecycleMode::Initialize).await;
    let gate =
        "name: gate\nsteps: [{ id: ask, kind: approve, allow_self: true }, { id: read, tool: crm__read }]";
    let asked = client.call_tool(call("workflows.run", &json!({ "spec_yaml": gate }))).await.expect("a run");
    let run = asked.structured_content.expect("facts")["run_id"].clone();
    let updated = |kind: &str, step: Value| json!(["notifications/$/dcc.workflowUpdated", kind, step]);
    let mut words = Vec::new();
    while words.last() != Some(&updated("approve_requested", json!("ask"))) {
        words.push(heard.recv().await.expect("news"));
    }
    assert!(words.contains(&updated("step_enter", json!("ask"))), "{words:?}");
    let answer = json!({ "workflow_id": run, "step_id": "ask", "approved": true });
    let answer = CustomNotification::new("notifications/$/dcc.approveResponse", Some(answer));
    client.send_notification(answer.into()).await.expect("sent");
    client
        .call_tool(call("workflows.get_status", &json!({ "workflow_id": run, "wait_s": 30 })))
        .await
        .expect("an end");
    while words.last() != Some(&updated("workflow_terminal", Value::Null)) {
        words.push(heard.recv().await.expect("news"));
    }
    assert!(words.contains(&updated("step_exit", json!("read"))), "{words:?}");
}
