//! What is said about a run in the end: one JSON record, or a few lines.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::value::RawValue;
use steprail_core::run::Millis;
use steprail_engine::{Failure, RunId, RunStatus, RunView, StepRow};

use super::progress::{harmless, length};

/// Characters of an output that a summary shows.
const OUTPUT_CHARS: usize = 500;

/// A run as programs read it.
#[derive(Debug, Serialize)]
struct Record<'v> {
    run_id: RunId,
    name: &'v str,
    version: u32,
    status: RunStatus,
    output: Option<&'v RawValue>,
    error: Option<&'v Failure>,
    started_at: Option<String>,
    completed_at: Option<String>,
    steps: Vec<Step<'v>>,
}

/// One attempt of a step.
#[derive(Debug, Serialize)]
struct Step<'v> {
    path: &'v str,
    id: &'v str,
    kind: &'v str,
    status: &'v str,
    attempt: u32,
    input: Option<&'v RawValue>,
    output: Option<&'v RawValue>,
    error: Option<&'v Failure>,
    started_at: Option<String>,
    completed_at: Option<String>,
}

/// The record of a run, on one line.
pub(super) fn json(view: &RunView) -> Result<String, serde_json::Error> {
    let run = &view.run;
    serde_json::to_string(&Record {
        run_id: run.run_id,
        name: &run.name,
        version: run.version,
        status: run.status,
        output: run.output.as_deref(),
        error: run.error.as_ref(),
        started_at: time(Some(run.started_at)),
        completed_at: time(run.completed_at),
        steps: view.steps.iter().map(step).collect(),
    })
}

fn step(row: &StepRow) -> Step<'_> {
    Step {
        path: &row.path,
        id: &row.id,
        kind: &row.kind,
        status: &row.status,
        attempt: row.attempt,
        input: row.input.as_deref(),
        output: row.output.as_deref(),
        error: row.error.as_ref(),
        started_at: time(row.started_at),
        completed_at: time(row.completed_at),
    }
}

/// RFC 3339 in UTC, with milliseconds.
fn time(millis: Option<Millis>) -> Option<String> {
    let time = jiff::Timestamp::from_millisecond(millis?).ok()?;
    Some(format!("{time:.3}"))
}

/// A run as people read it.
pub(super) fn summary(view: &RunView) -> String {
    let run = &view.run;
    let steps = view.steps.iter().map(|step| step.n).collect::<BTreeSet<_>>().len();
    let retries = view.steps.iter().filter(|step| step.attempt > 1).count();
    let mut counts = count(steps, "step", "steps");
    if retries > 0 {
        counts.push_str(&format!(", {}", count(retries, "retry", "retries")));
    }
    let took = run.completed_at.and_then(|end| u64::try_from(end - run.started_at).ok());
    let took = took.map(|took| format!(" in {}", length(took))).unwrap_or_default();
    let mut text = format!("{} {}{took} ({counts})\nrun    {}", run.name, run.status.word(), run.run_id);
    if let Some(output) = &run.output {
        text.push_str(&format!("\noutput {}", shortened(output.get())));
    }
    if let Some(error) = &run.error {
        text.push_str(&format!("\nerror  {} ({})", harmless(&error.to_string()), error.kind.word()));
    }
    text
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

fn shortened(json: &str) -> String {
    match json.char_indices().nth(OUTPUT_CHARS) {
        None => json.to_owned(),
        Some((cut, _)) => format!("{}… ({} bytes; --json shows all)", &json[..cut], json.len()),
    }
}
