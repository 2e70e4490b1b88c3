//! `workflow_interrupt`: holds a run before its next step.

use super::super::Shared;
use super::super::answer::{Answer, Asked};
use super::super::view;
use super::super::waits::look;
use super::{Entry, Hints, OfRun, run_id, schema};

pub(super) const TOOL: Entry = Entry {
    name: "workflow_interrupt",
    dotted: None,
    title: "Pause a run",
    description: "Pauses a run: calls in flight end, and nothing begins until workflow_resume.",
    hints: Hints::CHANGES,
    for_those_who: super::CONTROL,
    schema: schema::of::<OfRun>,
    run: |shared, asked| Box::pin(run(shared, asked)),
};

async fn run(_: &Shared, asked: &Asked) -> Answer {
    let args: OfRun = asked.arguments()?;
    let run = run_id(&args.run_id)?;
    asked.user.pause(run).await?;
    Ok(view::run(&look(&asked.user, run).await?).into())
}
