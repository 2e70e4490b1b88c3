//! The MCP servers: whether each can be reached, and what it has.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use steprail_mcp::config::{ServerEntry, Servers};
use steprail_mcp::{Gateway, Health, Logins, Options, ServerStatus};
use tokio::task::JoinSet;

use super::Finding;
use crate::daemon::DataDir;
use crate::secrets::Vault;
use crate::tools::supervisor;

/// Servers are reached side by side: one that hangs holds nobody up.
pub(super) async fn look(home: &DataDir, vault: &Vault) -> Vec<Finding> {
    let Some(file) = configured(home) else {
        let what = format!("none are configured; {} would name them", home.servers().display());
        return vec![Finding::ok("servers", what)];
    };
    let read = std::fs::read_to_string(&file).map_err(|error| error.to_string());
    let servers = match read.and_then(|text| Servers::read(&text)) {
        Ok(servers) => servers,
        Err(problem) => {
            let what = format!("{}: {problem}", file.display());
            return vec![Finding::problem("servers", what, "correct the file")];
        }
    };
    let mut findings =
        vec![Finding::ok("servers", format!("{} names {}", file.display(), servers.servers.len()))];
    let told = servers.warnings.iter();
    findings
        .extend(told.map(|told| Finding::warning("servers", told, format!("look into {}", file.display()))));
    let mut reached = JoinSet::new();
    for (name, entry) in servers.servers {
        let vault = vault.clone();
        reached.spawn(async move { (name.clone(), reach(name, entry, vault).await) });
    }
    let by_name: BTreeMap<String, Vec<Finding>> = reached.join_all().await.into_iter().collect();
    findings.extend(by_name.into_values().flatten());
    findings
}

/// The file that a daemon reads: the one that the last daemon was told, or that of the data directory.
fn configured(home: &DataDir) -> Option<PathBuf> {
    let told = std::fs::read_to_string(home.serve_arguments()).ok();
    let told = told.and_then(|text| serde_json::from_str::<Vec<String>>(&text).ok()).unwrap_or_default();
    let named = told.iter().position(|argument| argument == "--servers").and_then(|at| told.get(at + 1));
    if named.is_none() && told.iter().any(|argument| argument == "--tools") {
        return None;
    }
    named.map(PathBuf::from).or_else(|| Some(home.servers()).filter(|file| file.exists()))
}

/// Starts a server, or goes to where it is, and asks for its tools.
async fn reach(name: String, entry: ServerEntry, vault: Vault) -> Vec<Finding> {
    if entry.is_per_user() {
        return vec![Finding::ok("servers", format!("{name} is reached for each user, so not now"))];
    }
    let servers = Servers { servers: [(name.clone(), entry)].into(), ..Servers::default() };
    let logins = Some(Logins::new(Arc::new(vault), &servers));
    let options = Options { supervisor: supervisor(), logins, ..Options::default() };
    let gateway = match Gateway::new(servers, options) {
        Ok(gateway) => gateway,
        Err(problem) => return vec![Finding::problem("servers", problem, "give it another name")],
    };
    let began = Instant::now();
    let status = gateway.connect().await;
    let took = began.elapsed().as_millis();
    gateway.shutdown().await;
    let mut findings = Vec::new();
    for server in status {
        match server.health {
            Health::Up => findings.push(Finding::ok(
                "servers",
                format!("{name} has {} tools, after {took} ms", server.tools.len()),
            )),
            Health::Idle | Health::Starting | Health::Busy => {
                findings.push(Finding::warning("servers", format!("{name} was not reached"), "try again"));
            }
            Health::Down => findings.push(Finding::problem(
                "servers",
                unreachable(&name, &server),
                "its steps wait until it can; correct its entry, or take it out",
            )),
        }
        let told = server.warnings.iter();
        let warn =
            |told| Finding::warning("servers", format!("{name}: {told}"), "tell whoever wrote the server");
        findings.extend(told.map(warn));
    }
    findings
}

/// Why a server cannot be reached, with the last lines of its standard error: whoever runs the doctor is the operator.
fn unreachable(name: &str, server: &ServerStatus) -> String {
    let error = server.error.as_deref().unwrap_or("no attempt was made");
    let stderr = server.stderr.join(" | ");
    let said = if stderr.is_empty() { String::new() } else { format!("; its standard error: {stderr}") };
    format!("{name} cannot be reached: {error}{said}")
}
