//! Access to runs, at a server or in this process.

use serde_json::Value;
use steprail_engine::{Resolution, RunId, StoreError};
use steprail_http::views::{Approval, Event, Run, UnknownCall};

use crate::client::ClientError;

/// What to run.
pub(crate) enum Definition<'a> {
    /// The newest version of a stored definition.
    Stored(&'a str),
    /// Source text, and the name of its file.
    Inline { text: &'a str, source: &'a str },
}

/// News about subscribed runs.
pub(crate) enum RunUpdate {
    Event(Box<Event>),
    /// The stream of a run ended, with the run or with the connection.
    StreamEnded(RunId),
    /// The connection was lost.
    Disconnected,
    /// The store of an engine in this process failed.
    StoreFault(StoreError),
}

/// Access to runs.
pub(crate) trait RunClient {
    /// Whether the engine is in this process, so that runs stop when the command ends.
    const IN_PROCESS: bool;

    /// Starts a run.
    async fn start(
        &self,
        definition: Definition<'_>,
        inputs: Value,
        key: Option<String>,
    ) -> Result<Run, ClientError>;

    /// Returns a run with its steps, approvals and calls with unknown outcomes.
    async fn run(&self, run: RunId) -> Result<Run, ClientError>;

    /// Returns the sequence number of the last event of a run.
    async fn last_event(&self, run: RunId) -> Result<u64, ClientError> {
        Ok(self.run(run).await?.seq)
    }

    /// Subscribes to the events of a run after a cursor.
    async fn subscribe(&mut self, run: RunId, after: &str) -> Result<(), ClientError>;

    /// Waits for the next update of a subscribed run. Cancel safe.
    async fn next(&mut self) -> Result<RunUpdate, ClientError>;

    /// Connects again after the connection was lost, without subscriptions.
    async fn reconnect(&mut self) -> Result<(), ClientError>;

    /// Whether the user may decide an approval.
    async fn may_decide(&self, approval: &Approval) -> bool;

    /// Approves or denies.
    async fn decide(&self, approval: &Approval, approved: bool) -> Result<(), ClientError>;

    /// Resolves a call with an unknown outcome.
    async fn resolve(&self, call: &UnknownCall, resolution: Resolution) -> Result<(), ClientError>;

    /// Sends a signal to a run, or to every run that waits for it. Returns the number of runs that received it.
    async fn signal(&self, event: &str, payload: &Value, run: Option<RunId>) -> Result<usize, ClientError>;

    /// Resumes a run if it is paused or interrupted.
    async fn resume(&self, run: RunId) -> Result<(), ClientError>;

    /// Fails if the stored data of a run is damaged.
    async fn check(&self, _run: RunId) -> Result<(), ClientError> {
        Ok(())
    }

    /// Stops an engine in this process. Returns the number of calls that are still in flight.
    async fn close(&mut self, has_unfinished_runs: bool) -> usize;
}
