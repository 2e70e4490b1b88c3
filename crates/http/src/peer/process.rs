//! Processes of local peers: their names and ancestors, from `/proc` (Linux). Other systems report nothing, and every check
//! passes.
//!
//! The checks are a best effort: a program can start another one that is no longer its descendant.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The maximum number of ancestors that are looked at.
const ANCESTORS: usize = 64;
/// The maximum number of characters of the path of a program.
const PROGRAM_CHARS: usize = 128;
/// Parents that start programs of people as well as clients of agents. They do not count as clients.
const SHARED_PARENTS: [&str; 13] = [
    "init",
    "systemd",
    "launchd",
    "login",
    "sshd",
    "sh",
    "bash",
    "dash",
    "zsh",
    "fish",
    "su",
    "tmux: server",
    "screen",
];

/// A process. The start time distinguishes it from a later one with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: i32,
    started: u64,
}

/// What `/proc` reports about a process.
struct Stat {
    process: Process,
    parent: i32,
    /// The name of the program.
    name: String,
}

impl Stat {
    #[cfg(target_os = "linux")]
    fn read(pid: i32) -> Option<Self> {
        // The name is in parentheses and may contain any character, also parentheses.
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (head, tail) = text.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = tail.split_whitespace().collect();
        let (parent, started) = (fields.get(1)?.parse().ok()?, fields.get(19)?.parse().ok()?);
        Some(Self { process: Process { pid, started }, parent, name })
    }

    #[cfg(not(target_os = "linux"))]
    fn read(_: i32) -> Option<Self> {
        None
    }
}

/// A process and its ancestors, the nearest first.
fn lineage(pid: i32) -> impl Iterator<Item = Stat> {
    std::iter::successors(Stat::read(pid), |stat| Stat::read(stat.parent)).take(ANCESTORS)
}

/// A process for the log: its id, its program, and its user.
pub(crate) fn describe(pid: i32, os_user: Option<u32>) -> Option<Box<str>> {
    let stat = Stat::read(pid)?;
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let program = program.map_or(stat.name, |program| program.display().to_string());
    let program: String = program.chars().filter(|c| !c.is_control()).take(PROGRAM_CHARS).collect();
    let user = os_user.map(|user| format!(" (uid {user})")).unwrap_or_default();
    Some(format!("{pid} {program}{user}").into())
}

/// The processes of connected MCP clients.
#[derive(Default)]
pub(crate) struct AgentProcesses {
    next: AtomicU64,
    clients: Mutex<HashMap<u64, Vec<Process>>>,
}

/// A connected MCP client. Its processes count until it is dropped.
pub struct ConnectedAgent {
    id: u64,
    of: Arc<AgentProcesses>,
}

impl Drop for ConnectedAgent {
    fn drop(&mut self) {
        self.of.lock().remove(&self.id);
    }
}

impl AgentProcesses {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Vec<Process>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a client: the process that is connected, which is usually the bridge, and the program that started it.
    pub(crate) fn connect(self: &Arc<Self>, pid: Option<i32>) -> ConnectedAgent {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut known = pid.into_iter().flat_map(lineage).take(2);
        let bridge = known.next();
        let client =
            known.next().filter(|stat| stat.process.pid > 1 && !SHARED_PARENTS.contains(&stat.name.as_str()));
        let processes = bridge.into_iter().chain(client).map(|stat| stat.process).collect();
        self.lock().insert(id, processes);
        ConnectedAgent { id, of: self.clone() }
    }

    /// Why a process cannot act as a person: the daemon or a connected MCP client started it, or that is not known.
    pub(crate) fn objection(&self, pid: Option<i32>) -> Option<&'static str> {
        if !cfg!(target_os = "linux") {
            return None;
        }
        let lineage: Vec<Process> = pid.into_iter().flat_map(lineage).map(|stat| stat.process).collect();
        // A program can hand its connection to a child and end. The ancestors of the child are then unknown.
        if lineage.is_empty() {
            return Some("the process that connected has ended or is unknown");
        }
        if lineage.len() == ANCESTORS {
            return Some("it has too many ancestors");
        }
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        if lineage.iter().skip(1).any(|process| process.pid == own) {
            return Some("the daemon started it");
        }
        let clients = self.lock();
        // The order of the clients does not matter.
        #[expect(clippy::iter_over_hash_type, reason = "any client counts")]
        for processes in clients.values() {
            if processes.iter().any(|process| lineage.contains(process)) {
                return Some("an MCP client started it");
            }
        }
        None
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::sync::Arc;

    use super::{AgentProcesses, describe, lineage};

    /// A process that waits for its input to end.
    fn child() -> Child {
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a process")
    }

    fn end(mut child: Child) {
        drop(child.stdin.take());
        child.wait().expect("the end");
    }

    #[test]
    fn descendants_of_the_daemon_are_found() {
        let (own, child) = (std::process::id().cast_signed(), child());
        let pid = child.id().cast_signed();
        let processes = AgentProcesses::default();
        assert_eq!(processes.objection(Some(pid)), Some("the daemon started it"));
        assert_eq!(processes.objection(Some(own)), None, "the daemon itself is no descendant");
        let unknown = Some("the process that connected has ended or is unknown");
        assert_eq!([None, Some(i32::MAX)].map(|pid| processes.objection(pid)), [unknown; 2]);
        let lineage: Vec<i32> = lineage(pid).map(|stat| stat.process.pid).take(2).collect();
        assert_eq!(lineage, [pid, own]);
        assert!(
            describe(pid, Some(7))
                .is_some_and(|text| text.starts_with(&format!("{pid} /")) && text.ends_with("cat (uid 7)"))
        );
        end(child);
    }

    #[test]
    fn client_counts_while_it_is_connected() {
        let processes = Arc::new(AgentProcesses::default());
        let own = std::process::id().cast_signed();
        let client = processes.connect(Some(own));
        assert_eq!(processes.objection(Some(own)), Some("an MCP client started it"));
        drop(client);
        assert_eq!(processes.objection(Some(own)), None);
        drop(processes.connect(None));
    }

    #[test]
    fn descendant_with_many_ancestors_is_refused() {
        // Each shell starts another one. The last one prints its id and waits for its input to end.
        let script = r#"if [ "$1" -gt 0 ]; then sh -c "$0" "$0" $(($1 - 1)); else echo $$; cat; fi; true"#;
        let mut shell = Command::new("sh");
        shell.args(["-c", script, script, "70"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut first = shell.spawn().expect("a shell");
        let mut line = String::new();
        let mut output = BufReader::new(first.stdout.take().expect("its output"));
        output.read_line(&mut line).expect("a line");
        let pid: i32 = line.trim().parse().expect("an id");
        assert_eq!(AgentProcesses::default().objection(Some(pid)), Some("it has too many ancestors"));
        end(first);
    }
}
