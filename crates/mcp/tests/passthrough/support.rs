//! Our server with upstream servers behind its gateway, and a client that records the messages it receives.

use std::collections::BTreeMap;

use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult,
    ElicitationAction, ErrorData, Implementation, ProtocolVersion, ResourceUpdatedNotificationParam,
};
use rmcp::service::{
    ClientLifecycleMode, ClientServiceExt, NotificationContext, RequestContext, RunningService,
};
use rmcp::{ClientHandler, RoleClient};
use serde_json::{Value, json};
use steprail_engine::{Access, Engine, Grants, Options, Principal, Right, SqliteStore};
use steprail_mcp::config::Servers;
use steprail_mcp::{Gateway, Server, Settings};
use tempfile::TempDir;
use tokio::sync::mpsc;

pub(crate) const LEGACY: &str = "legacy";
pub(crate) const MODERN: &str = "auto";
pub(crate) const ERAS: [&str; 2] = [LEGACY, MODERN];

/// Our server with two users: `ann` may call all tools, `bob` only `a__blocks`.
pub(crate) struct TestServer {
    server: Server,
    _folder: TempDir,
}

impl TestServer {
    /// Connects to upstream servers, given by name and URL, with one era.
    pub(crate) async fn new(servers: &[(&str, String)], era: &str) -> Self {
        let entry = |url: &String| json!({ "url": url, "elicitation": true, "protocolEra": era });
        let entries: BTreeMap<&str, Value> = servers.iter().map(|(name, url)| (*name, entry(url))).collect();
        let config = Servers::read(&json!({ "mcpServers": entries }).to_string()).expect("servers");
        let gateway = Gateway::new(config, steprail_mcp::Options::default()).expect("a gateway");
        gateway.connect().await;
        let folder = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::open(folder.path().join("a.db"), &Options::default()).expect("a database");
        let grants = |tools: &[&str]| Grants {
            tools: tools.iter().map(ToString::to_string).collect(),
            may: [Right::Workflow].into(),
            ..Grants::default()
        };
        let users = [("ann", grants(&["*"])), ("bob", grants(&["a__blocks"]))];
        let users = users.map(|(name, grants)| (name.to_owned(), grants)).into();
        let engine = Engine::builder().store(store).tools(gateway.clone()).authorizer(Access::new(users));
        let settings = Settings {
            expose: vec!["*__*".parse().expect("a pattern")],
            federate: servers.iter().map(|(name, _)| (*name).to_owned()).collect(),
            ..Settings::default()
        };
        let server = Server::new(engine.spawn().expect("an engine"), Some(gateway), settings);
        Self { server, _folder: folder }
    }

    pub(crate) async fn client(&self, user: &str, era: &str) -> (Client, Messages) {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (read, write) = tokio::io::split(ours);
        let user = Principal { sole_user: true, ..Principal::user(user).through_agent() };
        tokio::spawn(self.server.for_user(user).serve(read, write));
        let lifecycle = match era {
            LEGACY => ClientLifecycleMode::Initialize,
            _ => ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] },
        };
        let (sender, messages) = mpsc::unbounded_channel();
        (RecordingClient(sender).serve_with_lifecycle(theirs, lifecycle).await.expect("a client"), messages)
    }
}

pub(crate) type Client = RunningService<RoleClient, RecordingClient>;
pub(crate) type Messages = mpsc::UnboundedReceiver<Value>;

/// A client that records elicitations and notifications. It answers elicitations with `us`.
pub(crate) struct RecordingClient(mpsc::UnboundedSender<Value>);

impl RecordingClient {
    fn record(&self, message: Value) {
        let _ = self.0.send(message);
    }
}

impl ClientHandler for RecordingClient {
    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_elicitation().build();
        ClientConfig::new(capabilities, Implementation::new("recorder", "1"))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.record(json!(request));
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({ "region": "us" })))
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.record(json!("tools"));
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.record(json!("prompts"));
    }

    async fn on_resource_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.record(json!("resources"));
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.record(json!(params.uri));
    }
}

pub(crate) fn call(tool: &str) -> CallToolRequestParams {
    CallToolRequestParams::new(tool.to_owned())
}
