//! Known MCP clients and the locations of their config files.

use std::io;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::{Map, Value};
use steprail_mcp::config;

/// A known MCP client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum McpClient {
    /// Claude Code, for the project in the current directory
    ClaudeCode,
    /// Claude Desktop
    ClaudeDesktop,
    /// Cursor
    Cursor,
    /// VS Code, for the project in the current directory
    VsCode,
    /// Windsurf
    Windsurf,
    /// Gemini CLI
    Gemini,
}

/// Where the servers of a config file are available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// In all projects of the user.
    User,
    /// In the project of the current directory.
    Project,
}

/// A map of servers in a config file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigLocation {
    pub file: PathBuf,
    /// The path of keys to the map.
    pub keys: Vec<String>,
    pub scope: Scope,
}

/// The directory of settings of desktop programs, relative to the home directory.
const SETTINGS: &str = if cfg!(target_os = "macos") { "Library/Application Support" } else { ".config" };

impl McpClient {
    /// The product name.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::ClaudeCode => "Claude Code",
            Self::ClaudeDesktop => "Claude Desktop",
            Self::Cursor => "Cursor",
            Self::VsCode => "VS Code",
            Self::Windsurf => "Windsurf",
            Self::Gemini => "Gemini CLI",
        }
    }

    /// The name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Where Steprail is added; `None` without a home directory.
    pub(crate) fn location(self, home: Option<&Path>) -> Option<ConfigLocation> {
        let scope = match self {
            Self::ClaudeCode | Self::VsCode => Scope::Project,
            _ => Scope::User,
        };
        self.file(scope, home).map(|file| self.in_file(file, scope))
    }

    /// All locations of servers, those of the user first.
    pub(crate) fn locations(self, home: Option<&Path>, folder: &Path) -> Vec<ConfigLocation> {
        let scopes = [Scope::User, Scope::Project];
        let files = scopes.map(|scope| self.file(scope, home).map(|file| self.in_file(file, scope)));
        let mut locations: Vec<ConfigLocation> = files.into_iter().flatten().collect();
        if let (Self::ClaudeCode, Some(home)) = (self, home) {
            let keys = ["projects", &folder.display().to_string(), "mcpServers"].map(str::to_owned).to_vec();
            locations.push(ConfigLocation { file: home.join(".claude.json"), keys, scope: Scope::Project });
        }
        locations
    }

    /// The location of servers in a file of this client.
    pub(crate) fn in_file(self, file: PathBuf, scope: Scope) -> ConfigLocation {
        let key = if self == Self::VsCode { "servers" } else { "mcpServers" };
        ConfigLocation { file, keys: vec![key.to_owned()], scope }
    }

    fn file(self, scope: Scope, home: Option<&Path>) -> Option<PathBuf> {
        let settings = |file: &str| Path::new(SETTINGS).join(file);
        let file = match (self, scope) {
            (Self::ClaudeCode, Scope::User) => ".claude.json".into(),
            (Self::ClaudeCode, Scope::Project) => ".mcp.json".into(),
            (Self::ClaudeDesktop, Scope::User) => settings("Claude/claude_desktop_config.json"),
            (Self::Cursor, _) => ".cursor/mcp.json".into(),
            (Self::VsCode, Scope::User) => settings("Code/User/mcp.json"),
            (Self::VsCode, Scope::Project) => ".vscode/mcp.json".into(),
            (Self::Windsurf, Scope::User) => ".codeium/windsurf/mcp_config.json".into(),
            (Self::Gemini, _) => ".gemini/settings.json".into(),
            (Self::ClaudeDesktop | Self::Windsurf, Scope::Project) => return None,
        };
        match scope {
            Scope::User => home.map(|home| home.join(file)),
            Scope::Project => Some(file),
        }
    }
}

impl ConfigLocation {
    /// Reads the servers; `None` if the file does not exist.
    pub(crate) fn read(&self) -> Result<Option<Map<String, Value>>, String> {
        let text = match std::fs::read_to_string(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| error.to_string())?,
        };
        let mut inner = config::json(&text)?;
        let mut name = "it".to_owned();
        for key in &self.keys {
            let map = inner.as_object_mut().ok_or_else(|| format!("{name} is not a map"))?;
            let Some(next) = map.remove(key) else { return Ok(Some(Map::new())) };
            (inner, name) = (next, format!("`{key}`"));
        }
        match inner {
            Value::Object(servers) => Ok(Some(servers)),
            _ => Err(format!("{name} is not a map")),
        }
    }
}

/// The home directory of the user.
pub(crate) fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
}
