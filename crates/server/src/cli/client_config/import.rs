//! Finds the servers in the config files of MCP clients.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::{Map, Value};
use steprail_mcp::config::Servers;

use super::clients::{ConfigLocation, McpClient, Scope};
use super::redacted::command_line;
use crate::cli::terminal::text::sanitize;

/// The servers of all config files on this machine.
#[derive(Default)]
pub(crate) struct Import {
    /// Files that were read.
    pub files: Vec<(McpClient, PathBuf)>,
    pub servers: Vec<ImportedServer>,
    pub warnings: Vec<String>,
}

/// A server in a config file.
pub(crate) struct ImportedServer {
    pub name: String,
    pub client: McpClient,
    pub file: PathBuf,
    /// The entry as written in the file.
    pub original: Value,
    /// The entry for a process that runs in another directory.
    pub entry: Value,
    /// Why it cannot be imported.
    pub rejected: Option<String>,
}

impl Import {
    /// Reads the config files of all known clients. An unreadable file is a warning.
    pub(crate) fn scan(home: Option<&Path>, folder: &Path) -> Self {
        let mut import = Self::default();
        let mut seen = Vec::new();
        for client in McpClient::value_variants() {
            for location in client.locations(home, folder) {
                // In the home directory, the files of the user and of the project are the same.
                let identity = (std::fs::canonicalize(&location.file).ok(), location.keys.clone());
                if identity.0.is_none() || !seen.contains(&identity) {
                    seen.push(identity);
                    import.read(*client, &location, folder);
                }
            }
        }
        import
    }

    fn read(&mut self, client: McpClient, location: &ConfigLocation, folder: &Path) {
        let servers = match location.read() {
            Ok(None) => return,
            Ok(Some(servers)) => servers,
            Err(problem) => return self.warn(&format!("{}: {problem}", location.file.display())),
        };
        let file = (client, location.file.clone());
        if !self.files.contains(&file) {
            self.files.push(file);
        }
        for (name, original) in servers {
            let rejected = self.rejection(&name, &original, &location.file);
            let mut entry = original.clone();
            if location.scope == Scope::Project {
                make_portable(&mut entry, folder);
            }
            let file = location.file.clone();
            self.servers.push(ImportedServer { name, client, file, original, entry, rejected });
        }
    }

    /// Why a server cannot be imported.
    fn rejection(&mut self, name: &str, original: &Value, file: &Path) -> Option<String> {
        if is_steprail(name, original) {
            return Some("it is Steprail itself".to_owned());
        }
        let single = Map::from_iter([(name.to_owned(), original.clone())]);
        match Servers::of(&single) {
            read if !read.invalid.is_empty() => {
                let problem = read.warnings.last().and_then(|warning| warning.split_once(": "));
                Some(problem.map_or_else(String::new, |(_, problem)| problem.to_owned()))
            }
            read if read.servers.is_empty() => Some("it is disabled there".to_owned()),
            read => {
                read.warnings.iter().for_each(|warning| self.warn(&format!("{}: {warning}", file.display())));
                None
            }
        }
    }

    /// The clients that have a config file.
    pub(crate) fn clients(&self) -> Vec<McpClient> {
        let mut clients: Vec<McpClient> = self.files.iter().map(|(client, _)| *client).collect();
        clients.dedup();
        clients
    }

    /// Adds a warning, once.
    pub(crate) fn warn(&mut self, warning: &str) {
        let warning = sanitize(warning);
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}

/// Whether an entry starts Steprail, which would then call itself.
fn is_steprail(name: &str, entry: &Value) -> bool {
    let is_program = |word: &str| Path::new(word).file_stem().is_some_and(|stem| stem == "steprail");
    let words = command_line(entry);
    let is_command = words.first().is_some_and(|command| is_program(command));
    name == "steprail" || is_command || words.windows(2).any(|pair| is_program(pair[0]) && pair[1] == "mcp")
}

/// Resolves `${workspaceFolder}`, and sets the working directory of a project's server.
fn make_portable(entry: &mut Value, folder: &Path) {
    let folder = folder.display().to_string();
    resolve_workspace(entry, &folder);
    if let Value::Object(entry) = entry
        && entry.contains_key("command")
        && entry.get("cwd").is_none_or(Value::is_null)
    {
        entry.insert("cwd".to_owned(), folder.into());
    }
}

fn resolve_workspace(value: &mut Value, folder: &str) {
    match value {
        Value::String(text) => *text = text.replace("${workspaceFolder}", folder),
        Value::Array(items) => items.iter_mut().for_each(|item| resolve_workspace(item, folder)),
        Value::Object(map) => map.values_mut().for_each(|item| resolve_workspace(item, folder)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::is_steprail;

    #[test]
    fn steprail_is_recognised_under_any_name() {
        let is_steprail_entry =
            |command: &str, args: &[&str]| is_steprail("flows", &json!({ "command": command, "args": args }));
        assert!(is_steprail_entry("/opt/bin/steprail", &["mcp"]));
        assert!(is_steprail_entry("env", &["A=1", "steprail", "mcp"]));
        assert!(!is_steprail_entry("mcp-git", &["--repository", "/home/ann/steprail"]));
        assert!(is_steprail("steprail", &json!({ "url": "http://127.0.0.1:8462/mcp" })));
    }
}
