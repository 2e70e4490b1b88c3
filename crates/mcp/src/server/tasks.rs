//! How long a call waits for its run, and what it returns: a result, a task, or an input request.

use std::time::{Duration, Instant};

use rmcp::model::{
    CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock, CreateTaskResult, DetailedTask,
    ErrorCode, ErrorData, GetTaskResult, InputRequiredResult, JsonObject, Task, TaskPayload, TaskStatus,
    UpdateTaskParams,
};
use serde_json::{Value, json};
use steprail_core::spec::publish::TaskMode;
use steprail_engine::{Approval, Error, RunId, RunRow, RunStatus, User};

use super::error::{ToolError, ToolResult, protocol_error};
use super::input_requests::{self, KeyStyle};
use super::progress::Progress;
use super::request::ToolRequest;
use super::snapshot::RunSnapshot;
use super::{Shared, content, gates, view};
use crate::limits::{MAX_WAIT_SECS, POLL_MS, POLL_PAUSED_MS, TASK_SECS};

/// The form in which a call returns its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResultForm {
    /// The state of the run.
    State,
    /// The output of the run, as the result of a published workflow.
    Output,
    /// The result of the server, for an exposed tool.
    Relayed,
}

/// Prefix of `via` for runs of published workflows. The result has the same form after a restart.
pub(super) const VIA_PUBLISHED: &str = "mcp tool ";

/// Prefix of `via` for calls of exposed tools.
pub(super) const VIA_EXPOSED: &str = "mcp exposed tool ";

impl ResultForm {
    /// The form in which a stored run is returned.
    pub(super) fn of(row: &RunRow) -> Self {
        match row.via.as_deref() {
            Some(via) if via.starts_with(VIA_PUBLISHED) => Self::Output,
            Some(via) if via.starts_with(VIA_EXPOSED) => Self::Relayed,
            _ => Self::State,
        }
    }
}

/// How a call waits for its run.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitOptions {
    pub seconds: f64,
    pub task_mode: TaskMode,
    /// Progress is reported for events after this sequence number.
    pub after: u64,
    /// Whether open approvals may be requested from the client.
    pub requests_input: bool,
}

impl WaitOptions {
    /// Options for a new run.
    pub(super) fn new(seconds: f64) -> Self {
        Self { seconds, task_mode: TaskMode::Auto, after: 0, requests_input: true }
    }
}

/// Waits for a run and returns its result, a task or an input request, depending on the capabilities of the client.
/// The call takes at most [`MAX_WAIT_SECS`] in total.
pub(super) async fn respond(
    request: &ToolRequest,
    run: RunId,
    form: ResultForm,
    options: WaitOptions,
) -> ToolResult {
    let deadline = Instant::now() + Duration::from_secs_f64(MAX_WAIT_SECS);
    let as_task = request.supports_tasks() && options.task_mode != TaskMode::Never;
    let seconds = match (as_task, options.task_mode) {
        (true, TaskMode::Required) => 0.0,
        (true, _) => options.seconds.min(TASK_SECS),
        (false, _) => options.seconds,
    };
    // The client of a relayed call gets the progress that its server reports.
    let mut progress = match form {
        ResultForm::Relayed => None,
        _ => Progress::new(request, run, options.after).await?,
    };
    let row = wait_for(request, run, None, seconds, &mut progress).await?;
    if as_task && (options.task_mode == TaskMode::Required || !row.status.is_terminal()) {
        return Ok(CreateTaskResult::new(task(&row, &[])).into());
    }
    if options.requests_input && request.supports_input_requests() && !row.status.is_terminal() {
        let budget = Budget { deadline, seconds };
        if let Some(required) = request_input(request, run, form, budget, &mut progress).await? {
            return Ok(required.into());
        }
    }
    let snapshot = RunSnapshot::read(&request.user, run).await?;
    match protocol_failure(&snapshot.view.run, form) {
        Some(error) => Err(ToolError::Protocol(error)),
        None if form == ResultForm::Relayed && has_result(&snapshot.view.run) => {
            Ok(content::relayed_result(&snapshot.view.run))
        }
        None => Ok(call_result(&snapshot, form).into()),
    }
}

