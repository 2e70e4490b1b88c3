//! The compiled definition: names resolved, defaults filled in, expressions compiled.
//!
//! Steps and blocks are in two flat lists and refer to one another by index. A block starts with its `entry`
//! steps, a completed step continues with its `next`, and a block ends when no step in it is left to run. All
//! three forms compile to this structure.

mod compile;
mod expressions;
mod gate;
mod gate_times;
mod graph;
mod guards;
mod hash;
mod inputs;
mod kinds;
mod r#let;
mod names;
mod order;
mod outline;
mod policies;
mod result;
mod retry;
mod scope;

pub use crate::expr::StepIx;
pub use gate::{EscalationLevel, GateRules};
pub use hash::Hash;
pub use retry::{BackoffKind, RetryPolicy};

pub(crate) use compile::compile;
pub(crate) use expressions::SourceText;
pub(crate) use gate_times::{GateTimes, LevelTimes};
pub(crate) use scope::{KEYWORDS, ROOTS};

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::expr::{Condition, SecretText, Template, ValueTemplate};
use crate::limits::RunLimits;
use crate::schema::Schema;
use crate::source::Span;
use crate::spec::head::{OnRestart, OnToolChange};
use crate::spec::policy::{Effects, KeyScope, MissingTool, OnUncertain};
use crate::spec::publish::Publish;
use crate::steps::{OnFail, WorkflowVersion};

/// A compiled definition. It is immutable; its hash identifies the definition.
#[derive(Debug)]
pub struct Plan {
    /// The definition's name.
    pub name: Box<str>,
    /// What the workflow does.
    pub description: Option<Box<str>>,
    /// SHA-256 of the definition's canonical JSON.
    pub hash: Hash,
    /// Inputs of a run, declared and inferred.
    pub inputs: Vec<Input>,
    /// Output of a run; `None`: the output of the root block.
    pub output: Option<ValueTemplate>,
    /// All steps, including nested ones.
    pub steps: Vec<Step>,
    /// All blocks; the first is the root.
    pub blocks: Vec<Block>,
    /// The block that runs when the run fails.
    pub on_failure: Option<BlockIx>,
    /// The other settings of the definition.
    pub settings: Settings,
    /// The users and groups that gates name.
    pub principals: Box<[NamedPrincipal]>,
    /// The steps by their ids.
    ids: BTreeMap<Box<str>, StepIx>,
}

/// An approver or a recipient that a gate names.
#[derive(Clone)]
pub struct NamedPrincipal {
    /// The name as written: `lea`, `user:lea`, `group:ops`, `mail:ann@example.org`.
    pub name: Box<str>,
    /// Whether it is an approver; otherwise it is only notified.
    pub is_approver: bool,
    /// The step of the gate.
    pub step: Option<StepIx>,
    /// Position in the text of the definition.
    pub span: Span,
}

/// Without the position: the plan of a definition does not depend on how it is written.
impl fmt::Debug for NamedPrincipal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, is_approver, step, .. } = self;
        let mut shown = out.debug_struct("NamedPrincipal");
        shown.field("name", name).field("is_approver", is_approver).field("step", step).finish()
    }
}

impl Plan {
    /// The block with which a run starts.
    pub const ROOT: BlockIx = BlockIx(0);

    /// Returns a step by index.
    pub fn step(&self, step: StepIx) -> &Step {
        &self.steps[step.index()]
    }

    /// Returns a block by index.
    pub fn block(&self, block: BlockIx) -> &Block {
        &self.blocks[block.index()]
    }

    /// Finds a step by id.
    pub fn find(&self, id: &str) -> Option<StepIx> {
        self.ids.get(id).copied()
    }
}

