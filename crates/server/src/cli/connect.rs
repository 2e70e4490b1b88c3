//! `steprail connect`: how an MCP client is told about Steprail.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};

use super::clients::{self, Client, Place, Scope};
use super::replace::{Readers, replace};
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

impl Connect {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        let place = match self.file {
            Some(file) => self.client.in_file(file, Scope::User),
            None => place(self.client)?,
        };
        let entry = entry(self.data.as_deref())?;
        let mut out = anstream::stdout().lock();
        if !self.write {
            let under = |inside, key: &String| json!({ key.as_str(): inside });
            writeln!(out, "{:#}", place.keys.iter().rfold(json!({ "steprail": entry }), under))?;
            out.flush()?;
            writeln!(anstream::stderr(), "put this into {}, or use --write", place.file.display())?;
            return Ok(ExitCode::SUCCESS);
        }
        let connection = Connection::prepare(place, entry)?;
        connection.write()?;
        let how = if connection.before.is_some() { "replaced in" } else { "added to" };
        writeln!(out, "steprail was {how} {}", connection.file.display())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Where a client is told.
pub(super) fn place(client: Client) -> Result<Place, Stop> {
    let place = client.place(clients::home().as_deref());
    place.ok_or_else(|| {
        Stop::usage("there is no home directory").hint("name the file with `steprail connect --file`")
    })
}

/// What a client is told: how to start Steprail.
pub(super) fn entry(data: Option<&Path>) -> Result<Value, Stop> {
    let program = program().map_err(|error| Stop::usage(format!("where is this program? {error}")))?;
    let mut args = vec!["mcp".to_owned()];
    // The client may not have the variable.
    let set = std::env::var_os("STEPRAIL_DATA").filter(|set| !set.is_empty()).map(PathBuf::from);
    if let Some(data) = data.map(Path::to_owned).or(set) {
        let data = std::path::absolute(data).map_err(|error| Stop::usage(error.to_string()))?;
        args.extend(["--data".to_owned(), data.display().to_string()]);
    }
    Ok(json!({ "command": program, "args": args }))
}

/// Where this program is: as the user's path has it, if that leads here, so that it is still found when a link there
/// leads to a newer one.
fn program() -> std::io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let name = own.file_name().unwrap_or_default();
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let real = own.canonicalize()?;
    let is_own = |file: &PathBuf| file.canonicalize().is_ok_and(|found| found == real);
    let names = [name, "steprail".as_ref()];
    let places = std::env::split_paths(&folders).filter(|folder| folder.is_absolute());
    let on_path = places.flat_map(|folder| names.map(|name| folder.join(name))).find(is_own);
    Ok(on_path.unwrap_or(own))
}

/// A client's file with Steprail in it, not written yet.
pub(super) struct Connection {
    pub file: PathBuf,
    config: Value,
    entry: Value,
    /// The entry that was there.
    pub before: Option<Value>,
}

impl Connection {
    /// Reads the file, and puts the entry beside what is there.
    pub(super) fn prepare(place: Place, entry: Value) -> Result<Self, Stop> {
        let Place { file, keys, .. } = place;
        let text = match std::fs::read_to_string(&file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => "{}".to_owned(),
            text => text.map_err(|error| Stop::usage(format!("{}: {error}", file.display())))?,
        };
        let mut config: Value = serde_json::from_str(&text).map_err(|error| {
            let message = format!("{} is not plain JSON: {error}", file.display());
            Stop::usage(message)
                .hint("comments would be lost; add the entry by hand, as `steprail connect` shows it")
        })?;
        let mut inside = &mut config;
        for key in &keys {
            let map = inside.as_object_mut().ok_or_else(|| not_a_map(&file))?;
            inside = map.entry(key).or_insert_with(|| Map::new().into());
        }
        let servers = inside.as_object_mut().ok_or_else(|| not_a_map(&file))?;
        let before = servers.insert("steprail".to_owned(), entry.clone());
        Ok(Self { file, config, entry, before })
    }

    /// Whether the client was told just this before.
    pub(super) fn is_there(&self) -> bool {
        self.before.as_ref() == Some(&self.entry)
    }

    pub(super) fn write(&self) -> Result<(), Stop> {
        replace(&self.file, &format!("{:#}\n", self.config), Readers::AsBefore)
            .map_err(|error| Stop::usage(format!("{}: {error}", self.file.display())))
    }
}

fn not_a_map(file: &Path) -> Stop {
    Stop::usage(format!("{}: its servers are not a map", file.display()))
}
