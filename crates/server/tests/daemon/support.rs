//! A daemon for a test, what it takes to talk to it, and programs that others wrote.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const MODERN: &str = "2026-07-28";

/// A file of the tests.
pub(crate) fn test_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

pub(crate) fn steprail() -> &'static str {
    env!("CARGO_BIN_EXE_steprail")
}

/// Where a script of ours has installed programs of others.
fn installed(script: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(script);
    let output = Command::new(script).stderr(Stdio::inherit()).output().expect("the script");
    assert!(output.status.success(), "the programs cannot be installed");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// A client that others wrote.
pub(crate) fn client(name: &str) -> String {
    static BIN: OnceLock<String> = OnceLock::new();
    format!("{}/{name}", BIN.get_or_init(|| installed("clients")))
}

/// A server that others wrote.
pub(crate) fn server(name: &str) -> String {
    static BIN: OnceLock<String> = OnceLock::new();
    format!("{}/{name}", BIN.get_or_init(|| installed("servers")))
}

/// Does something and gives its output; a failure fails the test with everything that was said.
pub(crate) fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} ended with {}\n{text}\n{said}", output.status);
    text
}

/// A daemon on a data directory of its own. It is killed at the end.
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

    /// Kills it as a power cut would, and starts another one at the same address.
    pub(crate) fn kill_and_start(&mut self) {
        self.kill();
        self.start_again();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("kill -9");
        self.child.wait().expect("the end");
    }

    pub(crate) fn start_again(&mut self) {
        let address = self.url.trim_start_matches("http://").trim_end_matches("/mcp").to_owned();
        (self.child, self.url) = serve(self.folder.path(), &address, &self.arguments);
    }

    /// Stores every definition of a folder of the tests.
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
            Some(("mcp", given)) => given.clone_into(&mut url),
            _ if line == "ready" => return (child, url),
            _ => {}
        }
    }
    panic!("the daemon ended: {}", child.wait().expect("its end"));
}

/// A client of our own that speaks plain JSON-RPC: what clients do between themselves and the server.
pub(crate) struct Rpc {
    http: reqwest::Client,
    pub url: String,
    pub session: Option<String>,
}

impl Rpc {
    pub(crate) fn new(url: &str) -> Self {
        // No connection is used twice: the daemon may have died meanwhile.
        let http = reqwest::Client::builder().pool_max_idle_per_host(0).build().expect("a client");
        Self { http, url: url.to_owned(), session: None }
    }

    /// A request of today's revision, from a client that knows tasks.
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
        answer(request, method, params).await.0
    }

    /// Begins a session, as older revisions do.
    pub(crate) async fn initialize(&mut self) {
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" }
        });
        let (_, session) = answer(self.request(), "initialize", params).await;
        self.session = session;
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        let sent = self.in_session().json(&ready).send().await.expect("an answer");
        assert!(sent.status().is_success(), "{}", sent.status());
    }

    /// A request in a session.
    pub(crate) async fn legacy(&self, method: &str, params: Value) -> Value {
        answer(self.in_session(), method, params).await.0
    }

    /// The stream of what the server says in a session on its own.
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

/// Sends a request; gives what it answers, and the session that begins with it.
async fn answer(request: reqwest::RequestBuilder, method: &str, params: Value) -> (Value, Option<String>) {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let response = request.json(&body).send().await.expect("an answer");
    let session = response.headers().get("mcp-session-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    let status = response.status();
    let text = response.text().await.expect("a text");
    let events = text.lines().filter_map(|line| line.strip_prefix("data:")).chain([text.as_str()]);
    let messages = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let answer = messages.into_iter().find(|message| message["id"] == 1);
    (answer.unwrap_or_else(|| panic!("{method}: {status} {text}")), session)
}