/// Settings of a definition.
#[derive(Debug)]
pub struct Settings {
    /// Patterns of the tools that steps may call; `None`: all.
    pub allowed_tools: Option<Box<[Box<str>]>>,
    /// What happens to an unfinished run when the engine restarts.
    pub on_restart: OnRestart,
    /// What happens if a tool has changed since the definition was stored.
    pub on_tool_change: OnToolChange,
    /// Limits of a run.
    pub limits: RunLimits,
    /// Labels to find the definition by.
    pub labels: BTreeMap<String, String>,
    /// How the workflow is published as a tool; `None`: not published.
    pub publish: Option<Publish>,
}

/// An input of a run, declared or inferred.
#[derive(Debug)]
pub struct Input {
    /// Name of the input.
    pub name: Box<str>,
    /// JSON Schema of the value.
    pub schema: Arc<Schema>,
    /// The default value, if any.
    pub default: Option<Value>,
    /// Whether a run cannot start without a value.
    pub required: bool,
}

/// Index of a block in its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockIx(pub u32);

impl BlockIx {
    /// The index as `usize`.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A group of steps: the root, the body of a loop, a branch.
#[derive(Debug)]
pub struct Block {
    /// The step that contains the block; `None` for the root and `on_failure`.
    pub owner: Option<StepIx>,
    /// Name of the branch, if it has one.
    pub name: Option<Box<str>>,
    /// The steps, in source order; in a graph, in order of discovery from the first step.
    pub steps: Vec<StepIx>,
    /// The steps with which the block starts.
    pub entry: Vec<StepIx>,
}

/// A step.
#[derive(Debug)]
pub struct Step {
    /// Id of the step, unique in the plan.
    pub id: Box<str>,
    /// What the step does.
    pub description: Option<Box<str>>,
    /// The block that contains the step.
    pub block: BlockIx,
    /// The condition under which the step runs; `None`: always.
    pub condition: Option<StepCondition>,
    /// The kind of the step.
    pub kind: Kind,
    /// The dependencies of the step, in a DAG.
    pub needs: Vec<StepIx>,
    /// What runs after the step.
    pub next: Next,
    /// Names of declared outputs.
    pub outputs: Box<[Box<str>]>,
    /// Timeout in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Retry policy; `None`: no retries.
    pub retry: Option<RetryPolicy>,
    /// What happens when the step has failed and no retry is left.
    pub on_error: OnError,
    /// The approval that the step waits for before it runs.
    pub needs_human: Option<Box<Gate>>,
}

/// The condition under which a step runs.
#[derive(Debug)]
pub struct StepCondition {
    /// The condition.
    pub when: Condition,
    /// The condition as written.
    pub written: Box<str>,
}

/// What runs after a step.
#[derive(Debug, Clone)]
pub enum Next {
    /// Nothing: the block ends when its other steps have ended.
    End,
    /// One step.
    Step(StepIx),
    /// The steps of a DAG that depend on this one.
    Dependents(Vec<StepIx>),
    /// The target of the first condition that holds.
    Choose {
        /// Conditions and their targets, in order.
        choices: Vec<Choice>,
        /// The target if no condition holds; `None`: the run fails with `no_branch_matched`.
        otherwise: Option<Target>,
    },
}

/// A condition and its target.
#[derive(Debug, Clone)]
pub struct Choice {
    /// The condition.
    pub when: Condition,
    /// The condition as written.
    pub written: Box<str>,
    /// The target if the condition holds.
    pub to: Target,
}

/// The target of a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A step of the same block.
    Step(StepIx),
    /// The end of the block.
    End,
}

/// What happens when a step has failed and no retry is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// The run fails.
    Fail,
    /// The run continues.
    Continue,
    /// The run continues at another step of the same block, or after the block.
    Goto(Target),
}

/// What happens after a gate is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDeny {
    /// The run is cancelled.
    Cancel,
    /// The step fails.
    Fail,
    /// The run continues.
    Continue,
    /// The run continues at another step of the same block, or after the block.
    Goto(Target),
}

