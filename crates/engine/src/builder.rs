//! How an engine is put together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc;

use serde_json::Value;
use steprail_store::sqlite::SqliteStore;
use steprail_store::{RunKey, Storage, StoreError};
use tokio::sync::watch;

use crate::access::AllowAll;
use crate::calls::{Calls, Ports};
use crate::clock::{Clock, SystemClock};
use crate::driver::{Backlog, Driver, Message};
use crate::engine::Engine;
use crate::error::Error;
use crate::kernel::{Action, Answer, Interrupt, Kernel, Request, Setup};
use crate::limits::Limits;
use crate::meters::Meters;
use crate::ports::{ArtefactStore, Authorizer, Notifier, ToolCaller, Tools};
use crate::reading::Reading;

/// Puts an engine together. Only a store is needed; without tools, every call fails.
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
    /// Where everything is kept.
    #[must_use]
    pub fn store(mut self, store: SqliteStore) -> Self {
        self.storage = Some(store.into_storage());
        self
    }

    /// What makes the calls.
    #[must_use]
    pub fn tools(mut self, tools: impl ToolCaller + 'static) -> Self {
        self.tools = Some(Arc::new(tools));
        self
    }

    /// Who may do what; without it, everybody everything.
    #[must_use]
    pub fn authorizer(mut self, authorizer: impl Authorizer + 'static) -> Self {
        self.authorizer = Some(Arc::new(authorizer));
        self
    }

    /// What tells humans.
    #[must_use]
    pub fn notifier(mut self, notifier: impl Notifier + 'static) -> Self {
        self.notifier = Some(Arc::new(notifier));
        self
    }

    /// What keeps files that tools give.
    #[must_use]
    pub fn artefacts(mut self, artefacts: impl ArtefactStore + 'static) -> Self {
        self.artefacts = Some(Arc::new(artefacts));
        self
    }

    /// What tells the time; without it, the machine's clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// How much is done at the same time.
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

    /// Interrupts every run that was under way instead of going on with it.
    #[must_use]
    pub fn recover_as_interrupted(mut self) -> Self {
        self.recover_as_interrupted = true;
        self
    }

    /// Starts the engine: runs that were under way go on. Call it within a tokio runtime.
    pub fn spawn(self) -> Result<Engine, Error> {
        let storage = match self.storage {
            Some(storage) => storage?,
            None => return Err(Error::BadInput("an engine needs a store".to_owned())),
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return Err(Error::BadInput("an engine is started within a tokio runtime".to_owned()));
        };
        let tools = self.tools.unwrap_or_else(|| Arc::new(Tools::new()));
        let authorizer = self.authorizer.unwrap_or_else(|| Arc::new(AllowAll));
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
        let env = Value::Object(self.env.into_iter().map(|(name, value)| (name, value.into())).collect());
        let kernel = Kernel::new(Setup {
            store: storage.writer,
            tools: tools.clone(),
            limits: self.limits.clone(),
            env: Arc::new(env),
            random: fastrand::Rng::new(),
        })?;
        let (messages, inbox) = mpsc::channel();
        let wake = messages.clone();
        clock.on_change(Box::new(move || drop(wake.send(Message::Wake))));
        let available = messages.clone();
        tools.on_available(Box::new(move |server| {
            let action = Action::ServerAvailable { server: server.into() };
            // The engine may be gone.
            let _ = available.send(Message::Request(Request { action, reply: None }));
        }));
        let (last_event, watched) = watch::channel(storage.readers.last_event()?);
        let (fault, faults) = watch::channel(None);
        let meters = Arc::new(Meters::new());
        let ports = Ports { tools, authorizer: authorizer.clone(), artefacts: self.artefacts };
        let interrupt = if self.recover_as_interrupted { Interrupt::All } else { Interrupt::Asked };
        let (readable, is_readable) = watch::channel(false);
        let reading = Reading::spawn(&storage.readers, is_readable).map_err(|error| no_thread(&error))?;
        let driver = Driver {
            kernel,
            messages: inbox,
            calls: Calls::new(ports, runtime.clone(), messages.clone(), meters.clone()),
            meters,
            clock: clock.clone(),
            notifier: self.notifier,
            runtime,
            last_event,
            fault,
            readable,
            recovery: [(Some(interrupt), RunKey(0)), (None, RunKey(0))].into(),
            backlog: Backlog::default(),
            early: Vec::new(),
            halted: None,
            patience: self.limits.shutdown,
        };
        let thread = std::thread::Builder::new().name("steprail".to_owned()).spawn(move || {
            if let Some((reply, left)) = driver.run() {
                reply.send(Ok(Answer::Count(left)));
            }
        });
        thread.map_err(|error| no_thread(&error))?;
        Ok(Engine::new(messages, reading, watched, faults, clock, authorizer, self.limits.requests))
    }
}

fn no_thread(error: &std::io::Error) -> Error {
    Error::BadInput(format!("the engine's threads cannot start: {error}"))
}
