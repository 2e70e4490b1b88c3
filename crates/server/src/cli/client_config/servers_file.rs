//! `servers.json` of a data directory, and the servers that are added to it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use steprail_mcp::config::{self, Servers};
use steprail_mcp::names;

use super::atomic_write::{Permissions, write_atomically};
use super::import::ImportedServer;
use crate::cli::shared::error::CliError;

/// The content of `servers.json` with the added servers.
pub(crate) struct ServersFile {
    file: PathBuf,
    /// The text of the file; `None` if it does not exist.
    before: Option<String>,
    /// Everything in the file except its servers.
    others: Map<String, Value>,
    /// The key of the map of servers.
    key: &'static str,
    servers: Map<String, Value>,
    /// Original entries of imported servers that the file contains, by name.
    originals: BTreeMap<String, Value>,
    /// Names of servers that are not in the file yet.
    added: BTreeSet<String>,
}

/// How an imported server compares with the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// The file has no server of that name.
    New,
    /// The file has the same server.
    Same,
    /// The file has another server of that name.
    Differs,
    /// The server cannot be added, with the reason.
    Rejected(String),
}

impl ServersFile {
    /// Reads the file if it exists.
    pub(crate) fn read(file: PathBuf) -> Result<Self, CliError> {
        let fail = |problem: String| {
            CliError::new(format!("{}: {problem}", file.display()))
                .hint("correct the file or move it away; nothing was written")
        };
        let before = match std::fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            text => Some(text.map_err(|error| fail(error.to_string()))?),
        };
        let config = config::json(before.as_deref().unwrap_or("{}")).map_err(fail)?;
        let Value::Object(mut others) = config else { return Err(fail("it is not a map".to_owned())) };
        let [default, _] = config::KEYS;
        let key = config::KEYS.into_iter().find(|key| others.contains_key(*key)).unwrap_or(default);
        let servers = match others.remove(key) {
            None => Map::new(),
            Some(Value::Object(servers)) => servers,
            Some(_) => return Err(fail(format!("`{key}` is not a map"))),
        };
        let (originals, added) = (BTreeMap::new(), BTreeSet::new());
        Ok(Self { file, before, others, key, servers, originals, added })
    }

    /// Adds a server unless the file has one of that name. Returns how it compares.
    pub(crate) fn add(&mut self, server: &ImportedServer) -> Comparison {
        if let Some(reason) = &server.rejected {
            return Comparison::Rejected(reason.clone());
        }
        if self.contains(server) {
            self.originals.insert(server.name.clone(), server.original.clone());
            return Comparison::Same;
        }
        if self.servers.contains_key(&server.name) {
            return Comparison::Differs;
        }
        let alias = names::alias(&server.name);
        if let Some(other) = self.servers.keys().find(|other| names::alias(other) == alias) {
            return Comparison::Rejected(format!(
                "its tools would have the same names as those of `{other}`"
            ));
        }
        self.replace(server);
        Comparison::New
    }

    /// Whether the file has the server, as this client or an earlier one writes it.
    fn contains(&self, server: &ImportedServer) -> bool {
        self.servers.get(&server.name) == Some(&server.entry)
            || self.originals.get(&server.name) == Some(&server.original)
    }

    /// Adds a server, or replaces the one of that name.
    pub(crate) fn replace(&mut self, server: &ImportedServer) {
        self.servers.insert(server.name.clone(), server.entry.clone());
        self.originals.insert(server.name.clone(), server.original.clone());
        self.added.insert(server.name.clone());
    }

    /// The number of servers to write.
    pub(crate) fn added(&self) -> usize {
        self.added.len()
    }

    /// A problem of an entry that the file already had.
    pub(crate) fn problem(&self) -> Option<String> {
        let read = Servers::of(&self.servers);
        let prefix = format!("`{}` ", read.invalid.first()?);
        let problem = read.warnings.iter().find(|warning| warning.starts_with(&prefix))?;
        Some(format!("{}: {problem}", self.file.display()))
    }

    /// Writes the file atomically, readable only for its owner. The old content is kept beside it.
    pub(crate) fn write(&self) -> Result<(), CliError> {
        let write = |file: &Path, text: &str| {
            write_atomically(file, text, Permissions::OwnerOnly)
                .map_err(|error| CliError::new(format!("cannot write {}: {error}", file.display())))
        };
        if let (Some(before), Some(backup)) = (&self.before, self.backup()) {
            write(&backup, before)?;
        }
        let mut config = self.others.clone();
        config.insert(self.key.to_owned(), self.servers.clone().into());
        write(&self.file, &format!("{:#}\n", Value::Object(config)))
    }

    /// Where the old content is kept, if the file existed.
    pub(crate) fn backup(&self) -> Option<PathBuf> {
        self.before.is_some().then(|| self.file.with_extension("json.before"))
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }
}
