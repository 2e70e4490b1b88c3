//! `steprail man`: prints and writes manual pages.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command};

use super::shared::error::CliError;
use super::terminal::output;

/// Print the manual page, or write the pages of all commands
///
/// To read it: `steprail man | man -l -`
#[derive(Debug, Args)]
pub(super) struct Man {
    /// Write steprail.1 and one page per command to this directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Man {
    pub(super) fn run(self, command: Command) -> Result<ExitCode, CliError> {
        if let Some(folder) = self.dir {
            let written =
                std::fs::create_dir_all(&folder).and_then(|()| clap_mangen::generate_to(command, &folder));
            return written
                .map(|()| ExitCode::SUCCESS)
                .map_err(|error| CliError::new(format!("cannot write to {}: {error}", folder.display())));
        }
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        output::bytes(&page)?;
        Ok(ExitCode::SUCCESS)
    }
}
