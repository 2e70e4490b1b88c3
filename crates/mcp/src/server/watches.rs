//! What one client wants to hear of: resources, runs, log messages.

#![expect(deprecated, reason = "log messages are passed on as long as servers send them")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::model::{CustomNotification, ErrorData, LoggingLevel};
use steprail_engine::{RunId, User};
use tokio::sync::{broadcast, watch};

use super::federated::{self, Route};
use super::progress::in_old_words;
use super::relayed::severity;
use super::resources::{self, APPROVALS};
use super::{Server, Shared};
use crate::gateway::{Change, Watching};
use crate::limits::{PAGE, RESOURCE_EVENTS, WATCHES};

/// What one client wants to hear of. A clone is the same one.
#[derive(Clone, Default)]
pub(super) struct Watches(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Whether the client is told already.
    followed: AtomicBool,
    /// Resources by the URIs that the client knows.
    resources: Mutex<BTreeMap<String, Watch>>,
    /// Runs whose events are told one by one, with the number of the last one.
    runs: Mutex<BTreeMap<RunId, u64>>,
    /// The least severe log messages that are passed on.
    level: AtomicU8,
    /// Changes, heard from before a subscription was acknowledged.
    armed: Mutex<VecDeque<Armed>>,
    /// One change of the stored subscriptions at a time.
    saving: tokio::sync::Mutex<()>,
}

/// A resource that is watched.
enum Watch {
    /// One of ours, with the state that was last told.
    Ours(Option<String>),
    /// One of another server, which says when it changes.
    Theirs { route: Route, _watching: Watching },
}

/// Where changes are heard of.
pub(super) struct Armed {
    pub definitions: watch::Receiver<u64>,
    /// Changes at other servers; none without a gateway.
    pub servers: Option<broadcast::Receiver<Change>>,
}

impl Armed {
    /// Listens from now on.
    pub(super) fn new(shared: &Shared) -> Self {
        let servers = shared.gateway.as_ref().map(crate::Gateway::changes);
        Self { definitions: shared.engine.definition_changes(), servers }
    }
}

impl Watches {
    fn resources(&self) -> MutexGuard<'_, BTreeMap<String, Watch>> {
        self.0.resources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the client is not told of anything yet. From now on it is.
    pub(super) fn begin(&self) -> bool {
        !self.0.followed.swap(true, Ordering::Relaxed)
    }

    /// Watches a resource: one of ours, or one of another server that the user may read.
    pub(super) async fn add(&self, server: &Server, user: &User, uri: String) -> Result<(), ErrorData> {
        let watch = if resources::is_ours(&uri) {
            Watch::Ours(None)
        } else {
            let route = federated::resource_route(&server.shared, user, &uri).await;
            let gateway = server.shared.gateway.as_ref();
            let (route, gateway) = route.zip(gateway).ok_or_else(|| resources::not_found(&uri))?;
            let watching = gateway.watch(&route.server, user.principal(), &route.name)?;
            Watch::Theirs { route, _watching: watching }
        };
        let mut resources = self.resources();
        if resources.len() >= WATCHES && !resources.contains_key(&uri) {
            return Err(ErrorData::invalid_request(format!("at most {WATCHES} resources are watched"), None));
        }
        resources.insert(uri, watch);
        Ok(())
    }

    pub(super) fn remove(&self, uri: &str) {
        self.resources().remove(uri);
    }

    /// Stores what is watched with the client's session.
    pub(super) async fn save(&self, server: &Server, session: Option<&str>) -> Result<(), ErrorData> {
        let Some(session) = session else { return Ok(()) };
        let _turn = self.0.saving.lock().await;
        let uris = self.resources().keys().cloned().collect();
        let sessions = super::sessions::Sessions(server.shared.engine.registry());
        let saved = sessions.keep_subscriptions(session, uris).await;
        saved.map_err(|error| super::answer::protocol_error(&error))
    }

