//! The binary `steprail`.

// No panic is reachable from input.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod audit;
mod cli;
mod client;
mod config;
mod daemon;
mod demo;
mod key_file;
mod notify;
mod observe;
mod scripted;
mod secrets;
mod tools;

use std::process::ExitCode;

use clap::Parser;

/// Definitions are trees of small values; mimalloc halves the time to check one.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|verb| verb == tools::SUPERVISE) {
        // Handled before clap and the runtime are set up, because one such process runs per stdio server.
        let command: Vec<_> = arguments.skip_while(|argument| argument != "--").skip(1).collect();
        return ExitCode::from(u8::try_from(steprail_mcp::supervise(&command)).unwrap_or(1));
    }
    cli::Cli::parse().run()
}
