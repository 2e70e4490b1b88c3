//! Why a run waits, for whom, since when and what happens next; for an ended run, who ended it and why.
//!
//! The reason is computed from the rows of a run and the last events of its log, so that lists need not read whole logs.

mod read;
mod sentence;
mod waits;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steprail_core::run::Millis;
use steprail_store::RunId;

use crate::waiting::timestamp;

/// Why a run waits or how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunReason {
    /// What the run waits for, or how it ended.
    pub kind: ReasonKind,
    /// Path of the step that waits, or that was denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The run of that step, if it is the run of a sub-workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub run_id: Option<RunId>,
    /// Users and groups whom the run waits for; empty if anyone who may approve can decide.
    #[serde(default, rename = "for", skip_serializing_if = "Vec::is_empty")]
    pub whom: Vec<String>,
    /// The user who paused, froze, denied or cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Since when it waits, or when it ended.
    #[serde(default, with = "timestamp", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub since: Option<Millis>,
    /// The name of the signal, the error, or the reason that the user gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// What happens next without a decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<NextStep>,
    /// Number of further waits.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: usize,
}

/// What happens next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NextStep {
    /// What happens, such as `escalates to group:ops`.
    pub what: String,
    /// When it happens; absent if that depends on something else.
    #[serde(default, with = "timestamp", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub at: Option<Millis>,
}

/// What a run waits for, or how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReasonKind {
    /// A decision at a gate.
    Approval,
    /// An answer to a tool.
    Input,
    /// A decision about a call with an unknown outcome.
    UnknownOutcome,
    /// The end of a `sleep` step.
    Time,
    /// A signal.
    Event,
    /// The next attempt of a call that failed.
    Retry,
    /// A server that does not accept calls.
    Server,
    /// A limit of the policy.
    Limit,
    /// Another step with the same idempotency key.
    IdempotencyKey,
    /// A concurrency slot.
    Slot,
    /// The end of a freeze of all calls.
    Freeze,
    /// The run of a sub-workflow.
    Workflow,
    /// A user paused the run.
    Paused,
    /// A restart or a restore interrupted the run.
    Interrupted,
    /// The stored state is damaged, or a decision of the run panicked.
    Damaged,
    /// An approval was denied or expired, which ended the run.
    Denied,
    /// The run was cancelled.
    Cancelled,
    /// The run failed.
    Failed,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(more: &usize) -> bool {
    *more == 0
}

impl RunReason {
    fn new(kind: ReasonKind) -> Self {
        Self {
            kind,
            step: None,
            run_id: None,
            whom: Vec::new(),
            by: None,
            since: None,
            detail: None,
            next: None,
            more: 0,
        }
    }
}
