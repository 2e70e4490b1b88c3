//! The program that is killed: an engine over a file that keeps a number of runs under way.
//!
//! It tells on its output, a line each and only after the engine has answered: `B` the database is open, `U` the
//! engine is up, `S n RUN` a run was started, `.` a line went into the ledger, `C RUN SEQ` an event was published,
//! `E n STATUS SEQ` a run ended, `Z` nothing is left to do, `! WHY` something is wrong.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steprail_engine::{
    Annotations, BoxFuture, Durability, Engine, Error, Failure, FailureKind, Limits, ListRuns, Notice,
    Notifier, Options, Outcome, Payload, Principal, Resolution, RunId, RunStatus, SqliteStore, Start,
    StepStatus, ToolCall, ToolCaller,
};
use steprail_store::Reads as _;
use tokio::sync::mpsc;

use super::ledger::{Ledger, What};
use super::shapes::{BROKEN, EVENT, FLAKY, IDEMPOTENT, READ, SHAPES, SLOW, definitions};
use super::story::answer;

/// The name of the test that is this program, and the variable that tells it what to do.
pub(crate) const TEST: &str = "worker";
pub(crate) const JOB: &str = "STEPRAIL_JOB";

/// What one life of the worker is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub database: PathBuf,
    pub ledger: PathBuf,
    /// How often the worker had been started before.
    pub life: u32,
    /// The first run to ask for; those before are known to be over.
    pub from: u64,
    /// The first run not to ask for. The worker then also answers every open question and ends.
    pub until: Option<u64>,
    /// How many runs are kept under way.
    pub at_once: usize,
    /// Whether commits reach the disk.
    pub full: bool,
    /// Whether every event is told of.
    pub feed: bool,
    pub seed: u64,
}

/// The seed of a run.
pub(crate) fn seed_of(base: u64, n: u64) -> u64 {
    fastrand::Rng::with_seed(base ^ (n << 20)).u64(0..1_000_000)
}

/// Whom runs act as.
fn starter() -> Principal {
    Principal::user("ann")
}

/// Tells the harness something.
fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    // Nobody listens any more: the harness is gone, and so should this be.
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(3);
    }
}

/// Does what the environment asks for; nothing if it does not.
pub(crate) fn main() {
    let Ok(text) = std::env::var(JOB) else { return };
    let job: Job = serde_json::from_str(&text).expect("a job");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    if let Err(error) = runtime.expect("a runtime").block_on(work(job)) {
        tell(&format!("! {error}"));
    }
}

/// What the tasks of a worker share.
struct Worker {
    job: Job,
    engine: Engine,
    ledger: Arc<Ledger>,
    next: AtomicU64,
}

async fn work(job: Job) -> Result<(), Error> {
    let durability = if job.full { Durability::Full } else { Durability::Process };
    let store = SqliteStore::open(&job.database, &Options { durability, address: None })?;
    tell("B");
    let last = store.readers().expect("a file").last_event()?;
    let ledger = Arc::new(Ledger::open(&job.ledger, job.life));
    let (notices, heard) = mpsc::unbounded_channel();
    let engine = Engine::builder().store(store).tools(Lab(ledger.clone())).notifier(Ear(notices));
    let engine = engine.limits(limits(job.life)).spawn()?;
    tell("U");
    for definition in definitions() {
        engine.define(&definition, &starter()).await?;
    }
    let next = AtomicU64::new(job.from);
    let worker = Arc::new(Worker { job, engine, ledger, next });
    tokio::spawn(worker.clone().answer_notices(heard));
    if worker.job.feed {
        tokio::spawn(worker.clone().tell_events(last));
    }
    let asked = tokio::spawn(worker.clone().answer_old_questions());
    let tasks: Vec<_> = (0..worker.job.at_once).map(|_| tokio::spawn(worker.clone().keep_going())).collect();
    for task in tasks.into_iter().chain([asked]) {
        task.await.expect("no panic")?;
    }
    worker.engine.shutdown().await?;
    tell("Z");
    Ok(())
}

/// In some lives calls have to wait for one another.
fn limits(life: u32) -> Limits {
    match life % 4 {
        1 => Limits { calls_per_server: 40, ..Limits::default() },
        2 => Limits { calls: 100, calls_per_definition: 10, ..Limits::default() },
        _ => Limits::default(),
    }
}

impl Worker {
    /// Starts one run after the other and waits for each.
    async fn keep_going(self: Arc<Self>) -> Result<(), Error> {
        loop {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            if self.job.until.is_some_and(|until| n >= until) {
                return Ok(());
            }
            self.one(n).await?;
        }
    }

