//! What a server says on its own while it is called: progress, questions, other tools.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::{
    ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction, ErrorData,
    Implementation, ProgressNotificationParam, ProgressToken,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::{ClientHandler, RoleClient};
use tokio::sync::{mpsc, oneshot};

use crate::limits::HEARD;

/// Our end of a connection. A clone is the same one.
#[derive(Clone)]
pub(super) struct Listener(Arc<Inner>);

struct Inner {
    config: ClientConfig,
    calls: Mutex<HashMap<ProgressToken, mpsc::Sender<Heard>>>,
    /// Whether the server has said that its tools are others now.
    stale: AtomicBool,
}

/// What a call hears of its server before it ends.
pub(super) enum Heard {
    Progress(ProgressNotificationParam),
    /// A question, and where the answer goes.
    Question(Box<ElicitRequestParams>, oneshot::Sender<ElicitResult>),
}

impl Listener {
    /// `asks`: whether the server may ask questions.
    pub(super) fn new(asks: bool) -> Self {
        let ourselves = Implementation::new("steprail", env!("CARGO_PKG_VERSION"));
        let capabilities = ClientCapabilities::builder().enable_tasks();
        let capabilities =
            if asks { capabilities.enable_elicitation().build() } else { capabilities.build() };
        let config = ClientConfig::new(capabilities, ourselves);
        Self(Arc::new(Inner { config, calls: Mutex::default(), stale: AtomicBool::new(false) }))
    }

    /// Listens for a call until what is given back is dropped.
    pub(super) fn listen(&self, token: ProgressToken) -> Hearing {
        let (sender, heard) = mpsc::channel(HEARD);
        self.calls().insert(token.clone(), sender);
        Hearing { listener: self.clone(), token, heard }
    }

    /// Whether the tools may be others than when they were last listed. Asking settles it.
    pub(super) fn take_stale(&self) -> bool {
        self.0.stale.swap(false, Ordering::Relaxed)
    }

    pub(super) fn mark_stale(&self) {
        self.0.stale.store(true, Ordering::Relaxed);
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, HashMap<ProgressToken, mpsc::Sender<Heard>>> {
        self.0.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The only call in flight: a question of an older revision does not say which call it belongs to.
    fn only_call(&self) -> Option<mpsc::Sender<Heard>> {
        let calls = self.calls();
        let mut senders = calls.values();
        senders.next().filter(|_| calls.len() == 1).cloned()
    }
}

impl ClientHandler for Listener {
    fn get_info(&self) -> ClientConfig {
        self.0.config.clone()
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let sender = self.calls().get(&params.progress_token).cloned();
        if let Some(sender) = sender {
            // The call may have ended meanwhile, or have more to hear than it can.
            let _ = sender.try_send(Heard::Progress(params));
        }
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.mark_stale();
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
        let (sender, answer) = oneshot::channel();
        let question = Heard::Question(Box::new(request), sender);
        let Some(()) = self.only_call().and_then(|call| call.try_send(question).ok()) else {
            return Err(ErrorData::invalid_request("no call, or more than one, could have asked this", None));
        };
        let declined = ElicitResult::new(ElicitationAction::Decline);
        Ok(answer.await.unwrap_or(declined))
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
