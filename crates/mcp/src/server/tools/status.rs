//! `workflow_status`: where a run stands, at once or when there is news.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::Shared;
use super::super::answer::{Answer, Asked};
use super::super::{tasks, view};
use super::{Entry, Hints, run_id, schema};

pub(super) const TOOL: Entry = Entry {
    name: "workflow_status",
    dotted: Some("workflows.get_status"),
    title: "Status of a run",
    description: "Where a run stands: its steps so far, what it waits for, its output when it has ended. With wait_s it \
                  waits until the run has ended or waits for somebody; with since_seq (the seq that you saw last), until \
                  there is any news after it.",
    hints: Hints::LOOKS,
    for_those_who: super::LOOK,
    schema: schema::of::<Args>,
    run: |shared, asked| Box::pin(run(shared, asked)),
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// The run's id, as workflow_start gave it.
    #[serde(alias = "workflow_id")]
    run_id: String,
    /// Seconds to wait for news, up to 45; 0 by default.
    #[schemars(range(min = 0, max = 45))]
    #[serde(default)]
    wait_s: f64,
    /// The seq of the last status: any later event is news.
    since_seq: Option<u64>,
}

async fn run(_: &Shared, asked: &Asked) -> Answer {
    let args: Args = asked.arguments()?;
    let run = run_id(&args.run_id)?;
    tasks::wait(asked, run, args.since_seq, args.wait_s).await?;
    Ok(view::run(&asked.user.status(run).await?).into())
}
