//! The kernel decides and commits. It has no thread, runtime or clock.
//!
//! [`Kernel::handle`] takes a batch of requests and the time, commits once (group commit), and returns effects: calls to
//! start and to cancel, replies, notices. State in memory is a cache of the store and can be evicted at any time.

mod batch;
mod batching;
mod cache;
mod continuations;
mod control;
mod deadlines;
mod definitions;
mod dispatch;
mod effects;
mod flights;
mod gates;
mod notifications;
mod policy;
mod quarantine;
mod quotas;
mod recovery;
mod request;
mod run_map;
mod schedule;
mod start;
pub(crate) mod stats;
mod sub_workflows;
mod turn;
mod world;

pub use definitions::Compiled;
pub(crate) use definitions::{pins_hash, tool_pins};
pub use effects::{CallId, CallOrder, Continuation, Effect};
pub(crate) use notifications::audit_failure;
pub use request::{
    AcceptedProposal, Command, Define, DefinitionVersion, Interrupt, Notification, Recover, Reply, Request,
    Response, RunSource, Signal, StartRun,
};
pub(crate) use start::check_inputs;
pub use stats::CommitStats;
pub(crate) use sub_workflows::pin_workflow;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde_json::Value;
use steprail_core::presence::Presence;
use steprail_core::run::{Event, Input, Millis, Record, RunStatus};
use steprail_store::{Cursor, IdMap, Purged, RunId, Store, StoreError};

use crate::error::Error;
use crate::limits::Limits;
use crate::policy::PolicyHandle;
use crate::ports::{Authorizer, ToolCaller};
use batch::Batch;
use cache::Values;
use continuations::{Continuations, Slices};
use deadlines::Deadlines;
use definitions::Plans;
use flights::Flights;
use policy::CallLimits;
use quotas::QuotaLedger;
use run_map::Entry;

/// The parts of a kernel.
pub struct Setup {
    /// The store.
    pub store: Box<dyn Store>,
    /// The source of information about tools.
    pub tools: Arc<dyn ToolCaller>,
    /// The limits on concurrency.
    pub limits: Limits,
    /// The environment variables that definitions can read.
    pub env: Arc<Value>,
    /// The source of jitter and of random ids.
    pub random: fastrand::Rng,
    /// The policy that decides about calls.
    pub policy: PolicyHandle,
    /// Knows the groups of users, and rechecks the rights of schedules when they fire.
    pub authorizer: Arc<dyn Authorizer>,
    /// Whether commits contain the notifications that they cause.
    pub outbox: bool,
}

/// Decides and commits. See the module documentation.
pub struct Kernel {
    batch: Batch,
    tools: Arc<dyn ToolCaller>,
    env: Arc<Value>,
    secret: [u8; 32],
    random: fastrand::Rng,
    runs: IdMap<RunId, Entry>,
    slices: Slices,
    /// Runs whose last decision reached its limit of events.
    continuations: Continuations,
    /// The number of child runs that the batch in progress starts.
    children: usize,
    /// Waiting runs in memory, the longest wait first.
    parked: VecDeque<RunId>,
    plans: Plans,
    values: Values,
    flights: Flights,
    policy: PolicyHandle,
    call_limits: CallLimits,
    /// Whether no call may start in the batch in progress.
    batch_frozen: bool,
    authorizer: Arc<dyn Authorizer>,
    deadlines: Deadlines,
    waiters: IdMap<RunId, Vec<Reply<RunStatus>>>,
    /// Runs that changed since the last commit, in memory.
    touched: BTreeSet<RunId>,
    /// Messages to runs, delivered in the same batch.
    messages: VecDeque<(RunId, Input)>,
    next_timer: NextTimer,
    /// The run that is being decided.
    deciding: Option<RunId>,
    /// Runs that cannot continue because their stored state is damaged. Other runs continue.
    damaged: BTreeMap<RunId, StoreError>,
    quotas: QuotaLedger,
    /// Whether commits contain the notifications that they cause.
    has_outbox: bool,
    /// Whether the batch interrupts the last runs of a restored database.
    restore_finished: bool,
    /// The factor that every decision requires.
    presence: Presence,
}

/// When the next durable timer is due. It is unknown after a change of timers.
#[derive(Clone, Copy)]
enum NextTimer {
    Unknown,
    Known(Option<Millis>),
}

