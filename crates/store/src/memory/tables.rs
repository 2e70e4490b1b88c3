//! The tables of the in-memory store.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use steprail_core::plan::Hash;
use steprail_core::run::{Event, Millis, Payload, StepStatus, TimerKind};

use super::outbox::OutboxTables;
use super::policy::PolicyTables;
use crate::{
    AccountKind, Approval, ClaimKey, Cursor, Definition, NewRun, Proposal, RowContent, RunId, RunState,
    Schedule, Session, StoreError, StoredEvent, log_row,
};

/// Everything that is stored. A commit changes a copy. Copies share the rows of the log and the runs that did not change.
#[derive(Debug, Clone)]
pub(super) struct Tables {
    /// The log of all runs. The number of a row is its position, from 1.
    pub log: Vec<Arc<LogEntry>>,
    /// The hash of the last row of the log.
    pub chain: Hash,
    /// Runs by their keys, which count up in the order of creation.
    pub runs: BTreeMap<i64, Arc<RunTables>>,
    pub keys: BTreeMap<RunId, i64>,
    pub last_run: i64,
    pub last_approval: i64,
    pub definitions: BTreeMap<i64, DefinitionRow>,
    pub proposals: BTreeMap<String, Proposal>,
    pub claims: BTreeMap<ClaimKey, ClaimRow>,
    pub schedules: BTreeMap<String, Schedule>,
    pub accounts: BTreeMap<(AccountKind, String), String>,
    /// Sessions, with the times of their creation.
    pub sessions: BTreeMap<String, (Session, Millis)>,
    pub policy: PolicyTables,
    pub outbox: OutboxTables,
}

impl Default for Tables {
    fn default() -> Self {
        Self {
            log: Vec::new(),
            chain: Hash([0; 32]),
            runs: BTreeMap::new(),
            keys: BTreeMap::new(),
            last_run: 0,
            last_approval: 0,
            policy: PolicyTables::default(),
            outbox: OutboxTables::default(),
            definitions: BTreeMap::new(),
            proposals: BTreeMap::new(),
            claims: BTreeMap::new(),
            schedules: BTreeMap::new(),
            accounts: BTreeMap::new(),
            sessions: BTreeMap::new(),
        }
    }
}

impl Tables {
    pub(super) fn run(&self, run: RunId) -> Result<&Arc<RunTables>, StoreError> {
        let found = self.keys.get(&run).and_then(|key| self.runs.get(key));
        found.ok_or_else(|| StoreError::Corrupt(format!("run {run} is missing")))
    }

    pub(super) fn run_mut(&mut self, run: RunId) -> Result<&mut RunTables, StoreError> {
        let found = self.keys.get(&run).and_then(|key| self.runs.get_mut(key));
        found.map(Arc::make_mut).ok_or_else(|| StoreError::Corrupt(format!("run {run} is missing")))
    }

    /// Rows of the log with their numbers.
    pub(super) fn log_rows(&self) -> impl Iterator<Item = (i64, &LogEntry)> {
        (1..).zip(self.log.iter().map(Arc::as_ref))
    }

    /// The events of a run.
    pub(super) fn events(&self, run: RunId) -> Result<Vec<StoredEvent>, StoreError> {
        let mut events = Vec::new();
        for (id, row) in self.log_rows().filter(|(_, row)| row.run == run) {
            events.extend(row.stored_events(id)?);
        }
        Ok(events)
    }
}

/// A row of the log: the events of one decision.
#[derive(Debug, Clone)]
pub struct LogEntry {
    /// The run.
    pub run: RunId,
    /// The number of the first event in the run.
    pub seq: u64,
    /// The number of events.
    pub count: u32,
    /// When the events happened.
    pub at: Millis,
    /// The events in the encoding of the log; empty if the run was purged.
    pub body: String,
    /// The hashes that the body refers to; the digest of the row if the run was purged.
    pub hashes: Vec<u8>,
    /// The hash of the row.
    pub hash: Hash,
    /// The decoded events.
    pub(super) events: OnceLock<Vec<Event>>,
}

