//! Group commit: a batch of requests becomes one commit; a request that cannot be committed does not affect the others.

use steprail_core::run::Millis;
use steprail_store::{Conflict, Health, Refused, StoreError, Upkeep};

use super::definitions::Plans;
use super::effects;
use super::{Answer, Done, Effect, Handled, Kernel, NextTimer, Notification, Reply, Request, Response};
use crate::error::Error;

/// How often a batch is decided again after a failed precondition.
const RETRIES: u32 = 3;

/// Why a batch was not committed.
pub(super) enum Rejected {
    /// The store failed.
    Store(StoreError),
    /// A name or a version differs from the one that a request expects.
    Conflict(Conflict),
}

impl From<StoreError> for Rejected {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Kernel {
    /// Handles requests in one transaction. If the store refuses it, each request is retried in its own transaction.
    pub fn handle(&mut self, requests: Vec<Request>, now: Millis) -> Handled {
        let mut handled = Handled::default();
        match self.transact(&requests, now, &mut handled) {
            Ok(()) => {}
            Err(Rejected::Conflict(conflict)) => {
                self.forget();
                self.reject(requests, now, conflict, &mut handled);
            }
            Err(Rejected::Store(error)) => {
                let marked = self.quarantine(&error);
                self.forget();
                self.retry(requests, now, error, marked, &mut handled);
            }
        }
        handled
    }

    fn reject(&mut self, requests: Vec<Request>, now: Millis, conflict: Conflict, handled: &mut Handled) {
        match <[Request; 1]>::try_from(requests) {
            Ok([request]) => {
                let response = Response::rejection(request, conflict.into());
                handled.effects.push(Effect::Reply(response));
            }
            Err(requests) => self.one_by_one(requests, now, handled),
        }
    }

    fn retry(
        &mut self,
        requests: Vec<Request>,
        now: Millis,
        error: StoreError,
        marked: bool,
        handled: &mut Handled,
    ) {
        match <[Request; 1]>::try_from(requests) {
            // One run caused the failure. Without it, the rest of the notification can be processed.
            Ok([request]) if marked && request.is_notification() => {
                *handled = self.handle(vec![request], now);
                handled.fault.get_or_insert(error);
            }
            Ok([request]) if self.may_use_reserve(&request, &error) => {
                *handled = self.handle(vec![request], now);
                handled.fault.get_or_insert(error);
                let _ = self.maintain(Upkeep::ReclaimReserve);
            }
            Ok([request]) => self.refuse(request, error, marked, handled),
            // It is unknown whether the commit is durable, so no further work is started.
            Err(requests) if error.is_final() => {
                requests.into_iter().for_each(|request| self.refuse(request, error.clone(), false, handled));
                handled.fault = Some(error);
            }
            Err(requests) if requests.is_empty() => {
                handled.halts = !marked && !error.may_pass();
                handled.fault = Some(error);
            }
            Err(requests) => {
                handled.fault = Some(error).filter(|error| !error.may_pass());
                self.one_by_one(requests, now, handled);
            }
        }
    }

    /// Whether a cancellation failed on a full disk and can be retried with the released reserve.
    fn may_use_reserve(&mut self, request: &Request, error: &StoreError) -> bool {
        let is_needed = matches!(error, StoreError::Full(_)) && request.is_cancel();
        is_needed && self.maintain(Upkeep::ReleaseReserve).is_ok()
    }

    /// Runs a maintenance task of the store.
    pub fn maintain(&mut self, task: Upkeep) -> Result<Health, StoreError> {
        self.batch.store().maintain(task)
    }

    fn one_by_one(&mut self, requests: Vec<Request>, now: Millis, handled: &mut Handled) {
        let singles = requests.into_iter().map(|request| vec![request]);
        // A last transaction without requests grants slots that became free.
        for mut single in singles.chain([Vec::new()]) {
            if let Some(error) = handled.fault.clone().filter(StoreError::is_final) {
                single.drain(..).for_each(|request| self.refuse(request, error.clone(), false, handled));
                continue;
            }
            let mut done = self.handle(single, now);
            self.withdraw(&mut handled.effects, &mut done.effects);
            handled.effects.append(&mut done.effects);
            handled.retry.append(&mut done.retry);
            handled.fault = done.fault.or(handled.fault.take());
            handled.halts |= done.halts;
            handled.last_event = done.last_event.or(handled.last_event);
            handled.changed.append(&mut done.changed);
            handled.stats.add(&done.stats);
        }
    }

    /// Withdraws calls that one transaction ordered and the next one cancelled.
    fn withdraw(&mut self, earlier: &mut Vec<Effect>, later: &mut Vec<Effect>) {
        later.retain(|effect| {
            let Effect::Cancel(id) = effect else { return true };
            let given_up = self
                .flights
                .get(*id)
                .is_some_and(|flight| self.flights.call_of(flight.run, flight.n) != Some(*id));
            if !given_up || !effects::take_back(earlier, *id) {
                return true;
            }
            self.flights.remove(*id);
            false
        });
        self.flights.commit();
    }

