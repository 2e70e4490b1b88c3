//! `steprail check`: reports every problem of definitions.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use steprail_core::diagnostic::{Severity, render};
use steprail_core::{Loaded, load};
use steprail_mcp::{CheckContext, Gateway, Logins, Options};

use super::shared::error::CliError;
use super::shared::tool_args::read_servers;
use super::shared::{exit, source_file};
use super::terminal::output;
use super::terminal::text::count;
use crate::config::{self, Config};
use crate::daemon::DataDir;
use crate::secrets::Vault;
use crate::tools::supervisor;

/// Check definitions and show every problem
///
/// Exit codes: 0 no errors (there may be warnings), 2 errors, or a file cannot be read.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// Definitions in YAML or JSON; `-` reads standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// Also compare calls with the tools of the MCP servers in this config file
    #[arg(long, value_name = "FILE")]
    servers: Option<String>,
    /// Also check secrets and environment variables against the settings of this data directory, and calls against the
    /// servers of its servers.json
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Output format
    #[arg(long, default_value = "human")]
    format: Format,
    /// Print JSON; same as `--format json`
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Source lines with the position marked
    Human,
    /// One array of findings
    Json,
}

/// What was checked and found.
#[derive(Default)]
struct Counts {
    files: usize,
    errors: usize,
    warnings: usize,
    unreadable: usize,
}

impl Check {
    fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }

    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let gateway = self.open_gateway()?;
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
    }

    /// The servers of `--servers` or of the data directory, with the secrets and variables of its settings.
    fn open_gateway(&self) -> Result<Option<Gateway>, CliError> {
        let home =
            self.data.clone().map(|path| DataDir::find(Some(path)).map_err(CliError::new)).transpose()?;
        let servers = match (&self.servers, &home) {
            (Some(file), _) => read_servers(file)?,
            (None, Some(home)) => read_servers(&home.servers().display().to_string())?,
            (None, None) => return Ok(None),
        };
        servers.warnings.iter().try_for_each(|warning| output::warning(warning))?;
        let mut options = Options { supervisor: supervisor(), ..Options::default() };
        if let Some(home) = home {
            let config = Config::load(&home, None, config::environment(), &[])?;
            options.logins = Some(Logins::new(Arc::new(Vault::of(&home, &config)), &servers));
            options.env = Some(config.definitions.env.into_iter().collect());
        }
        Gateway::new(servers, options).map(Some).map_err(CliError::new)
    }

    fn check(&self, known: Option<&CheckContext<'_>>) -> io::Result<ExitCode> {
        let mut counts = Counts::default();
        let mut findings = Vec::new();
        let mut out = anstream::stdout().lock();
        for path in &self.files {
            let source = match source_file::read(path) {
                Ok(source) => source,
                Err(error) => {
                    counts.unreadable += 1;
                    writeln!(anstream::stderr(), "error: {error}")?;
                    continue;
                }
            };
            let Loaded { mut diagnostics, plan, .. } = load(&source);
            if let (Some(plan), Some(known)) = (&plan, known) {
                diagnostics.extend(steprail_mcp::compare(plan, &source, known));
            }
            counts.files += 1;
            for diagnostic in &diagnostics {
                match diagnostic.code.severity() {
                    Severity::Error => counts.errors += 1,
                    Severity::Warning => counts.warnings += 1,
                }
                match self.format() {
                    Format::Human => writeln!(out, "{}\n", render(diagnostic, &source, true))?,
                    Format::Json => findings.extend(serde_json::to_value(diagnostic.finding(&source))),
                }
            }
        }
        match self.format() {
            Format::Human => writeln!(out, "{}", counts.summary())?,
            Format::Json => writeln!(out, "{:#}", serde_json::Value::Array(findings))?,
        }
        out.flush()?;
        Ok(counts.exit_code())
    }
}

impl Counts {
    fn summary(&self) -> String {
        let checked = format!("{} checked", count(self.files, "file", "files"));
        match (self.errors, self.warnings) {
            (0, 0) if self.unreadable > 0 => {
                format!("{checked}, {} not read", count(self.unreadable, "file", "files"))
            }
            (0, 0) => format!("{checked}: no problems"),
            (errors, warnings) => {
                let errors = count(errors, "error", "errors");
                format!("{checked}: {errors}, {}", count(warnings, "warning", "warnings"))
            }
        }
    }

    fn exit_code(&self) -> ExitCode {
        match self.unreadable + self.errors {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::from(exit::INVALID),
        }
    }
}
