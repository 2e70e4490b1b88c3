//! How long a call waits for a run, and what it gives then: the end, a task, a question, or the run's id.

use std::time::Duration;

use rmcp::model::{
    CallToolResult, ContentBlock, CreateTaskResult, DetailedTask, ErrorCode, ErrorData, GetTaskResult,
    InputRequiredResult, JsonObject, Task, TaskPayload, TaskStatus, UpdateTaskParams,
};
use serde_json::{Value, json};
use steprail_core::spec::publish::TaskMode;
use steprail_engine::{Error, RunId, RunRow, RunStatus, RunView, User};

use super::answer::{Answer, Asked, Refusal, protocol_error};
use super::progress::Progress;
use super::{content, gates, view};
use crate::limits::{MAX_WAIT_SECS, POLL_MS, POLL_PAUSED_MS, TASK_SECS};

/// What a call gives when its run has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Given {
    /// Everything about the run.
    Facts,
    /// What the run gave, as a tool gives it.
    Output,
}

/// What a run is started through, so that its end is told in the same way after a restart.
pub(super) const AS_TOOL: &str = "mcp tool ";

impl Given {
    fn of(row: &RunRow) -> Self {
        let as_tool = row.via.as_ref().is_some_and(|via| via.starts_with(AS_TOOL));
        if as_tool { Self::Output } else { Self::Facts }
    }
}

/// Waits for a run and answers, as far as the client can take it: a task or a question; else the run's id.
pub(super) async fn answer(asked: &Asked, run: RunId, given: Given, wait_s: f64) -> Answer {
    answer_as(asked, run, given, wait_s, TaskMode::Auto).await
}

/// The same, where the workflow says whether it is a task.
pub(super) async fn answer_as(
    asked: &Asked,
    run: RunId,
    given: Given,
    wait_s: f64,
    mode: TaskMode,
) -> Answer {
    let as_task = asked.takes_tasks() && mode != TaskMode::Never;
    let wait_s = match (as_task, mode) {
        (true, TaskMode::Required) => 0.0,
        (true, _) => wait_s.min(TASK_SECS),
        (false, _) => wait_s,
    };
    let mut row = wait_from(asked, run, None, wait_s, 0).await?;
    if as_task && (mode == TaskMode::Required || !row.status.is_terminal()) {
        return Ok(CreateTaskResult::new(task(&row, &[])).into());
    }
    while row.status == RunStatus::Paused && asked.takes_questions() {
        let open = gates::open(&asked.user, run).await?;
        if open.is_empty() {
            break;
        }
        if asked.is_modern() {
            let state = Some(run.to_string());
            return Ok(InputRequiredResult::new(Some(gates::requests(&open)), state).into());
        }
        if !gates::ask(asked, &open).await? {
            break;
        }
        row = wait_from(asked, run, None, wait_s, row.seq).await?;
    }
    let view = asked.user.status(run).await?;
    match protocol_failure(&view, given) {
        Some(error) => Err(Refusal::Protocol(error)),
        None => Ok(ended(&view, given).into()),
    }
}

/// Waits for news of a run.
pub(super) async fn wait(asked: &Asked, run: RunId, since: Option<u64>, wait_s: f64) -> Result<(), Refusal> {
    let seq = asked.user.row(run).await?.seq;
    wait_from(asked, run, since, wait_s, seq).await.map(drop)
}

/// Waits, and reports what happens after an event.
async fn wait_from(
    asked: &Asked,
    run: RunId,
    since: Option<u64>,
    wait_s: f64,
    after: u64,
) -> Result<RunRow, Refusal> {
    let wait_s = if wait_s.is_finite() { wait_s.clamp(0.0, MAX_WAIT_SECS) } else { 0.0 };
    let waiting = asked.user.wait(run, since, Duration::from_secs_f64(wait_s));
    let row = match Progress::new(asked, run, after).await? {
        Some(mut progress) => progress.beside(waiting).await?,
        None => waiting.await?,
    };
    Ok(row)
}

