//! Change notifications to clients: lists, runs, approvals, resources of other servers.

use std::collections::VecDeque;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{CustomNotification, ErrorData, ResourceUpdatedNotificationParam};
use rmcp::service::{NotificationContext, Peer, SubscriptionContext};
use steprail_engine::{Cursor, Error, SubscriptionSlot, User};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, watch};

use super::Server;
use super::federated::{self, Route};
use super::sessions::{Sessions, session_of};
use super::subscriptions::{ChangeReceivers, Subscriptions};
use crate::gateway::Change;
use crate::limits::CHANGE_BATCH_MS;

enum Notification {
    ToolsChanged,
    ResourcesChanged,
    PromptsChanged,
    ResourceUpdated(String),
    /// An event of a run, as `$/dcc.workflowUpdated`.
    RunEvent(CustomNotification),
    /// The engine has stopped.
    Closed,
}

/// The notifications for one client, in order.
struct NotificationStream {
    server: Server,
    user: User,
    subscriptions: Subscriptions,
    changes: ChangeReceivers,
    events: watch::Receiver<Cursor>,
    pending: VecDeque<Notification>,
    /// The slot in the quota of the user.
    _slot: SubscriptionSlot,
}

impl NotificationStream {
    /// Fails if the quota of the user is exhausted.
    fn new(
        server: &Server,
        user: User,
        subscriptions: Subscriptions,
        changes: ChangeReceivers,
    ) -> Result<Self, Error> {
        let slot = user.open_subscription()?;
        let (server, events) = (server.clone(), server.shared.engine.watch_cursor());
        Ok(Self { server, user, subscriptions, changes, events, pending: VecDeque::new(), _slot: slot })
    }

    async fn next(&mut self) -> Notification {
        loop {
            if let Some(notification) = self.pending.pop_front() {
                return notification;
            }
            tokio::select! {
                changed = self.changes.definitions.changed() => match changed {
                    Ok(()) => {
                        self.pending.push_back(Notification::ToolsChanged);
                        self.collect_updates().await;
                    }
                    Err(_) => return Notification::Closed,
                },
                changed = self.events.changed() => match changed {
                    Ok(()) => self.on_events().await,
                    Err(_) => return Notification::Closed,
                },
                change = next_change(&mut self.changes.servers) => self.on_server_changes(change).await,
            }
        }
    }

    async fn collect_updates(&mut self) {
        let updated = self.subscriptions.updated(&self.user).await;
        self.pending.extend(updated.into_iter().map(Notification::ResourceUpdated));
    }

    /// Collects the notifications for committed events. Events within a short time share one pass.
    async fn on_events(&mut self) {
        tokio::time::sleep(Duration::from_millis(CHANGE_BATCH_MS)).await;
        self.events.borrow_and_update();
        self.collect_updates().await;
        let (events, has_more) = self.subscriptions.run_events(&self.user).await;
        self.pending.extend(events.into_iter().map(Notification::RunEvent));
        if has_more {
            self.events.mark_changed();
        }
    }

    /// Handles changes at other servers. Those within a short time are sent once.
    async fn on_server_changes(&mut self, first: Option<Change>) {
        tokio::time::sleep(Duration::from_millis(CHANGE_BATCH_MS)).await;
        self.on_server_change(first).await;
        while let Some(changes) = &mut self.changes.servers {
            match changes.try_recv() {
                Ok(change) => self.on_server_change(Some(change)).await,
                Err(TryRecvError::Lagged(_)) => self.on_server_change(None).await,
                Err(_) => return,
            }
        }
    }

    /// Handles a change at a server. `None` means that changes were missed: anything may have changed.
    async fn on_server_change(&mut self, change: Option<Change>) {
        let settings = &self.server.shared.settings;
        let (exposes, federates) = (!settings.expose.is_empty(), !settings.federate.is_empty());
        let is = |kind: &Change| change.as_ref().is_none_or(|change| change == kind);
        let lists = [
            (exposes && is(&Change::Tools), Notification::ToolsChanged),
            (federates && is(&Change::Resources), Notification::ResourcesChanged),
            (federates && is(&Change::Prompts), Notification::PromptsChanged),
        ];
        for (_, notification) in lists.into_iter().filter(|(changed, _)| *changed) {
            self.push(notification);
        }
        let resource = match change {
            Some(Change::Resource { server, uri }) => Some(Route { server, name: uri }),
            Some(_) => return,
            None => None,
        };
        for (uri, route) in self.subscriptions.federated(resource.as_ref()) {
            // The right to read may have been revoked since the subscription.
            if federated::may_read(&self.server.shared, &self.user, &route.server).await {
                self.push(Notification::ResourceUpdated(uri));
            }
        }
    }

