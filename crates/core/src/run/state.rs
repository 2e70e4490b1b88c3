//! Where a run stands: positions and small facts, folded from its events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::parts::{InputResponse, PauseReason, ScopeKey, StepRef};
use super::{Failure, Millis};
use crate::expr::StepIx;

/// The status of a run.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::IntoStaticStr,
    strum::EnumString,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RunStatus {
    /// Created; its first event is still to come.
    #[default]
    Pending,
    /// It goes on by itself.
    Running,
    /// It waits for somebody to act.
    Paused,
    /// The end: done.
    Completed,
    /// The end: failed.
    Failed,
    /// The end: stopped.
    Cancelled,
    /// The engine restarted; it waits to be resumed.
    Interrupted,
}

impl RunStatus {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Running,
        Self::Paused,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Interrupted,
    ];

    /// Whether nothing can happen to the run any more.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    /// The name of the status in rows and on every surface.
    pub fn word(self) -> &'static str {
        self.into()
    }

    /// The status with a name.
    pub fn from_word(word: &str) -> Option<Self> {
        word.parse().ok()
    }
}

/// The status of one attempt of a step.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::IntoStaticStr,
    strum::EnumString,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum StepStatus {
    Pending,
    Ready,
    Running,
    Waiting,
    Done,
    Failed,
    Skipped,
    Cancelled,
    Uncertain,
}

impl StepStatus {
    /// The name of the status in rows and on every surface.
    pub fn word(self) -> &'static str {
        self.into()
    }

    /// Whether the attempt has ended.
    pub fn is_end(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Skipped | Self::Cancelled)
    }
}

/// A run. The default is one that has not started.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Run {
    pub(super) status: RunStatus,
    pub(super) paused: Option<PauseReason>,
    /// Why it failed, while `on_failure` runs.
    pub(super) failing: Option<Failure>,
    /// Blocks that are being run.
    pub(super) scopes: BTreeMap<ScopeKey, BlockState>,
    /// Executions that have not ended, in the order in which they began.
    pub(super) live: BTreeMap<u32, Live>,
    /// Executions that may begin as soon as they are let.
    pub(super) ready: BTreeSet<u32>,
    /// The number of the last execution.
    pub(super) last_n: u32,
    /// Executions that only humans can move on.
    pub(super) attention: u32,
    /// Executions that move on by themselves.
    pub(super) moving: u32,
    /// Calls in flight.
    pub(super) calls: u32,
    /// Signals that no step has waited for yet: the event's name, and the number of the event in the log.
    pub(super) signals: VecDeque<(Box<str>, u64)>,
    /// Arguments that a human set: the step's path, and the number of the event in the log.
    pub(super) edits: BTreeMap<Box<str>, u64>,
    /// Values that a human set: the step (none for the inputs), and the number of the event in the log.
    pub(super) sets: BTreeMap<Option<StepIx>, u64>,
    /// Calls that were left to themselves and may still answer: execution and attempt, with the path.
    pub(super) cut: BTreeMap<(u32, u32), Arc<str>>,
    /// How many events there are.
    pub(super) seq: u64,
}

/// A block that is being run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct BlockState {
    /// Executions in it that have not ended.
    pub live: BTreeSet<u32>,
    /// How steps in it ended.
    pub done: BTreeMap<StepIx, Done>,
    /// How often steps in it began.
    pub visits: BTreeMap<StepIx, u32>,
    /// The execution whose output is the block's.
    pub last: Option<u32>,
    /// The step of that execution.
    pub last_step: Option<StepIx>,
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Done {
    pub n: u32,
    pub status: StepStatus,
}

/// An execution that has not ended.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "facts that have nothing to do with one another")]
pub struct Live {
    /// The step.
    pub step: StepIx,
    /// The block that it stands in.
    pub scope: ScopeKey,
    /// Its path.
    pub path: Arc<str>,
    /// Its attempt.
    pub attempt: u32,
    /// What it is doing.
    pub phase: Phase,
    /// Whether it has an timer in the store.
    pub timer: bool,
    /// Whether it holds an idempotency key in the store.
    pub claim: bool,
    /// Whether it was let through by a human.
    pub approved: bool,
    /// The idempotency key that its call was made with, where the definition has a template for it.
    pub key: Option<Box<str>>,
    /// Whether its tool was created for it.
    pub created: bool,
    /// The name that its call goes by at the tool's server.
    pub task: Option<Box<str>>,
    /// What its tool asked, and what a human said.
    pub asked: Option<Box<InputResponse>>,
    /// Attempts that a restart of the engine cut off; they do not count against the retry policy.
    pub restarts: u32,
    /// Whether a restart of the engine cut off the call whose outcome is unknown.
    pub restarted: bool,
    /// Times that a probe was asked what became of the call of this attempt.
    pub probes: u32,
    /// Times that its server refused the call of this attempt before it was sent.
    pub refusals: u32,
    /// When it stops waiting for its server and fails.
    pub wait_until: Option<Millis>,
}

