//! The ledger: a file in which the tools record the calls that were really made.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use steprail_engine::{RunId, ToolCall};

/// The ledger, open for appending.
pub(crate) struct Ledger {
    file: File,
    worker: u32,
}

/// The event that a line records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LedgerEvent {
    /// A call started to act.
    Started,
    /// A call acted and is about to return its result.
    Ended,
    /// A call is about to return an error.
    Failed,
    /// The engine reported the end of a run.
    RunEnded,
    /// The power is about to be cut.
    PowerCut,
}

/// A line of the ledger.
#[derive(Debug, Clone)]
pub(crate) struct LedgerLine {
    /// Number of workers that were started before this one.
    pub worker: u32,
    pub event: LedgerEvent,
    pub run: RunId,
    pub path: String,
    pub attempt: u32,
    pub key: String,
    pub tool: String,
    /// The hash of the arguments.
    pub args: String,
    /// Whether it was written after the power may have been cut. A real power failure would have prevented it.
    pub after_cut: bool,
}

impl LedgerLine {
    /// Whether a call started before the power was cut.
    pub(crate) fn is_call_start(&self) -> bool {
        self.event == LedgerEvent::Started && !self.after_cut
    }
}

impl Ledger {
    pub(crate) fn open(path: &Path, worker: u32) -> Self {
        let file = OpenOptions::new().append(true).create(true).open(path).expect("the ledger");
        Self { file, worker }
    }

    /// Adds a line about a call.
    pub(crate) fn call(&self, event: LedgerEvent, call: &ToolCall) {
        let ToolCall { run, path, attempt, idempotency_key: key, tool, args, .. } = call;
        self.write(&format!("{event:?}\t{run}\t{path}\t{attempt}\t{key}\t{tool}\t{}", args.hash()));
    }

    /// Adds a line about the end of a run.
    pub(crate) fn run_ended(&self, run: RunId) {
        self.write(&format!("{:?}\t{run}\t\t0\t\t\t", LedgerEvent::RunEnded));
    }

    /// Adds a line before the power is cut.
    pub(crate) fn power_cut(&self) {
        self.write(&format!("{:?}\t{}\t\t0\t\t\t", LedgerEvent::PowerCut, RunId(uuid::Uuid::nil())));
    }

    /// Writes a line at once. A kill can truncate it: then it has no end mark and is ignored.
    fn write(&self, text: &str) {
        let line = format!("\n{}\t{text}\t.", self.worker);
        (&self.file).write_all(line.as_bytes()).expect("a line in the ledger");
    }
}

/// Returns the complete lines of a ledger in order.
pub(crate) fn read(path: &Path) -> Vec<LedgerLine> {
    let text = std::fs::read(path).unwrap_or_default();
    let mut entries: Vec<LedgerLine> = String::from_utf8_lossy(&text).lines().filter_map(parse).collect();
    let mut cut = BTreeSet::new();
    for entry in &mut entries {
        entry.after_cut = cut.contains(&entry.worker);
        if entry.event == LedgerEvent::PowerCut {
            cut.insert(entry.worker);
        }
    }
    entries
}

fn parse(line: &str) -> Option<LedgerLine> {
    let parts: Vec<&str> = line.split('\t').collect();
    let [number, event, run, path, attempt, key, tool, args, "."] = parts.as_slice() else { return None };
    let event = [
        LedgerEvent::Started,
        LedgerEvent::Ended,
        LedgerEvent::Failed,
        LedgerEvent::RunEnded,
        LedgerEvent::PowerCut,
    ]
    .into_iter()
    .find(|known| format!("{known:?}") == *event)
    .expect("a known event");
    Some(LedgerLine {
        worker: number.parse().expect("a number"),
        event,
        run: run.parse().expect("a run"),
        path: (*path).to_owned(),
        attempt: attempt.parse().expect("a number"),
        key: (*key).to_owned(),
        tool: (*tool).to_owned(),
        args: (*args).to_owned(),
        after_cut: false,
    })
}
