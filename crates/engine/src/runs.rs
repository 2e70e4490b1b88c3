//! Runs of an engine: start, wait, cancel, pause, resume, signal, purge.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use steprail_core::plan::Hash;
use steprail_core::run::{Millis, RunStatus};
use steprail_store::{ListRuns, Principal, RunId, StoreError};
use tokio_util::sync::CancellationToken;

use crate::driver::Message;
use crate::engine::Engine;
use crate::error::Error;
use crate::kernel::{Command, Reply, Request, RunSource, Signal, StartRun, check_inputs};
use crate::queries::RunView;
use crate::start::{Checked, Start, Workflow, check};

/// Runs per page of [`Engine::resume_interrupted`].
const RESUME_PAGE: usize = 100;

/// Options for resuming a run.
#[derive(Debug, Clone, Default)]
pub struct Resume {
    /// Paths of calls with unknown outcomes that are repeated without a decision.
    pub force_steps: Vec<String>,
    /// Rejects the request if the definition of the run has another hash.
    pub expected_hash: Option<Hash>,
    /// Rejects the request if a call has an unknown outcome and is not forced.
    pub strict: bool,
}

impl Engine {
    /// Starts a run. The run is durable when this returns.
    pub async fn start(&self, start: Start) -> Result<RunHandle, Error> {
        let Start { workflow, inputs, principal, request_key } = start;
        match workflow {
            Workflow::Named(name, version) => {
                self.start_named(name, version, inputs, principal, request_key).await
            }
            Workflow::Inline { text, source } => {
                let Checked { spec, plan, .. } = check(&source, &text, None)?;
                self.check_principals(&plan)?;
                let inputs = check_inputs(&plan, &inputs)?;
                let source = RunSource::Inline { spec, plan, inputs };
                self.start_run(source, Value::Null, principal, request_key).await
            }
        }
    }

    /// Starts a run with the definition and inputs of a run that has ended. With `reuse_except`, the results of its calls
    /// are reused where path and arguments are the same, except at the given paths.
    pub async fn rerun(
        &self,
        run: RunId,
        reuse_except: Option<Vec<String>>,
        principal: Principal,
    ) -> Result<RunHandle, Error> {
        self.start_run(RunSource::Rerun { of: run, reuse_except }, Value::Null, principal, None).await
    }

    pub(crate) async fn start_run(
        &self,
        workflow: RunSource,
        inputs: Value,
        mut principal: Principal,
        request_key: Option<String>,
    ) -> Result<RunHandle, Error> {
        principal.tools = self.0.authorizer.tools(&principal);
        let id = RunId(uuid::Uuid::now_v7());
        let start = Box::new(StartRun { workflow, inputs, principal, request_key, id });
        let id = self.send(|reply| Request::Start(start, reply)).await?;
        Ok(self.handle(id))
    }

    /// Returns a handle to a run. Does not check that the run exists.
    pub fn handle(&self, run: RunId) -> RunHandle {
        RunHandle { id: run, engine: self.clone() }
    }

    /// Cancels a run and its children. A run with thousands of steps is cancelled in several commits: it is `running`
    /// until the last step is cancelled, and no further step starts.
    pub async fn cancel(&self, run: RunId, by: &Principal, reason: &str) -> Result<(), Error> {
        self.command(Command::Cancel { run, by: by.id.clone(), reason: reason.to_owned() }).await
    }

    /// Pauses a run: calls in flight continue, and no further step starts.
    pub async fn pause(&self, run: RunId, by: &Principal) -> Result<(), Error> {
        self.command(Command::Pause { run, by: by.clone() }).await
    }

    /// Resumes a run that is paused or interrupted.
    pub async fn resume(&self, run: RunId, by: &Principal, resume: Resume) -> Result<(), Error> {
        let Resume { force_steps: force, expected_hash, strict } = resume;
        self.command(Command::Resume { run, by: by.clone(), force, expected_hash, strict }).await
    }

    /// Resumes every interrupted run. Returns the number of resumed runs.
    pub async fn resume_interrupted(&self, by: &Principal) -> Result<usize, Error> {
        self.ready().await?;
        let mut count = 0;
        let mut before = None;
        loop {
            let status = Some(RunStatus::Interrupted);
            let page =
                self.list(ListRuns { status, before, limit: RESUME_PAGE, ..ListRuns::default() }).await?;
            let Some(last) = page.last() else { return Ok(count) };
            before = Some(last.cursor);
            for row in page {
                match self.resume(row.run_id, by, Resume::default()).await {
                    Ok(()) => count += 1,
                    // Another caller has resumed the run, it is damaged, or a person paused it.
                    Err(
                        Error::Conflict(_)
                        | Error::Denied(_)
                        | Error::Storage(StoreError::Corrupt(_) | StoreError::Quarantined { .. }),
                    ) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Sends a signal to a run, which keeps it until a step waits for it. Without a run, sends it to all runs that wait for
    /// it now. Returns the number of runs that received it.
    pub async fn signal(&self, event: &str, payload: Value, run: Option<RunId>) -> Result<usize, Error> {
        let signal = Signal { event: event.to_owned(), payload, run };
        self.send(|reply| Request::Signal(signal, reply)).await
    }

    /// Deletes runs that ended longer ago than `retention`, in batches. Returns the number of deleted runs.
    pub async fn purge(&self, retention: Duration) -> Result<usize, Error> {
        let retention = Millis::try_from(retention.as_millis()).unwrap_or(Millis::MAX);
        let before = self.0.clock.now().saturating_sub(retention);
        let mut runs = 0;
        loop {
            let purged = self.send(|reply| Request::Purge(before, reply)).await?;
            if purged.is_nothing() {
                return Ok(runs);
            }
            runs += purged.runs;
        }
    }

    /// Returns an error if the stored state of a run is damaged.
    pub async fn check(&self, run: RunId) -> Result<(), Error> {
        self.command(Command::Check(run)).await
    }
}

/// A handle to a run. Dropping it has no effect on the run.
#[derive(Clone)]
pub struct RunHandle {
    id: RunId,
    engine: Engine,
}

impl RunHandle {
    /// Id of the run.
    pub fn id(&self) -> RunId {
        self.id
    }

    /// Waits until the run has ended, and returns it with its steps.
    pub async fn wait(&self) -> Result<RunView, Error> {
        self.engine.send(|reply| Request::Wait(self.id, reply)).await?;
        self.engine.status(self.id).await
    }

    /// Returns a token that cancels the run.
    pub fn cancel_token(&self, by: &Principal) -> CancellationToken {
        let token = CancellationToken::new();
        let (cancelled, run, by) = (token.clone(), self.id, by.clone());
        // A strong reference would keep the engine alive until the run ends.
        let engine = Arc::downgrade(&self.engine.0);
        let (reply, ended) = Reply::channel();
        // If the engine has stopped, `ended` resolves at once.
        let _ = self.engine.0.messages.send(Message::Request(Request::Wait(run, reply)));
        tokio::spawn(async move {
            tokio::select! {
                () = cancelled.cancelled() => {}
                _ = ended => return,
            }
            if let Some(engine) = engine.upgrade() {
                // The only error to expect is that the run has ended.
                let _ = Engine(engine).cancel(run, &by, "cancelled by its token").await;
            }
        });
        token
    }
}

impl fmt::Debug for RunHandle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "RunHandle({})", self.id)
    }
}
