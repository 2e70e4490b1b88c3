//! Runs of an engine in this process, on a database of the user.

use std::collections::HashSet;
use std::path::Path;

use serde_json::Value;
use steprail_core::plan::Hash;
use steprail_engine::{
    Engine, Error, Event, PolicyHandle, Presence, Principal, Resolution, Resume, RunId, RunStatus, Start,
    StoreError, Subscription,
};
use steprail_http::views::{self, Approval, Run, UnknownCall};
use steprail_store::sqlite::Readers;
use steprail_store::{After, ListRuns, Reads};
use tokio::sync::watch;

use super::run_client::{Definition, RunClient, RunUpdate};
use super::run_tree::RunTree;
use crate::cli::shared::database::{Database, DurabilityArg};
use crate::cli::shared::error::CliError;
use crate::cli::shared::serve_args::load_policy;
use crate::cli::terminal::output;
use crate::client::ClientError;
use crate::config::Config;
use crate::daemon::DataDir;
use crate::tools::{ToolSource, Tools};

/// The number of events that are read at a time.
const PAGE: usize = 1_000;

/// Options of an engine in this process.
pub(crate) struct EngineOptions {
    pub db: Database,
    pub tools: ToolSource,
    pub durability: Option<DurabilityArg>,
    /// Starts runs, and decides.
    pub user: Principal,
    /// Mark runs that were in flight as interrupted instead of continuing them.
    pub interrupt_others: bool,
}

/// The runs of an engine in this process.
pub(crate) struct EngineRuns {
    engine: Engine,
    pub tools: Tools,
    user: Principal,
    db: Database,
    feed: Subscription,
    faults: watch::Receiver<Option<StoreError>>,
    subscribed: HashSet<RunId>,
}

impl EngineRuns {
    /// Opens the database, calls `read` before recovery changes runs, and starts the engine.
    pub(crate) fn open<T>(
        options: EngineOptions,
        read: impl FnOnce(&Readers) -> Result<T, CliError>,
    ) -> Result<(Self, T), CliError> {
        let EngineOptions { db, tools, durability, user, interrupt_others } = options;
        let (policy, presence) = match db.path().parent() {
            Some(folder) => (load_policy(&folder.join("policy.yaml"))?, required_presence(folder)?),
            None => (None, Presence::None),
        };
        let store = db.open(durability)?;
        let unreadable = || StoreError::Other("the database cannot be read".to_owned());
        let readers = store.readers().ok_or_else(unreadable)?;
        let result = read(&readers)?;
        let cursor = readers.last_event()?;
        let tools = tools.open(db.path(), None, None, None).map_err(CliError::new)?;
        tools.start().iter().try_for_each(|warning| output::warning(warning))?;
        let builder = Engine::builder().store(store).tools(tools.clone()).policy(PolicyHandle::new(policy));
        let builder = builder.presence(presence);
        let engine = if interrupt_others { builder.recover_as_interrupted() } else { builder }.spawn()?;
        let feed = engine.subscribe(None, cursor);
        let mut faults = engine.faults();
        faults.mark_changed();
        Ok((Self { engine, tools, user, db, feed, faults, subscribed: HashSet::new() }, result))
    }
}

/// The factor that decisions need in a data directory. Only its daemon can verify one, so nothing is decided here.
fn required_presence(folder: &Path) -> Result<Presence, CliError> {
    // The folder of a relative path may be empty.
    let data_dir = DataDir::find(Some(Path::new(".").join(folder))).map_err(CliError::new)?;
    Ok(Config::load(&data_dir, None, std::iter::empty(), &[])?.auth.presence)
}

impl RunClient for EngineRuns {
    const IN_PROCESS: bool = true;

    async fn start(
        &self,
        definition: Definition<'_>,
        inputs: Value,
        key: Option<String>,
    ) -> Result<Run, ClientError> {
        let start = match definition {
            Definition::Stored(name) => Start::named(name, self.user.clone()),
            Definition::Inline { text, source } => Start::file(source, text, self.user.clone()),
        };
        let start = key.into_iter().fold(start.inputs(inputs), Start::request_key);
        let run = self.engine.start(start).await?.id();
        self.run(run).await
    }

    async fn run(&self, run: RunId) -> Result<Run, ClientError> {
        Ok(Run::load(&self.engine.as_user(self.user.clone()), run).await?)
    }

