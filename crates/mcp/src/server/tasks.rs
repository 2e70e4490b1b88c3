//! How long a call waits for a run, and what it gives then: the end, a task, a question, or the run's id.

use std::time::{Duration, Instant};

use rmcp::model::{
    CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock, CreateTaskResult, DetailedTask,
    ErrorCode, ErrorData, GetTaskResult, InputRequiredResult, JsonObject, Task, TaskPayload, TaskStatus,
    UpdateTaskParams,
};
use serde_json::{Value, json};
use steprail_core::spec::publish::TaskMode;
use steprail_engine::{Error, RunId, RunRow, RunStatus, User};

use super::answer::{Answer, Asked, Refusal, protocol_error};
use super::progress::Progress;
use super::questions::Keys;
use super::waits::{Seen, look};
use super::{Shared, content, gates, questions, view};
use crate::limits::{MAX_WAIT_SECS, POLL_MS, POLL_PAUSED_MS, TASK_SECS};

/// What a call gives when its run has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Given {
    /// Everything about the run.
    Facts,
    /// What the run gave, as a tool gives it.
    Output,
    /// What the server of an exposed tool sent.
    Exact,
}

/// What a run is started through, so that its end is told in the same way after a restart.
pub(super) const AS_TOOL: &str = "mcp tool ";

/// What a relayed call is started through.
pub(super) const EXPOSED: &str = "mcp exposed tool ";

impl Given {
    pub(super) fn of(row: &RunRow) -> Self {
        match row.via.as_deref() {
            Some(via) if via.starts_with(AS_TOOL) => Self::Output,
            Some(via) if via.starts_with(EXPOSED) => Self::Exact,
            _ => Self::Facts,
        }
    }
}

/// How a call waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub seconds: f64,
    /// Whether it becomes a task.
    pub mode: TaskMode,
    /// The event after which there is something to tell.
    pub after: u64,
    /// Whether open gates may be put to the client's user.
    pub asks: bool,
}

impl Waiting {
    /// For a new run.
    pub(super) fn new(seconds: f64) -> Self {
        Self { seconds, mode: TaskMode::Auto, after: 0, asks: true }
    }
}

/// Waits for a run and answers, as far as the client can take it: a task or a question; else the run's id. All of it
/// together takes no longer than a client waits.
pub(super) async fn answer(
    shared: &Shared,
    asked: &Asked,
    run: RunId,
    given: Given,
    waiting: Waiting,
) -> Answer {
    let deadline = Instant::now() + Duration::from_secs_f64(MAX_WAIT_SECS);
    let as_task = asked.takes_tasks() && waiting.mode != TaskMode::Never;
    let seconds = match (as_task, waiting.mode) {
        (true, TaskMode::Required) => 0.0,
        (true, _) => waiting.seconds.min(TASK_SECS),
        (false, _) => waiting.seconds,
    };
    // The client of a relayed call gets the progress that its server reports.
    let mut progress = match given {
        Given::Exact => None,
        _ => Progress::new(asked, run, waiting.after).await?,
    };
    let mut row = wait_for(asked, run, None, seconds, &mut progress).await?;
    if as_task && (waiting.mode == TaskMode::Required || !row.status.is_terminal()) {
        return Ok(CreateTaskResult::new(task(&row, &[])).into());
    }
    let mut asks = waiting.asks && asked.takes_questions();
    let is_new = asked.request.request_state.is_none();
    let mut early = asked.request.input_responses.as_ref().filter(|_| is_new);
    while asks && !row.status.is_terminal() {
        let open = gates::open(shared, &asked.user, run, given).await?;
        let Some(first) = open.first() else { break };
        let early = early.take().filter(|_| given == Given::Output);
        if let Some(answers) = early
            && gates::answer_early(shared, &asked.user, run, answers).await?
        {
            let left = deadline.saturating_duration_since(Instant::now()).as_secs_f64();
            row = wait_for(asked, run, None, seconds.min(left), &mut progress).await?;
            continue;
        }
        if asked.is_modern() {
            let client = asked.context.client_capabilities();
            let requests = questions::requests(&open, given, client.as_ref(), Keys::Own);
            if requests.is_empty() {
                break;
            }
            let state = gates::state(run, first);
            return Ok(InputRequiredResult::new(Some(requests), Some(state)).into());
        }
        asks = gates::ask(shared, asked, (first, given), deadline.saturating_duration_since(Instant::now()))
            .await?;
        let left = deadline.saturating_duration_since(Instant::now()).as_secs_f64();
        row = wait_for(asked, run, None, seconds.min(left), &mut progress).await?;
    }
    let seen = look(&asked.user, run).await?;
    match protocol_failure(&seen.view.run, given) {
        Some(error) => Err(Refusal::Protocol(error)),
        None if given == Given::Exact && has_result(&seen.view.run) => Ok(content::exact(&seen.view.run)),
        None => Ok(ended(&seen, given).into()),
    }
}

/// Waits for news of a run.
pub(super) async fn wait(asked: &Asked, run: RunId, since: Option<u64>, wait_s: f64) -> Result<(), Refusal> {
    let seq = asked.user.row(run).await?.seq;
    let mut progress = Progress::new(asked, run, seq).await?;
    wait_for(asked, run, since, wait_s, &mut progress).await.map(drop)
}

