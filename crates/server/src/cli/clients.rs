//! The MCP clients that are known: where each keeps its servers.

use std::io;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::{Map, Value};
use steprail_mcp::config;

/// A program that uses MCP servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Client {
    /// Claude Code, for the project in this folder
    ClaudeCode,
    /// Claude Desktop
    ClaudeDesktop,
    /// Cursor
    Cursor,
    /// VS Code, for the project in this folder
    VsCode,
    /// Windsurf
    Windsurf,
    /// Gemini CLI
    Gemini,
}

/// Where a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// In the user's home: it counts everywhere.
    User,
    /// In the current folder, or about it: it counts for the project there.
    Project,
}

/// A map from names to servers in a client's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub file: PathBuf,
    /// The keys that lead to the map.
    pub keys: Vec<String>,
    pub scope: Scope,
}

/// Where desktop programs keep their settings, in the user's home.
const SETTINGS: &str = if cfg!(target_os = "macos") { "Library/Application Support" } else { ".config" };

impl Client {
    /// As people call it.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::ClaudeCode => "Claude Code",
            Self::ClaudeDesktop => "Claude Desktop",
            Self::Cursor => "Cursor",
            Self::VsCode => "VS Code",
            Self::Windsurf => "Windsurf",
            Self::Gemini => "Gemini CLI",
        }
    }

    /// As it is written on a command line.
    pub(super) fn word(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The place where Steprail is put; there is none in a home that nobody has.
    pub(super) fn place(self, home: Option<&Path>) -> Option<Place> {
        let scope = match self {
            Self::ClaudeCode | Self::VsCode => Scope::Project,
            _ => Scope::User,
        };
        self.file(scope, home).map(|file| self.in_file(file, scope))
    }

    /// Every place where servers may be, those of the user first.
    pub(super) fn places(self, home: Option<&Path>, folder: &Path) -> Vec<Place> {
        let scopes = [Scope::User, Scope::Project];
        let files = scopes.map(|scope| self.file(scope, home).map(|file| self.in_file(file, scope)));
        let mut places: Vec<Place> = files.into_iter().flatten().collect();
        if let (Self::ClaudeCode, Some(home)) = (self, home) {
            let keys = ["projects", &folder.display().to_string(), "mcpServers"].map(str::to_owned).to_vec();
            places.push(Place { file: home.join(".claude.json"), keys, scope: Scope::Project });
        }
        places
    }

    /// The place in a file where it looks for servers.
    pub(super) fn in_file(self, file: PathBuf, scope: Scope) -> Place {
        let key = if self == Self::VsCode { "servers" } else { "mcpServers" };
        Place { file, keys: vec![key.to_owned()], scope }
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

impl Place {
    /// The servers that are there; `None` if there is no such file.
    pub(super) fn read(&self) -> Result<Option<Map<String, Value>>, String> {
        let text = match std::fs::read_to_string(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| error.to_string())?,
        };
        let mut inside = config::json(&text)?;
        let mut path = "it".to_owned();
        for key in &self.keys {
            let map = inside.as_object_mut().ok_or_else(|| format!("{path} is not a map"))?;
            let Some(next) = map.remove(key) else { return Ok(Some(Map::new())) };
            (inside, path) = (next, format!("`{key}`"));
        }
        match inside {
            Value::Object(servers) => Ok(Some(servers)),
            _ => Err(format!("{path} is not a map")),
        }
    }
}

/// The user's home.
pub(super) fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
}
