//! `steprail stop`: the daemon ends.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use super::stop::Stop;
use super::{session, show_as};
use crate::daemon::{self, DataDir};

/// How long it has to end, and how often it is looked for.
const PATIENCE: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(50);

/// Stop the daemon of a data directory
///
/// Nothing new begins, calls in flight may end, nothing is lost. The next command that needs it starts it again.
#[derive(Debug, Args)]
pub(super) struct End {
    /// The data directory of the daemon
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

impl End {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let home = DataDir::find(self.data).map_err(Stop::usage)?;
            // Whoever answers at the socket is the one whose number is written down.
            let Ok(_) = daemon::connect(&home, &home.human_socket()).await else {
                return show_as::line("no daemon is running").map(|()| ExitCode::SUCCESS);
            };
            let number =
                std::fs::read_to_string(home.pid_file()).ok().and_then(|text| text.trim().parse().ok());
            let process = number.and_then(Pid::from_raw);
            let process = process.ok_or_else(|| Stop::usage("who the daemon is was not written down"))?;
            let cannot = |error| Stop::usage(format!("the daemon cannot be told to stop: {error}"));
            kill_process(process, Signal::TERM).map_err(cannot)?;
            let deadline = Instant::now() + PATIENCE;
            while home.pid_file().exists() && rustix::process::test_kill_process(process).is_ok() {
                if Instant::now() > deadline {
                    return Err(Stop::usage("the daemon has not ended within a minute"));
                }
                sleep(LOOK).await;
            }
            show_as::line("the daemon has ended")?;
            Ok(ExitCode::SUCCESS)
        })
    }
}
