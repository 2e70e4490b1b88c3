//! The command line. Each file of this directory is a command; the subdirectories hold what commands share.

mod approvals;
mod approve;
mod audit;
mod backup;
mod cancel;
mod check;
mod client_config;
mod completions;
mod config;
mod connect;
mod define;
mod definitions;
mod deny;
mod doctor;
mod events;
mod follow;
mod freeze;
mod graph;
mod group;
mod init;
mod login;
mod logout;
mod man;
mod mcp;
mod notifications;
mod notify;
mod open;
mod pause;
mod policy;
mod presence_factors;
mod purge;
mod rerun;
mod restore;
mod resume;
mod run;
mod runs;
mod schedule;
mod schema;
mod secret;
mod serve;
mod servers;
mod service;
mod shared;
mod show;
mod signal;
mod stop;
mod terminal;
mod token;
mod tools;
mod unfreeze;
mod user;

use std::future::Future;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use shared::error::CliError;
pub(crate) use shared::exit::IN_USE;
pub(crate) use shared::presence;

/// The maximum number of threads for blocking work. Each keeps its own memory.
const BLOCKING_THREADS: usize = 16;

/// A durable workflow engine for MCP tool calls
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
    Stop(stop::Stop),
    Service(service::Service),
    Define(define::Define),
    Definitions(definitions::Definitions),
    Runs(runs::Runs),
    Show(show::Show),
    Events(events::Events),
    Approvals(approvals::Approvals),
    Notifications(notifications::Notifications),
    Notify(notify::Notify),
    Config(config::Config),
    Policy(policy::Policy),
    Freeze(freeze::Freeze),
    Unfreeze(unfreeze::Unfreeze),
    Approve(approve::Approve),
    Deny(deny::Deny),
    Cancel(cancel::Cancel),
    Pause(pause::Pause),
    Rerun(rerun::Rerun),
    Signal(signal::Signal),
    Tools(tools::Tools),
    Servers(servers::Servers),
    Schedule(schedule::Schedule),
    User(user::User),
    Group(group::Group),
    Token(token::Token),
    Presence(presence_factors::Presence),
    Open(open::Open),
    Secret(secret::Secret),
    Login(login::Login),
    Logout(logout::Logout),
    Completions(completions::Completions),
    Man(man::Man),
}

impl Cli {
    /// Runs the command. Returns its exit code.
    pub(crate) fn run(self) -> ExitCode {
        let result = match self.verb {
            Verb::Check(verb) => block_on(verb.run()),
            Verb::Graph(verb) => verb.run(),
            Verb::Schema(verb) => verb.run(),
            Verb::Run(verb) => block_on(verb.run()),
            Verb::Resume(verb) => block_on(verb.run()),
            Verb::Purge(verb) => verb.run(),
            Verb::Backup(verb) => verb.run(),
            Verb::Restore(verb) => verb.run(),
            Verb::Audit(verb) => verb.run(),
            Verb::Doctor(verb) => block_on(verb.run()),
            Verb::Serve(verb) => block_on(verb.run()),
            Verb::Mcp(verb) => block_on(verb.run()),
            Verb::Init(verb) => verb.run(),
            Verb::Connect(verb) => verb.run(),
            Verb::Stop(verb) => block_on(verb.run()),
            Verb::Service(verb) => verb.run(),
            Verb::Define(verb) => block_on(verb.run()),
            Verb::Definitions(verb) => block_on(verb.run()),
            Verb::Runs(verb) => block_on(verb.run()),
            Verb::Show(verb) => block_on(verb.run()),
            Verb::Events(verb) => block_on(verb.run()),
            Verb::Approvals(verb) => block_on(verb.run()),
            Verb::Notifications(verb) => block_on(verb.run()),
            Verb::Notify(verb) => block_on(verb.run()),
            Verb::Config(verb) => verb.run(),
            Verb::Policy(verb) => block_on(verb.run()),
            Verb::Freeze(verb) => block_on(verb.run()),
            Verb::Unfreeze(verb) => block_on(verb.run()),
            Verb::Approve(verb) => block_on(verb.run()),
            Verb::Deny(verb) => block_on(verb.run()),
            Verb::Cancel(verb) => block_on(verb.run()),
            Verb::Pause(verb) => block_on(verb.run()),
            Verb::Rerun(verb) => block_on(verb.run()),
            Verb::Signal(verb) => block_on(verb.run()),
            Verb::Tools(verb) => block_on(verb.run()),
            Verb::Servers(verb) => block_on(verb.run()),
            Verb::Schedule(verb) => block_on(verb.run()),
            Verb::User(verb) => block_on(verb.run()),
            Verb::Group(verb) => block_on(verb.run()),
            Verb::Token(verb) => block_on(verb.run()),
            Verb::Presence(verb) => block_on(verb.run()),
            Verb::Open(verb) => block_on(verb.run()),
            Verb::Secret(verb) => block_on(verb.run()),
            Verb::Login(verb) => block_on(verb.run()),
            Verb::Logout(verb) => block_on(verb.run()),
            Verb::Completions(verb) => verb.run(Self::command()),
            Verb::Man(verb) => verb.run(Self::command()),
        };
        result.unwrap_or_else(CliError::report)
    }
}

/// Runs an asynchronous command. Tasks that are still running at its end are abandoned.
fn block_on(command: impl Future<Output = Result<ExitCode, CliError>>) -> Result<ExitCode, CliError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.enable_all().max_blocking_threads(BLOCKING_THREADS).build();
    let runtime = runtime.map_err(|error| CliError::new(format!("cannot start threads: {error}")))?;
    let result = runtime.block_on(command);
    runtime.shutdown_background();
    result
}
