//! `steprail resume`: goes on with a run of the daemon, or with the unfinished runs of a database, and brings answers to
//! those that wait.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use steprail_engine::{Error, Payload, Principal, Resolution, RunId, RunStatus};
use steprail_store::Reads;
use steprail_store::sqlite::Readers;

use super::database::{Database, Reach};
use super::follow::Follow;
use super::session::{self, Session, Setup, Signal};
use super::show_as;
use super::stop::Stop;
use super::target::{Target, find_run};
use super::tools_at::ToolsAt;
use super::tree::Tree;
use super::waiting::Again;
use crate::client::{Client, Refused};
use crate::daemon::DataDir;
use steprail_http::views;

/// Go on with unfinished runs, and answer those that wait for a human
///
/// A run of the daemon goes on and is followed; RUN is its id, or the end of it. With `--db` there is no daemon: without RUN,
/// everything unfinished in the database goes on and is followed; with it, that run alone, and others that were under way
/// are interrupted until they are resumed. A PATH is a step's path in its run, as it is shown.
/// Exit codes are those of `run`; with several runs, the gravest.
#[derive(Debug, Args)]
pub(super) struct Resume {
    /// The run to follow
    #[arg(value_name = "RUN", required_unless_present = "db")]
    run: Option<String>,
    /// Leave it to the daemon when it goes on
    #[arg(long, short)]
    detach: bool,
    #[command(flatten)]
    target: Target,
    /// Carry it out here, in this database
    #[arg(long, value_name = "FILE", conflicts_with_all = ["detach", "data", "server"])]
    db: Option<PathBuf>,
    #[command(flatten)]
    tools: ToolsAt,
    /// Say yes at a gate
    #[arg(long, value_name = "PATH")]
    approve: Vec<String>,
    /// Say no at a gate
    #[arg(long, value_name = "PATH")]
    deny: Vec<String>,
    /// Make a call again that may have taken place
    #[arg(long, value_name = "PATH")]
    retry: Vec<String>,
    /// Go on without a call that may have taken place
    #[arg(long, value_name = "PATH")]
    skip: Vec<String>,
    /// Say that a call took place, and what it gave
    #[arg(long, value_name = "PATH=JSON", value_parser = happened)]
    happened: Vec<(String, Payload)>,
    /// Bring an event to RUN, or to every run that waits for it
    #[arg(long, value_name = "EVENT=JSON", value_parser = session::event)]
    signal: Vec<Signal>,
    /// Who answers; the user of this machine by default
    #[arg(long = "as", value_name = "NAME")]
    by: Option<String>,
    /// What a commit survives
    #[arg(long)]
    durability: Option<Reach>,
    /// Print one JSON record per run instead of a summary
    #[arg(long)]
    json: bool,
}

