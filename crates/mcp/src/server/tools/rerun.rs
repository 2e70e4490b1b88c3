//! `workflow_rerun`: runs once more what an ended run ran.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::Shared;
use super::super::answer::{Answer, Asked};
use super::super::tasks::{self, Given, Waiting};
use super::{Entry, Hints, run_id, schema};
use crate::limits::WAIT_SECS;

pub(super) const TOOL: Entry = Entry {
    name: "workflow_rerun",
    dotted: None,
    title: "Run again",
    description: "Starts a new run of what an ended run ran, with the same inputs. With reuse, calls that succeeded with \
                  the same arguments are not made again; run_anew names steps that are.",
    hints: Hints::ACTS,
    for_those_who: super::RUN,
    schema: schema::of::<Args>,
    run: |shared, asked| Box::pin(run(shared, asked)),
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// The run that ended.
    #[serde(alias = "workflow_id")]
    run_id: String,
    /// Whether results of its calls are taken over where path and arguments are the same; false by default.
    #[serde(default)]
    reuse: bool,
    /// Steps that are run anew all the same, by path.
    #[serde(default)]
    run_anew: Vec<String>,
    /// Up to 45; 10 by default.
    wait_s: Option<f64>,
}

async fn run(shared: &Shared, asked: &Asked) -> Answer {
    let args: Args = asked.arguments()?;
    let run = run_id(&args.run_id)?;
    let reuse = args.reuse.then_some(args.run_anew);
    let again = asked.through_client().rerun(run, reuse).await?;
    let waiting = Waiting::new(args.wait_s.unwrap_or(WAIT_SECS));
    tasks::answer(shared, asked, again.id(), Given::Facts, waiting).await
}
