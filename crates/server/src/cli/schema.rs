//! `steprail schema`: prints the JSON Schema and the reference of definitions.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use steprail_core::spec::{reference, schema};

use super::shared::error::CliError;
use super::terminal::output;

/// Print the JSON Schema or the reference of definitions
#[derive(Debug, Args)]
pub(super) struct Schema {
    /// Output format
    #[arg(long, default_value = "json")]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// JSON Schema, for editors
    Json,
    /// Reference, for people
    Markdown,
}

impl Schema {
    pub(super) fn run(self) -> Result<ExitCode, CliError> {
        let text = match self.format {
            Format::Json => format!("{:#}\n", schema::definition_schema()),
            Format::Markdown => reference::markdown(),
        };
        output::bytes(text.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}
