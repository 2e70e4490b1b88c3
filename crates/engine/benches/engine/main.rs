//! Benchmarks of the engine. Each figure is printed beside a baseline of the machine that was measured in the same run.
//!
//! `just bench` runs all cases, `just bench throughput` runs those whose names start with `throughput`, `--quick` takes
//! smaller sizes, `--list` prints the names, and `--soak SECONDS` starts and completes runs for that time. The databases
//! are in `STEPRAIL_BENCH_DIR`, or in the target directory.

#![allow(clippy::cast_precision_loss, reason = "figures are printed with three digits")]

mod baseline;
mod bytes;
mod cancel;
mod foreach;
mod growth;
mod harness;
mod parallel;
mod parked;
mod restart;
mod sequential;
mod size;
mod soak;
mod stall;
mod start;
mod table;
mod throughput;

use std::process::ExitCode;
use std::time::Duration;

use harness::Harness;
use table::Table;

/// The allocator of `steprail`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Case = fn(&Harness, &mut Table);

const CASES: &[(&str, Case)] = &[
    ("limits", baseline::run),
    ("throughput", throughput::run),
    ("sequential", sequential::run),
    ("growth", growth::run),
    ("parallel", parallel::run),
    ("start", start::run),
    ("foreach", foreach::run),
    ("stall", stall::run),
    ("bytes", bytes::run),
    ("size", size::run),
    ("cancel", cancel::run),
    ("restart", restart::run),
    ("parked", parked::run),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["--list"] => CASES.iter().for_each(|(name, _)| println!("{name}")),
        [restart::VICTIM, database] => restart::run_until_killed(database.as_ref()),
        [parked::OPENER, database] => parked::open(database.as_ref()),
        ["--soak", seconds] => match seconds.parse() {
            Ok(seconds) => soak::run(&Harness::new(false), Duration::from_secs(seconds)),
            Err(_) => return usage(),
        },
        arguments if arguments.iter().any(|name| name.starts_with("--") && *name != "--quick") => {
            return usage();
        }
        arguments => run_cases(arguments),
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: [--quick] [CASE]... | --list | --soak SECONDS");
    ExitCode::from(2)
}

fn run_cases(arguments: &[&str]) {
    let (quick, chosen): (Vec<&str>, Vec<&str>) = arguments.iter().partition(|name| **name == "--quick");
    let harness = Harness::new(!quick.is_empty());
    let mut table = Table::begin(&harness);
    for (name, case) in CASES {
        if chosen.is_empty() || chosen.iter().any(|prefix| name.starts_with(prefix)) {
            table.case(name);
            case(&harness, &mut table);
        }
    }
    table.end();
}
