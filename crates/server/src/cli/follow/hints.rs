//! Hints for a run that waits: what it waits for, and the commands that continue it.

use std::path::Path;

use steprail_engine::{NextAction, RunId, RunStatus, WaitCause, WaitingFor, next_action};
use steprail_http::views::{Approval, Run, UnknownCall};

use super::run_tree::RunTree;
use crate::cli::shared::decision;
use crate::cli::shared::server_args::ServerArgs;
use crate::cli::shared::tool_args::ToolArgs;
use crate::cli::terminal::text::{sanitize, shell_quote};

/// How the command was called, as far as the suggested commands depend on it.
#[derive(Debug, Clone)]
pub(crate) enum Invocation {
    /// The run belongs to a server.
    Server(ServerArgs),
    /// The run belongs to a database, and the engine is in this process.
    Database { db: String, tools: ToolArgs },
}

impl Invocation {
    pub(crate) fn database(db: &Path, tools: &ToolArgs) -> Self {
        Self::Database { db: db.display().to_string(), tools: tools.clone() }
    }

    /// The command that resumes a run, or all unfinished runs of a database.
    pub(crate) fn resume_command(&self, run: Option<RunId>) -> String {
        let run = run.map(|run| format!(" {run}")).unwrap_or_default();
        match self {
            Self::Server(server) => format!("steprail resume{run}{}", server.to_shell()),
            Self::Database { db, tools } => {
                let tools = tools.argument().map(|(option, file)| format!(" {option} {}", shell_quote(file)));
                format!("steprail resume --db {}{}{run}", shell_quote(db), tools.unwrap_or_default())
            }
        }
    }

    /// What to tell the user who stops following runs with Ctrl-C.
    pub(crate) fn detach_message(&self, roots: &[RunId]) -> String {
        let run = if let [run] = roots { Some(*run) } else { None };
        match (self, run) {
            (Self::Server(server), Some(run)) => {
                format!("the run continues; show it with `steprail show {run}{}`", server.to_shell())
            }
            _ => format!("no run was cancelled; continue with: {}", self.resume_command(run)),
        }
    }

    /// What a run waits for, and how to continue it; one entry for each wait that a user can end, and for a pause.
    pub(crate) fn hints(&self, run: &Run, tree: &RunTree) -> Vec<String> {
        let waiting = run.waiting.as_deref().unwrap_or_default();
        let mut hints: Vec<String> =
            waiting.iter().filter_map(|wait| self.wait_hint(run, wait, tree)).collect();
        if next_action(run.status, waiting) == Some(NextAction::Resume) {
            let reason = match (run.status, &run.restored) {
                (_, Some(restored)) => restored.notice.as_str(),
                (RunStatus::Interrupted, None) => "a restart interrupted the run",
                _ => "the run is paused",
            };
            hints.push(format!("{reason}\n  {}", self.resume_command(Some(run.run_id))));
        }
        hints
    }

    fn wait_hint(&self, run: &Run, wait: &WaitingFor, tree: &RunTree) -> Option<String> {
        let is_it = |run_id: RunId, step: &str| run_id == wait.run_id && step == wait.step;
        match wait.action() {
            NextAction::Decide(_) => {
                let approval = run.approvals.iter().flatten().find(|open| is_it(open.run_id, &open.step))?;
                Some(self.gate_hint(run, approval, tree))
            }
            NextAction::Resolve(_) => {
                let call = run.unknown_calls.iter().flatten().find(|call| is_it(call.run_id, &call.step))?;
                Some(self.unknown_call_hint(run.run_id, call))
            }
            NextAction::Signal(_) => Some(self.signal_hint(wait)),
            NextAction::Resume | NextAction::Wait | NextAction::Explain => None,
        }
    }

    fn signal_hint(&self, wait: &WaitingFor) -> String {
        let event = match &wait.cause {
            WaitCause::Signal { event: Some(event), .. } => shell_quote(event),
            _ => "EVENT".to_owned(),
        };
        let command = match self {
            Self::Server(server) => {
                format!("steprail signal {event} JSON --run {}{}", wait.run_id, server.to_shell())
            }
            Self::Database { .. } => {
                format!("{} --signal {event}=JSON", self.resume_command(Some(wait.run_id)))
            }
        };
        format!("`{}` waits for the signal {event}\n  {command}", wait.step)
    }

    fn gate_hint(&self, root: &Run, approval: &Approval, tree: &RunTree) -> String {
        let prompt = sanitize(&approval.prompt);
        let Approval { run_id: run, step, .. } = approval;
        match self {
            _ if approval.may_decide == Some(false) => {
                format!("`{step}` waits for another approver: {prompt}")
            }
            Self::Server(server) => {
                let (path, server) = (shell_quote(step), server.to_shell());
                let answer =
                    if decision::has_fields(approval.form.as_deref()) { " --answer JSON" } else { "" };
                format!(
                    "`{step}` waits for a human: {prompt}\n  steprail approve {run} {path}{server}{answer}\n  \
                     steprail deny {run} {path}{server}"
                )
            }
            Self::Database { .. } => {
                let name = tree.path_from(root.run_id, *run, step).unwrap_or_else(|| step.clone());
                let (path, resume) = (shell_quote(&name), self.resume_command(Some(root.run_id)));
                format!(
                    "`{name}` waits for a human: {prompt}\n  {resume} --approve {path} --as NAME\n  \
                     --deny {path} denies it. NAME is the approver: not {}, who started the run, unless the gate allows it.",
                    root.created_by
                )
            }
        }
    }

    fn unknown_call_hint(&self, root: RunId, call: &UnknownCall) -> String {
        let reason = call.error.as_ref().map(|error| format!(" ({})", sanitize(&error.message)));
        let (name, path, reason) = (&call.shown, shell_quote(&call.shown), reason.unwrap_or_default());
        let resume = self.resume_command(Some(root));
        format!(
            "`{name}` waits for a human: the outcome of its call is unknown{reason}\n  {resume} --retry {path}\n  \
             The call may have taken effect, and --retry makes it again.\n  \
             --happened {path}=RESULT if the call took effect; --skip {path} to continue without it."
        )
    }
}
