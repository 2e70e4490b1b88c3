//! The fields of a definition other than its steps.

use std::collections::BTreeMap;

use super::fields::{Reader, choice, record};
use super::input::Input;
use super::policy::{MissingTool, OnUncertain};
use super::publish::Publish;
use super::step::Steps;
use super::value::{DurationSpec, Spanned, Text};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::Node;
use crate::limits;

record! {
    /// The fields of a definition other than its steps.
    pub struct Head {
        /// Name of the definition. Default: the file name without extension.
        name: Text,
        /// What the workflow does, for users and agents.
        description: Text,
        /// Inputs of a run, by name. The value of each is a JSON Schema.
        inputs: BTreeMap<String, Input>,
        /// Output of a run. Strings can contain references. Default: the output of the last step.
        output: Node,
        /// Tools that the steps may call, as names or patterns (`crm__read_*`). It never grants a tool that the user may
        /// not call. Default: all tools of the user.
        allowed_tools: Vec<Text>,
        /// What happens to an unfinished run when the server restarts. `resume` (default): it continues automatically.
        /// `interrupt`: it becomes `interrupted` until a user resumes it.
        on_restart: OnRestart,
        /// Default of `on_uncertain` for all steps.
        on_uncertain: OnUncertain,
        /// Default of `server_wait` for all steps.
        server_wait: Spanned<DurationSpec>,
        /// Default of `missing_tool` for all steps.
        missing_tool: MissingTool,
        /// What happens if a tool has changed since this version of the definition was stored. `warn` (default): the call
        /// is made and the change is logged. `block`: the call fails. `approve`: the call waits for an approval.
        on_tool_change: OnToolChange,
        /// Steps to run when the run fails. They can read the failure as `error`.
        on_failure: Steps,
        /// Limits of a run, at most those of the server.
        limits: LimitFields,
        /// Labels to find the definition by.
        labels: BTreeMap<String, Text>,
        /// Publishes the workflow to agents as a tool. `true`: as `wf_<name>`. A map sets the name and the use of tasks.
        /// Default: not published.
        publish: Publish,
    }
}

choice! {
    /// What happens to an unfinished run when the server restarts.
    pub enum OnRestart {
        /// The run continues automatically.
        Resume = "resume",
        /// The run becomes `interrupted` until a user resumes it.
        Interrupt = "interrupt",
    }
}

choice! {
    /// What happens if a tool has changed since the definition was stored.
    pub enum OnToolChange {
        /// The call is made and the change is logged.
        Warn = "warn",
        /// The call fails.
        Block = "block",
        /// The call waits for an approval.
        Approve = "approve",
    }
}

record! {
    /// Limits of a run. Each value is between 1 and the default, which is the limit of the server.
    #[schemars(rename = "Limits")]
    pub struct LimitFields("`limits`") {
        /// Maximum number of step executions, including those in loops. Default: 1000000.
        #[schemars(range(min = 1))]
        step_runs: Spanned<u32>,
        /// Maximum number of items of a `foreach`. Default: 100000.
        #[schemars(range(min = 1))]
        foreach_items: Spanned<u32>,
        /// Maximum number of executions of one step of a graph. Default: 10000.
        #[schemars(range(min = 1))]
        loop_visits: Spanned<u32>,
        /// Maximum number of calls in flight. Default: 256.
        #[schemars(range(min = 1))]
        concurrency: Spanned<u32>,
    }
}

/// Whether a text is a valid definition name.
pub(crate) fn is_definition_name(name: &str) -> bool {
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ' ');
    (1..=limits::NAME_CHARS).contains(&name.chars().count()) && name.chars().all(allowed)
}

impl Head {
    pub(super) fn check(&self, reader: &mut Reader) {
        if let Some(name) = self.name.as_ref().filter(|name| !is_definition_name(name)) {
            let message = format!("`{}` is not a valid definition name", name.value);
            let hint = "use 1 to 128 letters, digits, spaces, `_`, `-` or `.`";
            reader.invalid(name.span, message, hint);
        }
        if let Some((labels, name)) =
            self.labels.as_ref().zip(self.labels.iter().flatten().nth(limits::LABELS))
        {
            let message = format!("{} labels exceed the limit of {}", labels.len(), limits::LABELS);
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
