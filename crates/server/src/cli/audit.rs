//! `steprail audit`: verifies and exports the log, and signs its head.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use steprail_engine::{Cursor, Reads, RunId, StoredAdminEvent};
use steprail_store::sqlite::{self, HeadState, Verified};

use super::shared::database::DatabaseArgs;
use super::shared::error::CliError;
use super::shared::exit;
use super::terminal::output;
use super::terminal::progress_bar::ProgressBar;
use super::terminal::text::count;
use crate::audit::{self, Checkpoint, SigningKey};

/// Administrative actions that are read at once.
const LOG_PAGE: usize = 1_000;

/// Verify, sign and export the log of runs and administrative actions
#[derive(Debug, Args)]
pub(super) struct Audit {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Verify(Verify),
    Log(Log),
    Head(HeadArgs),
    Key(KeyArgs),
    Export(Export),
}

/// Verify hash chains and stored values
///
/// Reads the database file directly, so it works while the daemon runs and when the daemon cannot start.
///
/// Exit codes: 0 no damage, 1 damage found.
#[derive(Debug, Args)]
struct Verify {
    /// Id of the run [default: all runs]
    run: Option<RunId>,
    #[command(flatten)]
    database: DatabaseArgs,
    /// File with checkpoints of `audit head --json` that the hash chain must contain
    #[arg(long, value_name = "FILE")]
    head: Option<PathBuf>,
    /// Public key that must have signed the checkpoints [default: that of the database]
    #[arg(long, value_name = "HEX", requires = "head")]
    key: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// List administrative actions
///
/// Changes of accounts, definitions, schedules and the policy, sign-ins, restores and purges. Reads the database file.
#[derive(Debug, Args)]
struct Log {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Print the head of the hash chain with a signature
///
/// Keep it on another machine: `audit verify --head FILE` finds a log that was cut or rewritten after it.
#[derive(Debug, Args)]
struct HeadArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Print the public key that verifies checkpoints
#[derive(Debug, Args)]
struct KeyArgs {
    #[command(flatten)]
    database: DatabaseArgs,
}

/// Export the log with its hashes and a checkpoint, one JSON object per line
///
/// `scripts/verify_audit.py` verifies the export without steprail.
#[derive(Debug, Args)]
struct Export {
    #[command(flatten)]
    database: DatabaseArgs,
    /// File to write, which must not exist [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Audit {
    pub(super) fn run(self) -> Result<ExitCode, CliError> {
        match self.action {
            Action::Verify(verify) => verify.run(),
            Action::Log(log) => log.run(),
            Action::Head(head) => head.run(),
            Action::Key(key) => key.run(),
            Action::Export(export) => export.run(),
        }
    }
}

/// Creates a file that only its owner can read: events contain what users wrote.
fn create(file: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)
}

fn signing_key(database: &Path) -> Result<SigningKey, CliError> {
    audit::signing_key(database).map_err(CliError::new)
}

fn checkpoint(database: &Path) -> Result<Checkpoint, CliError> {
    audit::checkpoint(database).map_err(CliError::new)
}

impl Log {
    fn run(self) -> Result<ExitCode, CliError> {
        let database = self.database.existing()?;
        let readers = sqlite::Readers::open(database);
        let mut after = Cursor::START;
        loop {
            let page = readers.admin_events(after, LOG_PAGE)?;
            for stored in &page.events {
                output::line(&self.line(stored))?;
            }
            match page.next {
                Some(next) => after = next,
                None => return Ok(ExitCode::SUCCESS),
            }
        }
    }

