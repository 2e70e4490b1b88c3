//! The client of the conformance suite: an engine whose steps call the suite's server through the gateway, and a simulated
//! user who logs in and answers input requests.

use std::error::Error;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use steprail_engine::{Approval, Engine, Options, Principal, SqliteStore, Start};
use steprail_mcp::config::Servers;
use steprail_mcp::{Gateway, Health, Logins, ServerStatus};

use crate::support::{REDIRECT, browse};

/// The client metadata document that the suite accepts.
const DOCUMENT: &str = "https://conformance-test.local/client-metadata.json";
/// The maximum number of logins per scenario.
const LOGINS: u32 = 3;
/// The tool whose schema a client must not change, and the tool that the schema is sent to.
const PRESERVED: (&str, &str) = ("json_schema_2020_12_tool", "json_schema_echo");

pub(crate) type Failed = Box<dyn Error + Send + Sync>;

/// The context of a scenario, set by the suite.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Context {
    tool_calls: Vec<ToolCall>,
    #[serde(flatten)]
    credentials: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
struct ToolCall {
    name: String,
    arguments: Value,
}

struct Client {
    gateway: Gateway,
    logins: Logins,
    engine: Engine,
    logged_in: u32,
}

/// Runs the scenario against a server of the suite.
pub(crate) async fn run(url: String) -> Result<(), Failed> {
    let scenario = std::env::var("MCP_CONFORMANCE_SCENARIO").unwrap_or_default();
    let context = std::env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_else(|_| "{}".to_owned());
    let context: Context = serde_json::from_str(&context)?;
    let entry = json!({ "url": url, "elicitation": true, "oauth": oauth(&scenario, &context.credentials) });
    let servers = Servers::read(&json!({ "mcpServers": { "server": entry } }).to_string())?;
    let logins = Logins::new(Arc::new(steprail_mcp::MemorySecrets::default()), &servers);
    let options = steprail_mcp::Options { logins: Some(logins.clone()), ..steprail_mcp::Options::default() };
    let gateway = Gateway::new(servers, options)?;
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("a.db"), &Options::default())?;
    let engine = Engine::builder().store(store).tools(gateway.clone()).spawn()?;
    let mut client = Client { gateway, logins, engine, logged_in: 0 };
    let result = client.run(context.tool_calls).await;
    client.gateway.shutdown().await;
    result
}

/// The `oauth` object for the scenario.
fn oauth(scenario: &str, credentials: &serde_json::Map<String, Value>) -> Value {
    let mut settings = json!({ "clientMetadataUrl": DOCUMENT });
    for (ours, theirs) in [
        ("clientId", "client_id"),
        ("clientSecret", "client_secret"),
        ("clientKey", "private_key_pem"),
        ("clientKeyAlgorithm", "signing_algorithm"),
    ] {
        if let Some(value) = credentials.get(theirs) {
            settings[ours] = value.clone();
        }
    }
    if scenario.starts_with("auth/client-credentials") {
        settings["grant"] = "client_credentials".into();
    }
    settings
}

impl Client {
    async fn run(&mut self, calls: Vec<ToolCall>) -> Result<(), Failed> {
        let server = self.connect().await?;
        let names: Vec<&str> = server.tools.iter().map(|tool| tool.original.as_str()).collect();
        let calls = if calls.is_empty() { self.calls_of(&names)? } else { calls };
        for mut call in calls {
            // The gateway rejects null where the schema does. The suite accepts an omitted argument instead.
            if let Some(arguments) = call.arguments.as_object_mut() {
                arguments.retain(|_, value| !value.is_null());
            }
            self.call(&format!("server__{}", call.name), &call.arguments).await?;
        }
        Ok(())
    }

    /// A call of every listed tool, with the arguments that the tools of the suite require.
    fn calls_of(&self, names: &[&str]) -> Result<Vec<ToolCall>, Failed> {
        if names.contains(&PRESERVED.0) {
            let tool = self.gateway.tool(&format!("server__{}", PRESERVED.0)).ok_or("no such tool")?;
            let arguments = json!({ "schema": tool.input_schema });
            return Ok(vec![ToolCall { name: PRESERVED.1.to_owned(), arguments }]);
        }
        let arguments = |name: &str| match name {
            "add_numbers" => json!({ "a": 2, "b": 3 }),
            "valid_tool" => json!({ "region": "us-west1" }),
            _ => json!({}),
        };
        Ok(names
            .iter()
            .map(|name| ToolCall { name: (*name).to_owned(), arguments: arguments(name) })
            .collect())
    }

    /// Connects, and logs in if the server requires it.
    async fn connect(&mut self) -> Result<ServerStatus, Failed> {
        loop {
            let server = self.gateway.connect().await.pop().ok_or("there is no server")?;
            if server.health == Health::Up {
                return Ok(server);
            }
            if !self.log_in_if_needed().await? {
                return Err(server.error.unwrap_or_default().into());
            }
            self.gateway.restart("server").await;
        }
    }

    /// Makes a call as a run of one step. Logs in and answers input requests while it waits.
    async fn call(&mut self, tool: &str, args: &Value) -> Result<(), Failed> {
        let user = Principal { sole_user: true, ..Principal::user("ann") };
        let mut log_changed = self.engine.watch_cursor();
        let run = self.engine.start(Start::call(tool, args, user.clone())).await?;
        loop {
            tokio::select! {
                ended = run.wait() => {
                    let ended = ended?;
                    println!("{tool}: {}", serde_json::to_string(&ended.run)?);
                    return Ok(());
                }
                changed = log_changed.changed() => changed?,
            }
            for approval in self.engine.run_approvals(run.id()).await? {
                self.engine.answer(run.id(), &approval.path, &user, answer(&approval), None).await?;
            }
            self.log_in_if_needed().await?;
        }
    }

    /// Logs in with a browser that grants everything.
    async fn log_in_if_needed(&mut self) -> Result<bool, Failed> {
        if self.logins.needed("server", None).is_none() {
            return Ok(false);
        }
        self.logged_in += 1;
        if self.logged_in > LOGINS {
            return Err("the server rejects every token".into());
        }
        let page = self.logins.begin("server", None, REDIRECT).await?;
        self.logins.finish("server", None, &browse(&page).await).await?;
        Ok(true)
    }
}

/// The answer of the user: confirms, and leaves other fields empty.
fn answer(approval: &Approval) -> Value {
    let form = approval.form.as_ref().map(|form| form.get()).unwrap_or_default();
    if form.contains("confirmed") { json!({ "confirmed": true }) } else { json!({}) }
}
