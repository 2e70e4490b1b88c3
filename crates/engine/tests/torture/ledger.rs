//! The ledger: a file in which the tools record the calls that were really made.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use steprail_engine::{RunId, ToolCall};

/// The ledger, open for appending.
pub(crate) struct Ledger {
    file: File,
    life: u32,
}

/// The event that a line records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LedgerEvent {
    /// A call started to act.
    Begun,
    /// A call acted and is about to return its result.
    Ended,
    /// A call is about to return an error.
    Failed,
    /// The engine reported the end of a run.
    Over,
    /// The power is about to be cut.
    Cut,
}

/// A line of the ledger.
#[derive(Debug, Clone)]
pub(crate) struct LedgerLine {
    /// Number of workers that were started before this one.
    pub life: u32,
    pub what: LedgerEvent,
    pub run: RunId,
    pub path: String,
    pub attempt: u32,
    pub key: String,
    pub tool: String,
    /// The hash of the arguments.
    pub args: String,
    /// Whether it was written after the power may have been cut. A real power failure would have prevented it.
    pub ghost: bool,
}

impl LedgerLine {
    /// Whether a call started before the power was cut.
    pub(crate) fn begins(&self) -> bool {
        self.what == LedgerEvent::Begun && !self.ghost
    }
}

impl Ledger {
    pub(crate) fn open(path: &Path, life: u32) -> Self {
        let file = OpenOptions::new().append(true).create(true).open(path).expect("the ledger");
        Self { file, life }
    }

    /// Adds a line about a call.
    pub(crate) fn call(&self, what: LedgerEvent, call: &ToolCall) {
        let ToolCall { run, path, attempt, idempotency_key: key, tool, args, .. } = call;
        self.write(&format!("{what:?}\t{run}\t{path}\t{attempt}\t{key}\t{tool}\t{}", args.hash()));
    }

    /// Adds a line about the end of a run.
    pub(crate) fn over(&self, run: RunId) {
        self.write(&format!("{:?}\t{run}\t\t0\t\t\t", LedgerEvent::Over));
    }

    /// Adds a line before the power is cut.
    pub(crate) fn cut(&self) {
        self.write(&format!("{:?}\t{}\t\t0\t\t\t", LedgerEvent::Cut, RunId(uuid::Uuid::nil())));
    }

    /// Writes a line at once. A kill can truncate it: then it has no end mark and is ignored.
    fn write(&self, text: &str) {
        let line = format!("\n{}\t{text}\t.", self.life);
        (&self.file).write_all(line.as_bytes()).expect("a line in the ledger");
    }
}

/// Returns the complete lines of a ledger in order.
pub(crate) fn read(path: &Path) -> Vec<LedgerLine> {
    let text = std::fs::read(path).unwrap_or_default();
    let mut entries: Vec<LedgerLine> = String::from_utf8_lossy(&text).lines().filter_map(parse).collect();
    let mut cut = BTreeSet::new();
    for entry in &mut entries {
        entry.ghost = cut.contains(&entry.life);
        if entry.what == LedgerEvent::Cut {
            cut.insert(entry.life);
        }
    }
    entries
}

fn parse(line: &str) -> Option<LedgerLine> {
    let parts: Vec<&str> = line.split('\t').collect();
    let [number, what, run, path, attempt, key, tool, args, "."] = parts.as_slice() else { return None };
    let what =
        [LedgerEvent::Begun, LedgerEvent::Ended, LedgerEvent::Failed, LedgerEvent::Over, LedgerEvent::Cut]
            .into_iter()
            .find(|known| format!("{known:?}") == *what)
            .expect("a known event");
    Some(LedgerLine {
        life: number.parse().expect("a number"),
        what,
        run: run.parse().expect("a run"),
        path: (*path).to_owned(),
        attempt: attempt.parse().expect("a number"),
        key: (*key).to_owned(),
        tool: (*tool).to_owned(),
        args: (*args).to_owned(),
        ghost: false,
    })
}
