//! The subscriptions of one client: resources, events of runs, log messages.

#![expect(deprecated, reason = "log messages are relayed as long as servers send them")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::model::{CustomNotification, ErrorData, LoggingLevel};
use steprail_engine::{After, RunId, User};
use tokio::sync::{broadcast, watch};

use super::federated::{self, Route};
use super::progress::dcc_notification;
use super::relayed::severity;
use super::resources::{self, APPROVALS};
use super::{Server, Shared};
use crate::gateway::{Change, ResourceSubscription};
use crate::limits::{CLIENT_SUBSCRIPTIONS, PAGE, RESOURCE_EVENTS};

/// The subscriptions of one client. Clones share their state.
#[derive(Clone, Default)]
pub(super) struct Subscriptions(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Whether the notifications of the session have started.
    started: AtomicBool,
    /// Subscribed resources by the URIs that the client uses.
    resources: Mutex<BTreeMap<String, SubscribedResource>>,
    /// Runs whose events are sent, with the sequence number of the last event sent.
    runs: Mutex<BTreeMap<RunId, u64>>,
    /// Lowest severity of log messages that are relayed.
    log_severity: AtomicU8,
    /// Receivers for subscriptions that are acknowledged but not yet served.
    prepared: Mutex<VecDeque<ChangeReceivers>>,
    /// Serializes writes of the stored subscriptions.
    saving: tokio::sync::Mutex<()>,
}

enum SubscribedResource {
    /// One of Steprail's own, with the fingerprint at the last notification.
    Own(Option<String>),
    /// One of another server, which notifies the gateway.
    Federated { route: Route, _watching: ResourceSubscription },
}

/// Receivers of changes outside of runs.
pub(super) struct ChangeReceivers {
    pub definitions: watch::Receiver<u64>,
    /// Changes at other servers; `None` without a gateway.
    pub servers: Option<broadcast::Receiver<Change>>,
}

