//! Channels that carry requests and notifications of servers to the clients of relayed calls.

#![expect(deprecated, reason = "sampling, roots and logging are passed on as long as servers use them")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::{
    CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams, ElicitResult, ErrorData,
    ListRootsResult, LoggingMessageNotificationParam, ProgressNotificationParam,
};
use tokio::sync::{mpsc, oneshot};

use crate::limits::{CALL_MESSAGES, RELAYS};

/// Sends the client's response to a request of a server.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, ErrorData>>;

/// A request or notification that a server sends during a relayed call.
pub(crate) enum RelayMessage {
    Elicit(Box<ElicitRequestParams>, Reply<ElicitResult>),
    Sample(Box<CreateMessageRequestParams>, Reply<CreateMessageResult>),
    Roots(Reply<ListRootsResult>),
    Log(LoggingMessageNotificationParam),
    Progress(ProgressNotificationParam),
}

/// The clients that wait for relayed calls, by channel id. Clones share the map.
#[derive(Clone, Default)]
pub(crate) struct Relays(Arc<Mutex<HashMap<String, mpsc::Sender<RelayMessage>>>>);

impl Relays {
    /// Opens a channel; `None` if [`RELAYS`] channels are open.
    pub(crate) fn open(&self) -> Option<RelayChannel> {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.len() >= RELAYS {
            return None;
        }
        let (sender, requests) = mpsc::channel(CALL_MESSAGES);
        let id = uuid::Uuid::new_v4().to_string();
        clients.insert(id.clone(), sender);
        drop(clients);
        Some(RelayChannel { id, requests, relays: self.clone() })
    }

    /// The sender to a client that still waits.
    pub(crate) fn find(&self, id: &str) -> Option<mpsc::Sender<RelayMessage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }
}

/// The receiving end of a channel. Dropping it closes the channel.
pub(crate) struct RelayChannel {
    pub id: String,
    pub requests: mpsc::Receiver<RelayMessage>,
    relays: Relays,
}

impl Drop for RelayChannel {
    fn drop(&mut self) {
        self.relays.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}
