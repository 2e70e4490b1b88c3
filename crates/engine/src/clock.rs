//! Clocks: the time of the machine, or of a test.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use steprail_core::run::Millis;

/// A monotonic clock.
pub trait Clock: Send + Sync {
    /// The time, in milliseconds since 1970.
    fn now(&self) -> Millis;

    /// Registers a function to call when the clock is set by hand.
    fn on_change(&self, wake: Box<dyn Fn() + Send + Sync>) {
        drop(wake);
    }
}

/// The clock of the machine. It reads the wall clock once and then counts `CLOCK_BOOTTIME`, which includes suspends of the
/// machine. Setting the wall clock moves no timer.
#[derive(Debug)]
pub struct SystemClock {
    wall: Millis,
    since_boot: Millis,
}

impl SystemClock {
    /// A clock that starts at the time of the wall clock.
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

/// A clock that starts no earlier than the last committed event.
///
/// If the wall clock was set back while no engine ran, time continues from the last event. A timer that is set in this
/// state is then not early when the wall clock is corrected.
pub(crate) struct FloorClock {
    clock: Arc<dyn Clock>,
    ahead: Millis,
}

impl FloorClock {
    /// A clock that is now at the time of `clock`, or at `floor` if that is later.
    pub(crate) fn new(clock: Arc<dyn Clock>, floor: Option<Millis>) -> Self {
        let ahead = floor.map_or(0, |floor| floor.saturating_sub(clock.now()).max(0));
        if ahead > 0 {
            tracing::warn!(
                milliseconds = ahead,
                "the clock is behind the last committed event; time continues from there"
            );
        }
        Self { clock, ahead }
    }
}

impl Clock for FloorClock {
    fn now(&self) -> Millis {
        self.clock.now().saturating_add(self.ahead)
    }

    fn on_change(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.clock.on_change(wake);
    }
}

/// A clock for tests. Its time changes only by [`ManualClock::advance`].
#[derive(Default)]
pub struct ManualClock {
    now: AtomicI64,
    wakes: Mutex<Vec<Box<dyn Fn() + Send + Sync>>>,
}

impl ManualClock {
    /// A clock with this time.
    pub fn at(now: Millis) -> Self {
        Self { now: AtomicI64::new(now), wakes: Mutex::default() }
    }

    /// Adds to the time and wakes the engine.
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
