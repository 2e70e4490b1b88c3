//! The command line: one file per verb.

mod check;
mod graph;
mod input;
mod schema;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Durable workflows of MCP tool calls.
#[derive(Debug, Parser)]
#[command(name = "steprail", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Check(check::Check),
    Graph(graph::Graph),
    Schema(schema::Schema),
}

impl Cli {
    /// Carries out the command.
    pub(crate) fn run(self) -> ExitCode {
        let result = match self.verb {
            Verb::Check(check) => check.run(),
            Verb::Graph(graph) => graph.run(),
            Verb::Schema(schema) => schema.run(),
        };
        result.unwrap_or_else(|error| {
            // A reader that has seen enough (`| head`) closes the pipe; that is no failure to report.
            if error.kind() == std::io::ErrorKind::BrokenPipe {
                return ExitCode::from(exit::BROKEN_PIPE);
            }
            let _ = writeln!(anstream::stderr(), "error: cannot write the output: {error}");
            ExitCode::from(exit::CANNOT_READ)
        })
    }
}

/// The exit codes, decided here for all verbs.
mod exit {
    /// A definition has errors.
    pub(super) const ERRORS: u8 = 1;
    /// A file cannot be read, or the command line is wrong.
    pub(super) const CANNOT_READ: u8 = 2;
    /// The reader of the output went away: what a shell reports for it.
    pub(super) const BROKEN_PIPE: u8 = 141;
}
