//! Redaction of server entries: values that may be secrets are replaced before they are shown.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::cli::terminal::text::sanitize;

/// The printable part of a server entry. Values of variables and headers, arguments, and all of a URL but its host may be
/// secret.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RedactedServer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Names of environment variables.
    pub env: Vec<String>,
    /// Names of HTTP headers.
    pub headers: Vec<String>,
}

/// Programs that start another program, which is their first argument that is not an option.
const LAUNCHERS: &[&str] =
    &["npx", "bunx", "pnpx", "uvx", "pipx", "node", "bun", "deno", "python", "python3"];

impl RedactedServer {
    pub(crate) fn of(entry: &Value) -> Self {
        let names = |key: &str| {
            let map = entry[key].as_object().into_iter().flatten();
            map.map(|(name, _)| sanitize(name)).collect()
        };
        let url = ["url", "serverUrl", "httpUrl"].into_iter().find_map(|key| entry[key].as_str());
        let command = entry["command"].is_string().then(|| sanitize(&redact_command(&command_line(entry))));
        let url = url.map(|url| sanitize(&redact_url(url)));
        Self { command, url, env: names("env"), headers: names("headers") }
    }

    /// Formats the entry on one line.
    pub(crate) fn line(&self) -> String {
        let mut parts: Vec<String> = self.command.iter().chain(&self.url).cloned().collect();
        for (label, names) in [("env", &self.env), ("headers", &self.headers)] {
            if !names.is_empty() {
                parts.push(format!("{label} {}", names.join(" ")));
            }
        }
        parts.join(", ")
    }
}

/// The command of an entry and its arguments.
pub(crate) fn command_line(entry: &Value) -> Vec<&str> {
    let arguments = entry["args"].as_array().into_iter().flatten();
    entry["command"].as_str().into_iter().chain(arguments.filter_map(Value::as_str)).collect()
}

/// The command, and the program that a launcher starts.
fn redact_command(words: &[&str]) -> String {
    let [command, arguments @ ..] = words else { return String::new() };
    let mut shown = 0;
    if Path::new(command).file_name().is_some_and(|name| LAUNCHERS.iter().any(|known| name == *known)) {
        let program = arguments.iter().position(|word| !word.starts_with('-'));
        shown =
            program.filter(|at| arguments[..=*at].iter().all(|word| is_plain(word))).map_or(0, |at| at + 1);
    }
    let mut line = words[..=shown].join(" ");
    if shown < arguments.len() {
        line.push_str(" …");
    }
    line
}

/// Whether an argument is an option or the name of a program, such as `@scope/server@1.2`, without a value.
fn is_plain(word: &str) -> bool {
    !word.contains("://") && word.chars().all(|c| c.is_alphanumeric() || "@/._-+~".contains(c))
}

/// The scheme and host of a URL. User names, paths and queries may contain keys.
fn redact_url(url: &str) -> String {
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

    use super::RedactedServer;

    fn line(entry: &serde_json::Value) -> String {
        RedactedServer::of(entry).line()
    }

    #[test]
    fn possible_secrets_are_redacted() {
        let command = |command: &str, args: &[&str]| line(&json!({ "command": command, "args": args }));
        assert_eq!(command("mcp-git", &[]), "mcp-git");
        assert_eq!(command("mcp-postgres", &["postgres://ann:s3cret@db/x"]), "mcp-postgres …");
        assert_eq!(command("npx", &["-y", "@scope/git@1.2", "--key", "s3cret"]), "npx -y @scope/git@1.2 …");
        assert_eq!(command("/usr/bin/python3", &["-m", "server"]), "/usr/bin/python3 -m server");
        assert_eq!(command("uvx", &["--from", "git+https://s3cret@host/x", "x"]), "uvx …");
        assert_eq!(command("npx", &["--token=s3cret", "x"]), "npx …");
        assert_eq!(command("node", &["-e", "call('s3cret')"]), "node …");
        assert_eq!(
            line(&json!({ "command": "a", "env": { "KEY": "s3cret", "LEVEL": 1 } })),
            "a, env KEY LEVEL"
        );
        let url = |url: &str| line(&json!({ "url": url, "headers": { "Authorization": "s3cret" } }));
        assert_eq!(url("http://127.0.0.1:1/mcp"), "http://127.0.0.1:1/mcp, headers Authorization");
        assert_eq!(url("https://ann:s3cret@host/"), "https://host, headers Authorization");
        assert_eq!(url("https://host/s/s3cret/mcp?key=s3cret"), "https://host/…, headers Authorization");
        assert_eq!(url("${URL:-s3cret}"), "…, headers Authorization");
    }
}
