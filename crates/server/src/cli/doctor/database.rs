//! Checks the database file, its runs and their logs.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indicatif::HumanBytes;
use steprail_engine::{RunId, RunStatus};
use steprail_store::StoreError;
use steprail_store::limits::WAL_WARNING_BYTES;
use steprail_store::sqlite::{self, Inspected};

use super::Finding;
use crate::cli::audit::summary;
use crate::cli::terminal::progress_bar::ProgressBar;
use crate::cli::terminal::text::count;

/// The time limit of the verification of logs.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// A call that is in flight for longer is reported.
const SLOW_CALL: Duration = Duration::from_hours(24);

pub(super) fn check(path: &Path, is_running: bool) -> Vec<Finding> {
    if !path.is_file() {
        return vec![Finding::ok("database", "does not exist yet; the daemon creates it")];
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let slow_since = i64::try_from(now.saturating_sub(SLOW_CALL).as_millis()).unwrap_or(i64::MAX);
    let inspected = match sqlite::inspect(path, slow_since) {
        Ok(inspected) => inspected,
        Err(error) => return vec![unreadable(path, &error)],
    };
    let mut findings = vec![check_file(&inspected)];
    findings.extend(check_runs(&inspected, is_running));
    findings.push(check_logs(path));
    findings
}

fn unreadable(path: &Path, error: &StoreError) -> Finding {
    let message = format!("{}: {error}", path.display());
    Finding::problem("database", message, "keep a copy, then restore a backup with `steprail restore`")
}

fn check_file(inspected: &Inspected) -> Finding {
    let (bytes, wal) = (HumanBytes(inspected.bytes), HumanBytes(inspected.log_bytes));
    let message = format!("format {}, {bytes}, write-ahead log {wal}", inspected.format);
    if let Some(problem) = inspected.problems.first() {
        let hint = "stop the daemon, keep a copy, and restore a backup with `steprail restore`";
        return Finding::problem("database", format!("{message}; damaged: {problem}"), hint);
    }
    if inspected.log_bytes > WAL_WARNING_BYTES {
        let hint = "a long read, such as a backup or another program, blocks checkpoints; end it";
        return Finding::warning("database", message, hint);
    }
    Finding::ok("database", message)
}

fn check_runs(inspected: &Inspected, is_running: bool) -> Vec<Finding> {
    let with_status = |status: RunStatus| {
        inspected.runs.iter().filter(|(found, _)| *found == status).map(|(_, count)| count).sum::<u64>()
    };
    let counts: Vec<String> =
        inspected.runs.iter().map(|(status, count)| format!("{count} {}", status.name())).collect();
    let counts = if counts.is_empty() { "none yet".to_owned() } else { counts.join(", ") };
    let mut findings = vec![Finding::ok("runs", counts)];
    let mut warn = |message: String, hint: &str| findings.push(Finding::warning("runs", message, hint));
    if inspected.active > 0 && !is_running {
        let runs = count(inspected.active, "run is", "runs are");
        warn(format!("{runs} in progress, but the daemon is not running"), "start `steprail serve`");
    }
    if let interrupted @ 1.. = with_status(RunStatus::Interrupted) {
        let runs = count(interrupted, "run was", "runs were");
        warn(
            format!("{runs} interrupted"),
            "continue them with `steprail resume RUN` or `steprail resume --all`",
        );
    }
    if !inspected.slow.is_empty() && is_running {
        let message = format!("calls are in flight for more than a day: {}", join(&inspected.slow));
        warn(message, "check their tools, or cancel the runs");
    }
    if !inspected.stuck.is_empty() {
        let message = format!("no event can continue these runs: {}", join(&inspected.stuck));
        findings.push(Finding::problem("runs", message, "cancel and rerun them, and report this as a bug"));
    }
    findings
}

fn join(runs: &[RunId]) -> String {
    runs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn check_logs(path: &Path) -> Finding {
    let started = Instant::now();
    let mut bar = ProgressBar::items("checking events");
    let verified = sqlite::verify(path, None, &mut |done, total| {
        bar.set(done, total);
        if started.elapsed() > VERIFY_TIMEOUT { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    drop(bar);
    let verified = match verified {
        Ok(verified) => verified,
        Err(error) => return unreadable(path, &error),
    };
    let summary = summary(&verified);
    if verified.damages > 0 {
        return Finding::problem(
            "audit",
            summary,
            "list the damage with `steprail audit verify`; keep a copy",
        );
    }
    if !verified.complete {
        let rest = "stopped after 5 seconds; verify all with `steprail audit verify`";
        return Finding::ok("audit", format!("{summary}; {rest}"));
    }
    Finding::ok("audit", summary)
}
