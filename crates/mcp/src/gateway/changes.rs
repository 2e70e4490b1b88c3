//! Broadcasts changes that servers announce: of their lists, and of subscribed resources.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::broadcast;

use crate::limits::CHANGES;

/// A change that a server announced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// The tools of a server.
    Tools,
    /// The resources or the resource templates of a server.
    Resources,
    /// The prompts of a server.
    Prompts,
    /// A resource, by its URI at the server.
    Resource { server: String, uri: String },
}

/// Broadcasts changes. Clones share the channel.
#[derive(Clone)]
pub(crate) struct Changes {
    sender: broadcast::Sender<Change>,
    /// Number of changes of lists.
    lists: Arc<AtomicU64>,
}

impl Default for Changes {
    fn default() -> Self {
        Self { sender: broadcast::channel(CHANGES).0, lists: Arc::default() }
    }
}

impl Changes {
    pub(super) fn publish(&self, change: Change) {
        if !matches!(change, Change::Resource { .. }) {
            self.lists.fetch_add(1, Ordering::Relaxed);
        }
        let _ = self.sender.send(change);
    }

    /// The number of changes of lists so far.
    pub(super) fn count(&self) -> u64 {
        self.lists.load(Ordering::Relaxed)
    }

    /// Receives changes from now on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.sender.subscribe()
    }
}
