//! The kernel decides and commits. It has no thread, runtime or clock.
//!
//! [`Kernel::handle`] takes a batch of requests and the time, commits once (group commit), and returns effects: calls to
//! start and to cancel, replies, notices. State in memory is a cache of the store and can be evicted at any time.

mod cache;
mod control;
mod definitions;
mod effects;
mod flights;
mod recovery;
mod request;
mod schedule;
mod start;
pub(crate) mod stats;
mod world;

pub use definitions::Compiled;
pub use effects::{CallId, CallOrder, Continuation, Effect};
pub use request::{
    Command, Define, DefinitionVersion, Interrupt, Notification, Recover, Reply, Request, Response,
    RunSource, Signal, StartRun,
};
pub use stats::CommitStats;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use serde_json::Value;
use steprail_core::limits::CANCEL_GRACE_MS;
use steprail_core::plan::Hash;
use steprail_core::run::{Event, Input, Millis, Record, Run, RunStatus, decide};
use steprail_store::{Head, Health, RunId, RunKey, Store, StoreError, Upkeep};

use crate::error::Error;
use crate::limits::Limits;
use crate::ports::ToolCaller;
use cache::{Hashes, Values};
use definitions::Plans;
use flights::Flights;
use world::{KernelWorld, Reusable};

/// What a kernel is made of.
pub struct Setup {
    /// Where everything is kept.
    pub store: Box<dyn Store>,
    /// Asked for what is known about tools.
    pub tools: Arc<dyn ToolCaller>,
    /// How much is done at the same time.
    pub limits: Limits,
    /// The environment variables that definitions may see.
    pub env: Arc<Value>,
    /// What decides about jitter and ids.
    pub random: fastrand::Rng,
}

/// Decides and commits.
pub struct Kernel {
    store: Box<dyn Store>,
    tools: Arc<dyn ToolCaller>,
    env: Arc<Value>,
    secret: [u8; 32],
    random: fastrand::Rng,
    runs: HashMap<RunKey, Entry>,
    /// Runs that others wait for and that began in the transaction under way.
    children: usize,
    /// Runs in memory that wait for something, the ones that wait longest first.
    parked: VecDeque<RunKey>,
    plans: Plans,
    values: Values,
    flights: Flights,
    waiters: HashMap<RunKey, Vec<Reply<RunStatus>>>,
    /// Runs that were changed since the last commit.
    touched: BTreeSet<RunKey>,
    /// What follows in the same transaction.
    follow_ups: VecDeque<(RunKey, Input)>,
    next_timer: NextTimer,
    /// The run that is being handled.
    at: Option<RunKey>,
    /// Runs that cannot go on because what is stored of them is damaged. The others do.
    damaged: BTreeMap<RunKey, StoreError>,
}

/// When the next timer is due, as long as nothing has changed it.
#[derive(Clone, Copy)]
enum NextTimer {
    Unknown,
    Known(Option<Millis>),
}

/// A run in memory.
struct Entry {
    head: Head,
    run: Run,
    compiled: Arc<Compiled>,
    principal: Arc<steprail_store::Principal>,
    reusable: Option<Reusable>,
    /// Events that are written together with what follows from them.
    unwritten: Vec<Record>,
    /// What the log says about values, for those that are read back.
    hashes: Hashes,
    parked: bool,
}

/// What came of a batch of requests.
#[derive(Default)]
pub struct Handled {
    /// To be carried out in this order.
    pub effects: Vec<Effect>,
    /// Requests that the store could not take now and that must not be lost.
    pub retry: Vec<Request>,
    /// What is wrong with the store.
    pub fault: Option<StoreError>,
    /// Whether no work can go on: the fault is not that of one run or of one request.
    pub halts: bool,
    /// The number of the last event that was committed.
    pub last_event: Option<i64>,
    /// What was committed, counted.
    pub stats: CommitStats,
}

impl Kernel {
    /// A kernel over a store. Nothing happens before the first request.
    pub fn new(mut setup: Setup) -> Result<Self, StoreError> {
        let secret = setup.store.secret()?;
        Ok(Self {
            store: setup.store,
            tools: setup.tools,
            env: setup.env,
            secret,
            random: setup.random,
            runs: HashMap::new(),
            children: 0,
            parked: VecDeque::new(),
            plans: Plans::default(),
            values: Values::default(),
            flights: Flights::new(setup.limits),
            waiters: HashMap::new(),
            touched: BTreeSet::new(),
            follow_ups: VecDeque::new(),
            next_timer: NextTimer::Unknown,
            at: None,
            damaged: BTreeMap::new(),
        })
    }

