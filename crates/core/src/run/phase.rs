//! The phase of an execution that has not ended.

use std::collections::{BTreeMap, BTreeSet};

use super::approval::OpenGate;
use super::{Failure, Millis};
use crate::plan::Hash;

/// What an execution is doing.
#[derive(Debug, Clone, PartialEq)]
pub enum Phase {
    /// It starts as soon as it is admitted.
    Ready,
    /// It waits for a decision of a human.
    Gate {
        /// When the request expires.
        until: Option<Millis>,
        /// Number of escalations so far.
        level: u32,
        /// Hash that binds the decision to what was requested.
        digest: Hash,
        /// Who may decide, and who has approved so far.
        open: Box<OpenGate>,
    },
    /// A call is in flight.
    Calling,
    /// A call was cancelled, and its grace period runs.
    Stopping,
    /// A probe is in flight that checks whether the call took place.
    Verifying,
    /// A call of the provider is in flight that creates the missing tool.
    Creating,
    /// It waits for the next attempt.
    Backoff {
        /// When the attempt starts.
        due: Millis,
    },
    /// The outcome of its call is unknown, and a human has to decide.
    Uncertain,
    /// Another step holds its idempotency key.
    KeyWait,
    /// Its server cannot accept its call now.
    ServerWait {
        /// When the call is retried; `None` to retry it when the server becomes available.
        due: Option<Millis>,
    },
    /// It sleeps.
    Sleeping {
        /// When the timer fires.
        due: Millis,
    },
    /// It waits for a signal.
    Waiting {
        /// Name of the signal.
        event: Box<str>,
        /// The value or entries that the payload must contain.
        correlate: Option<serde_json::Value>,
    },
    /// It waits for a child run.
    Child {
        /// Id of the run.
        run: Box<str>,
    },
    /// Its blocks run.
    Blocks(Progress),
    /// It is about to end.
    Passing,
}

impl Phase {
    /// Whether the execution continues only after an action of a human.
    pub(super) fn needs_attention(&self) -> bool {
        self.activity() == Activity::Attention
    }

    /// Whether the execution can start as soon as it is admitted.
    pub(super) fn is_ready(&self) -> bool {
        self.activity() == Activity::Ready
    }

    /// Whether a call is in flight.
    pub(super) fn is_call(&self) -> bool {
        self.activity() == Activity::Call
    }

    /// Whether the steps inside the execution do its work.
    pub(super) fn is_blocks(&self) -> bool {
        self.activity() == Activity::Blocks
    }

    fn activity(&self) -> Activity {
        match self {
            Self::Ready | Self::ServerWait { due: None } => Activity::Ready,
            Self::Calling | Self::Stopping | Self::Verifying | Self::Creating => Activity::Call,
            Self::Gate { .. } | Self::Uncertain => Activity::Attention,
            Self::Blocks(_) => Activity::Blocks,
            Self::Backoff { .. }
            | Self::KeyWait
            | Self::ServerWait { due: Some(_) }
            | Self::Sleeping { .. }
            | Self::Waiting { .. }
            | Self::Child { .. }
            | Self::Passing => Activity::Other,
        }
    }
}

/// What the engine has to do for an execution in a phase. Every phase is in one group, so a new one cannot be
/// left out of the counters of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    /// Start it.
    Ready,
    /// Wait for its call.
    Call,
    /// Wait for a human.
    Attention,
    /// Run the steps of its blocks.
    Blocks,
    /// Wait for something else, or nothing.
    Other,
}

/// The progress of the blocks of an execution.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// Number of blocks to run.
    pub total: u32,
    /// Number of the first block that was not entered.
    pub next: u32,
    /// Number of blocks that have ended.
    pub ended: u32,
    /// Blocks that are running.
    pub(super) open: BTreeSet<u32>,
    /// Results of the blocks that ended: the execution whose output is the result, or the failure.
    pub(super) results: BTreeMap<u32, Result<Option<u32>, Box<Failure>>>,
}