/// A run as the result of the call that started it.
fn ended(view: &RunView, given: Given) -> CallToolResult {
    let output = view.run.output.as_ref().and_then(|output| serde_json::from_str::<Value>(output.get()).ok());
    let mut result = match (given, view.run.status, output) {
        (Given::Output, RunStatus::Completed, output) => content::result(&output.unwrap_or_default()),
        (Given::Output, RunStatus::Failed, _) => {
            let why = view.run.error.as_ref().map(ToString::to_string).unwrap_or_default();
            CallToolResult::error(vec![ContentBlock::text(why)])
        }
        _ => view::run(view).into_result(),
    };
    if matches!(view.run.status, RunStatus::Failed | RunStatus::Cancelled) {
        result.is_error = Some(true);
    }
    let mut meta = rmcp::model::MetaObject::new();
    meta.0.insert("dev.steprail/run".to_owned(), view.run.run_id.to_string().into());
    result.meta = Some(meta);
    result
}

/// What a server behind the gateway refused by the protocol is refused by the protocol here.
fn protocol_failure(view: &RunView, given: Given) -> Option<ErrorData> {
    let error = view.run.error.as_ref().filter(|_| given == Given::Output)?;
    let code = error.code.as_deref()?.strip_prefix("mcp ")?.parse::<i32>().ok()?;
    Some(ErrorData::new(ErrorCode(code), error.message.to_string(), None))
}

/// A run as a task.
fn task(row: &RunRow, open: &[steprail_engine::Approval]) -> Task {
    let status = match row.status {
        RunStatus::Completed | RunStatus::Failed => TaskStatus::Completed,
        RunStatus::Cancelled => TaskStatus::Cancelled,
        _ if !open.is_empty() => TaskStatus::InputRequired,
        _ => TaskStatus::Working,
    };
    let time = |millis| view::time(millis).as_str().unwrap_or_default().to_owned();
    // A run that only others can move on takes its time.
    let poll = if row.status == RunStatus::Paused && open.is_empty() { POLL_PAUSED_MS } else { POLL_MS };
    let at = row.current_step.as_ref().map(|step| format!(", at `{step}`")).unwrap_or_default();
    let message = format!("{} is {}{at}", row.name, row.status.word());
    Task::new(row.run_id.to_string(), status, time(row.started_at), time(row.updated_at))
        .with_poll_interval_ms(poll)
        .with_status_message(message)
}

fn unknown_task(id: &str) -> ErrorData {
    ErrorData::invalid_params(format!("there is no task `{id}`"), None)
}

async fn find(user: &User, id: &str) -> Result<RunView, ErrorData> {
    let run = id.parse::<RunId>().map_err(|_| unknown_task(id))?;
    user.status(run).await.map_err(|error| match error {
        Error::NotFound(_) => unknown_task(id),
        other => protocol_error(&other),
    })
}

/// `tasks/get`: where a run stands.
pub(super) async fn get(user: &User, id: &str) -> Result<GetTaskResult, ErrorData> {
    let view = find(user, id).await?;
    let open = gates::decidable(user, &view).await;
    let given = Given::of(&view.run);
    let payload = match view.run.status {
        RunStatus::Completed | RunStatus::Failed => match protocol_failure(&view, given) {
            Some(error) => TaskPayload::Failed { error: object(json!(error)) },
            None => TaskPayload::Completed { result: object(json!(ended(&view, given))) },
        },
        RunStatus::Cancelled => TaskPayload::Cancelled,
        _ if !open.is_empty() => TaskPayload::InputRequired { input_requests: gates::requests(&open) },
        _ => TaskPayload::Working,
    };
    Ok(GetTaskResult::new(DetailedTask::new(task(&view.run, &open), payload)))
}

fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(map) => map,
        _ => JsonObject::new(),
    }
}

/// `tasks/update`: answers to questions. What answers no open question is left aside.
pub(super) async fn update(user: &User, request: UpdateTaskParams) -> Result<(), ErrorData> {
    let view = find(user, &request.task_id).await?;
    gates::answer(user, &view, &request.input_responses).await.map_err(|error| protocol_error(&error))
}

/// `tasks/cancel`: stops a run. One that has ended stays as it is.
pub(super) async fn cancel(user: &User, id: &str) -> Result<(), ErrorData> {
    let view = find(user, id).await?;
    if view.run.status.is_terminal() {
        return Ok(());
    }
    match user.cancel(view.run.run_id, "the client cancelled the task").await {
        Ok(()) | Err(Error::Conflict(_)) => Ok(()),
        Err(error) => Err(protocol_error(&error)),
    }
}

/// The answer to a call of a workflow that is always a task, from a client that does not know tasks.
pub(super) fn tasks_required() -> ErrorData {
    let needed = rmcp::model::ClientCapabilities::builder().enable_tasks().build();
    ErrorData::missing_required_client_capability(needed)
}
