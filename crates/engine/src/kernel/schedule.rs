//! Cron schedules: the run starts in the transaction that sets the next due time.

use steprail_core::run::Millis;
use steprail_store::{
    Actor, Definition, Fired, Overlap, Principal, Right, Schedule, ScheduleChange, ScheduledVersion,
    StoreError, VersionPin,
};

use super::notifications::audit_failure;
use super::request::RunSource;
use super::sub_workflows::may_follow;
use super::world::new_run_id;
use super::{Done, Kernel, NextTimer, StartRun};
use crate::cron::CronSchedule;
use crate::error::Error;
use crate::limits::BATCH;

/// Why a schedule skips a time. Nobody is told of it.
const NOT_ENDED: &str = "has not ended";

impl Kernel {
    /// Stores a schedule and replaces the one with the same name. Its next time is computed from now.
    pub(super) fn schedule(
        &mut self,
        schedule: &Schedule,
        now: Millis,
    ) -> Result<Result<Option<Millis>, Error>, StoreError> {
        let due = CronSchedule::parse(&schedule.cron, &schedule.zone).and_then(|cron| cron.next_after(now));
        let due = match due {
            Ok(due) => due,
            Err(problem) => return Ok(Err(Error::BadInput(problem))),
        };
        let (definition, version) = match self.scheduled(schedule)? {
            Ok(found) => found,
            Err(error) => return Ok(Err(error)),
        };
        // Inputs are checked now, because a later failure might go unnoticed.
        if let Err(problem) = self.plans.of(&definition)?.check_inputs(&schedule.inputs) {
            return Ok(Err(Error::BadInput(problem)));
        }
        let due = schedule.due.is_some().then_some(due);
        let by = Some(Actor::from(&schedule.principal));
        let stored = Box::new(Schedule { due, version: Some(version), ..schedule.clone() });
        self.batch.change_schedule(ScheduleChange::Put(stored, by));
        self.next_timer = NextTimer::Unknown;
        Ok(Ok(due))
    }

    /// The version that a schedule starts, and how it is stored.
    fn scheduled(
        &mut self,
        schedule: &Schedule,
    ) -> Result<Result<(Definition, ScheduledVersion), Error>, StoreError> {
        let name = &schedule.definition;
        let number = match schedule.version {
            None | Some(ScheduledVersion::Latest) => None,
            Some(
                ScheduledVersion::Number(version) | ScheduledVersion::Pinned(VersionPin { version, .. }),
            ) => Some(version),
        };
        let definition = match self.find_definition(name, number)? {
            Ok(definition) => definition,
            Err(Error::NotFound(message)) if number.is_none() => {
                return Ok(Err(Error::NotFound(format!("{message}; define it first"))));
            }
            Err(error) => return Ok(Err(error)),
        };
        let pin = VersionPin::from(&definition);
        let Principal { id, agent, .. } = &schedule.principal;
        match schedule.version {
            Some(ScheduledVersion::Latest) => match may_follow(id, *agent, &definition) {
                Ok(()) => Ok(Ok((definition, ScheduledVersion::Latest))),
                Err(reason) => Ok(Err(Error::Denied(reason))),
            },
            Some(ScheduledVersion::Pinned(kept)) if kept != pin => {
                let message = format!("version {} of definition `{name}` was deleted", kept.version);
                Ok(Err(Error::NotFound(message)))
            }
            _ => Ok(Ok((definition, ScheduledVersion::Pinned(pin)))),
        }
    }

    /// Deletes a schedule. Runs that it started continue.
    pub(super) fn unschedule(&mut self, name: &str, by: Option<Actor>) {
        self.next_timer = NextTimer::Unknown;
        self.batch.change_schedule(ScheduleChange::Delete(name.to_owned(), by));
    }

    /// Starts the runs of due schedules. All times that passed while no engine ran start one run.
    pub(super) fn fire_schedules(
        &mut self,
        due: Vec<Schedule>,
        now: Millis,
        done: &mut Done,
    ) -> Result<(), StoreError> {
        for schedule in due {
            let at = schedule.due.unwrap_or(now);
            if let Err(reason) = self.may_fire(&schedule, now) {
                self.end_schedule(schedule, &reason, at);
                continue;
            }
            let mut schedule = schedule;
            let outcome = match self.overlaps(&schedule)? {
                Some(reason) => Err(reason),
                None => self.start_or_notify(&mut schedule, at, now)?,
            };
            let next =
                CronSchedule::parse(&schedule.cron, &schedule.zone).and_then(|cron| cron.next_after(now));
            let (run, error) = match outcome {
                Ok(run) => (Some(run), None),
                Err(error) => (None, Some(error)),
            };
            // A cron expression without a next time pauses the schedule, with an error.
            let error = error.or_else(|| next.as_ref().err().cloned());
            let last = Some(Fired { at, run, error });
            let next = Schedule { due: next.ok(), last, ..schedule };
            self.batch.change_schedule(ScheduleChange::Put(Box::new(next), None));
            self.deliver_messages(now, done)?;
        }
        Ok(())
    }

