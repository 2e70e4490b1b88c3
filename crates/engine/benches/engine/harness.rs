//! The harness of the cases: databases on a disk, engines and tools.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use steprail_engine::{
    Annotations, BoxFuture, Durability, Engine, Limits, Notice, Notifier, Options, Principal, RunHandle,
    RunStatus, SqliteStore, Start, ToolCall, ToolCaller, Tools,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The type that `statfs` reports for a file system in memory.
const TMPFS: u64 = 0x0102_1994;

/// Settings and resources that all cases share.
pub(crate) struct Harness {
    /// Whether sizes and rounds are reduced.
    pub quick: bool,
    pub runtime: Runtime,
    dir: PathBuf,
}

impl Harness {
    pub(crate) fn new(quick: bool) -> Self {
        let dir = std::env::var_os("STEPRAIL_BENCH_DIR");
        let dir = dir.map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
        std::fs::create_dir_all(&dir).expect("a directory for databases");
        Self { quick, runtime: runtime(), dir }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether the directory is on a disk, as text.
    pub(crate) fn file_system(&self) -> &'static str {
        let stat = rustix::fs::statfs(&self.dir).expect("a file system");
        match u64::try_from(stat.f_type) {
            Ok(TMPFS) => "IN MEMORY: set STEPRAIL_BENCH_DIR to a directory on a disk",
            _ => "a disk",
        }
    }

    /// How often a measurement is repeated. The best one counts.
    pub(crate) fn rounds(&self) -> usize {
        if self.quick { 1 } else { 3 }
    }

    /// The full size, or a tenth of it with `--quick`.
    pub(crate) fn size(&self, full: usize) -> usize {
        if self.quick { full / 10 } else { full }
    }

    /// A temporary directory for a database.
    pub(crate) fn scratch(&self) -> TempDir {
        tempfile::Builder::new().prefix("bench-").tempdir_in(&self.dir).expect("a directory")
    }

    /// The shortest time of all rounds.
    pub(crate) fn best(&self, mut measure: impl FnMut() -> Duration) -> Duration {
        (0..self.rounds()).map(|_| measure()).min().expect("a round")
    }
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_time().build().expect("a runtime")
}

pub(crate) fn database(dir: &TempDir) -> PathBuf {
    dir.path().join("bench.db")
}

/// An engine and the statuses of runs that ended.
pub(crate) struct BenchEngine {
    pub engine: Engine,
    ended: UnboundedReceiver<RunStatus>,
}

struct Ended(UnboundedSender<RunStatus>);

impl Notifier for Ended {
    fn notify(&self, notice: Notice) -> BoxFuture<'_, ()> {
        if let Notice::RunEnded { status, .. } = notice {
            let _ = self.0.send(status);
        }
        Box::pin(async {})
    }
}

impl BenchEngine {
    /// An engine with the default limits.
    pub(crate) fn new(database: &Path, durability: Durability, tools: impl ToolCaller + 'static) -> Self {
        Self::with_limits(database, durability, tools, Limits::default())
    }

    pub(crate) fn with_limits(
        database: &Path,
        durability: Durability,
        tools: impl ToolCaller + 'static,
        limits: Limits,
    ) -> Self {
        let store = open(database, durability);
        let (sender, ended) = unbounded_channel();
        let builder = Engine::builder().store(store).tools(tools).notifier(Ended(sender)).limits(limits);
        Self { engine: builder.spawn().expect("an engine"), ended }
    }

    pub(crate) async fn define(&self, text: &str) {
        self.engine.define(text, &user()).await.expect("a definition");
    }

    pub(crate) async fn start(&self, name: &str, inputs: Value) -> RunHandle {
        self.engine.start(Start::named(name, user()).inputs(inputs)).await.expect("a run")
    }

    /// Waits until the next run has completed.
    pub(crate) async fn completed(&mut self) {
        assert_eq!(self.ended.recv().await, Some(RunStatus::Completed), "a run ended badly");
    }

    /// Waits until the next run has ended with any status.
    pub(crate) async fn ended(&mut self) {
        self.ended.recv().await.expect("the end of a run");
    }

    /// Measures a run from its start to its end.
    pub(crate) async fn time(&mut self, name: &str, inputs: Value) -> Duration {
        let started = Instant::now();
        self.start(name, inputs).await;
        self.completed().await;
        started.elapsed()
    }

    /// Completes `count` runs, with `concurrent` of them unfinished at any time. Each caller starts a run and waits for
    /// it, as programs do.
    pub(crate) async fn complete_runs(&mut self, name: &'static str, count: usize, concurrent: usize) {
        let left = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(count));
        let callers: Vec<_> = (0..concurrent.min(count))
            .map(|_| tokio::spawn(start_and_wait(self.engine.clone(), name, left.clone())))
            .collect();
        for caller in callers {
            caller.await.expect("a caller");
        }
        while self.ended.try_recv().is_ok() {}
    }

    /// Stops the engine, so that it does not disturb the next measurement.
    pub(crate) async fn stop(self) {
        self.engine.shutdown().await.expect("an end");
    }
}

async fn start_and_wait(
    engine: Engine,
    name: &'static str,
    left: std::sync::Arc<std::sync::atomic::AtomicUsize>,
) {
    use std::sync::atomic::Ordering::Relaxed;
    while left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
        let run = engine.start(Start::named(name, user())).await.expect("a run");
        assert_eq!(run.wait().await.expect("an end").run.status, RunStatus::Completed);
    }
}

/// Opens a store. Retries while a process that has just stopped still holds the lock.
pub(crate) fn open(database: &Path, durability: Durability) -> SqliteStore {
    let options = Options { durability, ..Options::default() };
    let started = Instant::now();
    loop {
        match SqliteStore::open(database, &options) {
            Ok(store) => return store,
            Err(error) => assert!(started.elapsed() < Duration::from_secs(5), "a store: {error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn user() -> Principal {
    Principal::user("ann")
}

/// The name of a durability in the configuration.
pub(crate) fn name(durability: Durability) -> &'static str {
    match durability {
        Durability::Full => "full",
        Durability::Process => "process",
    }
}

/// `demo__noop` as an idempotent tool that does nothing.
pub(crate) fn noop() -> Tools {
    with_tool(|_| async { Ok(json!({ "ok": true })) })
}

/// `demo__noop` as an idempotent tool with this function.
pub(crate) fn with_tool<F>(tool: impl Fn(ToolCall) -> F + Send + Sync + 'static) -> Tools
where
    F: Future<Output = steprail_engine::Outcome> + Send + 'static,
{
    Tools::new().tool_with("demo__noop", Annotations::IDEMPOTENT, tool)
}

/// A definition of sequential steps.
pub(crate) fn linear(name: &str, count: usize) -> String {
    let mut text = format!("name: {name}\nsteps:\n");
    for at in 1..=count {
        let _ = writeln!(text, "  - {{ id: s{at}, tool: demo__noop }}");
    }
    text
}

/// CPU time of the engine thread.
pub(crate) fn engine_cpu_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads").flatten().map(|entry| entry.path());
    let read = |path: &Path, name| std::fs::read_to_string(path.join(name)).unwrap_or_default();
    let engines = tasks.filter(|task| read(task, "comm").trim() == "steprail");
    let nanos = engines.filter_map(|task| read(&task, "schedstat").split(' ').next()?.parse::<u64>().ok());
    Duration::from_nanos(nanos.sum())
}

/// CPU time of this thread.
pub(crate) fn own_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("a time")
}

/// Resident memory of this process, in bytes.
pub(crate) fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    let kilobytes = line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number");
    kilobytes * 1024
}
