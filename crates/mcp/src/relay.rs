//! What a server asks and tells during a relayed call, on its way to the client that made the call.

#![expect(deprecated, reason = "sampling, roots and logging are passed on as long as servers use them")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::{
    CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams, ElicitResult, ErrorData,
    ListRootsResult, LoggingMessageNotificationParam, ProgressNotificationParam,
};
use tokio::sync::{mpsc, oneshot};

use crate::limits::{HEARD, RELAYS};

/// Where the answer to a request of a server goes.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, ErrorData>>;

/// A request or a notification of a server.
pub(crate) enum FromServer {
    Elicit(Box<ElicitRequestParams>, Reply<ElicitResult>),
    Sample(Box<CreateMessageRequestParams>, Reply<CreateMessageResult>),
    Roots(Reply<ListRootsResult>),
    Log(LoggingMessageNotificationParam),
    Progress(ProgressNotificationParam),
}

/// The clients that wait for the results of relayed calls, by id. A clone is the same map.
#[derive(Clone, Default)]
pub(crate) struct Relays(Arc<Mutex<HashMap<String, mpsc::Sender<FromServer>>>>);

impl Relays {
    /// Opens a channel to a client; none if there are too many.
    pub(crate) fn open(&self) -> Option<Relayed> {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.len() >= RELAYS {
            return None;
        }
        let (sender, requests) = mpsc::channel(HEARD);
        let id = uuid::Uuid::new_v4().to_string();
        clients.insert(id.clone(), sender);
        drop(clients);
        Some(Relayed { id, requests, relays: self.clone() })
    }

    /// The channel to a client, while it waits.
    pub(crate) fn find(&self, id: &str) -> Option<mpsc::Sender<FromServer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }
}

/// The client's end of a channel. Dropping it closes the channel.
pub(crate) struct Relayed {
    pub id: String,
    pub requests: mpsc::Receiver<FromServer>,
    relays: Relays,
}

impl Drop for Relayed {
    fn drop(&mut self) {
        self.relays.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}
