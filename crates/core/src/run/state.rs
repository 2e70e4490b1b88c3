//! The state of a run: positions, phases and counters, derived from its events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::approval::{Approver, Cover};
use super::owed::{Owing, Scratch, Transition, Turn, Urgency};
use super::parts::{Ending, InputResponse, PauseReason, ScopeKey, StepRef, TimerKind};
use super::{Failure, Millis, Phase};
use crate::expr::StepIx;
use crate::plan::{GateRules, Hash};

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
    /// The run is created and has no events.
    #[default]
    Pending,
    /// The run is in progress.
    Running,
    /// The run was paused by a user, or waits only for humans.
    Paused,
    /// The run ended successfully.
    Completed,
    /// The run ended with a failure.
    Failed,
    /// The run was cancelled.
    Cancelled,
    /// The engine restarted, and the run waits to be resumed.
    Interrupted,
}

impl RunStatus {
    /// Every status.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Running,
        Self::Paused,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Interrupted,
    ];

    /// Whether the run has ended.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Cancelled => true,
            Self::Pending | Self::Running | Self::Paused | Self::Interrupted => false,
        }
    }

    /// The name of the status in rows and on every surface.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Parses the name of a status.
    pub fn from_name(name: &str) -> Option<Self> {
        name.parse().ok()
    }
}

/// The status of one attempt of a step.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
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
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether the attempt has ended.
    pub fn is_end(self) -> bool {
        match self {
            Self::Done | Self::Failed | Self::Skipped | Self::Cancelled => true,
            Self::Pending | Self::Ready | Self::Running | Self::Waiting | Self::Uncertain => false,
        }
    }
}

/// The state of a run. The default is a run without events.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Run {
    pub(super) status: RunStatus,
    pub(super) paused: Option<PauseReason>,
    /// The incarnation of the restored database that last interrupted the run.
    pub(super) restored: Option<u64>,
    /// Why the run failed, while the steps of `on_failure` run.
    pub(super) failing: Option<Failure>,
    /// Why the run is cancelled, while its steps are cancelled in several decisions.
    pub(super) cancelling: Option<Cancelling>,
    /// Block executions that have not ended. In boxes, because a node of a map has room for eleven entries and most runs
    /// have one.
    pub(super) scopes: BTreeMap<ScopeKey, Box<BlockState>>,
    /// Executions that have not ended, in the order of their start.
    pub(super) live: BTreeMap<u32, Box<Live>>,
    /// The same executions by their block.
    pub(super) members: BTreeSet<(ScopeKey, u32)>,
    /// The same executions by their path.
    pub(super) paths: BTreeMap<Arc<str>, u32>,
    /// Blocks and steps that have a transition to make, in this order.
    pub(super) owed: BTreeSet<Turn>,
    /// The turn of each.
    pub(super) turns: BTreeMap<Owing, Turn>,
    /// Executions that ended and whose conditional transition is still to be chosen, with their block.
    pub(super) choices: BTreeMap<u32, ScopeKey>,
    /// Executions that can start as soon as they are admitted.
    pub(super) ready: BTreeSet<ReadyKey>,
    /// Number of the last execution.
    pub(super) last_n: u32,
    /// Number of executions that wait for a human.
    pub(super) attention: u32,
    /// Number of executions that continue without a human.
    pub(super) moving: u32,
    /// Number of calls in flight.
    pub(super) calls: u32,
    /// Calls that approvals of earlier gates cover, until they are made.
    pub(super) covered: Vec<Cover>,
    /// Sub-workflows that were approved: id of the step and hash of the version; `None` if there was no version.
    pub(super) approved_workflows: BTreeMap<Box<str>, Option<Hash>>,
    /// Buffered signals: name and sequence number.
    pub(super) signals: VecDeque<(Box<str>, u64)>,
    /// Arguments that a human set: path of the execution and sequence number of the event.
    pub(super) edits: BTreeMap<Box<str>, u64>,
    /// Values that a human replaced: the step (`None` for the inputs) and sequence number of the event.
    pub(super) overrides: BTreeMap<Option<StepIx>, u64>,
    /// Calls that may still return a result after their step stopped waiting: execution and attempt, with the path.
    pub(super) abandoned: BTreeMap<(u32, u32), Arc<str>>,
    /// Sequence number of the last event.
    pub(super) seq: u64,
    /// What the last decision left for the next one. Not a part of the state.
    pub(super) scratch: Scratch,
}

