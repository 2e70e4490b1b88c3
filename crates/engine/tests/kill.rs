//! `kill -9`: a process with many runs in progress is killed repeatedly. Nothing is lost or done twice.

#[path = "common/audit.rs"]
mod audit;
mod torture;

use std::time::Duration;

use torture::check::verify;
use torture::process::{Acks, Message, WorkerProcess};
use torture::worker::Job;
use torture::{seed, setting};

/// The worker process that is killed.
#[test]
#[ignore = "started by the harness"]
fn worker() {
    torture::worker::main();
}

#[test]
fn killed_process_loses_nothing_and_repeats_no_call_without_consent() {
    let (kills, concurrency) = (setting("STEPRAIL_KILLS", 8), setting("STEPRAIL_RUNS", 20));
    let seed = seed();
    let mut random = fastrand::Rng::with_seed(seed);
    // Kept for inspection if the test fails.
    let folder = tempfile::tempdir().expect("a folder").keep();
    println!("in {}", folder.display());
    let mut job = Job {
        database: folder.join("steprail.db"),
        ledger: folder.join("ledger"),
        worker: 0,
        from: 0,
        until: None,
        concurrency: usize::try_from(concurrency).expect("a number of runs"),
        full: true,
        feed: false,
        seed,
    };
    let (mut acks, mut start_times) = (Acks::default(), Vec::new());
    for _ in 0..kills {
        let trigger = KillTrigger::draw(&mut random, concurrency);
        start_times.extend(run_until_killed(&job, trigger, &mut acks).filter(|_| job.worker > 0));
        job.worker += 1;
        job.from = acks.first_open();
    }
    job.until = Some(acks.beyond(job.concurrency));
    WorkerProcess::start(&job).finish(&mut acks);
    println!("kills                     {kills}");
    println!("runs at once              {concurrency}");
    print_start_times(start_times);
    verify(&job, &acks).report();
    std::fs::remove_dir_all(folder).expect("a folder to remove");
}

/// When a worker is killed.
enum KillTrigger {
    /// After this many messages from its start, during recovery.
    Early(u32),
    /// After this many further lines in the ledger.
    Lines(u64),
}

impl KillTrigger {
    fn draw(random: &mut fastrand::Rng, concurrency: u64) -> Self {
        if random.u8(0..6) == 0 {
            Self::Early(random.u32(1..4))
        } else {
            Self::Lines(random.u64(1..concurrency * 8))
        }
    }

    /// Whether the worker is killed after this message.
    fn fires(&mut self, message: &Message) -> bool {
        match self {
            Self::Early(left) => {
                *left -= 1;
                *left == 0
            }
            Self::Lines(left) => {
                *left -= u64::from(*message == Message::Call);
                *left == 0
            }
        }
    }
}

/// Runs a worker until it is killed. Returns the time from its start to its first call.
fn run_until_killed(job: &Job, mut trigger: KillTrigger, acks: &mut Acks) -> Option<Duration> {
    let mut worker = WorkerProcess::start(job);
    loop {
        let message = worker.next(acks).expect("a worker that runs until it is killed");
        if trigger.fires(&message) {
            break;
        }
    }
    worker.kill();
    worker.drain(acks);
    worker.first_call
}

/// Prints the times from the start of workers to their first calls.
fn print_start_times(mut start_times: Vec<Duration>) {
    start_times.sort();
    let percentile = |percent: usize| {
        start_times.get((start_times.len() * percent / 100).min(start_times.len().saturating_sub(1)))
    };
    let millis = |percent| percentile(percent).map_or(0.0, |time| time.as_secs_f64() * 1_000.0);
    let (median, p99, worst) = (millis(50), millis(99), millis(100));
    println!("start to first call       median {median:.0} ms, 99 % {p99:.0} ms, worst {worst:.0} ms");
}
