//! `steprail resume`: resumes runs and answers what they wait for.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use steprail_engine::{Error, Payload, Principal, Resolution, RunId, RunStatus};
use steprail_http::views::{self, Approval, Page, UnknownCall};
use steprail_store::Reads;
use steprail_store::sqlite::Readers;

use super::follow::Follower;
use super::follow::hints::Invocation;
use super::follow::in_process::{EngineOptions, EngineRuns, load_log, unfinished_runs};
use super::follow::rest::RestRuns;
use super::follow::run_client::RunClient;
use super::follow::run_tree::RunTree;
use super::follow::waiting_step::find_step;
use super::shared::database::{Database, DurabilityArg};
use super::shared::error::CliError;
use super::shared::server_args::{ServerArgs, find_run};
use super::shared::tool_args::ToolArgs;
use super::shared::{os_user, values};
use super::terminal::output;
use super::terminal::text::count;
use crate::client::ClientError;
use crate::daemon::DataDir;

/// Runs per page of `resume --all`.
const RESUME_PAGE: u32 = 100;

/// Resume runs, and answer what they wait for
///
/// Without `--db`, the daemon resumes the run. With `--db`, this process executes runs without a daemon: RUN, or all
/// unfinished runs of the database. Other runs that were in progress are interrupted until they are resumed.
///
/// PATH is the path of a step as shown in the output. Exit codes are those of `steprail run`; with several runs, the most
/// severe one.
#[derive(Debug, Args)]
pub(super) struct Resume {
    /// Id of the run, or its last characters; with `--db`, the id [default: all unfinished runs]
    #[arg(value_name = "RUN", required_unless_present_any = ["db", "all"])]
    run: Option<String>,
    /// Resume every interrupted run, and exit
    #[arg(long, conflicts_with_all = ["run", "db", "detach", "approve", "deny", "retry", "skip", "happened", "signal"])]
    all: bool,
    /// Exit as soon as the run is resumed
    #[arg(long, short)]
    detach: bool,
    #[command(flatten)]
    server: ServerArgs,
    /// Execute the runs in this process, from this database
    #[arg(long, value_name = "FILE", conflicts_with_all = ["detach", "data", "server"])]
    db: Option<PathBuf>,
    #[command(flatten)]
    tools: ToolArgs,
    /// Approve at the gate of this step
    #[arg(long, value_name = "PATH")]
    approve: Vec<String>,
    /// Deny at the gate of this step
    #[arg(long, value_name = "PATH")]
    deny: Vec<String>,
    /// Repeat a call with an unknown outcome
    #[arg(long, value_name = "PATH")]
    retry: Vec<String>,
    /// Continue without a call with an unknown outcome
    #[arg(long, value_name = "PATH")]
    skip: Vec<String>,
    /// Supply the result of a call with an unknown outcome that took effect
    #[arg(long, value_name = "PATH=JSON", value_parser = values::path_result)]
    happened: Vec<(String, Value)>,
    /// Send a signal to RUN, or to every run that waits for it
    #[arg(long, value_name = "EVENT=JSON", value_parser = values::signal_payload)]
    signal: Vec<(String, Value)>,
    /// User who decides [default: you]
    #[arg(long = "as", value_name = "NAME")]
    by: Option<String>,
    /// What a commit survives [default: full]
    #[arg(long)]
    durability: Option<DurabilityArg>,
    /// Print each run and its steps as JSON instead of a summary
    #[arg(long)]
    json: bool,
}

