//! The simulated process: it handles requests, its store fails, and it is killed between any two writes.

use steprail_engine::Error;
use steprail_engine::kernel::{Effect, Handled, Interrupt, Notification, Recover, Reply, Request};
use steprail_store::StoreError;

use super::Sim;
use super::common::shared::Faults;

impl Sim {
    /// Schedules a temporary storage fault.
    pub(super) fn plan_fault(&mut self) {
        self.fault_count += 1;
        let mut faults = self.faults.lock().expect("the faults");
        *faults = Faults {
            after: Some(self.rng.u32(0..6)),
            times: self.rng.u32(1..8),
            error: Some(StoreError::Full("simulated".to_owned())),
            ..Faults::default()
        };
    }

    /// Schedules a kill at one of the next writes, or after a commit before its result is returned.
    pub(super) fn plan_kill(&mut self) {
        let mut faults = self.faults.lock().expect("the faults");
        *faults = Faults {
            after: Some(self.rng.u32(0..8)),
            times: u32::MAX,
            error: Some(StoreError::Io("the process is dead".to_owned())),
            torn: self.rng.bool(),
            ..Faults::default()
        };
    }

    pub(super) fn kill(&mut self) {
        self.crashes += 1;
        *self.faults.lock().expect("the faults") = Faults::default();
        self.backlog.clear();
        self.stubborn.clear();
        let store = self.bench.die();
        self.trace(format_args!("dead"));
        self.bench.boot(store);
        if !self.quiet && self.rng.u8(0..4) == 0 {
            self.plan_kill();
        }
        for interrupt in [Some(Interrupt::Declared), None] {
            let recover = Recover { after: steprail_store::RunKey(0), interrupt };
            self.ask(|reply| Request::Recover(recover, reply));
        }
        self.check();
    }

    /// Continues runs: one commit, and all that are owed once faults have stopped.
    pub(super) fn continue_runs(&mut self) {
        while self.bench.kernel().owes_continuation() {
            self.slices += 1;
            self.trace(format_args!("continue"));
            self.submit(Vec::new());
            if !self.quiet {
                return;
            }
        }
    }

    pub(super) fn try_backlog(&mut self) {
        let backlog = std::mem::take(&mut self.backlog);
        if !backlog.is_empty() {
            self.trace(format_args!("again: {} requests", backlog.len()));
            self.submit(backlog);
        }
    }

    pub(super) fn ask<T>(&mut self, request: impl FnOnce(Reply<T>) -> Request) -> Option<Result<T, Error>> {
        let (reply, mut answer) = Reply::channel();
        self.submit(vec![request(reply)]);
        answer.try_recv().ok()
    }

    pub(super) fn notify(&mut self, notification: Notification) {
        let mut batch = std::mem::take(&mut self.backlog);
        batch.push(Request::Notification(notification));
        self.submit(batch);
    }

    /// Lets the kernel handle requests. If the process was killed meanwhile, no effects are carried out.
    fn submit(&mut self, requests: Vec<Request>) {
        let now = self.bench.now;
        let handled = self.bench.kernel().handle(requests, now);
        let dead = {
            let faults = self.faults.lock().expect("the faults");
            faults.tripped && matches!(faults.error, Some(StoreError::Io(_)))
        };
        if dead {
            self.kill();
            return;
        }
        let skips_effects = self.mortal && !self.quiet && self.rng.u8(0..40) == 0;
        if skips_effects {
            self.trace(format_args!("dead right after a commit"));
            answer_only(&handled);
            self.kill();
            return;
        }
        self.carry_out(handled);
    }

    fn carry_out(&mut self, handled: Handled) {
        if let Some(fault) = handled.fault {
            self.trace(format_args!("fault: {fault}"));
            if !matches!(fault, StoreError::Full(_)) {
                self.violations.push(format!("the store rejected a decision: {fault}"));
            }
        }
        for effect in handled.effects {
            match effect {
                Effect::Call(order) => self.call(*order),
                Effect::Cancel(id) => self.bench.stopped.push(id),
                Effect::Reply(response) => response.send(),
                Effect::Notify(_) | Effect::Forget(_) => {}
            }
        }
        let is_timers = |request: &Request| matches!(request, Request::Notification(Notification::TimersDue));
        self.backlog.extend(handled.retry.into_iter().filter(|request| !is_timers(request)));
    }
}

/// Keeps only the replies: they may have been sent before the process was killed, so they must be true.
fn answer_only(handled: &Handled) {
    for effect in &handled.effects {
        if let Effect::Reply(response) = effect {
            response.send();
        }
    }
}
