//! `steprail graph`: draws a definition.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use steprail_core::diagnostic::{Diagnostic, Severity};
use steprail_core::draw::{self, Picture};
use steprail_core::load;

use super::shared::error::CliError;
use super::shared::exit;
use super::shared::source_file::{self, print_diagnostics};
use super::terminal::output;

/// Draw a definition
#[derive(Debug, Args)]
pub(super) struct Graph {
    /// Definition in YAML or JSON; `-` reads standard input
    #[arg(value_name = "FILE")]
    file: String,
    /// Output format
    #[arg(long, default_value = "mermaid")]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Mermaid, for Markdown viewers
    Mermaid,
    /// DOT, for Graphviz
    Dot,
    /// SVG, for browsers
    Svg,
}

impl Graph {
    pub(super) fn run(self) -> Result<ExitCode, CliError> {
        let source = source_file::read(&self.file)?;
        let loaded = load(&source);
        let Some(plan) = &loaded.plan else {
            let is_error = |diagnostic: &Diagnostic| diagnostic.code.severity() == Severity::Error;
            let errors: Vec<Diagnostic> = loaded.diagnostics.into_iter().filter(is_error).collect();
            print_diagnostics(&errors, &source)?;
            return Err(CliError::Reported(exit::INVALID));
        };
        let picture = Picture::of(plan);
        let drawing = match self.format {
            Format::Mermaid => draw::mermaid(&picture),
            Format::Dot => draw::dot(&picture),
            Format::Svg => draw::svg(&picture),
        };
        output::bytes(drawing.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}
