//! The command line: one file per verb.

mod audit;
mod backup;
mod check;
mod connect;
mod database;
mod decide;
mod doctor;
mod graph;
mod input;
mod mcp;
mod meter;
mod progress;
mod purge;
mod record;
mod restore;
mod resume;
mod run;
mod schema;
mod serve;
mod session;
mod stop;
mod tools_at;
mod tree;
mod waiting;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub(crate) use exit::IN_USE;
use stop::Stop;

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
    Run(run::Run),
    Resume(resume::Resume),
    Purge(purge::Purge),
    Backup(backup::Backup),
    Restore(restore::Restore),
    Audit(audit::Audit),
    Doctor(doctor::Doctor),
    Serve(serve::Serve),
    Mcp(mcp::Mcp),
    Connect(connect::Connect),
    /// Say yes at a gate of a run of the daemon
    Approve(decide::Decide),
    /// Say no at a gate of a run of the daemon
    Deny(decide::Decide),
}

impl Cli {
    /// Carries out the command.
    pub(crate) fn run(self) -> ExitCode {
        let result = match self.verb {
            Verb::Check(check) => check.run(),
            Verb::Graph(graph) => graph.run().map_err(Stop::from),
            Verb::Schema(schema) => schema.run().map_err(Stop::from),
            Verb::Run(run) => run.run(),
            Verb::Resume(resume) => resume.run(),
            Verb::Purge(purge) => purge.run(),
            Verb::Backup(backup) => backup.run(),
            Verb::Restore(restore) => restore.run(),
            Verb::Audit(audit) => audit.run(),
            Verb::Doctor(doctor) => doctor.run(),
            Verb::Serve(serve) => serve.run(),
            Verb::Mcp(mcp) => mcp.run(),
            Verb::Connect(connect) => connect.run(),
            Verb::Approve(approve) => approve.run(true),
            Verb::Deny(deny) => deny.run(false),
        };
        result.unwrap_or_else(Stop::tell)
    }
}

/// The exit codes, decided here for all verbs.
mod exit {
    use steprail_engine::{Error, RunStatus};
    use steprail_store::StoreError;

    /// A definition has errors, or a run failed.
    pub(super) const ERRORS: u8 = 1;
    /// A file cannot be read, the command line is wrong, or what was asked for cannot be done.
    pub(super) const CANNOT_READ: u8 = 2;
    /// A run waits for a human.
    pub(super) const WAITING: u8 = 3;
    /// A run was cancelled.
    pub(super) const CANCELLED: u8 = 4;
    /// The database failed in a way that does not pass.
    pub(super) const STORAGE: u8 = 70;
    /// Another process has the database.
    pub(crate) const IN_USE: u8 = 73;
    /// Interrupted by Ctrl-C: what a shell reports for it.
    pub(super) const INTERRUPTED: u8 = 130;
    /// The reader of the output went away: what a shell reports for it.
    pub(super) const BROKEN_PIPE: u8 = 141;

    /// How a run stands, when nothing more happens to it in this command.
    pub(super) fn of_run(status: RunStatus) -> u8 {
        match status {
            RunStatus::Completed => 0,
            RunStatus::Failed => ERRORS,
            RunStatus::Cancelled => CANCELLED,
            RunStatus::Pending | RunStatus::Running | RunStatus::Paused | RunStatus::Interrupted => WAITING,
        }
    }

    /// The gravest of several: a failure, then somebody to ask, then a cancelled run.
    pub(super) fn of_runs(statuses: impl Iterator<Item = RunStatus>) -> u8 {
        let rank = |code: &u8| [0, CANCELLED, WAITING, ERRORS].iter().position(|known| known == code);
        statuses.map(of_run).max_by_key(rank).unwrap_or_default()
    }

    /// Why the engine refused.
    pub(super) fn of_error(error: &Error) -> u8 {
        match error {
            Error::Storage(error) => of_fault(error),
            Error::Stopped => STORAGE,
            _ => CANNOT_READ,
        }
    }

    /// Why the database refused.
    pub(super) fn of_fault(fault: &StoreError) -> u8 {
        match fault {
            StoreError::InUse { .. } => IN_USE,
            // Nothing of it could be opened or written: a wrong path, or a right that is missing.
            StoreError::ReadOnly(_) | StoreError::Exists(_) => CANNOT_READ,
            _ => STORAGE,
        }
    }
}
