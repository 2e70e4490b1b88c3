//! What a kernel can be asked, and what it answers.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use steprail_core::plan::Hash;
use steprail_core::run::{Failure, Intervention, Millis, Payload, Report, Resolution, RunStatus};
use steprail_store::{Account, AccountKind, Principal, Purged, RunId, RunKey, Schedule, Session};
use tokio::sync::oneshot;

use super::CallId;
use crate::error::Error;

/// Something to do, and where the answer goes.
#[derive(Debug)]
pub struct Request {
    /// What to do.
    pub action: Action,
    /// Where the answer goes. Without it, the request tells of something that happened and must not be lost.
    pub reply: Option<Reply>,
}

/// Where an answer goes.
#[derive(Clone)]
pub struct Reply(Arc<Mutex<Option<Sender>>>);

type Sender = oneshot::Sender<Result<Answer, Error>>;

impl Reply {
    /// A place for an answer, and its other end.
    pub fn channel() -> (Self, oneshot::Receiver<Result<Answer, Error>>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Arc::new(Mutex::new(Some(sender)))), receiver)
    }

    /// Whether whoever asked still waits.
    pub fn is_wanted(&self) -> bool {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sender.as_ref().is_some_and(|sender| !sender.is_closed())
    }

    /// Answers. Whoever asked may have gone.
    pub fn send(&self, answer: Result<Answer, Error>) {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = sender {
            let _ = sender.send(answer);
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Reply")
    }
}

/// What a kernel can be asked.
#[derive(Debug, Clone)]
pub enum Action {
    /// Stores a definition.
    Define {
        /// Its canonical JSON; checked by the caller.
        spec: Arc<str>,
        /// What it is called if it has no name.
        source: Arc<str>,
        /// Who.
        by: String,
    },
    /// Hides a definition from new runs.
    DeleteDefinition {
        /// Its name.
        name: String,
    },
    /// Starts a run.
    Start(Box<StartRun>),
    /// A call ended.
    CallEnded {
        /// Which.
        id: CallId,
        /// How.
        outcome: Result<Payload, Failure>,
    },
    /// A call tells something before it ends.
    CallReported {
        /// Which.
        id: CallId,
        /// What.
        report: Report,
    },
    /// A server may be able to take calls again ([`crate::ToolCaller::on_available`]).
    ServerAvailable {
        /// Its name, as its capacity has it.
        server: Box<str>,
    },
    /// Fires the timers whose time has come.
    FireTimers,
    /// Picks up runs after a restart.
    Recover {
        /// Those after this one.
        after: RunKey,
        /// Which of them to interrupt instead.
        interrupt: Option<Interrupt>,
    },
    /// Stores a schedule. One that is not due at any time is paused.
    Schedule(Box<Schedule>),
    /// Takes a schedule away.
    Unschedule {
        /// Its name.
        name: String,
    },
    /// Stores the session of a client.
    PutSession(Box<Session>),
    /// Takes a session away.
    DropSession {
        /// Its id.
        id: String,
    },
    /// Stores an account.
    PutAccount(Box<Account>),
    /// Takes an account away.
    DropAccount {
        /// What it is.
        kind: AccountKind,
        /// Its id.
        id: String,
    },
    /// Answers when everything before is done.
    Sync,
    /// Answers when a run has ended.
    Wait(RunId),
    /// Answers whether a run can go on.
    Check(RunId),
    /// Deletes runs that ended before a moment.
    Purge {
        /// The moment.
        before: Millis,
    },
    /// Decides at a gate.
    Decide {
        /// The run.
        run: RunId,
        /// The step's path.
        path: String,
        /// Yes or no.
        approved: bool,
        /// Who.
        by: Principal,
        /// Why.
        reason: Option<String>,
        /// What the decider saw.
        digest: Option<Hash>,
        /// What a tool wanted to know.
        answer: Option<Value>,
    },
    /// Answers whether somebody may decide at an open gate.
    MayDecide {
        /// The run.
        run: RunId,
        /// The step's path.
        path: String,
        /// Who.
        by: Principal,
    },
    /// Stops a run.
    Cancel {
        /// The run.
        run: RunId,
        /// Who.
        by: String,
        /// Why.
        reason: String,
    },
    /// Pauses a run.
    Pause {
        /// The run.
        run: RunId,
        /// Who.
        by: String,
    },
    /// Lets a run go on.
    Resume {
        /// The run.
        run: RunId,
        /// Who.
        by: String,
        /// Calls with unknown outcomes to make again without asking.
        force: Vec<String>,
        /// The hash that the definition must have.
        expected_hash: Option<Hash>,
        /// Refuse if the outcome of a call is unknown.
        strict: bool,
    },
    /// Says what became of a call.
    Resolve {
        /// The run.
        run: RunId,
        /// The step's path.
        path: String,
        /// What.
        resolution: Resolution,
        /// The attempt that it is about; refused for any other. The current one without it.
        digest: Option<Hash>,
        /// Who.
        by: Principal,
    },
    /// Changes a run.
    Intervene {
        /// The run.
        run: RunId,
        /// How.
        intervention: Intervention,
        /// Who.
        by: Principal,
    },
    /// Brings an event.
    Signal {
        /// Its name.
        event: String,
        /// What it carries.
        payload: Value,
        /// The run that it is for; without one, those that wait for it now.
        run: Option<RunId>,
    },
}

/// Which runs a restart interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    /// All.
    All,
    /// Those whose definitions ask for it.
    Asked,
}

/// A run to start.
#[derive(Debug, Clone)]
pub struct StartRun {
    /// What to run.
    pub workflow: StartOf,
    /// Its inputs.
    pub inputs: Value,
    /// Whom it acts as.
    pub principal: Principal,
    /// A key under which a repeated start is recognised.
    pub request_key: Option<String>,
    /// The run's id.
    pub id: RunId,
}

/// What a new run runs.
#[derive(Debug, Clone)]
pub enum StartOf {
    /// A stored definition.
    Named {
        /// Its name.
        name: String,
        /// A version; the newest without one.
        version: Option<u32>,
    },
    /// A definition that comes with the start.
    Inline {
        /// Its canonical JSON, checked by the caller.
        spec: Arc<str>,
        /// What it is called if it has no name.
        source: Arc<str>,
    },
    /// What another run ran.
    Rerun {
        /// The other run.
        of: RunId,
        /// Take results over, except for these paths.
        reuse_except: Option<Vec<String>>,
    },
}

/// What a kernel answers.
#[derive(Debug, Clone)]
pub enum Answer {
    /// It is done.
    Done,
    /// A definition was stored.
    Defined(Defined),
    /// A run was started, or had been.
    Started(RunId),
    /// A run ended.
    Ended(RunId, RunStatus),
    /// The answer comes when this run ends.
    Later(RunKey),
    /// How many.
    Count(usize),
    /// What was deleted.
    Purged(Purged),
    /// When something is due.
    Due(Option<Millis>),
    /// Where to go on.
    More(Option<RunKey>),
}

/// A definition that was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defined {
    /// Its number in the store.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: u32,
    /// Its hash.
    pub hash: Hash,
}
