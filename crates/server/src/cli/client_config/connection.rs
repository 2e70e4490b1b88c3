//! The entry for Steprail in the config file of an MCP client.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::atomic_write::{Permissions, write_atomically};
use super::clients::{ConfigLocation, McpClient, home};
use crate::cli::shared::error::CliError;

/// Where a client expects the entry.
pub(crate) fn config_location(client: McpClient) -> Result<ConfigLocation, CliError> {
    client.location(home().as_deref()).ok_or_else(|| {
        CliError::new("there is no home directory").hint("name the file with `steprail connect --file`")
    })
}

/// The entry: the command that starts Steprail.
pub(crate) fn entry(data: Option<&Path>) -> Result<Value, CliError> {
    let program =
        program().map_err(|error| CliError::new(format!("cannot find the path of steprail: {error}")))?;
    let mut args = vec!["mcp".to_owned()];
    // The client may run without STEPRAIL_DATA.
    let variable = std::env::var_os("STEPRAIL_DATA").filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(data) = data.map(Path::to_owned).or(variable) {
        let data = std::path::absolute(data).map_err(|error| CliError::new(error.to_string()))?;
        args.extend(["--data".to_owned(), data.display().to_string()]);
    }
    Ok(json!({ "command": program, "args": args }))
}

/// The path of this program. A link on PATH that leads here is preferred, because it survives an upgrade.
fn program() -> std::io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let name = own.file_name().unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let target = own.canonicalize()?;
    let is_own = |file: &PathBuf| file.canonicalize().is_ok_and(|file| file == target);
    let names = [name, "steprail".as_ref()];
    let folders = std::env::split_paths(&path).filter(|folder| folder.is_absolute());
    let on_path = folders.flat_map(|folder| names.map(|name| folder.join(name))).find(is_own);
    Ok(on_path.unwrap_or(own))
}

/// A config file with the entry, not yet written.
pub(crate) struct Connection {
    pub file: PathBuf,
    config: Value,
    entry: Value,
    /// The entry that the file had.
    pub before: Option<Value>,
}

impl Connection {
    /// Reads the file and inserts the entry.
    pub(crate) fn prepare(location: ConfigLocation, entry: Value) -> Result<Self, CliError> {
        let ConfigLocation { file, keys, .. } = location;
        let text = match std::fs::read_to_string(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => "{}".to_owned(),
            text => text.map_err(|error| CliError::new(format!("{}: {error}", file.display())))?,
        };
        let mut config: Value = serde_json::from_str(&text).map_err(|error| {
            let message = format!("{} is not plain JSON: {error}", file.display());
            CliError::new(message).hint(
                "comments would be lost; add the entry by hand, as printed by `steprail connect` without --write",
            )
        })?;
        let not_a_map = || CliError::new(format!("{}: its servers are not a map", file.display()));
        let mut inner = &mut config;
        for key in &keys {
            let map = inner.as_object_mut().ok_or_else(not_a_map)?;
            inner = map.entry(key).or_insert_with(|| Map::new().into());
        }
        let servers = inner.as_object_mut().ok_or_else(not_a_map)?;
        let before = servers.insert("steprail".to_owned(), entry.clone());
        Ok(Self { file, config, entry, before })
    }

    /// Whether the file already has this entry.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.before.as_ref() == Some(&self.entry)
    }

    pub(crate) fn write(&self) -> Result<(), CliError> {
        write_atomically(&self.file, &format!("{:#}\n", self.config), Permissions::Preserve)
            .map_err(|error| CliError::new(format!("{}: {error}", self.file.display())))
    }
}
