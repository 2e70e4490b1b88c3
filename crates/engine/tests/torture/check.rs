//! Compares what was foreseen, what the ledger saw and what the database says.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;
use serde_json::Value;
use steprail_core::run::Resolved;
use steprail_engine::RunId;

use super::ledger::{self, Entry, What};
use super::life::Acks;
use super::log::{self, Fate, RunLog, Tale};
use super::shapes::{SHAPES, STRICT};
use super::story::Story;
use super::worker::{Job, seed_of};

/// What came out.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Every promise that is broken.
    pub broken: Vec<String>,
    pub runs: usize,
    pub calls: usize,
    /// Calls that were made again after they were cut off, as their policies allow.
    pub repeated: usize,
    /// Calls that were made again without leave.
    pub illegal: usize,
    /// Calls, results, runs or answers of the engine that are gone.
    pub lost: usize,
    /// Times that the engine said it did not know.
    pub uncertain: usize,
}

/// What is compared.
struct Evidence<'e> {
    connection: &'e Connection,
    ledger: &'e [Entry],
    acks: &'e Acks,
    seed: u64,
}

/// A run in the tree of runs: the number of the run on top, and the path from there.
struct Place {
    n: u64,
    prefix: String,
}

impl Findings {
    /// Prints the figures, and fails if a promise is broken.
    pub(crate) fn report(&self) {
        println!("runs, with children       {}", self.runs);
        println!("calls made                {}", self.calls);
        println!("calls repeated, legally   {}", self.repeated);
        println!("calls repeated, illegally {}", self.illegal);
        println!("lost                      {}", self.lost);
        println!("said to be uncertain      {}", self.uncertain);
        let some: Vec<&String> = self.broken.iter().take(20).collect();
        assert!(some.is_empty(), "{} promises are broken, such as {some:#?}", self.broken.len());
    }
}

/// Lines with their positions in the ledger.
type Lines<'e> = Vec<(usize, &'e Entry)>;

struct Checker<'e> {
    evidence: &'e Evidence<'e>,
    found: Findings,
    stories: BTreeMap<u64, (Story, Value)>,
    /// Lines of the ledger with their positions, by run and path.
    lines: BTreeMap<(RunId, &'e str), Lines<'e>>,
    /// When the engine said that a run was over.
    over: BTreeMap<RunId, usize>,
    /// Where calls ended first, by the number on top and the whole path.
    ends: BTreeMap<(u64, String), usize>,
    told: BTreeSet<(u64, String)>,
    ended: BTreeSet<(u64, String)>,
}

/// Looks at what is left when the last worker has ended.
pub(crate) fn judge(job: &Job, acks: &Acks) -> Findings {
    let connection = Connection::open(&job.database).expect("the database");
    let ledger = ledger::read(&job.ledger);
    let mut found = check(&Evidence { connection: &connection, ledger: &ledger, acks, seed: job.seed });
    found.broken.extend(crate::audit::audit(&connection));
    found.broken.extend(damage(&connection));
    found
}

/// What SQLite finds wrong with the file.
pub(crate) fn damage(connection: &Connection) -> Option<String> {
    let sound: String =
        connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("a check");
    (sound != "ok").then(|| format!("the file is damaged: {sound}"))
}

/// Everything that is broken, and the figures.
fn check(evidence: &Evidence<'_>) -> Findings {
    let logs = log::read(evidence.connection);
    let mut checker = Checker::new(evidence);
    let places = places(&logs);
    let tales: Vec<_> = logs.iter().map(|log| (log, log.tales())).collect();
    for (log, tales) in &tales {
        checker.gather(log, &places[&log.key], tales);
    }
    for (log, tales) in &tales {
        let place = &places[&log.key];
        for (path, tale) in tales {
            checker.step(log, place, path, tale);
        }
        checker.order(log, place);
        checker.strangers(log, tales);
        checker.run(log, place);
    }
    checker.acknowledged(&logs);
    checker.found.runs = logs.len();
    checker.found
}

fn places(logs: &[RunLog]) -> BTreeMap<i64, Place> {
    let by_key: BTreeMap<i64, &RunLog> = logs.iter().map(|log| (log.key, log)).collect();
    let mut places: BTreeMap<i64, Place> = BTreeMap::new();
    for log in logs {
        let place = match log.parent {
            None => Place { n: log.n.expect("a run with a key"), prefix: String::new() },
            Some((parent, step)) => {
                let path = by_key[&parent].path_of(step).expect("a step that started a run");
                let above = &places[&parent];
                Place { n: above.n, prefix: format!("{}{path}/", above.prefix) }
            }
        };
        places.insert(log.key, place);
    }
    places
}

