//! `steprail completions`: prints completion scripts for shells.

use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

use super::shared::error::CliError;
use super::terminal::output;

/// Print the completion script of a shell
///
/// For bash: `steprail completions bash > ~/.local/share/bash-completion/completions/steprail`
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// Shell to complete commands in
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self, mut command: Command) -> Result<ExitCode, CliError> {
        // Into memory first: `generate` panics if its writer fails, as a closed pipe does.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "steprail", &mut script);
        output::bytes(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}