/// Waits, and reports what happens meanwhile.
async fn wait_for(
    asked: &Asked,
    run: RunId,
    since: Option<u64>,
    wait_s: f64,
    progress: &mut Option<Progress>,
) -> Result<RunRow, Refusal> {
    let wait_s = if wait_s.is_finite() { wait_s.clamp(0.0, MAX_WAIT_SECS) } else { 0.0 };
    let waiting = asked.user.wait(run, since, Duration::from_secs_f64(wait_s));
    Ok(match progress {
        Some(progress) => progress.beside(waiting).await?,
        None => waiting.await?,
    })
}

/// Whether the server of a relayed call has answered.
fn has_result(run: &RunRow) -> bool {
    matches!(run.status, RunStatus::Completed | RunStatus::Failed)
}

/// A run as the result of the call that started it.
fn ended(seen: &Seen, given: Given) -> CallToolResult {
    let view = &seen.view;
    let output = view.run.output.as_ref().and_then(|output| serde_json::from_str::<Value>(output.get()).ok());
    let mut result = match (given, view.run.status, output) {
        (Given::Output, RunStatus::Completed, output) => content::result(&output.unwrap_or_default()),
        (Given::Output, RunStatus::Failed, _) => {
            let why = view.run.error.as_ref().map(ToString::to_string).unwrap_or_default();
            CallToolResult::error(vec![ContentBlock::text(why)])
        }
        _ => view::run(seen).into_result(),
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
fn protocol_failure(run: &RunRow, given: Given) -> Option<ErrorData> {
    let error = run.error.as_ref().filter(|_| given != Given::Facts)?;
    let code = error.code.as_deref()?.strip_prefix("mcp ")?.parse::<i32>().ok()?;
    let sent = error.details.as_deref().filter(|_| given == Given::Exact);
    let message = sent.and_then(|sent| sent["message"].as_str()).unwrap_or(&error.message);
    let data = sent.map(|sent| sent["data"].clone()).filter(|data| !data.is_null());
    Some(ErrorData::new(ErrorCode(code), message.to_owned(), data))
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

async fn find(user: &User, id: &str) -> Result<RunRow, ErrorData> {
    let run = id.parse::<RunId>().map_err(|_| unknown_task(id))?;
    user.row(run).await.map_err(|error| match error {
        Error::NotFound(_) => unknown_task(id),
        other => protocol_error(&other),
    })
}

/// `tasks/get`: where a run stands.
pub(super) async fn get(
    shared: &Shared,
    user: &User,
    client: Option<&ClientCapabilities>,
    id: &str,
) -> Result<GetTaskResult, ErrorData> {
    let row = find(user, id).await?;
    let refused = |error: Error| protocol_error(&error);
    let given = Given::of(&row);
    let (open, payload) = match row.status {
        RunStatus::Completed | RunStatus::Failed => {
            let payload = if let Some(error) = protocol_failure(&row, given) {
                TaskPayload::Failed { error: object(json!(error)) }
            } else {
                let seen = look(user, row.run_id).await.map_err(refused)?;
                TaskPayload::Completed { result: object(result_of(&seen, given)) }
            };
            (Vec::new(), payload)
        }
        RunStatus::Cancelled => (Vec::new(), TaskPayload::Cancelled),
        _ => {
            let open = gates::open(shared, user, row.run_id, given).await.map_err(refused)?;
            let input_requests = questions::requests(&open, given, client, Keys::Unique);
            let payload = if input_requests.is_empty() {
                TaskPayload::Working
            } else {
                TaskPayload::InputRequired { input_requests }
            };
            (open, payload)
        }
    };
    Ok(GetTaskResult::new(DetailedTask::new(task(&row, &open), payload)))
}

/// The result of a task that has ended.
fn result_of(seen: &Seen, given: Given) -> Value {
    if given != Given::Exact {
        return json!(ended(seen, given));
    }
    if let CallToolResponse::Complete(result) = content::exact(&seen.view.run) {
        return json!(result);
    }
    let message = "the tool asked for input after the call had become a task; call it again";
    json!(CallToolResult::error(vec![ContentBlock::text(message)]))
}

fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(map) => map,
        _ => JsonObject::new(),
    }
}

/// `tasks/update`: answers to questions. What answers no open question is left aside.
pub(super) async fn update(shared: &Shared, user: &User, request: UpdateTaskParams) -> Result<(), ErrorData> {
    let row = find(user, &request.task_id).await?;
    let answered = gates::answer(shared, user, row.run_id, &request.input_responses).await;
    answered.map(drop).map_err(|error| protocol_error(&error))
}

/// `tasks/cancel`: stops a run. One that has ended stays as it is.
pub(super) async fn cancel(user: &User, id: &str) -> Result<(), ErrorData> {
    let row = find(user, id).await?;
    if row.status.is_terminal() {
        return Ok(());
    }
    match user.cancel(row.run_id, "the client cancelled the task").await {
        Ok(()) | Err(Error::Conflict(_)) => Ok(()),
        Err(error) => Err(protocol_error(&error)),
    }
}

/// The answer to a call of a workflow that is always a task, from a client that does not know tasks.
pub(super) fn tasks_required() -> ErrorData {
    let needed = ClientCapabilities::builder().enable_tasks().build();
    ErrorData::missing_required_client_capability(needed)
}
