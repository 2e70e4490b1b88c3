//! Our server with servers behind its gateway, and a client that writes down what it is asked and told.

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

/// Our server, for `ann`, who may call everything, and `bob`, who may call tools of server `a` only.
pub(crate) struct House {
    server: Server,
    _folder: TempDir,
}

impl House {
    /// Servers by name, with their addresses, all spoken to as an era has it.
    pub(crate) async fn new(servers: &[(&str, String)], era: &str) -> Self {
        let entry = |url: &String| json!({ "url": url, "elicitation": true, "protocolEra": era });
        let entries: BTreeMap<&str, Value> = servers.iter().map(|(name, url)| (*name, entry(url))).collect();
        let servers_of = Servers::read(&json!({ "mcpServers": entries }).to_string()).expect("servers");
        let gateway = Gateway::new(servers_of, steprail_mcp::Options::default()).expect("a gateway");
        gateway.connect().await;
        let folder = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::open(folder.path().join("a.db"), &Options::default()).expect("a database");
        let grants = |tools: &[&str]| Grants {
            tools: tools.iter().map(ToString::to_string).collect(),
            may: [Right::Workflow].into(),
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

    pub(crate) async fn client(&self, user: &str, era: &str) -> (Client, Heard) {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (read, write) = tokio::io::split(ours);
        let user = Principal { alone: true, ..Principal::user(user).through_agent() };
        tokio::spawn(self.server.for_user(user).serve(read, write));
        let lifecycle = match era {
            LEGACY => ClientLifecycleMode::Initialize,
            _ => ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] },
        };
        let (sender, heard) = mpsc::unbounded_channel();
        (Ears(sender).serve_with_lifecycle(theirs, lifecycle).await.expect("a client"), heard)
    }
}

pub(crate) type Client = RunningService<RoleClient, Ears>;
pub(crate) type Heard = mpsc::UnboundedReceiver<Value>;

/// A client that writes down what it hears. Its user picks `us`.
pub(crate) struct Ears(mpsc::UnboundedSender<Value>);

impl Ears {
    fn hear(&self, what: Value) {
        let _ = self.0.send(what);
    }
}

impl ClientHandler for Ears {
    fn get_info(&self) -> ClientConfig {
        let asks = ClientCapabilities::builder().enable_elicitation().build();
        ClientConfig::new(asks, Implementation::new("ears", "1"))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.hear(json!(request));
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({ "region": "us" })))
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.hear(json!("tools"));
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.hear(json!("prompts"));
    }

    async fn on_resource_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.hear(json!("resources"));
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.hear(json!(params.uri));
    }
}

pub(crate) fn call(tool: &str) -> CallToolRequestParams {
    CallToolRequestParams::new(tool.to_owned())
}
