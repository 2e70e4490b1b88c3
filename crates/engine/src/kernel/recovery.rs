//! After a restart: every run goes on where its log ends. Alarms fire here too: waking up is waking up.

use steprail_core::run::{Failure, FailureKind, Input, Millis, RESTARTED};
use steprail_store::{Alarm, RunKey, StoreError};

use super::request::Interrupt;
use super::{Done, Kernel, NextAlarm};
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
            Some(which) => self.store.unfinished_runs(which == Interrupt::All, after, RECOVERY_BATCH)?,
        };
        for run in runs.iter().filter(|run| !self.damaged.contains_key(run)).copied().collect::<Vec<_>>() {
            match interrupt {
                Some(_) => drop(self.input(run, Input::Interrupt, now, done)?),
                None => self.pick_up(run, now, done)?,
            }
            self.follow_up(now, done)?;
        }
        Ok(runs.last().copied().filter(|_| runs.len() == RECOVERY_BATCH))
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

    /// Alarms whose time has come, but for those of runs that are damaged.
    pub(super) fn sound_alarms(&mut self, now: Millis) -> Result<Vec<Alarm>, StoreError> {
        let mut alarms = self.store.due_alarms(now, BATCH + self.damaged.len())?;
        alarms.retain(|alarm| !self.damaged.contains_key(&alarm.run));
        Ok(alarms)
    }

    /// Fires alarms whose time has come, oldest first. What they set off is written with them.
    pub(super) fn fire_alarms(&mut self, now: Millis, done: &mut Done) -> Result<(), StoreError> {
        self.next_alarm = NextAlarm::Unknown;
        for alarm in self.sound_alarms(now)? {
            // What fired before may have taken it away, or set it anew.
            if !self.store.drop_alarm(&alarm)? {
                continue;
            }
            self.input(alarm.run, Input::AlarmFired { n: alarm.n, alarm: alarm.kind }, now, done)?;
            self.follow_up(now, done)?;
            done.tally.alarm(alarm.kind);
        }
        self.fire_schedules(now, done)
    }

    /// When the next alarm of a run that is not damaged is due, or the next schedule.
    pub(super) fn next_sound_alarm(&mut self) -> Result<Option<Millis>, StoreError> {
        let alarm = self.sound_alarms(Millis::MAX)?.first().map(|alarm| alarm.due);
        let schedule = self.store.due_schedules(Millis::MAX, 1)?.pop().and_then(|schedule| schedule.due);
        Ok([alarm, schedule].into_iter().flatten().min())
    }
}
