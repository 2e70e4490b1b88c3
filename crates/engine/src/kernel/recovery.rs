//! Recovery after a restart, and timers that are due: every run continues where its log ends.

use steprail_core::run::{Failure, FailureKind, Input, Millis, RESTARTED, RunStatus, TimerKind};
use steprail_store::{AdminAction, AdminEvent, Due, RestoredBackup, RunId, StoreError, Unfinished};

use super::deadlines::Deadline;
use super::request::Interrupt;
use super::{Done, Kernel, NextTimer};
use crate::limits::{BATCH, RECOVERY_BATCH};

impl Kernel {
    /// Resumes a batch of unfinished runs. Returns the run after which the next batch starts, or `None` at the end.
    pub(super) fn recover_some(
        &mut self,
        after: Option<RunId>,
        interrupt: Option<Interrupt>,
        now: Millis,
        done: &mut Done,
    ) -> Result<Option<RunId>, StoreError> {
        if let (None, Some(Interrupt::Restored(RestoredBackup { incarnation, backup_at }))) =
            (after, interrupt)
        {
            let action = AdminAction::Restored { incarnation, backup_at };
            self.batch.commit.admin.push(AdminEvent::new(action, None));
        }
        let runs = match interrupt {
            None => self.batch.unfinished(Unfinished::Active, after, RECOVERY_BATCH)?,
            Some(Interrupt::Restored(_)) => {
                self.batch.unfinished(Unfinished::WithInterrupted, after, RECOVERY_BATCH)?
            }
            Some(Interrupt::All) => self.batch.unfinished(Unfinished::All, after, RECOVERY_BATCH)?,
            Some(Interrupt::Declared) => {
                self.batch.unfinished(Unfinished::Interruptible, after, RECOVERY_BATCH)?
            }
        };
        for run in runs.iter().filter(|run| !self.damaged.contains_key(run)).copied().collect::<Vec<_>>() {
            match interrupt {
                Some(Interrupt::Restored(RestoredBackup { incarnation, backup_at })) => {
                    self.input(run, Input::Restored { incarnation, backup_at }, now, done).map(drop)?;
                }
                Some(_) => drop(self.input(run, Input::Interrupt, now, done)?),
                None => self.recover_run(run, now, done)?,
            }
            self.deliver_messages(now, done)?;
        }
        let next = runs.last().copied().filter(|_| runs.len() == RECOVERY_BATCH);
        if let (None, Some(Interrupt::Restored(_))) = (next, interrupt) {
            self.skip_missed_schedules(now)?;
            self.restore_finished = true;
        }
        Ok(next)
    }

    /// Marks the calls that a run had in flight as lost, and queues its steps that waited for a slot.
    fn recover_run(&mut self, key: RunId, now: Millis, done: &mut Done) -> Result<(), StoreError> {
        self.load(key)?;
        let Some(entry) = self.runs.get(&key) else { return Ok(()) };
        let calls: Vec<(u32, u32)> = entry.run.calls().map(|(n, live)| (n, live.attempt)).collect();
        let lost = calls.into_iter().filter(|(n, _)| self.flights.call_of(key, *n).is_none());
        for (n, attempt) in lost.collect::<Vec<_>>() {
            let error = Failure::new(FailureKind::Lost, "the engine stopped while the call was in flight");
            let error = error.code(RESTARTED);
            self.input(key, Input::CallEnded { n, attempt, outcome: Err(error) }, now, done)?;
        }
        self.input(key, Input::Admitted, now, done).map(drop)
    }

    /// Fires the timers, deadlines and schedules that are due, oldest first.
    pub(super) fn fire_timers(&mut self, now: Millis, done: &mut Done) -> Result<(), StoreError> {
        self.next_timer = NextTimer::Unknown;
        for deadline in self.deadlines.take_due(now, BATCH) {
            self.fire_deadline(deadline, now, done)?;
        }
        let due = self.due(now)?;
        for timer in due.timers {
            if self.batch.fire(timer) {
                self.fire(timer.run, timer.n, timer.kind, now, done)?;
            }
        }
        self.refuse_schedules(due.refused_schedules);
        self.fire_schedules(due.schedules, now, done)
    }

    fn fire_deadline(&mut self, deadline: Deadline, now: Millis, done: &mut Done) -> Result<(), StoreError> {
        let Deadline { due, run, n, kind } = deadline;
        if self.damaged.contains_key(&run) || !self.load(run)? {
            return Ok(());
        }
        // The calls of an interrupted run are lost and have no deadline any more.
        let state = self.runs.get(&run).map(|entry| &entry.run);
        let state = state.filter(|state| state.status() != RunStatus::Interrupted);
        let live = state.and_then(|state| state.live().get(&n));
        if live.is_some_and(|live| live.deadline == Some((kind, due))) {
            self.fire(run, n, kind, now, done)?;
        }
        Ok(())
    }

    fn fire(
        &mut self,
        run: RunId,
        n: u32,
        kind: TimerKind,
        now: Millis,
        done: &mut Done,
    ) -> Result<(), StoreError> {
        self.input(run, Input::TimerFired { n, timer: kind }, now, done)?;
        self.deliver_messages(now, done)?;
        done.stats.timer(kind);
        Ok(())
    }

    /// Timers and schedules that are due, without the timers of damaged runs.
    fn due(&mut self, now: Millis) -> Result<Due, StoreError> {
        let mut due = self.batch.due(now, BATCH + self.damaged.len())?;
        due.timers.retain(|timer| !self.damaged.contains_key(&timer.run));
        Ok(due)
    }

    /// When the next timer or schedule in the store is due, without the timers of damaged runs.
    pub(super) fn next_durable_timer(&mut self) -> Result<Option<Millis>, StoreError> {
        let due = self.batch.store().due(Millis::MAX, 1 + self.damaged.len())?;
        let timer = due.timers.iter().find(|timer| !self.damaged.contains_key(&timer.run));
        let schedule = due.schedules.first().and_then(|schedule| schedule.due);
        let refused = due.refused_schedules.first().map(|(_, due)| *due);
        Ok([timer.map(|timer| timer.due), schedule, refused].into_iter().flatten().min())
    }
}
