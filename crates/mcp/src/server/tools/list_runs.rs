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
    /// 50 by default, up to 200.
    limit: Option<usize>,
    /// next_cursor of the page before.
    cursor: Option<String>,
}

async fn run(_: &Shared, asked: &Asked) -> Answer {
    let args: Args = asked.arguments()?;
    let before = match &args.cursor {
        None => None,
        Some(cursor) => {
            let unknown = |_| Refusal::new("bad_input", "invalid cursor").hint("list again without a cursor");
            Some(asked.user.row(run_id(cursor)?).await.map_err(unknown)?.key)
        }
    };
    let limit = args.limit.unwrap_or(PAGE).clamp(1, 4 * PAGE);
    let list = ListRuns {
        status: args.status,
        name: args.name,
        before,
        limit: limit + 1,
        brief: true,
        ..ListRuns::default()
    };
    let mut rows = asked.user.list(list).await?;
    let more = rows.len() > limit;
    rows.truncate(limit);
    let runs: Vec<Value> = rows.iter().map(view::row).collect();
    let mut facts = json!({ "runs": runs });
    if let Some(last) = rows.last().filter(|_| more) {
        facts["next_cursor"] = last.run_id.to_string().into();
    }
    let message = if rows.len() == 1 { "1 run.".to_owned() } else { format!("{} runs.", rows.len()) };
    let facts = Facts::new(facts, message);
    Ok(match rows.first() {
        Some(first) => {
            facts.next(format!("workflow_status {} shows one in full", json!({ "run_id": first.run_id })))
        }
        None => facts.next("workflow_start starts one"),
    }
    .into())
}
