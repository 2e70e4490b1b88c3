//! What events are made of: which step, where it stands, what it began, why.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Millis;
use crate::limits;
use crate::plan::Hash;

/// One attempt of one execution of a step: its identity everywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRef {
    /// The number of the execution in its run, from 1.
    pub n: u32,
    /// Its path, such as `per_file[3].export` or `check#2`.
    pub path: std::sync::Arc<str>,
    /// The attempt, from 1.
    pub attempt: u32,
}

/// Where a step execution stands. Read only when the execution is new.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepInfo {
    /// The step's id in the definition.
    pub id: Box<str>,
    /// Its kind.
    pub kind: Box<str>,
    /// The block that it stands in.
    #[serde(default, rename = "in", skip_serializing_if = "ScopeKey::is_root")]
    pub scope: ScopeKey,
}

/// One time that a block is run: the execution that it belongs to, and the number of the item or branch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ScopeKey {
    /// The number of the execution; 0 for the blocks of the run itself.
    pub n: u32,
    /// The item, branch or case.
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

/// What a started step does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Started {
    /// Calls a tool.
    Call {
        /// The tool's full name.
        tool: Box<str>,
        /// The hash of the arguments.
        args: Hash,
        /// The key that the call carries.
        key: Box<str>,
        /// Whether the key is claimed in the store.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        claimed: bool,
    },
    /// Runs a block for each item.
    Foreach {
        /// How many items.
        items: u32,
        /// The hash of the items.
        input: Hash,
    },
    /// Runs blocks at the same time.
    Parallel {
        /// How many.
        branches: u32,
    },
    /// Runs the block of the first condition that holds.
    Branch {},
    /// Asks a human.
    Approve {},
    /// Waits for a time.
    Sleep {
        /// Until when.
        due: Millis,
    },
    /// Waits for an event.
    Wait {
        /// Its name.
        event: Box<str>,
        /// What it must carry.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        correlate: Option<Value>,
        /// The number of the event in the log that had arrived before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<u64>,
    },
    /// Waits for another run.
    Workflow {
        /// Its definition's name.
        definition: Box<str>,
        /// Its id.
        run: Box<str>,
        /// The hash of its inputs.
        input: Hash,
    },
    /// Does nothing, or failed before it could do anything.
    Pass {},
}

/// Where a decision leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Next {
    /// To the block of a case; the last one is `else`.
    Case(u32),
    /// To a step.
    Step(Box<str>),
    /// To the end of the block.
    End,
}

/// Why a run is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseReason {
    /// Somebody asked for it.
    Requested,
    /// Only humans can move it on: gates, or calls with unknown outcomes.
    Attention,
}

/// What a human said about a call with an unknown outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resolved {
    /// It took place.
    Happened,
    /// Call again.
    Retry,
    /// Go on without it.
    Skip,
    /// It failed.
    Fail,
}

/// The step of another run that waits for this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// The run.
    pub run: Box<str>,
    /// The number of the step execution.
    pub n: u32,
    /// Its attempt.
    pub attempt: u32,
    /// How many runs stand above.
    pub depth: u32,
}

/// Which timer of a step execution fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimerKind {
    /// The time for a call, a wait, a gate or a block is up.
    Timeout,
    /// The next attempt may begin.
    Retry,
    /// A sleep is over.
    Sleep,
    /// A call that was told to stop has had time to.
    Grace,
    /// The next notice of a gate is due.
    Escalate,
}

impl TimerKind {
    /// The word that stands for it in the store.
    pub fn word(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Retry => "retry",
            Self::Sleep => "sleep",
            Self::Grace => "grace",
            Self::Escalate => "escalate",
        }
    }

    /// The kind that a word stands for.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Timeout, Self::Retry, Self::Sleep, Self::Grace, Self::Escalate]
            .into_iter()
            .find(|kind| kind.word() == word)
    }
}

/// What a tool asks a human in the middle of its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputRequest {
    /// The question.
    pub message: Box<str>,
    /// The JSON Schema of the answer: a map of plain values.
    pub form: Value,
    /// What the tool wants back with the answer.
    pub state: Value,
}

impl InputRequest {
    /// Whether it is small enough for the log.
    pub(super) fn fits(&self) -> bool {
        self.message.len() + self.form.to_string().len() + self.state.to_string().len() <= limits::NOTE_BYTES
    }

    /// Whether to make a call after all: after a yes it is made as if it were new, after a no it fails.
    /// `seen` is what the answer is about, if that could change meanwhile.
    pub fn whether(message: impl Into<String>, seen: Option<Hash>) -> Self {
        let form = json!({ "type": "object", "properties": {} });
        Self { message: message.into().into(), form, state: json!({ "kind": WHETHER, "seen": seen }) }
    }
}

/// What tells the question whether to make a call at all.
const WHETHER: &str = "whether";

impl InputResponse {
    /// Whether the question was whether to make the call at all.
    pub fn is_whether(&self) -> bool {
        self.state["kind"] == WHETHER
    }

    /// What the answer is about.
    pub fn seen(&self) -> Option<Hash> {
        self.state["seen"].as_str().and_then(Hash::from_hex)
    }
}

/// What became of a question: the tool goes on with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputResponse {
    /// What the tool wants back.
    pub state: Value,
    /// The answer; none if the human refuses to give one.
    pub answer: Option<Value>,
}

/// What a call tells before it ends.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// How far it is.
    Progress {
        /// So much.
        progress: f64,
        /// Of so much.
        total: Option<f64>,
        /// In words.
        message: Option<Box<str>>,
    },
    /// It goes on by itself on the other side, under this name: after a restart it can be asked for there.
    Task {
        /// The name.
        id: Box<str>,
    },
    /// The tool is not what it was when the definition was stored.
    ToolChanged {
        /// What is different.
        what: Box<str>,
    },
}
