//! Compares the expected calls, the ledger and the database.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;
use serde_json::Value;
use steprail_core::run::Resolved;
use steprail_engine::{Event, RunId};

use super::expected::ExpectedRun;
use super::ledger::{self, LedgerEvent, LedgerLine};
use super::log::{self, AttemptResult, CallHistory, RunLog};
use super::process::Acks;
use super::worker::{Job, seed_of};
use super::workflows::{STRICT, WORKFLOWS};

/// The result of a check.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Violated guarantees.
    pub violations: Vec<String>,
    pub runs: usize,
    pub calls: usize,
    /// Interrupted calls that were repeated as their policies allow.
    pub repeated: usize,
    /// Calls that were repeated against their policies.
    pub illegal: usize,
    /// Calls, results, runs or acknowledgements that are lost.
    pub lost: usize,
    /// Calls with an unknown outcome.
    pub uncertain: usize,
}

/// The data to compare.
struct Evidence<'e> {
    connection: &'e Connection,
    ledger: &'e [LedgerLine],
    acks: &'e Acks,
    seed: u64,
}

/// The position of a run in its tree of runs: the number of the root run, and the path from there.
struct RunPath {
    n: u64,
    prefix: String,
}

impl Findings {
    /// Prints the counts. Panics if a guarantee is violated.
    pub(crate) fn report(&self) {
        println!("runs, with children       {}", self.runs);
        println!("calls made                {}", self.calls);
        println!("calls repeated, legally   {}", self.repeated);
        println!("calls repeated, illegally {}", self.illegal);
        println!("lost                      {}", self.lost);
        println!("unknown outcomes          {}", self.uncertain);
        let examples: Vec<&String> = self.violations.iter().take(20).collect();
        assert!(
            examples.is_empty(),
            "{} guarantees are violated, such as {examples:#?}",
            self.violations.len()
        );
    }
}

/// Lines with their positions in the ledger.
type Lines<'e> = Vec<(usize, &'e LedgerLine)>;

struct Checker<'e> {
    evidence: &'e Evidence<'e>,
    found: Findings,
    expected_runs: BTreeMap<u64, (ExpectedRun, Value)>,
    /// Lines of the ledger with their positions, by run and path.
    lines: BTreeMap<(RunId, &'e str), Lines<'e>>,
    /// Position of the line at which the engine reported the end of a run.
    run_ends: BTreeMap<RunId, usize>,
    /// Position of the first end of a call, by the number of the root run and the full path.
    ends: BTreeMap<(u64, String), usize>,
    supplied: BTreeSet<(u64, String)>,
    ended: BTreeSet<(u64, String)>,
}

/// Checks the database and the ledger after the last worker ended.
pub(crate) fn verify(job: &Job, acks: &Acks) -> Findings {
    let connection = Connection::open(&job.database).expect("the database");
    let ledger = ledger::read(&job.ledger);
    let mut found = check(&Evidence { connection: &connection, ledger: &ledger, acks, seed: job.seed });
    found.violations.extend(crate::audit::audit(&connection));
    found.violations.extend(damage(&connection));
    found
}

/// Returns the result of SQLite's integrity check, if it fails.
pub(crate) fn damage(connection: &Connection) -> Option<String> {
    let result: String =
        connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("a check");
    (result != "ok").then(|| format!("the file is damaged: {result}"))
}

fn check(evidence: &Evidence<'_>) -> Findings {
    let logs = log::read(evidence.connection);
    let mut checker = Checker::new(evidence);
    let run_paths = run_paths(&logs);
    let histories: Vec<_> = logs.iter().map(|log| (log, log.histories())).collect();
    for (log, histories) in &histories {
        checker.gather(log, &run_paths[&log.key], histories);
    }
    for (log, histories) in &histories {
        let run_path = &run_paths[&log.key];
        for (path, history) in histories {
            checker.step(log, run_path, path, history);
        }
        checker.order(log, run_path);
        checker.unlogged_calls(log, histories);
        checker.run(log, run_path);
    }
    checker.acknowledged(&logs);
    checker.found.runs = logs.len();
    checker.found
}

