//! The MCP servers of a user, as their clients' config files name them.
//!
//! Files are read as they are: `mcpServers` (Claude Code and Desktop, Cursor, Windsurf, Gemini, Copilot) or `servers`
//! (VS Code, with comments). Variables are kept and replaced when a server is connected to.

mod expand;
mod oauth;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use steprail_core::spec::policy::OnUncertain;

pub(crate) use expand::is_name;
pub use expand::{ProcessEnv, Text, Variables};
pub(crate) use oauth::is_scope_byte;
pub use oauth::{Grant, KeyAlgorithm, OAuth};

use crate::limits::{SERVER_CALLS, START_SECS};

/// Servers that a file names, and what there is to say about it.
#[derive(Debug, Clone, Default)]
pub struct Servers {
    /// By name.
    pub servers: BTreeMap<String, Entry>,
    /// Problems of single entries and keys.
    pub warnings: Vec<String>,
    /// Entries that cannot be used, by name.
    pub invalid: Vec<String>,
}

/// How to reach a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Over which road.
    pub road: Road,
    /// How long a call may be silent, where its step says nothing.
    pub timeout: Option<Duration>,
    /// Whether its tools may ask a human in the middle of a call.
    pub elicitation: bool,
    /// How long the server has to start and to answer for the first time.
    pub start_timeout: Duration,
    /// Calls at the same time.
    pub max_calls: u32,
    /// What happens when the outcome of a call is unknown, where the definition does not say.
    pub on_uncertain: Option<OnUncertain>,
    /// Whether its tools may use the model of the client that called them.
    pub sampling: bool,
    /// Whether it is spoken to as revisions up to 2025-11-25 have it, without asking for a newer one.
    pub legacy: bool,
    /// Tools that are used; all if there are none.
    pub include: Vec<String>,
    /// Tools that are not used.
    pub exclude: Vec<String>,
    /// How tokens are obtained, for a remote server.
    pub oauth: Option<OAuth>,
}

/// A road to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Road {
    /// A process of our own.
    Child {
        /// The program.
        command: Text,
        /// Its arguments.
        args: Vec<Text>,
        /// Its environment, beside the little that every process needs.
        env: BTreeMap<String, Text>,
        /// Where it runs.
        cwd: Option<Text>,
    },
    /// Streamable HTTP, or HTTP+SSE where the server speaks nothing else.
    Http {
        /// Where.
        url: Text,
        /// Headers of each request.
        headers: BTreeMap<String, Text>,
    },
}

impl Entry {
    /// Whether each user needs a connection of their own.
    pub fn is_personal(&self) -> bool {
        self.oauth.as_ref().is_some_and(|oauth| oauth.per_user) || self.has_personal_text()
    }

    fn has_personal_text(&self) -> bool {
        match &self.road {
            Road::Child { command, args, env, cwd } => {
                [command].into_iter().chain(args).chain(env.values()).chain(cwd).any(Text::is_personal)
            }
            Road::Http { url, headers } => [url].into_iter().chain(headers.values()).any(Text::is_personal),
        }
    }

    /// Whether the server sends requests of its own during a call.
    pub fn asks(&self) -> bool {
        self.elicitation || self.sampling
    }

    /// Whether a tool is used.
    pub fn has_tool(&self, tool: &str) -> bool {
        let named = |list: &[String]| list.iter().any(|name| name == tool);
        (self.include.is_empty() || named(&self.include)) && !named(&self.exclude)
    }
}

/// An entry as it is written. Every client has its own spelling of some keys.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
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
    oauth: Option<oauth::Written>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Keys that clients write for themselves and that change nothing here.
const FOR_CLIENTS: &[&str] =
    &["trust", "autoApprove", "alwaysAllow", "description", "icon", "gallery", "dev", "tools"];

/// The keys that servers stand under, in the order in which they are looked for.
pub const KEYS: [&str; 2] = ["mcpServers", "servers"];