    async fn last_event(&self, run: RunId) -> Result<u64, ClientError> {
        Ok(self.engine.row(run).await?.seq)
    }

    /// The feed has the events of all runs since before recovery, so `after` is never behind it.
    async fn subscribe(&mut self, run: RunId, _after: &str) -> Result<(), ClientError> {
        self.subscribed.insert(run);
        Ok(())
    }

    async fn next(&mut self) -> Result<RunUpdate, ClientError> {
        loop {
            tokio::select! {
                event = self.feed.next() => {
                    let event = event?.ok_or(Error::Stopped)?;
                    if self.subscribed.contains(&event.run) {
                        return Ok(RunUpdate::Event(Box::new(event.into())));
                    }
                }
                Ok(()) = self.faults.changed() => {
                    let fault = self.faults.borrow_and_update().clone();
                    if let Some(fault) = fault {
                        return Ok(RunUpdate::StoreFault(fault));
                    }
                }
            }
        }
    }

    async fn reconnect(&mut self) -> Result<(), ClientError> {
        Err(Error::Stopped.into())
    }

    async fn may_decide(&self, approval: &Approval) -> bool {
        self.engine.may_decide(approval.run_id, &approval.step, &self.user).await.is_ok()
    }

    async fn decide(&self, approval: &Approval, approved: bool) -> Result<(), ClientError> {
        let (run, step, digest) = (approval.run_id, &approval.step, Hash::from_hex(&approval.digest));
        if approved {
            self.engine.approve(run, step, &self.user, None, digest).await?;
        } else {
            self.engine.deny(run, step, &self.user, None, digest).await?;
        }
        Ok(())
    }

    async fn resolve(&self, call: &UnknownCall, resolution: Resolution) -> Result<(), ClientError> {
        let digest = Hash::from_hex(&call.digest);
        Ok(self.engine.resolve(call.run_id, &call.step, resolution, digest, &self.user).await?)
    }

    async fn signal(&self, event: &str, payload: &Value, run: Option<RunId>) -> Result<usize, ClientError> {
        Ok(self.engine.signal(event, payload.clone(), run).await?)
    }

    async fn resume(&self, run: RunId) -> Result<(), ClientError> {
        Ok(self.engine.resume(run, &self.user, Resume::default()).await?)
    }

    async fn check(&self, run: RunId) -> Result<(), ClientError> {
        Ok(self.engine.check(run).await?)
    }

    /// Waits for calls in flight: a call that is cut off has an unknown outcome.
    async fn close(&mut self, has_unfinished_runs: bool) -> usize {
        if has_unfinished_runs {
            self.db.keep();
        }
        let left = self.engine.shutdown().await.unwrap_or_default();
        self.tools.close().await;
        left
    }
}

/// Folds the log of a run and of its sub-workflows into a tree.
pub(crate) fn load_log(readers: &Readers, tree: &mut RunTree, run: RunId) -> Result<(), CliError> {
    let mut after = After::Seq(0);
    loop {
        let page = readers.events(run, after, PAGE)?.events;
        let Some(last) = page.last() else { break };
        after = After::Seq(last.seq);
        page.into_iter().for_each(|event| drop(tree.fold(&views::Event::from(event))));
    }
    for child in tree.children(run) {
        load_log(readers, tree, child)?;
    }
    Ok(())
}

/// Unfinished runs that are not sub-workflows, oldest first, with the names of their definitions.
pub(crate) fn unfinished_runs(readers: &Readers) -> Result<Vec<(RunId, String)>, CliError> {
    let mut rows = Vec::new();
    for status in RunStatus::ALL.into_iter().filter(|status| !status.is_terminal()) {
        let filter = ListRuns { status: Some(status), limit: usize::MAX >> 1, ..ListRuns::default() };
        rows.extend(readers.runs(&filter)?);
    }
    rows.sort_by_key(|row| row.cursor);
    let mut runs = Vec::new();
    for row in rows {
        let first = readers.events(row.run_id, After::Seq(0), 1)?.events.pop().map(|first| first.event);
        if !matches!(first, Some(Event::RunStarted { parent: Some(_), .. })) {
            runs.push((row.run_id, row.name));
        }
    }
    Ok(runs)
}
