//! `steprail doctor`: what is wrong on this machine, and what to do about it.

mod clients;
mod daemon;
mod database;
mod directory;
mod secrets;
mod servers;
mod settings;

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::progress::harmless;
use super::stop::Stop;
use super::{exit, session};
use crate::daemon::DataDir;

/// Look at everything that Steprail needs on this machine
///
/// The data directory, the settings, the daemon, the database and its logs, the MCP servers, which are started for it, and the MCP
/// clients. Nothing is changed. Exit code 0: no problems (there may be warnings); 1: problems.
#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// The data directory; `$STEPRAIL_DATA`, or steprail in the user's data directory by default
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print one JSON record
    #[arg(long)]
    json: bool,
}

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    Ok,
    Warning,
    Problem,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }

    fn colour(self) -> &'static str {
        match self {
            Self::Ok => "\u{1b}[32m",
            Self::Warning => "\u{1b}[33m",
            Self::Problem => "\u{1b}[31m",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    level: Level,
    /// What was looked at.
    about: &'static str,
    /// How it is.
    what: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl Finding {
    fn ok(about: &'static str, what: impl Into<String>) -> Self {
        Self { level: Level::Ok, about, what: what.into(), hint: None }
    }

    fn warning(about: &'static str, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { level: Level::Warning, about, what: what.into(), hint: Some(hint.into()) }
    }

    fn problem(about: &'static str, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { level: Level::Problem, about, what: what.into(), hint: Some(hint.into()) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // anstream takes the colours out again where the terminal has none.
        let (colour, word) = (self.level.colour(), self.level.word());
        write!(out, "{colour}{word:7}\u{1b}[0m  {:9}  {}", self.about, harmless(&self.what))?;
        match &self.hint {
            Some(hint) => write!(out, " — {}", harmless(hint)),
            None => Ok(()),
        }
    }
}

impl Doctor {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let home = DataDir::find(self.data.clone()).map_err(Stop::usage)?;
            let findings = look(&home).await;
            let count = |level| findings.iter().filter(|finding| finding.level == level).count();
            let (warnings, problems) = (count(Level::Warning), count(Level::Problem));
            self.show(&findings, warnings, problems)?;
            Ok(if problems == 0 { ExitCode::SUCCESS } else { ExitCode::from(exit::ERRORS) })
        })
    }

    fn show(&self, findings: &[Finding], warnings: usize, problems: usize) -> io::Result<()> {
        let mut out = anstream::stdout().lock();
        if self.json {
            let record = json!({ "findings": findings, "warnings": warnings, "problems": problems });
            return writeln!(out, "{record:#}");
        }
        for finding in findings {
            writeln!(out, "{finding}")?;
        }
        let count =
            |number: usize, word: &str| format!("{number} {word}{}", if number == 1 { "" } else { "s" });
        match (warnings, problems) {
            (0, 0) => writeln!(out, "everything is in order")?,
            _ => writeln!(out, "{}, {}", count(problems, "problem"), count(warnings, "warning"))?,
        }
        out.flush()
    }
}

async fn look(home: &DataDir) -> Vec<Finding> {
    let mut findings = directory::look(home);
    let (daemon, is_running) = daemon::look(home).await;
    let (settings, vault) = settings::look(home, is_running);
    findings.extend(settings);
    findings.push(daemon);
    findings.extend(database::look(&home.database(), is_running));
    findings.extend(secrets::look(home, &vault));
    findings.extend(servers::look(home, &vault).await);
    findings.extend(clients::look(home));
    findings
}