fn run_paths(logs: &[RunLog]) -> BTreeMap<i64, RunPath> {
    let by_key: BTreeMap<i64, &RunLog> = logs.iter().map(|log| (log.key, log)).collect();
    let mut run_paths: BTreeMap<i64, RunPath> = BTreeMap::new();
    for log in logs {
        let run_path = match log.parent {
            None => RunPath { n: log.n.expect("a run with a key"), prefix: String::new() },
            Some((parent, step)) => {
                let path = by_key[&parent].path_of(step).expect("a step that started a run");
                let parent_path = &run_paths[&parent];
                RunPath { n: parent_path.n, prefix: format!("{}{path}/", parent_path.prefix) }
            }
        };
        run_paths.insert(log.key, run_path);
    }
    run_paths
}

impl<'e> Checker<'e> {
    fn new(evidence: &'e Evidence<'e>) -> Self {
        let mut checker = Self {
            evidence,
            found: Findings::default(),
            expected_runs: BTreeMap::new(),
            lines: BTreeMap::new(),
            run_ends: BTreeMap::new(),
            ends: BTreeMap::new(),
            supplied: BTreeSet::new(),
            ended: BTreeSet::new(),
        };
        for (at, entry) in evidence.ledger.iter().enumerate() {
            match entry.event {
                LedgerEvent::PowerCut => {}
                LedgerEvent::RunEnded => drop(checker.run_ends.entry(entry.run).or_insert(at)),
                _ => checker.lines.entry((entry.run, &entry.path)).or_default().push((at, entry)),
            }
            checker.found.calls += usize::from(entry.is_call_start());
        }
        checker
    }

    /// Collects the facts that checks of other runs in the same tree need.
    fn gather(&mut self, log: &RunLog, run_path: &RunPath, histories: &BTreeMap<String, CallHistory>) {
        self.expected_runs.entry(run_path.n).or_insert_with(|| expect_run(self.evidence.seed, run_path.n));
        for (path, history) in histories {
            let full_path = (run_path.n, format!("{}{path}", run_path.prefix));
            let lines = self.lines.get(&(log.id, path.as_str()));
            let end =
                lines.and_then(|lines| lines.iter().find(|(_, entry)| entry.event != LedgerEvent::Started));
            if let Some((at, _)) = end {
                self.ends.insert(full_path.clone(), *at);
            }
            // The result of another run with the same global key needs no call.
            let is_hit = |event: &Event| match event {
                Event::StepCompleted { step, from: Some(from), .. } => {
                    *step.path == **path && **from == *"idempotency"
                }
                _ => false,
            };
            if history.was_supplied() || log.events.iter().any(|(_, event)| is_hit(event)) {
                self.supplied.insert(full_path.clone());
            }
            if history.has_ended() {
                self.ended.insert(full_path);
            }
            self.found.uncertain += history.uncertain.len();
        }
    }

    fn violation(&mut self, log: &RunLog, path: &str, what: &str) {
        self.found.violations.push(format!("run {} `{path}`: {what}", log.id));
    }

    fn lost(&mut self, what: String) {
        self.found.lost += 1;
        self.found.violations.push(what);
    }

    /// Checks a step: its calls are the expected ones, and are repeated only as its policy allows.
    fn step(&mut self, log: &RunLog, run_path: &RunPath, path: &str, history: &CallHistory) {
        let lines = self.lines.get(&(log.id, path)).cloned().unwrap_or_default();
        let starts: Vec<&LedgerLine> =
            lines.iter().map(|(_, entry)| *entry).filter(|entry| entry.is_call_start()).collect();
        self.matches_expected(log, run_path, path, history);
        self.check_intents(log, path, history, &starts);
        for pair in starts.windows(2) {
            self.repetition(log, path, history, pair[0], pair[1]);
        }
        let done = history.results.iter().find(|(_, result)| **result == AttemptResult::Done { from: None });
        if let Some((attempt, _)) = done {
            let seen =
                |event| lines.iter().any(|(_, entry)| entry.attempt == *attempt && entry.event == event);
            if !seen(LedgerEvent::Started) || !seen(LedgerEvent::Ended) {
                self.lost(format!("run {} `{path}`: done, but attempt {attempt} was never made", log.id));
            }
        }
    }

