//! What a definition says about itself, beside its steps.

use std::collections::BTreeMap;

use super::fields::{Reader, choice, record};
use super::input::Input;
use super::policy::{MissingTool, OnUncertain};
use super::publish::Publish;
use super::step::Steps;
use super::value::{Period, Spanned, Text};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::Node;
use crate::limits;

record! {
    /// What a definition says about itself, beside its steps.
    pub struct Head {
        /// The definition's name; that of the file by default.
        name: Text,
        /// What it is for, for people and agents.
        description: Text,
        /// What a run is started with: a JSON Schema per input.
        inputs: BTreeMap<String, Input>,
        /// What a run gives back; strings in it may hold references. By default the output of the last step.
        output: Node,
        /// The only tools that its steps may call, as names or patterns (`crm__read_*`). It narrows what the
        /// user may do and never widens it.
        allowed_tools: Vec<Text>,
        /// What happens to a run when the server restarts; `resume` by default.
        on_restart: OnRestart,
        /// What happens when a call's outcome is unknown, where the step does not say.
        on_uncertain: OnUncertain,
        /// How long steps wait for a server that cannot take their calls, where the step does not say; without it, until
        /// the server is back.
        server_wait: Spanned<Period>,
        /// What happens when a tool does not exist at run time, where the step does not say.
        missing_tool: MissingTool,
        /// What happens when a tool is no longer what it was when this version was stored; `warn` by default.
        on_tool_change: OnToolChange,
        /// Steps that run when the run fails; they may read `error`.
        on_failure: Steps,
        /// Bounds of a run, below those of the server.
        limits: LimitFields,
        /// Words to find the definition by.
        labels: BTreeMap<String, Text>,
        /// Whether the workflow is offered to agents as a tool: `true`, or how.
        publish: Publish,
    }
}

choice! {
    /// What happens to a run when the server restarts.
    pub enum OnRestart {
        /// It goes on by itself.
        Resume = "resume",
        /// It is marked `interrupted` and waits for someone to resume it.
        Interrupt = "interrupt",
    }
}

choice! {
    /// What happens when a tool is no longer what it was when a definition was stored.
    pub enum OnToolChange {
        /// The call is made, and the log says what is different.
        Warn = "warn",
        /// The call fails.
        Block = "block",
        /// A human is asked before the call.
        Approve = "approve",
    }
}

record! {
    /// Bounds of a run; they may only be lower than the server's.
    pub struct LimitFields("`limits`") {
        /// Step executions in one run.
        #[schemars(range(min = 1))]
        step_runs: Spanned<u32>,
        /// Items of one `foreach`.
        #[schemars(range(min = 1))]
        foreach_items: Spanned<u32>,
        /// Times that one step of a graph may be entered.
        #[schemars(range(min = 1))]
        loop_visits: Spanned<u32>,
        /// Steps of one run in flight at the same time.
        #[schemars(range(min = 1))]
        concurrency: Spanned<u32>,
    }
}

/// Whether a definition can be called so.
pub(crate) fn is_definition_name(name: &str) -> bool {
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ' ');
    (1..=limits::NAME_CHARS).contains(&name.chars().count()) && name.chars().all(allowed)
}

impl Head {
    pub(super) fn check(&self, reader: &mut Reader) {
        if let Some(name) = self.name.as_ref().filter(|name| !is_definition_name(name)) {
            let message = format!("`{}` cannot be a definition's name", name.value);
            let hint = "use 1 to 128 letters, digits, spaces, `_`, `-` or `.`";
            reader.invalid(name.span, message, hint);
        }
        if let Some((labels, name)) =
            self.labels.as_ref().zip(self.labels.iter().flatten().nth(limits::LABELS))
        {
            let message = format!("{} labels are more than the limit of {}", labels.len(), limits::LABELS);
            reader.report(Diagnostic::new(Code::LimitExceeded, name.1.span, message));
        }
        for pattern in self.allowed_tools.iter().flatten() {
            let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-' | b'*');
            if pattern.is_empty() || !pattern.bytes().all(valid) {
                let message = format!("`{}` is not a tool name or pattern", pattern.value);
                let diagnostic = Diagnostic::new(Code::InvalidToolName, pattern.span, message);
                reader.report(diagnostic.hint("write a tool's name, or a pattern such as `crm__read_*`"));
            }
        }
    }
}