    fn line(&self, stored: &StoredAdminEvent) -> String {
        let StoredAdminEvent { seq, at, event, hash, .. } = stored;
        let at = steprail_http::timestamp::format(*at);
        if self.json {
            return json!({ "seq": seq, "at": at, "hash": hash.to_string(), "action": event }).to_string();
        }
        let by = event.by.as_ref().map_or("-", |by| &by.id);
        let agent = if event.by.as_ref().is_some_and(|by| by.agent) { " (agent)" } else { "" };
        let mut subject = json!(event.action);
        subject.as_object_mut().map(|fields| fields.remove("type"));
        format!("{at}  {by}{agent}  {}  {subject}", event.action.name())
    }
}

impl HeadArgs {
    fn run(self) -> Result<ExitCode, CliError> {
        let signed = checkpoint(&self.database.existing()?)?;
        if self.json {
            output::line(&json!(signed).to_string())?;
        } else {
            let Checkpoint { head, key, signature, .. } = &signed;
            output::line(&format!(
                "row {} of database {}, incarnation {}",
                head.row, head.database, head.incarnation
            ))?;
            output::line(&format!("hash       {}", head.hash))?;
            output::line(&format!("signature  {signature}"))?;
            output::line(&format!("key        {key}"))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl KeyArgs {
    fn run(self) -> Result<ExitCode, CliError> {
        output::line(&signing_key(&self.database.existing()?)?.public())?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Export {
    fn run(self) -> Result<ExitCode, CliError> {
        let database = self.database.existing()?;
        let signed = checkpoint(&database)?;
        let failed = |error: io::Error| CliError::new(format!("cannot write the export: {error}"));
        let mut out: Box<dyn Write> = match &self.out {
            Some(file) => Box::new(BufWriter::new(create(file).map_err(failed)?)),
            None => Box::new(BufWriter::new(io::stdout())),
        };
        let mut line = json!(signed);
        line["type"] = json!("checkpoint");
        writeln!(out, "{line}").map_err(failed)?;
        sqlite::export(&database, &mut *out)?;
        out.flush().map_err(failed)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Verify {
    fn run(self) -> Result<ExitCode, CliError> {
        let database = self.database.existing()?;
        let mut bar = ProgressBar::items("checking events");
        let verified = sqlite::verify(&database, self.run, &mut |done, total| {
            bar.set(done, total);
            ControlFlow::Continue(())
        });
        drop(bar);
        let verified = verified?;
        if let Some(run) = self.run.filter(|_| verified.runs == 0) {
            return Err(CliError::new(format!("there is no run {run}")));
        }
        let checkpoints = self.head.as_deref().map(|file| self.checkpoints(file, &database)).transpose()?;
        self.print(&verified, checkpoints.as_ref())?;
        let is_sound = checkpoints.is_none_or(|checkpoints| checkpoints.problems.is_empty());
        Ok(if verified.damages == 0 && is_sound { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILED) })
    }

    /// Verifies the checkpoints of a file.
    fn checkpoints(&self, file: &Path, database: &Path) -> Result<Checkpoints, CliError> {
        let cannot = |error: &dyn Display| CliError::new(format!("cannot read {}: {error}", file.display()));
        let text = std::fs::read_to_string(file).map_err(|error| cannot(&error))?;
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let signed: Vec<Checkpoint> =
            lines.map(serde_json::from_str).collect::<Result<_, _>>().map_err(|error| cannot(&error))?;
        let key = match &self.key {
            Some(key) => key.to_lowercase(),
            None => signing_key(database)?.public(),
        };
        let heads: Vec<_> = signed.iter().map(|signed| signed.head.clone()).collect();
        let mut found = Checkpoints { checkpoints: signed.len(), problems: Vec::new() };
        for (signed, state) in signed.iter().zip(sqlite::compare_heads(database, &heads)?) {
            let row = signed.head.row;
            let problem = match state {
                _ if !signed.is_signed_by(&key) => "wrong signature",
                HeadState::Missing => "the log does not contain it; it was cut or rewritten",
                HeadState::Replaced | HeadState::Contained => continue,
            };
            found.problems.push(format!("checkpoint at row {row}: {problem}"));
        }
        Ok(found)
    }

    fn print(&self, verified: &Verified, checkpoints: Option<&Checkpoints>) -> Result<(), CliError> {
        if self.json {
            let mut printed = json!(verified);
            if let Some(Checkpoints { checkpoints, problems }) = checkpoints {
                printed["checkpoints"] = json!({ "total": checkpoints, "problems": problems });
            }
            return output::line(&format!("{printed:#}"));
        }
        verified.damaged.iter().try_for_each(|damage| output::line(&damage.to_string()))?;
        output::line(&summary(verified))?;
        let Some(Checkpoints { checkpoints, problems }) = checkpoints else { return Ok(()) };
        problems.iter().try_for_each(|problem| output::line(problem))?;
        let all = count(*checkpoints as u64, "checkpoint", "checkpoints");
        output::line(&format!("verified {} of {all}", checkpoints - problems.len()))
    }
}

/// The result of a comparison of checkpoints with a database.
struct Checkpoints {
    /// How many there are.
    checkpoints: usize,
    /// One line for each that is not in order.
    problems: Vec<String>,
}

/// Summarises a verification on one line.
pub(super) fn summary(verified: &Verified) -> String {
    let Verified { runs, events, values, damages, .. } = verified;
    let events = count(*events, "event", "events");
    let values = count(*values, "value", "values");
    let verified = format!("verified {events} and {values} in {}", count(*runs, "run", "runs"));
    match damages {
        0 => verified,
        damages => format!("{verified}: {damages} damaged"),
    }
}