/// A config file as it is: JSON, with comments and trailing commas if need be.
pub fn json(text: &str) -> Result<Value, String> {
    let options = jsonc_parser::ParseOptions::default();
    jsonc_parser::parse_to_serde_value(text, &options).map_err(|error| error.to_string())
}

impl Servers {
    /// Reads a config file: JSON, with comments and trailing commas if need be.
    pub fn read(text: &str) -> Result<Self, String> {
        let value = json(text)?;
        let named = KEYS.into_iter().find_map(|key| value.get(key));
        let Some(Value::Object(entries)) = named else {
            return Err(
                "there is neither `mcpServers` nor `servers` in it, a map from names to servers".to_owned()
            );
        };
        Ok(Self::of(entries))
    }

    /// Reads servers by their names.
    pub fn of(entries: &Map<String, Value>) -> Self {
        let mut found = Self::default();
        for (name, entry) in entries {
            match found.entry(name, entry) {
                Ok(Some(entry)) => drop(found.servers.insert(name.clone(), entry)),
                Ok(None) => found.warnings.push(format!("`{name}` is disabled")),
                Err(problem) => {
                    found.warnings.push(format!("`{name}` is left out: {problem}"));
                    found.invalid.push(name.clone());
                }
            }
        }
        found.leave_out_namesakes();
        found
    }

    /// Two servers whose tools would have the same names: the first one counts.
    fn leave_out_namesakes(&mut self) {
        let mut aliases: BTreeMap<String, String> = BTreeMap::new();
        let mut namesakes = Vec::new();
        for name in self.servers.keys() {
            match aliases.entry(crate::names::alias(name)) {
                Slot::Vacant(free) => drop(free.insert(name.clone())),
                Slot::Occupied(taken) => namesakes.push((name.clone(), taken.get().clone())),
            }
        }
        for (name, other) in namesakes {
            self.servers.remove(&name);
            let alias = crate::names::alias(&other);
            self.warnings.push(format!(
                "`{name}` is left out: its tools would be named `{alias}__…` like those of `{other}`"
            ));
            self.invalid.push(name);
        }
    }

    fn entry(&mut self, name: &str, entry: &Value) -> Result<Option<Entry>, String> {
        let mut written = Written::deserialize(entry).map_err(|error| without_values(&error))?;
        if written.disabled || written.enabled == Some(false) {
            return Ok(None);
        }
        for key in written.others.keys().filter(|key| !FOR_CLIENTS.contains(&key.as_str())) {
            self.warnings.push(format!("`{name}`: the key `{key}` is not known and changes nothing"));
        }
        let oauth = written.oauth.take();
        for key in oauth.iter().flat_map(oauth::Written::unknown) {
            self.warnings.push(format!("`{name}`: the key `oauth.{key}` is not known and changes nothing"));
        }
        if oauth.is_some() && written.url.is_none() {
            self.warnings.push(format!("`{name}`: `oauth` changes nothing without a `url`"));
        }
        Ok(Some(Entry {
            oauth: oauth.filter(|_| written.url.is_some()).map(OAuth::read).transpose()?,
            timeout: written.timeout.map(Duration::from_millis),
            start_timeout: Duration::from_millis(written.start_timeout.unwrap_or(START_SECS * 1_000)),
            max_calls: written.max_calls.unwrap_or(SERVER_CALLS).max(1),
            on_uncertain: written.on_uncertain.as_deref().map(on_uncertain).transpose()?,
            elicitation: written.elicitation,
            sampling: written.sampling,
            legacy: written.protocol_era.as_deref() == Some("legacy"),
            include: written.include_tools.clone(),
            exclude: written.exclude_tools.clone(),
            road: road(written)?,
        }))
    }
}

