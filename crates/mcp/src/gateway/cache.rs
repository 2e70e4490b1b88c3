//! What was learnt about servers, kept in files: their era and their tools, so that a restart needs no server.

use std::path::PathBuf;

use rmcp::model::Tool;
use serde::{Deserialize, Serialize};
use steprail_core::plan::Hash;

use super::era::Era;
use crate::config::Entry;

/// A folder with a file for each server.
#[derive(Debug, Clone)]
pub(super) struct Cache(PathBuf);

/// What is known about a server from an earlier connection.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Known {
    /// The hash of the config entry that it was learnt with. Another entry is another server.
    entry: String,
    pub era: Era,
    /// Whether the server speaks only HTTP+SSE.
    #[serde(default)]
    pub sse: bool,
    /// Whether the server deduplicates calls by the idempotency key in `_meta`.
    #[serde(default)]
    pub honours_key: bool,
    pub tools: Vec<Tool>,
}

impl Known {
    pub(super) fn new(entry: &Entry, era: Era, sse: bool, honours_key: bool, tools: Vec<Tool>) -> Self {
        Self { entry: fingerprint(entry), era, sse, honours_key, tools }
    }
}

fn fingerprint(entry: &Entry) -> String {
    Hash::of(format!("{:?}", entry.road).as_bytes()).to_string()
}

impl Cache {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    fn file(&self, alias: &str, user: Option<&str>) -> PathBuf {
        let name = match user {
            None => format!("{alias}.json"),
            // Ids of users may hold anything.
            Some(user) => format!("{alias}-{}.json", &Hash::of(user.as_bytes()).to_string()[..16]),
        };
        self.0.join(name)
    }

    /// What is known about a server, unless its entry has changed since.
    pub(super) fn load(&self, alias: &str, user: Option<&str>, entry: &Entry) -> Option<Known> {
        let text = std::fs::read(self.file(alias, user)).ok()?;
        let known: Known = serde_json::from_slice(&text).ok()?;
        (known.entry == fingerprint(entry)).then_some(known)
    }

    /// Replaces what is known about a server. A file that cannot be written costs a probe at the next start.
    pub(super) fn store(&self, alias: &str, user: Option<&str>, known: &Known) {
        let file = self.file(alias, user);
        let draft = file.with_extension("json.new");
        let written = serde_json::to_vec(known).map_err(std::io::Error::from).and_then(|text| {
            std::fs::create_dir_all(&self.0)?;
            std::fs::write(&draft, text)?;
            std::fs::rename(&draft, &file)
        });
        if let Err(error) = written {
            tracing::warn!("cannot write {}: {error}", file.display());
        }
    }
}