    /// The store, when the engine is no more.
    pub fn into_store(self) -> Box<dyn Store> {
        self.store
    }

    /// The store, for those who look.
    pub fn store(&mut self) -> &mut dyn Store {
        &mut *self.store
    }

    /// When the next timer is due.
    pub fn next_timer(&mut self) -> Result<Option<Millis>, StoreError> {
        if let NextTimer::Known(due) = self.next_timer {
            return Ok(due);
        }
        let due = match self.damaged.len() {
            0 => self.store.next_timer()?,
            _ => self.next_sound_timer()?,
        };
        self.next_timer = NextTimer::Known(due);
        Ok(due)
    }

    /// Tells everybody who waits for a run that it does not go on.
    pub fn give_up(&mut self, fault: &StoreError) {
        let waiters = std::mem::take(&mut self.waiters).into_values();
        waiters.flatten().for_each(|reply| reply.send(Err(Error::Storage(fault.clone()))));
    }

    /// How many times runs stand in a queue for a place for a call.
    pub fn queue_length(&self) -> usize {
        self.flights.queue_length()
    }

    /// No further calls are begun: the engine is about to stop.
    pub fn stop_admitting(&mut self) {
        self.flights.close();
    }

    /// Carries requests out in one transaction. If the store refuses, each is tried alone, so that one that
    /// cannot be stored does not take the others with it.
    pub fn handle(&mut self, requests: Vec<Request>, now: Millis) -> Handled {
        let mut handled = Handled::default();
        if let Err(error) = self.transact(&requests, now, &mut handled) {
            let marked = self.forget(&error);
            match <[Request; 1]>::try_from(requests) {
                // It was the fault of one run: without it, what else is asked for may be done.
                Ok([request]) if marked && request.is_notification() => {
                    handled = self.handle(vec![request], now);
                    handled.fault.get_or_insert(error);
                }
                Ok([request]) if self.may_use_reserve(&request, &error) => {
                    handled = self.handle(vec![request], now);
                    handled.fault.get_or_insert(error);
                    let _ = self.store.maintain(Upkeep::ReclaimReserve);
                }
                Ok([request]) => self.refuse(request, error, marked, &mut handled),
                // Nobody knows what the store has taken: nothing more is begun.
                Err(requests) if error.is_final() => {
                    requests.into_iter().for_each(|request| {
                        self.refuse(request, error.clone(), false, &mut handled);
                    });
                    handled.fault = Some(error);
                }
                Err(requests) if requests.is_empty() => {
                    handled.halts = !marked && !error.may_pass();
                    handled.fault = Some(error);
                }
                Err(requests) => {
                    handled.fault = Some(error).filter(|error| !error.may_pass());
                    self.one_by_one(requests, now, &mut handled);
                }
            }
        }
        handled
    }

    /// Whether a cancellation failed on a full disk and reserved space was released for it.
    fn may_use_reserve(&mut self, request: &Request, error: &StoreError) -> bool {
        let is_needed = matches!(error, StoreError::Full(_)) && request.is_cancel();
        is_needed && self.store.maintain(Upkeep::ReleaseReserve).is_ok()
    }

    /// Lets the store do work between commits.
    pub fn maintain(&mut self, task: Upkeep) -> Result<Health, StoreError> {
        self.store.maintain(task)
    }

    fn one_by_one(&mut self, requests: Vec<Request>, now: Millis, handled: &mut Handled) {
        let singles = requests.into_iter().map(|request| vec![request]);
        // A last transaction without requests gives places away that were freed on the way.
        for mut single in singles.chain([Vec::new()]) {
            if let Some(error) = handled.fault.clone().filter(StoreError::is_final) {
                single.drain(..).for_each(|request| self.refuse(request, error.clone(), false, handled));
                continue;
            }
            let mut done = self.handle(single, now);
            self.withdraw(&mut handled.effects, &mut done.effects);
            handled.effects.append(&mut done.effects);
            handled.retry.append(&mut done.retry);
            handled.fault = done.fault.or(handled.fault.take());
            handled.halts |= done.halts;
            handled.last_event = done.last_event.or(handled.last_event);
            handled.stats.add(&done.stats);
        }
    }