impl Resume {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        match self.db.clone() {
            Some(db) => self.resume_in_process(db).await,
            None if self.by.is_some() || self.tools.argument().is_some() || self.durability.is_some() => {
                Err(CliError::new("--as, --servers, --tools and --durability require --db"))
            }
            None if self.all => self.resume_all().await,
            None => self.resume_at_server().await,
        }
    }

    /// Resumes every interrupted run of the daemon. Prints each, with what a restore made unknown.
    async fn resume_all(&self) -> Result<ExitCode, CliError> {
        let client = self.server.connect().await?;
        let filter = json!({ "status": RunStatus::Interrupted, "limit": RESUME_PAGE });
        let (mut resumed, mut cursor) = (Vec::new(), None);
        loop {
            let mut filter = filter.clone();
            filter["cursor"] = json!(cursor);
            let page: Page<views::Run> = client.query("/runs", &filter).await?;
            for run in page.items {
                let run: views::Run = client.get(&format!("/runs/{}", run.run_id)).await?;
                if let Some(restored) = run.restored.as_ref().filter(|_| !self.json) {
                    output::line(&format!("{} {}: {}", run.name, run.run_id, restored.notice))?;
                }
                match client.post::<views::Run>(&format!("/runs/{}/resume", run.run_id), &json!({})).await {
                    // Another client resumed it.
                    Err(error) if error.is_conflict() => {}
                    run => resumed.push(run?),
                }
            }
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        if self.json {
            output::json(&resumed)?;
        } else {
            output::line(&format!("resumed {}", count(resumed.len() as u64, "run", "runs")))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn resume_at_server(&self) -> Result<ExitCode, CliError> {
        let client = self.server.connect().await?;
        let run = find_run(&client, self.run.as_deref().unwrap_or_default()).await?;
        let (client, tree) = (RestRuns::new(client), RunTree::of(run));
        self.resume(&client, &tree, Some(run)).await?;
        if !self.detach {
            let invocation = Invocation::Server(self.server.clone());
            return Follower::new(client, invocation, tree).finish(self.json).await;
        }
        let run = client.run(run).await?;
        if self.json {
            output::json(&run)?;
        } else {
            output::line(&format!("{} is {}", run.name, run.status.name()))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn resume_in_process(self, db: PathBuf) -> Result<ExitCode, CliError> {
        let parse =
            |run: &str| run.parse().map_err(|_| CliError::new(format!("`{run}` is not the id of a run")));
        let run: Option<RunId> = self.run.as_deref().map(parse).transpose()?;
        let tools = self.tools.read(DataDir::find(None).ok().as_ref())?;
        let db = Database::existing(db)?;
        let invocation = Invocation::database(db.path(), &self.tools);
        let durability = Some(self.durability.unwrap_or(DurabilityArg::Full));
        let user = Principal::user(self.by.clone().unwrap_or_else(os_user::name));
        // The command ends with its run, so it must not continue others.
        let options = EngineOptions { db, tools, durability, user, interrupt_others: run.is_some() };
        let (client, tree) = EngineRuns::open(options, |readers| load_tree(run, readers))?;
        if tree.roots().is_empty() {
            writeln!(anstream::stderr(), "nothing to resume: every run has ended")?;
        }
        let resumed = self.resume(&client, &tree, run).await;
        let follower = Follower::new(client, invocation, tree);
        match resumed {
            Ok(()) => follower.finish(self.json).await,
            Err(error) => follower.abort(error).await,
        }
    }

    /// Resumes the runs of a tree, sends decisions and resolutions, and then signals.
    async fn resume<C: RunClient>(
        &self,
        client: &C,
        tree: &RunTree,
        run: Option<RunId>,
    ) -> Result<(), CliError> {
        for (run, _) in tree.unfinished() {
            match client.resume(run).await {
                // It is neither paused nor interrupted.
                Err(error) if error.is_conflict() => {}
                resumed => resumed?,
            }
        }
        self.decide(client, tree).await?;
        self.resolve(client, tree).await?;
        for (event, payload) in &self.signal {
            if client.signal(event, payload, run).await? == 0 {
                output::warning(&format!("no run waits for the signal `{event}`; it was not delivered"))?;
            }
        }
        Ok(())
    }

    async fn decide<C: RunClient>(&self, client: &C, tree: &RunTree) -> Result<(), CliError> {
        let approved = self.approve.iter().map(|path| (path, true));
        for (path, approved) in approved.chain(self.deny.iter().map(|path| (path, false))) {
            let runs = fetch_roots(client, tree).await?;
            let open: Vec<&Approval> = runs.iter().flat_map(|run| run.approvals.iter().flatten()).collect();
            let approval = find_step(&open, tree, path)?;
            let approval = approval.ok_or_else(|| missing(tree, path, "has no open approval"))?;
            client.decide(approval, approved).await.map_err(|error| match error {
                ClientError::Engine(error @ Error::Denied(_)) => {
                    CliError::from(error).hint("name the approver with `--as NAME`")
                }
                error => error.into(),
            })?;
        }
        Ok(())
    }

    async fn resolve<C: RunClient>(&self, client: &C, tree: &RunTree) -> Result<(), CliError> {
        let retried = self.retry.iter().map(|path| (path, Resolution::Retry));
        let skipped = self.skip.iter().map(|path| (path, Resolution::Skip));
        let happened = self.happened.iter();
        let happened =
            happened.map(|(path, result)| (path, Resolution::Happened(Payload::new(result.clone()))));
        for (path, resolution) in retried.chain(skipped).chain(happened) {
            let runs = fetch_roots(client, tree).await?;
            let calls: Vec<&UnknownCall> =
                runs.iter().flat_map(|run| run.unknown_calls.iter().flatten()).collect();
            let call = find_step(&calls, tree, path)?;
            let call = call.ok_or_else(|| missing(tree, path, "has no call with an unknown outcome"))?;
            client.resolve(call, resolution).await?;
        }
        Ok(())
    }
}

/// Loads the logs of the given run, or of all unfinished runs, before recovery.
fn load_tree(run: Option<RunId>, readers: &Readers) -> Result<RunTree, CliError> {
    let roots = match run {
        Some(run) if readers.run(run)?.is_none() => {
            return Err(Error::NotFound(format!("there is no run {run} in this database")).into());
        }
        Some(run) => vec![(run, String::new())],
        None => unfinished_runs(readers)?,
    };
    let several = roots.len() > 1;
    let mut tree = RunTree::default();
    for (run, name) in roots {
        let id = run.to_string();
        let prefix = if several { format!("{name}:{}/", &id[id.len() - 4..]) } else { String::new() };
        tree.add_root(run, prefix);
        match load_log(readers, &mut tree, run) {
            Err(error) if several => {
                tree.remove_root(run);
                output::warning(&format!("run {run} cannot be read and is not resumed"))?;
                error.report();
            }
            loaded => loaded?,
        }
    }
    Ok(tree)
}

async fn fetch_roots<C: RunClient>(client: &C, tree: &RunTree) -> Result<Vec<views::Run>, CliError> {
    let mut runs = Vec::new();
    for root in tree.roots() {
        runs.push(client.run(*root).await?);
    }
    Ok(runs)
}

fn missing(tree: &RunTree, path: &str, what: &str) -> CliError {
    match tree.roots() {
        [run] => CliError::new(format!("step `{path}` of run {run} {what}")),
        _ => CliError::new(format!("step `{path}` {what}")),
    }
}
