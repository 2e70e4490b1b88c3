//! Handles messages that a server initiates: progress, input requests, logs, and changes of lists and resources.

#![expect(deprecated, reason = "sampling, roots and logging are supported as long as servers use them")]

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rmcp::model::{
    ClientCapabilities, ClientConfig, CreateMessageRequest, CreateMessageRequestParams, CreateMessageResult,
    ElicitRequest, ElicitRequestParams, ElicitResult, ErrorData, Implementation, InputRequest,
    ListRootsResult, LoggingMessageNotificationParam, ProgressNotificationParam, ProgressToken,
    ProtocolVersion, ResourceUpdatedNotificationParam, ServerNotification, SubscriptionFilter,
};
use rmcp::service::{NotificationContext, Peer, RequestContext};
use rmcp::{ClientHandler, RoleClient, ServiceError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::changes::{Change, Changes};
use crate::config::ServerEntry;
use crate::limits::{BACKOFF_MS, CALL_MESSAGES, STABLE_SECS};
use crate::redact;
use crate::relay::{RelayMessage, Reply};

/// The client handler of one connection. Clones share the state.
#[derive(Clone)]
pub(super) struct Listener(Arc<Inner>);

struct Inner {
    server: String,
    config: ClientConfig,
    calls: Mutex<HashMap<ProgressToken, CallChannels>>,
    /// Progress of calls that are not registered yet: it may arrive before the request is known to be sent.
    early: Mutex<VecDeque<ProgressNotificationParam>>,
    changes: Changes,
    /// Whether the tools may have changed since they were listed.
    stale: AtomicBool,
}

/// The receivers of messages about one call.
#[derive(Clone)]
struct CallChannels {
    messages: mpsc::Sender<ServerMessage>,
    /// The client that waits for the result of a relayed call.
    client: Option<mpsc::Sender<RelayMessage>>,
}

impl CallChannels {
    fn progress(&self, progress: ProgressNotificationParam) {
        // Progress is dropped if the call has ended or its queue is full.
        if let Some(client) = &self.client
            && let Some(progress) = redact::message(progress.clone())
        {
            let _ = client.try_send(RelayMessage::Progress(progress));
        }
        let _ = self.messages.try_send(ServerMessage::Progress(progress));
    }
}

/// A message of a server about a call in flight.
pub(super) enum ServerMessage {
    Progress(ProgressNotificationParam),
    /// An input request, and the sender of the response.
    InputRequest(Box<InputRequest>, oneshot::Sender<Value>),
}

impl Listener {
    pub(super) fn new(server: &str, entry: &ServerEntry, changes: Changes) -> Self {
        let client = Implementation::new("steprail", env!("CARGO_PKG_VERSION"));
        let mut capabilities = ClientCapabilities::builder().enable_tasks().build();
        capabilities.elicitation = entry.elicitation.then(Default::default);
        capabilities.sampling = entry.sampling.then(Default::default);
        let config = ClientConfig::new(capabilities, client);
        let stale = AtomicBool::new(false);
        Self(Arc::new(Inner {
            server: server.to_owned(),
            config,
            calls: Mutex::default(),
            early: Mutex::default(),
            changes,
            stale,
        }))
    }

    /// The capabilities that the gateway declares to the server.
    pub(super) fn capabilities(&self) -> &ClientCapabilities {
        &self.0.config.capabilities
    }

    /// Registers a call until the returned receiver is dropped.
    pub(super) fn register(
        &self,
        token: ProgressToken,
        client: Option<mpsc::Sender<RelayMessage>>,
    ) -> ServerMessages {
        let (sender, messages) = mpsc::channel(CALL_MESSAGES);
        let channels = CallChannels { messages: sender, client };
        let mut calls = self.calls();
        let mut early = self.0.early.lock().unwrap_or_else(PoisonError::into_inner);
        early.retain(|progress| {
            let is_other = progress.progress_token != token;
            if !is_other {
                channels.progress(progress.clone());
            }
            is_other
        });
        calls.insert(token.clone(), channels);
        drop((early, calls));
        ServerMessages { listener: self.clone(), token, messages }
    }

    /// Handles a message if it is a progress notification, and returns whether it is one. Called by the transports because
    /// handlers of the SDK run concurrently and would reorder notifications.
    pub(super) fn take_progress(&self, message: &Value) -> bool {
        let is_progress = message.get("method").is_some_and(|method| method == "notifications/progress");
        if let Some(Ok(params)) =
            is_progress.then(|| ProgressNotificationParam::deserialize(&message["params"]))
        {
            self.progressed(params);
        }
        is_progress
    }

    fn progressed(&self, params: ProgressNotificationParam) {
        let calls = self.calls();
        if let Some(channels) = calls.get(&params.progress_token) {
            return channels.progress(params);
        }
        let mut early = self.0.early.lock().unwrap_or_else(PoisonError::into_inner);
        if early.len() == CALL_MESSAGES {
            early.pop_front();
        }
        early.push_back(params);
    }

    /// Whether the tools may have changed since they were listed. Resets the mark.
    pub(super) fn take_stale(&self) -> bool {
        self.0.stale.swap(false, Ordering::Relaxed)
    }

    pub(super) fn mark_stale(&self) {
        self.0.stale.store(true, Ordering::Relaxed);
    }

    /// Subscribes to list changes of a 2026-07-28 server, as far as it supports them.
    pub(super) fn follow_lists(&self, peer: &Peer<RoleClient>) {
        let Some(info) = peer.peer_info() else { return };
        let tools = info.capabilities.tools.as_ref().and_then(|tools| tools.list_changed);
        let resources = info.capabilities.resources.as_ref().and_then(|resources| resources.list_changed);
        let prompts = info.capabilities.prompts.as_ref().and_then(|prompts| prompts.list_changed);
        let mut filter = SubscriptionFilter::new();
        filter.tools_list_changed = tools.filter(|supported| *supported);
        filter.resources_list_changed = resources.filter(|supported| *supported);
        filter.prompts_list_changed = prompts.filter(|supported| *supported);
        let is_modern = info.protocol_version.as_str() >= ProtocolVersion::V_2026_07_28.as_str();
        if is_modern && filter != SubscriptionFilter::new() {
            tokio::spawn(self.clone().keep_following(peer.clone(), filter));
        }
    }

    /// Renews a subscription that ended, with backoff. All lists count as changed then.
    async fn keep_following(self, peer: Peer<RoleClient>, filter: SubscriptionFilter) {
        let mut delay = Duration::from_millis(BACKOFF_MS.0);
        while !peer.is_transport_closed() {
            let started = Instant::now();
            if self.subscribe(&peer, filter.clone()).await.is_err() {
                return;
            }
            if started.elapsed() >= Duration::from_secs(STABLE_SECS) {
                delay = Duration::from_millis(BACKOFF_MS.0);
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(Duration::from_millis(BACKOFF_MS.1));
            self.tools_changed();
            self.0.changes.publish(Change::Resources);
            self.0.changes.publish(Change::Prompts);
        }
    }

    /// Handles the notifications of a subscription at a 2026-07-28 server until it ends. Fails if the server rejects it.
    pub(super) async fn subscribe(
        &self,
        peer: &Peer<RoleClient>,
        filter: SubscriptionFilter,
    ) -> Result<(), ServiceError> {
        let mut subscription = peer.listen(filter).await?;
        while let Ok(Some(notification)) = subscription.next().await {
            match notification {
                ServerNotification::ToolListChangedNotification(_) => self.tools_changed(),
                ServerNotification::ResourceListChangedNotification(_) => {
                    self.0.changes.publish(Change::Resources);
                }
                ServerNotification::PromptListChangedNotification(_) => {
                    self.0.changes.publish(Change::Prompts);
                }
                ServerNotification::ResourceUpdatedNotification(updated) => {
                    self.resource_updated(updated.params.uri);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn tools_changed(&self) {
        self.mark_stale();
        self.0.changes.publish(Change::Tools);
    }

    fn resource_updated(&self, uri: String) {
        self.0.changes.publish(Change::Resource { server: self.0.server.clone(), uri });
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, HashMap<ProgressToken, CallChannels>> {
        self.0.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The only call in flight; `None` if there are several. Requests of older revisions do not name their call.
    fn only_call(&self) -> Option<CallChannels> {
        let calls = self.calls();
        let mut all = calls.values();
        all.next().filter(|_| calls.len() == 1).cloned()
    }

    /// Passes an input request to the only call in flight, whose step waits for the answer.
    async fn hold<T: DeserializeOwned>(&self, request: InputRequest) -> Result<T, ErrorData> {
        let (sender, response) = oneshot::channel();
        let message = ServerMessage::InputRequest(Box::new(request), sender);
        let Some(()) = self.only_call().and_then(|call| call.messages.try_send(message).ok()) else {
            let message = "the request cannot be assigned to a call: not exactly one call is in flight";
            return Err(ErrorData::invalid_request(message, None));
        };
        let unanswered = |_| ErrorData::invalid_request("the request was not answered", None);
        let response = response.await.map_err(unanswered)?;
        T::deserialize(response).map_err(|error| ErrorData::invalid_request(error.to_string(), None))
    }

    /// Passes a request to the client of the only call in flight. `None` if the call is not relayed or the client has left.
    async fn relay<T>(&self, request: impl FnOnce(Reply<T>) -> RelayMessage) -> Option<Result<T, ErrorData>> {
        let client = self.only_call()?.client?;
        let (reply, response) = oneshot::channel();
        client.try_send(request(reply)).ok()?;
        response.await.ok()
    }
}

impl ClientHandler for Listener {
    fn get_info(&self) -> ClientConfig {
        self.0.config.clone()
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.tools_changed();
    }

    async fn on_resource_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.0.changes.publish(Change::Resources);
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.0.changes.publish(Change::Prompts);
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.resource_updated(params.uri);
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        if let Some(client) = self.only_call().and_then(|call| call.client)
            && let Some(params) = redact::message(params)
        {
            let _ = client.try_send(RelayMessage::Log(params));
        }
    }

    async fn create_message(
        &self,
        request: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        if self.0.config.capabilities.sampling.is_none() {
            return Err(ErrorData::invalid_request("`sampling` is disabled for this server", None));
        }
        let copy = without_secrets(request.clone())?;
        if let Some(sampled) = self.relay(|reply| RelayMessage::Sample(Box::new(copy), reply)).await {
            return sampled;
        }
        self.hold(InputRequest::CreateMessage(CreateMessageRequest::new(request))).await
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        self.relay(RelayMessage::Roots).await.unwrap_or_else(|| Ok(ListRootsResult::default()))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        if self.0.config.capabilities.elicitation.is_none() {
            return Err(ErrorData::invalid_request("`elicitation` is disabled for this server", None));
        }
        let copy = without_secrets(request.clone())?;
        if let Some(elicited) = self.relay(|reply| RelayMessage::Elicit(Box::new(copy), reply)).await {
            return elicited;
        }
        self.hold(InputRequest::Elicitation(ElicitRequest::new(request))).await
    }
}

/// A request as it is passed to a client.
fn without_secrets<T: Serialize + DeserializeOwned>(request: T) -> Result<T, ErrorData> {
    let message = "the request contains a secret where it cannot be removed";
    redact::message(request).ok_or_else(|| ErrorData::invalid_request(message, None))
}

/// Receives the messages of the server about one call.
pub(super) struct ServerMessages {
    listener: Listener,
    token: ProgressToken,
    messages: mpsc::Receiver<ServerMessage>,
}

impl ServerMessages {
    pub(super) async fn next(&mut self) -> ServerMessage {
        match self.messages.recv().await {
            Some(message) => message,
            // The listener has a sender until this receiver is dropped.
            None => std::future::pending().await,
        }
    }
}

impl Drop for ServerMessages {
    fn drop(&mut self) {
        self.listener.calls().remove(&self.token);
    }
}
