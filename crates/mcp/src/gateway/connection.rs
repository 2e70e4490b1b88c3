//! A connection that is up: its tools, whose turn it is, and its end.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rmcp::model::{PaginatedRequestParams, Tool};
use rmcp::service::{Peer, RoleClient, RunningService, ServiceError};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::catalogue::{Catalogue, ToolInfo};
use super::child::Process;
use super::listener::Listener;
use crate::config::Entry;
use crate::limits::{REQUEST_SECS, TOOLS};

/// A connection that is up.
pub(super) struct Connection {
    pub peer: Peer<RoleClient>,
    /// What the server says on its own.
    pub listener: Listener,
    /// Shared with the line, which remembers it when the connection is gone.
    pub(super) catalogue: Arc<RwLock<Arc<Catalogue>>>,
    /// What makes a catalogue of a list of tools.
    pub(super) naming: (String, Entry),
    /// One call at a time, where questions could not be told apart otherwise.
    pub(super) turns: Option<Arc<Semaphore>>,
    /// Cancelled when the other side is gone.
    pub lost: CancellationToken,
    pub(super) opened: Instant,
    pub(super) process: Option<Process>,
    pub(super) service: Mutex<Option<RunningService<RoleClient, Listener>>>,
}

impl Connection {
    pub(super) fn is_up(&self) -> bool {
        !self.lost.is_cancelled() && !self.peer.is_transport_closed()
    }

    /// The tools, as they were last listed.
    pub(super) fn catalogue(&self) -> Arc<Catalogue> {
        self.catalogue.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A tool. If the server has said that it has others now, or there is none of this name, they are listed again.
    pub(super) async fn tool(&self, name: &str) -> Option<Arc<ToolInfo>> {
        let known = self.catalogue().tools.get(name).cloned();
        if known.is_some() && !self.listener.take_stale() {
            return known;
        }
        self.relist().await;
        self.catalogue().tools.get(name).cloned()
    }

    /// Asks for the tools again. What is known stays if there is no answer.
    pub(super) async fn relist(&self) {
        let listing = tokio::time::timeout(Duration::from_secs(REQUEST_SECS), tools(&self.peer)).await;
        let Ok(Ok(tools)) = listing else { return self.listener.mark_stale() };
        let catalogue = Arc::new(Catalogue::new(&self.naming.0, &self.naming.1, tools));
        *self.catalogue.write().unwrap_or_else(PoisonError::into_inner) = catalogue;
    }

    /// Waits until a call may be sent.
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        self.turns.clone()?.acquire_owned().await.ok()
    }

    /// Closes the connection, and ends the process.
    pub(super) async fn close(&self) {
        self.lost.cancel();
        if let Some(service) = self.service.lock().await.take() {
            let patience = Duration::from_secs(2);
            let _ = tokio::time::timeout(patience, service.cancel()).await;
        }
        if let Some(process) = &self.process {
            process.stop().await;
        }
    }
}

/// Every tool of a server, up to the limit.
pub(super) async fn tools(peer: &Peer<RoleClient>) -> Result<Vec<Tool>, ServiceError> {
    let mut tools = Vec::new();
    let mut cursor = None;
    loop {
        let page = peer.list_tools(Some(PaginatedRequestParams::default().with_cursor(cursor))).await?;
        tools.extend(page.tools);
        cursor = page.next_cursor;
        if cursor.is_none() || tools.len() > TOOLS {
            return Ok(tools);
        }
    }
}
