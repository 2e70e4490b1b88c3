//! `workflow_cancel`: stops a run and everything in it.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::Shared;
use super::super::answer::{Answer, Asked};
use super::super::view;
use super::super::waits::look;
use super::{Entry, Hints, run_id, schema};

pub(super) const TOOL: Entry = Entry {
    name: "workflow_cancel",
    dotted: Some("workflows.cancel"),
    title: "Cancel a run",
    description: "Stops a run for good, running or paused, with every call in flight and every run that it started. What \
                  its steps have done is not undone.",
    hints: Hints::STOPS,
    for_those_who: super::CONTROL,
    schema: schema::of::<Args>,
    run: |shared, asked| Box::pin(run(shared, asked)),
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    #[serde(alias = "workflow_id")]
    run_id: String,
    /// Why, for those who look later.
    reason: Option<String>,
}

async fn run(_: &Shared, asked: &Asked) -> Answer {
    let args: Args = asked.arguments()?;
    let run = run_id(&args.run_id)?;
    let reason = args.reason.unwrap_or_else(|| "cancelled over MCP".to_owned());
    if !asked.user.row(run).await?.status.is_terminal() {
        asked.user.cancel(run, &reason).await?;
    }
    Ok(view::run(&look(&asked.user, run).await?).into())
}
