//! The engine thread: receives messages, passes batches of requests to the kernel and carries out its effects.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use steprail_core::run::Millis;
use steprail_store::{Cursor, RunId, StoreError, Upkeep};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::calls::Calls;
use crate::clock::Clock;
use crate::error::Error;
use crate::kernel::{Effect, Handled, Interrupt, Kernel, Notification, Recover, Reply, Request};
use crate::limits::{BATCH, FAULT_DELAY_MS};
use crate::metrics::{self, Metrics};
use crate::ports::Notifier;
use crate::run_signals::RunSignals;
use crate::supervision::panic_message;
use crate::upkeep::UpkeepTimes;

/// A message to the engine thread.
pub(crate) enum Message {
    Request(Request),
    /// The clock was set by hand, or there is an urgent message.
    Wake,
    /// Replies at once: a health check of the thread.
    Probe(Reply<()>),
    /// Shuts the engine down. The reply is the number of abandoned calls.
    Stop(Reply<usize>),
}

/// How long the thread polls for the end of a call before it blocks.
const SPIN_TIME: Duration = Duration::from_micros(50);
/// The longest time that the thread blocks before it reads the clock again.
const MAX_WAIT: Duration = Duration::from_mins(1);

pub(crate) struct Driver {
    pub kernel: Kernel,
    pub messages: Receiver<Message>,
    /// Probes and commands of the owner, which overtake other messages.
    pub urgent: Receiver<Message>,
    pub calls: Calls,
    pub metrics: Arc<Metrics>,
    pub clock: Arc<dyn Clock>,
    pub notifier: Option<Arc<dyn Notifier>>,
    /// Signals that the outbox changed.
    pub outbox: watch::Sender<()>,
    pub runtime: Handle,
    pub last_event: watch::Sender<Cursor>,
    pub run_signals: Arc<RunSignals>,
    pub fault: watch::Sender<Option<StoreError>>,
    /// Runs that do not continue, each with the reason.
    pub damaged: watch::Sender<BTreeMap<RunId, StoreError>>,
    /// Reads block until this is true: before recovery, rows show calls of the previous engine as in flight.
    pub recovered: watch::Sender<bool>,
    /// The passes of recovery that are left, each with the run to continue after.
    pub recovery: VecDeque<(Option<Interrupt>, Option<RunId>)>,
    pub backlog: Backlog,
    /// Requests that arrived before recovery finished.
    pub held: Vec<Request>,
    /// The fault after which the engine writes nothing more.
    pub halted: Option<StoreError>,
    /// Tells the embedding program about `halted`.
    pub halt: watch::Sender<Option<StoreError>>,
    pub upkeep: UpkeepTimes,
    /// How long a shutdown waits for calls in flight.
    pub shutdown_timeout: Duration,
}

/// Requests that the store could not accept, to be retried with backoff.
#[derive(Default)]
pub(crate) struct Backlog {
    requests: Vec<Request>,
    retry_at: Option<Instant>,
    delay_ms: u64,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.run_signals.close();
    }
}

/// A shutdown in progress: its reply and its deadline.
type Shutdown = Option<(Reply<usize>, Instant)>;

