//! The summary of a run, in a few lines.

use steprail_http::views::Run;

use super::text::{count, elapsed, format_duration, sanitize};

/// The maximum number of characters of an output in a summary.
const OUTPUT_CHARS: usize = 500;

/// Formats status, duration, counts, output and error of a run.
pub(crate) fn summary(run: &Run) -> String {
    let retries = run.retries.unwrap_or_default();
    let steps = run.steps_total.unwrap_or_default().saturating_sub(retries);
    let mut counts = count(steps, "step", "steps");
    if retries > 0 {
        counts.push_str(&format!(", {}", count(retries, "retry", "retries")));
    }
    let duration = run.completed_at.as_ref().and_then(|end| elapsed(&run.started_at, end));
    let duration = duration.map(|millis| format!(" in {}", format_duration(millis))).unwrap_or_default();
    let mut text = format!("{} {}{duration} ({counts})\nrun    {}", run.name, run.status.name(), run.run_id);
    if let Some(output) = &run.output {
        text.push_str(&format!("\noutput {}", sanitize(&shorten(output.get()))));
    }
    if let Some(error) = &run.error {
        text.push_str(&format!("\nerror  {} ({})", sanitize(&error.to_string()), error.kind.name()));
    }
    text
}

fn shorten(json: &str) -> String {
    match json.char_indices().nth(OUTPUT_CHARS) {
        None => json.to_owned(),
        Some((cut, _)) => format!("{}… ({} bytes; --json shows all)", &json[..cut], json.len()),
    }
}
