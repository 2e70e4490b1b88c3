//! The changes of a batch, collected into one commit. Reads include uncommitted changes.

use std::collections::{BTreeMap, HashMap, HashSet};

use steprail_core::run::{Changes, Event, Millis, Payload, Record, TimerKind, ValueChange};
use steprail_store::{
    Approval, ClaimKey, ClaimState, Commit, Committed, Definition, DefinitionQuery, Due, Head, NewClaim,
    NewRun, Refused, RunCommit, RunId, RunState, ScheduleChange, Store, StoreError, StoredEvent, Timer,
    Unfinished, Wanted,
};

use crate::limits::{CHILD_PAGE, LOG_ROW_EVENTS};

/// A store with the uncommitted changes of a batch.
pub(super) struct Batch {
    store: Box<dyn Store>,
    pub commit: Commit,
    pending: Pending,
    /// Claims of the decision in progress.
    claims: Vec<NewClaim>,
    /// Whether a commit within the batch in progress changed the outbox.
    pub outbox_committed: bool,
}

/// The uncommitted changes, indexed for reads.
#[derive(Default)]
struct Pending {
    /// Runs by the user who started them and their request keys.
    requests: HashMap<(String, String), RunId>,
    /// New runs by their parent run.
    children: HashMap<RunId, Vec<RunId>>,
    claims: HashMap<ClaimKey, ClaimState>,
    /// Names that steps wait for; `None` for a step that stopped waiting.
    waits: BTreeMap<(RunId, u32), Option<Box<str>>>,
    /// Timers of the steps whose timers changed.
    timers: HashMap<(RunId, u32), BTreeMap<TimerKind, Millis>>,
    /// Schedules that changed.
    schedules: HashSet<String>,
    /// Calls of the batch that count for budgets, by subject, rule and start of the window.
    counters: HashMap<(Box<str>, Box<str>, Millis), u64>,
}

/// One decision of a run, to append to the batch.
pub(super) struct Decided {
    pub run: RunId,
    /// The number of events before the decision.
    pub expected_seq: u64,
    pub new: Option<Box<NewRun>>,
    pub before: RunState,
    pub after: RunState,
    /// Bytes that the run uses of its user's storage quota.
    pub stored_bytes: u64,
}

impl Batch {
    pub(super) fn new(store: Box<dyn Store>) -> Self {
        let (commit, pending) = (Commit::default(), Pending::default());
        Self { store, commit, pending, claims: Vec::new(), outbox_committed: false }
    }

    pub(super) fn store(&mut self) -> &mut dyn Store {
        &mut *self.store
    }

    pub(super) fn into_store(self) -> Box<dyn Store> {
        self.store
    }

    /// Starts an empty batch.
    pub(super) fn begin(&mut self, now: Millis) {
        self.commit = Commit { now, ..Commit::default() };
        self.pending = Pending::default();
        self.claims.clear();
    }

    /// Commits the batch.
    pub(super) fn commit(&mut self) -> Result<Committed, Refused> {
        if self.commit.is_empty() {
            return Ok(Committed::default());
        }
        let committed = self.store.commit(&self.commit)?;
        self.begin(0);
        Ok(committed)
    }

    /// The runs with events in the batch.
    pub(super) fn changed_runs(&self) -> Vec<RunId> {
        self.commit.runs.iter().map(|decided| decided.run).collect()
    }

    /// Notes what an event of the batch changes, for reads.
    pub(super) fn note(&mut self, run: RunId, record: &Record, changes: &Changes<'_>) {
        self.pending.note(run, record, changes);
    }

    /// Appends a decision. Consecutive decisions of one run share a row of the log.
    pub(super) fn append(&mut self, decided: Decided, records: Vec<Record>) {
        let Decided { run, expected_seq, new, before, after, stored_bytes } = decided;
        if let Some(new) = &new {
            self.pending.note_run(run, new);
        }
        let claims = std::mem::take(&mut self.claims);
        match self.commit.runs.last_mut() {
            Some(last) if last.run == run && last.records.len() + records.len() <= LOG_ROW_EVENTS => {
                last.records.extend(records);
                last.claims.extend(claims);
                (last.after, last.stored_bytes) = (after, stored_bytes);
            }
            _ => {
                let decision =
                    RunCommit { run, expected_seq, new, records, before, after, claims, stored_bytes };
                self.commit.runs.push(decision);
            }
        }
    }