    fn transact(&mut self, requests: &[Request], now: Millis, handled: &mut Handled) -> Result<(), Rejected> {
        let mut retries = 0;
        while retries < RETRIES {
            let (mut done, answers) = self.or_quarantine(|kernel| kernel.decide_all(requests, now))?;
            let changed = self.batch.changed_runs();
            let policy_changes = self.batch.commit.policy.clone();
            let outbox_changed =
                std::mem::take(&mut self.batch.outbox_committed) || !self.batch.commit.outbox.is_empty();
            match self.batch.commit() {
                Ok(committed) => {
                    policy_changes.iter().for_each(|change| self.policy.apply(change));
                    (handled.changed, handled.outbox_changed) = (changed, outbox_changed);
                    done.last_event = committed.last_event;
                    if std::mem::take(&mut self.restore_finished) {
                        self.maintain(Upkeep::FinishRestore)?;
                    }
                    self.answer(answers, committed.purged, &mut done);
                    self.committed(&mut done);
                    handled.last_event = done.last_event;
                    handled.stats = done.stats;
                    handled.effects.append(&mut done.effects);
                    return Ok(());
                }
                // Without the damaged run, the rest of the batch can be committed.
                Err(Refused::Damaged(run, error)) if !self.damaged.contains_key(&run) => {
                    self.mark_damaged(run, &error);
                    handled.fault = Some(error);
                    self.forget();
                }
                Err(Refused::Unavailable(error) | Refused::Damaged(_, error)) => return Err(error.into()),
                Err(Refused::Conflict(conflict @ (Conflict::NoSchedule(_) | Conflict::NoDefinition(_)))) => {
                    return Err(Rejected::Conflict(conflict));
                }
                // Another writer committed first: the runs are loaded and decided again.
                Err(Refused::Stale(_) | Refused::Held(_) | Refused::Conflict(_)) => {
                    retries += 1;
                    self.forget();
                }
            }
        }
        Err(StoreError::Busy("other writers change the same runs".to_owned()).into())
    }

    fn decide_all(&mut self, requests: &[Request], now: Millis) -> Result<(Done, Vec<Answer>), StoreError> {
        self.batch.begin(now);
        self.set_frozen(self.policy.is_frozen());
        self.children = 0;
        let mut done = Done::default();
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            answers.push(self.dispatch(request, now, &mut done)?);
            self.deliver_messages(now, &mut done)?;
        }
        self.continue_some(now, &mut done)?;
        self.admit_waiting(now, &mut done)?;
        self.deciding = None;
        Ok((done, answers))
    }

    fn answer(&mut self, answers: Vec<Answer>, purged: steprail_store::Purged, done: &mut Done) {
        for answer in answers {
            match answer {
                Answer::Now(response) => done.effects.push(Effect::Reply(response)),
                Answer::Purged(reply) => done.effects.push(Effect::Reply(reply.with(Ok(purged)))),
                Answer::Later(run, reply) => {
                    let waiters = self.waiters.entry(run).or_default();
                    waiters.retain(Reply::is_open);
                    waiters.push(reply);
                }
                Answer::None => {}
            }
        }
    }

    /// Marks the run that was being decided as damaged, if it caused the error.
    fn quarantine(&mut self, error: &StoreError) -> bool {
        let is_damage =
            matches!(error, StoreError::Corrupt(_) | StoreError::Other(_) | StoreError::Quarantined { .. });
        let suspect = self.deciding.take().filter(|run| is_damage && !self.damaged.contains_key(run));
        // A run that was about to be created does not exist.
        let Some(run) = suspect.filter(|run| matches!(self.batch.head(*run), Ok(Some(_)) | Err(_))) else {
            return false;
        };
        self.mark_damaged(run, error);
        true
    }

    fn mark_damaged(&mut self, run: steprail_store::RunId, error: &StoreError) {
        self.damaged.insert(run, error.clone());
        let waiters = self.waiters.remove(&run).unwrap_or_default();
        waiters.iter().for_each(|reply| reply.send(Err(Error::Storage(error.clone()))));
    }

    /// Discards all decisions that are not committed.
    fn forget(&mut self) {
        self.batch.begin(0);
        self.plans = Plans::default();
        self.messages.clear();
        self.next_timer = NextTimer::Unknown;
        for run in std::mem::take(&mut self.touched) {
            self.runs.remove(&run);
        }
        self.values.clear();
        self.flights.undo();
        self.deadlines.undo();
        self.continuations.undo();
        self.quotas.rollback();
        self.restore_finished = false;
    }

    /// Rejects a request that was not committed: the caller gets an error, and a notification is kept for a retry.
    fn refuse(&mut self, request: Request, error: StoreError, marked: bool, handled: &mut Handled) {
        let is_internal = matches!(request, Request::Notification(_) | Request::Recover(..));
        handled.halts |= is_internal && !marked && !error.may_pass();
        match request {
            request @ Request::Notification(_) if error.may_pass() => handled.retry.push(request),
            Request::Notification(Notification::CallEnded { id, .. }) => {
                // The run does not continue, but its slot is released.
                self.flights.remove(id);
                self.flights.commit();
            }
            Request::Notification(_) => {}
            request => {
                let response = Response::rejection(request, Error::Storage(error.clone()));
                handled.effects.push(Effect::Reply(response));
            }
        }
        handled.fault = Some(error);
    }
}
