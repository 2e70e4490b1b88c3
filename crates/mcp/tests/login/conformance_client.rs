//! The client that the conformance suite starts: an engine whose steps call the suite's server through the gateway, and a
//! person who logs in and answers.

use std::error::Error;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use steprail_engine::{Approval, Engine, Options, Principal, SqliteStore, Start};
use steprail_mcp::config::Servers;
use steprail_mcp::{Gateway, Health, Logins, ServerStatus};

use crate::support::{Memory, REDIRECT, browse};

/// The document that the suite knows.
const DOCUMENT: &str = "https://conformance-test.local/client-metadata.json";
/// Logins before the person gives up.
const LOGINS: u32 = 3;
/// The schema that a client must not change, and the tool that takes it.
const PRESERVED: (&str, &str) = ("json_schema_2020_12_tool", "json_schema_echo");

/// Why the client ends.
pub(crate) type Failed = Box<dyn Error + Send + Sync>;

/// What the suite says about a scenario.
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

/// Talks to a server of the suite.
pub(crate) async fn run(url: String) -> Result<(), Failed> {
    let scenario = std::env::var("MCP_CONFORMANCE_SCENARIO").unwrap_or_default();
    let context = std::env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_else(|_| "{}".to_owned());
    let context: Context = serde_json::from_str(&context)?;
    let entry = json!({ "url": url, "elicitation": true, "oauth": oauth(&scenario, &context.credentials) });
    let servers = Servers::read(&json!({ "mcpServers": { "server": entry } }).to_string())?;
    let logins = Logins::new(Arc::new(Memory::default()), &servers);
    let options = steprail_mcp::Options { logins: Some(logins.clone()), ..steprail_mcp::Options::default() };
    let gateway = Gateway::new(servers, options)?;
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("a.db"), &Options::default())?;
    let engine = Engine::builder().store(store).tools(gateway.clone()).spawn()?;
    let mut client = Client { gateway, logins, engine, logged_in: 0 };
    let done = client.run(context.tool_calls).await;
    client.gateway.shutdown().await;
    done
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
            // The gateway refuses a null that the tool's schema refuses. To the suite, leaving it out is the same.
            if let Some(arguments) = call.arguments.as_object_mut() {
                arguments.retain(|_, value| !value.is_null());
            }
            self.call(&format!("server__{}", call.name), &call.arguments).await?;
        }
        Ok(())
    }

    /// Every tool that the server lists, with arguments that the suite's tools take.
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

    /// Connects, and logs in where the server wants that.
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

    /// Makes a call as a run of one step; logs in and answers while it waits.
    async fn call(&mut self, tool: &str, args: &Value) -> Result<(), Failed> {
        let user = Principal { alone: true, ..Principal::user("ann") };
        let mut news = self.engine.watch_cursor();
        let run = self.engine.start(Start::call(tool, args, user.clone())).await?;
        loop {
            tokio::select! {
                ended = run.wait() => {
                    let ended = ended?;
                    println!("{tool}: {}", serde_json::to_string(&ended.run)?);
                    return Ok(());
                }
                changed = news.changed() => changed?,
            }
            for question in self.engine.run_approvals(run.id()).await? {
                self.engine.answer(run.id(), &question.path, &user, answer(&question), None).await?;
            }
            self.log_in_if_needed().await?;
        }
    }

    /// Logs in as a browser whose user agrees to everything.
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

/// What the person answers: yes to what must be confirmed, and nothing beside it.
fn answer(question: &Approval) -> Value {
    let form = question.form.as_ref().map(|form| form.get()).unwrap_or_default();
    if form.contains("confirmed") { json!({ "confirmed": true }) } else { json!({}) }
}
