//! The builder of an engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc;

use serde_json::Value;
use steprail_core::presence::Presence;
use steprail_store::sqlite::SqliteStore;
use steprail_store::{Storage, StoreError};
use tokio::sync::{Semaphore, watch};

use crate::access::AllowAll;
use crate::approval_codes::ApprovalCodes;
use crate::calls::{Calls, Ports};
use crate::clock::{Clock, FloorClock, SystemClock};
use crate::driver::{Backlog, Driver, Message};
use crate::engine::{Engine, Shared};
use crate::error::Error;
use crate::kernel::{Interrupt, Kernel, Notification, Request, Setup};
use crate::limits::{Limits, OWNER_REQUESTS};
use crate::metrics::Metrics;
use crate::named_start::PlanCache;
use crate::outbox::{self, Courier};
use crate::policy::PolicyHandle;
use crate::ports::{ArtefactStore, Authorizer, Notifier, People, ToolCaller, Tools};
use crate::quotas::OpenSubscriptions;
use crate::read_pool::ReadPool;
use crate::run_signals::RunSignals;
use crate::supervision;
use crate::upkeep::UpkeepTimes;

/// Builds an engine. Only the store is required; without tools, every call fails.
#[derive(Default)]
pub struct Builder {
    storage: Option<Result<Storage, StoreError>>,
    tools: Option<Arc<dyn ToolCaller>>,
    authorizer: Option<Arc<dyn Authorizer>>,
    notifier: Option<Arc<dyn Notifier>>,
    courier: Option<Arc<dyn Courier>>,
    people: Option<Arc<dyn People>>,
    artefacts: Option<Arc<dyn ArtefactStore>>,
    clock: Option<Arc<dyn Clock>>,
    limits: Limits,
    env: BTreeMap<String, String>,
    policy: PolicyHandle,
    recover_as_interrupted: bool,
    presence: Presence,
}

impl Builder {
    /// Sets the store.
    #[must_use]
    pub fn store(mut self, store: SqliteStore) -> Self {
        self.storage = Some(store.into_storage());
        self
    }

    /// Sets a store of another kind, with its readers.
    #[must_use]
    pub fn storage(mut self, storage: Storage) -> Self {
        self.storage = Some(Ok(storage));
        self
    }

    /// Sets the tools.
    #[must_use]
    pub fn tools(mut self, tools: impl ToolCaller + 'static) -> Self {
        self.tools = Some(Arc::new(tools));
        self
    }

    /// Sets the authorizer. The default allows everything to every user.
    #[must_use]
    pub fn authorizer(mut self, authorizer: impl Authorizer + 'static) -> Self {
        self.authorizer = Some(Arc::new(authorizer));
        self
    }

    /// Sets who delivers notifications. Commits then contain the notifications that they cause.
    #[must_use]
    pub fn courier(mut self, courier: impl Courier + 'static) -> Self {
        self.courier = Some(Arc::new(courier));
        self
    }

    /// Sets who knows the approvers and recipients that definitions name. By default every name is accepted.
    #[must_use]
    pub fn people(mut self, people: impl People + 'static) -> Self {
        self.people = Some(Arc::new(people));
        self
    }

    /// Sets the receiver of notices. The default discards them.
    #[must_use]
    pub fn notifier(mut self, notifier: impl Notifier + 'static) -> Self {
        self.notifier = Some(Arc::new(notifier));
        self
    }

    /// Sets the store for files in outputs. By default they stay in the output.
    #[must_use]
    pub fn artefacts(mut self, artefacts: impl ArtefactStore + 'static) -> Self {
        self.artefacts = Some(Arc::new(artefacts));
        self
    }

    /// Sets the clock. The default is [`SystemClock`].
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Lets definitions read an environment variable as `{{env.NAME}}`.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Sets the policy that decides about calls. The handle can replace it later. By default, all calls are allowed.
    #[must_use]
    pub fn policy(mut self, policy: PolicyHandle) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the factor with which users prove that they are present when they decide or change accounts. The embedding
    /// program verifies it and states it in [`steprail_core::run::Provenance::presence`] of the principal. By default none is
    /// required.
    #[must_use]
    pub fn presence(mut self, factor: Presence) -> Self {
        self.presence = factor;
        self
    }

    /// Interrupts every unfinished run instead of resuming it.
    #[must_use]
    pub fn recover_as_interrupted(mut self) -> Self {
        self.recover_as_interrupted = true;
        self
    }

