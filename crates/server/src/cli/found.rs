//! The servers that the files of MCP clients name, and what of them may be shown.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Map, Value};
use steprail_mcp::config::Servers;

use super::clients::{Client, Place, Scope};
use super::progress::harmless;

/// What the search for servers gave.
#[derive(Default)]
pub(super) struct Search {
    /// The files that can be read.
    pub files: Vec<(Client, PathBuf)>,
    pub servers: Vec<Found>,
    pub warnings: Vec<String>,
}

/// A server in the file of a client.
pub(super) struct Found {
    pub name: String,
    pub client: Client,
    pub file: PathBuf,
    /// As it stands there.
    pub written: Value,
    /// The same for a process that is started elsewhere.
    pub entry: Value,
    /// Why it is not taken over.
    pub unfit: Option<String>,
}

/// What may be shown of a server. The rest of its entry may be secret: values of variables and headers, arguments,
/// all of an address but the machine.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Shown {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    pub env: Vec<String>,
    pub headers: Vec<String>,
}

/// Programs that start another one, which is their first argument that is no option.
const LAUNCHERS: &[&str] =
    &["npx", "bunx", "pnpx", "uvx", "pipx", "node", "bun", "deno", "python", "python3"];

impl Search {
    /// Reads every known file. One that cannot be read is told, and the others count.
    pub(super) fn run(home: Option<&Path>, folder: &Path) -> Self {
        let mut search = Self::default();
        let mut seen = Vec::new();
        for client in Client::value_variants() {
            for place in client.places(home, folder) {
                // In the home directory, the user's file and the project's are one.
                let there = (std::fs::canonicalize(&place.file).ok(), place.keys.clone());
                if there.0.is_none() || !seen.contains(&there) {
                    seen.push(there);
                    search.look(*client, &place, folder);
                }
            }
        }
        search
    }

    fn look(&mut self, client: Client, place: &Place, folder: &Path) {
        let servers = match place.read() {
            Ok(None) => return,
            Ok(Some(servers)) => servers,
            Err(problem) => return self.warn(&format!("{}: {problem}", place.file.display())),
        };
        let file = (client, place.file.clone());
        if !self.files.contains(&file) {
            self.files.push(file);
        }
        for (name, written) in servers {
            let unfit = self.unfit(&name, &written, &place.file);
            let mut entry = written.clone();
            if place.scope == Scope::Project {
                settle(&mut entry, folder);
            }
            self.servers.push(Found { name, client, file: place.file.clone(), written, entry, unfit });
        }
    }

    /// Why a server is not taken over, if there is a reason.
    fn unfit(&mut self, name: &str, written: &Value, file: &Path) -> Option<String> {
        if is_steprail(name, written) {
            return Some("it is Steprail itself".to_owned());
        }
        let alone = Map::from_iter([(name.to_owned(), written.clone())]);
        match Servers::of(&alone) {
            read if !read.invalid.is_empty() => {
                let problem = read.warnings.last().and_then(|warning| warning.split_once(": "));
                Some(problem.map_or_else(String::new, |(_, problem)| problem.to_owned()))
            }
            read if read.servers.is_empty() => Some("it is disabled there".to_owned()),
            read => {
                read.warnings.iter().for_each(|said| self.warn(&format!("{}: {said}", file.display())));
                None
            }
        }
    }

    /// The clients of this machine.
    pub(super) fn clients(&self) -> Vec<Client> {
        let mut clients: Vec<Client> = self.files.iter().map(|(client, _)| *client).collect();
        clients.dedup();
        clients
    }

    /// Says something once.
    pub(super) fn warn(&mut self, warning: &str) {
        let warning = harmless(warning);
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}

/// Whether a server would start Steprail again, which would call itself for ever.
fn is_steprail(name: &str, written: &Value) -> bool {
    let is_ours = |word: &str| Path::new(word).file_stem().is_some_and(|stem| stem == "steprail");
    let words = words(written);
    let started = words.first().is_some_and(|command| is_ours(command));
    name == "steprail" || started || words.windows(2).any(|pair| is_ours(pair[0]) && pair[1] == "mcp")
}

/// The command and its arguments.
fn words(written: &Value) -> Vec<&str> {
    let arguments = written["args"].as_array().into_iter().flatten();
    written["command"].as_str().into_iter().chain(arguments.filter_map(Value::as_str)).collect()
}

/// A server of a project runs in the project's folder, wherever it is started from.
fn settle(entry: &mut Value, folder: &Path) {
    let folder = folder.display().to_string();
    fill_in(entry, &folder);
    if let Value::Object(entry) = entry
        && entry.contains_key("command")
        && entry.get("cwd").is_none_or(Value::is_null)
    {
        entry.insert("cwd".to_owned(), folder.into());
    }
}

fn fill_in(value: &mut Value, folder: &str) {
    match value {
        Value::String(text) => *text = text.replace("${workspaceFolder}", folder),
        Value::Array(items) => items.iter_mut().for_each(|item| fill_in(item, folder)),
        Value::Object(map) => map.values_mut().for_each(|item| fill_in(item, folder)),
        _ => {}
    }
}

impl Shown {
    pub(super) fn of(written: &Value) -> Self {
        let names = |key: &str| {
            let map = written[key].as_object().into_iter().flatten();
            map.map(|(name, _)| harmless(name)).collect()
        };
        let url = ["url", "serverUrl", "httpUrl"].into_iter().find_map(|key| written[key].as_str());
        let words = words(written);
        let command = written["command"].is_string().then(|| harmless(&started(&words)));
        let url = url.map(|url| harmless(&machine(url)));
        Self { command, url, env: names("env"), headers: names("headers") }
    }

