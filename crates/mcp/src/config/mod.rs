//! Config files of MCP clients: the servers that they list.
//!
//! Servers are under `mcpServers` (Claude Code and Desktop, Cursor, Windsurf, Gemini, Copilot) or `servers` (VS Code, with
//! comments). Variables stay in the text and are expanded when a server is connected to.

mod expand;
mod oauth;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use steprail_core::spec::policy::OnUncertain;

pub(crate) use expand::is_name;
pub use expand::{ProcessEnv, Text, Variables};
pub(crate) use oauth::is_scope_byte;
pub use oauth::{Grant, KeyAlgorithm, OAuth};

use crate::limits::{SERVER_CALLS, START_SECS};

/// The servers of a config file, and the problems of the file.
#[derive(Debug, Clone, Default)]
pub struct Servers {
    /// Usable entries by name.
    pub servers: BTreeMap<String, ServerEntry>,
    /// Problems of single entries and keys.
    pub warnings: Vec<String>,
    /// Names of entries that cannot be used.
    pub invalid: Vec<String>,
}

/// The config entry of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerEntry {
    /// How to connect.
    pub transport: Transport,
    /// How long a call may be silent if its step sets no timeout.
    pub timeout: Option<Duration>,
    /// Whether its tools may send elicitations.
    pub elicitation: bool,
    /// Time limit for starting the server and for its first response.
    pub start_timeout: Duration,
    /// The maximum number of calls in flight.
    pub max_calls: u32,
    /// Default of `on_uncertain` for steps that call its tools.
    pub on_uncertain: Option<OnUncertain>,
    /// Whether its tools may send sampling requests.
    pub sampling: bool,
    /// Whether to connect with `initialize` (revisions up to 2025-11-25), without a probe for a newer era.
    pub legacy: bool,
    /// The tools to use; all if empty.
    pub include: Vec<String>,
    /// Tools that are not used.
    pub exclude: Vec<String>,
    /// OAuth settings of a remote server.
    pub oauth: Option<OAuth>,
}

/// The transport of a server, with its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// A child process that speaks MCP over its standard input and output.
    Stdio {
        /// The program.
        command: Text,
        /// The arguments of the program.
        args: Vec<Text>,
        /// Environment variables, in addition to those that every server inherits.
        env: BTreeMap<String, Text>,
        /// The working directory; the daemon's if `None`.
        cwd: Option<Text>,
    },
    /// Streamable HTTP, or HTTP+SSE if the server supports nothing else.
    Http {
        /// The URL of the MCP endpoint.
        url: Text,
        /// Headers of each request.
        headers: BTreeMap<String, Text>,
    },
}

impl ServerEntry {
    /// Whether each user has their own connection.
    pub fn is_per_user(&self) -> bool {
        self.oauth.as_ref().is_some_and(|oauth| oauth.per_user) || self.has_user_variables()
    }

    fn has_user_variables(&self) -> bool {
        match &self.transport {
            Transport::Stdio { command, args, env, cwd } => {
                let mut texts = [command].into_iter().chain(args).chain(env.values()).chain(cwd);
                texts.any(Text::has_user_variables)
            }
            Transport::Http { url, headers } => {
                [url].into_iter().chain(headers.values()).any(Text::has_user_variables)
            }
        }
    }

    /// Whether the server may send input requests during a call.
    pub fn sends_input_requests(&self) -> bool {
        self.elicitation || self.sampling
    }

    /// Whether a tool is used, by its name at the server.
    pub fn has_tool(&self, tool: &str) -> bool {
        let named = |list: &[String]| list.iter().any(|name| name == tool);
        (self.include.is_empty() || named(&self.include)) && !named(&self.exclude)
    }
}

/// An entry before it is checked. Some keys have several spellings, one per client.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawEntry {
    #[serde(rename = "type", alias = "transport")]
    kind: Option<String>,
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, Value>,
    cwd: Option<String>,
    #[serde(alias = "serverUrl", alias = "httpUrl")]
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    timeout: Option<u64>,
    #[serde(alias = "startup_timeout_ms")]
    start_timeout: Option<u64>,
    max_calls: Option<u32>,
    on_uncertain: Option<String>,
    #[serde(default)]
    disabled: bool,
    enabled: Option<bool>,
    #[serde(default)]
    elicitation: bool,
    #[serde(default)]
    sampling: bool,
    protocol_era: Option<String>,
    #[serde(default)]
    include_tools: Vec<String>,
    #[serde(default)]
    exclude_tools: Vec<String>,
    oauth: Option<oauth::RawOAuth>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Keys that only clients use. They are ignored without a warning.
