//! Resources, resource templates, prompts and completions of servers.

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
use crate::limits::{FEDERATED, LIST_TTL_MS, REQUEST_SECS};

/// What a server offers beside tools, as it lists it.
#[derive(Debug, Default)]
pub(crate) struct Offer {
    pub resources: Vec<Resource>,
    pub templates: Vec<ResourceTemplate>,
    pub prompts: Vec<Prompt>,
}

/// Offers that were listed lately: by server, and by user where a server needs that.
#[derive(Default)]
pub(super) struct Offers(Mutex<BTreeMap<(String, Option<String>), Listed>>);

struct Listed {
    at: Instant,
    /// The count of changes when it was listed.
    changes: u64,
    offer: Arc<Offer>,
}

impl Gateway {
    /// The names of the servers.
    pub fn servers(&self) -> Vec<&str> {
        self.0.servers.servers.keys().map(String::as_str).collect()
    }

    /// The name that a server's tools begin with, if there is such a server.
    pub(crate) fn alias_of(&self, server: &str) -> Option<&str> {
        self.0.aliases.iter().find(|(_, name)| *name == server).map(|(alias, _)| alias)
    }

    /// Reads what servers say has changed, from now on.
    pub(crate) fn changes(&self) -> broadcast::Receiver<Change> {
        self.0.changes.reader()
    }

    /// What a server offers beside tools. One that cannot be reached offers what it offered last.
    pub(crate) async fn offer(&self, server: &str, user: &Principal) -> Arc<Offer> {
        let personal = self.0.servers.servers.get(server).is_some_and(crate::config::Entry::is_personal);
        let key = (server.to_owned(), personal.then(|| user.id.clone()));
        let changes = self.0.changes.count();
        let known = {
            let offers = self.0.offers.0.lock().unwrap_or_else(PoisonError::into_inner);
            offers.get(&key).map(|listed| (listed.at, listed.changes, listed.offer.clone()))
        };
        if let Some((at, seen, offer)) = &known
            && *seen == changes
            && at.elapsed() < Duration::from_millis(LIST_TTL_MS)
        {
            return offer.clone();
        }
        let listed = match self.connection_of(server, user).await {
            Ok(connection) => list(&connection).await.ok(),
            Err(_) => None,
        };
        let offer = match (listed, known) {
            (Some(offer), _) => Arc::new(offer),
            (None, Some((.., offer))) => offer,
            (None, None) => Arc::default(),
        };
        let listed = Listed { at: Instant::now(), changes, offer: offer.clone() };
        self.0.offers.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, listed);
        offer
    }

    /// The connection to a server; the error says why there is none.
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

    /// Sends a request of a client to a server, with the capabilities that the client declared.
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
        let answered = match sent {
            Ok(handle) => handle.await_response().await,
            Err(error) => Err(error),
        };
        answered.map_err(|error| match error {
            ServiceError::McpError(error) => error,
            other => ErrorData::new(ErrorCode::INTERNAL_ERROR, format!("{server}: {other}"), None),
        })
    }

    /// Lists the tools again of servers that said that these have changed.
    pub(crate) async fn refresh_stale(&self) {
        let stale = self.all_links().into_iter().filter_map(|link| link.up());
        let stale = stale.filter(|up| up.is_up() && up.listener.take_stale());
        futures::future::join_all(stale.map(|up| async move { up.relist().await })).await;
    }
}

/// Lists what a server offers, up to the limits and within the time that a request has.
async fn list(connection: &Connection) -> Result<Offer, ServiceError> {
    let listing = async {
        let peer = &connection.peer;
        let has = peer.peer_info().map(|info| info.capabilities.clone()).unwrap_or_default();
        let ServerCapabilities { resources, prompts, .. } = &has;
        let mut offer = Offer::default();
        if resources.is_some() {
            offer.resources = resources_of(peer).await?;
            // A server may have resources and no templates.
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

/// Every page of a list, up to the limit.
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
