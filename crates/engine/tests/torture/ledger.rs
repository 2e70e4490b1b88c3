//! A file beside the engine that says which calls were really made.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use steprail_engine::{RunId, ToolCall};

/// The ledger, open for further lines.
pub(crate) struct Ledger {
    file: File,
    life: u32,
}

/// What a line tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// A call began to act.
    Begun,
    /// It acted and was about to answer.
    Ended,
    /// It was about to answer with an error.
    Failed,
    /// The engine said that a run was over.
    Over,
    /// The power was about to be cut.
    Cut,
}

/// A line.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// How often the worker had been started before.
    pub life: u32,
    pub what: What,
    pub run: RunId,
    pub path: String,
    pub attempt: u32,
    pub key: String,
    pub tool: String,
    /// The hash of the arguments.
    pub args: String,
    /// It was written when the power was, or may have been, off already: a real cut would have stopped it.
    pub ghost: bool,
}

impl Entry {
    /// Whether a call began, for sure before the end of its life.
    pub(crate) fn begins(&self) -> bool {
        self.what == What::Begun && !self.ghost
    }
}

impl Ledger {
    pub(crate) fn open(path: &Path, life: u32) -> Self {
        let file = OpenOptions::new().append(true).create(true).open(path).expect("the ledger");
        Self { file, life }
    }

    /// Adds a line about a call.
    pub(crate) fn call(&self, what: What, call: &ToolCall) {
        let ToolCall { run, path, attempt, idempotency_key: key, tool, args, .. } = call;
        self.write(&format!("{what:?}\t{run}\t{path}\t{attempt}\t{key}\t{tool}\t{}", args.hash()));
    }

    /// Adds a line about the end of a run.
    pub(crate) fn over(&self, run: RunId) {
        self.write(&format!("{:?}\t{run}\t\t0\t\t\t", What::Over));
    }

    /// Adds a line about the end of a life.
    pub(crate) fn cut(&self) {
        self.write(&format!("{:?}\t{}\t\t0\t\t\t", What::Cut, RunId(uuid::Uuid::nil())));
    }

    /// One write per line. A kill may tear it; then it has no end mark, and the next one starts anew.
    fn write(&self, text: &str) {
        let line = format!("\n{}\t{text}\t.", self.life);
        (&self.file).write_all(line.as_bytes()).expect("the ledger takes a line");
    }
}

/// Every line of a ledger, in order, without those that were torn.
pub(crate) fn read(path: &Path) -> Vec<Entry> {
    let text = std::fs::read(path).unwrap_or_default();
    let mut entries: Vec<Entry> = String::from_utf8_lossy(&text).lines().filter_map(parse).collect();
    let mut cut = BTreeSet::new();
    for entry in &mut entries {
        entry.ghost = cut.contains(&entry.life);
        if entry.what == What::Cut {
            cut.insert(entry.life);
        }
    }
    entries
}

fn parse(line: &str) -> Option<Entry> {
    let parts: Vec<&str> = line.split('\t').collect();
    let [number, what, run, path, attempt, key, tool, args, "."] = parts.as_slice() else { return None };
    let what = [What::Begun, What::Ended, What::Failed, What::Over, What::Cut]
        .into_iter()
        .find(|known| format!("{known:?}") == *what)
        .expect("a known word");
    Some(Entry {
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
