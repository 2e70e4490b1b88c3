//! Unix sockets of the data directory: listening, connecting, and starting a daemon in the background.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep};

use super::{DataDir, private_file};

/// Time that a daemon has to start. It may have to wait for the shutdown of the previous one.
const START_TIMEOUT: Duration = Duration::from_mins(1);
/// Interval between connection attempts while a daemon starts.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Delay before a daemon is started again while another process has the database.
const IN_USE_RETRY: Duration = Duration::from_secs(1);
/// The maximum length of the log excerpt in an error, in bytes.
const EXCERPT_BYTES: usize = 4096;

/// The listeners of a data directory. Clients can connect, and wait until they are served.
pub(crate) struct Sockets {
    pub(super) agents: UnixListener,
    pub(super) human: UnixListener,
}

impl Sockets {
    /// Binds the sockets, for their owner and optionally the group of the process. The caller must hold the database lock.
    pub(crate) fn bind(data_dir: &DataDir, for_group: bool) -> io::Result<Self> {
        let mode = if for_group { 0o660 } else { 0o600 };
        let sockets = Self {
            agents: bind(&data_dir.agents_socket(), mode)?,
            human: bind(&data_dir.human_socket(), mode)?,
        };
        if for_group {
            data_dir.open_sockets_to_group()?;
        }
        Ok(sockets)
    }
}

/// Binds a socket. The database lock excludes other daemons, so an existing file is stale.
fn bind(path: &Path, mode: u32) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

/// Connects to a running daemon.
pub(crate) async fn connect(data_dir: &DataDir, socket: &Path) -> Result<UnixStream, String> {
    let not_running = |_| format!("no daemon is running for {}", data_dir.path().display());
    UnixStream::connect(socket).await.map_err(not_running)
}

/// Connects to the daemon. If none is running, starts one: with the arguments of the last one, or with `serve`.
pub(crate) async fn connect_or_start(
    data_dir: &DataDir,
    socket: &Path,
    serve: &[String],
) -> Result<UnixStream, String> {
    if let Ok(stream) = connect(data_dir, socket).await {
        return Ok(stream);
    }
    data_dir.create()?;
    let deadline = Instant::now() + START_TIMEOUT;
    let log_start = std::fs::metadata(data_dir.log()).map_or(0, |log| log.len());
    let mut child = start(data_dir, serve)?;
    loop {
        if let Ok(stream) = connect(data_dir, socket).await {
            return Ok(stream);
        }
        match child.try_wait().ok().flatten().map(|status| status.code()) {
            // Another daemon has the database. It is either starting or about to end.
            Some(Some(code)) if code == i32::from(crate::cli::IN_USE) => {
                sleep(IN_USE_RETRY).await;
                child = start(data_dir, serve)?;
            }
            Some(_) => return Err(start_failed(data_dir, log_start)),
            None if Instant::now() > deadline => return Err(start_failed(data_dir, log_start)),
            None => sleep(POLL_INTERVAL).await,
        }
    }
}

/// The error for a daemon that did not start, with its log after an offset.
fn start_failed(data_dir: &DataDir, log_start: u64) -> String {
    let log = std::fs::read(data_dir.log()).unwrap_or_default();
    let log = log.get(usize::try_from(log_start).unwrap_or(usize::MAX)..).unwrap_or_default();
    let excerpt = String::from_utf8_lossy(&log[log.len().saturating_sub(EXCERPT_BYTES)..]);
    format!("the daemon did not start; from {}:\n{}", data_dir.log().display(), excerpt.trim())
}

/// Starts a daemon that outlives this process and its terminal.
fn start(data_dir: &DataDir, serve: &[String]) -> Result<Child, String> {
    let spawn = || {
        let log = private_file::open(&data_dir.log(), OpenOptions::new().append(true))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--background", "--data"]).arg(data_dir.path());
        command.args(serve_arguments(data_dir, serve));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0).current_dir("/");
        command.spawn()
    };
    spawn().map_err(|error: io::Error| format!("cannot start the daemon: {error}"))
}

/// The arguments of the last daemon, unless `serve` names the tools.
fn serve_arguments(data_dir: &DataDir, serve: &[String]) -> Vec<String> {
    let has = |option: &str| serve.iter().any(|argument| argument == option);
    let last = std::fs::read_to_string(data_dir.serve_arguments()).ok();
    let last = last.and_then(|text| serde_json::from_str::<Vec<String>>(&text).ok());
    last.filter(|_| !has("--servers") && !has("--tools")).unwrap_or_else(|| serve.to_vec())
}
