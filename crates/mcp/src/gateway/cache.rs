//! Caches the era and tools of servers in files, so that a restart does not depend on the servers.

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use rmcp::model::Tool;
use serde::{Deserialize, Serialize};
use steprail_core::plan::Hash;

use super::catalogue::{Catalogue, Listing};
use super::connection::ListedTool;
use super::era::Era;
use crate::config::ServerEntry;

/// A directory with one file per server. For a per-user server the last connection wins: recovery needs only the
/// annotations of the tools, which do not depend on the user.
#[derive(Debug, Clone)]
pub(super) struct Cache(PathBuf);

/// A server as an earlier process cached it.
pub(super) struct CachedServer {
    pub era: Era,
    pub sse: bool,
    pub catalogue: Arc<Catalogue>,
}

/// The contents of a cache file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct CacheRecord {
    /// Hash of the transport of the entry. The record is ignored if the entry has changed.
    entry: String,
    pub era: Era,
    /// Whether the server supports only HTTP+SSE.
    #[serde(default)]
    pub sse: bool,
    /// Whether the server deduplicates calls by the idempotency key in `_meta`.
    #[serde(default)]
    pub honours_key: bool,
    pub tools: Vec<Tool>,
}

impl CacheRecord {
    pub(super) fn new(entry: &ServerEntry, era: Era, sse: bool, honours_key: bool, tools: Vec<Tool>) -> Self {
        Self { entry: fingerprint(entry), era, sse, honours_key, tools }
    }
}

fn fingerprint(entry: &ServerEntry) -> String {
    Hash::of(format!("{:?}", entry.transport).as_bytes()).to_string()
}

impl Cache {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    fn file(&self, alias: &str) -> PathBuf {
        self.0.join(format!("{alias}.json"))
    }

    /// Loads a server; `None` if it is not cached or its entry has changed.
    pub(super) fn load(&self, alias: &str, entry: &ServerEntry) -> Option<CachedServer> {
        let text = std::fs::read(self.file(alias)).ok()?;
        let record: CacheRecord = serde_json::from_slice(&text).ok()?;
        if record.entry != fingerprint(entry) {
            return None;
        }
        let listing =
            Listing { alias: alias.to_owned(), entry: entry.clone(), honours_key: record.honours_key };
        let catalogue = listing.catalogue(record.tools.into_iter().map(ListedTool::Valid).collect());
        Some(CachedServer { era: record.era, sse: record.sse, catalogue: Arc::new(catalogue) })
    }

    /// Replaces the record of a server. An error is only logged: it costs a probe at the next start.
    pub(super) fn store(&self, alias: &str, record: &CacheRecord) {
        let file = self.file(alias);
        let temporary = file.with_extension("json.new");
        let written = serde_json::to_vec(record).map_err(std::io::Error::from).and_then(|text| {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
            let mut options = std::fs::OpenOptions::new();
            let mut new = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
            new.write_all(&text)?;
            std::fs::rename(&temporary, &file)
        });
        if let Err(error) = written {
            tracing::warn!("cannot write {}: {error}", file.display());
        }
    }
}
