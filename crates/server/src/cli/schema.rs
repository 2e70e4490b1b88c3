//! `steprail schema`: the definition language for editors and people.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use steprail_core::spec::{reference, schema};

/// Print the JSON Schema of definitions, or their reference page
#[derive(Debug, Args)]
pub(super) struct Schema {
    /// What to print
    #[arg(long, default_value = "json")]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The JSON Schema, for editors
    Json,
    /// The reference page
    Markdown,
}

impl Schema {
    pub(super) fn run(self) -> io::Result<ExitCode> {
        let text = match self.format {
            Format::Json => format!("{:#}\n", schema::definition_schema()),
            Format::Markdown => reference::markdown(),
        };
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}
