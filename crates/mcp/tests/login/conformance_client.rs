//! The client that the conformance suite starts: OAuth logins, and the requests that need them.

use std::error::Error;
use std::sync::Arc;

use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};
use reqwest::{Client, Response};
use serde_json::{Value, json};
use steprail_mcp::config::Servers;
use steprail_mcp::{LoginError, Logins};

use crate::support::{Memory, REDIRECT};

/// The document that the suite knows.
const DOCUMENT: &str = "https://conformance-test.local/client-metadata.json";
/// Further logins for one request.
const LOGINS: u32 = 2;
/// The revision without sessions.
const STATELESS: &str = "2026-07-28";

/// Why the client ends.
pub(crate) type Failed = Box<dyn Error + Send + Sync>;

/// A connection to the suite's server.
struct Session {
    url: String,
    logins: Logins,
    http: Client,
    id: Option<String>,
    /// The revision of the protocol.
    version: String,
}

/// Talks to a server of the suite.
pub(crate) async fn run(url: String) -> Result<(), Failed> {
    let entry = json!({ "mcpServers": { "server": { "url": url, "oauth": settings()? } } });
    let servers = Servers::read(&entry.to_string())?;
    let http = Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy().build()?;
    let logins = Logins::new(Arc::new(Memory::default()), &servers);
    let version = std::env::var("MCP_CONFORMANCE_PROTOCOL_VERSION");
    let version = version.unwrap_or_else(|_| "2025-11-25".to_owned());
    let mut session = Session { url, logins, http, id: None, version };
    session.run().await
}

/// The `oauth` object for the scenario.
fn settings() -> Result<Value, Failed> {
    let scenario = std::env::var("MCP_CONFORMANCE_SCENARIO").unwrap_or_default();
    let context = std::env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_else(|_| "{}".to_owned());
    let context: Value = serde_json::from_str(&context)?;
    let mut settings = json!({ "clientMetadataUrl": DOCUMENT });
    for (ours, theirs) in [
        ("clientId", "client_id"),
        ("clientSecret", "client_secret"),
        ("clientKey", "private_key_pem"),
        ("clientKeyAlgorithm", "signing_algorithm"),
    ] {
        if let Some(value) = context.get(theirs) {
            settings[ours] = value.clone();
        }
    }
    if scenario.starts_with("auth/client-credentials") {
        settings["grant"] = "client_credentials".into();
    }
    Ok(settings)
}

impl Session {
    async fn run(&mut self) -> Result<(), Failed> {
        if self.version != STATELESS {
            self.begin().await?;
        }
        self.request("tools/list", json!({})).await?;
        self.request("tools/call", json!({ "name": "test-tool", "arguments": {} })).await?;
        Ok(())
    }

    /// Begins a session.
    async fn begin(&mut self) -> Result<(), Failed> {
        let hello = json!({ "protocolVersion": self.version, "capabilities": {}, "clientInfo": info() });
        let answer = self.request("initialize", hello).await?;
        self.id = answer.headers().get("mcp-session-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
        self.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await?;
        Ok(())
    }

    async fn request(&self, method: &str, mut params: Value) -> Result<Response, Failed> {
        if self.version == STATELESS {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": STATELESS,
                "io.modelcontextprotocol/clientInfo": info(),
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        self.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params })).await
    }

    /// Sends a request with a token, and again with another one where the server wants that.
    async fn send(&self, body: &Value) -> Result<Response, Failed> {
        let mut token = match self.logins.token("server", &self.url, None).await {
            Err(LoginError::Needed(_)) => Some(self.log_in().await?),
            token => token?,
        };
        for _ in 0..=LOGINS {
            let answer = self.post(body, token.as_deref()).await?;
            if !matches!(answer.status().as_u16(), 401 | 403) {
                return Ok(answer.error_for_status()?);
            }
            let challenge = challenge(answer.headers());
            let next = self.logins.challenged("server", &self.url, None, token.as_deref(), &challenge).await;
            token = match next {
                Err(LoginError::Needed(_)) => Some(self.log_in().await?),
                next => Some(next?),
            };
        }
        Err("the server rejects every token".into())
    }

    async fn post(&self, body: &Value, token: Option<&str>) -> Result<Response, Failed> {
        let mut request = self.http.post(&self.url).body(body.to_string());
        request = request.header("content-type", "application/json");
        request = request.header("accept", "application/json, text/event-stream");
        request = request.header("mcp-protocol-version", &self.version);
        if self.version == STATELESS {
            request = request.header("mcp-method", body["method"].as_str().unwrap_or_default());
            let name = body["params"]["name"].as_str();
            request = name.into_iter().fold(request, |request, name| request.header("mcp-name", name));
        }
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        if let Some(id) = &self.id {
            request = request.header("mcp-session-id", id);
        }
        Ok(request.send().await?)
    }

    /// Logs in as a browser whose user agrees to everything.
    async fn log_in(&self) -> Result<String, Failed> {
        let page = self.logins.begin("server", None, REDIRECT).await?;
        let answer = self.http.get(page).send().await?;
        let redirect = answer.headers().get("location").ok_or("the page redirects nowhere")?.to_str()?;
        self.logins.finish("server", None, redirect).await?;
        let token = self.logins.token("server", &self.url, None).await?;
        token.ok_or_else(|| "the login gave no token".into())
    }
}

fn info() -> Value {
    json!({ "name": "steprail", "version": "1" })
}

fn challenge(headers: &HeaderMap) -> String {
    headers.get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok()).unwrap_or("Bearer").to_owned()
}
