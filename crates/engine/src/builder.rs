//! The builder of an engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc;

use serde_json::Value;
use steprail_store::sqlite::SqliteStore;
use steprail_store::{RunKey, Storage, StoreError};
use tokio::sync::watch;

use crate::access::AllowAll;
use crate::calls::{Calls, Ports};
use crate::clock::{Clock, FloorClock, SystemClock};
use crate::driver::{Backlog, Driver, Message};
use crate::engine::Engine;
use crate::error::Error;
use crate::kernel::{Interrupt, Kernel, Notification, Request, Setup};
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::ports::{ArtefactStore, Authorizer, Notifier, ToolCaller, Tools};
use crate::read_pool::ReadPool;
use crate::upkeep::UpkeepTimes;

/// Builds an engine. Only the store is required; without tools, every call fails.
#[derive(Default)]
pub struct Builder {
    storage: Option<Result<Storage, StoreError>>,
    tools: Option<Arc<dyn ToolCaller>>,
    authorizer: Option<Arc<dyn Authorizer>>,
    notifier: Option<Arc<dyn Notifier>>,
    artefacts: Option<Arc<dyn ArtefactStore>>,
    clock: Option<Arc<dyn Clock>>,
    limits: Limits,
    env: BTreeMap<String, String>,
    recover_as_interrupted: bool,
}

impl Builder {
    /// Sets the store.
    #[must_use]
    pub fn store(mut self, store: SqliteStore) -> Self {
        self.storage = Some(store.into_storage());
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
        let kernel = Kernel::new(Setup {
            store: storage.writer,
            tools: tools.clone(),
            limits: self.limits.clone(),
            env: Arc::new(env),
            random: fastrand::Rng::new(),
        })?;
        let (sender, messages) = mpsc::channel();
        wake_on_change(&*clock, sender.clone());
        notify_when_available(&*tools, sender.clone());
        let (last_event, last_event_watch) = watch::channel(storage.readers.last_event()?);
        let (fault, fault_watch) = watch::channel(None);
        let (recovered, is_recovered) = watch::channel(false);
        let read_pool = ReadPool::spawn(&storage.readers, is_recovered).map_err(|error| no_thread(&error))?;
        let metrics = Arc::new(Metrics::new());
        let ports = Ports { tools, authorizer: authorizer.clone(), artefacts: self.artefacts };
        let interrupt = if self.recover_as_interrupted { Interrupt::All } else { Interrupt::Declared };
        let restored = storage.opened.restored.map(Interrupt::Restored);
        let passes = restored.map(Some).into_iter().chain([Some(interrupt), None]);
        let driver = Driver {
            kernel,
            messages,
            calls: Calls::new(ports, runtime.clone(), sender.clone(), metrics.clone()),
            metrics,
            clock: clock.clone(),
            notifier: self.notifier,
            runtime,
            last_event,
            fault,
            recovered,
            recovery: passes.map(|interrupt| (interrupt, RunKey(0))).collect(),
            upkeep: UpkeepTimes::new(),
            backlog: Backlog::default(),
            held: Vec::new(),
            halted: None,
            shutdown_timeout: self.limits.shutdown,
        };
        spawn_thread(driver).map_err(|error| no_thread(&error))?;
        let requests = self.limits.requests;
        Ok(Engine::new(sender, read_pool, last_event_watch, fault_watch, clock, authorizer, requests))
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

fn spawn_thread(driver: Driver) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("steprail".to_owned());
    let thread = thread.spawn(move || {
        if let Some((reply, abandoned)) = driver.run() {
            reply.send(Ok(abandoned));
        }
    });
    thread.map(drop)
}

fn no_thread(error: &std::io::Error) -> Error {
    Error::BadInput(format!("cannot start the threads of the engine: {error}"))
}
