//! Runs as JSON: the run, the attempts of its steps, and its calls with unknown outcomes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use steprail_core::run::Millis;
use steprail_engine::{
    Error, Failure, Restored, RunId, RunReason, RunRow, RunStatus, RunView, StepRow, StepStatus, User,
    WaitingFor, restore_notice,
};

use super::approvals::Approval;
use crate::timestamp;

/// A run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// Id of the run.
    #[schemars(with = "String", extend("format" = "uuid"))]
    pub run_id: RunId,
    /// Name of the definition.
    pub name: String,
    /// Version of the definition.
    pub version: u32,
    /// Status of the run.
    pub status: RunStatus,
    /// The run that waits for this one as its sub-workflow.
    #[schemars(with = "Option<String>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunId>,
    /// The user whom the run acts as.
    pub created_by: String,
    /// The surface that started it: `rest`, `cli`, an MCP tool, a schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// Path of the step that started last; absent once the run has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_step: Option<String>,
    /// Inputs of the run; not in lists.
    #[schemars(with = "Option<Value>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Box<RawValue>>,
    /// Output of a completed run; not in lists.
    #[schemars(with = "Option<Value>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<RawValue>>,
    /// Why the run failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// When it was started.
    #[schemars(extend("format" = "date-time"))]
    pub started_at: String,
    /// When its last event was committed.
    #[schemars(extend("format" = "date-time"))]
    pub updated_at: String,
    /// When it ended, with any status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<String>,
    /// Number of its last event.
    pub seq: u64,
    /// Attempts of steps in the order of their start: the first 100, or fewer if they are large; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<Step>>,
    /// Cursor of the next page of steps, for `/api/v1/runs/{run_id}/steps`; absent if `steps` has all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_next: Option<String>,
    /// Number of attempts of all steps; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_total: Option<u64>,
    /// Number of attempts with each status that occurs; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_by_status: Option<BTreeMap<StepStatus, u64>>,
    /// Number of attempts after the first one of their step; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u64>,
    /// Open approvals of the run and of its sub-workflows, at most 100; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvals: Option<Vec<Approval>>,
    /// Calls of the run and of its sub-workflows with an unknown outcome, which a person must resolve; at
    /// most 100; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_calls: Option<Vec<UnknownCall>>,
    /// What the run waits for: approvals first, then calls with an unknown outcome, then other steps; at most 100 of
    /// each; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Vec<WaitingFor>>,
    /// Whether the run waits for more than `waiting` lists.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more_waiting: bool,
    /// Why the run waits, for whom, since when and what happens next; of an ended run, who ended it and why. Absent while it
    /// works and after it completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Why the run does not continue, if its stored state is damaged or its decision panicked; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
    /// The restore of a backup that interrupted the run; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<RestoredRun>,
}

/// Why a run waits or how it ended.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Reason {
    /// The reason in one sentence, with times in UTC.
    pub sentence: String,
    /// Its parts.
    #[serde(flatten)]
    pub parts: RunReason,
}

impl Reason {
    fn new(parts: RunReason, now: Millis) -> Self {
        Self { sentence: parts.sentence(now, timestamp::format), parts }
    }
}

/// The restore of a backup that interrupted a run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct RestoredRun {
    /// When the backup was made. What the run did after that is unknown.
    #[schemars(extend("format" = "date-time"))]
    pub backup_at: String,
    /// Paths of calls that were in flight or could start when the backup was made. They may have been executed.
    pub may_have_run: Vec<Box<str>>,
    /// Number of further such calls.
    pub more: usize,
    /// All of this as text.
    pub notice: String,
}

impl From<Restored> for RestoredRun {
    fn from(restored: Restored) -> Self {
        let backup_at = timestamp::format(restored.backup_at);
        let notice = restore_notice(&restored, &backup_at);
        Self { backup_at, may_have_run: restored.may_have_run, more: restored.more, notice }
    }
}

