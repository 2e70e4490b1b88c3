//! What a run waits for, and the action that lets it continue.
//!
//! The computation is the same for every surface; each surface renders it with its own commands.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use steprail_core::plan::Hash;
use steprail_core::run::{Event, Failure, Millis, RunStatus, Started, StepStatus};
use steprail_core::spec::step::KindName;
use steprail_store::{After, Approval, RunId, StepRow, StoredEvent, UnknownCall};

use crate::RunView;
use crate::error::Error;
use crate::limits::WAIT_EVENTS;
use crate::user::User;

/// One step of a run that waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WaitingFor {
    /// Id of the run that the step belongs to: the run itself, or the run of a sub-workflow.
    #[schemars(with = "String", extend("format" = "uuid"))]
    pub run_id: RunId,
    /// Path of the step in its run.
    pub step: String,
    /// What the step waits for.
    #[serde(flatten)]
    pub cause: WaitCause,
}

/// What a step waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "for", rename_all = "snake_case")]
pub enum WaitCause {
    /// The decision of a human at a gate, or the answer to an input request.
    Approval {
        /// The text that asks for the decision.
        prompt: String,
        /// The tool that is called after an approval.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tool: Option<String>,
        /// Arguments of that call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        args: Option<Value>,
        /// JSON Schema of the answer, if a tool requested input.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        form: Option<Value>,
        /// Digest that binds a decision to this request.
        #[schemars(with = "String")]
        digest: Hash,
        /// When the request expires.
        #[serde(default, with = "timestamp", skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        deadline: Option<Millis>,
    },
    /// The decision of a human about a call with an unknown outcome.
    #[serde(rename = "resolution")]
    UnknownCall {
        /// Path of the step from the run that was queried, through the steps that run sub-workflows.
        shown: String,
        /// The tool that was called.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tool: Option<String>,
        /// Digest that identifies the attempt.
        #[schemars(with = "String")]
        digest: Hash,
        /// Why the outcome is unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Failure>,
    },
    /// A durable timer of a `sleep` step.
    Time {
        /// When the timer fires; `None` if the step started too long ago in the log.
        #[serde(default, with = "timestamp", skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        until: Option<Millis>,
    },
    /// The next attempt of a call that failed.
    Retry {
        /// When the attempt starts.
        #[serde(default, with = "timestamp", skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        until: Option<Millis>,
    },
    /// A signal from outside.
    #[serde(rename = "event")]
    Signal {
        /// Name of the signal; `None` if the step started too long ago in the log.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        event: Option<String>,
        /// Values that the payload must contain.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        correlate: Option<Value>,
    },
    /// A server that does not accept calls now.
    Server {
        /// Why the call was not sent.
        error: Failure,
    },
    /// Another step that claimed the same idempotency key.
    IdempotencyKey,
    /// The run of a sub-workflow.
    Workflow {
        /// Id of that run; `None` if the step started too long ago in the log.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        run: Option<RunId>,
    },
    /// A concurrency slot.
    Slot,
    /// The end of a freeze of all calls.
    Freeze {
        /// The user who froze the calls.
        by: String,
        /// The reason that the user gave.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
}

/// The action that lets a run continue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NextAction<'w> {
    /// A human approves, denies or answers.
    Decide(&'w WaitingFor),
    /// A human resolves a call with an unknown outcome: it succeeded, it is repeated, or it is skipped.
    Resolve(&'w WaitingFor),
    /// Send the signal.
    Signal(&'w WaitingFor),
    /// Resume a run that is paused or was interrupted.
    Resume,
    /// Wait: the run continues without further action.
    Wait,
    /// Find out why the run failed.
    Explain,
}

impl WaitingFor {
    /// The action that ends this wait.
    pub fn action(&self) -> NextAction<'_> {
        match self.cause {
            WaitCause::Approval { .. } => NextAction::Decide(self),
            WaitCause::UnknownCall { .. } => NextAction::Resolve(self),
            WaitCause::Signal { .. } => NextAction::Signal(self),
            _ => NextAction::Wait,
        }
    }

    /// Whether only a human can end this wait.
    pub fn needs_human(&self) -> bool {
        matches!(self.action(), NextAction::Decide(_) | NextAction::Resolve(_))
    }
}

/// The next action on a run; `None` if it completed or was cancelled.
///
/// Decisions of humans come first: a run that pauses for one continues without `resume` after it.
pub fn next_action(status: RunStatus, waiting: &[WaitingFor]) -> Option<NextAction<'_>> {
    let human = || waiting.iter().find(|wait| wait.needs_human()).map(WaitingFor::action);
    let signal =
        || waiting.iter().map(WaitingFor::action).find(|action| matches!(action, NextAction::Signal(_)));
    match status {
        RunStatus::Completed | RunStatus::Cancelled => None,
        RunStatus::Failed => Some(NextAction::Explain),
        RunStatus::Interrupted => Some(NextAction::Resume),
        RunStatus::Paused => human().or(Some(NextAction::Resume)),
        RunStatus::Pending | RunStatus::Running => human().or_else(signal).or(Some(NextAction::Wait)),
    }
}

impl User {
    /// What a run waits for: open approvals first, then calls with unknown outcomes, then other steps in order. The view
    /// has a limited number of each; see [`RunView::more_waiting`].
    ///
    /// The log is read only if a step sleeps, waits for a signal or runs a sub-workflow.
    pub async fn waiting(&self, view: &RunView) -> Result<Vec<WaitingFor>, Error> {
        let in_log = |step: &StepRow| {
            let is_logged = matches!(step.kind, KindName::Sleep | KindName::Wait | KindName::Workflow);
            step.status == StepStatus::Waiting && is_logged
        };
        if !view.open_steps.iter().any(in_log) {
            return Ok(self.with_freeze(waiting_for(view, &[])));
        }
        let after = view.run.seq.saturating_sub(WAIT_EVENTS as u64);
        let page = self.events(view.run.run_id, After::Seq(after), WAIT_EVENTS).await?;
        Ok(self.with_freeze(waiting_for(view, &page.events)))
    }

