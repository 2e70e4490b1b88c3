//! `workflow_resume`: lets a run go on that was paused or interrupted.

use schemars::JsonSchema;
use serde::Deserialize;
use steprail_engine::Resume;

use super::super::Shared;
use super::super::answer::{Answer, Asked};
use super::super::view;
use super::super::waits::look;
use super::{Entry, Hints, run_id, schema};

pub(super) const TOOL: Entry = Entry {
    name: "workflow_resume",
    dotted: None,
    title: "Resume a run",
    description: "Lets a run go on that was paused, or interrupted by a restart. Calls whose outcome is unknown are not \
                  repeated unless they are harmless or named in force_steps.",
    hints: Hints::ACTS,
    for_those_who: super::CONTROL,
    schema: schema::of::<Args>,
    run: |shared, asked| Box::pin(run(shared, asked)),
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    #[serde(alias = "workflow_id")]
    run_id: String,
    /// Steps whose calls are made again although their outcome is unknown, by path.
    #[serde(default)]
    force_steps: Vec<String>,
    /// Refuse if the outcome of a call is unknown and it is not forced.
    #[serde(default)]
    strict: bool,
}

async fn run(_: &Shared, asked: &Asked) -> Answer {
    let args: Args = asked.arguments()?;
    let run = run_id(&args.run_id)?;
    let resume = Resume { force_steps: args.force_steps, strict: args.strict, expected_hash: None };
    asked.user.resume(run, resume).await?;
    Ok(view::run(&look(&asked.user, run).await?).into())
}
