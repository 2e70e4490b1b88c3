//! Recovery after a restart, and timers that are due: every run continues where its log ends.

use steprail_core::run::{Failure, FailureKind, Input, Millis, RESTARTED};
use steprail_store::{RestoredBackup, RunKey, StoreError, Timer, Upkeep};

use super::request::Interrupt;
use super::{Done, Kernel, NextTimer};
use crate::limits::{BATCH, RECOVERY_BATCH};

impl Kernel {
    /// Picks up some of the runs that were under way. Answers where to go on, until there are no more.
    pub(super) fn recover_some(
        &mut self,
        after: RunKey,
        interrupt: Option<Interrupt>,
        now: Millis,
        done: &mut Done,
    ) -> Result<Option<RunKey>, StoreError> {
        let runs = match interrupt {
            None => self.store.active_runs(after, RECOVERY_BATCH)?,
            Some(which) => self.store.unfinished_runs(which != Interrupt::Declared, after, RECOVERY_BATCH)?,
        };
        for run in runs.iter().filter(|run| !self.damaged.contains_key(run)).copied().collect::<Vec<_>>() {
            match interrupt {
                Some(Interrupt::Restored(RestoredBackup { incarnation, backup_at })) => {
                    self.input(run, Input::Restored { incarnation, backup_at }, now, done).map(drop)?;
                }
                Some(_) => drop(self.input(run, Input::Interrupt, now, done)?),
                None => self.pick_up(run, now, done)?,
            }
            self.follow_up(now, done)?;
        }
        let next = runs.last().copied().filter(|_| runs.len() == RECOVERY_BATCH);
        if let (None, Some(Interrupt::Restored(_))) = (next, interrupt) {
            self.skip_missed_schedules(now)?;
            self.store.maintain(Upkeep::RestoreParked)?;
        }
        Ok(next)
    }

    /// The calls that a run had in flight are lost; its steps that waited for a place get one.
    fn pick_up(&mut self, key: RunKey, now: Millis, done: &mut Done) -> Result<(), StoreError> {
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

    /// Timers whose time has come, but for those of runs that are damaged.
    pub(super) fn sound_timers(&mut self, now: Millis) -> Result<Vec<Timer>, StoreError> {
        let mut timers = self.store.due_timers(now, BATCH + self.damaged.len())?;
        timers.retain(|timer| !self.damaged.contains_key(&timer.run));
        Ok(timers)
    }

    /// Fires timers whose time has come, oldest first. What they set off is written with them.
    pub(super) fn fire_timers(&mut self, now: Millis, done: &mut Done) -> Result<(), StoreError> {
        self.next_timer = NextTimer::Unknown;
        for timer in self.sound_timers(now)? {
            // What fired before may have taken it away, or set it anew.
            if !self.store.drop_timer(&timer)? {
                continue;
            }
            self.input(timer.run, Input::TimerFired { n: timer.n, timer: timer.kind }, now, done)?;
            self.follow_up(now, done)?;
            done.stats.timer(timer.kind);
        }
        self.fire_schedules(now, done)
    }

    /// When the next timer of a run that is not damaged is due, or the next schedule.
    pub(super) fn next_sound_timer(&mut self) -> Result<Option<Millis>, StoreError> {
        let timer = self.sound_timers(Millis::MAX)?.first().map(|timer| timer.due);
        let schedule = self.store.due_schedules(Millis::MAX, 1)?.pop().and_then(|schedule| schedule.due);
        Ok([timer, schedule].into_iter().flatten().min())
    }
}