    pub(super) fn head(&mut self, run: RunId) -> Result<Option<Head>, StoreError> {
        self.store.head(run)
    }

    pub(super) fn log(&mut self, run: RunId) -> Result<Vec<StoredEvent>, StoreError> {
        self.store.log(run)
    }

    pub(super) fn definition(
        &mut self,
        which: DefinitionQuery<'_>,
    ) -> Result<Option<Definition>, StoreError> {
        self.store.definition(which)
    }

    pub(super) fn approval(&mut self, run: RunId, path: &str) -> Result<Option<Approval>, StoreError> {
        self.store.approval(run, path)
    }

    pub(super) fn unfinished(
        &mut self,
        which: Unfinished,
        after: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<RunId>, StoreError> {
        self.store.unfinished(which, after, limit)
    }

    /// The unfinished child runs of a run.
    pub(super) fn children(&mut self, run: RunId) -> Result<Vec<RunId>, StoreError> {
        let mut children = Vec::new();
        loop {
            let after = children.last().copied();
            let page = self.store.unfinished(Unfinished::ChildrenOf(run), after, CHILD_PAGE)?;
            let is_last = page.len() < CHILD_PAGE;
            children.extend(page);
            if is_last {
                children.extend(self.pending.children.get(&run).into_iter().flatten());
                return Ok(children);
            }
        }
    }

    pub(super) fn request(&mut self, by: &str, key: &str) -> Result<Option<RunId>, StoreError> {
        match self.pending.requests.get(&(by.to_owned(), key.to_owned())) {
            Some(run) => Ok(Some(*run)),
            None => self.store.request(by, key),
        }
    }

    pub(super) fn value(&mut self, run: RunId, wanted: Wanted) -> Result<Payload, StoreError> {
        let decisions = self.commit.runs.iter().rev().filter(|decided| decided.run == run);
        match decisions.into_iter().find_map(|decided| recorded_value(decided, wanted)) {
            Some(value) => Ok(value),
            None => self.store.value(run, wanted),
        }
    }

    pub(super) fn claim_state(&mut self, key: &ClaimKey) -> Result<ClaimState, StoreError> {
        match self.pending.claims.get(key) {
            Some(state) => Ok(state.clone()),
            None => self.store.claim(key, self.commit.now),
        }
    }

    /// Claims a key for the decision in progress.
    pub(super) fn claim(&mut self, claim: NewClaim) {
        self.pending.claims.insert(claim.key.clone(), ClaimState::Held { args: claim.args });
        self.claims.push(claim);
    }

    /// Settles the key of a step that ended: it has a result, or it is free again.
    pub(super) fn settle(&mut self, key: ClaimKey, result: Option<ClaimState>) {
        self.pending.claims.insert(key, result.unwrap_or(ClaimState::Free));
    }

    /// The step executions that wait for a signal or an idempotency key.
    pub(super) fn waiting(&mut self, event: &str) -> Result<Vec<(RunId, u32)>, StoreError> {
        let mut waiting = self.store.waiting(event)?;
        waiting.retain(|step| !self.pending.waits.contains_key(step));
        let added = self.pending.waits.iter().filter(|(_, name)| name.as_deref() == Some(event));
        waiting.extend(added.map(|(step, _)| *step));
        Ok(waiting)
    }

    /// Due timers and schedules that the batch has not changed.
    pub(super) fn due(&mut self, now: Millis, limit: usize) -> Result<Due, StoreError> {
        let mut due = self.store.due(now, limit)?;
        due.schedules.retain(|schedule| !self.pending.schedules.contains(&schedule.name));
        due.refused_schedules.retain(|(name, _)| !self.pending.schedules.contains(name));
        Ok(due)
    }

    /// Removes a timer that fires. Returns false if the batch has deleted it or set it to another time.
    pub(super) fn fire(&mut self, timer: Timer) -> bool {
        let changed = self.pending.timers.get(&(timer.run, timer.n));
        if changed.is_some_and(|timers| timers.get(&timer.kind) != Some(&timer.due)) {
            return false;
        }
        self.commit.fired.push(timer);
        true
    }

    /// The number of calls that count for a budget.
    pub(super) fn counter(&mut self, subject: &str, rule: &str, start: Millis) -> Result<u64, StoreError> {
        let pending = self.pending.counters.get(&(subject.into(), rule.into(), start)).copied();
        Ok(self.store.counter(subject, rule, start)? + pending.unwrap_or_default())
    }

    /// Counts a call of the decision in progress. The store counts it when its event is committed.
    pub(super) fn count(&mut self, subject: &str, rule: &str, start: Millis) {
        *self.pending.counters.entry((subject.into(), rule.into(), start)).or_default() += 1;
    }

    pub(super) fn change_schedule(&mut self, change: ScheduleChange) {
        let name = match &change {
            ScheduleChange::Put(schedule, _) => &schedule.name,
            ScheduleChange::Delete(name, _) | ScheduleChange::Refuse(name, _) => name,
        };
        self.pending.schedules.insert(name.clone());
        self.commit.schedules.push(change);
    }
}

impl Pending {
    fn note_run(&mut self, run: RunId, new: &NewRun) {
        if let Some(key) = &new.request_key {
            self.requests.insert((new.principal.id.clone(), key.clone()), run);
        }
        if let Some((parent, _)) = &new.parent {
            self.children.entry(*parent).or_default().push(run);
        }
    }

