//! A definition ready to run: every name resolved, every default filled in, every expression compiled.
//!
//! Steps and blocks stand in two flat lists and point to one another by number. A block starts with its
//! `entry` steps; a step that is done leads to its `next`; a block is done when nothing in it is left to
//! run. The three forms differ only in how they are written.

mod compile;
mod expressions;
mod graph;
mod kinds;
mod names;
mod order;
mod outline;
mod policies;
mod retry;
mod scope;

pub use crate::expr::StepIx;
pub use retry::{BackoffKind, RetryPolicy};

pub(crate) use compile::compile;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::expr::{Condition, Template, ValueTemplate};
use crate::limits::RunLimits;
use crate::spec::head::{OnRestart, OnToolChange};
use crate::spec::policy::{Effects, KeyScope, MissingTool, OnUncertain};
use crate::spec::publish::Publish;
use crate::steps::{OnFail, OnTimeout};

/// A compiled definition. It never changes; its hash is the definition's identity.
#[derive(Debug)]
pub struct Plan {
    /// The definition's name.
    pub name: Box<str>,
    /// What it is for.
    pub description: Option<Box<str>>,
    /// SHA-256 of the definition's canonical JSON.
    pub hash: Hash,
    /// What a run is started with.
    pub inputs: Vec<Input>,
    /// What a run gives back; without it, the output of the root block.
    pub output: Option<ValueTemplate>,
    /// All steps, nested ones included.
    pub steps: Vec<Step>,
    /// All blocks; the first is the root.
    pub blocks: Vec<Block>,
    /// The steps that run when the run fails.
    pub on_failure: Option<BlockIx>,
    /// What else the definition says.
    pub settings: Settings,
    /// The steps by their ids.
    ids: BTreeMap<Box<str>, StepIx>,
}

impl Plan {
    /// The block that a run starts with.
    pub const ROOT: BlockIx = BlockIx(0);

    /// A step by its number.
    pub fn step(&self, step: StepIx) -> &Step {
        &self.steps[step.index()]
    }

    /// A block by its number.
    pub fn block(&self, block: BlockIx) -> &Block {
        &self.blocks[block.index()]
    }

    /// A step by its id.
    pub fn find(&self, id: &str) -> Option<StepIx> {
        self.ids.get(id).copied()
    }
}

/// What a definition says beside its steps.
#[derive(Debug)]
pub struct Settings {
    /// The only tools that its steps may call, as patterns.
    pub allowed_tools: Option<Box<[Box<str>]>>,
    /// What happens to a run when the server restarts.
    pub on_restart: OnRestart,
    /// What happens when a tool is no longer what it was.
    pub on_tool_change: OnToolChange,
    /// Bounds of a run.
    pub limits: RunLimits,
    /// Words to find the definition by.
    pub labels: BTreeMap<String, String>,
    /// How it is offered to agents as a tool, if it is.
    pub publish: Option<Publish>,
}

