//! A server that is a process of ours: its group, its last words, and its end, also after ours.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader, ReadBuf};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio_util::sync::CancellationToken;

use crate::limits::{ANSWER_BYTES, STDERR_CHARS, STDERR_LINES, STOP_MS};

/// Variables that every process needs; nothing else of ours reaches a server.
const PASSED_ON: &[&str] = &["PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "USER", "SHELL", "TERM"];

/// What to run.
pub(super) struct Program {
    pub command: String,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
}

/// A process with everything that it starts.
pub(super) struct Process {
    group: Pid,
    /// Cancelled when the process has ended.
    pub ended: CancellationToken,
    record: Option<PathBuf>,
}

/// The last lines that a process wrote to its standard error.
#[derive(Clone, Default)]
pub(super) struct Words(Arc<Mutex<VecDeque<String>>>);

impl Words {
    pub(super) fn last(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    fn hear(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == STDERR_LINES {
            lines.pop_front();
        }
        lines.push_back(line.chars().filter(|c| !c.is_control()).take(STDERR_CHARS).collect());
    }
}

impl Process {
    /// Starts a program in a group of its own. `words` takes what it says on its standard error.
    pub(super) fn start(
        program: &Program,
        records: Option<&Path>,
        words: Words,
    ) -> io::Result<(Self, Limited<ChildStdout>, ChildStdin)> {
        let mut command = Command::new(&program.command);
        command.args(&program.args).env_clear().process_group(0);
        command.envs(PASSED_ON.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.envs(&program.env);
        if let Some(cwd) = &program.cwd {
            command.current_dir(cwd);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let gone = || io::Error::other("the process ended at once");
        let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)).ok_or_else(gone)?;
        let (stdin, stdout) = child.stdin.take().zip(child.stdout.take()).ok_or_else(gone)?;
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(listen(stderr, words));
        }
        let ended = CancellationToken::new();
        let told = ended.clone();
        tokio::spawn(async move {
            let _ = child.wait().await;
            told.cancel();
        });
        let record = records.and_then(|folder| record(folder, group));
        Ok((Self { group, ended, record }, Limited { inner: stdout, line: 0 }, stdin))
    }

    /// Ends the process and everything that it started: first politely.
    pub(super) async fn stop(&self) {
        let _ = kill_process_group(self.group, Signal::TERM);
        let patience = Duration::from_millis(STOP_MS);
        let _ = tokio::time::timeout(patience, self.ended.cancelled()).await;
        self.kill();
    }

    fn kill(&self) {
        // Also when the process itself is gone: something that it started may hold on to our pipes.
        let _ = kill_process_group(self.group, Signal::KILL);
        if let Some(record) = &self.record {
            let _ = std::fs::remove_file(record);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn listen(stderr: ChildStderr, words: Words) {
    let mut lines = BufReader::new(Limited { inner: stderr, line: 0 }).split(b'\n');
    while let Ok(Some(line)) = lines.next_segment().await {
        words.hear(&String::from_utf8_lossy(&line));
    }
}

/// Remembers a group, so that a later process can end it if we cannot.
fn record(folder: &Path, group: Pid) -> Option<PathBuf> {
    let id = group.as_raw_nonzero().get();
    let path = folder.join(id.to_string());
    std::fs::create_dir_all(folder).ok()?;
    std::fs::write(&path, started(id)?).ok()?;
    Some(path)
}

/// When a process was started, which tells it from another one with the same number.
fn started(id: i32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name, in brackets, may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19).map(str::to_owned)
}

/// Ends what a process that died left behind.
pub(super) fn reap(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let id = entry.file_name().to_string_lossy().parse::<i32>().ok();
        let known = std::fs::read_to_string(entry.path()).ok();
        if let Some(group) = id.filter(|id| known.is_some() && started(*id) == known).and_then(Pid::from_raw)
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = std::fs::remove_file(entry.path());
    }
}

/// What is read from a process, as long as no line of it is too long.
pub(super) struct Limited<R> {
    inner: R,
    line: usize,
}

impl<R: AsyncRead + Unpin> AsyncRead for Limited<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        let new = &buffer.filled()[before..];
        self.line = match new.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => new.len() - end - 1,
            None => self.line + new.len(),
        };
        if self.line > ANSWER_BYTES {
            let message = format!("a message has more than {ANSWER_BYTES} bytes");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, message)));
        }
        read
    }
}
