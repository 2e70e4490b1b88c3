//! `workflow_list_runs`: lists runs, newest first.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_engine::{ListRuns, RunReason, RunRow, RunStatus, User};

use super::super::error::ToolResult;
use super::super::output::ToolOutput;
use super::super::request::ToolRequest;
use super::super::{snapshot, view};
use super::cursor;
use crate::limits::PAGE;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// Only runs with this status.
    status: Option<RunStatus>,
    /// Only runs of this workflow.
    name: Option<String>,
    /// 50 by default, up to 200.
    limit: Option<usize>,
    /// next_cursor of the previous page.
    cursor: Option<String>,
}

pub(super) async fn run(request: &ToolRequest, args: Args) -> ToolResult {
    let limit = args.limit.unwrap_or(PAGE).clamp(1, 4 * PAGE);
    let list = ListRuns {
        status: args.status,
        name: args.name,
        before: cursor(args.cursor.as_deref())?,
        limit: limit + 1,
        brief: true,
        ..ListRuns::default()
    };
    let mut rows = request.user.list(list).await?;
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let rows = request.user.reasons(rows).await?;
    let runs: Vec<Value> =
        rows.iter().map(|(row, reason)| run_fields(&request.user, row, reason.as_ref())).collect();
    let mut fields = json!({ "runs": runs });
    if let Some((last, _)) = rows.last().filter(|_| has_more) {
        fields["next_cursor"] = last.cursor.to_string().into();
    }
    let message = if rows.len() == 1 { "1 run.".to_owned() } else { format!("{} runs.", rows.len()) };
    let next = match rows.first() {
        Some((first, _)) => {
            format!("workflow_status {} shows one in full", json!({ "run_id": first.run_id }))
        }
        None => "workflow_start starts one".to_owned(),
    };
    Ok(ToolOutput::new(fields, message).next(next).into())
}

/// A run with why it waits or how it ended.
fn run_fields(user: &User, row: &RunRow, reason: Option<&RunReason>) -> Value {
    let mut fields = view::row(row);
    if let Some(reason) = reason.and_then(|reason| snapshot::sentence(user, reason)) {
        fields["reason"] = reason.into();
    }
    fields
}
