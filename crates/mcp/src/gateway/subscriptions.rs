//! Subscriptions to resources of servers: one per resource, shared by all clients.

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
use crate::config::ServerEntry;
use crate::limits::{RESOURCE_SUBSCRIPTIONS, RESUBSCRIBE_MS};

/// Server, user id for a per-user server, and URI.
type Key = (String, Option<String>, String);

/// Active subscriptions, with their number of clients and the token that ends them.
#[derive(Default)]
pub(super) struct Subscriptions(Mutex<HashMap<Key, (usize, CancellationToken)>>);

/// A client's subscription to a resource, until it is dropped.
pub(crate) struct ResourceSubscription {
    gateway: Gateway,
    key: Key,
}

impl Drop for ResourceSubscription {
    fn drop(&mut self) {
        let mut subscriptions = self.gateway.0.subscriptions.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((clients, ended)) = subscriptions.get_mut(&self.key) {
            *clients -= 1;
            if *clients == 0 {
                ended.cancel();
                subscriptions.remove(&self.key);
            }
        }
    }
}

impl Gateway {
    /// Subscribes a client to a resource of a server.
    pub(crate) fn subscribe(
        &self,
        server: &str,
        user: &Principal,
        uri: &str,
    ) -> Result<ResourceSubscription, ErrorData> {
        let is_per_user = self.0.servers.servers.get(server).is_some_and(ServerEntry::is_per_user);
        let key = (server.to_owned(), is_per_user.then(|| user.id.clone()), uri.to_owned());
        let mut subscriptions = self.0.subscriptions.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((clients, _)) = subscriptions.get_mut(&key) {
            *clients += 1;
        } else {
            if subscriptions.len() >= RESOURCE_SUBSCRIPTIONS {
                let message =
                    format!("the limit of {RESOURCE_SUBSCRIPTIONS} resource subscriptions is reached");
                return Err(ErrorData::invalid_request(message, None));
            }
            let ended = CancellationToken::new();
            subscriptions.insert(key.clone(), (1, ended.clone()));
            let (gateway, server, user) = (self.clone(), server.to_owned(), user.clone());
            let uri = uri.to_owned();
            tokio::spawn(async move { gateway.keep_subscribed(&server, &user, &uri, ended).await });
        }
        drop(subscriptions);
        Ok(ResourceSubscription { gateway: self.clone(), key })
    }

    /// Subscribes, and renews the subscription after a lost connection. The resource counts as changed then. Gives up if
    /// the server rejects the subscription.
    async fn keep_subscribed(&self, server: &str, user: &Principal, uri: &str, ended: CancellationToken) {
        let mut is_first = true;
        loop {
            if let Ok(connection) = self.connection_of(server, user).await {
                if !std::mem::take(&mut is_first) {
                    let change = Change::Resource { server: server.to_owned(), uri: uri.to_owned() };
                    self.0.changes.publish(change);
                }
                tokio::select! {
                    ended = subscribe(&connection, uri) => {
                        if let Err(ServiceError::McpError(error)) = ended {
                            return tracing::info!(server, uri, %error, "the server rejected a subscription");
                        }
                    }
                    () = ended.cancelled() => return unsubscribe(&connection, uri).await,
                }
            }
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(RESUBSCRIBE_MS)) => {}
                () = ended.cancelled() => return,
            }
        }
    }
}

/// Subscribes to a resource and waits for the end of the subscription. Fails if the server rejects it.
#[expect(deprecated, reason = "servers of older revisions use it")]
async fn subscribe(connection: &Arc<Connection>, uri: &str) -> Result<(), ServiceError> {
    if connection.era == Era::Modern {
        let filter = SubscriptionFilter::builder().resource_subscription(uri.to_owned()).build();
        return connection.listener.subscribe(&connection.peer, filter).await;
    }
    connection.peer.subscribe(SubscribeRequestParams::new(uri)).await?;
    while connection.is_up() {
        tokio::select! {
            () = connection.lost.cancelled() => return Ok(()),
            () = tokio::time::sleep(Duration::from_millis(RESUBSCRIBE_MS)) => {}
        }
    }
    Ok(())
}

#[expect(deprecated, reason = "servers of older revisions use it")]
async fn unsubscribe(connection: &Connection, uri: &str) {
    if connection.era == Era::Legacy {
        let _ = connection.peer.unsubscribe(UnsubscribeRequestParams::new(uri)).await;
    }
}
