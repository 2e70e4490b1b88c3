//! `workflow_list_runs`: runs, newest first.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use steprail_engine::{ListRuns, RunStatus};

use super::super::Shared;
use super::super::answer::{Answer, Asked, Facts, Refusal};
use super::super::view;
use super::{Entry, Hints, run_id, schema};
use crate::limits::PAGE;

pub(super) const TOOL: Entry = Entry {
    name: "workflow_list_runs",
    dotted: None,
    title: "List runs",
    description: "Lists runs, newest first: your own, or everybody's if you may see them. `paused` ones wait for somebody.",
    hints: Hints::LOOKS,
    for_those_who: super::LOOK,
    schema: schema::of::<Args>,
    run: |shared, asked| Box::pin(run(shared, asked)),
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// Only runs with this status.
    status: Option<RunStatus>,
    /// Only runs of this workflow.
    name: Option<String>,
    /// At most so many; 50 by default.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<usize>,
    /// Where to go on: next_cursor of the page before.
    cursor: Option<String>,
}

async fn run(_: &Shared, asked: &Asked) -> Answer {
    let args: Args = asked.arguments()?;
    let before = match &args.cursor {
        None => None,
        Some(cursor) => {
            let unknown = |_| Refusal::new("bad_input", "the cursor is not one of ours");
            Some(asked.user.row(run_id(cursor)?).await.map_err(unknown)?.key)
        }
    };
    let limit = args.limit.unwrap_or(PAGE).clamp(1, 4 * PAGE);
    let list =
        ListRuns { status: args.status, name: args.name, before, limit: limit + 1, ..ListRuns::default() };
    let mut rows = asked.user.list(list).await?;
    let more = rows.len() > limit;
    rows.truncate(limit);
    let runs: Vec<Value> = rows.iter().map(view::row).map(brief).collect();
    let mut facts = json!({ "runs": runs });
    if let Some(last) = rows.last().filter(|_| more) {
        facts["next_cursor"] = last.run_id.to_string().into();
    }
    Ok(Facts::new(facts, format!("{} runs.", rows.len())).into())
}

/// Without the output, which may be large.
fn brief(mut row: Value) -> Value {
    if let Value::Object(row) = &mut row {
        row.remove("output");
    }
    row
}
