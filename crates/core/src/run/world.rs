//! The interface of the state machine to its surroundings: time, randomness, stored values and admission.

use std::sync::Arc;

use serde_json::Value;

use super::approval::Starter;
use super::changes::Changes;
use super::event::Event;
use super::parts::{StepRef, TimerKind};
use super::policy::{JudgedCall, Judgement};
use super::state::RunStatus;
use super::{Failure, Millis, Payload};
use crate::budget::Budget;
use crate::expr::{Ambient, StepIx};
use crate::plan::{Hash, Workflow};
use crate::spec::policy::{Effects, KeyScope, OnUncertain};

/// Everything that a decision reads besides its input. Decisions are deterministic: the same return values
/// produce the same events.
pub trait World {
    /// Returns the current time.
    fn now(&self) -> Millis;
    /// Returns a random number from 0 to 1.
    fn random(&mut self) -> f64;
    /// Returns the inputs of the run.
    fn inputs(&mut self) -> Result<Payload, WorldError>;
    /// Returns the output of an execution.
    fn output(&mut self, n: u32) -> Result<Payload, WorldError>;
    /// Returns the input of an execution: its arguments, or the items of a `foreach`.
    fn input(&mut self, n: u32) -> Result<Payload, WorldError>;
    /// Returns the failure of an execution, as JSON.
    fn error(&mut self, n: u32) -> Result<Payload, WorldError>;
    /// Returns the value that is stored in an event: a signal's payload, edited arguments or a replaced value.
    fn event_value(&mut self, seq: u64) -> Result<Payload, WorldError>;
    /// Returns the environment variables that definitions can read, as a map.
    fn env(&self) -> Arc<Value>;
    /// Returns a built-in value of the run, such as its id.
    fn ambient(&self, what: Ambient) -> Value;
    /// Returns the user who started the run.
    fn starter(&self) -> Starter;
    /// Returns a hash of the description and schemas of a tool as they are now, if the tool is known.
    fn pin(&self, tool: &str) -> Option<Hash>;
    /// Returns the hash of the definition that a `workflow` step would run now.
    fn workflow_hash(&mut self, workflow: &Workflow) -> Result<Option<Hash>, WorldError>;
    /// Returns the annotations of a tool. Unknown tools are unannotated.
    fn annotations(&self, tool: &str) -> Annotations;
    /// Returns the tool that creates missing tools, if one is configured.
    fn provider(&self) -> Option<Box<str>>;
    /// Requests admission for a call of a tool. A granted call holds a concurrency slot.
    fn admit(&mut self, tool: &str, path: &str) -> Admission;
    /// Releases the slot that was granted last, because no call was made with it.
    fn release(&mut self);
    /// Returns the default idempotency key of an execution.
    fn key(&self, path: &str) -> Box<str>;
    /// Judges a call by the policy and applies its limits. The evaluation of conditions is charged to the budget.
    fn judge(&mut self, call: &JudgedCall<'_>, budget: &mut Budget) -> Result<Judgement, WorldError>;
    /// Claims an idempotency key.
    fn claim(&mut self, claim: &Claim<'_>) -> Result<Claimed, WorldError>;
    /// Returns the result of the call with the same path and arguments in the run that this one repeats.
    fn reuse(&mut self, path: &str, args: Hash) -> Result<Option<Payload>, WorldError>;
    /// Creates a run of another workflow and returns its id. It starts when the decision is committed. The check of its
    /// inputs is charged to the budget.
    fn spawn(
        &mut self,
        child: &Child<'_>,
        budget: &mut Budget,
    ) -> Result<Result<Box<str>, Failure>, WorldError>;
}

/// The result of an admission check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// The call can be sent and holds a concurrency slot.
    Granted,
    /// All slots of the tool's server are in use. Other servers may have free slots.
    ToolFull,
    /// All slots of the engine or of the definition are in use.
    Full,
    /// The tool's server cannot accept calls now, for this reason.
    Unavailable(Box<str>),
}

/// The store failed. The decision must be discarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorldError(pub String);

/// The annotations of a tool, as far as its server declares them, and what the server supports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Annotations {
    /// `readOnlyHint`: the tool changes nothing.
    pub read_only: Option<bool>,
    /// `idempotentHint`: repeating a call has no further effect.
    pub idempotent: Option<bool>,
    /// `destructiveHint`: the tool may perform destructive updates.
    pub destructive: Option<bool>,
    /// `openWorldHint`: the tool interacts with external entities.
    pub open_world: Option<bool>,
    /// Whether the server deduplicates calls by the idempotency key in `_meta`.
    pub honours_key: bool,
    /// The `onUncertain` policy of the server's config entry, for calls with an unknown outcome.
    pub on_uncertain: Option<OnUncertain>,
}

