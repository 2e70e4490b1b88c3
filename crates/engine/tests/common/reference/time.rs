//! An executor in virtual time: all futures are polled again after every change.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use steprail_core::run::Millis;

use super::Part;

/// The order of simultaneous events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ties {
    /// In the order of the definition, each with all of its consequences.
    InOrder,
    /// Each future in progress makes this many steps before another one continues.
    InTurns(u32),
    /// Shuffled with a seed.
    Shuffled(u64),
}

pub(super) struct Clock {
    now: Cell<Millis>,
    /// The next time that a future waits for.
    next: Cell<Option<Millis>>,
    /// Whether a change may wake other futures at this time.
    again: Cell<bool>,
    /// Whether all consequences of events at this time have happened.
    quiet: Cell<bool>,
    /// Whether a future waits for that.
    awaits_quiet: Cell<bool>,
    turns: u32,
    chance: Option<RefCell<fastrand::Rng>>,
}

impl Clock {
    pub(super) fn new(now: Millis, ties: Ties) -> Self {
        let (turns, chance) = match ties {
            Ties::InOrder => (0, None),
            Ties::InTurns(turns) => (turns, None),
            Ties::Shuffled(seed) => (0, Some(RefCell::new(fastrand::Rng::with_seed(seed)))),
        };
        Self {
            now: Cell::new(now),
            next: Cell::new(None),
            again: Cell::new(false),
            quiet: Cell::new(false),
            awaits_quiet: Cell::new(false),
            turns,
            chance,
        }
    }

    pub(super) fn now(&self) -> Millis {
        self.now.get()
    }

    /// Signals a change that other futures may wait for.
    pub(super) fn changed(&self) {
        self.again.set(true);
    }

    /// Whether all other events at this time have happened.
    pub(super) fn is_quiet(&self) -> bool {
        self.awaits_quiet.set(!self.quiet.get());
        self.quiet.get()
    }

    /// Waits until a time.
    pub(super) async fn until(&self, due: Millis) {
        poll_fn(|_| {
            if self.now() >= due {
                return Poll::Ready(());
            }
            self.next.set(Some(self.next.get().map_or(due, |next| next.min(due))));
            Poll::Pending
        })
        .await;
    }

    /// Waits for a duration.
    pub(super) async fn sleep(&self, millis: Millis) {
        self.until(self.now() + millis).await;
    }

    /// Waits for a future with a timeout. Returns `None` after the timeout.
    pub(super) async fn within<T>(&self, millis: Option<u64>, mut part: Part<'_, T>) -> Option<T> {
        let Some(millis) = millis else { return Some(part.await) };
        let mut timer = Box::pin(self.sleep(i64::try_from(millis).expect("a duration")));
        poll_fn(|context| match part.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => timer.as_mut().poll(context).map(|()| None),
        })
        .await
    }

    /// Yields between two steps, so that other futures can continue.
    pub(super) async fn turn(&self) {
        let mut left = self.chance.as_ref().map_or(self.turns, |chance| chance.borrow_mut().u32(0..3));
        poll_fn(|_| {
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            self.changed();
            Poll::Pending
        })
        .await;
    }

    /// Advances time until a future is ready.
    pub(super) fn drive<T>(&self, mut part: Part<'_, T>) -> T {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            self.next.set(None);
            self.again.set(false);
            if let Poll::Ready(value) = part.as_mut().poll(&mut context) {
                return value;
            }
            if self.again.get() {
                self.quiet.set(false);
            } else if self.awaits_quiet.take() {
                self.quiet.set(true);
            } else {
                self.quiet.set(false);
                self.now.set(self.next.get().expect("something to wait for"));
            }
        }
    }
}

/// Concurrent futures, by key.
pub(super) struct Parts<'p, K, T> {
    clock: &'p Clock,
    open: BTreeMap<K, Part<'p, T>>,
}

impl<'p, K: Ord + Copy, T> Parts<'p, K, T> {
    pub(super) fn new(clock: &'p Clock) -> Self {
        Self { clock, open: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, key: K, part: Part<'p, T>) {
        self.open.insert(key, part);
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns the next result; `None` if no future is left.
    pub(super) async fn next(&mut self) -> Option<(K, T)> {
        poll_fn(|context| {
            let mut keys: Vec<K> = self.open.keys().copied().collect();
            if let Some(chance) = &self.clock.chance {
                chance.borrow_mut().shuffle(&mut keys);
            }
            for key in &keys {
                let part = self.open.get_mut(key).expect("a part");
                if let Poll::Ready(value) = part.as_mut().poll(context) {
                    self.open.remove(key);
                    return Poll::Ready(Some((*key, value)));
                }
            }
            if keys.is_empty() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }
}
