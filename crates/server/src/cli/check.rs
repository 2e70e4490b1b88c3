//! `steprail check`: every problem of a definition at once.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use steprail_core::diagnostic::{Severity, render};
use steprail_core::{Loaded, load};
use steprail_mcp::{CheckContext, Gateway, Options};

use super::stop::Stop;
use super::tools_at::read_servers;
use super::{exit, input, session};
use crate::tools::supervisor;

/// Check definitions and show every problem
///
/// Exit code 0: no errors (warnings may be shown); 2: errors, or a file cannot be read.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// The definitions, YAML or JSON; `-` for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// Compare them with the tools of MCP servers, too: a config file of your MCP client
    #[arg(long, value_name = "FILE")]
    servers: Option<String>,
    /// How to show problems
    #[arg(long, default_value = "human")]
    format: Format,
    /// Print JSON: the same as `--format json`
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people: the source line with the place marked
    Human,
    /// For programs: one array of problems
    Json,
}

#[derive(Default)]
struct Tally {
    files: usize,
    errors: usize,
    warnings: usize,
    unreadable: usize,
}

impl Check {
    fn shown(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }

    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let gateway = match &self.servers {
                Some(file) => Some(gateway_to(file)?),
                None => None,
            };
            let known = match &gateway {
                Some(gateway) => Some(CheckContext::cached(gateway).with_servers(gateway.connect().await)),
                None => None,
            };
            let checked = self.check(known.as_ref());
            drop(known);
            if let Some(gateway) = gateway {
                gateway.shutdown().await;
            }
            Ok(checked?)
        })
    }

    fn check(&self, known: Option<&CheckContext<'_>>) -> io::Result<ExitCode> {
        let mut tally = Tally::default();
        let mut findings = Vec::new();
        let mut out = anstream::stdout().lock();
        for path in &self.files {
            let source = match input::read(path) {
                Ok(source) => source,
                Err(unreadable) => {
                    tally.unreadable += 1;
                    writeln!(anstream::stderr(), "error: {unreadable}")?;
                    continue;
                }
            };
            let Loaded { mut diagnostics, plan, .. } = load(&source);
            if let (Some(plan), Some(known)) = (&plan, known) {
                diagnostics.extend(steprail_mcp::compare(plan, &source, known));
            }
            tally.files += 1;
            for diagnostic in &diagnostics {
                match diagnostic.code.severity() {
                    Severity::Error => tally.errors += 1,
                    Severity::Warning => tally.warnings += 1,
                }
                match self.shown() {
                    // anstream takes the colours out again where the terminal has none.
                    Format::Human => writeln!(out, "{}\n", render(diagnostic, &source, true))?,
                    Format::Json => findings.extend(serde_json::to_value(diagnostic.finding(&source))),
                }
            }
        }
        match self.shown() {
            Format::Human => writeln!(out, "{}", tally.summary())?,
            Format::Json => writeln!(out, "{:#}", serde_json::Value::Array(findings))?,
        }
        out.flush()?;
        Ok(tally.exit_code())
    }
}

fn gateway_to(file: &str) -> Result<Gateway, Stop> {
    let servers = read_servers(file)?;
    let mut err = anstream::stderr();
    servers.warnings.iter().try_for_each(|warning| writeln!(err, "warning: {warning}"))?;
    let options = Options { supervisor: supervisor(), ..Options::default() };
    Gateway::new(servers, options).map_err(Stop::usage)
}

impl Tally {
    fn summary(&self) -> String {
        let count =
            |number: usize, word: &str| format!("{number} {word}{}", if number == 1 { "" } else { "s" });
        let checked = format!("{} checked", count(self.files, "file"));
        match (self.errors, self.warnings) {
            (0, 0) if self.unreadable > 0 => {
                format!("{checked}, {} not read", count(self.unreadable, "file"))
            }
            (0, 0) => format!("{checked}: no problems"),
            (errors, warnings) => {
                format!("{checked}: {}, {}", count(errors, "error"), count(warnings, "warning"))
            }
        }
    }

    fn exit_code(&self) -> ExitCode {
        match self.unreadable + self.errors {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::from(exit::CANNOT_READ),
        }
    }
}
