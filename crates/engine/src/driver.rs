//! The thread that decides and commits: it waits, hands over to the kernel, and carries out the effects.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use steprail_core::run::Millis;
use steprail_store::{RunKey, StoreError};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::calls::Calls;
use crate::clock::Clock;
use crate::error::Error;
use crate::kernel::{Action, Answer, Effect, Handled, Interrupt, Kernel, Reply, Request};
use crate::limits::{BATCH, FAULT_DELAY_MS};
use crate::meters::{self, Meters};
use crate::ports::Notifier;

/// What reaches the thread.
#[expect(clippy::large_enum_variant, reason = "nearly every message is a request")]
pub(crate) enum Message {
    /// Something to do.
    Request(Request),
    /// Time was set by hand.
    Wake,
    /// The engine is shut down.
    Stop(Reply),
}

/// How long the thread looks for the end of a call before it falls asleep.
const LOOK_OUT: Duration = Duration::from_micros(50);
/// The longest that the thread sleeps without looking at the clock.
const LONGEST_WAIT: Duration = Duration::from_mins(1);

pub(crate) struct Driver {
    pub kernel: Kernel,
    pub messages: Receiver<Message>,
    pub calls: Calls,
    pub meters: Arc<Meters>,
    pub clock: Arc<dyn Clock>,
    pub notifier: Option<Arc<dyn Notifier>>,
    pub runtime: Handle,
    pub last_event: watch::Sender<i64>,
    pub fault: watch::Sender<Option<StoreError>>,
    /// Whether runs were picked up: before, what is stored tells of calls that are no longer under way.
    pub readable: watch::Sender<bool>,
    /// What is still to be picked up: which runs, and after which number.
    pub recovery: VecDeque<(Option<Interrupt>, RunKey)>,
    pub backlog: Backlog,
    /// What was asked for before everything was picked up.
    pub early: Vec<Request>,
    /// What ended all work: the store can no longer be trusted.
    pub halted: Option<StoreError>,
    /// How long calls in flight may take when it is told to stop.
    pub patience: Duration,
}

/// What the store could not take and is tried again.
#[derive(Default)]
pub(crate) struct Backlog {
    requests: Vec<Request>,
    again_at: Option<Instant>,
    delay_ms: u64,
}