    /// Calls that were ordered by one transaction and stopped by the next, before they left, are not made.
    fn withdraw(&mut self, earlier: &mut Vec<Effect>, later: &mut Vec<Effect>) {
        later.retain(|effect| {
            let Effect::Cancel(id) = effect else { return true };
            let given_up = self
                .flights
                .get(*id)
                .is_some_and(|flight| self.flights.call_of(flight.run, flight.n) != Some(*id));
            if !given_up || !effects::take_back(earlier, *id) {
                return true;
            }
            self.flights.arrive(*id);
            false
        });
        self.flights.commit();
    }

    fn transact(
        &mut self,
        requests: &[Request],
        now: Millis,
        handled: &mut Handled,
    ) -> Result<(), StoreError> {
        self.store.begin()?;
        self.children = 0;
        let mut done = Done::default();
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            answers.push(self.carry_out(request, now, &mut done)?);
            self.follow_up(now, &mut done)?;
        }
        self.admit_waiting(now, &mut done)?;
        self.at = None;
        self.store.commit()?;
        for answer in answers {
            match answer {
                Answer::Now(response) => done.effects.push(Effect::Reply(response)),
                Answer::Later(run, reply) => {
                    let waiters = self.waiters.entry(run).or_default();
                    waiters.retain(Reply::is_open);
                    waiters.push(reply);
                }
                Answer::None => {}
            }
        }
        self.committed(&mut done);
        handled.last_event = done.last_event;
        handled.stats = done.stats;
        handled.effects.append(&mut done.effects);
        Ok(())
    }

    /// Carries out a request within the open transaction. An error of the request is its answer; an error of the
    /// store undoes the transaction.
    fn carry_out(&mut self, request: &Request, now: Millis, done: &mut Done) -> Result<Answer, StoreError> {
        self.at = None;
        Ok(Answer::Now(match request {
            Request::Define(define, reply) => {
                reply.with(self.define(&define.spec, &define.source, &define.by, false, now)?)
            }
            Request::Start(start, reply) => reply.with(self.start(start, now)?),
            Request::Wait(run, reply) => match self.find_status(*run)? {
                Ok((key, status)) if !status.is_terminal() => return Ok(Answer::Later(key, reply.clone())),
                ended => reply.with(ended.map(|(_, status)| status)),
            },
            Request::Signal(signal, reply) => reply.with(self.signal(signal, now, done)?),
            Request::Schedule(schedule, reply) => reply.with(self.schedule(schedule, now)?),
            Request::Purge(before, reply) => {
                // A call that was told to stop may still answer, and its answer is written.
                let before = (*before).min(now.saturating_sub(2 * CANCEL_GRACE_MS));
                reply.with(Ok(self.store.purge(before, now, crate::limits::PURGE_BATCH)?))
            }
            Request::Recover(Recover { after, interrupt }, reply) => {
                reply.with(Ok(self.recover_some(*after, *interrupt, now, done)?))
            }
            Request::Command(command, reply) => reply.with(self.command(command, now, done)?),
            Request::Notification(notification) => {
                self.notified(notification, now, done)?;
                return Ok(Answer::None);
            }
        }))
    }

    fn notified(
        &mut self,
        notification: &Notification,
        now: Millis,
        done: &mut Done,
    ) -> Result<(), StoreError> {
        match notification {
            Notification::CallEnded { id, outcome } => self.call_ended(*id, outcome, now, done),
            Notification::CallReported { id, report } => self.call_reported(*id, report, now, done),
            Notification::ServerAvailable { server } => {
                self.flights.reopen(server);
                Ok(())
            }
            Notification::TimersDue => self.fire_timers(now, done),
        }
    }

    /// Gives a run an input, and writes what follows from it.
    fn input(&mut self, key: RunKey, input: Input, now: Millis, done: &mut Done) -> Result<bool, StoreError> {
        // A damaged run stands still; what other runs gave it is found when it is loaded again. One that was
        // deleted is no longer of interest to anybody.
        if self.damaged.contains_key(&key) || !(self.runs.contains_key(&key) || self.store.has_run(key)?) {
            return Ok(false);
        }
        self.load(key)?;
        self.touched.insert(key);
        let Some(entry) = self.runs.get_mut(&key) else { return Ok(false) };
        let compiled = entry.compiled.clone();
        // Those who wait for a place go first; each of them begins one call at a time.
        let quota = match &input {
            Input::Admitted => 1,
            _ if self.flights.has_queue() => 0,
            _ => u32::MAX,
        };
        self.flights.begin_decision();
        let mut world = KernelWorld {
            head: &entry.head,
            store: &mut *self.store,
            tools: &*self.tools,
            env: &self.env,
            secret: &self.secret,
            random: &mut self.random,
            values: &mut self.values,
            flights: &mut self.flights,
            plans: &mut self.plans,
            reusable: &mut entry.reusable,
            children: self.children,
            hashes: &entry.hashes,
            now,
            quota,
            spawned: Vec::new(),
            server: Box::default(),
            fault: None,
        };
        let decided = decide(&compiled.plan, &mut entry.run, input, &mut world);
        let (spawned, fault) = (world.spawned, world.fault);
        let records = match (decided, fault) {
            (Ok(records), _) => records,
            (Err(_), Some(fault)) => return Err(fault),
            (Err(error), None) => return Err(StoreError::Other(error.0)),
        };
        let records = match std::mem::take(&mut entry.unwritten) {
            first if first.is_empty() => records,
            first => first.into_iter().chain(records).collect(),
        };
        if records.is_empty() {
            return Ok(false);
        }
        let appended = self.store.append(&mut entry.head, &entry.run, &records, now)?;
        records.iter().for_each(|record| entry.hashes.note(&record.event));
        self.values.keep(key, &records);
        if records.iter().any(Record::moves_timers) {
            self.next_timer = NextTimer::Unknown;
        }
        for name in &appended.freed {
            for (run, n) in self.store.waiting(name)? {
                self.follow_ups.push_back((run, Input::KeyFreed { n }));
            }
        }
        done.last_event = appended.last_event.or(done.last_event);
        records.iter().for_each(|record| done.stats.record(&compiled.plan, record));
        self.consequences(key, &records, done)?;
        for child in spawned {
            self.begin_child(key, child, now)?;
        }
        Ok(true)
    }

    /// Inputs that follow from what was just written, in the same transaction.
    fn follow_up(&mut self, now: Millis, done: &mut Done) -> Result<(), StoreError> {
        while let Some((run, input)) = self.follow_ups.pop_front() {
            self.input(run, input, now, done)?;
        }
        Ok(())
    }

    /// Gives places that are free to runs that wait for one, in turn.
    fn admit_waiting(&mut self, now: Millis, done: &mut Done) -> Result<(), StoreError> {
        while let Some(run) = self.flights.next_waiting() {
            self.input(run, Input::Admitted, now, done)?;
            self.follow_up(now, done)?;
        }
        Ok(())
    }

    /// Brings a run into memory.
    fn load(&mut self, key: RunKey) -> Result<(), StoreError> {
        self.at = Some(key);
        if let Some(entry) = self.runs.get_mut(&key) {
            entry.parked = false;
            return Ok(());
        }
        let head = self.store.head(key)?;
        let compiled = self.compiled(head.definition)?;
        let (mut run, mut hashes) = (Run::default(), Hashes::default());
        let mut last = Hash([0; 32]);
        for event in self.store.events(key, 0)? {
            run.apply(&compiled.plan, &event.event);
            hashes.note(&event.event);
            last = event.hash;
        }
        if run.seq() != head.seq || last != head.hash {
            return Err(StoreError::Corrupt(format!("the log of run {} is not what was written", head.id)));
        }
        self.find_ended_children(key, &run)?;
        let principal = Arc::new(head.principal.clone());
        let entry = Entry {
            head,
            run,
            compiled,
            principal,
            reusable: None,
            unwritten: Vec::new(),
            hashes,
            parked: false,
        };
        self.runs.insert(key, entry);
        Ok(())
    }

    /// What is in memory is what was committed: runs that ended go, runs that wait may go.
    fn committed(&mut self, done: &mut Done) {
        self.flights.commit();
        for key in std::mem::take(&mut self.touched) {
            let Some(entry) = self.runs.get_mut(&key) else { continue };
            let status = entry.run.status();
            if status.is_terminal() {
                self.runs.remove(&key);
                self.values.drop_run(key);
                for reply in self.waiters.remove(&key).unwrap_or_default() {
                    done.effects.push(Effect::Reply(reply.with(Ok(status))));
                }
            } else if !entry.run.is_active() && !entry.parked {
                entry.parked = true;
                self.parked.push_back(key);
            }
        }
        while self.parked.len() > crate::limits::PARKED_RUNS {
            let Some(key) = self.parked.pop_front() else { break };
            if self.runs.get(&key).is_some_and(|entry| entry.parked) {
                self.runs.remove(&key);
            }
        }
    }

    /// Whether some runs cannot go on.
    pub fn has_damage(&self) -> bool {
        !self.damaged.is_empty()
    }

    /// Drops what was decided but not stored. True if it was the fault of a run that is now known to be damaged.
    fn forget(&mut self, error: &StoreError) -> bool {
        self.store.rollback();
        let is_damage = matches!(error, StoreError::Corrupt(_) | StoreError::Other(_));
        // A run that was only about to be created is gone with the transaction.
        let stored = |run: &RunKey| self.store.has_run(*run).unwrap_or(false);
        let found = self.at.take().filter(|run| is_damage && !self.damaged.contains_key(run)).filter(stored);
        if let Some(run) = found {
            self.damaged.insert(run, error.clone());
            let waiters = self.waiters.remove(&run).unwrap_or_default();
            waiters.iter().for_each(|reply| reply.send(Err(Error::Storage(error.clone()))));
        }
        // A number that was given to a definition may be given to another one.
        self.plans = Plans::default();
        self.follow_ups.clear();
        self.next_timer = NextTimer::Unknown;
        for key in std::mem::take(&mut self.touched) {
            self.runs.remove(&key);
        }
        self.values.clear();
        self.flights.undo();
        found.is_some()
    }

    /// A request that the store did not take: an answer to a caller, or something that must not be lost.
    fn refuse(&mut self, request: Request, error: StoreError, marked: bool, handled: &mut Handled) {
        let is_internal = matches!(request, Request::Notification(_) | Request::Recover(..));
        handled.halts |= is_internal && !marked && !error.may_pass();
        match request {
            request @ Request::Notification(_) if error.may_pass() => handled.retry.push(request),
            Request::Notification(Notification::CallEnded { id, .. }) => {
                // Its run goes no further, but the place that it had is free.
                self.flights.arrive(id);
                self.flights.commit();
            }
            Request::Notification(_) => {}
            request => {
                let response = Response::rejection(request, Error::Storage(error.clone()));
                handled.effects.push(Effect::Reply(response));
            }
        }
        handled.fault = Some(error);
    }

    /// Returns the key and status of a run, or an error if it does not exist or is damaged.
    fn find_status(&mut self, run: RunId) -> Result<Result<(RunKey, RunStatus), Error>, StoreError> {
        let Some(key) = self.store.find_run(run)? else { return Ok(Err(no_run(run))) };
        if let Some(damage) = self.damaged.get(&key) {
            return Ok(Err(Error::Storage(damage.clone())));
        }
        let status = match self.runs.get(&key) {
            Some(entry) => entry.run.status(),
            None => self.store.head(key)?.status,
        };
        Ok(Ok((key, status)))
    }
}

/// When the reply to a request is sent.
enum Answer {
    /// After the commit.
    Now(Response),
    /// After the end of this run.
    Later(RunKey, Reply<RunStatus>),
    None,
}

/// What was done in a transaction.
#[derive(Default)]
struct Done {
    last_event: Option<i64>,
    effects: Vec<Effect>,
    stats: CommitStats,
}

pub(crate) fn no_run(run: RunId) -> Error {
    Error::NotFound(format!("there is no run {run}"))
}

/// Whether an event ended a run, and how.
fn end_of(record: &Record) -> Option<RunStatus> {
    match record.event {
        Event::RunCompleted { .. } => Some(RunStatus::Completed),
        Event::RunFailed { .. } => Some(RunStatus::Failed),
        Event::RunCancelled { .. } => Some(RunStatus::Cancelled),
        _ => None,
    }
}