const CLIENT_KEYS: &[&str] =
    &["trust", "autoApprove", "alwaysAllow", "description", "icon", "gallery", "dev", "tools"];

/// The top-level keys that servers are read from; the first one that exists counts.
pub const KEYS: [&str; 2] = ["mcpServers", "servers"];

/// Parses JSON with optional comments and trailing commas.
pub fn json(text: &str) -> Result<Value, String> {
    let options = jsonc_parser::ParseOptions::default();
    jsonc_parser::parse_to_serde_value(text, &options).map_err(|error| error.to_string())
}

impl Servers {
    /// Reads a config file: JSON with optional comments and trailing commas.
    pub fn read(text: &str) -> Result<Self, String> {
        let value = json(text)?;
        let named = KEYS.into_iter().find_map(|key| value.get(key));
        let Some(Value::Object(entries)) = named else {
            return Err(
                "the file has neither `mcpServers` nor `servers`, a map of servers by name".to_owned()
            );
        };
        Ok(Self::of(entries))
    }

    /// Reads entries by the names of their servers.
    pub fn of(entries: &Map<String, Value>) -> Self {
        let mut servers = Self::default();
        for (name, entry) in entries {
            match servers.entry(name, entry) {
                Ok(Some(entry)) => drop(servers.servers.insert(name.clone(), entry)),
                Ok(None) => servers.warnings.push(format!("`{name}` is disabled")),
                Err(problem) => servers.skip(name.clone(), &problem),
            }
        }
        servers.skip_alias_conflicts();
        servers
    }

    fn skip(&mut self, name: String, problem: &str) {
        self.warnings.push(format!("`{name}` is skipped: {problem}"));
        self.invalid.push(name);
    }

    /// Of two servers with the same alias, keeps the first.
    fn skip_alias_conflicts(&mut self) {
        let mut aliases: BTreeMap<String, String> = BTreeMap::new();
        for name in self.servers.keys().cloned().collect::<Vec<_>>() {
            let alias = crate::names::alias(&name);
            if let Some(other) = aliases.get(&alias) {
                self.servers.remove(&name);
                self.skip(name, &format!("it has the same alias `{alias}` as `{other}`; rename one of them"));
            } else {
                aliases.insert(alias, name);
            }
        }
    }

    fn entry(&mut self, name: &str, entry: &Value) -> Result<Option<ServerEntry>, String> {
        let mut raw = RawEntry::deserialize(entry).map_err(|error| without_values(&error))?;
        if raw.disabled || raw.enabled == Some(false) {
            return Ok(None);
        }
        for key in raw.others.keys().filter(|key| !CLIENT_KEYS.contains(&key.as_str())) {
            self.warnings.push(format!("`{name}`: the unknown key `{key}` is ignored"));
        }
        let oauth = raw.oauth.take();
        for key in oauth.iter().flat_map(oauth::RawOAuth::unknown_keys) {
            self.warnings.push(format!("`{name}`: the unknown key `oauth.{key}` is ignored"));
        }
        if oauth.is_some() && raw.url.is_none() {
            self.warnings.push(format!("`{name}`: `oauth` is ignored without a `url`"));
        }
        Ok(Some(ServerEntry {
            oauth: oauth.filter(|_| raw.url.is_some()).map(OAuth::read).transpose()?,
            timeout: raw.timeout.map(Duration::from_millis),
            start_timeout: Duration::from_millis(raw.start_timeout.unwrap_or(START_SECS * 1_000)),
            max_calls: raw.max_calls.unwrap_or(SERVER_CALLS).max(1),
            on_uncertain: raw.on_uncertain.as_deref().map(on_uncertain).transpose()?,
            elicitation: raw.elicitation,
            sampling: raw.sampling,
            legacy: raw.protocol_era.as_deref() == Some("legacy"),
            include: raw.include_tools.clone(),
            exclude: raw.exclude_tools.clone(),
            transport: transport(raw)?,
        }))
    }
}

