//! An open connection: its tools, its permits for calls, and its end.

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
use crate::limits::{EXIT_DRAIN_MS, REQUEST_SECS, TOOLS};

/// An open connection.
pub(super) struct Connection {
    pub peer: Peer<RoleClient>,
    /// Handles messages that the server initiates.
    pub listener: Listener,
    pub(super) era: Era,
    /// Whether the transport is HTTP+SSE.
    pub(super) sse: bool,
    /// Whether the server deduplicates calls by the idempotency key in `_meta`.
    pub(super) honours_key: bool,
    /// Shared with the link, which outlives the connection.
    pub(super) catalogue: Arc<RwLock<Arc<Catalogue>>>,
    pub(super) listing: Listing,
    /// One permit if input requests of the server do not name their call; `None` without a limit.
    pub(super) permits: Option<Arc<Semaphore>>,
    /// Cancelled when the connection is lost or closed.
    pub lost: CancellationToken,
    pub(super) opened: Instant,
    pub(super) process: Option<Process>,
    pub(super) service: Mutex<Option<RunningService<RoleClient, Listener>>>,
}

impl Connection {
    pub(super) fn is_up(&self) -> bool {
        !self.lost.is_cancelled() && !self.peer.is_transport_closed()
    }

    /// The tools as last listed.
    pub(super) fn catalogue(&self) -> Arc<Catalogue> {
        self.catalogue.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A tool by its full name. Lists the tools again first if they may have changed or the tool is unknown.
    pub(super) async fn tool(&self, name: &str) -> Option<Arc<ToolInfo>> {
        let known = self.catalogue().tools.get(name).cloned();
        if known.is_some() && !self.listener.take_stale() {
            return known;
        }
        self.relist().await;
        self.catalogue().tools.get(name).cloned()
    }

    /// Lists the tools again. Keeps the last list if that fails.
    pub(super) async fn relist(&self) {
        let listing = tokio::time::timeout(Duration::from_secs(REQUEST_SECS), tools(&self.peer)).await;
        let Ok(Ok(tools)) = listing else { return self.listener.mark_stale() };
        let catalogue = Arc::new(self.listing.catalogue(tools));
        *self.catalogue.write().unwrap_or_else(PoisonError::into_inner) = catalogue;
    }

    /// Waits for a permit to send a call; `None` without a limit.
    pub(super) async fn call_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone()?.acquire_owned().await.ok()
    }

    /// Why the connection ended. Waits a moment, because the pipe of a process closes before its exit is known.
    pub(super) async fn end_reason(&self) -> String {
        let Some(process) = &self.process else { return "the connection was closed".to_owned() };
        let _ = tokio::time::timeout(Duration::from_millis(EXIT_DRAIN_MS), process.ended.cancelled()).await;
        if process.ended.is_cancelled() { process.exit_reason() } else { "it closed its output".to_owned() }
    }

    /// Closes the connection and stops the process.
    pub(super) async fn close(&self) {
        self.lost.cancel();
        if let Some(service) = self.service.lock().await.take() {
            let _ = tokio::time::timeout(Duration::from_secs(2), service.cancel()).await;
        }
        if let Some(process) = &self.process {
            process.stop().await;
        }
    }
}

/// Lists the tools of a server, up to the limit. Invalid descriptions are repaired or reported.
pub(super) async fn tools(peer: &Peer<RoleClient>) -> Result<Vec<ListedTool>, ServiceError> {
    let mut tools = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = PaginatedRequestParams::default().with_cursor(cursor);
        let request = ClientRequest::ListToolsRequest(ListToolsRequest::with_param(page));
        cursor = match peer.send_request(request).await? {
            ServerResult::ListToolsResult(page) => {
                tools.extend(page.tools.into_iter().map(ListedTool::Valid));
                page.next_cursor
            }
            // The SDK does not parse a page that has one invalid tool.
            ServerResult::CustomResult(page) => {
                let listed =
                    page.0.get("tools").and_then(Value::as_array).ok_or(ServiceError::UnexpectedResponse)?;
                tools.extend(listed.iter().map(parse_tool));
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
pub(super) enum ListedTool {
    Valid(Tool),
    /// The description was invalid and is repaired, with a warning.
    Repaired(Tool, String),
    /// The description is unusable, for this reason.
    Invalid(String),
}

/// Parses the description of one tool. Without a valid input schema, the tool accepts any arguments.
fn parse_tool(tool: &Value) -> ListedTool {
    if let Ok(tool) = serde_json::from_value(tool.clone()) {
        return ListedTool::Valid(tool);
    }
    let name = tool.get("name").and_then(Value::as_str).unwrap_or("a tool without a name");
    let mut repaired = tool.clone();
    if let Value::Object(fields) = &mut repaired {
        fields.insert("inputSchema".to_owned(), serde_json::json!({ "type": "object" }));
    }
    match serde_json::from_value(repaired) {
        Ok(repaired) => {
            let warning = format!("`{name}` has no valid `inputSchema`: its arguments are not checked");
            ListedTool::Repaired(repaired, warning)
        }
        Err(error) => {
            ListedTool::Invalid(format!("`{name}` is ignored: its description is invalid ({error})"))
        }
    }
}