/// The time that a call has left.
#[derive(Clone, Copy)]
struct Budget {
    deadline: Instant,
    /// Seconds to wait for the run after each answer.
    seconds: f64,
}

impl Budget {
    fn left(self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn wait_secs(self) -> f64 {
        self.seconds.min(self.left().as_secs_f64())
    }
}

/// Requests the open approvals of a run from the client until none is left or one is not decided. A client without a
/// session gets them as an `input_required` result, which is returned.
async fn request_input(
    request: &ToolRequest,
    run: RunId,
    form: ResultForm,
    budget: Budget,
    progress: &mut Option<Progress>,
) -> Result<Option<InputRequiredResult>, ToolError> {
    let is_first = request.params.request_state.is_none() && form == ResultForm::Output;
    let mut early_answers = request.params.input_responses.as_ref().filter(|_| is_first);
    loop {
        let open = gates::open_approvals(&request.shared, &request.user, run, form).await?;
        let Some(first) = open.first() else { return Ok(None) };
        let decided = match early_answers.take() {
            Some(answers) => gates::apply_early_answers(&request.shared, &request.user, run, answers).await?,
            None => false,
        };
        if !decided && request.is_sessionless() {
            let client = request.context.client_capabilities();
            let requests = input_requests::requests(&open, form, client.as_ref(), KeyStyle::Tool);
            let state = Some(gates::request_state(run, first));
            return Ok((!requests.is_empty()).then(|| InputRequiredResult::new(Some(requests), state)));
        }
        let decided = decided || gates::elicit(request, (first, form), budget.left()).await?;
        let row = wait_for(request, run, None, budget.wait_secs(), progress).await?;
        if !decided || row.status.is_terminal() {
            return Ok(None);
        }
    }
}

/// Waits for a change of a run.
pub(super) async fn wait(
    request: &ToolRequest,
    run: RunId,
    since: Option<u64>,
    wait_s: f64,
) -> Result<(), ToolError> {
    let seq = request.user.row(run).await?.seq;
    let mut progress = Progress::new(request, run, seq).await?;
    wait_for(request, run, since, wait_s, &mut progress).await.map(drop)
}

async fn wait_for(
    request: &ToolRequest,
    run: RunId,
    since: Option<u64>,
    wait_s: f64,
    progress: &mut Option<Progress>,
) -> Result<RunRow, ToolError> {
    let wait_s = if wait_s.is_finite() { wait_s.clamp(0.0, MAX_WAIT_SECS) } else { 0.0 };
    let wait = request.user.wait(run, since, Duration::from_secs_f64(wait_s));
    Ok(match progress {
        Some(progress) => progress.report_during(wait).await?,
        None => wait.await?,
    })
}

/// Whether the server of a relayed call has responded.
fn has_result(run: &RunRow) -> bool {
    matches!(run.status, RunStatus::Completed | RunStatus::Failed)
}

/// A run as the result of the call that started it.
fn call_result(snapshot: &RunSnapshot, form: ResultForm) -> CallToolResult {
    let run = &snapshot.view.run;
    let mut result = match (form, run.status) {
        (ResultForm::Output, RunStatus::Completed) => content::to_result(&content::output_of(run)),
        (ResultForm::Output, RunStatus::Failed) => {
            let why = run.error.as_ref().map(ToString::to_string).unwrap_or_default();
            CallToolResult::error(vec![ContentBlock::text(why)])
        }
        _ => view::run(snapshot).into_result(),
    };
    if matches!(run.status, RunStatus::Failed | RunStatus::Cancelled) {
        result.is_error = Some(true);
    }
    let mut meta = rmcp::model::MetaObject::new();
    meta.0.insert("dev.steprail/run".to_owned(), run.run_id.to_string().into());
    result.meta = Some(meta);
    result
}

/// The JSON-RPC error of the server behind a published workflow or an exposed tool.
fn protocol_failure(run: &RunRow, form: ResultForm) -> Option<ErrorData> {
    let error = run.error.as_ref().filter(|_| form != ResultForm::State)?;
    let code = error.code.as_deref()?.strip_prefix("mcp ")?.parse::<i32>().ok()?;
    let sent = error.details.as_deref().filter(|_| form == ResultForm::Relayed);
    let message = sent.and_then(|sent| sent["message"].as_str()).unwrap_or(&error.message);
    let data = sent.map(|sent| sent["data"].clone()).filter(|data| !data.is_null());
    Some(ErrorData::new(ErrorCode(code), message.to_owned(), data))
}

/// A run as a task.
fn task(row: &RunRow, open: &[Approval]) -> Task {
    let status = match row.status {
        RunStatus::Completed | RunStatus::Failed => TaskStatus::Completed,
        RunStatus::Cancelled => TaskStatus::Cancelled,
        _ if !open.is_empty() => TaskStatus::InputRequired,
        _ => TaskStatus::Working,
    };
    let time = |millis| view::time(millis).as_str().unwrap_or_default().to_owned();
    // A run that only others can continue changes rarely.
    let poll = if row.status == RunStatus::Paused && open.is_empty() { POLL_PAUSED_MS } else { POLL_MS };
    let at = row.current_step.as_ref().map(|step| format!(", at `{step}`")).unwrap_or_default();
    let message = format!("{} is {}{at}", row.name, row.status.name());
    Task::new(row.run_id.to_string(), status, time(row.started_at), time(row.updated_at))
        .with_poll_interval_ms(poll)
        .with_status_message(message)
}

async fn find(user: &User, id: &str) -> Result<RunRow, ErrorData> {
    let unknown = || ErrorData::invalid_params(format!("unknown task `{id}`"), None);
    let run = id.parse::<RunId>().map_err(|_| unknown())?;
    user.row(run).await.map_err(|error| match error {
        Error::NotFound(_) => unknown(),
        other => protocol_error(&other),
    })
}

/// `tasks/get`: returns the state of a run.
pub(super) async fn get(
    shared: &Shared,
    user: &User,
    client: Option<&ClientCapabilities>,
    id: &str,
) -> Result<GetTaskResult, ErrorData> {
    let row = find(user, id).await?;
    let failed = |error: Error| protocol_error(&error);
    let form = ResultForm::of(&row);
    let (open, payload) = match row.status {
        RunStatus::Completed | RunStatus::Failed => {
            let payload = if let Some(error) = protocol_failure(&row, form) {
                TaskPayload::Failed { error: object(json!(error)) }
            } else {
                let snapshot = RunSnapshot::read(user, row.run_id).await.map_err(failed)?;
                TaskPayload::Completed { result: object(task_result(&snapshot, form)) }
            };
            (Vec::new(), payload)
        }
        RunStatus::Cancelled => (Vec::new(), TaskPayload::Cancelled),
        _ => {
            let open = gates::open_approvals(shared, user, row.run_id, form).await.map_err(failed)?;
            let input_requests = input_requests::requests(&open, form, client, KeyStyle::Unique);
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
fn task_result(snapshot: &RunSnapshot, form: ResultForm) -> Value {
    if form != ResultForm::Relayed {
        return json!(call_result(snapshot, form));
    }
    if let CallToolResponse::Complete(result) = content::relayed_result(&snapshot.view.run) {
        return json!(result);
    }
    let message = "the tool requested input after the call had become a task; call it again";
    json!(CallToolResult::error(vec![ContentBlock::text(message)]))
}

fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(map) => map,
        _ => JsonObject::new(),
    }
}

/// `tasks/update`: applies answers to open input requests. Other answers are ignored.
pub(super) async fn update(shared: &Shared, user: &User, request: UpdateTaskParams) -> Result<(), ErrorData> {
    let row = find(user, &request.task_id).await?;
    let applied = gates::apply_answers(shared, user, row.run_id, &request.input_responses).await;
    applied.map(drop).map_err(|error| protocol_error(&error))
}

/// `tasks/cancel`: cancels a run that has not ended.
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

/// The error for a client without tasks that calls a workflow with `task: required`.
pub(super) fn tasks_required() -> ErrorData {
    let required = ClientCapabilities::builder().enable_tasks().build();
    ErrorData::missing_required_client_capability(required)
}
