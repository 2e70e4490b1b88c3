//! Prompts: how to write a workflow, and how to explain a run.

use rmcp::model::{
    ErrorData, GetPromptRequestParams, GetPromptResult, Prompt, PromptArgument, PromptMessage, Role,
};
use steprail_engine::{RunId, User};

use super::answer::protocol_error;
use super::tools::{guide, story};

const AUTHOR: &str = "author_workflow";
pub(super) const EXPLAIN: &str = "explain_run";

/// Every prompt of ours.
pub(super) const NAMES: [&str; 2] = [AUTHOR, EXPLAIN];

const HOW_TO: &str = "\
Write a Steprail workflow definition in YAML for this: {{goal}}

Find its tools with workflow_tools and use only those. Put an approve step before what cannot be undone; give calls that \
change something an idempotency_key; retry only calls that may be repeated. Check it with workflow_check, correct every \
problem, then store it with workflow_define.

";

pub(super) fn list() -> Vec<Prompt> {
    let argument =
        |name: &str, about: &str| PromptArgument::new(name).with_description(about).with_required(true);
    vec![
        Prompt::new(
            AUTHOR,
            Some("Write a workflow definition, check it and store it."),
            Some(vec![argument("goal", "What the workflow is to do.")]),
        ),
        Prompt::new(
            EXPLAIN,
            Some("Explain to the user what happened in a run and what can be done."),
            Some(vec![argument("run_id", "The run's id.")]),
        ),
    ]
}

pub(super) async fn get(user: &User, request: GetPromptRequestParams) -> Result<GetPromptResult, ErrorData> {
    let given = request.arguments.unwrap_or_default();
    let argument = |name: &str| {
        let missing = || ErrorData::invalid_params(format!("the argument `{name}` is missing"), None);
        given.get(name).and_then(|value| value.as_str()).ok_or_else(missing)
    };
    let text = match &*request.name {
        AUTHOR => format!("{}{}", HOW_TO.replace("{{goal}}", argument("goal")?), guide()),
        EXPLAIN => explain(user, argument("run_id")?).await?,
        other => return Err(ErrorData::invalid_params(format!("there is no prompt `{other}`"), None)),
    };
    Ok(GetPromptResult::new(vec![PromptMessage::new_text(Role::User, text)]))
}

async fn explain(user: &User, run: &str) -> Result<String, ErrorData> {
    let unknown = |_| ErrorData::invalid_params(format!("there is no run `{run}`"), None);
    let run: RunId = run.parse().map_err(unknown)?;
    let view = user.status(run).await.map_err(|error| protocol_error(&error))?;
    Ok(format!(
        "Explain to me in a few plain sentences what happened in this workflow run, why it stands as it does, and what \
         I can do. workflow_explain and workflow_events have more.\n\nrun_id {run}\n{}",
        story(&view).join("\n")
    ))
}
