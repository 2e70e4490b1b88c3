//! Prompts: how to write a workflow, and how to explain a run.

use rmcp::model::{
    CacheScope, ErrorData, GetPromptRequestParams, GetPromptResult, ListPromptsResult, Prompt,
    PromptArgument, PromptMessage, Role,
};
use steprail_engine::{RunId, User};

use super::answer::protocol_error;
use super::tools::story;
use crate::limits::LIST_TTL_MS;

const AUTHOR: &str = "author_workflow";
pub(super) const EXPLAIN: &str = "explain_run";

const HOW_TO: &str = r#"Write a Steprail workflow definition in YAML for this: {{goal}}

A definition:

name: vendor_intake
inputs:
  date: { type: string, format: date }
steps:
  - id: list
    tool: sftp__list                  # server__tool
    args: { day: "{{inputs.date}}" }
    retry: 3
  - id: per_file
    kind: foreach
    items: $.list.files[?@.size > 0]  # JSONPath into the output of `list`
    as: file
    concurrency: 4
    steps:
      - id: convert
        tool: maya__export
        args: { path: "{{file.path}}" }
        idempotency_key: "convert_{{file.sha256}}"
        timeout: 10m
  - id: release
    kind: approve                     # waits for a human
    prompt: "Release {{size(steps.per_file.output)}} files?"
  - id: hand_over
    tool: unreal__import
    args: { files: "{{steps.per_file.output}}" }
output: "{{steps.hand_over.output}}"

Kinds of steps: tool, foreach, parallel (branches), branch (on, then, else), approve, sleep (for, until), wait (event),
workflow. Put an approve step before what cannot be undone; give what costs money or changes the world an
idempotency_key; retry only what can be repeated. Use only tools that exist. The resource workflow://schema has every
field. Check it with workflow_define {"spec_yaml": …, "check_only": true}, correct every problem, then define it."#;

pub(super) fn list() -> ListPromptsResult {
    let argument =
        |name: &str, about: &str| PromptArgument::new(name).with_description(about).with_required(true);
    let mut result = ListPromptsResult::with_all_items(vec![
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
    ]);
    result.ttl_ms = Some(LIST_TTL_MS);
    result.cache_scope = Some(CacheScope::Public);
    result
}

pub(super) async fn get(user: &User, request: GetPromptRequestParams) -> Result<GetPromptResult, ErrorData> {
    let given = request.arguments.unwrap_or_default();
    let argument = |name: &str| {
        let missing = || ErrorData::invalid_params(format!("the argument `{name}` is missing"), None);
        given.get(name).and_then(|value| value.as_str()).ok_or_else(missing)
    };
    let text = match &*request.name {
        AUTHOR => HOW_TO.replace("{{goal}}", argument("goal")?),
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
