//! A connection that is up: its tools, the turns of its calls, and its end.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rmcp::model::{ClientRequest, ListToolsRequest, PaginatedRequestParams, ServerResult, Tool};
use rmcp::service::{Peer, RoleClient, RunningService, ServiceError};
use serde_json::Value;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::catalogue::{Catalogue, Listing, ToolInfo};
use super::child::Process;
use super::era::Era;
use super::listener::Listener;
use crate::limits::{LAST_WORDS_MS, REQUEST_SECS, TOOLS};

/// A connection that is up.
pub(super) struct Connection {
    pub peer: Peer<RoleClient>,
    /// Receives what the server sends without being asked.
    pub listener: Listener,
    pub(super) era: Era,
    /// Whether it is HTTP+SSE.
    pub(super) sse: bool,
    /// Whether the server deduplicates calls by the idempotency key in `_meta`.
    pub(super) honours_key: bool,
    /// Shared with the link, which keeps it when the connection is gone.
    pub(super) catalogue: Arc<RwLock<Arc<Catalogue>>>,
    /// Makes a catalogue of a list of tools.
    pub(super) listing: Listing,
    /// One call at a time, where questions of the server could not be told apart otherwise.
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

    /// A tool. If the server announced a change, or has no tool of this name, the tools are listed again first.
    pub(super) async fn tool(&self, name: &str) -> Option<Arc<ToolInfo>> {
        let known = self.catalogue().tools.get(name).cloned();
        if known.is_some() && !self.listener.take_stale() {
            return known;
        }
        self.relist().await;
        self.catalogue().tools.get(name).cloned()
    }

    /// Lists the tools again. Without an answer, the last list stays.
    pub(super) async fn relist(&self) {
        let listing = tokio::time::timeout(Duration::from_secs(REQUEST_SECS), tools(&self.peer)).await;
        let Ok(Ok(tools)) = listing else { return self.listener.mark_stale() };
        let catalogue = Arc::new(self.listing.catalogue(tools));
        *self.catalogue.write().unwrap_or_else(PoisonError::into_inner) = catalogue;
    }

    /// Waits until a call may be sent.
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        self.turns.clone()?.acquire_owned().await.ok()
    }

    /// Why the other side is gone. The pipe of a process closes a little before its end is known.
    pub(super) async fn end_reason(&self) -> String {
        let Some(process) = &self.process else { return "the connection was closed".to_owned() };
        let _ = tokio::time::timeout(Duration::from_millis(LAST_WORDS_MS), process.ended.cancelled()).await;
        if process.ended.is_cancelled() { process.exit_reason() } else { "it closed its output".to_owned() }
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

/// Every tool of a server, up to the limit, with what had to be corrected in its description.
pub(super) async fn tools(peer: &Peer<RoleClient>) -> Result<Vec<Listed>, ServiceError> {
    let mut tools = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = PaginatedRequestParams::default().with_cursor(cursor);
        let request = ClientRequest::ListToolsRequest(ListToolsRequest::with_param(page));
        cursor = match peer.send_request(request).await? {
            ServerResult::ListToolsResult(page) => {
                tools.extend(page.tools.into_iter().map(Listed::Sound));
                page.next_cursor
            }
            // The SDK refuses a page for one tool that it cannot read.
            ServerResult::CustomResult(page) => {
                let listed =
                    page.0.get("tools").and_then(Value::as_array).ok_or(ServiceError::UnexpectedResponse)?;
                tools.extend(listed.iter().map(lenient));
                page.0.get("nextCursor").and_then(Value::as_str).map(str::to_owned)
            }
            _ => return Err(ServiceError::UnexpectedResponse),
        };
        if cursor.is_none() || tools.len() > TOOLS {
            return Ok(tools);
        }
    }
}

/// A tool as its server lists it.
pub(super) enum Listed {
    Sound(Tool),
    /// Its description is not valid and was mended.
    Mended(Tool, String),
    /// Its description cannot be read.
    Unusable(String),
}

/// Reads the description of one tool. A tool without an input schema takes any arguments.
fn lenient(tool: &Value) -> Listed {
    if let Ok(tool) = serde_json::from_value(tool.clone()) {
        return Listed::Sound(tool);
    }
    let name = tool.get("name").and_then(Value::as_str).unwrap_or("a tool without a name");
    let mut mended = tool.clone();
    if let Value::Object(fields) = &mut mended {
        fields.insert("inputSchema".to_owned(), serde_json::json!({ "type": "object" }));
    }
    match serde_json::from_value(mended) {
        Ok(mended) => {
            let warning = format!("`{name}` has no valid `inputSchema`: its arguments are not checked");
            Listed::Mended(mended, warning)
        }
        Err(error) => {
            Listed::Unusable(format!("`{name}` is left out: its description is not valid ({error})"))
        }
    }
}
