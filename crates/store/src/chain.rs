//! The hash chain over a run's events: each link covers the one before.

use sha2::{Digest, Sha256};
use steprail_core::plan::Hash;
use steprail_core::run::Millis;

use crate::RunId;

/// One event as the chain sees it.
#[derive(Debug, Clone, Copy)]
pub struct Link<'l> {
    /// The run.
    pub run: RunId,
    /// The number of the event in its run.
    pub seq: u64,
    /// When it happened.
    pub at: Millis,
    /// Its JSON text.
    pub body: &'l str,
}

/// The hash of an event, given that of the one before (zeros for the first).
pub fn link(before: &Hash, event: Link<'_>) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update(before.0);
    hasher.update(event.run.0.as_bytes());
    hasher.update(event.seq.to_be_bytes());
    hasher.update(event.at.to_be_bytes());
    hasher.update(event.body.as_bytes());
    Hash(hasher.finalize().into())
}
