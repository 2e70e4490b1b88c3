//! Test fixtures: a daemon, an MCP client and installed third-party programs.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const MODERN: &str = "2026-07-28";

/// The path of a file in `tests`.
pub(crate) fn test_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

pub(crate) fn steprail() -> &'static str {
    env!("CARGO_BIN_EXE_steprail")
}

/// Runs a script that installs third-party programs. Returns their directory.
fn installed(script: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(script);
    let output = Command::new(script).stderr(Stdio::inherit()).output().expect("the script");
    assert!(output.status.success(), "cannot install the programs");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// The path of a third-party client.
pub(crate) fn client(name: &str) -> String {
    static BIN: OnceLock<String> = OnceLock::new();
    format!("{}/{name}", BIN.get_or_init(|| installed("clients")))
}

/// The path of a third-party server.
pub(crate) fn server(name: &str) -> String {
    static BIN: OnceLock<String> = OnceLock::new();
    format!("{}/{name}", BIN.get_or_init(|| installed("servers")))
}

/// Runs a command that must succeed. Returns its standard output.
pub(crate) fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} ended with {}\n{text}\n{stderr}", output.status);
    text
}

/// A daemon with its own data directory. It is killed when dropped.
pub(crate) struct Daemon {
    pub folder: TempDir,
    pub url: String,
    arguments: Vec<String>,
    child: Child,
}

impl Daemon {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().expect("a folder"), arguments)
    }

    pub(crate) fn start_in(folder: TempDir, arguments: &[&str]) -> Self {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let (child, url) = serve(folder.path(), "127.0.0.1:0", &arguments);
        Self { folder, url, arguments, child }
    }

    /// Kills the daemon with SIGKILL and starts it again at the same address.
    pub(crate) fn kill_and_restart(&mut self) {
        self.kill();
        self.restart();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("kill -9");
        self.child.wait().expect("the end");
    }

    pub(crate) fn restart(&mut self) {
        let address = self.url.trim_start_matches("http://").trim_end_matches("/mcp").to_owned();
        (self.child, self.url) = serve(self.folder.path(), &address, &self.arguments);
    }

    /// Starts the daemon again with other arguments.
    pub(crate) fn restart_with(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(ToString::to_string).collect();
        self.restart();
    }

    /// Stores every definition of a directory in `tests`.
    pub(crate) fn define_all(&self, folder: &str) {
        let script = test_file("conformance/define.py");
        output(Command::new(client("python-mcp")).args([&script]).arg(&self.url).arg(test_file(folder)));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(folder: &Path, address: &str, arguments: &[String]) -> (Child, String) {
    let mut command = Command::new(steprail());
    command.args(["serve", "--listen", address, "--data"]).arg(folder).args(arguments);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("a daemon");
    let mut url = String::new();
    for line in BufReader::new(child.stdout.take().expect("its output")).lines() {
        let line = line.expect("a line");
        match line.split_once(' ') {
            Some(("mcp", address)) => address.clone_into(&mut url),
            _ if line == "ready" => return (child, url),
            _ => {}
        }
    }
    panic!("the daemon ended: {}", child.wait().expect("its end"));
}

/// An MCP client that sends plain JSON-RPC over HTTP.
pub(crate) struct Rpc {
    http: reqwest::Client,
    pub url: String,
    pub session: Option<String>,
}

impl Rpc {
    pub(crate) fn new(url: &str) -> Self {
        // Connections are not reused, because tests restart the daemon.
        let http = reqwest::Client::builder().pool_max_idle_per_host(0).build().expect("a client");
        Self { http, url: url.to_owned(), session: None }
    }

    /// Sends a request of revision 2026-07-28, with the capability for tasks.
    pub(crate) async fn modern(&self, method: &str, mut params: Value) -> Value {
        let name = ["name", "taskId", "uri"].iter().find_map(|key| params[*key].as_str()).map(str::to_owned);
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities":
                { "extensions": { "io.modelcontextprotocol/tasks": {} }, "elicitation": {} },
        });
        let mut request = self.request().header("mcp-protocol-version", MODERN).header("mcp-method", method);
        if let Some(name) = name {
            request = request.header("mcp-name", name);
        }
        send(request, method, params).await.0
    }

    /// Starts a session of revision 2025-11-25.
    pub(crate) async fn initialize(&mut self) {
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" }
        });
        let (_, session) = send(self.request(), "initialize", params).await;
        self.session = session;
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        let sent = self.in_session().json(&ready).send().await.expect("a response");
        assert!(sent.status().is_success(), "{}", sent.status());
    }

    /// Sends a request in the session.
    pub(crate) async fn legacy(&self, method: &str, params: Value) -> Value {
        send(self.in_session(), method, params).await.0
    }

    /// The stream of notifications of the session.
    pub(crate) async fn stream(&self) -> reqwest::Response {
        let request = self.http.get(&self.url).header("accept", "text/event-stream");
        let request = request.header("mcp-protocol-version", "2025-11-25");
        let session = self.session.as_deref().expect("a session");
        request.header("mcp-session-id", session).send().await.expect("a stream")
    }

    fn in_session(&self) -> reqwest::RequestBuilder {
        let request = self.request().header("mcp-protocol-version", "2025-11-25");
        request.header("mcp-session-id", self.session.as_deref().expect("a session"))
    }

    fn request(&self) -> reqwest::RequestBuilder {
        self.http.post(&self.url).header("accept", "application/json, text/event-stream")
    }
}

/// Sends a request. Returns the response and the session id in its headers.
async fn send(request: reqwest::RequestBuilder, method: &str, params: Value) -> (Value, Option<String>) {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let response = request.json(&body).send().await.expect("a response");
    let session = response.headers().get("mcp-session-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    let status = response.status();
    let text = response.text().await.expect("a text");
    let events = text.lines().filter_map(|line| line.strip_prefix("data:")).chain([text.as_str()]);
    let messages = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let result = messages.into_iter().find(|message| message["id"] == 1);
    (result.unwrap_or_else(|| panic!("{method}: {status} {text}")), session)
}
