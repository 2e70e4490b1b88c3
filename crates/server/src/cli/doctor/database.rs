//! The database: the file, the runs in it, and their logs.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indicatif::HumanBytes;
use steprail_engine::{RunId, RunStatus};
use steprail_store::StoreError;
use steprail_store::sqlite::{self, Inspected};

use super::Finding;
use crate::cli::audit::summary;
use crate::cli::meter::Meter;

/// How long the logs are looked at.
const PATIENCE: Duration = Duration::from_secs(5);
/// A run with a call in flight that has not moved for so long is worth a look.
const QUIET: Duration = Duration::from_hours(24);
/// A write-ahead log of this size is not copied back as it should be.
const LONG_LOG: u64 = 512 << 20;

pub(super) fn look(path: &Path, is_running: bool) -> Vec<Finding> {
    if !path.is_file() {
        return vec![Finding::ok("database", "there is none yet; the daemon creates it")];
    }
    let quiet = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(QUIET);
    let inspected = match sqlite::inspect(path, i64::try_from(quiet.as_millis()).unwrap_or(i64::MAX)) {
        Ok(inspected) => inspected,
        Err(error) => return vec![unreadable(path, &error)],
    };
    let mut findings = vec![file(&inspected)];
    findings.extend(runs(&inspected, is_running));
    findings.push(logs(path));
    findings
}

fn unreadable(path: &Path, error: &StoreError) -> Finding {
    let what = format!("{}: {error}", path.display());
    Finding::problem("database", what, "keep a copy of it, then `steprail restore` a backup")
}

fn file(inspected: &Inspected) -> Finding {
    let (bytes, log) = (HumanBytes(inspected.bytes), HumanBytes(inspected.log_bytes));
    let what = format!("format {}, {bytes}, and {log} in its write-ahead log", inspected.format);
    if let Some(problem) = inspected.problems.first() {
        let hint = "stop the daemon, keep a copy, and `steprail restore` a backup";
        return Finding::problem("database", format!("{what}; it is damaged: {problem}"), hint);
    }
    if inspected.log_bytes > LONG_LOG {
        let hint = "a program that reads the database for a long time keeps it from shrinking: end that one";
        return Finding::warning("database", what, hint);
    }
    Finding::ok("database", what)
}

fn runs(inspected: &Inspected, is_running: bool) -> Vec<Finding> {
    let count = |status: RunStatus| {
        inspected.runs.iter().filter(|(found, _)| *found == status).map(|(_, count)| count).sum::<u64>()
    };
    let counts: Vec<String> =
        inspected.runs.iter().map(|(status, count)| format!("{count} {}", status.word())).collect();
    let counts = if counts.is_empty() { "none yet".to_owned() } else { counts.join(", ") };
    let mut findings = vec![Finding::ok("runs", counts)];
    let mut warn = |what: String, hint: &str| findings.push(Finding::warning("runs", what, hint));
    if inspected.active > 0 && !is_running {
        warn(format!("{} are under way, and no daemon runs", inspected.active), "start `steprail serve`");
    }
    if let waiting @ 1.. = count(RunStatus::Interrupted) {
        warn(format!("{waiting} were interrupted"), "`workflow_resume` goes on with them");
    }
    if !inspected.slow.is_empty() && is_running {
        let what = format!("with calls in flight for more than a day: {}", list(&inspected.slow));
        warn(what, "look at their tools, or cancel the runs");
    }
    if !inspected.stuck.is_empty() {
        let what = format!("nothing would move these on: {}", list(&inspected.stuck));
        findings.push(Finding::problem("runs", what, "cancel and rerun them, and report this"));
    }
    findings
}

fn list(runs: &[RunId]) -> String {
    runs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn logs(path: &Path) -> Finding {
    let began = Instant::now();
    let mut meter = Meter::count("checking events");
    let verified = sqlite::verify(path, None, &mut |done, all| {
        meter.at(done, all);
        if began.elapsed() > PATIENCE { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    drop(meter);
    let verified = match verified {
        Ok(verified) => verified,
        Err(error) => return unreadable(path, &error),
    };
    let found = summary(&verified);
    if verified.damages > 0 {
        return Finding::problem("audit", found, "`steprail audit verify` tells which; keep a copy");
    }
    if !verified.complete {
        let rest = "those that fitted into 5 seconds; `steprail audit verify` checks all";
        return Finding::ok("audit", format!("{found}: {rest}"));
    }
    Finding::ok("audit", found)
}
