//! What is said about a run in the end, in a few lines.

use std::collections::BTreeSet;

use super::progress::{harmless, length};
use steprail_http::timestamp;
use steprail_http::views::Run;

/// Characters of an output that a summary shows.
const OUTPUT_CHARS: usize = 500;

/// A run as people read it.
pub(super) fn summary(run: &Run) -> String {
    let all = run.steps.as_deref().unwrap_or_default();
    let steps = all.iter().map(|step| &step.path).collect::<BTreeSet<_>>().len();
    let retries = all.iter().filter(|step| step.attempt > 1).count();
    let mut counts = count(steps, "step", "steps");
    if retries > 0 {
        counts.push_str(&format!(", {}", count(retries, "retry", "retries")));
    }
    let took = run.completed_at.as_ref();
    let took =
        took.and_then(|end| u64::try_from(timestamp::parse(end) - timestamp::parse(&run.started_at)).ok());
    let took = took.map(|took| format!(" in {}", length(took))).unwrap_or_default();
    let mut text = format!("{} {}{took} ({counts})\nrun    {}", run.name, run.status.word(), run.run_id);
    if let Some(output) = &run.output {
        text.push_str(&format!("\noutput {}", harmless(&shortened(output.get()))));
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
