//! `steprail stop`: stops the daemon.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use super::shared::error::CliError;
use super::shared::help::DATA_HELP;
use super::terminal::output;
use crate::daemon::{self, DataDir};

/// How long to wait for the end of the daemon, and how often to check.
const TIMEOUT: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(50);

/// Stop the daemon of a data directory
///
/// No further step starts, and calls in flight finish. The next command that needs the daemon starts it again, and runs
/// continue.
#[derive(Debug, Args)]
pub(super) struct Stop {
    #[arg(long, value_name = "DIR", help = DATA_HELP)]
    data: Option<PathBuf>,
}

impl Stop {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let home = DataDir::find(self.data).map_err(CliError::new)?;
        // A daemon that accepts connections has written daemon.pid.
        let Ok(_) = daemon::connect(&home, &home.human_socket()).await else {
            output::line("no daemon is running")?;
            return Ok(ExitCode::SUCCESS);
        };
        let pid = std::fs::read_to_string(home.pid_file()).ok().and_then(|text| text.trim().parse().ok());
        let pid = pid.and_then(Pid::from_raw).ok_or_else(|| {
            CliError::new("daemon.pid is missing or invalid; cannot tell which process to stop")
        })?;
        let cannot = |error| CliError::new(format!("cannot send SIGTERM to the daemon: {error}"));
        kill_process(pid, Signal::TERM).map_err(cannot)?;
        let deadline = Instant::now() + TIMEOUT;
        while home.pid_file().exists() && rustix::process::test_kill_process(pid).is_ok() {
            if Instant::now() > deadline {
                return Err(CliError::new("the daemon did not stop within one minute"));
            }
            sleep(POLL).await;
        }
        output::line("the daemon has stopped")?;
        Ok(ExitCode::SUCCESS)
    }
}
