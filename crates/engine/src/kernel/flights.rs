//! Calls in flight: which step waits for which, whether there is room for more, and who is next.
//!
//! Every change can be taken back until the transaction that it belongs to is committed.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use steprail_core::run::Admission;
use steprail_store::RunKey;

use super::effects::CallId;
use crate::limits::Limits;

/// A call in flight.
#[derive(Debug, Clone)]
pub(super) struct Flight {
    pub run: RunKey,
    pub n: u32,
    pub attempt: u32,
    pub server: Box<str>,
    pub definition: i64,
    /// Whether it only asks what became of another call.
    pub probe: bool,
}

/// What limits a call that has to wait.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Gate {
    Server(Box<str>),
    Definition(i64),
}

#[derive(Debug, Default)]
struct Counts {
    total: u32,
    servers: HashMap<Box<str>, u32>,
    definitions: HashMap<i64, u32>,
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
    Call((RunKey, u32), Option<CallId>),
    Queued(Gate, RunKey),
    Popped(Gate, RunKey),
}

pub(super) struct Flights {
    limits: Limits,
    next: u64,
    flights: HashMap<CallId, Flight>,
    /// The call that a step execution waits for.
    calls: HashMap<(RunKey, u32), CallId>,
    counts: Counts,
    /// Places given in the decision under way, by server.
    reserved: HashMap<Box<str>, u32>,
    queues: BTreeMap<Gate, VecDeque<RunKey>>,
    /// The queue that was served last: the next one is another.
    served: Option<Gate>,
    queued: HashSet<(Gate, RunKey)>,
    undo: Vec<Undo>,
}

impl Flights {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            next: 0,
            flights: HashMap::new(),
            calls: HashMap::new(),
            counts: Counts::default(),
            reserved: HashMap::new(),
            queues: BTreeMap::new(),
            served: None,
            queued: HashSet::new(),
            undo: Vec::new(),
        }
    }

    /// No further calls are begun.
    pub(super) fn close(&mut self) {
        self.limits.calls = 0;
    }

    pub(super) fn get(&self, id: CallId) -> Option<&Flight> {
        self.flights.get(&id)
    }

    /// The call that a step execution waits for.
    pub(super) fn call_of(&self, run: RunKey, n: u32) -> Option<CallId> {
        self.calls.get(&(run, n)).copied()
    }

    /// A step execution waits for another call, or for none.
    fn set_call(&mut self, run: RunKey, n: u32, id: Option<CallId>) {
        let before = match id {
            Some(id) => self.calls.insert((run, n), id),
            None => self.calls.remove(&(run, n)),
        };
        self.undo.push(Undo::Call((run, n), before));
    }

    pub(super) fn let_go(&mut self, run: RunKey, n: u32) {
        self.set_call(run, n, None);
    }

    /// A call is on its way.
    pub(super) fn depart(&mut self, flight: Flight) -> CallId {
        self.next += 1;
        let id = CallId(self.next);
        self.counts.add(&flight.server, flight.definition);
        self.set_call(flight.run, flight.n, Some(id));
        self.flights.insert(id, flight);
        self.undo.push(Undo::Departed(id));
        id
    }

    /// A call ended.
    pub(super) fn arrive(&mut self, id: CallId) {
        if let Some(flight) = self.flights.remove(&id) {
            self.counts.remove(&flight.server, flight.definition);
            self.undo.push(Undo::Arrived(id, flight));
        }
    }

    /// Begins a decision: places that an earlier one was given are calls by now.
    pub(super) fn begin_decision(&mut self) {
        self.reserved.clear();
    }

    /// Whether there is a place for a call. If not, the run is put into a queue for it.
    pub(super) fn admit(&mut self, run: RunKey, server: &str, definition: i64, quota: u32) -> Admission {
        let reserved: u32 = self.reserved.values().sum();
        let of_server = self.reserved.get(server).copied().unwrap_or_default();
        let (counts, limits) = (&self.counts, &self.limits);
        let in_server = counts.servers.get(server).copied().unwrap_or_default() + of_server;
        let in_definition = counts.definitions.get(&definition).copied().unwrap_or_default() + reserved;
        let (gate, admission) = if in_definition >= limits.calls_per_definition {
            (Gate::Definition(definition), Admission::Full)
        } else if counts.total + reserved >= limits.calls || reserved >= quota {
            (Gate::Server(server.into()), Admission::Full)
        } else if in_server >= limits.calls_per_server {
            (Gate::Server(server.into()), Admission::ToolFull)
        } else {
            increase(&mut self.reserved, server);
            return Admission::Granted;
        };
        if self.queued.insert((gate.clone(), run)) {
            self.queues.entry(gate.clone()).or_default().push_back(run);
            self.undo.push(Undo::Queued(gate, run));
        }
        admission
    }

    pub(super) fn release(&mut self, server: &str) {
        decrease(&mut self.reserved, server);
    }

    /// Whether runs wait for a place: then nobody goes before them.
    pub(super) fn has_queue(&self) -> bool {
        !self.queued.is_empty()
    }

    /// How many times runs stand in a queue for a place.
    pub(super) fn queue_length(&self) -> usize {
        self.queued.len()
    }

    fn is_open(&self, gate: &Gate) -> bool {
        let (counts, limits) = (&self.counts, &self.limits);
        match gate {
            Gate::Server(name) => {
                counts.servers.get(name).copied().unwrap_or_default() < limits.calls_per_server
            }
            Gate::Definition(id) => {
                counts.definitions.get(id).copied().unwrap_or_default() < limits.calls_per_definition
            }
        }
    }

    /// The next run for which there is a place: of the queues in turn.
    pub(super) fn next_waiting(&mut self) -> Option<RunKey> {
        if self.counts.total >= self.limits.calls {
            return None;
        }
        let last = self.served.as_ref();
        let after = self.queues.keys().filter(|gate| Some(*gate) > last);
        let before = self.queues.keys().filter(|gate| Some(*gate) <= last);
        let gate = after.chain(before).find(|gate| self.is_open(gate))?.clone();
        self.served = Some(gate.clone());
        let queue = self.queues.get_mut(&gate)?;
        let run = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&gate);
        }
        let run = run?;
        self.queued.remove(&(gate.clone(), run));
        self.undo.push(Undo::Popped(gate, run));
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
                        self.counts.remove(&flight.server, flight.definition);
                    }
                }
                Undo::Arrived(id, flight) => {
                    self.counts.add(&flight.server, flight.definition);
                    self.flights.insert(id, flight);
                }
                Undo::Call(key, Some(id)) => {
                    self.calls.insert(key, id);
                }
                Undo::Call(key, None) => {
                    self.calls.remove(&key);
                }
                Undo::Queued(gate, run) => self.leave_queue(&gate, run),
                Undo::Popped(gate, run) => {
                    if self.queued.insert((gate.clone(), run)) {
                        self.queues.entry(gate).or_default().push_front(run);
                    }
                }
            }
        }
        self.reserved.clear();
    }
}

impl Flights {
    fn leave_queue(&mut self, gate: &Gate, run: RunKey) {
        self.queued.remove(&(gate.clone(), run));
        if let Some(queue) = self.queues.get_mut(gate) {
            queue.retain(|queued| *queued != run);
            if queue.is_empty() {
                self.queues.remove(gate);
            }
        }
    }
}

/// The server that a tool belongs to.
pub(super) fn server_of(tool: &str) -> &str {
    tool.split_once("__").map_or(tool, |(server, _)| server)
}