    /// Rechecks the rights of a schedule: those of its user, and the token that created it.
    fn may_fire(&self, schedule: &Schedule, now: Millis) -> Result<(), String> {
        let authorizer = &self.authorizer;
        let principal = &schedule.principal;
        let expiry = principal.token.as_ref().map(|token| authorizer.token_expiry(token));
        match expiry {
            Some(None) => Err("the token that created the schedule was revoked".to_owned()),
            Some(Some(expiry)) if expiry <= now => {
                Err("the token that created the schedule has expired".to_owned())
            }
            _ => authorizer.may(principal, Right::Workflow),
        }
    }

    /// Ends a schedule: it stays listed with the reason and starts no further runs until it is stored again.
    pub(super) fn end_schedule(&mut self, schedule: Schedule, reason: &str, at: Millis) {
        let error = Some(format!("ended: {reason}; store the schedule again to continue it"));
        let run = schedule.last.as_ref().and_then(|last| last.run);
        self.notify_missed(&schedule, &format!("the schedule has ended: {reason}"));
        let ended = Schedule { due: None, last: Some(Fired { at, run, error }), ..schedule };
        self.next_timer = NextTimer::Unknown;
        self.batch.change_schedule(ScheduleChange::Put(Box::new(ended), None));
    }

    /// Stops schedules whose rows were changed in the file: nothing is started for them.
    pub(super) fn refuse_schedules(&mut self, refused: Vec<(String, Millis)>) {
        for (name, _) in refused {
            let message =
                "refused: the stored schedule is not what the log says; run `steprail audit verify`";
            if self.has_outbox {
                self.batch.commit.outbox.push(audit_failure(&format!("schedule `{name}`"), message));
            }
            self.batch.change_schedule(ScheduleChange::Refuse(name, message.to_owned()));
        }
    }

    /// Moves due schedules to their next time without starting a run. After a restore it is unknown whether the runs of
    /// the missed times were started.
    pub(super) fn skip_missed_schedules(&mut self, now: Millis) -> Result<(), StoreError> {
        self.next_timer = NextTimer::Unknown;
        loop {
            let due = self.batch.due(now, BATCH)?;
            self.refuse_schedules(due.refused_schedules);
            let missed = due.schedules;
            if missed.is_empty() {
                return Ok(());
            }
            for schedule in missed {
                let next =
                    CronSchedule::parse(&schedule.cron, &schedule.zone).and_then(|cron| cron.next_after(now));
                let reason = "skipped: the database was restored from a backup after this time";
                self.notify_missed(&schedule, reason);
                let error = Some(reason.to_owned());
                let last = Some(Fired { at: schedule.due.unwrap_or(now), run: None, error });
                let skipped = Schedule { due: next.ok(), last, ..schedule };
                self.batch.change_schedule(ScheduleChange::Put(Box::new(skipped), None));
            }
        }
    }

    /// Starts the run of a schedule. If it cannot be started, the owner is told once, until a run was started.
    fn start_or_notify(
        &mut self,
        schedule: &mut Schedule,
        at: Millis,
        now: Millis,
    ) -> Result<Result<steprail_store::RunId, String>, StoreError> {
        let outcome = self.start_scheduled(schedule, at, now)?;
        let error = schedule.last.as_ref().and_then(|last| last.error.as_ref());
        let was_told = error.is_some_and(|error| !error.ends_with(NOT_ENDED));
        if let (Err(reason), false) = (&outcome, was_told) {
            self.notify_missed(schedule, reason);
        }
        Ok(outcome)
    }

    /// Why a schedule skips a time: its last run has not ended.
    fn overlaps(&mut self, schedule: &Schedule) -> Result<Option<String>, StoreError> {
        let last = schedule.last.as_ref().and_then(|last| last.run);
        let Some(last) = last.filter(|_| schedule.overlap == Overlap::Skip) else { return Ok(None) };
        let is_running = self.find_head(last)?.is_some_and(|head| !head.state.status.is_terminal());
        Ok(is_running.then(|| format!("run {last} {NOT_ENDED}")))
    }

    fn start_scheduled(
        &mut self,
        schedule: &mut Schedule,
        at: Millis,
        now: Millis,
    ) -> Result<Result<steprail_store::RunId, String>, StoreError> {
        let (definition, version) = match self.scheduled(schedule)? {
            Ok(found) => found,
            Err(error) => return Ok(Err(error.to_string())),
        };
        // A schedule of an earlier format keeps the version of its next time.
        schedule.version = Some(version);
        let start = StartRun {
            id: new_run_id(now, &mut self.random),
            workflow: RunSource::Named {
                name: schedule.definition.clone(),
                version: Some(definition.version),
            },
            inputs: schedule.inputs.clone(),
            // The trace in which a schedule was created does not include its runs.
            principal: Principal { trace: None, ..schedule.principal.clone() },
            request_key: Some(format!("schedule:{}:{at}", schedule.name)),
        };
        Ok(self.start(&start, now)?.map_err(|error| error.to_string()))
    }
}