    /// The committed call is the expected one, with the same idempotency key for all attempts.
    fn matches_expected(&mut self, log: &RunLog, run_path: &RunPath, path: &str, history: &CallHistory) {
        let full_path = format!("{}{path}", run_path.prefix);
        let expected = self.expected_runs[&run_path.n].0.calls.get(&full_path);
        let fits = expected.is_some_and(|call| {
            history
                .intents
                .values()
                .all(|(_, tool, args)| tool == call.tool && *args == call.args.to_string())
        });
        let keys: BTreeSet<&String> = history.intents.values().map(|(key, ..)| key).collect();
        if !fits {
            self.violation(log, path, "unexpected call");
        }
        if keys.len() != 1 {
            self.violation(log, path, &format!("different idempotency keys: {keys:?}"));
        }
    }

    /// Every call has an intent in the log, and no attempt is called twice.
    fn check_intents(&mut self, log: &RunLog, path: &str, history: &CallHistory, starts: &[&LedgerLine]) {
        let mut attempts = BTreeSet::new();
        for entry in starts {
            let intent = (entry.key.clone(), entry.tool.clone(), entry.args.clone());
            if history.intents.get(&entry.attempt) != Some(&intent) {
                self.violation(
                    log,
                    path,
                    &format!("attempt {} does not match its committed intent", entry.attempt),
                );
            }
            if !attempts.insert(entry.attempt) {
                self.found.illegal += 1;
                self.violation(log, path, &format!("attempt {} was called twice", entry.attempt));
            }
        }
    }

    /// A call is repeated only if it failed, or if a kill interrupted it and the policy allows it.
    fn repetition(
        &mut self,
        log: &RunLog,
        path: &str,
        history: &CallHistory,
        first: &LedgerLine,
        again: &LedgerLine,
    ) {
        let between = first.attempt..again.attempt;
        let lost = history
            .results
            .range(between.clone())
            .filter(|(_, result)| **result == AttemptResult::Lost)
            .count();
        let failed = history
            .results
            .range(between.clone())
            .filter(|(_, result)| **result == AttemptResult::Repeated)
            .count();
        let consented =
            between.filter(|attempt| history.resolved.get(attempt) == Some(&Resolved::Retry)).count();
        let kills = (again.worker - first.worker) as usize;
        let explained = lost + failed == (again.attempt - first.attempt) as usize;
        let strict = first.tool.starts_with(STRICT);
        let allowed = explained && lost <= kills && (!strict || consented == lost);
        if lost > 0 && allowed {
            self.found.repeated += 1;
        }
        if !allowed {
            self.found.illegal += 1;
            let what = format!("repeated without consent: {first:?}, {again:?}, {history:?}");
            self.violation(log, path, &what);
        }
        if !strict && !history.uncertain.is_empty() {
            self.violation(log, path, "uncertain although the policy allows a repetition");
        }
    }

    /// No call starts before its predecessors end, or after the end of the run.
    fn order(&mut self, log: &RunLog, run_path: &RunPath) {
        let calls: Vec<(String, usize, usize)> = self
            .lines_of(log.id)
            .filter_map(|(path, lines)| {
                let mut starts = lines.iter().filter(|(_, entry)| entry.is_call_start()).map(|(at, _)| *at);
                let first = starts.next()?;
                Some((format!("{}{path}", run_path.prefix), first, starts.next_back().unwrap_or(first)))
            })
            .collect();
        let run_end = self.run_ends.get(&log.id).copied().unwrap_or(usize::MAX);
        for (path, first, last) in calls {
            if last > run_end {
                self.violation(log, &path, "called after the end of the run");
            }
            for before in self.predecessors(run_path.n, &path) {
                let full_path = (run_path.n, before);
                let ended = self.ends.get(&full_path).is_some_and(|at| *at < first);
                if !ended && !self.supplied.contains(&full_path) {
                    self.violation(log, &path, &format!("called before `{}` had ended", full_path.1));
                }
            }
        }
    }

