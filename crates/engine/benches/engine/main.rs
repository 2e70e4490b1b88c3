//! What the engine costs, each figure beside the limit of this machine that was measured in the same run.
//!
//! `just bench` runs everything; `just bench --quick` is short; names choose cases (`just bench throughput`),
//! `--list` shows them; `--soak SECONDS` starts and finishes runs until the time is up. The databases are
//! files in `STEPRAIL_BENCH_DIR`, or in the target directory.

#![allow(clippy::cast_precision_loss, reason = "figures are read by people, to three digits")]

mod bytes;
mod cancel;
mod foreach;
mod growth;
mod parked;
mod raw;
mod restart;
mod sequential;
mod soak;
mod stage;
mod start;
mod table;
mod throughput;
mod wide;

use std::process::ExitCode;
use std::time::Duration;

use stage::Stage;
use table::Table;

/// The allocator of the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Case = fn(&Stage, &mut Table);

const CASES: &[(&str, Case)] = &[
    ("limits", raw::limits),
    ("throughput", throughput::run),
    ("sequential", sequential::run),
    ("growth", growth::run),
    ("parallel", wide::run),
    ("start", start::run),
    ("foreach", foreach::run),
    ("bytes", bytes::run),
    ("cancel", cancel::run),
    ("restart", restart::run),
    ("parked", parked::run),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--list"] => CASES.iter().for_each(|(name, _)| println!("{name}")),
        [restart::VICTIM, database] => restart::be_killed(database.as_ref()),
        [parked::OPENER, database] => parked::open(database.as_ref()),
        ["--soak", seconds] => match seconds.parse() {
            Ok(seconds) => soak::run(&Stage::new(false), Duration::from_secs(seconds)),
            Err(_) => return usage(),
        },
        words if words.iter().any(|word| word.starts_with("--") && *word != "--quick") => return usage(),
        words => compare(words),
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: [--quick] [CASE]... | --list | --soak SECONDS");
    ExitCode::from(2)
}

fn compare(words: &[&str]) {
    let (quick, chosen): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| **word == "--quick");
    let stage = Stage::new(!quick.is_empty());
    let mut table = Table::begin(&stage);
    for (name, case) in CASES {
        if chosen.is_empty() || chosen.iter().any(|word| name.starts_with(word)) {
            table.case(name);
            case(&stage, &mut table);
        }
    }
    table.end();
}
