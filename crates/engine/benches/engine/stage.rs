//! What the cases need: a place on a real disk, engines, tools, and word of runs that ended.

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

/// What `statfs` calls a file system in memory.
const TMPFS: u64 = 0x0102_1994;

/// Where the cases play.
pub(crate) struct Stage {
    /// Whether a rough figure is enough.
    pub quick: bool,
    pub runtime: Runtime,
    dir: PathBuf,
}

impl Stage {
    pub(crate) fn new(quick: bool) -> Self {
        let dir = std::env::var_os("STEPRAIL_BENCH_DIR");
        let dir = dir.map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
        std::fs::create_dir_all(&dir).expect("a directory for databases");
        Self { quick, runtime: runtime(), dir }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether the directory is on a disk.
    pub(crate) fn kind(&self) -> &'static str {
        let found = rustix::fs::statfs(&self.dir).expect("a file system");
        match u64::try_from(found.f_type) {
            Ok(TMPFS) => "IN MEMORY: set STEPRAIL_BENCH_DIR to a directory on a disk",
            _ => "a disk",
        }
    }

    /// How often a measurement is repeated; the best counts.
    pub(crate) fn rounds(&self) -> usize {
        if self.quick { 1 } else { 3 }
    }

    /// A full size, or a tenth of it.
    pub(crate) fn size(&self, full: usize) -> usize {
        if self.quick { full / 10 } else { full }
    }

    /// A directory for a database; it is gone when it is dropped.
    pub(crate) fn scratch(&self) -> TempDir {
        tempfile::Builder::new().prefix("bench-").tempdir_in(&self.dir).expect("a directory")
    }

    /// The shortest of several times.
    pub(crate) fn best(&self, mut measure: impl FnMut() -> Duration) -> Duration {
        (0..self.rounds()).map(|_| measure()).min().expect("a round")
    }
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_time().build().expect("a runtime")
}

/// The file of the database in a directory.
pub(crate) fn database(dir: &TempDir) -> PathBuf {
    dir.path().join("bench.db")
}

/// An engine and word of the runs that ended.
pub(crate) struct Player {
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

impl Player {
    /// An engine with the limits that it has by default.
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

    /// Waits until a run has ended, however.
    pub(crate) async fn ended(&mut self) {
        self.ended.recv().await.expect("the end of a run");
    }

    /// How long a run takes from its start to its end.
    pub(crate) async fn time(&mut self, name: &str, inputs: Value) -> Duration {
        let begun = Instant::now();
        self.start(name, inputs).await;
        self.completed().await;
        begun.elapsed()
    }

    /// Starts runs so that always `at_once` are under way, until `count` have completed.
    pub(crate) async fn pump(&mut self, name: &'static str, count: usize, at_once: usize) {
        (0..at_once.min(count)).for_each(|_| self.start_soon(name));
        for done in 0..count {
            self.completed().await;
            if done + at_once < count {
                self.start_soon(name);
            }
        }
    }

    fn start_soon(&self, name: &'static str) {
        let engine = self.engine.clone();
        tokio::spawn(
            async move { engine.start(Start::named(name, user())).await.map(|_| ()).expect("a run") },
        );
    }

    /// Ends the engine, so that the next measurement has the machine for itself.
    pub(crate) async fn stop(self) {
        self.engine.shutdown().await.expect("an end");
    }
}

/// Opens a store. One that was just closed may take a moment to give up its lock.
pub(crate) fn open(database: &Path, durability: Durability) -> SqliteStore {
    let options = Options { durability, ..Options::default() };
    let begun = Instant::now();
    loop {
        match SqliteStore::open(database, &options) {
            Ok(store) => return store,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(5), "a store: {error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn user() -> Principal {
    Principal::user("ann")
}

/// The names of the durabilities, as users write them.
pub(crate) fn word(durability: Durability) -> &'static str {
    match durability {
        Durability::Full => "full",
        Durability::Process => "process",
    }
}

/// `demo__noop`, which does nothing and may be repeated.
pub(crate) fn noop() -> Tools {
    with_tool(|_| async { Ok(json!({ "ok": true })) })
}

/// `demo__noop`, which does what is given.
pub(crate) fn with_tool<F>(tool: impl Fn(ToolCall) -> F + Send + Sync + 'static) -> Tools
where
    F: Future<Output = steprail_engine::Outcome> + Send + 'static,
{
    Tools::new().tool_with("demo__noop", Annotations::IDEMPOTENT, tool)
}

/// A definition of steps one after another.
pub(crate) fn steps(name: &str, count: usize) -> String {
    let mut text = format!("name: {name}\nsteps:\n");
    for at in 1..=count {
        let _ = writeln!(text, "  - {{ id: s{at}, tool: demo__noop }}");
    }
    text
}

/// The processor time that the engine's thread has had.
pub(crate) fn engine_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads").flatten().map(|entry| entry.path());
    let read = |path: &Path, name| std::fs::read_to_string(path.join(name)).unwrap_or_default();
    let engines = tasks.filter(|task| read(task, "comm").trim() == "steprail");
    let nanos = engines.filter_map(|task| read(&task, "schedstat").split(' ').next()?.parse::<u64>().ok());
    Duration::from_nanos(nanos.sum())
}

/// The processor time that this thread has had.
pub(crate) fn own_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("a time")
}

/// The resident memory of this process, in bytes.
pub(crate) fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    let kilobytes = line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number");
    kilobytes * 1024
}
