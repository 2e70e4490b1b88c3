//! The state of a run, with what it waits for.

use steprail_engine::{Error, RunId, RunView, User, WaitingFor};

/// A run as it was read: its rows, and what it waits for.
pub(super) struct RunSnapshot {
    pub view: RunView,
    pub waiting: Vec<WaitingFor>,
}

impl RunSnapshot {
    pub(super) async fn read(user: &User, run: RunId) -> Result<Self, Error> {
        let view = user.status(run).await?;
        let waiting = user.waiting(&view).await?;
        Ok(Self { view, waiting })
    }
}
