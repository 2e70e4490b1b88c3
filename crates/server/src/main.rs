//! The binary `steprail`.

// No panic is reachable from input.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cli;
mod daemon;
#[allow(dead_code, unused_imports, reason = "not every part is called yet")]
mod observe;
mod scripted;
mod tools;

use std::process::ExitCode;

use clap::Parser;

/// Definitions are trees of small values: an allocator made for those halves the time to check one.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::Cli::parse().run()
}
