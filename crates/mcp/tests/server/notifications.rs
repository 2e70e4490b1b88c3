//! Notifications to clients: changed lists and runs, progress, `$/dcc.workflowUpdated`.

use rmcp::model::{
    CallToolRequestParams, ClientConfig, CustomNotification, Implementation, ProgressNotificationParam,
    ProtocolVersion, ResourceUpdatedNotificationParam, SubscribeRequestParams, SubscriptionFilter,
};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt, NotificationContext, RunningService};
use rmcp::{ClientHandler, RoleClient};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::support::{Fixture, principal};

/// A client that records the notifications that it receives.
struct Recorder(mpsc::UnboundedSender<Value>);

impl Recorder {
    fn record(&self, notification: Value) {
        self.0.send(notification).expect("a receiver");
    }
}

impl ClientHandler for Recorder {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(rmcp::model::ClientCapabilities::default(), Implementation::new("recorder", "1"))
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.record(json!("tools"));
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.record(json!(params.uri));
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.record(json!({ "progress": params.progress, "message": params.message }));
    }

    async fn on_custom_notification(
        &self,
        notification: CustomNotification,
        _: NotificationContext<RoleClient>,
    ) {
        let params = notification.params.unwrap_or_default();
        self.record(json!([notification.method, params["detail"]["kind"], params["detail"]["step_id"]]));
    }
}

type Received = mpsc::UnboundedReceiver<Value>;

async fn client(
    fixture: &Fixture,
    name: &str,
    lifecycle: ClientLifecycleMode,
) -> (RunningService<RoleClient, Recorder>, Received) {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let (read, write) = tokio::io::split(ours);
    tokio::spawn(fixture.server.for_user(principal(name)).serve(read, write));
    let (sender, received) = mpsc::unbounded_channel();
    (Recorder(sender).serve_with_lifecycle(theirs, lifecycle).await.expect("a client"), received)
}

fn sessionless() -> ClientLifecycleMode {
    ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
}

fn call(tool: &'static str, args: &Value) -> CallToolRequestParams {
    CallToolRequestParams::new(tool).with_arguments(args.as_object().cloned().expect("a map"))
}

const PUBLISHED: &str = "name: p\npublish: true\nsteps: [{ id: r, tool: crm__read }]";

#[tokio::test]
#[expect(deprecated, reason = "clients with a session use it")]
async fn session_is_notified_of_tools_and_subscribed_runs() {
    let fixture = Fixture::new();
    let run = fixture.waiting_run().await;
    let (client, mut received) = client(&fixture, "admin", ClientLifecycleMode::Initialize).await;
    client.call_tool(call("workflow_define", &json!({ "spec_yaml": PUBLISHED }))).await.expect("defined");
    assert_eq!(received.recv().await, Some(json!("tools")));
    let uri = format!("workflow://runs/{run}");
    client.subscribe(SubscribeRequestParams::new(uri.clone())).await.expect("subscribed");
    let admin = fixture.engine.as_user(principal("admin"));
    admin.decide(run, "ask", true, None, None).await.expect("approved");
    assert_eq!(received.recv().await, Some(json!(uri)));
}

#[tokio::test]
async fn sessionless_client_listens() {
    let fixture = Fixture::new();
    let run = fixture.waiting_run().await;
    let uri = format!("workflow://runs/{run}");
    let (client, _received) = client(&fixture, "admin", sessionless()).await;
    let filter =
        SubscriptionFilter::builder().tools_list_changed().resource_subscription(uri.clone()).build();
    let mut listening = client.listen(filter).await.expect("a subscription");
    client.call_tool(call("workflow_define", &json!({ "spec_yaml": PUBLISHED }))).await.expect("defined");
    let admin = fixture.engine.as_user(principal("admin"));
    admin.decide(run, "ask", true, None, None).await.expect("approved");
    let (mut tools, mut updated) = (false, false);
    while !(tools && updated) {
        let notification =
            serde_json::to_value(listening.next().await.expect("a notification")).expect("JSON");
        tools |= notification["method"] == "notifications/tools/list_changed";
        updated |= notification["params"]["uri"] == uri.as_str();
    }
}

#[tokio::test]
async fn alias_calls_receive_workflow_updated() {
    let fixture = Fixture::new();
    let (client, mut received) = client(&fixture, "admin", ClientLifecycleMode::Initialize).await;
    let gate =
        "name: gate\nsteps: [{ id: ask, kind: approve, allow_self: true }, { id: read, tool: crm__read }]";
    let started =
        client.call_tool(call("workflows.run", &json!({ "spec_yaml": gate }))).await.expect("a run");
    let run = started.structured_content.expect("structured content")["run_id"].clone();
    let updated = |kind: &str, step: Value| json!(["notifications/$/dcc.workflowUpdated", kind, step]);
    let mut notifications = Vec::new();
    while notifications.last() != Some(&updated("approve_requested", json!("ask"))) {
        notifications.push(received.recv().await.expect("a notification"));
    }
    assert!(notifications.contains(&updated("step_enter", json!("ask"))), "{notifications:?}");
    let answer = json!({ "workflow_id": run, "step_id": "ask", "approved": true });
    let answer = CustomNotification::new("notifications/$/dcc.approveResponse", Some(answer));
    client.send_notification(answer.into()).await.expect("sent");
    client
        .call_tool(call("workflows.get_status", &json!({ "workflow_id": run, "wait_s": 30 })))
        .await
        .expect("a result");
    while notifications.last() != Some(&updated("workflow_terminal", Value::Null)) {
        notifications.push(received.recv().await.expect("a notification"));
    }
    assert!(notifications.contains(&updated("step_exit", json!("read"))), "{notifications:?}");
}
