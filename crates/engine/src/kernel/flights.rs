//! Calls in flight and concurrency slots, which are granted round-robin across servers and definitions.
//!
//! Changes are undone if their transaction is rolled back.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use steprail_core::run::Admission;
use steprail_store::{IdMap, RunId};

use super::effects::CallId;
use crate::limits::Limits;
use crate::ports::Capacity;

/// A call in flight.
#[derive(Debug, Clone)]
pub(super) struct Flight {
    pub run: RunId,
    pub n: u32,
    pub attempt: u32,
    /// The connection pool that it uses.
    pub server: Box<str>,
    /// Whether no other call may use the pool at the same time.
    pub exclusive: bool,
    pub definition: i64,
    /// Whether it is a probe, which finds out the outcome of another call.
    pub probe: bool,
}

/// The resource whose slot a queued run waits for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum SlotKey {
    Server(Box<str>),
    Definition(i64),
}

#[derive(Debug, Default)]
struct Counts {
    total: u32,
    servers: HashMap<Box<str>, u32>,
    definitions: IdMap<i64, u32>,
}

impl Counts {
    fn add(&mut self, server: &str, definition: i64) {
        self.total += 1;
        increase(&mut self.servers, server);
        *self.definitions.entry(definition).or_default() += 1;
    }

    fn remove(&mut self, server: &str, definition: i64) {
        self.total = self.total.saturating_sub(1);
        decrease(&mut self.servers, server);
        if let Some(count) = self.definitions.get_mut(&definition) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.definitions.remove(&definition);
            }
        }
    }
}

fn increase(counts: &mut HashMap<Box<str>, u32>, name: &str) {
    match counts.get_mut(name) {
        Some(count) => *count += 1,
        None => drop(counts.insert(name.into(), 1)),
    }
}

fn decrease(counts: &mut HashMap<Box<str>, u32>, name: &str) {
    if let Some(count) = counts.get_mut(name) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(name);
        }
    }
}

enum Undo {
    Departed(CallId),
    Arrived(CallId, Flight),
    Call((RunId, u32), Option<CallId>),
    Queued(SlotKey, RunId),
    Popped(SlotKey, RunId),
}

pub(super) struct Flights {
    limits: Limits,
    next: u64,
    flights: IdMap<CallId, Flight>,
    /// The call that a step execution waits for.
    calls: IdMap<(RunId, u32), CallId>,
    counts: Counts,
    /// Slots granted in the current decision, by server.
    reserved: HashMap<Box<str>, u32>,
    /// Servers of which the current decision granted all slots to an exclusive call.
    reserved_whole: HashSet<Box<str>>,
    queues: BTreeMap<SlotKey, VecDeque<RunId>>,
    /// The queue that was served last. The next slot goes to the next queue.
    served: Option<SlotKey>,
    queued: HashSet<(SlotKey, RunId)>,
    /// Servers whose state differs from the default.
    servers: HashMap<Box<str>, ServerState>,
    /// Whether no call may start.
    frozen: bool,
    undo: Vec<Undo>,
}

/// The slots of a server.
#[derive(Debug, Clone, Default)]
struct ServerState {
    slots: Option<u32>,
    /// It cannot take calls until [`Flights::reopen`].
    unavailable: bool,
    /// An exclusive call waits for the calls in flight to end.
    draining: bool,
    /// Exclusive calls in flight.
    exclusive: u32,
}