/// Why a run is cancelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cancelling {
    pub reason: Box<str>,
    pub by: Option<Box<str>>,
}

/// Orders ready executions. One that waits for the same server or slot as the previous one directly follows it, so
/// that all of them can be skipped at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ReadyKey {
    /// Whether it waits for a slot, and not for its server.
    pub for_slot: bool,
    pub step: StepIx,
    pub n: u32,
}

/// The state of a block execution.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct BlockState {
    /// Transitions that follow from the start of the block and from steps that ended, in order.
    pub owed: VecDeque<Transition>,
    /// Why the block fails: its executions are cancelled, then it ends.
    pub failing: Option<Box<Failure>>,
    /// How the steps of the block ended.
    pub done: BTreeMap<StepIx, Done>,
    /// Number of executions per step.
    pub visits: BTreeMap<StepIx, u32>,
    /// The execution whose output is the output of the block.
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

/// The state of an execution that has not ended.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent")]
pub struct Live {
    /// The step in the plan.
    pub step: StepIx,
    /// The block execution that contains the step.
    pub scope: ScopeKey,
    /// Path of the execution.
    pub path: Arc<str>,
    /// Number of the current attempt, from 1.
    pub attempt: u32,
    /// What the execution is doing.
    pub phase: Phase,
    /// Whether it has a timer in the store.
    pub timer: bool,
    /// The deadline of its call in flight.
    pub deadline: Option<(TimerKind, Millis)>,
    /// Whether it holds an idempotency key in the store.
    pub claim: bool,
    /// Whether a human approved it.
    pub approved: bool,
    /// The users who approved it, or have approved so far.
    pub approvers: Vec<Approver>,
    /// The rules of the gate at which it was approved, and the number of escalations then, if there were any.
    pub escalated: Option<Box<(GateRules, u32)>>,
    /// Hash of the description of the tool whose call was approved.
    pub approved_tool: Option<Hash>,
    /// The idempotency key of its call, if the definition has a template for it.
    pub key: Option<Box<str>>,
    /// Whether its missing tool was created.
    pub created: bool,
    /// Id of its call's task at the server.
    pub task: Option<Box<str>>,
    /// The response to the last input request of its tool; without an answer while the request is open.
    pub input_response: Option<Box<InputResponse>>,
    /// Number of attempts that a restart of the engine interrupted. They do not count against the retry policy.
    pub restarts: u32,
    /// Whether a restart of the engine interrupted the call whose outcome is unknown.
    pub restarted: bool,
    /// Number of probes for the call of this attempt.
    pub probes: u32,
    /// Number of times that the call of this attempt was rejected or could not be sent.
    pub refusals: u32,
    /// When its wait for the server expires.
    pub wait_until: Option<Millis>,
    /// Whether a human denied it, or its approval expired.
    pub denied: bool,
    /// Whether its approval expired, and the run continues at the step that `on_timeout` names.
    pub goes_elsewhere: bool,
    /// How it ends after the executions in its blocks are cancelled.
    pub ending: Option<Box<Ending>>,
}

impl Live {
    /// The level of these rules that was reached when it was approved. An approval at a gate with other rules reached none.
    pub(super) fn approved_level(&self, rules: &GateRules) -> u32 {
        let same = self.escalated.as_ref().filter(|escalated| escalated.0 == *rules);
        same.map_or(0, |escalated| escalated.1)
    }

    pub(super) fn new(step: StepIx, scope: ScopeKey, at: &StepRef) -> Self {
        Self {
            step,
            scope,
            path: at.path.clone(),
            attempt: at.attempt,
            phase: Phase::Passing,
            timer: false,
            deadline: None,
            claim: false,
            approved: false,
            approvers: Vec::new(),
            escalated: None,
            approved_tool: None,
            key: None,
            created: false,
            task: None,
            input_response: None,
            restarts: 0,
            restarted: false,
            probes: 0,
            refusals: 0,
            wait_until: None,
            denied: false,
            goes_elsewhere: false,
            ending: None,
        }
    }

    pub(super) fn step_ref(&self, n: u32) -> StepRef {
        StepRef { n, path: self.path.clone(), attempt: self.attempt }
    }