impl Live {
    pub(super) fn new(step: StepIx, scope: ScopeKey, at: &StepRef) -> Self {
        Self {
            step,
            scope,
            path: at.path.clone(),
            attempt: at.attempt,
            phase: Phase::Passing,
            timer: false,
            claim: false,
            approved: false,
            key: None,
            created: false,
            task: None,
            asked: None,
            restarts: 0,
            restarted: false,
            probes: 0,
            refusals: 0,
            wait_until: None,
        }
    }

    pub(super) fn step_ref(&self, n: u32) -> StepRef {
        StepRef { n, path: self.path.clone(), attempt: self.attempt }
    }

    /// Attempts so far that count against the retry policy, the current one included.
    pub fn counted_attempts(&self) -> u32 {
        self.attempt.saturating_sub(self.restarts)
    }
}

/// What an execution is doing.
#[derive(Debug, Clone, PartialEq)]
pub enum Phase {
    /// It may begin as soon as it is let.
    Ready,
    /// It waits for a human's yes.
    Gate {
        /// When the time to answer is up.
        until: Option<Millis>,
        /// Further notices so far.
        level: u32,
        /// What the decision is bound to.
        digest: crate::plan::Hash,
    },
    /// A call is in flight.
    Calling,
    /// A call was told to stop.
    Stopping,
    /// A tool is asked whether the call took place.
    Verifying,
    /// Another tool is asked to create the one that it calls.
    Creating,
    /// It waits for the next attempt.
    Backoff {
        /// When it begins.
        due: Millis,
    },
    /// The outcome of its call is unknown.
    Uncertain,
    /// Another step holds its idempotency key.
    KeyWait,
    /// Its server cannot take its call now.
    ServerWait {
        /// When the call is tried again; without it, as soon as the server is available.
        due: Option<Millis>,
    },
    /// It waits for a time.
    Sleeping {
        /// Until when.
        due: Millis,
    },
    /// It waits for an event.
    Waiting {
        /// The event's name.
        event: Box<str>,
        /// What it must carry.
        correlate: Option<serde_json::Value>,
    },
    /// It waits for another run.
    Child {
        /// The run.
        run: Box<str>,
    },
    /// Its blocks are being run.
    Blocks(Progress),
    /// It is about to end.
    Passing,
}

impl Phase {
    /// Whether only humans can move it on.
    pub(super) fn needs_attention(&self) -> bool {
        matches!(self, Self::Gate { .. } | Self::Uncertain)
    }

    /// Whether it may begin as soon as a slot is free.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self, Self::Ready | Self::ServerWait { due: None })
    }

    /// Whether a call is in flight.
    pub(super) fn is_call(&self) -> bool {
        matches!(self, Self::Calling | Self::Stopping | Self::Verifying | Self::Creating)
    }
}

/// How far the blocks of an execution are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// How many blocks there are to run.
    pub total: u32,
    /// The first that was not entered yet.
    pub next: u32,
    /// How many have ended.
    pub ended: u32,
    /// Those that are being run.
    pub(super) open: BTreeSet<u32>,
    /// How those that ended did: the execution that gave the result, or why there is none.
    pub(super) results: BTreeMap<u32, Result<Option<u32>, Failure>>,
}

impl Run {
    /// Its status.
    pub fn status(&self) -> RunStatus {
        self.status
    }

    /// How many events there are.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Executions that have not ended, in the order in which they began.
    pub fn live(&self) -> &BTreeMap<u32, Live> {
        &self.live
    }

    /// Whether something in it needs a human.
    pub fn needs_attention(&self) -> bool {
        self.attention > 0
    }

    /// Whether nothing new may begin in it: somebody paused it, or a restart interrupted it.
    pub fn is_held(&self) -> bool {
        self.paused == Some(PauseReason::Requested) || self.status == RunStatus::Interrupted
    }

    /// Whether the engine has work with it now: calls in flight, or steps that wait for a place.
    pub fn is_active(&self) -> bool {
        let held = self.is_held();
        !self.status.is_terminal()
            && self.status != RunStatus::Interrupted
            && (self.calls > 0 || (!self.ready.is_empty() && !held))
    }

    /// Whether an execution is another one, or runs inside it.
    pub fn is_within(&self, n: u32, other: u32) -> bool {
        let around = |n: &u32| self.live.get(n).map(|live| live.scope.n);
        std::iter::successors(Some(n), around).any(|n| n == other)
    }

    /// Executions that may begin as soon as they are let.
    pub fn ready(&self) -> impl Iterator<Item = u32> + '_ {
        self.ready.iter().copied()
    }

    /// Calls in flight, as the log has it: what was being done when an engine died.
    pub fn calls(&self) -> impl Iterator<Item = (u32, &Live)> {
        self.live.iter().filter(|(_, live)| live.phase.is_call()).map(|(n, live)| (*n, live))
    }

    /// The execution with a path, if it has not ended.
    pub fn find(&self, path: &str) -> Option<(u32, &Live)> {
        self.live.iter().find(|(_, live)| &*live.path == path).map(|(n, live)| (*n, live))
    }

    /// Whether the run could go on: what every run must have that has not ended.
    pub fn has_future(&self) -> bool {
        self.status.is_terminal() || !self.live.is_empty()
    }

    pub(super) fn step_ref(&self, n: u32) -> Option<StepRef> {
        Some(self.live.get(&n)?.step_ref(n))
    }
}