impl Driver {
    /// Works until the engine is shut down; then says whom to tell, and how many calls were left. The store is
    /// closed when this returns.
    pub(crate) fn run(mut self) -> Option<(Reply, usize)> {
        let mut stopping: Option<(Reply, Instant)> = None;
        self.recover();
        self.readable.send_replace(true);
        loop {
            self.recover();
            self.fire_timers(stopping.is_some());
            let wait = self.wait_time(stopping.as_ref().map(|(_, until)| *until));
            let mut batch = Vec::new();
            match self.receive(wait) {
                Ok(message) => self.take(message, &mut batch, &mut stopping),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
            while batch.len() < BATCH {
                let Ok(message) = self.messages.try_recv() else { break };
                self.take(message, &mut batch, &mut stopping);
            }
            self.retry_backlog(&mut batch);
            self.hold_back(&mut batch);
            if !batch.is_empty() {
                self.handle(batch);
            }
            if let Some((_, until)) = &stopping
                && (self.calls.in_flight() == 0 || Instant::now() >= *until)
            {
                let (reply, _) = stopping.take()?;
                return Some((reply, self.stop()));
            }
        }
    }

    /// Before every run was picked up, nothing new is begun: it would be taken for something of the last engine.
    fn hold_back(&mut self, batch: &mut Vec<Request>) {
        if self.halted.is_some() {
            self.early.append(batch);
            for reply in self.early.drain(..).filter_map(|request| request.reply) {
                reply.send(Err(self.halted.clone().map_or(Error::Stopped, Error::Storage)));
            }
        } else if self.recovery.is_empty() {
            batch.splice(0..0, self.early.drain(..));
        } else {
            self.early.append(batch);
        }
    }

    /// The end: what could not be written is tried once more, and calls that are left are told to stop.
    fn stop(&mut self) -> usize {
        let kept = std::mem::take(&mut self.backlog.requests);
        if !kept.is_empty() && self.halted.is_none() {
            self.handle(kept);
        }
        for reply in self.early.drain(..).filter_map(|request| request.reply) {
            reply.send(Err(Error::Stopped));
        }
        self.calls.leave_all();
        self.calls.in_flight()
    }

    /// The next message. While calls are in flight one is likely to come soon: to look for a moment costs less
    /// than to fall asleep and be woken.
    fn receive(&self, wait: Duration) -> Result<Message, RecvTimeoutError> {
        if self.calls.in_flight() > 0 {
            let until = Instant::now() + LOOK_OUT;
            while Instant::now() < until {
                match self.messages.try_recv() {
                    Ok(message) => return Ok(message),
                    Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                    Err(TryRecvError::Empty) => std::thread::yield_now(),
                }
            }
        }
        self.messages.recv_timeout(wait)
    }

    fn take(&mut self, message: Message, batch: &mut Vec<Request>, stopping: &mut Option<(Reply, Instant)>) {
        match message {
            Message::Request(request) => {
                if let Action::CallEnded { id, .. } = request.action {
                    self.calls.forget(id);
                }
                // A new call would be lost when the engine stops; what ended is still written.
                match (&request.reply, &self.halted) {
                    (Some(reply), Some(fault)) => reply.send(Err(Error::Storage(fault.clone()))),
                    (None, Some(_)) => {}
                    (Some(reply), None) if stopping.is_some() => reply.send(Err(Error::Stopped)),
                    _ => batch.push(request),
                }
            }
            Message::Wake => {}
            Message::Stop(_) if stopping.is_some() => {}
            Message::Stop(reply) => {
                self.kernel.stop_admitting();
                *stopping = Some((reply, Instant::now() + self.patience));
            }
        }
    }

    fn wait_time(&mut self, stop_at: Option<Instant>) -> Duration {
        let now = self.clock.now();
        let timer = match self.kernel.next_timer() {
            Ok(Some(due))
                if self.backlog.again_at.is_none() && self.halted.is_none() && stop_at.is_none() =>
            {
                Duration::from_millis(u64::try_from(due.saturating_sub(now)).unwrap_or_default())
            }
            _ => LONGEST_WAIT,
        };
        let until = |at: Instant| at.saturating_duration_since(Instant::now());
        let others = [self.backlog.again_at.map(until), stop_at.map(until)];
        others.into_iter().flatten().fold(timer.min(LONGEST_WAIT), Duration::min)
    }

    fn fire_timers(&mut self, stopping: bool) {
        if stopping || self.halted.is_some() || self.backlog.again_at.is_some() {
            return;
        }
        while self.timer_is_due() && self.backlog.again_at.is_none() && self.halted.is_none() {
            self.handle(vec![Request { action: Action::FireTimers, reply: None }]);
        }
    }

    fn timer_is_due(&mut self) -> bool {
        let now: Millis = self.clock.now();
        matches!(self.kernel.next_timer(), Ok(Some(due)) if due <= now)
    }

    fn handle(&mut self, batch: Vec<Request>) {
        let (requests, begun) = (batch.len(), Instant::now());
        let handled = self.kernel.handle(batch, self.clock.now());
        self.meters.committed(&handled.tally, requests, begun.elapsed(), self.kernel.queue_length());
        self.settle(handled);
    }

    /// Carries out what was committed, and keeps what was not.
    fn settle(&mut self, handled: Handled) {
        if let Some(id) = handled.last_event {
            self.last_event.send_replace(id);
        }
        for effect in handled.effects {
            match effect {
                Effect::Call(order) => self.calls.order(*order),
                Effect::Cancel(id) => self.calls.cancel(id),
                Effect::Answer(reply, answer) => reply.send(answer),
                Effect::Forget(state) => self.calls.forget_question(&state),
                Effect::Notify(notice) => {
                    if let Some(notifier) = self.notifier.clone() {
                        self.runtime.spawn(async move { notifier.notify(notice).await });
                    }
                }
            }
        }
        match handled.fault {
            Some(fault) => self.fault_found(fault, handled.halts, handled.retry),
            None if self.halted.is_none()
                && !self.kernel.has_damage()
                && self.backlog.again_at.is_none()
                && self.fault.borrow().is_some() =>
            {
                tracing::info!("the store works again");
                self.fault.send_replace(None);
            }
            None => {}
        }
    }

    fn fault_found(&mut self, fault: StoreError, halts: bool, retry: Vec<Request>) {
        tracing::error!(code = fault.code(), "{fault}");
        meters::storage_fault(fault.code());
        self.fault.send_replace(Some(fault.clone()));
        if halts || fault.is_final() {
            self.kernel.give_up(&fault);
            self.halted = Some(fault);
            self.backlog = Backlog::default();
            return;
        }
        // What is damaged stays so; everything else goes on.
        if !fault.may_pass() {
            return;
        }
        // Timers are still in the store; only what came from outside has to be kept.
        let kept = retry.into_iter().filter(|request| !matches!(request.action, Action::FireTimers));
        self.backlog.requests.extend(kept);
        let (first, longest) = FAULT_DELAY_MS;
        // Others that are refused in the meantime do not put it off.
        if self.backlog.again_at.is_none() {
            self.backlog.delay_ms = (self.backlog.delay_ms * 2).clamp(first, longest);
            self.backlog.again_at = Some(Instant::now() + Duration::from_millis(self.backlog.delay_ms));
        }
    }

    /// Tries again what the store did not take.
    fn retry_backlog(&mut self, batch: &mut Vec<Request>) {
        if self.backlog.again_at.is_some_and(|at| at <= Instant::now()) {
            self.backlog.again_at = None;
            let kept = std::mem::take(&mut self.backlog.requests);
            if kept.is_empty() && batch.is_empty() && !self.kernel.has_damage() {
                // Nothing to write: an timer, if there is one, shows whether the store works again.
                self.fault.send_replace(None);
            }
            batch.splice(0..0, kept);
        }
        if self.backlog.again_at.is_none() && self.fault.borrow().is_none() {
            self.backlog.delay_ms = 0;
        }
    }

    /// Picks up every run that was under way. If the store fails on the way, the rest waits until it works.
    fn recover(&mut self) {
        while let Some((interrupt, after)) = self.recovery.front().copied() {
            if self.backlog.again_at.is_some() || self.halted.is_some() {
                return;
            }
            let (reply, mut answer) = Reply::channel();
            let action = Action::Recover { after, interrupt };
            self.handle(vec![Request { action, reply: Some(reply) }]);
            match answer.try_recv() {
                Ok(Ok(Answer::More(Some(more)))) => self.recovery[0].1 = more,
                Ok(Ok(_)) => drop(self.recovery.pop_front()),
                _ => {}
            }
        }
    }
}
