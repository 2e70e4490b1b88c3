//! `steprail completions`: the verbs and options for shells.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

/// Print the script that completes commands in a shell
///
/// For bash: `steprail completions bash > ~/.local/share/bash-completion/completions/steprail`
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self, mut program: Command) -> io::Result<ExitCode> {
        // Into memory first: writing to a reader that went away is no reason to panic.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program, "steprail", &mut script);
        let mut out = io::stdout().lock();
        out.write_all(&script)?;
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}
