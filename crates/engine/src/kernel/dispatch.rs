//! Dispatch of requests: each becomes inputs of runs or changes of the commit.

use steprail_core::limits::CANCEL_GRACE_MS;
use steprail_core::run::{Input, Millis};
use steprail_store::{Purge, StoreError};

use super::{Answer, Done, Kernel, Notification, Recover, Request};
use crate::limits::PURGE_BATCH;

impl Kernel {
    /// Handles a request within the batch. An error of the request is its reply; an error of the store rejects the
    /// batch.
    pub(super) fn dispatch(
        &mut self,
        request: &Request,
        now: Millis,
        done: &mut Done,
    ) -> Result<Answer, StoreError> {
        self.deciding = None;
        Ok(Answer::Now(match request {
            Request::Define(define, reply) => reply.with(match self.quotas.check_storage(&define.by.id)? {
                Some(exceeded) => Err(exceeded),
                None => self.define(define, false, now)?,
            }),
            Request::Start(start, reply) => reply.with(self.start(start, now)?),
            Request::Wait(run, reply) => match self.find_status(*run)? {
                Ok(status) if !status.is_terminal() => return Ok(Answer::Later(*run, reply.clone())),
                ended => reply.with(ended),
            },
            Request::Signal(signal, reply) => reply.with(self.signal(signal, now, done)?),
            Request::Schedule(schedule, reply) => reply.with(self.schedule(schedule, now)?),
            Request::Purge(before, reply) => {
                // A cancelled call can still return, and its result is logged.
                let before = (*before).min(now.saturating_sub(2 * CANCEL_GRACE_MS));
                self.quotas.purged();
                self.batch.commit.purge = Some(Purge { before, limit: PURGE_BATCH });
                return Ok(Answer::Purged(reply.clone()));
            }
            Request::Recover(Recover { after, interrupt }, reply) => {
                reply.with(Ok(self.recover_some(*after, *interrupt, now, done)?))
            }
            Request::Command(command, reply) => reply.with(self.command(command, now, done)?),
            Request::Notification(notification) => {
                self.notified(notification, now, done)?;
                return Ok(Answer::None);
            }
        }))
    }

    fn notified(
        &mut self,
        notification: &Notification,
        now: Millis,
        done: &mut Done,
    ) -> Result<(), StoreError> {
        match notification {
            Notification::CallEnded { id, outcome } => self.call_ended(*id, outcome, now, done),
            Notification::CallReported { id, report } => self.call_reported(*id, report, now, done),
            Notification::ServerAvailable { server } => {
                self.flights.reopen(server);
                Ok(())
            }
            Notification::ServerUnavailable(outage) => {
                self.notify_outage(outage);
                Ok(())
            }
            Notification::TimersDue => self.fire_timers(now, done),
        }
    }

    /// Delivers messages between runs, in the same batch.
    pub(super) fn deliver_messages(&mut self, now: Millis, done: &mut Done) -> Result<(), StoreError> {
        while let Some((run, input)) = self.messages.pop_front() {
            self.input(run, input, now, done)?;
        }
        Ok(())
    }

    /// Grants free slots to the runs that wait for one, round-robin.
    pub(super) fn admit_waiting(&mut self, now: Millis, done: &mut Done) -> Result<(), StoreError> {
        while let Some(run) = self.flights.next_waiting() {
            self.input(run, Input::Admitted, now, done)?;
            self.deliver_messages(now, done)?;
        }
        Ok(())
    }
}
