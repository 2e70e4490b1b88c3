//! `steprail doctor`: checks the installation on this machine.

mod clients;
mod daemon;
mod database;
mod directory;
mod notify;
mod policy;
mod secrets;
mod servers;
mod settings;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::shared::error::CliError;
use super::shared::exit;
use super::shared::help::DATA_HELP;
use super::terminal::output;
use super::terminal::text::{count, sanitize};
use crate::daemon::DataDir;

/// Check the installation on this machine
///
/// Checks the data directory, the settings, the daemon, the database and its logs, the MCP servers, which it connects to, and
/// the MCP clients. Changes nothing.
///
/// Exit codes: 0 no problems (there may be warnings), 1 problems.
#[derive(Debug, Args)]
pub(super) struct Doctor {
    #[arg(long, value_name = "DIR", help = DATA_HELP)]
    data: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    Ok,
    Warning,
    Problem,
}

impl Level {
    fn label(self) -> &'static str {
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

/// The result of one check.
#[derive(Debug, Serialize)]
struct Finding {
    level: Level,
    #[serde(rename = "about")]
    topic: &'static str,
    #[serde(rename = "what")]
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl Finding {
    fn ok(topic: &'static str, message: impl Into<String>) -> Self {
        Self { level: Level::Ok, topic, message: message.into(), hint: None }
    }

    fn warning(topic: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { level: Level::Warning, topic, message: message.into(), hint: Some(hint.into()) }
    }

    fn problem(topic: &'static str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { level: Level::Problem, topic, message: message.into(), hint: Some(hint.into()) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (colour, label) = (self.level.colour(), self.level.label());
        write!(out, "{colour}{label:7}\u{1b}[0m  {:9}  {}", self.topic, sanitize(&self.message))?;
        match &self.hint {
            Some(hint) => write!(out, " — {}", sanitize(hint)),
            None => Ok(()),
        }
    }
}

impl Doctor {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let home = DataDir::find(self.data.clone()).map_err(CliError::new)?;
        let findings = check(&home).await;
        let at_level = |level| findings.iter().filter(|finding| finding.level == level).count();
        let (warnings, problems) = (at_level(Level::Warning), at_level(Level::Problem));
        if self.json {
            let record = json!({ "findings": findings, "warnings": warnings, "problems": problems });
            output::line(&format!("{record:#}"))?;
        } else {
            print(&findings, warnings, problems)?;
        }
        Ok(if problems == 0 { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILED) })
    }
}

fn print(findings: &[Finding], warnings: usize, problems: usize) -> Result<(), CliError> {
    findings.iter().try_for_each(|finding| output::line(&finding.to_string()))?;
    if warnings + problems == 0 {
        return output::line("no problems found");
    }
    let problems = count(problems, "problem", "problems");
    output::line(&format!("{problems}, {}", count(warnings, "warning", "warnings")))
}

async fn check(home: &DataDir) -> Vec<Finding> {
    let mut findings = directory::check(home);
    let (daemon, is_running) = daemon::check(home).await;
    let (settings, vault) = settings::check(home, is_running);
    findings.extend(settings);
    findings.push(daemon);
    findings.extend(policy::check(home, is_running).await);
    findings.extend(database::check(&home.database(), is_running));
    findings.extend(secrets::check(home, &vault));
    findings.extend(servers::check(home, &vault).await);
    findings.extend(clients::check(home));
    findings
}
