//! The process: it takes requests, its store fails, and it dies between any two writes.

use steprail_engine::Error;
use steprail_engine::kernel::{Effect, Handled, Interrupt, Notification, Recover, Reply, Request};
use steprail_store::StoreError;

use super::Sim;
use super::common::shared::Faults;

impl Sim {
    /// The store will fail, for a while.
    pub(super) fn plan_fault(&mut self) {
        self.faults += 1;
        let mut faults = self.plan_of_faults.lock().expect("the faults");
        *faults = Faults {
            after: Some(self.rng.u32(0..6)),
            times: self.rng.u32(1..8),
            error: Some(StoreError::Full("simulated".to_owned())),
            ..Faults::default()
        };
    }

    /// The process will die at one of the next writes, or right after a commit whose answer it never gets.
    pub(super) fn plan_death(&mut self) {
        let mut faults = self.plan_of_faults.lock().expect("the faults");
        *faults = Faults {
            after: Some(self.rng.u32(0..8)),
            times: u32::MAX,
            error: Some(StoreError::Io("the process is dead".to_owned())),
            torn: self.rng.bool(),
            ..Faults::default()
        };
    }

    pub(super) fn die_now(&mut self) {
        self.crashes += 1;
        *self.plan_of_faults.lock().expect("the faults") = Faults::default();
        self.backlog.clear();
        self.stubborn.clear();
        let store = self.bench.die();
        self.tell(format_args!("dead"));
        self.bench.boot(store);
        if !self.quiet && self.rng.u8(0..4) == 0 {
            self.plan_death();
        }
        for interrupt in [Some(Interrupt::Declared), None] {
            let recover = Recover { after: steprail_store::RunKey(0), interrupt };
            self.ask(|reply| Request::Recover(recover, reply));
        }
        self.check();
    }

    pub(super) fn try_backlog(&mut self) {
        let backlog = std::mem::take(&mut self.backlog);
        if !backlog.is_empty() {
            self.tell(format_args!("again: {} requests", backlog.len()));
            self.hand_over(backlog);
        }
    }

    pub(super) fn ask<T>(&mut self, request: impl FnOnce(Reply<T>) -> Request) -> Option<Result<T, Error>> {
        let (reply, mut answer) = Reply::channel();
        self.hand_over(vec![request(reply)]);
        answer.try_recv().ok()
    }

    pub(super) fn notify(&mut self, notification: Notification) {
        let mut batch = std::mem::take(&mut self.backlog);
        batch.push(Request::Notification(notification));
        self.hand_over(batch);
    }

    /// The kernel works; then the process may turn out to be dead, and nothing leaves it.
    fn hand_over(&mut self, requests: Vec<Request>) {
        let now = self.bench.now;
        let handled = self.bench.kernel().handle(requests, now);
        let dead = {
            let faults = self.plan_of_faults.lock().expect("the faults");
            faults.tripped && matches!(faults.error, Some(StoreError::Io(_)))
        };
        if dead {
            self.die_now();
            return;
        }
        let skips_effects = self.mortal && !self.quiet && self.rng.u8(0..40) == 0;
        if skips_effects {
            self.tell(format_args!("dead right after a commit"));
            answer_only(&handled);
            self.die_now();
            return;
        }
        self.carry_out(handled);
    }

    fn carry_out(&mut self, handled: Handled) {
        if let Some(fault) = handled.fault {
            self.tell(format_args!("fault: {fault}"));
            if !matches!(fault, StoreError::Full(_)) {
                self.broken.push(format!("the store refused what was decided: {fault}"));
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

/// An answer may have left before the process died; what it says must hold.
fn answer_only(handled: &Handled) {
    for effect in &handled.effects {
        if let Effect::Reply(response) = effect {
            response.send();
        }
    }
}
