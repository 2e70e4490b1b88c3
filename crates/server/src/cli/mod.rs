//! The command line: one file per verb.

mod approvals;
mod ask;
mod audit;
mod backup;
mod callback;
mod check;
mod clients;
mod completions;
mod config;
mod connect;
mod control;
mod database;
mod decide;
mod define;
mod definitions;
mod doctor;
mod end;
mod events;
mod follow;
mod found;
mod go_on;
mod graph;
mod hidden_input;
mod init;
mod input;
mod login;
mod man;
mod mcp;
mod meter;
mod open;
mod progress;
mod purge;
mod record;
mod replace;
mod restore;
mod resume;
mod run;
mod runs;
mod schedule;
mod schema;
mod secret;
mod serve;
mod server_list;
mod session;
mod show;
mod show_as;
mod stop;
mod target;
mod token;
mod tools;
mod tools_at;
mod tree;
mod user;
mod waiting;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

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
    Init(init::Init),
    Connect(connect::Connect),
    Stop(end::End),
    Define(define::Define),
    Definitions(definitions::Definitions),
    Runs(runs::Runs),
    Show(show::Show),
    Events(events::Events),
    Approvals(approvals::Approvals),
    Config(config::Config),
    /// Say yes at a gate
    Approve(decide::Decide),
    /// Say no at a gate
    Deny(decide::Decide),
    Cancel(control::Cancel),
    Pause(control::Pause),
    Rerun(control::Rerun),
    Signal(control::Signal),
    Tools(tools::Tools),
    Servers(tools::Servers),
    Schedule(schedule::Schedule),
    User(user::User),
    Group(user::Group),
    Token(token::Token),
    Open(open::Open),
    Secret(secret::Secret),
    Login(login::Login),
    Logout(login::Logout),
    Completions(completions::Completions),
    Man(man::Manual),
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
            Verb::Init(init) => init.run(),
            Verb::Connect(connect) => connect.run(),
            Verb::Stop(stop) => stop.run(),
            Verb::Define(define) => define.run(),
            Verb::Definitions(definitions) => definitions.run(),
            Verb::Runs(runs) => runs.run(),
            Verb::Show(show) => show.run(),
            Verb::Events(events) => events.run(),
            Verb::Approvals(approvals) => approvals.run(),
            Verb::Config(config) => config.run(),
            Verb::Approve(approve) => approve.run(true),
            Verb::Deny(deny) => deny.run(false),
            Verb::Cancel(cancel) => cancel.run(),
            Verb::Pause(pause) => pause.run(),
            Verb::Rerun(rerun) => rerun.run(),
            Verb::Signal(signal) => signal.run(),
            Verb::Tools(tools) => tools.run(),
            Verb::Servers(servers) => servers.run(),
            Verb::Schedule(schedule) => schedule.run(),
            Verb::User(user) => user.run(),
            Verb::Group(group) => group.run(),
            Verb::Token(token) => token.run(),
            Verb::Open(open) => open.run(),
            Verb::Secret(secret) => secret.run(),
            Verb::Login(login) => login.run(),
            Verb::Logout(logout) => logout.run(),
            Verb::Completions(completions) => completions.run(Self::command()).map_err(Stop::from),
            Verb::Man(manual) => manual.run(Self::command()),
        };
        result.unwrap_or_else(Stop::tell)
    }
}

/// The exit codes, decided here for all verbs.
mod exit {
    use steprail_engine::{Error, RunStatus};
    use steprail_store::StoreError;

    /// A run failed, or what was checked is damaged.
    pub(super) const ERRORS: u8 = 1;
    /// A definition has errors, a file cannot be read, the command line is wrong, or what was asked for cannot be done.
    pub(super) const CANNOT_READ: u8 = 2;
    /// A run waits for a human.
    pub(super) const WAITING: u8 = 3;
    /// A run was cancelled.
    pub(super) const CANCELLED: u8 = 4;
    /// The server cannot be reached.
    pub(super) const UNREACHABLE: u8 = 5;
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