impl Flights {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            next: 0,
            flights: IdMap::default(),
            calls: IdMap::default(),
            counts: Counts::default(),
            reserved: HashMap::new(),
            reserved_whole: HashSet::new(),
            queues: BTreeMap::new(),
            served: None,
            queued: HashSet::new(),
            servers: HashMap::new(),
            frozen: false,
            undo: Vec::new(),
        }
    }

    /// Starts no further calls.
    pub(super) fn close(&mut self) {
        self.limits.calls = 0;
    }

    /// Sets whether calls may start. Runs that wait keep their places in the queues.
    pub(super) fn set_frozen(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    pub(super) fn get(&self, id: CallId) -> Option<&Flight> {
        self.flights.get(&id)
    }

    /// The call that a step execution waits for.
    pub(super) fn call_of(&self, run: RunId, n: u32) -> Option<CallId> {
        self.calls.get(&(run, n)).copied()
    }

    /// Sets the call that a step execution waits for.
    fn set_call(&mut self, run: RunId, n: u32, id: Option<CallId>) {
        let before = match id {
            Some(id) => self.calls.insert((run, n), id),
            None => self.calls.remove(&(run, n)),
        };
        self.undo.push(Undo::Call((run, n), before));
    }

    pub(super) fn let_go(&mut self, run: RunId, n: u32) {
        self.set_call(run, n, None);
    }

    /// Adds a call that is about to start.
    pub(super) fn add(&mut self, flight: Flight) -> CallId {
        self.next += 1;
        let id = CallId(self.next);
        self.count_in(&flight);
        self.set_call(flight.run, flight.n, Some(id));
        self.flights.insert(id, flight);
        self.undo.push(Undo::Departed(id));
        id
    }

    /// Removes a call that ended.
    pub(super) fn remove(&mut self, id: CallId) {
        if let Some(flight) = self.flights.remove(&id) {
            self.count_out(&flight);
            self.undo.push(Undo::Arrived(id, flight));
        }
    }

    /// Begins a decision. Slots that earlier decisions reserved belong to calls now.
    pub(super) fn begin_decision(&mut self) {
        self.reserved.clear();
        self.reserved_whole.clear();
    }

    /// Reserves a slot for a call. If none is free, queues the run.
    pub(super) fn admit(
        &mut self,
        run: RunId,
        capacity: &Capacity,
        definition: i64,
        quota: u32,
    ) -> Admission {
        let server = capacity.server.clone();
        if let Some(reason) = self.note(capacity) {
            self.enqueue(SlotKey::Server(server), run);
            return Admission::Unavailable(reason);
        }
        let reserved: u32 = self.reserved.values().sum();
        let of_server = self.reserved.get(&server).copied().unwrap_or_default();
        let in_definition = self.counts.definitions.get(&definition).copied().unwrap_or_default() + reserved;
        let (slot, admission) = if in_definition >= self.limits.calls_per_definition {
            (SlotKey::Definition(definition), Admission::Full)
        } else if self.frozen || self.counts.total + reserved >= self.limits.calls || reserved >= quota {
            (SlotKey::Server(server), Admission::Full)
        } else if !self.has_slot(capacity, of_server) {
            (SlotKey::Server(server), Admission::ToolFull)
        } else {
            increase(&mut self.reserved, &server);
            if capacity.exclusive {
                self.reserved_whole.insert(server);
            }
            return Admission::Granted;
        };
        self.enqueue(slot, run);
        if capacity.exclusive {
            self.move_to_front(&capacity.server, run);
        }
        admission
    }

    /// Updates the capacity of a server. Returns the reason if it cannot take calls.
    fn note(&mut self, capacity: &Capacity) -> Option<Box<str>> {
        let is_default = capacity.slots.is_none() && capacity.unavailable.is_none();
        if !is_default || self.servers.contains_key(&capacity.server) {
            let state = self.servers.entry(capacity.server.clone()).or_default();
            (state.slots, state.unavailable) = (capacity.slots, capacity.unavailable.is_some());
        }
        capacity.unavailable.clone()
    }

    /// Whether a server has a free slot. An exclusive call needs all of them; while it waits, no other call is
    /// admitted.
    fn has_slot(&mut self, capacity: &Capacity, reserved: u32) -> bool {
        if self.reserved_whole.contains(&capacity.server) {
            return false;
        }
        let taken = self.taken(&capacity.server) + reserved;
        if taken == 0
            && let Some(state) = self.servers.get_mut(&capacity.server)
        {
            state.draining = false;
        }
        if capacity.exclusive && taken > 0 {
            self.servers.entry(capacity.server.clone()).or_default().draining = true;
            return false;
        }
        self.is_open(&capacity.server, reserved)
    }

    fn taken(&self, server: &str) -> u32 {
        self.counts.servers.get(server).copied().unwrap_or_default()
    }

    fn is_open(&self, server: &str, reserved: u32) -> bool {
        let limit = self.limits.calls_per_server;
        match self.servers.get(server) {
            None => self.taken(server) + reserved < limit,
            Some(state) => {
                let free = self.taken(server) + reserved < state.slots.unwrap_or(limit).min(limit);
                free && !state.unavailable
                    && state.exclusive == 0
                    && (!state.draining || self.taken(server) == 0)
            }
        }
    }

    /// A server may be able to take calls again: the runs that wait for it try again.
    pub(super) fn reopen(&mut self, server: &str) {
        if let Some(state) = self.servers.get_mut(server) {
            state.unavailable = false;
        }
    }

    fn enqueue(&mut self, slot: SlotKey, run: RunId) {
        if self.queued.insert((slot.clone(), run)) {
            self.queues.entry(slot.clone()).or_default().push_back(run);
            self.undo.push(Undo::Queued(slot, run));
        }
    }

    /// Moves an exclusive call to the front once the server is drained. Other calls would otherwise starve it.
    fn move_to_front(&mut self, server: &str, run: RunId) {
        let slot = SlotKey::Server(server.into());
        if let Some(queue) = self.queues.get_mut(&slot)
            && let Some(at) = queue.iter().position(|queued| *queued == run)
            && let Some(run) = queue.remove(at)
        {
            queue.push_front(run);
        }
    }

    fn count_in(&mut self, flight: &Flight) {
        self.counts.add(&flight.server, flight.definition);
        if flight.exclusive {
            self.servers.entry(flight.server.clone()).or_default().exclusive += 1;
        }
    }

    fn count_out(&mut self, flight: &Flight) {
        self.counts.remove(&flight.server, flight.definition);
        if let Some(state) = self.servers.get_mut(&flight.server).filter(|_| flight.exclusive) {
            state.exclusive = state.exclusive.saturating_sub(1);
        }
    }

    pub(super) fn release(&mut self, server: &str) {
        decrease(&mut self.reserved, server);
        // An exclusive call uses all slots of its server.
        self.reserved_whole.remove(server);
    }

    /// Whether runs wait for a slot that a call in flight will release. New calls then queue behind them.
    pub(super) fn has_queue(&self) -> bool {
        self.queues.keys().any(|slot| match slot {
            SlotKey::Server(server) => !self.servers.get(server).is_some_and(|state| state.unavailable),
            SlotKey::Definition(_) => true,
        })
    }

    /// Number of queue entries of runs that wait for a concurrency slot.
    pub(super) fn queue_length(&self) -> usize {
        self.queued.len()
    }

    fn is_free(&self, slot: &SlotKey) -> bool {
        match slot {
            SlotKey::Server(server) => self.is_open(server, 0),
            SlotKey::Definition(id) => {
                let taken = self.counts.definitions.get(id).copied().unwrap_or_default();
                taken < self.limits.calls_per_definition
            }
        }
    }

    /// The next run for which there is a slot, taken round-robin from the queues.
    pub(super) fn next_waiting(&mut self) -> Option<RunId> {
        if self.frozen || self.counts.total >= self.limits.calls {
            return None;
        }
        let last = self.served.as_ref();
        let after = self.queues.keys().filter(|slot| Some(*slot) > last);
        let before = self.queues.keys().filter(|slot| Some(*slot) <= last);
        let slot = after.chain(before).find(|slot| self.is_free(slot))?.clone();
        self.served = Some(slot.clone());
        let queue = self.queues.get_mut(&slot)?;
        let run = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&slot);
        }
        let run = run?;
        self.queued.remove(&(slot.clone(), run));
        self.undo.push(Undo::Popped(slot, run));
        Some(run)
    }

    pub(super) fn commit(&mut self) {
        self.undo.clear();
    }

    pub(super) fn undo(&mut self) {
        while let Some(change) = self.undo.pop() {
            match change {
                Undo::Departed(id) => {
                    if let Some(flight) = self.flights.remove(&id) {
                        self.count_out(&flight);
                    }
                }
                Undo::Arrived(id, flight) => {
                    self.count_in(&flight);
                    self.flights.insert(id, flight);
                }
                Undo::Call(key, Some(id)) => {
                    self.calls.insert(key, id);
                }
                Undo::Call(key, None) => {
                    self.calls.remove(&key);
                }
                Undo::Queued(slot, run) => self.leave_queue(&slot, run),
                Undo::Popped(slot, run) => {
                    if self.queued.insert((slot.clone(), run)) {
                        self.queues.entry(slot).or_default().push_front(run);
                    }
                }
            }
        }
        self.reserved.clear();
        self.reserved_whole.clear();
    }
}

impl Flights {
    fn leave_queue(&mut self, slot: &SlotKey, run: RunId) {
        self.queued.remove(&(slot.clone(), run));
        if let Some(queue) = self.queues.get_mut(slot) {
            queue.retain(|queued| *queued != run);
            if queue.is_empty() {
                self.queues.remove(slot);
            }
        }
    }
}
