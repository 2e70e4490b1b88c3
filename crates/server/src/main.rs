//! The binary `steprail`.

// No panic is reachable from input.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod accounts;
mod cli;
mod client;
mod config;
mod daemon;
mod demo;
mod http;
mod observe;
mod scripted;
mod secrets;
mod tools;
mod view;

use std::process::ExitCode;

use clap::Parser;

/// Definitions are trees of small values: an allocator made for those halves the time to check one.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::Cli::parse().run()
}
