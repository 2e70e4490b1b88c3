//! `steprail connect`: how an MCP client is told about Steprail.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use super::stop::Stop;

/// Show, or write, the entry that connects an MCP client
///
/// Without `--write` the entry is printed, with the place where it belongs. With it, it is put into the client's file;
/// what else is in there stays. The client starts `steprail mcp`, which talks to one daemon for all clients.
#[derive(Debug, Args)]
pub(super) struct Connect {
    /// The client
    client: Client,
    /// Put it into the client's file
    #[arg(long)]
    write: bool,
    /// The file, if it is not where the client keeps it
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The data directory, if it is not the user's
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

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

impl Client {
    /// Where it keeps its servers, and under which key.
    pub(super) fn place(self) -> Result<(PathBuf, &'static str), Stop> {
        let home = || {
            let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
            home.ok_or_else(|| Stop::usage("there is no home directory").hint("name the file with --file"))
        };
        Ok(match self {
            Self::ClaudeCode => (".mcp.json".into(), "mcpServers"),
            Self::ClaudeDesktop => {
                let folder =
                    if cfg!(target_os = "macos") { "Library/Application Support" } else { ".config" };
                (home()?.join(folder).join("Claude/claude_desktop_config.json"), "mcpServers")
            }
            Self::Cursor => (home()?.join(".cursor/mcp.json"), "mcpServers"),
            Self::VsCode => (".vscode/mcp.json".into(), "servers"),
            Self::Windsurf => (home()?.join(".codeium/windsurf/mcp_config.json"), "mcpServers"),
            Self::Gemini => (home()?.join(".gemini/settings.json"), "mcpServers"),
        })
    }
}

impl Connect {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        let (place, key) = self.client.place()?;
        let file = self.file.clone().unwrap_or(place);
        let entry = self.entry()?;
        let mut out = anstream::stdout().lock();
        if !self.write {
            writeln!(out, "{:#}", json!({ (key): { "steprail": entry } }))?;
            out.flush()?;
            writeln!(anstream::stderr(), "put this into {}, or use --write", file.display())?;
            return Ok(ExitCode::SUCCESS);
        }
        let replaced = write(&file, key, entry)?;
        let how = if replaced { "replaced in" } else { "added to" };
        writeln!(out, "steprail was {how} {}", file.display())?;
        Ok(ExitCode::SUCCESS)
    }

    fn entry(&self) -> Result<Value, Stop> {
        let program = std::env::current_exe()
            .map_err(|error| Stop::usage(format!("where is this program? {error}")))?;
        let mut args = vec!["mcp".to_owned()];
        if let Some(data) = &self.data {
            let data = std::path::absolute(data).map_err(|error| Stop::usage(error.to_string()))?;
            args.extend(["--data".to_owned(), data.display().to_string()]);
        }
        Ok(json!({ "command": program, "args": args }))
    }
}

/// Puts an entry into a file, beside what is there. Says whether there was one before.
fn write(file: &std::path::Path, key: &str, entry: Value) -> Result<bool, Stop> {
    let cannot = |error: std::io::Error| Stop::usage(format!("{}: {error}", file.display()));
    let text = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "{}".to_owned(),
        text => text.map_err(cannot)?,
    };
    let mut config: Value = serde_json::from_str(&text).map_err(|error| {
        let message = format!("{} is not plain JSON: {error}", file.display());
        Stop::usage(message).hint("comments would be lost; add the entry by hand, as shown without --write")
    })?;
    let not_a_map = || Stop::usage(format!("{}: `{key}` is not a map", file.display()));
    let servers =
        config.as_object_mut().ok_or_else(not_a_map)?.entry(key).or_insert_with(|| Map::new().into());
    let before = servers.as_object_mut().ok_or_else(not_a_map)?.insert("steprail".to_owned(), entry);
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(cannot)?;
    }
    // Whole or not at all: a client may read it at this moment. A link stays one, and who may read it stays the same.
    let file = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let mut next = file.as_os_str().to_owned();
    next.push(".new");
    std::fs::write(&next, format!("{config:#}\n")).map_err(cannot)?;
    if let Ok(known) = std::fs::metadata(&file) {
        std::fs::set_permissions(&next, known.permissions()).map_err(cannot)?;
    }
    std::fs::rename(&next, &file).map_err(cannot)?;
    Ok(before.is_some())
}
