//! `workflow_status`: where a run stands, at once or when there is news; inputs and outputs of its steps.

use schemars::JsonSchema;
use serde::Deserialize;
use steprail_core::diagnostic::quoted;

use super::super::answer::{Answer, Asked, Refusal};
use super::super::view::Wanted;
use super::super::waits::{Seen, look};
use super::super::{Shared, tasks, view};
use super::{Entry, Hints, run_id, schema};
use crate::limits::SUGGESTIONS;

pub(super) const TOOL: Entry = Entry {
    name: "workflow_status",
    dotted: Some("workflows.get_status"),
    title: "Status of a run",
    description: "Where a run stands: its steps, what it waits for, its output. wait_s waits until it has ended or waits for \
                  somebody; with since_seq, for any event after it. steps adds the inputs and outputs of those steps.",
    hints: Hints::LOOKS,
    for_those_who: super::LOOK,
    schema: schema::of::<Args>,
    run: |shared, asked| Box::pin(run(shared, asked)),
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    #[serde(alias = "workflow_id")]
    run_id: String,
    /// Seconds to wait, up to 45.
    #[serde(default)]
    wait_s: f64,
    /// The seq of the last status.
    since_seq: Option<u64>,
    /// Steps by id or path; * for all.
    #[serde(default)]
    steps: Vec<String>,
    /// Where to go on in an output that was cut.
    #[serde(default)]
    offset: usize,
}

async fn run(_: &Shared, asked: &Asked) -> Answer {
    let args: Args = asked.arguments()?;
    let run = run_id(&args.run_id)?;
    tasks::wait(asked, run, args.since_seq, args.wait_s).await?;
    let seen = look(&asked.user, run).await?;
    let wanted = Wanted { steps: args.steps, offset: args.offset };
    need_steps(&seen, &wanted)?;
    Ok(view::run_with(&seen, &wanted).into())
}

/// Steps that are wanted have to be there.
fn need_steps(seen: &Seen, wanted: &Wanted) -> Result<(), Refusal> {
    let is_there = |name: &&String| {
        *name == "*" || seen.view.steps.iter().any(|step| step.id == **name || step.path == **name)
    };
    let Some(missing) = wanted.steps.iter().find(|name| !is_there(name)) else { return Ok(()) };
    let mut ids: Vec<&str> = seen.view.steps.iter().map(|step| step.path.as_str()).collect();
    ids.dedup();
    ids.truncate(SUGGESTIONS);
    let message = format!("no step `{missing}` of the run has begun");
    Err(Refusal::new("not_found", message).hint(format!("those that have: {}", quoted(&ids))))
}
