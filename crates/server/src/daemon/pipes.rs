//! Sockets in the data directory: how clients of this machine reach the daemon, and how it is started if there is none.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep};

use super::Home;

/// How long a daemon has to come up. The one before may take a while to end.
const PATIENCE: Duration = Duration::from_mins(1);
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// Listens on a socket that its owner alone may use. Whoever calls this holds the database, so a socket that is there
/// was left behind.
pub(super) fn listen(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Bytes of a log that are shown at most.
const LAST_WORDS: usize = 4096;

/// Connects to a daemon that is running.
pub(crate) async fn reach(home: &Home, socket: &Path) -> Result<UnixStream, String> {
    let none = |_| format!("no daemon is running for {}", home.path().display());
    UnixStream::connect(socket).await.map_err(none)
}

/// Connects to the daemon's socket. If none answers, a daemon is started: as the last one was, or with these arguments.
pub(crate) async fn connect(home: &Home, socket: &Path, serve: &[String]) -> Result<UnixStream, String> {
    if let Ok(stream) = reach(home, socket).await {
        return Ok(stream);
    }
    home.create()?;
    let deadline = Instant::now() + PATIENCE;
    let begin = std::fs::metadata(home.log()).map_or(0, |log| log.len());
    let mut child = start(home, serve)?;
    loop {
        if let Ok(stream) = reach(home, socket).await {
            return Ok(stream);
        }
        match child.try_wait().ok().flatten().map(|status| status.code()) {
            // Another one has the database: it comes up, or it is about to end and another one is needed.
            Some(Some(code)) if code == i32::from(crate::cli::IN_USE) => {
                sleep(Duration::from_secs(1)).await;
                child = start(home, serve)?;
            }
            Some(_) => return Err(last_words(home, begin)),
            None if Instant::now() > deadline => return Err(last_words(home, begin)),
            None => sleep(LOOK).await,
        }
    }
}

/// What a daemon that did not start wrote into its log, from a place on.
fn last_words(home: &Home, begin: u64) -> String {
    let said = std::fs::read(home.log()).unwrap_or_default();
    let said = said.get(usize::try_from(begin).unwrap_or(usize::MAX)..).unwrap_or_default();
    let said = &said[said.len().saturating_sub(LAST_WORDS)..];
    let said = String::from_utf8_lossy(said);
    format!("the daemon did not start; {} says:\n{}", home.log().display(), said.trim())
}

/// Starts a daemon that outlives this process and its terminal.
fn start(home: &Home, serve: &[String]) -> Result<Child, String> {
    let started = || {
        let log = OpenOptions::new().create(true).append(true).open(home.log())?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--background", "--data"]).arg(home.path()).args(as_before(home, serve));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0).current_dir("/");
        command.spawn()
    };
    started().map_err(|error: io::Error| format!("the daemon cannot be started: {error}"))
}

/// What the last daemon was told, if this one is told nothing about tools.
fn as_before(home: &Home, serve: &[String]) -> Vec<String> {
    let says = |option: &str| serve.iter().any(|argument| argument == option);
    let before = std::fs::read_to_string(home.settings()).ok();
    let before = before.and_then(|text| serde_json::from_str::<Vec<String>>(&text).ok());
    before.filter(|_| !says("--servers") && !says("--tools")).unwrap_or_else(|| serve.to_vec())
}
