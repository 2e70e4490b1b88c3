//! What changes, for clients that asked to hear of it: lists, runs, open questions, resources of other servers.

use std::collections::VecDeque;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{CustomNotification, ErrorData, ResourceUpdatedNotificationParam};
use rmcp::service::{NotificationContext, Peer, SubscriptionContext};
use steprail_engine::User;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, watch};

use super::Server;
use super::federated::{self, Route};
use super::sessions::{Sessions, session_of};
use super::watches::{Armed, Watches};
use crate::gateway::Change;
use crate::limits::NEWS_MS;

/// What is told.
enum News {
    ToolsChanged,
    ResourcesChanged,
    PromptsChanged,
    Updated(String),
    Happened(CustomNotification),
    Closed,
}

/// Waits for something to tell.
struct Newsroom {
    server: Server,
    user: User,
    watches: Watches,
    heard: Armed,
    events: watch::Receiver<i64>,
    due: VecDeque<News>,
}

impl Newsroom {
    fn new(server: &Server, user: User, watches: Watches, heard: Armed) -> Self {
        let events = server.shared.engine.watch_cursor();
        Self { server: server.clone(), user, watches, heard, events, due: VecDeque::new() }
    }

    async fn next(&mut self) -> News {
        loop {
            if let Some(news) = self.due.pop_front() {
                return news;
            }
            tokio::select! {
                changed = self.heard.definitions.changed() => match changed {
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
                change = next_change(&mut self.heard.servers) => self.at_servers(change).await,
            }
        }
    }

    /// Something changed at other servers. What comes within a short time is told once.
    async fn at_servers(&mut self, first: Option<Change>) {
        tokio::time::sleep(Duration::from_millis(NEWS_MS)).await;
        self.at_server(first).await;
        while let Some(changes) = &mut self.heard.servers {
            match changes.try_recv() {
                Ok(change) => self.at_server(Some(change)).await,
                Err(TryRecvError::Lagged(_)) => self.at_server(None).await,
                Err(_) => return,
            }
        }
    }

    /// A change at a server; none if changes were missed, so that everything may have changed.
    async fn at_server(&mut self, change: Option<Change>) {
        let settings = &self.server.shared.settings;
        let (exposes, federates) = (!settings.expose.is_empty(), !settings.federate.is_empty());
        let of = |kind: &Change| change.as_ref().is_none_or(|change| change == kind);
        let lists = [
            (exposes && of(&Change::Tools), News::ToolsChanged),
            (federates && of(&Change::Resources), News::ResourcesChanged),
            (federates && of(&Change::Prompts), News::PromptsChanged),
        ];
        for (_, news) in lists.into_iter().filter(|(changed, _)| *changed) {
            self.push(news);
        }
        let resource = match change {
            Some(Change::Resource { server, uri }) => Some(Route { server, name: uri }),
            Some(_) => return,
            None => None,
        };
        for (uri, route) in self.watches.of_server(resource.as_ref()) {
            // The right to read may have been taken away since.
            if federated::may_read(&self.server.shared, &self.user, &route.server).await {
                self.push(News::Updated(uri));
            }
        }
    }

    fn push(&mut self, news: News) {
        let is_same = |known: &News| match (known, &news) {
            (News::Updated(known), News::Updated(new)) => known == new,
            (known, new) => std::mem::discriminant(known) == std::mem::discriminant(new),
        };
        if !self.due.iter().any(is_same) {
            self.due.push_back(news);
        }
    }
}

/// The next change at another server; none if some were missed. Without servers it never comes.
async fn next_change(changes: &mut Option<broadcast::Receiver<Change>>) -> Option<Change> {
    let Some(receiver) = changes else { return std::future::pending().await };
    match receiver.recv().await {
        Ok(change) => Some(change),
        Err(RecvError::Lagged(_)) => None,
        Err(RecvError::Closed) => {
            *changes = None;
            std::future::pending().await
        }
    }
}

/// Tells a client with a session, until it is gone.
pub(super) fn follow(server: &Server, context: NotificationContext<RoleServer>) {
    if !server.watches.begin() {
        return;
    }
    let Ok(user) = server.user(&context.extensions) else { return };
    let heard = Armed::new(&server.shared);
    let newsroom = Newsroom::new(server, user, server.watches.clone(), heard);
    let session = session_of(&context.extensions).map(str::to_owned);
    tokio::spawn(async move { tell(newsroom, session, context.peer).await });
}

/// Watches again what a session watched before our process started; what changed meanwhile is told at once.
async fn restore(newsroom: &mut Newsroom, session: &str) {
    let sessions = Sessions(newsroom.server.shared.engine.registry());
    for uri in sessions.subscriptions(session).await {
        // What the user may no longer see is not watched again.
        let added = newsroom.watches.add(&newsroom.server, &newsroom.user, uri.clone()).await;
        if added.is_ok() && !super::resources::is_ours(&uri) {
            newsroom.push(News::Updated(uri));
        }
    }
    newsroom.events.mark_changed();
}

async fn tell(mut newsroom: Newsroom, session: Option<String>, peer: Peer<RoleServer>) {
    if let Some(session) = session {
        restore(&mut newsroom, &session).await;
    }
    let closed = async {
        while !peer.is_transport_closed() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let telling = async {
        loop {
            let told = match newsroom.next().await {
                News::ToolsChanged => peer.notify_tool_list_changed().await,
                News::ResourcesChanged => peer.notify_resource_list_changed().await,
                News::PromptsChanged => peer.notify_prompt_list_changed().await,
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
    let watches = Watches::default();
    let heard = server.watches.armed().unwrap_or_else(|| Armed::new(&server.shared));
    for uri in wanted.resource_subscriptions.clone().unwrap_or_default() {
        // A resource that is not there is not watched; the others are.
        if let Err(error) = watches.add(server, &user, uri).await {
            tracing::debug!(%error, "a resource is not watched");
        }
    }
    let mut newsroom = Newsroom::new(server, user, watches, heard);
    // What changed before this was heard is told at once.
    newsroom.events.mark_changed();
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
            News::ResourcesChanged if wanted.resources_list_changed == Some(true) => {
                sink.notify_resource_list_changed().await
            }
            News::PromptsChanged if wanted.prompts_list_changed == Some(true) => {
                sink.notify_prompt_list_changed().await
            }
            News::Updated(uri) => sink.notify_resource_updated(uri).await,
            News::Closed => return Ok(()),
            // Only clients with a session are told event by event.
            _ => Ok(()),
        };
        if told.is_err() {
            return Ok(());
        }
    }
}