fn transport(raw: RawEntry) -> Result<Transport, String> {
    let texts =
        |map: BTreeMap<String, String>| map.into_iter().map(|(key, text)| (key, Text::new(text))).collect();
    match (raw.kind.as_deref(), raw.command, raw.url) {
        (None | Some("stdio"), Some(command), None) => Ok(Transport::Stdio {
            command: Text::new(command),
            args: raw.args.into_iter().map(Text::new).collect(),
            env: raw.env.into_iter().map(|(key, value)| (key, Text::new(plain(value)))).collect(),
            cwd: raw.cwd.map(Text::new),
        }),
        (None | Some("http" | "streamable-http" | "streamableHttp" | "sse"), None, Some(url)) => {
            Ok(Transport::Http { url: Text::new(url), headers: texts(raw.headers) })
        }
        (Some(kind), ..)
            if !["stdio", "http", "streamable-http", "streamableHttp", "sse"].contains(&kind) =>
        {
            Err(format!("unknown transport `{kind}`; use `stdio` or `http`"))
        }
        _ => Err("it needs either a `command` or a `url`".to_owned()),
    }
}

fn on_uncertain(word: &str) -> Result<OnUncertain, String> {
    OnUncertain::from_name(word)
        .ok_or_else(|| format!("`onUncertain` must be one of {}", OnUncertain::NAMES.join(", ")))
}

/// The error message without the offending value: it may be a secret, and messages end up in logs.
fn without_values(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(", expected ") {
        Some((_, expected)) => format!("a key has a value of the wrong type; expected {expected}"),
        None => text,
    }
}

/// Text of an `env` value: numbers and booleans are accepted, too.
fn plain(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Servers, Text, Transport};

    #[test]
    fn reads_files_of_several_clients() {
        let claude = r#"{ "mcpServers": {
            "git": { "command": "mcp-server-git", "args": ["--repository", "${REPO:-.}"], "env": { "DEBUG": 1 } },
            "crm": { "type": "http", "url": "https://crm.example/mcp", "headers": { "Authorization": "Bearer ${CRM}" } },
            "off": { "command": "x", "disabled": true } } }"#;
        let servers = Servers::read(claude).expect("servers");
        assert_eq!(servers.servers.keys().collect::<Vec<_>>(), ["crm", "git"]);
        assert_eq!(servers.warnings, ["`off` is disabled"]);
        let Transport::Stdio { args, env, .. } = &servers.servers["git"].transport else { panic!("stdio") };
        assert_eq!((args.len(), &env["DEBUG"]), (2, &Text::new("1")));

        let vscode = "{\n // mine\n \"servers\": { \"fs\": { \"command\": \"fs\", \"args\": [], }, }, \"inputs\": [], }";
        assert_eq!(Servers::read(vscode).expect("servers").servers.len(), 1);
        let windsurf = r#"{ "mcpServers": { "a": { "serverUrl": "http://127.0.0.1:1/mcp", "odd": 1 } } }"#;
        let servers = Servers::read(windsurf).expect("servers");
        assert_eq!(servers.warnings, ["`a`: the unknown key `odd` is ignored"]);
    }

    #[test]
    fn skips_only_the_invalid_entries() {
        assert!(
            Servers::read("{}").is_err_and(|problem| problem.contains("neither `mcpServers` nor `servers`"))
        );
        assert!(Servers::read("{ \"mcpServers\": ").is_err());
        let servers = Servers::read(
            r#"{ "mcpServers": {
                "good": { "command": "x", "startTimeout": 90000, "maxCalls": 4, "onUncertain": "fail" },
                "GOOD": { "command": "y" },
                "empty": {},
                "old": { "type": "sse", "url": "http://127.0.0.1:1/sse" },
                "odd": { "type": "pigeon", "url": "x" },
                "worse": { "command": "x", "onUncertain": "guess" },
                "typed": { "command": "x", "env": "TOKEN=s3cret, expected by none" } } }"#,
        );
        let servers = servers.expect("servers");
        assert_eq!(servers.servers.keys().collect::<Vec<_>>(), ["GOOD", "old"]);
        assert_eq!(
            servers.warnings,
            [
                "`empty` is skipped: it needs either a `command` or a `url`",
                "`odd` is skipped: unknown transport `pigeon`; use `stdio` or `http`",
                "`typed` is skipped: a key has a value of the wrong type; expected a map",
                "`worse` is skipped: `onUncertain` must be one of ask, retry, fail, skip",
                "`good` is skipped: it has the same alias `good` as `GOOD`; rename one of them",
            ]
        );
    }
}
