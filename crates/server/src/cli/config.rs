//! `steprail config`: the settings of a daemon, and where each comes from.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::stop::Stop;
use crate::config::{Config as Settings, environment, markdown};
use crate::daemon::DataDir;

/// Show the settings of the daemon, and where each comes from
///
/// What is wrong with them is told, all at once.
#[derive(Debug, Args)]
pub(super) struct Config {
    /// Print what each setting means instead, as Markdown
    #[arg(long)]
    explain: bool,
    /// Print JSON for programs
    #[arg(long, conflicts_with = "explain")]
    json: bool,
    /// The data directory; `$STEPRAIL_DATA`, or steprail in the user's data directory by default
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The file with the settings; `$STEPRAIL_CONFIG`, or steprail.toml in the data directory by default
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Config {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        let text = if self.explain { markdown() } else { self.shown()? };
        // anstream takes the colours out again where the terminal has none.
        let mut out = anstream::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }

    fn shown(&self) -> Result<String, Stop> {
        let home = DataDir::find(self.data.clone()).map_err(Stop::usage)?;
        let settings = Settings::load(&home, self.config.as_deref(), environment(), &[])?;
        Ok(if self.json {
            format!("{:#}\n", settings.to_json())
        } else {
            settings.to_toml("\x1b[2m", "\x1b[0m")
        })
    }
}
