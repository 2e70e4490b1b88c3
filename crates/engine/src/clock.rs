//! Time: the machine's, or a test's.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use steprail_core::run::Millis;

/// Tells the time, in milliseconds since 1970. It never goes back.
pub trait Clock: Send + Sync {
    /// The time.
    fn now(&self) -> Millis;

    /// Asks to be woken when the clock is set by hand.
    fn on_change(&self, wake: Box<dyn Fn() + Send + Sync>) {
        drop(wake);
    }
}

/// The machine's clock, read once; from there it counts what really passes, sleep of the machine included.
/// A clock that is set forwards or back does not make a run wait or hurry.
#[derive(Debug)]
pub struct SystemClock {
    wall: Millis,
    since_boot: Millis,
}

impl SystemClock {
    /// A clock that starts at the machine's time.
    pub fn new() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Self { wall: Millis::try_from(wall).unwrap_or(Millis::MAX), since_boot: since_boot() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Millis {
        self.wall + (since_boot() - self.since_boot)
    }
}

fn since_boot() -> Millis {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec * 1_000 + Millis::from(time.tv_nsec) / 1_000_000
}

/// A clock that stands still until it is set: for tests.
#[derive(Default)]
pub struct ManualClock {
    now: AtomicI64,
    wakes: Mutex<Vec<Box<dyn Fn() + Send + Sync>>>,
}

impl ManualClock {
    /// A clock that shows a time.
    pub fn at(now: Millis) -> Self {
        Self { now: AtomicI64::new(now), wakes: Mutex::default() }
    }

    /// Lets time pass.
    pub fn advance(&self, millis: Millis) {
        self.now.fetch_add(millis, Ordering::SeqCst);
        self.wakes.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|wake| wake());
    }
}

impl std::fmt::Debug for ManualClock {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "ManualClock({})", self.now())
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Millis {
        self.now.load(Ordering::SeqCst)
    }

    fn on_change(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.wakes.lock().unwrap_or_else(PoisonError::into_inner).push(wake);
    }
}
