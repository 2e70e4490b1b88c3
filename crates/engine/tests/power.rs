//! Power cuts: what was not written to the disk is gone, and nothing that the engine acknowledged is among it.

#[path = "common/audit.rs"]
mod audit;
mod torture;

use rusqlite::Connection;
use torture::check::{damage, judge};
use torture::disk::Disk;
use torture::ledger::Ledger;
use torture::life::{Acks, Life, Told};
use torture::worker::Job;
use torture::{seed, setting};

/// Runs under way when the power is cut.
const AT_ONCE: usize = 20;

/// The program that is cut off.
#[test]
#[ignore = "started by the harness"]
fn worker() {
    torture::worker::main();
}

#[test]
fn a_power_cut_loses_nothing_that_was_acknowledged() {
    for kind in ["xfs", "ext4"] {
        match Disk::in_a_file(kind) {
            Ok(disk) => cut_again_and_again(&disk, kind),
            Err(lack) => println!("SKIPPED on {kind}: no power to cut here: {lack}"),
        }
    }
}

/// With `process` commits wait for the operating system. That shows that the harness bites.
#[test]
fn a_power_cut_shows_when_commits_are_not_on_the_disk() {
    let cuts = setting("STEPRAIL_CUTS", 5);
    let mut hurt = 0;
    for cut in 0..cuts {
        let disk = match Disk::in_a_file("xfs") {
            Ok(disk) => disk,
            Err(lack) => return println!("SKIPPED: no power to cut here: {lack}"),
        };
        let folder = tempfile::tempdir().expect("a folder");
        let mut random = fastrand::Rng::with_seed(cut);
        let (job, mut acks) = (job(&disk, folder.path(), false, cut), Acks::default());
        cut_off(&disk, &job, &mut random, &mut acks);
        hurt += u64::from(lost(&job, &acks) > 0);
    }
    println!("cuts in `process`         {cuts}, {hurt} of them lost something that was acknowledged");
    assert!(hurt > 0, "the harness does not bite");
}

fn job(disk: &Disk, folder: &std::path::Path, full: bool, seed: u64) -> Job {
    Job {
        database: disk.path().join("steprail.db"),
        ledger: folder.join("ledger"),
        life: 0,
        from: 0,
        until: None,
        at_once: AT_ONCE,
        full,
        feed: true,
        seed,
    }
}

fn cut_again_and_again(disk: &Disk, kind: &str) {
    let cuts = setting("STEPRAIL_CUTS", 5);
    let seed = seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().expect("a folder");
    let (mut job, mut acks) = (job(disk, folder.path(), true, seed), Acks::default());
    for _ in 0..cuts {
        cut_off(disk, &job, &mut random, &mut acks);
        assert_eq!(lost(&job, &acks), 0, "acknowledged, and gone after cut {}", job.life);
        job.life += 1;
        job.from = acks.first_open();
    }
    job.until = Some(acks.beyond(job.at_once));
    Life::start(&job).finish(&mut acks);
    println!("cuts in `full` on {kind:<5}   {cuts}, {} events acknowledged", acks.events());
    judge(&job, &acks).report();
}

/// Lets a worker work, cuts the power at a random moment, and switches it on again.
fn cut_off(disk: &Disk, job: &Job, random: &mut fastrand::Rng, acks: &mut Acks) {
    // Sometimes there is hardly a database yet.
    let longest = if random.u8(0..6) == 0 { 5 } else { 400 };
    let mut left = random.u32(1..longest);
    let mut life = Life::start(job);
    while left > 0 {
        let told = life.next(acks).expect("a worker that lives until it is cut off");
        left -= u32::from(matches!(told, Told::Event { .. }));
    }
    // Only what was heard and done before the cut counts.
    Ledger::open(&job.ledger, job.life).cut();
    life.heard(acks);
    disk.cut();
    life.kill();
    disk.power_on();
}

/// How much of what was acknowledged is gone. What is left must be in order.
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