    /// Sets the least severe level at which log messages of exposed tools are passed on.
    pub(super) fn set_level(&self, level: LoggingLevel) {
        self.0.level.store(severity(level), Ordering::Relaxed);
    }

    pub(super) fn wants_log(&self, level: LoggingLevel) -> bool {
        severity(level) >= self.0.level.load(Ordering::Relaxed)
    }

    /// Tells the events of a run after a number one by one, until it ends.
    pub(super) fn follow(&self, run: RunId, seen: u64) {
        let mut runs = self.0.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.len() < WATCHES {
            runs.insert(run, seen);
        }
    }

    /// What happened in the runs that are followed, and whether there is more to tell.
    pub(super) async fn happened(&self, user: &User) -> (Vec<CustomNotification>, bool) {
        let runs: Vec<(RunId, u64)> = {
            let runs = self.0.runs.lock().unwrap_or_else(PoisonError::into_inner);
            runs.iter().map(|(run, seen)| (*run, *seen)).collect()
        };
        let (mut told, mut is_left) = (Vec::new(), false);
        for (run, seen) in runs {
            // Asked first: what has ended by now has its end among the events.
            let over = user.row(run).await.map_or(true, |row| row.status.is_terminal());
            let page = user.events(run, seen, RESOURCE_EVENTS).await.ok();
            let events = page.as_ref().map_or(&[][..], |page| &page.events);
            told.extend(events.iter().filter_map(in_old_words));
            let has_more = page.as_ref().is_some_and(|page| page.has_more);
            is_left |= has_more;
            let mut runs = self.0.runs.lock().unwrap_or_else(PoisonError::into_inner);
            match events.last() {
                _ if over && !has_more => drop(runs.remove(&run)),
                Some(last) => drop(runs.insert(run, last.seq)),
                None => {}
            }
        }
        (told, is_left)
    }

    /// Listens from now on: what changes before the client knows that it is heard is not lost.
    pub(super) fn arm(&self, armed: Armed) {
        let mut all = self.0.armed.lock().unwrap_or_else(PoisonError::into_inner);
        all.push_back(armed);
        if all.len() > WATCHES {
            all.pop_front();
        }
    }

    pub(super) fn armed(&self) -> Option<Armed> {
        self.0.armed.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Our resources that are not as they were when they were last told of.
    pub(super) async fn changed(&self, user: &User) -> Vec<String> {
        let known: Vec<(String, Option<String>)> = {
            let resources = self.resources();
            let ours = resources.iter().filter_map(|(uri, watch)| match watch {
                Watch::Ours(state) => Some((uri.clone(), state.clone())),
                Watch::Theirs { .. } => None,
            });
            ours.collect()
        };
        let mut changed = Vec::new();
        for (uri, before) in known {
            let now = state(user, &uri).await;
            if before == now {
                continue;
            }
            if let Some(Watch::Ours(state)) = self.resources().get_mut(&uri) {
                *state = now;
                changed.push(uri);
            }
        }
        changed
    }

    /// The resources of other servers that are watched: all, or those of one URI there. The client's URI comes first.
    pub(super) fn of_server(&self, changed: Option<&Route>) -> Vec<(String, Route)> {
        let resources = self.resources();
        let theirs = resources.iter().filter_map(|(uri, watch)| match watch {
            Watch::Theirs { route, .. } if changed.is_none_or(|changed| changed == route) => {
                Some((uri.clone(), route.clone()))
            }
            _ => None,
        });
        theirs.collect()
    }
}

/// What tells one state of a resource from another.
async fn state(user: &User, uri: &str) -> Option<String> {
    if uri == APPROVALS {
        let open = user.approvals(PAGE).await.ok()?;
        return Some(open.iter().map(|gate| format!("{}/{};", gate.run_id, gate.digest)).collect());
    }
    match resources::run_of(uri) {
        Some(run) => user.row(run).await.ok().map(|row| row.seq.to_string()),
        None => resources::version_of(user, uri).await,
    }
}