impl Annotations {
    /// A tool that is annotated as read-only.
    pub const READ_ONLY: Self = Self { read_only: Some(true), ..Self::UNANNOTATED };
    /// A tool that is annotated as idempotent.
    pub const IDEMPOTENT: Self = Self { idempotent: Some(true), ..Self::UNANNOTATED };
    /// A tool without annotations.
    pub const UNANNOTATED: Self = Self {
        read_only: None,
        idempotent: None,
        destructive: None,
        open_world: None,
        honours_key: false,
        on_uncertain: None,
    };

    /// Whether the tool changes nothing. The protocol's default is no.
    pub fn is_read_only(&self) -> bool {
        self.read_only == Some(true)
    }

    /// Whether repeating a call has no further effect. The protocol's default is no.
    pub fn is_idempotent(&self) -> bool {
        self.is_read_only() || self.idempotent == Some(true)
    }

    /// Whether the tool may perform destructive updates. The protocol's default is yes.
    pub fn is_destructive(&self) -> bool {
        !self.is_read_only() && self.destructive != Some(false)
    }

    /// Whether the tool interacts with external entities. The protocol's default is yes.
    pub fn is_open_world(&self) -> bool {
        self.open_world != Some(false)
    }

    /// Whether a step can safely repeat a call with an unknown outcome. `effects` counts only where the tool has
    /// no annotation.
    pub fn is_repeatable(&self, effects: Option<Effects>) -> bool {
        match effects {
            Some(Effects::Read) => self.read_only.unwrap_or(true) || self.is_idempotent(),
            Some(Effects::Idempotent) => self.idempotent.unwrap_or(true) || self.is_idempotent(),
            Some(Effects::Once) => false,
            None => self.is_idempotent(),
        }
    }

    /// Whether `effects` on a step contradicts the tool's annotations.
    pub fn contradicts(&self, effects: Effects) -> bool {
        match effects {
            Effects::Read => self.read_only == Some(false),
            Effects::Idempotent => !self.is_read_only() && self.idempotent == Some(false),
            Effects::Once => self.is_idempotent(),
        }
    }
}

/// A request to claim an idempotency key.
#[derive(Debug, Clone)]
pub struct Claim<'c> {
    /// The attempt that claims the key.
    pub step: &'c StepRef,
    /// Where the key has to be unique.
    pub scope: KeyScope,
    /// Full name of the tool that is called.
    pub tool: &'c str,
    /// The idempotency key.
    pub key: &'c str,
    /// Hash of the arguments, to detect reuse of the key with different arguments.
    pub args: Hash,
    /// How long the result is kept under the key, in seconds.
    pub ttl_secs: Option<u64>,
}

/// The result of a claim.
#[derive(Debug, Clone, PartialEq)]
pub enum Claimed {
    /// The step holds the key and can make the call.
    Taken,
    /// The stored result of an earlier call with the same key and arguments.
    Hit(Payload),
    /// Another step holds the key. Contains the name to wait for.
    Busy(Box<str>),
    /// The key was claimed with different arguments.
    Conflict,
    /// The principal of the run may not call the tool, so it does not learn the result either. Contains the reason.
    Denied(Box<str>),
}

/// A run to create for a `workflow` step.
#[derive(Debug, Clone)]
pub struct Child<'c> {
    /// The step that waits for the run.
    pub step: &'c StepRef,
    /// The step in the plan, which names the definition to run.
    pub workflow: &'c Workflow,
    /// Inputs of the run, before defaults are filled in.
    pub inputs: &'c Payload,
}

/// An event, with the facts that the store and the kernel need to process it.
#[derive(Debug, Clone)]
pub struct Record {
    /// The event to append to the log.
    pub event: Event,
    /// The payload that the event refers to by its hash: an output, arguments or items.
    pub payload: Option<Payload>,
    /// Whether the step had a timer before this event.
    pub had_timer: bool,
    /// The deadline of the step's call in flight before this event.
    pub had_deadline: Option<(TimerKind, Millis)>,
    /// The idempotency key that the step held before this event.
    pub had_claim: Option<Box<str>>,
    /// Whether the step waited for a signal or a key before this event.
    pub had_wait: bool,
    /// Whether the step had an open approval before this event.
    pub had_gate: bool,
    /// Id of the run that the step waited for.
    pub had_child: Option<Box<str>>,
    /// The step in the plan, for events of steps.
    pub at: Option<StepIx>,
    /// State of the tool's input request, if the step ends before it is answered.
    pub had_input_request: Option<Value>,
}

impl Record {
    /// Whether the event, which makes these changes, sets, deletes or holds timers.
    pub fn moves_timers(&self, changes: &Changes<'_>) -> bool {
        // The timers of an interrupted run are held until it is resumed.
        let holds = matches!(changes.run.status, Some(RunStatus::Interrupted | RunStatus::Running));
        self.had_timer || holds || changes.step.as_ref().is_some_and(|step| step.timers().next().is_some())
    }

    /// Wraps an event without a payload or a step.
    pub fn plain(event: Event) -> Self {
        Self {
            event,
            payload: None,
            had_timer: false,
            had_deadline: None,
            had_claim: None,
            had_wait: false,
            had_gate: false,
            had_child: None,
            at: None,
            had_input_request: None,
        }
    }
}
