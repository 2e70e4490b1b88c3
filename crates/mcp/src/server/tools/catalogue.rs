//! The declarations of all tools. Each tool's file has its arguments and its behaviour.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::Value;
use steprail_engine::Right;

use super::super::error::ToolResult;
use super::super::request::ToolRequest;
use super::{
    RunArgs, ToolNames, cancel, check, decide, define, events, explain, find_tools, guide, interrupt,
    intervene, list_definitions, list_runs, lookup, rerun, resume, schema, signal, start, status,
};
use crate::signature::signature;

/// The declaration of a tool.
pub(in super::super) struct ToolDef {
    pub name: &'static str,
    /// A name with a dot that older clients use. They may write `_` for the dot.
    alias: Option<&'static str>,
    title: &'static str,
    description: &'static str,
    hints: Hints,
    /// The tool is offered to users with one of these rights.
    rights: &'static [Right],
    schema: fn() -> Arc<JsonObject>,
    pub run: for<'a> fn(&'a ToolRequest) -> ToolFuture<'a>,
}

type ToolFuture<'a> = Pin<Box<dyn Future<Output = ToolResult> + Send + 'a>>;

/// The hints of the protocol about the effects of a tool.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "the four hints of the protocol")]
struct Hints {
    read_only: bool,
    destructive: bool,
    idempotent: bool,
    open_world: bool,
}

const READ_ONLY: Hints = Hints { read_only: true, destructive: false, idempotent: true, open_world: false };
const ADDITIVE: Hints = Hints { read_only: false, ..READ_ONLY };
const DESTRUCTIVE: Hints = Hints { destructive: true, ..ADDITIVE };
/// The tool sends a signal to runs, whose steps may do anything next.
const SIGNALS: Hints = Hints { idempotent: false, open_world: true, ..ADDITIVE };
/// The tool makes calls of other tools.
const MAKES_CALLS: Hints = Hints { destructive: true, ..SIGNALS };

/// Rights of users who may see runs.
const VIEW: &[Right] = &[Right::Workflow, Right::View];
/// Rights of users who may start runs.
const RUN: &[Right] = &[Right::Workflow];
/// Rights of users who may control their own runs, or those of others.
const CONTROL: &[Right] = &[Right::Workflow, Right::Administer];
/// Rights of users who may decide at gates.
const DECIDE: &[Right] = &[Right::Approve];

/// Declares tools: `"name" or "alias" { … run: module::handler(type of the arguments) }`.
macro_rules! tools {
    ($($name:literal $(or $alias:literal)? {
        title: $title:literal,
        description: $description:literal,
        hints: $hints:ident,
        rights: $rights:ident,
        run: $module:ident::$handler:ident($args:ty),
    })*) => {
        &[$(ToolDef {
            name: $name,
            alias: tools!(@alias $($alias)?),
            title: $title,
            description: $description,
            hints: $hints,
            rights: $rights,
            schema: schema::of::<$args>,
            run: |request| Box::pin(async move {
                let args: $args = request.arguments()?;
                $module::$handler(request, args).await
            }),
        },)*]
    };
    (@alias) => { None };
    (@alias $alias:literal) => { Some($alias) };
}