/// The kind of a step.
#[derive(Debug)]
pub enum Kind {
    /// Calls a tool.
    Call(Box<Call>),
    /// Runs a block once per item.
    Foreach(Foreach),
    /// Runs blocks in parallel.
    Parallel(Parallel),
    /// Runs the first block whose condition holds.
    Branch(Branch),
    /// Waits for an approval.
    Approve(Box<Approve>),
    /// Waits for a duration or until a timestamp.
    Sleep(Sleep),
    /// Waits for a signal.
    Wait(Wait),
    /// Runs another workflow.
    Workflow(Workflow),
    /// Computes values.
    Let(Let),
    /// Does nothing.
    Pass,
}

impl Kind {
    /// The kind as written in a definition.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Call(_) => "tool",
            Self::Foreach(_) => "foreach",
            Self::Parallel(_) => "parallel",
            Self::Branch(_) => "branch",
            Self::Approve(_) => "approve",
            Self::Sleep(_) => "sleep",
            Self::Wait(_) => "wait",
            Self::Workflow(_) => "workflow",
            Self::Let(_) => "let",
            Self::Pass => "pass",
        }
    }
}

/// The values of a `let` step.
#[derive(Debug)]
pub struct Let {
    /// The values, each after those that it reads.
    pub values: Box<[LetValue]>,
}

/// A value of a `let` step.
#[derive(Debug)]
pub struct LetValue {
    /// The name.
    pub name: Box<str>,
    /// The number of [`crate::expr::Root::Let`] under which the other values read it.
    pub number: u32,
    /// The value.
    pub value: ValueTemplate,
}

/// A call of a tool.
#[derive(Debug)]
pub struct Call {
    /// Full name of the tool: `server__tool`.
    pub name: Box<str>,
    /// The server as written, if it is not part of the tool's name.
    pub server: Option<Box<str>>,
    /// The tool as written.
    pub tool: Box<str>,
    /// The arguments.
    pub args: ValueTemplate,
    /// The texts of the arguments that contain references to secrets.
    pub secrets: Arc<[SecretText]>,
    /// The idempotency key, if the definition sets one.
    pub idempotency: Option<Idempotency>,
    /// Name of the argument in which the idempotency key is sent.
    pub idempotency_arg: Option<Box<str>>,
    /// The effects of the call, if the definition sets them.
    pub effects: Option<Effects>,
    /// What happens when the outcome is unknown, if the definition sets it.
    pub on_uncertain: Option<OnUncertain>,
    /// Maximum time to wait for an unavailable server, in milliseconds; `None`: no limit.
    pub server_wait_ms: Option<u64>,
    /// The call that determines whether this one has taken effect.
    pub verify: Option<Verify>,
    /// What happens if the tool does not exist.
    pub missing_tool: MissingTool,
    /// Role in which the tool should act.
    pub persona: Option<Box<str>>,
    /// The conditions on the result, in the order of their evaluation.
    pub checks: Box<[ResultCheck]>,
}

/// A condition on the result of a call: `expect` or `fail_if`.
#[derive(Debug)]
pub struct ResultCheck {
    /// The condition. `result` refers to [`crate::expr::Root::Probe`].
    pub when: Condition,
    /// The condition as written.
    pub written: Box<str>,
    /// Whether it must hold (`expect`) or must not hold (`fail_if`).
    pub expected: bool,
    /// The name of the failure, if the definition sets one.
    pub name: Option<FailureName>,
    /// The message; `None`: the condition and the result.
    pub message: Option<Template>,
}

/// The name of a failure that a definition sets.
#[derive(Debug)]
pub enum FailureName {
    /// The same call may succeed later.
    Transient,
    /// A name of the definition, which is the code of the failure.
    Named(Box<str>),
}

/// An idempotency key.
#[derive(Debug)]
pub struct Idempotency {
    /// The key.
    pub key: Template,
    /// The scope in which the key is unique.
    pub scope: KeyScope,
    /// Time to live of the result, in seconds; `None`: no expiry within the scope.
    pub ttl_secs: Option<u64>,
}