    /// Returns the lines about a run, by path.
    fn lines_of(&self, run: RunId) -> impl Iterator<Item = (&'e str, &Lines<'e>)> {
        let from = self.lines.range((run, "")..);
        from.take_while(move |((of, _), _)| *of == run).map(|((_, path), lines)| (*path, lines))
    }

    fn predecessors(&self, n: u64, path: &str) -> Vec<String> {
        self.expected_runs[&n].0.calls.get(path).map(|call| call.after.clone()).unwrap_or_default()
    }

    /// Reports calls that are not in the log.
    fn unlogged_calls(&mut self, log: &RunLog, histories: &BTreeMap<String, CallHistory>) {
        let of_run =
            self.lines_of(log.id).filter(|(_, lines)| lines.iter().any(|(_, entry)| entry.is_call_start()));
        let of_run: Vec<&str> = of_run.map(|(path, _)| path).collect();
        for path in of_run {
            if !histories.contains_key(path) {
                self.violation(log, path, "called without an event in the log");
            }
        }
    }

    /// The run completed with the expected output, and every expected call was made.
    fn run(&mut self, log: &RunLog, run_path: &RunPath) {
        if log.early_wakeups() > 0 {
            self.violation(log, "", "a sleep ended before its time");
        }
        if log.status != "completed" {
            self.lost(format!("run {}: {}", log.id, log.status));
        }
        if log.parent.is_some() {
            return;
        }
        let (expected, output) = &self.expected_runs[&run_path.n];
        let missing: Vec<&String> = expected
            .calls
            .keys()
            .filter(|path| !self.ended.contains(&(run_path.n, (*path).clone())))
            .collect();
        let missing = (!missing.is_empty()).then(|| format!("run {}: {missing:?} never ran", log.id));
        if log.output.as_ref() != Some(output) {
            let what = format!("the output is {:?}, expected {output}", log.output);
            self.violation(log, "", &what);
        }
        missing.into_iter().for_each(|what| self.lost(what));
    }

    /// Everything that the engine acknowledged is in the database, and no run was started twice.
    fn acknowledged(&mut self, logs: &[RunLog]) {
        let mut by_n: BTreeMap<u64, &RunLog> = BTreeMap::new();
        for log in logs.iter().filter(|log| log.parent.is_none()) {
            if by_n.insert(log.n.expect("a key"), log).is_some() {
                self.violation(log, "", "started twice");
            }
        }
        for (n, run) in &self.evidence.acks.started {
            if by_n.get(n).is_none_or(|log| log.id != *run) {
                self.lost(format!("run {run}: acknowledged as started, but missing"));
            }
        }
        for log in logs {
            let published = self.evidence.acks.seqs.get(&log.id).copied().unwrap_or_default();
            if published > log.events.len() as u64 {
                self.lost(format!("run {}: event {published} was published, but is missing", log.id));
            }
        }
        for (n, (status, seq)) in &self.evidence.acks.ended {
            let holds =
                by_n.get(n).is_some_and(|log| log.status == *status && log.events.len() as u64 == *seq);
            if !holds {
                self.lost(format!("run number {n}: acknowledged as {status}, but has another status or log"));
            }
        }
    }
}

fn expect_run(base: u64, n: u64) -> (ExpectedRun, Value) {
    let mut expected = ExpectedRun::default();
    let workflow = &WORKFLOWS[usize::try_from(n).expect("a number of runs") % WORKFLOWS.len()];
    let output = (workflow.expect)(&mut expected, seed_of(base, n));
    (expected, output)
}