    /// The state of an input request that waits for an answer.
    pub(super) fn open_request(&self) -> Option<&serde_json::Value> {
        let is_gate = matches!(self.phase, Phase::Gate { .. });
        self.input_response.as_ref().filter(|_| is_gate).map(|response| &response.state)
    }

    /// The id of the run that the execution waits for.
    pub(super) fn child(&self) -> Option<&str> {
        if let Phase::Child { run } = &self.phase { Some(run) } else { None }
    }

    /// The number of attempts that count against the retry policy, including the current one.
    pub fn counted_attempts(&self) -> u32 {
        self.attempt.saturating_sub(self.restarts)
    }
}

impl Run {
    /// The status of the run.
    pub fn status(&self) -> RunStatus {
        self.status
    }

    /// The sequence number of the last event.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The executions that have not ended, in the order of their start.
    pub fn live(&self) -> &BTreeMap<u32, Box<Live>> {
        &self.live
    }

    /// Whether a step waits for a human.
    pub fn needs_attention(&self) -> bool {
        self.attention > 0
    }

    /// Whether no steps may start: a user paused the run, or a restart interrupted it.
    pub fn is_held(&self) -> bool {
        matches!(self.paused, Some(PauseReason::Requested | PauseReason::RequestedByAgent))
            || self.status == RunStatus::Interrupted
    }

    /// Whether a person paused the run. An agent cannot resume it.
    pub fn is_paused_by_person(&self) -> bool {
        self.paused == Some(PauseReason::Requested)
    }

    /// Whether the engine has work to do: transitions to make, calls in flight, or steps that wait for a slot.
    pub fn is_active(&self) -> bool {
        !self.status.is_terminal()
            && self.status != RunStatus::Interrupted
            && (self.owes_transition() || self.calls > 0 || self.has_startable())
    }

    /// Whether steps are ready and may start.
    pub fn has_startable(&self) -> bool {
        !self.ready.is_empty() && !self.is_held()
    }

    /// Whether the last decision reached its limit, so that [`super::Input::Continue`] is due after other runs had their
    /// turn.
    pub fn owes_continuation(&self) -> bool {
        self.owes_transition() || self.scratch.has_untried
    }

    /// Whether a transition follows from the log that is not in it yet.
    pub(super) fn owes_transition(&self) -> bool {
        self.cancelling.is_some() || !self.owed.is_empty()
    }

    /// Whether the next transition cancels steps, because the run, a step or a block ends early.
    pub fn is_ending(&self) -> bool {
        self.cancelling.is_some() || self.owed.first().is_some_and(|turn| turn.urgency == Urgency::Ends)
    }

    /// Whether the run is being cancelled in several decisions.
    pub fn is_cancelling(&self) -> bool {
        self.cancelling.is_some()
    }

    /// The execution `n` and all executions in its blocks.
    pub fn within(&self, n: u32) -> Vec<(u32, &Live)> {
        let mut found: Vec<u32> = vec![n];
        let mut at = 0;
        while let Some(n) = found.get(at).copied() {
            found.extend(self.members_of(n));
            at += 1;
        }
        found.into_iter().filter_map(|n| Some((n, &**self.live.get(&n)?))).collect()
    }

    /// The calls in flight according to the log, which recovery treats as lost.
    pub fn calls(&self) -> impl Iterator<Item = (u32, &Live)> {
        self.live.iter().filter(|(_, live)| live.phase.is_call()).map(|(n, live)| (*n, &**live))
    }

    /// The approval of an earlier gate that covers a call with these arguments.
    pub fn cover(&self, step: StepIx, args: Hash) -> Option<&Cover> {
        self.covered.iter().find(|cover| cover.step == step && cover.args == args)
    }

    /// Finds the execution with a path, if it has not ended.
    pub fn find(&self, path: &str) -> Option<(u32, &Live)> {
        let n = *self.paths.get(path)?;
        Some((n, self.live.get(&n)?))
    }

    /// Whether the run has ended or can continue. Every run satisfies this after every decision.
    pub fn has_future(&self) -> bool {
        self.status.is_terminal() || !self.live.is_empty() || self.owes_transition()
    }

    pub(super) fn step_ref(&self, n: u32) -> Option<StepRef> {
        Some(self.live.get(&n)?.step_ref(n))
    }
}