    /// Adds a notification unless the same one is pending.
    fn push(&mut self, notification: Notification) {
        let is_same = |pending: &Notification| match (pending, &notification) {
            (Notification::ResourceUpdated(pending), Notification::ResourceUpdated(new)) => pending == new,
            (pending, new) => std::mem::discriminant(pending) == std::mem::discriminant(new),
        };
        if !self.pending.iter().any(is_same) {
            self.pending.push_back(notification);
        }
    }

    /// Restores the subscriptions of a stored session. Changes since the last process are notified at once.
    async fn restore(&mut self, session: &str) {
        let sessions = Sessions(self.server.shared.engine.registry());
        for uri in sessions.subscriptions(session).await {
            // Fails if the user may no longer read the resource.
            let added = self.subscriptions.add(&self.server, &self.user, uri.clone()).await;
            if added.is_ok() && !super::resources::is_own(&uri) {
                self.push(Notification::ResourceUpdated(uri));
            }
        }
        self.events.mark_changed();
    }
}

/// The next change at another server; `None` if changes were missed. Pending forever without a gateway.
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

/// Starts the notifications of a client with a session. They end when it disconnects.
pub(super) fn start_session(server: &Server, context: NotificationContext<RoleServer>) {
    if !server.subscriptions.start() {
        return;
    }
    let Ok(user) = server.user(&context.extensions) else { return };
    let changes = ChangeReceivers::new(&server.shared);
    let stream = match NotificationStream::new(server, user, server.subscriptions.clone(), changes) {
        Ok(stream) => stream,
        // `notifications/initialized` has no response that could report it.
        Err(error) => return tracing::warn!(%error, "an MCP session gets no notifications"),
    };
    let session = session_of(&context.extensions).map(str::to_owned);
    tokio::spawn(async move { send_all(stream, session, context.peer).await });
}

async fn send_all(mut stream: NotificationStream, session: Option<String>, peer: Peer<RoleServer>) {
    if let Some(session) = session {
        stream.restore(&session).await;
    }
    let disconnected = async {
        while !peer.is_transport_closed() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let sending = async {
        loop {
            let sent = match stream.next().await {
                Notification::ToolsChanged => peer.notify_tool_list_changed().await,
                Notification::ResourcesChanged => peer.notify_resource_list_changed().await,
                Notification::PromptsChanged => peer.notify_prompt_list_changed().await,
                Notification::ResourceUpdated(uri) => {
                    peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await
                }
                Notification::RunEvent(event) => peer.send_notification(event.into()).await,
                Notification::Closed => return,
            };
            if sent.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = disconnected => {}
        () = sending => {}
    }
}

/// `subscriptions/listen`: sends notifications until the request is cancelled.
pub(super) async fn listen(server: &Server, context: SubscriptionContext) -> Result<(), ErrorData> {
    let user = server.user(&context.request_context().extensions)?;
    let filter = context.accepted().clone();
    let subscriptions = Subscriptions::default();
    let prepared = server.subscriptions.take_prepared();
    let changes = prepared.unwrap_or_else(|| ChangeReceivers::new(&server.shared));
    for uri in filter.resource_subscriptions.clone().unwrap_or_default() {
        // An unknown resource does not prevent the other subscriptions.
        if let Err(error) = subscriptions.add(server, &user, uri).await {
            tracing::debug!(%error, "cannot subscribe to a resource");
        }
    }
    let stream = NotificationStream::new(server, user, subscriptions, changes);
    let mut stream = stream.map_err(|error| super::error::protocol_error(&error))?;
    // Changes before the first event are notified at once.
    stream.events.mark_changed();
    loop {
        let notification = tokio::select! {
            notification = stream.next() => notification,
            () = context.cancelled() => return Ok(()),
        };
        let sink = context.sink();
        let sent = match notification {
            Notification::ToolsChanged if filter.tools_list_changed == Some(true) => {
                sink.notify_tool_list_changed().await
            }
            Notification::ResourcesChanged if filter.resources_list_changed == Some(true) => {
                sink.notify_resource_list_changed().await
            }
            Notification::PromptsChanged if filter.prompts_list_changed == Some(true) => {
                sink.notify_prompt_list_changed().await
            }
            Notification::ResourceUpdated(uri) => sink.notify_resource_updated(uri).await,
            Notification::Closed => return Ok(()),
            // Events of runs are sent only in a session.
            _ => Ok(()),
        };
        if sent.is_err() {
            return Ok(());
        }
    }
}
