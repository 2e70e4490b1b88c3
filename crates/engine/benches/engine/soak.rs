//! Runs start, finish and are purged for a long time: memory and files stay as they are.

use std::path::Path;
use std::time::{Duration, Instant};

use steprail_engine::{Durability, Engine};

use crate::stage::{Player, Stage, database, noop, resident, steps};

const KEEP: Duration = Duration::from_secs(5);
const AT_ONCE: usize = 64;
/// How much more the last third may take than the middle one.
const SLACK: f64 = 1.1;

/// What was there at a moment, in bytes.
#[derive(Clone, Copy)]
struct Sample {
    memory: usize,
    database: usize,
    log: usize,
}

pub(crate) fn run(stage: &Stage, length: Duration) {
    let dir = stage.scratch();
    println!("{:>6} {:>9} {:>12} {:>12} {:>12}", "s", "runs/s", "memory KB", "database KB", "WAL KB");
    let samples = stage.runtime.block_on(soak(&database(&dir), length));
    for (name, of) in [("memory", memory as fn(&Sample) -> usize), ("the database", file)] {
        let (middle, last) = thirds(&samples, of);
        let verdict = if last <= middle * SLACK { "ok" } else { "MISS: it grows" };
        println!("{name}: {middle:.0} KB in the middle third, {last:.0} KB in the last: {verdict}");
    }
}

fn memory(sample: &Sample) -> usize {
    sample.memory
}

fn file(sample: &Sample) -> usize {
    sample.database + sample.log
}

/// What was there in the middle and in the last third, on average and in kilobytes.
fn thirds(samples: &[Sample], of: fn(&Sample) -> usize) -> (f64, f64) {
    let third = (samples.len() / 3).max(1);
    let mean = |part: &[Sample]| part.iter().map(of).sum::<usize>() as f64 / part.len() as f64 / 1024.0;
    let last = samples.len() - third;
    (mean(&samples[last.saturating_sub(third)..last.max(1)]), mean(&samples[last..]))
}

async fn soak(database: &Path, length: Duration) -> Vec<Sample> {
    let mut player = Player::new(database, Durability::Process, noop());
    player.define(&steps("five", 5)).await;
    let purging = tokio::spawn(purge(player.engine.clone()));
    let (begun, mut samples) = (Instant::now(), Vec::new());
    let interval = Duration::from_secs(10).min(length / 9);
    while begun.elapsed() < length {
        let (since, mut runs) = (Instant::now(), 0);
        while since.elapsed() < interval {
            player.pump("five", 10 * AT_ONCE, AT_ONCE).await;
            runs += 10 * AT_ONCE;
        }
        let sample = look(database);
        print(begun.elapsed(), runs as f64 / since.elapsed().as_secs_f64(), sample);
        samples.push(sample);
    }
    purging.abort();
    player.stop().await;
    samples
}

async fn purge(engine: Engine) {
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        engine.purge(KEEP).await.expect("a purge");
    }
}

fn look(database: &Path) -> Sample {
    let size = |path: &Path| {
        std::fs::metadata(path).map_or(0, |found| usize::try_from(found.len()).unwrap_or(usize::MAX))
    };
    let log = database.with_extension("db-wal");
    Sample { memory: resident(), database: size(database), log: size(&log) }
}

fn print(at: Duration, rate: f64, sample: Sample) {
    let kilobytes = [sample.memory, sample.database, sample.log].map(|bytes| bytes / 1024);
    let [memory, database, log] = kilobytes;
    println!("{:>6} {rate:>9.0} {memory:>12} {database:>12} {log:>12}", at.as_secs());
}