/// A call that determines whether another has taken effect.
#[derive(Debug, Clone)]
pub struct Verify {
    /// Full name of the tool.
    pub tool: Box<str>,
    /// The arguments.
    pub args: ValueTemplate,
    /// The texts of the arguments that contain references to secrets.
    pub secrets: Arc<[SecretText]>,
    /// Holds if the call has taken effect. `result` refers to [`crate::expr::Root::Probe`].
    pub when: Condition,
}

/// Runs a block once per item.
#[derive(Debug)]
pub struct Foreach {
    /// The items.
    pub items: ValueTemplate,
    /// Name of the loop variable.
    pub item: Box<str>,
    /// The block to run for each item.
    pub body: BlockIx,
    /// Maximum number of items that run at the same time.
    pub concurrency: u32,
    /// What happens to the other items when one fails.
    pub on_item_fail: OnFail,
}

/// Runs blocks in parallel.
#[derive(Debug)]
pub struct Parallel {
    /// The branches.
    pub branches: Vec<BlockIx>,
    /// Maximum number of branches that run at the same time; `None`: all.
    pub concurrency: Option<u32>,
    /// What happens to the other branches when one fails.
    pub on_any_fail: OnFail,
}

/// Runs the first block whose condition holds.
#[derive(Debug)]
pub struct Branch {
    /// Conditions and their blocks, in order.
    pub cases: Vec<Case>,
    /// The block if no condition holds.
    pub otherwise: Option<BlockIx>,
    /// Whether the step fails with `no_branch_matched` if no condition holds and there is no such block: true for `cases`.
    pub must_match: bool,
}

/// A condition and its block.
#[derive(Debug)]
pub struct Case {
    /// The condition.
    pub when: Condition,
    /// The condition as written.
    pub written: Box<str>,
    /// The block to run if the condition holds.
    pub then: BlockIx,
}

/// Waits for an approval.
#[derive(Debug)]
pub struct Approve {
    /// The approval.
    pub gate: Gate,
    /// What happens after a denial.
    pub on_deny: OnDeny,
    /// Where the run continues when the request has expired; `None`: as after a denial, or as the rules of the gate say.
    pub on_timeout: Option<Target>,
    /// The calls and sub-workflows that run after the gate and before the next one, in source order.
    pub guards: Box<[StepIx]>,
}

/// An approval that a step waits for.
#[derive(Debug, Default)]
pub struct Gate {
    /// The question; `None`: a default question.
    pub prompt: Option<Template>,
    /// Users and groups to notify.
    pub notify: Box<[Box<str>]>,
    /// Who may decide, and what happens if nobody does.
    pub rules: GateRules,
    /// Time until the request expires, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// JSON Schema of the values that the approver enters, as written and compiled.
    pub form: Option<(Value, Arc<Schema>)>,
}

/// Waits for a duration or until a timestamp.
#[derive(Debug)]
pub enum Sleep {
    /// A duration in milliseconds.
    For(u64),
    /// A template that returns a duration.
    ForComputed(Template),
    /// A timestamp in milliseconds since 1970-01-01 UTC.
    Until(i64),
    /// A template that returns a timestamp.
    UntilComputed(Template),
}

/// Waits for a signal.
#[derive(Debug)]
pub struct Wait {
    /// Name of the signal.
    pub event: Template,
    /// The expected payload; `None`: any payload.
    pub correlate: Option<ValueTemplate>,
}

/// Runs another workflow.
#[derive(Debug)]
pub struct Workflow {
    /// Name of the definition.
    pub name: Box<str>,
    /// Its version; `None`: the one that the enclosing definition keeps.
    pub version: Option<WorkflowVersion>,
    /// Inputs of the run.
    pub inputs: ValueTemplate,
}

impl Workflow {
    /// The key under which the enclosing definition keeps the version; `None` for `latest`.
    pub fn pin_key(&self) -> Option<String> {
        match self.version {
            None => Some(self.name.to_string()),
            Some(WorkflowVersion::Number(version)) => Some(format!("{}@{version}", self.name)),
            Some(WorkflowVersion::Latest) => None,
        }
    }
}
