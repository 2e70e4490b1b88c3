//! The handle to an engine: requests, rights and lifecycle. Its other methods are in `definitions.rs`, `runs.rs`,
//! `decisions.rs` and `queries.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};

use steprail_core::presence::Presence;
use steprail_core::run::Millis;
use steprail_store::{Cursor, Principal, Reads, Right, RunId, StoreError};
use tokio::sync::{Semaphore, watch};

use crate::approval_codes::ApprovalCodes;
use crate::builder::Builder;
use crate::calls;
use crate::clock::Clock;
use crate::driver::Message;
use crate::error::Error;
use crate::kernel::{Command, Reply, Request};
use crate::named_start::PlanCache;
use crate::outbox::Courier;
use crate::policy::PolicyHandle;
use crate::ports::{Authorizer, People, ToolCaller};
use crate::quotas::{OpenSubscriptions, Quotas};
use crate::read_pool::ReadPool;
use crate::registry::Registry;
use crate::run_signals::RunSignals;
use crate::supervision::Failure;

/// A handle to an engine. Clones share the engine, which stops when the last of them is dropped.
///
/// The methods check no rights except where their documentation says so. [`Engine::as_user`] returns a handle that does.
#[derive(Clone)]
pub struct Engine(pub(crate) Arc<Shared>);

/// The state that all handles share.
pub(crate) struct Shared {
    pub(crate) messages: Sender<Message>,
    /// Messages that overtake those of `messages`.
    pub(crate) urgent: Sender<Message>,
    pub(crate) read_pool: ReadPool,
    /// Cursor of the last committed event.
    pub(crate) last_event: watch::Receiver<Cursor>,
    pub(crate) run_signals: Arc<RunSignals>,
    pub(crate) fault: watch::Receiver<Option<StoreError>>,
    pub(crate) failure: watch::Receiver<Option<Failure>>,
    /// The fault of the store after which the engine writes nothing more.
    pub(crate) halt: watch::Receiver<Option<StoreError>>,
    /// Runs that do not continue, each with the reason.
    pub(crate) people: Option<Arc<dyn People>>,
    pub(crate) damaged: watch::Receiver<BTreeMap<RunId, StoreError>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tools: Arc<dyn ToolCaller>,
    pub(crate) policy: PolicyHandle,
    pub(crate) authorizer: Arc<dyn Authorizer>,
    /// Delivers notifications.
    pub(crate) courier: Option<Arc<dyn Courier>>,
    /// Serialises plans, so that nothing is sent twice at a time.
    pub(crate) delivering: tokio::sync::Mutex<()>,
    /// Channels that are sending. Others do not wait for them.
    pub(crate) busy_channels: std::sync::Mutex<BTreeSet<String>>,
    /// Bounds the requests in the queue of the engine.
    pub(crate) request_slots: Semaphore,
    /// Bounds the commands of the owner in the queue, so that other users cannot fill it.
    pub(crate) owner_slots: Semaphore,
    pub(crate) quotas: Quotas,
    pub(crate) subscriptions: OpenSubscriptions,
    /// Serialises the creation of schedules, so that a counted quota still holds.
    pub(crate) scheduling: tokio::sync::Mutex<()>,
    /// Serialises the publication of workflows, so that a name that was free is still free when it is stored.
    pub(crate) publishing: tokio::sync::Mutex<()>,
    /// Definitions that callers have compiled for named starts.
    pub(crate) plans: PlanCache,
    /// The factor that every decision and account change requires.
    pub(crate) presence: Presence,
    /// Single-use codes that clients redeem for decisions.
    pub(crate) codes: ApprovalCodes,
    /// The number of changes to definitions.
    pub(crate) definition_changes: watch::Sender<u64>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = self.messages.send(Message::Stop(Reply::channel().0));
    }
}

/// An engine that a part of it refers to. It does not keep the engine running.
#[derive(Clone)]
pub struct WeakEngine(Weak<Shared>);

impl WeakEngine {
    /// The engine, unless it has stopped.
    pub fn upgrade(&self) -> Option<Engine> {
        self.0.upgrade().map(Engine)
    }
}

