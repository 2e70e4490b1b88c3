//! Types that events and inputs contain.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::policy::PolicyUse;
use super::{Failure, Millis};
use crate::limits;
use crate::plan::Hash;

/// Identifies one attempt of one execution of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRef {
    /// The number of the execution in its run, from 1.
    pub n: u32,
    /// The path of the execution, such as `per_file[3].export` or `check#2`.
    pub path: std::sync::Arc<str>,
    /// The number of the attempt, from 1.
    pub attempt: u32,
}

/// The position of an execution in the definition. Read only from the first event of the execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepInfo {
    /// Id of the step in the definition.
    pub id: Box<str>,
    /// Kind of the step, such as `tool`.
    pub kind: Box<str>,
    /// The block execution that contains the step.
    #[serde(default, rename = "in", skip_serializing_if = "ScopeKey::is_root")]
    pub scope: ScopeKey,
}

/// Identifies one execution of a block: the step execution that owns it, and the number of the item or branch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ScopeKey {
    /// The number of the owning execution; 0 for the blocks of the run itself.
    pub n: u32,
    /// The number of the item, branch or case, from 0.
    pub index: u32,
}

impl ScopeKey {
    /// The steps of the definition.
    pub const ROOT: Self = Self { n: 0, index: 0 };
    /// The steps of `on_failure`.
    pub const FAILURE: Self = Self { n: 0, index: 1 };

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_root(&self) -> bool {
        *self == Self::ROOT
    }
}

/// What a step does after it started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Started {
    /// Calls a tool.
    Call {
        /// Full name of the tool.
        tool: Box<str>,
        /// Hash of the arguments.
        args: Hash,
        /// The idempotency key that is sent with the call.
        key: Box<str>,
        /// Whether the key is claimed in the store.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        claimed: bool,
        /// The rule of the policy that allowed the call; `None` without a policy, or if no call is made.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        policy: Option<Box<PolicyUse>>,
    },
    /// Runs a block for each item.
    Foreach {
        /// Number of items.
        items: u32,
        /// Hash of the list of items.
        input: Hash,
    },
    /// Runs blocks concurrently.
    Parallel {
        /// Number of branches.
        branches: u32,
    },
    /// Runs the block of the first condition that is true.
    Branch {},
    /// Waits for an approval.
    Approve {},
    /// Waits for a time.
    Sleep {
        /// When the timer fires.
        due: Millis,
    },
    /// Waits for a signal.
    Wait {
        /// Name of the signal.
        event: Box<str>,
        /// The value or entries that the payload must contain.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        correlate: Option<Value>,
        /// Sequence number of a signal that was buffered before the step started.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<u64>,
    },
    /// Waits for another run.
    Workflow {
        /// Name of the definition.
        definition: Box<str>,
        /// Id of the run.
        run: Box<str>,
        /// Hash of the inputs.
        input: Hash,
    },
    /// Ends without waiting, or failed before it could start.
    Pass {},
}

/// The target of a transition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Next {
    /// The block of a case, by its number; the last one is `else`.
    Case(u32),
    /// The step with this id.
    Step(Box<str>),
    /// The end of the block.
    End,
}

/// How a step ends whose blocks are cancelled first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Ending {
    /// It fails.
    Failed {
        /// The failure.
        error: Failure,
    },
    /// It is skipped.
    Skipped {
        /// The reason for skipping it.
        reason: Box<str>,
    },
    /// It completes with a result that a user supplied.
    Completed {
        /// The result.
        output: Value,
        /// The user.
        by: Box<str>,
    },
}

/// Why a run is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseReason {
    /// A person paused it. Only a person can resume it.
    Requested,
    /// An agent paused it.
    RequestedByAgent,
    /// All that is left to do waits for humans: gates, or calls with unknown outcomes.
    Attention,
}

