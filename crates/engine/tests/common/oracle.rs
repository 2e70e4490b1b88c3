//! The simulated environment of a run: all answers are functions of a seed.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use steprail_core::run::{Failure, FailureKind, Millis};

/// The behaviour of tools, humans and signals, by path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Oracle {
    pub seed: u64,
    /// Percentage of calls that fail.
    pub failure_percent: u32,
    /// Percentage of failures with an unknown outcome.
    pub lost_percent: u32,
}

/// The behaviour of a tool for one call.
#[derive(Debug, Clone)]
pub(crate) struct Reaction {
    /// How long the call takes.
    pub takes: Millis,
    pub outcome: Result<Value, Failure>,
    /// What the tool does when it is told to cancel.
    pub told: OnCancel,
}

/// The behaviour of a tool when its call is cancelled.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OnCancel {
    /// It stops after this time.
    Stops(Millis),
    /// It completes its work after this time.
    Ends(Millis),
    /// It ignores the cancellation.
    Ignores,
}

/// The behaviour of a human at a gate.
#[derive(Debug, Clone)]
pub(crate) struct Decision {
    pub after: Millis,
    pub approved: bool,
    /// The user who decides first. The starter of the run may not be allowed to.
    pub by: &'static str,
    pub reason: Option<String>,
}

/// The decision of a human about a call with an unknown outcome.
#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    Happened(Value),
    Retry,
    Skip,
    Fail,
}

/// A call that was made, as the engine and the interpreter record it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Called {
    pub at: Millis,
    pub path: String,
    pub attempt: u32,
    pub tool: String,
    /// The arguments as JSON text.
    pub args: String,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    Completed(Value),
    Failed(Failure),
    Cancelled,
}

/// The trace of a run, which the test compares.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RunTrace {
    pub outcome: Outcome,
    /// The calls, in the order in which they were made.
    pub calls: Vec<Called>,
    /// The status of each step execution that was not cancelled, by path.
    pub steps: BTreeMap<String, &'static str>,
}

/// The user who decides if the first one is not allowed to.
pub(crate) const APPROVER: &str = "bob";

impl Oracle {
    /// Creates an environment whose failure rates depend on the seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x0a11_5eed);
        let failure_percent = [0, 4, 12, 30][rng.usize(0..4)];
        Self { seed, failure_percent, lost_percent: [0, 10, 40][rng.usize(0..3)] }
    }

    fn rng(&self, question: &str, path: &str, attempt: u32) -> fastrand::Rng {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for byte in question.bytes().chain(path.bytes()).chain(attempt.to_le_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        fastrand::Rng::with_seed(hash)
    }

    /// Returns the behaviour of a tool for a call.
    pub(crate) fn reaction(&self, path: &str, (attempt, refusals): (u32, u32), tool: &str) -> Reaction {
        let mut rng = self.rng(tool, path, attempt + 1_000 * refusals);
        let takes = rng.i64(1..20_000);
        let told = match rng.u32(0..4) {
            0 => OnCancel::Ignores,
            1 => OnCancel::Ends(rng.i64(1..8_000)),
            _ => OnCancel::Stops(rng.i64(1..8_000)),
        };
        let outcome = if rng.u32(0..100) < self.failure_percent {
            Err(self.failure(path, &mut rng))
        } else {
            Ok(output(tool, &mut rng))
        };
        Reaction { takes, outcome, told }
    }

    fn failure(&self, path: &str, rng: &mut fastrand::Rng) -> Failure {
        if rng.u32(0..100) < self.lost_percent {
            return tool_failure(FailureKind::Lost, path);
        }
        match rng.u32(0..20) {
            0..8 => tool_failure(FailureKind::ToolError, path),
            8..12 => tool_failure(FailureKind::Transport, path),
            12..15 => tool_failure(FailureKind::ToolError, path).transient(),
            15 => tool_failure(FailureKind::Timeout, path),
            16 => tool_failure(FailureKind::Permission, path),
            17 => tool_failure(FailureKind::Validation, path),
            18 => tool_failure(FailureKind::NotFound, path),
            _ => tool_failure(FailureKind::Limit, path).code("quota"),
        }
    }

    /// Returns the decision at the gate of a step.
    pub(crate) fn decision(&self, path: &str) -> Decision {
        let mut rng = self.rng("gate", path, 0);
        Decision {
            after: rng.i64(1..40_000),
            approved: rng.u32(0..10) > 1,
            by: if rng.bool() { APPROVER } else { "ann" },
            reason: rng.bool().then(|| format!("because {}", rng.u32(0..100))),
        }
    }

    /// Returns the delay from the start of a wait to its signal.
    pub(crate) fn signal(&self, path: &str) -> Millis {
        self.rng("signal", path, 0).i64(1..40_000)
    }

    /// Returns the payload of a signal, with the values that the step correlates with.
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

    /// Returns the decision about a call with an unknown outcome, and its delay.
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

/// Creates a failure of a tool. Its message has a prefix that messages of the engine do not have.
fn tool_failure(kind: FailureKind, path: &str) -> Failure {
    Failure::new(kind, format!("{TOOL_PREFIX}{} at {path}", kind.name()))
}

/// The prefix of the messages of tools.
pub(crate) const TOOL_PREFIX: &str = "tool: ";

/// Returns the output of a tool of the generated definitions. Each tool has its own type of output.
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
