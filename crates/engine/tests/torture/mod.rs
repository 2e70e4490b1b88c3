//! Shared code of the crash tests: a worker process, a ledger of calls and the checks.

#![allow(dead_code, reason = "each harness uses a part")]

pub(crate) mod check;
pub(crate) mod disk;
pub(crate) mod expected;
pub(crate) mod ledger;
pub(crate) mod log;
pub(crate) mod process;
pub(crate) mod worker;
pub(crate) mod workflows;

/// Reads a number from the environment, such as the size or seed of a test.
pub(crate) fn setting(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => otherwise,
    }
}

/// Returns the seed from the environment or a new one, and prints it so that a failure can be reproduced.
pub(crate) fn seed() -> u64 {
    let seed = setting("STEPRAIL_SEED", fastrand::u64(0..1_000_000));
    println!("STEPRAIL_SEED={seed}");
    seed
}