/// The result of a batch of requests.
#[derive(Default)]
pub struct Handled {
    /// The effects, to be carried out in this order.
    pub effects: Vec<Effect>,
    /// Notifications that the store could not accept. They must be handled again.
    pub retry: Vec<Request>,
    /// The failure of the store.
    pub fault: Option<StoreError>,
    /// Whether the failure stops all work, and not only one run or request.
    pub halts: bool,
    /// The cursor of the last event that was committed.
    pub last_event: Option<Cursor>,
    /// Runs with new events.
    pub changed: Vec<RunId>,
    /// Whether the outbox changed.
    pub outbox_changed: bool,
    /// Counts of committed events.
    pub stats: CommitStats,
}

impl Kernel {
    /// Creates a kernel. It does nothing before the first request.
    pub fn new(mut setup: Setup) -> Result<Self, StoreError> {
        let secret = setup.store.secret()?;
        Ok(Self {
            batch: Batch::new(setup.store),
            tools: setup.tools,
            env: setup.env,
            secret,
            random: setup.random,
            runs: IdMap::default(),
            slices: Slices::new(&setup.limits),
            continuations: Continuations::default(),
            children: 0,
            parked: VecDeque::new(),
            plans: Plans::default(),
            values: Values::default(),
            flights: Flights::new(setup.limits),
            policy: setup.policy,
            call_limits: CallLimits::default(),
            batch_frozen: false,
            authorizer: setup.authorizer,
            deadlines: Deadlines::default(),
            waiters: IdMap::default(),
            touched: BTreeSet::new(),
            messages: VecDeque::new(),
            next_timer: NextTimer::Unknown,
            deciding: None,
            damaged: BTreeMap::new(),
            quotas: QuotaLedger::default(),
            has_outbox: setup.outbox,
            restore_finished: false,
            presence: Presence::None,
        })
    }

    /// Requires a factor that proves that a person is present for every decision.
    pub fn require_presence(&mut self, factor: Presence) {
        self.presence = factor;
    }

    /// Returns the store after the engine has stopped.
    pub fn into_store(self) -> Box<dyn Store> {
        self.batch.into_store()
    }

    /// The store, for tests and diagnostics.
    pub fn store(&mut self) -> &mut dyn Store {
        self.batch.store()
    }

    /// When the next timer or deadline is due.
    pub fn next_timer(&mut self) -> Result<Option<Millis>, StoreError> {
        let durable = match self.next_timer {
            NextTimer::Known(due) => due,
            NextTimer::Unknown => self.next_durable_timer()?,
        };
        self.next_timer = NextTimer::Known(durable);
        Ok([durable, self.deadlines.next()].into_iter().flatten().min())
    }

    /// Rejects all requests that wait for the end of a run.
    pub fn give_up(&mut self, fault: &StoreError) {
        let waiters = std::mem::take(&mut self.waiters).into_values();
        waiters.flatten().for_each(|reply| reply.send(Err(Error::Storage(fault.clone()))));
    }

    /// The number of queue entries of runs that wait for a concurrency slot.
    pub fn queue_length(&self) -> usize {
        self.flights.queue_length()
    }

    /// Starts no further calls, because the engine is about to stop.
    pub fn stop_admitting(&mut self) {
        self.flights.close();
    }
}

/// When the reply to a request is sent.
enum Answer {
    /// After the commit.
    Now(Response),
    /// After the commit, with the number of deleted rows.
    Purged(Reply<Purged>),
    /// After the end of this run.
    Later(RunId, Reply<RunStatus>),
    None,
}

/// The results of a transaction in progress.
#[derive(Default)]
struct Done {
    last_event: Option<Cursor>,
    effects: Vec<Effect>,
    stats: CommitStats,
}

pub(crate) fn no_run(run: RunId) -> Error {
    Error::NotFound(format!("there is no run {run}"))
}

/// The final status of a run, if the event ended it.
fn end_of(record: &Record) -> Option<RunStatus> {
    match record.event {
        Event::RunCompleted { .. } => Some(RunStatus::Completed),
        Event::RunFailed { .. } => Some(RunStatus::Failed),
        Event::RunCancelled { .. } => Some(RunStatus::Cancelled),
        _ => None,
    }
}
