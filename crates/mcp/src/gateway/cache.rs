//! What was learnt about servers, kept in files: their era and their tools, so that a restart needs no server.

use std::path::PathBuf;
use std::sync::Arc;

use rmcp::model::Tool;
use serde::{Deserialize, Serialize};
use steprail_core::plan::Hash;

use super::catalogue::{Catalogue, Listing};
use super::connection::Listed;
use super::era::Era;
use crate::config::Entry;

/// A folder with a file for each server. Where each user has their own connection, the last one wins: recovery needs the
/// annotations of the tools, and these are the server's.
#[derive(Debug, Clone)]
pub(super) struct Cache(PathBuf);

/// A server as an earlier process knew it.
pub(super) struct Remembered {
    pub era: Era,
    pub sse: bool,
    pub catalogue: Arc<Catalogue>,
}

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

    fn file(&self, alias: &str) -> PathBuf {
        self.0.join(format!("{alias}.json"))
    }

    /// What is known about a server, unless its entry has changed since.
    pub(super) fn load(&self, alias: &str, entry: &Entry) -> Option<Remembered> {
        let text = std::fs::read(self.file(alias)).ok()?;
        let known: Known = serde_json::from_slice(&text).ok()?;
        if known.entry != fingerprint(entry) {
            return None;
        }
        let listing =
            Listing { alias: alias.to_owned(), entry: entry.clone(), honours_key: known.honours_key };
        let catalogue = listing.catalogue(known.tools.into_iter().map(Listed::Sound).collect());
        Some(Remembered { era: known.era, sse: known.sse, catalogue: Arc::new(catalogue) })
    }

    /// Replaces what is known about a server. A file that cannot be written costs a probe at the next start.
    pub(super) fn store(&self, alias: &str, known: &Known) {
        let file = self.file(alias);
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
