//! The supervisor process between the gateway and a stdio server. It kills the server and all descendants when its standard
//! input closes, which the operating system does when the gateway dies.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};

use crate::limits::{KILL_ROUNDS, SUPERVISOR_GRACE_MS};

/// Exit code of a supervisor whose server could not be started, the same as in shells.
pub(super) const NOT_STARTED: i32 = 127;
/// Prefix of the supervisor's own messages on standard error.
pub(super) const PREFIX: &str = "steprail supervisor: ";

enum SupervisorEvent {
    /// The gateway closed the pipe, or died.
    InputClosed,
    /// The server ended with this exit code.
    ServerEnded(i32),
}

/// Runs a server under supervision and returns its exit code. `command` is the program with its arguments.
///
/// As a child subreaper, this process becomes the parent of every orphaned descendant, also of those that left the session.
pub fn supervise(command: &[OsString]) -> i32 {
    let Some((program, arguments)) = command.split_first() else { return NOT_STARTED };
    if let Err(error) = set_child_subreaper(Some(getpid())) {
        eprintln!("{PREFIX}cannot become a child subreaper: {error}");
        return NOT_STARTED;
    }
    let spawned = Command::new(program).args(arguments).stdin(Stdio::piped()).spawn();
    let mut server = match spawned {
        Ok(server) => server,
        Err(error) => {
            eprintln!("{PREFIX}`{}` cannot be started: {error}", program.display());
            return NOT_STARTED;
        }
    };
    let (sender, events) = channel();
    if let Some(stdin) = server.stdin.take() {
        let sender = sender.clone();
        std::thread::spawn(move || forward(stdin, &sender));
    }
    let input_watch = sender.clone();
    std::thread::spawn(move || watch_input(&input_watch));
    let pid = server.id();
    std::thread::spawn(move || reap(pid, &sender));
    let code = wait_for_exit(&events);
    kill_descendants(Signal::KILL);
    code
}

/// Copies the gateway's messages to the server until the input closes, then closes the input of the server.
fn forward(mut server: ChildStdin, events: &Sender<SupervisorEvent>) {
    let mut buffer = [0; 16 * 1024];
    let mut input = std::io::stdin().lock();
    while let Ok(read @ 1..) = input.read(&mut buffer) {
        if server.write_all(&buffer[..read]).and_then(|()| server.flush()).is_err() {
            // The server does not read any more. Drain the input until it or the gateway exits.
            while matches!(input.read(&mut buffer), Ok(1..)) {}
            break;
        }
    }
    drop(server);
    let _ = events.send(SupervisorEvent::InputClosed);
}

/// Waits until the input closes. [`forward`] does not notice that while the server does not read.
fn watch_input(events: &Sender<SupervisorEvent>) {
    let input = std::io::stdin();
    let mut polled = [PollFd::new(&input, PollFlags::empty())];
    while let Ok(_) | Err(Errno::INTR) = poll(&mut polled, None) {
        if polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            let _ = events.send(SupervisorEvent::InputClosed);
            return;
        }
    }
}

/// Reaps the server and orphaned descendants.
fn reap(server: u32, events: &Sender<SupervisorEvent>) {
    while let Ok(ended) = wait(WaitOptions::empty()) {
        let Some((pid, status)) = ended else { continue };
        if u32::try_from(pid.as_raw_nonzero().get()) == Ok(server) {
            let code =
                status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
            let _ = events.send(SupervisorEvent::ServerEnded(code.unwrap_or(1)));
        }
    }
}

/// Waits until the server exits. Sends SIGTERM if it does not exit within a grace period after its input closed.
fn wait_for_exit(events: &Receiver<SupervisorEvent>) -> i32 {
    let grace = Duration::from_millis(SUPERVISOR_GRACE_MS);
    match events.recv() {
        Ok(SupervisorEvent::ServerEnded(code)) => return code,
        Ok(SupervisorEvent::InputClosed) | Err(_) => {}
    }
    if let Some(code) = exit_within(events, grace) {
        return code;
    }
    kill_descendants(Signal::TERM);
    exit_within(events, grace).unwrap_or(1)
}

fn exit_within(events: &Receiver<SupervisorEvent>, grace: Duration) -> Option<i32> {
    let deadline = Instant::now() + grace;
    loop {
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(SupervisorEvent::ServerEnded(code)) => return Some(code),
            Ok(SupervisorEvent::InputClosed) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// Sends a signal to every descendant. SIGKILL is repeated until none is left, since processes may fork meanwhile.
fn kill_descendants(signal: Signal) {
    let rounds = if signal == Signal::KILL { KILL_ROUNDS } else { 1 };
    for round in 0..rounds {
        let descendants = descendants();
        if descendants.is_empty() {
            return;
        }
        for pid in descendants {
            // The process may have exited already.
            let _ = kill_process(pid, signal);
        }
        if round + 1 < rounds {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// All descendants of this process, without zombies.
fn descendants() -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if let Some((parent, false)) = parent_of(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut descendants = Vec::new();
    let mut parents = vec![getpid().as_raw_nonzero().get()];
    while let Some(parent) = parents.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            descendants.extend(Pid::from_raw(child));
            parents.push(child);
        }
    }
    descendants
}

/// The parent of a process, and whether the process is a zombie.
fn parent_of(pid: i32) -> Option<(i32, bool)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain any character.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?;
    Some((fields.next()?.parse().ok()?, state == "Z"))
}
