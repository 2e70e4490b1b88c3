//! Subscriptions to resources of servers: one for each resource, however many clients watch it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::ServiceError;
use rmcp::model::{ErrorData, SubscribeRequestParams, SubscriptionFilter, UnsubscribeRequestParams};
use steprail_engine::Principal;
use tokio_util::sync::CancellationToken;

use super::Gateway;
use super::changes::Change;
use super::connection::Connection;
use super::era::Era;
use crate::limits::{WATCH_RETRY_MS, WATCHED};

/// A server, a user where the server needs that, and a URI.
type Key = (String, Option<String>, String);

/// The resources that are watched, with the number of clients that do.
#[derive(Default)]
pub(super) struct Watched(Mutex<HashMap<Key, (usize, CancellationToken)>>);

/// A client watches a resource until this is dropped.
pub(crate) struct Watching {
    gateway: Gateway,
    key: Key,
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut watched = self.gateway.0.watched.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((clients, ended)) = watched.get_mut(&self.key) {
            *clients -= 1;
            if *clients == 0 {
                ended.cancel();
                watched.remove(&self.key);
            }
        }
    }
}

impl Gateway {
    /// Watches a resource of a server for a client.
    pub(crate) fn watch(&self, server: &str, user: &Principal, uri: &str) -> Result<Watching, ErrorData> {
        let personal = self.0.servers.servers.get(server).is_some_and(crate::config::Entry::is_personal);
        let key = (server.to_owned(), personal.then(|| user.id.clone()), uri.to_owned());
        let mut watched = self.0.watched.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((clients, _)) = watched.get_mut(&key) {
            *clients += 1;
        } else {
            if watched.len() >= WATCHED {
                let message = format!("more than {WATCHED} resources of servers are watched");
                return Err(ErrorData::invalid_request(message, None));
            }
            let ended = CancellationToken::new();
            watched.insert(key.clone(), (1, ended.clone()));
            let (gateway, server, user) = (self.clone(), server.to_owned(), user.clone());
            let uri = uri.to_owned();
            tokio::spawn(async move { gateway.keep_watching(&server, &user, &uri, ended).await });
        }
        drop(watched);
        Ok(Watching { gateway: self.clone(), key })
    }

    /// Subscribes, and subscribes again when the connection was lost. What changed meanwhile is not known, so the
    /// resource counts as changed then. A server that refuses is not asked again.
    async fn keep_watching(&self, server: &str, user: &Principal, uri: &str, ended: CancellationToken) {
        let mut is_first = true;
        loop {
            if let Ok(connection) = self.connection_of(server, user).await {
                if !std::mem::take(&mut is_first) {
                    let change = Change::Resource { server: server.to_owned(), uri: uri.to_owned() };
                    self.0.changes.tell(change);
                }
                tokio::select! {
                    subscribed = subscribed(&connection, uri) => {
                        if let Err(ServiceError::McpError(error)) = subscribed {
                            return tracing::info!(server, uri, %error, "a subscription was refused");
                        }
                    }
                    () = ended.cancelled() => return unsubscribe(&connection, uri).await,
                }
            }
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(WATCH_RETRY_MS)) => {}
                () = ended.cancelled() => return,
            }
        }
    }
}

/// Subscribes to a resource, and waits for the end of the subscription. The error says why there is none.
#[expect(deprecated, reason = "what servers of older revisions have")]
async fn subscribed(connection: &Arc<Connection>, uri: &str) -> Result<(), ServiceError> {
    if connection.era == Era::Modern {
        let filter = SubscriptionFilter::builder().resource_subscription(uri.to_owned()).build();
        return connection.listener.subscribe(&connection.peer, filter).await;
    }
    connection.peer.subscribe(SubscribeRequestParams::new(uri)).await?;
    while connection.is_up() {
        tokio::select! {
            () = connection.lost.cancelled() => return Ok(()),
            () = tokio::time::sleep(Duration::from_millis(WATCH_RETRY_MS)) => {}
        }
    }
    Ok(())
}

#[expect(deprecated, reason = "what servers of older revisions have")]
async fn unsubscribe(connection: &Connection, uri: &str) {
    if connection.era == Era::Legacy {
        let _ = connection.peer.unsubscribe(UnsubscribeRequestParams::new(uri)).await;
    }
}