/// SHA-256 of a definition's canonical JSON.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// SHA-256 of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// A hash as it is printed.
    pub fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 64];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        out.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        Self::from_hex(&text).ok_or_else(|| de::Error::custom("a hash has 64 hexadecimal digits"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// A declared input.
#[derive(Debug)]
pub struct Input {
    /// Its name.
    pub name: Box<str>,
    /// Its JSON Schema.
    pub schema: Value,
    /// The value if none is given.
    pub default: Option<Value>,
    /// Whether a run cannot start without it.
    pub required: bool,
}

/// The number of a block in its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockIx(pub u32);

impl BlockIx {
    /// The number for indexing.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Steps that belong together: the root, a loop's body, a branch.
#[derive(Debug)]
pub struct Block {
    /// The step that the block is part of; none for the root and `on_failure`.
    pub owner: Option<StepIx>,
    /// The branch's name, where it has one.
    pub name: Option<Box<str>>,
    /// Its steps, in the order in which they are written.
    pub steps: Vec<StepIx>,
    /// The steps that it starts with.
    pub entry: Vec<StepIx>,
}

/// One step.
#[derive(Debug)]
pub struct Step {
    /// Its name, unique in the plan.
    pub id: Box<str>,
    /// What it is for.
    pub description: Option<Box<str>>,
    /// The block that it belongs to.
    pub block: BlockIx,
    /// What it does.
    pub kind: Kind,
    /// The steps that must be done first, in a DAG.
    pub needs: Vec<StepIx>,
    /// Where it leads when it is done.
    pub next: Next,
    /// Names for what it produces.
    pub outputs: Box<[Box<str>]>,
    /// Its deadline, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// When a failed attempt is repeated.
    pub retry: Option<RetryPolicy>,
    /// What happens when it has failed for good.
    pub on_error: OnError,
    /// Whether a human is asked before it runs.
    pub needs_human: bool,
}

/// Where a step leads when it is done.
#[derive(Debug, Clone)]
pub enum Next {
    /// Nowhere: its block goes on without it, or is done.
    End,
    /// To one step.
    Step(StepIx),
    /// To every step that waits for it, in a DAG.
    Dependents(Vec<StepIx>),
    /// To the first whose condition holds.
    Choose {
        /// Conditions with where they lead.
        choices: Vec<Choice>,
        /// Where it leads if none holds; none means that the run fails with `no_branch_matched`.
        otherwise: Option<Target>,
    },
}

/// A condition with where it leads.
#[derive(Debug, Clone)]
pub struct Choice {
    /// The condition.
    pub when: Condition,
    /// The condition as it is written.
    pub written: Box<str>,
    /// Where it leads.
    pub to: Target,
}

/// Where a transition of a graph leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// To a step of the same block.
    Step(StepIx),
    /// Out of the block: the branch that it stands in is done.
    End,
}

/// What happens when a step has failed for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// The run fails.
    Fail,
    /// The run goes on.
    Continue,
    /// The run goes on at another step of the same block, or after it.
    Goto(Target),
}

/// What a denied gate does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDeny {
    /// The run is cancelled.
    Cancel,
    /// The step fails.
    Fail,
    /// The run goes on.
    Continue,
    /// The run goes on at another step of the same block, or after it.
    Goto(Target),
}

/// What a step does.
#[derive(Debug)]
pub enum Kind {
    /// Calls a tool.
    Call(Box<Call>),
    /// Runs a block once per item.
    Foreach(Foreach),
    /// Runs blocks at the same time.
    Parallel(Parallel),
    /// Runs the first block whose condition holds.
    Branch(Branch),
    /// Asks a human.
    Approve(Box<Approve>),
    /// Waits for a time.
    Sleep(Sleep),
    /// Waits for an event.
    Wait(Wait),
    /// Runs another workflow.
    Workflow(Workflow),
    /// Only leads on.
    Pass,
}

impl Kind {
    /// The word that stands for it in a definition.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Call(_) => "tool",
            Self::Foreach(_) => "foreach",
            Self::Parallel(_) => "parallel",
            Self::Branch(_) => "branch",
            Self::Approve(_) => "approve",
            Self::Sleep(_) => "sleep",
            Self::Wait(_) => "wait",
            Self::Workflow(_) => "workflow",
            Self::Pass => "pass",
        }
    }
}

