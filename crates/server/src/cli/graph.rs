//! `steprail graph`: a definition as a picture.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use steprail_core::diagnostic::{Severity, render};
use steprail_core::draw::{self, Picture};
use steprail_core::load;

use super::{exit, input};

/// Draw a definition
#[derive(Debug, Args)]
pub(super) struct Graph {
    /// The definition, YAML or JSON; `-` for standard input
    #[arg(value_name = "FILE")]
    file: String,
    /// What to draw it as
    #[arg(long, default_value = "mermaid")]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Text that Markdown viewers draw
    Mermaid,
    /// Text for Graphviz
    Dot,
    /// A picture for browsers
    Svg,
}

impl Graph {
    pub(super) fn run(self) -> io::Result<ExitCode> {
        let mut err = anstream::stderr().lock();
        let source = match input::read(&self.file) {
            Ok(source) => source,
            Err(unreadable) => {
                writeln!(err, "error: {unreadable}")?;
                return Ok(ExitCode::from(exit::CANNOT_READ));
            }
        };
        let loaded = load(&source);
        let Some(plan) = &loaded.plan else {
            for diagnostic in loaded.diagnostics.iter().filter(|d| d.code.severity() == Severity::Error) {
                writeln!(err, "{}\n", render(diagnostic, &source, true))?;
            }
            return Ok(ExitCode::from(exit::CANNOT_READ));
        };
        let picture = Picture::of(plan);
        let drawn = match self.format {
            Format::Mermaid => draw::mermaid(&picture),
            Format::Dot => draw::dot(&picture),
            Format::Svg => draw::svg(&picture),
        };
        let mut out = io::stdout().lock();
        out.write_all(drawn.as_bytes())?;
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}
