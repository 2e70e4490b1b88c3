//! Power failures: unwritten data is lost, and acknowledged data is not.

#[path = "common/audit.rs"]
mod audit;
mod torture;

use rusqlite::Connection;
use torture::check::{damage, verify};
use torture::disk::Disk;
use torture::ledger::Ledger;
use torture::process::{Acks, Message, WorkerProcess};
use torture::worker::Job;
use torture::{seed, setting};

/// Runs in progress when the power is cut.
const CONCURRENCY: usize = 20;

/// The worker process that loses its power.
#[test]
#[ignore = "started by the harness"]
fn worker() {
    torture::worker::main();
}

#[test]
fn power_failure_loses_no_acknowledged_data() {
    for kind in ["xfs", "ext4"] {
        match Disk::in_a_file(kind) {
            Ok(disk) => cut_repeatedly(&disk, kind),
            Err(missing) => println!("SKIPPED on {kind}: cannot simulate a power failure: {missing}"),
        }
    }
}

/// With `process`, commits do not wait for the disk. Shows that the test can detect lost data.
#[test]
fn power_failure_loses_commits_that_were_not_synced() {
    let cuts = setting("STEPRAIL_CUTS", 5);
    let mut cuts_with_loss = 0;
    for cut in 0..cuts {
        let disk = match Disk::in_a_file("xfs") {
            Ok(disk) => disk,
            Err(missing) => return println!("SKIPPED: cannot simulate a power failure: {missing}"),
        };
        let folder = tempfile::tempdir().expect("a folder");
        let mut random = fastrand::Rng::with_seed(cut);
        let (job, mut acks) = (job(&disk, folder.path(), false, cut), Acks::default());
        cut_power(&disk, &job, &mut random, &mut acks);
        cuts_with_loss += u64::from(lost(&job, &acks) > 0);
    }
    println!("cuts in `process`         {cuts}, {cuts_with_loss} of them lost acknowledged data");
    assert!(cuts_with_loss > 0, "no power failure lost data");
}

fn job(disk: &Disk, folder: &std::path::Path, full: bool, seed: u64) -> Job {
    Job {
        database: disk.path().join("steprail.db"),
        ledger: folder.join("ledger"),
        worker: 0,
        from: 0,
        until: None,
        concurrency: CONCURRENCY,
        full,
        feed: true,
        seed,
    }
}

fn cut_repeatedly(disk: &Disk, kind: &str) {
    let cuts = setting("STEPRAIL_CUTS", 5);
    let seed = seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().expect("a folder");
    let (mut job, mut acks) = (job(disk, folder.path(), true, seed), Acks::default());
    for _ in 0..cuts {
        cut_power(disk, &job, &mut random, &mut acks);
        assert_eq!(lost(&job, &acks), 0, "acknowledged data lost after cut {}", job.worker);
        job.worker += 1;
        job.from = acks.first_open();
    }
    job.until = Some(acks.beyond(job.concurrency));
    WorkerProcess::start(&job).finish(&mut acks);
    println!("cuts in `full` on {kind:<5}   {cuts}, {} events acknowledged", acks.events());
    verify(&job, &acks).report();
}

/// Runs a worker, cuts the power at a random time and restores it.
fn cut_power(disk: &Disk, job: &Job, random: &mut fastrand::Rng, acks: &mut Acks) {
    // Some cuts happen while the database is created.
    let max_events = if random.u8(0..6) == 0 { 5 } else { 400 };
    let mut left = random.u32(1..max_events);
    let mut worker = WorkerProcess::start(job);
    while left > 0 {
        let message = worker.next(acks).expect("a worker that runs until the power is cut");
        left -= u32::from(matches!(message, Message::Event { .. }));
    }
    // Only messages and calls before the cut count.
    Ledger::open(&job.ledger, job.worker).power_cut();
    worker.read_pending(acks);
    disk.cut();
    worker.kill();
    disk.power_on();
}

/// Counts acknowledged runs and events that are lost. Asserts that the rest is consistent.
fn lost(job: &Job, acks: &Acks) -> usize {
    let connection = Connection::open(&job.database).expect("the database");
    let sql = "SELECT (SELECT count(*) FROM workflow_runs), (SELECT count(*) FROM workflow_events)";
    if connection.query_row(sql, [], |_| Ok(())).is_err() {
        return acks.started.len() + acks.events();
    }
    assert_eq!(damage(&connection), None);
    assert_eq!(audit::audit(&connection), Vec::<String>::new());
    let kept = |run: &dyn std::fmt::Display| -> u64 {
        let sql = "SELECT seq FROM workflow_runs WHERE run_id = ?1";
        connection.query_row(sql, [run.to_string()], |row| row.get(0)).unwrap_or_default()
    };
    let runs = acks.started.values().filter(|run| kept(run) == 0).count();
    let events: u64 = acks.seqs.iter().map(|(run, seq)| seq.saturating_sub(kept(run))).sum();
    runs + usize::try_from(events).expect("a number of events")
}
