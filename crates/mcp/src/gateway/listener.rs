//! What a server says on its own: progress, questions and logs of calls, and changes of its lists and resources.

#![expect(deprecated, reason = "sampling, roots and logging are passed on as long as servers use them")]

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
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::changes::{Change, Changes};
use crate::config::Entry;
use crate::limits::{BACKOFF_MS, HEARD, STEADY_SECS};
use crate::relay::{FromServer, Reply};

/// Our end of a connection. A clone is the same one.
#[derive(Clone)]
pub(super) struct Listener(Arc<Inner>);

struct Inner {
    server: String,
    config: ClientConfig,
    calls: Mutex<HashMap<ProgressToken, Caller>>,
    /// Progress of calls that nobody listens for yet: it may arrive before the request is known to be sent.
    early: Mutex<VecDeque<ProgressNotificationParam>>,
    changes: Changes,
    /// Whether the server has said that its tools are others now.
    stale: AtomicBool,
}

/// Who hears what a server says during a call.
#[derive(Clone)]
struct Caller {
    heard: mpsc::Sender<Heard>,
    /// The client that waits for the result, if the call is relayed.
    client: Option<mpsc::Sender<FromServer>>,
}

impl Caller {
    fn progress(&self, progress: ProgressNotificationParam) {
        // The call may have ended meanwhile, or have more to hear than it can.
        if let Some(client) = &self.client {
            let _ = client.try_send(FromServer::Progress(progress.clone()));
        }
        let _ = self.heard.try_send(Heard::Progress(progress));
    }
}

/// What a call hears of its server before it ends.
pub(super) enum Heard {
    Progress(ProgressNotificationParam),
    /// What the tool asks its client for, and where the response goes.
    InputRequest(Box<InputRequest>, oneshot::Sender<Value>),
}

impl Listener {
    pub(super) fn new(server: &str, entry: &Entry, changes: Changes) -> Self {
        let ourselves = Implementation::new("steprail", env!("CARGO_PKG_VERSION"));
        let mut capabilities = ClientCapabilities::builder().enable_tasks().build();
        capabilities.elicitation = entry.elicitation.then(Default::default);
        capabilities.sampling = entry.sampling.then(Default::default);
        let config = ClientConfig::new(capabilities, ourselves);
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

    /// The capabilities that we declare to the server.
    pub(super) fn capabilities(&self) -> &ClientCapabilities {
        &self.0.config.capabilities
    }

    /// Listens for a call until what is given back is dropped.
    pub(super) fn listen(&self, token: ProgressToken, client: Option<mpsc::Sender<FromServer>>) -> Hearing {
        let (sender, heard) = mpsc::channel(HEARD);
        let caller = Caller { heard: sender, client };
        let mut calls = self.calls();
        let mut early = self.0.early.lock().unwrap_or_else(PoisonError::into_inner);
        early.retain(|progress| {
            let is_other = progress.progress_token != token;
            if !is_other {
                caller.progress(progress.clone());
            }
            is_other
        });
        calls.insert(token.clone(), caller);
        drop((early, calls));
        Hearing { listener: self.clone(), token, heard }
    }

    /// Takes a progress notification as it is read: the SDK's handlers run side by side and would mix up their order.
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
        if let Some(caller) = calls.get(&params.progress_token) {
            return caller.progress(params);
        }
        let mut early = self.0.early.lock().unwrap_or_else(PoisonError::into_inner);
        if early.len() == HEARD {
            early.pop_front();
        }
        early.push_back(params);
    }

    /// Whether the tools may be others than when they were last listed. Asking settles it.
    pub(super) fn take_stale(&self) -> bool {
        self.0.stale.swap(false, Ordering::Relaxed)
    }

    pub(super) fn mark_stale(&self) {
        self.0.stale.store(true, Ordering::Relaxed);
    }

    /// Asks a server of 2026-07-28 to say when its lists change, as far as it does.
    pub(super) fn follow_lists(&self, peer: &Peer<RoleClient>) {
        let Some(info) = peer.peer_info() else { return };
        let tools = info.capabilities.tools.as_ref().and_then(|tools| tools.list_changed);
        let resources = info.capabilities.resources.as_ref().and_then(|resources| resources.list_changed);
        let prompts = info.capabilities.prompts.as_ref().and_then(|prompts| prompts.list_changed);
        let mut filter = SubscriptionFilter::new();
        filter.tools_list_changed = tools.filter(|says| *says);
        filter.resources_list_changed = resources.filter(|says| *says);
        filter.prompts_list_changed = prompts.filter(|says| *says);
        let is_modern = info.protocol_version.as_str() >= ProtocolVersion::V_2026_07_28.as_str();
        if is_modern && filter != SubscriptionFilter::new() {
            tokio::spawn(self.clone().keep_following(peer.clone(), filter));
        }
    }