impl LogEntry {
    /// The content that the hash chain covers.
    pub fn content(&self) -> RowContent<'_> {
        RowContent { run: self.run, seq: self.seq, at: self.at, body: &self.body, hashes: &self.hashes }
    }

    /// The events, decoded from the row.
    pub fn events(&self) -> Result<&[Event], StoreError> {
        if let Some(events) = self.events.get() {
            return Ok(events);
        }
        let events = log_row::events(&self.body, &self.hashes)?;
        Ok(self.events.get_or_init(|| events))
    }

    pub(super) fn stored_events(&self, id: i64) -> Result<impl Iterator<Item = StoredEvent>, StoreError> {
        let events = self.events()?;
        Ok((0..).zip(events).map(move |(index, event)| StoredEvent {
            cursor: Cursor::new(id, index),
            run: self.run,
            seq: self.seq + u64::from(index),
            at: self.at,
            event: event.clone(),
            hash: self.hash,
        }))
    }

    /// The position directly after the last event.
    pub(super) fn end(&self, id: i64) -> Cursor {
        Cursor::new(id, self.count.saturating_sub(1))
    }
}

/// The rows of a run.
#[derive(Debug, Clone)]
pub struct RunTables {
    /// The run.
    pub id: RunId,
    /// Its status, and whether the engine has work to do on it.
    pub state: RunState,
    /// The number of its events.
    pub seq: u64,
    /// Attempts of steps, by execution and attempt.
    pub steps: BTreeMap<(u32, u32), StepEntry>,
    /// Timers, by execution and kind.
    pub timers: BTreeMap<(u32, TimerKind), TimerRow>,
    /// The event or key that an execution waits for.
    pub waits: BTreeMap<u32, String>,
    /// Approvals, oldest first.
    pub approvals: BTreeMap<i64, Approval>,
    pub(super) key: i64,
    /// Name of the definition.
    pub(super) name: String,
    /// Version of the definition.
    pub(super) version: u32,
    pub(super) new: NewRun,
    /// The principal as it is stored: some of its fields are not.
    pub(super) principal: String,
    pub(super) output: Option<Payload>,
    pub(super) error: Option<String>,
    pub(super) created_at: Millis,
    pub(super) updated_at: Millis,
    pub(super) completed_at: Option<Millis>,
    pub(super) stored_bytes: u64,
}

/// An attempt of a step.
#[derive(Debug, Clone)]
pub struct StepEntry {
    /// The path of the execution.
    pub path: Arc<str>,
    /// The status.
    pub status: StepStatus,
    /// Full name of the tool that it calls.
    pub tool: Option<String>,
    /// Its input.
    pub input: Option<Payload>,
    /// When it started.
    pub started_at: Option<Millis>,
    /// When it ended.
    pub completed_at: Option<Millis>,
    pub(super) id: Box<str>,
    pub(super) kind: Box<str>,
    /// Its output.
    pub output: Option<Payload>,
    pub(super) error: Option<String>,
    pub(super) ready_at: Option<Millis>,
}

/// A timer of an execution.
#[derive(Debug, Clone, Copy)]
pub struct TimerRow {
    /// When it is due.
    pub due: Millis,
    /// Whether it is held: its run is interrupted.
    pub held: bool,
}

/// An idempotency key.
#[derive(Debug, Clone)]
pub struct ClaimRow {
    pub(super) args: Hash,
    pub(super) run: RunId,
    pub(super) n: u32,
    pub(super) ttl_secs: Option<u64>,
    /// The output of the call; `None` while a step holds the key.
    pub(super) result: Option<Payload>,
    pub(super) expires_at: Option<Millis>,
}

impl ClaimRow {
    pub(super) fn is_expired(&self, now: Millis) -> bool {
        self.result.is_some() && self.expires_at.is_some_and(|expires_at| expires_at <= now)
    }
}

/// A version of a definition.
#[derive(Debug, Clone)]
pub(super) struct DefinitionRow {
    pub definition: Definition,
    pub published: bool,
    /// Whether it was never offered: it is part of the request that started a run.
    pub hidden: bool,
}
