//! `servers.json` of a data directory: what is there, what is added, and how it is written.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use steprail_mcp::config::{self, Servers};
use steprail_mcp::names;

use super::found::Found;
use super::replace::{Readers, replace};
use super::stop::Stop;

/// The servers of a data directory, with those that are added.
pub(super) struct ServerList {
    file: PathBuf,
    /// The text that was there.
    before: Option<String>,
    /// Everything in the file but its servers.
    others: Map<String, Value>,
    /// The key that the servers stand under.
    key: &'static str,
    servers: Map<String, Value>,
    /// What clients write where a server of this list is meant.
    known: BTreeMap<String, Value>,
    /// What was not in the file.
    added: BTreeSet<String>,
}

/// How a server that was found stands to the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    /// The list has none of that name.
    New,
    /// It is in the list.
    Same,
    /// The list has another one of that name.
    Differs,
    /// It has no place in it, for a reason.
    LeftOut(String),
}

impl ServerList {
    /// Reads the file, if there is one.
    pub(super) fn read(file: PathBuf) -> Result<Self, Stop> {
        let told = |problem: String| {
            Stop::usage(format!("{}: {problem}", file.display()))
                .hint("mend it or move it away; nothing was written")
        };
        let before = match std::fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            text => Some(text.map_err(|error| told(error.to_string()))?),
        };
        let config = config::json(before.as_deref().unwrap_or("{}")).map_err(told)?;
        let Value::Object(mut others) = config else { return Err(told("it is not a map".to_owned())) };
        let [usual, _] = config::KEYS;
        let key = config::KEYS.into_iter().find(|key| others.contains_key(*key)).unwrap_or(usual);
        let servers = match others.remove(key) {
            None => Map::new(),
            Some(Value::Object(servers)) => servers,
            Some(_) => return Err(told(format!("`{key}` is not a map"))),
        };
        Ok(Self { file, before, others, key, servers, known: BTreeMap::new(), added: BTreeSet::new() })
    }

    /// Takes a server up if nothing is in its way; says how it stands.
    pub(super) fn offer(&mut self, found: &Found) -> Standing {
        if let Some(reason) = &found.unfit {
            return Standing::LeftOut(reason.clone());
        }
        if self.has(found) {
            self.known.insert(found.name.clone(), found.written.clone());
            return Standing::Same;
        }
        if self.servers.contains_key(&found.name) {
            return Standing::Differs;
        }
        let alias = names::alias(&found.name);
        if let Some(other) = self.servers.keys().find(|other| names::alias(other) == alias) {
            return Standing::LeftOut(format!("its tools would be called like those of `{other}`"));
        }
        self.take(found);
        Standing::New
    }

    /// Whether it is in the list, in the words of this client or of one before.
    fn has(&self, found: &Found) -> bool {
        self.servers.get(&found.name) == Some(&found.entry)
            || self.known.get(&found.name) == Some(&found.written)
    }

    /// Puts a server into the list, whatever was there under its name.
    pub(super) fn take(&mut self, found: &Found) {
        self.servers.insert(found.name.clone(), found.entry.clone());
        self.known.insert(found.name.clone(), found.written.clone());
        self.added.insert(found.name.clone());
    }

    /// How many servers are not in the file yet.
    pub(super) fn added(&self) -> usize {
        self.added.len()
    }

    /// What would keep Steprail from reading it: something that was there before.
    pub(super) fn problem(&self) -> Option<String> {
        let read = Servers::of(&self.servers);
        let problem = read.warnings.iter().find(|warning| warning.contains("is skipped"))?;
        Some(format!("{}: {problem}", self.file.display()))
    }

    /// Writes it whole or not at all, for its owner alone. What was there is kept beside it.
    pub(super) fn write(&self) -> Result<(), Stop> {
        if let Some(before) = &self.before {
            let copy = self.copy();
            replace(&copy, before, Readers::Owner).map_err(|error| cannot(&copy, &error))?;
        }
        let mut config = self.others.clone();
        config.insert(self.key.to_owned(), self.servers.clone().into());
        let text = format!("{:#}\n", Value::Object(config));
        replace(&self.file, &text, Readers::Owner).map_err(|error| cannot(&self.file, &error))
    }

    /// Where what was there is kept, if there was something.
    pub(super) fn kept(&self) -> Option<PathBuf> {
        self.before.is_some().then(|| self.copy())
    }

    fn copy(&self) -> PathBuf {
        self.file.with_extension("json.before")
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }
}

fn cannot(file: &Path, error: &io::Error) -> Stop {
    Stop::usage(format!("cannot write {}: {error}", file.display()))
}
