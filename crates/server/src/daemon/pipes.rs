//! Sockets in the data directory: how clients of this machine reach the daemon, and how it is started if there is none.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep};

use super::Home;

/// How long a daemon has to come up.
const PATIENCE: Duration = Duration::from_secs(20);

/// Listens on a socket that its owner alone may use. Whoever calls this holds the database, so a socket that is there
/// was left behind.
pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Connects to the daemon's socket. If none answers, a daemon is started with these arguments.
pub(crate) async fn connect(home: &Home, socket: &Path, serve: &[String]) -> Result<UnixStream, String> {
    if let Ok(stream) = UnixStream::connect(socket).await {
        return Ok(stream);
    }
    home.create()?;
    let mut child = start(home, serve).map_err(|error| format!("the daemon cannot be started: {error}"))?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Ok(stream) = UnixStream::connect(socket).await {
            return Ok(stream);
        }
        let ended = child.try_wait().ok().flatten();
        // Another one may have been started at the same moment, and have the database.
        let other = ended.and_then(|status| status.code()) == Some(i32::from(crate::cli::IN_USE));
        if ended.is_some() && !other || Instant::now() > deadline {
            let said = std::fs::read_to_string(home.log()).unwrap_or_default();
            let last: Vec<&str> = said.lines().rev().take(3).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            return Err(format!(
                "the daemon did not start; {} says: {}",
                home.log().display(),
                last.join(" | ")
            ));
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Starts a daemon that outlives this process and its terminal.
fn start(home: &Home, serve: &[String]) -> io::Result<std::process::Child> {
    let log = OpenOptions::new().create(true).append(true).open(home.log())?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("serve").arg("--data").arg(home.path()).args(serve);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
    command.spawn()
}