    /// While calls are frozen, a step that is ready waits for the end of the freeze.
    fn with_freeze(&self, mut waiting: Vec<WaitingFor>) -> Vec<WaitingFor> {
        if let Some(freeze) = self.policy().freeze() {
            for wait in waiting.iter_mut().filter(|wait| wait.cause == WaitCause::Slot) {
                wait.cause = WaitCause::Freeze { by: freeze.by.clone(), reason: freeze.reason.clone() };
            }
        }
        waiting
    }
}

/// What a run waits for, computed from its rows and from the events that started its steps.
fn waiting_for(view: &RunView, events: &[StoredEvent]) -> Vec<WaitingFor> {
    if view.run.status.is_terminal() {
        return Vec::new();
    }
    let started: BTreeMap<(u32, u32), &Started> = events.iter().filter_map(start_of).collect();
    let run = view.run.run_id;
    let steps = view.open_steps.iter().filter_map(|step| {
        let cause = cause_of(step, started.get(&(step.n, step.attempt)).copied())?;
        Some(WaitingFor { run_id: run, step: step.path.clone(), cause })
    });
    let approvals = view.approvals.iter().map(approval);
    approvals.chain(view.unknown_calls.iter().map(unknown_call)).chain(steps).collect()
}

fn start_of(stored: &StoredEvent) -> Option<((u32, u32), &Started)> {
    match &stored.event {
        Event::StepStarted { step, what, .. } => Some(((step.n, step.attempt), what)),
        _ => None,
    }
}

fn approval(open: &Approval) -> WaitingFor {
    let parsed = |json: &Option<Box<RawValue>>| {
        json.as_ref().and_then(|json| serde_json::from_str::<Value>(json.get()).ok())
    };
    let cause = WaitCause::Approval {
        prompt: open.prompt.clone(),
        tool: open.tool.clone(),
        args: parsed(&open.args),
        form: parsed(&open.form),
        digest: open.digest,
        deadline: open.expires_at,
    };
    WaitingFor { run_id: open.run_id, step: open.path.clone(), cause }
}

fn unknown_call(call: &UnknownCall) -> WaitingFor {
    let UnknownCall { run_id, path, shown, digest, tool, error } = call.clone();
    WaitingFor { run_id, step: path, cause: WaitCause::UnknownCall { shown, tool, digest, error } }
}

/// What a step without an open approval waits for.
fn cause_of(step: &StepRow, started: Option<&Started>) -> Option<WaitCause> {
    match (step.status, step.kind) {
        (StepStatus::Ready, _) => Some(WaitCause::Slot),
        (StepStatus::Pending, _) => Some(WaitCause::Retry { until: step.ready_at }),
        (StepStatus::Waiting, KindName::Sleep) => Some(WaitCause::Time {
            until: match started {
                Some(Started::Sleep { due }) => Some(*due),
                _ => None,
            },
        }),
        (StepStatus::Waiting, KindName::Wait) => Some(match started {
            Some(Started::Wait { event, correlate, .. }) => {
                WaitCause::Signal { event: Some(event.to_string()), correlate: correlate.clone() }
            }
            _ => WaitCause::Signal { event: None, correlate: None },
        }),
        (StepStatus::Waiting, KindName::Workflow) => Some(WaitCause::Workflow {
            run: match started {
                Some(Started::Workflow { run, .. }) => run.parse().ok(),
                _ => None,
            },
        }),
        (StepStatus::Waiting, KindName::Tool | KindName::ToolRemote) => Some(match &step.error {
            Some(error) => WaitCause::Server { error: error.clone() },
            None => WaitCause::IdempotencyKey,
        }),
        _ => None,
    }
}

/// Times as RFC 3339 in UTC with milliseconds.
pub(crate) mod timestamp {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use steprail_core::run::Millis;

    #[expect(clippy::ref_option, reason = "serde passes a reference")]
    pub(crate) fn serialize<S: Serializer>(time: &Option<Millis>, serializer: S) -> Result<S::Ok, S::Error> {
        let time = time.and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
        match time {
            Some(time) => serializer.collect_str(&format_args!("{time:.3}")),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Millis>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        let time = text.map(|text| text.parse::<jiff::Timestamp>()).transpose().map_err(D::Error::custom)?;
        Ok(time.map(jiff::Timestamp::as_millisecond))
    }
}
