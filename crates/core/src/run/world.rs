//! What a decision may ask for: time, chance, stored values, and whether a call may begin.

use std::sync::Arc;

use serde_json::Value;

use super::event::Event;
use super::parts::StepRef;
use super::state::RunStatus;
use super::{Failure, Millis, Payload};
use crate::expr::{Ambient, StepIx};
use crate::plan::Hash;
use crate::spec::policy::{Effects, KeyScope, OnUncertain};

/// What lies outside of the state machine. The answers are part of a decision's input: the same answers
/// give the same events.
pub trait World {
    /// The time.
    fn now(&self) -> Millis;
    /// A number from 0 to 1.
    fn random(&mut self) -> f64;
    /// The run's inputs.
    fn inputs(&mut self) -> Result<Payload, WorldError>;
    /// What an execution gave.
    fn output(&mut self, n: u32) -> Result<Payload, WorldError>;
    /// What an execution was given: its arguments, or the items of a `foreach`.
    fn input(&mut self, n: u32) -> Result<Payload, WorldError>;
    /// Why an execution failed.
    fn error(&mut self, n: u32) -> Result<Payload, WorldError>;
    /// The value that an event of the log carries.
    fn noted(&mut self, seq: u64) -> Result<Payload, WorldError>;
    /// The environment variables that definitions may see.
    fn env(&self) -> Arc<Value>;
    /// Something that every run knows about itself.
    fn ambient(&self, what: Ambient) -> Value;
    /// What is known about a tool.
    fn annotations(&self, tool: &str) -> Annotations;
    /// The tool that is asked to create a tool that is missing.
    fn provider(&self) -> Option<Box<str>>;
    /// Whether a call of a tool may be sent now. A grant takes a concurrency slot.
    fn admit(&mut self, tool: &str, path: &str) -> Admission;
    /// Gives back the slot that was granted last: no call was made for it.
    fn release(&mut self);
    /// The idempotency key of an execution that has none of its own.
    fn key(&self, path: &str) -> Box<str>;
    /// Takes an idempotency key.
    fn claim(&mut self, claim: &Claim<'_>) -> Result<Claimed, WorldError>;
    /// What the run that this one repeats has for a call with the same path and arguments.
    fn reuse(&mut self, path: &str, args: Hash) -> Result<Option<Payload>, WorldError>;
    /// Creates the run of another workflow; it begins when the decision is committed.
    fn spawn(&mut self, child: &Child<'_>) -> Result<Result<Box<str>, Failure>, WorldError>;
}

/// Whether a call may be sent now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// Yes; the call holds a concurrency slot.
    Granted,
    /// Every slot of the tool's server is taken; other servers may have free ones.
    ToolFull,
    /// Every slot is taken.
    Full,
    /// The tool's server cannot take calls now, for this reason.
    Unavailable(Box<str>),
}

/// The store did not answer. Nothing of the decision may be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorldError(pub String);

/// A tool's annotations, as far as its server gives them, and what its server supports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Annotations {
    /// `readOnlyHint`: it changes nothing.
    pub read_only: Option<bool>,
    /// `idempotentHint`: a repeated call changes nothing more.
    pub idempotent: Option<bool>,
    /// `destructiveHint`: it may destroy something.
    pub destructive: Option<bool>,
    /// Whether the server deduplicates calls by the idempotency key in `_meta`.
    pub honours_key: bool,
    /// What happens when the outcome of a call is unknown, as the server's config entry says.
    pub on_uncertain: Option<OnUncertain>,
}

impl Annotations {
    /// A tool that is annotated as read-only.
    pub const READ_ONLY: Self = Self { read_only: Some(true), ..Self::UNANNOTATED };
    /// A tool that is annotated as idempotent.
    pub const IDEMPOTENT: Self = Self { idempotent: Some(true), ..Self::UNANNOTATED };
    /// A tool without annotations.
    pub const UNANNOTATED: Self =
        Self { read_only: None, idempotent: None, destructive: None, honours_key: false, on_uncertain: None };