impl ChangeReceivers {
    /// Receives changes from now on.
    pub(super) fn new(shared: &Shared) -> Self {
        let servers = shared.gateway.as_ref().map(crate::Gateway::changes);
        Self { definitions: shared.engine.definition_changes(), servers }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Subscriptions {
    /// Marks the notifications of the session as started. Returns whether they were not.
    pub(super) fn start(&self) -> bool {
        !self.0.started.swap(true, Ordering::Relaxed)
    }

    /// Subscribes to a resource: one of Steprail's own, or one of another server that the user may read.
    pub(super) async fn add(&self, server: &Server, user: &User, uri: String) -> Result<(), ErrorData> {
        let resource = if resources::is_own(&uri) {
            SubscribedResource::Own(None)
        } else {
            let route = federated::resource_route(&server.shared, user, &uri).await;
            let gateway = server.shared.gateway.as_ref();
            let (route, gateway) = route.zip(gateway).ok_or_else(|| resources::not_found(&uri))?;
            let watching = gateway.subscribe(&route.server, user.principal(), &route.name)?;
            SubscribedResource::Federated { route, _watching: watching }
        };
        let mut resources = lock(&self.0.resources);
        if resources.len() >= CLIENT_SUBSCRIPTIONS && !resources.contains_key(&uri) {
            let message = format!("a client can subscribe to at most {CLIENT_SUBSCRIPTIONS} resources");
            return Err(ErrorData::invalid_request(message, None));
        }
        resources.insert(uri, resource);
        Ok(())
    }

    pub(super) fn remove(&self, uri: &str) {
        lock(&self.0.resources).remove(uri);
    }

    /// Stores the subscribed URIs with the client's session.
    pub(super) async fn save(&self, server: &Server, session: Option<&str>) -> Result<(), ErrorData> {
        let Some(session) = session else { return Ok(()) };
        let _saving = self.0.saving.lock().await;
        let uris = lock(&self.0.resources).keys().cloned().collect();
        let sessions = super::sessions::Sessions(server.shared.engine.registry());
        let saved = sessions.set_subscriptions(session, uris).await;
        saved.map_err(|error| super::error::protocol_error(&error))
    }

    /// Sets the lowest level of log messages that are relayed.
    pub(super) fn set_log_level(&self, level: LoggingLevel) {
        self.0.log_severity.store(severity(level), Ordering::Relaxed);
    }

    pub(super) fn includes_log(&self, level: LoggingLevel) -> bool {
        severity(level) >= self.0.log_severity.load(Ordering::Relaxed)
    }

    /// Sends the events of a run after a sequence number, until it ends.
    pub(super) fn follow_run(&self, run: RunId, after: u64) {
        let mut runs = lock(&self.0.runs);
        if runs.len() < CLIENT_SUBSCRIPTIONS {
            runs.insert(run, after);
        }
    }

    /// New events of the followed runs, and whether there are more.
    pub(super) async fn run_events(&self, user: &User) -> (Vec<CustomNotification>, bool) {
        let runs: Vec<(RunId, u64)> = lock(&self.0.runs).iter().map(|(run, seq)| (*run, *seq)).collect();
        let (mut notifications, mut is_incomplete) = (Vec::new(), false);
        for (run, seq) in runs {
            // The status is read before the events, so that they include the end of a run that has ended.
            let has_ended = user.row(run).await.map_or(true, |row| row.status.is_terminal());
            let page = user.events(run, After::Seq(seq), RESOURCE_EVENTS).await.ok();
            let events = page.as_ref().map_or(&[][..], |page| &page.events);
            notifications.extend(events.iter().filter_map(dcc_notification));
            let has_more = page.as_ref().is_some_and(|page| page.next.is_some());
            is_incomplete |= has_more;
            let mut runs = lock(&self.0.runs);
            match events.last() {
                _ if has_ended && !has_more => drop(runs.remove(&run)),
                Some(last) => drop(runs.insert(run, last.seq)),
                None => {}
            }
        }
        (notifications, is_incomplete)
    }

    /// Keeps receivers for a subscription that is being acknowledged.
    pub(super) fn prepare(&self, receivers: ChangeReceivers) {
        let mut prepared = lock(&self.0.prepared);
        prepared.push_back(receivers);
        if prepared.len() > CLIENT_SUBSCRIPTIONS {
            prepared.pop_front();
        }
    }

    pub(super) fn take_prepared(&self) -> Option<ChangeReceivers> {
        lock(&self.0.prepared).pop_front()
    }

    /// Steprail's own resources that changed since the last notification.
    pub(super) async fn updated(&self, user: &User) -> Vec<String> {
        let own: Vec<(String, Option<String>)> = {
            let resources = lock(&self.0.resources);
            let own = resources.iter().filter_map(|(uri, resource)| match resource {
                SubscribedResource::Own(fingerprint) => Some((uri.clone(), fingerprint.clone())),
                SubscribedResource::Federated { .. } => None,
            });
            own.collect()
        };
        let mut updated = Vec::new();
        for (uri, before) in own {
            let now = fingerprint(user, &uri).await;
            if before == now {
                continue;
            }
            if let Some(SubscribedResource::Own(fingerprint)) = lock(&self.0.resources).get_mut(&uri) {
                *fingerprint = now;
                updated.push(uri);
            }
        }
        updated
    }

    /// Subscribed resources of other servers, with the client's URIs: those of one route, or all.
    pub(super) fn federated(&self, changed: Option<&Route>) -> Vec<(String, Route)> {
        let resources = lock(&self.0.resources);
        let federated = resources.iter().filter_map(|(uri, resource)| match resource {
            SubscribedResource::Federated { route, .. } if changed.is_none_or(|changed| changed == route) => {
                Some((uri.clone(), route.clone()))
            }
            _ => None,
        });
        federated.collect()
    }
}

/// A text that changes with the resource.
async fn fingerprint(user: &User, uri: &str) -> Option<String> {
    if uri == APPROVALS {
        let open = user.approvals(PAGE).await.ok()?;
        return Some(open.iter().map(|gate| format!("{}/{};", gate.run_id, gate.digest)).collect());
    }
    match resources::run_of(uri) {
        Some(run) => user.row(run).await.ok().map(|row| row.seq.to_string()),
        None => resources::version_of(user, uri).await,
    }
}
