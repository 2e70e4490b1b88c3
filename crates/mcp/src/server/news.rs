//! What changes, for clients that asked to hear of it: lists, runs, open questions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{CustomNotification, ErrorData, ResourceUpdatedNotificationParam};
use rmcp::service::{NotificationContext, Peer, SubscriptionContext};
use steprail_engine::{RunId, User};
use tokio::sync::watch;

use super::Server;
use super::progress::in_old_words;
use super::resources::{self, APPROVALS};
use crate::limits::{NEWS_MS, PAGE, RESOURCE_EVENTS, WATCHES};

/// What one client wants to hear of.
#[derive(Clone, Default)]
pub(super) struct Watches(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Whether the client is told already.
    followed: AtomicBool,
    /// Resources, with what was last told of each.
    resources: Mutex<BTreeMap<String, Option<String>>>,
    /// Runs whose events are told one by one, with the number of the last one.
    runs: Mutex<BTreeMap<RunId, u64>>,
    /// Changes of definitions, heard from before a subscription was acknowledged.
    armed: Mutex<VecDeque<watch::Receiver<u64>>>,
}

impl Watches {
    pub(super) fn add(&self, uri: String) -> Result<(), ErrorData> {
        let mut resources = self.0.resources.lock().unwrap_or_else(PoisonError::into_inner);
        if resources.len() >= WATCHES && !resources.contains_key(&uri) {
            return Err(ErrorData::invalid_request(format!("at most {WATCHES} resources are watched"), None));
        }
        resources.insert(uri, None);
        Ok(())
    }

    pub(super) fn remove(&self, uri: &str) {
        self.0.resources.lock().unwrap_or_else(PoisonError::into_inner).remove(uri);
    }

    /// Tells the events of a run after a number one by one, until it ends.
    pub(super) fn follow(&self, run: RunId, seen: u64) {
        let mut runs = self.0.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.len() < WATCHES {
            runs.insert(run, seen);
        }
    }

    /// What happened in the runs that are followed, and whether there is more to tell.
    async fn happened(&self, user: &User) -> (Vec<CustomNotification>, bool) {
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
    pub(super) fn arm(&self, changes: watch::Receiver<u64>) {
        let mut armed = self.0.armed.lock().unwrap_or_else(PoisonError::into_inner);
        armed.push_back(changes);
        if armed.len() > WATCHES {
            armed.pop_front();
        }
    }

    fn armed(&self) -> Option<watch::Receiver<u64>> {
        self.0.armed.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// The resources that are not as they were when they were last told of.
    async fn changed(&self, user: &User) -> Vec<String> {
        let known: Vec<(String, Option<String>)> = {
            let resources = self.0.resources.lock().unwrap_or_else(PoisonError::into_inner);
            resources.iter().map(|(uri, state)| (uri.clone(), state.clone())).collect()
        };
        let mut changed = Vec::new();
        for (uri, before) in known {
            let now = state(user, &uri).await;
            if before == now {
                continue;
            }
            let mut resources = self.0.resources.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(state) = resources.get_mut(&uri) {
                *state = now;
                changed.push(uri);
            }
        }
        changed
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

/// What is told.
enum News {
    ToolsChanged,
    Updated(String),
    Happened(CustomNotification),
    Closed,
}

/// Waits for something to tell.
struct Newsroom {
    user: User,
    watches: Watches,
    definitions: watch::Receiver<u64>,
    events: watch::Receiver<i64>,
    due: VecDeque<News>,
}

impl Newsroom {
    async fn next(&mut self) -> News {
        loop {
            if let Some(news) = self.due.pop_front() {
                return news;
            }
            tokio::select! {
                changed = self.definitions.changed() => match changed {
                    Ok(()) => {
                        self.due.push_back(News::ToolsChanged);
                        let changed = self.watches.changed(&self.user).await;
                        self.due.extend(changed.into_iter().map(News::Updated));
                    }
                    Err(_) => return News::Closed,
                },
                changed = self.events.changed() => match changed {
                    // Many events of many runs: told together, not one by one.
                    Ok(()) => {
                        tokio::time::sleep(Duration::from_millis(NEWS_MS)).await;
                        self.events.borrow_and_update();
                        let changed = self.watches.changed(&self.user).await;
                        self.due.extend(changed.into_iter().map(News::Updated));
                        let (happened, has_more) = self.watches.happened(&self.user).await;
                        self.due.extend(happened.into_iter().map(News::Happened));
                        if has_more {
                            self.events.mark_changed();
                        }
                    }
                    Err(_) => return News::Closed,
                },
            }
        }
    }
}

/// Tells a client with a session, until it is gone.
pub(super) fn follow(server: &Server, context: NotificationContext<RoleServer>) {
    if server.watches.0.followed.swap(true, Ordering::Relaxed) {
        return;
    }
    let Ok(user) = server.user(&context.extensions) else { return };
    let engine = &server.shared.engine;
    let newsroom = Newsroom {
        user,
        watches: server.watches.clone(),
        definitions: engine.definition_changes(),
        events: engine.news(),
        due: VecDeque::new(),
    };
    tokio::spawn(tell(newsroom, context.peer));
}

async fn tell(mut newsroom: Newsroom, peer: Peer<RoleServer>) {
    let closed = async {
        while !peer.is_transport_closed() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let telling = async {
        loop {
            let told = match newsroom.next().await {
                News::ToolsChanged => peer.notify_tool_list_changed().await,
                News::Updated(uri) => {
                    peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await
                }
                News::Happened(what) => peer.send_notification(what.into()).await,
                News::Closed => return,
            };
            if told.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = closed => {}
        () = telling => {}
    }
}

/// Tells a client that listens on a request of its own.
pub(super) async fn listen(server: &Server, context: SubscriptionContext) -> Result<(), ErrorData> {
    let user = server.user(&context.request_context().extensions)?;
    let wanted = context.accepted().clone();
    let engine = &server.shared.engine;
    let watches = Watches::default();
    for uri in wanted.resource_subscriptions.clone().unwrap_or_default() {
        watches.add(uri)?;
    }
    let mut events = engine.news();
    // What changed before this was heard is told at once.
    events.mark_changed();
    let definitions = server.watches.armed().unwrap_or_else(|| engine.definition_changes());
    let mut newsroom = Newsroom { user, watches, definitions, events, due: VecDeque::new() };
    loop {
        let news = tokio::select! {
            news = newsroom.next() => news,
            () = context.cancelled() => return Ok(()),
        };
        let sink = context.sink();
        let told = match news {
            News::ToolsChanged if wanted.tools_list_changed == Some(true) => {
                sink.notify_tool_list_changed().await
            }
            News::ToolsChanged => Ok(()),
            News::Updated(uri) => sink.notify_resource_updated(uri).await,
            // Only clients with a session are told event by event.
            News::Happened(_) => Ok(()),
            News::Closed => return Ok(()),
        };
        if told.is_err() {
            return Ok(());
        }
    }
}
