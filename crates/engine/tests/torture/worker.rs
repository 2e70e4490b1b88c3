//! The worker process that the crash tests kill: an engine on a database file with several runs in progress.
//!
//! It prints one message per line, after the engine acknowledged it: `B` the database is open, `U` the engine is
//! up, `S n RUN` a run was started, `.` a line was added to the ledger, `C RUN SEQ` an event was published,
//! `E n STATUS SEQ` a run ended, `Z` the job is finished, `! WHY` an error occurred.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steprail_engine::{
    Annotations, BoxFuture, Cursor, Durability, Engine, Error, Failure, FailureKind, Limits, ListRuns,
    ListSteps, Notice, Notifier, Options, Outcome, Payload, Principal, Resolution, RunId, RunStatus,
    SqliteStore, Start, StepFilter, StepStatus, ToolCall, ToolCaller,
};
use steprail_store::Reads as _;
use tokio::sync::mpsc;

use super::expected::answer;
use super::ledger::{Ledger, LedgerEvent};
use super::workflows::{BROKEN, FLAKY, IDEMPOTENT, READ, SIGNAL, SLOW, WORKFLOWS, definitions};

/// The name of the test that runs the worker, and the environment variable with its job.
pub(crate) const TEST: &str = "worker";
pub(crate) const JOB: &str = "STEPRAIL_JOB";

/// The job of one worker process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub database: PathBuf,
    pub ledger: PathBuf,
    /// Number of workers that were started before this one.
    pub worker: u32,
    /// The first run to start; earlier ones have ended.
    pub from: u64,
    /// The run to stop before. If set, the worker also answers all open requests and exits.
    pub until: Option<u64>,
    /// Number of runs in progress.
    pub concurrency: usize,
    /// Whether commits are synced to the disk.
    pub full: bool,
    /// Whether a message is sent for every event.
    pub feed: bool,
    pub seed: u64,
}

/// Returns the seed of a run.
pub(crate) fn seed_of(base: u64, n: u64) -> u64 {
    fastrand::Rng::with_seed(base ^ (n << 20)).u64(0..1_000_000)
}

/// The user that runs act as.
fn starter() -> Principal {
    Principal::user("ann")
}

/// Sends a message to the test.
fn send(line: &str) {
    let mut out = std::io::stdout().lock();
    // The test has exited.
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(3);
    }
}

/// Runs the job from the environment, if there is one.
pub(crate) fn main() {
    let Ok(text) = std::env::var(JOB) else { return };
    let job: Job = serde_json::from_str(&text).expect("a job");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    if let Err(error) = runtime.expect("a runtime").block_on(work(job)) {
        send(&format!("! {error}"));
    }
}

/// The state that the tasks of a worker share.
struct Worker {
    job: Job,
    engine: Engine,
    ledger: Arc<Ledger>,
    next: AtomicU64,
}

async fn work(job: Job) -> Result<(), Error> {
    let durability = if job.full { Durability::Full } else { Durability::Process };
    let store = SqliteStore::open(&job.database, &Options { durability, address: None })?;
    send("B");
    let last = store.readers().expect("a file").last_event()?;
    let ledger = Arc::new(Ledger::open(&job.ledger, job.worker));
    let (notices, received) = mpsc::unbounded_channel();
    let engine =
        Engine::builder().store(store).tools(LedgerTools(ledger.clone())).notifier(NoticeForwarder(notices));
    let engine = engine.limits(limits(job.worker)).spawn()?;
    send("U");
    for definition in definitions() {
        engine.define(&definition, &starter()).await?;
    }
    let next = AtomicU64::new(job.from);
    let worker = Arc::new(Worker { job, engine, ledger, next });
    tokio::spawn(worker.clone().answer_notices(received));
    if worker.job.feed {
        tokio::spawn(worker.clone().send_events(last));
    }
    let answering = tokio::spawn(worker.clone().answer_open_requests());
    let tasks: Vec<_> =
        (0..worker.job.concurrency).map(|_| tokio::spawn(worker.clone().run_continuously())).collect();
    for task in tasks.into_iter().chain([answering]) {
        task.await.expect("no panic")?;
    }
    worker.engine.shutdown().await?;
    send("Z");
    Ok(())
}

/// Some workers have low limits, so that calls wait for slots.
fn limits(worker: u32) -> Limits {
    match worker % 4 {
        1 => Limits { calls_per_server: 40, ..Limits::default() },
        2 => Limits { calls: 100, calls_per_definition: 10, ..Limits::default() },
        _ => Limits::default(),
    }
}