    fn note(&mut self, run: RunId, record: &Record, changes: &Changes<'_>) {
        let Some(change) = &changes.step else { return };
        let step = (run, change.step.n);
        if change.clears_waits && record.had_wait {
            self.waits.insert(step, None);
        }
        if let Some(event) = change.wait {
            self.waits.insert(step, Some(event.into()));
        }
        if change.clears_waits && record.had_timer {
            self.timers.insert(step, BTreeMap::new());
        }
        for (kind, due) in change.timers() {
            self.timers.entry(step).or_default().insert(kind, due);
        }
    }
}

/// Returns a value that a decision records.
fn recorded_value(decided: &RunCommit, wanted: Wanted) -> Option<Payload> {
    if wanted == Wanted::Inputs
        && let Some(new) = &decided.new
    {
        return Some(new.inputs.clone());
    }
    let numbered = (decided.expected_seq + 1..).zip(&decided.records);
    numbered.filter_map(|(seq, record)| value_of(record, seq, wanted)).last()
}

fn value_of(record: &Record, seq: u64, wanted: Wanted) -> Option<Payload> {
    let changes = record.event.changes();
    let n = changes.step.as_ref().map(|change| change.step.n);
    match (wanted, changes.value, &record.event) {
        (Wanted::Input(wanted), Some(ValueChange::StepInput(_)), _) if n == Some(wanted) => {
            record.payload.clone()
        }
        (Wanted::Output(wanted), Some(ValueChange::StepOutput(_)), _) if n == Some(wanted) => {
            record.payload.clone()
        }
        (Wanted::Result, Some(ValueChange::RunOutput(_)), _) => record.payload.clone(),
        (Wanted::Error(wanted), ..) if n == Some(wanted) => {
            let error = changes.step?.error?;
            serde_json::to_value(error).ok().map(Payload::new)
        }
        (
            Wanted::EventValue(wanted),
            _,
            Event::SignalReceived { payload: value, .. }
            | Event::ArgumentsEdited { args: value, .. }
            | Event::ValueSet { value, .. },
        ) if seq == wanted => Some(Payload::new(value.clone())),
        _ => None,
    }
}