    /// Whether it changes nothing. The protocol's default is no.
    pub fn is_read_only(&self) -> bool {
        self.read_only == Some(true)
    }

    /// Whether a repeated call changes nothing more. The protocol's default is no.
    pub fn is_idempotent(&self) -> bool {
        self.is_read_only() || self.idempotent == Some(true)
    }

    /// Whether it may destroy something. The protocol's default is yes.
    pub fn is_destructive(&self) -> bool {
        !self.is_read_only() && self.destructive != Some(false)
    }

    /// Whether a step may call it again after an unknown outcome without harm. `effects` counts only where the tool has
    /// no annotation of its own.
    pub fn is_repeatable(&self, effects: Option<Effects>) -> bool {
        match effects {
            Some(Effects::Read) => self.read_only.unwrap_or(true) || self.is_idempotent(),
            Some(Effects::Idempotent) => self.idempotent.unwrap_or(true) || self.is_idempotent(),
            Some(Effects::Once) => false,
            None => self.is_idempotent(),
        }
    }

    /// Whether `effects` on a step says something else than the tool's annotations.
    pub fn contradicts(&self, effects: Effects) -> bool {
        match effects {
            Effects::Read => self.read_only == Some(false),
            Effects::Idempotent => !self.is_read_only() && self.idempotent == Some(false),
            Effects::Once => self.is_idempotent(),
        }
    }
}

/// An idempotency key that a step wants.
#[derive(Debug, Clone)]
pub struct Claim<'c> {
    /// The execution that wants it.
    pub step: &'c StepRef,
    /// Where the key is unique.
    pub scope: KeyScope,
    /// The tool.
    pub tool: &'c str,
    /// The key.
    pub key: &'c str,
    /// The hash of the arguments.
    pub args: Hash,
    /// How long a result is kept, in seconds.
    pub ttl_secs: Option<u64>,
}

/// What became of a claim.
#[derive(Debug, Clone, PartialEq)]
pub enum Claimed {
    /// The step has the key and may call.
    Taken,
    /// A call with this key and these arguments was made before and gave this.
    Hit(Payload),
    /// Another step has the key and has not ended; this is what to wait for.
    Busy(Box<str>),
    /// The key belongs to a call with other arguments.
    Conflict,
}

/// A run to create for a step.
#[derive(Debug, Clone)]
pub struct Child<'c> {
    /// The step that waits for it.
    pub step: &'c StepRef,
    /// The definition's name.
    pub definition: &'c str,
    /// Its inputs.
    pub inputs: &'c Payload,
}

/// An event with what the store needs to know beside it.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each says what the store may find of the step")]
pub struct Record {
    /// The event.
    pub event: Event,
    /// The payload that it speaks of: an output, arguments, items.
    pub payload: Option<Payload>,
    /// Whether the step had an timer that ends with this event.
    pub had_timer: bool,
    /// Whether the step held an idempotency key that is settled by this event.
    pub had_claim: bool,
    /// Whether the step was in the list of those that wait for an event or a key.
    pub had_wait: bool,
    /// Whether the step had an open gate that ends with this event.
    pub had_gate: bool,
    /// The run that the step waited for.
    pub had_child: Option<Box<str>>,
    /// The step of the plan that it is about.
    pub at: Option<StepIx>,
    /// What the step's tool waits for an answer to, if the step ends without one.
    pub had_input_request: Option<Value>,
}

impl Record {
    /// Whether it sets or ends an timer.
    pub fn moves_timers(&self) -> bool {
        let changes = self.event.changes();
        // An interrupted run holds its timers back until it is resumed.
        let holds = matches!(changes.run.status, Some(RunStatus::Interrupted | RunStatus::Running));
        self.had_timer || holds || changes.step.is_some_and(|step| step.timers().next().is_some())
    }

    /// An event that speaks of nothing else.
    pub fn plain(event: Event) -> Self {
        Self {
            event,
            payload: None,
            had_timer: false,
            had_claim: false,
            had_wait: false,
            had_gate: false,
            had_child: None,
            at: None,
            had_input_request: None,
        }
    }
}
