//! Checks the MCP clients that are connected to Steprail.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use steprail_mcp::config::{ProcessEnv, Servers, Text, Transport};

use super::Finding;
use crate::cli::client_config::clients::{self, McpClient};
use crate::daemon::DataDir;

const TOPIC: &str = "clients";

pub(super) fn check(home: &DataDir) -> Vec<Finding> {
    let clients = McpClient::value_variants().iter().filter_map(|client| check_client(*client, home));
    let findings: Vec<Finding> = clients.collect();
    if findings.is_empty() {
        return vec![Finding::ok(TOPIC, "none is connected; connect one with `steprail connect`")];
    }
    findings
}

/// Checks the entry for Steprail in the config file of a client. Returns `None` if there is none.
fn check_client(client: McpClient, home: &DataDir) -> Option<Finding> {
    let file = client.location(clients::home().as_deref())?.file;
    let text = std::fs::read_to_string(&file).ok().filter(|text| text.contains("steprail"))?;
    let name = format!("{} ({})", client.name(), file.display());
    let servers = match Servers::read(&text) {
        Ok(servers) => servers,
        Err(problem) => {
            return Some(Finding::warning(TOPIC, format!("{name}: {problem}"), "correct the file"));
        }
    };
    let Transport::Stdio { command, args, env, .. } = &servers.servers.get("steprail")?.transport else {
        return Some(Finding::ok(TOPIC, format!("{name} connects to steprail over HTTP")));
    };
    let args: Vec<String> = args.iter().filter_map(expand).collect();
    let variable = env.get("STEPRAIL_DATA").and_then(expand).map(PathBuf::from);
    let data = data_argument(&args).or(variable);
    Some(check_command(client, &name, &expand(command)?, data, home))
}

fn check_command(
    client: McpClient,
    name: &str,
    command: &str,
    data: Option<PathBuf>,
    home: &DataDir,
) -> Finding {
    let path = home.path().display();
    let hint = format!("run `steprail connect {} --write --data {path}`", client.name());
    if !is_executable(command) {
        return Finding::problem(TOPIC, format!("{name} starts {command}, which is not a program"), hint);
    }
    match DataDir::find(data) {
        Ok(other) if is_same_path(other.path(), home.path()) => {
            Finding::ok(TOPIC, format!("{name} starts {command}"))
        }
        Ok(other) => {
            let message = format!("{name} uses another data directory: {}", other.path().display());
            Finding::warning(TOPIC, message, hint)
        }
        Err(problem) => Finding::warning(TOPIC, format!("{name}: {problem}"), hint),
    }
}

fn expand(text: &Text) -> Option<String> {
    text.expand(&ProcessEnv).ok()
}

/// The value of `--data`.
fn data_argument(args: &[String]) -> Option<PathBuf> {
    let joined = args.iter().find_map(|argument| argument.strip_prefix("--data="));
    let separate = args.iter().position(|argument| argument == "--data").and_then(|at| args.get(at + 1));
    joined.or(separate.map(String::as_str)).map(PathBuf::from)
}

fn is_same_path(a: &Path, b: &Path) -> bool {
    let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    canonical(a) == canonical(b)
}

/// Whether a command is an executable file, by its path or on PATH.
fn is_executable(command: &str) -> bool {
    let can_run = |path: &Path| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if command.contains('/') {
        return can_run(Path::new(command));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| can_run(&folder.join(command)))
}