    /// On one line.
    pub(super) fn line(&self) -> String {
        let mut parts: Vec<String> = self.command.iter().chain(&self.url).cloned().collect();
        for (word, names) in [("env", &self.env), ("headers", &self.headers)] {
            if !names.is_empty() {
                parts.push(format!("{word} {}", names.join(" ")));
            }
        }
        parts.join(", ")
    }
}

/// What is started: the command, and what a launcher launches.
fn started(words: &[&str]) -> String {
    let [command, arguments @ ..] = words else { return String::new() };
    let mut shown = 0;
    if Path::new(command).file_name().is_some_and(|name| LAUNCHERS.iter().any(|known| name == *known)) {
        let launched = arguments.iter().position(|word| !word.starts_with('-'));
        shown =
            launched.filter(|at| arguments[..=*at].iter().all(|word| is_plain(word))).map_or(0, |at| at + 1);
    }
    let mut line = words[..=shown].join(" ");
    if shown < arguments.len() {
        line.push_str(" …");
    }
    line
}

/// Whether a word is an option or the name of a program, such as `@scope/server@1.2`, and carries nothing else.
fn is_plain(word: &str) -> bool {
    !word.contains("://") && word.chars().all(|c| c.is_alphanumeric() || "@/._-+~".contains(c))
}

/// The machine of an address. Names of users, paths and queries may hold keys.
fn machine(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "…".to_owned() };
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    let host = rest[..end].rsplit('@').next().unwrap_or_default();
    match rest[end..].trim_end_matches('/') {
        "" => format!("{scheme}://{host}"),
        "/mcp" => format!("{scheme}://{host}/mcp"),
        _ => format!("{scheme}://{host}/…"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Shown, is_steprail};

    fn shown(entry: &serde_json::Value) -> String {
        Shown::of(entry).line()
    }

    #[test]
    fn what_may_be_secret_is_not_shown() {
        let command = |command: &str, args: &[&str]| shown(&json!({ "command": command, "args": args }));
        assert_eq!(command("mcp-git", &[]), "mcp-git");
        assert_eq!(command("mcp-postgres", &["postgres://ann:s3cret@db/x"]), "mcp-postgres …");
        assert_eq!(command("npx", &["-y", "@scope/git@1.2", "--key", "s3cret"]), "npx -y @scope/git@1.2 …");
        assert_eq!(command("/usr/bin/python3", &["-m", "server"]), "/usr/bin/python3 -m server");
        assert_eq!(command("uvx", &["--from", "git+https://s3cret@host/x", "x"]), "uvx …");
        assert_eq!(command("npx", &["--token=s3cret", "x"]), "npx …");
        assert_eq!(command("node", &["-e", "call('s3cret')"]), "node …");
        assert_eq!(
            shown(&json!({ "command": "a", "env": { "KEY": "s3cret", "LEVEL": 1 } })),
            "a, env KEY LEVEL"
        );
        let url = |url: &str| shown(&json!({ "url": url, "headers": { "Authorization": "s3cret" } }));
        assert_eq!(url("http://127.0.0.1:1/mcp"), "http://127.0.0.1:1/mcp, headers Authorization");
        assert_eq!(url("https://ann:s3cret@host/"), "https://host, headers Authorization");
        assert_eq!(url("https://host/s/s3cret/mcp?key=s3cret"), "https://host/…, headers Authorization");
        assert_eq!(url("${URL:-s3cret}"), "…, headers Authorization");
    }

    #[test]
    fn steprail_is_known_under_any_name() {
        let is_ours =
            |command: &str, args: &[&str]| is_steprail("flows", &json!({ "command": command, "args": args }));
        assert!(is_ours("/opt/bin/steprail", &["mcp"]) && is_ours("env", &["A=1", "steprail", "mcp"]));
        assert!(!is_ours("mcp-git", &["--repository", "/home/ann/steprail"]));
        assert!(is_steprail("steprail", &json!({ "url": "http://127.0.0.1:8462/mcp" })));
    }
}
