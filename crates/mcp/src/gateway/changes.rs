//! What servers say has changed: their lists, and resources that are watched.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::broadcast;

use crate::limits::CHANGES;

/// Something that a server says has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// The tools of a server.
    Tools,
    /// The resources or the resource templates of a server.
    Resources,
    /// The prompts of a server.
    Prompts,
    /// A resource of a server, by the URI that it has there.
    Resource { server: String, uri: String },
}

/// Tells every reader what has changed. A clone is the same channel.
#[derive(Clone)]
pub(crate) struct Changes {
    sender: broadcast::Sender<Change>,
    /// Changes of lists so far.
    lists: Arc<AtomicU64>,
}

impl Default for Changes {
    fn default() -> Self {
        Self { sender: broadcast::channel(CHANGES).0, lists: Arc::default() }
    }
}

impl Changes {
    /// Tells readers. Without readers nothing happens.
    pub(super) fn tell(&self, change: Change) {
        if !matches!(change, Change::Resource { .. }) {
            self.lists.fetch_add(1, Ordering::Relaxed);
        }
        let _ = self.sender.send(change);
    }

    /// How often lists have changed.
    pub(super) fn count(&self) -> u64 {
        self.lists.load(Ordering::Relaxed)
    }

    /// Reads from now on.
    pub(crate) fn reader(&self) -> broadcast::Receiver<Change> {
        self.sender.subscribe()
    }
}