/// One call of a tool.
#[derive(Debug)]
pub struct Call {
    /// The tool's name with its server, as it is called.
    pub name: Box<str>,
    /// The server, if it is named apart from the tool, as it is written.
    pub server: Option<Box<str>>,
    /// The tool, as it is written.
    pub tool: Box<str>,
    /// The arguments.
    pub args: ValueTemplate,
    /// The key under which a repeated call is recognised.
    pub idempotency: Option<Idempotency>,
    /// The argument that receives the idempotency key.
    pub idempotency_arg: Option<Box<str>>,
    /// What a repeated call does, if the definition says so.
    pub effects: Option<Effects>,
    /// What happens when the outcome is unknown, if the definition says so.
    pub on_uncertain: Option<OnUncertain>,
    /// How long it may wait for its server before it is sent, in milliseconds; for ever without it.
    pub server_wait_ms: Option<u64>,
    /// A call that tells whether this one took place.
    pub verify: Option<Verify>,
    /// What happens when the tool does not exist.
    pub missing_tool: MissingTool,
    /// A role for the tool to take.
    pub persona: Option<Box<str>>,
}

/// The key under which a repeated call is recognised.
#[derive(Debug)]
pub struct Idempotency {
    /// The key.
    pub key: Template,
    /// Where it is unique.
    pub scope: KeyScope,
    /// How long a result is kept, in seconds; none means as long as its scope.
    pub ttl_secs: Option<u64>,
}

/// A call that tells whether another took place.
#[derive(Debug, Clone)]
pub struct Verify {
    /// The tool.
    pub tool: Box<str>,
    /// The arguments.
    pub args: ValueTemplate,
    /// Holds if the call took place; `result` in it is [`crate::expr::Root::Probe`].
    pub when: Condition,
}

/// Runs a block once per item.
#[derive(Debug)]
pub struct Foreach {
    /// The items.
    pub items: ValueTemplate,
    /// What the item is called in the body.
    pub item: Box<str>,
    /// The body.
    pub body: BlockIx,
    /// How many items run at the same time.
    pub concurrency: u32,
    /// What a failed item does to the others.
    pub on_item_fail: OnFail,
}

/// Runs blocks at the same time.
#[derive(Debug)]
pub struct Parallel {
    /// The branches.
    pub branches: Vec<BlockIx>,
    /// How many run at the same time; none means all.
    pub concurrency: Option<u32>,
    /// What a failed branch does to the others.
    pub on_any_fail: OnFail,
}

/// Runs the first block whose condition holds.
#[derive(Debug)]
pub struct Branch {
    /// Conditions with their blocks.
    pub cases: Vec<Case>,
    /// The block if none holds; without it, the run fails with `no_branch_matched`.
    pub otherwise: Option<BlockIx>,
}

/// A condition with its block.
#[derive(Debug)]
pub struct Case {
    /// The condition.
    pub when: Condition,
    /// The condition as it is written.
    pub written: Box<str>,
    /// The block.
    pub then: BlockIx,
}

/// Asks a human.
#[derive(Debug)]
pub struct Approve {
    /// The question.
    pub prompt: Option<Template>,
    /// Whom to tell.
    pub notify: Box<[Box<str>]>,
    /// Who may decide; empty means everyone with the right to approve.
    pub approvers: Box<[Box<str>]>,
    /// Whether the one who started the run may decide.
    pub allow_self: bool,
    /// What a denial does.
    pub on_deny: OnDeny,
    /// What happens when the time is up.
    pub on_timeout: OnTimeout,
    /// Further notices: milliseconds after the question, and whom to tell.
    pub escalate: Vec<(u64, Box<[Box<str>]>)>,
}

/// Waits for a time.
#[derive(Debug)]
pub enum Sleep {
    /// For these milliseconds.
    For(u64),
    /// For a length of time that is computed.
    ForComputed(Template),
    /// Until this moment, in milliseconds since 1970.
    Until(i64),
    /// Until a moment that is computed.
    UntilComputed(Template),
}

/// Waits for an event.
#[derive(Debug)]
pub struct Wait {
    /// The event's name.
    pub event: Template,
    /// What the event must carry.
    pub correlate: Option<ValueTemplate>,
}

/// Runs another workflow.
#[derive(Debug)]
pub struct Workflow {
    /// Its name.
    pub name: Box<str>,
    /// Its inputs.
    pub inputs: ValueTemplate,
}