    async fn one(&self, n: u64) -> Result<(), Error> {
        let shape = &SHAPES[usize::try_from(n).expect("a number of runs") % SHAPES.len()];
        let seed = seed_of(self.job.seed, n);
        let start = Start::named(shape.name, starter()).inputs(json!({ "seed": seed }));
        let run = self.engine.start(start.request_key(n.to_string())).await?;
        tell(&format!("S {n} {}", run.id()));
        if shape.name == "event" {
            // It may have been told before; a run that is over cannot be told.
            let _ = self.engine.signal(EVENT, json!({ "n": seed }), Some(run.id())).await;
        }
        let ended = run.wait().await?;
        self.ledger.over(run.id());
        tell(&format!("E {n} {} {}", ended.run.status.word(), ended.run.seq));
        Ok(())
    }

    /// Tells of every event that is published from now on.
    async fn tell_events(self: Arc<Self>, last: i64) -> Result<(), Error> {
        let mut feed = self.engine.subscribe(None, last);
        while let Some(event) = feed.next().await? {
            tell(&format!("C {} {}", event.run, event.seq));
        }
        Ok(())
    }

    /// Plays the humans: says yes at gates, and what became of calls.
    async fn answer_notices(self: Arc<Self>, mut notices: mpsc::UnboundedReceiver<Notice>) {
        while let Some(notice) = notices.recv().await {
            match notice {
                Notice::ApprovalRequested { run, path, .. } => self.approve(run, &path).await,
                Notice::StepUncertain { run, path } => self.resolve(run, &path).await,
                _ => {}
            }
        }
    }

    async fn approve(&self, run: RunId, path: &str) {
        // Somebody may have been faster.
        let _ = self.engine.approve(run, path, &Principal::user("bob"), None, None).await;
    }

    /// Questions of earlier lives.
    async fn answer_old_questions(self: Arc<Self>) -> Result<(), Error> {
        for approval in self.engine.approvals(100_000).await? {
            self.approve(approval.run_id, &approval.path).await;
        }
        for status in [RunStatus::Running, RunStatus::Paused] {
            let list = ListRuns { status: Some(status), limit: 100_000, ..ListRuns::default() };
            for run in self.engine.list(list).await? {
                let steps = self.engine.status(run.run_id).await?.steps;
                for step in steps.iter().filter(|step| step.status == StepStatus::Uncertain) {
                    self.resolve(run.run_id, &step.path).await;
                }
            }
        }
        Ok(())
    }

    /// Some questions are left to a later life, some calls are made again, some are said to have happened.
    async fn resolve(&self, run: RunId, path: &str) {
        let args = self.engine.status(run).await.ok().and_then(|view| {
            let step = view.steps.into_iter().rfind(|step| step.path == path)?;
            serde_json::from_str::<Value>(step.input?.get()).ok()
        });
        let resolution = match (fastrand::u8(0..4), args) {
            (0 | 1, _) if self.job.until.is_none() => return,
            (2, Some(args)) => Resolution::Happened(Payload::new(answer(path, &args))),
            _ => Resolution::Retry,
        };
        // A late answer or another task may have been faster.
        let _ = self.engine.resolve(run, path, resolution, None, &Principal::user("bob")).await;
    }
}

/// Passes notices on to a task.
struct Ear(mpsc::UnboundedSender<Notice>);

impl Notifier for Ear {
    fn notify(&self, notice: Notice) -> BoxFuture<'_, ()> {
        let _ = self.0.send(notice);
        Box::pin(async {})
    }
}

/// The tools. Each call is written down before and after it acts.
struct Lab(Arc<Ledger>);

impl ToolCaller for Lab {
    fn call(&self, call: ToolCall) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            self.0.call(What::Begun, &call);
            tell(".");
            // The time that the tool needs.
            let longest = if &*call.tool == SLOW { 30_000 } else { 4_000 };
            tokio::time::sleep(Duration::from_micros(fastrand::u64(0..longest))).await;
            let outcome = act(&call);
            self.0.call(if outcome.is_ok() { What::Ended } else { What::Failed }, &call);
            tell(".");
            outcome
        })
    }

    fn annotations(&self, tool: &str) -> Annotations {
        match tool {
            READ => Annotations::READ_ONLY,
            IDEMPOTENT => Annotations::IDEMPOTENT,
            _ => Annotations::UNANNOTATED,
        }
    }
}

fn act(call: &ToolCall) -> Outcome {
    let fails = match &*call.tool {
        BROKEN => true,
        FLAKY => call.attempt == 1,
        _ => false,
    };
    if fails {
        return Err(Failure::new(FailureKind::ToolError, "it is broken").transient());
    }
    Ok(answer(&call.path, call.args.value()))
}
