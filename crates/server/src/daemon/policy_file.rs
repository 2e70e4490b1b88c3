//! The policy file of a data directory: loaded at the start, and again when it changes.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use steprail_core::diagnostic::{Diagnostic, Severity, render};
use steprail_core::plan::Hash;
use steprail_core::policy::Policy;
use steprail_core::presence::Presence;
use steprail_core::source::Source;
use steprail_engine::{
    AdminAction, AdminEvent, Binding, Engine, Error, PolicyHandle, RowKind, compile_policy,
};
use steprail_http::accounts::PASSKEYS_SUPPORTED;
use tokio_util::sync::CancellationToken;

/// The policy that `steprail init` writes.
const DEFAULT_POLICY: &str = include_str!("default_policy.yaml");

/// Interval between checks for changes.
const INTERVAL: Duration = Duration::from_secs(1);

/// Why a policy file cannot be used.
#[derive(Debug)]
pub(crate) enum PolicyFileError {
    /// It cannot be read.
    Unreadable(String),
    /// It has errors.
    Invalid(Box<Source>, Vec<Diagnostic>),
}

impl PolicyFileError {
    /// The first problem on one line, and the number of problems.
    pub(crate) fn in_short(&self) -> String {
        match self {
            Self::Unreadable(reason) => reason.clone(),
            Self::Invalid(source, problems) => {
                let errors: Vec<&Diagnostic> =
                    problems.iter().filter(|problem| problem.code.severity() == Severity::Error).collect();
                let Some(first) = errors.first() else { return "it is invalid".to_owned() };
                let at = source.position(first.span.start);
                let more = match errors.len() - 1 {
                    0 => String::new(),
                    more => format!(", and {more} more"),
                };
                format!("{}:{}:{}: {}{more}", source.name(), at.line, at.column, first.message)
            }
        }
    }

    /// All problems with their source lines.
    pub(crate) fn render(&self) -> String {
        match self {
            Self::Unreadable(reason) => reason.clone(),
            Self::Invalid(source, problems) => {
                let rendered: Vec<String> =
                    problems.iter().map(|problem| render(problem, source, false)).collect();
                rendered.join("\n\n")
            }
        }
    }
}

/// Writes the default policy. An existing file is never changed.
pub(crate) fn write_default(path: &Path) -> io::Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(DEFAULT_POLICY.as_bytes())
}

/// Loads a policy file; `None` if there is none.
pub(crate) fn load(path: &Path) -> Result<Option<Policy>, PolicyFileError> {
    let unreadable =
        |error: io::Error| PolicyFileError::Unreadable(format!("cannot read {}: {error}", path.display()));
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let source = Source::new(path.display().to_string(), text);
    let (policy, problems) = compile_policy(&source);
    match policy {
        Some(policy) => Ok(Some(policy)),
        None => Err(PolicyFileError::Invalid(Box::new(source), problems)),
    }
}

/// Records in the audit log which policy is in force, unless the log already says so.
pub(crate) async fn record(engine: &Engine, handle: &PolicyHandle) -> Result<(), Error> {
    let policy = handle.current();
    let hash = policy.as_ref().map(|policy| policy.hash());
    let action = match &policy {
        Some(policy) => {
            AdminAction::PolicyLoaded { version: policy.version().to_string(), hash: policy.hash() }
        }
        None => AdminAction::PolicyRemoved {},
    };
    let binding = Binding { kind: RowKind::Setting, id: "policy".to_owned(), hash };
    engine.registry().record(vec![AdminEvent { action, by: None, rows: vec![binding] }]).await
}

/// Replaces the policy when its file changes. A file that is invalid or was deleted leaves the policy as it is: losing the file
/// must not allow calls.
pub(crate) fn watch(path: PathBuf, handle: PolicyHandle, engine: Engine, stop: CancellationToken) {
    tokio::spawn(async move {
        let mut seen = stamp(&path);
        let mut hangup = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).ok();
        loop {
            let forced = tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(INTERVAL) => false,
                () = received(&mut hangup) => true,
            };
            let now = stamp(&path);
            if forced || now != seen {
                seen = now;
                reload(&path, &handle);
                if let Err(error) = record(&engine, &handle).await {
                    tracing::error!(%error, "cannot record the policy in the audit log");
                }
            }
        }
    });
}

async fn received(signal: &mut Option<tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// What changes when a file is written: its time and size, and the hash of a small file.
fn stamp(path: &Path) -> Option<(SystemTime, u64, Option<Hash>)> {
    /// Files up to this size are compared by their contents: the time of a file can be set back.
    const HASHED_BYTES: u64 = 256 * 1024;
    let metadata = std::fs::metadata(path).ok()?;
    let hash =
        (metadata.len() <= HASHED_BYTES).then(|| std::fs::read(path).ok().map(|bytes| Hash::of(&bytes)));
    Some((metadata.modified().ok()?, metadata.len(), hash.flatten()))
}

fn reload(path: &Path, handle: &PolicyHandle) {
    match load(path) {
        Ok(Some(policy)) if !PASSKEYS_SUPPORTED && policy.requires(Presence::Passkey) => {
            let problem =
                "a rule requires a passkey, but this program was built without the feature `passkey`";
            tracing::error!(problem, "the policy was not changed");
            handle.reject(problem);
        }
        Ok(Some(policy)) => {
            tracing::info!(version = &**policy.version(), "the policy was loaded");
            handle.replace(Some(policy));
        }
        Ok(None) if handle.current().is_none() => {}
        Ok(None) => {
            let problem =
                format!("{} was deleted; the last policy stays in force until a restart", path.display());
            tracing::error!(problem, "the policy was not changed");
            handle.reject(problem);
        }
        Err(error) => {
            let problem = error.in_short();
            tracing::error!(problem, "the policy was not changed");
            handle.reject(problem);
        }
    }
}
