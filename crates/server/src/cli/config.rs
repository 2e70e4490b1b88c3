//! `steprail config`: shows the settings of the daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::shared::error::CliError;
use super::shared::help::{CONFIG_HELP, DATA_HELP};
use super::terminal::output;
use crate::config::{Config as Settings, environment, markdown};
use crate::daemon::DataDir;

/// Show the settings of the daemon and the source of each
///
/// Reports every invalid setting.
#[derive(Debug, Args)]
pub(super) struct Config {
    /// Print the reference of all settings, as Markdown
    #[arg(long)]
    explain: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "explain")]
    json: bool,
    #[arg(long, value_name = "DIR", help = DATA_HELP)]
    data: Option<PathBuf>,
    #[arg(long, value_name = "FILE", help = CONFIG_HELP)]
    config: Option<PathBuf>,
}

impl Config {
    pub(super) fn run(self) -> Result<ExitCode, CliError> {
        let text = if self.explain { markdown() } else { self.settings()? };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    fn settings(&self) -> Result<String, CliError> {
        let home = DataDir::find(self.data.clone()).map_err(CliError::new)?;
        let settings = Settings::load(&home, self.config.as_deref(), environment(), &[])?;
        Ok(if self.json {
            format!("{:#}\n", settings.to_json())
        } else {
            settings.to_toml("\x1b[2m", "\x1b[0m")
        })
    }
}