impl Worker {
    /// Starts runs one after the other and waits for each.
    async fn run_continuously(self: Arc<Self>) -> Result<(), Error> {
        loop {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            if self.job.until.is_some_and(|until| n >= until) {
                return Ok(());
            }
            self.run_one(n).await?;
        }
    }

    async fn run_one(&self, n: u64) -> Result<(), Error> {
        let workflow = &WORKFLOWS[usize::try_from(n).expect("a number of runs") % WORKFLOWS.len()];
        let seed = seed_of(self.job.seed, n);
        let start = Start::named(workflow.name, starter()).inputs(json!({ "seed": seed }));
        let run = self.engine.start(start.request_key(n.to_string())).await?;
        send(&format!("S {n} {}", run.id()));
        if workflow.name == "signal" {
            // Fails if the run has ended; an earlier worker may have sent the signal.
            let _ = self.engine.signal(SIGNAL, json!({ "n": seed }), Some(run.id())).await;
        }
        let ended = run.wait().await?;
        self.ledger.run_ended(run.id());
        send(&format!("E {n} {} {}", ended.run.status.name(), ended.run.seq));
        Ok(())
    }

    /// Sends a message for every event that is published from now on.
    async fn send_events(self: Arc<Self>, last: Cursor) -> Result<(), Error> {
        let mut feed = self.engine.subscribe(None, last);
        while let Some(event) = feed.next().await? {
            send(&format!("C {} {}", event.run, event.seq));
        }
        Ok(())
    }

    /// Acts as the humans: approves at gates and resolves unknown outcomes.
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
        // Another task may have decided already.
        let _ = self.engine.approve(run, path, &Principal::user("bob"), None, None).await;
    }

    /// Answers the requests that earlier workers left open.
    async fn answer_open_requests(self: Arc<Self>) -> Result<(), Error> {
        for approval in self.engine.approvals(100_000).await? {
            self.approve(approval.run_id, &approval.path).await;
        }
        for status in [RunStatus::Running, RunStatus::Paused] {
            let list = ListRuns { status: Some(status), limit: 100_000, ..ListRuns::default() };
            for run in self.engine.list(list).await? {
                let filter = StepFilter::Status(StepStatus::Uncertain);
                let list = ListSteps { filter, limit: 100_000, ..ListSteps::default() };
                for step in self.engine.steps(run.run_id, list).await?.steps {
                    self.resolve(run.run_id, &step.path).await;
                }
            }
        }
        Ok(())
    }

    /// Resolves an unknown outcome: leaves some to a later worker, repeats some calls, and declares some done.
    async fn resolve(&self, run: RunId, path: &str) {
        let filter = StepFilter::Named(vec![path.to_owned()]);
        let list = ListSteps { filter, last: true, limit: 1, ..ListSteps::default() };
        let args = self.engine.steps(run, list).await.ok().and_then(|page| {
            let step = page.steps.into_iter().next()?;
            serde_json::from_str::<Value>(step.input?.get()).ok()
        });
        let resolution = match (fastrand::u8(0..4), args) {
            (0 | 1, _) if self.job.until.is_none() => return,
            (2, Some(args)) => Resolution::Happened(Payload::new(answer(path, &args))),
            _ => Resolution::Retry,
        };
        // A late result or another task may have resolved it already.
        let _ = self.engine.resolve(run, path, resolution, None, &Principal::user("bob")).await;
    }
}

/// Forwards notices to a task.
struct NoticeForwarder(mpsc::UnboundedSender<Notice>);

impl Notifier for NoticeForwarder {
    fn notify(&self, notice: Notice) -> BoxFuture<'_, ()> {
        let _ = self.0.send(notice);
        Box::pin(async {})
    }
}

/// The tools. Each call is recorded in the ledger before and after it acts.
struct LedgerTools(Arc<Ledger>);

impl ToolCaller for LedgerTools {
    fn call(&self, call: ToolCall) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            self.0.call(LedgerEvent::Started, &call);
            send(".");
            // The duration of the call.
            let longest = if &*call.tool == SLOW { 30_000 } else { 4_000 };
            tokio::time::sleep(Duration::from_micros(fastrand::u64(0..longest))).await;
            let outcome = act(&call);
            self.0.call(if outcome.is_ok() { LedgerEvent::Ended } else { LedgerEvent::Failed }, &call);
            send(".");
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
