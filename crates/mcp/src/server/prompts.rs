//! Prompts: write a workflow, explain a run.

use rmcp::model::{
    ErrorData, GetPromptRequestParams, GetPromptResult, Prompt, PromptArgument, PromptMessage, Role,
};
use steprail_engine::{RunId, User};

use super::error::protocol_error;
use super::snapshot::RunSnapshot;
use super::tools::{guide, history};

const AUTHOR: &str = "author_workflow";
pub(super) const EXPLAIN: &str = "explain_run";

/// The names of Steprail's own prompts.
pub(super) const NAMES: [&str; 2] = [AUTHOR, EXPLAIN];

const AUTHOR_TEXT: &str = "\
Write a Steprail workflow definition in YAML for this: {{goal}}

Find its tools with workflow_tools and use only those. Put an approve step before calls that cannot be undone; give calls \
that change data an idempotency_key; retry only calls that may be repeated. Check it with workflow_check, correct every \
problem, then store it with workflow_define.

";

pub(super) fn list() -> Vec<Prompt> {
    let argument =
        |name: &str, about: &str| PromptArgument::new(name).with_description(about).with_required(true);
    vec![
        Prompt::new(
            AUTHOR,
            Some("Write a workflow definition, check it and store it."),
            Some(vec![argument("goal", "What the workflow should do.")]),
        ),
        Prompt::new(
            EXPLAIN,
            Some("Explain to the user what happened in a run and what they can do."),
            Some(vec![argument("run_id", "The run's id.")]),
        ),
    ]
}

pub(super) async fn get(user: &User, request: GetPromptRequestParams) -> Result<GetPromptResult, ErrorData> {
    let arguments = request.arguments.unwrap_or_default();
    let argument = |name: &str| {
        let missing = || ErrorData::invalid_params(format!("the argument `{name}` is missing"), None);
        arguments.get(name).and_then(|value| value.as_str()).ok_or_else(missing)
    };
    let text = match &*request.name {
        AUTHOR => format!("{}{}", AUTHOR_TEXT.replace("{{goal}}", argument("goal")?), guide()),
        EXPLAIN => explain(user, argument("run_id")?).await?,
        other => return Err(not_found(other)),
    };
    Ok(GetPromptResult::new(vec![PromptMessage::new_text(Role::User, text)]))
}

pub(super) fn not_found(name: &str) -> ErrorData {
    ErrorData::invalid_params(format!("unknown prompt `{name}`"), None)
}

async fn explain(user: &User, run: &str) -> Result<String, ErrorData> {
    let unknown = |_| ErrorData::invalid_params(format!("unknown run `{run}`"), None);
    let run: RunId = run.parse().map_err(unknown)?;
    let snapshot = RunSnapshot::read(user, run).await.map_err(|error| protocol_error(&error))?;
    Ok(format!(
        "Explain to me in a few plain sentences what happened in this workflow run, what its current state means, and what \
         I can do. workflow_explain and workflow_events return more.\n\nrun_id {run}\n{}",
        history(&snapshot).join("\n")
    ))
}
