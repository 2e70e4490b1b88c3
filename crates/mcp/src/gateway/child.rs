//! Child processes of stdio servers: environment, standard error, exit and termination.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio_util::sync::CancellationToken;

use super::supervisor;
use crate::limits::{STDERR_CHARS, STDERR_LINES, STOP_MS};
use crate::redact;

/// Environment variables of the daemon that a server inherits.
const INHERITED_ENV: &[&str] = &["PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "USER", "SHELL", "TERM"];

/// The maximum size of a line of standard error, in bytes.
const LINE_BYTES: usize = 4 * STDERR_CHARS;

/// The command line and environment of a server.
pub(super) struct Program {
    pub command: String,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
}

/// The process group of a running server.
pub(super) struct Process {
    group: Pid,
    /// Whether a supervisor ends the descendants when the server's input closes.
    supervised: bool,
    /// Cancelled when the process has ended.
    pub ended: CancellationToken,
    exit: Arc<OnceLock<ExitStatus>>,
    stderr: Stderr,
}

/// The last lines that a process wrote to its standard error.
#[derive(Clone, Default)]
pub(super) struct Stderr(Arc<Mutex<VecDeque<String>>>);

impl Stderr {
    /// The lines of the server, without those of its supervisor.
    pub(super) fn last_lines(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|line| !line.starts_with(supervisor::PREFIX)).cloned().collect()
    }

    /// Why the supervisor could not start the server.
    fn start_error(&self) -> Option<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().rev().find_map(|line| line.strip_prefix(supervisor::PREFIX)).map(str::to_owned)
    }

    fn push(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == STDERR_LINES {
            lines.pop_front();
        }
        lines.push_back(line.chars().filter(|c| !c.is_control()).take(STDERR_CHARS).collect());
    }
}

impl Process {
    /// Starts a program in a new process group, under `supervisor` unless that is empty.
    pub(super) fn start(
        program: &Program,
        supervisor: &[OsString],
        stderr: Stderr,
    ) -> io::Result<(Self, ChildStdout, ChildStdin)> {
        let mut command = match supervisor.split_first() {
            Some((path, arguments)) => {
                let mut command = Command::new(path);
                command.args(arguments).arg("--").arg(&program.command);
                command
            }
            None => Command::new(&program.command),
        };
        command.args(&program.args).env_clear().process_group(0);
        command.envs(INHERITED_ENV.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.envs(&program.env);
        if let Some(cwd) = &program.cwd {
            command.current_dir(cwd);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let gone = || io::Error::other("the process ended immediately");
        let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)).ok_or_else(gone)?;
        let (stdin, stdout) = child.stdin.take().zip(child.stdout.take()).ok_or_else(gone)?;
        let drained = child.stderr.take().map(|pipe| tokio::spawn(read_stderr(pipe, stderr.clone())));
        let (ended, exit) = (CancellationToken::new(), Arc::new(OnceLock::new()));
        let (on_exit, status) = (ended.clone(), exit.clone());
        tokio::spawn(async move {
            let exited = child.wait().await;
            if let Some(drained) = drained {
                // The last lines explain the exit. The wait is bounded because a descendant may keep the pipe open.
                let _ = tokio::time::timeout(Duration::from_millis(STOP_MS / 10), drained).await;
            }
            if let Ok(exited) = exited {
                let _ = status.set(exited);
            }
            on_exit.cancel();
        });
        let supervised = !supervisor.is_empty();
        Ok((Self { group, supervised, ended, exit, stderr }, stdout, stdin))
    }

    /// Why the process ended: its exit code, or why it could not be started.
    pub(super) fn exit_reason(&self) -> String {
        let Some(status) = self.exit.get() else { return "its process ended".to_owned() };
        match (status.code(), self.stderr.start_error()) {
            (Some(supervisor::NOT_STARTED), Some(reason)) if self.supervised => reason,
            (Some(code), _) => format!("its process ended with exit code {code}"),
            (None, _) => "its process was killed by a signal".to_owned(),
        }
    }

    /// Waits for the exit after the input was closed, then kills the remaining processes.
    pub(super) async fn stop(&self) {
        if !self.supervised {
            let _ = kill_process_group(self.group, Signal::TERM);
        }
        let timeout = Duration::from_millis(STOP_MS);
        let _ = tokio::time::timeout(timeout, self.ended.cancelled()).await;
        self.kill();
    }

    fn kill(&self) {
        // A working supervisor kills its descendants itself, also those in other process groups.
        let was_killed = self.exit.get().is_some_and(|exit| exit.code().is_none());
        if !self.supervised || was_killed || !self.ended.is_cancelled() {
            let _ = kill_process_group(self.group, Signal::KILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.supervised {
            self.kill();
        }
    }
}

async fn read_stderr(pipe: ChildStderr, stderr: Stderr) {
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    loop {
        // The rest of an overlong line is dropped.
        let Ok(read) = reader.fill_buf().await else { return };
        if read.is_empty() {
            break;
        }
        let end = read.iter().position(|byte| *byte == b'\n');
        let room = (LINE_BYTES + redact::longest()).saturating_sub(line.len());
        line.extend_from_slice(&read[..end.unwrap_or(read.len()).min(room)]);
        let used = end.map_or(read.len(), |end| end + 1);
        reader.consume(used);
        if end.is_some() {
            stderr.push(&shown(&std::mem::take(&mut line)));
        }
    }
    if !line.is_empty() {
        stderr.push(&shown(&line));
    }
}

/// The start of a line without secrets. A line is read for the length of a secret beyond its limit, so that a secret is
/// recognised as a whole.
fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    redact::start(&text, LINE_BYTES)
}
