//! Federation: resources, resource templates, prompts and completions of servers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rmcp::ServiceError;
use rmcp::model::{
    ClientCapabilities, ClientRequest, ErrorCode, ErrorData, PaginatedRequestParams, Prompt,
    RequestMetaObject, Resource, ResourceTemplate, ServerCapabilities, ServerResult,
};
use rmcp::service::{Peer, PeerRequestOptions, RoleClient};
use steprail_engine::Principal;
use tokio::sync::broadcast;

use super::Gateway;
use super::changes::Change;
use super::connection::Connection;
use super::era::Era;
use crate::config::ServerEntry;
use crate::limits::{FEDERATED, LIST_TTL_MS, REQUEST_SECS};
use crate::redact;

/// Resources, templates and prompts that a server lists.
#[derive(Debug, Default)]
pub(crate) struct Offer {
    pub resources: Vec<Resource>,
    pub templates: Vec<ResourceTemplate>,
    pub prompts: Vec<Prompt>,
}

impl Offer {
    fn without_secrets(self) -> Option<Self> {
        Some(Self {
            resources: redact::message(self.resources)?,
            templates: redact::message(self.templates)?,
            prompts: redact::message(self.prompts)?,
        })
    }
}

/// Recently listed offers by server and, for a per-user server, user id.
#[derive(Default)]
pub(super) struct Offers(Mutex<BTreeMap<(String, Option<String>), CachedOffer>>);

#[derive(Clone)]
struct CachedOffer {
    listed_at: Instant,
    /// Value of [`super::changes::Changes::count`] before it was listed.
    changes: u64,
    offer: Arc<Offer>,
}

impl Gateway {
    /// The names of the servers.
    pub fn servers(&self) -> Vec<&str> {
        self.0.servers.servers.keys().map(String::as_str).collect()
    }

    /// The alias of a server; `None` if it is not configured.
    pub(crate) fn alias_of(&self, server: &str) -> Option<&str> {
        self.0.aliases.iter().find(|(_, name)| *name == server).map(|(alias, _)| alias)
    }

    /// Receives changes that servers announce, from now on.
    pub(crate) fn changes(&self) -> broadcast::Receiver<Change> {
        self.0.changes.subscribe()
    }

    /// The offer of a server, from the cache if nothing changed. The last offer if the server cannot be reached.
    pub(crate) async fn offer(&self, server: &str, user: &Principal) -> Arc<Offer> {
        let is_per_user = self.0.servers.servers.get(server).is_some_and(ServerEntry::is_per_user);
        let key = (server.to_owned(), is_per_user.then(|| user.id.clone()));
        let changes = self.0.changes.count();
        let cached = self.0.offers.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(cached) = &cached
            && cached.changes == changes
            && cached.listed_at.elapsed() < Duration::from_millis(LIST_TTL_MS)
        {
            return cached.offer.clone();
        }
        let listed = match self.connection_of(server, user).await {
            Ok(connection) => list(&connection).await.ok(),
            Err(_) => None,
        };
        let listed = listed.and_then(Offer::without_secrets);
        let offer = match (listed, cached) {
            (Some(offer), _) => Arc::new(offer),
            (None, Some(cached)) => cached.offer,
            (None, None) => Arc::default(),
        };
        let cached = CachedOffer { listed_at: Instant::now(), changes, offer: offer.clone() };
        self.0.offers.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, cached);
        offer
    }

    /// The connection to a server. Waits up to [`REQUEST_SECS`] until it is up.
    pub(super) async fn connection_of(
        &self,
        server: &str,
        user: &Principal,
    ) -> Result<Arc<Connection>, ErrorData> {
        let unreachable = |problem: String| ErrorData::internal_error(problem, None);
        let link = self.link(server, Some(user)).map_err(unreachable)?;
        let connecting = tokio::time::timeout(Duration::from_secs(REQUEST_SECS), link.connection());
        match connecting.await {
            Ok(connected) => connected.map_err(unreachable),
            Err(_) => Err(unreachable(format!("{server} did not answer within {REQUEST_SECS} s"))),
        }
    }

    /// Forwards a request of a client to a server, with the capabilities of the client.
    pub(crate) async fn forward(
        &self,
        server: &str,
        user: &Principal,
        request: ClientRequest,
        declared: ClientCapabilities,
    ) -> Result<ServerResult, ErrorData> {
        let connection = self.connection_of(server, user).await?;
        let mut meta = RequestMetaObject::new();
        if connection.era == Era::Modern {
            meta.set_client_capabilities(declared);
        }
        let options = PeerRequestOptions::with_timeout(Duration::from_secs(REQUEST_SECS)).with_meta(meta);
        let sent = connection.peer.send_request_with_option(request, options).await;
        let response = match sent {
            Ok(handle) => handle.await_response().await,
            Err(error) => Err(error),
        };
        let response = response.map_err(|error| match error {
            ServiceError::McpError(error) => error,
            other => ErrorData::new(ErrorCode::INTERNAL_ERROR, format!("{server}: {other}"), None),
        });
        let has_secret = || {
            let message = format!("{server} sent a secret where it cannot be removed");
            ErrorData::internal_error(message, None)
        };
        match response {
            Ok(result) => redact::message(result).ok_or_else(has_secret),
            Err(error) => Err(redact::message(error).unwrap_or_else(has_secret)),
        }
    }

    /// Lists the tools of servers that announced a change again.
    pub(crate) async fn refresh_stale(&self) {
        let stale = self.all_links().into_iter().filter_map(|link| link.up());
        let stale = stale.filter(|up| up.is_up() && up.listener.take_stale());
        futures::future::join_all(stale.map(|up| async move { up.relist().await })).await;
    }
}

/// Lists the offer of a server, up to the limits, within [`REQUEST_SECS`].
async fn list(connection: &Connection) -> Result<Offer, ServiceError> {
    let listing = async {
        let peer = &connection.peer;
        let capabilities = peer.peer_info().map(|info| info.capabilities.clone()).unwrap_or_default();
        let ServerCapabilities { resources, prompts, .. } = &capabilities;
        let mut offer = Offer::default();
        if resources.is_some() {
            offer.resources = resources_of(peer).await?;
            // A server may support resources but not templates.
            offer.templates = templates_of(peer).await.unwrap_or_default();
        }
        if prompts.is_some() {
            offer.prompts = prompts_of(peer).await?;
        }
        Ok(offer)
    };
    let timeout = Duration::from_secs(REQUEST_SECS);
    tokio::time::timeout(timeout, listing).await.unwrap_or(Err(ServiceError::Timeout { timeout }))
}

/// Defines a function that reads all pages of a list, up to [`FEDERATED`] items.
macro_rules! pages {
    ($name:ident, $method:ident, $field:ident, $item:ty) => {
        async fn $name(peer: &Peer<RoleClient>) -> Result<Vec<$item>, ServiceError> {
            let mut items = Vec::new();
            let mut cursor = None;
            loop {
                let page = PaginatedRequestParams::default().with_cursor(cursor);
                let page = peer.$method(Some(page)).await?;
                items.extend(page.$field);
                cursor = page.next_cursor;
                if cursor.is_none() || items.len() >= FEDERATED {
                    items.truncate(FEDERATED);
                    return Ok(items);
                }
            }
        }
    };
}

pages!(resources_of, list_resources, resources, Resource);
pages!(templates_of, list_resource_templates, resource_templates, ResourceTemplate);
pages!(prompts_of, list_prompts, prompts, Prompt);
