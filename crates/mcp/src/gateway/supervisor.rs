//! The process between the gateway and a stdio server: it ends the server and all of its descendants when its standard
//! input closes, which the kernel does when the gateway dies.

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

/// The exit code of a supervisor whose server could not be started, as shells have it.
pub(super) const NOT_STARTED: i32 = 127;
/// What the supervisor's own messages on standard error begin with.
pub(super) const PREFIX: &str = "steprail supervisor: ";

enum Happened {
    /// The gateway closed the pipe, or died.
    InputClosed,
    /// The server ended with this exit code.
    ServerEnded(i32),
}

/// Runs a server under supervision; gives its exit code. `command` is the program with its arguments.
///
/// As a child subreaper this process becomes the parent of every orphaned descendant, also of those that left its session,
/// so that none of them escapes.
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
    let (happened, events) = channel();
    if let Some(stdin) = server.stdin.take() {
        let happened = happened.clone();
        std::thread::spawn(move || forward(stdin, &happened));
    }
    let watched = happened.clone();
    std::thread::spawn(move || watch(&watched));
    let pid = server.id();
    std::thread::spawn(move || reap(pid, &happened));
    let code = until_ended(&events);
    kill_descendants(Signal::KILL);
    code
}

/// Copies the gateway's messages to the server until the gateway is gone. The server sees the end of its input then.
fn forward(mut server: ChildStdin, happened: &Sender<Happened>) {
    let mut buffer = [0; 16 * 1024];
    let mut input = std::io::stdin().lock();
    while let Ok(read @ 1..) = input.read(&mut buffer) {
        if server.write_all(&buffer[..read]).and_then(|()| server.flush()).is_err() {
            // The server does not read any more. Its end, or that of the gateway, is still to come.
            while matches!(input.read(&mut buffer), Ok(1..)) {}
            break;
        }
    }
    drop(server);
    let _ = happened.send(Happened::InputClosed);
}

/// Waits until the gateway is gone, also while the server does not read what was sent to it.
fn watch(happened: &Sender<Happened>) {
    let input = std::io::stdin();
    let mut polled = [PollFd::new(&input, PollFlags::empty())];
    while let Ok(_) | Err(Errno::INTR) = poll(&mut polled, None) {
        if polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            let _ = happened.send(Happened::InputClosed);
            return;
        }
    }
}

/// Reaps the server, and orphans that were handed to us.
fn reap(server: u32, happened: &Sender<Happened>) {
    while let Ok(ended) = wait(WaitOptions::empty()) {
        let Some((pid, status)) = ended else { continue };
        if u32::try_from(pid.as_raw_nonzero().get()) == Ok(server) {
            let code =
                status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
            let _ = happened.send(Happened::ServerEnded(code.unwrap_or(1)));
        }
    }
}

/// Waits for the end of the server. Once its input is closed it has some time to end, then it is told to.
fn until_ended(events: &Receiver<Happened>) -> i32 {
    let grace = Duration::from_millis(SUPERVISOR_GRACE_MS);
    match events.recv() {
        Ok(Happened::ServerEnded(code)) => return code,
        Ok(Happened::InputClosed) | Err(_) => {}
    }
    if let Some(code) = ended_within(events, grace) {
        return code;
    }
    kill_descendants(Signal::TERM);
    ended_within(events, grace).unwrap_or(1)
}

fn ended_within(events: &Receiver<Happened>, grace: Duration) -> Option<i32> {
    let until = Instant::now() + grace;
    loop {
        match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Happened::ServerEnded(code)) => return Some(code),
            Ok(Happened::InputClosed) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// Sends a signal to every descendant; `KILL` until there are none, since a process may fork meanwhile.
fn kill_descendants(signal: Signal) {
    let rounds = if signal == Signal::KILL { KILL_ROUNDS } else { 1 };
    for round in 0..rounds {
        let descendants = descendants();
        if descendants.is_empty() {
            return;
        }
        for pid in descendants {
            // It may have ended by itself.
            let _ = kill_process(pid, signal);
        }
        if round + 1 < rounds {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Every process whose chain of parents leads to this one. Zombies are left out: they are only waiting to be reaped.
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
    let mut found = Vec::new();
    let mut left = vec![getpid().as_raw_nonzero().get()];
    while let Some(parent) = left.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            found.extend(Pid::from_raw(child));
            left.push(child);
        }
    }
    found
}

/// The parent of a process, and whether the process is a zombie.
fn parent_of(pid: i32) -> Option<(i32, bool)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?;
    Some((fields.next()?.parse().ok()?, state == "Z"))
}
