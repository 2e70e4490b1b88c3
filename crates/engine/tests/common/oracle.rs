//! What the world answers to a run, worked out from a seed: the same question gets the same answer.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use steprail_core::run::{Failure, FailureKind, Millis};

/// Everything that a run cannot know beforehand: tools, people, events. Questions are asked by path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Oracle {
    pub seed: u64,
    /// How many of a hundred calls fail.
    pub failing: u32,
    /// How many of a hundred failures leave the outcome unknown.
    pub lost: u32,
}

/// What a tool does with one call.
#[derive(Debug, Clone)]
pub(crate) struct Reaction {
    pub takes: Millis,
    pub outcome: Result<Value, Failure>,
    pub told: Told,
}

/// What a tool does when it is told to stop.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Told {
    /// It stops after a while.
    Stops(Millis),
    /// It ends its work after a while.
    Ends(Millis),
    /// It goes on as if nothing had been said.
    Ignores,
}

/// What a human does at a gate.
#[derive(Debug, Clone)]
pub(crate) struct Decision {
    pub after: Millis,
    pub approved: bool,
    /// The first who tries; if that is the one who started the run, it may not count.
    pub by: &'static str,
    pub reason: Option<String>,
}

/// What a human says about a call with an unknown outcome.
#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    Happened(Value),
    Retry,
    Skip,
    Fail,
}

/// A call as it was made: what both sides of a comparison note.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Called {
    pub at: Millis,
    pub path: String,
    pub attempt: u32,
    pub tool: String,
    /// JSON text.
    pub args: String,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    Completed(Value),
    Failed(Failure),
    Cancelled,
}

/// What a run did.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Story {
    pub outcome: Outcome,
    /// In the order in which they were made.
    pub calls: Vec<Called>,
    /// How each step execution ended that was not cancelled, by its path.
    pub steps: BTreeMap<String, &'static str>,
}

/// Who decides if the first who tries may not.
pub(crate) const APPROVER: &str = "bob";

impl Oracle {
    /// A world that is kind to some runs and hard on others.
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x0a11_5eed);
        let failing = [0, 4, 12, 30][rng.usize(0..4)];
        Self { seed, failing, lost: [0, 10, 40][rng.usize(0..3)] }
    }

    fn rng(&self, question: &str, path: &str, attempt: u32) -> fastrand::Rng {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for byte in question.bytes().chain(path.bytes()).chain(attempt.to_le_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        fastrand::Rng::with_seed(hash)
    }

    /// What becomes of a call.
    pub(crate) fn reaction(&self, path: &str, (attempt, refusals): (u32, u32), tool: &str) -> Reaction {
        let mut rng = self.rng(tool, path, attempt + 1_000 * refusals);
        let takes = rng.i64(1..20_000);
        let told = match rng.u32(0..4) {
            0 => Told::Ignores,
            1 => Told::Ends(rng.i64(1..8_000)),
            _ => Told::Stops(rng.i64(1..8_000)),
        };
        let outcome = if rng.u32(0..100) < self.failing {
            Err(self.failure(path, &mut rng))
        } else {
            Ok(output(tool, &mut rng))
        };
        Reaction { takes, outcome, told }
    }

    fn failure(&self, path: &str, rng: &mut fastrand::Rng) -> Failure {
        if rng.u32(0..100) < self.lost {
            return says(FailureKind::Lost, path);
        }
        match rng.u32(0..20) {
            0..8 => says(FailureKind::ToolError, path),
            8..12 => says(FailureKind::Transport, path),
            12..15 => says(FailureKind::ToolError, path).transient(),
            15 => says(FailureKind::Timeout, path),
            16 => says(FailureKind::Permission, path),
            17 => says(FailureKind::Validation, path),
            18 => says(FailureKind::NotFound, path),
            _ => says(FailureKind::Limit, path).code("quota"),
        }
    }

    /// What somebody does at the gate of a step.
    pub(crate) fn decision(&self, path: &str) -> Decision {
        let mut rng = self.rng("gate", path, 0);
        Decision {
            after: rng.i64(1..40_000),
            approved: rng.u32(0..10) > 1,
            by: if rng.bool() { APPROVER } else { "ann" },
            reason: rng.bool().then(|| format!("because {}", rng.u32(0..100))),
        }
    }

    /// How long after a step began to wait its event is signalled.
    pub(crate) fn signal(&self, path: &str) -> Millis {
        self.rng("signal", path, 0).i64(1..40_000)
    }

    /// What an event carries: at least what the step asks for.
    pub(crate) fn payload(&self, event: &str, correlate: Option<&Value>) -> Value {
        let mut payload = output("demo__get", &mut self.rng("event", event, 0));
        match (correlate, &mut payload) {
            (Some(Value::Object(wanted)), Value::Object(map)) => {
                map.extend(wanted.clone());
                payload
            }
            (Some(wanted), _) => wanted.clone(),
            (None, _) => payload,
        }
    }

    /// What somebody says about a call with an unknown outcome, and after how long.
    pub(crate) fn verdict(&self, path: &str, attempt: u32) -> (Millis, Verdict) {
        let mut rng = self.rng("verdict", path, attempt);
        let after = rng.i64(1..40_000);
        let verdict = match rng.u32(0..4) {
            0 => Verdict::Happened(output("demo__get", &mut rng)),
            1 => Verdict::Skip,
            2 => Verdict::Fail,
            _ => Verdict::Retry,
        };
        (after, verdict)
    }
}

/// A failure that a tool reported. Messages of tools are told from those of the engine by how they begin.
fn says(kind: FailureKind, path: &str) -> Failure {
    Failure::new(kind, format!("{TOOL_SAYS}{} at {path}", kind.word()))
}

pub(crate) const TOOL_SAYS: &str = "tool: ";

/// What the tools of generated definitions give: each has a shape of its own.
fn output(tool: &str, rng: &mut fastrand::Rng) -> Value {
    let first = rng.u32(0..5);
    let items: Vec<u32> = (first..first + rng.u32(0..4)).collect();
    let word = ["a", "b", "c", "again"][rng.usize(0..4)];
    match tool.rsplit("__").next().unwrap_or_default() {
        "flag" => {
            let flags = [json!(true), json!(false), json!("again"), json!("done"), json!(null), json!("")];
            flags[rng.usize(0..flags.len())].clone()
        }
        "list" if rng.bool() => items.iter().map(|k| json!({ "k": k, "word": word })).collect(),
        "list" => json!(items),
        "num" => json!(rng.u32(0..10)),
        _ => json!({
            "n": rng.u32(0..10), "ok": rng.bool(), "word": word, "list": items,
            "file_refs": [{ "uri": format!("file:///{word}") }],
        }),
    }
}