/// A call with an unknown outcome.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct UnknownCall {
    /// The run that made the call.
    #[schemars(with = "String", extend("format" = "uuid"))]
    pub run_id: RunId,
    /// Path of the step in that run.
    pub step: String,
    /// Path of the step from the requested run: the same, below the steps that wait for the sub-workflow.
    pub shown: String,
    /// Identifies the attempt. `intervene` requires it and rejects it once there is another attempt.
    pub digest: String,
    /// The tool that was called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Why the outcome is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// One attempt of a step.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Id of the attempt: `run:execution:attempt`.
    pub step_id: String,
    /// Path of the execution in the run.
    pub path: String,
    /// Id of the step in the definition.
    pub id: String,
    /// Kind of the step.
    pub kind: String,
    /// The tool that it calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Status of the step.
    pub status: StepStatus,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Arguments of the call, or items of a `foreach`.
    #[schemars(with = "Option<Value>")]
    pub input: Option<Box<RawValue>>,
    /// Output of a completed step.
    #[schemars(with = "Option<Value>")]
    pub output: Option<Box<RawValue>>,
    /// Why the attempt failed.
    pub error: Option<Failure>,
    /// When the attempt may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<String>,
    /// When the attempt started.
    pub started_at: Option<String>,
    /// When the attempt ended.
    pub completed_at: Option<String>,
}

impl Run {
    /// A run in a list: without inputs, output and steps.
    pub(crate) fn summary(row: RunRow) -> Self {
        Self {
            run_id: row.run_id,
            name: row.name,
            version: row.version,
            status: row.status,
            parent: row.parent,
            created_by: row.created_by,
            via: row.via,
            current_step: row.current_step.filter(|_| !row.status.is_terminal()),
            input: None,
            output: None,
            error: row.error,
            started_at: timestamp::format(row.started_at),
            updated_at: timestamp::format(row.updated_at),
            completed_at: row.completed_at.map(timestamp::format),
            seq: row.seq,
            steps: None,
            steps_next: None,
            steps_total: None,
            steps_by_status: None,
            retries: None,
            approvals: None,
            unknown_calls: None,
            waiting: None,
            more_waiting: false,
            reason: None,
            damage: None,
            restored: None,
        }
    }

    /// Runs in a list, with why they wait.
    pub(crate) async fn summaries(user: &User, rows: Vec<RunRow>) -> Result<Vec<Self>, Error> {
        let (rows, now) = (user.reasons(rows).await?, user.now());
        let summary = |(row, reason): (RunRow, Option<RunReason>)| Self {
            reason: reason.map(|reason| Reason::new(reason, now)),
            ..Self::summary(row)
        };
        Ok(rows.into_iter().map(summary).collect())
    }
}

impl Run {
    /// A run with its first steps and what it waits for.
    pub async fn load(user: &User, run: RunId) -> Result<Self, Error> {
        let view = user.status(run).await?;
        let waiting = Some(user.waiting(&view).await?);
        let reason = user.reason(view.run.clone()).await?.map(|reason| Reason::new(reason, user.now()));
        Ok(Self { waiting, reason, ..view.into() })
    }
}

impl From<RunView> for Run {
    fn from(view: RunView) -> Self {
        let (run, counts) = (view.run, view.step_counts);
        let (id, input, output) = (run.run_id, Some(run.input.clone()), run.output.clone());
        Self {
            input,
            output,
            steps: Some(view.steps.into_iter().map(|step| Step::new(id, step)).collect()),
            steps_next: view.steps_next.map(|next| next.to_string()),
            steps_total: Some(counts.total),
            steps_by_status: Some(counts.by_status),
            retries: Some(counts.retries),
            approvals: Some(view.approvals.into_iter().map(Approval::from).collect()),
            unknown_calls: Some(view.unknown_calls.into_iter().map(UnknownCall::from).collect()),
            more_waiting: view.more_waiting,
            damage: view.damage,
            restored: view.restored.map(RestoredRun::from),
            ..Self::summary(run)
        }
    }
}

impl From<steprail_engine::UnknownCall> for UnknownCall {
    fn from(call: steprail_engine::UnknownCall) -> Self {
        let (step, shown) = (call.path, call.shown);
        let digest = call.digest.to_string();
        Self { run_id: call.run_id, step, shown, digest, tool: call.tool, error: call.error }
    }
}

impl Step {
    pub(super) fn new(run: RunId, row: StepRow) -> Self {
        Self {
            step_id: format!("{run}:{}:{}", row.n, row.attempt),
            path: row.path,
            id: row.id,
            kind: row.kind.name().to_owned(),
            tool: row.tool,
            status: row.status,
            attempt: row.attempt,
            input: row.input,
            output: row.output,
            error: row.error,
            ready_at: row.ready_at.map(timestamp::format),
            started_at: row.started_at.map(timestamp::format),
            completed_at: row.completed_at.map(timestamp::format),
        }
    }
}