    /// Subscribes to lists again when a subscription ended, less and less often. What changed meanwhile is not known.
    async fn keep_following(self, peer: Peer<RoleClient>, filter: SubscriptionFilter) {
        let mut delay = Duration::from_millis(BACKOFF_MS.0);
        while !peer.is_transport_closed() {
            let began = Instant::now();
            if self.subscribe(&peer, filter.clone()).await.is_err() {
                return;
            }
            if began.elapsed() >= Duration::from_secs(STEADY_SECS) {
                delay = Duration::from_millis(BACKOFF_MS.0);
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(Duration::from_millis(BACKOFF_MS.1));
            self.tools_changed();
            self.0.changes.tell(Change::Resources);
            self.0.changes.tell(Change::Prompts);
        }
    }

    /// Takes in what a server of 2026-07-28 says under a subscription, until the subscription ends. The error says why
    /// there is none.
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
                    self.0.changes.tell(Change::Resources);
                }
                ServerNotification::PromptListChangedNotification(_) => self.0.changes.tell(Change::Prompts),
                ServerNotification::ResourceUpdatedNotification(updated) => self.updated(updated.params.uri),
                _ => {}
            }
        }
        Ok(())
    }

    fn tools_changed(&self) {
        self.mark_stale();
        self.0.changes.tell(Change::Tools);
    }

    fn updated(&self, uri: String) {
        self.0.changes.tell(Change::Resource { server: self.0.server.clone(), uri });
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, HashMap<ProgressToken, Caller>> {
        self.0.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The only call in flight: a question of an older revision does not say which call it belongs to.
    fn only_call(&self) -> Option<Caller> {
        let calls = self.calls();
        let mut callers = calls.values();
        callers.next().filter(|_| calls.len() == 1).cloned()
    }

    /// Puts a request of the server to whoever answers for the only call: its step waits for them.
    async fn hold<T: DeserializeOwned>(&self, request: InputRequest) -> Result<T, ErrorData> {
        let (sender, answer) = oneshot::channel();
        let question = Heard::InputRequest(Box::new(request), sender);
        let Some(()) = self.only_call().and_then(|call| call.heard.try_send(question).ok()) else {
            return Err(ErrorData::invalid_request("no call, or more than one, could have asked this", None));
        };
        let unanswered = |_| ErrorData::invalid_request("nobody answered", None);
        let answer = answer.await.map_err(unanswered)?;
        T::deserialize(answer).map_err(|error| ErrorData::invalid_request(error.to_string(), None))
    }

    /// Passes a request of the server on to the client of the only call, if there is one that waits.
    async fn relay<T>(&self, request: impl FnOnce(Reply<T>) -> FromServer) -> Option<Result<T, ErrorData>> {
        let client = self.only_call()?.client?;
        let (reply, answer) = oneshot::channel();
        client.try_send(request(reply)).ok()?;
        answer.await.ok()
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
        self.0.changes.tell(Change::Resources);
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.0.changes.tell(Change::Prompts);
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.updated(params.uri);
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        if let Some(client) = self.only_call().and_then(|call| call.client) {
            let _ = client.try_send(FromServer::Log(params));
        }
    }

    async fn create_message(
        &self,
        request: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        if self.0.config.capabilities.sampling.is_none() {
            return Err(ErrorData::invalid_request("`sampling` is off for this server", None));
        }
        let copy = request.clone();
        if let Some(sampled) = self.relay(|reply| FromServer::Sample(Box::new(copy), reply)).await {
            return sampled;
        }
        self.hold(InputRequest::CreateMessage(CreateMessageRequest::new(request))).await
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        self.relay(FromServer::Roots).await.unwrap_or_else(|| Ok(ListRootsResult::default()))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        if self.0.config.capabilities.elicitation.is_none() {
            return Err(ErrorData::invalid_request(
                "nobody is asked: `elicitation` is off for this server",
                None,
            ));
        }
        let copy = request.clone();
        if let Some(answer) = self.relay(|reply| FromServer::Elicit(Box::new(copy), reply)).await {
            return answer;
        }
        self.hold(InputRequest::Elicitation(ElicitRequest::new(request))).await
    }
}

/// What is heard for one call.
pub(super) struct Hearing {
    listener: Listener,
    token: ProgressToken,
    heard: mpsc::Receiver<Heard>,
}

impl Hearing {
    pub(super) async fn next(&mut self) -> Heard {
        match self.heard.recv().await {
            Some(heard) => heard,
            // The listener keeps the other end for as long as this lives.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        self.listener.calls().remove(&self.token);
    }
}
