//! `steprail approve` and `steprail deny`: a human's decision, from the terminal.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value};

use super::session;
use super::stop::Stop;
use crate::daemon::{self, Home};

/// Which gate, and why.
#[derive(Debug, Args)]
pub(super) struct Decide {
    /// The run
    run: String,
    /// The step that waits, by its path
    step: String,
    /// Why
    #[arg(long)]
    reason: Option<String>,
    /// The data directory of the daemon
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

impl Decide {
    pub(super) fn run(self, approved: bool) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let home = Home::find(self.data.clone()).map_err(Stop::usage)?;
            let stream = daemon::connect(&home, &home.humans(), &[]).await.map_err(Stop::usage)?;
            let (read, write) = stream.into_split();
            let mut args = Map::new();
            args.insert("run_id".to_owned(), self.run.into());
            args.insert("step_name".to_owned(), self.step.into());
            args.extend(self.reason.map(|reason| ("reason".to_owned(), Value::from(reason))));
            let tool = if approved { "workflow_approve" } else { "workflow_deny" };
            let said = steprail_mcp::call_over(read, write, tool, args).await.map_err(Stop::usage)?;
            writeln!(anstream::stdout(), "{said}")?;
            Ok(ExitCode::SUCCESS)
        })
    }
}