impl Resume {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        match self.db.clone() {
            Some(db) => self.embed(db),
            None if self.by.is_some() || self.tools.argument().is_some() || self.durability.is_some() => {
                Err(Stop::usage(
                    "--as, --servers, --tools and --durability are for a database that is named with --db",
                ))
            }
            None => session::block_on(self.ask()),
        }
    }

    /// Has the daemon go on with it.
    async fn ask(&self) -> Result<ExitCode, Stop> {
        let client = self.target.reach().await?;
        let run = find_run(&client, self.run.as_deref().unwrap_or_default()).await?;
        self.bring_to(&client, run).await?;
        let found: views::Run = client.get(&format!("/runs/{run}")).await?;
        if matches!(found.status, RunStatus::Paused | RunStatus::Interrupted) {
            match client.post::<views::Run>(&format!("/runs/{run}/resume"), &json!({})).await {
                // It waits for an answer and not for this.
                Err(Refused::Problem(problem)) if &*problem.code == "conflict" => {}
                resumed => drop(resumed?),
            }
        }
        if !self.detach {
            return Follow::new(client, self.target.clone(), run).finish(self.json).await;
        }
        let found: views::Run = client.get(&format!("/runs/{run}")).await?;
        if self.json {
            show_as::json(&found)?;
        } else {
            show_as::line(&format!("{} is {}", found.name, found.status.word()))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Brings the answers to a run of the daemon.
    async fn bring_to(&self, client: &Client, run: RunId) -> Result<(), Stop> {
        let gates = self.approve.iter().map(|path| (path, "approve"));
        for (path, action) in gates.chain(self.deny.iter().map(|path| (path, "deny"))) {
            let found: views::Run = client.get(&format!("/runs/{run}")).await?;
            let open = found.approvals.unwrap_or_default().into_iter().find(|open| open.step == *path);
            let open = open.ok_or_else(|| Stop::usage(format!("`{path}` does not wait for a decision")))?;
            let body = json!({ "step": path, "digest": open.digest });
            let _: Value = client.post(&format!("/runs/{}/{action}", open.run_id), &body).await?;
        }
        let retried = self.retry.iter().map(|path| (path, "retry", None));
        let skipped = self.skip.iter().map(|path| (path, "skip", None));
        let happened = self.happened.iter().map(|(path, gave)| (path, "happened", Some(gave.value())));
        for (path, action, value) in retried.chain(skipped).chain(happened) {
            let found: views::Run = client.get(&format!("/runs/{run}")).await?;
            let call = holder(&found, path)?;
            let (run, digest) = (call.run_id, &call.digest);
            let body = json!({ "action": action, "step": call.step, "value": value, "digest": digest });
            let _: Value = client.post(&format!("/runs/{run}/intervene"), &body).await?;
        }
        for (event, payload) in &self.signal {
            let body = json!({ "event": event, "payload": payload });
            let _: Value = client.post(&format!("/runs/{run}/signal"), &body).await?;
        }
        Ok(())
    }

    /// Goes on with it in this process.
    fn embed(self, db: PathBuf) -> Result<ExitCode, Stop> {
        let named = self
            .run
            .as_deref()
            .map(|run| run.parse().map_err(|_| Stop::usage(format!("`{run}` is not the id of a run"))));
        let named: Option<RunId> = named.transpose()?;
        let tools = self.tools.read(DataDir::find(None).ok().as_ref())?;
        let db = Database::existing(db)?;
        let again = Again::new(db.path(), &self.tools);
        let setup = Setup { db, tools, again, durability: Some(self.durability.unwrap_or(Reach::Full)) };
        session::block_on(async {
            // One run is gone on with alone: the others are not cut off when it has ended.
            let alone = named.is_some();
            let session = Session::open(setup, alone, |readers, tree| choose(named, readers, tree))?;
            if session.tree.roots().is_empty() {
                session.say("nothing to go on with: every run has ended");
            }
            match self.bring(&session, named).await {
                Ok(()) => session.finish(self.json).await,
                Err(stop) => session.give_up(stop).await,
            }
        })
    }

    /// Lets runs go on, and brings what the user has for them.
    async fn bring(&self, session: &Session, run: Option<RunId>) -> Result<(), Stop> {
        self.go_on(session).await?;
        self.answer(session).await?;
        session.signal(&self.signal, run).await
    }

    fn user(&self) -> Principal {
        Principal::user(self.by.clone().unwrap_or_else(session::user))
    }

    /// Lets runs go on that were paused by hand or interrupted by a restart; the others do so by themselves.
    async fn go_on(&self, session: &Session) -> Result<(), Stop> {
        let by = self.user();
        for (run, _) in session.tree.unfinished() {
            match session.engine.resume(run, &by, steprail_engine::Resume::default()).await {
                Ok(()) | Err(Error::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Brings the answers to the runs.
    async fn answer(&self, session: &Session) -> Result<(), Stop> {
        let (engine, by) = (&session.engine, self.user());
        let gates = self.approve.iter().map(|path| (path, true));
        for (path, approved) in gates.chain(self.deny.iter().map(|path| (path, false))) {
            let (run, path) = locate(&session.tree, path)?;
            let answered = if approved {
                engine.approve(run, &path, &by, None, None).await
            } else {
                engine.deny(run, &path, &by, None, None).await
            };
            answered.map_err(|error| match error {
                Error::Denied(_) => Stop::from(error).hint("`--as NAME` says who decides"),
                error => error.into(),
            })?;
        }
        let retried = self.retry.iter().map(|path| (path, Resolution::Retry));
        let skipped = self.skip.iter().map(|path| (path, Resolution::Skip));
        let happened = self.happened.iter().map(|(path, gave)| (path, Resolution::Happened(gave.clone())));
        for (path, resolution) in retried.chain(skipped).chain(happened) {
            let (run, path) = locate(&session.tree, path)?;
            engine.resolve(run, &path, resolution, None, &by).await?;
        }
        Ok(())
    }
}

/// What to follow: the run that is named, or every unfinished one.
fn choose(named: Option<RunId>, readers: &Readers, tree: &mut Tree) -> Result<(), Stop> {
    let roots = match named {
        Some(run) if readers.run(run)?.is_none() => {
            return Err(Error::NotFound(format!("there is no run {run} in this database")).into());
        }
        Some(run) => vec![(run, String::new())],
        None => session::unfinished(readers)?,
    };
    let several = roots.len() > 1;
    for (run, name) in roots {
        let id = run.to_string();
        let prefix = if several { format!("{name}:{}/", &id[id.len() - 4..]) } else { String::new() };
        tree.add_root(run, prefix);
        match session::read_log(readers, tree, run) {
            Err(stop) if several => {
                tree.drop_root(run);
                writeln!(anstream::stderr(), "warning: run {run} cannot be read and is left alone")?;
                stop.tell();
            }
            read => read?,
        }
    }
    Ok(())
}

/// The call that a path means, as it is shown from the run or as its own run has it.
fn holder<'a>(run: &'a views::Run, path: &'a str) -> Result<&'a views::UnknownCall, Stop> {
    let calls = || run.unknown_calls.iter().flatten();
    let shown: Vec<_> = calls().filter(|call| call.shown == path).collect();
    let meant = if shown.is_empty() { calls().filter(|call| call.step == path).collect() } else { shown };
    match &meant[..] {
        [call] => Ok(call),
        [] => Err(Stop::usage(format!("the outcome of `{path}` is not unknown"))),
        several => {
            let paths: Vec<&str> = several.iter().map(|call| &*call.shown).collect();
            let message = format!("several runs that it waits for have a call `{path}`");
            Err(Stop::usage(message).hint(format!("these are meant, perhaps: {}", paths.join(", "))))
        }
    }
}

/// The step that a path means.
fn locate(tree: &Tree, path: &str) -> Result<(RunId, String), Stop> {
    match (&tree.find(path)[..], tree.roots()) {
        ([(run, path)], _) => Ok((*run, path.to_string())),
        // The engine says what became of it.
        ([], [run]) => Ok((*run, path.to_owned())),
        ([], _) => Err(Stop::usage(format!("no unfinished run has a step `{path}` under way"))),
        (_, _) => Err(Stop::usage(format!("several runs have a step `{path}` under way"))
            .hint("name the run: `steprail resume --db FILE RUN`")),
    }
}

/// Reads `PATH=JSON`.
fn happened(text: &str) -> Result<(String, Payload), String> {
    let (path, gave) = text.split_once('=').ok_or("write PATH=JSON")?;
    let gave: Value = serde_json::from_str(gave).map_err(|error| format!("not JSON: {error}"))?;
    Ok((path.to_owned(), Payload::new(gave)))
}
