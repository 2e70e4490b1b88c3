//! The MCP clients of this machine that know Steprail: whether what they start is there, and the same.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use steprail_mcp::config::{ProcessEnv, Servers, Text, Transport};

use super::Finding;
use crate::cli::clients::{self, Client};
use crate::daemon::DataDir;

pub(super) fn look(home: &DataDir) -> Vec<Finding> {
    let clients = Client::value_variants().iter().filter_map(|client| look_at(*client, home));
    let findings: Vec<Finding> = clients.collect();
    if findings.is_empty() {
        let what = "none on this machine knows steprail; `steprail connect` tells one";
        return vec![Finding::ok("clients", what)];
    }
    findings
}

/// A client that has no file, or no entry in it, is none of our business.
fn look_at(client: Client, home: &DataDir) -> Option<Finding> {
    let name = client.word();
    let file = client.place(clients::home().as_deref())?.file;
    let text = std::fs::read_to_string(&file).ok().filter(|text| text.contains("steprail"))?;
    let place = format!("{name} ({})", file.display());
    let servers = match Servers::read(&text) {
        Ok(servers) => servers,
        Err(problem) => {
            return Some(Finding::warning("clients", format!("{place}: {problem}"), "correct the file"));
        }
    };
    let Transport::Stdio { command, args, env, .. } = &servers.servers.get("steprail")?.transport else {
        return Some(Finding::ok("clients", format!("{place} reaches steprail over HTTP")));
    };
    let args: Vec<String> = args.iter().filter_map(plain).collect();
    let set = env.get("STEPRAIL_DATA").and_then(plain).map(PathBuf::from);
    Some(judged(&name, &place, &plain(command)?, data(&args).or(set), home))
}

fn judged(name: &str, place: &str, command: &str, data: Option<PathBuf>, home: &DataDir) -> Finding {
    let again = format!("`steprail connect {name} --write --data {}` corrects it", home.path().display());
    if !is_program(command) {
        let what = format!("{place} starts {command}, which is no program");
        return Finding::problem("clients", what, again);
    }
    match DataDir::find(data) {
        Ok(theirs) if same(theirs.path(), home.path()) => {
            Finding::ok("clients", format!("{place} starts {command}"))
        }
        Ok(theirs) => {
            let what = format!("{place} has another data directory: {}", theirs.path().display());
            Finding::warning("clients", what, again)
        }
        Err(problem) => Finding::warning("clients", format!("{place}: {problem}"), again),
    }
}

fn plain(text: &Text) -> Option<String> {
    text.expand(&ProcessEnv).ok()
}

/// The data directory that is named among arguments.
fn data(args: &[String]) -> Option<PathBuf> {
    let joined = args.iter().find_map(|argument| argument.strip_prefix("--data="));
    let apart = args.iter().position(|argument| argument == "--data").and_then(|at| args.get(at + 1));
    joined.or(apart.map(String::as_str)).map(PathBuf::from)
}

fn same(a: &Path, b: &Path) -> bool {
    let one_name = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    one_name(a) == one_name(b)
}

/// Whether a command can be started: a path, or a name that is found as a shell finds it.
fn is_program(command: &str) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let can_run = |path: &Path| {
        path.metadata().is_ok_and(|known| known.is_file() && known.permissions().mode() & 0o111 != 0)
    };
    if command.contains('/') {
        return can_run(Path::new(command));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| can_run(&folder.join(command)))
}
