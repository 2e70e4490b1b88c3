//! `kill -9`: a process with many runs under way is killed again and again, and nothing is lost or done twice.

#[path = "common/audit.rs"]
mod audit;
mod torture;

use std::time::Duration;

use torture::check::judge;
use torture::life::{Acks, Life, Told};
use torture::worker::Job;
use torture::{seed, setting};

/// The program that is killed.
#[test]
#[ignore = "started by the harness"]
fn worker() {
    torture::worker::main();
}

#[test]
fn nothing_is_lost_or_done_twice_when_the_process_is_killed() {
    let (kills, at_once) = (setting("STEPRAIL_KILLS", 8), setting("STEPRAIL_RUNS", 20));
    let seed = seed();
    let mut random = fastrand::Rng::with_seed(seed);
    // What a failure leaves behind is kept.
    let folder = tempfile::tempdir().expect("a folder").keep();
    println!("in {}", folder.display());
    let mut job = Job {
        database: folder.join("steprail.db"),
        ledger: folder.join("ledger"),
        life: 0,
        from: 0,
        until: None,
        at_once: usize::try_from(at_once).expect("a number of runs"),
        full: true,
        feed: false,
        seed,
    };
    let (mut acks, mut waits) = (Acks::default(), Vec::new());
    for _ in 0..kills {
        let moment = Moment::draw(&mut random, at_once);
        waits.extend(live(&job, moment, &mut acks).filter(|_| job.life > 0));
        job.life += 1;
        job.from = acks.first_open();
    }
    job.until = Some(acks.beyond(job.at_once));
    Life::start(&job).finish(&mut acks);
    println!("kills                     {kills}");
    println!("runs at once              {at_once}");
    print_waits(waits);
    judge(&job, &acks).report();
    std::fs::remove_dir_all(folder).expect("a folder to remove");
}

/// When a worker is killed.
enum Moment {
    /// When it has told so many things from the beginning: while it recovers.
    Early(u32),
    /// When the ledger has so many lines more.
    Lines(u64),
}

impl Moment {
    fn draw(random: &mut fastrand::Rng, at_once: u64) -> Self {
        if random.u8(0..6) == 0 {
            Self::Early(random.u32(1..4))
        } else {
            Self::Lines(random.u64(1..at_once * 8))
        }
    }

    /// Whether it has come, given what was just told.
    fn has_come(&mut self, told: &Told) -> bool {
        match self {
            Self::Early(left) => {
                *left -= 1;
                *left == 0
            }
            Self::Lines(left) => {
                *left -= u64::from(*told == Told::Call);
                *left == 0
            }
        }
    }
}

/// A worker from its start to its violent end. Gives how long it took to its first call.
fn live(job: &Job, mut moment: Moment, acks: &mut Acks) -> Option<Duration> {
    let mut life = Life::start(job);
    loop {
        let told = life.next(acks).expect("a worker that lives until it is killed");
        if moment.has_come(&told) {
            break;
        }
    }
    life.kill();
    life.drain(acks);
    life.first_call
}

/// How long workers took from their start to their first call.
fn print_waits(mut waits: Vec<Duration>) {
    waits.sort();
    let share = |percent: usize| waits.get((waits.len() * percent / 100).min(waits.len().saturating_sub(1)));
    let millis = |percent| share(percent).map_or(0.0, |wait| wait.as_secs_f64() * 1_000.0);
    let (half, most, all) = (millis(50), millis(99), millis(100));
    println!("start to first call       median {half:.0} ms, 99 % {most:.0} ms, worst {all:.0} ms");
}
