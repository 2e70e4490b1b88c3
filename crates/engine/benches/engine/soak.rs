//! A soak test: runs start, complete and are purged for a long time. Memory and file sizes must not grow.

use std::path::Path;
use std::time::{Duration, Instant};

use steprail_engine::{Durability, Engine};

use crate::harness::{BenchEngine, Harness, database, linear, noop, resident};

const RETENTION: Duration = Duration::from_secs(5);
const CONCURRENT_RUNS: usize = 64;
/// The tolerated growth from the middle third to the last third.
const SLACK: f64 = 1.1;

/// Memory and file sizes, in bytes.
#[derive(Clone, Copy)]
struct Sample {
    memory: usize,
    database: usize,
    wal: usize,
}

pub(crate) fn run(harness: &Harness, length: Duration) {
    let dir = harness.scratch();
    println!("{:>6} {:>9} {:>12} {:>12} {:>12}", "s", "runs/s", "memory KB", "database KB", "WAL KB");
    let samples = harness.runtime.block_on(soak(&database(&dir), length));
    for (name, of) in [("memory", memory as fn(&Sample) -> usize), ("files", files)] {
        let (middle, last) = thirds(&samples, of);
        let verdict = if last <= middle * SLACK { "ok" } else { "MISS: it grows" };
        println!("{name}: {middle:.0} KB in the middle third, {last:.0} KB in the last: {verdict}");
    }
}

fn memory(sample: &Sample) -> usize {
    sample.memory
}

fn files(sample: &Sample) -> usize {
    sample.database + sample.wal
}

/// The means of the middle and the last third, in kilobytes.
fn thirds(samples: &[Sample], of: fn(&Sample) -> usize) -> (f64, f64) {
    let third = (samples.len() / 3).max(1);
    let mean = |part: &[Sample]| part.iter().map(of).sum::<usize>() as f64 / part.len() as f64 / 1024.0;
    let last = samples.len() - third;
    (mean(&samples[last.saturating_sub(third)..last.max(1)]), mean(&samples[last..]))
}

async fn soak(database: &Path, length: Duration) -> Vec<Sample> {
    let mut engine = BenchEngine::new(database, Durability::Process, noop());
    engine.define(&linear("five", 5)).await;
    let purging = tokio::spawn(purge(engine.engine.clone()));
    let (started, mut samples) = (Instant::now(), Vec::new());
    let interval = Duration::from_secs(10).min(length / 9);
    while started.elapsed() < length {
        let (since, mut runs) = (Instant::now(), 0);
        while since.elapsed() < interval {
            engine.complete_runs("five", 10 * CONCURRENT_RUNS, CONCURRENT_RUNS).await;
            runs += 10 * CONCURRENT_RUNS;
        }
        let sample = Sample::take(database);
        print(started.elapsed(), runs as f64 / since.elapsed().as_secs_f64(), sample);
        samples.push(sample);
    }
    purging.abort();
    engine.stop().await;
    samples
}

async fn purge(engine: Engine) {
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        engine.purge(RETENTION).await.expect("a purge");
    }
}

impl Sample {
    fn take(database: &Path) -> Self {
        let size = |path: &Path| {
            std::fs::metadata(path).map_or(0, |file| usize::try_from(file.len()).unwrap_or(usize::MAX))
        };
        let wal = database.with_extension("db-wal");
        Self { memory: resident(), database: size(database), wal: size(&wal) }
    }
}

fn print(at: Duration, rate: f64, sample: Sample) {
    let kilobytes = [sample.memory, sample.database, sample.wal].map(|bytes| bytes / 1024);
    let [memory, database, wal] = kilobytes;
    println!("{:>6} {rate:>9.0} {memory:>12} {database:>12} {wal:>12}", at.as_secs());
}
