//! `steprail man`: the manual pages.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command};
use clap_mangen::Man;

use super::stop::Stop;

/// Print the manual page, or write the pages of all commands
///
/// To read it: `steprail man | man -l -`
#[derive(Debug, Args)]
pub(super) struct Manual {
    /// Write steprail.1 and one page for each command into this folder
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Manual {
    pub(super) fn run(self, program: Command) -> Result<ExitCode, Stop> {
        if let Some(folder) = self.dir {
            return write(program, &folder)
                .map_err(|error| Stop::usage(format!("cannot write to {}: {error}", folder.display())));
        }
        let mut out = io::stdout().lock();
        Man::new(program).render(&mut out)?;
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

fn write(program: Command, folder: &Path) -> io::Result<ExitCode> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(program, folder)?;
    Ok(ExitCode::SUCCESS)
}