impl<'e> Checker<'e> {
    fn new(evidence: &'e Evidence<'e>) -> Self {
        let mut checker = Self {
            evidence,
            found: Findings::default(),
            stories: BTreeMap::new(),
            lines: BTreeMap::new(),
            over: BTreeMap::new(),
            ends: BTreeMap::new(),
            told: BTreeSet::new(),
            ended: BTreeSet::new(),
        };
        for (at, entry) in evidence.ledger.iter().enumerate() {
            match entry.what {
                What::Cut => {}
                What::Over => drop(checker.over.entry(entry.run).or_insert(at)),
                _ => checker.lines.entry((entry.run, &entry.path)).or_default().push((at, entry)),
            }
            checker.found.calls += usize::from(entry.begins());
        }
        checker
    }

    /// Notes what other runs of the same tree need to know about this one.
    fn gather(&mut self, log: &RunLog, place: &Place, tales: &BTreeMap<String, Tale>) {
        self.stories.entry(place.n).or_insert_with(|| foresee(self.evidence.seed, place.n));
        for (path, tale) in tales {
            let whole = (place.n, format!("{}{path}", place.prefix));
            let lines = self.lines.get(&(log.id, path.as_str()));
            let end = lines.and_then(|lines| lines.iter().find(|(_, entry)| entry.what != What::Begun));
            if let Some((at, _)) = end {
                self.ends.insert(whole.clone(), *at);
            }
            if tale.was_told() {
                self.told.insert(whole.clone());
            }
            if tale.has_ended() {
                self.ended.insert(whole);
            }
            self.found.uncertain += tale.uncertain.len();
        }
    }

    fn broken(&mut self, log: &RunLog, path: &str, what: &str) {
        self.found.broken.push(format!("run {} `{path}`: {what}", log.id));
    }

    fn lost(&mut self, what: String) {
        self.found.lost += 1;
        self.found.broken.push(what);
    }

    /// One step: its calls are those that were foreseen, and no more than its policy allows.
    fn step(&mut self, log: &RunLog, place: &Place, path: &str, tale: &Tale) {
        let lines = self.lines.get(&(log.id, path)).cloned().unwrap_or_default();
        let begun: Vec<&Entry> =
            lines.iter().map(|(_, entry)| *entry).filter(|entry| entry.begins()).collect();
        self.as_foreseen(log, place, path, tale);
        self.intended(log, path, tale, &begun);
        for pair in begun.windows(2) {
            self.repetition(log, path, tale, pair[0], pair[1]);
        }
        let done = tale.fates.iter().find(|(_, fate)| **fate == Fate::Done { from: None });
        if let Some((attempt, _)) = done {
            let seen = |what| lines.iter().any(|(_, entry)| entry.attempt == *attempt && entry.what == what);
            if !seen(What::Begun) || !seen(What::Ended) {
                self.lost(format!("run {} `{path}`: done, but attempt {attempt} was never made", log.id));
            }
        }
    }

    /// R3, R9: the call that was committed is the one that was foreseen, with one key for all attempts.
    fn as_foreseen(&mut self, log: &RunLog, place: &Place, path: &str, tale: &Tale) {
        let whole = format!("{}{path}", place.prefix);
        let foreseen = self.stories[&place.n].0.calls.get(&whole);
        let fits = foreseen.is_some_and(|call| {
            tale.intents.values().all(|(_, tool, args)| tool == call.tool && *args == call.args.to_string())
        });
        let keys: BTreeSet<&String> = tale.intents.values().map(|(key, ..)| key).collect();
        if !fits {
            self.broken(log, path, "a call that was not foreseen");
        }
        if keys.len() != 1 {
            self.broken(log, path, &format!("several keys: {keys:?}"));
        }
    }

    /// S2: no call without an intent in the log, and none twice.
    fn intended(&mut self, log: &RunLog, path: &str, tale: &Tale, begun: &[&Entry]) {
        let mut attempts = BTreeSet::new();
        for entry in begun {
            let intent = (entry.key.clone(), entry.tool.clone(), entry.args.clone());
            if tale.intents.get(&entry.attempt) != Some(&intent) {
                self.broken(log, path, &format!("attempt {} was not committed as made", entry.attempt));
            }
            if !attempts.insert(entry.attempt) {
                self.found.illegal += 1;
                self.broken(log, path, &format!("attempt {} was made twice", entry.attempt));
            }
        }
    }

    /// S5, R2, R11: a call is made again only if it failed, or if a kill cut it off and the policy allows it.
    fn repetition(&mut self, log: &RunLog, path: &str, tale: &Tale, first: &Entry, again: &Entry) {
        let between = first.attempt..again.attempt;
        let lost = tale.fates.range(between.clone()).filter(|(_, fate)| **fate == Fate::Lost).count();
        let failed = tale.fates.range(between.clone()).filter(|(_, fate)| **fate == Fate::Repeated).count();
        let asked = between.filter(|attempt| tale.resolved.get(attempt) == Some(&Resolved::Retry)).count();
        let kills = (again.life - first.life) as usize;
        let explained = lost + failed == (again.attempt - first.attempt) as usize;
        let strict = first.tool.starts_with(STRICT);
        let allowed = explained && lost <= kills && (!strict || asked == lost);
        if lost > 0 && allowed {
            self.found.repeated += 1;
        }
        if !allowed {
            self.found.illegal += 1;
            let what = format!("made again without leave: {first:?}, {again:?}, {tale:?}");
            self.broken(log, path, &what);
        }
        if !strict && !tale.uncertain.is_empty() {
            self.broken(log, path, "uncertain although it may be repeated");
        }
    }

