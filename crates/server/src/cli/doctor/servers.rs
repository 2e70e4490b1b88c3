//! Checks whether each MCP server can be reached.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use steprail_mcp::config::{ServerEntry, Servers};
use steprail_mcp::{Gateway, Health, Logins, Options, ServerStatus};
use tokio::task::JoinSet;

use super::Finding;
use crate::cli::terminal::text::count;
use crate::daemon::DataDir;
use crate::secrets::Vault;
use crate::tools::supervisor;

const TOPIC: &str = "servers";

/// Connects to all servers in parallel.
pub(super) async fn check(home: &DataDir, vault: &Vault) -> Vec<Finding> {
    let Some(file) = config_file(home) else {
        let message = format!("none are configured; add them to {}", home.servers().display());
        return vec![Finding::ok(TOPIC, message)];
    };
    let text = std::fs::read_to_string(&file).map_err(|error| error.to_string());
    let servers = match text.and_then(|text| Servers::read(&text)) {
        Ok(servers) => servers,
        Err(problem) => {
            let message = format!("{}: {problem}", file.display());
            return vec![Finding::problem(TOPIC, message, "correct the file")];
        }
    };
    let configured = count(servers.servers.len(), "server", "servers");
    let mut findings = vec![Finding::ok(TOPIC, format!("{configured} in {}", file.display()))];
    let hint = format!("correct {}", file.display());
    findings.extend(servers.warnings.iter().map(|warning| Finding::warning(TOPIC, warning, &hint)));
    let mut checks = JoinSet::new();
    for (name, entry) in servers.servers {
        let vault = vault.clone();
        checks.spawn(async move { (name.clone(), check_server(name, entry, vault).await) });
    }
    let by_name: BTreeMap<String, Vec<Finding>> = checks.join_all().await.into_iter().collect();
    findings.extend(by_name.into_values().flatten());
    findings
}

/// The file that the daemon reads: that of its last start, or servers.json in the data directory.
fn config_file(home: &DataDir) -> Option<PathBuf> {
    let arguments = std::fs::read_to_string(home.serve_arguments()).ok();
    let arguments: Vec<String> =
        arguments.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let position = |option: &str| arguments.iter().position(|argument| argument == option);
    let file = position("--servers").and_then(|at| arguments.get(at + 1));
    if file.is_none() && position("--tools").is_some() {
        return None;
    }
    file.map(PathBuf::from).or_else(|| Some(home.servers()).filter(|file| file.exists()))
}

/// Connects to a server and lists its tools.
async fn check_server(name: String, entry: ServerEntry, vault: Vault) -> Vec<Finding> {
    if entry.is_per_user() {
        return vec![Finding::ok(TOPIC, format!("{name} has a connection per user and was not checked"))];
    }
    let servers = Servers { servers: [(name.clone(), entry)].into(), ..Servers::default() };
    let logins = Some(Logins::new(Arc::new(vault), &servers));
    let options = Options { supervisor: supervisor(), logins, ..Options::default() };
    let gateway = match Gateway::new(servers, options) {
        Ok(gateway) => gateway,
        Err(problem) => return vec![Finding::problem(TOPIC, problem, "rename the server")],
    };
    let started = Instant::now();
    let status = gateway.connect().await;
    let millis = started.elapsed().as_millis();
    gateway.shutdown().await;
    let mut findings = Vec::new();
    for server in status {
        findings.push(match server.health {
            Health::Up => {
                let tools = count(server.tools.len(), "tool", "tools");
                Finding::ok(TOPIC, format!("{name} has {tools}, connected in {millis} ms"))
            }
            Health::Idle | Health::Starting | Health::Busy => {
                Finding::warning(TOPIC, format!("{name} did not connect"), "run the command again")
            }
            Health::Down => Finding::problem(
                TOPIC,
                unreachable(&name, &server),
                "correct or remove its entry; its steps wait until it is reachable",
            ),
        });
        let warnings = server.warnings.iter();
        let hint = "report this to the author of the server";
        findings.extend(warnings.map(|warning| Finding::warning(TOPIC, format!("{name}: {warning}"), hint)));
    }
    findings
}

/// The error with the last lines of the server's standard error, which only operators may see.
fn unreachable(name: &str, server: &ServerStatus) -> String {
    let error = server.error.as_deref().unwrap_or("no attempt was made");
    let stderr = server.stderr.join(" | ");
    let stderr = if stderr.is_empty() { String::new() } else { format!("; its standard error: {stderr}") };
    format!("cannot reach {name}: {error}{stderr}")
}
