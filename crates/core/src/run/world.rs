//! What a decision may ask for: time, chance, stored values, and whether a call may begin.

use std::sync::Arc;

use serde_json::Value;

use super::event::Event;
use super::parts::{Started, StepRef};
use super::{Failure, Millis, Payload};
use crate::expr::Ambient;
use crate::plan::Hash;
use crate::spec::policy::Scope;

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
    fn traits(&self, tool: &str) -> Traits;
    /// The tool that is asked to create a tool that is missing.
    fn provider(&self) -> Option<Box<str>>;
    /// Whether there is a place for one more call of a tool. A yes takes the place.
    fn admit(&mut self, tool: &str) -> Admission;
    /// Gives a place back that no call was made for.
    fn release(&mut self, tool: &str);
    /// The idempotency key of an execution that has none of its own.
    fn key(&self, path: &str) -> Box<str>;
    /// Takes an idempotency key.
    fn claim(&mut self, claim: &Claim<'_>) -> Result<Claimed, WorldError>;
    /// What the run that this one repeats has for a call with the same path and arguments.
    fn reuse(&mut self, path: &str, args: Hash) -> Result<Option<Payload>, WorldError>;
    /// Creates the run of another workflow; it begins when the decision is committed.
    fn spawn(&mut self, child: &Child<'_>) -> Result<Result<Box<str>, Failure>, WorldError>;
}

/// Whether there is a place for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// There is, and it is taken.
    Granted,
    /// None for this tool; others may have some.
    ToolFull,
    /// None at all.
    Full,
}

/// The store did not answer. Nothing of the decision may be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorldError(pub String);

/// What is known about a tool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traits {
    /// It changes nothing.
    pub read_only: bool,
    /// A repeated call changes nothing more.
    pub idempotent: bool,
    /// It may destroy something.
    pub destructive: bool,
}

/// An idempotency key that a step wants.
#[derive(Debug, Clone)]
pub struct Claim<'c> {
    /// The execution that wants it.
    pub step: &'c StepRef,
    /// Where the key is unique.
    pub scope: Scope,
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
    /// Whether the step had an alarm that ends with this event.
    pub had_alarm: bool,
    /// Whether the step held an idempotency key that is settled by this event.
    pub had_claim: bool,
    /// Whether the step was in the list of those that wait for an event or a key.
    pub had_wait: bool,
    /// Whether the step had an open gate that ends with this event.
    pub had_gate: bool,
    /// The run that the step waited for.
    pub had_child: Option<Box<str>>,
    /// What the step's tool waits for an answer to, if the step ends without one.
    pub had_question: Option<Value>,
}

impl Record {
    /// Whether it sets or ends an alarm.
    pub fn moves_alarms(&self) -> bool {
        self.had_alarm
            || match &self.event {
                Event::StepStarted { what, until, .. } => {
                    until.is_some() || matches!(what, Started::Sleep { .. })
                }
                Event::RetryScheduled { .. }
                | Event::VerifyStarted { .. }
                | Event::ToolRequested { .. }
                | Event::CallTimedOut { .. }
                | Event::ApprovalRequested { .. }
                | Event::ApprovalEscalated { .. }
                | Event::RunInterrupted {}
                | Event::RunResumed { .. } => true,
                _ => false,
            }
    }

    /// An event that speaks of nothing else.
    pub fn plain(event: Event) -> Self {
        Self {
            event,
            payload: None,
            had_alarm: false,
            had_claim: false,
            had_wait: false,
            had_gate: false,
            had_child: None,
            had_question: None,
        }
    }
}