    /// R4, R5: no call before what it follows has ended, none after the end of the run.
    fn order(&mut self, log: &RunLog, place: &Place) {
        let calls: Vec<(String, usize, usize)> = self
            .lines_of(log.id)
            .filter_map(|(path, lines)| {
                let mut begun = lines.iter().filter(|(_, entry)| entry.begins()).map(|(at, _)| *at);
                let first = begun.next()?;
                Some((format!("{}{path}", place.prefix), first, begun.next_back().unwrap_or(first)))
            })
            .collect();
        let over = self.over.get(&log.id).copied().unwrap_or(usize::MAX);
        for (path, first, last) in calls {
            if last > over {
                self.broken(log, &path, "called after the end of the run");
            }
            for before in self.predecessors(place.n, &path) {
                let whole = (place.n, before);
                let ended = self.ends.get(&whole).is_some_and(|at| *at < first);
                if !ended && !self.told.contains(&whole) {
                    self.broken(log, &path, &format!("called before `{}` had ended", whole.1));
                }
            }
        }
    }

    /// The lines about a run, by path.
    fn lines_of(&self, run: RunId) -> impl Iterator<Item = (&'e str, &Lines<'e>)> {
        let from = self.lines.range((run, "")..);
        from.take_while(move |((of, _), _)| *of == run).map(|((_, path), lines)| (*path, lines))
    }

    fn predecessors(&self, n: u64, path: &str) -> Vec<String> {
        self.stories[&n].0.calls.get(path).map(|call| call.after.clone()).unwrap_or_default()
    }

    /// Calls that the log knows nothing about.
    fn strangers(&mut self, log: &RunLog, tales: &BTreeMap<String, Tale>) {
        let of_run = self.lines_of(log.id).filter(|(_, lines)| lines.iter().any(|(_, entry)| entry.begins()));
        let of_run: Vec<&str> = of_run.map(|(path, _)| path).collect();
        for path in of_run {
            if !tales.contains_key(path) {
                self.broken(log, path, "called, but the log does not say so");
            }
        }
    }

    /// R9, R10: the run is over and gave what was foreseen; nothing of it is missing.
    fn run(&mut self, log: &RunLog, place: &Place) {
        if log.woken_early() > 0 {
            self.broken(log, "", "a sleep ended before its time");
        }
        if log.status != "completed" {
            self.lost(format!("run {}: {}", log.id, log.status));
        }
        if log.parent.is_some() {
            return;
        }
        let (story, output) = &self.stories[&place.n];
        let missing: Vec<&String> =
            story.calls.keys().filter(|path| !self.ended.contains(&(place.n, (*path).clone()))).collect();
        let missing = (!missing.is_empty()).then(|| format!("run {}: {missing:?} never ran", log.id));
        if log.output.as_ref() != Some(output) {
            let what = format!("gave {:?} and not {output}", log.output);
            self.broken(log, "", &what);
        }
        missing.into_iter().for_each(|what| self.lost(what));
    }

    /// Every answer of the engine still holds; no run was started twice.
    fn acknowledged(&mut self, logs: &[RunLog]) {
        let mut by_n: BTreeMap<u64, &RunLog> = BTreeMap::new();
        for log in logs.iter().filter(|log| log.parent.is_none()) {
            if by_n.insert(log.n.expect("a key"), log).is_some() {
                self.broken(log, "", "started twice");
            }
        }
        for (n, run) in &self.evidence.acks.started {
            if by_n.get(n).is_none_or(|log| log.id != *run) {
                self.lost(format!("run {run}: it was started, but is not there"));
            }
        }
        for log in logs {
            let told = self.evidence.acks.seqs.get(&log.id).copied().unwrap_or_default();
            if told > log.events.len() as u64 {
                self.lost(format!("run {}: event {told} was published, but is not there", log.id));
            }
        }
        for (n, (status, seq)) in &self.evidence.acks.ended {
            let holds =
                by_n.get(n).is_some_and(|log| log.status == *status && log.events.len() as u64 == *seq);
            if !holds {
                self.lost(format!("run number {n}: it was {status}, but is not any more"));
            }
        }
    }
}

fn foresee(base: u64, n: u64) -> (Story, Value) {
    let mut story = Story::default();
    let shape = &SHAPES[usize::try_from(n).expect("a number of runs") % SHAPES.len()];
    let output = (shape.tell)(&mut story, seed_of(base, n));
    (story, output)
}