/// Every tool, in the order of `tools/list`.
pub(super) const ALL: &[ToolDef] = tools! {
    "workflow_guide" {
        title: "How to write definitions",
        description: "The definition language with three complete examples and all functions. Read it before you write a \
                      definition. section returns one part in detail.",
        hints: READ_ONLY,
        rights: VIEW,
        run: guide::run(guide::Args),
    }
    "workflow_tools" {
        title: "Find tools",
        description: "Finds tools that workflow steps can call, by words in name and description. Few matches include \
                      schema and example arguments; many are listed in one line each.",
        hints: READ_ONLY,
        rights: RUN,
        run: find_tools::run(find_tools::Args),
    }
    "workflow_check" {
        title: "Check a definition",
        description: "Reports every problem of a definition without storing it: syntax, references, unknown tools, invalid \
                      arguments, servers that are down.",
        hints: READ_ONLY,
        rights: RUN,
        run: check::run(check::Args),
    }
    "workflow_define" {
        title: "Define a workflow",
        description: "Stores a workflow definition. Equal content is the same version, changed content a new one; existing \
                      runs keep theirs. Reports every problem with its line and a hint. workflow_guide describes the \
                      language, workflow_tools finds the tools.",
        hints: ADDITIVE,
        rights: RUN,
        run: define::run(define::Args),
    }
    "workflow_list_definitions" {
        title: "List workflows",
        description: "Lists stored workflows by name, the newest version of each.",
        hints: READ_ONLY,
        rights: VIEW,
        run: list_definitions::run(list_definitions::Args),
    }
    "workflow_lookup" or "workflows.lookup" {
        title: "Look up a workflow",
        description: "Finds stored workflows by words in name, description and labels; with name, returns one with its \
                      inputs and its definition.",
        hints: READ_ONLY,
        rights: VIEW,
        run: lookup::run(lookup::Args),
    }
    "workflow_start" or "workflows.run" {
        title: "Start a workflow",
        description: "Starts a run of a stored workflow (name) or of a definition in the arguments. The run is durable when \
                      this returns and continues by itself. Waits up to wait_s seconds for its end; after that, call \
                      workflow_status.",
        hints: MAKES_CALLS,
        rights: RUN,
        run: start::run(start::Args),
    }
    "workflow_status" or "workflows.get_status" {
        title: "Status of a run",
        description: "The state of a run: its steps, what it waits for, its output. wait_s waits until it has ended or \
                      waits for a human; with since_seq, for any event after it. steps adds the inputs and outputs of \
                      those steps.",
        hints: READ_ONLY,
        rights: VIEW,
        run: status::run(status::Args),
    }
    "workflow_list_runs" {
        title: "List runs",
        description: "Lists runs, newest first: your own, or all if you may see them. `paused` runs wait for a human.",
        hints: READ_ONLY,
        rights: VIEW,
        run: list_runs::run(list_runs::Args),
    }
    "workflow_events" {
        title: "Events of a run",
        description: "The append-only log of a run: its events in order, each with its number (seq).",
        hints: READ_ONLY,
        rights: VIEW,
        run: events::run(events::Args),
    }
    "workflow_explain" {
        title: "Explain a run",
        description: "What happened in a run, step by step, why it failed or what it waits for, and what to do.",
        hints: READ_ONLY,
        rights: VIEW,
        run: explain::run(RunArgs),
    }
    "workflow_approve" {
        title: "Approve a step",
        description: "Approves a gate with the single-use code that a human with the right gave you: the run continues. \
                      Without the code, only the human can decide.",
        hints: DESTRUCTIVE,
        rights: DECIDE,
        run: decide::approve(decide::Args),
    }
    "workflow_deny" {
        title: "Deny a step",
        description: "Denies a gate with the single-use code that a human with the right gave you: depending on the \
                      definition, the run is cancelled or the step fails.",
        hints: ADDITIVE,
        rights: DECIDE,
        run: decide::deny(decide::Args),
    }
    "workflow_cancel" or "workflows.cancel" {
        title: "Cancel a run",
        description: "Cancels a run for good, running or paused, with its calls in flight and the runs of its \
                      sub-workflows. Effects of its steps are not undone.",
        hints: DESTRUCTIVE,
        rights: CONTROL,
        run: cancel::run(cancel::Args),
    }
    "workflow_interrupt" {
        title: "Pause a run",
        description: "Pauses a run: calls in flight end, and no step starts until workflow_resume.",
        hints: ADDITIVE,
        rights: CONTROL,
        run: interrupt::run(RunArgs),
    }
    "workflow_resume" {
        title: "Resume a run",
        description: "Resumes a run that was paused, or interrupted by a restart. Calls whose outcome is unknown are not \
                      repeated unless they are harmless or named in force_steps.",
        hints: MAKES_CALLS,
        rights: CONTROL,
        run: resume::run(resume::Args),
    }
    "workflow_rerun" {
        title: "Run again",
        description: "Starts a new run of the workflow of an ended run, with the same inputs. With reuse, calls that \
                      succeeded with the same arguments are not repeated; run_anew names steps that are.",
        hints: MAKES_CALLS,
        rights: RUN,
        run: rerun::run(rerun::Args),
    }
    "workflow_signal" {
        title: "Send a signal",
        description: "Sends a signal to a run, which keeps it until a step waits for it; without run_id, to every run \
                      that waits for it now.",
        hints: SIGNALS,
        rights: CONTROL,
        run: signal::run(signal::Args),
    }
    "workflow_intervene" {
        title: "Change a run",
        description: "A human changes a run: sets the arguments of a step to come (set_arguments), replaces the output of a \
                      step (set_output) or the inputs (set_inputs), skips a step (skip), supplies its result \
                      (supply_result); or states what happened to a call with an unknown outcome (happened, retry, fail, \
                      or skip).",
        hints: DESTRUCTIVE,
        rights: DECIDE,
        run: intervene::run(intervene::Args),
    }
};

impl ToolDef {
    pub(super) fn is_offered(&self, may: impl Fn(Right) -> bool) -> bool {
        self.rights.iter().any(|right| may(*right))
    }

    /// Whether an agent can call it with the code of a person.
    pub(super) fn takes_code(&self) -> bool {
        matches!(self.name, "workflow_approve" | "workflow_deny")
    }

    fn named(&self, name: &'static str) -> Tool {
        let hints = ToolAnnotations::new()
            .read_only(self.hints.read_only)
            .destructive(self.hints.destructive)
            .idempotent(self.hints.idempotent)
            .open_world(self.hints.open_world);
        Tool::new(name, self.description, (self.schema)()).with_title(self.title).with_annotations(hints)
    }

    pub(super) fn tool(&self) -> Tool {
        self.named(self.name)
    }

    /// The arguments in one line.
    pub(in super::super) fn signature(&self) -> String {
        signature(&Value::Object((*(self.schema)()).clone()))
    }

    /// The tool under each name that is listed.
    pub(super) fn tools(&self, names: ToolNames) -> impl Iterator<Item = Tool> {
        let alias = self.alias.filter(|_| names != ToolNames::Underscore);
        let has_name = names != ToolNames::Dotted || alias.is_none();
        has_name.then(|| self.tool()).into_iter().chain(alias.map(|name| self.named(name)))
    }

    pub(super) fn has_name(&self, name: &str) -> bool {
        let is_alias = |alias: &str| alias == name || alias.replace('.', "_") == name;
        self.name == name || self.alias.is_some_and(is_alias)
    }
}
