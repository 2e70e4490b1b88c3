//! Runs that are cut off at any moment and must come out as foreseen: what the harnesses share.

#![allow(dead_code, reason = "each harness uses a part")]

pub(crate) mod check;
pub(crate) mod disk;
pub(crate) mod ledger;
pub(crate) mod life;
pub(crate) mod log;
pub(crate) mod shapes;
pub(crate) mod story;
pub(crate) mod worker;

/// A number from the environment, for the sizes and the seed of a harness.
pub(crate) fn setting(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => otherwise,
    }
}

/// The seed of a harness: given, or new; it is printed so that a failure can be repeated.
pub(crate) fn seed() -> u64 {
    let seed = setting("STEPRAIL_SEED", fastrand::u64(0..1_000_000));
    println!("STEPRAIL_SEED={seed}");
    seed
}
