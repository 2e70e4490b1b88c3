//! Test fixture: an engine with users, and clients of its MCP server.

use std::collections::BTreeMap;

use rmcp::RoleClient;
use rmcp::ServiceExt;
use rmcp::model::{CallToolRequestParams, CallToolResult};
use rmcp::service::RunningService;
use serde_json::{Value, json};
use steprail_engine::{
    Access, Builder, Continuation, Engine, Failure, Grants, InputRequest, Limits, Options, Outcome,
    Principal, Quotas, Right, RunId, SqliteStore, ToolCall, Tools, Workflow,
};
use steprail_mcp::{Gateway, Server, Settings};
use tempfile::TempDir;

pub(crate) type Client = RunningService<RoleClient, ()>;

/// A server with users that have different rights.
pub(crate) struct Fixture {
    pub engine: Engine,
    pub server: Server,
    pub access: Access,
    _folder: TempDir,
}

/// Users of the rights matrix. `agent` is the agent of a user with every right.
pub(crate) const USERS: [&str; 7] = ["starter", "runner", "viewer", "approver", "admin", "nothing", "agent"];

fn users() -> BTreeMap<String, Grants> {
    let grant = |may: &[Right]| Grants {
        tools: vec!["*".to_owned()],
        may: may.iter().copied().collect(),
        ..Grants::default()
    };
    let named = [
        ("starter", grant(&[Right::Workflow, Right::Publish])),
        ("runner", grant(&[Right::Workflow])),
        ("viewer", grant(&[Right::View])),
        ("approver", grant(&[Right::Approve])),
        ("admin", grant(&Right::ALL)),
        ("nothing", grant(&[])),
        ("agent", grant(&Right::ALL)),
        (
            "reader",
            Grants {
                tools: vec!["shop__read_*".to_owned()],
                may: [Right::Workflow].into(),
                ..Grants::default()
            },
        ),
    ];
    named.map(|(name, grants)| (name.to_owned(), grants)).into()
}

pub(crate) fn principal(name: &str) -> Principal {
    let user = Principal::user(name);
    if name == "agent" { user.through_agent() } else { user }
}

/// A tool that requests input, and returns the answer.
async fn ask(call: ToolCall) -> Outcome {
    if let Some(Continuation::Answer(response)) = call.continues {
        return Ok(json!({ "answer": response.answer, "state": response.state }));
    }
    let region =
        json!({ "type": "object", "properties": { "region": { "type": "string" } }, "required": ["region"] });
    Err(Failure::input_required(InputRequest {
        message: "Which region?".into(),
        form: region,
        state: json!("s-1"),
    }))
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(Settings::default())
    }

    pub(crate) fn with(settings: Settings) -> Self {
        let tools = Tools::new()
            .tool("crm__read", |_| async { Ok(json!({ "name": "Lea" })) })
            .tool("crm__ask", ask)
            .tool("crm__trace", |call: ToolCall| async move { Ok(json!(call.trace.to_string())) })
            .tool("crm__slow", |call: ToolCall| async move {
                call.cancelled.cancelled().await;
                Ok(Value::Null)
            });
        Self::build(|builder| builder.tools(tools), None, settings)
    }

    /// A fixture whose tools are those of MCP servers.
    pub(crate) fn with_gateway(gateway: &Gateway) -> Self {
        let tools = gateway.clone();
        Self::build(|builder| builder.tools(tools), Some(gateway.clone()), Settings::default())
    }

    /// A fixture whose users have quotas.
    pub(crate) fn with_quotas(quotas: Quotas) -> Self {
        let limits = Limits { quotas, ..Limits::default() };
        Self::build(|builder| builder.limits(limits), None, Settings::default())
    }

    fn build(
        with_tools: impl FnOnce(Builder) -> Builder,
        gateway: Option<Gateway>,
        settings: Settings,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store =
            SqliteStore::open(folder.path().join("test.db"), &Options::default()).expect("a database");
        let access = Access::new(users());
        let builder = with_tools(Engine::builder().store(store)).authorizer(access.clone());
        let engine = builder.spawn().expect("an engine");
        let server = Server::new(engine.clone(), gateway, settings);
        Self { engine, server, access, _folder: folder }
    }

    /// A client of a user, with a session.
    pub(crate) async fn client(&self, name: &str) -> Client {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (read, write) = tokio::io::split(ours);
        tokio::spawn(self.server.for_user(principal(name)).serve(read, write));
        ().serve(theirs).await.expect("a client")
    }

    /// A run of `starter` that waits at a gate.
    pub(crate) async fn waiting_run(&self) -> RunId {
        let text = "name: gate\nsteps: [{ id: ask, kind: approve, prompt: 'Continue?' }, { id: read, tool: crm__read }]";
        let gate = Workflow::Inline { text: text.to_owned(), source: "gate".to_owned() };
        let starter = self.engine.as_user(principal("starter"));
        let run = starter.start(gate, json!({}), None).await.expect("a run").id();
        let row = starter.wait(run, None, std::time::Duration::from_secs(10)).await.expect("a run");
        assert_eq!(row.status, steprail_engine::RunStatus::Paused);
        run
    }
}

pub(crate) async fn call(client: &Client, tool: &str, args: Value) -> CallToolResult {
    let Value::Object(args) = args else { panic!("arguments are a map") };
    let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(args);
    client.call_tool(params).await.expect("an answer")
}

/// The outcome of a call: `ok`, or the code of the error.
pub(crate) fn outcome(result: &CallToolResult) -> String {
    match result.structured_content.as_ref().map(|fields| &fields["error"]["code"]) {
        Some(Value::String(code)) if result.is_error == Some(true) => code.clone(),
        _ => "ok".to_owned(),
    }
}

/// The structured content of a result.
pub(crate) fn fields(result: &CallToolResult) -> Value {
    result.structured_content.clone().unwrap_or_default()
}
