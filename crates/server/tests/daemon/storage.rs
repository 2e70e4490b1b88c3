//! The daemon ends after a fault of its storage that a retry does not heal.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use super::support::steprail;

/// Kills the daemon if the test fails.
struct Process(std::process::Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn daemon_exits_when_its_database_is_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(steprail());
    command.args(["serve", "--listen", "off", "--data"]).arg(folder.path());
    let daemon = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a daemon");
    let mut daemon = Process(daemon);
    let lines = BufReader::new(daemon.0.stdout.take().expect("its output")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "ready"), "the daemon is ready");
    std::fs::remove_file(folder.path().join("steprail.db")).expect("the database");
    // The daemon looks at its files within 5 s, and at each commit.
    let status = daemon.0.wait().expect("an end");
    let mut message = String::new();
    daemon.0.stderr.take().expect("its output").read_to_string(&mut message).expect("text");
    assert_eq!(status.code(), Some(70), "{message}");
    assert!(message.contains("the files of the open database were changed by another program"), "{message}");
    assert!(!folder.path().join("daemon.pid").exists(), "the daemon is gone");
}
