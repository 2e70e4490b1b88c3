//! The state of a run, with what it waits for.

use steprail_engine::{
    Error, ListSteps, ReasonKind, RunId, RunReason, RunStatus, RunView, StepFilter, StepRow, User, WaitingFor,
};

use super::view::time;
use crate::limits::LISTED_STEPS;

/// A run as it was read: its last steps or the selected ones, and what it waits for.
pub(super) struct RunSnapshot {
    pub view: RunView,
    pub waiting: Vec<WaitingFor>,
    /// Why it waits or how it ended, in one sentence.
    pub reason: Option<String>,
    /// Steps of an ended run that failed or had no items.
    pub notable: Vec<StepRow>,
}

impl RunSnapshot {
    /// Reads a run with its last steps, without their values.
    pub(super) async fn read(user: &User, run: RunId) -> Result<Self, Error> {
        Self::read_with(user, run, ListSteps { brief: true, ..last(StepFilter::All) }).await
    }

    /// Reads a run with the last steps of those with the given ids or paths; `*` stands for all.
    pub(super) async fn read_selected(user: &User, run: RunId, names: &[String]) -> Result<Self, Error> {
        let is_all = names.iter().any(|name| name == "*");
        let filter = if is_all { StepFilter::All } else { StepFilter::Named(names.to_vec()) };
        Self::read_with(user, run, last(filter)).await
    }

    async fn read_with(user: &User, run: RunId, list: ListSteps) -> Result<Self, Error> {
        let view = user.status_with(run, list).await?;
        let waiting = user.waiting(&view).await?;
        let reason = user.reason(view.run.clone()).await?.and_then(|reason| sentence(user, &reason));
        let notable = match view.run.status {
            RunStatus::Completed | RunStatus::Failed => {
                let list = ListSteps { brief: true, ..last(StepFilter::Notable) };
                user.steps(run, list).await?.steps
            }
            _ => Vec::new(),
        };
        Ok(Self { view, waiting, reason, notable })
    }
}

/// The sentence of a reason; `None` for a failure, which the error of the run states.
pub(super) fn sentence(user: &User, reason: &RunReason) -> Option<String> {
    let at = |millis| time(millis).as_str().unwrap_or_default().to_owned();
    (reason.kind != ReasonKind::Failed).then(|| reason.sentence(user.now(), at))
}

fn last(filter: StepFilter) -> ListSteps {
    ListSteps { filter, last: true, limit: LISTED_STEPS, ..ListSteps::default() }
}