/// The restore of a backup that interrupted a run. Everything that the run did after the backup is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Restored {
    /// The incarnation of the database that the restore started.
    pub incarnation: u64,
    /// When the backup was made, in milliseconds since 1970.
    pub backup_at: Millis,
    /// Paths of calls that were in flight or could start when the backup was made. They may have been executed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub may_have_run: Vec<Box<str>>,
    /// Number of further such calls.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The decision of a human about a call with an unknown outcome, as the log records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resolved {
    /// The call took place.
    Happened,
    /// The call is repeated.
    Retry,
    /// The step is skipped.
    Skip,
    /// The step fails.
    Fail,
}

/// The step of another run that waits for this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// Id of the waiting run.
    pub run: Box<str>,
    /// The number of the waiting step execution.
    pub n: u32,
    /// The attempt that waits.
    pub attempt: u32,
    /// Number of ancestors of the run.
    pub depth: u32,
}

/// The kind of a durable timer. An execution has at most one of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimerKind {
    /// The deadline of a call, a wait, a gate or a block.
    Timeout,
    /// The end of a backoff.
    Retry,
    /// The end of a `sleep` step.
    Sleep,
    /// The end of the grace period of a cancelled call.
    Grace,
    /// The next escalation or reminder of an approval.
    Escalate,
}

impl TimerKind {
    /// The name of the kind in the store.
    pub fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Retry => "retry",
            Self::Sleep => "sleep",
            Self::Grace => "grace",
            Self::Escalate => "escalate",
        }
    }

    /// The kind with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Timeout, Self::Retry, Self::Sleep, Self::Grace, Self::Escalate]
            .into_iter()
            .find(|kind| kind.name() == name)
    }
}

/// An input request of a tool (an elicitation), which ends its call until a human answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputRequest {
    /// The message to show.
    pub message: Box<str>,
    /// JSON Schema of the answer: an object of primitive values.
    pub form: Value,
    /// Opaque state that is sent back with the answer.
    pub state: Value,
}

impl InputRequest {
    /// Whether the request is within the limit for the log.
    pub(super) fn fits(&self) -> bool {
        self.message.len() + self.form.to_string().len() + self.state.to_string().len()
            <= limits::EVENT_VALUE_BYTES
    }

    /// Asks a human to confirm a call before it is made. If approved, the call is made again; if denied, it fails.
    /// `subject` is the hash of what the human confirms, if that can change before the answer.
    pub fn confirm_call(message: impl Into<String>, subject: Option<Hash>) -> Self {
        let form = json!({ "type": "object", "properties": {} });
        Self { message: message.into().into(), form, state: json!({ "kind": CONFIRM_CALL, "seen": subject }) }
    }

    /// Whether it came from [`InputRequest::confirm_call`].
    pub fn is_call_confirmation(&self) -> bool {
        self.state["kind"] == CONFIRM_CALL
    }
}

/// Marks the state of [`InputRequest::confirm_call`]. Stored in events, so it cannot change.
const CONFIRM_CALL: &str = "whether";

impl InputResponse {
    /// Whether the request came from [`InputRequest::confirm_call`].
    pub fn is_call_confirmation(&self) -> bool {
        self.state["kind"] == CONFIRM_CALL
    }

    /// The hash of what the human confirmed.
    pub fn subject(&self) -> Option<Hash> {
        self.state["seen"].as_str().and_then(Hash::from_hex)
    }
}

/// The response to an input request, with which the call is made again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputResponse {
    /// The state of the request.
    pub state: Value,
    /// The answer; `None` while the request is open, and after it was denied.
    pub answer: Option<Value>,
}

/// A report of a call in flight.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// A progress notification.
    Progress {
        /// The progress so far, in units of the tool.
        progress: f64,
        /// The total, if the tool knows it.
        total: Option<f64>,
        /// A description of the progress.
        message: Option<Box<str>>,
    },
    /// The server continues the call as a task, which can be polled after a restart.
    Task {
        /// Id of the task at the server.
        id: Box<str>,
    },
    /// The tool changed after the definition was stored.
    ToolChanged {
        /// A description of the difference.
        what: Box<str>,
    },
}