    /// Starts the engine and recovers unfinished runs in the background. Must be called within a tokio runtime.
    pub fn spawn(self) -> Result<Engine, Error> {
        let storage = match self.storage {
            Some(storage) => storage?,
            None => return Err(Error::BadInput("the engine has no store; call `Builder::store`".to_owned())),
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            let message = "there is no tokio runtime; call `Builder::spawn` within one";
            return Err(Error::BadInput(message.to_owned()));
        };
        let tools = self.tools.unwrap_or_else(|| Arc::new(Tools::new()));
        let authorizer = self.authorizer.unwrap_or_else(|| Arc::new(AllowAll));
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
        let clock: Arc<dyn Clock> = Arc::new(FloorClock::new(clock, storage.opened.last_time));
        let env = Value::Object(self.env.into_iter().map(|(name, value)| (name, value.into())).collect());
        self.policy.load(storage.readers.policy_state()?);
        let mut kernel = Kernel::new(Setup {
            store: storage.writer,
            tools: tools.clone(),
            limits: self.limits.clone(),
            env: Arc::new(env),
            random: fastrand::Rng::new(),
            policy: self.policy.clone(),
            authorizer: authorizer.clone(),
            outbox: self.courier.is_some(),
        })?;
        kernel.require_presence(self.presence);
        kernel.enforce_quotas(self.limits.quotas.clone(), storage.readers.clone());
        let (sender, messages) = mpsc::channel();
        let (urgent_sender, urgent) = mpsc::channel();
        wake_on_change(&*clock, sender.clone());
        notify_when_available(&*tools, sender.clone());
        notify_of_outages(&*tools, sender.clone());
        let (outbox, outbox_watch) = watch::channel(());
        let (last_event, last_event_watch) = watch::channel(storage.readers.last_event()?);
        let (fault, fault_watch) = watch::channel(None);
        let run_signals = Arc::new(RunSignals::default());
        let (failure, failure_watch) = watch::channel(None);
        let (halt, halt_watch) = watch::channel(None);
        let (damaged, damaged_watch) = watch::channel(BTreeMap::new());
        let (recovered, is_recovered) = watch::channel(false);
        let read_pool = ReadPool::spawn(&storage.readers, is_recovered).map_err(|error| no_thread(&error))?;
        let metrics = Arc::new(Metrics::new());
        let ports = Ports { tools: tools.clone(), authorizer: authorizer.clone(), artefacts: self.artefacts };
        let interrupt = if self.recover_as_interrupted { Interrupt::All } else { Interrupt::Declared };
        let restored = storage.opened.restored.map(Interrupt::Restored);
        let passes = restored.map(Some).into_iter().chain([Some(interrupt), None]);
        let driver = Driver {
            kernel,
            messages,
            urgent,
            calls: Calls::new(ports, runtime.clone(), sender.clone(), metrics.clone()),
            metrics,
            clock: clock.clone(),
            notifier: self.notifier,
            outbox,
            runtime,
            last_event,
            run_signals: run_signals.clone(),
            fault,
            damaged,
            recovered,
            recovery: passes.map(|interrupt| (interrupt, None)).collect(),
            upkeep: UpkeepTimes::new(),
            backlog: Backlog::default(),
            held: Vec::new(),
            halted: None,
            halt,
            shutdown_timeout: self.limits.shutdown,
        };
        supervision::spawn(driver, failure).map_err(|error| no_thread(&error))?;
        let shared = Arc::new(Shared {
            messages: sender,
            urgent: urgent_sender,
            read_pool,
            last_event: last_event_watch,
            run_signals,
            fault: fault_watch,
            failure: failure_watch,
            halt: halt_watch,
            damaged: damaged_watch,
            clock,
            tools,
            policy: self.policy,
            authorizer,
            courier: self.courier,
            delivering: tokio::sync::Mutex::default(),
            busy_channels: std::sync::Mutex::default(),
            request_slots: Semaphore::new(self.limits.requests.clamp(1, Semaphore::MAX_PERMITS)),
            owner_slots: Semaphore::new(OWNER_REQUESTS),
            plans: PlanCache::default(),
            definition_changes: watch::Sender::new(0),
            quotas: self.limits.quotas,
            subscriptions: OpenSubscriptions::default(),
            scheduling: tokio::sync::Mutex::default(),
            presence: self.presence,
            people: self.people,
            codes: ApprovalCodes::default(),
            publishing: tokio::sync::Mutex::default(),
        });
        outbox::spawn(&shared, outbox_watch);
        Ok(Engine(shared))
    }
}

// The senders below fail only if the engine has stopped.

fn wake_on_change(clock: &dyn Clock, messages: mpsc::Sender<Message>) {
    clock.on_change(Box::new(move || drop(messages.send(Message::Wake))));
}

fn notify_when_available(tools: &dyn ToolCaller, messages: mpsc::Sender<Message>) {
    tools.on_available(Box::new(move |server| {
        let notification = Notification::ServerAvailable { server: server.into() };
        let _ = messages.send(Message::Request(Request::Notification(notification)));
    }));
}

fn notify_of_outages(tools: &dyn ToolCaller, messages: mpsc::Sender<Message>) {
    tools.on_outage(Box::new(move |outage| {
        let notification = Notification::ServerUnavailable(Box::new(outage));
        let _ = messages.send(Message::Request(Request::Notification(notification)));
    }));
}

fn no_thread(error: &std::io::Error) -> Error {
    Error::BadInput(format!("cannot start the threads of the engine: {error}"))
}