impl Driver {
    /// Works until the engine is shut down. Returns the reply and the number of abandoned calls. The reply must be sent
    /// after the driver was dropped, because that closes the store.
    pub(crate) fn run(&mut self) -> Option<(Reply<usize>, usize)> {
        let mut shutdown: Shutdown = None;
        self.recover();
        self.recovered.send_replace(true);
        loop {
            self.recover();
            self.fire_timers(shutdown.is_some());
            self.maintain();
            let continues = shutdown.is_none() && self.continues();
            let wait = self.wait_time(shutdown.as_ref().map(|(_, deadline)| *deadline));
            let mut batch = Vec::new();
            match self.receive(wait, continues) {
                Ok(message) => self.accept(message, &mut batch, &mut shutdown),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
            for message in self.urgent.try_iter().take(BATCH).collect::<Vec<_>>() {
                self.accept(message, &mut batch, &mut shutdown);
            }
            while batch.len() < BATCH {
                let Ok(message) = self.messages.try_recv() else { break };
                self.accept(message, &mut batch, &mut shutdown);
            }
            self.retry_backlog(&mut batch);
            self.hold_until_recovered(&mut batch);
            if !batch.is_empty() || continues {
                self.handle(batch);
            }
            if let Some((_, deadline)) = &shutdown
                // After a final fault the results of calls cannot be written.
                && (self.calls.in_flight() == 0 || Instant::now() >= *deadline || self.halted.is_some())
            {
                let (reply, _) = shutdown.take()?;
                return Some((reply, self.stop()));
            }
        }
    }

    /// Holds requests back until recovery has finished. Recovery would otherwise mark their calls as lost.
    fn hold_until_recovered(&mut self, batch: &mut Vec<Request>) {
        if let Some(fault) = self.halted.clone() {
            let held = self.held.drain(..).chain(batch.drain(..));
            held.for_each(|request| request.reject(Error::Storage(fault.clone())));
        } else if self.recovery.is_empty() {
            batch.splice(0..0, self.held.drain(..));
        } else {
            self.held.append(batch);
        }
    }

    /// Retries the backlog once, rejects held requests and abandons the calls in flight. Returns their number.
    fn stop(&mut self) -> usize {
        let backlog = std::mem::take(&mut self.backlog.requests);
        if !backlog.is_empty() && self.halted.is_none() {
            self.handle(backlog);
        }
        self.held.drain(..).for_each(|request| request.reject(Error::Stopped));
        self.calls.abandon_all();
        self.calls.in_flight()
    }

    /// Whether a run owes a continuation and the store accepts writes.
    fn continues(&self) -> bool {
        self.kernel.owes_continuation() && self.backlog.retry_at.is_none() && self.halted.is_none()
    }

    /// Receives the next message. While calls are in flight the thread polls first: for a message that is likely to
    /// come soon, this costs less than blocking and being woken. If a run owes a continuation, the thread does not
    /// wait.
    fn receive(&self, wait: Duration, continues: bool) -> Result<Message, RecvTimeoutError> {
        if continues {
            return self.messages.recv_timeout(Duration::ZERO);
        }
        if self.calls.in_flight() > 0 {
            let until = Instant::now() + SPIN_TIME;
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

    fn accept(&mut self, message: Message, batch: &mut Vec<Request>, shutdown: &mut Shutdown) {
        match message {
            Message::Request(request) => {
                if let Request::Notification(Notification::CallEnded { id, .. }) = request {
                    self.calls.remove(id);
                }
                if let Some(fault) = &self.halted {
                    request.reject(Error::Storage(fault.clone()));
                } else if shutdown.is_some() && !request.is_notification() {
                    // A new run could make no calls. Ends of calls are still written.
                    request.reject(Error::Stopped);
                } else {
                    batch.push(request);
                }
            }
            Message::Wake => {}
            Message::Probe(reply) => reply.send(Ok(())),
            Message::Stop(_) if shutdown.is_some() => {}
            Message::Stop(reply) => {
                self.kernel.stop_admitting();
                *shutdown = Some((reply, Instant::now() + self.shutdown_timeout));
            }
        }
    }

    fn wait_time(&mut self, stop_at: Option<Instant>) -> Duration {
        let now = self.clock.now();
        let timer = match self.kernel.next_timer() {
            Ok(Some(due))
                if self.backlog.retry_at.is_none() && self.halted.is_none() && stop_at.is_none() =>
            {
                Duration::from_millis(u64::try_from(due.saturating_sub(now)).unwrap_or_default())
            }
            _ => MAX_WAIT,
        };
        let until = |at: Instant| at.saturating_duration_since(Instant::now());
        let others = [self.backlog.retry_at.map(until), stop_at.map(until), Some(until(self.upkeep.next()))];
        others.into_iter().flatten().fold(timer.min(MAX_WAIT), Duration::min)
    }

    fn fire_timers(&mut self, is_stopping: bool) {
        if is_stopping {
            return;
        }
        while self.backlog.retry_at.is_none() && self.halted.is_none() && self.timer_is_due() {
            self.handle(vec![Request::Notification(Notification::TimersDue)]);
        }
    }

    fn timer_is_due(&mut self) -> bool {
        let now: Millis = self.clock.now();
        matches!(self.kernel.next_timer(), Ok(Some(due)) if due <= now)
    }

    fn handle(&mut self, batch: Vec<Request>) {
        let (requests, started) = (batch.len(), Instant::now());
        let handled = self.kernel.handle(batch, self.clock.now());
        self.metrics.committed(&handled.stats, requests, started.elapsed(), self.kernel.queue_length());
        self.upkeep.worked();
        self.carry_out(handled);
    }

    /// Carries out the effects of a commit and keeps requests that were not committed.
    fn carry_out(&mut self, handled: Handled) {
        if let Some(cursor) = handled.last_event {
            self.last_event.send_replace(cursor);
            self.run_signals.notify(&handled.changed);
        }
        if handled.outbox_changed {
            self.outbox.send_replace(());
        }
        // Whoever gets a reply about a damaged run can read why.
        self.publish_damage();
        let mut orders = Vec::new();
        for effect in handled.effects {
            match effect {
                Effect::Call(order) => orders.push(*order),
                Effect::Cancel(id) => self.calls.cancel(id),
                Effect::Reply(response) => response.send(),
                Effect::Forget(state) => self.calls.release_input_request(&state),
                Effect::Notify(notice) => {
                    if let Some(notifier) = self.notifier.clone() {
                        let notifying = self.runtime.spawn(async move { notifier.notify(notice).await });
                        self.runtime.spawn(report_panic(notifying));
                    }
                }
            }
        }
        self.calls.start_all(orders);
        match handled.fault {
            Some(fault @ StoreError::Quarantined { .. }) if handled.retry.is_empty() => {
                // The store accepts writes: other runs continue, and the health check passes.
                tracing::error!(code = fault.code(), "{fault}");
                metrics::panicked("decision");
            }
            Some(fault) => self.store_failed(fault, handled.halts, handled.retry),
            None if self.fault.borrow().is_none() || self.backlog.retry_at.is_some() => {}
            None if handled.last_event.is_some() => self.store_recovered(),
            // Nothing was written, so the state of the store is unknown.
            None => self.probe(),
        }
    }

    fn store_recovered(&mut self) {
        if self.halted.is_none() && !self.kernel.has_damage() {
            tracing::info!("the store accepts writes again");
            self.fault.send_replace(None);
        }
    }

    /// Probes whether the store accepts writes again.
    fn probe(&mut self) {
        if self.halted.is_some() || self.kernel.has_damage() {
            return;
        }
        match self.kernel.maintain(Upkeep::Probe) {
            Ok(_) => self.store_recovered(),
            Err(fault) => self.store_failed(fault, false, Vec::new()),
        }
    }

    /// Runs the upkeep of the store when it is due.
    fn maintain(&mut self) {
        let Some(task) = self.upkeep.due().filter(|_| self.halted.is_none()) else { return };
        match self.kernel.maintain(task) {
            Ok(health) => self.metrics.wal(self.upkeep.checked(health)),
            Err(fault) if fault.is_final() => self.store_failed(fault, true, Vec::new()),
            Err(fault) => tracing::warn!(code = fault.code(), "upkeep of the store failed: {fault}"),
        }
    }

    /// Publishes the runs that do not continue. Their number only grows.
    fn publish_damage(&self) {
        let damaged = self.kernel.damaged();
        if damaged.len() != self.damaged.borrow().len() {
            self.metrics.damaged_runs(damaged.len());
            self.damaged.send_replace(damaged.clone());
        }
    }

    fn store_failed(&mut self, fault: StoreError, halts: bool, retry: Vec<Request>) {
        tracing::error!(code = fault.code(), "{fault}");
        metrics::storage_fault(fault.code());
        self.fault.send_replace(Some(fault.clone()));
        if halts || fault.is_final() {
            self.kernel.give_up(&fault);
            self.halt.send_replace(Some(fault.clone()));
            self.halted = Some(fault);
            self.backlog = Backlog::default();
            return;
        }
        // Damage affects one run and is permanent, so there is nothing to retry.
        if !fault.may_pass() && retry.is_empty() {
            return;
        }
        // Due timers are still in the store and need no entry in the backlog.
        let is_timers = |request: &Request| matches!(request, Request::Notification(Notification::TimersDue));
        self.backlog.requests.extend(retry.into_iter().filter(|request| !is_timers(request)));
        // A failure during the delay must not prolong it.
        if self.backlog.retry_at.is_none() {
            let (first, longest) = FAULT_DELAY_MS;
            self.backlog.delay_ms = (self.backlog.delay_ms * 2).clamp(first, longest);
            self.backlog.retry_at = Some(Instant::now() + Duration::from_millis(self.backlog.delay_ms));
        }
    }

    /// Moves the backlog to the batch when its delay is over.
    fn retry_backlog(&mut self, batch: &mut Vec<Request>) {
        if self.backlog.retry_at.is_some_and(|at| at <= Instant::now()) {
            self.backlog.retry_at = None;
            let backlog = std::mem::take(&mut self.backlog.requests);
            if backlog.is_empty() && batch.is_empty() {
                self.probe();
            }
            batch.splice(0..0, backlog);
        }
        if self.backlog.retry_at.is_none() && self.fault.borrow().is_none() {
            self.backlog.delay_ms = 0;
        }
    }

    /// Recovers unfinished runs. If the store fails, the rest follows when it accepts writes again.
    fn recover(&mut self) {
        while let Some((interrupt, after)) = self.recovery.front().copied() {
            if self.backlog.retry_at.is_some() || self.halted.is_some() {
                return;
            }
            let (reply, mut next) = Reply::channel();
            self.handle(vec![Request::Recover(Recover { after, interrupt }, reply)]);
            match next.try_recv() {
                Ok(Ok(next @ Some(_))) => self.recovery[0].1 = next,
                Ok(Ok(None)) => drop(self.recovery.pop_front()),
                _ => {}
            }
        }
    }
}

/// Reports a panic of the notifier. The notice is lost; the engine continues.
async fn report_panic(notifying: JoinHandle<()>) {
    if let Err(error) = notifying.await
        && error.is_panic()
    {
        let panic = error.into_panic();
        tracing::error!("the notifier panicked: {}", panic_message(&*panic));
        metrics::panicked("notifier");
    }
}