impl Engine {
    /// Returns a builder for an engine.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A reference that does not keep the engine running.
    pub fn downgrade(&self) -> WeakEngine {
        WeakEngine(Arc::downgrade(&self.0))
    }

    /// Sends a request to the kernel and waits for its reply.
    pub(crate) async fn send<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, Error> {
        let (reply, result) = Reply::channel();
        let request = request(reply);
        let is_wait = matches!(request, Request::Wait(..));
        let is_owners = self.0.quotas.owner.as_ref().is_some_and(|owner| request.is_control_by(owner));
        let slots = if is_owners { &self.0.owner_slots } else { &self.0.request_slots };
        let slot = slots.acquire().await.map_err(|_| Error::Stopped)?;
        let message = Message::Request(request);
        if is_owners {
            self.send_urgent(message)?;
        } else {
            self.0.messages.send(message).map_err(|_| self.stopped())?;
        }
        // A wait can last as long as its run and must not block other requests.
        let _slot = (!is_wait).then_some(slot);
        match result.await {
            Ok(result) => result,
            Err(_) => Err(self.dropped().await),
        }
    }

    /// Sends a message that overtakes others.
    pub(crate) fn send_urgent(&self, message: Message) -> Result<(), Error> {
        self.0.urgent.send(message).map_err(|_| self.stopped())?;
        // The thread blocks on the other channel.
        self.0.messages.send(Message::Wake).map_err(|_| self.stopped())
    }

    pub(crate) async fn command(&self, command: Command) -> Result<(), Error> {
        self.send(|reply| Request::Command(Box::new(command), reply)).await
    }

    /// Runs a query on a thread of the read pool.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&dyn Reads) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Error> {
        self.0.read_pool.read(query).await
    }

    /// Returns an error unless a user has a right.
    pub(crate) fn authorize(&self, principal: &Principal, right: Right) -> Result<(), Error> {
        if principal.agent && right == Right::Approve {
            return Err(Error::Denied("an agent cannot decide at a gate; ask a human".to_owned()));
        }
        if principal.scope.as_ref().is_some_and(|scope| !scope.has(right)) {
            return Err(Error::Denied(format!(
                "the token of {} may not {}: its scope lacks the right `{right}`",
                principal.id,
                right.purpose()
            )));
        }
        if principal.token.as_ref().is_some_and(|token| self.0.authorizer.token_expiry(token).is_none()) {
            return Err(Error::Denied(format!("the token of {} was revoked", principal.id)));
        }
        self.0.authorizer.may(principal, right).map_err(Error::Denied)
    }

    /// Whether the scope and the current rights of a user allow calls of a tool.
    pub(crate) async fn may_call(&self, principal: &Principal, tool: &str) -> bool {
        calls::check_scope(principal, tool).is_ok()
            && self.0.authorizer.may_call(principal, tool).await.is_ok()
    }

    /// Returns the handle to accounts and MCP sessions.
    pub fn registry(&self) -> Registry {
        Registry::new(self.clone())
    }

    /// Waits until recovery has finished.
    pub async fn ready(&self) -> Result<(), Error> {
        self.command(Command::Sync).await
    }

    /// The time of the engine's clock, in milliseconds since 1970.
    pub fn now(&self) -> Millis {
        self.0.clock.now()
    }

    /// The present fault of the store.
    pub fn fault(&self) -> Option<StoreError> {
        self.0.fault.borrow().clone()
    }

    /// Watches [`Engine::fault`].
    pub fn faults(&self) -> watch::Receiver<Option<StoreError>> {
        self.0.fault.clone()
    }

    /// The number of runs that do not continue: their stored state is damaged, or their decision panicked.
    /// [`crate::RunView::damage`] has the reason.
    pub fn damaged_runs(&self) -> usize {
        self.0.damaged.borrow().len()
    }

    /// Stops the engine: starts no more calls and waits for those in flight, up to [`crate::Limits::shutdown`].
    /// Returns the number of calls that were abandoned.
    pub async fn shutdown(&self) -> Result<usize, Error> {
        let (reply, abandoned) = Reply::channel();
        self.0.messages.send(Message::Stop(reply)).map_err(|_| self.stopped())?;
        match abandoned.await {
            Ok(abandoned) => abandoned,
            Err(_) => Err(self.dropped().await),
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Engine")
    }
}