fn road(written: Written) -> Result<Road, String> {
    let texts =
        |map: BTreeMap<String, String>| map.into_iter().map(|(key, text)| (key, Text::new(text))).collect();
    match (written.kind.as_deref(), written.command, written.url) {
        (None | Some("stdio"), Some(command), None) => Ok(Road::Child {
            command: Text::new(command),
            args: written.args.into_iter().map(Text::new).collect(),
            env: written.env.into_iter().map(|(key, value)| (key, Text::new(plain(value)))).collect(),
            cwd: written.cwd.map(Text::new),
        }),
        (None | Some("http" | "streamable-http" | "streamableHttp" | "sse"), None, Some(url)) => {
            Ok(Road::Http { url: Text::new(url), headers: texts(written.headers) })
        }
        (Some(kind), ..)
            if !["stdio", "http", "streamable-http", "streamableHttp", "sse"].contains(&kind) =>
        {
            Err(format!("`{kind}` is no transport; `stdio` and `http` are"))
        }
        _ => Err("give it a `command`, or a `url`".to_owned()),
    }
}

fn on_uncertain(word: &str) -> Result<OnUncertain, String> {
    OnUncertain::from_word(word)
        .ok_or_else(|| format!("`onUncertain` is one of {}", OnUncertain::WORDS.join(", ")))
}

/// What is wrong with an entry, without what is in it: that may be a secret, and messages end up in logs.
fn without_values(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(", expected ") {
        Some((_, expected)) => format!("one of its keys has a value of another type; expected {expected}"),
        None => text,
    }
}

/// Numbers and booleans in an `env` are meant as text.
fn plain(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Road, Servers, Text};

    #[test]
    fn files_of_several_clients_are_read_as_they_are() {
        let claude = r#"{ "mcpServers": {
            "git": { "command": "mcp-server-git", "args": ["--repository", "${REPO:-.}"], "env": { "DEBUG": 1 } },
            "crm": { "type": "http", "url": "https://crm.example/mcp", "headers": { "Authorization": "Bearer ${CRM}" } },
            "off": { "command": "x", "disabled": true } } }"#;
        let found = Servers::read(claude).expect("servers");
        assert_eq!(found.servers.keys().collect::<Vec<_>>(), ["crm", "git"]);
        assert_eq!(found.warnings, ["`off` is disabled"]);
        let Road::Child { args, env, .. } = &found.servers["git"].road else { panic!("a child") };
        assert_eq!((args.len(), &env["DEBUG"]), (2, &Text::new("1")));

        let vscode = "{\n // mine\n \"servers\": { \"fs\": { \"command\": \"fs\", \"args\": [], }, }, \"inputs\": [], }";
        assert_eq!(Servers::read(vscode).expect("servers").servers.len(), 1);
        let windsurf = r#"{ "mcpServers": { "a": { "serverUrl": "http://127.0.0.1:1/mcp", "odd": 1 } } }"#;
        let found = Servers::read(windsurf).expect("servers");
        assert_eq!(found.warnings, ["`a`: the key `odd` is not known and changes nothing"]);
    }

    #[test]
    fn an_entry_that_cannot_be_used_is_left_out_alone() {
        assert!(
            Servers::read("{}").is_err_and(|problem| problem.contains("neither `mcpServers` nor `servers`"))
        );
        assert!(Servers::read("{ \"mcpServers\": ").is_err());
        let found = Servers::read(
            r#"{ "mcpServers": {
                "good": { "command": "x", "startTimeout": 90000, "maxCalls": 4, "onUncertain": "fail" },
                "GOOD": { "command": "y" },
                "empty": {},
                "old": { "type": "sse", "url": "http://127.0.0.1:1/sse" },
                "odd": { "type": "pigeon", "url": "x" },
                "worse": { "command": "x", "onUncertain": "guess" },
                "typed": { "command": "x", "env": "TOKEN=s3cret, expected by nobody" } } }"#,
        );
        let found = found.expect("servers");
        assert_eq!(found.servers.keys().collect::<Vec<_>>(), ["GOOD", "old"]);
        assert_eq!(
            found.warnings,
            [
                "`empty` is left out: give it a `command`, or a `url`",
                "`odd` is left out: `pigeon` is no transport; `stdio` and `http` are",
                "`typed` is left out: one of its keys has a value of another type; expected a map",
                "`worse` is left out: `onUncertain` is one of ask, retry, fail, skip",
                "`good` is left out: its tools would be named `good__…` like those of `GOOD`",
            ]
        );
    }
}
